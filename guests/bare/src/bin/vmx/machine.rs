//! VMX's instructions, and a VMCS whose guest is this program's own code.

use core::arch::asm;

use satori_guests::cpu::{Cpu, selector};
use satori_guests::{insn, paging};

/// Encodings of fields (SDM appendix B).
pub mod field {
    pub const POSTED_VECTOR: u32 = 0x0002;
    pub const GUEST_SELECTORS: u32 = 0x800;
    pub const INTERRUPT_STATUS: u32 = 0x810;
    pub const HOST_SELECTORS: u32 = 0xc00;
    pub const MSR_BITMAP: u32 = 0x2004;
    pub const ENTRY_MSR_LOAD: u32 = 0x200a;
    pub const VIRTUAL_APIC: u32 = 0x2012;
    pub const APIC_ACCESS: u32 = 0x2014;
    pub const POSTED_DESCRIPTOR: u32 = 0x2016;
    pub const EPTP: u32 = 0x201a;
    pub const EOI_EXITS: u32 = 0x201c;
    pub const VMREAD_BITMAP: u32 = 0x2026;
    pub const VMWRITE_BITMAP: u32 = 0x2028;
    pub const GUEST_PHYSICAL: u32 = 0x2400;
    pub const LINK_POINTER: u32 = 0x2800;
    pub const GUEST_EFER: u32 = 0x2806;
    pub const HOST_PAT: u32 = 0x2c00;
    pub const HOST_EFER: u32 = 0x2c02;
    pub const PIN: u32 = 0x4000;
    pub const PROC: u32 = 0x4002;
    pub const EXCEPTIONS: u32 = 0x4004;
    pub const CR3_TARGETS: u32 = 0x400a;
    pub const EXIT: u32 = 0x400c;
    pub const ENTRY: u32 = 0x4012;
    pub const ENTRY_MSR_COUNT: u32 = 0x4014;
    pub const INJECTION: u32 = 0x4016;
    pub const INJECTION_CODE: u32 = 0x4018;
    pub const INJECTION_LENGTH: u32 = 0x401a;
    pub const TPR_THRESHOLD: u32 = 0x401c;
    pub const PROC2: u32 = 0x401e;
    pub const PLE_GAP: u32 = 0x4020;
    pub const PLE_WINDOW: u32 = 0x4022;
    pub const ERROR: u32 = 0x4400;
    pub const REASON: u32 = 0x4402;
    pub const INTERRUPTION: u32 = 0x4404;
    pub const VECTORING: u32 = 0x4408;
    pub const LENGTH: u32 = 0x440c;
    pub const GUEST_LIMITS: u32 = 0x4800;
    pub const GUEST_RIGHTS: u32 = 0x4814;
    pub const INTERRUPTIBILITY: u32 = 0x4824;
    pub const ACTIVITY: u32 = 0x4826;
    pub const TIMER: u32 = 0x482e;
    pub const QUALIFICATION: u32 = 0x6400;
    pub const GUEST_CR0: u32 = 0x6800;
    pub const GUEST_CR3: u32 = 0x6802;
    pub const GUEST_CR4: u32 = 0x6804;
    pub const GUEST_BASES: u32 = 0x6806;
    pub const GUEST_DR7: u32 = 0x681a;
    pub const GUEST_RSP: u32 = 0x681c;
    pub const GUEST_RIP: u32 = 0x681e;
    pub const GUEST_RFLAGS: u32 = 0x6820;
    pub const PENDING_DEBUG: u32 = 0x6822;
    pub const HOST_CR0: u32 = 0x6c00;
    pub const HOST_CR3: u32 = 0x6c02;
    pub const HOST_CR4: u32 = 0x6c04;
    pub const HOST_FS_BASE: u32 = 0x6c06;
    pub const HOST_TR_BASE: u32 = 0x6c0a;
    pub const HOST_GDTR_BASE: u32 = 0x6c0c;
    pub const HOST_IDTR_BASE: u32 = 0x6c0e;
    pub const HOST_RSP: u32 = 0x6c14;
    pub const HOST_RIP: u32 = 0x6c16;
}

/// What an instruction of VMX left in RFLAGS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// VMsucceed.
    Fine,
    /// VMfailInvalid.
    Invalid,
    /// VMfailValid with this error number.
    Error(u64),
}

