//! The stopwatch in a vCPU's loop.
//!
//! Every exit is counted. Reading the host's clock twice costs a tenth of a short exit, so while exits come faster than one in
//! [`SPARSE`] only one of some sixty is timed, and its time and address stand for those of its reason
//! before it; so the report costs such a guest less than 2 % (`satori bench overhead`). The first
//! [`FIRST`] of each reason and HLTs, which last as long as the guest is idle, are timed each, and under the virtual clock, or
//! if somebody watches or traces, all are.

use std::sync::{Arc, Mutex, MutexGuard};

use satori_bus::Nanos;
use satori_lock::Held;
use satori_seam::{Class, Reason};

use crate::{ExitProfile, Hot, Timeline};

/// Exits further apart than this on average are timed each: the two looks at the clock are then less than 1 % of the time.
const SPARSE: Nanos = 8_000;
/// Exits of a reason that are timed in any case.
const FIRST: u64 = 256;

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
    /// Of a watched vCPU, the exit that is not over, and when it began.
    pub waiting: Option<(Reason, Nanos)>,
}

/// Exits that were not timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub all: u64,
    /// Those while APICv was not in force.
    pub bare: u64,
}

impl Recorded {
    /// Counts an exit that was timed, and those before it of its reason that were not.
    fn exit(&mut self, running: Running, passed: Passed, now: Nanos) {
        let Running { reason, apicv, pc, since } = running;
        let time = now.saturating_sub(since);
        let weight = passed.all + 1;
        self.exits.count(reason, weight, passed.bare + u64::from(!apicv));
        self.exits.time(reason, time, weight);
        self.timeline.record(reason, since, weight);
        self.hot.record(reason, pc, time, weight);
    }

    /// Counts exits behind which none was timed: they took the mean of those that were.
    fn settle(&mut self, reason: Reason, passed: Passed) {
        if passed.all > 0 {
            self.exits.count(reason, passed.all, passed.bare);
            self.exits.settle(reason, passed.all);
            self.timeline.again(reason, passed.all);
        }
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
        self.0.lock().held()
    }
}

#[derive(Debug)]
enum Store {
    Off,
    Own(Box<Recorded>),
    Watched(Watched),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub reason: Reason,
    pub apicv: bool,
    pub pc: u64,
    pub since: Nanos,
}

/// Which exits are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// All: reading the clock costs nothing.
    Each,
    /// Few of those that come quickly.
    Sampled,
}

/// How far apart exits are, and how many are not timed for that.
#[derive(Debug)]
struct Pace {
    timing: Timing,
    /// Exits that will not be timed, and how many that were in the beginning.
    skip: u32,
    drawn: u32,
    /// A bit for each reason of which there were enough.
    known: u128,
    /// When the last one began that was timed.
    last: Nanos,
    /// Chance, so that no rhythm of the guest's falls in with that of the samples (Marsaglia's xorshift).
    random: u32,
}

const _: () = assert!(Reason::NUMBERS <= 128, "a bit for each");

impl Pace {
    fn new(timing: Timing) -> Self {
        Pace { timing, skip: 0, drawn: 0, known: 0, last: 0, random: 0x9e37_79b9 }
    }

    /// Whether an exit passes without a look at the clock.
    fn passes(&mut self, reason: Reason) -> bool {
        let passes = self.skip != 0 && self.known >> reason.index() & 1 != 0;
        self.skip -= u32::from(passes);
        passes
    }

    /// One was timed, that began at `now`.
    fn looked(&mut self, now: Nanos) {
        if self.timing == Timing::Each {
            return;
        }
        let since = u64::from(self.drawn - self.skip) + 1;
        let quick = now.saturating_sub(self.last) < since * SPARSE;
        self.last = now;
        self.drawn = 0;
        if quick {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 17;
            self.random ^= self.random << 5;
            self.drawn = 32 + self.random % 64;
        }
        self.skip = self.drawn;
    }
}

/// Counts exits, and times them until the next entry. One a vCPU, or off.
#[derive(Debug)]
pub struct Meter {
    /// The instruction set's, of which the reasons are.
    pub(crate) reasons: &'static [Reason],
    store: Store,
    pub(crate) running: Option<Running>,
    pace: Pace,
    /// Exits of each reason since the last one that was timed.
    passed: [Passed; Reason::NUMBERS],
}

