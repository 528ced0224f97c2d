//! Real time: a host thread for each vCPU, and one for the platform's timers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use satori_bus::{Clock, TimerQueue};
use satori_seam::{Doing, Until};

use crate::Event;
use crate::control::Control;
use crate::cores::{Cores, TURNS_A_SECOND};
use crate::devices::Devices;
use crate::runs::{After, Entry, Runs};
use crate::shared::{Shared, VpBell};

/// Turns that one in the kernel keeps its place at most, and how many times in a turn it is looked whether it still is.
/// The kernel of a guest that was put aside there may hold a lock, for which all others wait then: flushes and
/// mappings by 64 threads on three times the processors took a third less time when none was.
const TURNS_IN_KERNEL: u64 = 4;
const LOOKS_A_TURN: u64 = 16;
/// Turns between two times that a vCPU that spins gives its processor to whoever else the host has.
const TURNS_A_YIELD: u64 = 4;

/// What a vCPU runs beside.
pub(crate) struct Around<'a, V> {
    /// How many do not sleep: the only one spins for no other, and gives its time to none, which on a busy host would be somebody
    /// else's program.
    pub(crate) awake: &'a AtomicUsize,
    /// It executes while it has a place there.
    pub(crate) cores: Option<&'a Cores>,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) shared: &'a Shared,
    pub(crate) control: &'a Control<V>,
    pub(crate) devices: &'a Devices,
}

/// Runs `vcpu` on the calling thread until the machine stops.
pub(crate) fn run_vcpu<V: Runs>(vcpu: &mut V, bell: &VpBell, around: &Around<'_, V>) {
    let &Around { awake, cores, clock, shared, control, devices } = around;
    let turn = clock.counter_hz() / TURNS_A_SECOND;
    // Whether it has a place, and since when.
    let (mut placed, mut began) = (false, 0);
    let mut yielded = 0;
    loop {
        vcpu.take_kick();
        if control.asked() {
            if vcpu.owes() && !shared.stopping() && control.finishes(vcpu) {
                let after = vcpu.enter(Until { counter: None, instructions: Some(1) });
                followed(after, vcpu, shared, control);
                continue;
            }
            if let Some(cores) = cores.filter(|_| control.parks(vcpu)) {
                // One that is held keeps no place from those that are not.
                cores.leave(vcpu.index());
                placed = false;
            }
            control.attend(std::slice::from_mut(vcpu));
        }
        // After the kick was taken: whoever stops the machine says so before it kicks.
        if shared.stopping() {
            break;
        }
        if shared.asleep() {
            if let Some(cores) = cores {
                cores.leave(vcpu.index());
                placed = false;
            }
            vcpu.does(Doing::Asleep);
            bell.bell.wait(None);
            vcpu.does(Doing::Exit);
            continue;
        }
        let (mut turn_ends, mut until) = (None, None);
        if let Some(cores) = cores {
            if placed && cores.contended() {
                let now = clock.counter();
                let gone = now.wrapping_sub(began);
                if gone >= turn {
                    if gone < TURNS_IN_KERNEL * turn && vcpu.in_kernel() {
                        until = Some(now.saturating_add(turn / LOOKS_A_TURN));
                    } else {
                        (placed, began) = (!cores.hand_on(vcpu.index()), now);
                    }
                }
            }
            if !placed {
                vcpu.does(Doing::Asleep);
                placed = cores.take(vcpu.index());
                vcpu.does(Doing::Exit);
                began = clock.counter();
                continue;
            }
            turn_ends = cores.contended().then(|| until.unwrap_or_else(|| began.saturating_add(turn)));
        }
        let after = match vcpu.prepare() {
            Entry::Run { deadline } => {
                let counter = [deadline, turn_ends].into_iter().flatten().min();
                vcpu.enter(Until { counter, instructions: None })
            }
            Entry::Finish => vcpu.enter(Until { counter: None, instructions: Some(1) }),
            Entry::Sleep { deadline } => {
                if let Some(cores) = cores {
                    cores.leave(vcpu.index());
                    placed = false;
                }
                vcpu.does(Doing::Asleep);
                devices.attend(&|| bell.bell.rung() || deadline.is_some_and(|at| clock.counter() >= at));
                awake.fetch_sub(1, Ordering::Relaxed);
                bell.bell.wait(deadline.map(|counter| time_until(clock, counter)));
                awake.fetch_add(1, Ordering::Relaxed);
                vcpu.does(Doing::Exit);
                After::Nothing
            }
        };
        match after {
            After::Nothing => {}
            After::Yield if awake.load(Ordering::Relaxed) <= 1 => {}
            After::Yield => match cores {
                Some(cores) if cores.hand_on(vcpu.index()) => placed = false,
                _ => yielded = give_time(clock, yielded),
            },
            after => followed(after, vcpu, shared, control),
        }
    }
    if let Some(cores) = cores {
        cores.leave(vcpu.index());
    }
    vcpu.finish(clock.now());
}

/// What the machine does behind an exit, whoever's turn is next.
fn followed<V: Runs>(after: After, vcpu: &V, shared: &Shared, control: &Control<V>) {
    match after {
        After::Nothing | After::Yield => {}
        After::Ends(event) => shared.finish(event),
        After::Debug(cause) => control.met(vcpu, cause),
    }
}

/// Gives the host's processor to whoever else it has, unless that was done `last` within a few turns; when it was.
///
/// All other vCPUs that are awake have a processor, which the host may have given to another program: they could have ours instead. That
/// is as likely to be had by yet another program, for a turn of its own.
fn give_time(clock: &dyn Clock, last: u64) -> u64 {
    let turn = clock.counter_hz() / TURNS_A_SECOND;
    if clock.counter().wrapping_sub(last) < TURNS_A_YIELD * turn {
        return last;
    }
    std::thread::yield_now();
    clock.counter()
}

/// Host time until the partition's counter reaches `counter`, rounded up.
fn time_until(clock: &dyn Clock, counter: u64) -> Duration {
    let ticks = u128::from(counter.saturating_sub(clock.counter()));
    let nanos = (ticks * 1_000_000_000).div_ceil(u128::from(clock.counter_hz().max(1)));
    // A deadline beyond the years of a Duration is as good as one of 500 years.
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Runs the platform's timers, typed input and the console's panic deadline until the machine
/// stops.
pub(crate) fn run_timers(timers: &TimerQueue, clock: &dyn Clock, shared: &Shared, feed: &dyn Fn()) {
    while !shared.stopping() {
        let now = clock.now();
        timers.run(now);
        feed();
        let panic_at = shared.panic_deadline();
        if panic_at.is_some_and(|at| at <= now) {
            shared.finish(Event::Panic("console"));
        }
        let next = [timers.next(), panic_at].into_iter().flatten().min();
        let limit = next.map(|at| Duration::from_nanos(at.saturating_sub(clock.now())));
        if limit != Some(Duration::ZERO) && !shared.stopping() {
            shared.timer.wait(limit);
        }
    }
}
