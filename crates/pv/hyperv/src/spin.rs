//! HvCallNotifyLongSpinWait.

use crate::{Completion, Outcome, Partition, Request, Vp};

/// The number of attempts that the guest tells is of no use to us: others run in any case.
pub(crate) fn notify(_: &Partition, _: &mut Vp, _: &Request<'_>) -> Completion {
    Completion::outcome(Outcome::Yield)
}
