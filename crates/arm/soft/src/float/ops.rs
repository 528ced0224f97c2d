//! Operations.

use std::cmp::Ordering;

use super::pack::{DZC, Env, Finite, Format, IOC, Number, Rounding};

/// A sum without rounding; none if it is zero.
fn sum(a: Finite, b: Finite) -> Option<Finite> {
    // Highest bits at 125: room for a carry above, and for what a shift leaves below.
    let normal = |x: Finite| {
        let by = x.significand.leading_zeros() as i32 - 2;
        let significand = if by >= 0 { x.significand << by } else { x.significand >> -by };
        Finite { exponent: x.exponent - by, significand, ..x }
    };
    let (a, b) = (normal(a), normal(b));
    let (large, small) =
        if (a.exponent, a.significand) >= (b.exponent, b.significand) { (a, b) } else { (b, a) };
    let by = (large.exponent - small.exponent) as u32;
    // What is shifted out leaves a one.
    let shifted = match by {
        0 => small.significand,
        1..=127 => small.significand >> by | u128::from(small.significand << (128 - by) != 0),
        _ => 1,
    };
    let significand = match large.negative == small.negative {
        true => large.significand + shifted,
        false => large.significand - shifted,
    };
    (significand != 0).then_some(Finite { significand, ..large })
}

/// A sum whose parts are finite, rounded.
fn rounded_sum(env: &mut Env, format: Format, a: Finite, b: Finite) -> u64 {
    match sum(a, b) {
        Some(sum) => env.round(format, sum),
        None => format.signed(env.rounding == Rounding::Down, 0),
    }
}

/// a + b, or a - b.
pub(crate) fn add(env: &mut Env, format: Format, a: u64, b: u64, subtract: bool) -> u64 {
    let (x, y) = (env.unpack(format, a), env.unpack(format, b));
    if let Some(nan) = env.nan_of(format, &[a, b]) {
        return nan;
    }
    let turn = |negative: bool| negative != subtract;
    let y = match y {
        Number::Zero(negative) => Number::Zero(turn(negative)),
        Number::Infinity(negative) => Number::Infinity(turn(negative)),
        Number::Finite(y) => Number::Finite(Finite { negative: turn(y.negative), ..y }),
        Number::Nan => Number::Nan,
    };
    add_numbers(env, format, x, y)
}

fn add_numbers(env: &mut Env, format: Format, x: Number, y: Number) -> u64 {
    match (x, y) {
        (Number::Infinity(a), Number::Infinity(b)) if a != b => env.invalid(format),
        (Number::Infinity(negative), _) | (_, Number::Infinity(negative)) => {
            format.signed(negative, format.infinity())
        }
        (Number::Zero(a), Number::Zero(b)) if a == b => format.signed(a, 0),
        (Number::Zero(_), Number::Zero(_)) => format.signed(env.rounding == Rounding::Down, 0),
        (Number::Finite(one), Number::Zero(_)) | (Number::Zero(_), Number::Finite(one)) => {
            env.round(format, one)
        }
        (Number::Finite(a), Number::Finite(b)) => rounded_sum(env, format, a, b),
        (Number::Nan, _) | (_, Number::Nan) => format.default_nan(),
    }
}

fn sign_of(number: Number) -> bool {
    match number {
        Number::Zero(negative) | Number::Infinity(negative) => negative,
        Number::Finite(number) => number.negative,
        Number::Nan => false,
    }
}

/// The product of two that are finite, exactly.
fn product(a: Finite, b: Finite) -> Finite {
    Finite {
        negative: a.negative != b.negative,
        exponent: a.exponent + b.exponent,
        significand: a.significand * b.significand,
    }
}

