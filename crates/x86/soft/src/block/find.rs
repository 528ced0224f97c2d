//! Finding the block at an address, and decoding it where there is none.

use std::cell::Cell;

use satori_state::seg;

use super::blocks::{Blocks, jump_slot};
use super::{ALONE, Block, Crossing, Jump, NO_JUMP, decode};
use crate::code_mode::{self, CodeKey};
use crate::cpu::{Cpu, Exec};
use crate::host::copy;
use crate::isa::MAX_LENGTH;
use crate::mmu::{Fetch, Scope};

/// What there is at RIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A block.
    Block(*mut Block),
    /// An instruction to be executed by itself.
    Alone,
    /// There may be a block once there is room for it ([`Blocks::wants_room`]).
    NoRoom,
}

impl Blocks {
    /// The block at RIP.
    #[inline(always)]
    pub fn find(&mut self, cpu: &mut Cpu) -> Exec<Found> {
        let linear = linear_of(cpu, cpu.state.rip);
        let key = cpu.code_key(linear);
        let entry = &self.jumps[jump_slot(key)];
        if entry.key == key && entry.stamp == cpu.mmu.fetches.stamp(entry.scope, key) {
            let block = entry.block;
            // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
            if unsafe { (*block).valid() } {
                return Ok(Found::Block(block));
            }
        }
        self.find_slow(cpu, linear)
    }

    /// The block that follows `before`, which stood at `from`. Most blocks go on where they went
    /// before, so that is tried first.
    #[inline(always)]
    pub(crate) fn find_next(&mut self, cpu: &mut Cpu, before: *mut Block, from: u64) -> Exec<Found> {
        let rip = cpu.state.rip;
        let key = cpu.code_key(linear_of(cpu, rip));
        // SAFETY: `before` has just run, and only making room frees blocks.
        let next = unsafe { (*before).successor(from, rip).get() };
        if next.key == key && next.stamp == cpu.mmu.fetches.stamp(next.scope, key) {
            // SAFETY: successors point to blocks in storage, and are forgotten when some are freed.
            if unsafe { (*next.block).valid() } {
                return Ok(Found::Block(next.block));
            }
        }
        let found = self.find(cpu)?;
        let entry = self.jumps[jump_slot(key)];
        if entry.key == key && Found::Block(entry.block) == found {
            // SAFETY: a look-up frees nothing.
            unsafe { (*before).successor(from, rip).set(entry) };
        }
        Ok(found)
    }

    #[cold]
    #[inline(never)]
    fn find_slow(&mut self, cpu: &mut Cpu, linear: u64) -> Exec<Found> {
        if !cpu.derived.code64 && linear & ALONE != 0 {
            return Ok(Found::Alone);
        }
        self.counts.jump_misses += 1;
        if cpu.debug.code_page(linear) {
            // A breakpoint comes before the fetch that its page may not allow.
            return Ok(Found::Alone);
        }
        let fetch = cpu.fetch_page(linear)?;
        if let Some(block) = self.same_block(cpu, linear, fetch) {
            return Ok(Found::Block(block));
        }
        let bits = cpu.bits();
        let physical = fetch.page | (linear & 0xfff);
        // Physical addresses have fewer than 52 bits.
        let key = physical | u64::from(bits) << 56;
        let mut before = None;
        if let Some(&block) = self.table.get(&key) {
            // SAFETY: the table points to blocks in storage. Other memory may be at this address since.
            let there = unsafe { std::ptr::eq((*block).host, fetch.host) };
            if there && self.valid_again(cpu, block) {
                self.remember(cpu, linear, fetch.scope, block);
                return Ok(Found::Block(block));
            }
            before = Some((block, there));
        }
        if self.wants_room() {
            return Ok(Found::NoRoom);
        }
        if !self.credit.any(cpu.count.retired) {
            return Ok(Found::Alone);
        }
        // SAFETY: fetch entries point to states of guest memory pages.
        let state = unsafe { &*fetch.state };
        let value = cpu.mark_code(state);
        let offset = (linear & 0xfff) as usize;
        if !decode::decode(&cpu.isa, fetch.host, offset, bits, &mut self.decoded) {
            let crossing = self.crossing_block(cpu, linear, fetch, value);
            return Ok(crossing.map_or(Found::Alone, Found::Block));
        }
        let block = match before {
            // SAFETY: the table points to blocks in storage. It is not running, and nothing but caches that look whether it is
            // valid, and lead to this address, points to it.
            Some((block, true)) if unsafe { !(*block).translated.get() } => unsafe {
                self.decode_anew(block, value)
            },
            _ => {
                // SAFETY: as above.
                let translated = |block: &*mut Block| unsafe { (**block).translated.get() };
                self.replaced.extend(before.map(|(block, _)| block).filter(translated));
                let block = self.store_decoded(fetch, offset, value, None);
                self.table.insert(key, block);
                block
            }
        };
        self.remember(cpu, linear, fetch.scope, block);
        Ok(Found::Block(block))
    }

