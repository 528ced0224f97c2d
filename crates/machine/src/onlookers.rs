//! Who looks on while a machine runs: a debugger, a trace, watchers of its counters.

use std::fs::File;
use std::io;
use std::sync::Arc;

use satori_trace::{Filter, Told, Tracer};

use crate::control::Control;
use crate::life::{Blueprint, Time};
use crate::x86::MachineVcpu;
use crate::{Error, Event, WatchListener, gdb, watch};

/// All of them, from before the first life to behind the last one.
pub(crate) struct Onlookers {
    tracer: io::Result<Option<Tracer>>,
    watchers: Option<watch::Server>,
    debugger: Option<gdb::Server>,
}

impl Onlookers {
    /// Starts those that are wanted. Only without a debugger that was wanted the machine must not run.
    pub(crate) fn start(
        plan: &Blueprint,
        control: &Arc<Control<MachineVcpu>>,
        gdb: Option<gdb::Plan>,
        trace: Option<(File, Filter)>,
        listener: Option<WatchListener>,
    ) -> Result<Self, Error> {
        let patient = matches!(plan.time, Time::Virtual(_));
        let trace =
            trace.map(|(file, filter)| Tracer::start(file, filter, plan.config.topology.cpus(), patient));
        let symbols = &plan.config.symbols;
        let watchers = listener.map(|listener| watch::Server::start(listener, symbols.clone(), control));
        let watchers = watchers.transpose().unwrap_or_else(|error| {
            tracing::warn!("nobody can watch: {}", Error::Thread(error));
            None
        });
        let debugger = gdb.map(|gdb| gdb::Server::start(gdb, control)).transpose();
        let debugger = debugger.map_err(|error| Error::Thread(error.kind().into()))?;
        Ok(Onlookers { tracer: trace.transpose(), watchers, debugger })
    }

    /// Who writes what happens.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref().ok().and_then(Option::as_ref)
    }

    /// The machine has ended by `event`. Returns what became of the trace.
    pub(crate) fn end(self, control: &Control<MachineVcpu>, event: &Event) -> Option<Told> {
        if let Some(watchers) = self.watchers {
            watchers.end();
        }
        let traced = match self.tracer {
            Ok(tracer) => tracer.map(Tracer::finish),
            Err(error) => {
                tracing::warn!("nothing is traced: {}", Error::Thread(error));
                None
            }
        };
        control.end();
        if let Some(debugger) = self.debugger {
            debugger.end(event);
        }
        traced
    }
}
