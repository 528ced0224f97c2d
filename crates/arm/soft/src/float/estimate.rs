//! Estimates of reciprocals, of nine bits (RecipEstimate, RecipSqrtEstimate).

use super::pack::{DZC, Env, Format, IXC, Number, OFC, Rounding, UFC};

const fn estimate(a: u64) -> u64 {
    let b = (1 << 19) / (a * 2 + 1);
    b.div_ceil(2)
}

const fn root_estimate(a: u64) -> u64 {
    let a = if a < 256 { a * 2 + 1 } else { ((a >> 1 << 1) + 1) * 2 };
    let mut b = 512;
    while a * (b + 1) * (b + 1) < 1 << 28 {
        b += 1;
    }
    b.div_ceil(2)
}

/// The fraction as the highest of 52 bits, and the exponent as it is stored.
fn parts(format: Format, bits: u64) -> (u64, i64) {
    let fraction = bits & ((1 << format.fraction) - 1);
    let exponent = bits >> format.fraction & ((1 << format.exponent) - 1);
    (fraction << (52 - format.fraction), exponent as i64)
}

const FRACTION: u64 = (1 << 52) - 1;

/// FRECPE.
pub(crate) fn reciprocal(env: &mut Env, format: Format, bits: u64) -> u64 {
    let number = env.unpack(format, bits);
    if let Some(nan) = env.nan_of(format, &[bits]) {
        return nan;
    }
    let negative = format.is_negative(bits);
    match number {
        Number::Infinity(_) => return format.signed(negative, 0),
        Number::Zero(_) => {
            env.flags |= DZC;
            return format.signed(negative, format.infinity());
        }
        _ => {}
    }
    let (mut fraction, mut exponent) = parts(format, bits);
    let last = 2 * i64::from(format.bias()) - 1;
    // Below 2 to the power of -128 or -1024 the reciprocal overflows.
    if exponent == 0 && fraction >> 50 == 0 {
        env.flags |= OFC | IXC;
        let infinite = match env.rounding {
            Rounding::Up => !negative,
            Rounding::Down => negative,
            Rounding::Zero => false,
            _ => true,
        };
        let magnitude = if infinite { format.infinity() } else { format.infinity() - 1 };
        return format.signed(negative, magnitude);
    }
    if env.flush && exponent >= last {
        env.flags |= UFC;
        return format.signed(negative, 0);
    }
    if exponent == 0 {
        if fraction >> 51 == 0 {
            exponent = -1;
            fraction = fraction << 2 & FRACTION;
        } else {
            fraction = fraction << 1 & FRACTION;
        }
    }
    let mut result = (estimate(256 | fraction >> 44) & 0xff) << 44;
    let mut power = last - exponent;
    if power == 0 {
        result = 1 << 51 | result >> 1;
    } else if power == -1 {
        result = 1 << 50 | result >> 2;
        power = 0;
    }
    format.signed(negative, (power as u64) << format.fraction | result >> (52 - format.fraction))
}

/// FRSQRTE.
pub(crate) fn reciprocal_root(env: &mut Env, format: Format, bits: u64) -> u64 {
    let number = env.unpack(format, bits);
    if let Some(nan) = env.nan_of(format, &[bits]) {
        return nan;
    }
    match number {
        Number::Zero(negative) => {
            env.flags |= DZC;
            return format.signed(negative, format.infinity());
        }
        _ if format.is_negative(bits) => return env.invalid(format),
        Number::Infinity(_) => return 0,
        _ => {}
    }
    let (mut fraction, mut exponent) = parts(format, bits);
    if exponent == 0 {
        while fraction >> 51 == 0 {
            fraction <<= 1;
            exponent -= 1;
        }
        fraction = fraction << 1 & FRACTION;
    }
    let scaled = if exponent & 1 == 0 { 256 | fraction >> 44 } else { 128 | fraction >> 45 };
    let power = ((3 * i64::from(format.bias()) - 1 - exponent) / 2) as u64;
    let result = (root_estimate(scaled) & 0xff) << (format.fraction - 8);
    power << format.fraction | result
}

/// FRECPX: the exponent's reciprocal.
pub(crate) fn exponent(env: &mut Env, format: Format, bits: u64) -> u64 {
    env.unpack(format, bits);
    if let Some(nan) = env.nan_of(format, &[bits]) {
        return nan;
    }
    let all = (1_u64 << format.exponent) - 1;
    let power = bits >> format.fraction & all;
    let power = if power == 0 { all - 1 } else { !power & all };
    format.signed(format.is_negative(bits), power << format.fraction)
}

/// URECPE of 32 bits.
pub(crate) fn unsigned_reciprocal(value: u64) -> u64 {
    if value >> 31 == 0 { 0xffff_ffff } else { estimate(value >> 23) << 23 }
}

/// URSQRTE of 32 bits.
pub(crate) fn unsigned_reciprocal_root(value: u64) -> u64 {
    if value >> 30 == 0 { 0xffff_ffff } else { root_estimate(value >> 23) << 23 }
}
