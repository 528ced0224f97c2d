//! Rearrangements by an immediate, insertion, extraction and PTEST: written by hand, because the
//! host's own forms need the immediate at compile time.

use iced_x86::{Instruction, Mnemonic, OpKind};
use satori_defs::x86::rflags;

use super::native::{self, PackedImm};
use super::operand::{source, sse, unaligned, xmm};
use super::packed::packed_imm;
use crate::cpu::{Cpu, Exec, Handler};

/// The implementation of `insn`, if it is one of this file's.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    if !insn.op0_register().is_xmm() && !insn.op1_register().is_xmm() {
        return None;
    }
    Some(match insn.mnemonic() {
        Mnemonic::Pshufd => packed_imm::<Pshufd>,
        Mnemonic::Pshufhw => packed_imm::<Pshufhw>,
        Mnemonic::Pshuflw => packed_imm::<Pshuflw>,
        Mnemonic::Shufps => packed_imm::<Shufps>,
        Mnemonic::Shufpd => packed_imm::<Shufpd>,
        Mnemonic::Palignr => packed_imm::<Palignr>,
        Mnemonic::Blendps => packed_imm::<Blend<4>>,
        Mnemonic::Blendpd => packed_imm::<Blend<2>>,
        Mnemonic::Pblendw => packed_imm::<Blend<8>>,
        Mnemonic::Aeskeygenassist if is_x86_feature_detected!("aes") => packed_imm::<Aeskeygenassist>,
        Mnemonic::Insertps => insertps,
        Mnemonic::Pinsrb => pinsr::<8>,
        Mnemonic::Pinsrw => pinsr::<16>,
        Mnemonic::Pinsrd => pinsr::<32>,
        Mnemonic::Pinsrq => pinsr::<64>,
        Mnemonic::Pextrb => pextr::<8>,
        Mnemonic::Pextrw => pextr::<16>,
        Mnemonic::Pextrd | Mnemonic::Extractps => pextr::<32>,
        Mnemonic::Pextrq => pextr::<64>,
        Mnemonic::Ptest => ptest,
        _ => return None,
    })
}

/// Element `i` of `value` seen as elements of `bits` bits.
pub fn element(value: u128, bits: u32, i: u32) -> u128 {
    value >> (bits * i) & (u128::MAX >> (128 - bits))
}

/// `value` with element `i` of `bits` bits replaced.
pub fn replace(value: u128, bits: u32, i: u32, new: u128) -> u128 {
    let mask = u128::MAX >> (128 - bits);
    value & !(mask << (bits * i)) | (new & mask) << (bits * i)
}

/// Selector `i` of two bits in an immediate.
fn selector(imm: u8, i: u32) -> u32 {
    u32::from(imm >> (2 * i)) & 3
}

/// PSHUFD.
pub struct Pshufd;
impl PackedImm for Pshufd {
    fn run(_: u128, s: u128, imm: u8) -> u128 {
        (0..4).fold(0, |d, i| replace(d, 32, i, element(s, 32, selector(imm, i))))
    }
}

/// PSHUFW's rearrangement of four words.
pub fn shuffle_words(s: u64, imm: u8) -> u64 {
    (0..4).fold(0, |d, i| replace(d, 16, i, element(s.into(), 16, selector(imm, i)))) as u64
}

/// PSHUFLW.
pub struct Pshuflw;
impl PackedImm for Pshuflw {
    fn run(_: u128, s: u128, imm: u8) -> u128 {
        replace(s, 64, 0, shuffle_words(s as u64, imm).into())
    }
}

/// PSHUFHW.
pub struct Pshufhw;
impl PackedImm for Pshufhw {
    fn run(_: u128, s: u128, imm: u8) -> u128 {
        replace(s, 64, 1, shuffle_words((s >> 64) as u64, imm).into())
    }
}

/// SHUFPS.
pub struct Shufps;
impl PackedImm for Shufps {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        let from = |i: u32| if i < 2 { d } else { s };
        (0..4).fold(0, |r, i| replace(r, 32, i, element(from(i), 32, selector(imm, i))))
    }
}

/// SHUFPD.
pub struct Shufpd;
impl PackedImm for Shufpd {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        element(d, 64, u32::from(imm & 1)) | element(s, 64, u32::from(imm >> 1 & 1)) << 64
    }
}

/// PALIGNR.
pub struct Palignr;
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
pub struct Blend<const ELEMENTS: u32>;
impl<const ELEMENTS: u32> PackedImm for Blend<ELEMENTS> {
    fn run(d: u128, s: u128, imm: u8) -> u128 {
        let bits = 128 / ELEMENTS;
        (0..ELEMENTS).filter(|i| imm >> i & 1 != 0).fold(d, |r, i| replace(r, bits, i, element(s, bits, i)))
    }
}

/// AESKEYGENASSIST.
pub struct Aeskeygenassist;
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
pub fn inserted_single(d: u128, s: u128, from_register: bool, imm: u8) -> u128 {
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
