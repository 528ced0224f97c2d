//! What every thread of a machine shares: why it ends, what wakes it, and what was typed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use satori_bus::{Nanos, PowerEvent, PowerSink};
use satori_journal::{Journal, Source};
pub(crate) use satori_lock::lock;
use satori_seam::Kick;
use serde::{Deserialize, Serialize};

use crate::Event;

/// A flag that one thread sleeps on. A signal that comes before the sleep ends it at once, so
/// none is lost between looking and sleeping.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<BellState>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    rung: bool,
    /// Threads that sleep: where there is none, ringing costs no system call.
    sleep: u32,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let mut state = lock(&self.state);
        state.rung = true;
        if state.sleep > 0 {
            drop(state);
            self.condvar.notify_all();
        }
    }

    /// Whether it was rung since somebody slept on it last.
    pub(crate) fn rung(&self) -> bool {
        lock(&self.state).rung
    }

    /// Sleeps until rung, or for `limit`; returns whether it was rung.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        let mut state = lock(&self.state);
        if !state.rung {
            state.sleep += 1;
            state = match limit {
                // A spurious return is one more look at everything, which every caller does.
                Some(limit) => self.condvar.wait_timeout(state, limit).unwrap_or_else(|p| p.into_inner()).0,
                None => self.condvar.wait(state).unwrap_or_else(|p| p.into_inner()),
            };
            state.sleep -= 1;
        }
        std::mem::take(&mut state.rung)
    }
}

/// How one vCPU is brought out of the guest, or out of its sleep.
#[derive(Debug, Default)]
pub(crate) struct VpBell {
    pub kick: Arc<Kick>,
    pub bell: Bell,
    /// Rings when it may execute again, see [`crate::cores::Cores`].
    pub place: Bell,
}

/// The bells of the vCPUs of one life of the machine, between two resets.
#[derive(Debug, Default)]
pub(crate) struct Bells(pub Vec<VpBell>);

impl Bells {
    pub(crate) fn new(kicks: impl IntoIterator<Item = Arc<Kick>>) -> Arc<Self> {
        let bell = |kick| VpBell { kick, bell: Bell::default(), place: Bell::default() };
        Arc::new(Bells(kicks.into_iter().map(bell).collect()))
    }

    /// Brings a vCPU out of the guest, or out of its sleep.
    pub(crate) fn wake(&self, vcpu: u32) {
        if let Some(vcpu) = self.0.get(vcpu as usize) {
            vcpu.kick.kick();
            vcpu.bell.ring();
        }
    }
}

/// Bytes typed ahead of the guest; what is beyond is refused, and the sender waits.
const INPUT_LIMIT: usize = 64 << 10;

/// Guest time that a guest gets, once its console matched, to print the trace behind the line.
const PANIC_GRACE: Nanos = 200_000_000;

/// What a journal has of the machine's own source.
const STOP: u8 = 0;
const BUTTON: u8 = 1;
const TIMEOUT: u8 = 2;
/// And of what is typed: bytes behind this, or a break.
const BYTES: u8 = 0;
const BREAK: u8 = 1;

/// No panic was seen on the console.
const NO_PANIC: u64 = u64::MAX;

/// Kept together with [`Shared::stopping`].
#[derive(Debug, Default)]
struct Events {
    first: Option<Event>,
    /// What came from outside behind a reset, and counts if the machine would live again.
    behind_reset: Option<Event>,
}

pub(crate) struct Shared {
    stopping: AtomicBool,
    /// The machine sleeps (ACPI S3): its vCPUs have no power, its timers run on.
    asleep: AtomicBool,
    /// Somebody outside does not want to wait any longer.
    stop_asked: AtomicBool,
    events: Mutex<Events>,
    /// Guest time at which a panic seen on the console ends the run.
    panic_at: AtomicU64,
    bells: Mutex<Arc<Bells>>,
    /// Rings for the thread that runs timers.
    pub timer: Bell,
    /// Rings for the thread that watches the wall clock.
    pub watch: Bell,
    input: Mutex<VecDeque<Typed>>,
    /// What the guest gets beside what is typed, as it is ready for it.
    script: Mutex<VecDeque<u8>>,
    /// Counts what the guest sends to its serial ports and what its devices answer.
    pub moved: Arc<AtomicU64>,
    /// How many bytes the guest is ready to take.
    ready: AtomicUsize,
    /// Who is told when that is more than none.
    on_ready: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// By which everything from outside comes, where the run is recorded or played again; and the source of what is typed.
    journal: OnceLock<(Journal, Source)>,
    /// Presses the power button of the life that there is now.
    button: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// See [`Shared::save_input`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedInput {
    typed: Vec<Option<u8>>,
    script: Vec<u8>,
    panic_at: u64,
    asleep: bool,
}

