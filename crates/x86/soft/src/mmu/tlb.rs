//! The software TLB: a direct-mapped cache of translations, one cache line an entry. There are two tables, one for each [`Side`]:
//! the one in use is that of whose code runs, and a VM entry or exit changes which it is.

use std::mem::offset_of;

use satori_memory::PageState;

use super::keys::KeyedSlots;
use super::large::{LargePages, Reach};
use super::slots::{ENTRIES, Slots};
use super::spaces::{Change, Kept, Part, SIDES, Side, Space};

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

/// What makes a page's address one that belongs into another slot, and not in that of the next page either.
const ELSEWHERE: u64 = (ENTRIES as u64 / 2) << 12;
/// The same in the tag of a page that holds watched data. No access that takes the fast path has it.
const WATCHED: u64 = (ENTRIES as u64 / 4) << 12;

/// A tag that no access has which looks into `slot`: nor does its exclusive or with an address there have zeros
/// only above the offset into the page.
const fn never(slot: usize) -> u64 {
    (slot as u64) << 12 ^ ELSEWHERE
}

/// One cached translation. `tag[2 * mode + write]` is the page's linear address if that kind of
/// access is allowed without further work, else what [`never()`] says.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Entry {
    tag: [u64; 6],
    /// Host address minus linear address.
    addend: u64,
    state: *const PageState,
}

impl Entry {
    const fn empty(slot: usize) -> Self {
        Entry { tag: [never(slot); 6], addend: 0, state: std::ptr::null() }
    }

    /// Whether anybody may write.
    fn may_write(&self, slot: usize) -> bool {
        self.tag.iter().skip(1).step_by(2).any(|tag| *tag != never(slot))
    }

    /// Takes back the right to write.
    fn forbid_writes(&mut self, slot: usize) {
        for tag in self.tag.iter_mut().skip(1).step_by(2) {
            *tag = never(slot);
        }
    }
}

/// A slot's content, put aside.
struct Aside {
    slot: u16,
    key: Option<u8>,
    entry: Entry,
}

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
    /// Translations put back with the address space that they are of.
    pub returned: u64,
}

/// What is known of a table beside its entries.
struct Table {
    /// While nothing may be seen, the entries; else, if that ever happened, an empty table.
    aside: Option<Box<[Entry; ENTRIES]>>,
    hidden: bool,
    keys: KeyedSlots,
    /// Slots filled with pages that are not global, and with those that are: one of both, or neither if it is empty.
    local: Slots,
    global: Slots,
    /// The key that decided of the page in each slot.
    key: Box<[Option<u8>; ENTRIES]>,
    /// What address spaces that are not current had in their slots, and PKRU then.
    kept: Kept<(u32, Vec<Aside>)>,
    /// What [`mark_of`] says of the page that each slot was last filled with.
    marks: Box<[u8; ENTRIES]>,
    /// For each mark a bit for each group of [`GROUP`] slots: without it no slot of the group was filled with such a page.
    groups: Box<[u32; MARKS]>,
    large: LargePages,
}

impl Table {
    fn new() -> Self {
        Table {
            aside: None,
            hidden: false,
            keys: KeyedSlots::new(),
            local: Slots::NONE,
            global: Slots::NONE,
            key: Box::new([None; ENTRIES]),
            kept: Kept::new(),
            marks: Box::new([0; ENTRIES]),
            groups: Box::new([0; MARKS]),
            large: LargePages::new(),
        }
    }

    /// `slot` holds a page from here on.
    fn note(&mut self, slot: usize, global: bool, key: Option<u8>, state: *const PageState) {
        let (of, other) =
            if global { (&mut self.global, &mut self.local) } else { (&mut self.local, &mut self.global) };
        of.insert(slot);
        other.remove(slot);
        self.key[slot] = key;
        let mark = mark_of(state);
        self.marks[slot] = mark;
        self.groups[usize::from(mark)] |= 1 << (slot / GROUP);
        self.keys.note(key, slot);
    }
}

/// A vCPU's data TLB.
pub struct Tlb {
    /// What [`Tlb::lookup`] sees of the guest itself: the entries, or none of them. Translated code looks here too.
    entries: [Entry; ENTRIES],
    /// The same of a nested guest, while its table is in use.
    nested: Option<Box<[Entry; ENTRIES]>>,
    /// The same while it is not, if it ever was.
    idle: Option<Box<[Entry; ENTRIES]>>,
    /// Whose table is in use.
    side: Side,
    tables: [Table; SIDES],
    /// How many pages had become code when it was last looked which of them are here, if those are kept from stores
    /// that do not look ([`PageState::marks`]).
    pub(super) seen_marks: Option<u64>,
    /// What it did.
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
    /// The protection key that decided.
    pub key: Option<u8>,
}

