//! Process state: what SPSR_ELx saves.

/// An exception level. There is no EL3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum El {
    /// Programs.
    Zero,
    /// Kernels.
    One,
    /// Hypervisors, and kernels by VHE.
    Two,
}

/// The condition flags, at their place in SPSR and NZCV: N is bit 31.
pub type Flags = u32;

/// PSTATE without the flags of AArch32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pstate {
    /// N, Z, C and V in bits 31:28.
    pub nzcv: Flags,
    /// D, A, I and F in bits 9:6.
    pub daif: u32,
    /// The level.
    pub el: El,
    /// SPSel: the level's own stack pointer rather than SP_EL0.
    pub own_sp: bool,
    /// Privileged accesses to what user code may access fault.
    pub pan: bool,
    /// LDTR and STTR are privileged.
    pub uao: bool,
    /// Software step.
    pub ss: bool,
    /// Illegal execution state.
    pub il: bool,
}

const PAN: u64 = 1 << 22;
const UAO: u64 = 1 << 23;
const SS: u64 = 1 << 21;
const IL: u64 = 1 << 20;
/// Bit 4 of M: AArch32.
const AARCH32: u64 = 1 << 4;

impl Pstate {
    /// D, A, I and F.
    pub const DAIF: u32 = 0x3c0;
    /// I alone.
    pub const I: u32 = 1 << 7;
    /// F alone.
    pub const F: u32 = 1 << 6;
    /// D alone.
    pub const D: u32 = 1 << 9;

    /// After reset.
    pub const fn reset(el: El) -> Self {
        Pstate { nzcv: 0, daif: Self::DAIF, el, own_sp: true, pan: false, uao: false, ss: false, il: false }
    }

    /// Which of the four stack pointers is current.
    pub const fn sp_index(&self) -> usize {
        if self.own_sp { self.el as usize } else { 0 }
    }

    /// As SPSR_ELx has it.
    pub const fn to_spsr(self) -> u64 {
        self.nzcv as u64
            | self.daif as u64
            | (self.el as u64) << 2
            | self.own_sp as u64
            | if self.pan { PAN } else { 0 }
            | if self.uao { UAO } else { 0 }
            | if self.ss { SS } else { 0 }
            | if self.il { IL } else { 0 }
    }

    /// What an SPSR_ELx stands for; none if no exception return leads there: AArch32, EL3, reserved modes.
    pub const fn of_spsr(spsr: u64) -> Option<Self> {
        let el = match spsr >> 2 & 3 {
            0 if spsr & 1 == 0 => El::Zero,
            1 => El::One,
            2 => El::Two,
            _ => return None,
        };
        if spsr & AARCH32 != 0 || spsr & 2 != 0 {
            return None;
        }
        Some(Pstate {
            nzcv: spsr as u32 & 0xf000_0000,
            daif: spsr as u32 & Self::DAIF,
            el,
            own_sp: spsr & 1 != 0,
            pan: spsr & PAN != 0,
            uao: spsr & UAO != 0,
            ss: spsr & SS != 0,
            il: spsr & IL != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_state_comes_back_and_reserved_modes_are_none() {
        for spsr in [0x3c5, 0x6000_0000, 0xc0_03c9, 0xf0c0_0005] {
            assert_eq!(Pstate::of_spsr(spsr).map(|state| state.to_spsr()), Some(spsr), "{spsr:#x}");
        }
        for reserved in [0x1, 0x2, 0x6, 0xc, 0xd, 0x10, 0x13] {
            assert_eq!(Pstate::of_spsr(reserved), None, "{reserved:#x}");
        }
    }
}
