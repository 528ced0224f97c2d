//! Stopping all vCPUs together for a debugger, looking at them, and letting them go again.
//!
//! The thread that runs a vCPU owns it. So a debugger's thread never touches one: it asks for a
//! stop, and once every vCPU is parked it hands closures to their threads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use satori_seam::{DebugCause, DebugPlan};

use crate::life::Time;
use crate::runs::Runs;
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
}

/// Where a debugger and the vCPUs of a machine meet.
pub(crate) struct Hub<V> {
    state: Mutex<State<V>>,
    changed: Condvar,
    shared: Arc<Shared>,
    time: Time,
    /// Rings the debugger when a vCPU has met something.
    notify: Mutex<Box<dyn Fn() + Send>>,
}

impl<V: Runs> Hub<V> {
    /// A place for `vcpus` of them, which start held if `wait`.
    pub fn new(
        shared: Arc<Shared>,
        time: Time,
        vcpus: usize,
        wait: bool,
        notify: Box<dyn Fn() + Send>,
    ) -> Self {
        let action = if wait { Action::Hold } else { Action::Continue };
        let slot = || Slot { action, parked: false, request: None, stale: true };
        let state = State {
            slots: (0..vcpus).map(|_| slot()).collect(),
            plan: DebugPlan::default(),
            step_events: false,
            stops: VecDeque::new(),
            ended: false,
        };
        Hub { state: Mutex::new(state), changed: Condvar::new(), shared, time, notify: Mutex::new(notify) }
    }

    /// For the thread that runs `vps`: holds still while all of them are held, and brings to
    /// them what the debugger asks.
    pub fn attend(&self, vps: &mut [V]) {
        let mut state = lock(&self.state);
        loop {
            if self.shared.stopping() {
                vps.iter().for_each(|vp| state.slots[vp.slot()].parked = false);
                drop(state);
                self.changed.notify_all();
                return;
            }
            let mut runs = false;
            for vp in vps.iter_mut() {
                let plan = state.plan.clone();
                let step_events = state.step_events;
                let slot = &mut state.slots[vp.slot()];
                let held = slot.action == Action::Hold;
                if !held && std::mem::take(&mut slot.stale) {
                    let step = slot.action != Action::Continue;
                    vp.set_debug(DebugPlan { step, ..plan }, step && !step_events);
                }
                slot.parked = held;
                runs |= !held;
            }
            if runs {
                return;
            }
            self.changed.notify_all();
            let request = vps.iter_mut().find_map(|vp| {
                let request = state.slots[vp.slot()].request.take()?;
                Some((vp, request))
            });
            state = match request {
                Some((vp, request)) => {
                    drop(state);
                    request(vp);
                    lock(&self.state)
                }
                None => self.changed.wait(state).unwrap_or_else(|p| p.into_inner()),
            };
        }
    }

    /// Whether `vp` must not be entered.
    pub fn holds(&self, vp: &V) -> bool {
        lock(&self.state).slots[vp.slot()].action == Action::Hold
    }

    /// `vp` met `cause`: all vCPUs stop, unless a range of addresses is stepped through.
    pub fn met(&self, vp: &V, cause: DebugCause) {
        let mut state = lock(&self.state);
        let within = match state.slots[vp.slot()].action {
            Action::StepRange(from, to) => (from..to).contains(&vp.at()),
            _ => false,
        };
        if cause == DebugCause::Step && within {
            return;
        }
        // A breakpoint will be met again when its vCPU goes on; only one of them is told.
        if state.stops.is_empty() || matches!(cause, DebugCause::Watchpoint(_)) {
            state.stops.push_back(Stop { vcpu: vp.slot(), cause });
        }
        self.hold(&mut state);
        drop(state);
        (lock(&self.notify))();
    }

    fn hold(&self, state: &mut State<V>) {
        for slot in &mut state.slots {
            slot.action = Action::Hold;
        }
        self.shared.wake_all();
    }

    /// Stops all vCPUs and the machine's time. Returns false if the machine has ended.
    pub fn pause(&self) -> bool {
        let mut state = lock(&self.state);
        self.hold(&mut state);
        while !state.ended && !state.slots.iter().all(|slot| slot.parked) {
            state = self.changed.wait(state).unwrap_or_else(|p| p.into_inner());
        }
        self.time.pause(true);
        !state.ended
    }

    /// Lets each vCPU do its action. Call only while all are parked.
    pub fn release(&self, actions: &[Action]) {
        let mut state = lock(&self.state);
        if !state.stops.is_empty() {
            // Another vCPU met something at the same time: that comes first.
            drop(state);
            return (lock(&self.notify))();
        }
        self.time.pause(false);
        for (slot, action) in state.slots.iter_mut().zip(actions) {
            (slot.action, slot.stale) = (*action, true);
        }
        drop(state);
        self.changed.notify_all();
        // Timers look at the time that goes on.
        self.shared.timer.ring();
    }

    /// What was met first and not told yet.
    pub fn take_stop(&self) -> Option<Stop> {
        lock(&self.state).stops.pop_front()
    }

    /// Does `work` on a vCPU, on its own thread. Nothing if it does not hold still any more.
    pub fn with<R: Send + 'static>(
        &self,
        vcpu: usize,
        work: impl FnOnce(&mut V) -> R + Send + 'static,
    ) -> Option<R> {
        let (send, receive) = mpsc::sync_channel(1);
        let mut state = lock(&self.state);
        let slot = state.slots.get_mut(vcpu).filter(|slot| slot.parked)?;
        slot.request = Some(Box::new(move |vp| drop(send.send(work(vp)))));
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
    pub fn vcpus(&self) -> usize {
        lock(&self.state).slots.len()
    }

    /// Changes the breakpoints and watchpoints.
    pub fn change_plan(&self, change: impl FnOnce(&mut DebugPlan)) {
        change(&mut lock(&self.state).plan);
    }

    /// Whether events are delivered while a vCPU is stepped.
    pub fn set_step_events(&self, on: bool) {
        lock(&self.state).step_events = on;
    }

    /// The machine lives again, or for the first time: its vCPUs know of nothing.
    pub fn live(&self) {
        for slot in &mut lock(&self.state).slots {
            (slot.parked, slot.request, slot.stale) = (false, None, true);
            if slot.action != Action::Hold {
                slot.action = Action::Continue;
            }
        }
    }

    /// Looks anew whether the machine is stopping.
    pub fn look(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    /// The machine has ended.
    pub fn end(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }
}