/// CF and ZF as they were behind the instruction.
fn outcome(flags: u64) -> Outcome {
    match (flags & 1 != 0, flags & 0x40 != 0) {
        (true, _) => Outcome::Invalid,
        (_, true) => Outcome::Error(read(field::ERROR).unwrap_or(u64::MAX)),
        _ => Outcome::Fine,
    }
}

macro_rules! pointed {
    ($($(#[$doc:meta])* $name:ident $instruction:literal;)*) => { $(
        $(#[$doc])*
        pub fn $name(address: u64) -> Outcome {
            let flags: u64;
            // SAFETY: the guest owns its machine.
            unsafe { asm!(concat!($instruction, " [{}]"), "pushfq", "pop {}", in(reg) &address, lateout(reg) flags) };
            outcome(flags)
        }
    )* };
}

pointed! {
    /// VMXON.
    vmxon "vmxon";
    /// VMCLEAR.
    vmclear "vmclear";
    /// VMPTRLD.
    vmptrld "vmptrld";
}

/// VMXOFF.
pub fn vmxoff() {
    // SAFETY: as above.
    unsafe { asm!("vmxoff") };
}

/// VMREAD; nothing if it fails.
pub fn read(field: u32) -> Option<u64> {
    let (value, flags): (u64, u64);
    // SAFETY: as above.
    unsafe {
        asm!("vmread {}, {}", "pushfq", "pop {}", out(reg) value, in(reg) u64::from(field), lateout(reg) flags)
    };
    (flags & 0x41 == 0).then_some(value)
}

/// VMWRITE.
pub fn write(field: u32, value: u64) -> Outcome {
    let flags: u64;
    // SAFETY: as above.
    unsafe {
        asm!("vmwrite {}, {}", "pushfq", "pop {}", in(reg) u64::from(field), in(reg) value, lateout(reg) flags)
    };
    outcome(flags)
}

/// INVEPT and INVVPID of a type, with a descriptor.
pub fn invalidate(ept: bool, kind: u64, descriptor: [u64; 2]) -> Outcome {
    let flags: u64;
    // SAFETY: as above.
    unsafe {
        if ept {
            asm!("invept {}, [{}]", "pushfq", "pop {}", in(reg) kind, in(reg) &descriptor, lateout(reg) flags);
        } else {
            asm!("invvpid {}, [{}]", "pushfq", "pop {}", in(reg) kind, in(reg) &descriptor, lateout(reg) flags);
        }
    }
    outcome(flags)
}

/// VMLAUNCH or VMRESUME: nothing if there was an exit.
pub fn enter(launch: bool) -> Option<Outcome> {
    let (flags, left): (u64, u64);
    // SAFETY: all registers that a guest may change are given up, and the exit comes back here.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "mov r8d, {host_rsp}",
            "vmwrite r8, rsp",
            "lea r9, [rip + 3f]",
            "mov r8d, {host_rip}",
            "vmwrite r8, r9",
            "test rdi, rdi",
            "jz 2f",
            "vmlaunch",
            "jmp 4f",
            "2:",
            "vmresume",
            "4:",
            "pushfq",
            "pop rax",
            "xor ecx, ecx",
            "jmp 5f",
            "3:",
            "mov ecx, 1",
            "xor eax, eax",
            "5:",
            "pop rbp",
            "pop rbx",
            host_rsp = const field::HOST_RSP,
            host_rip = const field::HOST_RIP,
            inout("rdi") u64::from(launch) => _,
            out("rax") flags, out("rcx") left, out("rdx") _, out("rsi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    (left == 0).then(|| outcome(flags))
}

/// Capability register `number`: which bits must be one, which may be.
pub fn capability(number: u32) -> (u64, u64) {
    let value = insn::rdmsr(number);
    (value & 0xffff_ffff, value >> 32)
}

/// Memory of a hypervisor.
pub struct Machine {
    /// The VMXON region.
    pub region: u64,
    /// The VMCS.
    pub vmcs: u64,
    /// A page of zeros: MSR bitmap.
    pub bitmap: u64,
    /// The guest's code.
    pub code: u64,
    /// Behind the guest's stack.
    pub stack: u64,
}

const VMXE: u64 = 1 << 13;

impl Machine {
    /// Enters VMX operation, with a VMCS that is current and of which every check holds.
    pub fn new() -> Machine {
        let [region, vmcs, bitmap, code, stack] = core::array::from_fn(|_| paging::page());
        let machine = Machine { region, vmcs, bitmap, code, stack: stack + 4096 };
        insn::set_cr0(insn::cr0() | 0x20);
        insn::set_cr4(insn::cr4() | VMXE);
        let revision = insn::rdmsr(0x480) as u32;
        for page in [region, vmcs] {
            // SAFETY: the page is this machine's.
            unsafe { (page as *mut u32).write_volatile(revision) };
        }
        vmxon(region);
        machine.fresh();
        machine
    }

    /// Ends VMX operation.
    pub fn end(self) {
        vmxoff();
        insn::set_cr4(insn::cr4() & !VMXE);
    }

    /// Fills the VMCS anew, launch state clear.
    pub fn fresh(&self) {
        vmclear(self.vmcs);
        vmptrld(self.vmcs);
        for number in (0..0x28).step_by(2) {
            // Whatever an entry before left; those that there are not fail.
            write(0x2000 + number, 0);
            write(0x4000 + number, 0);
        }
        self.controls();
        self.host();
        self.guest();
    }

    fn controls(&self) {
        let must = |number| capability(number).0;
        write(field::PIN, must(0x48d));
        write(field::PROC, must(0x48e) & !0x1_8000 | 1 << 31 | 1 << 28);
        write(field::PROC2, 1 << 3 | 1 << 12 | 1 << 20);
        write(field::EXIT, must(0x48f) | 1 << 9 | 1 << 20 | 1 << 21);
        write(field::ENTRY, must(0x490) | 1 << 9 | 1 << 15);
        write(field::MSR_BITMAP, self.bitmap);
        write(field::EXCEPTIONS, 0);
        write(field::LINK_POINTER, u64::MAX);
    }

    fn host(&self) {
        let cpu = Cpu::this();
        write(field::HOST_CR0, insn::cr0());
        write(field::HOST_CR3, insn::cr3());
        write(field::HOST_CR4, insn::cr4());
        write(field::HOST_EFER, insn::rdmsr(0xc000_0080));
        for index in 0..7 {
            let value = match index {
                1 => selector::CODE,
                6 => selector::TSS,
                _ => selector::DATA,
            };
            write(field::HOST_SELECTORS + 2 * index, value.into());
        }
        write(field::HOST_FS_BASE, insn::rdmsr(0xc000_0100));
        write(field::HOST_FS_BASE + 2, insn::rdmsr(0xc000_0101));
        write(field::HOST_TR_BASE, &raw const cpu.tss as u64);
        write(field::HOST_GDTR_BASE, insn::sgdt().base);
        write(field::HOST_IDTR_BASE, insn::sidt().base);
    }

    fn guest(&self) {
        write(field::GUEST_CR0, insn::cr0());
        write(field::GUEST_CR3, insn::cr3());
        write(field::GUEST_CR4, insn::cr4());
        write(field::GUEST_EFER, insn::rdmsr(0xc000_0080));
        for index in 0..8 {
            let (selector, rights, limit) = match index {
                1 => (selector::CODE, 0xa09b, u32::MAX),
                6 => (0, 1 << 16, 0),
                7 => (selector::TSS, 0x8b, 0x67),
                _ => (selector::DATA, 0xc093, u32::MAX),
            };
            write(field::GUEST_SELECTORS + 2 * index, selector.into());
            write(field::GUEST_RIGHTS + 2 * index, rights);
            write(field::GUEST_LIMITS + 2 * index, limit.into());
            write(field::GUEST_BASES + 2 * index, 0);
        }
        let (gdt, idt) = (insn::sgdt(), insn::sidt());
        write(field::GUEST_LIMITS + 0x10, gdt.limit.into());
        write(field::GUEST_LIMITS + 0x12, idt.limit.into());
        write(field::GUEST_BASES + 0x10, gdt.base);
        write(field::GUEST_BASES + 0x12, idt.base);
        write(field::GUEST_DR7, 0x400);
        write(field::GUEST_RSP, self.stack);
        write(field::GUEST_RIP, self.code);
        write(field::GUEST_RFLAGS, 2);
        write(field::PENDING_DEBUG, 0);
        write(field::INTERRUPTIBILITY, 0);
        write(field::ACTIVITY, 0);
    }

    /// Lets the guest execute `code`; the exit's reason, or why there was no entry.
    pub fn run(&self, code: &[u8]) -> Result<u64, Outcome> {
        // SAFETY: the page is this machine's, and the code is short.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), self.code as *mut u8, code.len()) };
        match enter(true) {
            Some(outcome) => Err(outcome),
            None => Ok(read(field::REASON).unwrap_or(u64::MAX)),
        }
    }
}
