//! The x87 instructions that the host executes: a row each, by opcode and ModRM byte (or its reg
//! field for memory forms), as in SDM volume 2, appendix A.5. Names are iced's codes.

/// Instructions without a register number or a memory operand.
macro_rules! plain_rows {
    ($apply:ident $($arguments:ident)*) => {
        $apply! {
            $($arguments)*
            Fnop 0xd9 0xd0; Fchs 0xd9 0xe0; Fabs 0xd9 0xe1; Ftst 0xd9 0xe4; Fxam 0xd9 0xe5;
            Fld1 0xd9 0xe8; Fldl2t 0xd9 0xe9; Fldl2e 0xd9 0xea; Fldpi 0xd9 0xeb;
            Fldlg2 0xd9 0xec; Fldln2 0xd9 0xed; Fldz 0xd9 0xee;
            F2xm1 0xd9 0xf0; Fyl2x 0xd9 0xf1; Fptan 0xd9 0xf2; Fpatan 0xd9 0xf3;
            Fxtract 0xd9 0xf4; Fprem1 0xd9 0xf5; Fdecstp 0xd9 0xf6; Fincstp 0xd9 0xf7;
            Fprem 0xd9 0xf8; Fyl2xp1 0xd9 0xf9; Fsqrt 0xd9 0xfa; Fsincos 0xd9 0xfb;
            Frndint 0xd9 0xfc; Fscale 0xd9 0xfd; Fsin 0xd9 0xfe; Fcos 0xd9 0xff;
            Fucompp 0xda 0xe9; Fcompp 0xde 0xd9;
        }
    };
}

/// Instructions with ST(i); the ModRM byte is that of ST(0).
macro_rules! stack_rows {
    ($apply:ident $($arguments:ident)*) => {
        $apply! {
            $($arguments)*
            Fadd_st0_sti 0xd8 0xc0; Fmul_st0_sti 0xd8 0xc8;
            Fcom_st0_sti 0xd8 0xd0; Fcomp_st0_sti 0xd8 0xd8;
            Fsub_st0_sti 0xd8 0xe0; Fsubr_st0_sti 0xd8 0xe8;
            Fdiv_st0_sti 0xd8 0xf0; Fdivr_st0_sti 0xd8 0xf8;
            Fld_sti 0xd9 0xc0; Fxch_st0_sti 0xd9 0xc8; Fstpnce_sti 0xd9 0xd8;
            Fcmovb_st0_sti 0xda 0xc0; Fcmove_st0_sti 0xda 0xc8;
            Fcmovbe_st0_sti 0xda 0xd0; Fcmovu_st0_sti 0xda 0xd8;
            Fcmovnb_st0_sti 0xdb 0xc0; Fcmovne_st0_sti 0xdb 0xc8;
            Fcmovnbe_st0_sti 0xdb 0xd0; Fcmovnu_st0_sti 0xdb 0xd8;
            Fadd_sti_st0 0xdc 0xc0; Fmul_sti_st0 0xdc 0xc8;
            Fcom_st0_sti_DCD0 0xdc 0xd0; Fcomp_st0_sti_DCD8 0xdc 0xd8;
            Fsubr_sti_st0 0xdc 0xe0; Fsub_sti_st0 0xdc 0xe8;
            Fdivr_sti_st0 0xdc 0xf0; Fdiv_sti_st0 0xdc 0xf8;
            Ffree_sti 0xdd 0xc0; Fxch_st0_sti_DDC8 0xdd 0xc8;
            Fst_sti 0xdd 0xd0; Fstp_sti 0xdd 0xd8;
            Fucom_st0_sti 0xdd 0xe0; Fucomp_st0_sti 0xdd 0xe8;
            Faddp_sti_st0 0xde 0xc0; Fmulp_sti_st0 0xde 0xc8; Fcomp_st0_sti_DED0 0xde 0xd0;
            Fsubrp_sti_st0 0xde 0xe0; Fsubp_sti_st0 0xde 0xe8;
            Fdivrp_sti_st0 0xde 0xf0; Fdivp_sti_st0 0xde 0xf8;
            Ffreep_sti 0xdf 0xc0; Fxch_st0_sti_DFC8 0xdf 0xc8;
            Fstp_sti_DFD0 0xdf 0xd0; Fstp_sti_DFD8 0xdf 0xd8;
        }
    };
}

