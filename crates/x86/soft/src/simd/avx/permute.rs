//! Broadcasts, permutations across the halves, insertion, extraction, and tests.

use iced_x86::{Instruction, OpKind};
use satori_defs::x86::rflags;
use satori_state::Ymm;

use super::operand::{avx, dwords, from_dwords, from_qwords, qwords, register, set, set_low, source, wide};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, rows};
use crate::simd::shuffle::{element, inserted_single, replace};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Vpbroadcastb => broadcast::<u8>,
    Vpbroadcastw => broadcast::<u16>,
    Vbroadcastss | Vpbroadcastd => broadcast::<u32>,
    Vbroadcastsd | Vpbroadcastq => broadcast::<u64>,
    Vbroadcastf128 | Vbroadcasti128 => broadcast::<u128>,
    Vperm2f128 | Vperm2i128 => permute_halves,
    Vpermd | Vpermps => permute_dwords,
    Vpermq | Vpermpd => permute_qwords,
    Vinsertf128 | Vinserti128 => insert_half,
    Vextractf128 | Vextracti128 => extract_half,
    Vpinsrb => insert::<8>,
    Vpinsrw => insert::<16>,
    Vpinsrd => insert::<32>,
    Vpinsrq => insert::<64>,
    Vpextrb => extract::<8>,
    Vpextrw => extract::<16>,
    Vpextrd | Vextractps => extract::<32>,
    Vpextrq => extract::<64>,
    Vinsertps => insert_single,
    Vptest => |cpu, insn| test(cpu, insn, u128::MAX),
    Vtestps => |cpu, insn| test(cpu, insn, 0x80000000_80000000_80000000_80000000),
    Vtestpd => |cpu, insn| test(cpu, insn, 0x80000000_00000000_80000000_00000000),
});

fn broadcast<T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = source::<T>(cpu, insn, 1, false)?.low;
    let bits = 8 * T::SIZE as u32;
    let low = (0..128 / bits).fold(0, |all, i| replace(all, bits, i, s));
    set(cpu, insn.op0_register(), Ymm { low, high: low }, wide(insn));
    Ok(())
}

/// VPERM2F128 and VPERM2I128: each half is one of four, or zero.
fn permute_halves(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let b = source::<u128>(cpu, insn, 2, true)?;
    let a = register(cpu, insn.op1_register());
    let half = |control: u8| match control & 0xb {
        0 => a.low,
        1 => a.high,
        2 => b.low,
        3 => b.high,
        _ => 0,
    };
    let imm = insn.immediate8();
    set(cpu, insn.op0_register(), Ymm { low: half(imm), high: half(imm >> 4) }, true);
    Ok(())
}

fn permute_dwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = dwords(source::<u128>(cpu, insn, 2, true)?);
    let control = dwords(register(cpu, insn.op1_register()));
    set(cpu, insn.op0_register(), from_dwords(control.map(|c| s[c as usize & 7])), true);
    Ok(())
}

fn permute_qwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = qwords(source::<u128>(cpu, insn, 1, true)?);
    let imm = usize::from(insn.immediate8());
    let result = from_qwords(std::array::from_fn(|i| s[imm >> (2 * i) & 3]));
    set(cpu, insn.op0_register(), result, true);
    Ok(())
}

fn insert_half(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let new = source::<u128>(cpu, insn, 2, false)?.low;
    let old = register(cpu, insn.op1_register());
    let upper = insn.immediate8() & 1 != 0;
    let result = if upper { Ymm { high: new, ..old } } else { Ymm { low: new, ..old } };
    set(cpu, insn.op0_register(), result, true);
    Ok(())
}

fn extract_half(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = register(cpu, insn.op1_register());
    let half = if insn.immediate8() & 1 != 0 { s.high } else { s.low };
    if insn.op0_kind() == OpKind::Register {
        set_low(cpu, insn.op0_register(), half);
        return Ok(());
    }
    let linear = cpu.ea_write(insn, 0)?;
    cpu.write(linear, half)
}

fn insert<const BITS: u32>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let new = cpu.operand(insn, 2)?;
    let i = u32::from(insn.immediate8()) % (128 / BITS);
    let old = register(cpu, insn.op1_register()).low;
    set_low(cpu, insn.op0_register(), replace(old, BITS, i, new.into()));
    Ok(())
}

fn extract<const BITS: u32>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = register(cpu, insn.op1_register()).low;
    let i = u32::from(insn.immediate8()) % (128 / BITS);
    cpu.set_operand(insn, 0, element(s, BITS, i) as u64)
}

fn insert_single(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let s = source::<u32>(cpu, insn, 2, false)?.low;
    let from_register = insn.op2_kind() == OpKind::Register;
    let old = register(cpu, insn.op1_register()).low;
    set_low(cpu, insn.op0_register(), inserted_single(old, s, from_register, insn.immediate8()));
    Ok(())
}

/// ZF and CF by the bits of `mask` of both halves; the other status flags become 0.
fn test(cpu: &mut Cpu, insn: &Instruction, mask: u128) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let s = source::<u128>(cpu, insn, 1, wide)?;
    let d = register(cpu, insn.op0_register());
    let none = |low: u128, high: u128| low & mask == 0 && (!wide || high & mask == 0);
    let zero = if none(s.low & d.low, s.high & d.high) { rflags::ZF } else { 0 };
    let carry = if none(s.low & !d.low, s.high & !d.high) { rflags::CF } else { 0 };
    cpu.flags.set_bits(zero | carry);
    Ok(())
}
