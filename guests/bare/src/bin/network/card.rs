//! The card: one queue of frames to send, one of frames that come.

use satori_guests::defs::virtio::feature::VERSION_1;
use satori_guests::defs::virtio::net::{HEADER, MAC};
use satori_guests::defs::virtio::{kind, split::*};
use satori_guests::paging;
use satori_guests::place::{load, put, take};
use satori_guests::virtio::{Device, Queue, within};

use crate::frames::{Frame, GATEWAY, IP, ping, who_has};

/// Buffers for what comes, and bytes of each.
const BUFFERS: u16 = 16;
const ROOM: u64 = 2048;

pub struct Card {
    pub device: Device,
    pub sending: Queue,
    pub receiving: Queue,
    pub mac: [u8; 6],
    pub gateway: [u8; 6],
    out: u64,
    buffers: u64,
    /// Frames that were looked at.
    seen: u16,
    pings: u8,
}

impl Card {
    pub fn new() -> Card {
        let device = Device::find(kind::NET).expect("a network card");
        let (out, buffers) = (paging::pages(2), paging::pages(BUFFERS as usize / 2));
        let (sending, receiving) = (Queue::new(1, 16), Queue::new(0, BUFFERS));
        let mac = take(device.config);
        let mut card =
            Card { device, sending, receiving, mac, gateway: [0; 6], out, buffers, seen: 0, pings: 0 };
        card.begin(VERSION_1);
        card
    }

    /// A reset, these features, and all buffers given.
    pub fn begin(&mut self, features: u64) {
        let begun = self.device.begin(features, [&mut self.sending, &mut self.receiving]);
        assert!(begun, "the card does not begin");
        self.seen = 0;
        for index in 0..BUFFERS {
            self.receiving.descriptor(index, self.buffers + ROOM * u64::from(index), ROOM as u32, WRITE, 0);
            self.receiving.offer(index);
        }
        self.device.ring(0);
    }

    /// Sends these bytes behind a header of the card's; whether the card took them.
    pub fn send_with(&mut self, header: &[u8], bytes: &[u8]) -> bool {
        put(self.out, header);
        put(self.out + header.len() as u64, bytes);
        self.sending.descriptor(0, self.out, (header.len() + bytes.len()) as u32, 0, 0);
        self.sending.request(&self.device, 0)
    }

    pub fn send(&mut self, frame: &Frame) -> bool {
        self.send_with(&[0; HEADER], frame.all())
    }

    /// The next frame that came, if there is one.
    pub fn next(&mut self) -> Option<Frame> {
        if self.receiving.used() == self.seen {
            return None;
        }
        let (head, written) = self.receiving.entry(self.seen);
        self.seen = self.seen.wrapping_add(1);
        let at = self.buffers + ROOM * u64::from(head) + HEADER as u64;
        let len = (written as usize).saturating_sub(HEADER).min(1600);
        let bytes = core::array::from_fn(|index| if index < len { load(at + index as u64) } else { 0 });
        self.receiving.offer(head as u16);
        self.device.ring(0);
        Some(Frame { bytes, len })
    }

    /// Whether a frame comes that is one of those; others are forgotten.
    pub fn comes(&mut self, is: impl Fn(&Frame) -> bool) -> bool {
        within(|| self.next().is_some_and(|frame| is(&frame)))
    }

    /// Forgets what came; tells whether any of it is one of those.
    pub fn came(&mut self, is: impl Fn(&Frame) -> bool) -> bool {
        let mut any = false;
        while let Some(frame) = self.next() {
            any |= is(&frame);
        }
        any
    }

    /// Whether the other end answers: who the gateway is, and a ping of it.
    pub fn works(&mut self) -> bool {
        let asked = self.send(&who_has(self.mac, GATEWAY));
        let mut gateway = None;
        let told = asked
            && within(|| {
                let frame = self.next();
                gateway =
                    frame.filter(|frame| is_answer(frame, GATEWAY)).map(|frame| take_mac(&frame.bytes[22..]));
                gateway.is_some()
            });
        self.gateway = gateway.unwrap_or_default();
        self.pings = self.pings.wrapping_add(1);
        let (ping, number) = (ping(self.mac, self.gateway, self.pings), self.pings);
        told && self.send(&ping)
            && self.comes(|frame| frame.bytes[IP + 9] == 1 && frame.bytes[IP + 20..][..8][7] == number)
    }

    /// The header of a frame whose checksum the card is to finish.
    pub fn features(&self) -> u64 {
        self.device.features() & MAC | VERSION_1
    }
}

fn take_mac(bytes: &[u8]) -> [u8; 6] {
    core::array::from_fn(|index| bytes[index])
}

/// An answer of ARP's of who has that address.
pub fn is_answer(frame: &Frame, address: [u8; 4]) -> bool {
    frame.bytes[12..14] == [8, 6] && frame.bytes[20..22] == [0, 2] && frame.bytes[28..32] == address
}