fn empty() -> Box<[Entry; ENTRIES]> {
    match (0..ENTRIES).map(Entry::empty).collect::<Box<[Entry]>>().try_into() {
        Ok(entries) => entries,
        Err(_) => unreachable!("the slice has ENTRIES entries"),
    }
}

impl Tlb {
    /// Where the guest's own entries are in this struct, for translated code.
    pub const ENTRIES_OFFSET: usize = offset_of!(Tlb, entries);
    /// Log2 of an entry's size.
    pub const ENTRY_SHIFT: u8 = size_of::<Entry>().trailing_zeros() as u8;
    /// The bits of an entry's offset in the table.
    pub const SLOT_MASK: i32 = ((ENTRIES - 1) << Self::ENTRY_SHIFT) as i32;
    /// Where an entry's tags are.
    pub const TAG_OFFSET: usize = offset_of!(Entry, tag);
    /// Where the distance from linear to host addresses is.
    pub const ADDEND_OFFSET: usize = offset_of!(Entry, addend);
    /// Where the pointer to the page's state is.
    pub const STATE_OFFSET: usize = offset_of!(Entry, state);

    /// Nothing is cached yet.
    #[expect(clippy::new_without_default, reason = "a table of this size is made on purpose")]
    pub fn new() -> Self {
        Tlb {
            entries: std::array::from_fn(Entry::empty),
            nested: None,
            idle: None,
            side: Side::Own,
            tables: std::array::from_fn(|_| Table::new()),
            seen_marks: None,
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
        let entry = &self.nested.as_deref().unwrap_or(&self.entries)[slot_of(linear)];
        // A crossing access has the next page's tag, which lives in another slot.
        let tag = linear.wrapping_add(size - 1) & !0xfff;
        if entry.tag[2 * mode as usize + usize::from(write)] == tag {
            Some((linear.wrapping_add(entry.addend) as *mut u8, entry.state))
        } else {
            None
        }
    }

    /// How far the entries of a nested guest, whose code is about to run, are behind [`Tlb::ENTRIES_OFFSET`], in bytes; 0 of another's code.
    pub fn nested_distance(&self) -> u64 {
        self.nested
            .as_ref()
            .map_or(0, |nested| (nested.as_ptr() as u64).wrapping_sub(self.entries.as_ptr() as u64))
    }

    /// The table of `side` is in use from here on.
    fn choose(&mut self, side: Side) {
        if side != self.side {
            self.side = side;
            std::mem::swap(&mut self.nested, &mut self.idle);
            if side == Side::Nested {
                self.nested.get_or_insert_with(empty);
            }
        }
    }

    /// Does something with the table in use, and with the other one if that was ever used.
    fn with_both(&mut self, mut work: impl FnMut(&mut Tlb)) {
        let side = self.side;
        work(self);
        if self.nested.is_some() || self.idle.is_some() {
            self.choose(side.other());
            work(self);
            self.choose(side);
        }
    }

    /// Makes every look-up miss, or not: for modes in which each access needs a closer look.
    pub fn hide(&mut self, hidden: bool) {
        if hidden != self.table().hidden {
            let table = &mut self.tables[self.side as usize];
            table.hidden = hidden;
            let entries = self.nested.as_deref_mut().unwrap_or(&mut self.entries);
            std::mem::swap(entries, &mut **table.aside.get_or_insert_with(empty));
        }
    }

    /// The entries in use, seen or not.
    fn real(&mut self) -> &mut [Entry; ENTRIES] {
        match &mut self.tables[self.side as usize] {
            Table { aside: Some(aside), hidden: true, .. } => aside,
            _ => self.nested.as_deref_mut().unwrap_or(&mut self.entries),
        }
    }

    /// What is known of the entries in use.
    fn table(&mut self) -> &mut Table {
        &mut self.tables[self.side as usize]
    }

    /// What [`Tlb::lookup`] tells of one byte when neither hidden nor watched.
    pub fn find(&mut self, linear: u64, mode: Mode, write: bool) -> Option<(*mut u8, *const PageState)> {
        let entry = &self.real()[slot_of(linear)];
        let tag = entry.tag[2 * mode as usize + usize::from(write)];
        let hit = (tag ^ linear) & !(WATCHED | 0xfff) == 0;
        hit.then(|| (linear.wrapping_add(entry.addend) as *mut u8, entry.state))
    }

    /// Caches a translation.
    pub fn fill(&mut self, fill: &Fill) {
        self.counts.fills += 1;
        let page = fill.linear & !0xfff;
        let slot = slot_of(page);
        let watched = if fill.watched { WATCHED } else { 0 };
        let tag = fill.allowed.map(|allowed| if allowed { page ^ watched } else { never(slot) });
        self.real()[slot] = Entry { tag, addend: (fill.host as u64).wrapping_sub(page), state: fill.state };
        let table = self.table();
        table.note(slot, fill.global, fill.key, fill.state);
        table.large.insert(page, fill.shift);
    }

    /// Whether pages of decoded code are kept from stores.
    pub(super) fn guards_code(&self) -> bool {
        self.seen_marks.is_some()
    }

    /// Takes back the right to write pages whose writes are to be noticed: those that hold decoded code, or are logged.
    pub fn protect_watched(&mut self) {
        self.with_both(|this| {
            for (slot, entry) in this.real().iter_mut().enumerate() {
                // SAFETY: the state of a page of guest RAM lives as long as that; see `Send`.
                if entry.may_write(slot) && unsafe { entry.state.as_ref() }.is_some_and(PageState::watched) {
                    entry.forbid_writes(slot);
                }
            }
        });
    }

    /// The same for the one page whose state is `state`.
    pub fn protect(&mut self, state: *const PageState) {
        self.with_both(|this| this.protect_here(state));
    }

    fn protect_here(&mut self, state: *const PageState) {
        let mark = mark_of(state);
        // A page is seldom in more than one group: code that is written becomes code again and again.
        let mut groups = self.table().groups[usize::from(mark)];
        while groups != 0 {
            let group = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let mut there = false;
            for word in group * GROUP / 8..(group + 1) * GROUP / 8 {
                let marks: [u8; 8] = self.table().marks.as_chunks().0[word];
                for at in perhaps_equal(u64::from_le_bytes(marks), mark) {
                    there = true;
                    let slot = 8 * word + at;
                    let entry = &mut self.real()[slot];
                    if entry.state == state {
                        entry.forbid_writes(slot);
                    }
                }
            }
            if !there {
                self.table().groups[usize::from(mark)] &= !(1 << group);
            }
        }
    }

    /// Drops everything, or everything but global pages of the world that is current, whose side is `side`. Nothing of others is kept.
    pub(super) fn flush(&mut self, keep_global: bool, side: Side) {
        self.choose(side);
        self.with_both(|this| {
            this.table().kept.clear();
            if keep_global && this.side == side { this.flush_local() } else { this.flush_all() }
        });
    }

    fn flush_all(&mut self) {
        self.counts.full_flushes += 1;
        for (slot, entry) in self.real().iter_mut().enumerate() {
            *entry = Entry::empty(slot);
        }
        let table = self.table();
        (table.local, table.global) = (Slots::NONE, Slots::NONE);
        table.keys.clear();
        table.large = LargePages::new();
    }

    fn flush_local(&mut self) {
        self.counts.flushes += 1;
        for slot in self.table().local.drain() {
            self.real()[slot] = Entry::empty(slot);
        }
    }

    fn flush_global(&mut self) {
        self.counts.flushes += 1;
        for slot in self.table().global.drain() {
            self.real()[slot] = Entry::empty(slot);
        }
    }

    /// Another address space becomes current.
    pub(super) fn change(&mut self, change: &Change) {
        self.choose(change.side());
        if change.only_flushes() {
            self.flush_local();
        }
        if change.flushes_global() {
            self.flush_global();
        }
        for (from, to) in change.parts() {
            let aside = self.put_aside(matches!(from, Part::Global(_)));
            let table = self.table();
            let pkru = table.keys.pkru();
            table.kept.put(from, change, (pkru, aside));
            if let Some((before, entries)) = table.kept.take(to, change)
                && before == pkru
            {
                self.put_back(entries, matches!(to, Part::Global(_)), change.translates);
            }
        }
    }

    /// Takes out all pages that are global, or not.
    fn put_aside(&mut self, global: bool) -> Vec<Aside> {
        self.counts.flushes += 1;
        let table = self.table();
        let slots = if global { table.global.drain() } else { table.local.drain() };
        let take = |slot: usize| {
            let entry = std::mem::replace(&mut self.real()[slot], Entry::empty(slot));
            Aside { slot: slot as u16, key: self.table().key[slot], entry }
        };
        slots.map(take).filter(|aside| !aside.entry.state.is_null()).collect()
    }

    /// Puts back what [`Tlb::put_aside`] took out.
    fn put_back(&mut self, entries: Vec<Aside>, global: bool, translates: bool) {
        for Aside { slot, key, mut entry } in entries {
            let slot = usize::from(slot);
            // What is there is of the other part, and was used since.
            if !self.real()[slot].state.is_null() {
                continue;
            }
            // SAFETY: the state of a page of guest RAM lives as long as that; see `Send`.
            if translates && unsafe { entry.state.as_ref() }.is_some_and(PageState::watched) {
                entry.forbid_writes(slot);
            }
            self.counts.returned += 1;
            self.real()[slot] = entry;
            self.table().note(slot, global, key, entry.state);
        }
    }

    /// Forgets what is kept of address spaces that are not current, `spaces` being those that the sides have or had last: what is
    /// put aside ([`Kept::forget`]), and what the other side's table holds.
    pub(super) fn forget(&mut self, which: impl Fn(Space) -> bool, all: bool, spaces: [Space; SIDES]) {
        let side = self.side;
        self.with_both(|this| {
            this.table().kept.forget(&which, all);
            let space = spaces[this.side as usize];
            if this.side != side && which(space) {
                this.flush_local();
            }
            if this.side != side && all && which(space.of_world()) {
                this.flush_global();
            }
        });
    }

    /// Drops the translation of the page at `linear`, however large it is.
    pub fn flush_page(&mut self, linear: u64) {
        match self.table().large.reach(linear) {
            Reach::Page => self.real()[slot_of(linear)] = Entry::empty(slot_of(linear)),
            Reach::Piece => {
                // Its pages have slots one behind the other.
                const PAGES: usize = 1 << (21 - 12);
                let first = slot_of(linear) & !(PAGES - 1);
                for (slot, entry) in self.real().iter_mut().enumerate().skip(first).take(PAGES) {
                    if entry
                        .tag
                        .iter()
                        .any(|tag| *tag != never(slot) && ((tag ^ linear) & !WATCHED) >> 21 == 0)
                    {
                        *entry = Entry::empty(slot);
                    }
                }
            }
            Reach::All => {
                self.table().kept.clear();
                self.flush_all();
            }
        }
    }

    /// Brings what was decided by protection keys up to date with PKRU.
    #[inline]
    pub fn set_pkru(&mut self, pkru: u32) {
        if self.tables[self.side as usize].keys.pkru() != pkru {
            self.drop_keyed(pkru);
        }
    }

    #[cold]
    fn drop_keyed(&mut self, pkru: u32) {
        for key in self.table().keys.changed(pkru) {
            for slot in self.table().keys.take(key) {
                self.real()[slot] = Entry::empty(slot);
            }
        }
    }
}

/// Slots that are told apart by nothing in [`Table::groups`].
const GROUP: usize = ENTRIES / 32;
/// Values of [`mark_of`].
const MARKS: usize = 256;

/// Tells most pages apart by their states, in fewer bits.
fn mark_of(state: *const PageState) -> u8 {
    (state as usize / size_of::<PageState>()) as u8
}

/// The bytes of `marks` that are `mark`, by their places from the lowest on, and perhaps one more behind each.
fn perhaps_equal(marks: u64, mark: u8) -> impl Iterator<Item = usize> {
    const ONES: u64 = u64::MAX / 0xff;
    let differs = marks ^ (ONES * u64::from(mark));
    // Where a byte is 0, and above, where the subtraction borrows.
    let mut zero = differs.wrapping_sub(ONES) & !differs & ONES << 7;
    std::iter::from_fn(move || {
        let at = (zero != 0).then(|| zero.trailing_zeros() as usize / 8)?;
        zero &= zero - 1;
        Some(at)
    })
}

/// The slot of the page around `linear`.
#[inline(always)]
fn slot_of(linear: u64) -> usize {
    (linear >> 12) as usize & (ENTRIES - 1)
}
