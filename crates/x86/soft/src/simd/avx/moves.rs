//! Moves between registers and memory, VZEROUPPER and VZEROALL.

use iced_x86::Instruction;
use satori_engine::Exception;
use satori_state::Ymm;

use super::operand::{avx, load, register, set, set_low, source, store, wide};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, from_memory, rows, to_memory};
use crate::simd::legacy::check_mxcsr;
use crate::simd::moves::{double_signs, single_signs, store_masked};
use crate::simd::native;
use crate::simd::operand::LOW64;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Vmovaps | Vmovapd | Vmovdqa if to_memory(insn) => |cpu, insn| store_vector(cpu, insn, true),
    Vmovntps | Vmovntpd | Vmovntdq => |cpu, insn| store_vector(cpu, insn, true),
    Vmovups | Vmovupd | Vmovdqu if to_memory(insn) => |cpu, insn| store_vector(cpu, insn, false),
    Vmovaps | Vmovapd | Vmovdqa if from_memory(insn) => |cpu, insn| load_vector(cpu, insn, true),
    Vmovntdqa => |cpu, insn| load_vector(cpu, insn, true),
    Vmovups | Vmovupd | Vmovdqu if from_memory(insn) => |cpu, insn| load_vector(cpu, insn, false),
    Vlddqu => |cpu, insn| load_vector(cpu, insn, false),
    Vmovaps | Vmovapd | Vmovdqa | Vmovups | Vmovupd | Vmovdqu => copy,
    Vmovd | Vmovss if to_memory(insn) => store_low::<u32>,
    Vmovq | Vmovsd | Vmovlps | Vmovlpd if to_memory(insn) => store_low::<u64>,
    Vmovhps | Vmovhpd if to_memory(insn) => store_high,
    Vmovd | Vmovss if from_memory(insn) => load_low::<u32>,
    Vmovq | Vmovsd if from_memory(insn) => load_low::<u64>,
    Vmovd | Vmovq if insn.op0_register().is_gpr() => to_register,
    Vmovd | Vmovq if insn.op1_register().is_gpr() => from_register,
    Vmovq => |cpu, insn| merge(cpu, insn, 1, |_, s| s & LOW64),
    Vmovss => |cpu, insn| merge(cpu, insn, 2, |a, s| a & !LOW32 | s & LOW32),
    Vmovsd | Vmovlps | Vmovlpd => |cpu, insn| merge(cpu, insn, 2, |a, s| a & !LOW64 | s & LOW64),
    Vmovhps | Vmovhpd | Vmovlhps => |cpu, insn| merge(cpu, insn, 2, |a, s| a & LOW64 | s << 64),
    Vmovhlps => |cpu, insn| merge(cpu, insn, 2, |a, s| a & !LOW64 | s >> 64),
    Vmovmskps => |cpu, insn| signs(cpu, insn, single_signs, 4),
    Vmovmskpd => |cpu, insn| signs(cpu, insn, double_signs, 2),
    Vpmovmskb => |cpu, insn| signs(cpu, insn, native::pmovmskb, 16),
    Vmaskmovdqu => maskmovdqu,
    Vzeroupper => |cpu, _| zero(cpu, |ymm| ymm.high = 0),
    Vzeroall => |cpu, _| zero(cpu, |ymm| *ymm = Ymm::default()),
    Vldmxcsr => ldmxcsr,
    Vstmxcsr => stmxcsr,
});

const LOW32: u128 = u32::MAX as u128;

/// #GP(0) unless `linear` is a multiple of the operand's size.
fn require_aligned(cpu: &mut Cpu, linear: u64, wide: bool) -> Exec<()> {
    let mask = if wide { 31 } else { 15 };
    if linear & mask == 0 { Ok(()) } else { Err(cpu.raise(Exception::gp(0))) }
}

