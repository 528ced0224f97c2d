//! The one table of enlightenments.

use satori_cpuid::Register;
use satori_defs::hyperv::{leaf, msr};

/// A bit of a hypervisor leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuidBit {
    /// The leaf.
    pub leaf: u32,
    /// The register.
    pub register: Register,
    /// The bit.
    pub bit: u8,
    /// The enlightenment that takes the bit away again.
    pub unless: Option<Enlightenment>,
}

impl CpuidBit {
    const fn new(leaf: u32, register: Register, bit: u8) -> Self {
        CpuidBit { leaf, register, bit, unless: None }
    }
    const fn unless(self, other: Enlightenment) -> Self {
        CpuidBit { unless: Some(other), ..self }
    }
}

const fn privilege(bit: u8) -> CpuidBit {
    CpuidBit::new(leaf::FEATURES, Register::Eax, bit)
}
const fn privilege_high(bit: u8) -> CpuidBit {
    CpuidBit::new(leaf::FEATURES, Register::Ebx, bit)
}
const fn feature(bit: u8) -> CpuidBit {
    CpuidBit::new(leaf::FEATURES, Register::Edx, bit)
}
const fn nested(bit: u8) -> CpuidBit {
    CpuidBit::new(leaf::NESTED, Register::Eax, bit)
}
const fn hint(bit: u8) -> CpuidBit {
    CpuidBit::new(leaf::RECOMMENDATIONS, Register::Eax, bit)
}

/// Calls with VP sets are recommended: a bit of both tlbflush and ipi, as in QEMU.
const EX_PROCESSOR_MASKS: CpuidBit = hint(11);

/// Whether `auto` turns an enlightenment on. Lists, explanations, documents and `auto` itself go by this one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto {
    /// Everywhere.
    On,
    /// Nowhere.
    Off,
    /// Where the processor virtualises the APIC.
    WithApicv,
}

impl Auto {
    /// Whether `auto` turns it on for a processor that virtualises the APIC, or does not.
    pub const fn on(self, apicv: bool) -> bool {
        match self {
            Auto::On => true,
            Auto::Off => false,
            Auto::WithApicv => apicv,
        }
    }
}

impl std::fmt::Display for Auto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Auto::On => "on",
            Auto::Off => "off",
            Auto::WithApicv => "on with APICv",
        })
    }
}

/// Everything that is known of one enlightenment.
#[derive(Debug)]
pub struct Row {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// QEMU's CPU property, if it has one.
    pub qemu: Option<&'static str>,
    /// Other names that QEMU gives or gave the property. Underscores for hyphens need no entry.
    pub aliases: &'static [&'static str],
    /// libvirt's element, if it has one.
    pub libvirt: Option<&'static str>,
    /// What the option's value is, if it takes one other than on and off.
    pub value: Option<&'static str>,
    /// The bits that announce it.
    pub cpuid: &'static [CpuidBit],
    /// The MSRs that answer when it is on.
    pub msrs: &'static [u32],
    /// The hypercalls that answer when it is on.
    pub hypercalls: &'static [u16],
    /// What must be on as well.
    pub needs: &'static [Enlightenment],
    /// What it does not go well with, and what then happens.
    pub conflicts: &'static [(Enlightenment, &'static str)],
    /// Whether `auto` turns it on.
    pub default: Auto,
    /// Why the default is what it is.
    pub why: &'static str,
    /// What it brings.
    pub brings: &'static str,
    /// What it costs.
    pub costs: &'static str,
    /// What this project measured, with how.
    pub measured: &'static [&'static str],
    /// Why it cannot be had, if it cannot.
    pub refused: Option<&'static str>,
    /// It is for hypervisors among guests: nothing for others, which are not offered it.
    pub nested: bool,
    /// How a guest shows that it uses it.
    pub proof: &'static str,
}

impl Row {
    /// What a row says of which nothing else is told.
    const PLAIN: Row = Row {
        name: "",
        qemu: None,
        aliases: &[],
        libvirt: None,
        value: None,
        cpuid: &[],
        msrs: &[],
        hypercalls: &[],
        needs: &[],
        conflicts: &[],
        default: Auto::Off,
        why: "",
        brings: "",
        costs: "",
        measured: &[],
        refused: None,
        nested: false,
        proof: "",
    };
}

