//! Decoded code: blocks by physical address, and the caches that find them by RIP.
//!
//! A block is a straight run of instructions within one page. It belongs to the physical page
//! and a code size, so that it survives address-space switches and serves every mapping. It is
//! valid while the page's state has the value that it had when the bytes were read.

mod decode;
mod fast;
mod fetched;
mod op;
mod rewritten;

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use iced_x86::Instruction;
use satori_engine::Exception;
use satori_memory::{Gpa, PageState};
use satori_state::seg;

use crate::cpu::{Cpu, Exec};
use crate::isa::MAX_LENGTH;
use crate::mmu::{Access, LargePages, Mode, Reach, canonical};
pub use decode::{copy, ends_block};
use fetched::Fetched;
pub use op::{BLOCK_RIP, Flow, Op};

/// A straight run of decoded instructions.
pub struct Block {
    ops: Box<[Op]>,
    /// What the operations point to.
    _generics: Box<[op::Generic]>,
    /// Instructions in the block.
    pub instructions: u32,
    state: *const PageState,
    value: u32,
    /// Where the block went on last: elsewhere, and behind its end.
    successors: [Cell<Jump>; 2],
    /// Bytes of the block.
    len: u8,
    /// The page's first byte on the host.
    host: *const u8,
    /// What its one instruction crosses into, if it does.
    crossing: Option<Crossing>,
    /// Times that the block was about to be executed without a translation.
    heat: Cell<u32>,
    /// Its translation: for which mode and address, and where.
    translation: Cell<(u64, u64)>,
}

/// The rest of an instruction that begins at the end of a page.
#[derive(Clone, Copy)]
pub struct Crossing {
    pub insn: Instruction,
    pub state: *const PageState,
    pub value: u32,
}

impl Block {
    /// The place of the successor at `rip`, for the block at `from`.
    #[inline(always)]
    fn successor(&self, from: u64, rip: u64) -> &Cell<Jump> {
        &self.successors[usize::from(rip.wrapping_sub(from) == u64::from(self.len))]
    }

    /// The translation for `key`, the mode and address that it is executed at.
    #[inline(always)]
    pub fn translation(&self, key: u64) -> Option<u64> {
        let (found, code) = self.translation.get();
        (found == key && code != 0).then_some(code)
    }

    /// Remembers a translation; others are in the translator's own table.
    pub fn set_translation(&self, key: u64, code: u64) {
        self.translation.set((key, code));
    }

    /// The translation is void.
    pub fn forget_translation(&self) {
        self.translation.set((0, 0));
    }

    /// Counts an execution; whether there have been `hot` of them.
    #[inline(always)]
    pub fn heat(&self, hot: u32) -> bool {
        let heat = self.heat.get();
        self.heat.set(heat.saturating_add(1));
        heat >= hot
    }

    /// The page's first byte on the host, where the block's bytes are.
    pub fn host(&self) -> *const u8 {
        self.host
    }

    /// The state's value that the block is valid under.
    pub fn value(&self) -> u32 {
        self.value
    }

    /// The state of the block's page.
    pub fn state(&self) -> *const PageState {
        self.state
    }

    /// The first operation.
    #[inline(always)]
    pub fn ops(&self) -> *const Op {
        self.ops.as_ptr()
    }

    /// Whether the page was not written since the block was decoded.
    #[inline(always)]
    pub fn valid(&self) -> bool {
        // SAFETY: page states live as long as guest memory, which the Cpu holds.
        unsafe {
            (*self.state).value() == self.value
                && self.crossing.as_ref().is_none_or(|crossing| (*crossing.state).value() == crossing.value)
        }
    }

    /// What its one instruction crosses into, if it does.
    pub fn crossing(&self) -> Option<&Crossing> {
        self.crossing.as_ref()
    }
}

/// Translations belong to an address space, or to all of them.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Scope {
    Local = 0,
    Global = 1,
}

