//! The network card: its protocol over VMBus (NVSP), with RNDIS in it, as Linux's netvsc speaks them.
//!
//! What the guest sends is copied out on the vCPU's thread, and sent if the cable takes it. What comes is put into a buffer that the
//! guest gave, whose sections are the guest's until it completes the packet that named them.

mod buffer;
mod oid;
mod rndis;
mod saved;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};

use satori_cable::{Cable, Card, Delivery};
use satori_defs::hyperv::vmbus::class;
use satori_defs::hyperv::vmbus::packet::{COMPLETION, TRANSFER_PAGES};
use satori_defs::virtio::net::{DATA_VALID, HEADER};
use satori_lock::lock;
use satori_save::{Error, Value};
use satori_vmbus::{Bus, Bytes as _, Channel, Device, Offer, Packet, Pages, Sent};

use buffer::Sections;

/// Bytes of a message of the protocol.
const MESSAGE: usize = 40;
/// Bytes of a section of the guest's send buffer.
const SEND_SECTION: u32 = 6144;
/// No section.
const NO_SECTION: u32 = u32::MAX;
/// The receive buffer's number.
const RECEIVE_BUFFER: u16 = 0xcafe;
/// Versions.
const VERSIONS: [u32; 6] = [0x6_0001, 0x6_0000, 0x5_0000, 0x4_0000, 0x3_0002, 2];
const SUCCESS: u32 = 1;
const FAILURE: u32 = 2;
/// Bytes of the longest message in RNDIS: several frames of TCP that is not cut.
const RNDIS_MAX: usize = 128 << 10;

/// Types of messages.
mod kind {
    pub(super) const INIT: u32 = 1;
    pub(super) const INIT_COMPLETE: u32 = 2;
    pub(super) const SEND_RECEIVE_BUFFER: u32 = 101;
    pub(super) const RECEIVE_BUFFER_COMPLETE: u32 = 102;
    pub(super) const REVOKE_RECEIVE_BUFFER: u32 = 103;
    pub(super) const SEND_SEND_BUFFER: u32 = 104;
    pub(super) const SEND_BUFFER_COMPLETE: u32 = 105;
    pub(super) const REVOKE_SEND_BUFFER: u32 = 106;
    pub(super) const RNDIS: u32 = 107;
    pub(super) const RNDIS_COMPLETE: u32 = 108;
    pub(super) const SUBCHANNEL: u32 = 133;
}

/// What the guest's driver has set up.
#[derive(Default)]
struct State {
    bus: Option<Weak<Bus>>,
    channel: Option<Arc<Channel>>,
    send: Option<Arc<Pages>>,
    receive: Option<Sections>,
    /// Answers of RNDIS for which there is no section, in order.
    answers: Vec<Vec<u8>>,
    /// What frames the guest wants: none, until it sets a filter.
    filter: u32,
    /// RNDIS was begun.
    begun: bool,
}

/// The device.
pub struct NetVsc {
    index: u8,
    cable: Arc<Cable>,
    state: Mutex<State>,
    me: Weak<NetVsc>,
}

fn message(kind: u32, words: &[u32]) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    let all = [kind].into_iter().chain(words.iter().copied());
    bytes.as_chunks_mut::<4>().0.iter_mut().zip(all).for_each(|(to, word)| *to = word.to_le_bytes());
    bytes
}

