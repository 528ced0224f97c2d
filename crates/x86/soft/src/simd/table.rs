//! The vector instructions that are one native instruction on two values: a row each.
//!
//! Every list is a macro over a macro: [`super::native`] makes the native operation of each row,
//! and [`native_rows`] the table's rows from mnemonic to handler, so that no name stands twice.
//! Lists are grouped by the processor feature (as Rust names it) that the host must have.

/// `xmm = op(xmm, xmm/m128)`, without control words; the memory operand must be aligned.
macro_rules! packed_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse2" {
                Paddb "paddb"; Paddw "paddw"; Paddd "paddd"; Paddq "paddq";
                Paddsb "paddsb"; Paddsw "paddsw"; Paddusb "paddusb"; Paddusw "paddusw";
                Psubb "psubb"; Psubw "psubw"; Psubd "psubd"; Psubq "psubq";
                Psubsb "psubsb"; Psubsw "psubsw"; Psubusb "psubusb"; Psubusw "psubusw";
                Pmullw "pmullw"; Pmulhw "pmulhw"; Pmulhuw "pmulhuw"; Pmuludq "pmuludq";
                Pmaddwd "pmaddwd"; Psadbw "psadbw"; Pavgb "pavgb"; Pavgw "pavgw";
                Pand "pand"; Pandn "pandn"; Por "por"; Pxor "pxor";
                Pcmpeqb "pcmpeqb"; Pcmpeqw "pcmpeqw"; Pcmpeqd "pcmpeqd";
                Pcmpgtb "pcmpgtb"; Pcmpgtw "pcmpgtw"; Pcmpgtd "pcmpgtd";
                Pminub "pminub"; Pmaxub "pmaxub"; Pminsw "pminsw"; Pmaxsw "pmaxsw";
                Packsswb "packsswb"; Packssdw "packssdw"; Packuswb "packuswb";
                Punpcklbw "punpcklbw"; Punpcklwd "punpcklwd"; Punpckldq "punpckldq";
                Punpcklqdq "punpcklqdq";
                Punpckhbw "punpckhbw"; Punpckhwd "punpckhwd"; Punpckhdq "punpckhdq";
                Punpckhqdq "punpckhqdq";
                Psllw "psllw"; Pslld "pslld"; Psllq "psllq";
                Psrlw "psrlw"; Psrld "psrld"; Psrlq "psrlq"; Psraw "psraw"; Psrad "psrad";
                Andps "andps"; Andpd "andpd"; Andnps "andnps"; Andnpd "andnpd";
                Orps "orps"; Orpd "orpd"; Xorps "xorps"; Xorpd "xorpd";
                Unpcklps "unpcklps"; Unpckhps "unpckhps"; Unpcklpd "unpcklpd"; Unpckhpd "unpckhpd";
                Rcpps "rcpps"; Rsqrtps "rsqrtps";
            }
            "sse3" { Movsldup "movsldup"; Movshdup "movshdup"; }
            "ssse3" {
                Pshufb "pshufb"; Pmulhrsw "pmulhrsw"; Pmaddubsw "pmaddubsw";
                Phaddw "phaddw"; Phaddd "phaddd"; Phaddsw "phaddsw";
                Phsubw "phsubw"; Phsubd "phsubd"; Phsubsw "phsubsw";
                Psignb "psignb"; Psignw "psignw"; Psignd "psignd";
                Pabsb "pabsb"; Pabsw "pabsw"; Pabsd "pabsd";
            }
            "sse4.1" {
                Packusdw "packusdw"; Pcmpeqq "pcmpeqq"; Pmuldq "pmuldq"; Pmulld "pmulld";
                Pminsb "pminsb"; Pminsd "pminsd"; Pminuw "pminuw"; Pminud "pminud";
                Pmaxsb "pmaxsb"; Pmaxsd "pmaxsd"; Pmaxuw "pmaxuw"; Pmaxud "pmaxud";
                Phminposuw "phminposuw";
            }
            "sse4.2" { Pcmpgtq "pcmpgtq"; }
            "aes" {
                Aesenc "aesenc"; Aesenclast "aesenclast"; Aesdec "aesdec"; Aesdeclast "aesdeclast";
                Aesimc "aesimc";
            }
            "sha" {
                Sha1nexte "sha1nexte"; Sha1msg1 "sha1msg1"; Sha1msg2 "sha1msg2";
                Sha256msg1 "sha256msg1"; Sha256msg2 "sha256msg2";
            }
        }
    };
}