/// What goes over the line to the guest's serial port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Typed {
    Byte(u8),
    Break,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stopping", &self.stopping).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Shared {
            stopping: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            stop_asked: AtomicBool::new(false),
            events: Mutex::default(),
            panic_at: AtomicU64::new(NO_PANIC),
            bells: Mutex::default(),
            timer: Bell::default(),
            watch: Bell::default(),
            input: Mutex::default(),
            script: Mutex::default(),
            moved: Arc::default(),
            ready: AtomicUsize::new(0),
            on_ready: Mutex::default(),
            journal: OnceLock::new(),
            button: Mutex::default(),
        })
    }

    /// Sets what pressing the power button does, from a life's beginning on.
    pub(crate) fn on_button(&self, press: impl Fn() + Send + 'static) {
        *lock(&self.button) = Some(Box::new(press));
    }

    /// Has everything from outside come by `journal`.
    pub(crate) fn set_journal(self: &Arc<Self>, journal: &Journal) {
        let (machine, typed) = (journal.machine(), journal.source("typed"));
        let weak = || Arc::downgrade(self);
        let me = weak();
        machine.to(move |bytes| {
            let Some(shared) = me.upgrade() else { return };
            match bytes.first() {
                Some(&STOP) => shared.finish(Event::Stopped),
                Some(&TIMEOUT) => shared.finish(Event::Timeout),
                Some(&BUTTON) => {
                    shared.press();
                }
                _ => {}
            }
        });
        let me = weak();
        typed.to(move |bytes| {
            let Some(shared) = me.upgrade() else { return };
            match bytes.split_first() {
                Some((&BREAK, _)) => shared.take_break(),
                Some((_, bytes)) => {
                    shared.take_input(bytes);
                }
                None => {}
            }
        });
        let me = weak();
        journal.on_arrival(move || me.upgrade().iter().for_each(|shared| shared.timer.ring()));
        let _ = self.journal.set((journal.clone(), typed));
    }

    /// That journal.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.get().map(|(journal, _)| journal)
    }

    /// The same, if it records.
    fn records(&self) -> Option<&(Journal, Source)> {
        self.journal.get().filter(|(journal, _)| !journal.replays())
    }

    /// The wall clock ends the run.
    pub(crate) fn time_is_up(&self) {
        match self.records() {
            Some((journal, _)) => journal.machine().bring(&[TIMEOUT]),
            None => self.finish(Event::Timeout),
        }
    }

    /// Presses the power button; false where there is none.
    pub(crate) fn press_power_button(&self) -> bool {
        match self.journal.get() {
            // Played again, only what was recorded presses it.
            Some((journal, _)) => {
                journal.machine().bring(&[BUTTON]);
                lock(&self.button).is_some()
            }
            None => self.press(),
        }
    }

    fn press(&self) -> bool {
        let button = lock(&self.button);
        button.iter().for_each(|press| press());
        button.is_some()
    }

    /// Ends the run, or this life of it, by `event`, unless another came first.
    pub(crate) fn finish(&self, event: Event) {
        {
            let mut events = lock(&self.events);
            if let Some(first) = &events.first {
                let outside =
                    matches!(event, Event::Stopped | Event::Timeout | Event::Diverged(_) | Event::Failed(_));
                if matches!(first, Event::Reset(_) | Event::Woken) && outside {
                    events.behind_reset.get_or_insert(event);
                }
                return;
            }
            // `panic=-1` resets before the grace is over.
            let dying = matches!(event, Event::Reset(_) | Event::PowerOff | Event::TripleFault { .. });
            let panicked = self.panic_at.load(Ordering::SeqCst) != NO_PANIC;
            events.first = Some(if dying && panicked { Event::Panic("console") } else { event });
            self.stopping.store(true, Ordering::SeqCst);
        }
        self.ring_all();
    }

    fn ring_all(&self) {
        self.wake_all();
        self.watch.ring();
    }

    /// Brings every vCPU out of the guest or its sleep.
    pub(crate) fn wake_all(&self) {
        let bells = lock(&self.bells).clone();
        (0..bells.0.len() as u32).for_each(|vcpu| bells.wake(vcpu));
        bells.0.iter().for_each(|vcpu| vcpu.place.ring());
        self.timer.ring();
    }

    /// Ends the run because somebody outside does not want to wait any longer.
    pub(crate) fn stop(&self) {
        self.stop_asked.store(true, Ordering::SeqCst);
        match self.records() {
            Some((journal, _)) => journal.machine().bring(&[STOP]),
            None => self.finish(Event::Stopped),
        }
    }

    /// Whether [`Shared::stop`] was called, also behind the end.
    pub(crate) fn stop_asked(&self) -> bool {
        self.stop_asked.load(Ordering::SeqCst)
    }

    /// Whether every loop must end.
    #[inline]
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The event that ended this life.
    pub(crate) fn event(&self) -> Option<Event> {
        lock(&self.events).first.clone()
    }

    /// Whether the machine sleeps, and no vCPU may execute.
    #[inline]
    pub(crate) fn asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// Forgets a reset, or that the machine woke, so that it can live again, unless something from outside came
    /// behind it. Another event stays.
    pub(crate) fn revive(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        let mut events = lock(&self.events);
        if let Some(Event::Reset(_) | Event::Woken) = events.first {
            events.first = events.behind_reset.take();
            self.stopping.store(events.first.is_some(), Ordering::SeqCst);
        }
    }

    /// Gives this life's vCPUs.
    pub(crate) fn set_bells(&self, bells: Arc<Bells>) {
        *lock(&self.bells) = bells;
        // A stop between two lives has rung the old ones.
        if self.stopping() {
            self.ring_all();
        }
    }

    /// The console matched the panic pattern at guest time `now`.
    pub(crate) fn console_panicked(&self, now: Nanos) {
        let at = now.saturating_add(PANIC_GRACE).min(NO_PANIC - 1);
        if self.panic_at.compare_exchange(NO_PANIC, at, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.timer.ring();
        }
    }

    /// Guest time at which the run ends because of the console.
    pub(crate) fn panic_deadline(&self) -> Option<Nanos> {
        let at = self.panic_at.load(Ordering::SeqCst);
        (at != NO_PANIC).then_some(at)
    }

    /// Takes bytes for the guest's serial port; returns how many there was room for.
    pub(crate) fn offer_input(&self, bytes: &[u8]) -> usize {
        if let Some((_, typed)) = self.journal.get() {
            typed.bring(&[&[BYTES][..], bytes].concat());
            return bytes.len();
        }
        self.take_input(bytes)
    }

    fn take_input(&self, bytes: &[u8]) -> usize {
        let taken = {
            let mut input = lock(&self.input);
            let limit = if self.journal.get().is_some() { usize::MAX } else { INPUT_LIMIT };
            let room = limit.saturating_sub(input.len()).min(bytes.len());
            input.extend(bytes[..room].iter().copied().map(Typed::Byte));
            room
        };
        self.timer.ring();
        taken
    }

    /// Takes a break for the guest's serial port, behind the bytes that were offered.
    pub(crate) fn offer_break(&self) {
        match self.journal.get() {
            Some((_, typed)) => typed.bring(&[BREAK]),
            None => self.take_break(),
        }
    }

    fn take_break(&self) {
        let mut input = lock(&self.input);
        if input.len() < INPUT_LIMIT {
            input.push_back(Typed::Break);
        }
        drop(input);
        self.timer.ring();
    }

    /// Lets `take` have the waiting bytes up to the next break, of which it returns how many it took, and `broken`
    /// the break; it returns whether it took that.
    pub(crate) fn feed_input(&self, take: impl Fn(&[u8]) -> usize, broken: impl Fn() -> bool) {
        let mut input = lock(&self.input);
        while let Some(first) = input.front() {
            if *first == Typed::Break {
                if !broken() {
                    return;
                }
                input.pop_front();
                continue;
            }
            let bytes: Vec<u8> = input
                .iter()
                .map_while(|typed| match typed {
                    Typed::Byte(byte) => Some(*byte),
                    Typed::Break => None,
                })
                .collect();
            let taken = take(&bytes);
            input.drain(..taken);
            if taken < bytes.len() {
                return;
            }
        }
    }

    /// The guest gets these bytes as it is ready for them.
    pub(crate) fn set_script(&self, bytes: Vec<u8>) {
        *lock(&self.script) = bytes.into();
    }

    /// Lets `take` have as many bytes of the script as the guest is ready for.
    pub(crate) fn feed_script(&self, take: impl FnOnce(&[u8]) -> usize) {
        let room = self.ready.load(Ordering::Acquire);
        if room == 0 {
            return;
        }
        let mut script = lock(&self.script);
        let block: Vec<u8> = script.iter().take(room).copied().collect();
        if !block.is_empty() {
            let taken = take(&block);
            script.drain(..taken);
        }
    }

    /// What waits to be typed (a break is none), the rest of the script, and when the console ends the run.
    pub(crate) fn save_input(&self) -> SavedInput {
        let byte = |typed: &Typed| match typed {
            Typed::Byte(byte) => Some(*byte),
            Typed::Break => None,
        };
        let typed = lock(&self.input).iter().map(byte).collect();
        let script = lock(&self.script).iter().copied().collect();
        let (panic_at, asleep) = (self.panic_at.load(Ordering::SeqCst), self.asleep());
        SavedInput { typed, script, panic_at, asleep }
    }

    /// Takes that back.
    pub(crate) fn restore_input(&self, saved: SavedInput) {
        let typed = saved.typed.into_iter().take(INPUT_LIMIT);
        *lock(&self.input) = typed.map(|typed| typed.map_or(Typed::Break, Typed::Byte)).collect();
        *lock(&self.script) = saved.script.into();
        self.panic_at.store(saved.panic_at, Ordering::SeqCst);
        self.asleep.store(saved.asleep, Ordering::SeqCst);
    }

    /// How many bytes the guest is ready to take.
    pub(crate) fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    /// Sets who is told, by a thread that must not wait, when that becomes more than none.
    pub(crate) fn on_ready(&self, told: impl Fn() + Send + 'static) {
        *lock(&self.on_ready) = Some(Box::new(told));
    }

    /// The guest is ready to take so many bytes.
    pub(crate) fn set_ready(&self, room: usize) {
        self.ready.store(room, Ordering::Release);
        if room == 0 {
            return;
        }
        if let Some(told) = &*lock(&self.on_ready) {
            told();
        }
        self.timer.ring();
    }
}

