//! Conversions: between formats, to and from integers, to integral numbers.

use super::pack::{Env, Finite, Format, HALF, IOC, IXC, Number, Rounding, rounds_up, split};

/// From a format into another.
pub(crate) fn to_float(env: &mut Env, from: Format, to: Format, bits: u64) -> u64 {
    // Halves have a flush control of their own, which is not there: those of the other format are flushed.
    let number = env.unpack(from, bits);
    let alternative = env.alternative && to == HALF;
    match number {
        Number::Nan if alternative => {
            env.flags |= IOC;
            to.signed(from.is_negative(bits), 0)
        }
        Number::Nan => {
            if from.is_signalling(bits) {
                env.flags |= IOC;
            }
            if env.default_nan {
                return to.default_nan();
            }
            let fraction = bits & ((1 << from.fraction) - 1);
            let fraction = match from.fraction > to.fraction {
                true => fraction >> (from.fraction - to.fraction),
                false => fraction << (to.fraction - from.fraction),
            };
            to.signed(from.is_negative(bits), to.default_nan() | fraction)
        }
        Number::Infinity(negative) if alternative => {
            env.flags |= IOC;
            to.signed(negative, to.sign_bit() - 1)
        }
        Number::Infinity(negative) => to.signed(negative, to.infinity()),
        Number::Zero(negative) => to.signed(negative, 0),
        Number::Finite(number) => env.round(to, number),
    }
}

/// To an integer of `width` bits times 2 to the power of `scale`, the nearest if it is out of range.
pub(crate) fn to_integer(
    env: &mut Env,
    format: Format,
    bits: u64,
    (width, signed): (u32, bool),
    scale: u32,
    rounding: Rounding,
) -> u64 {
    let (least, most) = match signed {
        true => (-(1_i128 << (width - 1)), (1_i128 << (width - 1)) - 1),
        false => (0, (1_i128 << width) - 1),
    };
    let mask = u64::MAX >> (64 - width);
    let value = match env.unpack(format, bits) {
        Number::Zero(_) => return 0,
        Number::Nan => {
            env.flags |= IOC;
            return 0;
        }
        Number::Infinity(negative) => {
            if negative {
                i128::MIN
            } else {
                i128::MAX
            }
        }
        Number::Finite(number) => {
            let exponent = number.exponent + scale as i32;
            if exponent > 64 {
                if number.negative { i128::MIN } else { i128::MAX }
            } else {
                let (mut kept, rest, half) = split(number.significand, -exponent);
                if rounds_up(rounding, number.negative, kept, rest, half) {
                    kept += 1;
                }
                let value = if number.negative { -(kept as i128) } else { kept as i128 };
                if rest != super::pack::Rest::Zero && (least..=most).contains(&value) {
                    env.flags |= IXC;
                }
                value
            }
        }
    };
    if !(least..=most).contains(&value) {
        env.flags |= IOC;
    }
    value.clamp(least, most) as u64 & mask
}

/// From an integer that stands for itself over 2 to the power of `scale`.
pub(crate) fn from_integer(env: &mut Env, format: Format, value: i128, scale: u32) -> u64 {
    if value == 0 {
        return 0;
    }
    let number = Finite { negative: value < 0, exponent: -(scale as i32), significand: value.unsigned_abs() };
    env.round(format, number)
}

/// FRINT: to an integral number; inexact only if `exact`.
pub(crate) fn round_to_integral(
    env: &mut Env,
    format: Format,
    bits: u64,
    rounding: Rounding,
    exact: bool,
) -> u64 {
    let number = env.unpack(format, bits);
    if let Some(nan) = env.nan_of(format, &[bits]) {
        return nan;
    }
    match number {
        Number::Zero(negative) => format.signed(negative, 0),
        Number::Finite(number) if number.exponent < 0 => {
            let (mut kept, rest, half) = split(number.significand, -number.exponent);
            if rounds_up(rounding, number.negative, kept, rest, half) {
                kept += 1;
            }
            if rest != super::pack::Rest::Zero && exact {
                env.flags |= IXC;
            }
            if kept == 0 {
                return format.signed(number.negative, 0);
            }
            env.round(format, Finite { exponent: 0, significand: kept, ..number })
        }
        _ => bits,
    }
}
