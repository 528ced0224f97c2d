//! The platform MSRs: those that belong to no engine, APIC or paravirtual interface.
//!
//! | MSR | read | write |
//! |---|---|---|
//! | IA32_PLATFORM_ID | 0 | #GP |
//! | IA32_FEATURE_CONTROL | locked, VMX off | #GP, as when locked |
//! | IA32_SPEC_CTRL | what was written | IBRS, STIBP, SSBD; they do nothing here |
//! | IA32_PRED_CMD | #GP, write-only | IBPB: there is no predictor to flush |
//! | IA32_BIOS_SIGN_ID | microcode revision 1 | 0 or the revision, ignored: Linux clears it before it asks |
//! | IA32_MTRRCAP | 8 variable ranges, fixed ranges, WC | #GP |
//! | IA32_MTRR_* | what was written | checked as the processor does; memory types have no effect |
//! | IA32_ARCH_CAPABILITIES | [`ARCH_CAPABILITIES`](crate::model::ARCH_CAPABILITIES) | #GP |
//! | IA32_MCG_CAP | one bank | #GP |
//! | IA32_MCG_STATUS | what was written | any: nothing raises #MC |
//! | IA32_MC0_* | what was written | CTL any; STATUS, ADDR, MISC only 0 |
//! | IA32_MISC_ENABLE | fast strings, no BTS, no PEBS | kept but for the read-only bits |
//! | IA32_DEBUGCTL | 0 | LBR and BTF are ignored, as KVM does without them |
//! | IA32_SMI_COUNT | 0 | #GP |
//! | RAPL counters | 0 | #GP; KVM answers so too, some guests ask without need |
//!
//! Everything else is #GP.

use satori_defs::msr::{self, Gp};

use crate::model;

/// Variable memory type ranges.
const VARIABLE: u64 = 8;
const MTRRCAP_FIX: u64 = 1 << 8;
const MTRRCAP_WC: u64 = 1 << 10;
const MTRR_FIXED_ENABLE: u64 = 1 << 10;
const MTRR_ENABLE: u64 = 1 << 11;
const MTRR_VALID: u64 = 1 << 11;
const WRITE_BACK: u64 = 6;
const FEATURE_CONTROL_LOCKED: u64 = 1 << 0;
const SPEC_CTRL_DEFINED: u64 = 0b111;
const PRED_CMD_IBPB: u64 = 1 << 0;
const MICROCODE: u64 = 1 << 32;
const MISC_FAST_STRINGS: u64 = 1 << 0;
const MISC_BTS_UNAVAILABLE: u64 = 1 << 11;
const MISC_PEBS_UNAVAILABLE: u64 = 1 << 12;
const MISC_READ_ONLY: u64 = MISC_BTS_UNAVAILABLE | MISC_PEBS_UNAVAILABLE | 1 << 7;
/// XD disable: would take NX away from under the guest.
const MISC_XD_DISABLE: u64 = 1 << 34;
/// Limit CPUID maxval: not modelled.
const MISC_LIMIT_CPUID: u64 = 1 << 22;
const DEBUGCTL_LBR_BTF: u64 = 0b11;
const BANKS: u64 = 1;

/// The platform MSRs of one vCPU. INIT does not change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformMsrs {
    physical_bits: u8,
    spec_ctrl: u64,
    mtrr_default: u64,
    mtrr_fixed: [u64; 11],
    mtrr_variable: [u64; 2 * VARIABLE as usize],
    mcg_status: u64,
    mc0_ctl: u64,
    misc_enable: u64,
}

impl PlatformMsrs {
    /// The registers as firmware leaves them: everything write-back, and `uncached`, the base
    /// and size of the hole for devices below 4 GiB, uncacheable. The size is a power of two and
    /// the base a multiple of it. Without enabled MTRRs Linux 6.1 does without PAT as well.
    pub fn new(physical_bits: u8, uncached: Option<(u64, u64)>) -> Self {
        let physical_bits = physical_bits.clamp(32, 52);
        let mut mtrr_variable = [0; 2 * VARIABLE as usize];
        if let Some((base, size)) = uncached {
            mtrr_variable[0] = base & !0xfff;
            let address = (1u64 << physical_bits) - 1;
            mtrr_variable[1] = !size.wrapping_sub(1) & address & !0xfff | MTRR_VALID;
        }
        PlatformMsrs {
            physical_bits,
            spec_ctrl: 0,
            mtrr_default: MTRR_ENABLE | MTRR_FIXED_ENABLE | WRITE_BACK,
            mtrr_fixed: [0x0101_0101_0101_0101 * WRITE_BACK; 11],
            mtrr_variable,
            mcg_status: 0,
            mc0_ctl: 0,
            misc_enable: MISC_FAST_STRINGS | MISC_BTS_UNAVAILABLE | MISC_PEBS_UNAVAILABLE,
        }
    }

