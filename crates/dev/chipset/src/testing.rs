//! What device tests stand on: a clock that is set by hand, a wire and sinks that remember.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{ByteSink, Clock, InterruptLine, Msi, MsiSink, Nanos, PowerEvent, PowerSink, TimerQueue};

/// A clock that stands still until told, beside its timer queue.
pub(crate) struct Time {
    now: AtomicU64,
    epoch: u64,
    pub timers: Arc<TimerQueue>,
}

impl Time {
    pub(crate) fn new() -> Arc<Self> {
        Self::at_epoch(0)
    }

    pub(crate) fn at_epoch(seconds: u64) -> Arc<Self> {
        Arc::new(Time { now: AtomicU64::new(0), epoch: seconds * 1_000_000_000, timers: TimerQueue::new() })
    }

    /// Goes to `to`, stopping at every timer on the way.
    pub(crate) fn run_to(&self, to: Nanos) {
        while let Some(next) = self.timers.next().filter(|&next| next <= to) {
            self.jump(next.max(self.now()));
            self.timers.run(self.now());
        }
        self.jump(to);
    }

    /// Goes to `to` without serving any timer.
    pub(crate) fn jump(&self, to: Nanos) {
        self.now.store(to, Ordering::Relaxed);
    }
}

impl Clock for Time {
    fn now(&self) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }
    fn counter(&self) -> u64 {
        self.now()
    }
    fn counter_hz(&self) -> u64 {
        1_000_000_000
    }
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// A wire: its level, and how often it rose.
#[derive(Default)]
pub(crate) struct Wire {
    level: AtomicBool,
    rises: AtomicUsize,
}

impl Wire {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn level(&self) -> bool {
        self.level.load(Ordering::Relaxed)
    }

    /// Rises since the last call.
    pub(crate) fn rises(&self) -> usize {
        self.rises.swap(0, Ordering::Relaxed)
    }
}

impl InterruptLine for Wire {
    fn set(&self, asserted: bool) {
        if asserted && !self.level.swap(asserted, Ordering::Relaxed) {
            self.rises.fetch_add(1, Ordering::Relaxed);
        }
        self.level.store(asserted, Ordering::Relaxed);
    }
}

/// Interrupt messages in order.
#[derive(Default)]
pub(crate) struct Messages(Mutex<Vec<Msi>>);

impl Messages {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn take(&self) -> Vec<Msi> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl MsiSink for Messages {
    fn signal(&self, msi: Msi) {
        self.0.lock().unwrap().push(msi);
    }
}

/// Power events in order.
#[derive(Default)]
pub(crate) struct Power(Mutex<Vec<PowerEvent>>);

impl Power {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn take(&self) -> Vec<PowerEvent> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl PowerSink for Power {
    fn power(&self, event: PowerEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// Bytes in order.
#[derive(Clone, Default)]
pub(crate) struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    pub(crate) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl ByteSink for Bytes {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}
