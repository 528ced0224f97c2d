//! SSE floating point: the native operation under the guest's MXCSR, and #XM.

use iced_x86::{Instruction, Mnemonic};
use satori_defs::fpu::mxcsr;
use satori_defs::x86::{cr4, vector};
use satori_engine::Exception;

use super::native::{self, Compare, Float, Tiny};
use super::operand::{source, sse, unaligned, xmm};
use super::table::{dot_rows, float_imm_rows, float_rows};
use crate::cpu::{Cpu, Exec, Handler, Stop};
use crate::host::Scalar;

/// The implementation of `insn`, if it is floating point on XMM registers.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    if !insn.op0_register().is_xmm() {
        return None;
    }
    let mnemonic = insn.mnemonic();
    float_row(mnemonic).or_else(|| float_imm_row(mnemonic)).or_else(|| dot_row(mnemonic)).or_else(|| {
        Some(match mnemonic {
            Mnemonic::Comiss => compare::<native::Comiss, u32>,
            Mnemonic::Comisd => compare::<native::Comisd, u64>,
            Mnemonic::Ucomiss => compare::<native::Ucomiss, u32>,
            Mnemonic::Ucomisd => compare::<native::Ucomisd, u64>,
            _ => return None,
        })
    })
}

macro_rules! dispatch_float {
    ($($feature:tt { $($name:ident $op:literal $ty:ident $tiny:ident;)* })*) => {
        fn float_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => float::<native::$name, $ty>,)*)*
                _ => return None,
            })
        }
    };
}
float_rows!(dispatch_float);

macro_rules! dispatch_float_imm {
    ($($feature:tt {
        $($name:ident $op:literal $ty:ident $tiny:ident $mask:literal [$($imm:literal)*];)*
    })*) => {
        fn float_imm_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => float::<native::$name, $ty>,)*)*
                _ => return None,
            })
        }
    };
}
float_imm_rows!(dispatch_float_imm);

macro_rules! dispatch_dot {
    ($($feature:tt {
        $($name:ident $op:literal $ty:ident $tiny:ident $mask:literal [$($imm:literal)*];)*
    })*) => {
        fn dot_row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => dot::<native::$name>,)*)*
                _ => return None,
            })
        }
    };
}
dot_rows!(dispatch_dot);

fn float<O: Float, T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<T>(cpu, insn, 1)?;
    let d = xmm(insn.op0_register());
    let old = cpu.state.fpu.xmm[d];
    let imm = insn.immediate8();
    cpu.state.fpu.xmm[d] =
        under_mxcsr(cpu, |mxcsr| O::run(old, s, imm, mxcsr), |result| is_tiny(O::TINY, *result))?;
    Ok(())
}

/// DPPS and DPPD: the sum goes to every element that the low half of the immediate names, 0 to
/// the others.
fn dot<O: Float>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let s = source::<u128>(cpu, insn, 1)?;
    let d = xmm(insn.op0_register());
    let old = cpu.state.fpu.xmm[d];
    let imm = insn.immediate8();
    let bits = if O::TINY == Tiny::Singles { 32 } else { 64 };
    // One mask for the elements that take part, one for those that receive the sum.
    let elements = |imm: u8| {
        let element = u128::MAX >> (128 - bits);
        (0..128 / bits).filter(|i| imm >> i & 1 != 0).fold(0, |m, i| m | element << (bits * i))
    };
    let control = cpu.state.fpu.mxcsr & !mxcsr::FTZ | mxcsr::MASKS;
    let tiny = |sum: &u128| {
        let factors = elements(imm >> 4);
        is_tiny(O::TINY, *sum) || tiny_within(O::TINY, old & factors, s & factors, control)
    };
    let sum = under_mxcsr(cpu, |mxcsr| O::run(old, s, imm | 0xf, mxcsr), tiny)?;
    cpu.state.fpu.xmm[d] = sum & elements(imm);
    Ok(())
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
    let b = unaligned::<T>(cpu, insn, 1)?;
    let a = cpu.state.fpu.xmm[xmm(insn.op0_register())];
    let flags = under_mxcsr(cpu, |mxcsr| O::run(a, b, mxcsr), |_| false)?;
    cpu.flags.set_bits(flags);
    Ok(())
}

/// Executes `operation` under the guest's MXCSR and takes its exception flags. With an unmasked
/// exception it raises #XM instead of giving the result; `tiny` then tells whether that holds a
/// number too small for its format.
#[inline(always)]
pub fn under_mxcsr<R>(
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
fn is_tiny(kind: Tiny, value: u128) -> bool {
    let single = |i: u32| {
        let v = (value >> (32 * i)) as u32;
        v & 0x7f80_0000 == 0 && v & 0x007f_ffff != 0
    };
    let double = |i: u32| {
        let v = (value >> (64 * i)) as u64;
        v & 0x7ff0_0000_0000_0000 == 0 && v & 0x000f_ffff_ffff_ffff != 0
    };
    match kind {
        Tiny::None => false,
        Tiny::Single => single(0),
        Tiny::Singles => (0..4).any(single),
        Tiny::Double => double(0),
        Tiny::Doubles => (0..2).any(double),
    }
}
