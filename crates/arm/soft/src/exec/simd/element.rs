//! By element: the second operand is one lane of a register, for all lanes.

use satori_arm_isa::Op;

use super::lanes::{Shape, lane, set_lane};
use super::long::long_with;
use super::op_of;
use super::three::{dot_product, doubling};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::exec::Done;

pub(super) fn handler(op: Op) -> Option<Handler> {
    Some(match op {
        Op::MlaElem
        | Op::MlsElem
        | Op::MulElem
        | Op::SqdmulhElem
        | Op::SqdmulhElemScalar
        | Op::SqrdmulhElem
        | Op::SqrdmulhElemScalar
        | Op::SqrdmlahElem
        | Op::SqrdmlahElemScalar
        | Op::SqrdmlshElem
        | Op::SqrdmlshElemScalar => same,
        Op::SmlalElem
        | Op::SmlslElem
        | Op::SmullElem
        | Op::SqdmlalElem
        | Op::SqdmlalElemScalar
        | Op::SqdmlslElem
        | Op::SqdmlslElemScalar
        | Op::SqdmullElem
        | Op::SqdmullElemScalar => long,
        Op::DotElem => dot,
        _ => return None,
    })
}

/// The element: of 16 bits H:L:M of V0 to V15, of 32 bits H:L.
fn element(cpu: &Cpu, i: &Insn, size: u32) -> u64 {
    let (h, l, m) = (i.bits(11, 11), i.bits(21, 21), i.bits(20, 20));
    let (register, index) = match size {
        1 => (i.bits(19, 16), h << 2 | l << 1 | m),
        _ => (i.bits(20, 16), h << 1 | l),
    };
    lane(cpu.v(register as u8), size, index as usize)
}

fn same(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, op) = (Shape::of(i), op_of(i));
    let b = element(cpu, i, shape.size);
    let (n, d) = (cpu.v(i.rn), cpu.v(i.rd));
    let (mut result, mut saturated) = (0, false);
    for at in 0..shape.lanes {
        let (a, old) = (lane(n, shape.size, at), lane(d, shape.size, at));
        let one = match op {
            Op::MlaElem => old.wrapping_add(a.wrapping_mul(b)),
            Op::MlsElem => old.wrapping_sub(a.wrapping_mul(b)),
            Op::MulElem => a.wrapping_mul(b),
            _ => doubling(op, a, b, old, shape.bits, &mut saturated),
        };
        set_lane(&mut result, shape.size, at, one);
    }
    cpu.set_v(i.rd, result);
    cpu.keep_qc(saturated);
    Ok(Flow::Next)
}

fn long(cpu: &mut Cpu, i: &Insn) -> Done {
    let b = element(cpu, i, i.bits(23, 22));
    long_with(cpu, i, |_, _| b)
}

fn dot(cpu: &mut Cpu, i: &Insn) -> Done {
    let (b, n) = (element(cpu, i, 2), cpu.v(i.rn));
    dot_product(cpu, i, n, |_| b)
}
