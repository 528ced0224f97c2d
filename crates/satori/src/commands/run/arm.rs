//! `satori run --arch arm64`: flags to a machine of AArch64. What follows a run is the same for every instruction set.

use std::sync::Arc;

use anyhow::{Result, bail};
use satori_cpuid::Topology;
use satori_machine::arm::{Config, Levels, MAX_CPUS, Machine};
use satori_machine::{ClockMode, Cmdline, Devices, EngineKind, OnReset, Pins, ProtocolChoice};

use super::{Boot, Halt, Ran, Watchers, balloon, input, log, refuse, report_of, sandbox};
use crate::attend::Ready;
use crate::commands::costs;
use crate::inputs::{Room, read};
use crate::judge::{self, Judge};
use crate::opened::Opened;
use crate::output::Output;
use crate::say::say;
use crate::status::Status;
use crate::terminal::RawMode;
use crate::{cli, devices, io_threads, modules, origin, pins, report};

/// What a kernel's command line begins with, unless `--cmdline` says otherwise.
const CONSOLE: &str = "console=ttyAMA0";

/// Memory of a guest that boots an initial ramdisk.
const MEMORY: u64 = 512 << 20;

/// Does what `satori run --arch arm64` was told.
pub(crate) fn run(flags: &cli::Run) -> Status {
    log(flags.machine.verbose);
    match start(flags) {
        Ok(ran) => ran.report(),
        Err(Halt::Refused(error)) => refuse(&error),
        Err(Halt::Failed(error)) => {
            say(format_args!("{error:#}"));
            Status::Internal
        }
    }
}

/// Flags that a machine of AArch64 has no use for, and what there is instead.
fn refused(run: &cli::Run) -> Result<()> {
    const X86: &str = "is of x86";
    const NOT_YET: &str = "is not had on arm64 in this version";
    let (flags, processor) = (&run.machine, &run.machine.processor);
    let given = [
        (!run.module.is_empty(), "--module", "is of multiboot kernels"),
        (run.boot != cli::Boot::Auto, "--boot", "is of x86; an Image is entered in one way"),
        (processor.cpu.is_some(), "--cpu", X86),
        (!flags.numa.is_empty(), "--numa", NOT_YET),
        (processor.guest.is_some(), "--guest", X86),
        (processor.hyperv.is_some(), "--hyperv", X86),
        (processor.kvm.is_some(), "--kvm", X86),
        (processor.vmx.is_some(), "--processor", X86),
        (processor.nested.is_some(), "--nested", X86),
        (processor.libvirt.is_some(), "--libvirt", NOT_YET),
        (!flags.serial.is_empty(), "--serial", NOT_YET),
        (flags.engine == cli::Engine::Kvm, "--engine kvm", X86),
        (flags.engine_stats, "--engine-stats", NOT_YET),
        (flags.perf.is_some(), "--perf", NOT_YET),
        (!flags.host_without.is_empty(), "--host-without", X86),
        (flags.host_tick.is_some(), "--host-tick", NOT_YET),
        (flags.charge_costs, "--charge-costs", NOT_YET),
        (flags.record.is_some(), "--record", NOT_YET),
        (flags.replay.is_some(), "--replay", NOT_YET),
        (flags.trace.is_some(), "--trace", NOT_YET),
        (flags.stats_socket.is_some(), "--stats-socket", NOT_YET),
        (flags.symbols != "auto" && flags.symbols != "off", "--symbols FILE", NOT_YET),
        (flags.crash_dump.is_some(), "--crash-dump", NOT_YET),
        (flags.crash_dump_l2.is_some(), "--crash-dump-l2", X86),
        (!flags.tsc_change.is_empty(), "--tsc-change", X86),
        (!flags.testdev.is_empty(), "--testdev", X86),
        (!flags.smbios.is_empty(), "--smbios", NOT_YET),
    ];
    match given.into_iter().find(|(given, ..)| *given) {
        Some((_, name, why)) => bail!("--arch arm64: {name} {why}: leave it out"),
        None => Ok(()),
    }
}

