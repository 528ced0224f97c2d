//! A hypervisor on Hyper-V: its assist page, enlightened VMCSs (TLFS, HV_VMX_ENLIGHTENED_VMCS), and entries by them. There is no
//! VMREAD and no VMWRITE here.

use core::arch::asm;

use satori_guests::cpu::{Cpu, selector};
use satori_guests::defs::hyperv::{PAGE_ENABLE, assist, msr};
use satori_guests::place::{load, store};
use satori_guests::{insn, paging};

/// Offsets in the enlightened VMCS.
pub mod at {
    pub const REVISION: u64 = 0;
    pub const HOST_SELECTORS: u64 = 8;
    pub const HOST_EFER: u64 = 0x20;
    pub const HOST_CR0: u64 = 0x28;
    pub const HOST_RIP: u64 = 0x50;
    pub const HOST_SYSENTER_CS: u64 = 0x58;
    pub const PIN: u64 = 0x5c;
    pub const EXIT: u64 = 0x60;
    pub const PROC2: u64 = 0x64;
    pub const IO_BITMAP_A: u64 = 0x68;
    pub const IO_BITMAP_B: u64 = 0x70;
    pub const MSR_BITMAP: u64 = 0x78;
    pub const GUEST_SELECTORS: u64 = 0x80;
    pub const GUEST_LIMITS: u64 = 0x90;
    pub const GUEST_RIGHTS: u64 = 0xb8;
    pub const GUEST_BASES: u64 = 0xd8;
    pub const TSC_OFFSET: u64 = 0x190;
    pub const LINK_POINTER: u64 = 0x1a0;
    pub const GUEST_EFER: u64 = 0x1b8;
    pub const GUEST_SYSENTER_ESP: u64 = 0x1e8;
    pub const ACTIVITY: u64 = 0x1f8;
    pub const CR4_MASK: u64 = 0x208;
    pub const CR4_SHADOW: u64 = 0x218;
    pub const GUEST_CR0: u64 = 0x220;
    pub const GUEST_CR3: u64 = 0x228;
    pub const GUEST_DR7: u64 = 0x238;
    pub const HOST_FS_BASE: u64 = 0x240;
    pub const HOST_TR_BASE: u64 = 0x250;
    pub const HOST_RSP: u64 = 0x268;
    pub const EPTP: u64 = 0x270;
    pub const VPID: u64 = 0x278;
    pub const ERROR: u64 = 0x2b0;
    pub const REASON: u64 = 0x2b4;
    pub const INTERRUPTION: u64 = 0x2b8;
    pub const LENGTH: u64 = 0x2c8;
    pub const QUALIFICATION: u64 = 0x2d0;
    pub const GUEST_RSP: u64 = 0x300;
    pub const GUEST_RFLAGS: u64 = 0x308;
    pub const PROC: u64 = 0x314;
    pub const EXCEPTIONS: u64 = 0x318;
    pub const ENTRY: u64 = 0x31c;
    pub const INJECTION: u64 = 0x320;
    pub const GUEST_RIP: u64 = 0x330;
    pub const CLEAN: u64 = 0x338;
    pub const ENLIGHTENMENTS: u64 = 0x344;
    pub const VP_ID: u64 = 0x348;
    pub const VM_ID: u64 = 0x350;
    pub const PARTITION_ASSIST: u64 = 0x358;
    /// Bytes of the structure.
    pub const END: u64 = 0x400;
}

/// Behind the structure, in its page: where the hypervisor's stack pointer is while its guest runs.
const STACK: u64 = 0x800;
const VMXE: u64 = 1 << 13;

/// Why there was no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// VMfailInvalid.
    Invalid,
    /// VMfailValid, with the error number that the structure has.
    Error(u32),
}

/// What an instruction of VMX left in RFLAGS: whether it succeeded.
pub fn fine(flags: u64) -> bool {
    flags & 0x41 == 0
}

/// VMCLEAR; whether it succeeded.
pub fn vmclear(address: u64) -> bool {
    let flags: u64;
    // SAFETY: the guest owns its machine.
    unsafe { asm!("vmclear [{}]", "pushfq", "pop {}", in(reg) &address, lateout(reg) flags) };
    fine(flags)
}

/// VMREAD of the exit's reason; whether it succeeded.
pub fn vmread() -> bool {
    let flags: u64;
    // SAFETY: as above.
    unsafe { asm!("vmread {}, {}", "pushfq", "pop {}", out(reg) _, in(reg) 0x4402_u64, lateout(reg) flags) };
    fine(flags)
}

