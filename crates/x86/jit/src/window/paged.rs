//! Accesses of loops that remember their page: one is likely to be where it was in the round before, and so what leads to the host's
//! memory does not have to wait for the address.

use std::mem::offset_of;
use std::rc::Rc;

use super::stride::Stride;
use super::{Opened, Place, Round, Use, WINDOWS, Window, opened};
use crate::asm::{Alu, Label, Mem, cc};
use crate::cold::Cold;
use crate::lower::Lower;
use crate::memory::Address;
use crate::stubs::{S1, S2};

/// An access of a loop that keeps its page, for the cold code that is reached when it leaves that page.
pub(crate) struct Paged {
    pub(super) label: Label,
    pub(super) retry: Label,
    pub(super) have: Label,
    pub(super) address: Address,
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) write: bool,
    pub(super) number: usize,
    pub(super) absolute: bool,
}

impl Paged {
    pub(crate) fn label(&mut self) -> &mut Label {
        &mut self.label
    }
}

/// What all copies of a loop know of an access that keeps its page.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    pub(super) address: Address,
    /// Its range's first and last byte, from the access.
    pub(super) first: i64,
    pub(super) last: i64,
    pub(super) write: bool,
    /// What is remembered is the host's address of the page.
    pub(super) absolute: bool,
    /// How it moves, if that is the same in each round.
    pub(super) stride: Option<Stride>,
    /// What its address must be a multiple of, and its range's then is; 1 if the range may be no multiple.
    pub(super) align: u8,
}

impl Kept {
    /// That of a group that may lie in two pages.
    pub(super) fn of_pair(address: &Address) -> Self {
        Kept { address: *address, first: 0, last: 0, write: false, absolute: false, stride: None, align: 1 }
    }

    /// Whether it is `other`, as far as was known before its code was made.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.address == other.address
            && (self.first, self.last, self.write) == (other.first, other.last, other.write)
    }
}

impl Lower<'_> {
    /// The operand for the first access of a group, or one alone, that remembers its page.
    pub(super) fn reach_paged(
        &mut self,
        address: &Address,
        wanted: &Use,
        size: u32,
        range: Option<(i64, i64)>,
    ) -> Option<(Mem, bool)> {
        let &Use { key, write, .. } = wanted;
        let absolute = self.register_only(address).is_none();
        let group = range.is_some();
        let (low, high) = range.unwrap_or((wanted.low, wanted.high));
        let (first, last) = (low.wrapping_sub(address.disp), high.wrapping_sub(address.disp) - 1);
        let stride = self.stride(&key);
        let mut kept = Kept { address: *address, first, last, write, absolute, stride, align: 1 };
        if self.views.round == Round::Strided {
            match self.views.plan.get(self.views.windows.paged.len()) {
                Some(before) if before.is(&kept) => kept = *before,
                _ => {
                    // It would take another one's page.
                    self.views.astray = true;
                    return None;
                }
            }
        }
        let strided = self.views.round == Round::Strided && kept.stride.is_some();
        let place = match (strided, absolute) {
            (true, _) => Place::Strided,
            (false, true) => Place::Now,
            (false, false) => Place::Distance,
        };
        let window = Window { key, low, high, write, place, aligned: None };
        let number = Rc::make_mut(&mut self.views.windows).open_paged(window, kept)?;
        if !strided {
            self.open_paged(&kept, size, number);
        }
        self.views.pointer = None;
        if kept.absolute && !group {
            Rc::make_mut(&mut self.views.windows).close(number);
        }
        if strided {
            return Some(self.at_stride(address, write, number));
        }
        if absolute && !group {
            return Some((Mem::sum(S1, S2, 0), false));
        }
        if absolute {
            self.asm.lea(S1, Mem::sum(S1, S2, 0));
            self.asm.store(opened(number, offset_of!(Opened, now)), S1);
        }
        self.views.pointer = Some((number, self.asm.changes()));
        if absolute {
            return Some((Mem::at(S1, (wanted.low - low) as i32), true));
        }
        Some(self.operand(address))
    }

    /// As [`Lower::open_window`], for what remembers its page: the distance is in S1, or if it is absolute, the sum of both scratch
    /// registers is the host's address of the range's first byte.
    fn open_paged(&mut self, kept: &Kept, size: u32, number: usize) {
        self.spare_flags();
        let &Kept { address, first, last, write, absolute, .. } = kept;
        let (miss, have) = (self.asm.label(), self.asm.label());
        let retry = self.asm.bound();
        let direct = self
            .register_only(&address)
            .and_then(|(base, disp)| Some((base, i32::try_from(i64::from(disp) + first).ok()?)));
        match direct {
            Some((base, disp)) => self.asm.lea(S2, Mem::at(base, disp)),
            None => self.effective(S2, &address, first),
        }
        self.asm.alu_mem(Alu::Sub, S2, opened(number, offset_of!(Opened, page)));
        self.asm.alu_mem(Alu::Cmp, S2, opened(number, offset_of!(Opened, limit)));
        self.asm.jcc(cc::AE, miss);
        if write && self.block.parallel {
            (self.current.stores, self.views.stored_in) = (true, Some(number as u8));
        }
        self.asm.load(S1, opened(number, offset_of!(Opened, place)));
        self.asm.bind(have);
        let range = self.range_site(size, write, (first, last), number, Some(absolute));
        let paged = Paged { label: miss, retry, have, address, first, last, write, number, absolute };
        self.seldom(Cold::Paged { paged, range, rip: self.current.rip, rest: self.current.rest });
    }

    /// Before the first of the rounds that rely on it: no page is known.
    pub(crate) fn forget_pages(&mut self, pages: usize) {
        for number in WINDOWS..WINDOWS + pages {
            self.asm.store_imm(opened(number, offset_of!(Opened, limit)), 0);
        }
    }
}
