//! Vector instructions executed by the host, on values.
//!
//! The only `unsafe` code of this folder. A row's operation takes and gives plain integers, so its
//! face is safe: no instruction here touches memory beyond its own temporaries, and MXCSR and the
//! x87/MMX state are put back before Rust code runs again. A row must only be called on a host
//! that has its feature; the dispatchers look before they name it.

use std::arch::asm;
use std::arch::x86_64::__m128i;

use satori_defs::fpu::mxcsr;
pub(super) use vex::*;

use super::table::{
    dot_rows, float_imm_rows, float_rows, low_rows, mmx_rows, packed_imm_rows, packed_rows, packed_xmm0_rows,
};

/// `op(destination, source)`.
pub(super) trait Packed {
    /// Executes it.
    fn run(destination: u128, source: u128) -> u128;
}

/// `op(destination, source, XMM0)`.
pub(super) trait PackedXmm0 {
    /// Executes it.
    fn run(destination: u128, source: u128, xmm0: u128) -> u128;
}

/// `op(destination, source, imm8)`.
pub(super) trait PackedImm {
    /// Executes it.
    fn run(destination: u128, source: u128, imm: u8) -> u128;
}

/// `op(destination, source)` on MMX registers.
pub(super) trait Mmx {
    /// Executes it.
    fn run(destination: u64, source: u64) -> u64;
}

/// Where an operation leaves floating-point numbers that can be too small for their format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tiny {
    /// Nowhere.
    None,
    /// In four times 16 bits, the low half.
    Halves,
    /// In the low 32 bits.
    Single,
    /// In four times 32 bits.
    Singles,
    /// In the low 64 bits.
    Double,
    /// In two times 64 bits.
    Doubles,
}

/// `op(destination, source, imm8)` under MXCSR.
pub(super) trait Float {
    /// The results that can be tiny.
    const TINY: Tiny;
    /// Executes it with `mxcsr`, all of whose masks must be set, and gives the changed MXCSR. Rows
    /// without an immediate ignore `imm`; rows with one see its low bits.
    fn run(destination: u128, source: u128, imm: u8, mxcsr: u32) -> (u128, u32);
}

const HOST_MXCSR: u32 = mxcsr::RESET;

fn vector(value: u128) -> __m128i {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { std::mem::transmute(value) }
}

fn integer(value: __m128i) -> u128 {
    // SAFETY: both are 16 bytes of plain data.
    unsafe { std::mem::transmute(value) }
}

macro_rules! packed {
    ($($feature:tt { $($name:ident $op:literal $($ty:ident)?;)* })*) => {$($(
        #[doc = concat!("`", $op, " xmm, xmm`")]
        pub(crate) struct $name;
        impl Packed for $name {
            #[inline(always)]
            fn run(destination: u128, source: u128) -> u128 {
                let mut d = vector(destination);
                // SAFETY: works on the two registers only.
                unsafe {
                    asm!(concat!($op, " {d}, {s}"), d = inout(xmm_reg) d, s = in(xmm_reg) vector(source),
                        options(pure, nomem, nostack, preserves_flags));
                }
                integer(d)
            }
        }
    )*)*};
}
packed_rows!(packed);
low_rows!(packed);

macro_rules! packed_xmm0 {
    ($($feature:tt { $($name:ident $op:literal;)* })*) => {$($(
        #[doc = concat!("`", $op, " xmm, xmm, xmm0`")]
        pub(crate) struct $name;
        impl PackedXmm0 for $name {
            #[inline(always)]
            fn run(destination: u128, source: u128, xmm0: u128) -> u128 {
                let mut d = vector(destination);
                // SAFETY: works on the three registers only.
                unsafe {
                    asm!(concat!($op, " {d}, {s}"), d = inout(xmm_reg) d, s = in(xmm_reg) vector(source),
                        in("xmm0") vector(xmm0), options(pure, nomem, nostack, preserves_flags));
                }
                integer(d)
            }
        }
    )*)*};
}
packed_xmm0_rows!(packed_xmm0);

macro_rules! packed_imm {
    ($($feature:tt { $($name:ident $op:literal $mask:literal [$first:literal $($imm:literal)*];)* })*) => {$($(
        #[doc = concat!("`", $op, " xmm, xmm, imm8`")]
        pub(crate) struct $name;
        impl PackedImm for $name {
            fn run(destination: u128, source: u128, imm: u8) -> u128 {
                let mut d = vector(destination);
                let s = vector(source);
                // SAFETY: works on the two registers only.
                unsafe {
                    match imm & $mask {
                        $($imm => asm!(concat!($op, " {d}, {s}, {imm}"), d = inout(xmm_reg) d,
                            s = in(xmm_reg) s, imm = const $imm,
                            options(pure, nomem, nostack, preserves_flags)),)*
                        _ => asm!(concat!($op, " {d}, {s}, {imm}"), d = inout(xmm_reg) d,
                            s = in(xmm_reg) s, imm = const $first,
                            options(pure, nomem, nostack, preserves_flags)),
                    }
                }
                integer(d)
            }
        }
    )*)*};
}
packed_imm_rows!(packed_imm);

