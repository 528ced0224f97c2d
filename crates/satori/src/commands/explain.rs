//! `satori explain`: one page on one thing that Satori talks about.
//!
//! Each kind of thing is a row of `KINDS`: how its names are found, and the page on one of them.

use std::io::Write;

use anyhow::{Result, bail};
use satori_cpuid::Register;
use satori_defs::hyperv::leaf;
use satori_hyperv::choice::meant;
use satori_hyperv::{CpuidBit, Enlightenment};
use satori_kvm::Feature;
use satori_machine::{CONTROLS, Vmx, VmxProcessor, VmxRow};
use satori_report::advise::{Rule, When};
use satori_xen::{FEATURES, FeatureRow};
use serde_json::{Value, json};

use crate::cli::Form;

/// A page: its name, a sentence, and under headings what there is to say.
#[derive(Clone, Debug)]
pub struct Page {
    /// What is explained, with its kind: `enlightenment stimer`.
    pub title: String,
    /// The facts in their order, each under its heading; a fact may have several lines.
    pub facts: Vec<(&'static str, Vec<String>)>,
}

/// Something that can be explained.
struct Kind {
    /// What the kind is called.
    name: &'static str,
    /// The page on the thing of this kind with this name.
    page: fn(&str) -> Option<Page>,
    /// The name that a wrong one was meant for.
    near: fn(&str) -> Option<String>,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "subject",
        page: |name| name.eq_ignore_ascii_case("nested").then(nested),
        near: |name| {
            matches!(name.to_ascii_lowercase().as_str(), "nesting" | "l2" | "vmx" | "svm")
                .then(|| "nested".into())
        },
    },
    Kind {
        name: "enlightenment",
        page: |name| Enlightenment::by_name(name).map(enlightenment),
        near: |name| meant(name).map(|one| one.name().into()),
    },
    Kind {
        name: "KVM feature",
        // What Hyper-V's table calls so, too, is meant there, but for QEMU's own prefix.
        page: |name| {
            let named = || name.starts_with("kvm") || Enlightenment::by_name(name).is_none();
            Feature::by_name(name).filter(|_| named()).map(kvm_feature)
        },
        near: |_| None,
    },
    Kind {
        name: "Xen feature",
        page: |name| {
            let name = name.strip_prefix("xen-").unwrap_or(name);
            FEATURES.iter().find(|row| row.name.eq_ignore_ascii_case(name)).map(xen_feature)
        },
        near: |_| None,
    },
    Kind {
        name: "rule",
        page: |name| Rule::by_name(name).map(rule),
        // A part of the name is meant for the whole.
        near: |name| {
            let part = name.to_ascii_lowercase();
            let near = |rule: &&Rule| part.len() > 3 && rule.id.contains(&part);
            Rule::ALL.iter().find(near).map(|rule| rule.id.into())
        },
    },
    Kind {
        name: "processor",
        page: |name| name.parse().ok().map(processor),
        near: |name| {
            let part = name.to_ascii_lowercase();
            let near = |known: &&&str| part.len() > 3 && known.contains(&part);
            VmxProcessor::NAMES.iter().find(near).map(|name| name.to_string())
        },
    },
    Kind {
        name: "processor feature",
        page: |name| {
            let name = name.to_ascii_lowercase().replace('_', "-");
            CONTROLS.iter().find(|row| row.name == name).map(feature)
        },
        near: |_| None,
    },
];

/// What a modelled processor has, and which of the rules of `satori advise` depend on that.
fn processor(processor: VmxProcessor) -> Page {
    let list = |on: bool| {
        CONTROLS.iter().filter(|row| processor.has(row.what) == on).map(|row| row.name.to_owned()).collect()
    };
    let apicv = match processor.apicv() {
        true => "in use until a SINT with auto-EOI inhibits it",
        false => "none: KVM takes it whole or not at all",
    };
    let depends = |when: &When| match when {
        When::Apicv => processor.apicv(),
        When::NoApicv => !processor.apicv(),
        When::IpiVirtualization => processor.apicv() && processor.has(Vmx::IpiVirtualization),
        _ => false,
    };
    let conflicts = Rule::ALL.iter().filter(|rule| rule.when.iter().any(depends));
    let facts = vec![
        ("APICv", vec![apicv.to_owned()]),
        ("has", list(true)),
        ("lacks", list(false)),
        ("rules", conflicts.map(|rule| format!("{}: {}", rule.id, rule.title)).collect()),
    ];
    let facts = facts.into_iter().filter(|(_, lines): &(_, Vec<String>)| !lines.is_empty()).collect();
    Page { title: format!("processor {processor}"), facts }
}

