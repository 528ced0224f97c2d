//! One page as an engine sees it, and the word that tells whether somebody has to know of writes to it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use satori_lock::Held;

use crate::heavy_barrier;

/// State of one guest page: code was decoded from it, its next write is to be logged, it was touched, and a generation.
///
/// A decoder calls [`PageState::mark_code`] *before* it reads the page's bytes and keeps the
/// value that it returns; decoded code is valid while [`PageState::value`] still equals it. A
/// writer calls [`PageState::wrote`] *after* its store. The decoder's barrier is heavy, the
/// writer's is free: either the decoder's read sees the store, or the writer sees the mark.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct PageState(AtomicU32);

/// Pages whose invalidation is remembered.
const REMEMBERED: usize = 64;

static INVALIDATIONS: AtomicU64 = AtomicU64::new(0);
/// The last pages that became invalid: their states' addresses, by the count before.
static RECENT: Mutex<[usize; REMEMBERED]> = Mutex::new([0; REMEMBERED]);
static MARKS: AtomicU64 = AtomicU64::new(0);

impl PageState {
    /// The bit of the value that says that code was decoded from the page.
    pub const CODE: u32 = 1;
    const TOUCHED: u32 = 2;
    /// The next write is to be logged: the page was not written since the log was taken.
    const LOGGED: u32 = 4;
    const GENERATION: u32 = 8;
    /// The bits that say that a write is to be noticed: while none of them is set, a store is nobody's business.
    pub const WATCHED: u32 = Self::CODE | Self::LOGGED;

    /// The current value, for comparison with what [`PageState::mark_code`] returned. Whether writes are logged is
    /// not part of it.
    #[inline(always)]
    pub fn value(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !Self::LOGGED
    }

    /// Tells that the page's bytes are about to be decoded. `alone` says that no other thread
    /// can be writing guest memory, so that the barrier can be left out.
    pub fn mark_code(&self, alone: bool) -> u32 {
        let before = self.0.fetch_or(Self::CODE, Ordering::SeqCst);
        if before & Self::CODE == 0 {
            MARKS.fetch_add(1, Ordering::SeqCst);
            if !alone {
                heavy_barrier();
            }
        }
        (before | Self::CODE) & !Self::LOGGED
    }

    /// Tells that a store to the page was made. Returns whether decoded code became invalid.
    #[inline(always)]
    pub fn wrote(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) & Self::WATCHED != 0 { self.notice() } else { false }
    }

    /// A write that is to be noticed: the page has no decoded code any more, and the log has it.
    #[cold]
    #[inline(never)]
    fn notice(&self) -> bool {
        let next = |state: u32| match state & Self::CODE {
            0 => state & !Self::LOGGED,
            _ => (state & !Self::WATCHED).wrapping_add(Self::GENERATION),
        };
        let noticed = |state: u32| (state & Self::WATCHED != 0).then(|| next(state));
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, noticed);
        let invalidated = before.is_ok_and(|before| before & Self::CODE != 0);
        if invalidated {
            let mut recent = RECENT.lock().held();
            let count = INVALIDATIONS.load(Ordering::SeqCst);
            recent[count as usize % REMEMBERED] = std::ptr::from_ref(self) as usize;
            INVALIDATIONS.store(count + 1, Ordering::SeqCst);
        }
        invalidated
    }

    /// Calls `each` with the address of the state of each page that became invalid since there had been
    /// `since` invalidations; false if there were more than are remembered. Brings `since` up to
    /// date.
    pub fn invalidated_since(since: &mut u64, mut each: impl FnMut(*const PageState)) -> bool {
        let recent = RECENT.lock().held();
        let count = INVALIDATIONS.load(Ordering::SeqCst);
        let first = std::mem::replace(since, count);
        if count - first > REMEMBERED as u64 {
            return false;
        }
        (first..count).for_each(|i| each(recent[i as usize % REMEMBERED] as *const PageState));
        true
    }

    /// How often decoded code became invalid, in any memory of this process. While the value stays
    /// the same, nothing did.
    #[inline(always)]
    pub fn invalidations() -> u64 {
        INVALIDATIONS.load(Ordering::SeqCst)
    }

    /// How often pages became ones whose writes are to be noticed, in any memory of this process.
    #[inline(always)]
    pub fn marks() -> u64 {
        MARKS.load(Ordering::SeqCst)
    }

    /// Whether code is decoded from the page now.
    pub fn has_code(&self) -> bool {
        self.value() & Self::CODE != 0
    }

    /// Whether a write is to be noticed now.
    pub fn watched(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::WATCHED != 0
    }

    /// Has the next write logged; returns whether it would have been already, so that none came meanwhile.
    pub(crate) fn log(&self) -> bool {
        self.0.fetch_or(Self::LOGGED, Ordering::SeqCst) & Self::LOGGED != 0
    }

    /// Writes are not logged any more.
    pub(crate) fn forget_log(&self) {
        // Pages that nobody touched have no state in the host's memory yet, and need none.
        if self.0.load(Ordering::Relaxed) & Self::LOGGED != 0 {
            self.0.fetch_and(!Self::LOGGED, Ordering::SeqCst);
        }
    }

    /// Tells that writes to pages are to be noticed that were not before.
    pub(crate) fn watched_anew() {
        MARKS.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the page was touched by the guest.
    pub fn touched(&self) -> bool {
        self.value() & Self::TOUCHED != 0
    }

    /// Says whether the page was touched, while no vCPU executes.
    pub fn set_touched(&self, touched: bool) {
        match touched {
            true => self.0.fetch_or(Self::TOUCHED, Ordering::Relaxed),
            false => self.0.fetch_and(!Self::TOUCHED, Ordering::Relaxed),
        };
    }

    /// Marks the page as touched; returns whether this was the first time.
    pub fn touch(&self) -> bool {
        self.0.fetch_or(Self::TOUCHED, Ordering::Relaxed) & Self::TOUCHED == 0
    }
}

/// A page of guest RAM: where the host has it, and its state. Lives as long as the memory.
#[derive(Clone, Copy, Debug)]
pub struct Page<'m> {
    /// First byte of the page; valid for 4096 bytes, shared with every vCPU and device.
    pub host: *mut u8,
    /// The page's state.
    pub state: &'m PageState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_after_decoding_changes_the_value_and_others_do_not() {
        let page = PageState::default();
        assert!(!page.wrote());
        page.touch();
        let decoded = page.mark_code(false);
        assert_eq!(page.value(), decoded);
        assert!(page.wrote());
        assert_ne!(page.value(), decoded);
        assert!(!page.wrote(), "no code is decoded any more");
        let again = page.mark_code(true);
        assert_ne!(again, decoded, "an old block stays invalid after the page is decoded again");
    }
}
