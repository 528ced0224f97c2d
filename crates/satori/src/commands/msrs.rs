//! `satori msrs`: the table of model-specific registers.

use std::io::Write;

use anyhow::Result;
use satori_cpuid::msrs::{PlatformMsrs, Row, TABLE};
use serde_json::json;

use crate::cli;
use crate::commands::cpu;

/// Does what `satori msrs` was told.
pub fn show(flags: &cli::Msrs, out: &mut dyn Write) -> Result<()> {
    let processor = cpu::processor(&flags.processor)?;
    let rows = TABLE.iter().filter(|row| flags.all || processor.msrs.row(row.first).is_some());
    match flags.format {
        cli::MsrForm::Text => text(rows, &processor.msrs, out),
        cli::MsrForm::Markdown => Ok(out.write_all(markdown().as_bytes())?),
        cli::MsrForm::Json => {
            let rows: Vec<_> = rows.map(|row| object(row, &processor.msrs)).collect();
            Ok(writeln!(out, "{:#}", json!({ "msrs": rows }))?)
        }
    }
}

fn numbers(row: &Row) -> String {
    if row.first == row.last {
        format!("{:#x}", row.first)
    } else {
        format!("{:#x}-{:#x}", row.first, row.last)
    }
}

fn text<'a>(rows: impl Iterator<Item = &'a Row>, msrs: &PlatformMsrs, out: &mut dyn Write) -> Result<()> {
    for row in rows {
        let here = if msrs.row(row.first).is_some() { "" } else { "  (not on this processor)" };
        writeln!(out, "{:<23} {}{here}", numbers(row), row.name)?;
        match msrs.read(row.first) {
            Ok(value) => writeln!(out, "    reads    {} (now {value:#x})", row.reads)?,
            Err(_) => writeln!(out, "    reads    {}", row.reads)?,
        }
        writeln!(out, "    writes   {}", row.owner.writes())?;
        let needs = row.needs.text();
        if !needs.is_empty() {
            writeln!(out, "    exists   with {needs}")?;
        }
        writeln!(out, "    because  {}", row.why)?;
    }
    Ok(())
}

fn object(row: &Row, msrs: &PlatformMsrs) -> serde_json::Value {
    json!({
        "first": row.first,
        "last": row.last,
        "name": row.name,
        "present": msrs.row(row.first).is_some(),
        "value": msrs.read(row.first).ok(),
        "reads": row.reads,
        "writes": row.owner.writes(),
        "needs": row.needs.text(),
        "why": row.why,
    })
}

/// The page `docs/msrs.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Model-specific registers

Every MSR that a guest of Satori may meet: what a read answers, what a write does, on what its existence
depends, and why. It is printed by `satori msrs --format markdown` from the table that the code works by
(`crates/x86/cpuid/src/msrs/table.rs`), and a test holds the two together. What is not here, and what CPUID does not
offer, is #GP on every access; at `-v` each such register that a guest asked for is told of once.

| MSR | name | exists with | read | write | why |
|---|---|---|---|---|---|
",
    );
    for row in TABLE {
        let fields = [
            numbers(row),
            row.name.into(),
            row.needs.text(),
            row.reads.into(),
            row.owner.writes(),
            row.why.into(),
        ];
        page += &format!("| {} |\n", fields.join(" | ").replace("*", "\\*"));
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/msrs.md");
        let page = std::fs::read_to_string(path).expect("docs/msrs.md");
        assert_eq!(page, super::markdown(), "write it again: satori msrs --format markdown >docs/msrs.md");
    }
}
