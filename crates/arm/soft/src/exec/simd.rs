//! AdvSIMD: vectors of integers, and the scalars that work like one lane of them.

mod element;
mod lanes;
mod long;
mod permute;
mod shifts;
mod three;
mod two;

pub(super) use lanes::{lane, set_lane};

use satori_arm_isa::Op;

use crate::code::{Handler, Insn};

/// The operation of a handler that serves several: its number in the table.
pub(in crate::exec) fn op_of(i: &Insn) -> Op {
    satori_arm_isa::ROWS[i.imm as usize].op
}

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    i.rd = (i.raw & 31) as u8;
    if matches!(op, Op::DupGeneral | Op::InsGeneral) {
        return permute::handler(op, i);
    }
    let raw_rn = (i.raw >> 5 & 31) as u8;
    if matches!(op, Op::Smov | Op::Umov) {
        (i.rn, i.rd) = (raw_rn, super::sink(i.rd));
        return permute::handler(op, i);
    }
    (i.rn, i.rm) = (raw_rn, (i.raw >> 16 & 31) as u8);
    i.imm = op as u64;
    three::handler(op)
        .or_else(|| two::handler(op))
        .or_else(|| long::handler(op))
        .or_else(|| shifts::handler(op))
        .or_else(|| element::handler(op))
        .or_else(|| permute::handler(op, i))
}