/// Guests that run guests.
fn nested() -> Page {
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    let for_them = Enlightenment::ALL.iter().map(|one| one.row()).filter(|row| row.nested);
    let facts = vec![
        (
            "turned on by",
            lines(&[
                "--nested vmx, --cpu ..,+vmx, <feature policy='require' name='vmx'/>; off by default",
                "--nested svm, --cpu ..,+svm, <feature policy='require' name='svm'/>: AMD's way, on a processor of AMD's",
            ]),
        ),
        (
            "what is what",
            lines(&[
                "L1: the guest, which finds Intel's VMX, or AMD's SVM, and can be a hypervisor; L2: its guests",
                "L0: whoever is below L1 on hardware; here Satori's processor, which takes L1's instructions of VMX itself",
            ]),
        ),
        (
            "costs on hardware",
            lines(&[
                "each exit of L2 comes to L0, which hands it to L1; each VMREAD, VMWRITE and VMRESUME of L1 is one more",
                "a shadow VMCS spares L0 the exits of most fields; an enlightened VMCS those of all, and the copying",
                "--report has a section on L2 that counts them by the reason of L2's exit",
            ]),
        ),
        ("on Hyper-V", for_them.map(|row| format!("--hyperv auto,{}: {}", row.name, row.brings)).collect()),
        ("documented in", lines(&["docs/nested.md"])),
    ];
    Page { title: "subject nested".into(), facts }
}

/// A row of the table of controls.
fn feature(row: &VmxRow) -> Page {
    let facts = vec![
        ("control", vec![row.control.to_owned()]),
        ("KVM sets", vec![row.when.to_owned()]),
        ("source", vec![format!("Linux 6.1, arch/x86/kvm: {}", row.source)]),
    ];
    Page { title: format!("processor feature {}", row.name), facts }
}

/// Prints what there is to say about `name`.
pub fn show(name: &str, form: Form, out: &mut dyn Write) -> Result<()> {
    // A rule may be called as the feature that it is about.
    let pages: Vec<_> = KINDS.iter().filter_map(|kind| (kind.page)(name)).collect();
    let Some(page) = pages.first() else {
        let near = KINDS.iter().find_map(|kind| Some((kind.name, (kind.near)(name)?)));
        match near {
            Some((kind, near)) => bail!("nothing is called '{name}': the {kind} '{near}' is near it"),
            None => bail!(
                "nothing is called '{name}': 'satori hyperv list' names the enlightenments, 'satori advise --rules' the rules"
            ),
        }
    };
    match form {
        Form::Text => {
            for page in &pages {
                writeln!(out, "{}", page.title)?;
                for (heading, lines) in &page.facts {
                    for (index, line) in lines.iter().enumerate() {
                        let heading = if index == 0 { heading } else { "" };
                        writeln!(out, "  {heading:<11} {line}")?;
                    }
                }
            }
        }
        Form::Json => writeln!(out, "{:#}", page.json())?,
    }
    Ok(())
}

impl Page {
    fn json(&self) -> Value {
        let facts = self.facts.iter().map(|(heading, lines)| (heading.to_string(), json!(lines)));
        json!({ "title": self.title, "facts": serde_json::Map::from_iter(facts) })
    }
}

