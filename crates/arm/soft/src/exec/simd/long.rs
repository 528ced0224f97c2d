//! Three registers of different types: long, wide and narrow.

use satori_arm_isa::Op;

use super::lanes::{lane, number, saturate, set_lane};
use super::op_of;
use super::three::polynomial;
use super::two::put_half;
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::exec::Done;

pub(super) fn handler(op: Op) -> Option<Handler> {
    Some(match op {
        Op::SaddlVec
        | Op::SsublVec
        | Op::SabalVec
        | Op::SabdlVec
        | Op::SmlalVec
        | Op::SmlslVec
        | Op::SmullVec
        | Op::SqdmlalVec
        | Op::SqdmlslVec
        | Op::SqdmullVec
        | Op::SqdmlalScalar
        | Op::SqdmlslScalar
        | Op::SqdmullScalar => long,
        Op::SaddwVec | Op::SsubwVec => wide,
        Op::AddhnVec | Op::SubhnVec => high_half,
        Op::PmullVec => pmull,
        _ => return None,
    })
}

fn long(cpu: &mut Cpu, i: &Insn) -> Done {
    let m = cpu.v(i.rm);
    let m = if i.bit(30) && !i.bit(28) { m >> 64 } else { m };
    long_with(cpu, i, |at, size| lane(m, size, at))
}

/// A long operation, with the second operand's lanes as `of` gives them.
pub(super) fn long_with(cpu: &mut Cpu, i: &Insn, of: impl Fn(usize, u32) -> u64) -> Done {
    let (size, op, signed, scalar) = (i.bits(23, 22), op_of(i), !i.bit(29), i.bit(28));
    let n = if i.bit(30) && !scalar { cpu.v(i.rn) >> 64 } else { cpu.v(i.rn) };
    let (d, bits) = (cpu.v(i.rd), 8 << size);
    let (mut result, mut saturated) = (0, false);
    for at in 0..if scalar { 1 } else { 8 >> size } {
        let x = number(lane(n, size, at), bits, signed);
        let y = number(of(at, size), bits, signed);
        let old = number(lane(d, size + 1, at), 2 * bits, true);
        let mut doubled = || i128::from(saturate(2 * x * y, 2 * bits, true, &mut saturated) as i64);
        let value = match op {
            Op::SaddlVec => x + y,
            Op::SsublVec => x - y,
            Op::SabalVec => old + (x - y).abs(),
            Op::SabdlVec => (x - y).abs(),
            Op::SmlalVec | Op::SmlalElem => old + x * y,
            Op::SmlslVec | Op::SmlslElem => old - x * y,
            Op::SmullVec | Op::SmullElem => x * y,
            Op::SqdmullVec | Op::SqdmullScalar | Op::SqdmullElem | Op::SqdmullElemScalar => {
                number(doubled() as u64, 2 * bits, true)
            }
            Op::SqdmlalVec | Op::SqdmlalScalar | Op::SqdmlalElem | Op::SqdmlalElemScalar => {
                let product = number(doubled() as u64, 2 * bits, true);
                saturate(old + product, 2 * bits, true, &mut saturated).into()
            }
            _ => {
                let product = number(doubled() as u64, 2 * bits, true);
                saturate(old - product, 2 * bits, true, &mut saturated).into()
            }
        };
        set_lane(&mut result, size + 1, at, value as u64);
    }
    cpu.set_v(i.rd, result);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

fn wide(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, signed) = (i.bits(23, 22), !i.bit(29));
    let (n, m) = (cpu.v(i.rn), if i.bit(30) { cpu.v(i.rm) >> 64 } else { cpu.v(i.rm) });
    let mut result = 0;
    for at in 0..8 >> size {
        let (a, b) = (lane(n, size + 1, at), number(lane(m, size, at), 8 << size, signed) as u64);
        let value = if op_of(i) == Op::SaddwVec { a.wrapping_add(b) } else { a.wrapping_sub(b) };
        set_lane(&mut result, size + 1, at, value);
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn high_half(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, rounding) = (i.bits(23, 22), i.bit(29));
    let (n, m, bits) = (cpu.v(i.rn), cpu.v(i.rm), 8 << size);
    let mut half = 0;
    for at in 0..8 >> size {
        let (a, b) = (lane(n, size + 1, at), lane(m, size + 1, at));
        let sum = if op_of(i) == Op::AddhnVec { a.wrapping_add(b) } else { a.wrapping_sub(b) };
        let sum = sum.wrapping_add(if rounding { 1 << (bits - 1) } else { 0 });
        set_lane(&mut half, size, at, sum >> bits);
    }
    put_half(cpu, i, half as u64);
    Ok(Flow::Next)
}

fn pmull(cpu: &mut Cpu, i: &Insn) -> Done {
    let shift = if i.bit(30) { 64 } else { 0 };
    let (n, m) = ((cpu.v(i.rn) >> shift) as u64, (cpu.v(i.rm) >> shift) as u64);
    if i.bits(23, 22) == 3 {
        cpu.set_v(i.rd, polynomial(n, m));
        return Ok(Flow::Next);
    }
    let mut result = 0;
    for at in 0..8 {
        set_lane(&mut result, 1, at, polynomial(n >> (8 * at) & 0xff, m >> (8 * at) & 0xff) as u64);
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}
