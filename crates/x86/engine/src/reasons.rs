//! The reasons of x86 at the seam: those of VMX, whose names `perf kvm stat` has.

use satori_defs::vmx::ExitReason;
use satori_seam::{Class, Reason, ReasonRow};

const COUNT: usize = ExitReason::ALL.len();

static ROWS: [ReasonRow; COUNT] = {
    let mut rows = [ReasonRow { number: 0, name: "", class: Class::Other }; COUNT];
    let mut at = 0;
    while at < COUNT {
        let reason = ExitReason::ALL[at];
        assert!((reason as usize) < Reason::NUMBERS, "it fits");
        rows[at] = ReasonRow { number: reason as u8, name: reason.name(), class: class(reason) };
        at += 1;
    }
    rows
};

/// Every reason, by ascending number.
pub const REASONS: &[Reason] = &TABLE;

static TABLE: [Reason; COUNT] = {
    let mut table = [Reason::of(&ROWS[0]); COUNT];
    let mut at = 0;
    while at < COUNT {
        table[at] = Reason::of(&ROWS[at]);
        at += 1;
    }
    table
};

/// Where in the table the reason of each number is.
static PLACES: [u8; Reason::NUMBERS] = {
    let mut places = [0; Reason::NUMBERS];
    let mut at = 0;
    while at < COUNT {
        places[ExitReason::ALL[at] as usize] = at as u8;
        at += 1;
    }
    places
};

/// What VMX's reason is at the seam.
pub fn reason(of: ExitReason) -> Reason {
    TABLE[usize::from(PLACES[of as usize])]
}

/// What exits of a reason are about.
const fn class(reason: ExitReason) -> Class {
    use ExitReason as R;
    match reason {
        R::Hlt | R::MwaitInstruction | R::Umwait | R::Tpause => Class::Idle,
        R::EptMisconfig => Class::Mmio,
        R::EptViolation | R::PmlFull => Class::Memory,
        R::IoInstruction => Class::Port,
        R::MsrWrite => Class::RegisterWrite,
        R::MsrRead => Class::RegisterRead,
        R::ExternalInterrupt => Class::HostInterrupt,
        R::InterruptWindow => Class::Window,
        R::TprBelowThreshold => Class::Priority,
        R::ApicAccess | R::ApicWrite => Class::Controller,
        R::EoiInduced => Class::Eoi,
        R::Vmcall => Class::Hypercall,
        R::PauseInstruction => Class::Pause,
        R::DrAccess => Class::Debug,
        R::PreemptionTimer => Class::Timer,
        R::Vmclear | R::Vmlaunch | R::Vmptrld | R::Vmptrst | R::Vmread => Class::Nested,
        R::Vmresume | R::Vmwrite | R::Vmoff | R::Vmon | R::Invept | R::Invvpid => Class::Nested,
        R::Cpuid => Class::Identity,
        R::CrAccess | R::GdtrIdtr | R::LdtrTr | R::Xsetbv => Class::Control,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_row() {
        for (at, &one) in ExitReason::ALL.iter().enumerate() {
            let found = reason(one);
            assert_eq!((found.number(), found.name()), (one as u16, one.name()));
            assert_eq!(REASONS[at], found);
            assert_eq!(Reason::find(REASONS, found.number()), Some(found));
        }
        assert!(REASONS.is_sorted(), "rows are by number");
        assert_eq!(Reason::named(REASONS, "hlt").map(Reason::class), Some(Class::Idle));
    }
}
