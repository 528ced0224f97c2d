//! `satori run`: flags to a machine, the machine's outcome to a status and a report.
//!
//! Three phases, each a type: `Prepared` has a machine and all that it needs of the host, `Confined` has given
//! away the rest, `Ran` has an outcome. What a run makes on the host belongs to [`Opened`](crate::opened::Opened), which takes it back where no
//! guest ran.

mod arm;
mod config;
mod confined;
mod prepared;
mod ran;
mod watchers;

use std::io::stderr;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use satori_hyperv::choice::Mistakes;
use satori_machine::{Cmdline, Module, ProtocolChoice};

pub(crate) use self::arm::ArmPlan;
pub(crate) use self::config::{balloon, code_names, config, input, report_of};
pub(crate) use self::confined::{Confined, sandbox, sandbox_mode};
pub(crate) use self::prepared::Prepared;
pub(crate) use self::ran::Ran;
pub(crate) use self::watchers::Watchers;
use crate::choose::{self, Processors};
use crate::inputs::{Room, full, read};
use crate::say::say;
use crate::status::Status;
use crate::{cli, command, domain, modules, terminal};

/// Does what `satori run` was told.
pub fn run(flags: &mut cli::Run) -> Status {
    if let Err(error) = domain::take(&mut flags.machine).and_then(|()| flags.places().check()) {
        return refuse(&error);
    }
    if flags.machine.record.is_some() || flags.machine.replay.is_some() {
        flags.machine.clock = cli::Clock::Virtual;
    }
    let flags = &*flags;
    if flags.arch == cli::Arch::Arm64 && flags.command.words.is_empty() {
        return arm::run(flags);
    }
    if flags.arch == cli::Arch::X86 && (flags.el.is_some() || flags.no_vhe) {
        return refuse(&anyhow!("--el and --no-vhe are of AArch64: add --arch arm64, or leave them out"));
    }
    if !flags.command.words.is_empty() {
        return command::run(flags);
    }
    let boot = || {
        let chosen = choose::machine(&flags.machine)?;
        let (of_file, ramdisk) = (chosen.domain.kernel.as_deref(), chosen.domain.initrd.as_deref());
        flags.places().reads("<kernel>", of_file).reads("<initrd>", ramdisk).check()?;
        let memory = chosen.memory(flags.machine.memory, flags.machine.processor.libvirt.as_deref())?;
        let (name, kernel) = match (&flags.kernel, &chosen.domain.kernel) {
            (Some(path), _) => (path.clone(), read("--kernel", path)?),
            (None, Some(path)) => (path.into(), read("<kernel>", Path::new(path))?),
            (None, None) => {
                bail!("the file of --libvirt names no kernel: add <os><kernel> to it, or --kernel FILE")
            }
        };
        let boot = Boot {
            kernel,
            kernel_name: name.display().to_string(),
            initrds: modules(flags, chosen.domain.initrd.as_deref(), memory)?,
            cmdline: cmdline(flags, chosen.domain.cmdline.as_deref()),
            protocol: flags.boot.wanted(),
        };
        Ok((boot, chosen))
    };
    match boot() {
        Ok((boot, chosen)) => start(boot, &flags.machine, &chosen),
        Err(error) => refuse(&error),
    }
}

/// What a machine boots.
#[derive(Debug)]
pub struct Boot {
    /// The kernel file's bytes.
    pub kernel: Vec<u8>,
    /// Its name, for a multiboot kernel.
    pub kernel_name: String,
    /// Initial ramdisks or modules, in order.
    pub initrds: Vec<Module>,
    /// The kernel's command line.
    pub cmdline: Cmdline,
    /// How the kernel is entered.
    pub protocol: ProtocolChoice,
}

/// The command line of the flags; without them that of the file, to which --append adds.
fn cmdline(flags: &cli::Run, file: Option<&str>) -> Cmdline {
    match (&flags.cmdline.whole, file) {
        (None, Some(file)) => {
            let more = flags.cmdline.append.as_deref().map_or_else(String::new, |more| format!(" {more}"));
            Cmdline::Whole(format!("{file}{more}"))
        }
        _ => match (flags.cmdline.text(), terminal::size()) {
            (Cmdline::Added(text), Some(size)) if flags.machine.input == "stdin" => Cmdline::On(text, size),
            (text, _) => text,
        },
    }
}

/// The initial ramdisks and modules of the flags; without the former that of the file. All together fit into `memory`.
fn modules(flags: &cli::Run, file: Option<&str>, memory: u64) -> Result<Vec<Module>> {
    let mut room = Room { bytes: memory, of: "the memory that the guest has left, --memory" };
    let mut all = Vec::new();
    if let Some(path) = file.filter(|_| flags.initrd.is_empty()) {
        all.push(Module {
            data: full("<initrd>", room.read("<initrd>", Path::new(path))?, path)?,
            ..Module::default()
        });
    }
    for text in &flags.initrd {
        all.extend(modules::initrds(text, &mut room)?);
    }
    for text in &flags.module {
        all.push(modules::module(text, &mut room)?);
    }
    Ok(all)
}

/// Boots, runs to the end and reports.
pub fn start(boot: Boot, flags: &cli::Machine, chosen: &Processors) -> Status {
    log(flags.verbose);
    let confined = Prepared::new(boot, flags, chosen).map_err(Halt::Refused).and_then(Prepared::confine);
    match confined {
        Ok(confined) => confined.run().report(),
        Err(Halt::Refused(error)) => refuse(&error),
        Err(Halt::Failed(error)) => {
            say(format_args!("{error:#}"));
            Status::Internal
        }
    }
}

/// Why no guest runs.
#[derive(Debug)]
pub(crate) enum Halt {
    /// An input or a wish that cannot be had.
    Refused(anyhow::Error),
    /// The host gave us less than any run needs.
    Failed(anyhow::Error),
}

/// One line for each thing that is wrong, and the status that goes with it.
pub fn refuse(error: &anyhow::Error) -> Status {
    if let Some(Mistakes(mistakes)) = error.downcast_ref() {
        mistakes.iter().for_each(|mistake| say(format_args!("{mistake}")));
        return Status::Usage;
    }
    // One line, whatever a library put into its text.
    let text = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    say(format_args!("{text}"));
    Status::Usage
}

/// Prints what `-v` asks for.
pub(crate) fn log(verbose: u8) {
    use tracing_subscriber::filter::LevelFilter;
    let level = [LevelFilter::WARN, LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];
    let level = level[usize::from(verbose).min(level.len() - 1)];
    // Without colours: what is logged is read in files more than on terminals, and NO_COLOR holds.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(stderr)
        .without_time()
        .with_ansi(false)
        .try_init();
}
