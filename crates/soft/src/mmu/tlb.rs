//! The software TLB: a direct-mapped cache of translations, one cache line an entry.

use satori_memory::PageState;

use super::large::{LargePages, Reach};

/// Whose rights an access is checked against. A processor changes between these often, so one
/// entry holds the answers for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Mode {
    /// Privilege levels 0 to 2, with SMAP in force if it is on.
    Supervisor = 0,
    /// Privilege level 3.
    User = 1,
    /// Privilege levels 0 to 2 with RFLAGS.AC, which lifts SMAP.
    SupervisorAc = 2,
}

/// Entries; a power of two.
const ENTRIES: usize = 1024;
/// A tag that no access has.
const NEVER: u64 = 1;
/// In a tag: the page holds watched data. No access that takes the fast path has it.
const WATCHED: u64 = 2;

/// One cached translation. `tag[2 * mode + write]` is the page's linear address if that kind of
/// access is allowed without further work, else [`NEVER`].
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Entry {
    tag: [u64; 6],
    /// Host address minus linear address.
    addend: u64,
    state: *const PageState,
}

const EMPTY: Entry = Entry { tag: [NEVER; 6], addend: 0, state: std::ptr::null() };

/// Counts of what the TLB did, for the engine's statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlbCounts {
    /// Data translations filled in.
    pub fills: u64,
    /// Flushes that kept global pages.
    pub flushes: u64,
    /// Flushes of everything.
    pub full_flushes: u64,
    /// Single pages dropped.
    pub page_flushes: u64,
}

/// A vCPU's data TLB.
pub struct Tlb {
    entries: Box<[Entry; ENTRIES]>,
    /// Slots filled with non-global pages since the last flush.
    local: Vec<u16>,
    large: LargePages,
    pub counts: TlbCounts,
}

// SAFETY: the page states that entries point to live as long as the guest memory that the
// owning Cpu holds, and are atomics.
unsafe impl Send for Tlb {}

/// What [`Tlb::fill`] puts into a slot.
pub struct Fill {
    /// Any linear address in the page.
    pub linear: u64,
    /// Host address of the page.
    pub host: *mut u8,
    /// The page's state.
    pub state: *const PageState,
    /// Allowed accesses, by `2 * mode + write`.
    pub allowed: [bool; 6],
    /// Survives a flush that keeps global pages.
    pub global: bool,
    /// Log2 of the mapping's size.
    pub shift: u32,
    /// Holds watched data.
    pub watched: bool,
}

impl Tlb {
    pub fn new() -> Self {
        let entries = vec![EMPTY; ENTRIES].into_boxed_slice();
        let Ok(entries) = entries.try_into() else { unreachable!("the slice has ENTRIES entries") };
        Tlb {
            entries,
            local: Vec::with_capacity(ENTRIES),
            large: LargePages::new(),
            counts: TlbCounts::default(),
        }
    }

    /// The host address and page state for an access of `size` bytes at `linear`, if cached and
    /// allowed. An access that crosses into the next page never hits.
    #[inline(always)]
    pub fn lookup(
        &self,
        linear: u64,
        size: u64,
        mode: Mode,
        write: bool,
    ) -> Option<(*mut u8, *const PageState)> {
        let entry = &self.entries[(linear >> 12) as usize & (ENTRIES - 1)];
        // A crossing access has the next page's tag, which lives in another slot.
        let tag = linear.wrapping_add(size - 1) & !0xfff;
        if entry.tag[2 * mode as usize + usize::from(write)] == tag {
            Some((linear.wrapping_add(entry.addend) as *mut u8, entry.state))
        } else {
            None
        }
    }

    /// As [`Tlb::lookup`], but for pages with watched data.
    pub fn lookup_watched(
        &self,
        linear: u64,
        size: u64,
        mode: Mode,
        write: bool,
    ) -> Option<(*mut u8, *const PageState)> {
        let entry = &self.entries[(linear >> 12) as usize & (ENTRIES - 1)];
        let tag = linear.wrapping_add(size - 1) & !0xfff | WATCHED;
        (entry.tag[2 * mode as usize + usize::from(write)] == tag)
            .then(|| (linear.wrapping_add(entry.addend) as *mut u8, entry.state))
    }

    /// Caches a translation.
    pub fn fill(&mut self, fill: &Fill) {
        self.counts.fills += 1;
        let page = fill.linear & !0xfff;
        let slot = (page >> 12) as usize & (ENTRIES - 1);
        let watched = if fill.watched { WATCHED } else { 0 };
        let tag = fill.allowed.map(|allowed| if allowed { page | watched } else { NEVER });
        self.entries[slot] = Entry { tag, addend: (fill.host as u64).wrapping_sub(page), state: fill.state };
        if !fill.global && self.local.len() < ENTRIES {
            self.local.push(slot as u16);
        }
        self.large.insert(page, fill.shift);
    }

    /// Drops everything, or everything but global pages.
    pub fn flush(&mut self, keep_global: bool) {
        if keep_global && self.local.len() < ENTRIES {
            self.counts.flushes += 1;
            for slot in self.local.drain(..) {
                self.entries[slot as usize] = EMPTY;
            }
        } else {
            self.counts.full_flushes += 1;
            self.entries.fill(EMPTY);
            self.local.clear();
            self.large = LargePages::new();
        }
    }

    /// Drops the translation of the page at `linear`, however large it is.
    pub fn flush_page(&mut self, linear: u64) {
        self.counts.page_flushes += 1;
        match self.large.reach(linear) {
            Reach::Page => self.entries[(linear >> 12) as usize & (ENTRIES - 1)] = EMPTY,
            Reach::Piece => {
                for entry in self.entries.iter_mut() {
                    if entry.tag.iter().any(|tag| *tag != NEVER && (tag ^ linear) >> 21 == 0) {
                        *entry = EMPTY;
                    }
                }
            }
            Reach::All => self.flush(false),
        }
    }
}
