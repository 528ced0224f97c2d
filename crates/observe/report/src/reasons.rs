//! What an exit means, whichever the processor is: names of the instruction sets' own tables, and classes of them.

use std::fmt;

use satori_defs::svm::ExitCode;
use satori_defs::vmx::ExitReason;

/// Whose names a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Intel's VMX: `EPT_MISCONFIG`.
    Vmx,
    /// AMD's SVM: `npf`.
    Svm,
    /// ARM's exception classes: `DABT_LOW`. No rule knows them yet.
    Arm,
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Vmx => "Intel (VMX)",
            Isa::Svm => "AMD (SVM)",
            Isa::Arm => "ARM",
        })
    }
}

/// What an exit is about. Rules speak of these, so that one rule serves both vendors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The guest has nothing to do: its time is no cost.
    Idle,
    /// An access to a device's memory; on AMD not told from a fault.
    Mmio,
    /// The host gives or protects a page.
    Memory,
    /// An access to a port.
    Port,
    /// A write of an MSR; on AMD not told from a read.
    MsrWrite,
    /// A read of an MSR.
    MsrRead,
    /// An interrupt of the host's, or a kick.
    HostInterrupt,
    /// The guest takes interrupts again: one is injected. Not with virtual interrupt delivery (SDM 30.2, APM 15.29).
    Window,
    /// The guest lowers its task priority, on which an interrupt waits. Not with virtual interrupt delivery either.
    Priority,
    /// A register of the local APIC that the processor does not virtualise whole.
    Apic,
    /// An EOI that the host wants to know of.
    Eoi,
    /// An interrupt to a virtual processor that does not run (AVIC).
    Ipi,
    /// A hypercall.
    Hypercall,
    /// A loop of PAUSEs: a lock whose holder may not run.
    Pause,
    /// A debug register.
    Debug,
    /// A deadline of the guest's local APIC timer.
    Timer,
    /// A guest that is a hypervisor itself.
    Nested,
    /// CPUID.
    Cpuid,
    /// A control register, a descriptor table, an extended control register.
    Control,
    /// Whatever else.
    Other,
}

impl Class {
    /// Every class.
    pub const ALL: &'static [Class] = &[
        Class::Idle,
        Class::Mmio,
        Class::Memory,
        Class::Port,
        Class::MsrWrite,
        Class::MsrRead,
        Class::HostInterrupt,
        Class::Window,
        Class::Priority,
        Class::Apic,
        Class::Eoi,
        Class::Ipi,
        Class::Hypercall,
        Class::Pause,
        Class::Debug,
        Class::Timer,
        Class::Nested,
        Class::Cpuid,
        Class::Control,
        Class::Other,
    ];

    /// Its exits in words: `EPT_MISCONFIG (AMD: npf)`.
    pub fn words(self) -> String {
        let vmx = ExitReason::ALL.iter().filter(|one| vmx(**one).contains(&self)).map(|one| one.name());
        let svm = ExitCode::ALL.iter().filter(|one| svm(**one).contains(&self)).map(|one| one.name());
        let (vmx, svm): (Vec<_>, Vec<_>) = (vmx.collect(), svm.collect());
        let few = |names: &[&str]| match names {
            [first, .., last] if names.len() > 4 => format!("{first}..{last}"),
            names => names.join(", "),
        };
        match (vmx.is_empty(), svm.is_empty()) {
            (false, false) => format!("{} (AMD: {})", few(&vmx), few(&svm)),
            (false, true) => few(&vmx),
            _ => format!("AMD's {}", few(&svm)),
        }
    }
}

/// Kernels before 5.6 had another name for it.
const OLD_WINDOW: &str = "PENDING_INTERRUPT";
/// Linux's `kvm_arm_exception_class`, as far as a table is known by them. `UNKNOWN` is perf's word for anything.
const ARM: &[&str] = &[
    "WFx",
    "SYS64",
    "HVC64",
    "SMC64",
    "DABT_LOW",
    "IABT_LOW",
    "FP_ASIMD",
    "SVE",
    "IRQ",
    "TRAP",
    "SERROR",
    "EL1_SERROR",
    "DABT_CUR",
    "BRK64",
    "WATCHPT_LOW",
    "SOFTSTP_LOW",
];

/// Whose the exit `name` is, and what it is about; none if no table has it.
pub fn known(name: &str) -> Option<(Isa, &'static [Class])> {
    if name == OLD_WINDOW {
        return Some((Isa::Vmx, &[Class::Window]));
    }
    if let Some(reason) = ExitReason::ALL.iter().find(|one| one.name() == name) {
        return Some((Isa::Vmx, vmx(*reason)));
    }
    // perf's tables are read word by word, so a space is an underscore here.
    let same = |code: &ExitCode| code.name() == name || code.name().replace(' ', "_") == name;
    if let Some(code) = ExitCode::ALL.iter().find(|code| same(code)) {
        return Some((Isa::Svm, svm(*code)));
    }
    ARM.contains(&name).then_some((Isa::Arm, &[Class::Other]))
}

