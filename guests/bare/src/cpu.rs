//! One vCPU's tables and stacks: descriptors, task state, interrupt gates.

use core::cell::UnsafeCell;

use satori_defs::chipset::port;
use satori_defs::x86::vector;

use crate::insn::{self, Pointer};
use crate::smp::MAX_CPUS;
use crate::subject::{DONE, Raw, stub};

/// Selectors in each vCPU's GDT, in the order that SYSCALL, SYSRET, SYSENTER and SYSEXIT want.
pub mod selector {
    /// 64-bit code, privilege level 0.
    pub const CODE: u16 = 0x08;
    /// Data, privilege level 0.
    pub const DATA: u16 = 0x10;
    /// 32-bit code, privilege level 3.
    pub const USER_CODE32: u16 = 0x18 | 3;
    /// Data, privilege level 3.
    pub const USER_DATA: u16 = 0x20 | 3;
    /// 64-bit code, privilege level 3.
    pub const USER_CODE: u16 = 0x28 | 3;
    /// Data, privilege level 3, where SYSEXIT to 64-bit code expects it.
    pub const USER_DATA2: u16 = 0x30 | 3;
    /// 32-bit code, privilege level 0.
    pub const CODE32: u16 = 0x38;
    /// 16-bit code, privilege level 0.
    pub const CODE16: u16 = 0x40;
    /// 16-bit data, privilege level 0.
    pub const DATA16: u16 = 0x48;
    /// The 64-bit TSS, in two slots.
    pub const TSS: u16 = 0x50;
    /// The first of the slots that cases fill as they like.
    pub const FREE: u16 = 0x60;
}

/// Slots of the GDT.
pub const GDT_SLOTS: usize = 32;

/// A flat descriptor with these access rights, as in bits 55:40 of a descriptor.
pub const fn flat(rights: u64) -> u64 {
    0xffff | (rights & 0xf0ff) << 40 | 0xf << 48
}

/// A descriptor (SDM 3.4.5) with `base`, the 20-bit `limit` and these access rights.
pub const fn descriptor(base: u32, limit: u32, rights: u64) -> u64 {
    let (base, limit) = (base as u64, limit as u64);
    limit & 0xffff
        | (base & 0xff_ffff) << 16
        | (rights & 0xf0ff) << 40
        | (limit >> 16 & 0xf) << 48
        | (base >> 24) << 56
}

/// Access rights for [`flat`] and [`descriptor`].
pub mod rights {
    /// Present, accessed, executable and readable, 64-bit, 4-KiB granularity.
    pub const CODE64: u64 = 0xa09b;
    /// As [`CODE64`], 32-bit.
    pub const CODE32: u64 = 0xc09b;
    /// As [`CODE64`], 16-bit, byte granularity.
    pub const CODE16: u64 = 0x009b;
    /// Present, accessed, writable, 32-bit, 4-KiB granularity.
    pub const DATA: u64 = 0xc093;
    /// As [`DATA`], 16-bit, byte granularity.
    pub const DATA16: u64 = 0x0093;
    /// An available 64-bit or 32-bit TSS.
    pub const TSS: u64 = 0x0089;
    /// Descriptor privilege level 3.
    pub const DPL3: u64 = 3 << 5;
    /// Present.
    pub const PRESENT: u64 = 1 << 7;
}

/// The 64-bit task state (SDM 7.7), and I/O permissions for the first 0x400 ports.
#[repr(C, packed(4))]
pub struct Tss {
    reserved0: u32,
    /// RSP0 to RSP2.
    pub rsp: [u64; 3],
    reserved1: u64,
    /// IST1 to IST7.
    pub ist: [u64; 7],
    reserved2: u64,
    reserved3: u16,
    /// Offset of the I/O permission bit map.
    pub io_map: u16,
    /// One bit a port, and a byte of ones behind them.
    pub ports: [u8; 0x400 / 8 + 1],
}

/// A stack for one purpose.
#[repr(C, align(16))]
pub struct Stack(UnsafeCell<[u8; 16 << 10]>);

impl Stack {
    /// Its top, 16-byte aligned.
    pub fn top(&self) -> u64 {
        self.0.get() as u64 + (16 << 10)
    }
}

/// One vCPU. The GDT comes first, so that SGDT finds all of it.
#[repr(C, align(4096))]
pub struct Cpu {
    /// Its GDT.
    pub gdt: [u64; GDT_SLOTS],
    /// Registers on the way into and out of a subject.
    pub(crate) raw: Raw,
    /// Its IDT.
    pub idt: [Gate; 256],
    /// Its TSS.
    pub tss: Tss,
    /// Its number, from 0.
    pub number: usize,
    /// RSP0.
    pub inner: Stack,
    /// IST1, where double faults go.
    pub ist1: Stack,
    /// IST2, for cases.
    pub ist2: Stack,
    /// The stack of subjects at privilege level 0.
    pub kernel: Stack,
    /// The stack of subjects at privilege level 3.
    pub user: Stack,
}

/// A gate of the 64-bit IDT (SDM 6.14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Gate(pub u128);

