//! What a row of the table of MSRs says: a register's needs, its owner, and what a write does.

use satori_defs::xen::msr as xen;

use super::Setup;
use crate::{Feature, Vendor};
use Needs::{Amd, Hyperv, HypervAndXen, HypervOrXen, Intel, Kvm, Nothing, One};
use Write::{AllOrNone, Bank, Drop, Gp as Refused, Keep, MtrrDefault, MtrrFixed, MtrrVariable};

/// One register, or several in a row that behave alike.
#[derive(Debug)]
pub struct Row {
    /// The first register's number.
    pub first: u32,
    /// The last one's.
    pub last: u32,
    /// The manual's name.
    pub name: &'static str,
    /// When it exists; else it is #GP.
    pub needs: Needs,
    /// Who answers.
    pub owner: Owner,
    /// What a read gives, in words.
    pub reads: &'static str,
    /// Why it is so.
    pub why: &'static str,
}

/// On what a register's existence depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// It is always there.
    Nothing,
    /// The vendor is not AMD.
    Intel,
    /// The vendor is AMD.
    Amd,
    /// One of these features is offered.
    One(&'static [Feature]),
    /// The Hyper-V interface is on.
    Hyperv,
    /// KVM's guest interface is on.
    Kvm,
    /// The Hyper-V interface is on, or Xen's.
    HypervOrXen,
    /// Both are.
    HypervAndXen,
}

