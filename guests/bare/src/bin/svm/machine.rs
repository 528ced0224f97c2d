//! A VMCB whose guest is this program's own code.

use core::arch::asm;

use satori_guests::cpu::selector;
use satori_guests::{insn, paging};

/// Offsets into the VMCB (APM volume 2, appendix B).
pub mod at {
    pub const CR: usize = 0x000;
    pub const DR: usize = 0x004;
    pub const EXCEPTIONS: usize = 0x008;
    pub const THIRD: usize = 0x00c;
    pub const FOURTH: usize = 0x010;
    pub const PAUSES: usize = 0x03c;
    pub const IO_MAP: usize = 0x040;
    pub const MSR_MAP: usize = 0x048;
    pub const TSC_OFFSET: usize = 0x050;
    pub const ASID: usize = 0x058;
    pub const TLB: usize = 0x05c;
    pub const CONTROL: usize = 0x060;
    pub const SHADOW: usize = 0x068;
    pub const CODE: usize = 0x070;
    pub const INFO1: usize = 0x078;
    pub const INFO2: usize = 0x080;
    pub const EXIT_EVENT: usize = 0x088;
    pub const NESTED: usize = 0x090;
    pub const INJECT: usize = 0x0a8;
    pub const NESTED_CR3: usize = 0x0b0;
    pub const NEXT_RIP: usize = 0x0c8;
    pub const SEGMENTS: usize = 0x400;
    pub const EFER: usize = 0x4d0;
    pub const CR4: usize = 0x548;
    pub const CR3: usize = 0x550;
    pub const CR0: usize = 0x558;
    pub const DR7: usize = 0x560;
    pub const DR6: usize = 0x568;
    pub const RFLAGS: usize = 0x570;
    pub const RIP: usize = 0x578;
    pub const RSP: usize = 0x5d8;
    pub const RAX: usize = 0x5f8;
    pub const PAT: usize = 0x668;
}

const EFER: u32 = 0xc000_0080;
pub const SVME: u64 = 1 << 12;

/// Memory of a hypervisor.
pub struct Machine {
    /// The VMCB.
    pub vmcb: u64,
    /// Three pages, of zeros at first: the map of ports, or of MSRs.
    pub map: u64,
    /// The guest's code.
    pub code: u64,
    /// Behind the guest's stack.
    pub stack: u64,
}

impl Machine {
    /// Turns SVM on, with a VMCB that is fine.
    pub fn new() -> Machine {
        let first: [u64; 3] = core::array::from_fn(|_| paging::page());
        let [vmcb, code, stack] = core::array::from_fn(|_| paging::page());
        let map = first.into_iter().min().unwrap_or(vmcb);
        let machine = Machine { vmcb, map, code, stack: stack + 4096 };
        insn::wrmsr(EFER, insn::rdmsr(EFER) | SVME);
        machine.fresh();
        machine
    }

    /// Turns it off.
    pub fn end(self) {
        insn::wrmsr(EFER, insn::rdmsr(EFER) & !SVME);
    }

    /// A field of 64 bits.
    pub fn get(&self, at: usize) -> u64 {
        // SAFETY: the page is this machine's.
        unsafe { ((self.vmcb + at as u64) as *const u64).read_volatile() }
    }

    /// Sets one.
    pub fn set(&self, at: usize, value: u64) {
        // SAFETY: as above.
        unsafe { ((self.vmcb + at as u64) as *mut u64).write_volatile(value) };
    }

    /// Sets bits of one of 32.
    pub fn with(&self, at: usize, bits: u32) {
        // SAFETY: as above.
        unsafe {
            let word = (self.vmcb + at as u64) as *mut u32;
            word.write_volatile(word.read_volatile() | bits);
        }
    }

    fn segment(&self, index: usize, [selector, attributes]: [u16; 2], limit: u32, base: u64) {
        let rest = u64::from(selector) | u64::from(attributes) << 16 | u64::from(limit) << 32;
        self.set(at::SEGMENTS + 16 * index, rest);
        self.set(at::SEGMENTS + 16 * index + 8, base);
    }

    /// Fills the VMCB anew. The guest shuts down into its host's hands.
    pub fn fresh(&self) {
        for offset in (0..0x700).step_by(8) {
            self.set(offset, 0);
        }
        self.with(at::THIRD, 1 << 31 | 1 << 18);
        self.with(at::FOURTH, 1);
        self.with(at::ASID, 1);
        self.with(at::TLB, 1);
        for (offset, value) in [
            (at::EFER, insn::rdmsr(EFER)),
            (at::CR0, insn::cr0()),
            (at::CR3, insn::cr3()),
            (at::CR4, insn::cr4()),
            (at::DR6, 0xffff_0ff0),
            (at::DR7, 0x400),
            (at::RFLAGS, 2),
            (at::RIP, self.code),
            (at::RSP, self.stack),
            (at::IO_MAP, self.map),
            (at::MSR_MAP, self.map),
            (at::PAT, 0x0007_0406_0007_0406),
        ] {
            self.set(offset, value);
        }
        self.segment(1, [selector::CODE, 0xa9b], u32::MAX, 0);
        for index in [0, 2, 3] {
            self.segment(index, [selector::DATA, 0xc93], u32::MAX, 0);
        }
        let (gdt, idt) = (insn::sgdt(), insn::sidt());
        self.segment(6, [0; 2], gdt.limit.into(), gdt.base);
        self.segment(8, [0; 2], idt.limit.into(), idt.base);
    }

    /// Gives the guest `code`.
    pub fn load(&self, code: &[u8]) {
        // SAFETY: the page is this machine's, and the code is short.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), self.code as *mut u8, code.len()) };
    }

    /// Lets the guest execute `code`; the exit's code.
    pub fn run(&self, code: &[u8]) -> u64 {
        self.load(code);
        self.enter();
        self.get(at::CODE)
    }

    /// VMRUN, with GIF clear around it.
    pub fn enter(&self) {
        self.enter_and_hold();
        // SAFETY: the guest owns its machine.
        unsafe { asm!("stgi") };
    }

    /// As [`Machine::enter`], with interrupts open at VMRUN: with virtual masking they are those that leave the guest.
    pub fn enter_open(&self) {
        // SAFETY: the guest owns its machine.
        unsafe { asm!("clgi", "sti") };
        self.enter_and_hold();
        // SAFETY: as above.
        unsafe { asm!("cli", "stgi") };
    }

    /// As [`Machine::enter`], with GIF clear behind it.
    pub fn enter_and_hold(&self) {
        // SAFETY: all registers that a guest may change are given up; VMRUN gives RAX and RSP back.
        unsafe {
            asm!(
                "push rbx", "push rbp", "clgi", "vmrun rax", "pop rbp", "pop rbx",
                inout("rax") self.vmcb => _,
                out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            );
        }
    }
}