/// a x b; FMULX if `extended`: zero times infinity is two.
fn multiply_with(env: &mut Env, format: Format, a: u64, b: u64, extended: bool) -> u64 {
    let (x, y) = (env.unpack(format, a), env.unpack(format, b));
    if let Some(nan) = env.nan_of(format, &[a, b]) {
        return nan;
    }
    let negative = sign_of(x) != sign_of(y);
    match (x, y) {
        (Number::Infinity(_), Number::Zero(_)) | (Number::Zero(_), Number::Infinity(_)) => match extended {
            true => format.signed(negative, ((format.bias() + 1) as u64) << format.fraction),
            false => env.invalid(format),
        },
        (Number::Infinity(_), _) | (_, Number::Infinity(_)) => format.signed(negative, format.infinity()),
        (Number::Finite(a), Number::Finite(b)) => env.round(format, product(a, b)),
        _ => format.signed(negative, 0),
    }
}

pub(crate) fn multiply(env: &mut Env, format: Format, a: u64, b: u64) -> u64 {
    multiply_with(env, format, a, b, false)
}

pub(crate) fn multiply_extended(env: &mut Env, format: Format, a: u64, b: u64) -> u64 {
    multiply_with(env, format, a, b, true)
}

pub(crate) fn divide(env: &mut Env, format: Format, a: u64, b: u64) -> u64 {
    let (x, y) = (env.unpack(format, a), env.unpack(format, b));
    if let Some(nan) = env.nan_of(format, &[a, b]) {
        return nan;
    }
    let negative = sign_of(x) != sign_of(y);
    match (x, y) {
        (Number::Infinity(_), Number::Infinity(_)) | (Number::Zero(_), Number::Zero(_)) => {
            env.invalid(format)
        }
        (Number::Infinity(_), _) => format.signed(negative, format.infinity()),
        (_, Number::Infinity(_)) | (Number::Zero(_), _) => format.signed(negative, 0),
        (_, Number::Zero(_)) => {
            env.flags |= DZC;
            format.signed(negative, format.infinity())
        }
        (Number::Finite(a), Number::Finite(b)) => {
            let by = a.significand.leading_zeros() - 1;
            let dividend = a.significand << by;
            let (quotient, rest) = (dividend / b.significand, dividend % b.significand);
            let significand = quotient << 1 | u128::from(rest != 0);
            let exponent = a.exponent - b.exponent - by as i32 - 1;
            env.round(format, Finite { negative, exponent, significand })
        }
        (Number::Nan, _) | (_, Number::Nan) => format.default_nan(),
    }
}

pub(crate) fn root(env: &mut Env, format: Format, a: u64) -> u64 {
    let x = env.unpack(format, a);
    if let Some(nan) = env.nan_of(format, &[a]) {
        return nan;
    }
    match x {
        Number::Zero(negative) => format.signed(negative, 0),
        Number::Infinity(false) => format.infinity(),
        Number::Finite(x) if !x.negative => {
            // An even exponent, and bits enough for twice the fraction.
            let mut by = x.significand.leading_zeros() as i32 - 2;
            by -= (x.exponent - by) & 1;
            let square = x.significand << by;
            let root = square.isqrt();
            let significand = root << 1 | u128::from(root * root != square);
            let exponent = (x.exponent - by) / 2 - 1;
            env.round(format, Finite { negative: false, exponent, significand })
        }
        _ => env.invalid(format),
    }
}

/// addend + a x b, rounded once.
pub(crate) fn multiply_add(env: &mut Env, format: Format, addend: u64, a: u64, b: u64) -> u64 {
    let (z, x, y) = (env.unpack(format, addend), env.unpack(format, a), env.unpack(format, b));
    let impossible =
        matches!((x, y), (Number::Infinity(_), Number::Zero(_)) | (Number::Zero(_), Number::Infinity(_)));
    let quiet = format.is_nan(addend) && !format.is_signalling(addend);
    if impossible && quiet {
        return env.invalid(format);
    }
    if let Some(nan) = env.nan_of(format, &[addend, a, b]) {
        return nan;
    }
    if impossible {
        return env.invalid(format);
    }
    let negative = sign_of(x) != sign_of(y);
    let product = match (x, y) {
        (Number::Infinity(_), _) | (_, Number::Infinity(_)) => Number::Infinity(negative),
        (Number::Finite(a), Number::Finite(b)) => Number::Finite(product(a, b)),
        _ => Number::Zero(negative),
    };
    add_numbers(env, format, z, product)
}