/// Registers of a guest that an exit leaves where they were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rdi: u64,
}

/// VMLAUNCH or VMRESUME by the structure at `page`; RFLAGS if that failed.
#[inline(never)]
fn enter(page: u64, launch: bool, registers: &mut Registers) -> Option<u64> {
    let (flags, left): (u64, u64);
    // SAFETY: all registers that a guest may change are given up, and the exit comes back here.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "mov [r8 + {stack}], rsp",
            "lea r9, [r8 + {stack}]",
            "mov [r8 + {host_rsp}], r9",
            "lea r9, [rip + 3f]",
            "mov [r8 + {host_rip}], r9",
            "test rsi, rsi",
            "jz 2f",
            "vmlaunch",
            "jmp 4f",
            "2:",
            "vmresume",
            "4:",
            "pushfq",
            "pop r9",
            "xor esi, esi",
            "jmp 5f",
            "3:",
            "mov rsp, [rsp]",
            "mov esi, 1",
            "xor r9d, r9d",
            "5:",
            "pop rbp",
            "pop rbx",
            stack = const STACK,
            host_rsp = const at::HOST_RSP,
            host_rip = const at::HOST_RIP,
            inout("rax") registers.rax, inout("rcx") registers.rcx, inout("rdx") registers.rdx,
            inout("rdi") registers.rdi, inout("rsi") u64::from(launch) => left,
            inout("r8") page => _, out("r9") flags,
            out("r10") _, out("r11") _, out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    (left == 0).then_some(flags)
}

/// An enlightened VMCS.
#[derive(Clone, Copy, Debug)]
pub struct Vmcs {
    pub page: u64,
}

/// A hypervisor on one virtual processor.
pub struct Machine {
    pub assist: u64,
    pub vmcs: Vmcs,
    /// A page of zeros: MSRs and ports that do not exit.
    pub passes: u64,
    /// Behind the guest's stack.
    pub stack: u64,
}

impl Vmcs {
    /// With these pages for the guest's ports and MSRs, and for its stack.
    fn new() -> Vmcs {
        Vmcs { page: paging::page() }
    }

    pub fn get32(self, offset: u64) -> u32 {
        load(self.page + offset)
    }

    pub fn get(self, offset: u64) -> u64 {
        load(self.page + offset)
    }

    pub fn set16(self, offset: u64, value: u16) {
        store(self.page + offset, value);
    }

    pub fn set32(self, offset: u64, value: u32) {
        store(self.page + offset, value);
    }

    pub fn set(self, offset: u64, value: u64) {
        store(self.page + offset, value);
    }

    /// Sets bits of a word of controls.
    pub fn with(self, offset: u64, bits: u32) {
        self.set32(offset, self.get32(offset) | bits);
    }

    /// What an exit told.
    pub fn reason(self) -> u32 {
        self.get32(at::REASON)
    }
}

impl Machine {
    /// Enters VMX operation, with an assist page that names an enlightened VMCS of which every check holds.
    pub fn new() -> Machine {
        let [region, assist, passes, stack] = core::array::from_fn(|_| paging::page());
        insn::set_cr0(insn::cr0() | 0x20);
        insn::set_cr4(insn::cr4() | VMXE);
        store(region, insn::rdmsr(0x480) as u32);
        // SAFETY: the guest owns its machine.
        unsafe { asm!("vmxon [{}]", in(reg) &region) };
        let machine = Machine { assist, vmcs: Vmcs::new(), passes, stack: stack + 4096 };
        insn::wrmsr(msr::VP_ASSIST_PAGE, assist | PAGE_ENABLE);
        store(assist + assist::ENLIGHTEN_VM_ENTRY, 1_u8);
        machine.fresh();
        machine
    }

    /// Ends VMX operation.
    pub fn end(self) {
        vmclear(self.vmcs.page);
        // SAFETY: as above.
        unsafe { asm!("vmxoff") };
        insn::set_cr4(insn::cr4() & !VMXE);
        insn::wrmsr(msr::VP_ASSIST_PAGE, 0);
    }

    /// The structure at `page` is the one that entries take.
    pub fn name(&self, page: u64) {
        store(self.assist + assist::CURRENT_NESTED_VMCS, page);
    }

