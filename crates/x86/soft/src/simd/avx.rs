//! AVX, AVX2, FMA and F16C, and the VEX encodings of AES and PCLMULQDQ.
//!
//! An instruction on 256 bits mostly is its relative on 128 bits twice, on either half. So the
//! operations are those of the SSE tables, found by the name without its V; what is new is in
//! [`super::native`], or written here where it only rearranges bits. A result of 128 bits clears
//! the register's upper half.

mod exact;
mod float;
mod fma;
mod gather;
mod masked;
mod moves;
mod operand;
mod packed;
mod permute;
mod scalar;
#[cfg(test)]
mod tests;

use iced_x86::{EncodingKind, Instruction};

use crate::insn::Section;

/// Whether `insn` has a VEX prefix, and the host AVX.
fn vex(insn: &Instruction) -> bool {
    insn.encoding() == EncodingKind::VEX && is_x86_feature_detected!("avx")
}

/// What is implemented here.
pub(crate) const SECTIONS: &[Section] = &[
    Section::when(vex, moves::ROWS),
    Section::when(vex, packed::OWN),
    Section::when(vex, packed::SHIFTS),
    Section::when(vex, packed::PACKED),
    Section::when(vex, packed::LOW),
    Section::when(vex, packed::BLENDS),
    Section::when(vex, packed::IMMEDIATE),
    Section::when(vex, permute::ROWS),
    Section::when(vex, float::OWN),
    Section::when(vex, float::FLOAT),
    Section::when(vex, float::IMMEDIATE),
    Section::when(vex, float::DOT),
    Section::when(vex, fma::ROWS),
    Section::when(vex, scalar::ROWS),
    Section::when(vex, masked::ROWS),
    Section::when(vex, gather::ROWS),
];