impl Meter {
    /// A meter of exits whose reasons are in a table; one that is off counts nothing.
    pub fn new(reasons: &'static [Reason], on: bool, timing: Timing) -> Self {
        let store = if on { Store::Own(Box::default()) } else { Store::Off };
        Meter {
            reasons,
            store,
            running: None,
            pace: Pace::new(timing),
            passed: [Passed::default(); Reason::NUMBERS],
        }
    }

    /// Counts from now on where others look, who are to see every exit.
    pub fn watch(&mut self, watched: Watched) {
        self.store = Store::Watched(watched);
        self.time_each();
    }

    /// Times all exits from now on.
    pub fn time_each(&mut self) {
        self.pace.timing = Timing::Each;
    }

    /// Whether an exit is being timed.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The vCPU exited, with APICv in force or not, at this address of the guest.
    pub fn exit(&mut self, reason: Reason, apicv: bool, pc: u64, now: impl FnOnce() -> Nanos) {
        if self.pace.passes(reason) {
            let passed = &mut self.passed[reason.index()];
            passed.all += 1;
            passed.bare += u64::from(!apicv);
        } else if !matches!(self.store, Store::Off) {
            let now = now();
            self.stop(now);
            self.pace.looked(now);
            self.running = Some(Running { reason, apicv, pc, since: now });
            if let Store::Watched(watched) = &self.store {
                watched.lock().waiting = Some((reason, now));
            }
        }
    }

    /// How many exits from now on pass without a look at the clock, of those reasons whose bits are set, by number.
    pub fn passing(&self) -> (u32, u128) {
        (self.pace.skip, self.pace.known)
    }

    /// So many exits of `reason`, of those, were counted elsewhere; `bare` of them while APICv was not in force.
    pub fn passed(&mut self, reason: Reason, all: u64, bare: u64) {
        let passed = &mut self.passed[reason.index()];
        passed.all += all;
        passed.bare += bare;
        self.pace.skip = self.pace.skip.saturating_sub(u32::try_from(all).unwrap_or(u32::MAX));
    }

    /// The vCPU is about to be entered, or will never be again.
    pub fn entry(&mut self, now: impl FnOnce() -> Nanos) {
        if self.is_running() {
            self.stop(now());
        }
    }

    /// An interrupt was injected.
    pub fn interrupt(&mut self, vector: u8) {
        match &mut self.store {
            Store::Off => {}
            Store::Own(recorded) => recorded.interrupt(vector),
            Store::Watched(watched) => watched.lock().interrupt(vector),
        }
    }

    #[cold]
    fn stop(&mut self, now: Nanos) {
        let Some(running) = self.running.take() else { return };
        let passed = std::mem::take(&mut self.passed[running.reason.index()]);
        match &mut self.store {
            Store::Off => {}
            Store::Own(recorded) => {
                recorded.exit(running, passed, now);
                let enough = running.reason.class() != Class::Idle
                    && recorded.exits.get(running.reason).count >= FIRST;
                self.pace.known |= u128::from(enough) << running.reason.index();
            }
            Store::Watched(watched) => {
                let mut recorded = watched.lock();
                recorded.waiting = None;
                recorded.exit(running, passed, now);
            }
        }
    }

    /// What was counted so far, and what was not timed and belongs to none that was.
    pub(crate) fn counted(&self) -> (Recorded, &[Passed; Reason::NUMBERS]) {
        let recorded = match &self.store {
            Store::Off => Recorded::default(),
            Store::Own(recorded) => Recorded::clone(recorded),
            Store::Watched(watched) => watched.lock().clone(),
        };
        (recorded, &self.passed)
    }

    /// Goes on as if it had counted these.
    pub(crate) fn go_on_from(
        &mut self,
        recorded: Recorded,
        running: Option<Running>,
        passed: &[(Reason, Passed)],
    ) {
        match &mut self.store {
            Store::Off => return,
            Store::Own(own) => **own = recorded,
            Store::Watched(watched) => {
                let waiting = running.map(|running| (running.reason, running.since));
                *watched.lock() = Recorded { waiting, ..recorded };
            }
        }
        self.running = running;
        self.passed = [Passed::default(); Reason::NUMBERS];
        passed.iter().for_each(|(reason, passed)| self.passed[reason.index()] = *passed);
    }

