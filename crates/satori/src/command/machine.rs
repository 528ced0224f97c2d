//! The machine that a command runs in: of x86, or of AArch64.

use std::fs::File;
use std::os::fd::RawFd;

use anyhow::Result;
use satori_bus::ByteSink;
use satori_machine::{Devices, Handle, Machine, OnReset, Outcome, Pins, SerialPorts, Sinks, arm};

use super::MEMORY;
use crate::choose::{self, Processors};
use crate::cli;
use crate::commands::run::{self, Boot, Watchers};
use crate::numa;
use crate::opened::Opened;
use crate::recording::Recording;

/// What the flags say of processors, looked at before anything is opened.
pub(super) enum Wanted {
    X86(Box<Processors>),
    Arm(run::ArmPlan),
}

impl Wanted {
    pub(super) fn of(flags: &cli::Run) -> Result<Wanted> {
        Ok(match flags.arch {
            cli::Arch::X86 => Wanted::X86(Box::new(choose::machine(&flags.machine)?)),
            cli::Arch::Arm64 => Wanted::Arm(run::ArmPlan::of(flags, MEMORY)?),
        })
    }

    /// The host's processors for each thread.
    pub(super) fn pins(&self) -> &Pins {
        match self {
            Wanted::X86(chosen) => &chosen.pins,
            Wanted::Arm(plan) => &plan.pins,
        }
    }

    /// The machine, which boots `boot`.
    pub(super) fn build(
        self,
        flags: &cli::Run,
        boot: Boot,
        (devices, serials): (Devices, SerialPorts),
        console: Box<dyn ByteSink>,
        recording: Option<&Recording>,
        opened: &mut Opened,
    ) -> Result<Computer> {
        // A command that was cut off is not run again behind its caller's back.
        let ends = flags.machine.on_reset.is_none();
        match self {
            Wanted::X86(chosen) => {
                let mut config = run::config(boot, &flags.machine, &chosen)?;
                if ends {
                    config.on_reset = OnReset::Exit;
                }
                if flags.machine.memory.is_none() && flags.machine.processor.libvirt.is_none() {
                    config.memory = MEMORY;
                }
                numa::share_out(&mut config, &flags.machine)?;
                (config.devices, config.serials) = (devices, serials);
                if let Some(recording) = recording {
                    recording.begin(&mut config, &flags.machine, &flags.command.words)?;
                }
                let names = run::code_names(&flags.machine, config.engine)?;
                if let Some(names) = &names {
                    opened.names(names.clone());
                    tracing::info!("perf: names of translated code go to {}", names.path().display());
                }
                let code = names.map(|names| names as _);
                let machine = Machine::new(config, Sinks { console, debugcon: None, code })?;
                tracing::info!("{}", machine.engine());
                Ok(Computer::X86(Box::new(machine), chosen))
            }
            Wanted::Arm(plan) => {
                let pinned = plan.pins.any();
                // What is typed and read goes through ports.
                let mut config = plan.config(boot, flags, devices, Vec::new());
                if ends {
                    config.on_reset = OnReset::Exit;
                }
                Ok(Computer::Arm(Box::new(arm::Machine::new(config, console)?), pinned))
            }
        }
    }
}

/// The machine.
pub(super) enum Computer {
    X86(Box<Machine>, Box<Processors>),
    /// And whether its threads are bound to processors of the host.
    Arm(Box<arm::Machine>, bool),
}

impl Computer {
    /// Opens what those who look on need, and says how they connect.
    pub(super) fn watched(&mut self, flags: &cli::Machine, opened: &mut Opened) -> Result<Watchers> {
        match self {
            Computer::X86(machine, chosen) => {
                let watchers = Watchers::open(flags, machine, opened)?;
                chosen.warn();
                watchers.tell(flags);
                Ok(watchers)
            }
            Computer::Arm(machine, _) => {
                let (watchers, listener) = Watchers::of_any(flags, opened)?;
                listener.into_iter().for_each(|listener| machine.debug(listener, flags.gdb_wait));
                watchers.tell(flags);
                Ok(watchers)
            }
        }
    }

    pub(super) fn handle(&self) -> Handle {
        match self {
            Computer::X86(machine, _) => machine.handle(),
            Computer::Arm(machine, _) => machine.handle(),
        }
    }

    /// Descriptors that a sandbox has to keep open.
    pub(super) fn files(&self) -> Vec<RawFd> {
        match self {
            Computer::X86(machine, _) => machine.files(),
            Computer::Arm(machine, _) => machine.files(),
        }
    }

    pub(super) fn runs_by_kvm(&self) -> bool {
        matches!(self, Computer::X86(machine, _) if machine.runs_by_kvm())
    }

    /// Whether threads are bound to processors of the host.
    pub(super) fn is_pinned(&self) -> bool {
        match self {
            Computer::X86(_, chosen) => chosen.pins.any(),
            Computer::Arm(_, pinned) => *pinned,
        }
    }

    /// Where its memory, and that of its guest, go if the guest crashes; the flags offer that to machines that have it.
    pub(super) fn crash_dumps(&mut self, files: [Option<File>; 2]) {
        if let Computer::X86(machine, _) = self {
            machine.crash_dumps(files);
        }
    }

    pub(super) fn run(self) -> Outcome {
        match self {
            Computer::X86(machine, _) => machine.run(),
            Computer::Arm(machine, _) => machine.run(),
        }
    }
}
