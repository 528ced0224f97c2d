//! The one register file of a virtual processor, as plain data.
//!
//! Engines execute on it, exit handlers read and change it, snapshots copy it. It has no
//! behaviour beyond reset values and a few derived predicates.

#![forbid(unsafe_code)]

mod local_apic;
mod parts;

pub use local_apic::LocalApic;
pub use parts::Parts;

use satori_defs::x86::{cr0, efer, rflags};
use satori_save::wide;
use serde::{Deserialize, Serialize};

/// Indices of the general-purpose registers in [`CpuState::gpr`], in encoding order.
pub mod reg {
    #![allow(missing_docs, reason = "each constant is its register's name")]
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
    /// Slot that always reads zero: an absent base or index needs no branch.
    pub const ZERO: usize = 16;
    /// Slot that an engine uses while it executes; between two instructions it is nobody's.
    pub const SPARE: usize = 17;
}

/// Indices of the segment registers in [`CpuState::seg`], in encoding order.
pub mod seg {
    #![allow(missing_docs, reason = "each constant is its register's name")]
    pub const ES: usize = 0;
    pub const CS: usize = 1;
    pub const SS: usize = 2;
    pub const DS: usize = 3;
    pub const FS: usize = 4;
    pub const GS: usize = 5;
}

/// A segment register with its hidden part (SDM 3.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// The visible selector.
    pub selector: u16,
    /// Access rights in VMX format: type 3:0, S 4, DPL 6:5, P 7, AVL 12, L 13, D/B 14, G 15,
    /// unusable 16 (SDM 24.4.1).
    pub rights: u32,
    /// Byte limit, granularity already applied.
    pub limit: u32,
    /// Linear base address.
    pub base: u64,
}

impl Segment {
    /// VMX "unusable" bit in [`Segment::rights`].
    pub const UNUSABLE: u32 = 1 << 16;

    /// A flat ring-0 segment of the given `rights` (VMX format) and 4-GiB limit.
    pub const fn flat(selector: u16, rights: u32) -> Self {
        Segment { selector, rights, limit: 0xffff_ffff, base: 0 }
    }
    /// Descriptor privilege level, 0 to 3.
    pub const fn dpl(&self) -> u8 {
        ((self.rights >> 5) & 3) as u8
    }
    /// L bit: a 64-bit code segment.
    pub const fn long(&self) -> bool {
        self.rights & (1 << 13) != 0
    }
    /// D/B bit: 32-bit default operand size, or a 32-bit stack pointer.
    pub const fn big(&self) -> bool {
        self.rights & (1 << 14) != 0
    }
    /// Whether a null selector made the register unusable.
    pub const fn unusable(&self) -> bool {
        self.rights & Self::UNUSABLE != 0
    }
    /// P bit.
    pub const fn present(&self) -> bool {
        self.rights & (1 << 7) != 0
    }
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DescriptorTable {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes, minus one.
    pub limit: u16,
}

/// A vector register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[repr(C, align(32))]
pub struct Ymm {
    /// XMMi, the low half.
    #[serde(with = "wide")]
    pub low: u128,
    /// Bits 255:128, of AVX.
    #[serde(with = "wide")]
    pub high: u128,
}

const _: () = assert!(size_of::<Ymm>() == 32);

/// x87, MMX, SSE and AVX state. ST registers stand in stack order ST0..ST7, as FXSAVE stores them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[repr(C, align(64))]
pub struct FpuState {
    /// YMM0..YMM15, with XMM0..XMM15 in them: each whole in 32 aligned bytes, so that one host
    /// instruction can load or store it.
    pub ymm: [Ymm; 16],
    /// ST0..ST7, 80 bits each in the low bytes (stack order, so `st[0]` is ST(0)).
    #[serde(with = "wide::eight")]
    pub st: [u128; 8],
    /// Control word.
    pub fcw: u16,
    /// Status word, TOP in bits 13:11.
    pub fsw: u16,
    /// Abridged tag word: bit i is 1 when *physical* register i is not empty.
    pub ftw: u8,
    /// Last opcode, 11 bits.
    pub fop: u16,
    /// Last instruction pointer.
    pub fip: u64,
    /// Last data pointer.
    pub fdp: u64,
    /// SSE control and status.
    pub mxcsr: u32,
}

impl Default for FpuState {
    fn default() -> Self {
        FpuState {
            ymm: [Ymm::default(); 16],
            st: [0; 8],
            fcw: 0x37f,
            fsw: 0,
            ftw: 0,
            fop: 0,
            fip: 0,
            fdp: 0,
            mxcsr: 0x1f80,
        }
    }
}

/// What a virtual processor is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// Executing instructions.
    #[default]
    Active,
    /// Stopped by HLT until an interrupt.
    Halted,
    /// An application processor before its SIPI.
    WaitForSipi,
    /// Stopped by a triple fault.
    Shutdown,
}