    /// RDMSR.
    pub fn read(&self, register: u32) -> Result<u64, Gp> {
        Ok(match register {
            msr::IA32_PLATFORM_ID | msr::IA32_DEBUGCTL | msr::MSR_SMI_COUNT => 0,
            msr::IA32_FEATURE_CONTROL => FEATURE_CONTROL_LOCKED,
            msr::IA32_SPEC_CTRL => self.spec_ctrl,
            msr::IA32_BIOS_SIGN_ID => MICROCODE,
            msr::IA32_MTRRCAP => VARIABLE | MTRRCAP_FIX | MTRRCAP_WC,
            msr::IA32_MTRR_DEF_TYPE => self.mtrr_default,
            msr::IA32_ARCH_CAPABILITIES => model::ARCH_CAPABILITIES,
            msr::IA32_MCG_CAP => BANKS,
            msr::IA32_MCG_STATUS => self.mcg_status,
            msr::IA32_MC0_CTL => self.mc0_ctl,
            MC0_STATUS..=MC0_LAST => 0,
            msr::IA32_MISC_ENABLE => self.misc_enable,
            msr::MSR_RAPL_POWER_UNIT
            | msr::MSR_PKG_ENERGY_STATUS
            | msr::MSR_DRAM_ENERGY_STATUS
            | msr::MSR_PP0_ENERGY_STATUS
            | msr::MSR_PP1_ENERGY_STATUS => 0,
            _ => match mtrr(register).ok_or(Gp)? {
                Mtrr::Fixed(index) => self.mtrr_fixed[index],
                Mtrr::Variable(index) => self.mtrr_variable[index],
            },
        })
    }

    /// WRMSR.
    pub fn write(&mut self, register: u32, value: u64) -> Result<(), Gp> {
        let only = |allowed: u64| if value & !allowed == 0 { Ok(()) } else { Err(Gp) };
        match register {
            msr::IA32_SPEC_CTRL => {
                only(SPEC_CTRL_DEFINED)?;
                self.spec_ctrl = value;
            }
            msr::IA32_PRED_CMD => only(PRED_CMD_IBPB)?,
            msr::IA32_BIOS_SIGN_ID => only(MICROCODE)?,
            msr::IA32_DEBUGCTL => only(DEBUGCTL_LBR_BTF)?,
            msr::IA32_MTRR_DEF_TYPE => {
                only(MTRR_ENABLE | MTRR_FIXED_ENABLE | 0xff)?;
                memory_type(value as u8)?;
                self.mtrr_default = value;
            }
            msr::IA32_MCG_STATUS => self.mcg_status = value,
            msr::IA32_MC0_CTL => self.mc0_ctl = value,
            MC0_STATUS..=MC0_LAST => only(0)?,
            msr::IA32_MISC_ENABLE => {
                if value & (MISC_XD_DISABLE | MISC_LIMIT_CPUID) != 0 {
                    return Err(Gp);
                }
                self.misc_enable = value & !MISC_READ_ONLY | self.misc_enable & MISC_READ_ONLY;
            }
            _ => self.write_mtrr(mtrr(register).ok_or(Gp)?, value)?,
        }
        Ok(())
    }

    fn write_mtrr(&mut self, range: Mtrr, value: u64) -> Result<(), Gp> {
        match range {
            Mtrr::Fixed(index) => {
                value.to_le_bytes().into_iter().try_for_each(memory_type)?;
                self.mtrr_fixed[index] = value;
            }
            Mtrr::Variable(index) => {
                let address = ((1u64 << self.physical_bits) - 1) & !0xfff;
                let base = index % 2 == 0;
                let low = if base { 0xff } else { MTRR_VALID };
                if value & !(address | low) != 0 {
                    return Err(Gp);
                }
                if base {
                    memory_type(value as u8)?;
                }
                self.mtrr_variable[index] = value;
            }
        }
        Ok(())
    }
}