/// Comparisons of ST(0) with ST(i) into RFLAGS.
macro_rules! flag_rows {
    ($apply:ident $($arguments:ident)*) => {
        $apply! {
            $($arguments)*
            Fucomi_st0_sti 0xdb 0xe8; Fcomi_st0_sti 0xdb 0xf0;
            Fucomip_st0_sti 0xdf 0xe8; Fcomip_st0_sti 0xdf 0xf0;
        }
    };
}

/// Instructions that read memory.
macro_rules! load_rows {
    ($apply:ident $($arguments:ident)*) => {
        $apply! {
            $($arguments)*
            Fadd_m32fp 0xd8 0; Fmul_m32fp 0xd8 1; Fcom_m32fp 0xd8 2; Fcomp_m32fp 0xd8 3;
            Fsub_m32fp 0xd8 4; Fsubr_m32fp 0xd8 5; Fdiv_m32fp 0xd8 6; Fdivr_m32fp 0xd8 7;
            Fiadd_m32int 0xda 0; Fimul_m32int 0xda 1; Ficom_m32int 0xda 2; Ficomp_m32int 0xda 3;
            Fisub_m32int 0xda 4; Fisubr_m32int 0xda 5; Fidiv_m32int 0xda 6; Fidivr_m32int 0xda 7;
            Fadd_m64fp 0xdc 0; Fmul_m64fp 0xdc 1; Fcom_m64fp 0xdc 2; Fcomp_m64fp 0xdc 3;
            Fsub_m64fp 0xdc 4; Fsubr_m64fp 0xdc 5; Fdiv_m64fp 0xdc 6; Fdivr_m64fp 0xdc 7;
            Fiadd_m16int 0xde 0; Fimul_m16int 0xde 1; Ficom_m16int 0xde 2; Ficomp_m16int 0xde 3;
            Fisub_m16int 0xde 4; Fisubr_m16int 0xde 5; Fidiv_m16int 0xde 6; Fidivr_m16int 0xde 7;
            Fld_m32fp 0xd9 0; Fild_m32int 0xdb 0; Fld_m80fp 0xdb 5; Fld_m64fp 0xdd 0;
            Fild_m16int 0xdf 0; Fbld_m80bcd 0xdf 4; Fild_m64int 0xdf 5;
        }
    };
}

/// Instructions that write memory.
macro_rules! store_rows {
    ($apply:ident $($arguments:ident)*) => {
        $apply! {
            $($arguments)*
            Fst_m32fp 0xd9 2; Fstp_m32fp 0xd9 3;
            Fisttp_m32int 0xdb 1; Fist_m32int 0xdb 2; Fistp_m32int 0xdb 3; Fstp_m80fp 0xdb 7;
            Fisttp_m64int 0xdd 1; Fst_m64fp 0xdd 2; Fstp_m64fp 0xdd 3;
            Fisttp_m16int 0xdf 1; Fist_m16int 0xdf 2; Fistp_m16int 0xdf 3;
            Fbstp_m80bcd 0xdf 6; Fistp_m64int 0xdf 7;
        }
    };
}

/// Whether `$code` is in a list.
macro_rules! among {
    ($code:ident $($name:ident $op:literal $modrm:literal;)*) => {
        matches!($code, $(Code::$name)|*)
    };
}

/// Rows of the table of handlers: one native instruction each.
macro_rules! of_one {
    ($($name:ident $op:literal $modrm:literal;)*) => {
        rows!(codes insn { $($name => plain::<$op, $modrm>,)* })
    };
}

/// Rows of the table of handlers: eight native instructions each, one for each register.
macro_rules! of_register {
    ($handler:ident $($name:ident $op:literal $modrm:literal;)*) => {
        rows!(codes insn {
            $($name => [
                $handler::<$op, { $modrm }> as Handler,
                $handler::<$op, { $modrm + 1 }>,
                $handler::<$op, { $modrm + 2 }>,
                $handler::<$op, { $modrm + 3 }>,
                $handler::<$op, { $modrm + 4 }>,
                $handler::<$op, { $modrm + 5 }>,
                $handler::<$op, { $modrm + 6 }>,
                $handler::<$op, { $modrm + 7 }>,
            ][register(insn) & 7],)*
        })
    };
}

/// Rows of the table of handlers: one native instruction each, with a memory operand.
macro_rules! of_memory {
    ($handler:ident $($name:ident $op:literal $reg:literal;)*) => {
        rows!(codes insn { $($name => $handler::<$op, { $reg << 3 | native::MEMORY }>,)* })
    };
}

pub(super) use {
    among, flag_rows, load_rows, of_memory, of_one, of_register, plain_rows, stack_rows, store_rows,
};
