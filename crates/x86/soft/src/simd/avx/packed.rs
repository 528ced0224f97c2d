//! Packed integers and bits: the rows of SSE on one half or both, and what AVX2 adds of their kind.

use iced_x86::{Instruction, Mnemonic, OpKind};
use satori_state::Ymm;

use super::legacy;
use super::operand::{
    avx, dwords, from_dwords, from_qwords, halves, qwords, register, set, source, sources, wide,
};
use crate::cpu::{Cpu, Exec, Handler};
use crate::host::Scalar;
use crate::simd::native::{self, Packed, PackedImm, PackedXmm0};
use crate::simd::packed::{LeftBytes, RightBytes};
use crate::simd::shuffle::{Aeskeygenassist, Blend, Palignr, Pshufd, Pshufhw, Pshuflw, Shufpd, Shufps};
use crate::simd::table::{low_rows, packed_imm_rows, packed_rows, packed_xmm0_rows};

/// The implementation of `insn`, if it is a row of the tables without control words.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    let legacy = legacy(insn.mnemonic());
    own_row(insn.mnemonic())
        .or_else(|| legacy.and_then(shift_row))
        .or_else(|| legacy.and_then(packed_row))
        .or_else(|| legacy.and_then(low_row))
        .or_else(|| legacy.and_then(blend_row))
        .or_else(|| legacy.and_then(packed_imm_row))
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

macro_rules! dispatch_blend {
    ($($feature:tt { $($name:ident $op:literal;)* })*) => {
        fn blend_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => blend::<native::$name>,)*)*
                _ => return None,
            })
        }
    };
}
packed_xmm0_rows!(dispatch_blend);

macro_rules! dispatch_imm {
    ($($feature:tt { $($name:ident $op:literal $mask:literal [$($imm:literal)*];)* })*) => {
        fn packed_imm_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => packed_imm::<native::$name, 0>,)*)*
                _ => return None,
            })
        }
    };
}
packed_imm_rows!(dispatch_imm);

/// Shifts of all elements by one count.
fn shift_row(mnemonic: Mnemonic) -> Option<Handler> {
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

/// What is not as in SSE in some way: the operations that use more of the immediate for the upper
/// half (the number says how many bits the lower one uses up), and shifts of each element by its
/// own count.
fn own_row(mnemonic: Mnemonic) -> Option<Handler> {
    Some(match mnemonic {
        Mnemonic::Vpshufd | Mnemonic::Vpermilps => packed_imm::<Pshufd, 0>,
        Mnemonic::Vpshufhw => packed_imm::<Pshufhw, 0>,
        Mnemonic::Vpshuflw => packed_imm::<Pshuflw, 0>,
        Mnemonic::Vshufps => packed_imm::<Shufps, 0>,
        Mnemonic::Vshufpd | Mnemonic::Vpermilpd => packed_imm::<Shufpd, 2>,
        Mnemonic::Vpalignr => packed_imm::<Palignr, 0>,
        Mnemonic::Vblendps | Mnemonic::Vpblendd => packed_imm::<Blend<4>, 4>,
        Mnemonic::Vblendpd => packed_imm::<Blend<2>, 2>,
        Mnemonic::Vpblendw => packed_imm::<Blend<8>, 0>,
        Mnemonic::Vaeskeygenassist if is_x86_feature_detected!("aes") => packed_imm::<Aeskeygenassist, 0>,
        Mnemonic::Vmpsadbw if is_x86_feature_detected!("sse4.1") => packed_imm::<native::Mpsadbw, 3>,
        Mnemonic::Vmovddup => movddup,
        Mnemonic::Vpsllvd => |cpu, insn| each_dword(cpu, insn, |a, count| a.checked_shl(count).unwrap_or(0)),
        Mnemonic::Vpsrlvd => |cpu, insn| each_dword(cpu, insn, |a, count| a.checked_shr(count).unwrap_or(0)),
        Mnemonic::Vpsravd => |cpu, insn| each_dword(cpu, insn, |a, count| (a as i32 >> count.min(31)) as u32),
        Mnemonic::Vpsllvq => |cpu, insn| each_qword(cpu, insn, |a, count| a << count),
        Mnemonic::Vpsrlvq => |cpu, insn| each_qword(cpu, insn, |a, count| a >> count),
        _ => return None,
    })
}

fn packed<O: Packed>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let (wide, (first, second)) = (wide(insn), sources(insn));
    let b = source::<u128>(cpu, insn, second, wide)?;
    let a = if first == second { b } else { register(cpu, insn.op1_register()) };
    set(cpu, insn.op0_register(), halves(wide, a, b, O::run), wide);
    Ok(())
}

