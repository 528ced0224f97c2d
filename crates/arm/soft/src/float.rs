//! Floating-point numbers as bits.

/// VFPExpandImm to a single.
pub(crate) const fn expand32(imm8: u32) -> u32 {
    let (sign, b, rest) = (imm8 >> 7, imm8 >> 6 & 1, imm8 & 0x3f);
    sign << 31 | (b ^ 1) << 30 | (if b != 0 { 0x1f } else { 0 }) << 25 | rest << 19
}

/// The same to a double.
pub(crate) const fn expand64(imm8: u32) -> u64 {
    let (sign, b, rest) = ((imm8 >> 7) as u64, (imm8 >> 6 & 1) as u64, (imm8 & 0x3f) as u64);
    sign << 63 | (b ^ 1) << 62 | (if b != 0 { 0xff } else { 0 }) << 54 | rest << 48
}

mod convert;
mod estimate;
mod ops;
mod pack;

pub(crate) use convert::{from_integer, round_to_integral, to_float, to_integer};
pub(crate) use estimate::{
    exponent, reciprocal, reciprocal_root, unsigned_reciprocal, unsigned_reciprocal_root,
};
pub(crate) use ops::{
    abs_difference, add, compare, divide, max, min, multiply, multiply_add, multiply_extended, root, step,
};
pub(crate) use pack::{DOUBLE, Env, Format, HALF, Rounding, SINGLE};