impl NetVsc {
    /// The machine's card of this number, on a cable.
    pub fn new(cable: Arc<Cable>, index: u8) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new_cyclic(|me| NetVsc { index, cable, state, me: me.clone() })
    }

    /// Takes a packet; false if the cable takes no more for now.
    fn packet(&self, bus: &Arc<Bus>, channel: &Arc<Channel>, packet: &Packet) -> bool {
        if packet.kind() == COMPLETION {
            // Sections come back.
            let mut state = lock(&self.state);
            if let Some(receive) = &mut state.receive {
                receive.free(packet.id());
            }
            self.push_answers(&mut state);
            drop(state);
            self.cable.room_added();
            return true;
        }
        let body = packet.payload();
        let answer = match body.u32_at(0) {
            kind::INIT => {
                let version = body.u32_at(8);
                let status = if VERSIONS.contains(&version) { SUCCESS } else { FAILURE };
                message(kind::INIT_COMPLETE, &[version, 0, status])
            }
            kind::SEND_RECEIVE_BUFFER => self.receive_buffer(bus.pages(channel, body.u32_at(4))),
            kind::SEND_SEND_BUFFER => {
                let pages = bus.pages(channel, body.u32_at(4));
                let status = if pages.is_some() { SUCCESS } else { FAILURE };
                lock(&self.state).send = pages;
                message(kind::SEND_BUFFER_COMPLETE, &[status, SEND_SECTION])
            }
            kind::REVOKE_RECEIVE_BUFFER => {
                lock(&self.state).receive = None;
                return true;
            }
            kind::REVOKE_SEND_BUFFER => {
                lock(&self.state).send = None;
                return true;
            }
            kind::RNDIS => {
                let bytes = self.rndis_bytes(channel, packet);
                let goes_on = self.rndis(&bytes);
                channel.complete(packet, &message(kind::RNDIS_COMPLETE, &[SUCCESS]));
                return goes_on;
            }
            // One channel is all.
            kind::SUBCHANNEL => message(kind::SUBCHANNEL, &[FAILURE, 0]),
            // 100 and 125 tell of the guest and are not answered; 128 to 134 are of what is not there.
            other => message(other, &[FAILURE]),
        };
        if packet.wants_completion() {
            channel.complete(packet, &answer);
        }
        true
    }

    fn receive_buffer(&self, pages: Option<Arc<Pages>>) -> [u8; MESSAGE] {
        let sections = pages.and_then(Sections::new);
        let words = match &sections {
            Some(sections) => {
                let (size, count) = (buffer::SECTION, sections.count());
                [SUCCESS, 1, 0, size, count, size * count]
            }
            None => [FAILURE, 0, 0, 0, 0, 0],
        };
        lock(&self.state).receive = sections;
        message(kind::RECEIVE_BUFFER_COMPLETE, &words)
    }

    /// What an RNDIS packet brings: from a section of the send buffer, and from memory that it names.
    fn rndis_bytes(&self, channel: &Channel, packet: &Packet) -> Vec<u8> {
        let (section, len) = (packet.payload().u32_at(8), packet.payload().u32_at(12));
        let mut bytes = Vec::new();
        if section != NO_SECTION && len <= SEND_SECTION {
            let pages = lock(&self.state).send.clone();
            bytes.resize(len as usize, 0);
            let at = u64::from(section) * u64::from(SEND_SECTION);
            if pages.is_none_or(|pages| pages.read(at, &mut bytes).is_err()) {
                bytes.clear();
            }
        }
        bytes.extend(packet.read(channel.memory(), RNDIS_MAX));
        bytes
    }

    /// Takes one or more messages of RNDIS; false if the cable takes no more for now.
    fn rndis(&self, mut bytes: &[u8]) -> bool {
        while let Some((one, rest)) = rndis::split(bytes) {
            bytes = rest;
            if one.u32_at(0) == rndis::PACKET {
                if let Some(mut frame) = rndis::frame(one) {
                    // Whatever is offloaded, the cable's own network needs no word on it; others are offered nothing.
                    self.cable.put(&[0; HEADER], &mut frame, 0);
                }
            } else {
                self.control(one);
            }
        }
        self.cable.send();
        self.cable.has_room()
    }

    fn control(&self, request: &[u8]) {
        let mut state = lock(&self.state);
        match request.u32_at(0) {
            rndis::INITIALIZE => state.begun = true,
            rndis::HALT => (state.begun, state.filter) = (false, 0),
            rndis::SET if request.u32_at(12) == oid::PACKET_FILTER => {
                state.filter = rndis::value(request).map_or(0, |value| value.u32_at(0));
            }
            _ => {}
        }
        let facts = oid::Facts { mac: self.cable.mac(), ours: self.cable.ours(), up: !self.cable.dead() };
        if let Some(answer) = rndis::answer(request, &facts) {
            /// Most answers that wait, of a guest that reads none.
            const MOST: usize = 64;
            if state.answers.len() < MOST {
                state.answers.push(answer);
            }
            self.push_answers(&mut state);
        }
        drop(state);
        self.cable.room_added();
    }

    fn push_answers(&self, state: &mut State) {
        while let Some(answer) = state.answers.first() {
            let answer = answer.clone();
            if Self::put(state, 1, &answer) == Delivery::Wait {
                return;
            }
            state.answers.remove(0);
        }
    }

    /// Gives a message of RNDIS to the guest: 1 is control, 0 data.
    fn put(state: &mut State, control: u32, message_bytes: &[u8]) -> Delivery {
        let State { channel: Some(channel), receive: Some(receive), .. } = state else {
            return Delivery::Done;
        };
        let Some((id, offset)) = receive.take(message_bytes.len()) else {
            return if receive.can_hold(message_bytes.len()) { Delivery::Wait } else { Delivery::Done };
        };
        if receive.write(offset, message_bytes).is_err() {
            receive.free(id);
            return Delivery::Done;
        }
        let mut head = RECEIVE_BUFFER.to_le_bytes().to_vec();
        head.extend([0, 0]);
        for word in [1, message_bytes.len() as u32, offset as u32] {
            head.extend(word.to_le_bytes());
        }
        let payload = message(kind::RNDIS, &[control, NO_SECTION, 0]);
        match channel.send_kind(TRANSFER_PAGES, id, true, &head, &payload) {
            Sent::Done => Delivery::Done,
            Sent::Full => {
                receive.free(id);
                Delivery::Wait
            }
            Sent::Closed => {
                receive.free(id);
                Delivery::Done
            }
        }
    }
}

