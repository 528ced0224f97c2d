//! Packed integers and bits: everything that one native instruction does without control words.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::native::{self, Packed, PackedImm, PackedXmm0};
use super::operand::{source, sse, unaligned, xmm};
use super::table::{low_rows, packed_imm_rows, packed_rows, packed_xmm0_rows};
use crate::cpu::{Cpu, Exec, Handler};
use crate::host::Scalar;

/// The implementation of `insn`, if it is a row of the tables without control words.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    if !insn.op0_register().is_xmm() {
        return None;
    }
    if insn.op1_kind() == OpKind::Immediate8 {
        return by_immediate(insn.mnemonic());
    }
    let mnemonic = insn.mnemonic();
    packed_row(mnemonic)
        .or_else(|| low_row(mnemonic))
        .or_else(|| packed_xmm0_row(mnemonic))
        .or_else(|| packed_imm_row(mnemonic))
}

macro_rules! dispatch_packed {
    ($($feature:tt { $($name:ident $op:literal;)* })*) => {
        fn packed_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => packed::<native::$name>,)*)*
                _ => return None,
            })
        }
    };
}
packed_rows!(dispatch_packed);

macro_rules! dispatch_low {
    ($($feature:tt { $($name:ident $op:literal $ty:ident;)* })*) => {
        fn low_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => low::<native::$name, $ty>,)*)*
                _ => return None,
            })
        }
    };
}
low_rows!(dispatch_low);

macro_rules! dispatch_xmm0 {
    ($($feature:tt { $($name:ident $op:literal;)* })*) => {
        fn packed_xmm0_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => packed_xmm0::<native::$name>,)*)*
                _ => return None,
            })
        }
    };
}
packed_xmm0_rows!(dispatch_xmm0);

macro_rules! dispatch_imm {
    ($($feature:tt { $($name:ident $op:literal $mask:literal [$($imm:literal)*];)* })*) => {
        fn packed_imm_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => packed_imm::<native::$name>,)*)*
                _ => return None,
            })
        }
    };
}
packed_imm_rows!(dispatch_imm);

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
pub fn packed_imm<O: PackedImm>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<u128>(cpu, insn, 1)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, s, insn.immediate8());
    Ok(())
}

/// Shifts by an immediate: the count is what the other form takes from its source.
fn by_immediate(mnemonic: Mnemonic) -> Option<Handler> {
    Some(match mnemonic {
        Mnemonic::Psllw => shift::<native::Psllw>,
        Mnemonic::Pslld => shift::<native::Pslld>,
        Mnemonic::Psllq => shift::<native::Psllq>,
        Mnemonic::Psrlw => shift::<native::Psrlw>,
        Mnemonic::Psrld => shift::<native::Psrld>,
        Mnemonic::Psrlq => shift::<native::Psrlq>,
        Mnemonic::Psraw => shift::<native::Psraw>,
        Mnemonic::Psrad => shift::<native::Psrad>,
        Mnemonic::Pslldq => shift::<LeftBytes>,
        Mnemonic::Psrldq => shift::<RightBytes>,
        _ => return None,
    })
}

fn shift<O: Packed>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = O::run(*d, insn.immediate8().into());
    Ok(())
}

/// PSLLDQ.
pub struct LeftBytes;

impl Packed for LeftBytes {
    fn run(destination: u128, count: u128) -> u128 {
        if count > 15 { 0 } else { destination << (8 * count) }
    }
}

/// PSRLDQ.
pub struct RightBytes;

impl Packed for RightBytes {
    fn run(destination: u128, count: u128) -> u128 {
        if count > 15 { 0 } else { destination >> (8 * count) }
    }
}
