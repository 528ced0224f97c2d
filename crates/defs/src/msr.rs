//! Model-specific register numbers (SDM volume 4).

/// The outcome of an access that the processor refuses: #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gp;

/// IA32_P5_MC_ADDR.
pub const IA32_P5_MC_ADDR: u32 = 0;
/// IA32_P5_MC_TYPE.
pub const IA32_P5_MC_TYPE: u32 = 1;
/// IA32_TIME_STAMP_COUNTER.
pub const IA32_TSC: u32 = 0x10;
/// IA32_PLATFORM_ID.
pub const IA32_PLATFORM_ID: u32 = 0x17;
/// MSR_EBL_CR_POWERON.
pub const MSR_EBL_CR_POWERON: u32 = 0x2a;
/// MSR_SMI_COUNT.
pub const MSR_SMI_COUNT: u32 = 0x34;
/// IA32_APIC_BASE: bit 8 BSP, 10 x2APIC, 11 enable, MAXPHYADDR-1:12 base.
pub const IA32_APIC_BASE: u32 = 0x1b;
/// IA32_FEATURE_CONTROL.
pub const IA32_FEATURE_CONTROL: u32 = 0x3a;
/// IA32_TSC_ADJUST.
pub const IA32_TSC_ADJUST: u32 = 0x3b;
/// IA32_SPEC_CTRL.
pub const IA32_SPEC_CTRL: u32 = 0x48;
/// IA32_PRED_CMD.
pub const IA32_PRED_CMD: u32 = 0x49;
/// IA32_BIOS_UPDT_TRIG.
pub const IA32_BIOS_UPDT_TRIG: u32 = 0x79;
/// IA32_BIOS_SIGN_ID: microcode revision in the high half.
pub const IA32_BIOS_SIGN_ID: u32 = 0x8b;
/// IA32_PMC0; the next one is IA32_PMC1.
pub const IA32_PMC0: u32 = 0xc1;
/// MSR_PLATFORM_INFO.
pub const MSR_PLATFORM_INFO: u32 = 0xce;
/// IA32_MTRRCAP.
pub const IA32_MTRRCAP: u32 = 0xfe;
/// IA32_ARCH_CAPABILITIES.
pub const IA32_ARCH_CAPABILITIES: u32 = 0x10a;
/// MSR_MISC_FEATURES_ENABLES.
pub const MSR_MISC_FEATURES_ENABLES: u32 = 0x140;
/// IA32_SYSENTER_CS.
pub const IA32_SYSENTER_CS: u32 = 0x174;
/// IA32_SYSENTER_ESP.
pub const IA32_SYSENTER_ESP: u32 = 0x175;
/// IA32_SYSENTER_EIP.
pub const IA32_SYSENTER_EIP: u32 = 0x176;
/// IA32_MCG_CAP.
pub const IA32_MCG_CAP: u32 = 0x179;
/// IA32_MCG_STATUS.
pub const IA32_MCG_STATUS: u32 = 0x17a;
/// IA32_MCG_CTL.
pub const IA32_MCG_CTL: u32 = 0x17b;
/// IA32_PERFEVTSEL0; the next one is IA32_PERFEVTSEL1.
pub const IA32_PERFEVTSEL0: u32 = 0x186;
/// IA32_PERF_STATUS.
pub const IA32_PERF_STATUS: u32 = 0x198;
/// IA32_PERF_CTL.
pub const IA32_PERF_CTL: u32 = 0x199;
/// IA32_MISC_ENABLE.
pub const IA32_MISC_ENABLE: u32 = 0x1a0;
/// MSR_TURBO_RATIO_LIMIT.
pub const MSR_TURBO_RATIO_LIMIT: u32 = 0x1ad;
/// IA32_DEBUGCTL.
pub const IA32_DEBUGCTL: u32 = 0x1d9;
/// MSR_LASTBRANCHFROMIP, the first of four up to MSR_LASTINTTOIP.
pub const MSR_LASTBRANCHFROMIP: u32 = 0x1db;
/// IA32_MTRR_PHYSBASE0; the pairs run to 0x20f.
pub const IA32_MTRR_PHYSBASE0: u32 = 0x200;
/// IA32_MTRR_FIX64K_00000.
pub const IA32_MTRR_FIX64K_00000: u32 = 0x250;
/// IA32_MTRR_FIX16K_80000.
pub const IA32_MTRR_FIX16K_80000: u32 = 0x258;
/// IA32_MTRR_FIX16K_A0000.
pub const IA32_MTRR_FIX16K_A0000: u32 = 0x259;
/// IA32_MTRR_FIX4K_C0000.
pub const IA32_MTRR_FIX4K_C0000: u32 = 0x268;
/// IA32_MTRR_FIX4K_F8000.
pub const IA32_MTRR_FIX4K_F8000: u32 = 0x26f;
/// IA32_PAT.
pub const IA32_PAT: u32 = 0x277;
/// IA32_MTRR_DEF_TYPE.
pub const IA32_MTRR_DEF_TYPE: u32 = 0x2ff;
/// IA32_MC0_CTL; each bank has four registers.
pub const IA32_MC0_CTL: u32 = 0x400;
/// MSR_RAPL_POWER_UNIT.
pub const MSR_RAPL_POWER_UNIT: u32 = 0x606;
/// MSR_PKG_ENERGY_STATUS.
pub const MSR_PKG_ENERGY_STATUS: u32 = 0x611;
/// MSR_DRAM_ENERGY_STATUS.
pub const MSR_DRAM_ENERGY_STATUS: u32 = 0x619;
/// MSR_PP0_ENERGY_STATUS.
pub const MSR_PP0_ENERGY_STATUS: u32 = 0x639;
/// MSR_PP1_ENERGY_STATUS.
pub const MSR_PP1_ENERGY_STATUS: u32 = 0x641;
/// IA32_TSC_DEADLINE.
pub const IA32_TSC_DEADLINE: u32 = 0x6e0;
/// First x2APIC register.
pub const X2APIC_BASE: u32 = 0x800;
/// Last x2APIC register.
pub const X2APIC_LAST: u32 = 0x8ff;
/// IA32_XSS.
pub const IA32_XSS: u32 = 0xda0;
/// IA32_EFER.
pub const IA32_EFER: u32 = 0xc000_0080;
/// IA32_STAR.
pub const IA32_STAR: u32 = 0xc000_0081;
/// IA32_LSTAR.
pub const IA32_LSTAR: u32 = 0xc000_0082;
/// IA32_CSTAR.
pub const IA32_CSTAR: u32 = 0xc000_0083;
/// IA32_FMASK.
pub const IA32_FMASK: u32 = 0xc000_0084;
/// IA32_FS_BASE.
pub const IA32_FS_BASE: u32 = 0xc000_0100;
/// IA32_GS_BASE.
pub const IA32_GS_BASE: u32 = 0xc000_0101;
/// IA32_KERNEL_GS_BASE.
pub const IA32_KERNEL_GS_BASE: u32 = 0xc000_0102;
/// IA32_TSC_AUX.
pub const IA32_TSC_AUX: u32 = 0xc000_0103;
/// AMD: TSC_RATIO.
pub const AMD_TSC_RATIO: u32 = 0xc000_0104;
/// AMD: SYSCFG.
pub const AMD_SYSCFG: u32 = 0xc001_0010;
/// AMD: HWCR.
pub const AMD_HWCR: u32 = 0xc001_0015;
/// AMD: IORR_BASE0; two pairs of base and mask.
pub const AMD_IORR_BASE0: u32 = 0xc001_0016;
/// AMD: TOP_MEM.
pub const AMD_TOP_MEM: u32 = 0xc001_001a;
/// AMD: TOP_MEM2.
pub const AMD_TOP_MEM2: u32 = 0xc001_001d;
/// AMD: NB_CFG.
pub const AMD_NB_CFG: u32 = 0xc001_001f;
/// AMD: PATCH_LOADER.
pub const AMD_PATCH_LOADER: u32 = 0xc001_0020;
/// AMD: MC0_CTL_MASK; one a bank.
pub const AMD_MC0_CTL_MASK: u32 = 0xc001_0044;
/// AMD: INT_PENDING_MSG.
pub const AMD_INT_PENDING: u32 = 0xc001_0055;
/// AMD: MMIO_CFG_BASE.
pub const AMD_MMIO_CFG_BASE: u32 = 0xc001_0058;
/// AMD: P-state current limit, control and status.
pub const AMD_PSTATE_LIMIT: u32 = 0xc001_0061;
/// AMD: SMM_ADDR.
pub const AMD_TSEG_ADDR: u32 = 0xc001_0112;
/// AMD: SMM_MASK.
pub const AMD_TSEG_MASK: u32 = 0xc001_0113;
/// AMD: VM_CR.
pub const AMD_VM_CR: u32 = 0xc001_0114;
/// AMD: VM_HSAVE_PA.
pub const AMD_VM_HSAVE_PA: u32 = 0xc001_0117;
/// AMD: OSVW_ID_LENGTH and OSVW_STATUS.
pub const AMD_OSVW_ID_LENGTH: u32 = 0xc001_0140;
/// AMD: EvntSel0; four of them, then four counters.
pub const AMD_PERFEVTSEL0: u32 = 0xc001_0000;
/// AMD: LS_CFG.
pub const AMD_LS_CFG: u32 = 0xc001_1020;
/// AMD: IC_CFG.
pub const AMD_IC_CFG: u32 = 0xc001_1021;
/// AMD: DC_CFG.
pub const AMD_DC_CFG: u32 = 0xc001_1022;
/// AMD: TW_CFG.
pub const AMD_TW_CFG: u32 = 0xc001_1023;
/// AMD: DE_CFG.
pub const AMD_DE_CFG: u32 = 0xc001_1029;
/// AMD: BU_CFG2.
pub const AMD_BU_CFG2: u32 = 0xc001_102a;

/// IA32_MISC_ENABLE (SDM volume 4, table 2-2).
pub mod misc_enable {
    /// Fast strings.
    pub const FAST_STRINGS: u64 = 1 << 0;
    /// Performance monitoring available; read-only.
    pub const PERFMON: u64 = 1 << 7;
    /// Branch trace storage unavailable; read-only.
    pub const BTS_UNAVAILABLE: u64 = 1 << 11;
    /// Processor event-based sampling unavailable; read-only.
    pub const PEBS_UNAVAILABLE: u64 = 1 << 12;
    /// CPUID ends at leaf 2.
    pub const LIMIT_CPUID: u64 = 1 << 22;
    /// No TPR update messages on the bus.
    pub const XTPR_DISABLE: u64 = 1 << 23;
    /// Execute-disable is not there.
    pub const XD_DISABLE: u64 = 1 << 34;
    /// What only the processor sets.
    pub const READ_ONLY: u64 = PERFMON | BTS_UNAVAILABLE | PEBS_UNAVAILABLE;
}
