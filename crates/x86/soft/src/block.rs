//! Decoded code: blocks by physical address, and the caches that find them by RIP.
//!
//! A block is a straight run of instructions within one page. It belongs to the physical page
//! and a code size, so that it survives address-space switches and serves every mapping. It is
//! valid while the page's state has the value that it had when the bytes were read.

mod blocks;
mod credit;
mod decode;
mod fast;
mod find;
mod op;
mod same;

use std::cell::Cell;

use satori_memory::PageState;

use crate::code_mode::CodeKey;
use crate::cpu::Running;
use crate::mmu::Scope;

pub use blocks::{AddressHasher, Addresses, Blocks};
pub use decode::ends_block;
pub use find::Found;
pub use op::{BLOCK_RIP, Flow, Op};
pub use same::stands;

/// A straight run of decoded instructions. What a look-up needs comes first: blocks are many, and a look-up waits for each line of the
/// host's cache that it touches.
#[repr(C)]
pub struct Block {
    state: *const PageState,
    /// The state's value that it is valid under.
    value: Cell<u32>,
    /// Times that the block was about to be executed without a translation.
    heat: Cell<u32>,
    /// What its one instruction crosses into, if it does.
    crossing: Option<Box<Cell<Crossing>>>,
    /// The page's first byte on the host.
    host: *const u8,
    /// One that is valid wherever its page is: for which mode and offset, where, and of which group.
    moving: Cell<(CodeKey, u64, u32)>,
    /// Its translation: for which mode and address, and where.
    translation: Cell<(CodeKey, u64)>,
    ops: Box<[Op]>,
    /// Instructions in the block.
    pub instructions: u32,
    /// Where in the page its bytes begin.
    offset: u16,
    /// Bytes of the block.
    len: u8,
    /// Its operations were taken out of use while it ran: nothing makes it valid again.
    spoilt: Cell<bool>,
    /// Something was translated from it, and may point to it.
    translated: Cell<bool>,
    /// Where the block went on last: elsewhere, and behind its end.
    successors: [Cell<Jump>; 2],
    /// What the operations point to.
    generics: Box<[op::Generic]>,
    /// The bytes that it was decoded from.
    bytes: Box<[u8]>,
}

/// The rest of an instruction that begins at the end of a page.
#[derive(Clone, Copy)]
pub struct Crossing {
    /// The other page's first byte on the host.
    pub host: *const u8,
    /// The state of that page.
    pub state: *const PageState,
    /// The value of that under which the instruction is valid.
    pub value: u32,
}

impl Block {
    /// The place of the successor at `rip`, for the block at `from`.
    #[inline(always)]
    fn successor(&self, from: u64, rip: u64) -> &Cell<Jump> {
        &self.successors[usize::from(rip.wrapping_sub(from) == u64::from(self.len))]
    }

    /// Forgets where it went on.
    fn forget_successors(&self) {
        self.successors.iter().for_each(|successor| successor.set(NO_JUMP));
    }

    /// Bytes that it takes on the host.
    fn memory(&self) -> usize {
        let contents = size_of_val(&*self.ops) + size_of_val(&*self.generics) + self.bytes.len();
        let crossing = self.crossing.as_ref().map_or(0, |_| size_of::<Crossing>());
        size_of::<Block>() + contents + crossing + blocks::OVERHEAD
    }

    /// The translation for `key`, the mode and address that it is executed at.
    #[inline(always)]
    pub fn translation(&self, key: CodeKey) -> Option<u64> {
        let (found, code) = self.translation.get();
        (found == key && code != 0).then_some(code)
    }

    /// Remembers a translation; others are in the translator's own table.
    pub fn set_translation(&self, key: CodeKey, code: u64) {
        self.translation.set((key, code));
    }

    /// The translation for `key`, a mode and an offset, that is valid wherever its page is, and its group.
    #[inline(always)]
    pub fn moving_translation(&self, key: CodeKey) -> Option<(u64, u32)> {
        let (found, code, group) = self.moving.get();
        (found == key && code != 0).then_some((code, group))
    }

    /// Remembers such a translation.
    pub fn set_moving_translation(&self, key: CodeKey, code: u64, group: u32) {
        self.moving.set((key, code, group));
    }

    /// The translations are void.
    pub fn forget_translation(&self) {
        self.translation.set((CodeKey::NONE, 0));
        self.moving.set((CodeKey::NONE, 0, 0));
    }

    /// Counts an execution; whether there have been `hot` of them.
    #[inline(always)]
    pub fn heat(&self, hot: u32) -> bool {
        let heat = self.heat.get();
        self.heat.set(heat.saturating_add(1));
        heat >= hot
    }

    /// Times that it was about to be executed without a translation.
    pub fn times(&self) -> u32 {
        self.heat.get()
    }

    /// The page's first byte on the host, where the block's bytes are.
    pub fn host(&self) -> *const u8 {
        self.host
    }

    /// The state's value that the block is valid under.
    pub fn value(&self) -> u32 {
        self.value.get()
    }

    /// Whether something was translated from it.
    pub fn translated(&self) -> bool {
        self.translated.get()
    }

    /// Something was translated from it.
    pub fn set_translated(&self) {
        self.translated.set(true);
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
            (*self.state).value() == self.value.get()
                && self.crossing().is_none_or(|crossing| (*crossing.state).value() == crossing.value)
        }
    }

    /// What its one instruction crosses into, if it does.
    pub fn crossing(&self) -> Option<Crossing> {
        self.crossing.as_ref().map(|crossing| crossing.get())
    }
}

impl Running for Block {
    fn code_written(&self) {
        if !self.valid() {
            for op in &self.ops {
                op.run.set(op::stale);
            }
            self.spoilt.set(true);
        }
    }
}

#[derive(Clone, Copy)]
struct Jump {
    key: CodeKey,
    stamp: u64,
    scope: Scope,
    block: *mut Block,
}

/// In an address of code: the instruction there is executed by itself. Linear addresses of 32-bit
/// code have no such bit.
const ALONE: u64 = 1 << 40;

const NO_JUMP: Jump = Jump { key: CodeKey::NONE, stamp: 0, scope: Scope::Local, block: std::ptr::null_mut() };

#[cfg(test)]
mod tests;
