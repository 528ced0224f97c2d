//! The control plane of a machine: whoever is outside of it reaches it here, the debugger, signals, who types, who looks
//! at its counters.
//!
//! The thread that runs a vCPU owns it. So no other thread ever touches one: it asks for a
//! stop, and once every vCPU is parked it hands closures to their threads. Until somebody asks, the plane costs a vCPU one load
//! before each entry.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};

use satori_bus::{Clock, Nanos};
use satori_profile::Watched;
use satori_seam::{DebugCause, DebugPlan, Space};

use crate::life::Time;
use crate::runs::Runs;
use crate::saved::Rooms;
use crate::shared::{Shared, lock};

/// What a released vCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It stays stopped.
    Hold,
    Continue,
    /// One instruction.
    Step,
    /// Instructions until RIP leaves these addresses, the second exclusive.
    StepRange(u64, u64),
}

/// A vCPU met something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub vcpu: usize,
    pub cause: DebugCause,
}

/// [`Control::rest_at`] where nobody wants it.
const NEVER: Nanos = Nanos::MAX;

type Request<V> = Box<dyn FnOnce(&mut V) + Send>;

struct Slot<V> {
    action: Action,
    parked: bool,
    request: Option<Request<V>>,
    /// The engine does not know what is asked yet.
    stale: bool,
}

struct State<V> {
    slots: Vec<Slot<V>>,
    /// Breakpoints and watchpoints, for all vCPUs.
    plan: DebugPlan,
    /// Events hold off while a vCPU is stepped, as they do on QEMU.
    step_events: bool,
    /// What was met and not told yet.
    stops: VecDeque<Stop>,
    ended: bool,
    /// How many have suspended it and not let it go on.
    suspends: u32,
    /// The partition of the machine's life.
    space: Option<Arc<dyn Space>>,
}

/// Where each vCPU counts, for who looks without stopping it.
#[derive(Default)]
struct Counters {
    wanted: bool,
    vcpus: Vec<Watched>,
}

/// Where those outside and the vCPUs of a machine meet.
pub(crate) struct Control<V> {
    state: Mutex<State<V>>,
    /// A vCPU may be held, or does not know yet what a debugger asks: each has to attend. Only ever false if none is.
    asked: AtomicBool,
    changed: Condvar,
    /// Guest time from which on a machine under a virtual clock rests between two rounds of turns; [`NEVER`].
    rest_at: AtomicU64,
    /// What this life of the machine has beside its vCPUs, for whoever saves it.
    rooms: Mutex<Option<Arc<Rooms>>>,
    /// What its vCPUs count, as far as somebody looks.
    counters: Mutex<Counters>,
    pub shared: Arc<Shared>,
    time: Time,
    /// Rings the debugger when a vCPU has met something.
    notify: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl<V: Runs> Control<V> {
    /// That of a machine of so many vCPUs, which run.
    pub(crate) fn new(shared: Arc<Shared>, time: Time, vcpus: usize) -> Arc<Self> {
        let slot = || Slot { action: Action::Continue, parked: false, request: None, stale: false };
        let state = State {
            slots: (0..vcpus).map(|_| slot()).collect(),
            plan: DebugPlan::default(),
            step_events: false,
            stops: VecDeque::new(),
            ended: false,
            suspends: 0,
            space: None,
        };
        Arc::new(Control {
            state: Mutex::new(state),
            asked: AtomicBool::new(false),
            changed: Condvar::new(),
            rest_at: AtomicU64::new(NEVER),
            rooms: Mutex::new(None),
            counters: Mutex::default(),
            shared,
            time,
            notify: Mutex::new(None),
        })
    }

    /// The machine's clock.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.time.clock()
    }

    /// Lets `notify` ring a debugger. With `wait` no vCPU runs before it lets them.
    pub(crate) fn debugged(&self, wait: bool, notify: Box<dyn Fn() + Send>) {
        *lock(&self.notify) = Some(notify);
        if wait {
            self.hold(&mut lock(&self.state));
        }
    }

