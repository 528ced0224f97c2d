//! Packed integers and bits: the rows of SSE on one half or both, and what AVX2 adds of their kind.

use iced_x86::{Instruction, Mnemonic, OpKind};
use satori_state::Ymm;

use super::operand::{
    avx, dwords, from_dwords, from_qwords, halves, qwords, register, set, source, sources, wide,
};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, rows};
use crate::simd::native::{self, Packed, PackedImm, PackedXmm0};
use crate::simd::packed::{LeftBytes, RightBytes};
use crate::simd::shuffle::{Aeskeygenassist, Blend, Palignr, Pshufd, Pshufhw, Pshuflw, Shufpd, Shufps};
use crate::simd::table::{low_rows, native_rows, packed_imm_rows, packed_rows, packed_xmm0_rows};

/// What is not as in SSE in some way: the operations that use more of the immediate for the upper
/// half (the number says how many bits the lower one uses up), and shifts of each element by its
/// own count.
pub(super) const OWN: &[Row] = rows!(insn {
    Vpshufd | Vpermilps => packed_imm::<Pshufd, 0>,
    Vpshufhw => packed_imm::<Pshufhw, 0>,
    Vpshuflw => packed_imm::<Pshuflw, 0>,
    Vshufps => packed_imm::<Shufps, 0>,
    Vshufpd | Vpermilpd => packed_imm::<Shufpd, 2>,
    Vpalignr => packed_imm::<Palignr, 0>,
    Vblendps | Vpblendd => packed_imm::<Blend<4>, 4>,
    Vblendpd => packed_imm::<Blend<2>, 2>,
    Vpblendw => packed_imm::<Blend<8>, 0>,
    Vaeskeygenassist if is_x86_feature_detected!("aes") => packed_imm::<Aeskeygenassist, 0>,
    Vmpsadbw if is_x86_feature_detected!("sse4.1") => packed_imm::<native::Mpsadbw, 3>,
    Vmovddup => movddup,
    Vpsllvd => |cpu, insn| each_dword(cpu, insn, |a, count| a.checked_shl(count).unwrap_or(0)),
    Vpsrlvd => |cpu, insn| each_dword(cpu, insn, |a, count| a.checked_shr(count).unwrap_or(0)),
    Vpsravd => |cpu, insn| each_dword(cpu, insn, |a, count| (a as i32 >> count.min(31)) as u32),
    Vpsllvq => |cpu, insn| each_qword(cpu, insn, |a, count| a << count),
    Vpsrlvq => |cpu, insn| each_qword(cpu, insn, |a, count| a >> count),
});
/// Shifts of all elements by one count.
pub(super) const SHIFTS: &[Row] = rows!(vex insn {
    Psllw => shift::<native::Psllw>,
    Pslld => shift::<native::Pslld>,
    Psllq => shift::<native::Psllq>,
    Psrlw => shift::<native::Psrlw>,
    Psrld => shift::<native::Psrld>,
    Psrlq => shift::<native::Psrlq>,
    Psraw => shift::<native::Psraw>,
    Psrad => shift::<native::Psrad>,
    Pslldq => shift::<LeftBytes>,
    Psrldq => shift::<RightBytes>,
});
pub(super) const PACKED: &[Row] = packed_rows!(native_rows Vex packed);
pub(super) const LOW: &[Row] = low_rows!(native_rows Vex low);
pub(super) const BLENDS: &[Row] = packed_xmm0_rows!(native_rows Vex blend);
pub(super) const IMMEDIATE: &[Row] = packed_imm_rows!(native_rows Vex packed_imm_alike);

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

/// Both halves use the same bits of the immediate.
fn packed_imm_alike<O: PackedImm>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    packed_imm::<O, 0>(cpu, insn)
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
