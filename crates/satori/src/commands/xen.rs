//! `satori xen`: the table of Xen's hypercalls.

use std::io::Write;

use anyhow::Result;
use satori_xen::CALLS;
use serde_json::json;

use crate::cli::{MsrForm, Xen};

/// Does what `satori xen` was told.
pub fn perform(command: &Xen, out: &mut dyn Write) -> Result<()> {
    match command {
        Xen::List { format: MsrForm::Text } => list(out),
        Xen::List { format: MsrForm::Markdown } => Ok(out.write_all(markdown().as_bytes())?),
        Xen::List { format: MsrForm::Json } => {
            let rows = CALLS.iter().map(|row| {
                let commands =
                    row.commands.iter().map(|(number, name)| json!({ "number": number, "name": name }));
                json!({ "number": row.number, "name": row.name, "commands": commands.collect::<Vec<_>>() })
            });
            Ok(writeln!(out, "{:#}", json!({ "hypercalls": rows.collect::<Vec<_>>() }))?)
        }
    }
}

fn commands(row: &satori_xen::CallRow) -> String {
    let names: Vec<_> = row.commands.iter().map(|(number, name)| format!("{number} {name}")).collect();
    names.join(", ")
}

fn list(out: &mut dyn Write) -> Result<()> {
    for row in CALLS {
        let line = format!("{:>2} {:<18} {}", row.number, row.name, commands(row));
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out, "\nWhat is not listed answers -ENOSYS. 'satori run --guest xen-pvh' offers these.")?;
    Ok(())
}

/// The table of the page `docs/xen.md`.
fn markdown() -> String {
    let mut table = String::from("| number | hypercall | commands |\n|---|---|---|\n");
    for row in CALLS {
        table += &format!("| {} | `{}` | {} |\n", row.number, row.name, commands(row).replace('_', "\\_"));
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/xen.md");
        let page = std::fs::read_to_string(path).expect("docs/xen.md");
        assert!(
            page.ends_with(&super::markdown()),
            "its end is what 'satori xen list --format markdown' prints"
        );
    }
}
