//! SSE floating point: the native operation under the guest's MXCSR, and #XM.

use iced_x86::{Instruction, Mnemonic};
use satori_defs::fpu::mxcsr;
use satori_defs::x86::{cr4, vector};
use satori_engine::Exception;

use super::native::{self, Compare, Float, Tiny};
use super::operand::{source, sse, unaligned, xmm};
use super::table::{dot_rows, float_imm_rows, float_rows, native_rows};
use crate::cpu::{Cpu, Exec, Stop};
use crate::host::Scalar;
use crate::insn::{Row, rows};

pub(super) const FLOAT: &[Row] = float_rows!(native_rows Mnemonics float);
pub(super) const IMMEDIATE: &[Row] = float_imm_rows!(native_rows Mnemonics float);
pub(super) const DOT: &[Row] = dot_rows!(native_rows Mnemonics dot);
pub(super) const COMPARISONS: &[Row] = rows!(insn {
    Comiss => compare::<native::Comiss, u32>,
    Comisd => compare::<native::Comisd, u64>,
    Ucomiss => compare::<native::Ucomiss, u32>,
    Ucomisd => compare::<native::Ucomisd, u64>,
});

fn float<O: Float, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<T>(cpu, insn, 1)?;
    let d = xmm(insn.op0_register());
    let old = cpu.state.fpu.ymm[d].low;
    let imm = insn.immediate8();
    if must_be_exact::<O>(cpu) {
        let operation = Unbounded::new(cpu, insn.mnemonic(), imm, T::SIZE);
        cpu.state.fpu.ymm[d].low =
            under_mxcsr(cpu, |mxcsr| operation.run::<O>(old, s, mxcsr), |result| is_tiny(O::TINY, *result))?;
        return Ok(());
    }
    cpu.state.fpu.ymm[d].low = under_mxcsr(cpu, |mxcsr| O::run(old, s, imm, mxcsr), |_| false)?;
    Ok(())
}

/// Whether the flags of results that are too large or too small need [`Unbounded`].
#[inline(always)]
pub(super) fn must_be_exact<O: Float>(cpu: &Cpu) -> bool {
    O::TINY != Tiny::None && cpu.state.fpu.mxcsr & RANGE_MASKS != RANGE_MASKS
}

/// Masks of the exceptions of results that do not fit the format's range.
pub(super) const RANGE_MASKS: u32 = (mxcsr::OE | mxcsr::UE) << mxcsr::MASK_SHIFT;

/// With overflow or underflow unmasked, a result beyond the format's range is inexact only if
/// rounding to its precision with an unbounded exponent loses something (SDM volume 1, 4.9.1.4 and
/// 4.9.1.5). So such results are worked out again from operands whose exponents are brought near
/// 0. Tiny sums are exact as they are.
pub(super) struct Unbounded {
    /// The guest's MXCSR.
    guest: u32,
    imm: u8,
    /// Format of the operands, if not that of the result.
    from: Option<Format>,
    /// Whether there are as many elements as fit.
    packed: bool,
    /// Elements beside each other are operands.
    horizontal: bool,
    scale: fn(Format, u128, u32) -> u128,
}

