//! Fetching code: translations of its pages, which change without a word to those who decoded what is there.
//!
//! Who keeps what was found at a linear address keeps the [`Fetches::stamp`] beside it: it is void when the stamp is
//! another one.

use iced_x86::Instruction;
use satori_engine::Exception;
use satori_memory::{Gpa, PageState};
use satori_state::seg;

use super::fetched::{Aside, Fetched};
use super::large::{LargePages, Reach};
use super::spaces::{Change, Kept, Part, SIDES, Side, Space};
use super::{Access, Mode, canonical};
use crate::code_mode::CodeKey;
use crate::cpu::{Cpu, Exec, Handler};
use crate::host::copy;
use crate::isa::MAX_LENGTH;
use crate::isa::recent::Bytes;

const FETCHES: usize = 2048;
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

/// The bucket of an address.
#[inline(always)]
pub fn bucket(linear: u64) -> usize {
    (linear >> 12) as usize % BUCKETS
}

/// A page that code was fetched from.
#[derive(Clone, Copy)]
pub(crate) struct Fetch {
    key: CodeKey,
    stamp: u64,
    pub scope: Scope,
    /// Its physical address.
    pub page: u64,
    pub host: *mut u8,
    pub state: *const PageState,
}

const NO_FETCH: Fetch = Fetch {
    key: CodeKey::NONE,
    stamp: 0,
    scope: Scope::Local,
    page: 0,
    host: std::ptr::null_mut(),
    state: std::ptr::null(),
};

/// What tells whether translations of one [`Side`] are void.
struct Stamps {
    /// By [`Scope`], and then by [`bucket`] of the page: an entry is void when their sum is another than when it was made.
    /// The former are multiples of [`STAMP`], each given once, and those of an address space return with it.
    scopes: [u64; 2],
    pages: [[u64; BUCKETS]; 2],
    /// Stamps of parts of address spaces that are not current, and where code was fetched there.
    kept: Kept<(u64, Aside)>,
    fetched: Fetched,
    large: LargePages,
}

/// Which translations became void: of a [`Side`] those of a [`Scope`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voided {
    /// All of them, as another stamp came into force.
    pub all: [[bool; 2]; SIDES],
    /// Those in some buckets, as a set of bits.
    pub buckets: [[u64; 2]; SIDES],
}

/// Translations of addresses that code was fetched from.
pub struct Fetches {
    entries: [Box<[Fetch; FETCHES]>; SIDES],
    side: Side,
    stamps: [Stamps; SIDES],
    last_stamp: u64,
    /// What became void since [`Fetches::take_voided`], if anything did.
    voided: Option<Voided>,
    /// Translations filled in.
    pub fills: u64,
}

// SAFETY: the pointers are to guest memory and to page states, which live as long as the guest memory that the owning
// Cpu holds; states are atomics.
unsafe impl Send for Fetches {}

impl Fetches {
    pub(crate) fn new() -> Self {
        let entries = || match vec![NO_FETCH; FETCHES].into_boxed_slice().try_into() {
            Ok(entries) => entries,
            Err(_) => unreachable!("the vector has FETCHES elements"),
        };
        let stamps = |_| Stamps {
            scopes: [STAMP; 2],
            pages: [[0; BUCKETS]; 2],
            kept: Kept::new(),
            fetched: Fetched::new(),
            large: LargePages::new(),
        };
        Fetches {
            entries: std::array::from_fn(|_| entries()),
            side: Side::Own,
            stamps: std::array::from_fn(stamps),
            last_stamp: STAMP,
            voided: None,
            fills: 0,
        }
    }

    /// What is known of the translations in use.
    fn here(&mut self) -> &mut Stamps {
        &mut self.stamps[self.side as usize]
    }

    /// Address-space and privilege dependent translations are void now, also those of other address spaces; `side` is the one in use.
    pub(crate) fn flush(&mut self, keep_global: bool, side: Side) {
        for other in Side::ALL {
            self.side = other;
            self.flush_side(keep_global && other == side);
        }
        self.side = side;
    }

    fn flush_side(&mut self, keep_global: bool) {
        self.here().kept.clear();
        self.bump(Scope::Local);
        if !keep_global {
            self.bump(Scope::Global);
            self.here().large = LargePages::new();
        }
    }

