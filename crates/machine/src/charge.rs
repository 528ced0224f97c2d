//! Guest time that exits take under the virtual clock, as if the modelled hardware handled them.

use satori_bus::Nanos;
use satori_defs::vmx::ExitReason;

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
    /// `cost` tells the nanoseconds of a reason while APICv is in force or not.
    pub fn new(cost: impl Fn(ExitReason, bool) -> Nanos) -> Self {
        let mut nanos = Vec::new();
        for &reason in ExitReason::ALL {
            let at = usize::from(reason as u16);
            if nanos.len() <= at {
                nanos.resize(at + 1, [0; 2]);
            }
            nanos[at] = [cost(reason, true), cost(reason, false)];
        }
        Charges { nanos }
    }

    /// What an exit of `reason` takes.
    pub(crate) fn of(&self, reason: ExitReason, apicv: bool) -> Nanos {
        self.nanos.get(usize::from(reason as u16)).map_or(0, |pair| pair[usize::from(!apicv)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own() {
        let charges = Charges::new(|reason, apicv| u64::from(reason as u16) * 10 + u64::from(apicv));
        assert_eq!(charges.of(ExitReason::Cpuid, true), 101);
        assert_eq!(charges.of(ExitReason::ExternalInterrupt, false), 10);
    }
}