/// FRECPS, 2 - a x b, or FRSQRTS, (3 - a x b) / 2, rounded once.
pub(crate) fn step(env: &mut Env, format: Format, a: u64, b: u64, square: bool) -> u64 {
    let (a, b) = (a ^ format.sign_bit(), b);
    let (x, y) = (env.unpack(format, a), env.unpack(format, b));
    // A NaN's sign turns with the operand: the manual negates first.
    if let Some(nan) = env.nan_of(format, &[a, b]) {
        return nan;
    }
    let negative = sign_of(x) != sign_of(y);
    let constant = Finite { negative: false, exponent: 0, significand: if square { 3 } else { 2 } };
    // 2, or 1.5.
    let alone = match square {
        false => ((format.bias() + 1) as u64) << format.fraction,
        true => (format.bias() as u64) << format.fraction | format.quiet(),
    };
    match (x, y) {
        (Number::Infinity(_), Number::Zero(_)) | (Number::Zero(_), Number::Infinity(_)) => alone,
        (Number::Infinity(_), _) | (_, Number::Infinity(_)) => format.signed(negative, format.infinity()),
        (Number::Finite(a), Number::Finite(b)) => match sum(constant, product(a, b)) {
            Some(sum) => {
                let exponent = sum.exponent - i32::from(square);
                env.round(format, Finite { exponent, ..sum })
            }
            None => format.signed(env.rounding == Rounding::Down, 0),
        },
        _ => alone,
    }
}

/// FABD.
pub(crate) fn abs_difference(env: &mut Env, format: Format, a: u64, b: u64) -> u64 {
    add(env, format, a, b, true) & !format.sign_bit()
}

/// Less, equal or greater; none if unordered, which is invalid for signalling NaNs or, if `signals`, for all.
pub(crate) fn compare(env: &mut Env, format: Format, a: u64, b: u64, signals: bool) -> Option<Ordering> {
    let (x, y) = (env.unpack(format, a), env.unpack(format, b));
    if format.is_nan(a) || format.is_nan(b) {
        if signals || format.is_signalling(a) || format.is_signalling(b) {
            env.flags |= IOC;
        }
        return None;
    }
    // Denormals that count as zero compare as it does.
    let key = |number: Number, bits: u64| match number {
        Number::Zero(_) => 0,
        _ if format.is_negative(bits) => -((bits & !format.sign_bit()) as i64),
        _ => bits as i64,
    };
    Some(key(x, a).cmp(&key(y, b)))
}

/// FMAX and FMIN; with `number` FMAXNM and FMINNM, for which a quiet NaN is no operand.
fn extreme(env: &mut Env, format: Format, a: u64, b: u64, wanted: Ordering, number: bool) -> u64 {
    let quiet = |bits: u64| format.is_nan(bits) && !format.is_signalling(bits);
    let (mut a, mut b) = (a, b);
    if number {
        // It loses against any number.
        let loser = format.signed(wanted == Ordering::Greater, format.infinity());
        match (quiet(a), quiet(b)) {
            (true, false) if !format.is_nan(b) => a = loser,
            (false, true) if !format.is_nan(a) => b = loser,
            _ => {}
        }
    }
    let (x, y) = (env.unpack(format, a), env.unpack(format, b));
    if let Some(nan) = env.nan_of(format, &[a, b]) {
        return nan;
    }
    let flushed = |number: Number, bits: u64| match number {
        Number::Zero(negative) => format.signed(negative, 0),
        _ => bits,
    };
    let (a, b) = (flushed(x, a), flushed(y, b));
    let order = match (x, y) {
        // -0 is less than 0.
        (Number::Zero(first), Number::Zero(second)) => second.cmp(&first),
        _ => compare(env, format, a, b, false).unwrap_or(Ordering::Equal),
    };
    if order == wanted { a } else { b }
}

pub(crate) fn max(env: &mut Env, format: Format, a: u64, b: u64, number: bool) -> u64 {
    extreme(env, format, a, b, Ordering::Greater, number)
}

pub(crate) fn min(env: &mut Env, format: Format, a: u64, b: u64, number: bool) -> u64 {
    extreme(env, format, a, b, Ordering::Less, number)
}
