//! `satori report` and `satori advise`: what is done with reports that were kept.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use satori_hyperv::Enlightenment;
use satori_hyperv::choice::By;
use satori_machine::{Vmx, VmxProcessor};
use satori_report::advise::{self, Setting, Words};
use satori_report::{Report, Which, crashes, diff, html, read};
use serde_json::json;

use crate::choose;
use crate::cli::{Form, ModelFlags};
use crate::commands::costs;
use crate::origin;
use crate::say::say;

/// `satori report`.
#[derive(Debug, Subcommand)]
pub enum Reports {
    /// Print a report as perf kvm stat does, or as Satori's JSON
    Show {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        input: Input,
        /// Costs for the modelled column, before those of the report and our own
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        costs: Option<PathBuf>,
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Make Satori's JSON of a text of perf kvm stat report or live
    Import {
        #[command(flatten)]
        #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
        input: Input,
        /// Where it goes, instead of standard output
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Compare two reports, reason by reason
    Diff {
        /// The first report: JSON, or a text of perf kvm stat
        #[arg(value_hint = ValueHint::FilePath)]
        a: PathBuf,
        /// The second report
        #[arg(value_hint = ValueHint::FilePath)]
        b: PathBuf,
        /// Costs for the modelled column, before those of the report and our own
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        costs: Option<PathBuf>,
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Group the crash reports of many runs by what crashed and where: how many, the first, the last
    Crashes {
        /// The folder of reports (--report json --report-file FOLDER/NAME.json)
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        folder: PathBuf,
        /// How it is printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Make one self-contained HTML file of any number of reports, side by side
    Html {
        /// The reports: JSON, or texts of perf kvm stat
        #[arg(required = true, value_hint = ValueHint::FilePath)]
        reports: Vec<PathBuf>,
        /// Costs for the modelled column, before those of the report and our own
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        costs: Option<PathBuf>,
        /// Where it goes
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
}

/// A report that is read.
#[derive(Debug, Args)]
pub struct Input {
    /// The report: JSON of --report json, or a text of perf kvm stat; - is standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub report: PathBuf,
    /// Which table of a text with several: a number from 1, or all for their sum
    #[arg(long, value_name = "N|all", value_parser = which)]
    pub table: Option<Which>,
}

fn which(text: &str) -> Result<Which, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(Which::Number(number)),
        _ if text == "all" => Ok(Which::All),
        _ => Err("a number from 1, or all".into()),
    }
}

/// `satori advise`.
#[derive(Debug, Args)]
pub struct Advise {
    /// The report: JSON of --report json, or a text of perf kvm stat; - is standard input
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "rules")]
    pub report: Option<PathBuf>,
    /// Which table of a text with several: a number from 1, or all for their sum. Without it tables that are each of all vCPUs are
    /// compared
    #[arg(long, value_name = "N|all", value_parser = which)]
    pub table: Option<Which>,
    /// List the rules instead
    #[arg(long, conflicts_with_all = ["report", "table"])]
    pub rules: bool,
    /// What runs in the guest, where its exits do not tell
    #[arg(long, value_name = "GUEST")]
    pub guest: Option<Guest>,
    /// Whether the processor, and its KVM, have APICv
    #[arg(long, value_name = "YES|NO", conflicts_with = "vmx")]
    pub apicv: Option<Apicv>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub processor: ModelFlags,
    /// How it is printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: Form,
}

/// `--guest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Guest {
    /// Windows, which uses Hyper-V's interface
    Windows,
    /// Linux, which makes no hypercall for spins and takes KVM's clock
    Linux,
}

/// `--apicv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Apicv {
    /// It has APICv, as servers since Ivy Bridge-EP do
    Yes,
    /// It has none, or kvm_intel has enable_apicv=0
    No,
}

/// Reads a report of at most 256 MiB.
pub(crate) fn load(path: &Path, which: Which) -> Result<Report> {
    let text = load_text(path)?;
    read(&text, which).map_err(|why| anyhow!("{}: {why}", path.display()))
}

