//! Moves between registers and memory.

use iced_x86::{Instruction, OpKind};

use super::native;
use super::operand::{LOW64, require_aligned, sse, store_address, unaligned, xmm};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, from_memory, rows, to_memory};
use crate::operands::truncate;

/// The one move of this file between general registers and memory.
pub(super) const GENERAL: &[Row] = rows!(insn {
    Movnti => movnti,
});

/// Moves of XMM registers.
pub(super) const ROWS: &[Row] = rows!(insn {
    Movaps | Movapd | Movdqa if to_memory(insn) => store_aligned,
    Movntps | Movntpd | Movntdq => store_aligned,
    Movaps | Movapd | Movdqa if from_memory(insn) => load_aligned,
    Movntdqa if is_x86_feature_detected!("sse4.1") => load_aligned,
    Movups | Movupd | Movdqu if to_memory(insn) => store::<u128>,
    Movups | Movupd | Movdqu if from_memory(insn) => load::<u128>,
    Lddqu => load::<u128>,
    Movaps | Movapd | Movdqa => copy,
    Movups | Movupd | Movdqu => copy,
    Movss if to_memory(insn) => store::<u32>,
    Movss if from_memory(insn) => load::<u32>,
    Movss => movss,
    Movsd if to_memory(insn) => store::<u64>,
    Movsd if from_memory(insn) => load::<u64>,
    Movsd => movsd,
    Movlps | Movlpd if to_memory(insn) => store::<u64>,
    Movlps | Movlpd => load_low,
    Movhps | Movhpd if to_memory(insn) => store_high,
    Movhps | Movhpd => load_high,
    Movhlps => movhlps,
    Movlhps => movlhps,
    Movq if to_memory(insn) => store::<u64>,
    Movd if to_memory(insn) => store::<u32>,
    Movq if from_memory(insn) => load::<u64>,
    Movd if from_memory(insn) => load::<u32>,
    Movq if insn.op0_register().is_xmm() && insn.op1_register().is_xmm() => movq,
    Movq | Movd if insn.op0_register().is_xmm() => from_general,
    Movq | Movd => to_general,
    Movmskps => movmskps,
    Movmskpd => movmskpd,
    Pmovmskb => pmovmskb,
    Maskmovdqu => maskmovdqu,
});

fn load<T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = cpu.ea(insn, 1)?;
    cpu.state.fpu.ymm[xmm(insn.op0_register())].low = cpu.read::<T>(linear)?.into();
    Ok(())
}

fn load_aligned(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = cpu.ea(insn, 1)?;
    require_aligned(cpu, linear)?;
    cpu.state.fpu.ymm[xmm(insn.op0_register())].low = cpu.read(linear)?;
    Ok(())
}

fn store<T: Scalar>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    let value = cpu.state.fpu.ymm[xmm(insn.op1_register())].low;
    cpu.write(linear, T::from_bytes(&value.to_le_bytes()))
}

fn store_aligned(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    require_aligned(cpu, linear)?;
    cpu.write(linear, cpu.state.fpu.ymm[xmm(insn.op1_register())].low)
}

fn store_high(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    cpu.write(linear, (cpu.state.fpu.ymm[xmm(insn.op1_register())].low >> 64) as u64)
}

fn load_low(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |d, s| d & !LOW64 | s & LOW64)
}

fn load_high(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |d, s| d & LOW64 | s << 64)
}

/// Replaces the destination by a mixture of it and the source, an XMM register or 64 bits.
#[inline(always)]
fn merge(cpu: &mut Cpu, insn: &Instruction, mix: impl Fn(u128, u128) -> u128) -> Exec<()> {
    sse(cpu)?;
    let s = unaligned::<u64>(cpu, insn, 1)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = mix(*d, s);
    Ok(())
}

fn copy(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |_, s| s)
}

fn movq(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |_, s| s & LOW64)
}

fn movss(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    const LOW32: u128 = u32::MAX as u128;
    merge(cpu, insn, |d, s| d & !LOW32 | s & LOW32)
}

fn movsd(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |d, s| d & !LOW64 | s & LOW64)
}

fn movhlps(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |d, s| d & !LOW64 | s >> 64)
}

fn movlhps(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    merge(cpu, insn, |d, s| d & LOW64 | s << 64)
}

fn from_general(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    cpu.state.fpu.ymm[xmm(insn.op0_register())].low = cpu.reg(insn.op1_register()).into();
    Ok(())
}

fn to_general(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    cpu.set_reg(insn.op0_register(), cpu.state.fpu.ymm[xmm(insn.op1_register())].low as u64);
    Ok(())
}

/// Sets a general register from an XMM register.
#[inline(always)]
fn mask(cpu: &mut Cpu, insn: &Instruction, signs: impl Fn(u128) -> u64) -> Exec<()> {
    sse(cpu)?;
    cpu.set_reg(insn.op0_register(), signs(cpu.state.fpu.ymm[xmm(insn.op1_register())].low));
    Ok(())
}

/// The signs of four singles.
pub(super) fn single_signs(s: u128) -> u64 {
    (0..4).map(|i| ((s >> (i * 32 + 31)) as u64 & 1) << i).sum()
}

/// The signs of two doubles.
pub(super) fn double_signs(s: u128) -> u64 {
    (s >> 63) as u64 & 1 | (s >> 126) as u64 & 2
}

fn movmskps(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    mask(cpu, insn, single_signs)
}

fn movmskpd(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    mask(cpu, insn, double_signs)
}

fn pmovmskb(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    mask(cpu, insn, native::pmovmskb)
}

/// MOVNTI: an ordinary store; needs neither CR4.OSFXSR nor a clear CR0.TS.
fn movnti(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = cpu.reg(insn.op1_register());
    cpu.set_operand(insn, 0, value)
}

fn maskmovdqu(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let data = cpu.state.fpu.ymm[xmm(insn.op1_register())].low;
    let mask = cpu.state.fpu.ymm[xmm(insn.op2_register())].low;
    store_masked(cpu, insn, &data.to_le_bytes(), &mask.to_le_bytes())
}

/// Stores the bytes whose mask byte has its top bit set at DS:rDI (or an overriding segment).
pub(super) fn store_masked(cpu: &mut Cpu, insn: &Instruction, data: &[u8], mask: &[u8]) -> Exec<()> {
    let bits = match insn.op0_kind() {
        OpKind::MemorySegDI => 16,
        OpKind::MemorySegEDI => 32,
        _ => 64,
    };
    let offset = truncate(cpu.state.gpr[satori_state::reg::RDI], bits);
    let size = data.len() as u64;
    let linear = cpu.segment_linear(insn.memory_segment().number(), offset, size, true)?;
    cpu.require_alignment(linear, size)?;
    if mask.iter().all(|byte| byte & 0x80 == 0) {
        return Ok(());
    }
    cpu.probe_write(linear, size)?;
    for (i, (byte, _)) in data.iter().zip(mask).enumerate().filter(|(_, (_, mask))| *mask & 0x80 != 0) {
        cpu.write(linear.wrapping_add(i as u64), *byte)?;
    }
    Ok(())
}