/// How many vCPUs are wanted: a plain number, as the device tree tells of no sockets.
fn cpus(wanted: Option<Topology>) -> Result<u32> {
    let topology = wanted.unwrap_or_default();
    let count = topology.cpus();
    if topology != Topology::flat(count) {
        bail!("--arch arm64: --cpus is a plain number there, without sockets, dies, cores and threads");
    }
    if count > MAX_CPUS {
        bail!("--arch arm64: there can be {MAX_CPUS} vCPUs, not {count}: use fewer --cpus");
    }
    Ok(count)
}

/// The levels that the flags ask for.
fn levels(run: &cli::Run) -> Result<Levels> {
    match (run.el, run.no_vhe) {
        (Some(2), false) => Ok(Levels::El2Vhe),
        (Some(2), true) => Ok(Levels::El2),
        (_, true) => bail!("--no-vhe is of EL2: add --el 2, or leave it out"),
        (_, false) => Ok(Levels::El1),
    }
}

/// What is booted.
fn boot(run: &cli::Run, memory: u64) -> Result<Boot> {
    let Some(path) = &run.kernel else { bail!("--arch arm64: name a kernel with --kernel FILE") };
    let mut room = Room { bytes: memory, of: "the memory that the guest has left, --memory" };
    let mut initrds = Vec::new();
    for text in &run.initrd {
        initrds.extend(modules::initrds(text, &mut room)?);
    }
    Ok(Boot {
        kernel: read("--kernel", path)?,
        kernel_name: path.display().to_string(),
        initrds,
        cmdline: run.cmdline.text(),
        protocol: ProtocolChoice::Auto,
    })
}

/// What the flags say of a machine, but for what it boots and its devices.
pub(crate) struct ArmPlan {
    /// The host's processors for each thread.
    pub(crate) pins: Pins,
    memory: u64,
    cpus: u32,
    levels: Levels,
    engine: EngineKind,
}

impl ArmPlan {
    /// Refuses what a machine of AArch64 does not have; without `--memory` it has so much.
    pub(crate) fn of(run: &cli::Run, memory: u64) -> Result<ArmPlan> {
        refused(run)?;
        let memory = run.machine.memory.unwrap_or(memory);
        balloon(&run.machine, memory)?;
        let engine = crate::engine::software(crate::engine::wanted(run.machine.engine)?)?;
        let (cpus, mut pins) = (cpus(run.machine.processor.cpus)?, Pins::default());
        io_threads::share_out(&mut pins, &run.machine)?;
        pins::share_out(&mut pins, &run.machine, cpus)?;
        Ok(ArmPlan { pins, memory, cpus, levels: levels(run)?, engine })
    }

    /// The machine; `input` is what its serial port receives.
    pub(crate) fn config(self, boot: Boot, run: &cli::Run, devices: Devices, input: Vec<u8>) -> Config {
        let flags = &run.machine;
        let ramdisks: Vec<_> = boot.initrds.into_iter().map(|module| module.data).collect();
        Config {
            kernel: boot.kernel,
            initrd: (!ramdisks.is_empty()).then(|| joined(ramdisks)),
            cmdline: cmdline(boot.cmdline),
            memory: self.memory,
            cpus: self.cpus,
            levels: self.levels,
            engine: self.engine,
            clock: match flags.clock {
                cli::Clock::Real => ClockMode::Real,
                cli::Clock::Virtual => ClockMode::VIRTUAL,
            },
            on_reset: match flags.on_reset {
                Some(cli::OnReset::Exit) => OnReset::Exit,
                Some(cli::OnReset::Restart) | None => OnReset::Restart,
            },
            guest_timeout: flags.guest_timeout,
            panic_pattern: flags.panic_pattern.clone(),
            input,
            profile: flags.report != cli::Report::Off,
            devices,
            pins: self.pins,
        }
    }
}

/// The kernel's whole command line.
fn cmdline(wanted: Cmdline) -> String {
    match wanted {
        Cmdline::Whole(text) => text,
        Cmdline::Added(text) | Cmdline::On(text, _) => format!("{CONSOLE} {text}").trim_end().into(),
    }
}

