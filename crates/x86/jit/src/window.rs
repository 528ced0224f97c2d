//! Accesses that are translated together.
//!
//! Code reaches the fields of a structure, and what it keeps on its stack, through the same registers
//! with different displacements. The first of such accesses in a block looks into the TLB for the
//! range that all of them lie in, and the distance to the host's memory stays in the context for
//! the others: a *window*. It needs what the first access needs and no more: a range is read only
//! if some of it is read first, so a window for writing is opened by a write.
//!
//! Translations cannot become void within a block, but by an instruction that runs through its generic
//! implementation, which closes all windows.

pub(crate) mod enter;
mod left;
pub(crate) mod opening;
mod paged;
mod pair;
mod step;
mod stride;

use std::cell::Cell;
use std::mem::offset_of;
use std::rc::Rc;

pub(crate) use paged::{Kept, Paged};
pub(crate) use pair::{PAIRS, Paired};
pub(crate) use step::Step;
use step::{Key, Use};

use super::asm::{Mem, cc, field};
use super::cold::Cold;
use super::lower::Lower;
use super::memory::Address;
use super::stubs::{self, S1, S2};
use super::{Context, Extent, reason};
use crate::Translating;
use satori_soft::code_mode::CodeKey;
use satori_soft::mmu::Tlb;

/// How many windows may be open at once.
const WINDOWS: usize = 16;
/// How many accesses of one loop may keep their page from one round to the next.
const PAGES: usize = 16;
/// Entries of `Context::windows`: windows first, then pages of loops.
pub(crate) const PLACES: usize = WINDOWS + PAGES;
/// The most bytes that a window may have.
const SPAN: i64 = 1024;
/// How many times a range may lie in two pages before the rate of that is judged.
const CROSSINGS: i64 = 61;
/// How many times accesses of loops may leave their pages before the rate of that is judged.
pub(crate) const LEAVINGS: i64 = 64;
/// If accesses of loops leave their pages less often than once in so many instructions, keeping the page is worth it.
const APART: u64 = 48;
/// The same for keeping its neighbours too: leaving those costs a call.
const APART_WIDE: u64 = 400;
/// How many neighbours on either side of a page are kept at most.
const BESIDE: u64 = 31;
/// If a range lies in two pages less often than once in so many instructions, its window is worth it.
const SOON: u64 = 250;
/// The same for a range that was at the same address both times, as a function's frame on the stack: it will be there again.
const SOON_THERE: u64 = 50_000;
/// The same for an access of a loop, in rounds.
const ROUNDS: u64 = 2;

/// What the context holds of a window while code that uses it runs.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Opened {
    /// The host's address of the range's first byte. In a loop, host address minus linear address, or the host's address of
    /// the page: see [`Window::place`].
    place: u64,
    /// In a loop: the host's address of the range's first byte in this round, if that is of use. In the third copy, what leads
    /// to it with the register that moves: see [`Place::Strided`].
    now: u64,
    /// The address of the page's code word, if other vCPUs run: by the time of a store through the window the TLB's entry may be of
    /// another page.
    state: u64,
    /// In a loop: the page of the last round's access.
    page: u64,
    /// How far into the page the range may begin, not included; 0 if no page is known.
    limit: u64,
}

/// How an access through a window finds its byte of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The host's address of the first byte, in [`Opened::place`].
    Pointer,
    /// The same in [`Opened::now`].
    Now,
    /// The distance to the host's memory, in [`Opened::place`].
    Distance,
    /// That of either page that the range is in; its first byte's address is a multiple of the value.
    Pair(u8),
    /// What the registers that move are to be added to, in [`Opened::now`] or, if that is the distance, in [`Opened::place`].
    Strided,
}

/// An open window.
#[derive(Clone, Copy)]
struct Window {
    key: Key,
    /// Displacements from the first byte to behind the last, from the base's present value.
    low: i64,
    high: i64,
    write: bool,
    place: Place,
    /// Bytes from the window's first to one whose address is known to be a multiple of `.1`.
    aligned: Option<(i64, u8)>,
}

impl Window {
    /// Whether `step` changes a register that the window's address is made of, other than by adding a constant: then it closes.
    fn loses(&self, step: &Step) -> bool {
        self.key.loses(step.changes, step.registers())
    }

