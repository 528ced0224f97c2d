//! Which decoded code is executed, as whoever writes to memory has to know.

use std::ptr::NonNull;

/// Decoded code that is being executed. It is told when its own vCPU writes to a page that holds decoded code: asking
/// behind each operation whether that happened would cost each of them.
pub(crate) trait Running {
    /// What is left of it must not be executed if it is of a page that was written.
    fn code_written(&self);
}

/// A pointer to what is executed.
#[derive(Clone, Copy)]
struct Noted(NonNull<dyn Running>);

// SAFETY: it is noted and forgotten within a run, which is one thread's (`Decoded::enter`, `Decoded::leave`).
unsafe impl Send for Noted {}

/// See the module.
#[derive(Default)]
pub(crate) struct Decoded {
    /// The decoded code that is being executed, if any. It lives as long as it is here.
    running: Option<Noted>,
    /// Instructions of that which were retired and are not in [`Count::retired`](super::Count::retired). True while an
    /// instruction is executed by its generic implementation, and once an operation stopped; operations that go on say
    /// nothing.
    pub(crate) before: u64,
    /// Writes by this vCPU that hit decoded code.
    writes: u64,
    /// Instructions executed one at a time.
    pub steps: u64,
}

impl Decoded {
    /// Decoded code was overwritten by this vCPU.
    #[cold]
    #[inline(never)]
    pub(super) fn written(&mut self) {
        self.writes += 1;
        if let Some(running) = self.running {
            // SAFETY: whoever notes what runs keeps it until it is noted no more (`Decoded::enter`).
            unsafe { running.0.as_ref() }.code_written();
        }
    }

    /// Writes by this vCPU that hit decoded code.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// Notes that `running` is executed from here on.
    ///
    /// # Safety
    /// It must live until [`Decoded::leave`], which every look-up and every instruction by itself comes behind.
    #[inline(always)]
    pub(super) unsafe fn enter(&mut self, running: NonNull<dyn Running>) {
        self.running = Some(Noted(running));
    }

    /// Notes that no decoded code is executed.
    #[inline(always)]
    pub(super) fn leave(&mut self) {
        self.running = None;
        self.before = 0;
    }
}
