//! Floating point: the rows of SSE on one half or both, VCMP's 32 predicates, and F16C.

use iced_x86::{Instruction, OpKind};
use satori_state::Ymm;

use super::operand::{avx, register, set, set_low, source, sources, wide};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, legacy, rows};
use crate::simd::float::{Dot, Unbounded, elements, is_tiny, must_be_exact, under_mxcsr};
use crate::simd::native::{self, Float};
use crate::simd::table::{dot_rows, float_imm_rows, float_rows, native_rows};

/// VCMP has more predicates than SSE's, and F16C no relative there.
pub(super) const OWN: &[Row] = rows!(insn {
    Vcmpps => float::<native::Vcmpps, u128>,
    Vcmppd => float::<native::Vcmppd, u128>,
    Vcmpss => float::<native::Vcmpss, u32>,
    Vcmpsd => float::<native::Vcmpsd, u64>,
    Vcvtph2ps if is_x86_feature_detected!("f16c") => float::<native::Vcvtph2ps, u64>,
    Vcvtps2ph if is_x86_feature_detected!("f16c") => to_halves,
});
pub(super) const FLOAT: &[Row] = float_rows!(native_rows Vex float);
pub(super) const IMMEDIATE: &[Row] = float_imm_rows!(native_rows Vex float);
pub(super) const DOT: &[Row] = dot_rows!(native_rows Vex dot);

/// Both halves of an operation under MXCSR, whose flags add up.
#[inline(always)]
fn both(a: Ymm, b: Ymm, operation: impl Fn(u128, u128) -> (u128, u32)) -> (Ymm, u32) {
    let (low, flags) = operation(a.low, b.low);
    let (high, more_flags) = operation(a.high, b.high);
    (Ymm { low, high }, flags | more_flags)
}

fn either_is_tiny<O: Float>(value: &Ymm) -> bool {
    is_tiny(O::TINY, value.low) || is_tiny(O::TINY, value.high)
}

fn float<O: Float, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let (wide, (first, second)) = (wide(insn), sources(insn));
    let mut b = source::<T>(cpu, insn, second, wide)?;
    let a = if first == second { b } else { register(cpu, insn.op1_register()) };
    if wide && T::SIZE == 8 {
        // Each half of the result comes from a quarter of the source.
        b = Ymm { low: b.low, high: b.low >> 64 };
    }
    let result = compute::<O>(cpu, insn, a, b, wide, T::SIZE)?;
    if wide && insn.op0_register().is_xmm() {
        // And here the other way about.
        set_low(cpu, insn.op0_register(), result.low | result.high << 64);
    } else {
        set(cpu, insn.op0_register(), result, wide);
    }
    Ok(())
}

#[inline(always)]
fn compute<O: Float>(cpu: &mut Cpu, insn: &Instruction, a: Ymm, b: Ymm, wide: bool, size: u64) -> Exec<Ymm> {
    let imm = insn.immediate8();
    let (a, b) = if wide { (a, b) } else { (Ymm { high: 0, ..a }, Ymm { high: 0, ..b }) };
    if must_be_exact::<O>(cpu) {
        let mnemonic = legacy(insn.mnemonic()).unwrap_or(insn.mnemonic());
        let operation = Unbounded::new(cpu, mnemonic, imm, size);
        let run = |mxcsr| halves::<_>(wide, a, b, |a, b| operation.run::<O>(a, b, mxcsr));
        return under_mxcsr(cpu, run, either_is_tiny::<O>);
    }
    under_mxcsr(cpu, |mxcsr| halves(wide, a, b, |a, b| O::run(a, b, imm, mxcsr)), |_| false)
}

/// Both halves, or the lower one alone.
#[inline(always)]
fn halves<F: Fn(u128, u128) -> (u128, u32)>(wide: bool, a: Ymm, b: Ymm, operation: F) -> (Ymm, u32) {
    if wide {
        return both(a, b, operation);
    }
    let (low, flags) = operation(a.low, b.low);
    (Ymm { low, high: 0 }, flags)
}

fn dot<O: Float, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let b = source::<T>(cpu, insn, 2, wide)?;
    let a = register(cpu, insn.op1_register());
    let dot = Dot { imm: insn.immediate8(), guest: cpu.state.fpu.mxcsr };
    let tiny = |sum: &Ymm| {
        dot.is_tiny::<O>(a.low, b.low, sum.low) || wide && dot.is_tiny::<O>(a.high, b.high, sum.high)
    };
    let sum = under_mxcsr(cpu, |mxcsr| halves(wide, a, b, |a, b| dot.run::<O>(a, b, mxcsr)), tiny)?;
    let receive = elements::<O>(dot.imm);
    set(cpu, insn.op0_register(), Ymm { low: sum.low & receive, high: sum.high & receive }, wide);
    Ok(())
}

/// VCVTPS2PH, whose destination may be memory: then MXCSR changes only if the store succeeds.
fn to_halves(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let s = register(cpu, insn.op1_register());
    if insn.op0_kind() == OpKind::Register {
        let result = compute::<native::Vcvtps2ph>(cpu, insn, s, s, wide, 16)?;
        set_low(cpu, insn.op0_register(), packed_halves(result));
        return Ok(());
    }
    let linear = cpu.ea_write(insn, 0)?;
    let size = if wide { 16 } else { 8 };
    cpu.require_alignment(linear, size)?;
    cpu.probe_write(linear, size)?;
    let before = cpu.state.fpu.mxcsr;
    let result = packed_halves(compute::<native::Vcvtps2ph>(cpu, insn, s, s, wide, 16)?);
    let written = if wide { cpu.write(linear, result) } else { cpu.write(linear, result as u64) };
    if written.is_err() {
        cpu.state.fpu.mxcsr = before;
    }
    written
}

/// Four or eight half-precision numbers side by side.
fn packed_halves(value: Ymm) -> u128 {
    value.low & u128::from(u64::MAX) | value.high << 64
}
