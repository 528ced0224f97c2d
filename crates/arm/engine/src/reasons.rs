//! The reasons of AArch64 at the seam, by the names of `perf kvm stat`: ESR_EL2's exception classes, and behind them what is
//! no exception that the guest takes to EL2.

use satori_seam::{Class, Reason, ReasonRow};

/// Rows, each as a constant of its own and as an entry of the table.
macro_rules! reasons {
    ($($number:literal $ident:ident $name:literal $class:ident;)*) => {
        $(
            #[doc = concat!("`", $name, "`.")]
            pub const $ident: Reason = {
                static ROW: ReasonRow = ReasonRow { number: $number, name: $name, class: Class::$class };
                Reason::of(&ROW)
            };
        )*

        /// Every reason, by ascending number.
        pub const REASONS: &[Reason] = &[$($ident,)*];
    };
}

reasons! {
    0x00 UNKNOWN "UNKNOWN" Other;
    0x01 WFX "WFx" Idle;
    0x03 CP15_32 "CP15_32" Control;
    0x04 CP15_64 "CP15_64" Control;
    0x05 CP14_MR "CP14_MR" Debug;
    0x06 CP14_LS "CP14_LS" Debug;
    0x07 FP_ASIMD "FP_ASIMD" Control;
    0x08 CP10_ID "CP10_ID" Identity;
    0x09 PAC "PAC" Control;
    0x0c CP14_64 "CP14_64" Debug;
    0x15 SVC64 "SVC64" Other;
    0x16 HVC64 "HVC64" Hypercall;
    0x17 SMC64 "SMC64" Hypercall;
    0x18 SYS64 "SYS64" RegisterWrite;
    0x19 SVE "SVE" Control;
    0x1a ERET "ERET" Nested;
    0x1f IMP_DEF "IMP_DEF" Other;
    0x20 IABT_LOW "IABT_LOW" Memory;
    0x21 IABT_CUR "IABT_CUR" Other;
    0x22 PC_ALIGN "PC_ALIGN" Other;
    0x24 DABT_LOW "DABT_LOW" Mmio;
    0x25 DABT_CUR "DABT_CUR" Other;
    0x26 SP_ALIGN "SP_ALIGN" Other;
    0x28 FP_EXC32 "FP_EXC32" Other;
    0x2c FP_EXC64 "FP_EXC64" Other;
    0x2f SERROR "SERROR" Other;
    0x30 BREAKPT_LOW "BREAKPT_LOW" Debug;
    0x31 BREAKPT_CUR "BREAKPT_CUR" Debug;
    0x32 SOFTSTP_LOW "SOFTSTP_LOW" Debug;
    0x33 SOFTSTP_CUR "SOFTSTP_CUR" Debug;
    0x34 WATCHPT_LOW "WATCHPT_LOW" Debug;
    0x35 WATCHPT_CUR "WATCHPT_CUR" Debug;
    0x38 BKPT32 "BKPT32" Debug;
    0x3a VECTOR32 "VECTOR32" Other;
    0x3c BRK64 "BRK64" Debug;
    0x40 IRQ "IRQ" HostInterrupt;
    0x41 EL1_SERROR "EL1_SERROR" Other;
    0x42 TRAP "TRAP" Other;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_names_differ() {
        assert!(REASONS.windows(2).all(|pair| pair[0] < pair[1]));
        for one in REASONS {
            assert_eq!(Reason::named(REASONS, one.name()), Some(*one));
        }
    }
}
