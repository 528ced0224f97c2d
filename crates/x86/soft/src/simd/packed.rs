//! Packed integers and bits: everything that one native instruction does without control words.

use iced_x86::{Instruction, OpKind};

use super::native::{self, Packed, PackedImm, PackedXmm0};
use super::operand::{source, sse, unaligned, xmm};
use super::table::{low_rows, native_rows, packed_imm_rows, packed_rows, packed_xmm0_rows};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, rows};

/// Shifts by an immediate: the count is what the other form takes from its source.
pub(super) const SHIFTS: &[Row] = rows!(insn {
    Psllw if by_immediate(insn) => shift::<native::Psllw>,
    Pslld if by_immediate(insn) => shift::<native::Pslld>,
    Psllq if by_immediate(insn) => shift::<native::Psllq>,
    Psrlw if by_immediate(insn) => shift::<native::Psrlw>,
    Psrld if by_immediate(insn) => shift::<native::Psrld>,
    Psrlq if by_immediate(insn) => shift::<native::Psrlq>,
    Psraw if by_immediate(insn) => shift::<native::Psraw>,
    Psrad if by_immediate(insn) => shift::<native::Psrad>,
    Pslldq => shift::<LeftBytes>,
    Psrldq => shift::<RightBytes>,
});
pub(super) const PACKED: &[Row] = packed_rows!(native_rows Mnemonics packed);
pub(super) const LOW: &[Row] = low_rows!(native_rows Mnemonics low);
pub(super) const XMM0: &[Row] = packed_xmm0_rows!(native_rows Mnemonics packed_xmm0);
pub(super) const IMMEDIATE: &[Row] = packed_imm_rows!(native_rows Mnemonics packed_imm);

fn packed<O: Packed>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<u128>(cpu, insn, 1)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, s);
    Ok(())
}

fn low<O: Packed, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = unaligned::<T>(cpu, insn, 1)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, s);
    Ok(())
}

fn packed_xmm0<O: PackedXmm0>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<u128>(cpu, insn, 1)?;
    let xmm0 = cpu.state.fpu.ymm[0].low;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, s, xmm0);
    Ok(())
}

/// `xmm = op(xmm, xmm/m128, imm8)`.
pub(super) fn packed_imm<O: PackedImm>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<u128>(cpu, insn, 1)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, s, insn.immediate8());
    Ok(())
}

/// Whether a shift's count is an immediate.
pub(super) fn by_immediate(insn: &Instruction) -> bool {
    insn.op1_kind() == OpKind::Immediate8
}

fn shift<O: Packed>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, insn.immediate8().into());
    Ok(())
}

/// PSLLDQ.
pub(super) struct LeftBytes;

impl Packed for LeftBytes {
    fn run(destination: u128, count: u128) -> u128 {
        if count > 15 { 0 } else { destination << (8 * count) }
    }
}

/// PSRLDQ.
pub(super) struct RightBytes;

impl Packed for RightBytes {
    fn run(destination: u128, count: u128) -> u128 {
        if count > 15 { 0 } else { destination >> (8 * count) }
    }
}