/// A rule of `satori advise`.
fn rule(rule: &Rule) -> Page {
    let when = rule.when.iter().map(ToString::to_string).collect();
    let names = |list: &[Enlightenment]| list.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
    let also = rule.also.iter().flat_map(|one| {
        let of = |whose: &str, text: Option<&str>| text.map(|text| format!("{whose}{text}"));
        [of("XML: ", one.libvirt), of("QEMU: ", one.qemu), of("", one.host)].into_iter().flatten()
    });
    let also = also.collect();
    let facts = vec![
        ("finds", vec![rule.title.to_string()]),
        ("when all", when),
        ("advice", vec![rule.advice.to_string()]),
        ("offer", vec![names(rule.offer)]),
        ("leave out", vec![names(rule.without)]),
        ("write", also),
        ("why", vec![rule.why.to_string()]),
        ("concerns", rule.saves.iter().map(|class| satori_report::reasons::words(*class)).collect()),
        ("source", vec![rule.source.to_string()]),
    ];
    let facts = facts.into_iter().map(|(heading, lines): (_, Vec<String>)| {
        (heading, lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>())
    });
    let facts = facts.filter(|(_, lines)| !lines.is_empty()).collect();
    Page { title: format!("rule {}", rule.id), facts }
}

/// Everything that the table says about `one`.
pub fn enlightenment(one: Enlightenment) -> Page {
    let row = one.row();
    let some = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_string()] };
    let names = |list: &[Enlightenment]| list.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
    let users: Vec<_> =
        Enlightenment::ALL.iter().copied().filter(|other| other.row().needs.contains(&one)).collect();
    let default = match row.refused {
        Some(why) => format!("cannot be had: {why}"),
        None => format!("{}: {}", row.default, row.why),
    };
    let conflicts = row.conflicts.iter().map(|(other, what)| format!("{}: {what}", other.name()));
    let facts = vec![
        ("brings", some(row.brings)),
        ("costs", some(row.costs)),
        ("measured", row.measured.iter().map(|text| text.to_string()).collect()),
        ("default", vec![default]),
        ("needs", some(&names(row.needs))),
        ("needed by", some(&names(&users))),
        ("conflicts", conflicts.collect()),
        ("CPUID", row.cpuid.iter().map(bit).collect()),
        ("MSRs", some(&row.msrs.iter().map(|msr| format!("{msr:#x}")).collect::<Vec<_>>().join(", "))),
        (
            "hypercalls",
            some(&row.hypercalls.iter().map(|c| format!("{c:#06x}")).collect::<Vec<_>>().join(", ")),
        ),
        ("a guest", some(row.proof)),
        ("QEMU", spellings(one)),
        ("libvirt", some(row.libvirt.unwrap_or_default())),
    ];
    let facts = facts.into_iter().filter(|(_, lines)| !lines.is_empty()).collect();
    Page { title: format!("enlightenment {}", one.name()), facts }
}

/// Everything that KVM's table says about `one`.
pub fn kvm_feature(one: Feature) -> Page {
    let row = one.row();
    let some = |text: &str| if text.is_empty() { vec![] } else { vec![text.to_string()] };
    let names = |list: &[Feature]| list.iter().map(|one| one.name()).collect::<Vec<_>>().join(", ");
    let default = match row.refused {
        Some(why) => format!("cannot be had: {why}"),
        None => format!("{}: {}", if row.default { "on" } else { "off" }, row.why),
    };
    let bits = row.cpuid.iter().map(|bit| format!("{}[{}]", kvm_register(bit.register), bit.bit));
    let calls = row.calls.iter().map(|call| {
        satori_kvm::call_name(*call).map_or_else(|| call.to_string(), |name| format!("{call} ({name})"))
    });
    let facts = vec![
        ("brings", some(row.brings)),
        ("costs", some(row.costs)),
        ("default", vec![default]),
        ("needs", some(&names(row.needs))),
        (
            "conflicts",
            row.conflicts.iter().map(|(other, what)| format!("{}: {what}", other.name())).collect(),
        ),
        ("CPUID", bits.map(|bit| format!("0x40000001.{bit}")).collect()),
        ("MSRs", some(&row.msrs.iter().map(|msr| format!("{msr:#x}")).collect::<Vec<_>>().join(", "))),
        ("hypercalls", some(&calls.collect::<Vec<_>>().join(", "))),
        ("a guest", some(row.proof)),
        ("QEMU", row.qemu.iter().map(ToString::to_string).collect()),
        ("libvirt", some(row.libvirt.unwrap_or_default())),
    ];
    let facts = facts.into_iter().filter(|(_, lines): &(_, Vec<String>)| !lines.is_empty()).collect();
    Page { title: format!("KVM feature {}", one.name()), facts }
}

