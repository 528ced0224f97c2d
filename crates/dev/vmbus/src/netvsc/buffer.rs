//! The guest's receive buffer in sections, and which of them are the guest's to read.

use std::collections::HashMap;
use std::sync::Arc;

use satori_memory::GuestMemory;
use satori_vmbus::{Broken, Pages, SavedPages};
use serde::{Deserialize, Serialize};

/// Bytes of a section, as Windows has them: a frame of 1500 bytes and what is around it.
pub(super) const SECTION: u32 = 1728;
/// Most sections: 64 MiB.
const MOST: u64 = 40_000;

/// A receive buffer.
pub(super) struct Sections {
    pages: Arc<Pages>,
    /// Whether each is the guest's.
    taken: Vec<bool>,
    /// Where the last one was found.
    next: usize,
    /// First section, and how many, of each packet that the guest has not completed.
    packets: HashMap<u64, (usize, usize)>,
    last: u64,
}

/// A receive buffer as plain data.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedSections {
    pages: SavedPages,
    next: usize,
    packets: Vec<(u64, (usize, usize))>,
    last: u64,
}

impl Sections {
    pub(super) fn save(&self) -> SavedSections {
        let mut packets: Vec<_> = self.packets.iter().map(|(id, place)| (*id, *place)).collect();
        packets.sort_unstable();
        SavedSections { pages: self.pages.save(), next: self.next, packets, last: self.last }
    }

    /// The one that was saved; none if it cannot be.
    pub(super) fn restored(memory: GuestMemory, saved: SavedSections) -> Option<Self> {
        let SavedSections { pages, next, packets, last } = saved;
        let mut all = Sections::new(Arc::new(Pages::restored(memory, &pages)?))?;
        let most = all.taken.len();
        if next > most || last >= 1 << 62 {
            return None;
        }
        (all.next, all.last) = (next, last);
        for (id, (first, count)) in packets {
            let sections = all.taken.get_mut(first..first.checked_add(count)?)?;
            let fits = count > 0 && id <= last && !sections.contains(&true);
            sections.fill(true);
            if !fits || all.packets.insert(id, (first, count)).is_some() {
                return None;
            }
        }
        Some(all)
    }

    /// The sections of `pages`; none if there is not room for one.
    pub(super) fn new(pages: Arc<Pages>) -> Option<Self> {
        let count = (pages.len() / u64::from(SECTION)).min(MOST) as usize;
        let taken = vec![false; count];
        (count > 0).then(|| Sections { pages, taken, next: 0, packets: HashMap::new(), last: 0 })
    }

    pub(super) fn count(&self) -> u32 {
        self.taken.len() as u32
    }

    /// Whether there were room for so many bytes if all sections were free.
    pub(super) fn can_hold(&self, bytes: usize) -> bool {
        bytes.div_ceil(SECTION as usize) <= self.taken.len()
    }

    /// Room for so many bytes, for one packet: its id, and where in the buffer.
    pub(super) fn take(&mut self, bytes: usize) -> Option<(u64, u64)> {
        let wanted = bytes.div_ceil(SECTION as usize).max(1);
        let fits = |first: &usize| {
            self.taken.get(*first..*first + wanted).is_some_and(|sections| !sections.contains(&true))
        };
        let first = (self.next..self.taken.len()).chain(0..self.next).find(fits)?;
        self.taken[first..first + wanted].fill(true);
        self.next = first + wanted;
        self.last += 1;
        self.packets.insert(self.last, (first, wanted));
        Some((self.last, first as u64 * u64::from(SECTION)))
    }

    /// The guest completed packet `id`. One that there is not is none of ours.
    pub(super) fn free(&mut self, id: u64) {
        if let Some((first, count)) = self.packets.remove(&id) {
            self.taken[first..first + count].fill(false);
        }
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Broken> {
        self.pages.write(at, bytes)
    }
}
