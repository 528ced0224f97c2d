//! Virtual time: one host thread runs all vCPUs in turn, and time is the instructions that they
//! have retired. Nothing of the host decides anything, so equal inputs give equal runs.

use satori_bus::{Clock, Nanos, TimerQueue};
use satori_engine::{Doing, TimeSource, Until};

use crate::debugger::Hub;
use crate::shared::Shared;
use crate::vp::{After, Entry, Vp};
use crate::{Event, VirtualClock};

/// Instructions of one turn, if nothing ends it sooner.
const SLICE: u64 = 10_000;

/// Runs `vps` until the machine stops. `feed` hands typed input to the guest.
pub(crate) fn run(
    vps: &mut [Vp],
    timers: &TimerQueue,
    clock: &VirtualClock,
    shared: &Shared,
    feed: &dyn Fn(),
    hub: Option<&Hub>,
    tick: Option<Nanos>,
) {
    while !shared.stopping() {
        feed();
        if let Some(hub) = hub {
            hub.attend(vps);
        }
        let mut ran = false;
        for turn in 0..vps.len() {
            vps[turn].does(Doing::Exit);
            vps[turn].begin_turn(tick);
            ran |= take_turn(vps, turn, timers, clock, shared, hub);
            vps[turn].does(Doing::Waiting);
            // Whom it interrupted comes before the others, once, so that two that interrupt each other do not
            // keep the rest waiting.
            for other in 0..vps.len() {
                if other != turn && vps[other].kicked() {
                    vps[other].does(Doing::Exit);
                    vps[other].begin_turn(tick);
                    ran |= take_turn(vps, other, timers, clock, shared, hub);
                    vps[other].does(Doing::Waiting);
                }
            }
        }
        if shared.panic_deadline().is_some_and(|at| at <= clock.now()) {
            shared.finish(Event::Panic("console"));
        }
        if !ran && !shared.stopping() {
            skip_idle_time(vps, timers, clock, shared, hub);
        }
    }
    let now = clock.now();
    vps.iter_mut().for_each(|vp| vp.finish(now));
}

/// Gives vCPU `turn` up to a slice; returns whether it ran at all.
fn take_turn(
    vps: &mut [Vp],
    turn: usize,
    timers: &TimerQueue,
    clock: &VirtualClock,
    shared: &Shared,
    hub: Option<&Hub>,
) -> bool {
    let mut left = SLICE;
    while left > 0 {
        // What the modelled host took of it, it cannot execute.
        let stalled = clock.instructions_of(vps[turn].take_stalled()) / vps.len() as u64;
        if stalled > 0 {
            clock.retired(stalled);
            left = left.saturating_sub(stalled);
            if left == 0 {
                return true;
            }
        }
        vps[turn].be_kicked();
        if held(hub, &vps[turn]) {
            return left < SLICE;
        }
        timers.run(clock.now());
        // Before it is prepared: what that injects, only entering it delivers.
        if left < SLICE && others_due(vps, turn, clock, hub) {
            return true;
        }
        // What a timer of the machine signalled is not a kick at the next entry as well.
        vps[turn].be_kicked();
        let entry = vps[turn].prepare();
        if shared.stopping() {
            return true;
        }
        let until = match entry {
            Entry::Sleep { .. } => return left < SLICE,
            Entry::Finish => Until { tsc: None, instructions: Some(1) },
            Entry::Run { deadline } => {
                let budget = left.min(until_next_deadline(vps, timers, clock, hub));
                Until { tsc: deadline, instructions: Some(budget.max(1)) }
            }
        };
        let vp = &mut vps[turn];
        let before = vp.vcpu().retired();
        let after = vp.enter(until);
        // An exit costs at least one, so that a guest whose every instruction faults ends its turn.
        left = left.saturating_sub(vp.vcpu().retired().saturating_sub(before).max(1));
        match after {
            After::Nothing => {}
            After::Yield => return true,
            After::TripleFault => shared.finish(Event::TripleFault { vcpu: vps[turn].index }),
            After::Debug(cause) => {
                hub.into_iter().for_each(|hub| hub.met(&vps[turn], cause));
                return true;
            }
        }
        // An interrupt for another vCPU arrives at once, as it does where all run at the same time, and is not
        // merged with what comes later in the turn.
        if vps.iter().enumerate().any(|(other, vp)| other != turn && vp.kicked()) {
            vps[turn].go_on();
            return true;
        }
    }
    true
}

/// Whether a debugger holds `vp`.
fn held(hub: Option<&Hub>, vp: &Vp) -> bool {
    hub.is_some_and(|hub| hub.holds(vp))
}

/// When local APIC timers are due. Those of a vCPU that a debugger holds have to wait.
fn deadlines(vps: &[Vp], hub: Option<&Hub>) -> impl Iterator<Item = u64> {
    vps.iter().filter(move |vp| !held(hub, vp)).filter_map(Vp::deadline)
}

/// Whether the timer of another vCPU than `turn` is due: it goes first.
fn others_due(vps: &[Vp], turn: usize, clock: &VirtualClock, hub: Option<&Hub>) -> bool {
    let (before, rest) = vps.split_at(turn);
    let due = |vps| deadlines(vps, hub).any(|tsc| clock.instructions_until_tsc(tsc) == 0);
    due(before) || due(&rest[1..])
}

/// Instructions until the first local APIC or platform timer is due.
fn until_next_deadline(vps: &[Vp], timers: &TimerQueue, clock: &VirtualClock, hub: Option<&Hub>) -> u64 {
    let local = deadlines(vps, hub).map(|tsc| clock.instructions_until_tsc(tsc));
    let platform = timers.next().map(|at| clock.instructions_until(at));
    local.chain(platform).min().unwrap_or(u64::MAX)
}

/// All vCPUs sleep: the next deadline is now. Without one only typed input, or the end, can come.
fn skip_idle_time(vps: &[Vp], timers: &TimerQueue, clock: &VirtualClock, shared: &Shared, hub: Option<&Hub>) {
    if hub.is_some_and(|hub| vps.iter().all(|vp| hub.holds(vp))) {
        return;
    }
    let local = deadlines(vps, hub).min();
    let platform = [timers.next(), shared.panic_deadline()].into_iter().flatten().min();
    let sooner = |a: u64, b: Option<u64>| b.is_none_or(|b| a <= b);
    let to_local = local.map(|tsc| clock.instructions_until_tsc(tsc));
    let to_platform = platform.map(|at| clock.instructions_until(at));
    match (local, platform) {
        (Some(tsc), _) if to_local.is_some_and(|n| sooner(n, to_platform)) => clock.advance_to_tsc(tsc),
        (_, Some(at)) => clock.advance_to(at),
        _ => {
            shared.timer.wait(None);
        }
    }
}
