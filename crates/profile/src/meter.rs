//! The stopwatch in a vCPU's loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use satori_bus::Nanos;
use satori_defs::vmx::ExitReason;

use crate::{ExitProfile, Hot, Timeline};

/// What a meter counts of its vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Exits by reason.
    pub exits: ExitProfile,
    /// Exits over time.
    pub timeline: Timeline,
    /// Where they came from.
    pub hot: Hot,
    /// Injected interrupts by vector; empty before the first.
    pub interrupts: Vec<u64>,
}

impl Recorded {
    fn exit(&mut self, running: Running, now: Nanos) {
        let Running { reason, apicv, rip, since } = running;
        let time = now.saturating_sub(since);
        self.exits.record(reason, apicv, time);
        self.timeline.record(reason, since);
        self.hot.record(reason, rip, time);
    }

    fn interrupt(&mut self, vector: u8) {
        if self.interrupts.is_empty() {
            self.interrupts = vec![0; 256];
        }
        self.interrupts[usize::from(vector)] += 1;
    }
}

/// What others may look at while it is counted. Whoever looks holds the vCPU up for as long.
#[derive(Clone, Debug, Default)]
pub struct Watched(Arc<Mutex<Recorded>>);

impl Watched {
    /// What was counted so far.
    pub fn lock(&self) -> MutexGuard<'_, Recorded> {
        // Counts are in order also if their owner panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Store {
    Off,
    Own(Box<Recorded>),
    Watched(Watched),
}

#[derive(Clone, Copy, Debug)]
struct Running {
    reason: ExitReason,
    apicv: bool,
    rip: u64,
    since: Nanos,
}

/// Counts exits and times each until the next entry. One a vCPU, or off.
#[derive(Debug)]
pub struct Meter {
    store: Store,
    running: Option<Running>,
}

impl Meter {
    /// A meter; one that is off counts nothing.
    pub fn new(on: bool) -> Self {
        let store = if on { Store::Own(Box::default()) } else { Store::Off };
        Meter { store, running: None }
    }

    /// A meter that counts where others look.
    pub fn watched(watched: Watched) -> Self {
        Meter { store: Store::Watched(watched), running: None }
    }

    /// Whether it counts.
    pub fn is_on(&self) -> bool {
        !matches!(self.store, Store::Off)
    }

    /// Whether an exit is being timed.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The vCPU exited, with APICv in force or not, at this address of the guest.
    pub fn exit(&mut self, reason: ExitReason, apicv: bool, rip: u64, now: Nanos) {
        if self.is_on() {
            self.stop(now);
            self.running = Some(Running { reason, apicv, rip, since: now });
        }
    }

    /// The vCPU is about to be entered, or will never be again.
    pub fn entry(&mut self, now: Nanos) {
        self.stop(now);
    }

    /// An interrupt was injected.
    pub fn interrupt(&mut self, vector: u8) {
        match &mut self.store {
            Store::Off => {}
            Store::Own(recorded) => recorded.interrupt(vector),
            Store::Watched(watched) => watched.lock().interrupt(vector),
        }
    }

    fn stop(&mut self, now: Nanos) {
        let Some(running) = self.running.take() else { return };
        match &mut self.store {
            Store::Off => {}
            Store::Own(recorded) => recorded.exit(running, now),
            Store::Watched(watched) => watched.lock().exit(running, now),
        }
    }

    /// What was counted so far; empty if the meter is off.
    pub fn recorded(&self) -> Recorded {
        match &self.store {
            Store::Off => Recorded::default(),
            Store::Own(recorded) => Recorded::clone(recorded),
            Store::Watched(watched) => watched.lock().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_lasts_until_the_entry() {
        let watched = Watched::default();
        for mut meter in [Meter::new(true), Meter::watched(watched.clone())] {
            meter.entry(50);
            assert!(!meter.is_running(), "no exit to time");
            meter.exit(ExitReason::Hlt, true, 0x1000, 100);
            meter.entry(350);
            meter.exit(ExitReason::Cpuid, false, 0x2000, 400);
            meter.entry(390);
            meter.interrupt(0x31);
            let recorded = meter.recorded();
            assert_eq!(recorded.exits.get(ExitReason::Hlt).total, 250);
            assert_eq!(
                recorded.exits.get(ExitReason::Cpuid).total,
                0,
                "a clock that went back counts as none"
            );
            let bare = |reason| recorded.exits.get(reason).without_apicv;
            assert_eq!((bare(ExitReason::Hlt), bare(ExitReason::Cpuid)), (0, 1));
            assert_eq!(recorded.timeline.rows().count(), 2);
            assert_eq!(recorded.interrupts[0x31], 1);
        }
        assert_eq!(
            watched.lock().exits.get(ExitReason::Hlt).total,
            250,
            "others see what a watched meter counts"
        );
    }

    #[test]
    fn off_times_nothing() {
        let mut meter = Meter::new(false);
        meter.exit(ExitReason::Hlt, true, 0, 5);
        assert!(!meter.is_on() && !meter.is_running(), "so nobody reads the clock for it");
        meter.entry(9);
        meter.interrupt(3);
        assert_eq!(meter.recorded(), Recorded::default());
    }
}
