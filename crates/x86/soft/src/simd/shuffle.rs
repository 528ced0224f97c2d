//! Rearrangements by an immediate, insertion, extraction and PTEST: written by hand, because the
//! host's own forms need the immediate at compile time.

use iced_x86::{Instruction, OpKind};
use satori_defs::x86::rflags;

use super::native::{self, PackedImm};
use super::operand::{source, sse, unaligned, xmm};
use super::packed::packed_imm;
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Pshufd => packed_imm::<Pshufd>,
    Pshufhw => packed_imm::<Pshufhw>,
    Pshuflw => packed_imm::<Pshuflw>,
    Shufps => packed_imm::<Shufps>,
    Shufpd => packed_imm::<Shufpd>,
    Palignr => packed_imm::<Palignr>,
    Blendps => packed_imm::<Blend<4>>,
    Blendpd => packed_imm::<Blend<2>>,
    Pblendw => packed_imm::<Blend<8>>,
    Aeskeygenassist if is_x86_feature_detected!("aes") => packed_imm::<Aeskeygenassist>,
    Insertps => insertps,
    Pinsrb => pinsr::<8>,
    Pinsrw => pinsr::<16>,
    Pinsrd => pinsr::<32>,
    Pinsrq => pinsr::<64>,
    Pextrb => pextr::<8>,
    Pextrw => pextr::<16>,
    Pextrd | Extractps => pextr::<32>,
    Pextrq => pextr::<64>,
    Ptest => ptest,
});

/// Element `i` of `value` seen as elements of `bits` bits.
pub(super) fn element(value: u128, bits: u32, i: u32) -> u128 {
    value >> (bits * i) & (u128::MAX >> (128 - bits))
}

/// `value` with element `i` of `bits` bits replaced.
pub(super) fn replace(value: u128, bits: u32, i: u32, new: u128) -> u128 {
    let mask = u128::MAX >> (128 - bits);
    value & !(mask << (bits * i)) | (new & mask) << (bits * i)
}

/// Selector `i` of two bits in an immediate.
fn selector(imm: u8, i: u32) -> u32 {
    u32::from(imm >> (2 * i)) & 3
}

/// PSHUFD.
pub(super) struct Pshufd;
impl PackedImm for Pshufd {
    fn run(_: u128, s: u128, imm: u8) -> u128 {
        (0..4).fold(0, |d, i| replace(d, 32, i, element(s, 32, selector(imm, i))))
    }
}

/// PSHUFW's rearrangement of four words.
pub(super) fn shuffle_words(s: u64, imm: u8) -> u64 {
    (0..4).fold(0, |d, i| replace(d, 16, i, element(s.into(), 16, selector(imm, i)))) as u64
}

/// PSHUFLW.
pub(super) struct Pshuflw;
impl PackedImm for Pshuflw {
    fn run(_: u128, s: u128, imm: u8) -> u128 {
        replace(s, 64, 0, shuffle_words(s as u64, imm).into())
    }
}

/// PSHUFHW.
pub(super) struct Pshufhw;
impl PackedImm for Pshufhw {
    fn run(_: u128, s: u128, imm: u8) -> u128 {
        replace(s, 64, 1, shuffle_words((s >> 64) as u64, imm).into())
    }
}

/// SHUFPS.
pub(super) struct Shufps;
impl PackedImm for Shufps {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        let from = |i: u32| if i < 2 { d } else { s };
        (0..4).fold(0, |r, i| replace(r, 32, i, element(from(i), 32, selector(imm, i))))
    }
}

/// SHUFPD.
pub(super) struct Shufpd;
impl PackedImm for Shufpd {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        element(d, 64, u32::from(imm & 1)) | element(s, 64, u32::from(imm >> 1 & 1)) << 64
    }
}

/// PALIGNR.
pub(super) struct Palignr;
impl PackedImm for Palignr {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        let shift = 8 * u32::from(imm);
        match imm {
            0 => s,
            1..16 => s >> shift | d << (128 - shift),
            16..32 => d >> (shift - 128),
            _ => 0,
        }
    }
}

/// BLENDPD, BLENDPS and PBLENDW: two, four or eight elements chosen by the immediate's bits.
pub(super) struct Blend<const ELEMENTS: u32>;
impl<const ELEMENTS: u32> PackedImm for Blend<ELEMENTS> {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        let bits = 128 / ELEMENTS;
        (0..ELEMENTS).filter(|i| imm >> i & 1 != 0).fold(d, |r, i| replace(r, bits, i, element(s, bits, i)))
    }
}

/// AESKEYGENASSIST.
pub(super) struct Aeskeygenassist;
impl PackedImm for Aeskeygenassist {
    fn run(_: u128, s: u128, rcon: u8) -> u128 {
        // The round constant is added to the two rotated words, after everything else.
        native::aeskeygenassist(s) ^ u128::from(rcon) << 32 ^ u128::from(rcon) << 96
    }
}

/// INSERTPS: with a memory source, the immediate's source selector is ignored.
fn insertps(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = unaligned::<u32>(cpu, insn, 1)?;
    let from_register = insn.op1_kind() == OpKind::Register;
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = inserted_single(*d, s, from_register, insn.immediate8());
    Ok(())
}

/// INSERTPS's result.
pub(super) fn inserted_single(d: u128, s: u128, from_register: bool, imm: u8) -> u128 {
    let from = if from_register { u32::from(imm >> 6) } else { 0 };
    let inserted = replace(d, 32, u32::from(imm >> 4 & 3), element(s, 32, from));
    (0..4).filter(|i| imm >> i & 1 != 0).fold(inserted, |r, i| replace(r, 32, i, 0))
}

fn pinsr<const BITS: u32>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let new = cpu.operand(insn, 1)?;
    let i = u32::from(insn.immediate8()) % (128 / BITS);
    let d = &mut cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    *d = replace(*d, BITS, i, new.into());
    Ok(())
}

fn pextr<const BITS: u32>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = cpu.state.fpu.ymm[xmm(insn.op1_register())].low;
    let i = u32::from(insn.immediate8()) % (128 / BITS);
    cpu.set_operand(insn, 0, element(s, BITS, i) as u64)
}

fn ptest(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<u128>(cpu, insn, 1)?;
    let d = cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    let zero = if s & d == 0 { rflags::ZF } else { 0 };
    let carry = if s & !d == 0 { rflags::CF } else { 0 };
    cpu.flags.set_bits(zero | carry);
    Ok(())
}
