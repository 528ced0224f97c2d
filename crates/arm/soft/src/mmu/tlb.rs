//! The tables of translations.

use satori_memory::PageState;
use satori_seam::Stat;

use super::{MODES, Regime};
use crate::host::HostPage;

/// What a translation permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rights {
    pub user_read: bool,
    pub user_write: bool,
    pub user_execute: bool,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

/// A translation, of both stages if there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Physical address of the page of 4 KiB.
    pub page: u64,
    pub rights: Rights,
    /// Device memory by its attributes: no unaligned access.
    pub device: bool,
    /// It is for all ASIDs.
    pub global: bool,
    /// Bits of an address that it translates with one descriptor: 12, 21 or 30.
    pub shift: u8,
}

/// Which translation: all that [`Mapping`] depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub regime: Regime,
    pub vmid: u16,
    pub asid: u16,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Address over `shift`.
    number: u64,
    context: Context,
    mapping: Mapping,
}

/// A page that the current context accesses without further looks. Translated code reads it, too ([`layout`]).
#[derive(Clone, Copy)]
#[repr(C)]
struct Fast {
    /// Address of the page whose loads may use it, or nothing.
    read: u64,
    write: u64,
    /// Host address minus address.
    distance: u64,
    /// The page's state.
    state: *const PageState,
}

// SAFETY: the state is shared by all threads of the machine, and accesses to it are atomic.
unsafe impl Send for Fast {}

/// How translated code finds a page: the entry of `address` is at `(address >> 12) % ENTRIES * SIZE` of a mode's table.
pub mod layout {
    use super::Fast;
    use std::mem::offset_of;

    /// Entries of a mode's table.
    pub const ENTRIES: usize = super::FAST;
    /// Bytes of an entry.
    pub const SIZE: usize = size_of::<Fast>();
    /// Where in it the address of a page that loads may use is.
    pub const READ: usize = offset_of!(Fast, read);
    /// The same for stores.
    pub const WRITE: usize = offset_of!(Fast, write);
    /// Host address minus guest address.
    pub const DISTANCE: usize = offset_of!(Fast, distance);
    /// Address of the page's `PageState`.
    pub const STATE: usize = offset_of!(Fast, state);
}

/// No page has this address.
const NOTHING: u64 = 1;
/// Entries that are listed as filled at most, about.
const MOST_FILLED: usize = 2 * FAST;
const FAST: usize = 1024;
const CODE: usize = 256;

/// Entries by the size of what they translate.
const LEVELS: [(u8, usize); 3] = [(12, 4096), (21, 512), (30, 64)];

/// The tables of a vCPU.
pub(crate) struct Tlb {
    /// Entries of `fast` and `code` that may hold something, so that dropping them all takes no longer than filling them did.
    filled: Vec<(u8, u16)>,
    filled_code: Vec<(u8, u16)>,
    /// How often translations were dropped.
    changes: u64,
    fast: Box<[[Fast; FAST]]>,
    code: Box<[[(u64, u32); CODE]; MODES.len()]>,
    entries: [Vec<Option<Entry>>; 3],
    walks: u64,
    invalidations: u64,
}

const fn slot(address: u64) -> usize {
    (address >> 12) as usize % FAST
}

const fn slot_of_code(address: u64) -> usize {
    (address >> 12) as usize % CODE
}

impl Fast {
    /// The page of `address`, whose tag it has.
    #[inline(always)]
    fn page(&self, address: u64) -> HostPage {
        HostPage::of_parts(self.distance.wrapping_add(address & !0xfff), self.state)
    }
}

impl Tlb {
    pub(crate) fn new() -> Self {
        let none = Fast { read: NOTHING, write: NOTHING, distance: 0, state: std::ptr::null() };
        Tlb {
            filled: Vec::new(),
            filled_code: Vec::new(),
            changes: 0,
            fast: vec![[none; FAST]; MODES.len()].into_boxed_slice(),
            code: Box::new([[(NOTHING, 0); CODE]; MODES.len()]),
            entries: LEVELS.map(|(_, size)| vec![None; size]),
            walks: 0,
            invalidations: 0,
        }
    }

    /// How often translations were dropped.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Where the table of `mode` is: it stays there.
    pub(crate) fn table(&self, mode: usize) -> u64 {
        self.fast[mode].as_ptr() as u64
    }

    /// The page for a load at `address` of `len` bytes that stay in it.
    #[inline(always)]
    pub(crate) fn load(&self, mode: usize, address: u64) -> Option<HostPage> {
        let entry = &self.fast[mode][slot(address)];
        (entry.read == address & !0xfff).then(|| entry.page(address))
    }

    /// The page for a store.
    #[inline(always)]
    pub(crate) fn store(&self, mode: usize, address: u64) -> Option<HostPage> {
        let entry = &self.fast[mode][slot(address)];
        (entry.write == address & !0xfff).then(|| entry.page(address))
    }

