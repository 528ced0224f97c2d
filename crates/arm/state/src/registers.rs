//! The one table of system registers.

/// Who may access a register, beyond what its op1 says of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// MRS alone.
    Ro,
    /// MSR alone.
    Wo,
    /// Both.
    Rw,
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The value is kept, and what uses it reads it there.
    Keep,
    /// The same, and translations depend on it.
    Mmu,
    /// A generic timer's, on which an interrupt depends.
    Timer,
    /// The GIC answers.
    Gic,
    /// The core computes it.
    Special,
}

/// A system register.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Which.
    pub sys: Sys,
    /// Its name.
    pub name: &'static str,
    /// op0, op1, CRn, CRm and op2 in one number ([`encoding`]).
    pub encoding: u16,
    /// What an access does.
    pub kind: Kind,
    /// Which accesses there are.
    pub access: Access,
    /// Its value after reset.
    pub reset: u64,
}

/// op0 (2 bits), op1 (3), CRn (4), CRm (4) and op2 (3) in one number, as bits 20:5 of MSR and MRS have them.
pub const fn encoding(op0: u16, op1: u16, crn: u16, crm: u16, op2: u16) -> u16 {
    op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

macro_rules! table {
    ($($name:ident $op0:literal $op1:literal $crn:literal $crm:literal $op2:literal $kind:ident $access:ident $reset:literal;)*) => {
        /// A system register, by the manual's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, missing_docs, reason = "named as in the manual")]
        pub enum Sys { $($name),* }

        impl Sys {
            /// How many there are.
            pub const COUNT: usize = [$(Sys::$name),*].len();
        }

        /// All of them, in the order of [`Sys`].
        pub static REGISTERS: &[Register] = &[$(Register {
            sys: Sys::$name,
            name: stringify!($name),
            encoding: encoding($op0, $op1, $crn, $crm, $op2),
            kind: Kind::$kind,
            access: Access::$access,
            reset: $reset,
        }),*];
    };
}

impl Sys {
    /// Its row.
    pub fn row(self) -> &'static Register {
        &REGISTERS[self as usize]
    }
}

/// The register of an encoding.
pub fn find(encoding: u16) -> Option<&'static Register> {
    REGISTERS.iter().find(|row| row.encoding == encoding)
}