macro_rules! enlightenments {
    ($($(#[$doc:meta])* $ident:ident Row { $($field:tt)* };)*) => {
        /// An enlightenment that this crate implements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Enlightenment { $($(#[$doc])* $ident,)* }

        impl Enlightenment {
            /// Every enlightenment, in the order of the table.
            pub const ALL: &'static [Enlightenment] = &[$(Enlightenment::$ident,)*];

            /// Its row of the table.
            pub const fn row(self) -> &'static Row {
                match self { $(Enlightenment::$ident => { const ROW: Row = Row { $($field)* ..Row::PLAIN }; &ROW })* }
            }
        }
    };
}

mod table;

pub use table::Enlightenment;

impl Enlightenment {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The enlightenment called `name`, in this table's or QEMU's spelling.
    pub fn by_name(name: &str) -> Option<Self> {
        let plain = |text: &str| text.replace('_', "-");
        let wanted = plain(name);
        // Also QEMU's prefix before this table's name.
        let bare = wanted.strip_prefix("hv-").unwrap_or(&wanted);
        let matches = |row: &Row| {
            let other = row.qemu.into_iter().chain(row.aliases.iter().copied());
            plain(row.name) == bare || other.into_iter().any(|name| name == wanted)
        };
        Self::ALL.iter().copied().find(|one| matches(one.row()))
    }

    /// The enlightenment that `msr` belongs to.
    pub fn of_msr(msr: u32) -> Option<Self> {
        let index = msr.checked_sub(msr::FIRST)?;
        let owner = *MSR_OWNERS.get(index as usize)?;
        Self::ALL.get(usize::from(owner)).copied()
    }

    /// The enlightenment that hypercall `code` belongs to.
    pub fn of_hypercall(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|one| one.row().hypercalls.contains(&code))
    }
}

/// Whose each synthetic MSR is, by place in the table: they are asked for at every access.
const MSR_OWNERS: [u8; (msr::LAST - msr::FIRST + 1) as usize] = {
    let mut owners = [u8::MAX; (msr::LAST - msr::FIRST + 1) as usize];
    let mut one = 0;
    while one < Enlightenment::ALL.len() {
        let msrs = Enlightenment::ALL[one].row().msrs;
        let mut at = 0;
        while at < msrs.len() {
            owners[(msrs[at] - msr::FIRST) as usize] = one as u8;
            at += 1;
        }
        one += 1;
    }
    owners
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rows_claim_the_same_bit_register_or_name() {
        for (index, one) in Enlightenment::ALL.iter().enumerate() {
            assert_eq!(Enlightenment::by_name(one.name()), Some(*one));
            for other in &Enlightenment::ALL[index + 1..] {
                let (a, b) = (one.row(), other.row());
                let shared = |bit: &&CpuidBit| b.cpuid.contains(bit) && **bit != EX_PROCESSOR_MASKS;
                assert!(a.cpuid.iter().find(shared).is_none(), "{} {}", a.name, b.name);
                assert!(!a.msrs.iter().any(|msr| b.msrs.contains(msr)), "{} {}", a.name, b.name);
                assert!(!a.hypercalls.iter().any(|call| b.hypercalls.contains(call)));
            }
        }
        assert_eq!(Enlightenment::by_name("hv-vendor-id"), Some(Enlightenment::VendorId));
        assert_eq!(Enlightenment::by_name("hv-vapic"), Some(Enlightenment::Vapic));
        assert_eq!(Enlightenment::by_name("vapci"), None);
    }

    #[test]
    fn what_is_on_by_default_has_what_it_needs() {
        for apicv in [false, true] {
            let on = |one: &Enlightenment| one.row().default.on(apicv);
            for one in Enlightenment::ALL.iter().filter(|one| on(one)) {
                let row = one.row();
                assert!(row.needs.iter().all(on), "{}", row.name);
                // What apicv conflicts with stands beside it: it takes vapic's hint away.
                assert!(apicv || !row.conflicts.iter().any(|(other, _)| on(other)), "{}", row.name);
                assert_eq!(row.refused, None, "{}", row.name);
            }
        }
    }
}