    /// The constant that `step` adds to the register from whose value the window's displacements count.
    fn shifts(&self, step: &Step) -> Option<i64> {
        let (register, amount) = step.shift?;
        (self.key.base == Some(register as u8)).then_some(amount)
    }
}

/// The windows that are open where code is being made.
#[derive(Clone, Default)]
pub(crate) struct Windows {
    /// Each window with its index in `Context::windows`, in ascending order of these.
    open: Vec<(usize, Window)>,
    /// The index that is tried first for the next window, so that the oldest is overwritten.
    next: usize,
    /// The accesses of this loop that keep their page, in the order of their places.
    pub paged: Vec<Kept>,
    /// A bit for each index whose window stays open, as the start of the loop's second copy relies on it.
    kept: u32,
    /// Whether a window was overwritten by another, or all were closed: then none is known to last for a whole round.
    lost: bool,
}

impl Windows {
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
        self.lost = true;
    }

    /// What stays open around a loop that changes the registers in `changed`, if the windows last.
    pub(crate) fn kept(&self, changed: u16) -> Option<Self> {
        if self.lost {
            return None;
        }
        let stays = |(_, window): &&(usize, Window)| window.key.stays(changed);
        let open: Vec<_> = self.open.iter().filter(stays).copied().collect();
        let kept = open.iter().fold(0, |kept, (number, _)| kept | 1 << number);
        Some(Windows { open, kept, ..Windows::default() })
    }

    /// Gives an access of a loop, or a group of them, a place of its own.
    fn open_paged(&mut self, window: Window, kept: Kept) -> Option<usize> {
        let number = WINDOWS + self.paged.len();
        if number >= PLACES {
            return None;
        }
        self.put(number, window);
        self.paged.push(kept);
        Some(number)
    }

    /// Whether what an instruction does changes what is open.
    pub(crate) fn concerns(&self, step: &Step) -> bool {
        self.open.iter().any(|(_, window)| window.loses(step) || window.shifts(step).is_some())
    }

    /// Brings the windows up to date with what an instruction does.
    pub(crate) fn pass(&mut self, step: &Step) {
        self.open.retain_mut(|(_, window)| {
            if window.loses(step) {
                return false;
            }
            if let Some(amount) = window.shifts(step) {
                window.low = window.low.wrapping_sub(amount);
                window.high = window.high.wrapping_sub(amount);
            }
            true
        });
    }

    fn find(&self, wanted: &Use) -> Option<(usize, Window)> {
        let holds = |(_, window): &&(usize, Window)| {
            window.key == wanted.key
                && window.low <= wanted.low
                && wanted.high <= window.high
                && (window.write || !wanted.write)
        };
        self.open.iter().find(holds).copied()
    }

    /// Opens `window` in the place of this number, for another one that may be there.
    fn put(&mut self, number: usize, window: Window) {
        match self.open.binary_search_by_key(&number, |(number, _)| *number) {
            Ok(place) => self.open[place].1 = window,
            Err(place) => self.open.insert(place, (number, window)),
        }
    }

    fn close(&mut self, number: usize) {
        self.open.retain(|(other, _)| *other != number);
    }

    /// Opens a window in place of the oldest, if not all of them stay.
    fn open(&mut self, window: Window) -> Option<usize> {
        let free = |number: &usize| self.kept & 1 << number == 0;
        let number = (self.next..WINDOWS).chain(0..self.next).find(free)?;
        self.next = (number + 1) % WINDOWS;
        self.lost |= self.open.iter().any(|(other, _)| *other == number);
        self.put(number, window);
        Some(number)
    }
}

