//! `satori costs` and `--costs`: what exits cost on hardware.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Subcommand, ValueHint};
use satori_report::costs::{Costs, is_processor};
use serde_json::Value;

use crate::cli::Form;
use crate::commands::reports::{Input, load, save};
use crate::inputs::read;

/// `satori costs`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print the modelled costs, and where each is from
    Show {
        /// Costs that come before our own
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        costs: Option<PathBuf>,
        /// How it is printed; JSON is a cost file
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Make a cost file of a host's own perf kvm stat
    Calibrate {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        input: Input,
        /// The processor whose costs these are, as --processor names it [default: all]
        #[arg(long, value_name = "NAME")]
        processor: Option<String>,
        /// Where it goes, instead of standard output
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
}

/// What stands below the flags.
pub const FOOTER: &str = "\
A cost is what one exit takes on hardware, in the host, by reason and processor. Reports have a column
'Modelled' of them, beside what the exits took in this engine. Ours are from published tables, and every one
tells its source; what is an assumption says so. Costs of the processor without-apicv are those
of exits that come while APICv is absent or inhibited; of EXTERNAL_INTERRUPT these are kicks, for other vCPUs' interrupts.

Examples:
  satori costs show
  perf kvm stat report | satori costs calibrate - -o mine.json
  satori run --kernel vmlinuz --costs mine.json";

/// The costs of `--costs`, and our own for what it does not have.
pub fn of(file: Option<&Path>) -> Result<Costs> {
    let Some(path) = file else { return Ok(Costs::built_in()) };
    let shown = path.display();
    let text = String::from_utf8(read("--costs", path)?);
    let text = text.map_err(|_| {
        anyhow!("--costs {shown}: no text in UTF-8: 'satori costs show --format json' is an example")
    })?;
    Costs::with(&text).map_err(|why| anyhow!("--costs {shown}: {why}"))
}

/// Does what `satori costs` was told.
pub fn perform(command: &Command, out: &mut dyn Write) -> Result<()> {
    match command {
        Command::Show { costs, format } => {
            let costs = of(costs.as_deref())?;
            let text = match format {
                Form::Text => costs.to_text(),
                Form::Json => costs.to_json(),
            };
            Ok(write!(out, "{text}")?)
        }
        Command::Calibrate { input, processor, output } => {
            if let Some(name) = processor.as_ref().filter(|name| !is_processor(name)) {
                bail!("--processor '{name}' is no name: letters, digits, '-', '_' and '.'");
            }
            let report = load(&input.report, input.table.unwrap_or_default())?;
            if report.all.exits.is_empty() {
                bail!("{}: no exits to take costs from", input.report.display());
            }
            let from =
                input.report.file_name().map_or("standard input".into(), |name| name.to_string_lossy());
            let text = Costs::calibrate(&report, processor.as_deref(), &from).to_json();
            match output {
                Some(path) => save(path, &text),
                None => Ok(write!(out, "{text}")?),
            }
        }
    }
}

/// Writes the modelled costs of `report` into the JSON that it was read from.
pub fn put(report: &satori_report::Report, json: &mut Value) {
    let put = |table: &satori_report::Table, json: &mut Value| {
        let rows = json["exits"].as_array_mut().into_iter().flatten();
        for (row, json) in table.exits.iter().zip(rows) {
            if let Some(ns) = row.modelled_ns {
                json["modelled_ns"] = ns.into();
            }
        }
    };
    put(&report.all, &mut json["all"]);
    let tables = json["vcpus"].as_array_mut().into_iter().flatten();
    report.vcpus.iter().zip(tables).for_each(|(table, json)| put(table, json));
}