impl Gate {
    /// A present interrupt gate of privilege level 0 to 64-bit code.
    pub const fn interrupt(handler: u64) -> Gate {
        let handler = handler as u128;
        Gate(
            handler & 0xffff
                | (selector::CODE as u128) << 16
                | 0x8e << 40
                | (handler >> 16 & 0xffff) << 48
                | (handler >> 32) << 64,
        )
    }
    /// With this DPL.
    pub const fn dpl(self, dpl: u8) -> Gate {
        Gate(self.0 & !(3 << 45) | (dpl as u128) << 45)
    }
    /// With this IST index.
    pub const fn ist(self, index: u8) -> Gate {
        Gate(self.0 & !(7 << 32) | (index as u128) << 32)
    }
    /// With this type: 14 is an interrupt gate, 15 a trap gate.
    pub const fn kind(self, kind: u8) -> Gate {
        Gate(self.0 & !(15 << 40) | (kind as u128) << 40)
    }
    /// Not present.
    pub const fn absent(self) -> Gate {
        Gate(self.0 & !(1 << 47))
    }
    /// To this code segment.
    pub const fn selector(self, selector: u16) -> Gate {
        Gate(self.0 & !(0xffff << 16) | (selector as u128) << 16)
    }
    /// To this address.
    pub const fn to(self, handler: u64) -> Gate {
        let address = Gate::interrupt(handler).0 & !(0xffff_ffff << 16);
        Gate(self.0 & 0x0000_ffff_ffff_0000 | address | (self.0 & (0xffff_ffff << 16)))
    }
}

/// Storage that each vCPU has its own element of.
#[repr(transparent)]
struct Cpus(UnsafeCell<[core::mem::MaybeUninit<Cpu>; MAX_CPUS]>);

// SAFETY: each vCPU uses only the element with its own number.
unsafe impl Sync for Cpus {}

static CPUS: Cpus = Cpus(UnsafeCell::new([const { core::mem::MaybeUninit::zeroed() }; MAX_CPUS]));

impl Cpu {
    /// The vCPU that runs this, found by its GDT's address.
    pub fn this() -> &'static mut Cpu {
        let base = insn::sgdt().base;
        // SAFETY: `set_up` put this vCPU's own element there, and nobody keeps such a reference
        // across another call.
        unsafe { &mut *(base as *mut Cpu) }
    }

    /// Fills and loads the tables of vCPU `number`.
    pub(crate) fn set_up(number: usize) {
        // SAFETY: all-zero bytes are a Cpu, and this vCPU alone uses the element.
        let cpu = unsafe { (&mut *CPUS.0.get())[number].assume_init_mut() };
        let tss = &raw const cpu.tss as u64;
        cpu.number = number;
        cpu.gdt = [0; GDT_SLOTS];
        let mut set = |selector: u16, descriptor| cpu.gdt[usize::from(selector) / 8] = descriptor;
        set(selector::CODE, flat(rights::CODE64));
        set(selector::DATA, flat(rights::DATA));
        set(selector::USER_CODE32, flat(rights::CODE32 | rights::DPL3));
        set(selector::USER_DATA, flat(rights::DATA | rights::DPL3));
        set(selector::USER_CODE, flat(rights::CODE64 | rights::DPL3));
        set(selector::USER_DATA2, flat(rights::DATA | rights::DPL3));
        set(selector::CODE32, flat(rights::CODE32));
        set(selector::CODE16, descriptor(0, 0xffff, rights::CODE16));
        set(selector::DATA16, descriptor(0, 0xffff, rights::DATA16));
        set(selector::TSS, descriptor(tss as u32, size_of::<Tss>() as u32 - 1, rights::TSS));
        set(selector::TSS + 8, tss >> 32);
        cpu.tss.rsp[0] = cpu.inner.top();
        cpu.tss.ist[0] = cpu.ist1.top();
        cpu.tss.ist[1] = cpu.ist2.top();
        cpu.tss.io_map = core::mem::offset_of!(Tss, ports) as u16;
        cpu.tss.ports = [0xff; _];
        cpu.reset_gates();
        insn::lgdt(Pointer { limit: (GDT_SLOTS * 8 - 1) as u16, base: &raw const cpu.gdt as u64 });
        cpu.load_idt();
        insn::ltr(selector::TSS);
        insn::lldt(0);
    }

    /// Every vector to its own stub; breakpoints, overflow and [`DONE`] open to all levels.
    pub fn reset_gates(&mut self) {
        for (number, gate) in self.idt.iter_mut().enumerate() {
            *gate = Gate::interrupt(stub(number as u8));
        }
        for open in [vector::BP, vector::OF, DONE] {
            let gate = &mut self.idt[usize::from(open)];
            *gate = gate.dpl(3);
        }
        let double = &mut self.idt[usize::from(vector::DF)];
        *double = double.ist(1);
    }

    /// Loads the IDT, with all 256 gates.
    pub fn load_idt(&self) {
        insn::lidt(Pointer { limit: 0xfff, base: &raw const self.idt as u64 });
    }
}

/// Both PICs quiet: nothing comes that a case did not ask for.
pub fn mask_pics() {
    insn::out8(port::PIC_MASTER + 1, 0xff);
    insn::out8(port::PIC_SLAVE + 1, 0xff);
}