fn load_text(path: &Path) -> Result<String> {
    const MOST: u64 = 256 << 20;
    let shown = path.display();
    let wrong =
        |why: std::io::Error| anyhow!("cannot read the report {shown} ({why}): name a file that can be read");
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes).map_err(wrong)?;
    } else {
        File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(wrong)?;
    }
    if bytes.len() as u64 > MOST {
        bail!("{shown} is no report: it is larger than 256 MiB");
    }
    String::from_utf8(bytes).map_err(|why| {
        let good = why.utf8_error().valid_up_to();
        let line = why.as_bytes()[..good].iter().filter(|b| **b == b'\n').count() + 1;
        anyhow!("{shown}: line {line}: no text in UTF-8")
    })
}

/// Does what `satori report` was told.
pub fn perform(command: &Reports, out: &mut dyn Write) -> Result<()> {
    let of = |input: &Input| load(&input.report, input.table.unwrap_or_default());
    match command {
        Reports::Show { input, costs, format } => {
            let report = priced(of(input)?, costs.as_deref())?;
            match format {
                Form::Text => Ok(write!(out, "{}", satori_report::text(&report, None))?),
                Form::Json => Ok(writeln!(out, "{:#}", report.to_json())?),
            }
        }
        Reports::Import { input, output: None } => Ok(writeln!(out, "{:#}", of(input)?.to_json())?),
        Reports::Import { input, output: Some(path) } => save(path, &format!("{:#}\n", of(input)?.to_json())),
        Reports::Diff { a, b, costs, format } => {
            let of = |path: &PathBuf| priced(load(path, Which::Only)?, costs.as_deref());
            let changes = diff::diff(&of(a)?, &of(b)?);
            match format {
                Form::Text => Ok(write!(out, "{}", diff::text(&changes))?),
                Form::Json => Ok(writeln!(out, "{:#}", json!({ "changes": changes }))?),
            }
        }
        Reports::Crashes { folder, format } => crashes_in(folder, *format, out),
        Reports::Html { reports, costs, output } => {
            let runs = reports.iter().map(|path| {
                let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
                Ok((name, priced(load(path, Which::Only)?, costs.as_deref())?))
            });
            save(output, &html::page(&runs.collect::<Result<Vec<_>>>()?))
        }
    }
}

/// `satori report crashes`.
fn crashes_in(folder: &Path, form: Form, out: &mut dyn Write) -> Result<()> {
    let shown = folder.display();
    let entries = std::fs::read_dir(folder)
        .map_err(|why| anyhow!("cannot read the folder {shown} ({why}): name one with reports in it"))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    paths.sort();
    if paths.is_empty() {
        bail!("{shown} has no *.json: keep reports there with --report json --report-file {shown}/NAME.json");
    }
    let (mut found, mut without) = (Vec::new(), 0);
    for path in &paths {
        let report = match load(path, Which::Only) {
            Ok(report) => report,
            Err(why) => {
                say(format_args!("passed over: {why:#}"));
                continue;
            }
        };
        let Some(crash) = report.crash else {
            without += 1;
            continue;
        };
        let written = || std::fs::metadata(path).and_then(|meta| meta.modified()).map(origin::date);
        let when = report.origin.map(|origin| origin.date).filter(|date| !date.is_empty());
        let when = when.or_else(|| written().ok()).unwrap_or_default();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push((name, when, crash));
    }
    let groups = crashes::group(&found);
    match form {
        Form::Text => {
            write!(out, "{}", crashes::text(&groups))?;
            writeln!(
                out,
                "{} crashes of {} kinds; {without} reports without one",
                found.len(),
                groups.len()
            )?;
        }
        Form::Json => writeln!(out, "{:#}", json!({ "groups": groups, "without": without }))?,
    }
    Ok(())
}

