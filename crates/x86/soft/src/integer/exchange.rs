//! XCHG, XADD, CMPXCHG, CMPXCHG8B and CMPXCHG16B.

use iced_x86::{Code, Instruction, OpKind, Register};
use satori_engine::Exception;

use super::flag::set_zf;
use super::operand::{accumulator, load, modify, size, target};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;
use crate::insn::{Row, rows};

/// XCHG; with memory it is locked, prefix or not.
fn xchg<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    // The memory operand may stand on either side.
    let (memory, register) = if insn.op1_kind() == OpKind::Register { (0, 1) } else { (1, 0) };
    let register = insn.op_register(register);
    let value = T::from_u64(cpu.reg(register));
    let old: T = if insn.op_kind(memory) == OpKind::Register {
        let other = insn.op_register(memory);
        let old = cpu.reg(other);
        cpu.set_reg(other, value.into());
        T::from_u64(old)
    } else {
        let linear = target(cpu, insn, memory)?;
        cpu.update(linear, true, |_| value)?
    };
    cpu.set_reg(register, old.into());
    Ok(())
}

fn xadd<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let source = insn.op1_register();
    let addend = T::from_u64(cpu.reg(source));
    let old = modify::<T>(cpu, insn, |flags, old| flags.add(old, addend, false))?;
    // With one register on both sides the sum, which is written last, stays.
    if insn.op0_kind() != OpKind::Register || insn.op0_register() != source {
        cpu.set_reg(source, old.into());
    }
    Ok(())
}

fn cmpxchg<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (low, _) = accumulator::<T>();
    let expected = T::from_u64(cpu.reg(low));
    let new = load::<T>(cpu, insn, 1)?;
    let found = if insn.op0_kind() == OpKind::Register {
        let register = insn.op0_register();
        let found = T::from_u64(cpu.reg(register));
        // Not written otherwise: that would clear the upper half of a 64-bit register.
        if found == expected {
            cpu.set_reg(register, new.into());
        }
        found
    } else {
        let linear = target(cpu, insn, 0)?;
        cpu.compare_exchange(linear, insn.has_lock_prefix(), expected, new)?
    };
    cpu.flags.sub(expected, found, false);
    if found != expected {
        cpu.set_reg(low, found.into());
    }
    Ok(())
}

fn cmpxchg8b(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let pair = |cpu: &Cpu, low, high| cpu.reg(low) | cpu.reg(high) << 32;
    let expected = pair(cpu, Register::EAX, Register::EDX);
    let new = pair(cpu, Register::EBX, Register::ECX);
    let linear = target(cpu, insn, 0)?;
    let found: u64 = cpu.compare_exchange(linear, insn.has_lock_prefix(), expected, new)?;
    if found != expected {
        cpu.set_reg(Register::EAX, found & 0xffff_ffff);
        cpu.set_reg(Register::EDX, found >> 32);
    }
    set_zf(&mut cpu.flags, found == expected);
    Ok(())
}

fn cmpxchg16b(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let pair = |cpu: &Cpu, low, high| u128::from(cpu.reg(low)) | u128::from(cpu.reg(high)) << 64;
    let expected = pair(cpu, Register::RAX, Register::RDX);
    let new = pair(cpu, Register::RBX, Register::RCX);
    let linear = target(cpu, insn, 0)?;
    if linear & 15 != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    // Atomic with or without the prefix: no other instruction of the host does it anyway.
    let found: u128 = cpu.compare_exchange(linear, true, expected, new)?;
    if found != expected {
        cpu.set_reg(Register::RAX, found as u64);
        cpu.set_reg(Register::RDX, (found >> 64) as u64);
    }
    set_zf(&mut cpu.flags, found == expected);
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Xchg => sized!(size(insn, 0), xchg),
    Xadd => sized!(size(insn, 0), xadd),
    Cmpxchg => sized!(size(insn, 0), cmpxchg),
    Cmpxchg8b if insn.code() == Code::Cmpxchg8b_m64 => cmpxchg8b,
    Cmpxchg16b => cmpxchg16b,
});