    /// Fills the structure anew, and names it; nothing is clean.
    pub fn fresh(&self) {
        (0..at::END).step_by(8).for_each(|offset| self.vmcs.set(offset, 0));
        self.name(self.vmcs.page);
        self.vmcs.set32(at::REVISION, 1);
        self.controls();
        self.host();
        self.guest();
    }

    fn controls(&self) {
        let (vmcs, must) = (self.vmcs, |number| insn::rdmsr(number) as u32);
        vmcs.set32(at::PIN, must(0x48d));
        vmcs.set32(at::PROC, must(0x48e) & !0x1_8000 | 1 << 31 | 1 << 28);
        vmcs.set32(at::PROC2, 1 << 3 | 1 << 12 | 1 << 20);
        vmcs.set32(at::EXIT, must(0x48f) | 1 << 9 | 1 << 20 | 1 << 21);
        vmcs.set32(at::ENTRY, must(0x490) | 1 << 9 | 1 << 15);
        vmcs.set(at::MSR_BITMAP, self.passes);
        vmcs.set(at::IO_BITMAP_A, self.passes);
        vmcs.set(at::IO_BITMAP_B, self.passes);
        vmcs.set(at::LINK_POINTER, u64::MAX);
    }

    fn host(&self) {
        let vmcs = self.vmcs;
        for index in 0..7 {
            let value = match index {
                1 => selector::CODE,
                6 => selector::TSS,
                _ => selector::DATA,
            };
            vmcs.set16(at::HOST_SELECTORS + 2 * index, value);
        }
        vmcs.set(at::HOST_EFER, insn::rdmsr(0xc000_0080));
        for (index, value) in [insn::cr0(), insn::cr3(), insn::cr4()].into_iter().enumerate() {
            vmcs.set(at::HOST_CR0 + 8 * index as u64, value);
            vmcs.set(at::GUEST_CR0 + 8 * index as u64, value);
        }
        vmcs.set(at::HOST_FS_BASE, insn::rdmsr(0xc000_0100));
        vmcs.set(at::HOST_FS_BASE + 8, insn::rdmsr(0xc000_0101));
        vmcs.set(at::HOST_TR_BASE, &raw const Cpu::this().tss as u64);
        vmcs.set(at::HOST_TR_BASE + 8, insn::sgdt().base);
        vmcs.set(at::HOST_TR_BASE + 16, insn::sidt().base);
    }

    fn guest(&self) {
        let vmcs = self.vmcs;
        vmcs.set(at::GUEST_EFER, insn::rdmsr(0xc000_0080));
        for index in 0..8 {
            let (selector, rights, limit) = match index {
                1 => (selector::CODE, 0xa09b, u32::MAX),
                6 => (0, 1 << 16, 0),
                7 => (selector::TSS, 0x8b, 0x67),
                _ => (selector::DATA, 0xc093, u32::MAX),
            };
            vmcs.set16(at::GUEST_SELECTORS + 2 * index, selector);
            vmcs.set32(at::GUEST_RIGHTS + 4 * index, rights);
            vmcs.set32(at::GUEST_LIMITS + 4 * index, limit);
        }
        let tables = [insn::sgdt(), insn::sidt()];
        for (index, table) in (8..).zip(tables) {
            vmcs.set32(at::GUEST_LIMITS + 4 * index, table.limit.into());
            vmcs.set(at::GUEST_BASES + 8 * index, table.base);
        }
        vmcs.set(at::GUEST_DR7, 0x400);
        vmcs.set(at::GUEST_RSP, self.stack);
        vmcs.set(at::GUEST_RFLAGS, 2);
    }

    /// Lets the guest execute `code` until it leaves; the exit's reason, or why there was no entry. `rdi` is a register of it.
    pub fn run(&self, launch: bool, code: u64, rdi: u64) -> Result<u32, Refused> {
        self.vmcs.set(at::GUEST_RIP, code);
        self.go(launch, &mut Registers { rdi, ..Registers::default() })
    }

    /// As [`Machine::run`], where it is, with these registers.
    pub fn go(&self, launch: bool, registers: &mut Registers) -> Result<u32, Refused> {
        match enter(self.vmcs.page, launch, registers) {
            None => Ok(self.vmcs.reason()),
            Some(flags) if flags & 1 != 0 => Err(Refused::Invalid),
            Some(_) => Err(Refused::Error(self.vmcs.get32(at::ERROR))),
        }
    }
}