    /// Whether `block`, one in storage, is valid, or can be made so.
    fn valid_again(&mut self, cpu: &mut Cpu, block: *mut Block) -> bool {
        // SAFETY: blocks in storage live.
        let block = unsafe { &*block };
        if block.valid() {
            return true;
        }
        let same = block.renew(cpu);
        *(if same { &mut self.counts.same } else { &mut self.counts.stale }) += 1;
        same
    }

    /// A block of what was just decoded at `offset` of the page of `fetch`, valid under `value`.
    fn store_decoded(
        &mut self,
        fetch: Fetch,
        offset: usize,
        value: u32,
        crossing: Option<Crossing>,
    ) -> *mut Block {
        let mut block = Block {
            ops: Box::default(),
            generics: Box::default(),
            instructions: 0,
            state: fetch.state,
            value: Cell::new(value),
            bytes: Box::default(),
            offset: offset as u16,
            spoilt: Cell::new(false),
            translated: Cell::new(false),
            successors: [Cell::new(NO_JUMP), Cell::new(NO_JUMP)],
            len: 0,
            host: fetch.host,
            crossing: crossing.map(|crossing| Box::new(Cell::new(crossing))),
            heat: Cell::new(0),
            translation: Cell::new((CodeKey::NONE, 0)),
            moving: Cell::new((CodeKey::NONE, 0, 0)),
        };
        self.decoded.put(&mut block);
        self.count_decoded(block.instructions);
        self.store(block)
    }

    /// Makes `block` one of what was just decoded in its place, valid under `value`.
    ///
    /// # Safety
    /// It must be in storage, and neither run nor be referred to.
    unsafe fn decode_anew(&mut self, block: *mut Block, value: u32) -> *mut Block {
        // SAFETY: the caller's promise.
        let anew = unsafe { &mut *block };
        self.memory -= anew.memory();
        self.decoded.put(anew);
        self.memory += anew.memory();
        anew.value.set(value);
        anew.spoilt.set(false);
        anew.heat.set(0);
        anew.forget_successors();
        self.count_decoded(anew.instructions);
        block
    }

    fn count_decoded(&mut self, instructions: u32) {
        self.credit.spend(instructions);
        self.counts.decoded += 1;
        self.counts.instructions += u64::from(instructions);
    }

    /// The block of the one instruction at `linear` that crosses into the next page. Nothing where it
    /// has to be executed by itself, to fault for example.
    fn crossing_block(&mut self, cpu: &mut Cpu, linear: u64, here: Fetch, value: u32) -> Option<*mut Block> {
        let bits = cpu.bits();
        let whole =
            cpu.derived.code64 || cpu.derived.code_mode & code_mode::FLAT_32 != 0 && linear >> 12 != 0xf_ffff;
        if !whole || !self.with_crossings {
            return None;
        }
        let room = 0x1000 - (linear & 0xfff);
        if room >= MAX_LENGTH as u64 {
            // It is too long, in this page already.
            return None;
        }
        let next = linear.wrapping_add(room);
        let there = cpu.fetch_page(next);
        cpu.pending.fault = None;
        let there = there.ok()?;
        // SAFETY: fetch entries point to states of guest memory pages.
        let state = unsafe { &*there.state };
        let other_value = cpu.mark_code(state);
        let scope = if here.scope == Scope::Local || there.scope == Scope::Local {
            Scope::Local
        } else {
            Scope::Global
        };
        if scope == Scope::Local {
            // Either page, if global, is one of an address space here.
            cpu.mmu.fetches.note(scope, linear);
            cpu.mmu.fetches.note(scope, next);
        }
        let key = (here.page | (linear & 0xfff), there.page | u64::from(bits) << 56);
        if let Some(&block) = self.crossings.get(&key) {
            // SAFETY: the table points to blocks in storage.
            let known = unsafe { &*block };
            let reached = known.crossing().is_some_and(|crossing| std::ptr::eq(crossing.host, there.host));
            if std::ptr::eq(known.host, here.host) && reached && self.valid_again(cpu, block) {
                self.remember(cpu, linear, scope, block);
                return Some(block);
            }
            // SAFETY: the table points to blocks in storage.
            self.replaced.extend(unsafe { (*block).translated.get() }.then_some(block));
        }
        let mut bytes = [0; MAX_LENGTH];
        let first = (room as usize).min(MAX_LENGTH);
        // SAFETY: fetch entries point to pages of guest memory; `first` bytes are left of this one.
        unsafe { copy(here.host, (linear & 0xfff) as usize, &mut bytes[..first]) };
        // SAFETY: as above.
        unsafe { copy(there.host, 0, &mut bytes[first..]) };
        let insn = cpu.isa.one(&bytes, bits)?;
        if insn.is_invalid() || insn.len() <= first {
            return None;
        }
        decode::single(&cpu.isa, insn, &bytes[..insn.len()], &mut self.decoded);
        let crossing = Crossing { host: there.host, state: there.state, value: other_value };
        let block = self.store_decoded(here, (linear & 0xfff) as usize, value, Some(crossing));
        self.crossings.insert(key, block);
        self.remember(cpu, linear, scope, block);
        Some(block)
    }

