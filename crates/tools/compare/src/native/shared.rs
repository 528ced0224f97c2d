//! What parent and child share, and how they take turns.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::case::{Case, Outcome};
use crate::error::Error;

/// Cases that change hands at once.
pub(crate) const BATCH: usize = 128;
/// [`Words::turn`]: the parent may touch cases and outcomes.
pub(super) const PARENT: u32 = 0;
/// [`Words::turn`]: the child may.
pub(super) const CHILD: u32 = 1;

/// What both may touch at any time.
#[repr(C)]
pub(super) struct Words {
    /// Whose turn it is.
    pub turn: AtomicU32,
    /// The case that is being executed.
    pub current: AtomicU32,
    /// Cases in the batch.
    pub count: AtomicU32,
}

/// The shared memory.
#[repr(C)]
pub(super) struct Shared {
    /// Whose turn it is.
    pub words: Words,
    /// What to execute.
    pub cases: [Case; BATCH],
    /// What came of it.
    pub outcomes: [Outcome; BATCH],
}

/// Zeroed memory that survives `fork` as the same memory.
pub(super) struct Mapping<T>(*mut T);

// SAFETY: the pointer is to a mapping of our own.
unsafe impl<T: Send> Send for Mapping<T> {}

impl<T> Mapping<T> {
    /// New memory.
    pub(super) fn new() -> Result<Self, Error> {
        // SAFETY: a new anonymous mapping, which replaces nothing.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(Error::system("map the memory that is shared with the child"));
        }
        Ok(Mapping(at.cast()))
    }

    /// Where it is.
    pub(super) fn pointer(&self) -> *mut T {
        self.0
    }
}

impl Mapping<Shared> {
    /// What may be touched at any time.
    pub(super) fn words(&self) -> &Words {
        // SAFETY: the mapping lives as long as `self`, and its words are atomic.
        unsafe { &(*self.0).words }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped.
        unsafe { libc::munmap(self.0.cast(), size_of::<T>()) };
    }
}

/// Gives the turn to `whose`.
pub(super) fn give(turn: &AtomicU32, whose: u32) {
    turn.store(whose, Ordering::SeqCst);
    // SAFETY: a wake-up on a valid word.
    unsafe { libc::syscall(libc::SYS_futex, turn.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Waits until it is the turn of `whose`. Tells whether it became so in time.
pub(super) fn wait_for(turn: &AtomicU32, whose: u32, milliseconds: i64) -> bool {
    let deadline = std::time::Instant::now() + std::time::Duration::from_millis(milliseconds.unsigned_abs());
    loop {
        let now = turn.load(Ordering::SeqCst);
        if now == whose {
            return true;
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return false;
        }
        let time = libc::timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        // SAFETY: a wait on a valid word, with a valid timeout.
        unsafe { libc::syscall(libc::SYS_futex, turn.as_ptr(), libc::FUTEX_WAIT, now, &time) };
    }
}
