//! System registers by what a hypervisor that switches worlds does with them.

use crate::Sys;

/// What a register is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// Translation, exceptions and controls of EL1: what a kernel has, and two kernels cannot have at once.
    El1,
    /// The same of EL2.
    El2,
    /// What an exception told: ESR, FAR, HPFAR, ELR and SPSR of EL2.
    Syndrome,
    /// What traps to EL2, and what EL1 sees of the processor's identity.
    Traps,
    /// Stage 2 of translation.
    Stage2,
    /// Generic timers.
    Timer,
    /// The virtual CPU interface, ICH_*.
    VirtualGic,
    /// The CPU interface, ICC_*.
    Gic,
    /// Breakpoints, watchpoints and their controls.
    Debug,
    /// Thread pointers, and stack pointers of other levels.
    Thread,
    /// PSTATE, FPCR and FPSR, what only identifies, and the rest.
    Other,
}

impl Group {
    /// How many there are.
    pub const COUNT: usize = Group::Other as usize + 1;

    /// All of them, in order.
    pub const ALL: [Group; Group::COUNT] = [
        Group::El1,
        Group::El2,
        Group::Syndrome,
        Group::Traps,
        Group::Stage2,
        Group::Timer,
        Group::VirtualGic,
        Group::Gic,
        Group::Debug,
        Group::Thread,
        Group::Other,
    ];
}

impl Sys {
    /// What it is for.
    pub const fn group(self) -> Group {
        match self {
            Sys::SCTLR_EL1
            | Sys::ACTLR_EL1
            | Sys::CPACR_EL1
            | Sys::TTBR0_EL1
            | Sys::TTBR1_EL1
            | Sys::TCR_EL1
            | Sys::AFSR0_EL1
            | Sys::AFSR1_EL1
            | Sys::ESR_EL1
            | Sys::FAR_EL1
            | Sys::PAR_EL1
            | Sys::MAIR_EL1
            | Sys::AMAIR_EL1
            | Sys::VBAR_EL1
            | Sys::CONTEXTIDR_EL1
            | Sys::CNTKCTL_EL1
            | Sys::SPSR_EL1
            | Sys::ELR_EL1
            | Sys::CSSELR_EL1 => Group::El1,
            Sys::SCTLR_EL2
            | Sys::ACTLR_EL2
            | Sys::TTBR0_EL2
            | Sys::TTBR1_EL2
            | Sys::TCR_EL2
            | Sys::AFSR0_EL2
            | Sys::AFSR1_EL2
            | Sys::MAIR_EL2
            | Sys::AMAIR_EL2
            | Sys::VBAR_EL2
            | Sys::CONTEXTIDR_EL2 => Group::El2,
            Sys::SPSR_EL2 | Sys::ELR_EL2 | Sys::ESR_EL2 | Sys::FAR_EL2 | Sys::HPFAR_EL2 => Group::Syndrome,
            Sys::VPIDR_EL2
            | Sys::VMPIDR_EL2
            | Sys::HCR_EL2
            | Sys::MDCR_EL2
            | Sys::CPTR_EL2
            | Sys::HSTR_EL2
            | Sys::HACR_EL2 => Group::Traps,
            Sys::VTTBR_EL2 | Sys::VTCR_EL2 => Group::Stage2,
            Sys::TPIDR_EL0
            | Sys::TPIDRRO_EL0
            | Sys::TPIDR_EL1
            | Sys::TPIDR_EL2
            | Sys::SP_EL0
            | Sys::SP_EL1 => Group::Thread,
            _ => by_number(self),
        }
    }
}

/// Of those that stand together in the encoding: op0 is 2 for debug, CRn is 14 for timers, 12 and 4 for the interrupt controller's.
const fn by_number(sys: Sys) -> Group {
    let number = sys as u16;
    if number >= Sys::DBGBVR0_EL1 as u16 && number <= Sys::MDCCSR_EL0 as u16 {
        Group::Debug
    } else if number >= Sys::CNTFRQ_EL0 as u16 && number <= Sys::CNTHV_CVAL_EL2 as u16 {
        Group::Timer
    } else if number >= Sys::ICH_HCR_EL2 as u16 && number <= Sys::ICH_LR3_EL2 as u16 {
        Group::VirtualGic
    } else if (number >= Sys::ICC_PMR_EL1 as u16 && number <= Sys::ICC_IGRPEN1_EL1 as u16)
        || number == Sys::ICC_SRE_EL2 as u16
    {
        Group::Gic
    } else {
        Group::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::REGISTERS;

    #[test]
    fn names_and_groups_agree() {
        for row in REGISTERS {
            let name = row.name;
            let group = row.sys.group();
            assert_eq!(name.starts_with("ICH_"), group == Group::VirtualGic, "{name}");
            assert_eq!(name.starts_with("ICC_"), group == Group::Gic, "{name}");
            assert_eq!(name.starts_with("CNT") && name != "CNTKCTL_EL1", group == Group::Timer, "{name}");
            assert_eq!(row.encoding >> 14 == 2, group == Group::Debug, "{name}");
            if group == Group::El1 {
                assert!(name.ends_with("_EL1"), "{name}");
            }
            if matches!(group, Group::El2 | Group::Syndrome | Group::Traps | Group::Stage2) {
                assert!(name.ends_with("_EL2"), "{name}");
            }
        }
        assert!(Group::ALL.iter().enumerate().all(|(at, group)| *group as usize == at));
    }
}