    /// The block of code at `rip` that was decoded before, without side effects that the guest
    /// could tell from those of a fetch that was predicted.
    pub fn known(&mut self, cpu: &mut Cpu, rip: u64) -> Option<*mut Block> {
        let key = cpu.code_key(rip);
        let entry = self.jumps[jump_slot(key)];
        if entry.key == key && entry.stamp == cpu.mmu.fetches.stamp(entry.scope, key) {
            // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
            return unsafe { (*entry.block).valid() }.then_some(entry.block);
        }
        let fetch = cpu.fetch_page(rip);
        cpu.pending.fault = None;
        let fetch = fetch.ok()?;
        if let Some(block) = self.same_block(cpu, rip, fetch) {
            return Some(block);
        }
        let block = *self.table.get(&(fetch.page | (rip & 0xfff) | u64::from(cpu.bits()) << 56))?;
        // SAFETY: as above.
        unsafe { std::ptr::eq((*block).host, fetch.host) && (*block).valid() }.then(|| {
            self.remember(cpu, rip, fetch.scope, block);
            block
        })
    }

    /// The block of code at `rip`, if that is known at once.
    pub fn at(&self, cpu: &Cpu, rip: u64) -> Option<&Block> {
        let key = cpu.code_key(rip);
        let entry = self.jumps[jump_slot(key)];
        if entry.key != key || entry.stamp != cpu.mmu.fetches.stamp(entry.scope, key) {
            return None;
        }
        // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
        unsafe { entry.block.as_ref() }.filter(|block| block.valid())
    }

    /// The block that was found at `linear` last, if its page is still there: most flushes of
    /// translations change few of them.
    fn same_block(&mut self, cpu: &Cpu, linear: u64, fetch: Fetch) -> Option<*mut Block> {
        let key = cpu.code_key(linear);
        let entry = self.jumps[jump_slot(key)];
        if entry.key != key {
            return None;
        }
        // SAFETY: jump entries point to blocks in storage, and are forgotten when some are freed.
        let block = unsafe { entry.block.as_ref() }?;
        let same = std::ptr::eq(block.host, fetch.host) && block.crossing.is_none() && block.valid();
        same.then(|| {
            self.remember(cpu, linear, fetch.scope, entry.block);
            entry.block
        })
    }

    fn remember(&mut self, cpu: &Cpu, linear: u64, scope: Scope, block: *mut Block) {
        let key = cpu.code_key(linear);
        let stamp = cpu.mmu.fetches.stamp(scope, key);
        self.jumps[jump_slot(key)] = Jump { key, stamp, scope, block };
    }
}

/// The linear address of `rip`, or one that no block has ([`ALONE`]).
#[inline(always)]
fn linear_of(cpu: &Cpu, rip: u64) -> u64 {
    if cpu.derived.code64 { rip } else { segmented_linear_of(cpu, rip) }
}

/// A block knows nothing of segment limits. So where one could reach beyond that of CS,
/// there are none, and instructions are executed one by one.
#[inline]
fn segmented_linear_of(cpu: &Cpu, rip: u64) -> u64 {
    let cs = &cpu.state.seg[seg::CS];
    let linear = rip.wrapping_add(cs.base) & 0xffff_ffff;
    let near_end = cs.limit != u32::MAX && rip.saturating_add(decode::MAX_REACH) > u64::from(cs.limit);
    if near_end { linear | ALONE } else { linear }
}
