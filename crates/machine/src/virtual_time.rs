//! Virtual time: one host thread runs all vCPUs in turn, and time is the instructions that they
//! have retired. Nothing of the host decides anything, so equal inputs give equal runs.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use satori_bus::{Clock, Nanos, TimerQueue};
use satori_journal::{Journal, Next};
use satori_seam::{Doing, TimeSource, Until};

use crate::control::Control;
use crate::runs::{After, Entry, Runs};
use crate::shared::{Shared, lock};
use crate::{Event, VirtualClock};

/// Instructions of one turn, if nothing ends it sooner.
const SLICE: u64 = 10_000;
/// Instructions of a turn out of order, for what an interrupt begins: its vCPU's next turn is shorter by them.
const SHORT: u64 = 1_000;

/// What a turn of each vCPU lacks, for those beside the loop: it is right between two rounds of turns.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Vec<u64>>);

impl Turns {
    /// Instructions of each vCPU that are to be taken from its next turns; none of any that is not named.
    pub(crate) fn get(&self) -> Vec<u64> {
        lock(&self.0).clone()
    }

    /// Sets them.
    pub(crate) fn set(&self, debts: Vec<u64>) {
        *lock(&self.0) = debts;
    }
}

/// Who executed more than its turns gave it.
struct Shares {
    /// Instructions of each that are to be taken from its next turns, [`SLICE`] at most from each.
    debts: Vec<u64>,
}

impl Shares {
    /// Whether `turn` may come out of order. If others interrupt it all the time it may not, and what comes
    /// waits for its next turn in order, which has as many instructions left.
    fn may_come(&self, turn: usize) -> bool {
        self.debts[turn] <= SLICE - 2 * SHORT
    }

    /// What the turn in order of `turn` has left.
    fn begin(&mut self, turn: usize) -> u64 {
        let paid = self.debts[turn].min(SLICE);
        self.debts[turn] -= paid;
        SLICE - paid
    }
}

/// What vCPUs run beside.
pub(crate) struct Around<'a, V> {
    pub timers: &'a TimerQueue,
    pub clock: &'a VirtualClock,
    pub shared: &'a Shared,
    pub control: &'a Control<V>,
    /// How often the modelled host ticks, if it does.
    pub tick: Option<Nanos>,
}

impl<V> Clone for Around<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Around<'_, V> {}

/// How a turn went.
struct Turn {
    /// What it took: instructions, and those that would have fit into what exits took.
    used: u64,
    /// It ended for another vCPU that was interrupted, and goes on behind it.
    goes_on: bool,
}

/// Runs `vcpus` until the machine stops, from where `turns` are. `feed` hands typed input to the guest.
pub(crate) fn run<V: Runs>(vcpus: &mut [V], around: Around<'_, V>, feed: &dyn Fn(), turns: &Turns) {
    let Around { clock, shared, control, .. } = around;
    let mut shares = Shares { debts: turns.get() };
    shares.debts.resize(vcpus.len(), 0);
    // Whether something happened since the journal's last turn: looking for the second time is no round.
    let mut fresh = true;
    while !shared.stopping() {
        if let Some(journal) = shared.journal().filter(|_| std::mem::take(&mut fresh))
            && let Err(why) = journal.turn(clock.gone())
        {
            shared.finish(Event::Diverged(why));
            break;
        }
        if shared.stopping() {
            break;
        }
        feed();
        control.rest(clock.now());
        if control.asked() {
            turns.set(std::mem::take(&mut shares.debts));
            control.attend(vcpus);
            shares.debts = turns.get();
            shares.debts.resize(vcpus.len(), 0);
        }
        let mut ran = false;
        for turn in 0..vcpus.len() {
            let mut left = shares.begin(turn);
            // One that has none executed before its turn came.
            ran |= left == 0;
            while left > 0 {
                let took = take_turn(vcpus, turn, left, Some(&shares), around);
                ran |= took.used > 0;
                shares.debts[turn] += took.used.saturating_sub(left);
                left = left.saturating_sub(took.used);
                ran |= hurry(vcpus, turn, &mut shares, around);
                if !took.goes_on || shared.stopping() {
                    break;
                }
            }
        }
        if shared.panic_deadline().is_some_and(|at| at <= clock.now()) {
            shared.finish(Event::Panic("console"));
        }
        fresh |= ran;
        if !ran && !shared.stopping() {
            fresh |= skip_idle_time(vcpus, around);
        }
    }
    let now = clock.now();
    vcpus.iter_mut().for_each(|vcpu| vcpu.finish(now));
}

