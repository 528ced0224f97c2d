//! Floating point, scalars and vectors: lanes of singles or doubles, each computed by [`crate::float`].

use std::cmp::Ordering;

use satori_arm_isa::Op;

use super::simd::{lane, op_of, set_lane};
use super::{Done, sink};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::float::{self, DOUBLE, Env, Format, HALF, Rounding, SINGLE};

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let number = op as u64;
    let (raw_d, raw_n) = ((i.raw & 31) as u8, (i.raw >> 5 & 31) as u8);
    let vector: Option<Handler> = Some(match op {
        Op::Fadd
        | Op::Fsub
        | Op::Fmul
        | Op::Fdiv
        | Op::Fmax
        | Op::Fmin
        | Op::Fmaxnm
        | Op::Fminnm
        | Op::Fnmul => scalar_two,
        Op::Fsqrt
        | Op::Frintn
        | Op::Frintp
        | Op::Frintm
        | Op::Frintz
        | Op::Frinta
        | Op::Frintx
        | Op::Frinti => scalar_one,
        Op::Fcvt => fcvt,
        Op::Fcmp | Op::FcmpZero => fcmp,
        Op::Fccmp => fccmp,
        Op::Fmadd | Op::Fmsub | Op::Fnmadd | Op::Fnmsub => fused,
        Op::FaddpVec | Op::FmaxpVec | Op::FminpVec | Op::FmaxnmpVec | Op::FminnmpVec => pairwise,
        Op::FaddpScalar | Op::FmaxpScalar | Op::FminpScalar | Op::FmaxnmpScalar | Op::FminnmpScalar => {
            pair_scalar
        }
        Op::Fmaxv | Op::Fminv | Op::Fmaxnmv | Op::Fminnmv => across,
        Op::FmlaElem
        | Op::FmlsElem
        | Op::FmulElem
        | Op::FmulxElem
        | Op::FmlaElemScalar
        | Op::FmlsElemScalar
        | Op::FmulElemScalar
        | Op::FmulxElemScalar => element,
        Op::FcvtnVec | Op::FcvtxnVec | Op::FcvtxnScalar => narrow,
        Op::FcvtlVec => lengthen,
        Op::Urecpe | Op::Ursqrte => estimate,
        _ if (Op::FmaxnmVec..=Op::FminpVec).contains(&op) => three,
        _ if (Op::FrintnVec..=Op::FrecpxScalar).contains(&op) => two,
        Op::ScvtfFixVec | Op::ScvtfFixScalar | Op::FcvtzFixVec | Op::FcvtzFixScalar => fixed,
        _ => return general(op, i),
    });
    (i.rd, i.rn, i.rm, i.ra) = (raw_d, raw_n, (i.raw >> 16 & 31) as u8, (i.raw >> 10 & 31) as u8);
    i.imm = number;
    vector
}

/// Conversions between general registers and numbers.
fn general(op: Op, i: &mut Insn) -> Option<Handler> {
    let (raw_d, raw_n) = ((i.raw & 31) as u8, (i.raw >> 5 & 31) as u8);
    let found: Handler = match op {
        Op::FcvtInt | Op::FcvtAway | Op::FcvtzFixed => {
            (i.rn, i.rd) = (raw_n, sink(raw_d));
            to_general
        }
        Op::ScvtfGeneral | Op::ScvtfFixed => {
            i.rd = raw_d;
            from_general
        }
        _ => return None,
    };
    i.imm = op as u64;
    Some(found)
}

fn env(cpu: &Cpu) -> Env {
    Env::of(cpu.s.fpcr)
}

/// Keeps the flags that were raised.
fn keep(cpu: &mut Cpu, env: &Env) {
    cpu.s.fpsr |= env.flags;
}

/// Single or double, by bit 22.
fn format(i: &Insn) -> Format {
    if i.bit(22) { DOUBLE } else { SINGLE }
}

/// Size of lanes and how many: one of a scalar.
fn shape(i: &Insn) -> (u32, usize) {
    let size = 2 + i.bits(22, 22);
    let bytes = if i.bit(30) { 16 } else { 8 };
    (size, if i.bit(28) { 1 } else { bytes >> size })
}

fn low(cpu: &Cpu, register: u8, format: Format) -> u64 {
    let value = cpu.v(register) as u64;
    if format == DOUBLE { value } else { value & 0xffff_ffff }
}

