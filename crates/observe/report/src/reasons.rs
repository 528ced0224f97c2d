//! What an exit means, whichever the processor is: names of the instruction sets' own tables, and classes of them.

use std::fmt;

use satori_arm_engine::reasons::{REASONS as ARM, UNKNOWN};
use satori_defs::svm::ExitCode;
use satori_engine::REASONS;
use satori_seam::{Class, Reason};

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

/// The exits of a class in words: `EPT_MISCONFIG (AMD: npf)`.
pub fn words(class: Class) -> String {
    let vmx = REASONS.iter().filter(|one| one.class() == class).map(|one| one.name());
    let svm = ExitCode::ALL.iter().filter(|one| svm(**one).contains(&class)).map(|one| one.name());
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

/// Kernels before 5.6 had another name for it.
const OLD_WINDOW: &str = "PENDING_INTERRUPT";
/// Whose the exit `name` is, and what it is about; none if no table has it.
pub fn known(name: &str) -> Option<(Isa, Vec<Class>)> {
    if name == OLD_WINDOW {
        return Some((Isa::Vmx, vec![Class::Window]));
    }
    if let Some(reason) = REASONS.iter().find(|one| one.name() == name) {
        return Some((Isa::Vmx, vec![reason.class()]));
    }
    // perf's tables are read word by word, so a space is an underscore here.
    let same = |code: &ExitCode| code.name() == name || code.name().replace(' ', "_") == name;
    if let Some(code) = ExitCode::ALL.iter().find(|code| same(code)) {
        return Some((Isa::Svm, svm(*code).to_vec()));
    }
    // `UNKNOWN` is perf's word for anything.
    let arm = |one: &Reason| one.name() == name && *one != UNKNOWN;
    ARM.iter().any(arm).then(|| (Isa::Arm, vec![Class::Other]))
}

/// Whether an exit of this name is of one of the classes.
pub fn is(name: &str, classes: &[Class]) -> bool {
    known(name).is_some_and(|(_, own)| own.iter().any(|one| classes.contains(one)))
}

fn svm(code: ExitCode) -> &'static [Class] {
    use ExitCode as C;
    match code {
        C::Hlt | C::Mwait | C::IdleHlt => &[Class::Idle],
        C::Npf => &[Class::Mmio, Class::Memory],
        C::Ioio => &[Class::Port],
        C::Msr => &[Class::RegisterWrite, Class::RegisterRead],
        C::Intr => &[Class::HostInterrupt],
        C::Vintr => &[Class::Window],
        C::WriteCr8 | C::Cr8WriteTrap => &[Class::Priority],
        C::AvicUnacceleratedAccess => &[Class::Controller],
        C::AvicIncompleteIpi => &[Class::Ipi],
        C::Vmmcall => &[Class::Hypercall],
        C::Pause => &[Class::Pause],
        C::Vmrun | C::Vmload | C::Vmsave | C::Stgi | C::Clgi | C::Invlpga | C::Skinit => &[Class::Nested],
        C::Cpuid => &[Class::Identity],
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
        assert_eq!(known("EPT_MISCONFIG"), Some((Isa::Vmx, vec![Class::Mmio])));
        assert_eq!(known("PENDING_INTERRUPT"), known("INTERRUPT_WINDOW"), "before Linux 5.6");
        assert_eq!(known("npf"), Some((Isa::Svm, vec![Class::Mmio, Class::Memory])));
        assert_eq!(known("read_dr7"), Some((Isa::Svm, vec![Class::Debug])));
        assert_eq!(known("read_cr8"), Some((Isa::Svm, vec![Class::Control])));
        assert_eq!(known("UD_excp"), known("UD excp"));
        assert_eq!(known("DABT_LOW").map(|(isa, _)| isa), Some(Isa::Arm));
        assert_eq!(known("UNKNOWN"), None);
        assert!(is("idle-halt", &[Class::Idle]) && !is("vmrun", &[Class::Idle]));
    }

    #[test]
    fn every_class_has_words() {
        for class in Class::ALL {
            assert!(!words(*class).is_empty() && words(*class).len() < 90, "{class:?}: {}", words(*class));
        }
        assert_eq!(words(Class::Mmio), "EPT_MISCONFIG (AMD: npf)");
        assert_eq!(words(Class::Ipi), "AMD's avic_incomplete_ipi");
    }
}
