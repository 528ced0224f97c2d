//! Fetching code: translations of its pages, which change without a word to those who decoded what is there.
//!
//! Who keeps what was found at a linear address keeps the [`Fetches::stamp`] beside it: it is void when the stamp is
//! another one.

use iced_x86::Instruction;
use satori_engine::Exception;
use satori_memory::{Gpa, PageState};
use satori_state::seg;

use super::fetched::Fetched;
use super::large::{LargePages, Reach};
use super::spaces::{Change, Kept, Part, Space};
use super::{Access, Mode, canonical};
use crate::cpu::{Cpu, Exec};
use crate::host::copy;
use crate::isa::MAX_LENGTH;

const FETCHES: usize = 512;
/// Between the stamps of two address spaces: more than pages are dropped in one.
const STAMP: u64 = 1 << 32;

/// Translations belong to an address space, or to all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    /// Of the address space that CR3 tells.
    Local = 0,
    /// Of all: the mapping is global.
    Global = 1,
}

/// Sets of pages whose translations are dropped together when one of them is.
pub const BUCKETS: usize = 64;

/// The bucket of an address or key.
#[inline(always)]
pub fn bucket(linear: u64) -> usize {
    (linear >> 12) as usize % BUCKETS
}

/// A page that code was fetched from.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
    key: u64,
    stamp: u64,
    pub scope: Scope,
    /// Its physical address.
    pub page: u64,
    pub host: *mut u8,
    pub state: *const PageState,
}

const NO_FETCH: Fetch = Fetch {
    key: 0,
    stamp: 0,
    scope: Scope::Local,
    page: 0,
    host: std::ptr::null_mut(),
    state: std::ptr::null(),
};

/// Translations of addresses that code was fetched from.
pub struct Fetches {
    entries: Box<[Fetch; FETCHES]>,
    /// By [`Scope`], and then by [`bucket`] of the page: an entry is void when their sum is another than when it was made.
    /// The former are multiples of [`STAMP`], each given once, and those of an address space return with it.
    stamps: [u64; 2],
    page_stamps: [[u64; BUCKETS]; 2],
    last_stamp: u64,
    /// By [`Scope`], how often another stamp came into force.
    epochs: [u64; 2],
    /// Stamps of parts of address spaces that are not current, and where code was fetched there.
    kept: Kept<(u64, Box<[u64]>)>,
    /// Buckets of which a page was dropped since [`Fetches::take_flushed`], by [`Scope`].
    flushed: [u64; 2],
    fetched: Fetched,
    large: LargePages,
    /// Translations filled in.
    pub fills: u64,
}

// SAFETY: the pointers are to guest memory and to page states, which live as long as the guest memory that the owning
// Cpu holds; states are atomics.
unsafe impl Send for Fetches {}

impl Fetches {
    pub(crate) fn new() -> Self {
        let entries = match vec![NO_FETCH; FETCHES].into_boxed_slice().try_into() {
            Ok(entries) => entries,
            Err(_) => unreachable!("the vector has FETCHES elements"),
        };
        Fetches {
            entries,
            stamps: [STAMP, STAMP],
            page_stamps: [[0; BUCKETS]; 2],
            last_stamp: STAMP,
            epochs: [1, 1],
            kept: Kept::new(),
            flushed: [0; 2],
            fetched: Fetched::new(),
            large: LargePages::new(),
            fills: 0,
        }
    }

    /// Address-space and privilege dependent translations are void now, also those of other address spaces.
    pub(crate) fn flush(&mut self, keep_global: bool) {
        self.kept.clear();
        self.bump(Scope::Local);
        if !keep_global {
            self.bump(Scope::Global);
            self.large = LargePages::new();
        }
    }

    fn bump(&mut self, scope: Scope) {
        self.epochs[scope as usize] += 1;
        self.last_stamp += STAMP;
        self.stamps[scope as usize] = self.last_stamp;
        self.fetched.clear(scope);
    }

    /// Another address space becomes current.
    pub(super) fn change(&mut self, change: &Change) {
        if change.only_flushes() {
            self.bump(Scope::Local);
        }
        for (from, to) in change.parts() {
            let scope = if matches!(from, Part::Local(_)) { Scope::Local } else { Scope::Global };
            let fetched = self.fetched.take(scope);
            self.kept.put(from, change, (self.stamps[scope as usize], fetched));
            self.bump(scope);
            if let Some((stamp, fetched)) = self.kept.take(to, change) {
                self.stamps[scope as usize] = stamp;
                self.fetched.put_back(scope, fetched);
            }
        }
    }

    /// Forgets what is kept of other address spaces; see [`Kept::forget`].
    pub(super) fn forget(&mut self, which: impl Fn(Space) -> bool, all: bool) {
        self.kept.forget(which, all);
    }

    /// The translation of one page is void now, however large the page is.
    pub(crate) fn flush_page(&mut self, linear: u64) {
        if self.large.reach(linear) != Reach::Page {
            self.flush(false);
            return;
        }
        for scope in [Scope::Local, Scope::Global] {
            if self.fetched.contains(scope, linear) {
                // An instruction may cross into the page from the one before.
                for bucket in [bucket(linear), bucket(linear.wrapping_sub(0x1000))] {
                    self.page_stamps[scope as usize][bucket] += 1;
                    self.flushed[scope as usize] |= 1 << bucket;
                }
            }
        }
    }

    /// Code was fetched from the page of `linear` by a translation of `scope`.
    pub(crate) fn note(&mut self, scope: Scope, linear: u64) {
        self.fetched.insert(scope, linear);
    }