/// The range that `first`, an access of the first of `steps`, should open a window for, not beyond `extent`.
fn range(first: &Use, steps: &[Step], extent: Extent) -> Option<(i64, i64)> {
    let (mut low, mut high) = (first.low, first.high);
    let (mut moved, mut others) = (0i64, 0);
    // The first of its uses may be this access itself.
    let mut own = true;
    for step in steps {
        for one in step.uses().filter(|one| one.key == first.key) {
            let here = (one.low.wrapping_add(moved), one.high.wrapping_add(moved));
            if std::mem::take(&mut own) && here == (first.low, first.high) && one.write == first.write {
                continue;
            }
            if one.write && !first.write {
                return (others > 0).then_some((low, high));
            }
            let wider = (low.min(here.0), high.max(here.1));
            // Displacements of 64 bits may be further apart than one can say.
            let near = wider.1.checked_sub(wider.0).is_some_and(|span| span <= SPAN);
            if near && extent.0 <= wider.0 - first.low && wider.1 - first.low <= extent.1 {
                (low, high) = wider;
                others += 1;
            }
        }
        own = false;
        if first.key.loses(step.changes, step.registers()) {
            break;
        }
        if let Some((register, amount)) = step.shift
            && first.key.base == Some(register as u8)
        {
            moved = moved.wrapping_add(amount);
        }
    }
    (others > 0).then_some((low, high))
}

/// The arguments of the call that opens a window whose page is not in the TLB. Emitted code holds its address.
#[repr(C)]
pub(crate) struct Range {
    /// The address of the code that goes on without windows if the range is in two pages; 0 while there is none.
    without: Cell<u64>,
    /// How many more times the range may lie in two pages until the rate is judged, and the count of instructions when it was judged
    /// last.
    crossings: Cell<i64>,
    crossed_at: Cell<u64>,
    /// The access's linear address when the range was in two pages last.
    crossed_with: Cell<u64>,
    /// The bounds of the rate: [`SOON`] or its like for this window, and [`SOON_THERE`] if the address was the same.
    soon: u64,
    soon_there: u64,
    size: u8,
    write: bool,
    /// Pages that lie together on the host may be reached as one.
    joins: bool,
    window: u8,
    /// The access remembers its page, and those beside it if the second is set.
    paged: bool,
    wide: bool,
    /// What it remembers is the host's address of the page.
    absolute: bool,
    /// The number of the block that is given up for it: of the whole one, where this is in the rest of one.
    block: u32,
    /// The number of the block that it is in, and the address of the instruction where that was made: a rest may have been made
    /// when its page was elsewhere than it was when the whole block was.
    made_in: u32,
    rip: u64,
    /// Bytes from the access to the range's first, and behind its last.
    low: i64,
    high: i64,
}

impl Range {
    /// Forgets the code that goes on without windows, before code memory is given up.
    pub(crate) fn forget(&self) {
        self.without.set(0);
    }
}

fn opened(window: usize, offset: usize) -> Mem {
    field(
        offset_of!(Translating, context)
            + offset_of!(Context, windows)
            + window * size_of::<Opened>()
            + offset,
    )
}

/// The range of a window that is being opened, for the cold code that is reached if its page is not in the TLB.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    /// What [`enter::open`] is called with for it.
    range: u64,
    /// Its first and its last byte, from the access.
    first: i64,
    last: i64,
    write: bool,
}

/// Which rounds of a loop a copy of its code executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The block does not go back to its start.
    Only,
    First,
    /// Every round behind the first.
    Next,
    /// Those of which is known that accesses stay in their pages: see [`stride`].
    Strided,
}

/// How often accesses in loops may leave their page until that is looked at.
fn left_pages() -> Mem {
    field(offset_of!(Translating, context) + offset_of!(Context, left_pages))
}

/// Where the address of the state of the page of `window` is.
pub(crate) fn state(window: u8) -> Mem {
    opened(window.into(), offset_of!(Opened, state))
}

