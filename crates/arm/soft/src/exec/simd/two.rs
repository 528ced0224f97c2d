//! Two registers: reversal, counts, comparisons with zero, narrowing, and sums across lanes.

use satori_arm_isa::Op;

use super::lanes::{Shape, lane, number, saturate, set_lane, whole};
use super::op_of;
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::exec::Done;

pub(super) fn handler(op: Op) -> Option<Handler> {
    Some(match op {
        Op::Rev64Vec => reverse::<8>,
        Op::Rev32Vec => reverse::<4>,
        Op::Rev16Vec => reverse::<2>,
        Op::SaddlpVec | Op::SadalpVec => pairs,
        Op::XtnVec | Op::SqxtunVec | Op::SqxtunScalar | Op::SqxtnVec | Op::SqxtnScalar => narrow,
        Op::ShllVec => shll,
        Op::NotVec => not,
        Op::RbitVec => rbit,
        Op::Saddlv | Op::Smaxv | Op::Sminv | Op::Addv => across,
        Op::Urecpe | Op::Ursqrte => return None,
        _ if (Op::SuqaddVec..=Op::NegScalar).contains(&op) => two,
        _ => return None,
    })
}

fn reverse<const BYTES: usize>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, n) = (Shape::of(i), cpu.v(i.rn));
    let (mut result, group) = (0, BYTES >> shape.size);
    for at in 0..shape.lanes {
        let from = at / group * group + (group - 1 - at % group);
        set_lane(&mut result, shape.size, at, lane(n, shape.size, from));
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn not(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_v(i.rd, whole(i, !cpu.v(i.rn)));
    Ok(Flow::Next)
}

fn rbit(cpu: &mut Cpu, i: &Insn) -> Done {
    let bytes = cpu.v(i.rn).to_le_bytes().map(u8::reverse_bits);
    cpu.set_v(i.rd, whole(i, u128::from_le_bytes(bytes)));
    Ok(Flow::Next)
}

fn two(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, op) = (Shape::of(i), op_of(i));
    let (n, d) = (cpu.v(i.rn), cpu.v(i.rd));
    let (mut result, mut saturated) = (0, false);
    for at in 0..shape.lanes {
        let one = compute(op, lane(n, shape.size, at), lane(d, shape.size, at), &shape, &mut saturated);
        set_lane(&mut result, shape.size, at, one);
    }
    cpu.set_v(i.rd, result);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

fn compute(op: Op, a: u64, d: u64, shape: &Shape, saturated: &mut bool) -> u64 {
    let bits = shape.bits;
    let x = number(a, bits, true);
    let mask = |set: bool| if set { u64::MAX } else { 0 };
    match op {
        // Signed plus unsigned: what accumulates has the sign of the instruction's name.
        Op::SuqaddVec | Op::SuqaddScalar => {
            let sum = number(d, bits, shape.signed) + number(a, bits, !shape.signed);
            saturate(sum, bits, shape.signed, saturated)
        }
        Op::ClsVec => {
            let same = if x < 0 { !x } else { x } as u64;
            u64::from(same.leading_zeros() - (64 - bits) - 1)
        }
        Op::ClzVec => u64::from(a.leading_zeros() - (64 - bits)),
        Op::CntVec => a.count_ones().into(),
        Op::SqabsVec | Op::SqabsScalar => saturate(x.abs(), bits, true, saturated),
        Op::SqnegVec | Op::SqnegScalar => saturate(-x, bits, true, saturated),
        Op::CmgtZeroVec | Op::CmgtZeroScalar => mask(x > 0),
        Op::CmgeZeroVec | Op::CmgeZeroScalar => mask(x >= 0),
        Op::CmeqZeroVec | Op::CmeqZeroScalar => mask(x == 0),
        Op::CmleZeroVec | Op::CmleZeroScalar => mask(x <= 0),
        Op::CmltZeroVec | Op::CmltZeroScalar => mask(x < 0),
        Op::AbsVec | Op::AbsScalar => x.unsigned_abs() as u64,
        _ => (-x) as u64,
    }
}

/// Sums of neighbours, of twice their size; added to the register or not.
fn pairs(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, n) = (Shape::of(i), cpu.v(i.rn));
    let old = if op_of(i) == Op::SadalpVec { cpu.v(i.rd) } else { 0 };
    let mut result = 0;
    for at in 0..shape.lanes / 2 {
        let of = |at| number(lane(n, shape.size, at), shape.bits, shape.signed);
        let sum = of(2 * at) + of(2 * at + 1);
        let one = lane(old, shape.size + 1, at).wrapping_add(sum as u64);
        set_lane(&mut result, shape.size + 1, at, one);
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

/// Puts narrowed lanes into the low half or, of the forms whose names end with 2, into the high half.
pub(super) fn put_half(cpu: &mut Cpu, i: &Insn, half: u64) {
    let high = i.bit(30) && !i.bit(28);
    let value = if high { cpu.v(i.rd) as u64 as u128 | u128::from(half) << 64 } else { half.into() };
    cpu.set_v(i.rd, value);
}

fn narrow(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, op, n) = (i.bits(23, 22), op_of(i), cpu.v(i.rn));
    let (mut half, mut saturated) = (0, false);
    let lanes = if i.bit(28) { 1 } else { 8 >> size };
    for at in 0..lanes {
        let wide = lane(n, size + 1, at);
        let (from_signed, to_signed) = match op {
            Op::SqxtunVec | Op::SqxtunScalar => (true, false),
            _ => (!i.bit(29), !i.bit(29)),
        };
        let one = match op {
            Op::XtnVec => wide,
            _ => saturate(number(wide, 16 << size, from_signed), 8 << size, to_signed, &mut saturated),
        };
        set_lane(&mut half, size, at, one);
    }
    put_half(cpu, i, half as u64);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

fn shll(cpu: &mut Cpu, i: &Insn) -> Done {
    let size = i.bits(23, 22);
    let n = if i.bit(30) { cpu.v(i.rn) >> 64 } else { cpu.v(i.rn) };
    let mut result = 0;
    for at in 0..8 >> size {
        set_lane(&mut result, size + 1, at, lane(n, size, at) << (8 << size));
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn across(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, op, n) = (Shape::of(i), op_of(i), cpu.v(i.rn));
    let numbers = (0..shape.lanes).map(|at| number(lane(n, shape.size, at), shape.bits, shape.signed));
    let (value, size) = match op {
        Op::Saddlv => (numbers.sum::<i128>(), shape.size + 1),
        Op::Addv => (numbers.sum(), shape.size),
        Op::Smaxv => (numbers.max().unwrap_or_default(), shape.size),
        _ => (numbers.min().unwrap_or_default(), shape.size),
    };
    let mut result = 0;
    set_lane(&mut result, size, 0, value as u64);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}
