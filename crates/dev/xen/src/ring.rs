//! A ring of requests and answers in pages of the guest's: four indices, then slots, a power of two of them.

use satori_memory::{Gpa, GuestMemory, PAGE_SIZE};
use satori_xen::Domain;
use serde::{Deserialize, Serialize};

/// Where the slots begin.
const SLOTS: u64 = 64;
const REQUEST_PROD: u64 = 0;
const REQUEST_EVENT: u64 = 4;
const RESPONSE_PROD: u64 = 8;
const RESPONSE_EVENT: u64 = 12;

/// The ring, and how far the host is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ring {
    /// References of its pages, and where these are.
    references: Vec<u32>,
    pages: Vec<u64>,
    slot: u64,
    entries: u32,
    /// Requests that were taken, and answers that were given.
    pub taken: u32,
    pub given: u32,
    /// The guest wrote an index that cannot be.
    pub broken: bool,
}

impl Ring {
    /// That in the pages that `references` grant, with slots of `slot` bytes. The error is a page that is not granted.
    pub(crate) fn map(domain: &Domain, references: Vec<u32>, slot: u64) -> Result<Self, String> {
        let mut pages = Vec::new();
        for reference in &references {
            match domain.grant(*reference, true) {
                Ok(page) => pages.push(page.0),
                Err(status) => {
                    references.iter().take(pages.len()).for_each(|one| domain.end_grant(*one, true));
                    return Err(format!("reference {reference} grants no page (status {status})"));
                }
            }
        }
        let bytes = pages.len() as u64 * PAGE_SIZE - SLOTS;
        let most = (bytes / slot) as u32;
        let entries = if most == 0 { 0 } else { 1 << most.ilog2() };
        let mut ring = Ring { references, pages, slot, entries, taken: 0, given: 0, broken: false };
        // A front end that connects anew may go on where it was.
        ring.given = ring.load(domain.memory(), RESPONSE_PROD);
        ring.taken = ring.given;
        Ok(ring)
    }

    /// Gives the pages back.
    pub(crate) fn unmap(&self, domain: &Domain) {
        self.references.iter().for_each(|reference| domain.end_grant(*reference, true));
    }

    /// Whether it can be of a guest with this memory.
    pub(crate) fn fits(&self, memory: &GuestMemory, slot: u64) -> bool {
        let page = |at: &u64| at.is_multiple_of(PAGE_SIZE) && memory.has(Gpa(*at), PAGE_SIZE);
        let bytes = SLOTS + u64::from(self.entries) * slot;
        (1..=16).contains(&self.pages.len())
            && self.pages.len() == self.references.len()
            && self.pages.iter().all(page)
            && self.slot == slot
            && self.entries.is_power_of_two()
            && bytes <= self.pages.len() as u64 * PAGE_SIZE
            && self.taken.wrapping_sub(self.given) <= self.entries
    }

    fn load(&self, memory: &GuestMemory, at: u64) -> u32 {
        memory.load_u32(Gpa(self.pages[0] + at)).unwrap_or(0)
    }

    fn store(&self, memory: &GuestMemory, at: u64, value: u32) {
        // The page was in memory when it was granted; one that is not any more was taken away by the guest itself.
        let _ = memory.store_u32(Gpa(self.pages[0] + at), value);
    }

    /// The pieces of slot `index`, as address and length.
    fn pieces(&self, index: u32, len: usize) -> impl Iterator<Item = (Gpa, usize)> + '_ {
        let mut at = SLOTS + u64::from(index & (self.entries - 1)) * self.slot;
        let mut left = len;
        std::iter::from_fn(move || {
            let here = left.min((PAGE_SIZE - at % PAGE_SIZE) as usize);
            let page = self.pages.get((at / PAGE_SIZE) as usize).filter(|_| here > 0)?;
            let piece = (Gpa(page + at % PAGE_SIZE), here);
            at += here as u64;
            left -= here;
            Some(piece)
        })
    }

    /// Slot `index`, copied.
    pub(crate) fn slot<const N: usize>(&self, memory: &GuestMemory, index: u32) -> [u8; N] {
        let mut bytes = [0; N];
        let mut done = 0;
        for (at, len) in self.pieces(index, N) {
            // See `store`.
            let _ = memory.read(at, &mut bytes[done..done + len]);
            done += len;
        }
        bytes
    }

    /// Requests that wait, unless the guest says that there are more than there can be: the ring then stands still.
    pub(crate) fn waiting(&mut self, memory: &GuestMemory) -> u32 {
        if self.broken {
            return 0;
        }
        let given = self.load(memory, REQUEST_PROD);
        if given.wrapping_sub(self.given) > self.entries || given.wrapping_sub(self.taken) > self.entries {
            self.broken = true;
            tracing::warn!(
                "a ring of Xen's has more requests than slots: it stands still until its driver connects anew"
            );
            return 0;
        }
        given.wrapping_sub(self.taken)
    }

    /// Takes the next request.
    pub(crate) fn take<const N: usize>(&mut self, memory: &GuestMemory) -> Option<[u8; N]> {
        if self.waiting(memory) == 0 {
            return None;
        }
        let slot = self.slot(memory, self.taken);
        self.taken = self.taken.wrapping_add(1);
        Some(slot)
    }

    /// Asks to be notified of the next request; true if one came meanwhile.
    pub(crate) fn listen(&mut self, memory: &GuestMemory) -> bool {
        self.store(memory, REQUEST_EVENT, self.taken.wrapping_add(1));
        self.waiting(memory) > 0
    }

    /// Asks to be notified when there are so many requests more.
    pub(crate) fn listen_for(&mut self, memory: &GuestMemory, more: u32) -> bool {
        self.store(memory, REQUEST_EVENT, self.taken.wrapping_add(more.max(1)));
        self.waiting(memory) >= more.max(1)
    }

    /// Puts an answer into the next slot.
    pub(crate) fn put(&mut self, memory: &GuestMemory, answer: &[u8]) {
        let mut done = 0;
        for (at, len) in self.pieces(self.given, answer.len()) {
            // See `store`.
            let _ = memory.write(at, &answer[done..done + len]);
            done += len;
        }
        self.given = self.given.wrapping_add(1);
    }

    /// Shows the guest what was put since it had seen `before`; true if it wants to be notified.
    pub(crate) fn push(&self, memory: &GuestMemory, before: u32) -> bool {
        self.store(memory, RESPONSE_PROD, self.given);
        let event = self.load(memory, RESPONSE_EVENT);
        self.given.wrapping_sub(event) < self.given.wrapping_sub(before)
    }
}