    /// Values that change when all translations of a [`Scope`] become void, or are those of another address space.
    #[inline(always)]
    pub fn epochs(&self) -> [u64; 2] {
        self.epochs
    }

    /// Buckets of which a page was dropped, as a set of bits for each [`Scope`].
    #[inline(always)]
    pub fn flushed(&self) -> [u64; 2] {
        self.flushed
    }

    /// The same, and forgets them.
    pub fn take_flushed(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.flushed)
    }

    /// What an entry for `key`, code of `scope`, has to be stamped with.
    #[inline(always)]
    pub fn stamp(&self, scope: Scope, key: u64) -> u64 {
        self.stamps[scope as usize & 1] + self.page_stamps[scope as usize & 1][bucket(key)]
    }
}

impl Cpu {
    /// Code address and the mode bits that it is executed under, as one word.
    #[inline(always)]
    pub fn code_key(&self, linear: u64) -> u64 {
        linear ^ self.code_mode
    }

    /// The linear address of the code at `rip`.
    #[inline(always)]
    pub(crate) fn code_linear(&self, rip: u64) -> u64 {
        if self.code64 { rip } else { rip.wrapping_add(self.state.seg[seg::CS].base) & 0xffff_ffff }
    }

    /// Translates a code page, through a small cache.
    pub(crate) fn fetch_page(&mut self, linear: u64) -> Exec<Fetch> {
        let key = self.code_key(linear & !0xfff);
        let slot = (linear >> 12) as usize & (FETCHES - 1);
        let entry = self.fetches.entries[slot];
        if entry.key == key && entry.stamp == self.fetches.stamp(entry.scope, key) {
            return Ok(entry);
        }
        if self.code64 && !canonical(linear) {
            return Err(self.raise(Exception::gp(0)));
        }
        let user = self.mode == Mode::User;
        let access = Access { write: false, user, fetch: true, ac: false };
        let mapping = match self.walk(linear, access) {
            Ok(mapping) => mapping,
            Err(fault) => {
                // A page fault drops what was cached for its address (SDM 4.10.4.1).
                self.tlb.flush_page(linear);
                self.fetches.flush_page(linear);
                return Err(self.raise(fault));
            }
        };
        let memory = self.memory.clone();
        let Some(page) = memory.page(Gpa(mapping.gpa)) else {
            // Nothing can be executed from a device: what a fetch of all ones decodes to.
            return Err(self.raise(Exception::ud()));
        };
        self.begin();
        self.back(mapping.gpa)?;
        self.fetches.fills += 1;
        self.fetches.large.insert(linear, mapping.shift);
        let scope = if mapping.global { Scope::Global } else { Scope::Local };
        self.fetches.note(scope, linear);
        let entry = Fetch {
            key,
            stamp: self.fetches.stamp(scope, key),
            scope,
            page: mapping.gpa & !0xfff,
            host: page.host,
            state: page.state,
        };
        self.fetches.entries[slot] = entry;
        Ok(entry)
    }

    /// Whom the translation of `linear` for fetches belongs to, if it leads to the page at `host`.
    pub fn scope_of_page(&mut self, linear: u64, host: *const u8) -> Option<Scope> {
        let fetch = self.fetch_page(linear);
        self.fault = None;
        fetch.ok().filter(|fetch| std::ptr::eq(fetch.host, host)).map(|fetch| fetch.scope)
    }

    /// Byte `index` of the instruction at RIP.
    pub fn code_byte(&mut self, index: u64) -> Exec<u8> {
        let linear = self.code_linear(self.state.rip.wrapping_add(index));
        let page = self.fetch_page(linear)?;
        let mut byte = [0];
        // SAFETY: fetch entries point to pages of guest memory.
        unsafe { copy(page.host, (linear & 0xfff) as usize, &mut byte) };
        Ok(byte[0])
    }

    /// Decodes the single instruction at RIP, which may cross pages, without caching it. It must
    /// lie within the code segment, and have 15 bytes at most (SDM volume 2, 2.3.11).
    pub fn fetch_one(&mut self) -> Exec<Instruction> {
        let rip = self.state.rip;
        let linear = self.code_linear(rip);
        let within = self.within_code_segment(rip);
        if within == 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        let here = self.fetch_page(linear)?;
        let room = 0x1000 - (linear & 0xfff) as usize;
        let mut bytes = [0; MAX_LENGTH];
        let first = room.min(within);
        // SAFETY: as above; `first` bytes are left of it.
        unsafe { copy(here.host, (linear & 0xfff) as usize, &mut bytes[..first]) };
        let bits = self.bits();
        let mut insn = self.isa.one(&bytes[..first], bits);
        if insn.is_none() && first < within {
            let next = linear.wrapping_add(first as u64);
            let there = self.fetch_page(if self.code64 { next } else { next & 0xffff_ffff })?;
            // SAFETY: as above.
            unsafe { copy(there.host, 0, &mut bytes[first..within]) };
            insn = self.isa.one(&bytes[..within], bits);
        }
        match insn {
            Some(insn) if !self.isa.too_long(&insn, &bytes, bits) => Ok(insn),
            _ => Err(self.raise(Exception::gp(0))),
        }
    }

    /// How many of the bytes at `rip` that an instruction can have are in the code segment.
    fn within_code_segment(&self, rip: u64) -> usize {
        let limit = u64::from(self.state.seg[seg::CS].limit);
        // The end of a segment of 4 GiB is none.
        if self.code64 || limit == u64::from(u32::MAX) {
            return MAX_LENGTH;
        }
        (limit + 1).saturating_sub(rip).min(MAX_LENGTH as u64) as usize
    }
}