table! {
    // Identification.
    MIDR_EL1 3 0 0 0 0 Keep Ro 0xf5a70;
    MPIDR_EL1 3 0 0 0 5 Keep Ro 0;
    REVIDR_EL1 3 0 0 0 6 Keep Ro 0;
    ID_AA64PFR0_EL1 3 0 0 4 0 Keep Ro 0x1100000001000111;
    ID_AA64PFR1_EL1 3 0 0 4 1 Keep Ro 0;
    ID_AA64DFR0_EL1 3 0 0 5 0 Keep Ro 0x10305008;
    ID_AA64ISAR0_EL1 3 0 0 6 0 Keep Ro 0x100010211120;
    ID_AA64ISAR1_EL1 3 0 0 6 1 Keep Ro 0x100001;
    ID_AA64MMFR0_EL1 3 0 0 7 0 Keep Ro 0xf001025;
    ID_AA64MMFR1_EL1 3 0 0 7 1 Keep Ro 0x10201122;
    ID_AA64MMFR2_EL1 3 0 0 7 2 Keep Ro 0x11;
    CTR_EL0 3 3 0 0 1 Keep Ro 0x8444c004;
    DCZID_EL0 3 3 0 0 7 Keep Ro 0x4;
    CLIDR_EL1 3 1 0 0 1 Keep Ro 0x82000023;
    AIDR_EL1 3 1 0 0 7 Keep Ro 0;
    CSSELR_EL1 3 2 0 0 0 Keep Rw 0;
    CCSIDR_EL1 3 1 0 0 0 Special Ro 0;
    // Control of EL1.
    SCTLR_EL1 3 0 1 0 0 Mmu Rw 0x30d00800;
    ACTLR_EL1 3 0 1 0 1 Keep Rw 0;
    CPACR_EL1 3 0 1 0 2 Mmu Rw 0;
    TTBR0_EL1 3 0 2 0 0 Mmu Rw 0;
    TTBR1_EL1 3 0 2 0 1 Mmu Rw 0;
    TCR_EL1 3 0 2 0 2 Mmu Rw 0;
    AFSR0_EL1 3 0 5 1 0 Keep Rw 0;
    AFSR1_EL1 3 0 5 1 1 Keep Rw 0;
    ESR_EL1 3 0 5 2 0 Keep Rw 0;
    FAR_EL1 3 0 6 0 0 Keep Rw 0;
    PAR_EL1 3 0 7 4 0 Keep Rw 0;
    MAIR_EL1 3 0 10 2 0 Mmu Rw 0;
    AMAIR_EL1 3 0 10 3 0 Keep Rw 0;
    VBAR_EL1 3 0 12 0 0 Keep Rw 0;
    RVBAR_EL1 3 0 12 0 1 Keep Ro 0;
    ISR_EL1 3 0 12 1 0 Special Ro 0;
    CONTEXTIDR_EL1 3 0 13 0 1 Keep Rw 0;
    TPIDR_EL1 3 0 13 0 4 Keep Rw 0;
    CNTKCTL_EL1 3 0 14 1 0 Keep Rw 0;
    SPSR_EL1 3 0 4 0 0 Keep Rw 0;
    ELR_EL1 3 0 4 0 1 Keep Rw 0;
    SP_EL0 3 0 4 1 0 Special Rw 0;
    SPSel 3 0 4 2 0 Special Rw 0;
    CurrentEL 3 0 4 2 2 Special Ro 0;
    PAN 3 0 4 2 3 Special Rw 0;
    UAO 3 0 4 2 4 Special Rw 0;
    // Of EL0.
    NZCV 3 3 4 2 0 Special Rw 0;
    DAIF 3 3 4 2 1 Special Rw 0;
    FPCR 3 3 4 4 0 Special Rw 0;
    FPSR 3 3 4 4 1 Special Rw 0;
    TPIDR_EL0 3 3 13 0 2 Keep Rw 0;
    TPIDRRO_EL0 3 3 13 0 3 Keep Rw 0;
    // Debug.
    DBGBVR0_EL1 2 0 0 0 4 Keep Rw 0;
    DBGBCR0_EL1 2 0 0 0 5 Keep Rw 0;
    DBGBVR1_EL1 2 0 0 1 4 Keep Rw 0;
    DBGBCR1_EL1 2 0 0 1 5 Keep Rw 0;
    DBGBVR2_EL1 2 0 0 2 4 Keep Rw 0;
    DBGBCR2_EL1 2 0 0 2 5 Keep Rw 0;
    DBGBVR3_EL1 2 0 0 3 4 Keep Rw 0;
    DBGBCR3_EL1 2 0 0 3 5 Keep Rw 0;
    DBGBVR4_EL1 2 0 0 4 4 Keep Rw 0;
    DBGBCR4_EL1 2 0 0 4 5 Keep Rw 0;
    DBGBVR5_EL1 2 0 0 5 4 Keep Rw 0;
    DBGBCR5_EL1 2 0 0 5 5 Keep Rw 0;
    DBGWVR0_EL1 2 0 0 0 6 Keep Rw 0;
    DBGWCR0_EL1 2 0 0 0 7 Keep Rw 0;
    DBGWVR1_EL1 2 0 0 1 6 Keep Rw 0;
    DBGWCR1_EL1 2 0 0 1 7 Keep Rw 0;
    DBGWVR2_EL1 2 0 0 2 6 Keep Rw 0;
    DBGWCR2_EL1 2 0 0 2 7 Keep Rw 0;
    DBGWVR3_EL1 2 0 0 3 6 Keep Rw 0;
    DBGWCR3_EL1 2 0 0 3 7 Keep Rw 0;
    MDSCR_EL1 2 0 0 2 2 Keep Rw 0;
    MDCCINT_EL1 2 0 0 2 0 Keep Rw 0;
    OSLAR_EL1 2 0 1 0 4 Special Wo 0;
    OSLSR_EL1 2 0 1 1 4 Special Ro 0xa;
    OSDLR_EL1 2 0 1 3 4 Keep Rw 0;
    DBGPRCR_EL1 2 0 1 4 4 Keep Rw 0;
    MDRAR_EL1 2 0 1 0 0 Keep Ro 0;
    DBGCLAIMSET_EL1 2 0 7 8 6 Keep Rw 0xff;
    DBGCLAIMCLR_EL1 2 0 7 9 6 Keep Rw 0;
    DBGAUTHSTATUS_EL1 2 0 7 14 6 Keep Ro 0;
    MDCCSR_EL0 2 3 0 1 0 Keep Ro 0;
    // Generic timer.
    CNTFRQ_EL0 3 3 14 0 0 Keep Rw 0;
    CNTPCT_EL0 3 3 14 0 1 Special Ro 0;
    CNTVCT_EL0 3 3 14 0 2 Special Ro 0;
    CNTP_TVAL_EL0 3 3 14 2 0 Timer Rw 0;
    CNTP_CTL_EL0 3 3 14 2 1 Timer Rw 0;
    CNTP_CVAL_EL0 3 3 14 2 2 Timer Rw 0;
    CNTV_TVAL_EL0 3 3 14 3 0 Timer Rw 0;
    CNTV_CTL_EL0 3 3 14 3 1 Timer Rw 0;
    CNTV_CVAL_EL0 3 3 14 3 2 Timer Rw 0;
    CNTHCTL_EL2 3 4 14 1 0 Keep Rw 0x3;
    CNTVOFF_EL2 3 4 14 0 3 Timer Rw 0;
    CNTHP_TVAL_EL2 3 4 14 2 0 Timer Rw 0;
    CNTHP_CTL_EL2 3 4 14 2 1 Timer Rw 0;
    CNTHP_CVAL_EL2 3 4 14 2 2 Timer Rw 0;
    CNTHV_TVAL_EL2 3 4 14 3 0 Timer Rw 0;
    CNTHV_CTL_EL2 3 4 14 3 1 Timer Rw 0;
    CNTHV_CVAL_EL2 3 4 14 3 2 Timer Rw 0;
    // CPU interface of the GIC, which is outside the core.
    ICC_PMR_EL1 3 0 4 6 0 Gic Rw 0;
    ICC_IAR0_EL1 3 0 12 8 0 Gic Ro 0;
    ICC_EOIR0_EL1 3 0 12 8 1 Gic Wo 0;
    ICC_HPPIR0_EL1 3 0 12 8 2 Gic Ro 0;
    ICC_BPR0_EL1 3 0 12 8 3 Gic Rw 0;
    ICC_AP0R0_EL1 3 0 12 8 4 Gic Rw 0;
    ICC_AP1R0_EL1 3 0 12 9 0 Gic Rw 0;
    ICC_DIR_EL1 3 0 12 11 1 Gic Wo 0;
    ICC_RPR_EL1 3 0 12 11 3 Gic Ro 0;
    ICC_SGI1R_EL1 3 0 12 11 5 Gic Wo 0;
    ICC_ASGI1R_EL1 3 0 12 11 6 Gic Wo 0;
    ICC_SGI0R_EL1 3 0 12 11 7 Gic Wo 0;
    ICC_IAR1_EL1 3 0 12 12 0 Gic Ro 0;
    ICC_EOIR1_EL1 3 0 12 12 1 Gic Wo 0;
    ICC_HPPIR1_EL1 3 0 12 12 2 Gic Ro 0;
    ICC_BPR1_EL1 3 0 12 12 3 Gic Rw 0;
    ICC_CTLR_EL1 3 0 12 12 4 Gic Rw 0;
    ICC_SRE_EL1 3 0 12 12 5 Gic Rw 0;
    ICC_IGRPEN0_EL1 3 0 12 12 6 Gic Rw 0;
    ICC_IGRPEN1_EL1 3 0 12 12 7 Gic Rw 0;
    // EL2.
    VPIDR_EL2 3 4 0 0 0 Keep Rw 0;
    VMPIDR_EL2 3 4 0 0 5 Keep Rw 0;
    SCTLR_EL2 3 4 1 0 0 Mmu Rw 0x30c50830;
    ACTLR_EL2 3 4 1 0 1 Keep Rw 0;
    HCR_EL2 3 4 1 1 0 Mmu Rw 0x80000000;
    MDCR_EL2 3 4 1 1 1 Keep Rw 0;
    CPTR_EL2 3 4 1 1 2 Mmu Rw 0;
    HSTR_EL2 3 4 1 1 3 Keep Rw 0;
    HACR_EL2 3 4 1 1 7 Keep Rw 0;
    TTBR0_EL2 3 4 2 0 0 Mmu Rw 0;
    TTBR1_EL2 3 4 2 0 1 Mmu Rw 0;
    TCR_EL2 3 4 2 0 2 Mmu Rw 0;
    VTTBR_EL2 3 4 2 1 0 Mmu Rw 0;
    VTCR_EL2 3 4 2 1 2 Mmu Rw 0;
    SPSR_EL2 3 4 4 0 0 Keep Rw 0;
    ELR_EL2 3 4 4 0 1 Keep Rw 0;
    SP_EL1 3 4 4 1 0 Special Rw 0;
    AFSR0_EL2 3 4 5 1 0 Keep Rw 0;
    AFSR1_EL2 3 4 5 1 1 Keep Rw 0;
    ESR_EL2 3 4 5 2 0 Keep Rw 0;
    FAR_EL2 3 4 6 0 0 Keep Rw 0;
    HPFAR_EL2 3 4 6 0 4 Keep Rw 0;
    MAIR_EL2 3 4 10 2 0 Mmu Rw 0;
    AMAIR_EL2 3 4 10 3 0 Keep Rw 0;
    VBAR_EL2 3 4 12 0 0 Keep Rw 0;
    CONTEXTIDR_EL2 3 4 13 0 1 Keep Rw 0;
    TPIDR_EL2 3 4 13 0 2 Keep Rw 0;
    ICC_SRE_EL2 3 4 12 9 5 Gic Rw 0;
    ICH_HCR_EL2 3 4 12 11 0 Gic Rw 0;
    ICH_VTR_EL2 3 4 12 11 1 Gic Ro 0;
    ICH_MISR_EL2 3 4 12 11 2 Gic Ro 0;
    ICH_EISR_EL2 3 4 12 11 3 Gic Ro 0;
    ICH_ELRSR_EL2 3 4 12 11 5 Gic Ro 0;
    ICH_VMCR_EL2 3 4 12 11 7 Gic Rw 0;
    ICH_AP0R0_EL2 3 4 12 8 0 Gic Rw 0;
    ICH_AP1R0_EL2 3 4 12 9 0 Gic Rw 0;
    ICH_LR0_EL2 3 4 12 12 0 Gic Rw 0;
    ICH_LR1_EL2 3 4 12 12 1 Gic Rw 0;
    ICH_LR2_EL2 3 4 12 12 2 Gic Rw 0;
    ICH_LR3_EL2 3 4 12 12 3 Gic Rw 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_unique_and_found() {
        for (at, row) in REGISTERS.iter().enumerate() {
            assert_eq!(row.sys as usize, at);
            assert_eq!(find(row.encoding).map(|found| found.sys), Some(row.sys), "{}", row.name);
        }
        assert_eq!(find(encoding(3, 0, 1, 0, 0)).unwrap().name, "SCTLR_EL1");
        assert!(find(encoding(3, 7, 15, 15, 7)).is_none());
    }
}
