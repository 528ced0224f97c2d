//! `satori bench traps`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueHint};
use satori_bench::subject::unpacked;
use satori_bench::traps::{Host, Linux, Parameters, Plan, measure, show};
use satori_bench::{Error, program};
use satori_machine::VmxProcessor;

use super::{Scratch, ramdisk, stop_on_signals};
use crate::commands::costs;
use crate::debian::cache::{self, Wanted};
use crate::engine::of_bench;
use crate::inputs::read;
use crate::say::{Out, say};
use crate::status::Status;
use crate::{cli, units};

/// `satori bench traps`.
#[derive(Debug, Args)]
pub struct Traps {
    /// Guest time of each configuration, 20ms to 60s; the talk's tables are of 5s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    pub time: Duration,
    /// Guest time of each run of the sweep, 20ms to 60s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::duration)]
    pub sweep_time: Duration,
    /// Leave the sweep of parameters out
    #[arg(long)]
    pub no_sweep: bool,
    /// The four tables and their totals only, of 100 ms each
    #[arg(long, conflicts_with_all = ["time", "sweep_time", "no_sweep"])]
    pub quick: bool,
    /// The modelled VMX processor, as for 'satori run'; it has to have APICv
    #[arg(long, value_name = "NAME[,±FEATURE]..", default_value = "haswell")]
    pub processor: VmxProcessor,
    /// Parameters of the guest that replace ours: lines NAME = NUMBER (crates/tools/bench/data/game.conf has all)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub parameters: Option<PathBuf>,
    /// Linux as a second witness, whose programs do what the talk's guest does: a kernel, or a series that 'satori
    /// demo' has got, as 6.12
    #[arg(long, value_name = "FILE|SERIES", value_hint = ValueHint::FilePath)]
    pub kernel: Option<PathBuf>,
    /// A ramdisk of yours for --kernel, instead of ours; its init does what you like and powers off
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "kernel")]
    pub initrd: Option<PathBuf>,
    /// Virtual processors of --kernel
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub linux_cpus: u32,
    /// Costs of exits that come before our own
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub costs: Option<PathBuf>,
    /// The engine of the guests, as for 'satori run'
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: cli::Engine,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: cli::Form,
}

/// What stands below the flags.
pub const FOOTER: &str = "\
The experiment is that of 'The traps of using Hyper-V features in KVM environment' (L. Li, 2021): a guest that
chooses its timer as Windows does runs without enlightenments, with all, with all and the hypervisor bit hidden,
and with all and the repairs: auto-EOI deprecated, the hint to use the APIC's MSRs cleared, no exits for EOIs of
stimers. With --kernel Linux plays as well, and is told to take HPET as its clock where Windows does: it has no SINT, so
of the two traps it falls into one. Exits are counted exactly, under the virtual clock; their costs are a model's. The guest's rates
are derived from the talk's rows (crates/tools/bench/data/game.conf).

Exit status: 0; 1 if an order of exits, costs or timers is not the talk's; 2 if something was refused; 130 if it
was interrupted.";

pub(super) fn milliseconds(flag: &str, time: Duration) -> Result<u64> {
    match u64::try_from(time.as_millis()) {
        Ok(ms @ 20..=60_000) => Ok(ms),
        _ => bail!("{flag} is from 20ms to 60s"),
    }
}

/// Does what `satori bench traps` was told.
pub fn traps(flags: &Traps) -> Result<Status> {
    of_bench(flags.engine)?;
    if !flags.processor.apicv() {
        bail!("--processor {}: the talk is about APICv, name a processor that has it", flags.processor);
    }
    let parameters = match &flags.parameters {
        None => Parameters::default(),
        Some(path) => {
            let shown = path.display();
            let text = String::from_utf8(read("--parameters", path)?);
            let text = text
                .map_err(|_| anyhow!("--parameters {shown}: no text in UTF-8: write lines NAME = NUMBER"))?;
            Parameters::with(&text).map_err(|why| anyhow!("--parameters {shown}: {why}"))?
        }
    };
    let kernel = match &flags.kernel {
        Some(file) => Some(match cache::series(file) {
            Some(series) => cache::get(Wanted::Series(series), false)?,
            None => file.clone(),
        }),
        None => None,
    };
    for (flag, file) in [("--kernel", &kernel), ("--initrd", &flags.initrd)] {
        if let Some(file) = file {
            read(flag, file)?;
        }
    }
    if let Some(kernel) = &kernel {
        let (_, version) = unpacked(kernel)
            .map_err(|why| anyhow!("--kernel {} is no Linux kernel: {why}", kernel.display()))?;
        say(format_args!("Linux {version}"));
    }
    let scratch = Scratch::new()?;
    let linux = match kernel {
        None => None,
        Some(kernel) => {
            let (initrd, plays) = match &flags.initrd {
                Some(initrd) => (initrd.clone(), false),
                None => (scratch.file("initrd", &ramdisk(program::bytes()?, None), 0o644)?, true),
            };
            Some(Linux { kernel, initrd, plays, cpus: flags.linux_cpus })
        }
    };
    let plan = Plan {
        linux,
        parameters,
        processor: flags.processor.to_string(),
        ms: if flags.quick { 100 } else { milliseconds("--time", flags.time)? },
        sweep_ms: if flags.quick || flags.no_sweep {
            0
        } else {
            milliseconds("--sweep-time", flags.sweep_time)?
        },
        further: !flags.quick,
    };
    let costs = costs::of(flags.costs.as_deref())?;
    let stop = stop_on_signals()?;
    let host = host(&scratch, flags.engine, &costs, &stop)?;
    let mut tell = |words: &str| say(format_args!("{words}"));
    let results = match measure(plan, &host, &mut tell) {
        Ok(results) => results,
        Err(Error::Stopped) => return Ok(Status::User),
        Err(error) => return Err(error.into()),
    };
    match flags.format {
        cli::Form::Text => write!(Out, "{}", show::text(&results))?,
        cli::Form::Json => writeln!(Out, "{:#}", show::json(&results))?,
    }
    Ok(if results.as_the_talk() { Status::Ok } else { Status::Short })
}

/// What the guest's runs are made with.
pub(super) fn host<'a>(
    scratch: &Scratch,
    engine: cli::Engine,
    costs: &'a satori_report::costs::Costs,
    stop: &'a std::sync::atomic::AtomicBool,
) -> Result<Host<'a>> {
    let name = of_bench(engine)?;
    Ok(Host {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        game: scratch.file("game", program::game()?, 0o644)?,
        folder: scratch.folder.clone(),
        engine: name,
        costs,
        stop,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    })
}