    fn bump(&mut self, scope: Scope) {
        self.last_stamp += STAMP;
        let stamp = self.last_stamp;
        let here = self.here();
        here.scopes[scope as usize] = stamp;
        here.fetched.clear(scope);
        self.voided.get_or_insert_default().all[self.side as usize][scope as usize] = true;
    }

    /// Another address space becomes current.
    pub(super) fn change(&mut self, change: &Change) {
        self.side = change.side();
        if change.only_flushes() {
            self.bump(Scope::Local);
        }
        if change.flushes_global() {
            self.bump(Scope::Global);
        }
        for (from, to) in change.parts() {
            let scope = if matches!(from, Part::Local(_)) { Scope::Local } else { Scope::Global };
            let here = self.here();
            let fetched = here.fetched.take(scope);
            here.kept.put(from, change, (here.scopes[scope as usize], fetched));
            self.bump(scope);
            let here = self.here();
            if let Some((stamp, fetched)) = here.kept.take(to, change) {
                here.scopes[scope as usize] = stamp;
                here.fetched.put_back(scope, &fetched);
            }
        }
    }

    /// Forgets what is kept of address spaces that are not current, as the TLB does ([`Tlb::forget`](super::Tlb)).
    pub(super) fn forget(&mut self, which: impl Fn(Space) -> bool, all: bool, spaces: [Space; SIDES]) {
        let current = self.side;
        for side in Side::ALL {
            self.side = side;
            self.here().kept.forget(&which, all);
            let space = spaces[side as usize];
            if side != current && which(space) {
                self.bump(Scope::Local);
            }
            if side != current && all && which(space.of_world()) {
                self.bump(Scope::Global);
            }
        }
        self.side = current;
    }

    /// The translation of one page is void now, however large the page is.
    pub(crate) fn flush_page(&mut self, linear: u64) {
        let side = self.side as usize;
        if self.here().large.reach(linear) != Reach::Page {
            self.flush_side(false);
            return;
        }
        for scope in [Scope::Local, Scope::Global] {
            if self.here().fetched.contains(scope, linear) {
                // An instruction may cross into the page from the one before.
                for bucket in [bucket(linear), bucket(linear.wrapping_sub(0x1000))] {
                    self.here().pages[scope as usize][bucket] += 1;
                    self.voided.get_or_insert_default().buckets[side][scope as usize] |= 1 << bucket;
                }
            }
        }
    }

    /// Code was fetched from the page of `linear` by a translation of `scope`.
    pub(crate) fn note(&mut self, scope: Scope, linear: u64) {
        self.here().fetched.insert(scope, linear);
    }

    /// Whether translations became void since [`Fetches::take_voided`].
    #[inline(always)]
    pub fn voided(&self) -> bool {
        self.voided.is_some()
    }

    /// Which translations became void since this was asked last.
    pub fn take_voided(&mut self) -> Option<Voided> {
        self.voided.take()
    }

    /// What an entry for `key`, code of `scope`, has to be stamped with.
    #[inline(always)]
    pub fn stamp(&self, scope: Scope, key: CodeKey) -> u64 {
        let stamps = &self.stamps[self.side as usize];
        stamps.scopes[scope as usize & 1] + stamps.pages[scope as usize & 1][bucket(key.low())]
    }
}

impl Cpu {
    /// The key of the code at `linear`, as it is executed now.
    #[inline(always)]
    pub fn code_key(&self, linear: u64) -> CodeKey {
        CodeKey::of(linear, self.derived.code_mode)
    }

    /// The linear address of the code at `rip`.
    #[inline(always)]
    pub(crate) fn code_linear(&self, rip: u64) -> u64 {
        if self.derived.code64 { rip } else { rip.wrapping_add(self.state.seg[seg::CS].base) & 0xffff_ffff }
    }

