//! The dirty log: which pages were written, by whomever, since it was asked last.
//!
//! Each page's state has a bit that says that its next write is to be noticed. It is next to that which says that code was decoded
//! from the page, and whoever writes looks at both at once ([`crate::PageState::wrote`]): a log that is off costs nothing, one
//! that is on a slow store for each page that is written between two questions.

use std::sync::atomic::Ordering;

use crate::map::Map;
use crate::{GuestMemory, PAGE_SIZE, PageState, Region, heavy_barrier};

impl GuestMemory {
    /// From now on, writes are logged. No page counts as written yet. False if they were logged already.
    ///
    /// vCPUs have to stand outside of their runs, here and in [`GuestMemory::take_dirty_log`]; devices may go on. An engine
    /// that lets stores go unnoticed to pages that nobody watches looks at the start of each run which those are.
    pub fn start_dirty_log(&self) -> bool {
        let _still = self.maps().still();
        let started = !self.logging().swap(true, Ordering::SeqCst);
        if started {
            watch(self.maps().now());
        }
        started
    }

    /// The pages that were written since the log was started or taken last, as ranges, ascending and apart; none if it
    /// is off. RAM that came or moved since counts as written.
    pub fn take_dirty_log(&self) -> Option<Vec<Region>> {
        let _still = self.maps().still();
        self.logging().load(Ordering::SeqCst).then(|| watch(self.maps().now()))
    }

    /// Writes are not logged any more. False if they were not.
    pub fn stop_dirty_log(&self) -> bool {
        let _still = self.maps().still();
        let states = self.maps().now().slots.iter().flat_map(|slot| slot.states.iter());
        states.for_each(PageState::forget_log);
        self.logging().swap(false, Ordering::SeqCst)
    }
}

/// Has the next write of each page noticed; returns the pages of which it was not.
fn watch(map: &Map) -> Vec<Region> {
    let mut written: Vec<Region> = Vec::new();
    for slot in &map.slots {
        for (state, page) in slot.states.iter().zip(0..) {
            if state.log() {
                continue;
            }
            let start = slot.region.start.add(page * PAGE_SIZE);
            match written.last_mut() {
                Some(last) if last.start.add(last.len) == start => last.len += PAGE_SIZE,
                _ => written.push(Region { start, len: PAGE_SIZE }),
            }
        }
    }
    // A write that the caller's look at the pages will not see is one that sees the bit.
    PageState::watched_anew();
    heavy_barrier();
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gpa;

    fn memory() -> GuestMemory {
        let low = Region { start: Gpa(0), len: 0x10000 };
        GuestMemory::new(&[low, Region { start: Gpa(0x10_0000), len: 0x4000 }]).unwrap()
    }

    fn ranges(memory: &GuestMemory) -> Vec<(u64, u64)> {
        let log = memory.take_dirty_log().expect("it is on");
        log.into_iter().map(|region| (region.start.0, region.len)).collect()
    }

    #[test]
    fn pages_that_were_written_are_told_once() {
        let memory = memory();
        memory.write(Gpa(0x3000), &[1]).unwrap();
        assert_eq!(memory.take_dirty_log(), None);
        assert!(memory.start_dirty_log() && !memory.start_dirty_log());
        assert_eq!(ranges(&memory), []);
        memory.write(Gpa(0x1ffe), &[1, 2, 3, 4]).unwrap();
        memory.store_u32(Gpa(0x10_3ffc), 7).unwrap();
        memory.fetch_or_u32(Gpa(0x10_3ff8), 7).unwrap();
        memory.load_u32(Gpa(0x5000)).unwrap();
        assert_eq!(ranges(&memory), [(0x1000, 0x2000), (0x10_3000, 0x1000)]);
        assert_eq!(ranges(&memory), []);
        memory.write(Gpa(0xffff), &[1]).unwrap();
        assert!(memory.stop_dirty_log() && !memory.stop_dirty_log());
        assert_eq!(memory.take_dirty_log(), None);
        assert!(memory.start_dirty_log());
        assert_eq!(ranges(&memory), [], "what was written before is forgotten");
    }

    #[test]
    fn decoded_code_does_not_hide_a_write_nor_does_the_log_void_code() {
        let memory = memory();
        let code = memory.page(Gpa(0x2000)).unwrap().state;
        let decoded = code.mark_code(true);
        memory.start_dirty_log();
        assert_eq!(code.value(), decoded, "its code is what it was");
        memory.write(Gpa(0x2010), &[0xcc]).unwrap();
        assert_ne!(code.value(), decoded);
        assert_eq!(ranges(&memory), [(0x2000, 0x1000)]);
        let again = code.mark_code(true);
        assert_eq!(ranges(&memory), [], "decoding is no write");
        memory.write(Gpa(0x3000), &[1]).unwrap();
        assert_eq!(code.value(), again);
    }

    #[test]
    fn ram_that_comes_or_moves_counts_as_written() {
        let memory = memory();
        memory.start_dirty_log();
        memory.add(Region { start: Gpa(0x20_0000), len: 0x2000 }).unwrap();
        assert_eq!(ranges(&memory), [(0x20_0000, 0x2000)]);
        memory.relocate(Gpa(0x10_0000), Gpa(0x40_0000)).unwrap();
        assert_eq!(ranges(&memory), [(0x40_0000, 0x4000)]);
        memory.remove(Gpa(0x20_0000)).unwrap();
        assert_eq!(ranges(&memory), []);
    }

    #[test]
    fn no_write_beside_the_log_is_lost() {
        let memory = memory();
        memory.start_dirty_log();
        let pages = 4;
        let mut seen = vec![0_u32; pages];
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 1..=20_000_u32 {
                    memory.store_u32(Gpa(u64::from(n) % pages as u64 * PAGE_SIZE), n).unwrap();
                }
            });
            loop {
                let done = writer.is_finished();
                for (start, len) in ranges(&memory) {
                    for page in start / PAGE_SIZE..(start + len) / PAGE_SIZE {
                        seen[page as usize] = memory.load_u32(Gpa(page * PAGE_SIZE)).unwrap();
                    }
                }
                if done {
                    break;
                }
            }
        });
        let there = |page: usize| memory.load_u32(Gpa(page as u64 * PAGE_SIZE)).unwrap();
        assert_eq!(
            seen,
            (0..pages).map(there).collect::<Vec<_>>(),
            "a copy that follows the log is the memory"
        );
    }
}
