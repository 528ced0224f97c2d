//! The second phase: the process has what the guest needs, and no more.

use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;

use anyhow::Result;
use satori_machine::{Machine, SerialPorts};
use satori_report::Origin;
use satori_report::costs::Costs;
use satori_sandbox::{Measure, Mode, Needs};

use super::Ran;
use crate::attend::Attendant;
use crate::cli;
use crate::judge::Judge;
use crate::opened::Opened;
use crate::output::Shared;
use crate::qmp;
use crate::status::Status;
use crate::terminal::{self, RawMode};

/// A machine that may run, in a process that is confined as far as was asked for.
pub(crate) struct Confined<'a> {
    pub flags: &'a cli::Machine,
    pub machine: Machine,
    /// Who answers QEMU's protocol.
    pub qmp: Option<qmp::Running>,
    /// The guest's console on standard output.
    pub console: Arc<Shared>,
    pub serials: SerialPorts,
    pub judge: Option<Judge>,
    pub opened: Opened,
    pub report_file: Option<File>,
    pub costs: Costs,
    pub origin: Origin,
    /// Whether somebody has what standard output gets.
    pub shown: bool,
    pub attendant: Attendant,
    pub raw: Option<RawMode>,
}

impl<'a> Confined<'a> {
    /// Runs the guest to its end, and gives the terminal back.
    pub(crate) fn run(self) -> Ran<'a> {
        let Confined { flags, machine, console, serials, opened, attendant, raw, .. } = self;
        let outcome = machine.run();
        drop(self.qmp);
        let broken = console.failure();
        drop(opened);
        let stopped = attendant.stopped();
        // Terminal first: everything below is ordinary text.
        drop(raw);
        drop(attendant);
        Ran {
            flags,
            outcome,
            stopped,
            broken,
            cut: serials.lost(),
            shown: self.shown,
            report_file: self.report_file,
            judge: self.judge,
            costs: self.costs,
            origin: self.origin,
        }
    }
}

/// How much of the sandbox must be had.
pub(crate) fn sandbox_mode(flags: &cli::Machine) -> Mode {
    match flags.sandbox {
        cli::Sandbox::Off => Mode::Off,
        cli::Sandbox::Auto => Mode::Auto,
        cli::Sandbox::Require => Mode::Require,
    }
}

/// Gives away what running the guest does not need, and tells at `-v` what was achieved.
pub(crate) fn sandbox(
    flags: &cli::Machine,
    kvm: bool,
    keep: &[RawFd],
    listening: bool,
    pinned: bool,
) -> Result<()> {
    let mode = sandbox_mode(flags);
    if mode == Mode::Off {
        tracing::info!("sandbox: off, as asked: the process keeps all that it has");
    }
    let status = Status::Internal.code().into();
    let placed = flags.numa.iter().any(|node| node.host.is_some());
    let needs = Needs { keep, listening, pinned, placed, kvm, status, farewell: terminal::restore_if_free };
    for Measure { name, outcome } in satori_sandbox::enter(mode, &needs)? {
        match outcome {
            Ok(what) => tracing::info!("sandbox: {name}: {what}"),
            Err(why) => tracing::info!("sandbox: {name}: NOT had: {why}"),
        }
    }
    Ok(())
}
