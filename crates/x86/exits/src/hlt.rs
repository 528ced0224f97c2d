//! HLT and PAUSE.

use satori_engine::Resume;

/// The vCPU's activity is already `Halted`; whoever runs it sleeps until something wakes it.
pub(crate) fn halt() -> Resume {
    Resume::Continue
}

/// Whoever runs the vCPU lets another run.
pub(crate) fn pause() -> Resume {
    Resume::Continue
}
