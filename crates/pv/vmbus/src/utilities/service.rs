//! What utilities share: headers, and the agreement on versions.

use std::sync::{Arc, Mutex, Weak};

use satori_bus::{Armed, Nanos, Timer};
use satori_lock::lock;
use satori_save::{Error, Value};
use serde::{Deserialize, Serialize};

use crate::{Bus, Bytes as _, Channel, Device, Offer, Packet, Sent};

/// What one is, and speaks.
pub struct Versions {
    pub(super) class: [u8; 16],
    pub(super) instance: [u8; 16],
    /// Its own version; that of the framework is 3.0.
    pub(super) version: (u16, u16),
}

/// What differs between utilities.
pub trait Kind: Send + Sync + Sized + 'static {
    /// What it is, and speaks.
    const VERSIONS: Versions;
    /// Its name for people.
    const NAME: &'static str;

    /// The guest's driver agreed on versions.
    fn ready(_service: &Arc<Service<Self>>, _now: Nanos) {}
    /// The time for which it was armed has come.
    fn tick(_service: &Arc<Service<Self>>, _now: Nanos) {}
    /// What it counts.
    fn counts(&self) -> [u64; 2] {
        [0; 2]
    }
    /// Counts on from there.
    fn count_on(&self, _counts: [u64; 2]) {}
    /// The guest answered a request.
    fn answered(&self, _body: &[u8]) {}
}

/// A utility.
pub struct Service<K> {
    pub(super) kind: K,
    state: Mutex<State>,
    me: Weak<Service<K>>,
}

#[derive(Default)]
struct State {
    way: Option<(Weak<Bus>, Arc<Channel>)>,
    ready: bool,
    /// Numbers requests.
    last: u8,
}

/// A utility as plain data.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedService {
    name: String,
    /// The channel of the guest's driver.
    relid: Option<u32>,
    ready: bool,
    last: u8,
    counts: [u64; 2],
    /// When it does the next thing by itself.
    timers: Vec<Armed>,
}

impl satori_save::State for SavedService {
    const NAME: &'static str = "VMBus utility";
    const VERSION: u32 = 1;
}

/// Bytes of a pipe's header, and of the framework's.
const PIPE: usize = 8;
const FRAME: usize = 20;
/// The type of what agrees on versions.
const NEGOTIATE: u16 = 0;
/// Flags of what the host sends: one transaction, a request. The guest answers with the second bit's neighbour.
const REQUEST: u8 = 3;
const RESPONSE: u8 = 4;
/// Bytes of an answer that are looked at.
const FRAMEWORK: (u16, u16) = (3, 0);

/// A request behind its headers.
fn framed(kind: u16, version: (u16, u16), id: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PIPE + FRAME + body.len());
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(((FRAME + body.len()) as u32).to_le_bytes());
    for word in [FRAMEWORK.0, FRAMEWORK.1, kind, version.0, version.1, body.len() as u16] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0, 0, 0, 0, id, REQUEST, 0, 0]);
    bytes.extend(body);
    bytes
}

impl<K: Kind> Service<K> {
    pub(super) fn new(kind: K) -> Arc<Self> {
        Arc::new_cyclic(|me| Service { kind, state: Mutex::default(), me: me.clone() })
    }