impl Unbounded {
    /// The operation of SSE's `mnemonic` on a source of `size` bytes.
    #[cold]
    pub(super) fn new(cpu: &Cpu, mnemonic: Mnemonic, imm: u8, size: u64) -> Self {
        use Mnemonic::{Addpd, Addps, Addsd, Addss, Addsubpd, Addsubps, Subpd, Subps, Subsd, Subss};
        use Mnemonic::{
            Cvtpd2ps, Cvtsd2ss, Divpd, Divps, Divsd, Divss, Mulpd, Mulps, Mulsd, Mulss, Vcvtps2ph,
        };
        use Mnemonic::{Haddpd, Haddps, Hsubpd, Hsubps};
        let scale: fn(Format, u128, u32) -> u128 = match mnemonic {
            Cvtpd2ps | Cvtsd2ss | Divpd | Divps | Divsd | Divss | Mulpd | Mulps | Mulsd | Mulss => {
                with_exponent_0
            }
            Vcvtps2ph => with_exponent_0,
            Addpd | Addps | Addsd | Addss | Addsubpd | Addsubps | Subpd | Subps | Subsd | Subss => quarter,
            Haddpd | Haddps | Hsubpd | Hsubps => quarter,
            _ => |_, value, _| value,
        };
        let from = match mnemonic {
            Cvtpd2ps | Cvtsd2ss => Some(DOUBLE),
            Vcvtps2ph => Some(SINGLE),
            _ => None,
        };
        let horizontal = matches!(mnemonic, Haddpd | Haddps | Hsubpd | Hsubps);
        Unbounded { guest: cpu.state.fpu.mxcsr, imm, from, packed: size == 16, horizontal, scale }
    }

    /// Executes it on one half of the operands.
    pub(super) fn run<O: Float>(&self, old: u128, s: u128, control: u32) -> (u128, u32) {
        let to = format(O::TINY);
        let from = self.from.unwrap_or(to);
        let elements = if self.packed { 128 / from.bits } else { 1 };
        // To such a processor denormal operands are zeros, whatever their size.
        let zero =
            |value: u128, i: u32| self.guest & mxcsr::DAZ != 0 && from.is_small(from.element(value, i));
        let (result, after) = O::run(old, s, self.imm, control);
        let (mut a, mut b) = (old, s);
        for i in (0..elements).filter(|i| beyond(self.guest, to, to.element(result, *i))) {
            let bring_near = |value: &mut u128, i: u32| {
                if !zero(*value, i) {
                    *value = (self.scale)(from, *value, i);
                }
            };
            if self.horizontal {
                // The lower half of the results is of the first operand's pairs.
                let (half, value) = (elements / 2, if i < elements / 2 { &mut a } else { &mut b });
                let pair = 2 * (i % half);
                bring_near(value, pair);
                bring_near(value, pair + 1);
            } else {
                bring_near(&mut a, i);
                bring_near(&mut b, i);
            }
        }
        let (_, unbounded) = O::run(a, b, self.imm, control);
        (result, after & !mxcsr::PE | unbounded & mxcsr::PE)
    }
}

/// Whether `element` may stand for a result beyond the range, of which the guest wants to know.
pub(super) fn beyond(guest: u32, format: Format, element: u128) -> bool {
    guest & mxcsr::UM == 0 && format.is_small(element)
        || guest & mxcsr::OE << mxcsr::MASK_SHIFT == 0 && format.is_large(element)
}

/// The format of results that can be tiny.
pub(super) fn format(kind: Tiny) -> Format {
    match kind {
        Tiny::Halves => HALF,
        Tiny::Single | Tiny::Singles => SINGLE,
        _ => DOUBLE,
    }
}

/// A floating-point format, by the sizes of its parts.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// All of it.
    pub bits: u32,
    /// The fraction.
    pub fraction_bits: u32,
    /// The exponent's bias.
    pub bias: u128,
}

const HALF: Format = Format { bits: 16, fraction_bits: 10, bias: 15 };
const SINGLE: Format = Format { bits: 32, fraction_bits: 23, bias: 127 };
const DOUBLE: Format = Format { bits: 64, fraction_bits: 52, bias: 1023 };

impl Format {
    /// Element `i` of `value`.
    pub(super) fn element(self, value: u128, i: u32) -> u128 {
        value >> (self.bits * i) & u128::MAX >> (128 - self.bits)
    }

    /// `value` with element `i` replaced.
    pub(super) fn with_element(self, value: u128, i: u32, element: u128) -> u128 {
        let mask = u128::MAX >> (128 - self.bits);
        value & !(mask << (self.bits * i)) | (element & mask) << (self.bits * i)
    }