/// `xmm = op(xmm, xmm/m128, XMM0)`.
macro_rules! packed_xmm0_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse4.1" { Pblendvb "pblendvb"; Blendvps "blendvps"; Blendvpd "blendvpd"; }
            "sha" { Sha256rnds2 "sha256rnds2"; }
        }
    };
}

/// `xmm = op(xmm, xmm/m128, imm8)` where only some bits of the immediate count: the listed values
/// are all that are left under the mask.
macro_rules! packed_imm_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse4.1" { Mpsadbw "mpsadbw" 7 [0 1 2 3 4 5 6 7]; }
            "pclmulqdq" { Pclmulqdq "pclmulqdq" 0x11 [0x00 0x01 0x10 0x11]; }
            "sha" { Sha1rnds4 "sha1rnds4" 3 [0 1 2 3]; }
        }
    };
}

/// `xmm = op(xmm, xmm/mN)` where only the low element of the source is read; the third column
/// is the type of the memory operand.
macro_rules! low_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse2" { Rcpss "rcpss" u32; Rsqrtss "rsqrtss" u32; }
            "sse3" { Movddup "movddup" u64; }
            "sse4.1" {
                Pmovsxbw "pmovsxbw" u64; Pmovsxbd "pmovsxbd" u32; Pmovsxbq "pmovsxbq" u16;
                Pmovsxwd "pmovsxwd" u64; Pmovsxwq "pmovsxwq" u32; Pmovsxdq "pmovsxdq" u64;
                Pmovzxbw "pmovzxbw" u64; Pmovzxbd "pmovzxbd" u32; Pmovzxbq "pmovzxbq" u16;
                Pmovzxwd "pmovzxwd" u64; Pmovzxwq "pmovzxwq" u32; Pmovzxdq "pmovzxdq" u64;
            }
        }
    };
}

/// `xmm = op(xmm, xmm/mN)` under MXCSR. The third column is the type of the memory operand
/// (u128 ones must be aligned), the fourth the results that can be tiny.
macro_rules! float_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse2" {
                Addps "addps" u128 Singles; Addpd "addpd" u128 Doubles;
                Addss "addss" u32 Single; Addsd "addsd" u64 Double;
                Subps "subps" u128 Singles; Subpd "subpd" u128 Doubles;
                Subss "subss" u32 Single; Subsd "subsd" u64 Double;
                Mulps "mulps" u128 Singles; Mulpd "mulpd" u128 Doubles;
                Mulss "mulss" u32 Single; Mulsd "mulsd" u64 Double;
                Divps "divps" u128 Singles; Divpd "divpd" u128 Doubles;
                Divss "divss" u32 Single; Divsd "divsd" u64 Double;
                Minps "minps" u128 None; Minpd "minpd" u128 None;
                Minss "minss" u32 None; Minsd "minsd" u64 None;
                Maxps "maxps" u128 None; Maxpd "maxpd" u128 None;
                Maxss "maxss" u32 None; Maxsd "maxsd" u64 None;
                Sqrtps "sqrtps" u128 None; Sqrtpd "sqrtpd" u128 None;
                Sqrtss "sqrtss" u32 None; Sqrtsd "sqrtsd" u64 None;
                Cvtps2pd "cvtps2pd" u64 None; Cvtpd2ps "cvtpd2ps" u128 Singles;
                Cvtss2sd "cvtss2sd" u32 None; Cvtsd2ss "cvtsd2ss" u64 Single;
                Cvtdq2ps "cvtdq2ps" u128 None; Cvtdq2pd "cvtdq2pd" u64 None;
                Cvtps2dq "cvtps2dq" u128 None; Cvttps2dq "cvttps2dq" u128 None;
                Cvtpd2dq "cvtpd2dq" u128 None; Cvttpd2dq "cvttpd2dq" u128 None;
            }
            "sse3" {
                Addsubps "addsubps" u128 Singles; Addsubpd "addsubpd" u128 Doubles;
                Haddps "haddps" u128 Singles; Haddpd "haddpd" u128 Doubles;
                Hsubps "hsubps" u128 Singles; Hsubpd "hsubpd" u128 Doubles;
            }
        }
    };
}

