//! `satori xen`: the tables of Xen's features and hypercalls, and what options come to.

use std::io::Write;

use anyhow::Result;
use satori_pv::Written;
use satori_xen::choice::{Chosen, convert};
use satori_xen::{CALLS, FEATURES};
use serde_json::{Value, json};

use crate::choose::Processors;
use crate::cli::Spelling;
use crate::commands::offers::{Interface, write_check};

/// Xen's interface.
pub struct Xen;

impl Interface for Xen {
    fn list(out: &mut dyn Write) -> Result<()> {
        list(out)
    }

    fn markdown() -> String {
        markdown()
    }

    fn objects() -> Value {
        objects()
    }

    fn check(processors: &Processors, out: &mut dyn Write) -> Result<()> {
        check(processors, out)
    }

    fn checked(processors: &Processors) -> Value {
        checked(processors)
    }

    fn convert(processors: &Processors, to: Spelling) -> Result<Written> {
        Ok(written(processors, to))
    }
}

fn objects() -> Value {
    let calls = CALLS.iter().map(|row| {
        let commands = row.commands.iter().map(|(number, name)| json!({ "number": number, "name": name }));
        json!({ "number": row.number, "name": row.name, "commands": commands.collect::<Vec<_>>() })
    });
    let features = FEATURES.iter().map(|row| {
        json!({
            "name": row.name,
            "told": row.told,
            "brings": row.brings,
            "without": row.without,
            "guest": row.proof,
        })
    });
    json!({ "features": features.collect::<Vec<_>>(), "hypercalls": calls.collect::<Vec<_>>() })
}

fn check(processors: &Processors, out: &mut dyn Write) -> Result<()> {
    let Some(chosen) = &processors.xen else {
        let off =
            |row: &satori_xen::FeatureRow| (row.name, None, false, format!("--guest {}", processors.guest));
        let told = "the guest sees no Xen: --guest xen-pvh or xen-hvm offers it".to_string();
        return write_check(out, 20, FEATURES.iter().map(off), &[told]);
    };
    let by =
        |word: &Option<String>| word.as_ref().map_or("the default".into(), |word| format!("--xen {word}"));
    let row = |(what, word): &(satori_xen::Feature, Option<String>)| {
        let name = FEATURES.iter().find(|row| row.what == *what).map_or("", |row| row.name);
        (name, None, chosen.config.has(*what), by(word))
    };
    let mut told = vec![format!("leaves at {:#x}; tsc={}", chosen.config.base(), chosen.config.tsc.name())];
    if !processors.announced() {
        told.push("the CPU feature 'hypervisor' is off: no guest looks for Xen".into());
    }
    write_check(out, 20, chosen.by.iter().map(row), &told)
}

fn checked(processors: &Processors) -> Value {
    let rows = FEATURES.iter().map(|row| {
        let on = |chosen: &Chosen| chosen.config.has(row.what);
        json!({ "name": row.name, "on": processors.xen.as_ref().is_some_and(on) })
    });
    json!({
        "guest": processors.guest.to_string(),
        "cpu": processors.cpu,
        "features": rows.collect::<Vec<_>>(),
        "tsc": processors.xen.as_ref().map(|chosen| chosen.config.tsc.name()),
        "base": processors.xen.as_ref().map(|chosen| chosen.config.base()),
    })
}

fn written(processors: &Processors, to: Spelling) -> Written {
    let Some(chosen) = &processors.xen else {
        return Written { text: format!("--guest {}", processors.guest), left_out: Vec::new() };
    };
    match to {
        Spelling::Qemu => convert::to_qemu(&processors.cpu, &chosen.config),
        Spelling::Libvirt => convert::to_libvirt(&chosen.config),
        Spelling::Satori => convert::to_satori(&chosen.config),
    }
}

fn commands(row: &satori_xen::CallRow) -> String {
    let names: Vec<_> = row.commands.iter().map(|(number, name)| format!("{number} {name}")).collect();
    names.join(", ")
}

fn list(out: &mut dyn Write) -> Result<()> {
    for row in FEATURES {
        writeln!(out, "{:<18} {}", row.name, row.brings)?;
    }
    writeln!(out)?;
    for row in CALLS {
        let line = format!("{:>2} {:<18} {}", row.number, row.name, commands(row));
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(
        out,
        "\nWhat is not listed answers -ENOSYS. 'satori run --guest xen-pvh' and xen-hvm offer these; --xen -NAME leaves a \
         feature out. 'satori explain xen-NAME' tells what one is."
    )?;
    Ok(())
}

/// The tables of the page `docs/xen.md`.
fn markdown() -> String {
    let escaped = |text: &str| text.replace('_', "\\_");
    let mut table =
        String::from("| feature | brings | without it | told by | seen in Linux |\n|---|---|---|---|---|\n");
    for row in FEATURES {
        table += &format!(
            "| `{}` | {} | {} | {} | `{}` |\n",
            row.name,
            row.brings,
            row.without,
            escaped(row.told),
            row.proof
        );
    }
    table += "\n| number | hypercall | commands |\n|---|---|---|\n";
    for row in CALLS {
        table += &format!("| {} | `{}` | {} |\n", row.number, row.name, escaped(&commands(row)));
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_the_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/xen.md");
        let page = std::fs::read_to_string(path).expect("docs/xen.md");
        assert!(
            page.ends_with(&super::markdown()),
            "its end is what 'satori xen list --format markdown' prints"
        );
    }
}