/// Whether an exit of this name is of one of the classes.
pub fn is(name: &str, classes: &[Class]) -> bool {
    known(name).is_some_and(|(_, own)| own.iter().any(|one| classes.contains(one)))
}

fn vmx(reason: ExitReason) -> &'static [Class] {
    use ExitReason as R;
    match reason {
        R::Hlt | R::MwaitInstruction | R::Umwait | R::Tpause => &[Class::Idle],
        R::EptMisconfig => &[Class::Mmio],
        R::EptViolation | R::PmlFull => &[Class::Memory],
        R::IoInstruction => &[Class::Port],
        R::MsrWrite => &[Class::MsrWrite],
        R::MsrRead => &[Class::MsrRead],
        R::ExternalInterrupt => &[Class::HostInterrupt],
        R::InterruptWindow => &[Class::Window],
        R::TprBelowThreshold => &[Class::Priority],
        R::ApicAccess | R::ApicWrite => &[Class::Apic],
        R::EoiInduced => &[Class::Eoi],
        R::Vmcall => &[Class::Hypercall],
        R::PauseInstruction => &[Class::Pause],
        R::DrAccess => &[Class::Debug],
        R::PreemptionTimer => &[Class::Timer],
        R::Vmclear | R::Vmlaunch | R::Vmptrld | R::Vmptrst | R::Vmread => &[Class::Nested],
        R::Vmresume | R::Vmwrite | R::Vmoff | R::Vmon | R::Invept | R::Invvpid => &[Class::Nested],
        R::Cpuid => &[Class::Cpuid],
        R::CrAccess | R::GdtrIdtr | R::LdtrTr | R::Xsetbv => &[Class::Control],
        _ => &[Class::Other],
    }
}

fn svm(code: ExitCode) -> &'static [Class] {
    use ExitCode as C;
    match code {
        C::Hlt | C::Mwait | C::IdleHlt => &[Class::Idle],
        C::Npf => &[Class::Mmio, Class::Memory],
        C::Ioio => &[Class::Port],
        C::Msr => &[Class::MsrWrite, Class::MsrRead],
        C::Intr => &[Class::HostInterrupt],
        C::Vintr => &[Class::Window],
        C::WriteCr8 | C::Cr8WriteTrap => &[Class::Priority],
        C::AvicUnacceleratedAccess => &[Class::Apic],
        C::AvicIncompleteIpi => &[Class::Ipi],
        C::Vmmcall => &[Class::Hypercall],
        C::Pause => &[Class::Pause],
        C::Vmrun | C::Vmload | C::Vmsave | C::Stgi | C::Clgi | C::Invlpga | C::Skinit => &[Class::Nested],
        C::Cpuid => &[Class::Cpuid],
        code if (C::ReadDr0..=C::WriteDr7).contains(&code) => &[Class::Debug],
        code if (C::ReadCr0..=C::WriteCr4).contains(&code) => &[Class::Control],
        C::Cr0SelWrite | C::Xsetbv | C::EferWriteTrap | C::Cr0WriteTrap | C::Cr4WriteTrap => {
            &[Class::Control]
        }
        _ => &[Class::Other],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_vendors_names_have_classes() {
        assert_eq!(known("EPT_MISCONFIG"), Some((Isa::Vmx, &[Class::Mmio][..])));
        assert_eq!(known("PENDING_INTERRUPT"), known("INTERRUPT_WINDOW"), "before Linux 5.6");
        assert_eq!(known("npf"), Some((Isa::Svm, &[Class::Mmio, Class::Memory][..])));
        assert_eq!(known("read_dr7"), Some((Isa::Svm, &[Class::Debug][..])));
        assert_eq!(known("read_cr8"), Some((Isa::Svm, &[Class::Control][..])));
        assert_eq!(known("UD_excp"), known("UD excp"));
        assert_eq!(known("DABT_LOW").map(|(isa, _)| isa), Some(Isa::Arm));
        assert_eq!(known("UNKNOWN"), None);
        assert!(is("idle-halt", &[Class::Idle]) && !is("vmrun", &[Class::Idle]));
    }

    #[test]
    fn every_class_has_words() {
        for class in Class::ALL {
            assert!(!class.words().is_empty() && class.words().len() < 90, "{class:?}: {}", class.words());
        }
        assert_eq!(Class::Mmio.words(), "EPT_MISCONFIG (AMD: npf)");
        assert_eq!(Class::Ipi.words(), "AMD's avic_incomplete_ipi");
    }
}