fn scalar_two(cpu: &mut Cpu, i: &Insn) -> Done {
    let (format, mut env) = (format(i), env(cpu));
    let (a, b) = (low(cpu, i.rn, format), low(cpu, i.rm, format));
    let result = match op_of(i) {
        Op::Fadd => float::add(&mut env, format, a, b, false),
        Op::Fsub => float::add(&mut env, format, a, b, true),
        Op::Fmul => float::multiply(&mut env, format, a, b),
        Op::Fdiv => float::divide(&mut env, format, a, b),
        Op::Fmax => float::max(&mut env, format, a, b, false),
        Op::Fmin => float::min(&mut env, format, a, b, false),
        Op::Fmaxnm => float::max(&mut env, format, a, b, true),
        Op::Fminnm => float::min(&mut env, format, a, b, true),
        _ => float::multiply(&mut env, format, a, b) ^ format.sign_bit(),
    };
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}

/// The rounding mode of a FRINT, and whether it tells that it was inexact.
fn rounding(op: Op, env: &Env) -> (Rounding, bool) {
    match op {
        Op::Frintn | Op::FrintnVec => (Rounding::Nearest, false),
        Op::Frintp | Op::FrintpVec => (Rounding::Up, false),
        Op::Frintm | Op::FrintmVec => (Rounding::Down, false),
        Op::Frintz | Op::FrintzVec => (Rounding::Zero, false),
        Op::Frinta | Op::FrintaVec => (Rounding::Away, false),
        Op::Frintx | Op::FrintxVec => (env.rounding, true),
        _ => (env.rounding, false),
    }
}

fn scalar_one(cpu: &mut Cpu, i: &Insn) -> Done {
    let (format, mut env, op) = (format(i), env(cpu), op_of(i));
    let a = low(cpu, i.rn, format);
    let result = match op {
        Op::Fsqrt => float::root(&mut env, format, a),
        _ => {
            let (mode, exact) = rounding(op, &env);
            float::round_to_integral(&mut env, format, a, mode, exact)
        }
    };
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}

fn of_type(kind: u32) -> Format {
    match kind {
        0 => SINGLE,
        1 => DOUBLE,
        _ => HALF,
    }
}

fn fcvt(cpu: &mut Cpu, i: &Insn) -> Done {
    let (from, to, mut env) = (of_type(i.bits(23, 22)), of_type(i.bits(16, 15)), env(cpu));
    let mask = from.sign_bit() | (from.sign_bit() - 1);
    let bits = cpu.v(i.rn) as u64 & mask;
    let result = float::to_float(&mut env, from, to, bits);
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}

/// NZCV of a comparison.
fn flags(order: Option<Ordering>) -> u32 {
    match order {
        Some(Ordering::Less) => 8 << 28,
        Some(Ordering::Equal) => 6 << 28,
        Some(Ordering::Greater) => 2 << 28,
        None => 3 << 28,
    }
}

fn fcmp(cpu: &mut Cpu, i: &Insn) -> Done {
    let (format, mut env) = (format(i), env(cpu));
    let a = low(cpu, i.rn, format);
    let b = if op_of(i) == Op::FcmpZero { 0 } else { low(cpu, i.rm, format) };
    cpu.s.pstate.nzcv = flags(float::compare(&mut env, format, a, b, i.bit(4)));
    keep(cpu, &env);
    Ok(Flow::Next)
}

fn fccmp(cpu: &mut Cpu, i: &Insn) -> Done {
    if !super::integer::holds(cpu.s.pstate.nzcv, i.bits(15, 12)) {
        cpu.s.pstate.nzcv = i.bits(3, 0) << 28;
        return Ok(Flow::Next);
    }
    let (format, mut env) = (format(i), env(cpu));
    let (a, b) = (low(cpu, i.rn, format), low(cpu, i.rm, format));
    cpu.s.pstate.nzcv = flags(float::compare(&mut env, format, a, b, i.bit(4)));
    keep(cpu, &env);
    Ok(Flow::Next)
}

fn fused(cpu: &mut Cpu, i: &Insn) -> Done {
    let (format, mut env, op) = (format(i), env(cpu), op_of(i));
    let (a, b, addend) = (low(cpu, i.rn, format), low(cpu, i.rm, format), low(cpu, i.ra, format));
    let turn = |bits: u64, yes: bool| if yes { bits ^ format.sign_bit() } else { bits };
    let a = turn(a, matches!(op, Op::Fmsub | Op::Fnmadd));
    let addend = turn(addend, matches!(op, Op::Fnmadd | Op::Fnmsub));
    let result = float::multiply_add(&mut env, format, addend, a, b);
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}