/// Whom vCPU `turn` interrupted comes before it goes on, and before the others. Those that interrupt each other do so until
/// they may not any more. Returns whether one executed.
fn hurry<V: Runs>(vcpus: &mut [V], turn: usize, shares: &mut Shares, around: Around<'_, V>) -> bool {
    let mut ran = false;
    loop {
        let mut used = 0;
        for other in 0..vcpus.len() {
            let wanted = vcpus[other].kicked() || due(&vcpus[other], around.clock, around.control);
            if other != turn && wanted && shares.may_come(other) {
                let took = take_turn(vcpus, other, SHORT, None, around);
                shares.debts[other] += took.used;
                used += took.used;
            }
        }
        ran |= used > 0;
        if used == 0 || around.shared.stopping() {
            return ran;
        }
    }
}

/// Gives vCPU `turn` up to `most` instructions. A turn in order, with the shares of all, ends for those that come out of order.
fn take_turn<V: Runs>(
    vcpus: &mut [V],
    turn: usize,
    most: u64,
    shares: Option<&Shares>,
    around: Around<'_, V>,
) -> Turn {
    vcpus[turn].does(Doing::Exit);
    vcpus[turn].begin_turn(around.tick);
    let took = execute(vcpus, turn, most, shares, around);
    vcpus[turn].does(Doing::Waiting);
    took
}

fn execute<V: Runs>(
    vcpus: &mut [V],
    turn: usize,
    most: u64,
    shares: Option<&Shares>,
    around: Around<'_, V>,
) -> Turn {
    let Around { timers, clock, shared, control, .. } = around;
    let ends = |used| Turn { used, goes_on: false };
    let (mut used, mut entered) = (0_u64, false);
    while used < most {
        // What the modelled host took of it, it cannot execute.
        let stalled = vcpus[turn].take_stalled(clock, vcpus.len() as u64);
        if stalled > 0 {
            clock.retired(stalled);
            used += stalled;
            if used >= most {
                break;
            }
        }
        vcpus[turn].be_kicked();
        if control.holds(&vcpus[turn]) {
            return ends(used);
        }
        timers.run(clock.now());
        if shared.asleep() {
            return ends(used);
        }
        // Before it is prepared: what that injects, only entering it delivers.
        if entered && shares.is_some_and(|shares| others_due(vcpus, turn, shares, around)) {
            vcpus[turn].go_on();
            return Turn { used, goes_on: true };
        }
        // What a timer of the machine signalled is not a kick at the next entry as well.
        vcpus[turn].be_kicked();
        let entry = vcpus[turn].prepare();
        if shared.stopping() {
            return ends(used);
        }
        let until = match entry {
            Entry::Sleep { .. } => return ends(used),
            Entry::Finish => Until { counter: None, instructions: Some(1) },
            Entry::Run { deadline } => {
                let budget = (most - used).min(until_next_deadline(vcpus, turn, shares, around));
                Until { counter: deadline, instructions: Some(budget.max(1)) }
            }
        };
        let vcpu = &mut vcpus[turn];
        let before = vcpu.retired();
        let after = vcpu.enter(until);
        entered = true;
        // An exit costs at least one, so that a guest whose every instruction faults ends its turn.
        used += vcpu.retired().saturating_sub(before).max(1);
        match after {
            After::Nothing => {}
            After::Yield => return ends(used),
            After::Ends(event) => shared.finish(event),
            After::Debug(cause) => {
                control.met(&vcpus[turn], cause);
                return ends(used);
            }
        }
        // An interrupt for another vCPU arrives at once, as it does where all run at the same time, and is not
        // merged with what comes later in the turn.
        let wanted = |other: usize| {
            other != turn && shares.is_some_and(|shares| shares.may_come(other)) && vcpus[other].kicked()
        };
        if (0..vcpus.len()).any(wanted) {
            vcpus[turn].go_on();
            return Turn { used, goes_on: true };
        }
    }
    vcpus[turn].go_on();
    ends(used)
}

/// When a timer of `vcpu`'s own is due. That of a vCPU that a debugger holds has to wait.
fn deadline<V: Runs>(vcpu: &V, control: &Control<V>) -> Option<u64> {
    vcpu.deadline().filter(|_| !control.holds(vcpu))
}

fn due<V: Runs>(vcpu: &V, clock: &VirtualClock, control: &Control<V>) -> bool {
    deadline(vcpu, control).is_some_and(|counter| clock.instructions_until_counter(counter) == 0)
}

