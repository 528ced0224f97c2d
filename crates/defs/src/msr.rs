//! Model-specific register numbers (SDM volume 4).

/// The outcome of an access that the processor refuses: #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gp;

/// IA32_TIME_STAMP_COUNTER.
pub const IA32_TSC: u32 = 0x10;
/// IA32_PLATFORM_ID.
pub const IA32_PLATFORM_ID: u32 = 0x17;
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
/// IA32_BIOS_SIGN_ID: microcode revision in the high half.
pub const IA32_BIOS_SIGN_ID: u32 = 0x8b;
/// IA32_MTRRCAP.
pub const IA32_MTRRCAP: u32 = 0xfe;
/// IA32_ARCH_CAPABILITIES.
pub const IA32_ARCH_CAPABILITIES: u32 = 0x10a;
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
/// IA32_MISC_ENABLE.
pub const IA32_MISC_ENABLE: u32 = 0x1a0;
/// IA32_DEBUGCTL.
pub const IA32_DEBUGCTL: u32 = 0x1d9;
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