/// The low element, or as many as are half as long as the result.
fn low<O: Packed, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let (wide, (first, second)) = (wide(insn), sources(insn));
    let b = source::<T>(cpu, insn, second, wide)?.low;
    let a = if first == second { 0 } else { register(cpu, insn.op1_register()).low };
    let high = if wide { O::run(0, b >> (8 * T::SIZE)) } else { 0 };
    set(cpu, insn.op0_register(), Ymm { low: O::run(a, b), high }, wide);
    Ok(())
}

/// VMOVDDUP: each half doubles its own low element.
fn movddup(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let s = if wide { source::<u128>(cpu, insn, 1, true)? } else { source::<u64>(cpu, insn, 1, false)? };
    let [low, _, high, _] = qwords(s);
    set(cpu, insn.op0_register(), from_qwords([low, low, high, high]), wide);
    Ok(())
}

/// The fourth operand takes XMM0's place.
fn blend<O: PackedXmm0>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let b = source::<u128>(cpu, insn, 2, wide)?;
    let (a, mask) = (register(cpu, insn.op1_register()), register(cpu, insn.op3_register()));
    let high = if wide { O::run(a.high, b.high, mask.high) } else { 0 };
    set(cpu, insn.op0_register(), Ymm { low: O::run(a.low, b.low, mask.low), high }, wide);
    Ok(())
}

fn packed_imm<O: PackedImm, const USED: u32>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    // VPERMILPS and VPERMILPD by a register have the same names.
    if insn.op2_kind() != OpKind::Immediate8 && insn.op3_kind() != OpKind::Immediate8 {
        return permute_in_halves(cpu, insn);
    }
    avx(cpu)?;
    let (wide, (first, second)) = (wide(insn), sources(insn));
    let b = source::<u128>(cpu, insn, second, wide)?;
    let a = if first == second { b } else { register(cpu, insn.op1_register()) };
    let imm = insn.immediate8();
    let high = if wide { O::run(a.high, b.high, imm >> USED) } else { 0 };
    set(cpu, insn.op0_register(), Ymm { low: O::run(a.low, b.low, imm), high }, wide);
    Ok(())
}

/// VPERMILPS and VPERMILPD: each element chooses one of its half.
fn permute_in_halves(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let control = source::<u128>(cpu, insn, 2, wide)?;
    let a = register(cpu, insn.op1_register());
    let result = if insn.mnemonic() == Mnemonic::Vpermilps {
        let (a, control) = (dwords(a), dwords(control));
        from_dwords(std::array::from_fn(|i| a[i & 4 | control[i] as usize & 3]))
    } else {
        let (a, control) = (qwords(a), qwords(control));
        from_qwords(std::array::from_fn(|i| a[i & 2 | control[i] as usize >> 1 & 1]))
    };
    set(cpu, insn.op0_register(), result, wide);
    Ok(())
}

fn shift<O: Packed>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let count = if insn.op2_kind() == OpKind::Immediate8 {
        insn.immediate8().into()
    } else {
        source::<u128>(cpu, insn, 2, false)?.low
    };
    let (wide, a) = (wide(insn), register(cpu, insn.op1_register()));
    let count = Ymm { low: count, high: count };
    set(cpu, insn.op0_register(), halves(wide, a, count, O::run), wide);
    Ok(())
}

fn each_dword(cpu: &mut Cpu, insn: &Instruction, shift: impl Fn(u32, u32) -> u32) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let counts = dwords(source::<u128>(cpu, insn, 2, wide)?);
    let a = dwords(register(cpu, insn.op1_register()));
    set(cpu, insn.op0_register(), from_dwords(std::array::from_fn(|i| shift(a[i], counts[i]))), wide);
    Ok(())
}

/// Counts of 64 and more leave nothing.
fn each_qword(cpu: &mut Cpu, insn: &Instruction, shift: impl Fn(u64, u32) -> u64) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let counts = qwords(source::<u128>(cpu, insn, 2, wide)?);
    let a = qwords(register(cpu, insn.op1_register()));
    let one = |i: usize| if counts[i] < 64 { shift(a[i], counts[i] as u32) } else { 0 };
    set(cpu, insn.op0_register(), from_qwords(std::array::from_fn(one)), wide);
    Ok(())
}