    /// Keeps a page for loads or, with `write`, for both.
    pub(crate) fn keep(&mut self, mode: usize, address: u64, page: HostPage, read: bool, write: bool) {
        let at = address & !0xfff;
        let tag = |may: bool| if may { at } else { NOTHING };
        let entry = &mut self.fast[mode][slot(address)];
        if (entry.read, entry.write) == (NOTHING, NOTHING) {
            self.filled.push((mode as u8, slot(address) as u16));
        }
        let (host, state) = page.parts();
        *entry = Fast { read: tag(read), write: tag(write), distance: host.wrapping_sub(at), state };
    }

    /// The slot of the decoded page at `address`.
    #[inline(always)]
    pub(crate) fn code(&self, mode: usize, address: u64) -> Option<usize> {
        let (tag, number) = self.code[mode][slot_of_code(address)];
        (tag == address & !0xfff && address & 3 == 0).then_some(number as usize)
    }

    pub(crate) fn set_code(&mut self, mode: usize, address: u64, number: usize) {
        let entry = &mut self.code[mode][slot_of_code(address)];
        if entry.0 == NOTHING {
            self.filled_code.push((mode as u8, slot_of_code(address) as u16));
        }
        *entry = (address & !0xfff, number as u32);
    }

    /// Forgets which pages are decoded.
    pub(crate) fn forget_code(&mut self) {
        self.changes += 1;
        for (mode, slot) in self.filled_code.drain(..) {
            self.code[usize::from(mode)][usize::from(slot)].0 = NOTHING;
        }
    }

    /// Drops what was kept for the current context.
    pub(crate) fn context_changed(&mut self) {
        for (mode, slot) in self.filled.drain(..) {
            let entry = &mut self.fast[usize::from(mode)][usize::from(slot)];
            (entry.read, entry.write) = (NOTHING, NOTHING);
        }
        self.forget_code();
    }

    /// Drops of it what is about the page of `address`.
    pub(crate) fn page_changed(&mut self, address: u64) {
        self.changes += 1;
        // Entries that are filled again are listed twice.
        if self.filled.len().max(self.filled_code.len()) > MOST_FILLED {
            return self.context_changed();
        }
        for table in self.fast.iter_mut() {
            let entry = &mut table[slot(address)];
            (entry.read, entry.write) = (NOTHING, NOTHING);
        }
        for table in self.code.iter_mut() {
            table[slot_of_code(address)].0 = NOTHING;
        }
    }

    fn index(number: u64, size: usize) -> usize {
        (number ^ number >> 9) as usize % size
    }

    /// The translation of `address`, if it is cached.
    pub(crate) fn find(&self, context: Context, address: u64) -> Option<Mapping> {
        LEVELS.iter().zip(&self.entries).find_map(|(&(shift, size), entries)| {
            let number = address >> shift;
            let entry = entries[Self::index(number, size)].as_ref()?;
            let same = entry.number == number
                && entry.context.regime == context.regime
                && entry.context.vmid == context.vmid
                && (entry.mapping.global || entry.context.asid == context.asid);
            let within = address & ((1 << shift) - 1) & !0xfff;
            same.then_some(Mapping { page: entry.mapping.page | within, ..entry.mapping })
        })
    }

    /// Caches a translation.
    pub(crate) fn insert(&mut self, context: Context, address: u64, mapping: Mapping) {
        self.walks += 1;
        for (&(shift, size), entries) in LEVELS.iter().zip(&mut self.entries) {
            if shift == mapping.shift {
                let number = address >> shift;
                let page = mapping.page & !((1 << shift) - 1);
                let mapping = Mapping { page, ..mapping };
                entries[Self::index(number, size)] = Some(Entry { number, context, mapping });
            }
        }
    }

    /// Drops all translations that `which` names.
    pub(crate) fn drop_all(&mut self, which: impl Fn(Context, bool) -> bool) {
        self.invalidations += 1;
        for entry in self.entries.iter_mut().flatten() {
            if entry.is_some_and(|entry| which(entry.context, entry.mapping.global)) {
                *entry = None;
            }
        }
        self.context_changed();
    }

    /// Drops the translations of `address` that `which` names.
    pub(crate) fn drop_address(&mut self, address: u64, which: impl Fn(Context, bool) -> bool) {
        self.invalidations += 1;
        let mut large = false;
        for (&(shift, size), entries) in LEVELS.iter().zip(&mut self.entries) {
            let number = address >> shift;
            let entry = &mut entries[Self::index(number, size)];
            let found = entry
                .is_some_and(|entry| entry.number == number && which(entry.context, entry.mapping.global));
            if found {
                *entry = None;
                large |= shift != 12;
            }
        }
        match large {
            true => self.context_changed(),
            false => self.page_changed(address),
        }
    }

    pub(crate) fn stats(&self) -> Vec<Stat> {
        vec![("tlb walks", self.walks), ("tlb invalidations", self.invalidations)]
    }
}