const MC0_STATUS: u32 = msr::IA32_MC0_CTL + 1;
const MC0_LAST: u32 = msr::IA32_MC0_CTL + 3;

enum Mtrr {
    Fixed(usize),
    Variable(usize),
}

fn mtrr(register: u32) -> Option<Mtrr> {
    let variable_last = msr::IA32_MTRR_PHYSBASE0 + 2 * VARIABLE as u32 - 1;
    Some(match register {
        msr::IA32_MTRR_PHYSBASE0.. if register <= variable_last => {
            Mtrr::Variable((register - msr::IA32_MTRR_PHYSBASE0) as usize)
        }
        msr::IA32_MTRR_FIX64K_00000 => Mtrr::Fixed(0),
        msr::IA32_MTRR_FIX16K_80000..=msr::IA32_MTRR_FIX16K_A0000 => {
            Mtrr::Fixed(1 + (register - msr::IA32_MTRR_FIX16K_80000) as usize)
        }
        msr::IA32_MTRR_FIX4K_C0000..=msr::IA32_MTRR_FIX4K_F8000 => {
            Mtrr::Fixed(3 + (register - msr::IA32_MTRR_FIX4K_C0000) as usize)
        }
        _ => return None,
    })
}

/// UC, WC, WT, WP and WB; others are reserved (SDM table 11-8).
fn memory_type(encoding: u8) -> Result<(), Gp> {
    if matches!(encoding, 0 | 1 | 4 | 5 | 6) { Ok(()) } else { Err(Gp) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_left_memory_types_that_linux_accepts() {
        let msrs = PlatformMsrs::new(46, Some((0xc000_0000, 0x4000_0000)));
        assert_eq!(msrs.read(msr::IA32_MTRR_DEF_TYPE), Ok(0xc06));
        assert_eq!(msrs.read(0x200), Ok(0xc000_0000));
        assert_eq!(msrs.read(0x201), Ok(0x3fff_c000_0800));
        assert_eq!(msrs.read(0x26f), Ok(0x0606_0606_0606_0606));
        assert_eq!(msrs.read(0x210), Err(Gp), "only as many as MTRRCAP says");
        assert_eq!(msrs.read(0x257), Err(Gp));
    }

    #[test]
    fn reserved_bits_and_types_fault_and_change_nothing() {
        let mut msrs = PlatformMsrs::new(46, None);
        let before = msrs.clone();
        let refused = [
            (msr::IA32_MTRR_DEF_TYPE, 2),
            (msr::IA32_MTRR_DEF_TYPE, 1 << 12),
            (0x200, 1 << 46),
            (0x200, 7),
            (0x200, 1 << 11),
            (0x201, 1 << 10),
            (0x250, 0x0600_0000_0000_0003),
            (msr::IA32_SPEC_CTRL, 8),
            (msr::IA32_PRED_CMD, 2),
            (msr::IA32_ARCH_CAPABILITIES, 0),
            (msr::IA32_FEATURE_CONTROL, 5),
            (msr::IA32_MTRRCAP, 0),
            (msr::IA32_MC0_CTL + 1, 1),
            (msr::IA32_MC0_CTL + 4, 0),
            (msr::IA32_MISC_ENABLE, 1 << 34),
            (0xdead_beef, 0),
        ];
        for (register, value) in refused {
            assert_eq!(msrs.write(register, value), Err(Gp), "{register:#x}={value:#x}");
        }
        assert_eq!(msrs, before);
        msrs.write(msr::IA32_MISC_ENABLE, 0).unwrap();
        assert_eq!(msrs.read(msr::IA32_MISC_ENABLE), Ok(0x1800), "read-only bits stay");
        msrs.write(0x203, u64::MAX >> 18 & !0xfff | MTRR_VALID).unwrap();
        assert_eq!(msrs.read(msr::IA32_PRED_CMD), Err(Gp));
    }
}