    /// What was counted so far; empty if the meter is off.
    pub fn recorded(&self) -> Recorded {
        let (mut recorded, passed) = self.counted();
        self.reasons.iter().for_each(|reason| recorded.settle(*reason, passed[reason.index()]));
        recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ALL, HLT, IDENTITY, MSR_WRITE};

    #[test]
    fn an_exit_lasts_until_the_entry() {
        let watched = Watched::default();
        let mut other = Meter::new(ALL, true, Timing::Each);
        other.watch(watched.clone());
        for mut meter in [Meter::new(ALL, true, Timing::Each), other] {
            meter.entry(|| 50);
            assert!(!meter.is_running(), "no exit to time");
            meter.exit(HLT, true, 0x1000, || 100);
            meter.entry(|| 350);
            meter.exit(IDENTITY, false, 0x2000, || 400);
            meter.entry(|| 390);
            meter.interrupt(0x31);
            let recorded = meter.recorded();
            assert_eq!(recorded.exits.get(HLT).total, 250);
            assert_eq!(recorded.exits.get(IDENTITY).total, 0, "a clock that went back counts as none");
            let bare = |reason| recorded.exits.get(reason).without_apicv;
            assert_eq!((bare(HLT), bare(IDENTITY)), (0, 1));
            assert_eq!(recorded.timeline.rows().count(), 2);
            assert_eq!(recorded.interrupts[0x31], 1);
        }
        assert_eq!(watched.lock().exits.get(HLT).total, 250, "others see what a watched meter counts");
    }

    #[test]
    fn off_times_nothing() {
        let mut meter = Meter::new(ALL, false, Timing::Sampled);
        meter.exit(HLT, true, 0, || unreachable!("nobody reads the clock for it"));
        assert!(!meter.is_running());
        meter.entry(|| unreachable!("nor here"));
        meter.interrupt(3);
        assert_eq!(meter.recorded(), Recorded::default());
    }

    /// `exits` exits `gap` apart, three MSR writes of 200 ns for each IDENTITY of 100 ns; how often the clock was read.
    fn rhythm(timing: Timing, exits: u64, gap: Nanos) -> (Recorded, u64) {
        let (mut meter, mut looks) = (Meter::new(ALL, true, timing), 0);
        for at in 0..exits {
            let (reason, pc, time) = match at % 4 {
                0 => (IDENTITY, 0x1000, 100),
                place => (MSR_WRITE, 0x2000 + place, 200),
            };
            let mut look = |now| {
                looks += 1;
                now
            };
            meter.exit(reason, true, pc, || look(at * gap));
            meter.entry(|| look(at * gap + time));
        }
        (meter.recorded(), looks)
    }

    #[test]
    fn quick_exits_are_all_counted_and_few_are_timed() {
        const EXITS: u64 = 400_000;
        let (recorded, looks) = rhythm(Timing::Sampled, EXITS, 750);
        assert!(looks < EXITS / 10, "{looks} looks at the clock");
        let writes = recorded.exits.get(MSR_WRITE);
        assert_eq!(
            (writes.count, writes.total, writes.min, writes.max),
            (EXITS / 4 * 3, EXITS / 4 * 3 * 200, 200, 200)
        );
        let identity = recorded.exits.get(IDENTITY);
        assert_eq!((identity.count, identity.total), (EXITS / 4, EXITS / 4 * 100));
        assert!(identity.timed > FIRST && identity.timed < identity.count / 20, "{identity:?}");
        let over_time: u64 = recorded.timeline.rows().flat_map(|(_, row)| row).map(|n| u64::from(*n)).sum();
        assert_eq!(over_time, EXITS);
        let mut places = std::collections::BTreeMap::new();
        recorded.hot.add_to(&mut places);
        assert_eq!(places.len(), 4);
        for (place, counted) in places {
            let off = counted.count.abs_diff(EXITS / 4);
            assert!(off < EXITS / 40, "{place:?}: {} of {}", counted.count, EXITS / 4);
        }
    }

    #[test]
    fn what_comes_seldom_or_costs_nothing_to_time_is_timed() {
        for (timing, gap) in [(Timing::Sampled, SPARSE), (Timing::Each, 10)] {
            let (recorded, looks) = rhythm(timing, 10_000, gap);
            assert_eq!((looks, recorded.exits.sum().timed), (20_000, 10_000), "{timing:?}");
        }
    }
}
