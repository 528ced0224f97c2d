//! VHE's redirection of register names, as one table (Arm ARM D1.3.1 and D13.1.3): which register an encoding means, by level,
//! HCR_EL2.E2H and HCR_EL2.TGE.

use crate::{El, Sys, encoding};

/// What a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirected {
    /// That register.
    To(Sys),
    /// Nothing there: UNDEFINED.
    Undefined,
}

/// A row: the register of EL1, the one that its name means at EL2 with E2H, and op1, CRn, CRm, op2 of the name (_EL12 or _EL02) by which
/// EL2 reaches EL1's own.
struct Row {
    el1: Sys,
    el2: Sys,
    alias: u16,
    /// EL0 is redirected too, while TGE is set.
    el0: bool,
}

const fn row(el1: Sys, el2: Sys, crn: u16, crm: u16, op2: u16, el0: bool) -> Row {
    Row { el1, el2, alias: encoding(3, 5, crn, crm, op2), el0 }
}

static ROWS: &[Row] = &[
    row(Sys::SCTLR_EL1, Sys::SCTLR_EL2, 1, 0, 0, false),
    row(Sys::CPACR_EL1, Sys::CPTR_EL2, 1, 0, 2, false),
    row(Sys::TTBR0_EL1, Sys::TTBR0_EL2, 2, 0, 0, false),
    row(Sys::TTBR1_EL1, Sys::TTBR1_EL2, 2, 0, 1, false),
    row(Sys::TCR_EL1, Sys::TCR_EL2, 2, 0, 2, false),
    row(Sys::AFSR0_EL1, Sys::AFSR0_EL2, 5, 1, 0, false),
    row(Sys::AFSR1_EL1, Sys::AFSR1_EL2, 5, 1, 1, false),
    row(Sys::ESR_EL1, Sys::ESR_EL2, 5, 2, 0, false),
    row(Sys::FAR_EL1, Sys::FAR_EL2, 6, 0, 0, false),
    row(Sys::MAIR_EL1, Sys::MAIR_EL2, 10, 2, 0, false),
    row(Sys::AMAIR_EL1, Sys::AMAIR_EL2, 10, 3, 0, false),
    row(Sys::VBAR_EL1, Sys::VBAR_EL2, 12, 0, 0, false),
    row(Sys::CONTEXTIDR_EL1, Sys::CONTEXTIDR_EL2, 13, 0, 1, false),
    row(Sys::CNTKCTL_EL1, Sys::CNTHCTL_EL2, 14, 1, 0, false),
    row(Sys::SPSR_EL1, Sys::SPSR_EL2, 4, 0, 0, false),
    row(Sys::ELR_EL1, Sys::ELR_EL2, 4, 0, 1, false),
    row(Sys::CNTP_TVAL_EL0, Sys::CNTHP_TVAL_EL2, 14, 2, 0, true),
    row(Sys::CNTP_CTL_EL0, Sys::CNTHP_CTL_EL2, 14, 2, 1, true),
    row(Sys::CNTP_CVAL_EL0, Sys::CNTHP_CVAL_EL2, 14, 2, 2, true),
    row(Sys::CNTV_TVAL_EL0, Sys::CNTHV_TVAL_EL2, 14, 3, 0, true),
    row(Sys::CNTV_CTL_EL0, Sys::CNTHV_CTL_EL2, 14, 3, 1, true),
    row(Sys::CNTV_CVAL_EL0, Sys::CNTHV_CVAL_EL2, 14, 3, 2, true),
];

/// The name by which EL2 with E2H reaches EL1's own register (_EL12, _EL02), as an encoding; none if its plain name does.
pub fn el1_name(sys: Sys) -> Option<u16> {
    ROWS.iter().find(|row| row.el1 == sys).map(|row| row.alias)
}

/// What `encoding`, whose own register is `named`, means at `el`.
pub fn redirect(encoding: u16, named: Option<Sys>, el: El, e2h: bool, tge: bool) -> Redirected {
    let at_el2 = e2h && el == El::Two;
    if encoding >> 11 & 7 == 5 {
        let alias = ROWS.iter().find(|row| row.alias == encoding);
        return match alias {
            Some(row) if at_el2 => Redirected::To(row.el1),
            _ => Redirected::Undefined,
        };
    }
    let Some(named) = named else { return Redirected::Undefined };
    let user = e2h && tge && el == El::Zero;
    match ROWS.iter().find(|row| row.el1 == named) {
        Some(row) if at_el2 || (user && row.el0) => Redirected::To(row.el2),
        _ => Redirected::To(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sys: Sys, el: El, e2h: bool, tge: bool) -> Redirected {
        redirect(sys.row().encoding, Some(sys), el, e2h, tge)
    }

    #[test]
    fn names_mean_what_vhe_says() {
        let to = Redirected::To;
        assert_eq!(at(Sys::SCTLR_EL1, El::Two, true, false), to(Sys::SCTLR_EL2));
        assert_eq!(at(Sys::SCTLR_EL1, El::Two, false, false), to(Sys::SCTLR_EL1));
        assert_eq!(at(Sys::SCTLR_EL1, El::One, true, false), to(Sys::SCTLR_EL1));
        assert_eq!(at(Sys::CNTV_CTL_EL0, El::Zero, true, true), to(Sys::CNTHV_CTL_EL2));
        assert_eq!(at(Sys::CNTV_CTL_EL0, El::Zero, true, false), to(Sys::CNTV_CTL_EL0));
        assert_eq!(at(Sys::TPIDR_EL1, El::Two, true, true), to(Sys::TPIDR_EL1), "not redirected");
        for row in ROWS {
            assert_eq!(redirect(row.alias, None, El::Two, true, true), to(row.el1));
            assert_eq!(el1_name(row.el1), Some(row.alias));
            assert_eq!(redirect(row.alias, None, El::Two, false, false), Redirected::Undefined);
            assert_eq!(redirect(row.alias, None, El::One, true, false), Redirected::Undefined);
        }
    }
}
