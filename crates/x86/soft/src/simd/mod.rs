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

use crate::cpu::Handler;
pub use operand::{load_bytes, store_address, store_bytes};
pub use xsave::in_use_with_mxcsr;

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

/// The implementation of `insn`, if it is one of this folder's and the host can execute it.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    avx::handler(insn)
        .or_else(|| moves::handler(insn))
        .or_else(|| mmx::handler(insn))
        .or_else(|| packed::handler(insn))
        .or_else(|| shuffle::handler(insn))
        .or_else(|| float::handler(insn))
        .or_else(|| convert::handler(insn))
        .or_else(|| string::handler(insn))
        .or_else(|| fxsave::handler(insn))
        .or_else(|| xsave::handler(insn))
        .or_else(|| crc32::handler(insn))
}