    /// The exponent field and the fraction.
    pub(super) fn parts(self, element: u128) -> (u128, u128) {
        let magnitude = element & ((1 << (self.bits - 1)) - 1);
        (magnitude >> self.fraction_bits, magnitude & ((1 << self.fraction_bits) - 1))
    }

    /// Zero or denormal.
    pub(super) fn is_small(self, element: u128) -> bool {
        self.parts(element).0 == 0
    }

    /// Infinite, or the largest number: where results beyond the range end up.
    pub(super) fn is_large(self, element: u128) -> bool {
        let (exponent, fraction) = self.parts(element);
        let largest = exponent == 2 * self.bias && fraction == (1 << self.fraction_bits) - 1;
        largest || exponent > 2 * self.bias
    }
}

/// `value` with the exponent of element `i` brought to 0, if it is a number other than 0.
fn with_exponent_0(format: Format, value: u128, i: u32) -> u128 {
    let element = format.element(value, i);
    let (exponent, fraction) = format.parts(element);
    let normal = match exponent {
        0 if fraction == 0 => return value,
        // The highest one becomes the hidden bit.
        0 => fraction << (format.fraction_bits + 1 - (128 - fraction.leading_zeros())),
        e if e > 2 * format.bias => return value,
        _ => fraction,
    };
    let sign = element & 1 << (format.bits - 1);
    let scaled = sign | format.bias << format.fraction_bits | normal & ((1 << format.fraction_bits) - 1);
    format.with_element(value, i, scaled)
}

/// `value` with element `i` divided by four, if it is large.
fn quarter(format: Format, value: u128, i: u32) -> u128 {
    let element = format.element(value, i);
    let (exponent, _) = format.parts(element);
    if exponent < format.bias || exponent > 2 * format.bias {
        return value;
    }
    format.with_element(value, i, element - (2 << format.fraction_bits))
}

/// DPPS and DPPD: the sum goes to every element that the low half of the immediate names, 0 to
/// the others.
fn dot<O: Float, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<T>(cpu, insn, 1)?;
    let d = xmm(insn.op0_register());
    let old = cpu.state.fpu.ymm[d].low;
    let dot = Dot { imm: insn.immediate8(), guest: cpu.state.fpu.mxcsr };
    let sum = under_mxcsr(cpu, |mxcsr| dot.run::<O>(old, s, mxcsr), |sum| dot.is_tiny::<O>(old, s, *sum))?;
    cpu.state.fpu.ymm[d].low = sum & elements::<O>(dot.imm);
    Ok(())
}

/// One half of a dot product.
pub(super) struct Dot {
    /// One mask for the elements that take part, one for those that receive the sum.
    pub imm: u8,
    /// The guest's MXCSR.
    pub guest: u32,
}

impl Dot {
    /// The sum, in every element.
    pub(super) fn run<O: Float>(&self, a: u128, b: u128, mxcsr: u32) -> (u128, u32) {
        O::run(a, b, self.imm | 0xf, mxcsr)
    }

    /// Whether the sum or something within it is tiny.
    pub(super) fn is_tiny<O: Float>(&self, a: u128, b: u128, sum: u128) -> bool {
        let control = self.guest & !mxcsr::FTZ | mxcsr::MASKS;
        let factors = elements::<O>(self.imm >> 4);
        is_tiny(O::TINY, sum) || tiny_within(O::TINY, a & factors, b & factors, control)
    }
}

/// The elements that the low half of an immediate names.
pub(super) fn elements<O: Float>(imm: u8) -> u128 {
    let bits = if O::TINY == Tiny::Singles { 32 } else { 64 };
    let element = u128::MAX >> (128 - bits);
    (0..128 / bits).filter(|i| imm >> i & 1 != 0).fold(0, |m, i| m | element << (bits * i))
}

/// Whether a product, or a sum of two, within a dot product is tiny.
fn tiny_within(kind: Tiny, a: u128, b: u128, control: u32) -> bool {
    let product = if kind == Tiny::Singles { native::Mulps::run } else { native::Mulpd::run };
    let (products, _) = product(a, b, 0, control);
    let (sums, _) = native::Haddps::run(products, products, 0, control);
    is_tiny(kind, products) || kind == Tiny::Singles && is_tiny(kind, sums)
}