#[derive(Clone, Copy)]
struct Jump {
    key: u64,
    stamp: u64,
    scope: Scope,
    block: *mut Block,
}

#[derive(Clone, Copy)]
struct Fetch {
    key: u64,
    stamp: u64,
    scope: Scope,
    page: u64,
    host: *mut u8,
    state: *const PageState,
}

/// In an address of code: the instruction there is executed by itself. Linear addresses of 32-bit
/// code have no such bit.
const ALONE: u64 = 1 << 62;

/// Sets of pages whose translations are dropped together when one of them is.
pub const BUCKETS: usize = 64;

/// The bucket of an address or key.
#[inline(always)]
pub fn bucket(linear: u64) -> usize {
    (linear >> 12) as usize % BUCKETS
}

const JUMPS: usize = 8192;
const FETCHES: usize = 512;
/// Host memory that blocks may take before everything is forgotten.
const MAX_MEMORY: usize = 96 << 20;
/// What a block takes beside its contents: its places in tables, and the allocator's share.
const OVERHEAD: usize = 128;

/// Spreads physical addresses; they are no secret and no attacker chooses them profitably.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Counts of what the block cache did.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockCounts {
    /// Blocks decoded.
    pub decoded: u64,
    /// Instructions decoded.
    pub instructions: u64,
    /// Blocks executed.
    pub executed: u64,
    /// Look-ups that the jump cache did not answer.
    pub jump_misses: u64,
    /// Fetch translations filled in.
    pub fetch_fills: u64,
    /// Blocks found overwritten.
    pub stale: u64,
    /// Writes by this vCPU that hit decoded code.
    pub code_writes: u64,
    /// Times that the whole cache was emptied.
    pub resets: u64,
    /// Instructions executed one at a time.
    pub steps: u64,
}

/// A vCPU's decoded code.
pub struct Blocks {
    jumps: Box<[Jump; JUMPS]>,
    fetches: Box<[Fetch; FETCHES]>,
    /// By [`Scope`], and then by [`bucket`] of the page. They only grow, so that an entry is void
    /// when their sum is another than when it was made.
    stamps: [u64; 2],
    page_stamps: [[u64; BUCKETS]; 2],
    /// Buckets of which a page was dropped since [`Blocks::take_flushed`], by [`Scope`].
    flushed: [u64; 2],
    fetched: Fetched,
    large: LargePages,
    table: HashMap<u64, *mut Block, BuildHasherDefault<AddressHasher>>,
    /// Blocks of instructions that cross pages, by the addresses of the first byte and of the second page.
    crossings: HashMap<(u64, u64), *mut Block, BuildHasherDefault<AddressHasher>>,
    storage: Vec<*mut Block>,
    rewritten: rewritten::Rewritten,
    /// Bytes that the blocks take.
    memory: usize,
    current: *mut Block,
    current_rip: u64,
    pub counts: BlockCounts,
}

// SAFETY: the pointers are to blocks that this value owns and to page states, which are atomics
// and live as long as the guest memory that the owning Cpu holds.
unsafe impl Send for Blocks {}

const NO_JUMP: Jump = Jump { key: 0, stamp: 0, scope: Scope::Local, block: std::ptr::null_mut() };
const NO_FETCH: Fetch = Fetch {
    key: 0,
    stamp: 0,
    scope: Scope::Local,
    page: 0,
    host: std::ptr::null_mut(),
    state: std::ptr::null(),
};

fn boxed<T: Copy, const N: usize>(value: T) -> Box<[T; N]> {
    match vec![value; N].into_boxed_slice().try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("the vector has N elements"),
    }
}

impl Blocks {
    pub fn new() -> Self {
        Blocks {
            jumps: boxed(NO_JUMP),
            fetches: boxed(NO_FETCH),
            stamps: [1, 1],
            page_stamps: [[0; BUCKETS]; 2],
            flushed: [0; 2],
            fetched: Fetched::new(),
            large: LargePages::new(),
            table: HashMap::default(),
            crossings: HashMap::default(),
            storage: Vec::new(),
            rewritten: rewritten::Rewritten::new(),
            memory: 0,
            current: std::ptr::null_mut(),
            current_rip: 0,
            counts: BlockCounts::default(),
        }
    }

