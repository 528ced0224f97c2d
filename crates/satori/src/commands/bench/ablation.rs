//! `satori bench ablation`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueHint};
use satori_bench::Error;
use satori_bench::ablation::{WORKLOADS, command, configs, json, text, workloads};
use satori_hyperv::Enlightenment;
use satori_hyperv::choice::{Choice, list};
use satori_machine::VmxProcessor;

use super::traps::{host, milliseconds};
use super::{Scratch, stop_on_signals};
use crate::commands::costs;
use crate::engine::of_bench;
use crate::say::{Out, say};
use crate::status::Status;
use crate::{cli, units};

/// `satori bench ablation`.
#[derive(Debug, Args)]
pub struct Ablation {
    /// Only these workloads: game, ipis, flushes, clock, ticks, spins
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', conflicts_with = "command")]
    pub workloads: Vec<String>,
    /// Only these enlightenments, as 'satori hyperv list' names them
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Guest time of each run of a workload, 20ms to 60s
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = units::duration, conflicts_with = "command")]
    pub time: Duration,
    /// The modelled VMX processor, as for 'satori run'
    #[arg(long, value_name = "NAME[,±FEATURE]..", default_value = "haswell")]
    pub processor: VmxProcessor,
    /// Costs of exits that come before our own
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub costs: Option<PathBuf>,
    /// The engine of the workloads' guests, as for 'satori run'
    #[arg(long, value_name = "ENGINE", default_value = "auto", conflicts_with = "command")]
    pub engine: cli::Engine,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: cli::Form,
    /// A guest of yours instead: 'satori run' and its options, without --hyperv, --processor, --clock, --costs
    /// and --report
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// What stands below the flags.
pub const FOOTER: &str = "\
Each enlightenment runs alone (with what it needs), and all and the default run without each one, beside none, the
default and all. Workloads are the talk's guest of 'satori bench traps', or parts of what it does; they are
compared by the modelled cost of their exits. A guest of yours is compared by its guest time, in which each exit takes that
cost. What makes one slower by more than 1 % is named.

Exit status: 0; 1 if an enlightenment of the default, or the default, costs; 2 if something was refused; 130 if it
was interrupted.

Examples:
  satori bench ablation --workloads game,ipis
  satori bench ablation --only ipi,tlbflush -- satori run --kernel vmlinuz --initrd initrd.img --cpus 4";

/// Does what `satori bench ablation` was told.
pub fn ablation(flags: &Ablation) -> Result<Status> {
    of_bench(flags.engine)?;
    let can = |hyperv: &str| {
        list(hyperv).is_ok_and(|wishes| {
            let mut choice = Choice::on(flags.processor.apicv());
            choice.apply("--hyperv", &wishes).is_ok() && choice.finish().is_ok()
        })
    };
    let names: Vec<_> = Enlightenment::ALL.iter().map(|one| one.name()).filter(|name| can(name)).collect();
    if let Some(unknown) = flags.only.iter().find(|one| !names.contains(&one.as_str())) {
        bail!("--only {unknown}: there is no such enlightenment to be had; 'satori hyperv list' names them");
    }
    let wanted = |name: &&str| flags.only.is_empty() || flags.only.iter().any(|one| one == name);
    let configs = configs(names.into_iter().filter(wanted), can);
    let chosen: Vec<_> = WORKLOADS
        .iter()
        .filter(|one| flags.workloads.is_empty() || flags.workloads.iter().any(|name| name == one.name))
        .collect();
    if let Some(unknown) = flags.workloads.iter().find(|name| !WORKLOADS.iter().any(|one| one.name == **name))
    {
        let names: Vec<_> = WORKLOADS.iter().map(|one| one.name).collect();
        bail!("--workloads {unknown}: there are {}", names.join(", "));
    }
    let ms = milliseconds("--time", flags.time)?;
    let costs = costs::of(flags.costs.as_deref())?;
    let scratch = Scratch::new()?;
    let stop = stop_on_signals()?;
    let host = host(&scratch, flags.engine, &costs, &stop)?;
    let processor = flags.processor.to_string();
    let results = if flags.command.is_empty() {
        say(format_args!("{} configurations of {} workloads", configs.len(), chosen.len()));
        workloads(&chosen, configs, &processor, ms, &host)
    } else {
        let arguments = arguments(&flags.command)?;
        say(format_args!("{} configurations", configs.len()));
        command(arguments, configs, &processor, &host)
    };
    let results = match results {
        Ok(results) => results,
        Err(Error::Stopped) => return Ok(Status::User),
        Err(error) => return Err(error.into()),
    };
    match flags.format {
        cli::Form::Text => write!(Out, "{}", text(&results))?,
        cli::Form::Json => writeln!(Out, "{:#}", json(&results))?,
    }
    let of_default = results.costly().iter().any(|one| one.what.starts_with("default against"));
    Ok(if of_default { Status::Short } else { Status::Ok })
}

/// The arguments of a command that runs this program.
fn arguments(command: &[String]) -> Result<&[String]> {
    let (program, rest) = command.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let satori = program.rsplit('/').next() == Some("satori");
    let arguments = if satori { rest } else { command };
    if !matches!(arguments.first().map(String::as_str), Some("run" | "demo")) {
        bail!("'{}' is no command to compare: write -- satori run --kernel FILE ..", command.join(" "));
    }
    for flag in
        ["--hyperv", "--processor", "--clock", "--costs", "--charge-costs", "--report", "--report-file"]
    {
        if arguments.iter().any(|word| word == flag || word.starts_with(&format!("{flag}="))) {
            bail!("{flag} is chosen here: leave it out of the command");
        }
    }
    Ok(arguments)
}