/// Whether the timer of another vCPU than `turn` is due: it goes first, if it may.
fn others_due<V: Runs>(vcpus: &[V], turn: usize, shares: &Shares, around: Around<'_, V>) -> bool {
    let mut others = vcpus.iter().enumerate().filter(|(other, _)| *other != turn && shares.may_come(*other));
    others.any(|(_, vcpu)| due(vcpu, around.clock, around.control))
}

/// Instructions until the first timer is due, of a vCPU or of the platform.
fn until_next_deadline<V: Runs>(
    vcpus: &[V],
    turn: usize,
    shares: Option<&Shares>,
    around: Around<'_, V>,
) -> u64 {
    let Around { timers, clock, control, .. } = around;
    let ends = |vcpu: usize| vcpu == turn || shares.is_some_and(|shares| shares.may_come(vcpu));
    let wanted = vcpus.iter().enumerate().filter(|(vcpu, _)| ends(*vcpu));
    let local = wanted
        .filter_map(|(_, vcpu)| deadline(vcpu, control))
        .map(|counter| clock.instructions_until_counter(counter));
    let platform = timers.next().map(|at| clock.instructions_until(at));
    local.chain(platform).min().unwrap_or(u64::MAX)
}

/// All vCPUs sleep: the next deadline is now. Without one only typed input, or the end, can come. Returns whether something came or time passed.
fn skip_idle_time<V: Runs>(vcpus: &[V], around: Around<'_, V>) -> bool {
    let Around { timers, clock, shared, control, .. } = around;
    if vcpus.iter().all(|vcpu| control.holds(vcpu)) {
        return false;
    }
    let local = vcpus.iter().filter(|_| !shared.asleep()).filter_map(|vcpu| deadline(vcpu, control)).min();
    let platform = [timers.next(), shared.panic_deadline()].into_iter().flatten().min();
    let sooner = |a: u64, b: Option<u64>| b.is_none_or(|b| a <= b);
    let to_local = local.map(|counter| clock.instructions_until_counter(counter));
    let to_platform = platform.map(|at| clock.instructions_until(at));
    if let Some(journal) = shared.journal() {
        let limit = [to_local, to_platform].into_iter().flatten().min();
        match await_outside(journal, limit, around) {
            Awaited::Deadline => {}
            Awaited::Came => return true,
            Awaited::Nothing => return false,
        }
    }
    match (local, platform) {
        (Some(counter), _) if to_local.is_some_and(|n| sooner(n, to_platform)) => {
            clock.advance_to_counter(counter)
        }
        (_, Some(at)) => clock.advance_to(at),
        _ => {
            shared.timer.wait(None);
            return false;
        }
    }
    true
}

/// What a guest that sleeps was woken by.
enum Awaited {
    /// Its own next deadline.
    Deadline,
    /// Something from outside, at the time that it is now.
    Came,
    /// Nothing: somebody wants to look, or to end it.
    Nothing,
}

/// All vCPUs sleep for `limit` instructions. What is recorded sleeps as long as that takes, as others take real time to answer; what is played
/// again knows when the next piece came.
fn await_outside<V: Runs>(journal: &Journal, limit: Option<u64>, around: Around<'_, V>) -> Awaited {
    let Around { clock, shared, control, .. } = around;
    match journal.next() {
        Next::At(count) => {
            let wait = count.saturating_sub(clock.gone());
            clock.retired(wait.min(limit.unwrap_or(u64::MAX)));
            return Awaited::Came;
        }
        Next::Later | Next::Nothing if limit.is_none() => {
            let why = "the replay is another run than the recorded one: here all vCPUs wait for ever";
            shared.finish(Event::Diverged(why.into()));
            return Awaited::Nothing;
        }
        Next::Later | Next::Nothing => return Awaited::Deadline,
        Next::Unknown => {}
    }
    let begin = Instant::now();
    loop {
        let passed = clock.instructions_of(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if journal.has_come() {
            clock.retired(passed.min(limit.unwrap_or(u64::MAX)));
            return Awaited::Came;
        }
        if shared.stopping() || control.asked() {
            return Awaited::Nothing;
        }
        let left = limit.map(|limit| limit.saturating_sub(passed));
        if left == Some(0) {
            return Awaited::Deadline;
        }
        shared.timer.wait(left.map(|left| Duration::from_nanos(clock.nanos_of(left).max(1))));
    }
}