    /// Address-space and privilege dependent translations are void now.
    pub fn flush_translations(&mut self, keep_global: bool) {
        self.bump(Scope::Local);
        if !keep_global {
            self.bump(Scope::Global);
            self.large = LargePages::new();
        }
    }

    fn bump(&mut self, scope: Scope) {
        self.stamps[scope as usize] += 1;
        self.fetched.clear(scope);
    }

    /// The translation of one page is void now, however large the page is.
    pub fn flush_page(&mut self, linear: u64) {
        if self.large.reach(linear) != Reach::Page {
            self.flush_translations(false);
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

    /// This vCPU wrote to a page of decoded code. If the running block is of that page, what is
    /// left of it must not run.
    pub fn code_written(&mut self) {
        self.counts.code_writes += 1;
        // SAFETY: `current` is null or a block in `storage`.
        if let Some(block) = unsafe { self.current.as_ref() }
            && !block.valid()
        {
            for op in &block.ops {
                op.run.set(op::stale);
            }
        }
    }

    /// Instructions of the running block that lie before `rip`.
    pub fn executed_in_current(&self, rip: u64) -> u64 {
        // SAFETY: `current` is null or a block in `storage`.
        let Some(block) = (unsafe { self.current.as_ref() }) else { return 0 };
        let offset = rip.wrapping_sub(self.current_rip);
        block.ops.iter().take_while(|op| u64::from(op.offset) < offset).map(|op| u64::from(op.count)).sum()
    }

    /// Values that change when all translations of a [`Scope`] become void.
    #[inline(always)]
    pub fn stamps(&self) -> [u64; 2] {
        self.stamps
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
    fn stamp(&self, scope: Scope, key: u64) -> u64 {
        self.stamps[scope as usize & 1] + self.page_stamps[scope as usize & 1][bucket(key)]
    }

    /// Whom the translation behind `key` belongs to, if a block was found there last.
    pub fn scope_of(&self, key: u64) -> Option<Scope> {
        let entry = &self.jumps[jump_slot(key)];
        (entry.key == key && entry.stamp == self.stamp(entry.scope, key)).then_some(entry.scope)
    }

    /// Notes which block runs.
    #[inline(always)]
    pub fn enter(&mut self, block: *mut Block, rip: u64) {
        self.current = block;
        self.current_rip = rip;
    }

    /// Notes that no block runs.
    #[inline(always)]
    pub fn leave(&mut self) {
        self.current = std::ptr::null_mut();
    }

    fn reset(&mut self) {
        self.counts.resets += 1;
        self.jumps.fill(NO_JUMP);
        self.table.clear();
        self.crossings.clear();
        self.current = std::ptr::null_mut();
        self.memory = 0;
        for block in self.storage.drain(..) {
            // SAFETY: made by Box::into_raw, and nothing points to it any more.
            drop(unsafe { Box::from_raw(block) });
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.reset();
    }
}

#[inline(always)]
fn jump_slot(key: u64) -> usize {
    (key ^ (key >> 13)) as usize & (JUMPS - 1)
}

impl Cpu {
    /// Code address and the mode bits that it is executed under, as one word.
    #[inline(always)]
    pub fn code_key(&self, linear: u64) -> u64 {
        linear ^ self.code_mode
    }

    /// The block at RIP; nothing if the instruction there crosses into the next page.
    #[inline(always)]
    pub fn find_block(&mut self) -> Exec<Option<*mut Block>> {
        let linear = self.code_linear(self.state.rip);
        let key = self.code_key(linear);
        let entry = &self.blocks.jumps[jump_slot(key)];
        if entry.key == key && entry.stamp == self.blocks.stamp(entry.scope, key) {
            let block = entry.block;
            // SAFETY: jump entries point to blocks in storage; a reset empties both.
            if unsafe { (*block).valid() } {
                return Ok(Some(block));
            }
        }
        self.find_block_slow(linear)
    }

    /// The block that follows `before`, which stood at `from`. Most blocks go on where they went
    /// before, so that is tried first.
    #[inline(always)]
    pub fn find_next(&mut self, before: *mut Block, from: u64) -> Exec<Option<*mut Block>> {
        let rip = self.state.rip;
        let key = self.code_key(self.code_linear(rip));
        // SAFETY: `before` has just run, and only a look-up frees blocks.
        let next = unsafe { (*before).successor(from, rip).get() };
        if next.key == key && next.stamp == self.blocks.stamp(next.scope, key) {
            // SAFETY: successors point to blocks in storage; a reset frees both at once.
            if unsafe { (*next.block).valid() } {
                return Ok(Some(next.block));
            }
        }
        let resets = self.blocks.counts.resets;
        let found = self.find_block()?;
        let entry = self.blocks.jumps[jump_slot(key)];
        if resets == self.blocks.counts.resets && entry.key == key && Some(entry.block) == found {
            // SAFETY: nothing was freed meanwhile.
            unsafe { (*before).successor(from, rip).set(entry) };
        }
        Ok(found)
    }

    /// The linear address of `rip`, or one that no block has ([`ALONE`]).
    #[inline(always)]
    pub fn code_linear(&self, rip: u64) -> u64 {
        if self.code64 { rip } else { self.segmented_code_linear(rip) }
    }

    /// A block knows nothing of segment limits. So where one could reach beyond that of CS,
    /// there are none, and instructions are executed one by one.
    #[inline]
    fn segmented_code_linear(&self, rip: u64) -> u64 {
        let cs = &self.state.seg[seg::CS];
        let linear = rip.wrapping_add(cs.base) & 0xffff_ffff;
        let near_end = cs.limit != u32::MAX && rip.saturating_add(decode::MAX_REACH) > u64::from(cs.limit);
        if near_end { linear | ALONE } else { linear }
    }

    #[cold]
    #[inline(never)]
    fn find_block_slow(&mut self, linear: u64) -> Exec<Option<*mut Block>> {
        if !self.code64 && linear & ALONE != 0 {
            return Ok(None);
        }
        self.blocks.counts.jump_misses += 1;
        if self.debug.code_page(linear) {
            // A breakpoint comes before the fetch that its page may not allow.
            return Ok(None);
        }
        let fetch = self.fetch_page(linear)?;
        if let Some(block) = self.same_block(linear, fetch) {
            return Ok(Some(block));
        }
        let bits = self.bits();
        let physical = fetch.page | (linear & 0xfff);
        // Physical addresses have fewer than 52 bits.
        let key = physical | u64::from(bits) << 56;
        if let Some(&block) = self.blocks.table.get(&key) {
            // SAFETY: the table points to blocks in storage; a reset empties both.
            if unsafe { (*block).valid() } {
                self.remember(linear, fetch.scope, block);
                return Ok(Some(block));
            }
            self.blocks.counts.stale += 1;
        }
        if self.blocks.memory > MAX_MEMORY {
            if let Some(jit) = &mut self.jit {
                jit.reset(&mut self.context);
            }
            self.blocks.reset();
        }
        // SAFETY: fetch entries point to states of guest memory pages.
        let state = unsafe { &*fetch.state };
        let known = state.has_code();
        let value = state.mark_code(!self.parallel);
        if !known && self.jit.is_some() {
            self.tlb.protect_code();
        }
        let longest = self.blocks.rewritten.longest(fetch.state, value);
        let offset = (linear & 0xfff) as usize;
        let Some((ops, generics)) = decode::decode(&self.isa, fetch.host, offset, bits, longest) else {
            return Ok(self.crossing_block(linear, fetch, value));
        };
        let instructions = ops.iter().map(|op| u32::from(op.count)).sum();
        let len = ops.last().map_or(0, |op| op.offset + op.len);
        self.blocks.counts.decoded += 1;
        self.blocks.counts.instructions += u64::from(instructions);
        self.blocks.memory += size_of::<Block>() + size_of_val(&*ops) + size_of_val(&*generics) + OVERHEAD;
        let block = Box::into_raw(Box::new(Block {
            ops,
            _generics: generics,
            instructions,
            state: fetch.state,
            value,
            successors: [Cell::new(NO_JUMP), Cell::new(NO_JUMP)],
            len,
            host: fetch.host,
            crossing: None,
            heat: Cell::new(0),
            translation: Cell::new((0, 0)),
        }));
        self.blocks.storage.push(block);
        self.blocks.table.insert(key, block);
        self.remember(linear, fetch.scope, block);
        Ok(Some(block))
    }

    /// The block of the one instruction at `linear` that crosses into the next page. Nothing where it
    /// has to be executed by itself, to fault for example.
    fn crossing_block(&mut self, linear: u64, here: Fetch, value: u32) -> Option<*mut Block> {
        if !self.code64 || self.jit.is_none() {
            return None;
        }
        let room = 0x1000 - (linear & 0xfff);
        let next = linear.wrapping_add(room);
        let there = self.fetch_page(next);
        self.fault = None;
        let there = there.ok()?;
        // SAFETY: fetch entries point to states of guest memory pages.
        let state = unsafe { &*there.state };
        let known = state.has_code();
        let other_value = state.mark_code(!self.parallel);
        if !known {
            self.tlb.protect_code();
        }
        let scope = if here.scope == Scope::Local || there.scope == Scope::Local {
            Scope::Local
        } else {
            Scope::Global
        };
        if scope == Scope::Local {
            // Either page, if global, is one of an address space here.
            self.blocks.fetched.insert(scope, linear);
            self.blocks.fetched.insert(scope, next);
        }
        let key = (here.page | (linear & 0xfff), there.page);
        if let Some(&block) = self.blocks.crossings.get(&key) {
            // SAFETY: the table points to blocks in storage; a reset empties both.
            if unsafe { (*block).valid() } {
                self.remember(linear, scope, block);
                return Some(block);
            }
        }
        let mut bytes = [0; MAX_LENGTH];
        let first = (room as usize).min(MAX_LENGTH);
        copy(here.host, (linear & 0xfff) as usize, &mut bytes[..first]);
        copy(there.host, 0, &mut bytes[first..]);
        let insn = self.isa.one(&bytes, 64)?;
        if insn.is_invalid() || insn.len() <= first {
            return None;
        }
        let (ops, generics) = decode::single(&self.isa, insn);
        self.blocks.counts.decoded += 1;
        self.blocks.counts.instructions += 1;
        self.blocks.memory += size_of::<Block>() + size_of_val(&*ops) + size_of_val(&*generics) + OVERHEAD;
        let block = Box::into_raw(Box::new(Block {
            ops,
            _generics: generics,
            instructions: 1,
            state: here.state,
            value,
            successors: [Cell::new(NO_JUMP), Cell::new(NO_JUMP)],
            len: insn.len() as u8,
            host: here.host,
            crossing: Some(Crossing { insn, state: there.state, value: other_value }),
            heat: Cell::new(0),
            translation: Cell::new((0, 0)),
        }));
        self.blocks.storage.push(block);
        self.blocks.crossings.insert(key, block);
        self.remember(linear, scope, block);
        Some(block)
    }

    /// The block of 64-bit code at `rip` that was decoded before, without side effects that the guest
    /// could tell from those of a fetch that was predicted.
    pub fn known_block(&mut self, rip: u64) -> Option<*mut Block> {
        let key = self.code_key(rip);
        let entry = self.blocks.jumps[jump_slot(key)];
        if entry.key == key && entry.stamp == self.blocks.stamp(entry.scope, key) {
            // SAFETY: jump entries point to blocks in storage; a reset empties both.
            return unsafe { (*entry.block).valid() }.then_some(entry.block);
        }
        let fetch = self.fetch_page(rip);
        self.fault = None;
        let fetch = fetch.ok()?;
        if let Some(block) = self.same_block(rip, fetch) {
            return Some(block);
        }
        let block = *self.blocks.table.get(&(fetch.page | (rip & 0xfff) | 64 << 56))?;
        // SAFETY: as above.
        unsafe { (*block).valid() }.then(|| {
            self.remember(rip, fetch.scope, block);
            block
        })
    }

    /// The block that was found at `linear` last, if its page is still there: most flushes of
    /// translations change few of them.
    fn same_block(&mut self, linear: u64, fetch: Fetch) -> Option<*mut Block> {
        let key = self.code_key(linear);
        let entry = self.blocks.jumps[jump_slot(key)];
        if entry.key != key {
            return None;
        }
        // SAFETY: jump entries point to blocks in storage; a reset empties both.
        let block = unsafe { entry.block.as_ref() }?;
        let same = std::ptr::eq(block.host, fetch.host) && block.crossing.is_none() && block.valid();
        same.then(|| {
            self.remember(linear, fetch.scope, entry.block);
            entry.block
        })
    }

    fn remember(&mut self, linear: u64, scope: Scope, block: *mut Block) {
        let key = self.code_key(linear);
        let stamp = self.blocks.stamp(scope, key);
        self.blocks.jumps[jump_slot(key)] = Jump { key, stamp, scope, block };
    }

    /// Translates a code page, through a small cache.
    fn fetch_page(&mut self, linear: u64) -> Exec<Fetch> {
        let key = self.code_key(linear & !0xfff);
        let slot = (linear >> 12) as usize & (FETCHES - 1);
        let entry = self.blocks.fetches[slot];
        if entry.key == key && entry.stamp == self.blocks.stamp(entry.scope, key) {
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
                self.blocks.flush_page(linear);
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
        self.blocks.counts.fetch_fills += 1;
        self.blocks.large.insert(linear, mapping.shift);
        let scope = if mapping.global { Scope::Global } else { Scope::Local };
        self.blocks.fetched.insert(scope, linear);
        let entry = Fetch {
            key,
            stamp: self.blocks.stamp(scope, key),
            scope,
            page: mapping.gpa & !0xfff,
            host: page.host,
            state: page.state,
        };
        self.blocks.fetches[slot] = entry;
        Ok(entry)
    }

    /// Byte `index` of the instruction at RIP.
    pub fn code_byte(&mut self, index: u64) -> Exec<u8> {
        let linear = self.code_linear(self.state.rip.wrapping_add(index));
        let page = self.fetch_page(linear)?;
        let mut byte = [0];
        copy(page.host, (linear & 0xfff) as usize, &mut byte);
        Ok(byte[0])
    }

    /// Decodes the single instruction at RIP, which may cross pages, without caching it. It must
    /// lie within the code segment, and have 15 bytes at most (SDM volume 2, 2.3.11).
    pub fn fetch_one(&mut self) -> Exec<Instruction> {
        let rip = self.state.rip;
        let linear = self.code_linear(rip) & !if self.code64 { 0 } else { ALONE };
        let within = self.within_code_segment(rip);
        if within == 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        let here = self.fetch_page(linear)?;
        let room = 0x1000 - (linear & 0xfff) as usize;
        let mut bytes = [0; MAX_LENGTH];
        let first = room.min(within);
        copy(here.host, (linear & 0xfff) as usize, &mut bytes[..first]);
        let bits = self.bits();
        let mut insn = self.isa.one(&bytes[..first], bits);
        if insn.is_none() && first < within {
            let next = linear.wrapping_add(first as u64);
            let there = self.fetch_page(if self.code64 { next } else { next & 0xffff_ffff })?;
            copy(there.host, 0, &mut bytes[first..within]);
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

#[cfg(test)]
mod tests;
