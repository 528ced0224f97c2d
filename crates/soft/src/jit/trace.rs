//! Which instructions are translated together.
//!
//! They are those that are likely to be executed one after another, as far as they are in one page: behind a conditional
//! branch on the side that was executed more often, behind a jump or a call at its target, and
//! behind a return where the call was. What goes another way leaves the block.

use iced_x86::{Code, DecoderError, FlowControl, Instruction, OpKind};

use crate::block::ends_block;
use crate::isa::{Isa, drop_override};

/// Bytes of guest code in a translated block at most.
const MAX_BYTES: usize = 640;
/// Instructions at most.
const MAX_INSTRUCTIONS: usize = 128;
/// Bytes that are decoded at a time.
const PIECE: usize = 128;
/// An instruction has no more.
const LONGEST: usize = 15;
const PAGE: u64 = 4096;

/// The instructions from `offset` of the page at `host` on, as if that were address 0. `heat` says how often
/// a block there was executed, and `hot` how often this one was.
pub fn instructions(
    isa: &Isa,
    host: *const u8,
    offset: usize,
    heat: impl Fn(u64) -> u32,
    hot: u32,
) -> Vec<Instruction> {
    // What was executed less often than the start, by far, is no part of it.
    let enough = (hot / 2).max(1);
    let mut all: Vec<Instruction> = Vec::with_capacity(16);
    let mut met = [0u64; PAGE as usize / 64];
    let mut calls = Vec::new();
    let mut bytes = 0;
    // Where it goes on, from the start.
    let mut next = Some(0);
    while let Some(at) = next.take() {
        let begin = place(offset, at) as usize;
        let mut buffer = [0; PIECE + LONGEST];
        let len = (PAGE as usize - begin).min(buffer.len());
        crate::block::copy(host, begin, &mut buffer[..len]);
        let mut decoder = isa.decoder(&buffer[..len], 64);
        decoder.set_ip(at);
        loop {
            let position = decoder.position();
            let here = begin + position;
            if bytes >= MAX_BYTES || all.len() >= MAX_INSTRUCTIONS || here >= PAGE as usize {
                return all;
            }
            if met[here / 64] & 1 << (here % 64) != 0 {
                return all;
            }
            if position >= PIECE {
                next = Some(at.wrapping_add(position as u64));
                break;
            }
            let insn = decoder.decode();
            let raw = &buffer[position..len];
            if decoder.last_error() == DecoderError::NoMoreBytes
                || insn.is_invalid() && isa.too_long(&insn, raw, 64)
            {
                return all;
            }
            let mut insn = isa.mended(insn, raw, 64);
            drop_override(&mut insn);
            met[here / 64] |= 1 << (here % 64);
            bytes += insn.len();
            all.push(insn);
            if !ends_block(&insn) {
                continue;
            }
            let fresh = |to: u64| {
                let place = place(offset, to) as usize;
                place < PAGE as usize && met[place / 64] & 1 << (place % 64) == 0
            };
            match behind(&insn, &mut calls, &heat, enough) {
                Some(on) if on == insn.next_ip() => {}
                Some(on) if fresh(on) => {
                    next = Some(on);
                    break;
                }
                _ => return all,
            }
        }
    }
    all
}

/// Where what is `at` bytes from the start is in the page, if that is less than its size.
fn place(offset: usize, at: u64) -> u64 {
    (offset as u64).wrapping_add(at)
}

/// Where it likely goes on behind `insn`, which branches; `calls` are where those on the way come back to.
fn behind(insn: &Instruction, calls: &mut Vec<u64>, heat: &impl Fn(u64) -> u32, enough: u32) -> Option<u64> {
    if insn.flow_control() == FlowControl::Return {
        return if insn.code() == Code::Retnq { calls.pop() } else { None };
    }
    if insn.op_count() == 0 || insn.op0_kind() != OpKind::NearBranch64 {
        return None;
    }
    let (taken, next) = (insn.near_branch_target(), insn.next_ip());
    match insn.flow_control() {
        FlowControl::ConditionalBranch if insn.is_jcc_short_or_near() => {
            let (go, stay) = (heat(taken), heat(next));
            // What was executed often enough is not counted any more; loops go back then.
            let back = taken.wrapping_sub(next) as i64 <= 0;
            let (likely, heat) = if go > stay || go == stay && back { (taken, go) } else { (next, stay) };
            (heat >= enough).then_some(likely)
        }
        FlowControl::UnconditionalBranch => (heat(taken) >= enough).then_some(taken),
        FlowControl::Call if heat(taken) >= enough => {
            calls.push(next);
            Some(taken)
        }
        _ => None,
    }
}
