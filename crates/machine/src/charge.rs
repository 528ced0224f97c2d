//! Guest time that exits take under the virtual clock, as if the modelled hardware handled them.

use satori_bus::Nanos;
use satori_seam::Reason;

/// How long an exit of each reason takes; without charges an exit takes no guest time at all.
///
/// All vCPUs together retire so many instructions a second, so one of N has an N-th of them: an exit takes the instructions from its
/// vCPU that it could have retired meanwhile. That is exact while all execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charges {
    /// By number of the reason: with APICv in force, and without.
    nanos: Vec<[Nanos; 2]>,
}

impl Charges {
    /// `cost` tells the nanoseconds of each reason of a table while APICv is in force or not.
    pub fn new(table: &[Reason], cost: impl Fn(Reason, bool) -> Nanos) -> Self {
        let mut nanos = vec![[0; 2]; Reason::NUMBERS];
        for &reason in table {
            nanos[reason.index()] = [cost(reason, true), cost(reason, false)];
        }
        Charges { nanos }
    }

    /// What an exit of `reason` takes.
    pub(crate) fn of(&self, reason: Reason, apicv: bool) -> Nanos {
        self.nanos[reason.index()][usize::from(!apicv)]
    }
}

#[cfg(test)]
mod tests {
    use satori_defs::vmx::ExitReason;
    use satori_engine::{REASONS, reason};

    use super::*;

    #[test]
    fn each_reason_has_its_own() {
        let charges =
            Charges::new(REASONS, |reason, apicv| u64::from(reason.number()) * 10 + u64::from(apicv));
        assert_eq!(charges.of(reason(ExitReason::Cpuid), true), 101);
        assert_eq!(charges.of(reason(ExitReason::ExternalInterrupt), false), 10);
    }
}