/// The complete architectural state of one virtual processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuState {
    /// RAX..R15 in encoding order; slot [`reg::ZERO`] always holds 0; the last is spare.
    pub gpr: [u64; 18],
    /// Instruction pointer.
    pub rip: u64,
    /// RFLAGS; complete whenever the processor is not executing.
    pub rflags: u64,
    /// ES, CS, SS, DS, FS, GS.
    pub seg: [Segment; 6],
    /// Local descriptor table register.
    pub ldtr: Segment,
    /// Task register.
    pub tr: Segment,
    /// Global descriptor table register.
    pub gdtr: DescriptorTable,
    /// Interrupt descriptor table register.
    pub idtr: DescriptorTable,
    /// CR0.
    pub cr0: u64,
    /// CR2: linear address of the last page fault.
    pub cr2: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4.
    pub cr4: u64,
    /// PDPTE0..PDPTE3: what PAE paging latched when CR3 was loaded (SDM 4.4.1).
    pub pdpte: [u64; 4],
    /// Task priority, 8 bits; CR8 is its high nibble. The TPR shadow of the virtual-APIC page.
    pub tpr: u8,
    /// XCR0.
    pub xcr0: u64,
    /// IA32_XSS.
    pub xss: u64,
    /// PKRU: rights by protection key, AD in bit 2k and WD in bit 2k + 1 (SDM 4.6.2).
    pub pkru: u32,
    /// DR0..DR3.
    pub dr: [u64; 4],
    /// DR6.
    pub dr6: u64,
    /// DR7.
    pub dr7: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// IA32_STAR.
    pub star: u64,
    /// IA32_LSTAR.
    pub lstar: u64,
    /// IA32_CSTAR.
    pub cstar: u64,
    /// IA32_FMASK.
    pub fmask: u64,
    /// IA32_KERNEL_GS_BASE.
    pub kernel_gs_base: u64,
    /// IA32_SYSENTER_CS.
    pub sysenter_cs: u64,
    /// IA32_SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// IA32_SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// IA32_TSC_AUX.
    pub tsc_aux: u64,
    /// IA32_SPEC_CTRL.
    pub spec_ctrl: u64,
    /// IA32_PAT.
    pub pat: u64,
    /// Added to the partition's TSC: the effect of writes to IA32_TSC and IA32_TSC_ADJUST.
    pub tsc_offset: u64,
    /// x87, MMX, SSE and AVX state.
    pub fpu: FpuState,
    /// Interrupts are blocked for one instruction after STI or a load of SS.
    pub interrupt_shadow: bool,
    /// The shadow is that of a load of SS: debug exceptions wait too (SDM 6.8.3).
    pub ss_shadow: bool,
    /// Debug traps of the last instruction that were not delivered yet, as bits of DR6 (VMX's
    /// pending debug exceptions, SDM 24.4.2).
    pub pending_debug: u64,
    /// NMIs are blocked until IRET.
    pub nmi_blocked: bool,
    /// What the processor is doing.
    pub activity: Activity,
}

impl Default for CpuState {
    /// State after power-up or INIT (SDM table 10-1), with CS at the reset vector.
    fn default() -> Self {
        let data = Segment { selector: 0, rights: 0x93, limit: 0xffff, base: 0 };
        let mut gpr = [0; 18];
        gpr[reg::RDX] = 0x600;
        CpuState {
            gpr,
            rip: 0xfff0,
            rflags: rflags::FIXED,
            seg: [
                data,
                Segment { selector: 0xf000, rights: 0x9b, limit: 0xffff, base: 0xffff_0000 },
                data,
                data,
                data,
                data,
            ],
            ldtr: Segment { selector: 0, rights: 0x82, limit: 0xffff, base: 0 },
            tr: Segment { selector: 0, rights: 0x8b, limit: 0xffff, base: 0 },
            gdtr: DescriptorTable { base: 0, limit: 0xffff },
            idtr: DescriptorTable { base: 0, limit: 0xffff },
            cr0: cr0::CD | cr0::NW | cr0::ET,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            pdpte: [0; 4],
            tpr: 0,
            xcr0: 1,
            xss: 0,
            pkru: 0,
            dr: [0; 4],
            dr6: 0xffff_0ff0,
            dr7: 0x400,
            efer: 0,
            star: 0,
            lstar: 0,
            cstar: 0,
            fmask: 0,
            kernel_gs_base: 0,
            sysenter_cs: 0,
            sysenter_esp: 0,
            sysenter_eip: 0,
            tsc_aux: 0,
            spec_ctrl: 0,
            pat: 0x0007_0406_0007_0406,
            tsc_offset: 0,
            fpu: FpuState::default(),
            interrupt_shadow: false,
            ss_shadow: false,
            pending_debug: 0,
            nmi_blocked: false,
            activity: Activity::Active,
        }
    }
}

impl CpuState {
    /// Current privilege level: the DPL of SS, which VMX and AMD both treat as the truth.
    pub const fn cpl(&self) -> u8 {
        if self.cr0 & cr0::PE == 0 {
            0
        } else if self.rflags & rflags::VM != 0 {
            3
        } else {
            self.seg[seg::SS].dpl()
        }
    }
    /// Whether long mode (64-bit or compatibility) is active.
    pub const fn long_mode(&self) -> bool {
        self.efer & efer::LMA != 0
    }
    /// Whether the processor executes 64-bit code.
    pub const fn code64(&self) -> bool {
        self.long_mode() && self.seg[seg::CS].long()
    }
}

impl satori_save::State for CpuState {
    const NAME: &'static str = "x86 registers";
    const VERSION: u32 = 2;
}
