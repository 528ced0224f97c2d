//! Stages 1 and 2 of translation, TLBs, and accesses to memory.
//!
//! There are two tables. [`tlb`]'s architectural one holds translations by regime, VMID and ASID as the Arm ARM has it (D8.13), and
//! is what TLBI works on. Before it is a table of what the current context may access directly, by [`Mode`]: it holds nothing
//! that the other does not, and is dropped whenever registers of translation change.

mod access;
mod fault;
mod invalidate;
mod stage2;
mod tlb;
mod walk;

pub(crate) use fault::Access;
pub(crate) use invalidate::Tlbi;
pub(crate) use tlb::Tlb;
pub use tlb::layout;

use satori_arm_state::{El, Sys};

use crate::cpu::Cpu;

/// A translation regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Regime {
    /// EL1&0.
    El10,
    /// EL2, of one address range.
    El2,
    /// EL2&0: VHE.
    El20,
}

/// With which rights memory is accessed: the index of a table in [`Tlb`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub regime: Regime,
    pub privileged: bool,
    pub pan: bool,
}

const fn mode(regime: Regime, privileged: bool, pan: bool) -> Mode {
    Mode { regime, privileged, pan }
}

/// How many modes there are.
pub const MODE_COUNT: usize = MODES.len();

/// All modes.
pub(crate) static MODES: [Mode; 7] = [
    mode(Regime::El10, false, false),
    mode(Regime::El10, true, false),
    mode(Regime::El10, true, true),
    mode(Regime::El2, true, false),
    mode(Regime::El20, false, false),
    mode(Regime::El20, true, false),
    mode(Regime::El20, true, true),
];

impl Cpu {
    /// Chooses the modes of plain and of unprivileged accesses.
    pub(crate) fn choose_modes(&mut self) {
        let state = &self.s.pstate;
        let privileged = |base: usize| base + 1 + usize::from(state.pan);
        let user_base = if self.e2h() && self.tge() { 4 } else { 0 };
        (self.mode, self.user_mode) = match state.el {
            El::Zero => (user_base, user_base),
            El::One => (privileged(0), 0),
            El::Two if self.e2h() => (privileged(4), if self.tge() { 4 } else { privileged(4) }),
            El::Two => (3, 3),
        };
        if state.uao {
            self.user_mode = self.mode;
        }
    }

    /// The ASID of a regime, and whether it has any.
    pub(crate) fn asid(&self, regime: Regime) -> u16 {
        let (tcr, ttbr0, ttbr1) = match regime {
            Regime::El10 => (Sys::TCR_EL1, Sys::TTBR0_EL1, Sys::TTBR1_EL1),
            Regime::El20 => (Sys::TCR_EL2, Sys::TTBR0_EL2, Sys::TTBR1_EL2),
            Regime::El2 => return 0,
        };
        let tcr = self.s.get(tcr);
        let ttbr = if tcr >> 22 & 1 != 0 { ttbr1 } else { ttbr0 };
        let asid = (self.s.get(ttbr) >> 48) as u16;
        // TCR.AS: 16 bits rather than 8.
        if tcr >> 36 & 1 != 0 { asid } else { asid & 0xff }
    }

    /// The VMID of EL1&0.
    pub(crate) fn vmid(&self) -> u16 {
        if !self.offered.el2 {
            return 0;
        }
        let vmid = (self.s.get(Sys::VTTBR_EL2) >> 48) as u16;
        if self.s.get(Sys::VTCR_EL2) >> 19 & 1 != 0 { vmid } else { vmid & 0xff }
    }
}