    /// Translates a code page, through a small cache.
    pub(crate) fn fetch_page(&mut self, linear: u64) -> Exec<Fetch> {
        let key = self.code_key(linear & !0xfff);
        let slot = (linear >> 12) as usize & (FETCHES - 1);
        let side = self.mmu.fetches.side as usize;
        let entry = self.mmu.fetches.entries[side][slot];
        if entry.key == key && entry.stamp == self.mmu.fetches.stamp(entry.scope, key) {
            return Ok(entry);
        }
        if self.derived.code64 && !canonical(linear) {
            return Err(self.raise(Exception::gp(0)));
        }
        let user = self.derived.mode == Mode::User;
        let access = Access { write: false, user, fetch: true, ac: false };
        let mapping = match self.walk(linear, access) {
            Ok(mapping) => mapping,
            Err(fault) => {
                // A page fault drops what was cached for its address (SDM 4.10.4.1).
                self.mmu.forget_page(linear);
                return Err(self.raise(fault));
            }
        };
        if self.apic_access(mapping.gpa) {
            return Err(self.leave_for_apic_fetch(linear));
        }
        let memory = self.memory.clone();
        let Some(page) = memory.page(Gpa(mapping.gpa)) else {
            // Nothing can be executed from a device: what a fetch of all ones decodes to.
            return Err(self.raise(Exception::ud()));
        };
        self.begin();
        self.back(mapping.gpa)?;
        self.mmu.fetches.fills += 1;
        self.mmu.fetches.here().large.insert(linear, mapping.shift);
        let scope = if mapping.global { Scope::Global } else { Scope::Local };
        self.mmu.fetches.note(scope, linear);
        let entry = Fetch {
            key,
            stamp: self.mmu.fetches.stamp(scope, key),
            scope,
            page: mapping.gpa & !0xfff,
            host: page.host,
            state: page.state,
        };
        self.mmu.fetches.entries[side][slot] = entry;
        Ok(entry)
    }

    /// Where the page of `linear` that a fetch leads to is on the host, and whom that translation belongs to.
    pub fn page_of_code(&mut self, linear: u64) -> Option<(*const u8, Scope)> {
        let fetch = self.fetch_page(linear);
        self.pending.fault = None;
        fetch.ok().map(|fetch| (fetch.host.cast_const(), fetch.scope))
    }

    /// Whom the translation of `linear` for fetches belongs to, if it leads to the page at `host`.
    pub fn scope_of_page(&mut self, linear: u64, host: *const u8) -> Option<Scope> {
        let (there, scope) = self.page_of_code(linear)?;
        std::ptr::eq(there, host).then_some(scope)
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

    /// The single instruction at RIP, and what executes it.
    pub(crate) fn fetch_decoded(&mut self) -> Exec<(Handler, Instruction)> {
        let rip = self.state.rip;
        let linear = self.code_linear(rip);
        let offset = (linear & 0xfff) as usize;
        // Where fewer bytes can be fetched than an instruction may have, all depends on what is behind them.
        if offset + MAX_LENGTH > 0x1000 || self.within_code_segment(rip) < MAX_LENGTH {
            let insn = self.fetch_one()?;
            return Ok((self.isa.handler(&insn), insn));
        }
        let here = self.fetch_page(linear)?;
        let mut bytes = [0; MAX_LENGTH];
        // SAFETY: fetch entries point to pages of guest memory; the bytes are in this one.
        unsafe { copy(here.host, offset, &mut bytes) };
        let bits = self.bits();
        let key = Bytes::new(bytes, bits);
        if let Some(known) = self.recent.find(linear, key) {
            return Ok(known);
        }
        let insn = self.isa.one(&bytes, bits);
        let insn = self.require_whole(insn, &bytes, bits)?;
        let decoded = (self.isa.handler(&insn), insn);
        self.recent.note(linear, key, decoded);
        Ok(decoded)
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
            let there = self.fetch_page(if self.derived.code64 { next } else { next & 0xffff_ffff })?;
            // SAFETY: as above.
            unsafe { copy(there.host, 0, &mut bytes[first..within]) };
            insn = self.isa.one(&bytes[..within], bits);
        }
        self.require_whole(insn, &bytes, bits)
    }

    /// What was decoded from the start of `bytes`, unless it ends nowhere.
    fn require_whole(
        &mut self,
        insn: Option<Instruction>,
        bytes: &[u8; MAX_LENGTH],
        bits: u32,
    ) -> Exec<Instruction> {
        match insn {
            Some(insn) if !self.isa.too_long(&insn, bytes, bits) => Ok(insn),
            _ => Err(self.raise(Exception::gp(0))),
        }
    }

    /// How many of the bytes at `rip` that an instruction can have are in the code segment.
    fn within_code_segment(&self, rip: u64) -> usize {
        let limit = u64::from(self.state.seg[seg::CS].limit);
        // The end of a segment of 4 GiB is none.
        if self.derived.code64 || limit == u64::from(u32::MAX) {
            return MAX_LENGTH;
        }
        (limit + 1).saturating_sub(rip).min(MAX_LENGTH as u64) as usize
    }
}
