//! Two-operand arithmetic and logic in every form.

use super::parts::attempt;
use crate::block::op::{Flow, Op, Run};
use crate::cpu::Cpu;
use crate::flags::{Flags, Int};

/// An operation of the ADD..CMP group, or TEST.
pub(super) trait Alu {
    /// The result is written.
    const WRITES: bool = true;
    /// The result, with its flags.
    fn apply<T: Int>(flags: &mut Flags, a: T, b: T) -> T;
}

macro_rules! alu {
    ($($name:ident $writes:literal |$flags:ident, $a:ident, $b:ident| $body:expr;)*) => {
        $(pub(crate) struct $name;
        impl Alu for $name {
            const WRITES: bool = $writes;
            #[inline(always)]
            fn apply<T: Int>($flags: &mut Flags, $a: T, $b: T) -> T {
                $body
            }
        })*
    };
}

#[inline(always)]
fn logic<T: Int>(flags: &mut Flags, value: u64) -> T {
    let value = T::from_u64(value);
    flags.logic(value);
    value
}

alu! {
    Add true |flags, a, b| flags.add(a, b, false);
    Or true |flags, a, b| logic(flags, a.into() | b.into());
    Adc true |flags, a, b| { let carry = flags.cf(); flags.add(a, b, carry) };
    Sbb true |flags, a, b| { let carry = flags.cf(); flags.sub(a, b, carry) };
    And true |flags, a, b| logic(flags, a.into() & b.into());
    Sub true |flags, a, b| flags.sub(a, b, false);
    Xor true |flags, a, b| logic(flags, a.into() ^ b.into());
    Cmp false |flags, a, b| flags.sub(a, b, false);
    Test false |flags, a, b| logic(flags, a.into() & b.into());
}

/// Where the operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    RegReg,
    RegMem,
    MemReg,
    RegImm,
    MemImm,
}

fn reg_reg<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let (a, b) = (cpu.get::<T>(op.a), cpu.get::<T>(op.b));
    let result = O::apply(&mut cpu.flags, a, b);
    if O::WRITES {
        cpu.set(op.a, result);
    }
    Flow::Next
}

fn reg_imm<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let a = cpu.get::<T>(op.a);
    let result = O::apply(&mut cpu.flags, a, T::from_u64(op.imm));
    if O::WRITES {
        cpu.set(op.a, result);
    }
    Flow::Next
}

fn reg_mem<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let b = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    let a = cpu.get::<T>(op.a);
    let result = O::apply(&mut cpu.flags, a, b);
    if O::WRITES {
        cpu.set(op.a, result);
    }
    Flow::Next
}

#[inline(always)]
fn memory<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op, b: T, locked: bool) -> Flow {
    let at = cpu.address(op);
    let a = if O::WRITES {
        let flags = cpu.flags;
        attempt!(cpu, op, cpu.update(at, locked, |a| O::apply(&mut { flags }, a, b)))
    } else {
        attempt!(cpu, op, cpu.read::<T>(at))
    };
    O::apply(&mut cpu.flags, a, b);
    Flow::Next
}

fn mem_reg<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    memory::<O, T>(cpu, op, cpu.get(op.a), false)
}

fn mem_imm<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    memory::<O, T>(cpu, op, T::from_u64(op.imm), false)
}

fn locked_mem_reg<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    memory::<O, T>(cpu, op, cpu.get(op.a), true)
}

fn locked_mem_imm<O: Alu, T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    memory::<O, T>(cpu, op, T::from_u64(op.imm), true)
}

fn sized<O: Alu, T: Int>(form: Form, locked: bool) -> Run {
    match (form, locked) {
        (Form::RegReg, _) => reg_reg::<O, T>,
        (Form::RegMem, _) => reg_mem::<O, T>,
        (Form::RegImm, _) => reg_imm::<O, T>,
        (Form::MemReg, false) => mem_reg::<O, T>,
        (Form::MemImm, false) => mem_imm::<O, T>,
        (Form::MemReg, true) => locked_mem_reg::<O, T>,
        (Form::MemImm, true) => locked_mem_imm::<O, T>,
    }
}

/// The implementation of `O` for operands of `size` bytes.
pub(super) fn run<O: Alu>(size: u32, form: Form, locked: bool) -> Run {
    match size {
        1 => sized::<O, u8>(form, locked),
        2 => sized::<O, u16>(form, locked),
        4 => sized::<O, u32>(form, locked),
        _ => sized::<O, u64>(form, locked),
    }
}
