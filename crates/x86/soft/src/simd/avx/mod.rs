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

use std::sync::LazyLock;

use iced_x86::{EncodingKind, Instruction, Mnemonic};

use crate::cpu::Handler;

/// The implementation of `insn`, if it has a VEX prefix and works on vectors, and the host has AVX.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    if insn.encoding() != EncodingKind::VEX || !is_x86_feature_detected!("avx") {
        return None;
    }
    moves::handler(insn)
        .or_else(|| packed::handler(insn))
        .or_else(|| permute::handler(insn))
        .or_else(|| float::handler(insn))
        .or_else(|| fma::handler(insn))
        .or_else(|| scalar::handler(insn))
        .or_else(|| masked::handler(insn))
        .or_else(|| gather::handler(insn))
}

/// The instruction of SSE that an instruction of AVX was made of: its name without the V.
fn legacy(mnemonic: Mnemonic) -> Option<Mnemonic> {
    static LEGACY: LazyLock<Vec<Option<Mnemonic>>> = LazyLock::new(|| {
        let mut names: Vec<(String, Mnemonic)> = Mnemonic::values()
            .map(|mnemonic| (format!("{mnemonic:?}").to_ascii_lowercase(), mnemonic))
            .collect();
        names.sort();
        let find = |name: &str| {
            let at = names.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
            Some(names[at].1)
        };
        Mnemonic::values()
            .map(|mnemonic| find(format!("{mnemonic:?}").to_ascii_lowercase().strip_prefix('v')?))
            .collect()
    });
    LEGACY[mnemonic as usize]
}