/// `xmm = op(xmm, xmm/mN, imm8)` under MXCSR; columns as in `packed_imm_rows` and `float_rows`.
macro_rules! float_imm_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse2" {
                Cmpps "cmpps" u128 None 7 [0 1 2 3 4 5 6 7];
                Cmppd "cmppd" u128 None 7 [0 1 2 3 4 5 6 7];
                Cmpss "cmpss" u32 None 7 [0 1 2 3 4 5 6 7];
                Cmpsd "cmpsd" u64 None 7 [0 1 2 3 4 5 6 7];
            }
            "sse4.1" {
                Roundps "roundps" u128 None 0xf [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
                Roundpd "roundpd" u128 None 0xf [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
                Roundss "roundss" u32 None 0xf [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
                Roundsd "roundsd" u64 None 0xf [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
            }
        }
    };
}

/// DPPS and DPPD: `xmm = op(xmm, xmm/m128, imm8)` under MXCSR. The low half of the immediate only
/// says where the sum goes, so the native operation is made with all of it set.
macro_rules! dot_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse4.1" {
                Dpps "dpps" u128 Singles 0xff [0x0f 0x1f 0x2f 0x3f 0x4f 0x5f 0x6f 0x7f
                    0x8f 0x9f 0xaf 0xbf 0xcf 0xdf 0xef 0xff];
                Dppd "dppd" u128 Doubles 0x3f [0x0f 0x1f 0x2f 0x3f];
            }
        }
    };
}

/// `mm = op(mm, mm/m64)`.
macro_rules! mmx_rows {
    ($apply:ident $($arguments:tt)*) => {
        $apply! {
            $($arguments)*
            "sse2" {
                Paddb "paddb"; Paddw "paddw"; Paddd "paddd"; Paddq "paddq";
                Paddsb "paddsb"; Paddsw "paddsw"; Paddusb "paddusb"; Paddusw "paddusw";
                Psubb "psubb"; Psubw "psubw"; Psubd "psubd"; Psubq "psubq";
                Psubsb "psubsb"; Psubsw "psubsw"; Psubusb "psubusb"; Psubusw "psubusw";
                Pmullw "pmullw"; Pmulhw "pmulhw"; Pmulhuw "pmulhuw"; Pmuludq "pmuludq";
                Pmaddwd "pmaddwd"; Psadbw "psadbw"; Pavgb "pavgb"; Pavgw "pavgw";
                Pand "pand"; Pandn "pandn"; Por "por"; Pxor "pxor";
                Pcmpeqb "pcmpeqb"; Pcmpeqw "pcmpeqw"; Pcmpeqd "pcmpeqd";
                Pcmpgtb "pcmpgtb"; Pcmpgtw "pcmpgtw"; Pcmpgtd "pcmpgtd";
                Pminub "pminub"; Pmaxub "pmaxub"; Pminsw "pminsw"; Pmaxsw "pmaxsw";
                Packsswb "packsswb"; Packssdw "packssdw"; Packuswb "packuswb";
                Punpcklbw "punpcklbw"; Punpcklwd "punpcklwd"; Punpckldq "punpckldq";
                Punpckhbw "punpckhbw"; Punpckhwd "punpckhwd"; Punpckhdq "punpckhdq";
                Psllw "psllw"; Pslld "pslld"; Psllq "psllq";
                Psrlw "psrlw"; Psrld "psrld"; Psrlq "psrlq"; Psraw "psraw"; Psrad "psrad";
            }
            "ssse3" {
                Pshufb "pshufb"; Pmulhrsw "pmulhrsw"; Pmaddubsw "pmaddubsw";
                Phaddw "phaddw"; Phaddd "phaddd"; Phaddsw "phaddsw";
                Phsubw "phsubw"; Phsubd "phsubd"; Phsubsw "phsubsw";
                Psignb "psignb"; Psignw "psignw"; Psignd "psignd";
                Pabsb "pabsb"; Pabsw "pabsw"; Pabsd "pabsd";
            }
        }
    };
}

/// Rows of the table of handlers from a list above: `list!(native_rows Mnemonics handler)` has
/// `handler::<native::Name>`, with the operand's type behind it where the list has one, and what stands in brackets.
macro_rules! native_rows {
    ($names:ident $handler:ident $($feature:tt {
        $($name:ident $op:literal $($ty:ident $($tiny:ident)?)? $($mask:literal [$($imm:literal)*])?;)*
    })*) => {
        $crate::insn::rows!(@rows $names Mnemonic insn {
            $($($name if is_x86_feature_detected!($feature) => $handler::<native::$name $(, $ty)?>,)*)*
        })
    };
}

pub(super) use {
    dot_rows, float_imm_rows, float_rows, low_rows, mmx_rows, native_rows, packed_imm_rows, packed_rows,
    packed_xmm0_rows,
};
