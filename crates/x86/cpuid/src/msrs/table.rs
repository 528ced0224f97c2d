//! The one table of MSRs: who answers, what reads give, what writes do, and why.

use satori_defs::msr::*;
use satori_defs::{hyperv::msr as hv, kvm::msr as kvm};
use satori_rules::mtrr;

use super::Setup;
use super::row::{Apic, Needs, Owner, Register, Row, Synthetic, Write, others, paravirtual, synthetic};
use crate::Feature::*;
use crate::{ARCH_CAPABILITIES, controls};
use Needs::{Amd, Intel, Nothing, One};
use Write::{AllOrNone, Bank, Drop, Gp as Refused, Keep, MtrrDefault, MtrrFixed, MtrrVariable};

/// A row of the platform.
const fn row(
    [first, last]: [u32; 2],
    name: &'static str,
    needs: Needs,
    (start, reads): (fn(&Setup<'_>) -> u64, &'static str),
    write: Write,
    why: &'static str,
) -> Row {
    Row { first, last, name, needs, owner: Owner::Platform { start, write, readable: true }, reads, why }
}

/// A register that can only be written.
const fn write_only(register: u32, name: &'static str, needs: Needs, write: Write, why: &'static str) -> Row {
    let owner = Owner::Platform { start: zero, write, readable: false };
    Row { first: register, last: register, name, needs, owner, reads: "#GP", why }
}

const fn one(register: u32) -> [u32; 2] {
    [register, register]
}

const fn run(first: u32, count: u32) -> [u32; 2] {
    [first, first + count - 1]
}

fn zero(_: &Setup<'_>) -> u64 {
    0
}

/// Reads as 0.
const ZERO: (fn(&Setup<'_>) -> u64, &str) = (zero, "0");

/// The TSC's frequency in units of the 100 MHz bus clock.
fn ratio(setup: &Setup<'_>) -> u64 {
    (setup.tsc_hz / 100_000_000).clamp(1, 0xff)
}

/// IA32_FEATURE_CONTROL as firmware leaves it.
fn feature_control(setup: &Setup<'_>) -> u64 {
    FEATURE_CONTROL_LOCKED | if setup.cpuid.has(Vmx) { FEATURE_CONTROL_VMX } else { 0 }
}

/// VM_CR as firmware leaves it: LOCK, and SVMDIS without SVM.
fn vm_cr(setup: &Setup<'_>) -> u64 {
    if setup.cpuid.has(Svm) { VM_CR_OFF & !(1 << 4) } else { VM_CR_OFF }
}

/// The row of a VMX capability register.
const fn capability<const REGISTER: u32>(name: &'static str, reads: &'static str) -> Row {
    let value = |setup: &Setup<'_>| {
        let offered = satori_vmx::capability::Controls::of(setup.cpuid.enlightened_vmcs());
        satori_vmx::capability::msr(REGISTER, controls::cr4(|feature| setup.cpuid.has(feature)), offered)
    };
    row(one(REGISTER), name, One(&[Vmx]), (value, reads), Refused, "SDM appendix A")
}

/// Machine-check banks.
pub(super) const BANKS: u32 = 10;
const MCG_CTL_P: u64 = 1 << 8;
/// Variable memory type ranges.
pub(super) const VARIABLE: u32 = 8;
const MTRRCAP_FIX: u64 = 1 << 8;
const MTRRCAP_WC: u64 = 1 << 10;
const MICROCODE: u64 = 1 << 32;
const FEATURE_CONTROL_LOCKED: u64 = 1 << 0;
/// VMXON outside SMX operation.
const FEATURE_CONTROL_VMX: u64 = 1 << 2;
const PRED_CMD_IBPB: u64 = 1 << 0;
const DEBUGCTL_LBR_BTF: u64 = 0b11;
/// HWCR: TscFreqSel, the TSC counts at the P0 frequency.
const HWCR_TSC_FREQ_SEL: u64 = 1 << 24;
/// HWCR: McStatusWrEn. TLB flush, flush-by-ASID and emulation switches are ignored.
const HWCR_KEPT: u64 = 1 << 18;
const HWCR_IGNORED: u64 = HWCR_TSC_FREQ_SEL | 1 << 3 | 1 << 6 | 1 << 8;
/// VM_CR: no debug port; INIT becomes #SX; LOCK and SVMDIS.
const VM_CR_DPD: u64 = 1 << 0;
pub(super) const VM_CR_R_INIT: u64 = 1 << 1;
const VM_CR_OFF: u64 = 1 << 3 | 1 << 4;
/// Where a page can be.
const HSAVE: u64 = 0x0000_3fff_ffff_f000;
/// DE_CFG: LFENCE is serializing.
const DE_CFG_LFENCE: u64 = 1 << 1;
/// SYSCFG: the enables of TOM2 and of extended MTRR attributes.
const SYSCFG_KEPT: u64 = 0x1f << 18;
/// Addresses below 2^52 of 8 MiB.
const TOP_MEM: u64 = 0x000f_ffff_ff80_0000;
const IORR: u64 = 0x000f_ffff_ffff_f818;

const NO_PMU: &str = "nothing is counted; KVM answers so without a PMU, and kernels probe with it";
const RAPL: &str = "nothing is measured; KVM answers so, and some guests ask without need";
const SYSENTER: &str = "SDM 5.8.7; passed through, no exit";
const BASES: &str = "SDM 3.4.4; passed through, no exit";
const SYNTHETIC: &str = "Hyper-V synthetic MSRs";
const TLFS: &str = "as the TLFS says, if its enlightenment is offered";
const WRITE_BACK: u64 = 6;
/// IA32_MTRR_DEF_TYPE as firmware leaves it: without enabled MTRRs Linux 6.1 does without PAT too.
const MTRR_DEFAULT: u64 = mtrr::ENABLE | mtrr::FIXED_ENABLE | WRITE_BACK;
const CANONICAL: &str = "kept; not canonical #GP";
const LOW: &str = "kept; bits 63:32 #GP";
const CHICKEN: &str = "a model-specific switch that does nothing here; firmware and kernels set bits in it";

/// Every MSR that there is, by number.
pub const TABLE: &[Row] = &[
    row(
        run(IA32_P5_MC_ADDR, 2),
        "IA32_P5_MC_ADDR, _TYPE",
        One(&[Mce]),
        ZERO,
        Drop(0),
        "no errors (SDM 16.10.3)",
    ),
    others(
        IA32_TSC,
        "IA32_TIME_STAMP_COUNTER",
        One(&[Tsc]),
        Owner::File(Register::Tsc, "sets it"),
        "the TSC",
        "SDM 18.17",
    ),
    paravirtual([kvm::WALL_CLOCK_OLD, kvm::SYSTEM_TIME_OLD], "MSR_KVM_WALL_CLOCK, _SYSTEM_TIME"),
    row(one(IA32_PLATFORM_ID), "IA32_PLATFORM_ID", Intel, ZERO, Refused, "platform 0, for microcode updates"),
    Row {
        first: IA32_APIC_BASE,
        last: IA32_APIC_BASE,
        name: "IA32_APIC_BASE",
        needs: One(&[Apic]),
        owner: Owner::Lapic(Apic::Base, "mode changes as SDM 11.12.5 allows; else #GP"),
        reads: "base, mode, BSP",
        why: "SDM 11.4.4",
    },
    row(one(MSR_EBL_CR_POWERON), "MSR_EBL_CR_POWERON", Intel, ZERO, Refused, "no bus to configure; as KVM"),
    row(one(MSR_SMI_COUNT), "MSR_SMI_COUNT", Intel, ZERO, Refused, "there is no SMM"),
    row(
        one(IA32_FEATURE_CONTROL),
        "IA32_FEATURE_CONTROL",
        Intel,
        (feature_control, "locked; VMX on if it is offered, else off"),
        Refused,
        "as firmware leaves it; writes to a locked one #GP",
    ),
    others(
        IA32_TSC_ADJUST,
        "IA32_TSC_ADJUST",
        One(&[TscAdjust]),
        Owner::File(Register::TscAdjust, "moves the TSC as well"),
        "the TSC's offset",
        "SDM 18.17.3",
    ),
    others(
        IA32_SPEC_CTRL,
        "IA32_SPEC_CTRL",
        One(&[SpecCtrl, Stibp, Ssbd, Ibrs, AmdStibp, AmdSsbd]),
        Owner::File(Register::SpecCtrl, "bits whose features are offered kept; others #GP"),
        "what was written",
        "there is no speculation to restrict; passed through once it has held a bit, as KVM does",
    ),
    write_only(
        IA32_PRED_CMD,
        "IA32_PRED_CMD",
        One(&[SpecCtrl, Ibpb]),
        Drop(PRED_CMD_IBPB),
        "there is no predictor to flush",
    ),
    write_only(
        IA32_BIOS_UPDT_TRIG,
        "IA32_BIOS_UPDT_TRIG",
        Intel,
        Drop(u64::MAX),
        "an update is not loaded; the revision stays, which tells",
    ),
    row(
        one(IA32_BIOS_SIGN_ID),
        "IA32_BIOS_SIGN_ID / PATCH_LEVEL",
        Nothing,
        (|_| MICROCODE, "revision 1 in bits 63:32"),
        Drop(u64::MAX),
        "guests write 0, execute CPUID and read (SDM 10.11.7.1)",
    ),
    row(run(IA32_PMC0, 2), "IA32_PMC0, 1", Intel, ZERO, Drop(0), NO_PMU),
    row(
        one(MSR_PLATFORM_INFO),
        "MSR_PLATFORM_INFO",
        Intel,
        (|setup| ratio(setup) << 8 | ratio(setup) << 40, "TSC frequency / 100 MHz in bits 15:8 and 47:40"),
        Refused,
        "Windows and turbostat read it",
    ),
    row(
        one(IA32_MTRRCAP),
        "IA32_MTRRCAP",
        One(&[Mtrr]),
        (|_| VARIABLE as u64 | MTRRCAP_FIX | MTRRCAP_WC, "8 variable ranges, fixed ranges, WC"),
        Refused,
        "SDM 12.11.1",
    ),
    row(
        one(IA32_ARCH_CAPABILITIES),
        "IA32_ARCH_CAPABILITIES",
        One(&[ArchCapabilities]),
        (|_| ARCH_CAPABILITIES, "immune to everything that has a bit"),
        Refused,
        "there is no speculation",
    ),
    row(
        one(MSR_MISC_FEATURES_ENABLES),
        "MSR_MISC_FEATURES_ENABLES",
        Intel,
        ZERO,
        Drop(0),
        "no CPUID faulting (PLATFORM_INFO[31] is 0), no ring-3 MONITOR",
    ),
    others(
        IA32_SYSENTER_CS,
        "IA32_SYSENTER_CS",
        One(&[Sep]),
        Owner::Passed("kept"),
        "what was written",
        SYSENTER,
    ),
    others(
        IA32_SYSENTER_ESP,
        "IA32_SYSENTER_ESP",
        One(&[Sep]),
        Owner::Passed(CANONICAL),
        "what was written",
        SYSENTER,
    ),
    others(
        IA32_SYSENTER_EIP,
        "IA32_SYSENTER_EIP",
        One(&[Sep]),
        Owner::Passed(CANONICAL),
        "what was written",
        SYSENTER,
    ),
    row(
        one(IA32_MCG_CAP),
        "IA32_MCG_CAP",
        One(&[Mca]),
        (|_| BANKS as u64 | MCG_CTL_P, "10 banks, MCG_CTL"),
        Refused,
        "SDM 16.3.1.1",
    ),
    row(
        one(IA32_MCG_STATUS),
        "IA32_MCG_STATUS",
        One(&[Mca]),
        ZERO,
        Drop(0),
        "nothing raises #MC (SDM 16.3.1.2)",
    ),
    row(
        one(IA32_MCG_CTL),
        "IA32_MCG_CTL",
        One(&[Mca]),
        (|_| u64::MAX, "what was written, all ones at first"),
        AllOrNone,
        "SDM 16.3.1.3",
    ),
    row(run(IA32_PERFEVTSEL0, 2), "IA32_PERFEVTSEL0, 1", Intel, ZERO, Drop(0), NO_PMU),
    row(
        one(IA32_PERF_STATUS),
        "IA32_PERF_STATUS",
        Intel,
        (|setup| ratio(setup) << 8, "TSC frequency / 100 MHz in bits 15:8"),
        Refused,
        "one frequency only; Windows reads it",
    ),
    row(
        one(IA32_PERF_CTL),
        "IA32_PERF_CTL",
        Intel,
        ZERO,
        Drop(0xffff),
        "one frequency only: a target changes nothing",
    ),
    row(
        one(IA32_MISC_ENABLE),
        "IA32_MISC_ENABLE",
        Intel,
        (
            |_| misc_enable::FAST_STRINGS | misc_enable::BTS_UNAVAILABLE | misc_enable::PEBS_UNAVAILABLE,
            "fast strings, no BTS, no PEBS",
        ),
        Keep(!misc_enable::READ_ONLY, misc_enable::READ_ONLY),
        "CPUID follows bits 22 and 34; others change nothing, as with KVM (SDM volume 4, table 2-2)",
    ),
    row(
        one(MSR_TURBO_RATIO_LIMIT),
        "MSR_TURBO_RATIO_LIMIT",
        Intel,
        (|setup| ratio(setup) * 0x0101_0101_0101_0101, "TSC frequency / 100 MHz in each byte"),
        Refused,
        "there is no turbo",
    ),
    row(
        one(IA32_DEBUGCTL),
        "IA32_DEBUGCTL",
        Nothing,
        ZERO,
        Drop(DEBUGCTL_LBR_BTF),
        "no branch records; KVM ignores the two bits as well",
    ),
    row(
        run(MSR_LASTBRANCHFROMIP, 4),
        "MSR_LASTBRANCHFROMIP .. MSR_LASTINTTOIP",
        Nothing,
        ZERO,
        Refused,
        "no branch records; KVM answers so",
    ),
    row(
        run(IA32_MTRR_PHYSBASE0, 2 * VARIABLE),
        "IA32_MTRR_PHYSBASEn, PHYSMASKn",
        One(&[Mtrr]),
        (zero, "what was written; range 0 is the device hole, uncacheable"),
        MtrrVariable,
        "SDM 12.11.2.3; memory types have no effect here",
    ),
    row(
        one(IA32_MTRR_FIX64K_00000),
        "IA32_MTRR_FIX64K_00000",
        One(&[Mtrr]),
        FIXED,
        MtrrFixed,
        "SDM 12.11.2.2",
    ),
    row(
        run(IA32_MTRR_FIX16K_80000, 2),
        "IA32_MTRR_FIX16K_*",
        One(&[Mtrr]),
        FIXED,
        MtrrFixed,
        "SDM 12.11.2.2",
    ),
    row(run(IA32_MTRR_FIX4K_C0000, 8), "IA32_MTRR_FIX4K_*", One(&[Mtrr]), FIXED, MtrrFixed, "SDM 12.11.2.2"),
    others(
        IA32_PAT,
        "IA32_PAT",
        One(&[Pat]),
        Owner::File(Register::Pat, "kept; a reserved type #GP"),
        "what was written",
        "SDM 12.12.2; memory types have no effect here",
    ),
    row(
        one(IA32_MTRR_DEF_TYPE),
        "IA32_MTRR_DEF_TYPE",
        One(&[Mtrr]),
        (|_| MTRR_DEFAULT, "what was written; enabled, write-back at first"),
        MtrrDefault,
        "SDM 12.11.2.1",
    ),
    row(
        run(IA32_MC0_CTL, 4 * BANKS),
        "IA32_MCi_CTL, STATUS, ADDR, MISC",
        One(&[Mca]),
        (zero, "CTL: what was written; else 0"),
        Bank,
        "nothing raises #MC (SDM 16.3.2)",
    ),
    capability::<0x480>(
        "IA32_VMX_BASIC",
        "the revision and size of a VMCS, what exits tell, the TRUE registers",
    ),
    capability::<0x481>("IA32_VMX_PINBASED_CTLS", "which pin-based controls there are"),
    capability::<0x482>("IA32_VMX_PROCBASED_CTLS", "which primary processor-based controls there are"),
    capability::<0x483>("IA32_VMX_EXIT_CTLS", "which VM-exit controls there are"),
    capability::<0x484>("IA32_VMX_ENTRY_CTLS", "which VM-entry controls there are"),
    capability::<0x485>("IA32_VMX_MISC", "the preemption timer's shift, activity states, CR3 targets"),
    capability::<0x486>("IA32_VMX_CR0_FIXED0", "bits of CR0 that are 1 in VMX operation"),
    capability::<0x487>("IA32_VMX_CR0_FIXED1", "bits of CR0 that may be 1"),
    capability::<0x488>("IA32_VMX_CR4_FIXED0", "bits of CR4 that are 1 in VMX operation"),
    capability::<0x489>("IA32_VMX_CR4_FIXED1", "bits of CR4 that may be 1, by what is offered"),
    capability::<0x48a>("IA32_VMX_VMCS_ENUM", "the highest index of a field"),
    capability::<0x48b>("IA32_VMX_PROCBASED_CTLS2", "which secondary controls there are"),
    capability::<0x48c>("IA32_VMX_EPT_VPID_CAP", "what of EPT and VPID there is"),
    capability::<0x48d>("IA32_VMX_TRUE_PINBASED_CTLS", "which pin-based controls there are"),
    capability::<0x48e>("IA32_VMX_TRUE_PROCBASED_CTLS", "which primary controls there are"),
    capability::<0x48f>("IA32_VMX_TRUE_EXIT_CTLS", "which VM-exit controls there are"),
    capability::<0x490>("IA32_VMX_TRUE_ENTRY_CTLS", "which VM-entry controls there are"),
    capability::<0x491>("IA32_VMX_VMFUNC", "which VM functions there are"),
    row(one(MSR_RAPL_POWER_UNIT), "MSR_RAPL_POWER_UNIT", Intel, ZERO, Refused, RAPL),
    row(one(MSR_PKG_ENERGY_STATUS), "MSR_PKG_ENERGY_STATUS", Intel, ZERO, Refused, RAPL),
    row(one(MSR_DRAM_ENERGY_STATUS), "MSR_DRAM_ENERGY_STATUS", Intel, ZERO, Refused, RAPL),
    row(one(MSR_PP0_ENERGY_STATUS), "MSR_PP0_ENERGY_STATUS", Intel, ZERO, Refused, RAPL),
    row(one(MSR_PP1_ENERGY_STATUS), "MSR_PP1_ENERGY_STATUS", Intel, ZERO, Refused, RAPL),
    Row {
        first: IA32_TSC_DEADLINE,
        last: IA32_TSC_DEADLINE,
        name: "IA32_TSC_DEADLINE",
        needs: One(&[TscDeadline]),
        owner: Owner::Lapic(Apic::Deadline, "arms the timer in TSC-deadline mode, else ignored"),
        reads: "the deadline, 0 when not armed",
        why: "SDM 11.5.4.1",
    },
    Row {
        first: X2APIC_BASE,
        last: X2APIC_LAST,
        name: "x2APIC registers",
        needs: One(&[X2apic]),
        owner: Owner::Lapic(Apic::X2apic, "as SDM table 11-6; #GP outside x2APIC mode"),
        reads: "as SDM table 11-6; #GP outside x2APIC mode",
        why: "SDM 11.12.1.2",
    },
    others(
        IA32_XSS,
        "IA32_XSS",
        One(&[Xsaves]),
        Owner::File(Register::Xss, "0 kept; else #GP"),
        "0",
        "there is no supervisor state component (SDM volume 1, 13.3)",
    ),
    others(
        hv::GUEST_OS_ID,
        "HV_X64_MSR_GUEST_OS_ID; Xen's hypercall page",
        Needs::HypervOrXen,
        Owner::HypervOrXen,
        "as the TLFS says; 0 with Xen alone",
        "TLFS 5.0c, appendix B; Xen's leaf 0x40000002 names the register",
    ),
    synthetic([hv::GUEST_OS_ID + 1, hv::VP_RUNTIME - 1], SYNTHETIC, Synthetic::Own, TLFS),
    synthetic(
        one(hv::VP_RUNTIME),
        "HV_X64_MSR_VP_RUNTIME",
        Synthetic::Runtime,
        "how long the vCPU ran, in 100 ns",
    ),
    synthetic([hv::VP_RUNTIME + 1, hv::EOI - 1], SYNTHETIC, Synthetic::Own, TLFS),
    synthetic([hv::EOI, hv::TPR], "HV_X64_MSR_EOI, ICR, TPR", Synthetic::Apic, "the local APIC's registers"),
    synthetic([hv::TPR + 1, hv::GUEST_IDLE - 1], SYNTHETIC, Synthetic::Own, TLFS),
    synthetic(
        one(hv::GUEST_IDLE),
        "HV_X64_MSR_GUEST_IDLE",
        Synthetic::Idle,
        "0, after sleep until an interrupt",
    ),
    synthetic([hv::GUEST_IDLE + 1, 0x4000_01ff], SYNTHETIC, Synthetic::Own, TLFS),
    super::row::XEN_PAGE,
    paravirtual([kvm::FIRST, kvm::LAST], "MSR_KVM_*"),
    others(
        IA32_EFER,
        "IA32_EFER",
        Nothing,
        Owner::File(Register::Efer, "bits whose features are offered kept; others #GP"),
        "what was written, LMA",
        "SDM 2.2.1",
    ),
    others(
        IA32_STAR,
        "IA32_STAR",
        One(&[Syscall]),
        Owner::File(Register::Star, "kept"),
        "what was written",
        "SDM 5.8.8",
    ),
    others(
        IA32_LSTAR,
        "IA32_LSTAR",
        One(&[Syscall]),
        Owner::File(Register::Lstar, CANONICAL),
        "what was written",
        "SDM 5.8.8",
    ),
    others(
        IA32_CSTAR,
        "IA32_CSTAR",
        One(&[Syscall]),
        Owner::File(Register::Cstar, CANONICAL),
        "what was written",
        "SDM 5.8.8",
    ),
    others(
        IA32_FMASK,
        "IA32_FMASK",
        One(&[Syscall]),
        Owner::File(Register::Fmask, LOW),
        "what was written",
        "SDM 5.8.8",
    ),
    others(IA32_FS_BASE, "IA32_FS_BASE", One(&[Lm]), Owner::Passed(CANONICAL), "what was written", BASES),
    others(IA32_GS_BASE, "IA32_GS_BASE", One(&[Lm]), Owner::Passed(CANONICAL), "what was written", BASES),
    others(
        IA32_KERNEL_GS_BASE,
        "IA32_KERNEL_GS_BASE",
        One(&[Lm]),
        Owner::Passed(CANONICAL),
        "what was written",
        BASES,
    ),
    others(
        IA32_TSC_AUX,
        "IA32_TSC_AUX",
        One(&[Rdtscp, Rdpid]),
        Owner::File(Register::TscAux, LOW),
        "what was written",
        "SDM 18.17.2",
    ),
    row(
        one(AMD_TSC_RATIO),
        "TSC_RATIO",
        One(&[Svm]),
        (|_| 1 << 32, "what was written; 1 at first, with 32 binary places"),
        Keep(0xff_ffff_ffff, 0),
        "APM volume 2, 15.30.5; guests of VMRUN have it",
    ),
    row(run(AMD_PERFEVTSEL0, 8), "PerfEvtSeln, PerfCtrn", Amd, ZERO, Drop(0), NO_PMU),
    row(
        one(AMD_SYSCFG),
        "SYSCFG",
        Amd,
        (zero, "what was written"),
        Keep(SYSCFG_KEPT, 0),
        "APM volume 2, 7.9; memory types have no effect here",
    ),
    row(
        one(AMD_HWCR),
        "HWCR",
        Amd,
        (|_| HWCR_TSC_FREQ_SEL, "TscFreqSel, and McStatusWrEn as written"),
        Keep(HWCR_KEPT, HWCR_IGNORED),
        "Linux wants the TSC at the P0 frequency; the rest as KVM",
    ),
    row(
        run(AMD_IORR_BASE0, 4),
        "IORR_BASEn, IORR_MASKn",
        Amd,
        (zero, "what was written"),
        Keep(IORR, 0),
        "APM volume 2, 7.9.2; all memory is where it is",
    ),
    row(
        one(AMD_TOP_MEM),
        "TOP_MEM",
        Amd,
        (|setup| setup.uncached.map_or(0, |(base, _)| base), "where the device hole begins"),
        Keep(TOP_MEM, 0),
        "APM volume 2, 7.9.4",
    ),
    row(
        one(AMD_TOP_MEM2),
        "TOP_MEM2",
        Amd,
        (zero, "what was written"),
        Keep(TOP_MEM, 0),
        "APM volume 2, 7.9.4",
    ),
    row(one(AMD_NB_CFG), "NB_CFG", Amd, ZERO, Drop(u64::MAX), CHICKEN),
    write_only(
        AMD_PATCH_LOADER,
        "PATCH_LOADER",
        Amd,
        Drop(u64::MAX),
        "an update is not loaded; the level stays, which tells",
    ),
    row(
        run(AMD_MC0_CTL_MASK, BANKS),
        "MCi_CTL_MASK",
        Amd,
        (zero, "what was written"),
        Keep(u64::MAX, 0),
        "nothing raises #MC",
    ),
    row(
        one(AMD_INT_PENDING),
        "INT_PENDING_MSG",
        Amd,
        ZERO,
        Drop(u64::MAX),
        "no C1E; Linux looks (erratum 400)",
    ),
    row(one(AMD_MMIO_CFG_BASE), "MMIO_CFG_BASE", Amd, ZERO, Refused, "the MCFG table tells where ECAM is"),
    row(
        run(AMD_PSTATE_LIMIT, 3),
        "P-state limit, control, status",
        Amd,
        ZERO,
        Drop(0),
        "one P-state only, and HwPstate is not offered",
    ),
    row(
        one(AMD_TSEG_ADDR),
        "SMM_ADDR",
        Amd,
        ZERO,
        Refused,
        "there is no SMM; Linux keeps its direct map off it",
    ),
    row(one(AMD_TSEG_MASK), "SMM_MASK", Amd, ZERO, Refused, "there is no SMM"),
    row(
        one(AMD_VM_CR),
        "VM_CR",
        Amd,
        (vm_cr, "locked, SVM disabled where it is not offered; what was written"),
        Keep(VM_CR_DPD | VM_CR_R_INIT, VM_CR_OFF),
        "APM volume 2, 15.30.1",
    ),
    row(
        one(AMD_VM_HSAVE_PA),
        "VM_HSAVE_PA",
        One(&[Svm]),
        (zero, "what was written"),
        Keep(HSAVE, 0),
        "APM volume 2, 15.30.4; nothing is kept there",
    ),
    row(
        run(AMD_OSVW_ID_LENGTH, 2),
        "OSVW_ID_LENGTH, OSVW_STATUS",
        Amd,
        ZERO,
        Refused,
        "no known errata (APM volume 2, appendix E)",
    ),
    row(one(AMD_LS_CFG), "LS_CFG", Amd, (zero, "what was written"), Keep(u64::MAX, 0), CHICKEN),
    row(one(AMD_IC_CFG), "IC_CFG", Amd, (zero, "what was written"), Keep(u64::MAX, 0), CHICKEN),
    row(one(AMD_DC_CFG), "DC_CFG", Amd, (zero, "what was written"), Keep(u64::MAX, 0), CHICKEN),
    row(one(AMD_TW_CFG), "TW_CFG", Amd, (zero, "what was written"), Keep(u64::MAX, 0), CHICKEN),
    row(
        one(AMD_DE_CFG),
        "DE_CFG",
        Amd,
        (|_| DE_CFG_LFENCE, "LFENCE is serializing"),
        Drop(DE_CFG_LFENCE | 1 << 9 | 1 << 31),
        "it cannot be turned off; Linux sets bits 9 and 31 for errata",
    ),
    row(one(AMD_BU_CFG2), "BU_CFG2", Amd, (zero, "what was written"), Keep(u64::MAX, 0), CHICKEN),
];

const FIXED: (fn(&Setup<'_>) -> u64, &str) =
    (|_| 0x0101_0101_0101_0101 * WRITE_BACK, "what was written; write-back at first");