/// A lane of an operation with three registers.
fn lane_three(op: Op, env: &mut Env, format: Format, a: u64, b: u64, d: u64) -> u64 {
    let all = format.sign_bit() | (format.sign_bit() - 1);
    let mask = |set: bool| if set { all } else { 0 };
    let magnitude = |bits: u64| bits & !format.sign_bit();
    match op {
        Op::FaddVec | Op::FaddpVec | Op::FaddpScalar => float::add(env, format, a, b, false),
        Op::FsubVec => float::add(env, format, a, b, true),
        Op::FabdVec | Op::FabdScalar => float::abs_difference(env, format, a, b),
        Op::FmulVec | Op::FmulElem | Op::FmulElemScalar => float::multiply(env, format, a, b),
        Op::FmulxVec | Op::FmulxScalar | Op::FmulxElem | Op::FmulxElemScalar => {
            float::multiply_extended(env, format, a, b)
        }
        Op::FdivVec => float::divide(env, format, a, b),
        Op::FmlaVec | Op::FmlaElem | Op::FmlaElemScalar => float::multiply_add(env, format, d, a, b),
        Op::FmlsVec | Op::FmlsElem | Op::FmlsElemScalar => {
            float::multiply_add(env, format, d, a ^ format.sign_bit(), b)
        }
        Op::FmaxVec | Op::FmaxpVec | Op::FmaxpScalar | Op::Fmaxv => float::max(env, format, a, b, false),
        Op::FminVec | Op::FminpVec | Op::FminpScalar | Op::Fminv => float::min(env, format, a, b, false),
        Op::FmaxnmVec | Op::FmaxnmpVec | Op::FmaxnmpScalar | Op::Fmaxnmv => {
            float::max(env, format, a, b, true)
        }
        Op::FminnmVec | Op::FminnmpVec | Op::FminnmpScalar | Op::Fminnmv => {
            float::min(env, format, a, b, true)
        }
        Op::FrecpsVec | Op::FrecpsScalar => float::step(env, format, a, b, false),
        Op::FrsqrtsVec | Op::FrsqrtsScalar => float::step(env, format, a, b, true),
        Op::FcmeqVec | Op::FcmeqScalar => {
            mask(float::compare(env, format, a, b, false) == Some(Ordering::Equal))
        }
        Op::FcmgeVec | Op::FcmgeScalar => {
            mask(float::compare(env, format, a, b, true).is_some_and(Ordering::is_ge))
        }
        Op::FcmgtVec | Op::FcmgtScalar => {
            mask(float::compare(env, format, a, b, true).is_some_and(Ordering::is_gt))
        }
        Op::FacgeVec | Op::FacgeScalar => {
            let order = float::compare(env, format, magnitude(a), magnitude(b), true);
            mask(order.is_some_and(Ordering::is_ge))
        }
        _ => {
            let order = float::compare(env, format, magnitude(a), magnitude(b), true);
            mask(order.is_some_and(Ordering::is_gt))
        }
    }
}

