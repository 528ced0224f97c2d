//! `satori kvm`: the table of KVM's features, and what options come to.

use std::io::Write;

use anyhow::Result;
use satori_kvm::Feature;
use satori_kvm::choice::convert;
use satori_pv::Written;
use serde_json::{Value, json};

use crate::choose::Processors;
use crate::cli::Spelling;
use crate::commands::explain;
use crate::commands::offers::{Interface, section, write_check};

/// KVM's interface.
pub struct Kvm;

impl Interface for Kvm {
    fn list(out: &mut dyn Write) -> Result<()> {
        list(out)
    }

    fn markdown() -> String {
        markdown()
    }

    fn objects() -> Value {
        json!({ "features": Feature::ALL.iter().map(|one| object(*one)).collect::<Vec<_>>() })
    }

    fn check(processors: &Processors, out: &mut dyn Write) -> Result<()> {
        let chosen = &processors.kvm;
        let row = |(one, by): &(Feature, String)| {
            (one.name(), one.row().refused, chosen.config.set.has(*one), by.to_string())
        };
        write_check(out, 20, chosen.by.iter().map(row), &remarks(processors))
    }

    fn checked(processors: &Processors) -> Value {
        checked(processors)
    }

    fn convert(processors: &Processors, to: Spelling) -> Result<Written> {
        let config = &processors.kvm.config;
        Ok(match to {
            Spelling::Qemu => convert::to_qemu(&processors.cpu, config),
            Spelling::Libvirt => convert::to_libvirt(config),
            Spelling::Satori => convert::to_satori(config),
        })
    }
}

fn default(one: Feature) -> &'static str {
    match (one.row().refused, one.row().default) {
        (Some(_), _) => "refused",
        (None, true) => "on",
        (None, false) => "off",
    }
}

fn list(out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{:<20} {:<8} {:<24} needs", "name", "default", "QEMU")?;
    for one in Feature::ALL {
        let row = one.row();
        let needs: Vec<_> = row.needs.iter().map(|need| need.name()).collect();
        let line = format!(
            "{:<20} {:<8} {:<24} {}",
            row.name,
            default(*one),
            row.qemu.unwrap_or("-"),
            needs.join(" ")
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out, "\n'satori explain kvm-NAME' tells what one is, brings and costs.")?;
    Ok(())
}

fn object(one: Feature) -> Value {
    let row = one.row();
    let names = |list: &[Feature]| list.iter().map(|one| one.name()).collect::<Vec<_>>();
    let conflicts = row.conflicts.iter().map(|(other, what)| json!({ "with": other.name(), "what": what }));
    json!({
        "name": row.name,
        "qemu": row.qemu,
        "libvirt": row.libvirt,
        "cpuid": row.cpuid.iter().map(|bit| format!("{:?}[{}]", bit.register, bit.bit)).collect::<Vec<_>>(),
        "msrs": row.msrs,
        "hypercalls": row.calls,
        "needs": names(row.needs),
        "conflicts": conflicts.collect::<Vec<_>>(),
        "default": row.default,
        "why": row.why,
        "brings": row.brings,
        "costs": row.costs,
        "refused": row.refused,
        "guest": row.proof,
    })
}

/// What a person should look at.
fn remarks(processors: &Processors) -> Vec<String> {
    let chosen = &processors.kvm;
    let mut remarks: Vec<_> = chosen.added.iter().map(|added| format!("{added}: added")).collect();
    remarks.extend(chosen.conflicts.iter().cloned());
    if chosen.config.set.is_empty() {
        remarks.push("the guest sees no KVM: --guest kvm offers it".into());
    } else if !processors.announced() {
        remarks.push("the CPU feature 'hypervisor' is off: no guest looks for KVM".into());
    }
    remarks
}

fn checked(processors: &Processors) -> Value {
    let chosen = &processors.kvm;
    let rows = chosen
        .by
        .iter()
        .map(|(one, by)| json!({ "name": one.name(), "on": chosen.config.set.has(*one), "by": by }));
    json!({
        "guest": processors.guest.to_string(),
        "cpu": processors.cpu,
        "features": rows.collect::<Vec<_>>(),
        "added": chosen.added,
        "conflicts": chosen.conflicts,
    })
}

/// The page `docs/kvm.md`.
fn markdown() -> String {
    let mut page = String::from(
        "# KVM's guest interface

What Satori offers of KVM's guest interface with `--guest kvm`, from the one table that the code works by
(`crates/pv/kvm/src/feature.rs`). `satori kvm list --format markdown` prints this page, and a test holds the two
together; `satori explain kvm-NAME` prints one part of it, `satori kvm check` tells what options come to.

`--guest kvm` offers it alone, `--guest kvm+hyperv` behind Hyper-V's leaves, where Linux takes KVM's and Windows
Hyper-V's. `--kvm auto|off|all|LIST` chooses; QEMU's own properties in `--cpu max,kvm-pv-eoi=off` modify that, and
`kvm=off` hides the interface. What is not offered is refused: its MSRs are #GP, its hypercalls answer -1000. That is
what QEMU calls `kvm-pv-enforce-cpuid`, and it is always so. Hypercalls are taken by VMCALL and by VMMCALL on every
processor; a guest that told Hyper-V its identity has Hyper-V's calls on both.

The report has a table of what was offered and what was used. Steal time is what a vCPU neither ran nor slept: under
`--clock real` the processor time of its thread tells, under `--clock virtual` others' turns are stolen from it.

| name | default | needs | QEMU | libvirt |
|---|---|---|---|---|
",
    );
    let code = |text: &str| format!("`{text}`");
    for one in Feature::ALL {
        let row = one.row();
        let needs: Vec<_> = row.needs.iter().map(|need| need.name()).collect();
        let (qemu, libvirt) =
            (row.qemu.map_or_else(String::new, code), row.libvirt.map_or_else(String::new, code));
        page += &format!(
            "| [{}](#{}) | {} | {} | {qemu} | {libvirt} |\n",
            row.name,
            row.name,
            default(*one),
            needs.join(", ")
        );
    }
    for one in Feature::ALL {
        page += &section(one.name(), &explain::kvm_feature(*one));
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/kvm.md");
        let page = std::fs::read_to_string(path).expect("docs/kvm.md");
        assert_eq!(page, super::markdown(), "write it again: satori kvm list --format markdown >docs/kvm.md");
    }
}
