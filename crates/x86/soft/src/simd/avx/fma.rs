//! FMA: `x * y + z` with one rounding.
//!
//! The three digits of a name say which operands are x, y and z: 213 is the second times the
//! first, plus the third. NaNs and exceptions follow these roles.

use iced_x86::Instruction;
use satori_defs::fpu::mxcsr;
use satori_state::Ymm;

use super::exact;
use super::operand::{avx, register, set, source, wide};
use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;
use crate::insn::{Row, rows};
use crate::simd::float::{RANGE_MASKS, beyond, format, is_tiny, under_mxcsr};
use crate::simd::native::{self, Fma, Tiny};

macro_rules! forms {
    ($($one:ident $two:ident $three:ident $name:ident $ty:ident;)*) => {
        pub(super) const ROWS: &[Row] = rows!(insn {
            $(
                $one if is_x86_feature_detected!("fma") => fma::<native::$name, $ty, 132>,
                $two if is_x86_feature_detected!("fma") => fma::<native::$name, $ty, 213>,
                $three if is_x86_feature_detected!("fma") => fma::<native::$name, $ty, 231>,
            )*
        });
    };
}
forms! {
    Vfmadd132ps Vfmadd213ps Vfmadd231ps Fmaddps u128;
    Vfmadd132pd Vfmadd213pd Vfmadd231pd Fmaddpd u128;
    Vfmadd132ss Vfmadd213ss Vfmadd231ss Fmaddss u32;
    Vfmadd132sd Vfmadd213sd Vfmadd231sd Fmaddsd u64;
    Vfmsub132ps Vfmsub213ps Vfmsub231ps Fmsubps u128;
    Vfmsub132pd Vfmsub213pd Vfmsub231pd Fmsubpd u128;
    Vfmsub132ss Vfmsub213ss Vfmsub231ss Fmsubss u32;
    Vfmsub132sd Vfmsub213sd Vfmsub231sd Fmsubsd u64;
    Vfnmadd132ps Vfnmadd213ps Vfnmadd231ps Fnmaddps u128;
    Vfnmadd132pd Vfnmadd213pd Vfnmadd231pd Fnmaddpd u128;
    Vfnmadd132ss Vfnmadd213ss Vfnmadd231ss Fnmaddss u32;
    Vfnmadd132sd Vfnmadd213sd Vfnmadd231sd Fnmaddsd u64;
    Vfnmsub132ps Vfnmsub213ps Vfnmsub231ps Fnmsubps u128;
    Vfnmsub132pd Vfnmsub213pd Vfnmsub231pd Fnmsubpd u128;
    Vfnmsub132ss Vfnmsub213ss Vfnmsub231ss Fnmsubss u32;
    Vfnmsub132sd Vfnmsub213sd Vfnmsub231sd Fnmsubsd u64;
    Vfmaddsub132ps Vfmaddsub213ps Vfmaddsub231ps Fmaddsubps u128;
    Vfmaddsub132pd Vfmaddsub213pd Vfmaddsub231pd Fmaddsubpd u128;
    Vfmsubadd132ps Vfmsubadd213ps Vfmsubadd231ps Fmsubaddps u128;
    Vfmsubadd132pd Vfmsubadd213pd Vfmsubadd231pd Fmsubaddpd u128;
}

fn fma<O: Fma, T: Scalar + Into<u128>, const FORM: u32>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let wide = wide(insn);
    let third = source::<T>(cpu, insn, 2, wide)?;
    let first = register(cpu, insn.op0_register());
    let second = register(cpu, insn.op1_register());
    let (x, y, z) = match FORM {
        132 => (first, third, second),
        213 => (second, first, third),
        _ => (second, third, first),
    };
    let guest = cpu.state.fpu.mxcsr;
    let exactly = guest & RANGE_MASKS != RANGE_MASKS;
    let half = |x: u128, y: u128, z: u128, control: u32| {
        if exactly { unbounded::<O>(guest, x, y, z, control) } else { O::run(x, y, z, control) }
    };
    let run = |control: u32| {
        let (low, flags) = half(x.low, y.low, z.low, control);
        if !wide {
            return (Ymm { low, high: 0 }, flags);
        }
        let (high, more_flags) = half(x.high, y.high, z.high, control);
        (Ymm { low, high }, flags | more_flags)
    };
    let tiny = |result: &Ymm| is_tiny(O::TINY, result.low) || is_tiny(O::TINY, result.high);
    let mut result = under_mxcsr(cpu, run, tiny)?;
    if T::SIZE < 16 {
        // A scalar's neighbours are the destination's.
        let element = u128::MAX >> (128 - 8 * T::SIZE);
        result.low = result.low & element | first.low & !element;
    }
    set(cpu, insn.op0_register(), result, wide);
    Ok(())
}

/// With overflow or underflow unmasked: a result beyond the range is inexact only if rounding with
/// an unbounded exponent loses something, as for the operations of SSE.
#[cold]
fn unbounded<O: Fma>(guest: u32, x: u128, y: u128, z: u128, control: u32) -> (u128, u32) {
    let format = format(O::TINY);
    let count = if matches!(O::TINY, Tiny::Single | Tiny::Double) { 1 } else { 128 / format.bits };
    let (result, after) = O::run(x, y, z, control);
    let (mut a, mut b, mut c, mut inexact) = (x, y, z, 0);
    for i in (0..count).filter(|i| beyond(guest, format, format.element(result, *i))) {
        let [x, y, z] = [x, y, z].map(|value| format.element(value, i));
        let subtract = O::SUBTRACTS[i as usize % 2];
        if !exact::sum_is_exact(format, x, y, z, subtract, guest & mxcsr::DAZ != 0) {
            inexact = mxcsr::PE;
        }
        // The others' flag is the processor's.
        for value in [&mut a, &mut b, &mut c] {
            *value = format.with_element(*value, i, 0);
        }
    }
    let (_, others) = O::run(a, b, c, control);
    (result, after & !mxcsr::PE | others & mxcsr::PE | inexact)
}
