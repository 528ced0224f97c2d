//! What is told of a vCPU's exits: they are counted and timed, traced, and charged to guest time.

use std::sync::Arc;

use satori_bus::{Clock, Nanos};
use satori_defs::vmx::ExitReason;
use satori_engine::{Event, Exit, Resume, reason};
use satori_exits::told::{self, Told};
use satori_exits::{AT_ONCE, Answered};
use satori_profile::{Meter, Recorded, Watched};
use satori_state::CpuState;
use satori_trace::{Inner, Kind, VcpuTrace};

use crate::{Charges, VirtualClock};

/// An exit of the modelled processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub reason: ExitReason,
    /// It would be the same with APICv.
    pub apicv: bool,
}

pub(super) struct Observer {
    meter: Meter,
    trace: Option<Box<VcpuTrace>>,
    /// The exit that is being traced, and the input that a hypercall would have.
    asked: Option<(Exit, u64)>,
    /// What exits take of guest time, and what they took that the clock does not know yet.
    charges: Option<Arc<Charges>>,
    stalled: Nanos,
    /// The vCPU's last stop was no VM exit: for the modelled processor it still executes.
    pub inside: bool,
    /// Partition time of the host's next tick.
    tick: Nanos,
}

impl Observer {
    pub(super) fn new(meter: Meter) -> Self {
        Observer { meter, trace: None, asked: None, charges: None, stalled: 0, inside: false, tick: 0 }
    }

    /// Writes what happens from now on.
    pub(super) fn set_trace(&mut self, trace: Option<Box<VcpuTrace>>) {
        if trace.is_some() {
            self.meter.time_each();
        }
        self.trace = trace;
    }

    /// Lets exits take guest time.
    pub(super) fn set_charges(&mut self, charges: Option<Arc<Charges>>) {
        self.charges = charges;
    }

    /// Counts from now on where others look.
    pub(super) fn watch(&mut self, watched: Watched) {
        self.meter.watch(watched);
    }

    /// What was counted until now.
    pub(super) fn recorded(&self) -> Recorded {
        self.meter.recorded()
    }

    /// See [`crate::runs::Runs::take_stalled`].
    pub(super) fn take_stalled(&mut self, clock: &VirtualClock, vcpus: u64) -> u64 {
        if self.stalled == 0 {
            return 0;
        }
        let all = clock.instructions_of(self.stalled);
        self.stalled = clock.nanos_of(all % vcpus);
        all / vcpus
    }

    fn charge(&mut self, Seen { reason: why, apicv }: Seen) {
        let time = self.charges.as_ref().map_or(0, |charges| charges.of(reason(why), apicv));
        self.stalled = self.stalled.saturating_add(time);
    }

    /// The vCPU is about to be entered. The report and the trace agree on when.
    pub(super) fn entry(&mut self, clock: &dyn Clock) {
        let traced = self.trace.is_some().then(|| clock.now());
        self.meter.entry(|| traced.unwrap_or_else(|| clock.now()));
        self.trace.iter_mut().zip(traced).for_each(|(trace, now)| trace.entry(now));
    }

    /// How many exits whose reasons are among [`AT_ONCE`] may be answered at once, and a bit for each of these that may be: those that
    /// nobody times, traces, or charges to guest time.
    pub(super) fn unseen(&self) -> (u32, u32) {
        let (most, known) = self.meter.passing();
        if most == 0 || self.trace.is_some() || self.charges.is_some() {
            return (0, 0);
        }
        let bit = |(i, why): (usize, &ExitReason)| ((known >> reason(*why).index() & 1) as u32) << i;
        (most, AT_ONCE.iter().enumerate().map(bit).sum())
    }

    /// Counts exits that were answered at once; whether there were any.
    pub(super) fn answered(&mut self, answered: [Answered; AT_ONCE.len()]) -> bool {
        let mut any = false;
        for (why, Answered { all, bare }) in AT_ONCE.into_iter().zip(answered) {
            if all > 0 {
                any = true;
                self.meter.passed(reason(why), all, bare);
            }
        }
        any
    }

    /// The vCPU stopped; `seen` if that was an exit.
    pub(super) fn exit(&mut self, exit: Exit, seen: Option<Seen>, state: &CpuState, clock: &dyn Clock) {
        self.inside = seen.is_none();
        let traced = self.trace.is_some().then(|| clock.now());
        if let Some(seen) = seen {
            let now = || traced.unwrap_or_else(|| clock.now());
            self.meter.exit(reason(seen.reason), seen.apicv, state.rip, now);
            self.charge(seen);
        }
        if let Some((trace, now)) = self.trace.as_mut().zip(traced) {
            self.asked = Some((exit, told::input(state)));
            trace.exit(seen.map(|seen| reason(seen.reason)), || told::exit(exit, state), now);
        }
    }

    /// The exit was answered.
    pub(super) fn handled(&mut self, answer: Resume, state: &CpuState, clock: &dyn Clock) {
        if let Some(trace) = &mut self.trace {
            let asked = self.asked.take();
            let inner = || asked.and_then(|(exit, input)| told::asked(exit, input, answer, state)).map(inner);
            trace.handled(inner, clock.now());
        }
    }

    /// An event was injected.
    pub(super) fn injected(&mut self, event: Event, clock: &dyn Clock) {
        if let Event::Interrupt(vector) = event {
            self.meter.interrupt(vector);
        }
        if let Some(trace) = &mut self.trace {
            let (name, vector) = told::event(event);
            trace.injected(name, vector, clock.now());
        }
    }

    /// Counts an exit that the host caused and that asks for nothing.
    pub(super) fn passing(&mut self, seen: Seen, state: &CpuState, clock: &dyn Clock) {
        self.charge(seen);
        let (reason, apicv) = (reason(seen.reason), seen.apicv);
        let mut time = self.trace.is_some().then(|| clock.now());
        self.meter.exit(reason, apicv, state.rip, || *time.get_or_insert_with(|| clock.now()));
        // What asks for nothing takes no time.
        self.meter.entry(|| *time.get_or_insert_with(|| clock.now()));
        if let Some((trace, now)) = self.trace.as_mut().zip(time) {
            trace.entry(now);
            trace.exit(Some(reason), || told::exit(Exit::ExternalInterrupt, state), now);
            trace.entry(now);
        }
        self.inside = false;
    }

    /// Whether the host, which ticks so often, ticked since this was asked last.
    pub(super) fn ticked(&mut self, period: Nanos, now: Nanos) -> bool {
        if now < self.tick {
            return false;
        }
        let first = self.tick == 0;
        self.tick = (now / period).saturating_add(1).saturating_mul(period);
        !first
    }

    /// What it owes the clock, whether the vCPU executes, and the host's next tick.
    pub(super) fn save(&self) -> (Nanos, bool, Nanos) {
        (self.stalled, self.inside, self.tick)
    }

    /// Takes that back.
    pub(super) fn restore(&mut self, (stalled, inside, tick): (Nanos, bool, Nanos)) {
        (self.stalled, self.inside, self.tick) = (stalled, inside, tick);
    }

    /// What counts and times.
    pub(super) fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    /// The vCPU is never entered again.
    pub(super) fn finish(&mut self, now: Nanos) {
        self.meter.entry(|| now);
        if let Some(mut trace) = self.trace.take() {
            trace.entry(now);
        }
    }
}

/// What was asked in an exit, as a trace has it.
fn inner(told: Told) -> Inner {
    let (kind, name, args) = match told {
        Told::Msr(name, args) => (Kind::Register, name, args),
        Told::Hypercall(name, args) => (Kind::Hypercall, name, args),
    };
    Inner { kind, name, args }
}
