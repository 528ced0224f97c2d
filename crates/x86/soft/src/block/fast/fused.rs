//! A comparison and the conditional branch behind it, as one operation.
//!
//! The immediate is in the low half of `imm`; the branch target, relative to the block, in the
//! high half. The condition is worked out from the operands; the flags are kept all the same.

use super::alu::{Alu, Cmp, Form, Test};
use super::parts::attempt;
use crate::block::op::{BLOCK_RIP, Flow, Op, Run};
use crate::cpu::Cpu;
use crate::flags::Int;

/// A comparison whose conditions can be told from its operands.
pub(super) trait Compare: Alu {
    /// Condition `C` after comparing `a` with `b`, or nothing if only the flags tell.
    fn holds<T: Int, const C: u8>(a: T, b: T) -> Option<bool>;
}

impl Compare for Cmp {
    #[inline(always)]
    fn holds<T: Int, const C: u8>(a: T, b: T) -> Option<bool> {
        let (ua, ub): (u64, u64) = (a.into(), b.into());
        let (sa, sb) = (a.sext() as i64, b.sext() as i64);
        let holds = match C >> 1 {
            1 => ua < ub,
            2 => ua == ub,
            3 => ua <= ub,
            4 => (T::from_u64(ua.wrapping_sub(ub)).sext() as i64) < 0,
            6 => sa < sb,
            7 => sa <= sb,
            _ => return None,
        };
        Some(holds != (C & 1 != 0))
    }
}

impl Compare for Test {
    #[inline(always)]
    fn holds<T: Int, const C: u8>(a: T, b: T) -> Option<bool> {
        let result = T::from_u64(a.into() & b.into()).sext() as i64;
        let holds = match C >> 1 {
            0 | 1 => false,
            2 | 3 => result == 0,
            4 | 6 => result < 0,
            7 => result <= 0,
            _ => return None,
        };
        Some(holds != (C & 1 != 0))
    }
}

#[inline(always)]
fn branch<O: Compare, T: Int, const C: u8>(cpu: &mut Cpu, op: &Op, a: T, b: T) -> Flow {
    O::apply(&mut cpu.flags, a, b);
    let taken = O::holds::<T, C>(a, b).unwrap_or_else(|| cpu.flags.condition(C));
    let target = cpu.state.gpr[BLOCK_RIP].wrapping_add(((op.imm as i64) >> 32) as u64);
    let next = cpu.after(op);
    cpu.go(if taken { target } else { next })
}

fn reg_reg<O: Compare, T: Int, const C: u8>(cpu: &mut Cpu, op: &Op) -> Flow {
    branch::<O, T, C>(cpu, op, cpu.get(op.a), cpu.get(op.b))
}

fn reg_imm<O: Compare, T: Int, const C: u8>(cpu: &mut Cpu, op: &Op) -> Flow {
    branch::<O, T, C>(cpu, op, cpu.get(op.a), T::from_u64(op.imm as i32 as u64))
}

fn reg_mem<O: Compare, T: Int, const C: u8>(cpu: &mut Cpu, op: &Op) -> Flow {
    let b = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    branch::<O, T, C>(cpu, op, cpu.get(op.a), b)
}

fn mem_reg<O: Compare, T: Int, const C: u8>(cpu: &mut Cpu, op: &Op) -> Flow {
    let a = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    branch::<O, T, C>(cpu, op, a, cpu.get(op.a))
}

fn mem_imm<O: Compare, T: Int, const C: u8>(cpu: &mut Cpu, op: &Op) -> Flow {
    let a = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    branch::<O, T, C>(cpu, op, a, T::from_u64(op.imm as i32 as u64))
}

fn conditions<O: Compare, T: Int, const C: u8>(form: Form) -> Run {
    match form {
        Form::RegReg => reg_reg::<O, T, C>,
        Form::RegImm => reg_imm::<O, T, C>,
        Form::RegMem => reg_mem::<O, T, C>,
        Form::MemReg => mem_reg::<O, T, C>,
        Form::MemImm => mem_imm::<O, T, C>,
    }
}

fn forms<O: Compare, T: Int>(form: Form, condition: u8) -> Run {
    macro_rules! pick {
        ($($c:literal)*) => {
            match condition {
                $($c => conditions::<O, T, $c>(form),)*
                _ => conditions::<O, T, 15>(form),
            }
        };
    }
    pick!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// The fused implementation for operands of `size` bytes.
pub(super) fn run<O: Compare>(size: u32, form: Form, condition: u8) -> Run {
    match size {
        1 => forms::<O, u8>(form, condition),
        2 => forms::<O, u16>(form, condition),
        4 => forms::<O, u32>(form, condition),
        _ => forms::<O, u64>(form, condition),
    }
}
