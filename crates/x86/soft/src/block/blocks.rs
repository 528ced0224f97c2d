//! A vCPU's cache of blocks, and of the translations that lead to them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use super::credit::Credit;
use super::fetch::{Fetch, NO_FETCH};
use super::fetched::Fetched;
use super::{BUCKETS, Block, Jump, NO_JUMP, Scope, bucket, op};
use crate::mmu::{Change, Kept, LargePages, Part, Reach, Space};

const JUMPS: usize = 8192;
pub(super) const FETCHES: usize = 512;
/// Host memory that blocks may take before everything is forgotten.
pub(super) const MAX_MEMORY: usize = 96 << 20;
/// Host memory that blocks may take before those are looked for whose pages were written since: a little more than
/// a boot of Linux leaves, so that none pays for the look.
const SWEEP: usize = if cfg!(test) { 16 << 10 } else { 40 << 20 };
/// Between the stamps of two address spaces: more than pages are dropped in one.
const STAMP: u64 = 1 << 32;
/// What a block takes beside its contents: its places in tables, and the allocator's share.
pub(super) const OVERHEAD: usize = 128;

/// Blocks by where they are in memory.
pub type Addresses = HashSet<*mut Block, BuildHasherDefault<AddressHasher>>;

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
    /// Blocks that were overwritten and freed.
    pub swept: u64,
    /// Instructions executed one at a time.
    pub steps: u64,
}

/// A vCPU's decoded code.
pub struct Blocks {
    pub(super) jumps: Box<[Jump; JUMPS]>,
    pub(super) fetches: Box<[Fetch; FETCHES]>,
    /// By [`Scope`], and then by [`bucket`] of the page: an entry is void when their sum is another than when it was made.
    /// The former are multiples of [`STAMP`], each given once, and those of an address space return with it.
    stamps: [u64; 2],
    page_stamps: [[u64; BUCKETS]; 2],
    last_stamp: u64,
    /// By [`Scope`], how often another stamp came into force.
    epochs: [u64; 2],
    /// Stamps of parts of address spaces that are not current, and where code was fetched there.
    kept: Kept<(u64, Box<[u64]>)>,
    /// Buckets of which a page was dropped since [`Blocks::take_flushed`], by [`Scope`].
    flushed: [u64; 2],
    pub(super) fetched: Fetched,
    pub(super) large: LargePages,
    pub(super) table: HashMap<u64, *mut Block, BuildHasherDefault<AddressHasher>>,
    /// Blocks of instructions that cross pages, by the addresses of the first byte and of the second page.
    pub(super) crossings: HashMap<(u64, u64), *mut Block, BuildHasherDefault<AddressHasher>>,
    pub(super) storage: Vec<*mut Block>,
    pub(super) credit: Credit,
    /// Bytes that the blocks take.
    pub(super) memory: usize,
    /// The same, when the next look for overwritten ones is.
    pub(super) sweep_at: usize,
    /// Times that blocks were freed.
    pub(super) freed: u64,
    current: *mut Block,
    current_rip: u64,
    pub counts: BlockCounts,
}

// SAFETY: the pointers are to blocks that this value owns and to page states, which are atomics
// and live as long as the guest memory that the owning Cpu holds.
unsafe impl Send for Blocks {}

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
            stamps: [STAMP, STAMP],
            page_stamps: [[0; BUCKETS]; 2],
            last_stamp: STAMP,
            epochs: [1, 1],
            kept: Kept::new(),
            flushed: [0; 2],
            fetched: Fetched::new(),
            large: LargePages::new(),
            table: HashMap::default(),
            crossings: HashMap::default(),
            storage: Vec::new(),
            credit: Credit::new(),
            memory: 0,
            sweep_at: SWEEP,
            freed: 0,
            current: std::ptr::null_mut(),
            current_rip: 0,
            counts: BlockCounts::default(),
        }
    }

    /// Address-space and privilege dependent translations are void now, also those of other address spaces.
    pub fn flush_translations(&mut self, keep_global: bool) {
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
    pub fn change(&mut self, change: &Change) {
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
    pub fn forget(&mut self, which: impl Fn(Space) -> bool, all: bool) {
        self.kept.forget(which, all);
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
    pub(super) fn stamp(&self, scope: Scope, key: u64) -> u64 {
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

    /// Keeps a block.
    pub(super) fn store(&mut self, block: Block) -> *mut Block {
        self.memory += block.memory();
        let block = Box::into_raw(Box::new(block));
        self.storage.push(block);
        block
    }

    /// Frees the blocks whose pages were written since, but those that are `needed`.
    pub(super) fn sweep(&mut self, needed: &Addresses) {
        self.freed += 1;
        self.jumps.fill(NO_JUMP);
        self.current = std::ptr::null_mut();
        let mut free = Addresses::default();
        self.storage.retain(|&address| {
            // SAFETY: the blocks in storage live until they are freed below.
            let block = unsafe { &*address };
            block.forget_successors();
            // Another vCPU may write at any time: asked once.
            let keep = block.valid() || needed.contains(&address);
            if !keep {
                free.insert(address);
            }
            keep
        });
        self.table.retain(|_, block| !free.contains(block));
        self.crossings.retain(|_, block| !free.contains(block));
        self.counts.swept += free.len() as u64;
        for block in free {
            // SAFETY: made by Box::into_raw, and nothing points to it any more.
            let block = unsafe { Box::from_raw(block) };
            self.memory -= block.memory();
        }
        self.sweep_at = SWEEP.max(self.memory / 2 * 3);
    }

    pub(super) fn reset(&mut self) {
        self.counts.resets += 1;
        self.freed += 1;
        self.jumps.fill(NO_JUMP);
        self.table.clear();
        self.crossings.clear();
        self.current = std::ptr::null_mut();
        self.memory = 0;
        self.sweep_at = SWEEP;
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
pub(super) fn jump_slot(key: u64) -> usize {
    (key ^ (key >> 13)) as usize & (JUMPS - 1)
}
