//! `satori hyperv`: the table of enlightenments, and what options come to.

use std::io::Write;

use anyhow::Result;
use satori_hyperv::choice::{By, VersionField, convert};
use satori_hyperv::{Config, Enlightenment, SPIN_NEVER, Version};
use satori_pv::Written;
use serde_json::{Value, json};

use crate::choose::Processors;
use crate::cli::Spelling;
use crate::commands::explain;
use crate::commands::offers::{Interface, section, write_check};

/// Hyper-V's interface.
pub struct Hyperv;

impl Interface for Hyperv {
    fn list(out: &mut dyn Write) -> Result<()> {
        list(out)
    }

    fn markdown() -> String {
        markdown()
    }

    fn objects() -> Value {
        json!({ "enlightenments": Enlightenment::ALL.iter().map(|one| object(*one)).collect::<Vec<_>>() })
    }

    fn check(processors: &Processors, out: &mut dyn Write) -> Result<()> {
        let chosen = &processors.hyperv;
        let row = |(one, by): &(Enlightenment, By)| {
            let row = one.row();
            (row.name, row.refused, chosen.config.set.has(*one), by.to_string())
        };
        let told = [values(&chosen.config), remarks(processors)].concat();
        write_check(out, 24, chosen.by.iter().map(row), &told)
    }

    fn checked(processors: &Processors) -> Value {
        checked(processors)
    }

    fn convert(processors: &Processors, to: Spelling) -> Result<Written> {
        let config = &processors.hyperv.config;
        Ok(match to {
            Spelling::Qemu => convert::to_qemu(&processors.cpu, config),
            Spelling::Libvirt => satori_libvirt::write(&processors.cpu.parse()?, processors.topology, config),
            Spelling::Satori => convert::to_satori(&processors.cpu, config),
        })
    }
}

fn list(out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{:<24} {:<14} {:<34} needs", "name", "default", "QEMU")?;
    for one in Enlightenment::ALL {
        let row = one.row();
        let default = row.refused.map_or(row.default.to_string(), |_| "refused".into());
        let qemu = explain::spellings(*one).into_iter().next().unwrap_or_else(|| "-".into());
        let needs: Vec<_> = row.needs.iter().map(|need| need.name()).collect();
        writeln!(out, "{:<24} {default:<14} {qemu:<34} {}", row.name, needs.join(" "))?;
    }
    writeln!(out, "\n'satori explain NAME' tells what one is, brings and costs.")?;
    Ok(())
}

fn object(one: Enlightenment) -> Value {
    let row = one.row();
    let names = |list: &[Enlightenment]| list.iter().map(|one| one.name()).collect::<Vec<_>>();
    let conflicts = row.conflicts.iter().map(|(other, what)| json!({ "with": other.name(), "what": what }));
    json!({
        "name": row.name,
        "qemu": row.qemu,
        "aliases": row.aliases,
        "libvirt": row.libvirt,
        "value": row.value,
        "cpuid": row.cpuid.iter().map(explain::bit).collect::<Vec<_>>(),
        "msrs": row.msrs,
        "hypercalls": row.hypercalls,
        "needs": names(row.needs),
        "conflicts": conflicts.collect::<Vec<_>>(),
        "default": row.default.on(true),
        "default_without_apicv": row.default.on(false),
        "why": row.why,
        "brings": row.brings,
        "costs": row.costs,
        "measured": row.measured,
        "refused": row.refused,
        "guest": row.proof,
    })
}

/// What a person should look at.
fn remarks(processors: &Processors) -> Vec<String> {
    let chosen = &processors.hyperv;
    let mut remarks: Vec<_> = chosen.added.iter().map(|added| format!("{added}: added")).collect();
    remarks.extend(chosen.conflicts.iter().cloned());
    if !chosen.config.set.is_empty() && !processors.announced() {
        remarks.push(
            "the CPU feature 'hypervisor' is off: no guest looks for Hyper-V, which is also the way to hide it".into(),
        );
    }
    remarks
}

/// What has a value of its own.
fn values(config: &Config) -> Vec<String> {
    if config.set.is_empty() {
        return vec!["the guest sees no Hyper-V".into()];
    }
    let Version { build, major, minor, service_pack, branch, number } = config.version;
    let retries = match config.spin_retries {
        _ if !config.set.has(Enlightenment::Spinlocks) => "never".to_string(),
        SPIN_NEVER => "never".to_string(),
        retries => format!("after {retries} tries"),
    };
    vec![
        format!("vendor                   {}", vendor(config)),
        format!("version                  {major}.{minor}, build {build}.{number}-{service_pack}-{branch}"),
        format!("long spins are told      {retries}"),
    ]
}

fn vendor(config: &Config) -> String {
    String::from_utf8_lossy(&config.vendor).trim_end_matches('\0').into()
}

fn checked(processors: &Processors) -> Value {
    let chosen = &processors.hyperv;
    let rows = chosen.by.iter().map(
        |(one, by)| json!({ "name": one.name(), "on": chosen.config.set.has(*one), "by": by.to_string() }),
    );
    let version: serde_json::Map<_, _> = VersionField::ALL
        .iter()
        .map(|(field, name, _)| (name.to_string(), json!(field.get(&chosen.config.version))))
        .collect();
    json!({
        "cpu": processors.cpu,
        "topology": processors.topology.to_string(),
        "enlightenments": rows.collect::<Vec<_>>(),
        "vendor": vendor(&chosen.config),
        "version": version,
        "spin_retries": chosen.config.spin_retries,
        "added": chosen.added.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "conflicts": chosen.conflicts,
    })
}

/// The page `docs/hyperv.md`.
fn markdown() -> String {
    let mut page = String::from(
        "# Hyper-V enlightenments

What Satori offers of Hyper-V's guest interface, from the one table that the code works by
(`crates/pv/hyperv/src/enlightenment.rs`). `satori hyperv list --format markdown` prints this page, and a test
holds the two together; `satori explain NAME` prints one part of it, `satori hyperv check` tells what options
and files come to.

`--hyperv auto|off|all|LIST` chooses. QEMU's own properties in `--cpu max,hv-time,hv-crash=off` modify that;
`--libvirt FILE` comes before both. A list brings what its members need. What is not offered is refused: its MSRs
are #GP, its hypercalls answer with an error. That is what QEMU calls `hv-enforce-cpuid`, and it is always so.

| name | default | needs | QEMU | libvirt |
|---|---|---|---|---|
",
    );
    let code = |text: &str| format!("`{text}`");
    for one in Enlightenment::ALL {
        let row = one.row();
        let default = row.refused.map_or(row.default.to_string(), |_| "refused".into());
        let needs: Vec<_> = row.needs.iter().map(|need| need.name()).collect();
        let qemu = explain::spellings(*one).first().map_or_else(String::new, |text| code(text));
        let libvirt = row.libvirt.map_or_else(String::new, code);
        page += &format!(
            "| [{}](#{}) | {default} | {} | {qemu} | {libvirt} |\n",
            row.name.replace('_', "\\_"),
            row.name,
            needs.join(", ").replace('_', "\\_")
        );
    }
    for one in Enlightenment::ALL {
        page += &section(one.name(), &explain::enlightenment(*one));
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hyperv.md");
        let page = std::fs::read_to_string(path).expect("docs/hyperv.md");
        assert_eq!(
            page,
            super::markdown(),
            "write it again: satori hyperv list --format markdown >docs/hyperv.md"
        );
    }
}
