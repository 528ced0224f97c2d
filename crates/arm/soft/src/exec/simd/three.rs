//! Three registers of the same type.

use satori_arm_isa::Op;

use super::lanes::{Shape, lane, number, saturate, set_lane, whole};
use super::op_of;
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::exec::Done;

pub(super) fn handler(op: Op) -> Option<Handler> {
    Some(match op {
        Op::AndVec => logic::<0>,
        Op::BicVec => logic::<1>,
        Op::OrrVec => logic::<2>,
        Op::OrnVec => logic::<3>,
        Op::EorVec => logic::<4>,
        Op::Bsl => logic::<5>,
        Op::Bit => logic::<6>,
        Op::Bif => logic::<7>,
        Op::SmaxpVec | Op::SminpVec | Op::AddpVec => pairwise,
        Op::AddpScalar => addp_scalar,
        Op::Dot => dot,
        Op::SqrdmlahVec | Op::SqrdmlshVec | Op::SqrdmlahScalar | Op::SqrdmlshScalar => three,
        _ if (Op::ShaddVec..=Op::SabaVec).contains(&op) => three,
        _ if (Op::AddVec..=Op::SqrdmulhScalar).contains(&op) => three,
        _ => return None,
    })
}

fn logic<const KIND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (n, m, d) = (cpu.v(i.rn), cpu.v(i.rm), cpu.v(i.rd));
    let result = match KIND {
        0 => n & m,
        1 => n & !m,
        2 => n | m,
        3 => n | !m,
        4 => n ^ m,
        5 => (n & d) | (m & !d),
        6 => (d & !m) | (n & m),
        _ => (d & m) | (n & !m),
    };
    cpu.set_v(i.rd, whole(i, result));
    Ok(Flow::Next)
}

fn three(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, op) = (Shape::of(i), op_of(i));
    let (n, m, d) = (cpu.v(i.rn), cpu.v(i.rm), cpu.v(i.rd));
    let (mut result, mut saturated) = (0, false);
    for at in 0..shape.lanes {
        let of = |value| lane(value, shape.size, at);
        let one = compute(op, of(n), of(m), of(d), &shape, &mut saturated);
        set_lane(&mut result, shape.size, at, one);
    }
    cpu.set_v(i.rd, result);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

/// SSHL and its relatives: by the low byte of `by`, to the left if it is positive.
pub(super) fn shift(value: i128, by: i8, rounding: bool) -> i128 {
    match by {
        // 64 bits are shifted by at most 63 within i128; what is beyond only saturates.
        0..=63 => value << by,
        64.. => {
            if value == 0 {
                0
            } else {
                value.signum() << 100
            }
        }
        -64..=-1 => {
            let by = -i32::from(by);
            let round = if rounding { 1 << (by - 1) } else { 0 };
            (value + round) >> by
        }
        _ if rounding => 0,
        _ => value >> 127,
    }
}

/// One lane.
fn compute(op: Op, a: u64, b: u64, d: u64, shape: &Shape, saturated: &mut bool) -> u64 {
    let (bits, signed) = (shape.bits, shape.signed);
    let of = |value| number(value, bits, signed);
    let (x, y) = (of(a), of(b));
    let mask = |set: bool| if set { u64::MAX } else { 0 };
    match op {
        Op::ShaddVec => ((x + y) >> 1) as u64,
        Op::SrhaddVec => ((x + y + 1) >> 1) as u64,
        Op::ShsubVec => ((x - y) >> 1) as u64,
        Op::SqaddVec | Op::SqaddScalar => saturate(x + y, bits, signed, saturated),
        Op::SqsubVec | Op::SqsubScalar => saturate(x - y, bits, signed, saturated),
        Op::CmgtVec | Op::CmgtScalar => mask(x > y),
        Op::CmgeVec | Op::CmgeScalar => mask(x >= y),
        Op::CmeqVec | Op::CmeqScalar => mask(a == b),
        Op::CmtstVec | Op::CmtstScalar => mask(a & b != 0),
        Op::SshlVec | Op::SshlScalar => match b as i8 {
            64.. => 0,
            by => shift(x, by, false) as u64,
        },
        Op::SrshlVec | Op::SrshlScalar => match b as i8 {
            64.. => 0,
            by => shift(x, by, true) as u64,
        },
        Op::SqshlVec | Op::SqshlScalar => saturate(shift(x, b as i8, false), bits, signed, saturated),
        Op::SqrshlVec | Op::SqrshlScalar => saturate(shift(x, b as i8, true), bits, signed, saturated),
        Op::SmaxVec => x.max(y) as u64,
        Op::SminVec => x.min(y) as u64,
        Op::SabdVec => (x - y).unsigned_abs() as u64,
        Op::SabaVec => d.wrapping_add((x - y).unsigned_abs() as u64),
        Op::AddVec | Op::AddScalar => a.wrapping_add(b),
        Op::SubVec | Op::SubScalar => a.wrapping_sub(b),
        Op::MlaVec => d.wrapping_add(a.wrapping_mul(b)),
        Op::MlsVec => d.wrapping_sub(a.wrapping_mul(b)),
        Op::MulVec => a.wrapping_mul(b),
        Op::PmulVec => polynomial(a, b) as u64,
        _ => doubling(op, a, b, d, bits, saturated),
    }
}