impl Lower<'_> {
    /// The operand for an access through a window, which may be opened for it; nothing if the access
    /// stands alone. Flags stay if the window was open.
    pub(crate) fn through_window(
        &mut self,
        address: &Address,
        size: u32,
        write: bool,
        align: u32,
    ) -> Option<(Mem, bool)> {
        if !self.views.grouping {
            return None;
        }
        let key = Key::of(address)?;
        let wanted = Use { key, low: address.disp, high: address.disp.checked_add(size.into())?, write };
        // It is a power of two, and 64 at most.
        let by = align as u8;
        let aligned = |window: &Window| {
            let place = wanted.low - window.low;
            let fits = |(known, other): (i64, u8)| other >= by && (place - known) % i64::from(by) == 0;
            align == 1 || window.aligned.is_some_and(fits)
        };
        if self.views.windows.find(&wanted).is_some_and(|(_, window)| aligned(&window)) {
            return self.reach(address, &wanted, size);
        }
        let planned = self.planned(&key, by);
        if !planned {
            // What looks at the address changes flags.
            self.spare_flags();
        }
        let (mark, cold, pointer) = (self.asm.mark(), self.output.cold.len(), self.views.pointer);
        let before = self.views.windows.paged.len();
        if align > 1 && !planned {
            // That comes before the page is looked at.
            let misaligned = self.step(reason::STEP);
            self.effective(S2, address, 0);
            self.asm.test_byte(S2, by - 1);
            self.asm.jcc(cc::NE, misaligned);
        }
        let Some(reached) = self.reach(address, &wanted, size) else {
            self.asm.rollback(mark);
            self.views.pointer = pointer;
            self.output.cold.truncate(cold);
            return None;
        };
        if let Some((number, window)) = self.views.windows.find(&wanted) {
            let aligned = Some((wanted.low - window.low, by));
            Rc::make_mut(&mut self.views.windows).put(number, Window { aligned, ..window });
        }
        if align > 1
            && let Some(kept) = Rc::make_mut(&mut self.views.windows).paged.get_mut(before)
            && kept.first % i64::from(by) == 0
        {
            kept.align = by;
        }
        Some(reached)
    }

    /// Whether a window has the `size` bytes at `address` by a pointer, so that an access needs no register of the guest and cannot
    /// leave.
    pub(crate) fn points_to(&self, address: &Address, size: i64, write: bool) -> bool {
        let Some(key) = Key::of(address).filter(|_| self.views.grouping) else { return false };
        let wanted = Use { key, low: address.disp, high: address.disp + size, write };
        let found = self.views.windows.find(&wanted);
        found.is_some_and(|(_, window)| matches!(window.place, Place::Pointer | Place::Now))
    }

    /// How far a window may reach that the instruction at `rip` opens.
    fn extent(&self, rip: u64) -> Extent {
        self.views.extents.get(&CodeKey::of(rip, self.block.code_mode)).copied().unwrap_or((-SPAN, SPAN))
    }

    /// As [`Lower::through_window`], whatever the address is a multiple of.
    fn reach(&mut self, address: &Address, wanted: &Use, size: u32) -> Option<(Mem, bool)> {
        let &Use { key, write, .. } = wanted;
        match self.views.windows.find(wanted) {
            Some((number, window)) => {
                if let Place::Pair(by) = window.place {
                    return self.through_pair(address, wanted.low - window.low, size, by);
                }
                if window.place == Place::Strided {
                    return Some(self.at_stride(address, write, number));
                }
                let window = Some(window).filter(|window| window.place != Place::Distance);
                if address.segment.is_some() && window.is_none() {
                    // The sum changes flags.
                    self.spare_flags();
                }
                if write && self.block.parallel {
                    (self.current.stores, self.views.stored_in) = (true, Some(number as u8));
                }
                if let Some(held) = self.pointer(number)
                    && let Some(window) = window
                {
                    return Some((Mem::at(held, (wanted.low - window.low) as i32), true));
                }
                if self.views.pointer != Some((number, self.asm.changes())) {
                    let now = window.is_some_and(|window| window.place == Place::Now);
                    let place = if now { offset_of!(Opened, now) } else { offset_of!(Opened, place) };
                    self.asm.load(S1, opened(number, place));
                }
                self.views.pointer = Some((number, self.asm.changes()));
                if let Some(window) = window {
                    return Some((Mem::at(S1, (wanted.low - window.low) as i32), true));
                }
            }
            None => {
                let extent = self.extent(self.current.rip);
                if extent == (0, 0) {
                    return None;
                }
                let range = range(wanted, &self.views.steps[self.current.at..], extent);
                let alone = (wanted.low, wanted.high);
                let window = |(low, high), place| Window { key, low, high, write, place, aligned: None };
                if let Some(range) = range.filter(|range| self.is_paired(wanted, size, *range)) {
                    let by = size as u8;
                    let number = Rc::make_mut(&mut self.views.windows)
                        .open_paged(window(range, Place::Pair(by)), Kept::of_pair(address))?;
                    self.open_pair(address, write, range, number, by);
                    return self.through_pair(address, wanted.low - range.0, size, by);
                }
                if matches!(self.views.round, Round::Next | Round::Strided) && self.views.paged {
                    return self.reach_paged(address, wanted, size, range);
                }
                // What a loop comes back to is a group too.
                let lasts = self.views.round == Round::First && key.stays(self.block.changed);
                let range = range.or(lasts.then_some(alone))?;
                let number = Rc::make_mut(&mut self.views.windows).open(window(range, Place::Pointer))?;
                self.open_window(address, size, write, range, number);
                self.views.pointer = Some((number, self.asm.changes()));
                return Some((Mem::at(S1, (wanted.low - range.0) as i32), true));
            }
        }
        Some(self.operand(address))
    }

    /// Looks for the range from displacement `low` to `high` in the TLB; S1 is the host's address of its
    /// first byte then, and the window has it too.
    fn open_window(
        &mut self,
        address: &Address,
        size: u32,
        write: bool,
        (low, high): (i64, i64),
        number: usize,
    ) {
        self.spare_flags();
        let (miss, have) = (self.asm.label(), self.asm.label());
        let first = low.wrapping_sub(address.disp);
        let last = high.wrapping_sub(address.disp) - 1;
        self.look_for(address, write, (first, last));
        self.asm.jcc(cc::A, miss);
        if write && self.block.parallel {
            self.note_state(number as u8);
            (self.current.stores, self.views.stored_in) = (true, Some(number as u8));
        }
        self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        self.asm.bind(have);
        let direct = self
            .register_only(address)
            .and_then(|(base, disp)| Some((base, i32::try_from(i64::from(disp) + first).ok()?)));
        match direct {
            Some((base, disp)) => self.asm.lea(S1, Mem::sum(S1, base, disp)),
            None => {
                self.effective_beside(S2, S1, address, first);
                self.asm.lea(S1, Mem::sum(S1, S2, 0));
            }
        }
        self.asm.store(opened(number, offset_of!(Opened, place)), S1);
        let at = self.range_site(size, write, (first, last), number, None);
        self.seldom(Cold::Range {
            label: miss,
            have,
            address: *address,
            range: at,
            write,
            rip: self.current.rip,
            rest: self.current.rest,
        });
    }

    /// Remembers the state of the page whose entry S1 leads to, for `window`; S2 is lost.
    fn note_state(&mut self, window: u8) {
        self.asm.load(S2, stubs::tlb(S1, Tlb::STATE_OFFSET));
        self.asm.store(state(window), S2);
    }

    /// Looks for the page with the bytes from `first` to `last`, counted from `address`, in the TLB: the condition
    /// "above" holds unless it has it. S1 is where its entry is, S2 the first byte's offset into the page.
    fn look_for(&mut self, address: &Address, write: bool, (first, last): (i64, i64)) {
        let from = self.compute(address, first);
        self.look_up_page(from, last - first + 1, write);
    }

    /// What [`enter::open`] is called with for such a range; its address. `paged` says that the access remembers its page,
    /// and whether by the host's address.
    fn range_site(
        &mut self,
        size: u32,
        write: bool,
        (first, last): (i64, i64),
        number: usize,
        paged: Option<bool>,
    ) -> u64 {
        let next = matches!(self.views.round, Round::Next | Round::Strided);
        let range = Box::new(Range {
            without: Cell::new(0),
            crossings: Cell::new(CROSSINGS),
            crossed_at: Cell::new(0),
            crossed_with: Cell::new(0),
            soon: if next { ROUNDS * self.block.all.len() as u64 } else { SOON },
            soon_there: if self.views.round == Round::Only { SOON_THERE } else { 0 },
            absolute: paged == Some(true),
            size: size as u8,
            write,
            joins: !(write && self.block.parallel),
            window: number as u8,
            paged: paged.is_some(),
            wide: self.views.wide && paged.is_some(),
            block: self.block.whole,
            made_in: self.block.number,
            rip: self.current.rip,
            low: first,
            high: last + 1,
        });
        let at = std::ptr::from_ref(&*range) as u64;
        self.views.ranges.push(range);
        at
    }
}