/// Everything that Xen's table says about a feature.
fn xen_feature(row: &FeatureRow) -> Page {
    let fact = |heading, text: &str| (heading, vec![text.to_string()]);
    let facts = vec![
        fact("brings", row.brings),
        fact("without", row.without),
        fact("default", "on"),
        fact("told by", row.told),
        fact("a guest", row.proof),
        ("option", vec![format!("--xen -{} leaves it out", row.name)]),
    ];
    Page { title: format!("Xen feature {}", row.name), facts }
}

fn kvm_register(register: Register) -> &'static str {
    if register == Register::Eax { "EAX" } else { "EDX" }
}

/// QEMU's spellings, the common one first.
pub fn spellings(one: Enlightenment) -> Vec<String> {
    let row = one.row();
    let value = row.value.map_or_else(String::new, |value| format!("={value}"));
    row.qemu.iter().chain(row.aliases).map(|name| format!("{name}{value}")).collect()
}

/// A CPUID bit as this project's pages write it: `0x40000003.EAX[5]`.
pub fn bit(bit: &CpuidBit) -> String {
    let register = match bit.register {
        Register::Eax => "EAX",
        Register::Ebx => "EBX",
        Register::Ecx => "ECX",
        Register::Edx => "EDX",
    };
    let what = match bit.leaf {
        leaf::FEATURES if bit.register == Register::Eax => " (privilege)",
        leaf::FEATURES => " (feature)",
        leaf::RECOMMENDATIONS => " (recommendation)",
        leaf::NESTED => " (nested feature)",
        _ => "",
    };
    let unless = bit.unless.map_or_else(String::new, |other| format!(", not beside {}", other.name()));
    format!("{:#x}.{register}[{}]{what}{unless}", bit.leaf, bit.bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_enlightenment_is_explained_in_every_spelling() {
        for one in Enlightenment::ALL {
            let row = one.row();
            for name in [Some(row.name), row.qemu].into_iter().flatten().chain(row.aliases.iter().copied()) {
                let mut out = Vec::new();
                show(&name.replace('-', "_"), Form::Text, &mut out).unwrap();
                let text = String::from_utf8(out).unwrap();
                assert!(text.starts_with(&format!("enlightenment {}\n", row.name)), "{name}: {text}");
            }
            let page = enlightenment(*one);
            for heading in ["brings", "costs", "default", "a guest"] {
                assert!(page.facts.iter().any(|(known, _)| *known == heading), "{}: no {heading}", row.name);
            }
        }
    }

    #[test]
    fn processors_tell_which_rules_depend_on_them() {
        let told = |name: &str| {
            let mut out = Vec::new();
            show(name, Form::Text, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let haswell = told("haswell");
        assert!(haswell.contains("auto-eoi-apicv") && !haswell.contains("ipi-hypercalls"), "{haswell}");
        assert!(told("sapphire-rapids").contains("ipi-hypercalls"));
        let none = told("no-apicv");
        assert!(none.contains("apicv-deprecation-alone") && !none.contains("auto-eoi-apicv"), "{none}");
        assert!(told("haswell,-posted-interrupts").contains("none: KVM takes it whole"));
        for row in CONTROLS {
            assert!(told(row.name).contains(row.control), "{}", row.name);
        }
    }

    #[test]
    fn a_wrong_name_is_put_right() {
        let told = |name: &str| show(name, Form::Json, &mut Vec::new()).unwrap_err().to_string();
        assert!(
            told("hv-freqencies").contains("the enlightenment 'frequencies'"),
            "{}",
            told("hv-freqencies")
        );
        assert!(
            told("warp").contains("satori hyperv list") && told("warp").contains("satori advise --rules")
        );
    }
}