/// One instruction between a load and a save of MXCSR.
macro_rules! under_mxcsr {
    ($text:expr, $mxcsr:ident, $($operands:tt)*) => {
        // SAFETY: the masks are all set, so nothing is raised; MXCSR is the host's again after it.
        // `$mxcsr` and the constant are this function's to read and write.
        unsafe {
            debug_assert_eq!($mxcsr & mxcsr::MASKS, mxcsr::MASKS);
            asm!("ldmxcsr dword ptr [{guest}]", $text, "stmxcsr dword ptr [{guest}]",
                "ldmxcsr dword ptr [{host}]",
                guest = in(reg) &raw mut $mxcsr, host = in(reg) &raw const HOST_MXCSR_CELL,
                $($operands)* options(nostack))
        }
    };
}

static HOST_MXCSR_CELL: u32 = HOST_MXCSR;

macro_rules! float {
    ($($feature:tt { $($name:ident $op:literal $ty:ident $tiny:ident;)* })*) => {$($(
        #[doc = concat!("`", $op, " xmm, xmm`")]
        pub(crate) struct $name;
        impl Float for $name {
            const TINY: Tiny = Tiny::$tiny;
            #[inline(always)]
            fn run(destination: u128, source: u128, _: u8, mut mxcsr: u32) -> (u128, u32) {
                let mut d = vector(destination);
                under_mxcsr!(concat!($op, " {d}, {s}"), mxcsr,
                    d = inout(xmm_reg) d, s = in(xmm_reg) vector(source),);
                (integer(d), mxcsr)
            }
        }
    )*)*};
}
float_rows!(float);

// Behind the macros that it uses.
mod vex;

macro_rules! float_imm {
    ($($feature:tt {
        $($name:ident $op:literal $ty:ident $tiny:ident $mask:literal [$first:literal $($imm:literal)*];)*
    })*) => {$($(
        #[doc = concat!("`", $op, " xmm, xmm, imm8`")]
        pub(crate) struct $name;
        impl Float for $name {
            const TINY: Tiny = Tiny::$tiny;
            fn run(destination: u128, source: u128, imm: u8, mut mxcsr: u32) -> (u128, u32) {
                let mut d = vector(destination);
                let s = vector(source);
                match imm & $mask {
                    $($imm => under_mxcsr!(concat!($op, " {d}, {s}, {imm}"), mxcsr,
                        d = inout(xmm_reg) d, s = in(xmm_reg) s, imm = const $imm,),)*
                    _ => under_mxcsr!(concat!($op, " {d}, {s}, {imm}"), mxcsr,
                        d = inout(xmm_reg) d, s = in(xmm_reg) s, imm = const $first,),
                }
                (integer(d), mxcsr)
            }
        }
    )*)*};
}
float_imm_rows!(float_imm);
dot_rows!(float_imm);

/// A comparison of two scalars under MXCSR that gives ZF, PF and CF.
pub(super) trait Compare {
    /// Executes it; gives the flags at their places in RFLAGS, and MXCSR.
    fn run(a: u128, b: u128, mxcsr: u32) -> (u64, u32);
}

macro_rules! compare {
    ($($name:ident $op:literal;)*) => {$(
        #[doc = concat!("`", $op, " xmm, xmm`")]
        pub(crate) struct $name;
        impl Compare for $name {
            #[inline(always)]
            fn run(a: u128, b: u128, mut mxcsr: u32) -> (u64, u32) {
                let flags: u64;
                under_mxcsr!(concat!($op, " {a}, {b}\nlahf\nmovzx eax, ah"), mxcsr,
                    a = in(xmm_reg) vector(a), b = in(xmm_reg) vector(b), out("rax") flags,);
                (flags & 0x45, mxcsr)
            }
        }
    )*};
}
compare! { Comiss "comiss"; Comisd "comisd"; Ucomiss "ucomiss"; Ucomisd "ucomisd"; }

/// A conversion from a general register under MXCSR.
pub(super) trait FromInt {
    /// The results that can be tiny: none, but the trait's users share code with [`Float`].
    fn run(destination: u128, source: u64, mxcsr: u32) -> (u128, u32);
}

