//! One virtual processor, as an engine gives it.

use std::sync::Arc;

use satori_save::{Error, Value};

use crate::{DebugPlan, Isa, Kick, NestedView, Stretch, Until, Whereabouts};

/// A counter of an engine: its name and value.
pub type Stat = (&'static str, u64);

/// Counters of an engine that others read while its vCPU runs.
pub trait Counts: Send + Sync {
    /// The counters now.
    fn counts(&self) -> Vec<Stat>;
}

/// Answers exits while their vCPU goes on executing: those that need nothing of it but its registers.
pub trait AtOnce<I: Isa>: Send + Sync {
    /// The answer to `exit` of a vCPU in `state`, which is counted then; nothing if the vCPU has to come out for it.
    fn answer(&self, exit: &I::Exit, state: &I::State) -> Option<I::Answer>;
}

/// What becomes of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The machine carries it out.
    Machine,
    /// It waits. The vCPU comes out of [`Vcpu::run`] as soon as that may change.
    Waits,
    /// The vCPU has taken it: nothing is left to do.
    Taken,
}

/// One virtual processor.
pub trait Vcpu<I: Isa>: Send {
    /// Executes until something needs the machine.
    fn run(&mut self, until: Until) -> I::Exit;

    /// Takes the answer to the exit that [`Vcpu::run`] returned last.
    fn resume(&mut self, answer: I::Answer);

    /// Asks `by` from now on before it comes out of [`Vcpu::run`]. An engine need not.
    fn answer_at_once(&mut self, _by: Arc<dyn AtOnce<I>>) {}

    /// Injects `event` at the next run. At most one; the caller has seen that it can be taken.
    fn inject(&mut self, event: I::Event);

    /// What becomes of `signal` now, between two instructions. A hypervisor among the guests may hold it back, or have it.
    fn signal(&mut self, _signal: I::Signal) -> Fate {
        Fate::Machine
    }

    /// Asks for an exit as soon as an event of `window`'s kind could be taken, or takes that back.
    fn request_window(&mut self, window: I::Window, wanted: bool);

    /// Whether an event of `window`'s kind can be taken now.
    fn can_take(&self, window: I::Window) -> bool {
        I::can_take(self.state(), window)
    }

    /// Fetches `parts` of the register file, so that [`Vcpu::state`] has them until the next run. An engine that has
    /// all of them at hand does nothing.
    fn fetch(&mut self, _parts: I::Parts) {}

    /// The register file. Outside [`Vcpu::run`] those parts of it are right that every exit hands out, and those
    /// that were fetched since.
    fn state(&self) -> &I::State;

    /// The register file with `parts` fetched, of which the caller changes these parts only; the engine takes them at the
    /// next run, and derives anew what it keeps beside them.
    fn state_mut(&mut self, parts: I::Parts) -> &mut I::State;

    /// The controls in force, for change.
    fn controls_mut(&mut self) -> &mut I::Controls;

    /// Drops every cached translation.
    fn flush_tlb(&mut self);

    /// Drops the cached translation of the page of linear address `linear`.
    fn flush_page(&mut self, _linear: u64) {
        self.flush_tlb();
    }

    /// Drops every cached translation that is not global.
    fn flush_non_global(&mut self) {
        self.flush_tlb();
    }

    /// The kick of this vCPU.
    fn kick(&self) -> Arc<Kick>;

    /// Where it says what it is doing, if it does. Outside [`Vcpu::run`] the machine says so.
    fn whereabouts(&self) -> Option<Arc<Whereabouts>> {
        None
    }

    /// Replaces what a debugger asks for; the next runs stop by it.
    fn set_debug(&mut self, plan: DebugPlan);

    /// The guest-physical address behind linear address `linear` now, if it is mapped. Changes
    /// nothing, accessed bits included, and asks for no rights.
    fn translate(&self, linear: u64) -> Option<u64>;

    /// A guest that its guest has, and the registers of whichever of the two does not execute; nothing without one.
    fn nested(&self) -> Option<NestedView<I::State>> {
        None
    }

    /// The physical memory of the guest in [`Vcpu::nested`], in ascending order, as its tables have it now; what they map beyond some
    /// 32 GiB in small pages is left out. Nothing without tables.
    fn nested_memory(&self) -> Vec<Stretch> {
        Vec::new()
    }

    /// As [`Vcpu::translate`], for whichever of guest and hypervisor does not execute.
    fn translate_other(&self, _linear: u64) -> Option<u64> {
        None
    }

    /// Instructions retired since creation. One that faulted counts too, when its exception is
    /// delivered: time passes for a guest that does nothing else.
    fn retired(&self) -> u64;

    /// While it sleeps: at which time of the partition's counter it has to run again by itself, if at any.
    fn wakes_at(&self) -> Option<u64> {
        None
    }

    /// Leaves what it cached of the guest's code to the host, which takes it back when the process ends: to free it piece by piece
    /// takes longer. It runs no more.
    fn abandon_caches(&mut self) {}

    /// What it has beside the register file, outside [`Vcpu::run`]: answers that it was given and has not taken, its counts,
    /// the state of its random numbers. What it derives from registers and memory is not among it.
    fn save(&self) -> Result<Value, Error> {
        Err(Error::refused("vCPU", "this engine gives only its registers"))
    }

    /// Takes that back, before or between runs; the registers are set apart from it. Every cached translation is dropped.
    fn restore(&mut self, _value: &Value) -> Result<(), Error> {
        Err(Error::refused("vCPU", "this engine takes back only registers"))
    }

    /// The state of its interrupt controller, where the engine keeps that
    /// ([`Capability::KeepsInterruptController`](crate::Capability::KeepsInterruptController)).
    fn controller(&mut self) -> Option<I::Controller> {
        None
    }

    /// Takes such a state back, behind registers and [`Vcpu::restore`].
    fn set_controller(&mut self, _state: &I::Controller) {}

    /// Counters that can be read while it runs, if it has such.
    fn counts(&self) -> Option<Arc<dyn Counts>> {
        None
    }

    /// The engine's own counters.
    fn stats(&self) -> Vec<Stat>;
}