fn three(cpu: &mut Cpu, i: &Insn) -> Done {
    let ((size, lanes), mut env, op) = (shape(i), env(cpu), op_of(i));
    let (n, m, d) = (cpu.v(i.rn), cpu.v(i.rm), cpu.v(i.rd));
    let mut result = 0;
    for at in 0..lanes {
        let of = |value| lane(value, size, at);
        set_lane(&mut result, size, at, lane_three(op, &mut env, format(i), of(n), of(m), of(d)));
    }
    keep(cpu, &env);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn pairwise(cpu: &mut Cpu, i: &Insn) -> Done {
    let ((size, lanes), mut env, op) = (shape(i), env(cpu), op_of(i));
    let (n, m) = (cpu.v(i.rn), cpu.v(i.rm));
    let mut result = 0;
    for at in 0..lanes {
        let (source, pair) = (if 2 * at < lanes { n } else { m }, 2 * at % lanes);
        let (a, b) = (lane(source, size, pair), lane(source, size, pair + 1));
        set_lane(&mut result, size, at, lane_three(op, &mut env, format(i), a, b, 0));
    }
    keep(cpu, &env);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn pair_scalar(cpu: &mut Cpu, i: &Insn) -> Done {
    let ((size, _), mut env, n) = (shape(i), env(cpu), cpu.v(i.rn));
    let result = lane_three(op_of(i), &mut env, format(i), lane(n, size, 0), lane(n, size, 1), 0);
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}

/// The highest or lowest of four singles: of the halves, then of both.
fn across(cpu: &mut Cpu, i: &Insn) -> Done {
    let (mut env, op, n) = (env(cpu), op_of(i), cpu.v(i.rn));
    let of = |at| lane(n, 2, at);
    let first = lane_three(op, &mut env, SINGLE, of(0), of(1), 0);
    let second = lane_three(op, &mut env, SINGLE, of(2), of(3), 0);
    let result = lane_three(op, &mut env, SINGLE, first, second, 0);
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}

fn element(cpu: &mut Cpu, i: &Insn) -> Done {
    let ((size, lanes), mut env, op) = (shape(i), env(cpu), op_of(i));
    let index = if size == 3 { i.bits(11, 11) } else { i.bits(11, 11) << 1 | i.bits(21, 21) };
    let b = lane(cpu.v(i.bits(20, 16) as u8), size, index as usize);
    let (n, d, mut result) = (cpu.v(i.rn), cpu.v(i.rd), 0);
    for at in 0..lanes {
        let (a, old) = (lane(n, size, at), lane(d, size, at));
        set_lane(&mut result, size, at, lane_three(op, &mut env, format(i), a, b, old));
    }
    keep(cpu, &env);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

/// A lane of an operation with two registers.
fn lane_two(op: Op, env: &mut Env, i: &Insn, a: u64) -> u64 {
    let format = format(i);
    let width = if format == DOUBLE { 64 } else { 32 };
    let kind = (width, !i.bit(29));
    let all = u64::MAX >> (64 - width);
    let mask = |set: bool| if set { all } else { 0 };
    let mut zero = |signals| float::compare(env, format, a, 0, signals);
    match op {
        Op::FcmgtZeroVec | Op::FcmgtZeroScalar => mask(zero(true).is_some_and(Ordering::is_gt)),
        Op::FcmgeZeroVec | Op::FcmgeZeroScalar => mask(zero(true).is_some_and(Ordering::is_ge)),
        Op::FcmeqZeroVec | Op::FcmeqZeroScalar => mask(zero(false) == Some(Ordering::Equal)),
        Op::FcmleZeroVec | Op::FcmleZeroScalar => mask(zero(true).is_some_and(Ordering::is_le)),
        Op::FcmltZeroVec | Op::FcmltZeroScalar => mask(zero(true).is_some_and(Ordering::is_lt)),
        Op::FabsVec => a & !format.sign_bit(),
        Op::FnegVec => a ^ format.sign_bit(),
        Op::FsqrtVec => float::root(env, format, a),
        Op::FrecpeVec | Op::FrecpeScalar => float::reciprocal(env, format, a),
        Op::FrsqrteVec | Op::FrsqrteScalar => float::reciprocal_root(env, format, a),
        Op::FrecpxScalar => float::exponent(env, format, a),
        Op::ScvtfVec | Op::ScvtfScalar => integer_to(env, format, a, kind, 0),
        Op::FcvtnIntVec | Op::FcvtnIntScalar => float::to_integer(env, format, a, kind, 0, Rounding::Nearest),
        Op::FcvtmVec | Op::FcvtmScalar => float::to_integer(env, format, a, kind, 0, Rounding::Down),
        Op::FcvtpVec | Op::FcvtpScalar => float::to_integer(env, format, a, kind, 0, Rounding::Up),
        Op::FcvtzVec | Op::FcvtzScalar => float::to_integer(env, format, a, kind, 0, Rounding::Zero),
        Op::FcvtaVec | Op::FcvtaScalar => float::to_integer(env, format, a, kind, 0, Rounding::Away),
        _ => {
            let (mode, exact) = rounding(op, env);
            float::round_to_integral(env, format, a, mode, exact)
        }
    }
}

fn integer_to(env: &mut Env, format: Format, value: u64, (width, signed): (u32, bool), scale: u32) -> u64 {
    let up = 64 - width;
    let value = match signed {
        true => i128::from((value << up) as i64 >> up),
        false => i128::from((value << up) >> up),
    };
    float::from_integer(env, format, value, scale)
}

fn two(cpu: &mut Cpu, i: &Insn) -> Done {
    let ((size, lanes), mut env, op, n) = (shape(i), env(cpu), op_of(i), cpu.v(i.rn));
    let mut result = 0;
    for at in 0..lanes {
        set_lane(&mut result, size, at, lane_two(op, &mut env, i, lane(n, size, at)));
    }
    keep(cpu, &env);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn estimate(cpu: &mut Cpu, i: &Insn) -> Done {
    let n = cpu.v(i.rn);
    let mut result = 0;
    for at in 0..if i.bit(30) { 4 } else { 2 } {
        let value = lane(n, 2, at);
        let one = match op_of(i) {
            Op::Urecpe => float::unsigned_reciprocal(value),
            _ => float::unsigned_reciprocal_root(value),
        };
        set_lane(&mut result, 2, at, one);
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

/// Fixed-point numbers in vectors: immh chooses the size, and the scale is what is missing to twice that.
fn fixed(cpu: &mut Cpu, i: &Insn) -> Done {
    let (mut env, op, n) = (env(cpu), op_of(i), cpu.v(i.rn));
    let (size, format) = if i.bit(22) { (3, DOUBLE) } else { (2, SINGLE) };
    let width = 8 << size;
    let scale = 2 * width - i.bits(22, 16);
    let bytes = if i.bit(30) { 16 } else { 8 };
    let (lanes, mut result) = (if i.bit(28) { 1 } else { bytes >> size }, 0);
    let kind = (width, !i.bit(29));
    for at in 0..lanes {
        let value = lane(n, size, at);
        let one = match op {
            Op::ScvtfFixVec | Op::ScvtfFixScalar => integer_to(&mut env, format, value, kind, scale),
            _ => float::to_integer(&mut env, format, value, kind, scale, Rounding::Zero),
        };
        set_lane(&mut result, size, at, one);
    }
    keep(cpu, &env);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

/// FCVTN to half the size; FCVTXN rounds to odd.
fn narrow(cpu: &mut Cpu, i: &Insn) -> Done {
    let (mut env, op, n) = (env(cpu), op_of(i), cpu.v(i.rn));
    let (from, to, size) = if i.bit(22) { (DOUBLE, SINGLE, 3) } else { (SINGLE, HALF, 2) };
    if op != Op::FcvtnVec {
        env.rounding = Rounding::Odd;
    }
    let (lanes, mut half) = (if i.bit(28) { 1 } else { 16 >> size }, 0);
    for at in 0..lanes {
        let one = float::to_float(&mut env, from, to, lane(n, size, at));
        set_lane(&mut half, size - 1, at, one);
    }
    keep(cpu, &env);
    let high = i.bit(30) && !i.bit(28);
    let kept = cpu.v(i.rd) & u128::from(u64::MAX);
    cpu.set_v(i.rd, if high { kept | half << 64 } else { half });
    Ok(Flow::Next)
}

fn lengthen(cpu: &mut Cpu, i: &Insn) -> Done {
    let mut env = env(cpu);
    let (from, to, size) = if i.bit(22) { (SINGLE, DOUBLE, 2) } else { (HALF, SINGLE, 1) };
    let n = if i.bit(30) { cpu.v(i.rn) >> 64 } else { cpu.v(i.rn) };
    let mut result = 0;
    for at in 0..8 >> size {
        let one = float::to_float(&mut env, from, to, lane(n, size, at));
        set_lane(&mut result, size + 1, at, one);
    }
    keep(cpu, &env);
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn to_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let (format, mut env) = (format(i), env(cpu));
    let width = if i.bit(31) { 64 } else { 32 };
    let (mode, scale) = match op_of(i) {
        Op::FcvtAway => (Rounding::Away, 0),
        Op::FcvtzFixed => (Rounding::Zero, 64 - i.bits(15, 10)),
        _ => match i.bits(20, 19) {
            0 => (Rounding::Nearest, 0),
            1 => (Rounding::Up, 0),
            2 => (Rounding::Down, 0),
            _ => (Rounding::Zero, 0),
        },
    };
    let value = low(cpu, i.rn, format);
    let result = float::to_integer(&mut env, format, value, (width, !i.bit(16)), scale, mode);
    keep(cpu, &env);
    cpu.set_x(i.rd, result);
    Ok(Flow::Next)
}

fn from_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let (format, mut env) = (format(i), env(cpu));
    let width = if i.bit(31) { 64 } else { 32 };
    let scale = if op_of(i) == Op::ScvtfFixed { 64 - i.bits(15, 10) } else { 0 };
    let result = integer_to(&mut env, format, cpu.x(i.rn), (width, !i.bit(16)), scale);
    keep(cpu, &env);
    cpu.set_v(i.rd, result.into());
    Ok(Flow::Next)
}
