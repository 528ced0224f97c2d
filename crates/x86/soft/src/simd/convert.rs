//! Conversions between floating point and integers in general and MMX registers.

use iced_x86::{Instruction, OpKind};

use super::float::under_mxcsr;
use super::mmx;
use super::native::{self, Float, FromInt, ToInt};
use super::operand::{LOW64, mm, source, sse, unaligned, xmm};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, rows};

/// Whether operand `op`, a register or memory, has 64 bits.
pub(super) fn wide(insn: &Instruction, op: u32) -> bool {
    let size = match insn.op_kind(op) {
        OpKind::Register => insn.op_register(op).size(),
        _ => insn.memory_size().size(),
    };
    size == 8
}

/// Conversions to or from a register that is not an XMM one.
pub(super) const ROWS: &[Row] = rows!(insn {
    Cvtsi2ss if wide(insn, 1) => from_int::<native::Cvtsi2ss64>,
    Cvtsi2ss => from_int::<native::Cvtsi2ss32>,
    Cvtsi2sd if wide(insn, 1) => from_int::<native::Cvtsi2sd64>,
    Cvtsi2sd => from_int::<native::Cvtsi2sd32>,
    Cvtss2si if wide(insn, 0) => to_int::<native::Cvtss2si64, u32>,
    Cvtss2si => to_int::<native::Cvtss2si32, u32>,
    Cvttss2si if wide(insn, 0) => to_int::<native::Cvttss2si64, u32>,
    Cvttss2si => to_int::<native::Cvttss2si32, u32>,
    Cvtsd2si if wide(insn, 0) => to_int::<native::Cvtsd2si64, u64>,
    Cvtsd2si => to_int::<native::Cvtsd2si32, u64>,
    Cvttsd2si if wide(insn, 0) => to_int::<native::Cvttsd2si64, u64>,
    Cvttsd2si => to_int::<native::Cvttsd2si32, u64>,
    Cvtpi2ps => cvtpi2ps,
    Cvtpi2pd => cvtpi2pd,
    Cvtps2pi => to_mmx::<native::Cvtps2dq, u64>,
    Cvttps2pi => to_mmx::<native::Cvttps2dq, u64>,
    Cvtpd2pi => to_mmx::<native::Cvtpd2dq, u128>,
    Cvttpd2pi => to_mmx::<native::Cvttpd2dq, u128>,
});

fn from_int<O: FromInt>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = cpu.operand(insn, 1)?;
    let d = xmm(insn.op0_register());
    let old = cpu.state.fpu.ymm[d].low;
    cpu.state.fpu.ymm[d].low = under_mxcsr(cpu, |mxcsr| O::run(old, s, mxcsr), |_| false)?;
    Ok(())
}

fn to_int<O: ToInt, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    to_int_operands::<O, T>(cpu, insn)
}

/// A conversion to a general register, once vector instructions may execute.
pub(super) fn to_int_operands<O: ToInt, T: Scalar + Into<u128>>(
    cpu: &mut Cpu,
    insn: &Instruction,
) -> Exec<()> {
    let s = unaligned::<T>(cpu, insn, 1)?;
    let value = under_mxcsr(cpu, |mxcsr| O::run(s, mxcsr), |_| false)?;
    cpu.set_reg(insn.op0_register(), value);
    Ok(())
}

/// The low two elements by the packed form; its other two are zeros, which convert exactly. A source in memory makes no
/// transition to MMX: of CVTPI2PD the manual says so, and processors of both makers do so here too.
fn cvtpi2ps(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let from_register = insn.op1_kind() == OpKind::Register;
    if from_register {
        mmx::usable(cpu)?;
    }
    let s = mmx::source(cpu, insn, 1)?;
    // The transition comes before the operation, whose exceptions do not undo it.
    if from_register {
        mmx::enter(cpu);
    }
    let new = under_mxcsr(cpu, |mxcsr| native::Cvtdq2ps::run(0, s.into(), 0, mxcsr), |_| false)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = *d & !LOW64 | new & LOW64;
    Ok(())
}

/// No transition to MMX when the source is memory (SDM volume 2).
fn cvtpi2pd(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let from_register = insn.op1_kind() == OpKind::Register;
    if from_register {
        mmx::usable(cpu)?;
    }
    let s = mmx::source(cpu, insn, 1)?;
    let (new, _) = native::Cvtdq2pd::run(0, s.into(), 0, satori_defs::fpu::mxcsr::RESET);
    if from_register {
        mmx::enter(cpu);
    }
    cpu.state.fpu.ymm[xmm(insn.op0_register())].low = new;
    Ok(())
}

fn to_mmx<O: Float, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    mmx::usable(cpu)?;
    let mut s = source::<T>(cpu, insn, 1)?;
    if T::SIZE == 8 {
        // The packed form would convert the upper half too, and flag it.
        s &= LOW64;
    }
    // The transition stays, whatever the conversion raises.
    mmx::enter(cpu);
    let new = under_mxcsr(cpu, |mxcsr| O::run(0, s, 0, mxcsr), |_| false)?;
    mmx::set(cpu, mm(insn.op0_register()), new as u64);
    Ok(())
}