    /// Whether vCPUs have to attend.
    #[inline]
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    fn ask(&self, state: &State<V>) {
        let asks = |slot: &Slot<V>| slot.stale || slot.action == Action::Hold;
        self.asked.store(state.suspends > 0 || state.slots.iter().any(asks), Ordering::SeqCst);
    }

    /// For the thread that runs `vcpus`: holds still while all of them are held, and brings to
    /// them what the debugger asks.
    pub(crate) fn attend(&self, vcpus: &mut [V]) {
        let mut state = lock(&self.state);
        loop {
            let suspended = state.suspends > 0;
            if self.shared.stopping() {
                vcpus.iter().for_each(|vcpu| state.slots[vcpu.slot()].parked = false);
                drop(state);
                self.changed.notify_all();
                return;
            }
            let mut runs = false;
            for vcpu in vcpus.iter_mut() {
                let plan = state.plan.clone();
                let step_events = state.step_events;
                let slot = &mut state.slots[vcpu.slot()];
                let held = suspended || slot.action == Action::Hold;
                if !held && std::mem::take(&mut slot.stale) {
                    let step = slot.action != Action::Continue;
                    vcpu.set_debug(DebugPlan { step, ..plan }, step && !step_events);
                }
                slot.parked = held;
                runs |= !held;
            }
            self.ask(&state);
            if runs {
                return;
            }
            self.changed.notify_all();
            let request = vcpus.iter_mut().find_map(|vcpu| {
                let request = state.slots[vcpu.slot()].request.take()?;
                Some((vcpu, request))
            });
            state = match request {
                Some((vcpu, request)) => {
                    drop(state);
                    request(vcpu);
                    lock(&self.state)
                }
                None => self.changed.wait(state).unwrap_or_else(|p| p.into_inner()),
            };
        }
    }

    /// Whether `vcpu` will stand still when it attends.
    pub(crate) fn parks(&self, vcpu: &V) -> bool {
        let held = |state: &State<V>| state.suspends > 0 || state.slots[vcpu.slot()].action == Action::Hold;
        self.asked() && held(&lock(&self.state))
    }

    /// Whether somebody suspends the machine, and no debugger holds `vcpu` already: an instruction of its that is half done is
    /// executed first.
    pub(crate) fn finishes(&self, vcpu: &V) -> bool {
        let state = lock(&self.state);
        state.suspends > 0 && state.slots[vcpu.slot()].action == Action::Continue
    }

    /// Whether `vcpu` must not be entered: a debugger holds it, at once. Where the machine is suspended, turns of virtual
    /// time are ended as they would have been.
    pub(crate) fn holds(&self, vcpu: &V) -> bool {
        self.asked() && lock(&self.state).slots[vcpu.slot()].action == Action::Hold
    }

    /// `vcpu` met `cause`: all vCPUs stop, unless a range of addresses is stepped through.
    pub(crate) fn met(&self, vcpu: &V, cause: DebugCause) {
        let mut state = lock(&self.state);
        let within = match state.slots[vcpu.slot()].action {
            Action::StepRange(from, to) => (from..to).contains(&vcpu.at()),
            _ => false,
        };
        if cause == DebugCause::Step && within {
            return;
        }
        // A breakpoint will be met again when its vCPU goes on; only one of them is told.
        if state.stops.is_empty() || matches!(cause, DebugCause::Watchpoint(_)) {
            state.stops.push_back(Stop { vcpu: vcpu.slot(), cause });
        }
        self.hold(&mut state);
        drop(state);
        self.ring();
    }

    /// Rings the debugger.
    fn ring(&self) {
        if let Some(notify) = &*lock(&self.notify) {
            notify();
        }
    }

    fn hold(&self, state: &mut State<V>) {
        state.slots.iter_mut().for_each(|slot| slot.action = Action::Hold);
        self.bring_out(state);
    }

    /// Has every vCPU look at what it is to do.
    fn bring_out(&self, state: &State<V>) {
        // Before they are kicked, who look behind the kick.
        self.ask(state);
        self.shared.wake_all();
    }

