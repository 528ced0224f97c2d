//! Stopping a vCPU from another thread.

use std::sync::atomic::{AtomicU8, Ordering};

const KICKED: u8 = 1;
const PAUSED: u8 = 2;

/// A request that a running vCPU come out, as an interprocessor interrupt would make it.
///
/// A kick that comes while the vCPU is outside makes its next run return at once. An engine may
/// also ask its own vCPUs to pause between two instructions, which nobody outside sees.
#[derive(Debug, Default)]
pub struct Kick(AtomicU8);

impl Kick {
    /// Asks the vCPU to come out.
    pub fn kick(&self) {
        self.0.fetch_or(KICKED, Ordering::SeqCst);
    }
    /// Whether anything is asked of the vCPU: one load, for every look between two blocks.
    #[inline(always)]
    pub fn pending(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
    /// Where the requests are, not zero while there is one: for code that cannot call
    /// [`Kick::pending`].
    pub fn flag(&self) -> *const u8 {
        self.0.as_ptr()
    }
    /// Takes a waiting kick.
    pub fn take(&self) -> bool {
        self.0.fetch_and(!KICKED, Ordering::SeqCst) & KICKED != 0
    }
    /// Asks the vCPU to pause, or takes that back.
    pub fn pause(&self, wanted: bool) {
        if wanted {
            self.0.fetch_or(PAUSED, Ordering::SeqCst);
        } else {
            self.0.fetch_and(!PAUSED, Ordering::SeqCst);
        }
    }
    /// Whether the vCPU is asked to pause.
    pub fn paused(&self) -> bool {
        self.0.load(Ordering::SeqCst) & PAUSED != 0
    }
}
