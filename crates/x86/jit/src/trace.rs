//! Which instructions are translated together.
//!
//! They are those that are likely to be executed one after another: behind a conditional
//! branch on the side that was executed more often, behind a jump or a call at its target, and
//! behind a return where the call was. They are in one page, or in two next to each other, so that a loop across the end
//! of a page is a loop. What goes another way leaves the block.

use iced_x86::{Code, DecoderError, FlowControl, Instruction, OpKind};

use super::kept::Source;
use super::narrow::widened;
use super::reach::Page;
use satori_soft::block::{Block, Blocks, ends_block};
use satori_soft::cpu::Cpu;
use satori_soft::isa::drop_override;

/// Bytes of guest code in a translated block at most.
const MAX_BYTES: usize = 640;
/// Instructions at most.
const MAX_INSTRUCTIONS: usize = u128::BITS as usize;
/// Pages at most.
const MAX_PAGES: usize = 2;
/// Bytes of guest code that are decoded at a time.
const PIECE: usize = 128;
/// An instruction has no more.
const LONGEST: usize = 15;
const PAGE: usize = 4096;

/// The instructions of a block, and the pages that they are in, its own first.
pub(crate) struct Trace {
    pub all: Vec<Instruction>,
    pub pages: Vec<Page>,
    /// A bit for each instruction: it branches, and goes the way out of the block often too.
    pub often: u128,
    /// The bytes that they were decoded from.
    pub source: Source,
    /// Where instructions were taken from, by page.
    met: [[u64; PAGE / 64]; MAX_PAGES],
}

/// Decodes instructions from `rip` on, with addresses counted from `rip`. They lie in `pages`, the first of which is
/// `rip`'s; with `further` the trace may add pages. `hot` is how often the first block was executed. The instructions and
/// their bytes take the place of what is in `all` and `source`.
pub(crate) fn instructions(
    cpu: &Cpu,
    blocks: &Blocks,
    rip: u64,
    pages: Vec<Page>,
    (further, hot): (bool, u32),
    (mut all, mut source): (Vec<Instruction>, Source),
) -> Trace {
    // What was executed less often than the start, by far, is no part of it.
    let enough = (hot / 2).max(1);
    let bits = cpu.bits();
    all.clear();
    source.clear();
    let mut trace = Trace { all, pages, often: 0, source, met: [[0; PAGE / 64]; MAX_PAGES] };
    let heat = |at: u64| blocks.at(cpu, rip.wrapping_add(at)).map_or(0, Block::times);
    let hot_there = |at: u64| blocks.at(cpu, rip.wrapping_add(at)).filter(|block| block.times() >= enough);
    let mut calls = Vec::new();
    let mut bytes = 0;
    // Where it goes on, from the start.
    let mut next = Some(0);
    while let Some(at) = next.take() {
        let begin = rip.wrapping_add(at);
        if trace.page(begin).is_none()
            && !(further && hot_there(at).is_some_and(|block| trace.add(Page::of(block, begin))))
        {
            return trace;
        }
        let mut buffer = [0; PIECE + LONGEST];
        let len = trace.fill(begin, &mut buffer);
        let mut decoder = cpu.isa().decoder(&buffer[..len], bits);
        decoder.set_ip(at);
        loop {
            let position = decoder.position();
            let at = at.wrapping_add(position as u64);
            let here = rip.wrapping_add(at);
            if bytes >= MAX_BYTES || trace.all.len() >= MAX_INSTRUCTIONS {
                return trace;
            }
            if position >= PIECE || (here ^ begin) as usize >= PAGE {
                next = Some(at);
                break;
            }
            if !trace.fresh(here) {
                return trace;
            }
            let insn = decoder.decode();
            let raw = &buffer[position..len];
            if decoder.last_error() == DecoderError::NoMoreBytes {
                let crossing = hot_there(at).and_then(|block| Page::behind(block, here));
                if further && crossing.is_some_and(|page| trace.add(page)) {
                    next = Some(at);
                    break;
                }
                return trace;
            }
            if insn.is_invalid() && cpu.isa().too_long(&insn, raw, bits) {
                return trace;
            }
            let mut insn = cpu.isa().mended(insn, raw, bits);
            if bits == 64 {
                drop_override(&mut insn);
            } else {
                insn = widened(insn, rip);
            }
            trace.meet(here);
            trace.keep(here, &buffer[position..decoder.position()]);
            bytes += insn.len();
            trace.all.push(insn);
            if !ends_block(&insn) {
                continue;
            }
            let (on, often) = behind(&insn, &mut calls, &heat, enough);
            trace.often |= u128::from(often) << (trace.all.len() - 1);
            match on {
                Some(on) if on == insn.next_ip() => {}
                Some(on) if trace.fresh(rip.wrapping_add(on)) => {
                    next = Some(on);
                    break;
                }
                _ => return trace,
            }
        }
    }
    trace
}