impl PowerSink for Shared {
    fn power(&self, event: PowerEvent) {
        self.finish(match event {
            PowerEvent::PowerOff => Event::PowerOff,
            PowerEvent::Reset(by) => Event::Reset(by),
            PowerEvent::DebugExit(value) => Event::DebugExit(value),
            PowerEvent::Panic(by) => Event::Panic(by),
            PowerEvent::Wake => Event::Woken,
            PowerEvent::Sleep => {
                self.asleep.store(true, Ordering::SeqCst);
                return self.wake_all();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_wins_and_only_a_reset_is_forgotten() {
        let shared = Shared::new();
        shared.power(PowerEvent::Reset("0xcf9"));
        shared.power(PowerEvent::PowerOff);
        assert_eq!(shared.event(), Some(Event::Reset("0xcf9")));
        shared.revive();
        assert!(!shared.stopping());
        shared.finish(Event::Stopped);
        shared.finish(Event::Timeout);
        shared.revive();
        assert_eq!((shared.stopping(), shared.event()), (true, Some(Event::Stopped)));
    }

    #[test]
    fn a_stop_behind_a_reset_is_not_lost() {
        let shared = Shared::new();
        shared.power(PowerEvent::Reset("0xcf9"));
        shared.finish(Event::Stopped);
        assert_eq!(shared.event(), Some(Event::Reset("0xcf9")), "it is what ends a run that ends on resets");
        shared.revive();
        assert_eq!((shared.stopping(), shared.event()), (true, Some(Event::Stopped)));
    }

    #[test]
    fn a_reset_after_a_panic_on_the_console_is_the_panic() {
        let shared = Shared::new();
        shared.console_panicked(5);
        assert_eq!(shared.panic_deadline(), Some(PANIC_GRACE + 5));
        shared.power(PowerEvent::Reset("i8042"));
        assert_eq!(shared.event(), Some(Event::Panic("console")));
    }

    #[test]
    fn a_bell_rung_before_the_sleep_ends_it() {
        let bells = Bells::new([Arc::default(), Arc::default()]);
        bells.wake(1);
        bells.wake(7);
        assert!(bells.0[1].bell.wait(None) && bells.0[1].kick.take());
        assert!(!bells.0[0].bell.wait(Some(Duration::from_millis(1))));
    }

    #[test]
    fn input_beyond_the_limit_is_refused() {
        let shared = Shared::new();
        assert_eq!(shared.offer_input(&vec![1; INPUT_LIMIT - 1]), INPUT_LIMIT - 1);
        assert_eq!(shared.offer_input(&[2, 3]), 1);
        shared.feed_input(|bytes| bytes.len() - 1, || unreachable!("nobody sent a break"));
        let all = |wanted: &'static [u8]| {
            move |bytes: &[u8]| (bytes == wanted).then_some(bytes.len()).expect("these")
        };
        shared.feed_input(all(&[2]), || unreachable!("nobody sent a break"));
        shared.feed_input(|_| unreachable!("all was taken"), || unreachable!("nobody sent a break"));
        shared.offer_input(&[4]);
        shared.offer_break();
        shared.offer_input(&[5]);
        shared.feed_input(all(&[4]), || false);
        shared.feed_input(all(&[5]), || true);
    }

    #[test]
    fn a_script_is_fed_as_far_as_the_guest_is_ready() {
        let shared = Shared::new();
        shared.set_script(b"abc".to_vec());
        shared.feed_script(|_| unreachable!("the guest is not ready"));
        shared.set_ready(2);
        shared.feed_script(|bytes| (bytes == b"ab").then_some(1).expect("as many as it takes"));
        shared.feed_script(|bytes| (bytes == b"bc").then_some(2).expect("the rest"));
        shared.feed_script(|_| unreachable!("all was taken"));
    }
}