    pub(super) fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }

    /// The bus and the channel, while the guest's driver is there and agreed.
    pub(super) fn way(&self) -> Option<(Arc<Bus>, Arc<Channel>)> {
        let state = lock(&self.state);
        let (bus, channel) = state.way.as_ref().filter(|_| state.ready)?;
        Some((bus.upgrade()?, channel.clone()))
    }

    /// Has [`Kind::tick`] called at `at`, and at no other time.
    pub(super) fn again(&self, at: Nanos) {
        if let (Some((bus, _)), Some(me)) = (self.way(), self.me()) {
            let me: Arc<dyn Timer> = me;
            bus.timers().replace(at, Arc::downgrade(&me));
        }
    }

    /// Sends a request; false if there is nobody to get it. One for which there is no room is not sent: who does not read the others
    /// does not read it.
    pub(super) fn request_raw(&self, kind: u16, body: &[u8]) -> bool {
        let Some((_, channel)) = self.way() else { return false };
        let id = {
            let mut state = lock(&self.state);
            state.last = state.last.wrapping_add(1);
            state.last
        };
        channel.send(0, false, &framed(kind, K::VERSIONS.version, id, body)) != Sent::Closed
    }

    fn take(&self, bus: &Arc<Bus>, packet: &Packet) {
        let payload = packet.payload();
        let frame = payload.get(PIPE..).filter(|frame| frame.len() >= FRAME);
        let Some(frame) = frame.filter(|frame| frame[17] & RESPONSE != 0) else { return };
        let (status, body) = (frame.u32_at(12), &frame[FRAME..]);
        if frame.u16_at(4) != NEGOTIATE {
            self.kind.answered(body);
            return;
        }
        // As many versions of each as were agreed on: one.
        let agreed = status == 0 && body.u16_at(0) == 1 && body.u16_at(2) == 1;
        if !agreed {
            tracing::info!("VMBus: the guest's {} speaks none of our versions", K::NAME);
            return;
        }
        lock(&self.state).ready = true;
        tracing::info!("VMBus: the guest's {} has version {}.{}", K::NAME, body.u16_at(12), body.u16_at(14));
        if let Some(me) = self.me() {
            K::ready(&me, bus.clock().now());
        }
    }
}

impl<K: Kind> Device for Service<K> {
    fn offer(&self) -> Offer {
        let Versions { class, instance, .. } = K::VERSIONS;
        Offer { class, instance, flags: 0 }
    }

    fn opened(&self, bus: &Arc<Bus>, channel: &Arc<Channel>) {
        *lock(&self.state) = State { way: Some((Arc::downgrade(bus), channel.clone())), ..State::default() };
        let (own, mut body) = (K::VERSIONS.version, Vec::new());
        for word in [1, 1, 0, 0, FRAMEWORK.0, FRAMEWORK.1, own.0, own.1] {
            body.extend(word.to_le_bytes());
        }
        channel.send(0, false, &framed(NEGOTIATE, (0, 0), 0, &body));
    }

    fn signalled(&self, bus: &Arc<Bus>, channel: &Arc<Channel>) {
        channel.drain(|packet| {
            self.take(bus, &packet);
            true
        });
    }

    fn closed(&self, _channel: &Arc<Channel>) {
        *lock(&self.state) = State::default();
    }

    fn save(&self) -> Result<Value, Error> {
        let state = lock(&self.state);
        let (bus, channel) = state.way.as_ref().map(|(bus, channel)| (bus.upgrade(), channel)).unzip();
        let timers = bus.flatten().map(|bus| bus.timers().armed(&self.timer())).unwrap_or_default();
        Value::of(&SavedService {
            name: K::NAME.into(),
            relid: channel.map(|channel| channel.relid()),
            ready: state.ready,
            last: state.last,
            counts: self.kind.counts(),
            timers,
        })
    }

    fn restore(&self, bus: &Arc<Bus>, value: &Value) -> Result<(), Error> {
        let SavedService { name, relid, ready, last, counts, timers } = value.state()?;
        let unless = |fits, why| Error::unless(fits, <SavedService as satori_save::State>::NAME, why);
        unless(name == K::NAME, "it is another one")?;
        let channel = relid.map(|relid| bus.open_channel(relid));
        unless(!matches!(channel, Some(None)), "its channel is not open")?;
        let way = channel.flatten().map(|channel| (Arc::downgrade(bus), channel));
        unless(way.is_some() || !ready, "it has no channel")?;
        *lock(&self.state) = State { way, ready, last };
        self.kind.count_on(counts);
        bus.timers().restore(&self.timer(), &timers);
        Ok(())
    }
}
