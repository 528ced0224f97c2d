//! A network card (public/io/netif.h): rings of packets that the guest sends, and of pages for those that it gets, by several queues.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use satori_cable::{Cable, Delivery, LONGEST};
use satori_defs::virtio::net::{DATA_VALID, HEADER, NEEDS_CSUM};
use satori_defs::xen::netif::*;
use satori_lock::lock;
use satori_memory::{GuestMemory, PAGE_SIZE};
use satori_xen::{Copied, Domain};
use serde::{Deserialize, Serialize};

use crate::bus::QUEUES;
use crate::connection::{Connection, Ends};
use crate::packet::{self, Segments};
use crate::ring::Ring;

/// Packets that are taken on one notification, or for one look of the cable's thread.
const AT_ONCE: u32 = 1024;
const PAGE: usize = PAGE_SIZE as usize;

/// A connected queue.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queue {
    pub send: Ring,
    pub receive: Ring,
    /// The ports of both, which may be one.
    pub ports: [u32; 2],
}

/// Queues, and what their front end takes.
#[derive(Default)]
pub(crate) struct Connected {
    pub queues: Vec<Queue>,
    /// A packet in several pages.
    pub several: bool,
}

/// The card.
pub(crate) struct Card {
    pub domain: Weak<Domain>,
    pub cable: Arc<Cable>,
    /// Its number on the bus, among all devices.
    device: u32,
    pub connection: Connection,
    pub connected: Mutex<Connected>,
    /// Held while packets of the guest are taken, so that they keep their order.
    sending: Mutex<()>,
    moved: Arc<AtomicU64>,
    me: Weak<Card>,
}

/// A slot of the ring of packets that the guest sends.
struct Slot {
    reference: u32,
    offset: usize,
    flags: u16,
    id: u16,
    size: usize,
}

impl Slot {
    fn new(raw: [u8; SEND]) -> Self {
        let [r0, r1, r2, r3, o0, o1, f0, f1, i0, i1, s0, s1] = raw;
        Slot {
            reference: u32::from_le_bytes([r0, r1, r2, r3]),
            offset: u16::from_le_bytes([o0, o1]).into(),
            flags: u16::from_le_bytes([f0, f1]),
            id: u16::from_le_bytes([i0, i1]),
            size: u16::from_le_bytes([s0, s1]).into(),
        }
    }
}

/// A packet as it was taken from the ring.
struct Packet {
    slots: Vec<Slot>,
    /// Slots behind the first that told more of it.
    extras: usize,
    segments: Option<Segments>,
}

impl Packet {
    /// The next one, if there is one. A ring with a half one stands still, as with wrong indices.
    fn take(ring: &mut Ring, memory: &GuestMemory) -> Option<Packet> {
        let first = Slot::new(ring.take(memory)?);
        let (mut flags, mut extras, mut segments) = (first.flags, 0, None);
        let mut more = flags & EXTRA != 0;
        let broken = |ring: &mut Ring| {
            tracing::warn!(
                "a guest of Xen's sent half a packet: its card stands still until its driver connects anew"
            );
            ring.broken = true;
        };
        while more {
            let Some(extra) = ring.take::<SEND>(memory).filter(|_| extras < EXTRAS_MAX) else {
                broken(ring);
                return None;
            };
            extras += 1;
            if extra[0] == EXTRA_SEGMENTS {
                segments =
                    Some(Segments { size: u16::from_le_bytes([extra[2], extra[3]]), six: extra[4] == SIX });
            }
            more = extra[1] & EXTRA_MORE != 0;
        }
        let mut slots = vec![first];
        while flags & MORE != 0 {
            let Some(next) = ring.take(memory).filter(|_| slots.len() < SLOTS_MAX) else {
                broken(ring);
                return None;
            };
            let next = Slot::new(next);
            flags = next.flags;
            slots.push(next);
        }
        Some(Packet { slots, extras, segments })
    }