impl Card for NetVsc {
    fn deliver(&self, header: [u8; HEADER], _queue: Option<u16>, frame: &[u8]) -> Delivery {
        let mut state = lock(&self.state);
        if state.filter == 0 {
            return Delivery::Done;
        }
        let bytes = rndis::packet(frame, header[0] == DATA_VALID);
        Self::put(&mut state, 0, &bytes)
    }

    fn go_on(&self) {
        // What the guest sent meanwhile is taken as if it had just been.
        let bell = lock(&self.state).channel.clone();
        if let (Some(channel), Some((me, bus))) = (bell, self.me.upgrade().zip(self.bus())) {
            me.signalled(&bus, &channel);
        }
    }

    fn gone(&self) {
        let mut state = lock(&self.state);
        if state.begun {
            state.answers.push(rndis::indicate(rndis::MEDIA_DISCONNECT));
            self.push_answers(&mut state);
        }
    }
}

impl NetVsc {
    fn bus(&self) -> Option<Arc<Bus>> {
        lock(&self.state).bus.as_ref().and_then(Weak::upgrade)
    }
}

impl Device for NetVsc {
    fn offer(&self) -> Offer {
        Offer { class: class::NET, instance: crate::instance(2, self.index), flags: 1 }
    }

    fn files(&self) -> Vec<RawFd> {
        self.cable.files()
    }

    fn begin(&self, _determined: bool) {
        *lock(&self.state) = State::default();
    }

    fn opened(&self, bus: &Arc<Bus>, channel: &Arc<Channel>) {
        *lock(&self.state) =
            State { channel: Some(channel.clone()), bus: Some(Arc::downgrade(bus)), ..State::default() };
        // A tap's frames come whole and with their checksums.
        self.cable.offload(false, false, false);
        let me: Weak<dyn Card> = self.me.clone();
        self.cable.plug(me);
    }

    fn signalled(&self, bus: &Arc<Bus>, channel: &Arc<Channel>) {
        channel.drain(|packet| self.packet(bus, channel, &packet));
        // There may be room for what comes, too.
        self.push_answers(&mut lock(&self.state));
        self.cable.room_added();
    }

    fn closed(&self, _channel: &Arc<Channel>) {
        *lock(&self.state) = State::default();
        // A frame that waited for room of this driver's waits for nobody.
        self.cable.look();
    }

    fn hold(&self, still: bool) {
        self.cable.hold(still);
    }

    fn save(&self) -> Result<Value, Error> {
        self.saved()
    }

    fn restore(&self, bus: &Arc<Bus>, value: &Value) -> Result<(), Error> {
        self.take_back(bus, value)
    }

    fn undetermined(&self) -> Option<String> {
        Some("what a network brings is not the same every time".into())
    }
}