fn compare<O: Compare, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    compare_operands::<O, T>(cpu, insn)
}

/// A comparison into the flags, once vector instructions may execute.
pub(super) fn compare_operands<O: Compare, T: Scalar + Into<u128>>(
    cpu: &mut Cpu,
    insn: &Instruction,
) -> Exec<()> {
    let b = unaligned::<T>(cpu, insn, 1)?;
    let a = cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    let flags = under_mxcsr(cpu, |mxcsr| O::run(a, b, mxcsr), |_| false)?;
    cpu.flags.set_bits(flags);
    Ok(())
}

/// Executes `operation` under the guest's MXCSR and takes its exception flags. With an unmasked
/// exception it raises #XM instead of giving the result; `tiny` then tells whether that holds a
/// number too small for its format.
#[inline(always)]
pub(super) fn under_mxcsr<R>(
    cpu: &mut Cpu,
    operation: impl FnOnce(u32) -> (R, u32),
    tiny: impl FnOnce(&R) -> bool,
) -> Exec<R> {
    let guest = cpu.state.fpu.mxcsr;
    if guest & mxcsr::MASKS == mxcsr::MASKS {
        let (result, after) = operation(guest);
        cpu.state.fpu.mxcsr = after;
        return Ok(result);
    }
    under_unmasked(cpu, operation, tiny)
}

#[cold]
fn under_unmasked<R>(
    cpu: &mut Cpu,
    operation: impl FnOnce(u32) -> (R, u32),
    tiny: impl FnOnce(&R) -> bool,
) -> Exec<R> {
    let guest = cpu.state.fpu.mxcsr;
    let mut control = guest & !mxcsr::FLAGS | mxcsr::MASKS;
    if guest & mxcsr::UM == 0 {
        // FTZ counts only while underflow is masked (SDM volume 1, 10.2.3.3).
        control &= !mxcsr::FTZ;
    }
    let (result, after) = operation(control);
    let mut raised = after & mxcsr::FLAGS;
    if guest & mxcsr::UM == 0 && tiny(&result) {
        // Unmasked, underflow is raised for an exact tiny result too (SDM volume 1, 4.9.1.5).
        raised |= mxcsr::UE;
    }
    let unmasked = raised & !(guest >> mxcsr::MASK_SHIFT);
    if unmasked & mxcsr::PRE_COMPUTATION != 0 {
        raised &= mxcsr::PRE_COMPUTATION;
    }
    cpu.state.fpu.mxcsr |= raised;
    if unmasked == 0 { Ok(result) } else { Err(simd_exception(cpu)) }
}

fn simd_exception(cpu: &mut Cpu) -> Stop {
    let enabled = cpu.state.cr4 & cr4::OSXMMEXCPT != 0;
    cpu.raise(if enabled { Exception::new(vector::XM) } else { Exception::ud() })
}

/// Whether one of the named results is a denormal number.
pub(super) fn is_tiny(kind: Tiny, value: u128) -> bool {
    let single = |i: u32| {
        let v = (value >> (32 * i)) as u32;
        v & 0x7f80_0000 == 0 && v & 0x007f_ffff != 0
    };
    let double = |i: u32| {
        let v = (value >> (64 * i)) as u64;
        v & 0x7ff0_0000_0000_0000 == 0 && v & 0x000f_ffff_ffff_ffff != 0
    };
    let half = |i: u32| {
        let v = (value >> (16 * i)) as u16;
        v & 0x7c00 == 0 && v & 0x03ff != 0
    };
    match kind {
        Tiny::None => false,
        Tiny::Halves => (0..4).any(half),
        Tiny::Single => single(0),
        Tiny::Singles => (0..4).any(single),
        Tiny::Double => double(0),
        Tiny::Doubles => (0..2).any(double),
    }
}
