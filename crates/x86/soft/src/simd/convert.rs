//! Conversions between floating point and integers in general and MMX registers.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::float::under_mxcsr;
use super::mmx;
use super::native::{self, Float, FromInt, ToInt};
use super::operand::{LOW64, mm, source, sse, unaligned, xmm};
use crate::cpu::{Cpu, Exec, Handler};
use crate::host::Scalar;

/// The implementation of `insn`, if it converts to or from a register that is not an XMM one.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    let wide_source = if insn.op1_kind() == OpKind::Register {
        insn.op1_register().size()
    } else {
        insn.memory_size().size()
    } == 8;
    let wide_result = insn.op0_register().size() == 8;
    Some(match (insn.mnemonic(), wide_source, wide_result) {
        (Mnemonic::Cvtsi2ss, false, _) => from_int::<native::Cvtsi2ss32>,
        (Mnemonic::Cvtsi2ss, true, _) => from_int::<native::Cvtsi2ss64>,
        (Mnemonic::Cvtsi2sd, false, _) => from_int::<native::Cvtsi2sd32>,
        (Mnemonic::Cvtsi2sd, true, _) => from_int::<native::Cvtsi2sd64>,
        (Mnemonic::Cvtss2si, _, false) => to_int::<native::Cvtss2si32, u32>,
        (Mnemonic::Cvtss2si, _, true) => to_int::<native::Cvtss2si64, u32>,
        (Mnemonic::Cvttss2si, _, false) => to_int::<native::Cvttss2si32, u32>,
        (Mnemonic::Cvttss2si, _, true) => to_int::<native::Cvttss2si64, u32>,
        (Mnemonic::Cvtsd2si, _, false) => to_int::<native::Cvtsd2si32, u64>,
        (Mnemonic::Cvtsd2si, _, true) => to_int::<native::Cvtsd2si64, u64>,
        (Mnemonic::Cvttsd2si, _, false) => to_int::<native::Cvttsd2si32, u64>,
        (Mnemonic::Cvttsd2si, _, true) => to_int::<native::Cvttsd2si64, u64>,
        (Mnemonic::Cvtpi2ps, ..) => cvtpi2ps,
        (Mnemonic::Cvtpi2pd, ..) => cvtpi2pd,
        (Mnemonic::Cvtps2pi, ..) => to_mmx::<native::Cvtps2dq, u64>,
        (Mnemonic::Cvttps2pi, ..) => to_mmx::<native::Cvttps2dq, u64>,
        (Mnemonic::Cvtpd2pi, ..) => to_mmx::<native::Cvtpd2dq, u128>,
        (Mnemonic::Cvttpd2pi, ..) => to_mmx::<native::Cvttpd2dq, u128>,
        _ => return None,
    })
}

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
pub fn to_int_operands<O: ToInt, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let s = unaligned::<T>(cpu, insn, 1)?;
    let value = under_mxcsr(cpu, |mxcsr| O::run(s, mxcsr), |_| false)?;
    cpu.set_reg(insn.op0_register(), value);
    Ok(())
}

/// The low two elements by the packed form; its other two are zeros, which convert exactly.
fn cvtpi2ps(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    mmx::usable(cpu)?;
    let s = mmx::source(cpu, insn, 1)?;
    // The transition to MMX comes before the operation, whose exceptions do not undo it.
    mmx::enter(cpu);
    let new = under_mxcsr(cpu, |mxcsr| native::Cvtdq2ps::run(0, s.into(), 0, mxcsr), |_| false)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = *d & !LOW64 | new & LOW64;
    Ok(())
}

/// Unlike CVTPI2PS, no transition to MMX when the source is memory (SDM volume 2).
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
    // As above: the transition stays, whatever the conversion raises.
    mmx::enter(cpu);
    let new = under_mxcsr(cpu, |mxcsr| O::run(0, s, 0, mxcsr), |_| false)?;
    mmx::set(cpu, mm(insn.op0_register()), new as u64);
    Ok(())
}
