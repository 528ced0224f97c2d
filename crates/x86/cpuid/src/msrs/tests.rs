use satori_defs::msr;

use super::*;
use crate::Vendor;
use crate::table::tests::table;

const HOLE: Option<(u64, u64)> = Some((0xc000_0000, 0x4000_0000));

fn msrs(cpu: &str) -> PlatformMsrs {
    let cpuid = table(cpu, "1");
    PlatformMsrs::new(&Setup { cpuid: &cpuid, tsc_hz: 2_600_000_000, physical_bits: 46, uncached: HOLE })
}

#[test]
fn the_table_is_sorted_and_every_number_has_one_row() {
    for pair in TABLE.windows(2) {
        assert!(pair[0].last < pair[1].first, "{} and {}", pair[0].name, pair[1].name);
    }
    for row in TABLE {
        assert!(row.first <= row.last && !row.reads.is_empty() && !row.why.is_empty(), "{}", row.name);
        for register in [row.first, row.last] {
            assert_eq!(find(register).unwrap().name, row.name);
        }
        if let Owner::Platform { readable, write, .. } = row.owner {
            assert!(readable || !matches!(write, Write::Gp), "{} can neither be read nor written", row.name);
        }
    }
    assert!(find(0xdead_beef).is_none() && find(0x2).is_none() && find(u32::MAX).is_none());
}

#[test]
fn firmware_left_memory_types_that_linux_accepts() {
    let msrs = msrs("max");
    assert_eq!(msrs.read(msr::IA32_MTRR_DEF_TYPE), Ok(0xc06));
    assert_eq!(msrs.read(0x200), Ok(0xc000_0000));
    assert_eq!(msrs.read(0x201), Ok(0x3fff_c000_0800));
    assert_eq!(msrs.read(0x26f), Ok(0x0606_0606_0606_0606));
    assert_eq!(msrs.read(0x210), Err(Gp), "only as many as MTRRCAP says");
    assert_eq!(msrs.read(0x257), Err(Gp));
}

#[test]
fn reserved_bits_and_types_fault_and_change_nothing() {
    let mut msrs = msrs("max");
    let before = msrs.clone();
    let refused = [
        (msr::IA32_MTRR_DEF_TYPE, 2),
        (msr::IA32_MTRR_DEF_TYPE, 1 << 12),
        (0x200, 1 << 46),
        (0x200, 7),
        (0x200, 1 << 11),
        (0x201, 1 << 10),
        (0x250, 0x0600_0000_0000_0003),
        (msr::IA32_PRED_CMD, 2),
        (msr::IA32_ARCH_CAPABILITIES, 0),
        (msr::IA32_FEATURE_CONTROL, 5),
        (msr::IA32_MTRRCAP, 0),
        (msr::IA32_MCG_STATUS, 1),
        (msr::IA32_MCG_CTL, 1),
        (msr::IA32_MC0_CTL, 0x10),
        (msr::IA32_MC0_CTL + 1, 1),
        (msr::IA32_MC0_CTL + 40, 0),
        (msr::IA32_PERFEVTSEL0, 0x41_00c0),
        (msr::AMD_HWCR, 0),
        (0xdead_beef, 0),
    ];
    for (register, value) in refused {
        assert_eq!(msrs.write(register, value), Err(Gp), "{register:#x}={value:#x}");
    }
    assert_eq!(msrs, before);
    msrs.write(msr::IA32_MISC_ENABLE, 0).unwrap();
    assert_eq!(msrs.read(msr::IA32_MISC_ENABLE), Ok(0x1800), "read-only bits stay");
    for bit in (0..64).filter(|bit| ![7, 11, 12].contains(bit)) {
        msrs.write(msr::IA32_MISC_ENABLE, 1 << bit).unwrap();
        assert_eq!(msrs.read(msr::IA32_MISC_ENABLE), Ok(0x1800 | 1 << bit), "KVM takes it");
    }
    msrs.write(msr::IA32_MISC_ENABLE, 0).unwrap();
    msrs.write(0x203, u64::MAX >> 18 & !0xfff | 1 << 11).unwrap();
    assert_eq!(msrs.read(msr::IA32_PRED_CMD), Err(Gp));
    msrs.write(msr::IA32_BIOS_SIGN_ID, 0).unwrap();
    assert_eq!(msrs.read(msr::IA32_BIOS_SIGN_ID), Ok(1 << 32), "the revision comes back");
    msrs.write(msr::IA32_MC0_CTL + 4, u64::MAX).unwrap();
    assert_eq!(msrs.read(msr::IA32_MC0_CTL + 4), Ok(u64::MAX));
    assert_eq!(msrs.read(msr::IA32_MC0_CTL), Ok(0), "each bank has its own");
    assert_eq!(msrs.read(msr::MSR_PLATFORM_INFO).unwrap() >> 8 & 0xff, 26);
}

#[test]
fn what_cpuid_does_not_offer_does_not_exist() {
    let (intel, amd) = (msrs("max"), msrs("max,vendor=AuthenticAMD"));
    assert_eq!(table("max,vendor=AuthenticAMD", "1").vendor(), Vendor::Amd);
    assert!(intel.read(msr::MSR_SMI_COUNT).is_ok() && amd.read(msr::MSR_SMI_COUNT).is_err());
    assert!(intel.read(msr::AMD_HWCR).is_err() && amd.read(msr::AMD_HWCR).is_ok());
    assert!(amd.read(msr::IA32_ARCH_CAPABILITIES).is_err());
    let mut bare = msrs("max,-mtrr,-mca,-spec-ctrl,-stibp,-arch-capabilities");
    for register in [0x200, 0xfe, 0x2ff, 0x179, 0x400, 0x10a, 0x49] {
        assert_eq!(bare.read(register), Err(Gp), "{register:#x}");
        assert_eq!(bare.write(register, 0), Err(Gp), "{register:#x}");
    }
    assert!(bare.row(msr::IA32_SPEC_CTRL).is_some(), "SSBD is still there");
    assert!(bare.row(msr::IA32_TSC_DEADLINE).is_some());
    assert!(msrs("max,-tsc-deadline").row(msr::IA32_TSC_DEADLINE).is_none());
}
