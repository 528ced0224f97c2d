//! What a report says about a guest's configuration: rules as data, and their findings.

mod findings;
mod rules;
mod text;
mod when;
mod words;

use std::fmt;

use satori_hyperv::{Enlightenment, Set};

use crate::Report;
use rules::RULES;
use satori_seam::Class;
use when::Exits;

pub use findings::{Advice, Compared, Finding, Idle, advise, compare, unused};
pub use text::{rules_text, text, text_of_several};
pub use when::When;
pub use words::{Also, Words};

/// A piece of advice, and when it is given.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name.
    pub id: &'static str,
    /// What it finds, in a sentence.
    pub title: &'static str,
    /// All of these must hold.
    pub when: &'static [When],
    /// What to do.
    pub advice: &'static str,
    /// What should be offered; what these need comes along.
    pub offer: &'static [Enlightenment],
    /// What should not be offered.
    pub without: &'static [Enlightenment],
    /// What else is to be written, or looked at.
    pub also: &'static [Also],
    /// Why.
    pub why: &'static str,
    /// The exits that would go, wholly or in part.
    pub saves: &'static [Class],
    /// Who says so.
    pub source: &'static str,
}

impl Rule {
    /// Every rule.
    pub const ALL: &'static [Rule] = RULES;

    /// What a rule says of which nothing else is told.
    const PLAIN: Rule = Rule {
        id: "",
        title: "",
        when: &[],
        advice: "",
        offer: &[],
        without: &[],
        also: &[],
        why: "",
        saves: &[],
        source: "",
    };

    /// The rule with this name.
    pub fn by_name(name: &str) -> Option<&'static Rule> {
        let name = name.to_ascii_lowercase().replace('_', "-");
        Rule::ALL.iter().find(|rule| rule.id == name)
    }
}

/// What runs in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// Windows, which uses the task priority and Hyper-V's interface.
    Windows,
    /// Linux, which has its own interface to KVM, and makes no hypercall for spins.
    Linux,
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Guest::Windows => "Windows",
            Guest::Linux => "Linux",
        })
    }
}

/// The configuration under which a report was made, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// What is offered of Hyper-V.
    pub offered: Option<Set>,
    /// What of it somebody wrote down; the rest is there because it is needed, and QEMU and libvirt want that written, too.
    pub spelled: Option<Set>,
    /// The CPU feature `hypervisor` is off.
    pub hidden: bool,
    /// Whether the processor has APICv.
    pub apicv: Option<bool>,
    /// Whether it has IPI virtualisation.
    pub ipi_virtualization: Option<bool>,
    /// What runs in the guest, where somebody told.
    pub guest: Option<Guest>,
    /// Whose words the configuration came in.
    pub words: Words,
}

impl Setting {
    /// What the report itself tells.
    pub fn of(report: &Report) -> Self {
        let offered = report.hyperv.iter().filter(|(_, one)| one.offered);
        let offered = offered.filter_map(|(name, _)| Enlightenment::by_name(name)).collect();
        let told = !report.hyperv.is_empty();
        let words = if told { Words::Satori } else { Words::Any };
        Setting { offered: told.then_some(offered), words, ..Setting::default() }
    }

    /// The guest, by what was told or else by its exits: Windows lowers its task priority wherever interrupts are injected, Linux never
    /// does.
    fn guest(&self, exits: &Exits) -> Option<Guest> {
        // So many windows without a single change of the priority are no chance.
        const MANY: u64 = 100;
        let (priority, windows) = (exits.sum(&[Class::Priority]).0, exits.sum(&[Class::Window]).0);
        match (priority, windows) {
            _ if self.guest.is_some() => self.guest,
            (1.., _) => Some(Guest::Windows),
            (0, MANY..) => Some(Guest::Linux),
            _ => None,
        }
    }
}
