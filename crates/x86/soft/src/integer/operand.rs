//! Typed access to operands.

use iced_x86::{Instruction, OpKind, Register};

use crate::cpu::{Cpu, Exec};
use crate::flags::{Flags, Int};
use crate::operands::is_immediate;

/// Bytes of operand `op`, known when an instruction is decoded; 0 for an immediate.
pub(super) fn size(insn: &Instruction, op: u32) -> usize {
    match insn.op_kind(op) {
        OpKind::Register => insn.op_register(op).size(),
        kind if is_immediate(kind) => 0,
        _ => insn.memory_size().size(),
    }
}

/// The value of operand `op`.
#[inline]
pub(super) fn load<T: Int>(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<T> {
    match insn.op_kind(op) {
        OpKind::Register => Ok(T::from_u64(cpu.reg(insn.op_register(op)))),
        kind if is_immediate(kind) => Ok(T::from_u64(insn.immediate(op))),
        _ => {
            let linear = cpu.ea(insn, op)?;
            cpu.read(linear)
        }
    }
}

/// The linear address of memory operand `op`, for writing.
#[inline]
pub(super) fn target(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u64> {
    cpu.ea_write(insn, op)
}

/// Writes operand `op`.
#[inline]
pub(super) fn store<T: Int>(cpu: &mut Cpu, insn: &Instruction, op: u32, value: T) -> Exec<()> {
    if insn.op_kind(op) == OpKind::Register {
        cpu.set_reg(insn.op_register(op), value.into());
        return Ok(());
    }
    let linear = target(cpu, insn, op)?;
    cpu.write(linear, value)
}

/// Changes operand 0, atomically under LOCK, and the flags with it. Returns the old value.
/// `change` may be called more than once; the flags of the call that took effect stay.
#[inline]
pub(super) fn modify<T: Int>(
    cpu: &mut Cpu,
    insn: &Instruction,
    change: impl Fn(&mut Flags, T) -> T,
) -> Exec<T> {
    if insn.op0_kind() == OpKind::Register {
        let register = insn.op0_register();
        let old = T::from_u64(cpu.reg(register));
        let new = change(&mut cpu.flags, old);
        cpu.set_reg(register, new.into());
        return Ok(old);
    }
    let linear = target(cpu, insn, 0)?;
    let before = cpu.flags;
    let old = cpu.update(linear, insn.has_lock_prefix(), |old| change(&mut before.clone(), old))?;
    change(&mut cpu.flags, old);
    Ok(old)
}

/// The accumulator and its extension of a size: AL and AH, AX and DX, EAX and EDX, RAX and RDX.
pub(super) fn accumulator<T: Int>() -> (Register, Register) {
    match T::BITS {
        8 => (Register::AL, Register::AH),
        16 => (Register::AX, Register::DX),
        32 => (Register::EAX, Register::EDX),
        _ => (Register::RAX, Register::RDX),
    }
}

/// The top bit.
#[inline]
pub(super) fn sign<T: Int>(value: T) -> bool {
    value.sext() >> 63 != 0
}
