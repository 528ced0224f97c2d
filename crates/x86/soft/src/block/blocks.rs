//! A vCPU's cache of blocks.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use super::credit::Credit;
use super::decode::Decoded;
use super::{Block, Jump, NO_JUMP};
use crate::code_mode::CodeKey;
use crate::cpu::Cpu;
use crate::mmu::Scope;

const JUMPS: usize = 32768;
/// Host memory that blocks may take before everything is forgotten.
pub(super) const MAX_MEMORY: usize = 96 << 20;
/// Host memory that blocks may take before those are looked for whose pages were written since: a little more than
/// a boot of Linux leaves, so that none pays for the look.
const SWEEP: usize = if cfg!(test) { 16 << 10 } else { 40 << 20 };
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
    /// Blocks found overwritten.
    pub stale: u64,
    /// Blocks whose page was written, found as they had been.
    pub same: u64,
    /// Times that the whole cache was emptied.
    pub resets: u64,
    /// Blocks that were freed to make room.
    pub swept: u64,
    /// Times that all blocks were freed that nothing was made of.
    pub aged: u64,
}

/// A vCPU's decoded code.
pub struct Blocks {
    pub(super) jumps: Box<[Jump; JUMPS]>,
    pub(super) table: HashMap<u64, *mut Block, BuildHasherDefault<AddressHasher>>,
    /// Blocks of instructions that cross pages, by the addresses of the first byte and of the second page.
    pub(super) crossings: HashMap<(u64, u64), *mut Block, BuildHasherDefault<AddressHasher>>,
    pub(super) storage: Vec<*mut Block>,
    pub(super) credit: Credit,
    /// What was decoded last, on its way into a block.
    pub(super) decoded: Decoded,
    /// Blocks that something was translated from, and whose bytes were others when they were found last: look-ups lead to them
    /// no more.
    pub replaced: Vec<*mut Block>,
    /// Bytes that the blocks take.
    pub(super) memory: usize,
    /// The same, when the next look for overwritten ones is.
    pub(super) sweep_at: usize,
    /// Instructions that cross pages have blocks too: who only interprets executes them one by one.
    pub(super) with_crossings: bool,
    /// What it did.
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
    /// Nothing is decoded yet.
    #[expect(clippy::new_without_default, reason = "a cache of this size is made on purpose")]
    pub fn new() -> Self {
        Blocks {
            jumps: boxed(NO_JUMP),
            table: HashMap::default(),
            crossings: HashMap::default(),
            storage: Vec::new(),
            credit: Credit::new(),
            decoded: Decoded::default(),
            replaced: Vec::new(),
            memory: 0,
            sweep_at: SWEEP,
            with_crossings: false,
            counts: BlockCounts::default(),
        }
    }

    /// The same; instructions that cross pages have blocks too.
    pub fn with_crossings() -> Self {
        let mut blocks = Self::new();
        blocks.with_crossings = true;
        blocks
    }

    /// Whom the translation behind `key` belongs to, if a block was found there last.
    pub fn scope_of(&self, cpu: &Cpu, key: CodeKey) -> Option<Scope> {
        let entry = &self.jumps[jump_slot(key)];
        (entry.key == key && entry.stamp == cpu.mmu.fetches.stamp(entry.scope, key)).then_some(entry.scope)
    }

    /// Keeps a block.
    pub(super) fn store(&mut self, block: Block) -> *mut Block {
        self.memory += block.memory();
        let block = Box::into_raw(Box::new(block));
        self.storage.push(block);
        block
    }

    /// Whether [`Blocks::sweep`] and perhaps [`Blocks::reset`] have to make room before more is decoded.
    pub fn wants_room(&self) -> bool {
        self.memory > self.sweep_at || self.is_full()
    }

    /// Whether [`Blocks::sweep`] does not make room enough.
    pub fn is_full(&self) -> bool {
        self.memory > MAX_MEMORY
    }

    /// Whether a quarter of the memory is free, so that room need not be made again soon.
    pub fn has_room(&self) -> bool {
        self.memory <= MAX_MEMORY / 4 * 3
    }

    /// Frees the blocks whose pages were written since, but those that are `needed`. None may be running.
    pub fn sweep(&mut self, needed: &Addresses) {
        // Another vCPU may write at any time: asked once.
        self.keep(|address, block| block.valid() || needed.contains(&address));
        self.sweep_at = SWEEP.max(self.memory / 2 * 3);
    }

    /// Frees all blocks but those that are `needed`. None may be running.
    pub fn age(&mut self, needed: &Addresses) {
        self.keep(|address, _| needed.contains(&address));
        self.sweep_at = SWEEP.max(self.memory / 2 * 3);
        self.counts.aged += 1;
    }

    /// Frees the blocks that are not to `stay`.
    fn keep(&mut self, stay: impl Fn(*mut Block, &Block) -> bool) {
        self.jumps.fill(NO_JUMP);
        let mut free = Addresses::default();
        self.storage.retain(|&address| {
            // SAFETY: the blocks in storage live until they are freed below.
            let block = unsafe { &*address };
            block.forget_successors();
            let keep = stay(address, block);
            if !keep {
                free.insert(address);
            }
            keep
        });
        self.table.retain(|_, block| !free.contains(block));
        self.crossings.retain(|_, block| !free.contains(block));
        self.replaced.retain(|block| !free.contains(block));
        self.counts.swept += free.len() as u64;
        for block in free {
            // SAFETY: made by Box::into_raw, and nothing points to it any more.
            let block = unsafe { Box::from_raw(block) };
            self.memory -= block.memory();
        }
    }

    /// Forgets all blocks without freeing them, for a process that ends. None may be running.
    pub fn abandon(&mut self) {
        self.jumps.fill(NO_JUMP);
        std::mem::forget(std::mem::take(&mut self.storage));
        std::mem::forget(std::mem::take(&mut self.table));
        std::mem::forget(std::mem::take(&mut self.crossings));
    }

    /// Frees all blocks. None may be running, nor be pointed to.
    pub fn reset(&mut self) {
        self.counts.resets += 1;
        self.jumps.fill(NO_JUMP);
        self.table.clear();
        self.crossings.clear();
        self.replaced.clear();
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
pub(super) fn jump_slot(key: CodeKey) -> usize {
    (key.low() ^ (key.low() >> 13)) as usize & (JUMPS - 1)
}