    /// Its bytes; none if they are not all there.
    fn bytes(&self, domain: &Domain) -> Option<Vec<u8>> {
        let (first, rest) = self.slots.split_first()?;
        let behind: usize = rest.iter().map(|slot| slot.size).sum();
        let own = first.size.checked_sub(behind)?;
        let mut bytes = vec![0; first.size];
        let mut done = 0;
        for (slot, len) in self.slots.iter().zip([own].into_iter().chain(rest.iter().map(|slot| slot.size))) {
            let piece = &mut bytes[done..done + len];
            domain.grant_copy(slot.reference, slot.offset, Copied::FromGuest(piece)).ok()?;
            done += len;
        }
        Some(bytes)
    }

    /// Gives its slots back, with this status.
    fn answer(&self, ring: &mut Ring, memory: &GuestMemory, status: i16) {
        for (at, slot) in self.slots.iter().enumerate() {
            let [i0, i1] = slot.id.to_le_bytes();
            let [s0, s1] = status.to_le_bytes();
            ring.put(memory, &[i0, i1, s0, s1]);
            let [n0, n1] = NULL.to_le_bytes();
            (0..if at == 0 { self.extras } else { 0 }).for_each(|_| ring.put(memory, &[0, 0, n0, n1]));
        }
    }
}