/// The report with modelled costs: those of the file, or else its own, or else ours.
fn priced(mut report: Report, costs: Option<&Path>) -> Result<Report> {
    match costs {
        Some(_) => report.model(&costs::of(costs)?),
        None => report.model_if_missing(),
    }
    Ok(report)
}

pub(crate) fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|why| anyhow!("cannot write {} ({why}): name another place", path.display()))
}

/// `setting`, with what the flags say of the processor, or else the report's `own`.
fn of_processor(mut setting: Setting, flags: &Advise, own: Option<VmxProcessor>) -> Setting {
    if let Some(vmx) = flags.processor.vmx.or(own) {
        setting.apicv = Some(vmx.apicv());
        setting.ipi_virtualization = Some(vmx.apicv() && vmx.has(Vmx::IpiVirtualization));
    }
    setting.guest = flags.guest.map(|guest| match guest {
        Guest::Windows => advise::Guest::Windows,
        Guest::Linux => advise::Guest::Linux,
    });
    if let Some(apicv) = flags.apicv {
        setting.apicv = Some(apicv == Apicv::Yes);
    }
    setting
}

/// Whose words the options have: those of the last that is given.
fn words(told: &ModelFlags) -> Option<Words> {
    let given = [
        (told.hyperv.is_some(), Words::Satori),
        (told.cpu.is_some(), Words::Qemu),
        (told.libvirt.is_some(), Words::Libvirt),
    ];
    given.into_iter().rfind(|(given, _)| *given).map(|(_, words)| words)
}

/// Does what `satori advise` was told.
pub fn advise(flags: &Advise, out: &mut dyn Write) -> Result<()> {
    let Some(path) = flags.report.as_deref().filter(|_| !flags.rules) else {
        return rules(flags.format, out);
    };
    let told = &flags.processor;
    let text = load_text(path)?;
    let runs = if flags.table.is_none() { satori_report::runs(&text) } else { Vec::new() };
    if !runs.is_empty() {
        if words(told).is_some() {
            bail!(
                "a configuration is that of one table, and there are {}: choose it with --table",
                runs.len()
            );
        }
        let compared = advise::compare(&runs, &of_processor(Setting::default(), flags, None));
        return match flags.format {
            Form::Text => Ok(write!(out, "{}", advise::text_of_several(&compared))?),
            Form::Json => Ok(writeln!(out, "{:#}", json!({ "tables": compared }))?),
        };
    }
    let shown = path.display();
    let report = read(&text, flags.table.unwrap_or_default()).map_err(|why| anyhow!("{shown}: {why}"))?;
    let mut setting = Setting::of(&report);
    if let Some(words) = words(told) {
        let chosen = choose::foreign_model(told)?;
        chosen.warn();
        setting.hidden = !chosen.announced();
        let set = chosen.hyperv.config.set;
        let written = |one: &Enlightenment| {
            let by = chosen.hyperv.by.iter().find(|(known, _)| known == one).map(|(_, by)| by);
            words == Words::Satori || !matches!(by, Some(By::Needed(_)))
        };
        setting.spelled = Some(set.iter().filter(written).collect());
        setting.offered = Some(set);
        setting.words = words;
    }
    let own = report.processor.as_deref().and_then(|name| name.parse().ok());
    let setting = of_processor(setting, flags, own);
    let advice = advise::advise(&report, &setting);
    match flags.format {
        Form::Text => Ok(write!(out, "{}", advise::text(&advice))?),
        Form::Json => Ok(writeln!(out, "{:#}", json!(advice))?),
    }
}

/// `satori advise --rules`.
fn rules(form: Form, out: &mut dyn Write) -> Result<()> {
    match form {
        Form::Text => Ok(write!(out, "{}", advise::rules_text())?),
        Form::Json => {
            let rules = advise::Rule::ALL.iter().map(|rule| json!({ "rule": rule.id, "finds": rule.title }));
            Ok(writeln!(out, "{:#}", json!({ "rules": rules.collect::<Vec<_>>() }))?)
        }
    }
}