#[inline(always)]
fn load_vector(cpu: &mut Cpu, insn: &Instruction, aligned: bool) -> Exec<()> {
    avx(cpu)?;
    let wide = insn.op0_register().is_ymm();
    let linear = cpu.ea(insn, 1)?;
    if aligned {
        require_aligned(cpu, linear, wide)?;
    }
    let value = if wide { load(cpu, linear)? } else { Ymm { low: cpu.read(linear)?, high: 0 } };
    set(cpu, insn.op0_register(), value, wide);
    Ok(())
}

#[inline(always)]
fn store_vector(cpu: &mut Cpu, insn: &Instruction, aligned: bool) -> Exec<()> {
    avx(cpu)?;
    let wide = insn.op1_register().is_ymm();
    let linear = cpu.ea_write(insn, 0)?;
    if aligned {
        require_aligned(cpu, linear, wide)?;
    }
    let value = register(cpu, insn.op1_register());
    if wide { store(cpu, linear, value) } else { cpu.write(linear, value.low) }
}

fn copy(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let value = register(cpu, insn.op1_register());
    set(cpu, insn.op0_register(), value, wide(insn));
    Ok(())
}

fn load_low<T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = source::<T>(cpu, insn, 1, false)?.low;
    set_low(cpu, insn.op0_register(), s);
    Ok(())
}

fn store_low<T: Scalar>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let linear = cpu.ea_write(insn, 0)?;
    let value = register(cpu, insn.op1_register()).low;
    cpu.write(linear, T::from_bytes(&value.to_le_bytes()))
}

fn store_high(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let linear = cpu.ea_write(insn, 0)?;
    cpu.write(linear, (register(cpu, insn.op1_register()).low >> 64) as u64)
}

fn to_register(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    cpu.set_reg(insn.op0_register(), register(cpu, insn.op1_register()).low as u64);
    Ok(())
}

fn from_register(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    set_low(cpu, insn.op0_register(), cpu.reg(insn.op1_register()).into());
    Ok(())
}

/// A mixture of the first source and the one at place `op`, a register or 64 bits.
#[inline(always)]
fn merge(cpu: &mut Cpu, insn: &Instruction, op: u32, mix: impl Fn(u128, u128) -> u128) -> Exec<()> {
    avx(cpu)?;
    let s = source::<u64>(cpu, insn, op, false)?.low;
    let a = register(cpu, insn.op1_register()).low;
    set_low(cpu, insn.op0_register(), mix(a, s));
    Ok(())
}

/// Sets a general register to the signs of all elements, of which a half has `count`.
#[inline(always)]
fn signs(cpu: &mut Cpu, insn: &Instruction, half: fn(u128) -> u64, count: u32) -> Exec<()> {
    avx(cpu)?;
    let s = register(cpu, insn.op1_register());
    let high = if wide(insn) { half(s.high) << count } else { 0 };
    cpu.set_reg(insn.op0_register(), half(s.low) | high);
    Ok(())
}

fn maskmovdqu(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let data = register(cpu, insn.op1_register()).low;
    let mask = register(cpu, insn.op2_register()).low;
    store_masked(cpu, insn, &data.to_le_bytes(), &mask.to_le_bytes())
}

/// Outside 64-bit code there are eight registers (SDM volume 2, VZEROALL and VZEROUPPER).
fn zero(cpu: &mut Cpu, change: impl Fn(&mut Ymm)) -> Exec<()> {
    avx(cpu)?;
    let count = if cpu.derived.code64 { 16 } else { 8 };
    cpu.state.fpu.ymm[..count].iter_mut().for_each(change);
    Ok(())
}

fn ldmxcsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    let value = cpu.read::<u32>(linear)?;
    check_mxcsr(cpu, value)?;
    cpu.state.fpu.mxcsr = value;
    cpu.masks_loaded();
    Ok(())
}

fn stmxcsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let linear = cpu.ea_write(insn, 0)?;
    cpu.write(linear, cpu.state.fpu.mxcsr)
}