impl Card {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        cable: Arc<Cable>,
        (number, device): (u32, u32),
        moved: Arc<AtomicU64>,
    ) -> Arc<Self> {
        let mac = cable.mac().map(|byte| format!("{byte:02x}")).join(":");
        let facts = [("handle", number.to_string()), ("mac", mac)];
        let connection = domain.with_store(|store| Connection::new(store, "vif", number, &facts));
        Arc::new_cyclic(|me| Card {
            domain: Arc::downgrade(domain),
            cable,
            device,
            connection,
            connected: Mutex::default(),
            sending: Mutex::default(),
            moved,
            me: me.clone(),
        })
    }

    pub(crate) fn follow(&self, domain: &Domain) {
        self.connection.follow(domain, self);
    }

    /// The machine's life is over.
    pub(crate) fn leave(&self) {
        lock(&self.connected).queues.clear();
    }

    /// The guest sent something, or has room again.
    pub(crate) fn serve(&self, queue: u32) {
        if let Some(domain) = self.domain.upgrade() {
            self.transmit(&domain, queue);
        }
        self.cable.room_added();
    }

    fn back(&self, queue: u32) -> u32 {
        self.device * QUEUES + queue
    }

    /// Takes packets that the guest sends, as far as the other side has room.
    fn transmit(&self, domain: &Domain, queue: u32) {
        let _sending = lock(&self.sending);
        let memory = domain.memory();
        for _ in 0..AT_ONCE {
            if !self.cable.has_room() {
                break;
            }
            let (frame, segments, blank, notify) = {
                let mut connected = lock(&self.connected);
                let Some(own) = connected.queues.get_mut(queue as usize) else { break };
                let Some(packet) = Packet::take(&mut own.send, memory) else {
                    if own.send.listen(memory) {
                        continue;
                    }
                    break;
                };
                let frame = packet.bytes(domain);
                let before = own.send.given;
                packet.answer(&mut own.send, memory, if frame.is_some() { OKAY } else { ERROR });
                let blank = packet.slots[0].flags & SEND_BLANK != 0;
                let notify = own.send.push(memory, before).then_some(own.ports[0]);
                (frame, packet.segments, blank, notify)
            };
            if let Some(port) = notify {
                domain.notify(port, self.back(queue));
            }
            self.moved.fetch_add(1, Ordering::Relaxed);
            if let Some(mut frame) = frame.filter(|frame| frame.len() <= LONGEST) {
                let header = packet::header(&frame, blank, segments);
                self.cable.put(&header, &mut frame, queue as u16);
            }
        }
        self.cable.send();
    }

    /// Puts `frame` into the pages that the guest gave for that.
    fn receive(
        &self,
        domain: &Domain,
        header: &[u8; HEADER],
        queue: usize,
        frame: &[u8],
    ) -> (Delivery, Option<u32>) {
        let memory = domain.memory();
        let mut connected = lock(&self.connected);
        let several = connected.several;
        let count = connected.queues.len();
        // A tap's queue that the driver does not use is the first one's.
        let at = if queue < count { queue } else { 0 };
        let Some(own) = connected.queues.get_mut(at) else { return (Delivery::Done, None) };
        let ring = &mut own.receive;
        let (pages, segments) = (frame.len().div_ceil(PAGE), packet::segments(header));
        let slots = (pages + usize::from(segments.is_some())) as u32;
        if ring.broken || pages > 1 && !several {
            return (Delivery::Done, None);
        }
        if ring.waiting(memory) < slots && !ring.listen_for(memory, slots) {
            return (if ring.broken { Delivery::Done } else { Delivery::Wait }, None);
        }
        let before = ring.given;
        for (page, piece) in frame.chunks(PAGE).enumerate() {
            let Some(request) = ring.take::<RECEIVE>(memory) else { break };
            let [i0, i1, _, _, r0, r1, r2, r3] = request;
            let reference = u32::from_le_bytes([r0, r1, r2, r3]);
            let given = domain.grant_copy(reference, 0, Copied::ToGuest(piece));
            let status = if given.is_ok() { piece.len() as i16 } else { ERROR };
            let mut flags = if page + 1 < pages { MORE } else { 0 };
            if page == 0 {
                flags |= match header[0] {
                    bits if bits & NEEDS_CSUM != 0 => GET_BLANK | GET_VALIDATED,
                    bits if bits & DATA_VALID != 0 => GET_VALIDATED,
                    _ => 0,
                };
                flags |= if segments.is_some() { EXTRA } else { 0 };
            }
            let ([f0, f1], [s0, s1]) = (flags.to_le_bytes(), status.to_le_bytes());
            ring.put(memory, &[i0, i1, 0, 0, f0, f1, s0, s1]);
            if let Some(Segments { size, six }) = segments.filter(|_| page == 0) {
                let [z0, z1] = size.to_le_bytes();
                let kind = if six { SIX } else { FOUR };
                // Its request is for nothing.
                let _ = ring.take::<RECEIVE>(memory);
                ring.put(memory, &[EXTRA_SEGMENTS, 0, z0, z1, kind, 0, 0, 0]);
            }
        }
        let notify = ring.push(memory, before).then_some(own.ports[1]);
        (Delivery::Done, notify)
    }
}

impl satori_cable::Card for Card {
    fn deliver(&self, header: [u8; HEADER], queue: Option<u16>, frame: &[u8]) -> Delivery {
        let Some(domain) = self.domain.upgrade() else { return Delivery::Done };
        let queue = usize::from(queue.unwrap_or(0));
        let (delivery, notify) = self.receive(&domain, &header, queue, frame);
        if let Some(port) = notify {
            // Of a queue that is not there any more nothing comes.
            (0..QUEUES).for_each(|queue| domain.notify(port, self.back(queue)));
        }
        self.moved.fetch_add(1, Ordering::Relaxed);
        delivery
    }

    fn go_on(&self) {
        let queues = lock(&self.connected).queues.len() as u32;
        if let Some(domain) = self.domain.upgrade() {
            (0..queues).for_each(|queue| self.transmit(&domain, queue));
        }
    }

    fn gone(&self) {}
}

impl Ends for Card {
    fn offer(&self) -> Vec<(&'static str, String)> {
        let flag = |yes: bool| u8::from(yes).to_string();
        let segments = self.cable.takes_segments();
        vec![
            ("feature-rx-copy", flag(true)),
            ("feature-rx-flip", flag(false)),
            ("feature-sg", flag(true)),
            ("feature-gso-tcpv4", flag(segments)),
            ("feature-gso-tcpv6", flag(segments)),
            ("feature-ipv6-csum-offload", flag(true)),
            ("feature-split-event-channels", flag(true)),
            ("multi-queue-max-queues", self.cable.pairs().to_string()),
        ]
    }

