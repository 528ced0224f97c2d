//! Fetching code: pages of it, and the instructions that no block has.

use iced_x86::Instruction;
use satori_engine::Exception;
use satori_memory::{Gpa, PageState};
use satori_state::seg;

use super::blocks::FETCHES;
use super::{ALONE, Scope, copy};
use crate::cpu::{Cpu, Exec};
use crate::isa::MAX_LENGTH;
use crate::mmu::{Access, Mode, canonical};

#[derive(Clone, Copy)]
pub(super) struct Fetch {
    pub(super) key: u64,
    pub(super) stamp: u64,
    pub(super) scope: Scope,
    pub(super) page: u64,
    pub(super) host: *mut u8,
    pub(super) state: *const PageState,
}

pub(super) const NO_FETCH: Fetch = Fetch {
    key: 0,
    stamp: 0,
    scope: Scope::Local,
    page: 0,
    host: std::ptr::null_mut(),
    state: std::ptr::null(),
};

impl Cpu {
    /// Translates a code page, through a small cache.
    pub(super) fn fetch_page(&mut self, linear: u64) -> Exec<Fetch> {
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
