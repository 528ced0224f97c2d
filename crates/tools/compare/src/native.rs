//! The real processor: a child process executes cases that it finds in shared memory.
//!
//! The child lives in its signal handler. A case is entered by returning from the handler with
//! the case's registers in the signal frame, and left by whatever signal it raises; so the
//! kernel loads and stores the whole machine context, whatever the instruction did to it.

mod child;
mod shared;

use std::sync::atomic::Ordering;

use crate::case::{Case, Ending, Outcome};
use crate::error::Error;
use satori_defs::x86::vector;
use shared::{Mapping, Shared};

pub(crate) use shared::BATCH;

/// How long a batch may take before its case is given up: the machine may be busy.
const PATIENCE_MS: i64 = 10_000;

/// The real processor.
pub struct Native {
    shared: Mapping<Shared>,
    child: libc::pid_t,
    /// Children that were lost with a case.
    pub lost: u64,
}

impl Native {
    /// Starts the child.
    pub fn new() -> Result<Self, Error> {
        let mut native = Native { shared: Mapping::new()?, child: 0, lost: 0 };
        native.start()?;
        native.try_out()?;
        Ok(native)
    }

    /// Has the child execute UD2: where no case can be executed, each would cost our patience.
    fn try_out(&mut self) -> Result<(), Error> {
        let mut case = Case::new(64);
        case.set_code(&[0x0f, 0x0b]);
        self.cases()[0] = case;
        self.execute(1)?;
        let outcome = &self.outcomes()[0];
        if self.lost > 0 || (outcome.ending, outcome.vector) != (Ending::Exception, u32::from(vector::UD)) {
            return Err(Error::Unable);
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), Error> {
        let shared = self.shared.pointer();
        // SAFETY: `shared` stays mapped in parent and child.
        self.child = unsafe { child::spawn(shared)? };
        Ok(())
    }

    /// Where up to `BATCH` cases go.
    pub fn cases(&mut self) -> &mut [Case; BATCH] {
        // SAFETY: it is the parent's turn whenever a method of `self` is not running.
        unsafe { &mut (*self.shared.pointer()).cases }
    }

    /// What the executed cases left.
    pub fn outcomes(&self) -> &[Outcome; BATCH] {
        // SAFETY: it is the parent's turn whenever a method of `self` is not running.
        unsafe { &(*self.shared.pointer()).outcomes }
    }

    /// Executes the first `count` cases.
    pub fn execute(&mut self, count: usize) -> Result<(), Error> {
        let count = count.min(BATCH) as u32;
        let words = self.shared.words();
        words.count.store(count, Ordering::Relaxed);
        words.current.store(0, Ordering::Relaxed);
        loop {
            if self.shared.words().current.load(Ordering::Relaxed) >= count {
                return Ok(());
            }
            shared::give(&self.shared.words().turn, shared::CHILD);
            // A batch is far shorter than our patience: one that takes longer does not end.
            let lost = !shared::wait_for(&self.shared.words().turn, shared::PARENT, PATIENCE_MS);
            if !lost {
                return Ok(());
            }
            // Its case goes without an outcome; a new child does the rest.
            self.lost += 1;
            self.stop();
            let words = self.shared.words();
            let current = words.current.load(Ordering::Relaxed) as usize;
            words.turn.store(shared::PARENT, Ordering::SeqCst);
            words.current.store(current as u32 + 1, Ordering::Relaxed);
            // SAFETY: there is no child.
            unsafe { (&mut (*self.shared.pointer()).outcomes)[current.min(BATCH - 1)].ending = Ending::Left };
            self.start()?;
        }
    }

    fn stop(&mut self) {
        if self.child > 0 {
            // SAFETY: kills and reaps our own child.
            unsafe {
                libc::kill(self.child, libc::SIGKILL);
                libc::waitpid(self.child, std::ptr::null_mut(), 0);
            }
        }
        self.child = 0;
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.stop();
    }
}
