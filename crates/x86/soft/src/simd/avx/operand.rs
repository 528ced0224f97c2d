//! Operands of 128 and 256 bits, and whether AVX instructions may execute at all.

use iced_x86::{Instruction, OpKind, Register};
use satori_defs::fpu::xsave;
use satori_defs::x86::{cr0, cr4, rflags, vector};
use satori_engine::Exception;
use satori_state::Ymm;

use crate::cpu::{Cpu, Exec, Stop};
use crate::host::Scalar;
use crate::simd::operand::xmm;

/// What XCR0 must have enabled.
const ENABLED: u64 = xsave::SSE | xsave::AVX;

/// Whether AVX instructions may execute: protected mode, and the operating system's consent, else
/// #UD; #NM while the registers belong to another task (SDM volume 2, 2.4).
#[inline(always)]
pub(super) fn avx(cpu: &mut Cpu) -> Exec<()> {
    let state = &cpu.state;
    if state.cr0 & (cr0::PE | cr0::TS) == cr0::PE
        && state.cr4 & cr4::OSXSAVE != 0
        && state.xcr0 & ENABLED == ENABLED
        && state.rflags & rflags::VM == 0
    {
        Ok(())
    } else {
        Err(refuse(cpu))
    }
}

#[cold]
fn refuse(cpu: &mut Cpu) -> Stop {
    let state = &cpu.state;
    let undefined = state.cr0 & cr0::PE == 0
        || state.rflags & rflags::VM != 0
        || state.cr4 & cr4::OSXSAVE == 0
        || state.xcr0 & ENABLED != ENABLED;
    cpu.raise(if undefined { Exception::ud() } else { Exception::new(vector::NM) })
}

/// Whether `insn` works on 256 bits: VEX.L.
#[inline(always)]
pub(super) fn wide(insn: &Instruction) -> bool {
    insn.op0_register().is_ymm() || insn.op1_register().is_ymm() || insn.memory_size().size() == 32
}

/// The places of the two sources before the immediate; of one source, twice the same.
#[inline(always)]
pub(super) fn sources(insn: &Instruction) -> (u32, u32) {
    let last = insn.op_count() - 1;
    let second = if insn.op_kind(last) == OpKind::Immediate8 { last - 1 } else { last };
    (if second == 2 { 1 } else { second }, second)
}

/// A vector register.
#[inline(always)]
pub(super) fn register(cpu: &Cpu, r: Register) -> Ymm {
    cpu.state.fpu.ymm[xmm(r)]
}

/// Sets a vector register; bits 255:128 become zero unless the instruction is `wide`.
#[inline(always)]
pub(super) fn set(cpu: &mut Cpu, r: Register, value: Ymm, wide: bool) {
    cpu.state.fpu.ymm[xmm(r)] = Ymm { low: value.low, high: if wide { value.high } else { 0 } };
}

/// Sets an XMM register and clears the rest.
#[inline(always)]
pub(super) fn set_low(cpu: &mut Cpu, r: Register, low: u128) {
    cpu.state.fpu.ymm[xmm(r)] = Ymm { low, high: 0 };
}

/// A register whole, or a `T` in memory at any alignment; two of them if `wide`.
#[inline(always)]
pub(super) fn source<T: Scalar + Into<u128>>(
    cpu: &mut Cpu,
    insn: &Instruction,
    op: u32,
    wide: bool,
) -> Exec<Ymm> {
    if insn.op_kind(op) == OpKind::Register {
        return Ok(register(cpu, insn.op_register(op)));
    }
    let linear = cpu.ea(insn, op)?;
    if !wide {
        return Ok(Ymm { low: cpu.read::<T>(linear)?.into(), high: 0 });
    }
    let low = match T::SIZE {
        16 => return load(cpu, linear),
        8 => cpu.read::<u128>(linear)?,
        4 => cpu.read::<u64>(linear)?.into(),
        _ => cpu.read::<u32>(linear)?.into(),
    };
    Ok(Ymm { low, high: 0 })
}

/// Reads 256 bits. Where alignment is checked, that of 16 bytes is enough for AMD's processors.
#[inline(always)]
pub(super) fn load(cpu: &mut Cpu, linear: u64) -> Exec<Ymm> {
    let low = cpu.read(linear)?;
    Ok(Ymm { low, high: cpu.read(linear.wrapping_add(16))? })
}

/// Writes 256 bits, all or nothing.
#[inline(always)]
pub(super) fn store(cpu: &mut Cpu, linear: u64, value: Ymm) -> Exec<()> {
    // Within one page the first half's fault is the second's.
    if linear & 0xfff > 0x1000 - 32 {
        cpu.require_alignment(linear, 16)?;
        cpu.probe_write(linear, 32)?;
    }
    cpu.write(linear, value.low)?;
    cpu.write(linear.wrapping_add(16), value.high)
}

/// What `operation` makes of either half.
#[inline(always)]
pub(super) fn halves(wide: bool, a: Ymm, b: Ymm, operation: impl Fn(u128, u128) -> u128) -> Ymm {
    Ymm { low: operation(a.low, b.low), high: if wide { operation(a.high, b.high) } else { 0 } }
}

/// The eight doublewords of a value.
pub(super) fn dwords(value: Ymm) -> [u32; 8] {
    std::array::from_fn(|i| (if i < 4 { value.low } else { value.high } >> (i % 4 * 32)) as u32)
}

/// The value of eight doublewords.
pub(super) fn from_dwords(words: [u32; 8]) -> Ymm {
    let half = |at: usize| (0..4).fold(0, |half, i| half | u128::from(words[at + i]) << (i * 32));
    Ymm { low: half(0), high: half(4) }
}

/// The four quadwords of a value.
pub(super) fn qwords(value: Ymm) -> [u64; 4] {
    [value.low as u64, (value.low >> 64) as u64, value.high as u64, (value.high >> 64) as u64]
}

/// The value of four quadwords.
pub(super) fn from_qwords([a, b, c, d]: [u64; 4]) -> Ymm {
    let half = |low, high| u128::from(low) | u128::from(high) << 64;
    Ymm { low: half(a, b), high: half(c, d) }
}
