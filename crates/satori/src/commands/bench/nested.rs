//! `satori bench nested`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use satori_bench::nested::{CASES, Plan, json, measure, text};
use satori_bench::{Error, program};

use super::flags::Mitigations;
use super::traps::host;
use super::{Scratch, busy, stop_on_signals};
use crate::command::kernel::with_modules;
use crate::commands::costs;
use crate::cpio::Cpio;
use crate::engine::of_bench;
use crate::say::{Out, say};
use crate::status::Status;
use crate::{cli, units};

/// `satori bench nested`.
#[derive(Debug, Args)]
pub struct NestedFlags {
    /// Only these machines: hyper-v, evmcs, no-time
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub cases: Vec<String>,
    /// One run of 50 ms a row, under the kernel's defaults only
    #[arg(long)]
    pub quick: bool,
    /// Runs of which the median is taken [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub repetitions: Option<u32>,
    /// How long a row is measured in a run [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub budget: Option<Duration>,
    /// Kernel settings of L1: a table for each [default: both]
    #[arg(long, value_name = "WHICH")]
    pub mitigations: Option<Mitigations>,
    /// The kernel of L1: a Debian series such as 6.12, or a FILE [default: the newest that was fetched, or Debian's current one]
    #[arg(long, value_name = "SERIES|FILE", value_hint = ValueHint::FilePath)]
    pub kernel: Option<PathBuf>,
    /// Its modules, of which kvm_intel is needed [default: those of its package, or beside it]
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub modules: Option<PathBuf>,
    /// Costs of exits that come before our own
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub costs: Option<PathBuf>,
    /// The engine of L1, as for 'satori run'
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: cli::Engine,
    /// Give a run up after this time
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::duration)]
    pub timeout: Duration,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: cli::Form,
}

/// What stands below the flags.
pub const FOOTER: &str = "\
Stock Debian as a guest of Satori (L1) loads kvm_intel, and a small monitor in it runs a guest in real mode (L2). CPUID and RDMSR are
measured in both, clock_gettime in L1 and, where qemu-system-x86_64 is installed, in Debian as L2, on Hyper-V's interface with the VMCS of VMX and with an enlightened one, and without the TSC page. Exits are
counted under the virtual clock, as the difference of two runs; what they would cost on hardware is a model's; times are this
machine's. The talk is 'A slightly different nesting: KVM on Hyper-V' (V. Kuznetsov, FOSDEM 2018). What it gained and this machine does
not is told, too. Its build of a kernel and its iperf are not measured.

Exit status: 0; 2 if something was refused or a run failed; 130 if it was interrupted.

Examples:
  satori bench nested --quick
  satori bench nested --cases evmcs --kernel 6.12 --mitigations off";

/// The QEMU of this host, which L1 finds in the host's folders.
fn monitor() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join("qemu-system-x86_64"))
        .find(|file| file.is_file())
}

/// Does what `satori bench nested` was told.
pub fn nested(flags: &NestedFlags) -> Result<Status> {
    of_bench(flags.engine)?;
    if let Some(unknown) = flags.cases.iter().find(|name| CASES.iter().all(|case| case.name != **name)) {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        bail!("--cases {unknown}: there are {}", names.join(", "));
    }
    let costs = costs::of(flags.costs.as_deref())?;
    let bytes = program::nested()?;
    let found = with_modules(cli::Arch::X86, flags.kernel.as_deref(), flags.modules.as_deref())?;
    say(format_args!("L1: Linux {}", found.release.as_deref().unwrap_or("of unknown version")));
    let modules = found
        .modules
        .context("the modules of the kernel were not found: name their folder with --modules")?;
    let (needed, missing) = modules.closure(&["kvm_intel"])?;
    if !missing.is_empty() {
        bail!("the kernel has no {}: name another, or its --modules", missing.join(", "));
    }
    let mut archive = Cpio::new();
    for folder in ["dev", "proc", "sys", "modules"] {
        archive.directory(folder);
    }
    archive.device("dev/console", 0o600, 5, 1).file("init", 0o755, bytes);
    for (place, module) in needed.iter().enumerate() {
        let (name, plain) = module.plain()?;
        archive.file(format!("modules/{place:02}-{name}"), 0o644, &plain);
    }
    let scratch = Scratch::new()?;
    let stop = stop_on_signals()?;
    let monitor = monitor();
    if monitor.is_none() {
        say(format_args!(
            "clock_gettime in L2 is left out: it needs qemu-system-x86_64 (Debian's qemu-system-x86)"
        ));
    }
    let on = ("the kernel's defaults", "");
    let off = ("mitigations=off", "mitigations=off");
    let plan = Plan {
        native: scratch.file("nested", bytes, 0o755)?,
        kernel: found.path,
        initrd: scratch.file("initrd", &archive.finish(), 0o644)?,
        monitor,
        cases: flags.cases.clone(),
        settings: match flags.mitigations {
            Some(Mitigations::On) => vec![on],
            Some(Mitigations::Off) => vec![off],
            None if flags.quick => vec![on],
            None | Some(Mitigations::Both) => vec![on, off],
        },
        repetitions: flags.repetitions.unwrap_or(if flags.quick { 1 } else { 3 }) as usize,
        budget_ms: flags.budget.map_or(if flags.quick { 50 } else { 200 }, |time| time.as_millis() as u64),
        timeout: format!("{}s", flags.timeout.as_secs().max(1)),
    };
    if let Some(load) = busy() {
        say(format_args!("{load}: times will be poor; counts are exact"));
    }
    let host = host(&scratch, flags.engine, &costs, &stop)?;
    let results = match measure(&plan, &host, &mut |words: &str| say(format_args!("{words}"))) {
        Ok(results) => results,
        Err(Error::Stopped) => return Ok(Status::User),
        Err(error) => return Err(error.into()),
    };
    match flags.format {
        cli::Form::Text => write!(Out, "{}", text(&results))?,
        cli::Form::Json => writeln!(Out, "{:#}", json(&results))?,
    }
    Ok(Status::Ok)
}
