//! Reasons for tests: those of a small instruction set.

use satori_seam::{Class, Reason, ReasonRow};

static ROWS: [ReasonRow; 4] = [
    ReasonRow { number: 10, name: "WHO", class: Class::Identity },
    ReasonRow { number: 12, name: "HLT", class: Class::Idle },
    ReasonRow { number: 32, name: "MSR_WRITE", class: Class::RegisterWrite },
    ReasonRow { number: 49, name: "EPT_MISCONFIG", class: Class::Mmio },
];

pub(crate) const IDENTITY: Reason = Reason::of(&ROWS[0]);
pub(crate) const HLT: Reason = Reason::of(&ROWS[1]);
pub(crate) const MSR_WRITE: Reason = Reason::of(&ROWS[2]);
pub(crate) const MMIO: Reason = Reason::of(&ROWS[3]);
pub(crate) const ALL: &[Reason] = &[IDENTITY, HLT, MSR_WRITE, MMIO];
