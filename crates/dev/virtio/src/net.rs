//! Network card (virtio 1.2, 5.1) on a [`Cable`].

mod saved;
mod steer;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};

use satori_cable::{Cable, Card, Delivery, LONGEST, MTU, Nic, TapCard};
use satori_defs::virtio::{kind, net::*};
use satori_host::io_thread::IoThread;
use satori_journal::Journal;
use satori_save::{State as _, Value};

use crate::{Chain, Device, Error, Link, lock};
use saved::SavedNet;
use steer::Steering;

/// Descriptors of a queue of frames, and of the one for control.
const QUEUE: u16 = 256;
const CONTROL: u16 = 64;

#[derive(Default)]
struct Receiving {
    link: Option<Arc<Link>>,
    /// Chains of each pair that were taken, and were too short for the frame that comes.
    held: Vec<Vec<Chain>>,
}

/// The device.
pub struct Net {
    cable: Arc<Cable>,
    receiving: Mutex<Receiving>,
    /// Held while frames of the guest are taken, so that they keep their order.
    sending: Mutex<()>,
    /// Pairs that the driver uses.
    pairs: AtomicU16,
    steering: Steering,
    /// Once the machine goes on, the guest is to look whether there is a carrier.
    changed: AtomicBool,
    me: Weak<Net>,
}

impl Net {
    /// A card for `nic`, whose thread runs on the processors of `thread`.
    pub fn new(nic: Nic, thread: IoThread) -> Result<Arc<Self>, Error> {
        Ok(Net::with(Cable::stream(nic, thread)?))
    }

    /// A card whose cable is a tap's.
    pub fn tap(card: TapCard, thread: IoThread) -> Result<Arc<Self>, Error> {
        Ok(Net::with(Cable::tap(card, thread)?))
    }

    fn with(cable: Arc<Cable>) -> Arc<Self> {
        Arc::new_cyclic(|me| Net {
            cable,
            receiving: Mutex::default(),
            sending: Mutex::default(),
            pairs: AtomicU16::new(1),
            steering: Steering::default(),
            changed: AtomicBool::new(false),
            me: me.clone(),
        })
    }

    /// The queue for control: the last one (5.1.2).
    fn control(&self, link: &Link) -> u16 {
        if link.features() & MQ != 0 { 2 * self.cable.pairs() } else { 2 }
    }

    /// Takes frames that the driver sends until there are none, or the other side is too far behind.
    fn transmit(&self, link: &Arc<Link>, queue: u16) {
        let _sending = lock(&self.sending);
        while self.cable.has_room() {
            let Some(chain) = link.pop(queue) else { break };
            let mut bytes = chain.read(link.memory(), 0, HEADER + LONGEST + 1);
            link.give(queue, &chain, |_, _| 0);
            let Some((header, frame)) = bytes.split_first_chunk_mut::<HEADER>() else { continue };
            if self.cable.pairs() > 1 {
                self.steering.sent(frame, queue / 2);
            }
            self.cable.put(header, frame, queue / 2);
        }
        self.cable.send();
    }

    /// Does what a control request asks for, and tells whether that was possible.
    fn command(&self, request: &[u8]) -> u8 {
        match request {
            [class, command, low, high] if [*class, *command] == MQ_PAIRS_SET => {
                let pairs = u16::from_le_bytes([*low, *high]);
                if !(1..=self.cable.pairs()).contains(&pairs) {
                    return ACK_ERR;
                }
                self.pairs.store(pairs, Ordering::Release);
                ACK_OK
            }
            _ => ACK_ERR,
        }
    }
}

impl Card for Net {
    /// A pair that is named takes it, or the first if the driver does not use that; without one it is that by which the flow is
    /// sent. One that nobody listens to, or that has no room in all that the driver gave, is dropped.
    fn deliver(&self, mut header: [u8; HEADER], pair: Option<u16>, frame: &[u8]) -> Delivery {
        let mut receiving = lock(&self.receiving);
        let Receiving { link, held } = &mut *receiving;
        let Some(link) = link.as_ref().filter(|link| !link.failed()) else { return Delivery::Done };
        let features = link.features();
        let pairs = self.pairs.load(Ordering::Acquire);
        let pair = match pair {
            Some(pair) => {
                if pair < pairs {
                    pair
                } else {
                    0
                }
            }
            None => self.steering.pair(frame, pairs),
        };
        let Some(held) = held.get_mut(usize::from(pair)) else { return Delivery::Done };
        let wanted = HEADER + frame.len();
        let most = if features & MRG_RXBUF != 0 { usize::from(QUEUE) } else { 1 };
        let mut room: usize = held.iter().map(Chain::writable_bytes).sum();
        while room < wanted {
            if held.len() >= most {
                return Delivery::Done;
            }
            let Some(chain) = link.pop(2 * pair) else {
                return if link.failed() { Delivery::Done } else { Delivery::Wait };
            };
            room += chain.writable_bytes();
            held.push(chain);
        }
        let mut used = 0;
        let count = held.iter().take_while(|chain| {
            let more = used < wanted;
            used += chain.writable_bytes();
            more
        });
        let count = count.count();
        let chains: Vec<_> = held.drain(..count).collect();
        if features & GUEST_CSUM == 0 {
            header[0] = 0;
        }
        header[BUFFERS..].copy_from_slice(&(chains.len() as u16).to_le_bytes());
        let mut sent = 0;
        link.give_all(2 * pair, &chains, |index, chain, memory| {
            let first = if index == 0 { chain.write(memory, 0, &header) } else { 0 };
            let count = chain.write(memory, first, &frame[sent..]);
            sent += count;
            first + count
        });
        Delivery::Done
    }