impl Trace {
    /// The number of the page that `rip` is in.
    fn page(&self, rip: u64) -> Option<usize> {
        self.pages.iter().position(|page| page.has(rip))
    }

    /// Goes on in `page` too; whether it can.
    fn add(&mut self, page: Page) -> bool {
        let near =
            self.pages.iter().any(|one| page.linear.wrapping_sub(one.linear).wrapping_add(0x1000) <= 0x2000);
        let room = self.pages.len() < MAX_PAGES && near && self.page(page.linear).is_none();
        if room {
            self.pages.push(Page { sure: false, ..page });
        }
        room
    }

    /// Whether no instruction was taken from `rip` yet.
    fn fresh(&self, rip: u64) -> bool {
        let place = rip as usize % PAGE;
        self.page(rip).is_none_or(|page| self.met[page][place / 64] & 1 << (place % 64) == 0)
    }

    fn meet(&mut self, rip: u64) {
        let place = rip as usize % PAGE;
        if let Some(page) = self.page(rip) {
            self.met[page][place / 64] |= 1 << (place % 64);
        }
    }

    /// Keeps the bytes of the instruction at `rip`, which may lie in two pages.
    fn keep(&mut self, rip: u64, bytes: &[u8]) {
        let offset = rip as usize % PAGE;
        let (here, there) = bytes.split_at(bytes.len().min(PAGE - offset));
        if let Some(page) = self.page(rip) {
            self.source.add(page, offset, here);
        }
        if !there.is_empty()
            && let Some(page) = self.page(rip.wrapping_add(here.len() as u64))
        {
            self.source.add(page, 0, there);
        }
    }

    /// Copies code from `rip` on, as far as its pages are known; how much.
    fn fill(&self, rip: u64, buffer: &mut [u8]) -> usize {
        let mut len = 0;
        while len < buffer.len()
            && let from = rip.wrapping_add(len as u64)
            && let Some(page) = self.page(from)
        {
            let offset = from as usize % PAGE;
            let some = (PAGE - offset).min(buffer.len() - len);
            // SAFETY: it is a page of guest memory, and `some` bytes are left of it.
            unsafe { satori_soft::host::copy(self.pages[page].host, offset, &mut buffer[len..len + some]) };
            len += some;
        }
        len
    }
}

/// Where it likely goes on behind `insn`, which branches, and whether that is a conditional branch that goes the other way at least
/// a quarter as often; `calls` are where those on the way come back to.
fn behind(
    insn: &Instruction,
    calls: &mut Vec<u64>,
    heat: &impl Fn(u64) -> u32,
    enough: u32,
) -> (Option<u64>, bool) {
    if insn.flow_control() == FlowControl::Return {
        let returns = matches!(insn.code(), Code::Retnq | Code::Retnd);
        return (if returns { calls.pop() } else { None }, false);
    }
    if insn.op_count() == 0 || insn.op0_kind() != OpKind::NearBranch64 {
        return (None, false);
    }
    let (taken, next) = (insn.near_branch_target(), insn.next_ip());
    match insn.flow_control() {
        FlowControl::ConditionalBranch if insn.is_jcc_short_or_near() => {
            let (go, stay) = (heat(taken), heat(next));
            // What was executed often enough is not counted any more; loops go back then.
            let back = taken.wrapping_sub(next) as i64 <= 0;
            let goes = go > stay || go == stay && back;
            let (likely, heat, other) = if goes { (taken, go, stay) } else { (next, stay, go) };
            if heat >= enough { (Some(likely), other.saturating_mul(4) >= heat) } else { (None, false) }
        }
        FlowControl::UnconditionalBranch => ((heat(taken) >= enough).then_some(taken), false),
        FlowControl::Call if heat(taken) >= enough => {
            calls.push(next);
            (Some(taken), false)
        }
        _ => (None, false),
    }
}
