//! `satori bench vhe`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueHint};
use satori_bench::Error;
use satori_bench::traps::Host;
use satori_bench::vhe::{Costs, Plan, images, json, measure, monitor, text};

use super::{Scratch, stop_on_signals};
use crate::cli;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::inputs::read;
use crate::say::{Out, say};
use crate::status::Status;

/// `satori bench vhe`.
#[derive(Debug, Args)]
pub struct Vhe {
    /// How often the guest does each thing
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub rounds: u32,
    /// Cycles of the parts of a switch that replace ours: lines NAME = CYCLES (crates/tools/bench/data/vhe.conf has all)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub costs: Option<PathBuf>,
    /// Linux as a second witness, with VHE and without: an arm64 kernel, or a series that 'satori fetch kernel --arch arm64' has got, as 6.1
    #[arg(long, value_name = "FILE|SERIES", value_hint = ValueHint::FilePath)]
    pub kernel: Option<PathBuf>,
    /// Write the hypervisors there as arm64 Images, for other machines to boot, and run nothing
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub images: Option<PathBuf>,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: cli::Form,
}

/// What stands below the flags.
pub const FOOTER: &str = "\
The experiment is that of 'To EL2, and beyond!' (C. Dall, Linaro Connect SFO17): a hypervisor of our own, bare metal at EL2, runs a guest in split
mode, by VHE, by VHE with each of the talk's five optimisations, and with all of them. The guest calls it, reads a device that
the kernel emulates, reads one that a program emulates, interrupts another vCPU, and uses floating-point registers. What is done from each exit to
the guest's return is counted exactly; cycles are a model's, beside the talk's. No board and no cross compiler is needed: the
hypervisor's code is made from the software CPU's own table of instructions.

Exit status: 0; 1 if an order is not the talk's; 2 if something was refused; 130 if it was interrupted.

Examples:
  satori bench vhe
  satori bench vhe --kernel 6.1
  satori bench vhe --images /tmp/images     then: qemu-system-aarch64 -M virt,virtualization=on,gic-version=3 -cpu neoverse-n1 \\
                                            -nographic -kernel /tmp/images/vhe-all-five.hypercall.image";

/// The kernel of `--kernel`, and a ramdisk for it whose init is a monitor for its KVM.
fn linux(file: &Path, rounds: u32, scratch: &Scratch) -> Result<(PathBuf, PathBuf)> {
    let kernel = match cache::series(file) {
        Some(series) => cache::get(Wanted::Arm64Series(series), false)?,
        None => file.to_path_buf(),
    };
    if read("--kernel", &kernel)?.get(56..60) != Some(b"ARM\x64") {
        bail!("--kernel {} is no arm64 Image: name a series, as 6.1, or an arm64 kernel", kernel.display());
    }
    let init = monitor(rounds).map_err(|why| anyhow!("the monitor cannot be made: {why}"))?;
    let mut archive = Cpio::new();
    archive.directory("dev").device("dev/console", 0o600, 5, 1).device("dev/kvm", 0o600, 10, 232);
    let initrd = scratch.file("initrd", &archive.file("init", 0o755, &init).finish(), 0o644)?;
    Ok((kernel, initrd))
}

/// Does what `satori bench vhe` was told.
pub fn vhe(flags: &Vhe) -> Result<Status> {
    let costs = match &flags.costs {
        None => Costs::default(),
        Some(path) => {
            let shown = path.display();
            let text = String::from_utf8(read("--costs", path)?);
            let text =
                text.map_err(|_| anyhow!("--costs {shown}: no text in UTF-8: write lines NAME = CYCLES"))?;
            Costs::with(&text).map_err(|why| anyhow!("--costs {shown}: {why}"))?
        }
    };
    if let Some(folder) = &flags.images {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make --images {}: name another folder", folder.display()))?;
        for path in images(folder, flags.rounds)? {
            writeln!(Out, "{}", path.display())?;
        }
        return Ok(Status::Ok);
    }
    let scratch = Scratch::new()?;
    let linux = flags.kernel.as_deref().map(|file| linux(file, flags.rounds, &scratch)).transpose()?;
    let stop = stop_on_signals()?;
    let costs_of_exits = satori_report::costs::Costs::built_in();
    let host = Host {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        game: PathBuf::new(),
        folder: scratch.folder.clone(),
        engine: "interpreter".into(),
        costs: &costs_of_exits,
        stop: &stop,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut tell = |words: &str| say(format_args!("{words}"));
    let results = match measure(Plan { rounds: flags.rounds, linux }, costs, &host, &mut tell) {
        Ok(results) => results,
        Err(Error::Stopped) => return Ok(Status::User),
        Err(error) => return Err(error.into()),
    };
    match flags.format {
        cli::Form::Text => write!(Out, "{}", text(&results))?,
        cli::Form::Json => writeln!(Out, "{:#}", json(&results))?,
    }
    Ok(if results.as_the_talk() { Status::Ok } else { Status::Short })
}