/// Archives one behind the other, each at a multiple of four bytes, as the kernel looks for the next.
fn joined(ramdisks: Vec<Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::new();
    for ramdisk in ramdisks {
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend(ramdisk);
    }
    all
}

/// Everything that can be refused, then the guest's whole run in a process that is confined.
fn start(run: &cli::Run) -> Result<Ran<'_>, Halt> {
    let flags = &run.machine;
    let prepare = || {
        let plan = ArmPlan::of(run, MEMORY)?;
        let boot = boot(run, plan.memory)?;
        let origin = origin::origin(&boot, flags.report);
        report_of(flags, plan.cpus)?;
        let costs = costs::of(flags.costs.as_deref())?;
        let output = Output::new(flags.console_newlines);
        let console = output.shared();
        let mut opened = Opened::default();
        let judge = Judge::open(flags, boot.kernel_name.clone(), &mut opened)?;
        let sink = judge::heard(judge.as_ref(), Box::new(output));
        let (devices, pinned) = (devices::devices(flags, &plan.pins, None)?, plan.pins.any());
        let config = plan.config(boot, run, devices, input(flags)?);
        let mut machine = Machine::new(config, sink)?;
        let (watchers, listener) = Watchers::of_any(flags, &mut opened)?;
        listener.into_iter().for_each(|listener| machine.debug(listener, flags.gdb_wait));
        let report_file =
            flags.report_file.as_deref().map(|path| opened.file("--report-file", path)).transpose()?;
        Ok((machine, console, opened, judge, report_file, costs, origin, watchers, pinned))
    };
    let (machine, console, mut opened, judge, report_file, costs, origin, watchers, pinned) =
        prepare().map_err(Halt::Refused)?;
    say(format_args!("{}", machine.engine()));
    watchers.tell(flags);
    // From here on as for x86: the terminal is taken, what is not needed is given away.
    let typed = flags.input == "stdin";
    let shown = report::is_shown();
    let raw = if typed { RawMode::enter() } else { None };
    if raw.is_some() {
        say(format_args!("{}", crate::escape::HELP));
    }
    let failed = |error: anyhow::Error| Halt::Failed(error.context("cannot watch the terminal and signals"));
    // Images are left as a guest leaves them that powers off.
    let button = !flags.disk.is_empty();
    let ready =
        Ready::new(machine.handle(), Arc::clone(&console), typed, raw.is_some(), button, flags.limits());
    let ready = ready.map_err(failed)?;
    let keep: Vec<_> = ready.files().into_iter().chain(opened.descriptors()).chain(machine.files()).collect();
    let keep: Vec<_> = keep.into_iter().chain(watchers.keep).collect();
    sandbox(flags, false, &keep, watchers.listening, pinned).map_err(Halt::Refused)?;
    opened.begin(flags.sandbox != cli::Sandbox::Off);
    let attendant = ready.start().map_err(failed)?;
    let qmp = watchers.qmp.map(|qmp| qmp.start(machine.handle(), false)).transpose().map_err(failed)?;
    let outcome = machine.run();
    drop(qmp);
    let broken = console.failure();
    drop(opened);
    let stopped = attendant.stopped();
    drop(raw);
    drop(attendant);
    Ok(Ran { flags, outcome, stopped, broken, cut: None, shown, report_file, judge, costs, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ramdisks_are_joined_where_the_kernel_looks() {
        assert_eq!(joined(vec![vec![1; 5], vec![2; 3]]), [1, 1, 1, 1, 1, 0, 0, 0, 2, 2, 2]);
    }

    #[test]
    fn a_topology_is_refused() {
        assert_eq!(cpus(None).unwrap(), 1);
        assert_eq!(cpus(Some(Topology::flat(4))).unwrap(), 4);
        assert!(cpus(Some(Topology::flat(MAX_CPUS + 1))).is_err());
        assert!(cpus(Some(Topology { sockets: 2, ..Topology::default() })).is_err());
    }
}
