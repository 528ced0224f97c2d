//! `satori hyperv`, `satori kvm` and `satori xen`: what of an interface can be offered, and what options come to.

use std::io::Write;

use anyhow::Result;
use satori_pv::Written;
use serde_json::Value;

use crate::choose::{self, Processors};
use crate::cli::{Form, MsrForm, Offers, Spelling};
use crate::commands::explain::Page;
use crate::say::say;

/// An interface, as far as the commands differ.
pub trait Interface {
    /// A line for each row.
    fn list(out: &mut dyn Write) -> Result<()>;
    /// The page of `docs/` that is made of the rows.
    fn markdown() -> String;
    /// Each row, in JSON, by what they are.
    fn objects() -> Value;
    /// What is on, and who decided it.
    fn check(processors: &Processors, out: &mut dyn Write) -> Result<()>;
    /// The same in JSON.
    fn checked(processors: &Processors) -> Value;
    /// The choice in another spelling.
    fn convert(processors: &Processors, to: Spelling) -> Result<Written>;
}

/// Does what the command was told, of interface `I`.
pub fn perform<I: Interface>(command: &Offers, out: &mut dyn Write) -> Result<()> {
    let of = |flags| -> Result<Processors> {
        let processors = choose::foreign(flags)?;
        processors.warn();
        Ok(processors)
    };
    match command {
        Offers::List { format: MsrForm::Text } => I::list(out),
        Offers::List { format: MsrForm::Markdown } => Ok(out.write_all(I::markdown().as_bytes())?),
        Offers::List { format: MsrForm::Json } => Ok(writeln!(out, "{:#}", I::objects())?),
        Offers::Check { processor, format: Form::Text } => I::check(&of(processor)?, out),
        Offers::Check { processor, format: Form::Json } => {
            Ok(writeln!(out, "{:#}", I::checked(&of(processor)?))?)
        }
        Offers::Convert { processor, to } => {
            let written = I::convert(&of(processor)?, *to)?;
            for left in &written.left_out {
                say(format_args!("left out: {left}"));
            }
            Ok(writeln!(out, "{}", written.text)?)
        }
    }
}

/// The lines of a check: each row with its state and who decided it, then what is `told` beside.
pub(crate) fn write_check(
    out: &mut dyn Write,
    width: usize,
    rows: impl Iterator<Item = (&'static str, Option<&'static str>, bool, String)>,
    told: &[String],
) -> Result<()> {
    for (name, refused, on, by) in rows {
        let (state, by) = match (refused, on) {
            (Some(why), _) => ("refused", why.to_string()),
            (None, true) => ("on", by),
            (None, false) => ("off", by),
        };
        writeln!(out, "{name:<width$} {state:<8} {by}")?;
    }
    writeln!(out)?;
    for line in told {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The part of an interface's page on the row called `name`, of which `explain` is this.
pub(crate) fn section(name: &str, explained: &Page) -> String {
    let mut text = format!("\n## {name}\n\n");
    for (heading, lines) in &explained.facts {
        let quoted = matches!(*heading, "QEMU" | "libvirt" | "MSRs" | "hypercalls" | "CPUID");
        let shown = |line: &String| {
            if quoted { format!("`{line}`") } else { line.replace('_', "\\_").replace('*', "\\*") }
        };
        text += &format!("- {heading}: {}\n", lines.iter().map(shown).collect::<Vec<_>>().join("; "));
    }
    text
}
