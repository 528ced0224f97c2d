//! What follows from the registers alone, kept beside them so that no instruction works it out.

use satori_defs::x86::{cr0, rflags};
use satori_state::{CpuState, seg};

use crate::code_mode;
use crate::mmu::Mode;

/// See the module. Whoever changes registers that it follows from calls
/// [`Cpu::mode_changed`](crate::cpu::Cpu::mode_changed); translated code, which changes only privilege and RFLAGS.AC, keeps
/// [`Derived::mode`] and [`Derived::code_mode`] up to date by itself.
pub struct Derived {
    /// Whose rights data accesses have now.
    pub mode: Mode,
    /// The alignment of data is checked (CR0.AM and RFLAGS.AC at privilege level 3): then no
    /// access is answered by the TLB alone.
    pub aligned: bool,
    /// 64-bit code.
    pub code64: bool,
    /// What beside its address tells code apart ([`code_mode`]).
    pub code_mode: u64,
    /// Segment bases by segment register, for 64-bit code: 0 but for FS and GS; the last
    /// slots are 0 too.
    pub segment_base: [u64; 8],
}

impl Derived {
    /// What follows from `state`, in VMX non-root operation if it is `nested`.
    #[inline(always)]
    pub(crate) fn of(state: &CpuState, nested: bool) -> Self {
        let code64 = state.code64();
        let mode = if state.cpl() == 3 {
            Mode::User
        } else if state.rflags & rflags::AC != 0 {
            Mode::SupervisorAc
        } else {
            Mode::Supervisor
        };
        let code_mode = code_mode::of_vectors(state)
            | if mode == Mode::User { code_mode::USER } else { 0 }
            | if code64 { code_mode::BITS_64 } else { code_mode::of_segments(state) }
            | if bits(state, code64) == 16 { code_mode::BITS_16 } else { 0 }
            | if mode == Mode::SupervisorAc { code_mode::AC } else { 0 }
            | if nested { code_mode::NESTED } else { 0 };
        let aligned = mode == Mode::User && state.rflags & rflags::AC != 0 && state.cr0 & cr0::AM != 0;
        let (fs, gs) = (state.seg[seg::FS].base, state.seg[seg::GS].base);
        Derived { mode, aligned, code64, code_mode, segment_base: [0, 0, 0, 0, fs, gs, 0, 0] }
    }
}

/// Code size in bits: 16, 32 or 64. Real-address mode keeps the D bit of the segment that
/// protected mode loaded (SDM 10.9.2); virtual-8086 mode always has it clear.
#[inline(always)]
pub(super) fn bits(state: &CpuState, code64: bool) -> u32 {
    match (code64, state.seg[seg::CS].big()) {
        (true, _) => 64,
        (false, true) => 32,
        (false, false) => 16,
    }
}