/// Who answers for a register.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// The register file, by the handler of the exit; the text says what a write does.
    File(Register, &'static str),
    /// The engine alone, as the MSR bitmap passes the register through.
    Passed(&'static str),
    /// The local APIC.
    Lapic(Apic, &'static str),
    /// The Hyper-V interface.
    Hyperv(Synthetic),
    /// KVM's guest interface.
    Kvm,
    /// The interface whose leaves are the first: the register is Hyper-V's, or puts Xen's hypercall page in place. The two are
    /// never offered together.
    HypervOrXen,
    /// Xen's hypercall page, where Hyper-V has the register of that name.
    Xen,
    /// [`PlatformMsrs`](super::PlatformMsrs).
    Platform {
        /// What it holds at power-up.
        start: fn(&Setup<'_>) -> u64,
        /// What a write does.
        write: Write,
        /// Whether it can be read at all.
        readable: bool,
    },
}

/// A register of the register file that exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the manual's names")]
pub enum Register {
    Tsc,
    TscAdjust,
    Efer,
    Star,
    Lstar,
    Cstar,
    Fmask,
    Pat,
    Xss,
    TscAux,
    SpecCtrl,
}

/// Which of the local APIC's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apic {
    /// IA32_APIC_BASE.
    Base,
    /// IA32_TSC_DEADLINE.
    Deadline,
    /// Those of x2APIC mode.
    X2apic,
}

/// Who answers for a synthetic register, once the interface permits the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synthetic {
    /// The interface itself.
    Own,
    /// The local APIC, whose registers these are by another way.
    Apic,
    /// Whoever counts how long the virtual processor ran.
    Runtime,
    /// The machine, which lets the virtual processor sleep.
    Idle,
}

/// What a write to a platform register does.
#[derive(Clone, Copy, Debug)]
pub enum Write {
    /// #GP.
    Gp,
    /// The bits of the first mask are kept, changes to those of the second are ignored, all others
    /// must be zero.
    Keep(u64, u64),
    /// Nothing, if no other bits than these are set; else #GP.
    Drop(u64),
    /// Zero or all ones is kept, anything else #GP.
    AllOrNone,
    /// A machine-check bank: CTL zero or all ones, STATUS, ADDR and MISC only zero.
    Bank,
    /// IA32_MTRR_DEF_TYPE.
    MtrrDefault,
    /// A fixed-range MTRR: eight memory types.
    MtrrFixed,
    /// A variable-range MTRR: base and type at even numbers, mask and valid bit at odd ones.
    MtrrVariable,
}

impl Owner {
    /// What a write does, in words.
    pub fn writes(&self) -> String {
        let write = match self {
            Owner::File(_, text) | Owner::Passed(text) | Owner::Lapic(_, text) => return (*text).into(),
            Owner::Hyperv(_) => return "as the TLFS says, if its enlightenment is offered".into(),
            Owner::Kvm => return "as KVM's msr.rst says, if its feature is offered".into(),
            Owner::HypervOrXen => {
                return "as the TLFS says; with Xen alone the hypercall page is copied to where the value says"
                    .into();
            }
            Owner::Xen => {
                return "the hypercall page is copied to where the value says; no page there #GP".into();
            }
            Owner::Platform { write, .. } => write,
        };
        match *write {
            Refused => "#GP".into(),
            Keep(u64::MAX, _) => "kept".into(),
            Keep(kept, fixed) if kept | fixed == u64::MAX => {
                format!("kept, but for {fixed:#x}, which is ignored")
            }
            Keep(kept, 0) => format!("kept; bits outside {kept:#x} #GP"),
            Keep(kept, fixed) => {
                format!("{kept:#x} kept, {fixed:#x} ignored; other bits #GP")
            }
            Drop(0) => "0 ignored; else #GP".into(),
            Drop(u64::MAX) => "ignored".into(),
            Drop(mask) => format!("ignored; bits outside {mask:#x} #GP"),
            AllOrNone => "0 or all ones kept; else #GP".into(),
            Bank => "CTL: 0 or all ones kept; STATUS, ADDR, MISC: 0; else #GP".into(),
            MtrrDefault => "kept; reserved bits and types #GP".into(),
            MtrrFixed => "kept; a reserved type #GP".into(),
            MtrrVariable => "kept; reserved bits and types #GP".into(),
        }
    }
}

impl Needs {
    /// In words; nothing where it is always there.
    pub fn text(&self) -> String {
        match self {
            Nothing => String::new(),
            Intel => "not AMD".into(),
            Amd => "AMD".into(),
            Hyperv => "Hyper-V".into(),
            Kvm => "KVM".into(),
            HypervOrXen => "Hyper-V or Xen".into(),
            HypervAndXen => "Hyper-V and Xen".into(),
            One(features) => features.iter().map(|f| f.name()).collect::<Vec<_>>().join(" or "),
        }
    }

    pub(super) fn met(&self, setup: &Setup<'_>) -> bool {
        let amd = setup.cpuid.vendor() == Vendor::Amd;
        match self {
            // Whether an interface is on is its own matter.
            Nothing | Hyperv | Kvm | HypervOrXen | HypervAndXen => true,
            Intel => !amd,
            Amd => amd,
            One(features) => features.iter().any(|feature| setup.cpuid.has(*feature)),
        }
    }
}

/// A row that somebody else answers for.
pub(super) const fn others(
    register: u32,
    name: &'static str,
    needs: Needs,
    owner: Owner,
    reads: &'static str,
    why: &'static str,
) -> Row {
    Row { first: register, last: register, name, needs, owner, reads, why }
}

/// Rows of the Hyper-V interface, between which these have owners of their own.
pub(super) const fn synthetic(
    [first, last]: [u32; 2],
    name: &'static str,
    owner: Synthetic,
    reads: &'static str,
) -> Row {
    let why = "TLFS 5.0c, appendix B; see --hyperv";
    Row { first, last, name, needs: Hyperv, owner: Owner::Hyperv(owner), reads, why }
}

/// Rows of KVM's guest interface.
pub(super) const fn paravirtual([first, last]: [u32; 2], name: &'static str) -> Row {
    let (reads, why) = ("what was written, or 1 at first", "Linux, virt/kvm/x86/msr.rst; see --guest kvm");
    Row { first, last, name, needs: Kvm, owner: Owner::Kvm, reads, why }
}

/// Xen's hypercall page behind Hyper-V's interface.
pub(super) const XEN_PAGE: Row = others(
    xen::PAGE_BEHIND,
    "Xen's hypercall page",
    HypervAndXen,
    Owner::Xen,
    "0",
    "where Hyper-V's registers begin at 0x40000000, Xen's leaf 0x40000102 names this one",
);
