//! Finding the block at an address, and decoding it where there is none.

use satori_memory::PageState;
use std::cell::Cell;

use satori_state::seg;

use super::blocks::{MAX_MEMORY, jump_slot};
use super::fetch::Fetch;
use super::{ALONE, Block, Crossing, Jump, NO_JUMP, Scope, copy, decode};
use crate::cpu::{Cpu, Exec};
use crate::isa::MAX_LENGTH;
use crate::jit;

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
            // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
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
            // SAFETY: successors point to blocks in storage, and are forgotten when some are freed.
            if unsafe { (*next.block).valid() } {
                return Ok(Some(next.block));
            }
        }
        let freed = self.blocks.freed;
        let found = self.find_block()?;
        let entry = self.blocks.jumps[jump_slot(key)];
        if freed == self.blocks.freed && entry.key == key && Some(entry.block) == found {
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
            // SAFETY: the table points to blocks in storage.
            if unsafe { (*block).valid() } {
                self.remember(linear, fetch.scope, block);
                return Ok(Some(block));
            }
            self.blocks.counts.stale += 1;
        }
        if self.blocks.memory > self.blocks.sweep_at {
            let needed = self.jit.as_ref().map(|jit| jit.translated()).unwrap_or_default();
            self.blocks.sweep(&needed);
        }
        if self.blocks.memory > MAX_MEMORY {
            if let Some(jit) = &mut self.jit {
                jit.reset(&mut self.context);
            }
            self.blocks.reset();
        }
        if !self.blocks.credit.any(self.retired) {
            return Ok(None);
        }
        // SAFETY: fetch entries point to states of guest memory pages.
        let state = unsafe { &*fetch.state };
        let value = self.mark_code(state);
        let offset = (linear & 0xfff) as usize;
        let Some((ops, generics)) = decode::decode(&self.isa, fetch.host, offset, bits) else {
            return Ok(self.crossing_block(linear, fetch, value));
        };
        let instructions = ops.iter().map(|op| u32::from(op.count)).sum();
        self.blocks.credit.spend(instructions);
        let len = ops.last().map_or(0, |op| op.offset + op.len);
        self.blocks.counts.decoded += 1;
        self.blocks.counts.instructions += u64::from(instructions);
        let block = self.blocks.store(Block {
            ops,
            generics,
            instructions,
            state: fetch.state,
            value,
            successors: [Cell::new(NO_JUMP), Cell::new(NO_JUMP)],
            len,
            host: fetch.host,
            crossing: None,
            heat: Cell::new(0),
            translation: Cell::new((0, 0)),
            moving: Cell::new((0, 0, 0)),
        });
        self.blocks.table.insert(key, block);
        self.remember(linear, fetch.scope, block);
        Ok(Some(block))
    }

    /// Code is about to be decoded from the page with `state`: its value from now on.
    fn mark_code(&mut self, state: &PageState) -> u32 {
        if self.jit.is_none() {
            return state.mark_code(!self.parallel);
        }
        let known = state.has_code();
        // What others mark meanwhile is noticed later, with all the rest of it.
        let others = PageState::marks() != self.marks;
        let value = state.mark_code(!self.parallel);
        if !known {
            self.tlb.protect(state);
            if !others && PageState::marks() == self.marks + 1 {
                self.marks += 1;
            }
        }
        value
    }

    /// The block of the one instruction at `linear` that crosses into the next page. Nothing where it
    /// has to be executed by itself, to fault for example.
    fn crossing_block(&mut self, linear: u64, here: Fetch, value: u32) -> Option<*mut Block> {
        let bits = self.bits();
        let whole = self.code64 || self.code_mode & jit::CODE_32 != 0 && linear >> 12 != 0xf_ffff;
        if !whole || self.jit.is_none() {
            return None;
        }
        let room = 0x1000 - (linear & 0xfff);
        if room >= MAX_LENGTH as u64 {
            // It is too long, in this page already.
            return None;
        }
        let next = linear.wrapping_add(room);
        let there = self.fetch_page(next);
        self.fault = None;
        let there = there.ok()?;
        // SAFETY: fetch entries point to states of guest memory pages.
        let state = unsafe { &*there.state };
        let other_value = self.mark_code(state);
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
        let key = (here.page | (linear & 0xfff), there.page | u64::from(bits) << 56);
        if let Some(&block) = self.blocks.crossings.get(&key) {
            // SAFETY: the table points to blocks in storage.
            if unsafe { (*block).valid() } {
                self.remember(linear, scope, block);
                return Some(block);
            }
        }
        let mut bytes = [0; MAX_LENGTH];
        let first = (room as usize).min(MAX_LENGTH);
        copy(here.host, (linear & 0xfff) as usize, &mut bytes[..first]);
        copy(there.host, 0, &mut bytes[first..]);
        let insn = self.isa.one(&bytes, bits)?;
        if insn.is_invalid() || insn.len() <= first {
            return None;
        }
        let (ops, generics) = decode::single(&self.isa, insn);
        self.blocks.credit.spend(1);
        self.blocks.counts.decoded += 1;
        self.blocks.counts.instructions += 1;
        let block = self.blocks.store(Block {
            ops,
            generics,
            instructions: 1,
            state: here.state,
            value,
            successors: [Cell::new(NO_JUMP), Cell::new(NO_JUMP)],
            len: insn.len() as u8,
            host: here.host,
            crossing: Some(Crossing { host: there.host, state: there.state, value: other_value }),
            heat: Cell::new(0),
            translation: Cell::new((0, 0)),
            moving: Cell::new((0, 0, 0)),
        });
        self.blocks.crossings.insert(key, block);
        self.remember(linear, scope, block);
        Some(block)
    }

    /// The block of code at `rip` that was decoded before, without side effects that the guest
    /// could tell from those of a fetch that was predicted.
    pub fn known_block(&mut self, rip: u64) -> Option<*mut Block> {
        let key = self.code_key(rip);
        let entry = self.blocks.jumps[jump_slot(key)];
        if entry.key == key && entry.stamp == self.blocks.stamp(entry.scope, key) {
            // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
            return unsafe { (*entry.block).valid() }.then_some(entry.block);
        }
        let fetch = self.fetch_page(rip);
        self.fault = None;
        let fetch = fetch.ok()?;
        if let Some(block) = self.same_block(rip, fetch) {
            return Some(block);
        }
        let block = *self.blocks.table.get(&(fetch.page | (rip & 0xfff) | u64::from(self.bits()) << 56))?;
        // SAFETY: as above.
        unsafe { (*block).valid() }.then(|| {
            self.remember(rip, fetch.scope, block);
            block
        })
    }

    /// The block of code at `rip`, if that is known at once.
    pub fn block_at(&self, rip: u64) -> Option<&Block> {
        let key = self.code_key(rip);
        let entry = self.blocks.jumps[jump_slot(key)];
        if entry.key != key || entry.stamp != self.blocks.stamp(entry.scope, key) {
            return None;
        }
        // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
        unsafe { entry.block.as_ref() }.filter(|block| block.valid())
    }

    /// Whom the translation of `linear` for fetches belongs to, if it leads to the page at `host`.
    pub fn scope_of_page(&mut self, linear: u64, host: *const u8) -> Option<Scope> {
        let fetch = self.fetch_page(linear);
        self.fault = None;
        fetch.ok().filter(|fetch| std::ptr::eq(fetch.host, host)).map(|fetch| fetch.scope)
    }

    /// The block that was found at `linear` last, if its page is still there: most flushes of
    /// translations change few of them.
    fn same_block(&mut self, linear: u64, fetch: Fetch) -> Option<*mut Block> {
        let key = self.code_key(linear);
        let entry = self.blocks.jumps[jump_slot(key)];
        if entry.key != key {
            return None;
        }
        // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
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
}