    /// Stops all vCPUs and the machine's time. Returns false if the machine has ended.
    pub(crate) fn pause(&self) -> bool {
        let mut state = lock(&self.state);
        self.hold(&mut state);
        !self.stand_still(state).ended
    }

    fn stand_still<'a>(&self, mut state: MutexGuard<'a, State<V>>) -> MutexGuard<'a, State<V>> {
        while !state.ended && !state.slots.iter().all(|slot| slot.parked) {
            state = self.changed.wait(state).unwrap_or_else(|p| p.into_inner());
        }
        self.time.pause(true);
        state
    }

    /// Has all vCPUs and the machine's time stand still until [`Control::go_on`], whatever a debugger does meanwhile, or
    /// others who suspend them. A run under a virtual clock is the same run with it.
    pub(crate) fn suspend(&self) {
        let mut state = lock(&self.state);
        state.suspends += 1;
        match self.time {
            Time::Real(_) => self.bring_out(&state),
            // A kick would be seen: it ends a turn. The turns of now end soon enough.
            Time::Virtual(_) => {
                self.ask(&state);
                self.shared.timer.ring();
            }
        }
        drop(self.stand_still(state));
    }

    /// Under a virtual clock: the same between the first two rounds of turns from guest time `at` on. Returns false if the machine
    /// has ended before.
    pub(crate) fn suspend_at(&self, at: Nanos) -> bool {
        let state = lock(&self.state);
        self.rest_at.store(at.min(NEVER - 1), Ordering::SeqCst);
        self.shared.timer.ring();
        let mut state = self.stand_still(state);
        // A debugger may hold them already; otherwise whoever runs them has come to that time.
        if self.rest_at.swap(NEVER, Ordering::SeqCst) != NEVER && !state.ended {
            state.suspends += 1;
            self.ask(&state);
        }
        !state.ended
    }

    /// For the thread that runs all vCPUs, between two rounds of turns: suspends them if somebody wants it at that time.
    pub(crate) fn rest(&self, now: Nanos) {
        if self.rest_at.load(Ordering::Relaxed) > now {
            return;
        }
        let mut state = lock(&self.state);
        if self.rest_at.swap(NEVER, Ordering::SeqCst) != NEVER {
            state.suspends += 1;
            self.ask(&state);
        }
    }

    /// Whether [`Control::suspend`] has them stand still.
    pub(crate) fn suspended(&self) -> bool {
        let state = lock(&self.state);
        state.suspends > 0 && !state.ended && state.slots.iter().all(|slot| slot.parked)
    }

    /// Gives what a life of the machine has beside its vCPUs.
    pub(crate) fn set_rooms(&self, rooms: Arc<Rooms>) {
        *lock(&self.rooms) = Some(rooms);
    }

    /// Lets vCPUs count where [`Control::counted`] looks, in this life and all that follow.
    pub(crate) fn count(&self) {
        lock(&self.counters).wanted = true;
    }

    /// Gives where the vCPUs of this life count, if somebody wants it.
    pub(crate) fn set_counters(&self, vcpus: impl FnOnce() -> Vec<Watched>) {
        let mut counters = lock(&self.counters);
        if counters.wanted {
            counters.vcpus = vcpus();
        }
    }

    /// Where the vCPUs of this life count, and what they have beside them; nothing between two lives. It stops nobody.
    pub(crate) fn counted(&self) -> Option<(Arc<Rooms>, Vec<Watched>)> {
        let vcpus = lock(&self.counters).vcpus.clone();
        Some((self.rooms().filter(|_| !vcpus.is_empty())?, vcpus))
    }

    /// What this life has beside its vCPUs.
    pub(crate) fn rooms(&self) -> Option<Arc<Rooms>> {
        lock(&self.rooms).clone()
    }

    /// Lets vCPUs do what they did before [`Control::suspend`], or what a debugger has asked for since, once everybody has who
    /// suspended them.
    pub(crate) fn go_on(&self) {
        let mut state = lock(&self.state);
        let Some(others) = state.suspends.checked_sub(1) else { return };
        state.suspends = others;
        if others > 0 {
            return;
        }
        // Where a debugger holds all of them, time stands still for it.
        if state.slots.iter().any(|slot| slot.action != Action::Hold) {
            self.time.pause(false);
        }
        // Whoever suspends them next, before their thread has woken, waits until they stand still again.
        state
            .slots
            .iter_mut()
            .filter(|slot| slot.action != Action::Hold)
            .for_each(|slot| slot.parked = false);
        self.ask(&state);
        drop(state);
        self.changed.notify_all();
        self.shared.timer.ring();
    }

    /// Does `work` on the guest's memory while all vCPUs stand still; nothing if no guest lives.
    pub(crate) fn still<R>(&self, work: impl FnOnce(&dyn Space) -> R) -> Option<R> {
        self.suspend();
        let space = lock(&self.state).space.clone();
        let result = space.map(|space| work(&*space));
        self.go_on();
        result
    }

    /// Lets each vCPU do its action. Call only while all are parked.
    pub(crate) fn release(&self, actions: &[Action]) {
        let mut state = lock(&self.state);
        if !state.stops.is_empty() {
            // Another vCPU met something at the same time: that comes first.
            drop(state);
            return self.ring();
        }
        state.slots.iter_mut().for_each(|slot| slot.stale = true);
        if state.suspends == 0 {
            self.time.pause(false);
        }
        state.slots.iter_mut().zip(actions).for_each(|(slot, action)| slot.action = *action);
        self.ask(&state);
        drop(state);
        self.changed.notify_all();
        // Timers look at the time that goes on.
        self.shared.timer.ring();
    }

    /// What was met first and not told yet.
    pub(crate) fn take_stop(&self) -> Option<Stop> {
        lock(&self.state).stops.pop_front()
    }

    /// Does `work` on a vCPU, on its own thread. Nothing if it does not hold still any more.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        vcpu: usize,
        work: impl FnOnce(&mut V) -> R + Send + 'static,
    ) -> Option<R> {
        let (send, receive) = mpsc::sync_channel(1);
        let mut state = lock(&self.state);
        let slot = state.slots.get_mut(vcpu).filter(|slot| slot.parked)?;
        slot.request = Some(Box::new(move |vcpu| drop(send.send(work(vcpu)))));
        self.changed.notify_all();
        loop {
            state = self.changed.wait(state).unwrap_or_else(|p| p.into_inner());
            if let Ok(result) = receive.try_recv() {
                return Some(result);
            }
            if !state.slots[vcpu].parked || state.ended {
                state.slots[vcpu].request = None;
                return receive.try_recv().ok();
            }
        }
    }

    /// How many vCPUs there are.
    pub(crate) fn vcpus(&self) -> usize {
        lock(&self.state).slots.len()
    }

    /// Changes the breakpoints and watchpoints.
    pub(crate) fn change_plan(&self, change: impl FnOnce(&mut DebugPlan)) {
        change(&mut lock(&self.state).plan);
    }

    /// Whether events are delivered while a vCPU is stepped.
    pub(crate) fn set_step_events(&self, on: bool) {
        lock(&self.state).step_events = on;
    }

    /// The machine lives again, or for the first time, in `space`: its vCPUs know of nothing.
    pub(crate) fn live(&self, space: Arc<dyn Space>) {
        let mut state = lock(&self.state);
        state.space = Some(space);
        let debugged = state.plan != DebugPlan::default();
        for slot in &mut state.slots {
            (slot.parked, slot.request) = (false, None);
            slot.stale = debugged || slot.action != Action::Continue;
            if slot.action != Action::Hold {
                slot.action = Action::Continue;
            }
        }
        self.ask(&state);
    }

    /// Looks anew whether the machine is stopping.
    pub(crate) fn look(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// The machine's life is over, and its memory is let go.
    pub(crate) fn leave(&self) {
        lock(&self.counters).vcpus.clear();
        *lock(&self.rooms) = None;
        lock(&self.state).space = None;
    }

    /// The machine has ended.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }
}
