//! Shifts by immediates.

use satori_arm_isa::Op;

use super::lanes::{Shape, lane, number, saturate, set_lane};
use super::op_of;
use super::two::put_half;
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::exec::Done;

pub(super) fn handler(op: Op) -> Option<Handler> {
    Some(match op {
        Op::ShrnVec
        | Op::RshrnVec
        | Op::SqshrunVec
        | Op::SqshrunScalar
        | Op::SqrshrunVec
        | Op::SqrshrunScalar
        | Op::SqshrnVec
        | Op::SqshrnScalar
        | Op::SqrshrnVec
        | Op::SqrshrnScalar => narrow,
        Op::SshllVec => lengthen,
        _ if (Op::SshrVec..=Op::SqshlImmScalar).contains(&op) => shift,
        _ => return None,
    })
}

/// The size of elements, by the highest bit of immh, and immh:immb.
fn immediate(i: &Insn) -> (u32, u32) {
    (31 - i.bits(22, 19).leading_zeros(), i.bits(22, 16))
}

fn shift(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, immediate) = immediate(i);
    let (shape, op) = (Shape::sized(i, size), op_of(i));
    let (n, d, bits) = (cpu.v(i.rn), cpu.v(i.rd), shape.bits);
    let (right, left) = (2 * bits - immediate, immediate.wrapping_sub(bits));
    let (mut result, mut saturated) = (0, false);
    for at in 0..shape.lanes {
        let (a, old) = (lane(n, size, at), lane(d, size, at));
        let x = number(a, bits, shape.signed);
        let rounded = || (x + (1 << (right - 1))) >> right;
        let ones = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let one = match op {
            Op::SshrVec | Op::SshrScalar => (x >> right) as u64,
            Op::SsraVec | Op::SsraScalar => old.wrapping_add((x >> right) as u64),
            Op::SrshrVec | Op::SrshrScalar => rounded() as u64,
            Op::SrsraVec | Op::SrsraScalar => old.wrapping_add(rounded() as u64),
            Op::SriVec | Op::SriScalar => {
                let kept = ones.checked_shr(right).unwrap_or(0);
                (old & !kept) | a.checked_shr(right).unwrap_or(0)
            }
            Op::ShlVec | Op::ShlScalar => a << left,
            Op::SliVec | Op::SliScalar => (a << left) | (old & !(ones << left)),
            Op::SqshluVec | Op::SqshluScalar => {
                saturate(number(a, bits, true) << left, bits, false, &mut saturated)
            }
            _ => saturate(x << left, bits, shape.signed, &mut saturated),
        };
        set_lane(&mut result, size, at, one);
    }
    cpu.set_v(i.rd, result);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

fn narrow(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, immediate) = immediate(i);
    let (n, op, bits) = (cpu.v(i.rn), op_of(i), 8 << size);
    let right = 2 * bits - immediate;
    let (mut half, mut saturated) = (0, false);
    // Rounded, saturated, and whether signs are those of the instruction's U bit on both sides or unsigned behind.
    let (rounding, saturating, unsigned) = match op {
        Op::ShrnVec => (false, false, false),
        Op::RshrnVec => (true, false, false),
        Op::SqshrunVec | Op::SqshrunScalar => (false, true, true),
        Op::SqrshrunVec | Op::SqrshrunScalar => (true, true, true),
        Op::SqshrnVec | Op::SqshrnScalar => (false, true, false),
        _ => (true, true, false),
    };
    for at in 0..if i.bit(28) { 1 } else { 8 >> size } {
        let signed = unsigned || !i.bit(29);
        let x = number(lane(n, size + 1, at), 2 * bits, signed);
        let x = (x + if rounding { 1 << (right - 1) } else { 0 }) >> right;
        let one = match saturating {
            true => saturate(x, bits, signed && !unsigned, &mut saturated),
            false => x as u64,
        };
        set_lane(&mut half, size, at, one);
    }
    put_half(cpu, i, half as u64);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

fn lengthen(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, immediate) = immediate(i);
    let n = if i.bit(30) { cpu.v(i.rn) >> 64 } else { cpu.v(i.rn) };
    let (bits, mut result) = (8 << size, 0);
    for at in 0..8 >> size {
        let value = number(lane(n, size, at), bits, !i.bit(29)) << (immediate - bits);
        set_lane(&mut result, size + 1, at, value as u64);
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}
