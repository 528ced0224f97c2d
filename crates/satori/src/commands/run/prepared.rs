//! The first phase: everything that can be refused, with nothing given away.

use std::fs::File;
use std::sync::Arc;

use anyhow::Result;
use satori_machine::{Machine, SerialPorts, Sinks};
use satori_report::Origin;
use satori_report::costs::Costs;

use super::config::{code_names, input};
use super::{Boot, Confined, Halt, Watchers, config, report_of, sandbox};
use crate::attend::Ready;
use crate::choose::Processors;
use crate::commands::costs;
use crate::judge::{self, Judge};
use crate::opened::Opened;
use crate::output::{Output, Shared};
use crate::recording::Recording;
use crate::say::say;
use crate::terminal::RawMode;
use crate::{cli, devices, numa, origin, report};

/// A machine that is ready to run, and what it needs of the host.
pub(crate) struct Prepared<'a> {
    flags: &'a cli::Machine,
    machine: Machine,
    /// The guest's console on standard output.
    console: Arc<Shared>,
    serials: SerialPorts,
    judge: Option<Judge>,
    opened: Opened,
    watchers: Watchers,
    report_file: Option<File>,
    crash_dumps: [Option<File>; 2],
    costs: Costs,
    origin: Origin,
    /// Whether threads are bound to processors of the host.
    pinned: bool,
}

impl<'a> Prepared<'a> {
    /// Makes the machine and opens what the flags name.
    pub(crate) fn new(boot: Boot, flags: &'a cli::Machine, chosen: &Processors) -> Result<Prepared<'a>> {
        let mut origin = origin::origin(&boot, flags.report);
        let mut opened = Opened::default();
        let judge = Judge::open(flags, boot.kernel_name.clone(), &mut opened)?;
        let mut config = config(boot, flags, chosen)?;
        numa::share_out(&mut config, flags)?;
        let mut recording = Recording::open(flags, &mut opened)?;
        if let Some(recording) = &mut recording {
            origin = recording.settle(origin);
        }
        let journal = recording.as_ref().map(Recording::journal);
        config.devices = devices::devices(flags, &chosen.pins, journal)?;
        config.input = input(flags)?;
        if let Some(recording) = &recording {
            recording.begin(&mut config, flags, &[])?;
        }
        let serials = devices::serials(flags, &mut opened)?;
        for channel in flags.channels() {
            opened.channel(channel)?;
        }
        config.serials = serials.clone();
        report_of(flags, chosen.topology.cpus())?;
        let costs = costs::of(flags.costs.as_deref())?;
        let names = code_names(flags, config.engine)?;
        if let Some(names) = &names {
            opened.names(names.clone());
        }
        let output = Output::new(flags.console_newlines);
        let console = output.shared();
        // The debug console is the guest's console too: what has no serial driver prints there.
        let sinks = Sinks {
            console: judge::heard(judge.as_ref(), Box::new(output.clone())),
            debugcon: Some(Box::new(output)),
            code: names.clone().map(|names| names as _),
        };
        let mut machine = Machine::new(config, sinks)?;
        let report_file =
            flags.report_file.as_deref().map(|path| opened.file("--report-file", path)).transpose()?;
        let crash_dumps = flags.crash_dumps(&mut opened)?;
        let watchers = Watchers::open(flags, &mut machine, &mut opened)?;
        chosen.warn();
        if let Some(names) = &names {
            say(format_args!("perf: names of translated code go to {}", names.path().display()));
        }
        match &flags.front {
            None => say(format_args!("{}", machine.engine())),
            Some(_) => tracing::info!("{}", machine.engine()),
        }
        watchers.tell(flags);
        let pinned = chosen.pins.any();
        Ok(Prepared {
            flags,
            machine,
            console,
            serials,
            judge,
            opened,
            watchers,
            report_file,
            crash_dumps,
            costs,
            origin,
            pinned,
        })
    }

    /// Takes the terminal, gives away what running the guest does not need, and starts to attend to what comes from outside.
    pub(crate) fn confine(self) -> Result<Confined<'a>, Halt> {
        let Prepared { flags, mut machine, console, mut opened, watchers, .. } = self;
        let input = flags.input == "stdin";
        // Looked at before the sandbox, which does not permit it.
        let shown = report::is_shown();
        let raw = if input { RawMode::enter() } else { None };
        if raw.is_some() {
            say(format_args!("{}", crate::escape::HELP));
        }
        let failed =
            |error: anyhow::Error| Halt::Failed(error.context("cannot watch the terminal and signals"));
        // Images are left as a guest leaves them that powers off.
        let button = !flags.disk.is_empty();
        let ready =
            Ready::new(machine.handle(), console.clone(), input, raw.is_some(), button, flags.limits());
        let ready = ready.map_err(failed)?;
        let keep: Vec<_> = ready.files().into_iter().chain(opened.descriptors()).collect();
        let keep: Vec<_> = keep.into_iter().chain(watchers.keep).chain(machine.files()).collect();
        sandbox(flags, machine.runs_by_kvm(), &keep, watchers.listening, self.pinned)
            .map_err(Halt::Refused)?;
        opened.begin(flags.sandbox != cli::Sandbox::Off);
        let attendant = ready.start().map_err(failed)?;
        for channel in flags.channels() {
            channel.start().map_err(|why| failed(why.into()))?;
        }
        let by_kvm = machine.runs_by_kvm();
        let qmp = watchers.qmp.map(|qmp| qmp.start(machine.handle(), by_kvm)).transpose().map_err(failed)?;
        machine.crash_dumps(self.crash_dumps);
        Ok(Confined {
            flags,
            qmp,
            machine,
            console,
            serials: self.serials,
            judge: self.judge,
            opened,
            report_file: self.report_file,
            costs: self.costs,
            origin: self.origin,
            shown,
            attendant,
            raw,
        })
    }
}
