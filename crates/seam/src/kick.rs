//! Stopping a vCPU from another thread.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

const KICKED: u8 = 1;
const PAUSED: u8 = 2;

/// A request that a running vCPU come out, as an interprocessor interrupt would make it.
///
/// A kick that comes while the vCPU is outside makes its next run return at once. An engine may
/// also ask its own vCPUs to pause between two instructions, which nobody outside sees.
#[derive(Default)]
pub struct Kick {
    asked: AtomicU8,
    /// Brings the vCPU out where it does not look by itself.
    bring_out: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Kick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kick").field(&self.asked).finish()
    }
}

impl Kick {
    /// That of a vCPU which `bring_out` has come out if it is inside: behind a kick, and by any thread.
    pub fn waking(bring_out: impl Fn() + Send + Sync + 'static) -> Self {
        Kick { asked: AtomicU8::new(0), bring_out: Some(Box::new(bring_out)) }
    }
    /// Asks the vCPU to come out.
    pub fn kick(&self) {
        let before = self.asked.fetch_or(KICKED, Ordering::SeqCst);
        // One that waits already was told by whoever came first.
        if let (0, Some(bring_out)) = (before & KICKED, &self.bring_out) {
            bring_out();
        }
    }
    /// Whether anything is asked of the vCPU: one load, for every look between two blocks.
    #[inline(always)]
    pub fn pending(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != 0
    }
    /// Where the requests are, not zero while there is one: for code that cannot call
    /// [`Kick::pending`].
    pub fn flag(&self) -> *const u8 {
        self.asked.as_ptr()
    }
    /// Takes a waiting kick.
    pub fn take(&self) -> bool {
        self.asked.fetch_and(!KICKED, Ordering::SeqCst) & KICKED != 0
    }
    /// Asks the vCPU to pause, or takes that back.
    pub fn pause(&self, wanted: bool) {
        if wanted {
            self.asked.fetch_or(PAUSED, Ordering::SeqCst);
        } else {
            self.asked.fetch_and(!PAUSED, Ordering::SeqCst);
        }
    }
    /// Whether the vCPU is asked to pause.
    pub fn paused(&self) -> bool {
        self.asked.load(Ordering::SeqCst) & PAUSED != 0
    }
}
