//! What AVX, FMA and F16C add to the operations of SSE, on 128 bits.
//!
//! A row must only be called on a host that has its feature; the dispatchers look first.

use std::arch::asm;

use satori_defs::fpu::mxcsr;

use super::{Float, HOST_MXCSR_CELL, Tiny, integer, vector};

/// `imm8` under MXCSR, for each value under the mask.
macro_rules! float_by_imm {
    ($($name:ident $text:literal $tiny:ident $mask:literal [$first:literal $($imm:literal)*];)*) => {$(
        #[doc = concat!("`", $text, "`")]
        pub(crate) struct $name;
        impl Float for $name {
            const TINY: Tiny = Tiny::$tiny;
            fn run(destination: u128, source: u128, imm: u8, mut mxcsr: u32) -> (u128, u32) {
                let mut d = vector(destination);
                let s = vector(source);
                match imm & $mask {
                    $($imm => under_mxcsr!($text, mxcsr,
                        d = inout(xmm_reg) d, s = in(xmm_reg) s, imm = const $imm,),)*
                    _ => under_mxcsr!($text, mxcsr,
                        d = inout(xmm_reg) d, s = in(xmm_reg) s, imm = const $first,),
                }
                (integer(d), mxcsr)
            }
        }
    )*};
}
// VCMP has 32 predicates, of which SSE knows the first eight.
float_by_imm! {
    Vcmpps "vcmpps {d}, {d}, {s}, {imm}" None 0x1f [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31];
    Vcmppd "vcmppd {d}, {d}, {s}, {imm}" None 0x1f [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31];
    Vcmpss "vcmpss {d}, {d}, {s}, {imm}" None 0x1f [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31];
    Vcmpsd "vcmpsd {d}, {d}, {s}, {imm}" None 0x1f [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
        24 25 26 27 28 29 30 31];
    // With bit 2 the rounding is MXCSR's.
    Vcvtps2ph "vcvtps2ph {d}, {s}, {imm}" Halves 7 [0 1 2 3 4 5 6 7];
}

float! { "f16c" { Vcvtph2ps "vcvtph2ps" u64 None; } }

/// `x * y + z`, with signs by the instruction, under MXCSR.
pub(crate) trait Fma {
    /// The results that can be tiny.
    const TINY: Tiny;
    /// By element, even and odd ones: whether product and addend have their signs multiplied by
    /// -1 in relation to each other.
    const SUBTRACTS: [bool; 2];
    /// Executes it with `mxcsr`, all of whose masks must be set, and gives the changed MXCSR.
    fn run(x: u128, y: u128, z: u128, mxcsr: u32) -> (u128, u32);
}

macro_rules! fma {
    ($($name:ident $op:literal $tiny:ident $even:literal $odd:literal;)*) => {$(
        #[doc = concat!("`", $op, " y, x, z`")]
        pub(crate) struct $name;
        impl Fma for $name {
            const TINY: Tiny = Tiny::$tiny;
            const SUBTRACTS: [bool; 2] = [$even, $odd];
            #[inline(always)]
            fn run(x: u128, y: u128, z: u128, mut mxcsr: u32) -> (u128, u32) {
                let mut d = vector(y);
                under_mxcsr!(concat!($op, " {d}, {x}, {z}"), mxcsr,
                    d = inout(xmm_reg) d, x = in(xmm_reg) vector(x), z = in(xmm_reg) vector(z),);
                (integer(d), mxcsr)
            }
        }
    )*};
}
fma! {
    Fmaddps "vfmadd213ps" Singles false false; Fmaddpd "vfmadd213pd" Doubles false false;
    Fmaddss "vfmadd213ss" Single false false; Fmaddsd "vfmadd213sd" Double false false;
    Fmsubps "vfmsub213ps" Singles true true; Fmsubpd "vfmsub213pd" Doubles true true;
    Fmsubss "vfmsub213ss" Single true true; Fmsubsd "vfmsub213sd" Double true true;
    Fnmaddps "vfnmadd213ps" Singles true true; Fnmaddpd "vfnmadd213pd" Doubles true true;
    Fnmaddss "vfnmadd213ss" Single true true; Fnmaddsd "vfnmadd213sd" Double true true;
    Fnmsubps "vfnmsub213ps" Singles false false; Fnmsubpd "vfnmsub213pd" Doubles false false;
    Fnmsubss "vfnmsub213ss" Single false false; Fnmsubsd "vfnmsub213sd" Double false false;
    Fmaddsubps "vfmaddsub213ps" Singles true false; Fmaddsubpd "vfmaddsub213pd" Doubles true false;
    Fmsubaddps "vfmsubadd213ps" Singles false true; Fmsubaddpd "vfmsubadd213pd" Doubles false true;
}