    fn tell(&self) -> Vec<(&'static str, String)> {
        vec![("hotplug-status", "connected".into())]
    }

    fn connect(&self, domain: &Domain, front: &str) -> Result<(), String> {
        let number = |name: &str| domain.with_store(|store| store.read::<u32>(&format!("{front}/{name}")));
        let flag = |name: &str| number(name) == Some(1);
        if !flag("request-rx-copy") {
            return Err("its front end does not take copies (request-rx-copy)".into());
        }
        let queues = number("multi-queue-num-queues").unwrap_or(1);
        if !(1..=u32::from(self.cable.pairs())).contains(&queues) {
            return Err(format!("it has {queues} queues"));
        }
        let mut all = Vec::new();
        for queue in 0..queues {
            let folder = if queues > 1 { format!("queue-{queue}/") } else { String::new() };
            let named = |name: &str| number(&format!("{folder}{name}"));
            let own = (|| {
                let one = named("event-channel");
                let ports = [one.or(named("event-channel-tx"))?, one.or(named("event-channel-rx"))?];
                Some((named("tx-ring-ref")?, named("rx-ring-ref")?, ports))
            })();
            let connected = match own {
                Some((send, receive, ports)) => self.connect_queue(domain, queue, (send, receive), ports),
                None => Err("it does not name its rings and ports".into()),
            };
            match connected {
                Ok(queue) => all.push(queue),
                Err(why) => {
                    self.give_up(domain, all);
                    return Err(why);
                }
            }
        }
        *lock(&self.connected) = Connected { queues: all, several: flag("feature-sg") };
        self.plug(domain);
        Ok(())
    }

    fn disconnect(&self, domain: &Domain) {
        let queues = std::mem::take(&mut lock(&self.connected).queues);
        self.give_up(domain, queues);
        // A frame that waited for room of this driver's waits for nobody.
        self.cable.look();
    }
}

impl Card {
    /// Plugs it in, for what its front end takes.
    pub(crate) fn plug(&self, domain: &Domain) {
        let front = &self.connection.front;
        let flag =
            |name: &str| domain.with_store(|store| store.read::<u32>(&format!("{front}/{name}"))) == Some(1);
        let csum = !flag("feature-no-csum-offload");
        self.cable.offload(csum, flag("feature-gso-tcpv4"), flag("feature-gso-tcpv6"));
        let card: Weak<dyn satori_cable::Card> = self.me.clone();
        self.cable.plug(card);
    }

    fn connect_queue(
        &self,
        domain: &Domain,
        queue: u32,
        (send, receive): (u32, u32),
        ports: [u32; 2],
    ) -> Result<Queue, String> {
        let send = Ring::map(domain, vec![send], SEND as u64)?;
        let receive = Ring::map(domain, vec![receive], RECEIVE as u64).inspect_err(|_| send.unmap(domain))?;
        let back = self.back(queue);
        let bound =
            domain.bind_back(ports[0], back) && (ports[0] == ports[1] || domain.bind_back(ports[1], back));
        if !bound {
            domain.leave_back(ports[0], back);
            send.unmap(domain);
            receive.unmap(domain);
            return Err(format!("its ports {ports:?} do not wait for a back end"));
        }
        Ok(Queue { send, receive, ports })
    }

    fn give_up(&self, domain: &Domain, queues: Vec<Queue>) {
        for (queue, number) in queues.into_iter().zip(0..) {
            queue.send.unmap(domain);
            queue.receive.unmap(domain);
            queue.ports.into_iter().for_each(|port| domain.leave_back(port, self.back(number)));
        }
    }
}