    fn go_on(&self) {
        let link = lock(&self.receiving).link.clone();
        if let Some(link) = link {
            (0..self.cable.pairs()).for_each(|pair| self.transmit(&link, 2 * pair + 1));
        }
    }

    fn gone(&self) {
        let link = lock(&self.receiving).link.clone();
        link.iter().for_each(|link| link.config_changed());
    }
}

impl Device for Net {
    fn kind(&self) -> u16 {
        kind::NET
    }

    fn class(&self) -> u32 {
        0x02_00_00
    }

    fn features(&self) -> u64 {
        let common = MAC | STATUS | MRG_RXBUF | CSUM | GUEST_CSUM;
        let several = if self.cable.pairs() > 1 { CTRL_VQ | MQ } else { 0 };
        let large = if self.cable.ours() { MTU_TOLD } else { 0 };
        let sends = if self.cable.takes_segments() { HOST_TSO4 | HOST_TSO6 } else { 0 };
        let takes = if self.cable.is_tap() { GUEST_TSO4 | GUEST_TSO6 } else { 0 };
        common | several | large | sends | takes
    }

    fn queues(&self) -> Vec<u16> {
        let mut queues = vec![QUEUE; 2 * usize::from(self.cable.pairs())];
        queues.push(CONTROL);
        queues
    }

    fn config(&self) -> Vec<u8> {
        let mut config = self.cable.mac().to_vec();
        let status = if self.cable.dead() { 0 } else { LINK_UP };
        for word in [status, self.cable.pairs(), MTU] {
            config.extend(word.to_le_bytes());
        }
        config
    }

    fn start(&self, link: &Arc<Link>) {
        {
            let mut receiving = lock(&self.receiving);
            receiving.link = Some(link.clone());
            receiving.held = (0..self.cable.pairs()).map(|_| Vec::new()).collect();
            self.pairs.store(1, Ordering::Release);
        }
        let has = |bit: u64| link.features() & bit != 0;
        self.cable.offload(has(GUEST_CSUM), has(GUEST_TSO4), has(GUEST_TSO6));
        let card: Weak<dyn Card> = self.me.clone();
        self.cable.plug(card);
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        if queue == self.control(link) {
            while let Some(chain) = link.pop(queue) {
                let answer = self.command(&chain.read(link.memory(), 0, 5));
                link.give(queue, &chain, |chain, memory| chain.write(memory, 0, &[answer]));
            }
        } else if queue % 2 == 1 {
            self.transmit(link, queue);
        } else {
            self.cable.room_added();
        }
    }

    fn attend(&self, give_up: &dyn Fn() -> bool) {
        self.cable.attend_here(give_up);
    }

    fn hold(&self, still: bool) {
        if !still && self.changed.swap(false, Ordering::AcqRel) {
            self.gone();
        }
        self.cable.hold(still);
    }

    fn save(&self) -> Result<Value, satori_save::Error> {
        Value::with_bytes(&self.saved(), self.cable.save()?)
    }

    fn restore(&self, link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error> {
        self.take_back(link, value.state()?)?;
        self.cable.restore(value.bytes(), SavedNet::NAME)
    }

    fn reset(&self) {
        {
            let mut receiving = lock(&self.receiving);
            receiving.link = None;
            receiving.held.clear();
        }
        // A frame that waited for room of this driver's waits for nobody.
        self.cable.look();
    }

    fn files(&self) -> Vec<RawFd> {
        self.cable.files()
    }

    fn journalled(&self, journal: &Journal) -> bool {
        self.cable.journalled(journal)
    }

    fn undetermined(&self) -> Option<String> {
        Some("what a network brings is not the same every time".into())
    }
}
