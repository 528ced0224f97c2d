//! CPUID: what KVM supports, and the partition's table as KVM answers from it.

use std::io;

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use satori_cpuid::{Context, CpuidTable, Feature, PLATFORM_FEATURES, Register, has_subleaves};

/// Features of the platform that the machine makes itself, whatever the processor has.
const OWN: &[Feature] = &[
    Feature::Apic,
    Feature::X2apic,
    Feature::TscAdjust,
    Feature::Mtrr,
    Feature::Mce,
    Feature::Mca,
    Feature::Pat,
    Feature::Arat,
    Feature::Invtsc,
    Feature::Hypervisor,
    Feature::Topoext,
];

/// Those that no guest of this engine has. Linux drops writes of IA32_TSC_DEADLINE where it has no local APIC of its own (6.1
/// arch/x86/kvm/x86.c, `handle_fastpath_set_tscdeadline`, which asks no filter); the table's IA32_ARCH_CAPABILITIES is
/// the software processor's, which speculates on nothing; and guests of guests would need state that is kept nowhere.
const NEVER: &[Feature] = &[Feature::TscDeadline, Feature::ArchCapabilities, Feature::Vmx, Feature::Svm];

/// Of `wanted` and the platform's, the features that KVM does not support, where it `keeps` the local APICs or does not.
pub(crate) fn lacking(
    kvm: &kvm_ioctls::Kvm,
    wanted: &[Feature],
    keeps: bool,
) -> Result<Vec<Feature>, kvm_ioctls::Error> {
    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let has = |feature: &Feature| {
        let (leaf, subleaf, register, bit) = feature.place();
        let entry = supported.as_slice().iter().find(|e| e.function == leaf && e.index == subleaf);
        let value = entry.map_or(0, |entry| match register {
            Register::Eax => entry.eax,
            Register::Ebx => entry.ebx,
            Register::Ecx => entry.ecx,
            Register::Edx => entry.edx,
        });
        value >> bit & 1 != 0
    };
    // It is no feature of KVM_GET_SUPPORTED_CPUID, as KVM's local APIC has it, and no other.
    let deadline = |feature: &Feature| keeps && *feature == Feature::TscDeadline;
    let all = wanted.iter().chain(PLATFORM_FEATURES.iter().filter(|feature| !OWN.contains(feature)));
    Ok(all
        .copied()
        .filter(|feature| !deadline(feature) && (NEVER.contains(feature) || !has(feature)))
        .collect())
}

/// What `table` answers the processor of `apic_id`. Bits that follow its registers are KVM's to keep.
pub(crate) fn entries(table: &CpuidTable, apic_id: u32) -> io::Result<CpuId> {
    let context = Context { apic_id, xcr0: 1, apic_enabled: true, ..Context::default() };
    let entry = |leaf: u32, subleaf: u32| {
        let value = table.query(leaf, subleaf, &context);
        kvm_cpuid_entry2 {
            function: leaf,
            index: subleaf,
            flags: if has_subleaves(leaf) { KVM_CPUID_FLAG_SIGNIFCANT_INDEX } else { 0 },
            eax: value.eax,
            ebx: value.ebx,
            ecx: value.ecx,
            edx: value.edx,
            ..Default::default()
        }
    };
    let entries: Vec<_> = table.leaves().map(|row| entry(row.leaf, row.subleaf)).collect();
    CpuId::from_entries(&entries).map_err(|error| io::Error::other(format!("{error:?}")))
}