macro_rules! from_int {
    ($($name:ident $op:literal $width:literal;)*) => {$(
        #[doc = concat!("`", $op, " xmm, r`")]
        pub(crate) struct $name;
        impl FromInt for $name {
            #[inline(always)]
            fn run(destination: u128, source: u64, mut mxcsr: u32) -> (u128, u32) {
                let mut d = vector(destination);
                under_mxcsr!(concat!($op, " {d}, {s", $width, "}"), mxcsr,
                    d = inout(xmm_reg) d, s = in(reg) source,);
                (integer(d), mxcsr)
            }
        }
    )*};
}
from_int! {
    Cvtsi2ss32 "cvtsi2ss" ":e"; Cvtsi2ss64 "cvtsi2ss" ":r";
    Cvtsi2sd32 "cvtsi2sd" ":e"; Cvtsi2sd64 "cvtsi2sd" ":r";
}

/// A conversion to a general register under MXCSR.
pub(super) trait ToInt {
    /// Executes it.
    fn run(source: u128, mxcsr: u32) -> (u64, u32);
}

macro_rules! to_int {
    ($($name:ident $op:literal $width:literal;)*) => {$(
        #[doc = concat!("`", $op, " r, xmm`")]
        pub(crate) struct $name;
        impl ToInt for $name {
            #[inline(always)]
            fn run(source: u128, mut mxcsr: u32) -> (u64, u32) {
                let d: u64;
                under_mxcsr!(concat!($op, " {d", $width, "}, {s}"), mxcsr,
                    d = out(reg) d, s = in(xmm_reg) vector(source),);
                (d, mxcsr)
            }
        }
    )*};
}
to_int! {
    Cvtss2si32 "cvtss2si" ":e"; Cvtss2si64 "cvtss2si" ":r";
    Cvtsd2si32 "cvtsd2si" ":e"; Cvtsd2si64 "cvtsd2si" ":r";
    Cvttss2si32 "cvttss2si" ":e"; Cvttss2si64 "cvttss2si" ":r";
    Cvttsd2si32 "cvttsd2si" ":e"; Cvttsd2si64 "cvttsd2si" ":r";
}

macro_rules! mmx {
    ($($feature:tt { $($name:ident $op:literal;)* })*) => {$($(
        impl Mmx for $name {
            fn run(mut destination: u64, source: u64) -> u64 {
                // SAFETY: works on MM0 and MM1; EMMS leaves the x87 stack empty, as it was.
                unsafe {
                    asm!("movq mm0, {d}", "movq mm1, {s}", concat!($op, " mm0, mm1"), "movq {d}, mm0", "emms",
                        d = inout(reg) destination, s = in(reg) source,
                        out("mm0") _, out("mm1") _, out("st(0)") _, out("st(1)") _,
                        options(pure, nomem, nostack, preserves_flags));
                }
                destination
            }
        }
    )*)*};
}
mmx_rows!(mmx);

/// PMOVMSKB of an XMM register.
pub(super) fn pmovmskb(source: u128) -> u64 {
    let d: u64;
    // SAFETY: works on the two registers only.
    unsafe {
        asm!("pmovmskb {d:e}, {s}", d = out(reg) d, s = in(xmm_reg) vector(source),
            options(pure, nomem, nostack, preserves_flags));
    }
    d
}

/// CRC32 (the iSCSI polynomial) of `bytes` bytes of `data`, which is at most 8.
pub(super) fn crc32(mut crc: u64, data: u64, bytes: u32) -> u64 {
    // SAFETY: works on the two registers only; the dispatcher has looked for SSE4.2.
    unsafe {
        match bytes {
            1 => asm!("crc32 {c:e}, {d:l}", c = inout(reg) crc, d = in(reg) data,
                options(pure, nomem, nostack, preserves_flags)),
            2 => asm!("crc32 {c:e}, {d:x}", c = inout(reg) crc, d = in(reg) data,
                options(pure, nomem, nostack, preserves_flags)),
            4 => asm!("crc32 {c:e}, {d:e}", c = inout(reg) crc, d = in(reg) data,
                options(pure, nomem, nostack, preserves_flags)),
            _ => asm!("crc32 {c:r}, {d:r}", c = inout(reg) crc, d = in(reg) data,
                options(pure, nomem, nostack, preserves_flags)),
        }
    }
    crc
}

/// AESKEYGENASSIST with a round constant of 0.
pub(super) fn aeskeygenassist(source: u128) -> u128 {
    let mut d = vector(source);
    // SAFETY: works on one register; the dispatcher has looked for AES.
    unsafe {
        asm!("aeskeygenassist {d}, {d}, 0", d = inout(xmm_reg) d,
            options(pure, nomem, nostack, preserves_flags));
    }
    integer(d)
}
