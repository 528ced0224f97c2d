//! MMX, SSE to SSE4.2 and AVX to AVX2, with AES, PCLMULQDQ, SHA, FMA and F16C.
//!
//! What an instruction computes comes from the host: [`table`] has a row for each that is one
//! native instruction on two values, [`native`] executes it. Operands, alignment, exceptions and
//! everything that is a mere rearrangement of bits are written here.

mod avx;
mod convert;
mod crc32;
mod float;
mod fxsave;
mod legacy;
mod mmx;
mod moves;
mod native;
mod operand;
mod packed;
mod shuffle;
mod string;
mod table;
#[cfg(test)]
mod tests;
mod xsave;

use iced_x86::Instruction;
use satori_cpuid::Feature;

pub(crate) use avx::SECTIONS as AVX;

use crate::insn::Section;
pub(crate) use operand::{load_bytes, store_address, store_bytes};
pub(crate) use xsave::in_use_with_mxcsr;

/// The features of which the host's own instructions do the work, and which the host does not have, or is to
/// do `without`.
pub fn host_lacks(without: &[Feature]) -> Vec<Feature> {
    let features = [
        (Feature::Sse3, is_x86_feature_detected!("sse3")),
        (Feature::Ssse3, is_x86_feature_detected!("ssse3")),
        (Feature::Sse4_1, is_x86_feature_detected!("sse4.1")),
        (Feature::Sse4_2, is_x86_feature_detected!("sse4.2")),
        (Feature::Aes, is_x86_feature_detected!("aes")),
        (Feature::Pclmulqdq, is_x86_feature_detected!("pclmulqdq")),
        (Feature::ShaNi, is_x86_feature_detected!("sha")),
        (Feature::Avx, is_x86_feature_detected!("avx")),
        (Feature::Avx2, is_x86_feature_detected!("avx2")),
        (Feature::Fma, is_x86_feature_detected!("fma")),
        (Feature::F16c, is_x86_feature_detected!("f16c")),
        (Feature::Vaes, is_x86_feature_detected!("vaes")),
        (Feature::Vpclmulqdq, is_x86_feature_detected!("vpclmulqdq")),
    ];
    features
        .into_iter()
        .filter(|(feature, has)| !has || without.contains(feature))
        .map(|(feature, _)| feature)
        .collect()
}

/// Whether the result is in an XMM register.
fn to_xmm(insn: &Instruction) -> bool {
    insn.op0_register().is_xmm()
}

/// Whether `insn` works on XMM registers.
fn on_xmm(insn: &Instruction) -> bool {
    insn.op0_register().is_xmm() || insn.op1_register().is_xmm()
}

/// What is implemented here, and the host can execute.
pub(crate) const SECTIONS: &[Section] = &[
    Section::of(moves::GENERAL),
    Section::when(on_xmm, moves::ROWS),
    Section::when(mmx::works_on_mmx, mmx::ROWS),
    Section::when(mmx::works_on_mmx, mmx::PACKED),
    Section::when(to_xmm, packed::SHIFTS),
    Section::when(to_xmm, packed::PACKED),
    Section::when(to_xmm, packed::LOW),
    Section::when(to_xmm, packed::XMM0),
    Section::when(to_xmm, packed::IMMEDIATE),
    Section::when(on_xmm, shuffle::ROWS),
    Section::when(to_xmm, float::FLOAT),
    Section::when(to_xmm, float::IMMEDIATE),
    Section::when(to_xmm, float::DOT),
    Section::when(to_xmm, float::COMPARISONS),
    Section::of(convert::ROWS),
    Section::of(string::ROWS),
    Section::of(fxsave::ROWS),
    Section::of(xsave::ROWS),
    Section::of(crc32::ROWS),
];
