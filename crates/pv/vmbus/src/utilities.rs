//! Utilities, or integration components (IC): shutdown, heartbeat, time synchronisation, key-value pairs.
//!
//! The host begins: it tells which versions it speaks, of the framework and of the component, and the guest's driver answers by
//! one of each. What follows is a request and the guest's answer, each behind two headers: of a pipe, and of the framework.

mod service;

use std::sync::{Arc, Mutex};

use satori_bus::{Nanos, Timer};
use satori_defs::hyperv::vmbus::class;
use satori_lock::lock;

use crate::{Bytes as _, Device};
pub use service::Service;
use service::{Kind, Versions};

/// Units of 100 ns between 1601 and 1970.
const EPOCH: u64 = 116_444_736_000_000_000;
/// Between two looks whether the guest is alive, and two samples of time.
const BEAT: Nanos = 2_000_000_000;
const SAMPLE: Nanos = 5_000_000_000;

/// Instance ids, which differ in their last byte: ours, and the same in every run.
const fn instance(last: u8) -> [u8; 16] {
    [0x53, 0x61, 0x74, 0x6f, 0x72, 0x69, 0x49, 0x43, 0x80, 0, 0, 0, 0, 0, 0, last]
}

/// Asks the guest to power off.
pub struct Shutdown;
/// Asks the guest whether it is alive.
pub struct Heartbeat(Mutex<Beats>);
/// Tells the guest the host's time.
pub struct TimeSync;
/// Reads what the guest tells of itself.
pub struct Kvp;

#[derive(Default)]
struct Beats {
    sent: u64,
    answered: u64,
}

impl Kind for Shutdown {
    const VERSIONS: Versions = Versions { class: class::SHUTDOWN, instance: instance(1), version: (3, 2) };
    const NAME: &'static str = "shutdown";
}

/// The request's type.
const SHUTDOWN: u16 = 3;
/// A power-off that may be refused by nobody: flags.
const POWER_OFF: u32 = 0;
/// Bytes of the text that is shown.
const TEXT: usize = 2048;

impl Service<Shutdown> {
    /// Asks the guest to power off; false if its driver has not come.
    pub fn request(&self) -> bool {
        /// "Other (planned)", of Windows' reasons.
        const REASON: u32 = 0x8000_0000;
        let mut body = Vec::from([REASON, 0, POWER_OFF].map(u32::to_le_bytes).as_flattened());
        body.resize(body.len() + TEXT, 0);
        self.request_raw(SHUTDOWN, &body)
    }
}

impl Kind for Heartbeat {
    const VERSIONS: Versions = Versions { class: class::HEARTBEAT, instance: instance(2), version: (3, 0) };
    const NAME: &'static str = "heartbeat";

    fn ready(service: &Arc<Service<Self>>, now: Nanos) {
        Self::tick(service, now);
    }

    fn tick(service: &Arc<Service<Self>>, now: Nanos) {
        let sent = {
            let mut beats = lock(&service.kind.0);
            beats.sent = beats.sent.wrapping_add(1);
            beats.sent
        };
        let mut body = sent.to_le_bytes().to_vec();
        body.resize(40, 0);
        if service.request_raw(1, &body) {
            service.again(now.saturating_add(BEAT));
        }
    }

    fn counts(&self) -> [u64; 2] {
        let beats = lock(&self.0);
        [beats.sent, beats.answered]
    }

    fn count_on(&self, [sent, answered]: [u64; 2]) {
        *lock(&self.0) = Beats { sent, answered };
    }

    fn answered(&self, body: &[u8]) {
        let mut beats = lock(&self.0);
        beats.answered = beats.answered.wrapping_add(1);
        tracing::debug!("VMBus: heartbeat {} of {}: {}", beats.answered, beats.sent, body.u64_at(0));
    }
}

impl Service<Heartbeat> {
    /// How often the guest said that it is alive.
    pub fn beats(&self) -> u64 {
        lock(&self.kind.0).answered
    }
}

impl TimeSync {
    fn tell(service: &Service<Self>, flags: u8) -> bool {
        let Some((bus, channel)) = service.way() else { return false };
        let clock = bus.clock();
        let since_1970 = clock.epoch().saturating_add(clock.now()) / 100;
        let mut body = (EPOCH + since_1970).to_le_bytes().to_vec();
        body.extend(channel.reference_time().to_le_bytes());
        // Flags, leap flags, stratum, reserved.
        body.extend([flags, 0, 0, 0, 0, 0]);
        service.request_raw(4, &body)
    }
}

impl Kind for TimeSync {
    const VERSIONS: Versions = Versions { class: class::TIME_SYNC, instance: instance(3), version: (4, 0) };
    const NAME: &'static str = "time synchronisation";

    fn ready(service: &Arc<Service<Self>>, now: Nanos) {
        // The guest sets its clock by this one.
        TimeSync::tell(service, 1);
        service.again(now.saturating_add(SAMPLE));
    }

    fn tick(service: &Arc<Service<Self>>, now: Nanos) {
        if TimeSync::tell(service, 2) {
            service.again(now.saturating_add(SAMPLE));
        }
    }
}

impl Kind for Kvp {
    const VERSIONS: Versions = Versions { class: class::KVP, instance: instance(4), version: (4, 0) };
    const NAME: &'static str = "key-value pairs";
}

/// The utilities of one life of a machine.
pub struct Utilities {
    /// The one that powers guests off.
    pub shutdown: Arc<Service<Shutdown>>,
    /// All, as devices.
    pub devices: Vec<Arc<dyn Device>>,
}

impl Utilities {
    /// New ones.
    #[allow(
        clippy::new_without_default,
        reason = "they are of one life of a machine, which is not a default"
    )]
    pub fn new() -> Self {
        let shutdown = Service::new(Shutdown);
        let devices: Vec<Arc<dyn Device>> = vec![
            shutdown.clone(),
            Service::new(Heartbeat(Mutex::default())),
            Service::new(TimeSync),
            Service::new(Kvp),
        ];
        Utilities { shutdown, devices }
    }
}

impl<K: Kind> Timer for Service<K> {
    fn expired(&self, now: Nanos) {
        if let Some(me) = self.me() {
            K::tick(&me, now);
        }
    }
}