/// The product without carries.
pub(super) fn polynomial(a: u64, b: u64) -> u128 {
    (0..64).filter(|bit| b >> bit & 1 != 0).fold(0, |sum, bit| sum ^ u128::from(a) << bit)
}

/// SQDMULH, SQRDMULH, SQRDMLAH and SQRDMLSH of a lane.
pub(super) fn doubling(op: Op, a: u64, b: u64, d: u64, bits: u32, saturated: &mut bool) -> u64 {
    let of = |value| number(value, bits, true);
    let (product, half) = (2 * of(a) * of(b), 1 << (bits - 1));
    let sum = match op {
        Op::SqdmulhVec | Op::SqdmulhScalar | Op::SqdmulhElem | Op::SqdmulhElemScalar => product,
        Op::SqrdmulhVec | Op::SqrdmulhScalar | Op::SqrdmulhElem | Op::SqrdmulhElemScalar => product + half,
        Op::SqrdmlahVec | Op::SqrdmlahScalar | Op::SqrdmlahElem | Op::SqrdmlahElemScalar => {
            (of(d) << bits) + product + half
        }
        _ => (of(d) << bits) - product + half,
    };
    saturate(sum >> bits, bits, true, saturated)
}

fn pairwise(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, op) = (Shape::of(i), op_of(i));
    let (n, m) = (cpu.v(i.rn), cpu.v(i.rm));
    let mut result = 0;
    for at in 0..shape.lanes {
        let pair = 2 * at;
        let source = if pair < shape.lanes { n } else { m };
        let (a, b) =
            (lane(source, shape.size, pair % shape.lanes), lane(source, shape.size, pair % shape.lanes + 1));
        let (x, y) = (number(a, shape.bits, shape.signed), number(b, shape.bits, shape.signed));
        let one = match op {
            Op::AddpVec => a.wrapping_add(b),
            Op::SmaxpVec => x.max(y) as u64,
            _ => x.min(y) as u64,
        };
        set_lane(&mut result, shape.size, at, one);
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn addp_scalar(cpu: &mut Cpu, i: &Insn) -> Done {
    let n = cpu.v(i.rn);
    cpu.set_v(i.rd, (n as u64).wrapping_add((n >> 64) as u64).into());
    Ok(Flow::Next)
}

/// SDOT and UDOT.
fn dot(cpu: &mut Cpu, i: &Insn) -> Done {
    let (n, m) = (cpu.v(i.rn), cpu.v(i.rm));
    dot_product(cpu, i, n, |at| lane(m, 2, at))
}

/// Sums of four products each, of `n`'s bytes and those of the words that `of` gives.
pub(super) fn dot_product(cpu: &mut Cpu, i: &Insn, n: u128, of: impl Fn(usize) -> u64) -> Done {
    let (signed, mut result) = (!i.bit(29), cpu.v(i.rd));
    for at in 0..if i.bit(30) { 4 } else { 2 } {
        let second = of(at);
        let product = |byte: usize| {
            let a = number(lane(n, 0, 4 * at + byte), 8, signed);
            a * number(second >> (8 * byte) & 0xff, 8, signed)
        };
        let sum: i128 = (0..4).map(product).sum();
        let old = lane(result, 2, at);
        set_lane(&mut result, 2, at, old.wrapping_add(sum as u64));
    }
    cpu.set_v(i.rd, whole(i, result));
    Ok(Flow::Next)
}
