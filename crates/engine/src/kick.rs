//! Stopping a vCPU from another thread.

use std::sync::atomic::{AtomicBool, Ordering};

/// A request that a running vCPU come out, as an interprocessor interrupt would make it.
///
/// A kick that comes while the vCPU is outside makes its next run return at once.
#[derive(Debug, Default)]
pub struct Kick(AtomicBool);

impl Kick {
    /// Asks the vCPU to come out.
    pub fn kick(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
    /// Whether a kick waits.
    #[inline(always)]
    pub fn pending(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
    /// Takes a waiting kick.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}
