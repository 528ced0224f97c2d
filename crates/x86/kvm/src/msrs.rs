//! Which MSRs the processor reads and writes without an exit, and those of the register file.

use std::io;

use kvm_bindings::{
    KVM_MSR_FILTER_DEFAULT_DENY, KVM_MSR_FILTER_READ, KVM_MSR_FILTER_WRITE, Msrs, kvm_msr_entry,
    kvm_msr_filter, kvm_msr_filter_range,
};
use kvm_ioctls::{VcpuFd, VmFd};
use satori_cpuid::msrs::{Owner, TABLE};
use satori_cpuid::{Context, CpuidTable, Feature, Offered};
use satori_defs::hyperv::{self, msr as hv};
use satori_defs::msr::*;
use satori_state::CpuState;

use crate::raw;

/// The registers of the partition's table that exist on the processor alone, and those of speculation: where the guest has
/// the latter, a write has to reach the processor to be of any use.
fn passed(offered: &Offered) -> Vec<u32> {
    let rows = TABLE.iter().filter(|row| matches!(row.owner, Owner::Passed(_)));
    let mut passed: Vec<u32> = rows.flat_map(|row| row.first..=row.last).collect();
    let speculation = [
        Feature::SpecCtrl,
        Feature::Stibp,
        Feature::Ssbd,
        Feature::Ibrs,
        Feature::AmdStibp,
        Feature::AmdSsbd,
    ];
    if speculation.iter().any(|feature| offered.has(*feature)) {
        passed.push(IA32_SPEC_CTRL);
    }
    if offered.has(Feature::SpecCtrl) || offered.has(Feature::Ibpb) {
        passed.push(IA32_PRED_CMD);
    }
    passed
}

/// Registers of a local APIC that KVM keeps and that its filter would hold back; those of x2APIC mode it filters for nobody.
pub(crate) fn of_apic(keeps: bool, cpuid: &CpuidTable) -> Vec<u32> {
    if !keeps {
        return Vec::new();
    }
    let mut all = vec![IA32_APIC_BASE];
    if cpuid.offered().has(Feature::TscDeadline) {
        all.push(IA32_TSC_DEADLINE);
    }
    // Hyper-V's own: KVM answers for them where CPUID tells of that interface.
    let features = cpuid.query(hyperv::leaf::FEATURES, 0, &Context::default());
    if features.eax & hyperv::leaf::APIC_MSRS != 0 {
        all.extend(hv::EOI..=hv::TPR);
    }
    all
}

/// Whether a register is one of [`of_apic`]'s or of x2APIC mode.
pub(crate) fn is_of_apic(register: u32) -> bool {
    matches!(
        register,
        IA32_APIC_BASE | IA32_TSC_DEADLINE | X2APIC_BASE..=X2APIC_LAST | hv::EOI..=hv::TPR
    )
}

/// Has KVM ask the machine for every register but those that are passed through. Those of x2APIC mode KVM filters for nobody; where it
/// has no local APIC to answer for them it asks, too (Linux 6.1 arch/x86/kvm/lapic.c, `kvm_x2apic_msr_write`).
pub(crate) fn filter(vm: &VmFd, offered: &Offered, more: &[u32]) -> io::Result<()> {
    let mut bit = 1_u8;
    let range = |register: u32| kvm_msr_filter_range {
        flags: KVM_MSR_FILTER_READ | KVM_MSR_FILTER_WRITE,
        nmsrs: 1,
        base: register,
        bitmap: &mut bit,
    };
    let mut filter = kvm_msr_filter { flags: KVM_MSR_FILTER_DEFAULT_DENY, ..kvm_msr_filter::default() };
    let mut passed = passed(offered);
    passed.extend(more);
    if passed.len() > filter.ranges.len() {
        return Err(io::Error::other("more MSRs are to be passed through than KVM's filter has ranges"));
    }
    filter.ranges.iter_mut().zip(passed.into_iter().map(range)).for_each(|(slot, range)| *slot = range);
    raw::set_msr_filter(vm, &filter)
}

/// A register and its place in the register file.
pub(crate) type Place = (u32, fn(&mut CpuState) -> &mut u64);

/// The registers of [`Parts::MSRS`](satori_state::Parts::MSRS) that every x86-64 processor has.
const ALWAYS: &[Place] = &[
    (IA32_SYSENTER_CS, |state| &mut state.sysenter_cs),
    (IA32_SYSENTER_ESP, |state| &mut state.sysenter_esp),
    (IA32_SYSENTER_EIP, |state| &mut state.sysenter_eip),
    (IA32_PAT, |state| &mut state.pat),
];

/// And those that have a feature of the processor.
const WITH: &[(Feature, Place)] = &[
    (Feature::Syscall, (IA32_STAR, |state| &mut state.star)),
    (Feature::Lm, (IA32_LSTAR, |state| &mut state.lstar)),
    (Feature::Lm, (IA32_CSTAR, |state| &mut state.cstar)),
    (Feature::Syscall, (IA32_FMASK, |state| &mut state.fmask)),
    (Feature::Lm, (IA32_KERNEL_GS_BASE, |state| &mut state.kernel_gs_base)),
    (Feature::Rdtscp, (IA32_TSC_AUX, |state| &mut state.tsc_aux)),
];

/// The registers of the register file that a guest's processor has.
pub(crate) fn places(offered: &Offered) -> Vec<Place> {
    let with = WITH.iter().filter(|(feature, _)| offered.has(*feature)).map(|(_, place)| *place);
    ALWAYS.iter().copied().chain(with).collect()
}

fn entries(places: &[Place], state: &mut CpuState) -> io::Result<Msrs> {
    let entry =
        |(index, place): &Place| kvm_msr_entry { index: *index, data: *place(state), ..Default::default() };
    let entries: Vec<_> = places.iter().map(entry).collect();
    Msrs::from_entries(&entries).map_err(|error| io::Error::other(format!("{error:?}")))
}

/// Fetches them.
pub(crate) fn fetch(vcpu: &VcpuFd, places: &[Place], state: &mut CpuState) -> io::Result<()> {
    let mut msrs = entries(places, state)?;
    all(vcpu.get_msrs(&mut msrs)?, places)?;
    for ((_, place), entry) in places.iter().zip(msrs.as_slice()) {
        *place(state) = entry.data;
    }
    Ok(())
}

/// Sets them.
pub(crate) fn set(vcpu: &VcpuFd, places: &[Place], state: &mut CpuState) -> io::Result<()> {
    let msrs = entries(places, state)?;
    all(vcpu.set_msrs(&msrs)?, places)
}

/// KVM stops at the first that it refuses.
fn all(done: usize, places: &[Place]) -> io::Result<()> {
    match places.get(done) {
        None => Ok(()),
        Some((index, _)) => Err(io::Error::other(format!("MSR {index:#x} is refused"))),
    }
}
