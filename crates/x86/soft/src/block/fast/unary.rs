//! INC, DEC, NEG, NOT, shifts by a constant, and two-operand multiplication.

use super::parts::attempt;
use crate::block::op::{Flow, Op, Run};
use crate::cpu::Cpu;
use crate::flags::{Flags, Int};

/// An operation on one operand.
pub(super) trait Unary {
    /// The result, with its flags.
    fn apply<T: Int>(flags: &mut Flags, a: T) -> T;
}

pub(super) struct Inc;
pub(super) struct Dec;
pub(super) struct Neg;
pub(super) struct Not;

impl Unary for Inc {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, a: T) -> T {
        flags.inc(a)
    }
}
impl Unary for Dec {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, a: T) -> T {
        flags.dec(a)
    }
}
impl Unary for Neg {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, a: T) -> T {
        flags.sub(T::from_u64(0), a, false)
    }
}
impl Unary for Not {
    #[inline(always)]
    fn apply<T: Int>(_flags: &mut Flags, a: T) -> T {
        T::from_u64(!a.into())
    }
}

fn reg<O: Unary, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let a = cpu.get::<T>(op.a);
    let result = O::apply(&mut cpu.flags, a);
    cpu.set(op.a, result);
    Flow::Next
}

#[inline(always)]
fn memory<O: Unary, T: Int>(cpu: &mut Cpu, op: &Op, locked: bool) -> Flow {
    let (at, flags) = (cpu.address(op), cpu.flags);
    let a = attempt!(cpu, op, cpu.update(at, locked, |a: T| O::apply(&mut { flags }, a)));
    O::apply(&mut cpu.flags, a);
    Flow::Next
}

fn mem<O: Unary, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    memory::<O, T>(cpu, op, false)
}

fn locked_mem<O: Unary, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    memory::<O, T>(cpu, op, true)
}

/// The implementation of `O` for an operand of `size` bytes.
pub(super) fn run<O: Unary>(size: u32, is_memory: bool, locked: bool) -> Run {
    macro_rules! pick {
        ($ty:ty) => {
            match (is_memory, locked) {
                (false, _) => reg::<O, $ty> as Run,
                (true, false) => mem::<O, $ty>,
                (true, true) => locked_mem::<O, $ty>,
            }
        };
    }
    match size {
        1 => pick!(u8),
        2 => pick!(u16),
        4 => pick!(u32),
        _ => pick!(u64),
    }
}

/// SHL r, imm; the count is within 1..BITS.
pub(super) fn shl<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let (a, count): (u64, u32) = (cpu.get::<T>(op.a).into(), op.imm as u32 & 63);
    let result = T::from_u64(a << count);
    let carry = a >> (T::BITS - count) & 1 != 0;
    let sign = result.sext() >> 63 != 0;
    cpu.flags.shifted(result, carry, sign != carry);
    cpu.set(op.a, result);
    Flow::Next
}

/// SHR r, imm; the count is within 1..BITS.
pub(super) fn shr<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let (a, count) = (cpu.get::<T>(op.a), op.imm as u32 & 63);
    let value: u64 = a.into();
    let result = T::from_u64(value >> count);
    // OF is the sign that a shift by 1 loses; by more it is undefined, and clear as in the generic
    // implementation.
    let before = T::from_u64(value >> (count - 1));
    cpu.flags.shifted(result, before.into() & 1 != 0, before.sext() >> 63 != 0);
    cpu.set(op.a, result);
    Flow::Next
}

/// SAR r, imm; the count is within 1..BITS.
pub(super) fn sar<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let (a, count) = (cpu.get::<T>(op.a).sext() as i64, op.imm as u32 & 63);
    let result = T::from_u64((a >> count) as u64);
    cpu.flags.shifted(result, a >> (count - 1) & 1 != 0, false);
    cpu.set(op.a, result);
    Flow::Next
}

/// Multiplies; CF and OF tell whether the product was cut, the other flags follow the result.
#[inline(always)]
fn product<T: Int>(cpu: &mut Cpu, a: T, b: T) -> T {
    let full = i128::from(a.sext() as i64) * i128::from(b.sext() as i64);
    let result = T::from_u64(full as u64);
    let cut = i128::from(result.sext() as i64) != full;
    cpu.flags.shifted(result, cut, cut);
    result
}

/// IMUL r, r.
pub(super) fn imul_reg<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let result = product::<T>(cpu, cpu.get(op.a), cpu.get(op.b));
    cpu.set(op.a, result);
    Flow::Next
}

/// IMUL r, m.
pub(super) fn imul_mem<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let b = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    let result = product::<T>(cpu, cpu.get(op.a), b);
    cpu.set(op.a, result);
    Flow::Next
}

/// IMUL r, r, imm.
pub(super) fn imul_imm<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let result = product::<T>(cpu, cpu.get(op.b), T::from_u64(op.imm));
    cpu.set(op.a, result);
    Flow::Next
}
