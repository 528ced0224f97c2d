//! Network card (virtio 1.2, 5.1): frames of a guest go to a user network over a socket, or to a tap, and come back.
//!
//! The other side is somebody else's process, ours (`satori-net`) or passt. A frame is copied out on the vCPU's
//! thread and sent if the socket takes it; a thread of the device's own sends what waits and brings what comes. While
//! the other side is behind, what the guest sends stays in its queues; while the guest is behind, what comes stays in
//! the socket. So between the two nothing is lost but what nobody listens to.

mod checksum;
mod frames;
mod steer;
mod tap;
#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::{PollFd, PollFlags, poll};
use satori_defs::virtio::{kind, net::*};
use satori_save::Value;

use crate::stream::Outgoing;
use crate::{Chain, Device, Error, Link, lock};
use frames::{Frames, LONGEST, SHORTEST};
use steer::Steering;
pub use tap::{Offload, TapCard};

/// Descriptors of a queue of frames, and of the one for control.
const QUEUE: u16 = 256;
const CONTROL: u16 = 64;
/// Bytes of frames that may wait for the other side before the queues do.
const BACKLOG: usize = 1 << 20;
/// Most pairs of queues.
const PAIRS_MAX: u16 = 8;
/// The largest packet of our own user network, which has no cable to care for: as large as IPv4 has them, in 8s.
pub const MTU: u16 = 65_520;

/// A network card, and its cable.
#[derive(Debug)]
pub struct Nic {
    /// Its address.
    pub mac: [u8; 6],
    /// Pairs of queues, up to 8.
    pub pairs: u16,
    /// Frames, each behind its length as a big-endian word of 32 bits.
    pub socket: UnixStream,
    /// The other side ends every flow itself, within this machine: it takes packets of [`MTU`] bytes and TCP that is not
    /// cut, looks at no checksum, and sends right ones.
    pub ours: bool,
}

#[derive(Default)]
struct Sending {
    outgoing: Outgoing,
    /// Queues that wait until the other side has taken what there is.
    stalled: Vec<(Arc<Link>, u16)>,
    running: bool,
}

#[derive(Default)]
struct Receiving {
    link: Option<Arc<Link>>,
    /// Chains of each pair that were taken, and were too short for the frame that comes.
    held: Vec<Vec<Chain>>,
}

/// Where frames go.
enum Cable {
    /// The other end of it is another process.
    Stream { socket: UnixStream, ours: bool },
    /// It is the host's kernel.
    Tap(TapCard),
}

impl Cable {
    /// Whether the other side looks at no checksum, and cuts TCP itself.
    fn ours(&self) -> bool {
        matches!(self, Cable::Stream { ours: true, .. })
    }
}

/// The device.
pub struct Net {
    mac: [u8; 6],
    /// Pairs of queues that there are.
    most: u16,
    cable: Cable,
    /// Rings for the thread: the first end is written to, the second waited for.
    bell: (UnixStream, UnixStream),
    sending: Mutex<Sending>,
    receiving: Mutex<Receiving>,
    /// Pairs that the driver uses.
    pairs: AtomicU16,
    /// The thread waits for a buffer of the guest's.
    starving: AtomicBool,
    /// The other side is gone.
    dead: AtomicBool,
    steering: Steering,
    me: Weak<Net>,
}

/// What became of a frame for the guest.
enum Delivery {
    Done,
    /// The guest has no room yet.
    Wait,
}

impl Net {
    /// A card for `nic`.
    pub fn new(nic: Nic) -> Result<Arc<Self>, Error> {
        let Nic { mac, pairs, socket, ours } = nic;
        socket.set_nonblocking(true).map_err(|why| Error::Host { what: "a network card", why })?;
        Net::with(mac, pairs, Cable::Stream { socket, ours })
    }

    /// A card whose cable is a tap's.
    pub fn tap(card: TapCard) -> Result<Arc<Self>, Error> {
        let pairs = u16::try_from(card.queues.len()).unwrap_or(u16::MAX);
        Net::with(card.mac, pairs, Cable::Tap(card))
    }

    fn with(mac: [u8; 6], most: u16, cable: Cable) -> Result<Arc<Self>, Error> {
        if !(1..=PAIRS_MAX).contains(&most) {
            return Err(Error::Config(format!(
                "a network card has 1 to {PAIRS_MAX} pairs of queues, not {most}: use fewer"
            )));
        }
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return Err(Error::Config("a card's address is no group's: begin it with 52:54:00".into()));
        }
        let host = |why| Error::Host { what: "a network card", why };
        let bell = UnixStream::pair().map_err(host)?;
        bell.0.set_nonblocking(true).map_err(host)?;
        bell.1.set_nonblocking(true).map_err(host)?;
        Ok(Arc::new_cyclic(|me| Net {
            mac,
            most,
            cable,
            bell,
            sending: Mutex::default(),
            receiving: Mutex::default(),
            pairs: AtomicU16::new(1),
            starving: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            steering: Steering::default(),
            me: me.clone(),
        }))
    }

    /// The queue for control: the last one (5.1.2).
    fn control(&self, link: &Link) -> u16 {
        if link.features() & MQ != 0 { 2 * self.most } else { 2 }
    }

    /// Takes frames that the driver sends until there are none, or the other side is too far behind.
    fn transmit(&self, link: &Arc<Link>, queue: u16) {
        if let Cable::Tap(card) = &self.cable {
            return card.transmit(link, queue);
        }
        let mut sending = lock(&self.sending);
        loop {
            if sending.outgoing.len() > BACKLOG {
                sending.stalled.push((link.clone(), queue));
                break;
            }
            let Some(chain) = link.pop(queue) else { break };
            let frame = chain.read(link.memory(), 0, HEADER + LONGEST + 1);
            link.give(queue, &chain, |_, _| 0);
            self.put(&mut sending.outgoing, frame, queue / 2);
        }
        self.send(&mut sending);
    }

    /// Puts a frame with its header behind the others, unless it is none.
    fn put(&self, outgoing: &mut Outgoing, mut bytes: Vec<u8>, pair: u16) {
        let Some((header, frame)) = bytes.split_first_chunk_mut::<HEADER>() else { return };
        if !(SHORTEST..=LONGEST).contains(&frame.len()) || self.dead.load(Ordering::Acquire) {
            return;
        }
        if !self.cable.ours() {
            checksum::finish(header, frame);
        }
        if self.most > 1 {
            self.steering.sent(frame, pair);
        }
        outgoing.put(&(frame.len() as u32).to_be_bytes());
        outgoing.put(frame);
    }

    /// Sends what the socket takes without waiting; the thread sends the rest.
    fn send(&self, sending: &mut Sending) {
        let Cable::Stream { socket, .. } = &self.cable else { return };
        match sending.outgoing.send(socket) {
            Ok(true) => {}
            Ok(false) => self.ring(),
            Err(why) => {
                sending.outgoing = Outgoing::default();
                // The thread tells: this one may be the vCPU's.
                if !self.dead.load(Ordering::Acquire) {
                    tracing::debug!("a frame could not be sent: {why}");
                }
                self.ring();
            }
        }
    }

    fn ring(&self) {
        // A bell that rings already is enough.
        let _ = (&self.bell.0).write(&[1]);
    }

    /// The other side is gone: the guest's card has no carrier any more.
    fn died(&self, why: &str) {
        if self.dead.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::warn!("the network is gone ({why}): the guest's card has no carrier from now on");
        lock(&self.sending).outgoing = Outgoing::default();
        let link = lock(&self.receiving).link.clone();
        link.iter().for_each(|link| link.config_changed());
    }

    /// Gives `frame` to the guest. One that nobody listens to, or that has no room in all that the driver gave, is dropped.
    fn deliver(&self, frame: &[u8]) -> Delivery {
        let mut header = [0; HEADER];
        if self.cable.ours() {
            header[0] = DATA_VALID;
        }
        self.deliver_with(header, None, frame)
    }

    /// As [`deliver`](Net::deliver), behind this header. A pair that is named takes it, or the first if the driver does not use that;
    /// without one it is that by which the flow is sent.
    fn deliver_with(&self, mut header: [u8; HEADER], pair: Option<u16>, frame: &[u8]) -> Delivery {
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

    /// Does what can be done; the error is why there is nothing to be done any more.
    fn attend(&self, frames: &mut Frames, coming: &mut tap::Coming) -> Result<(), String> {
        let mut rung = [0; 64];
        while matches!((&self.bell.1).read(&mut rung), Ok(1..)) {}
        match &self.cable {
            Cable::Stream { socket, .. } => self.receive(socket, frames)?,
            Cable::Tap(card) => return self.receive_tap(card, coming),
        }
        let stalled = {
            let mut sending = lock(&self.sending);
            self.send(&mut sending);
            if sending.outgoing.len() <= BACKLOG / 2 {
                std::mem::take(&mut sending.stalled)
            } else {
                Vec::new()
            }
        };
        stalled.iter().for_each(|(link, queue)| self.transmit(link, *queue));
        Ok(())
    }

    /// Takes all frames that are there and that the guest has room for.
    fn receive(&self, socket: &UnixStream, frames: &mut Frames) -> Result<(), String> {
        loop {
            while let Some(frame) = frames.peek()? {
                // Set before the queue is looked at: who adds a buffer then rings the bell.
                self.starving.store(true, Ordering::SeqCst);
                if let Delivery::Wait = self.deliver(frame) {
                    return Ok(());
                }
                frames.pass();
            }
            self.starving.store(false, Ordering::SeqCst);
            match frames.read(socket) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Does what a control request asks for, and tells whether that was possible.
    fn command(&self, request: &[u8]) -> u8 {
        match request {
            [class, command, low, high] if [*class, *command] == MQ_PAIRS_SET => {
                let pairs = u16::from_le_bytes([*low, *high]);
                if !(1..=self.most).contains(&pairs) {
                    return ACK_ERR;
                }
                self.pairs.store(pairs, Ordering::Release);
                ACK_OK
            }
            _ => ACK_ERR,
        }
    }
}

/// Waits for the other side and for the bell until the device is gone, or the other side is.
fn run(me: &Weak<Net>, cable: &[OwnedFd], bell: &UnixStream) {
    let (mut frames, mut coming) = (Frames::default(), tap::Coming::default());
    loop {
        let Some(net) = me.upgrade() else { return };
        if let Err(why) = net.attend(&mut frames, &mut coming) {
            net.died(&why);
            return;
        }
        let mut wanted = PollFlags::empty();
        if !net.starving.load(Ordering::SeqCst) {
            wanted |= PollFlags::IN;
        }
        if !lock(&net.sending).outgoing.is_empty() {
            wanted |= PollFlags::OUT;
        }
        drop(net);
        let mut files = vec![PollFd::new(bell, PollFlags::IN)];
        // A socket whose other end is closed is always ready, which is of no use while the guest has no room.
        if !wanted.is_empty() {
            files.extend(cable.iter().map(|end| PollFd::new(end, wanted)));
        }
        let _ = poll(&mut files, None);
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.ring();
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
        let several = if self.most > 1 { CTRL_VQ | MQ } else { 0 };
        let segments = match &self.cable {
            Cable::Stream { ours: true, .. } => MTU_TOLD | HOST_TSO4 | HOST_TSO6,
            Cable::Stream { .. } => 0,
            Cable::Tap(_) => HOST_TSO4 | HOST_TSO6 | GUEST_TSO4 | GUEST_TSO6,
        };
        common | several | segments
    }

    fn queues(&self) -> Vec<u16> {
        let mut queues = vec![QUEUE; 2 * usize::from(self.most)];
        queues.push(CONTROL);
        queues
    }

    fn config(&self) -> Vec<u8> {
        let mut config = self.mac.to_vec();
        let status = if self.dead.load(Ordering::Acquire) { 0 } else { LINK_UP };
        for word in [status, self.most, MTU] {
            config.extend(word.to_le_bytes());
        }
        config
    }

    fn start(&self, link: &Arc<Link>) {
        {
            let mut receiving = lock(&self.receiving);
            receiving.link = Some(link.clone());
            receiving.held = (0..self.most).map(|_| Vec::new()).collect();
            self.pairs.store(1, Ordering::Release);
        }
        if let Cable::Tap(card) = &self.cable {
            card.offload(link.features());
        }
        let mut sending = lock(&self.sending);
        if std::mem::replace(&mut sending.running, true) {
            drop(sending);
            self.ring();
            return;
        }
        drop(sending);
        let me = self.me.clone();
        let ends = match &self.cable {
            Cable::Stream { socket, .. } => socket.try_clone().map(|socket| vec![socket.into()]),
            Cable::Tap(card) => {
                card.queues.iter().map(|queue| queue.try_clone().map(OwnedFd::from)).collect()
            }
        };
        let started = ends.and_then(|cable| {
            let bell = self.bell.1.try_clone()?;
            // Detached, as the other side may never say anything again.
            std::thread::Builder::new().name("net".into()).spawn(move || run(&me, &cable, &bell))
        });
        if let Err(error) = started {
            self.died(&format!("no thread for it: {error}"));
        }
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        if queue == self.control(link) {
            while let Some(chain) = link.pop(queue) {
                let answer = self.command(&chain.read(link.memory(), 0, 5));
                link.give(queue, &chain, |chain, memory| chain.write(memory, 0, &[answer]));
            }
        } else if queue % 2 == 1 {
            self.transmit(link, queue);
        } else if self.starving.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    fn save(&self) -> Result<Value, satori_save::Error> {
        Err(satori_save::Error::refused(
            "a virtio network card",
            "its connections are in the process of the user network; save a machine without --net",
        ))
    }

    fn restore(&self, _link: &Arc<Link>, _value: &Value) -> Result<(), satori_save::Error> {
        self.save().map(drop)
    }

    fn reset(&self) {
        {
            let mut receiving = lock(&self.receiving);
            receiving.link = None;
            receiving.held.clear();
        }
        lock(&self.sending).stalled.clear();
        // A frame that waited for room of this driver's waits for nobody.
        self.ring();
    }

    fn files(&self) -> Vec<RawFd> {
        let mut files = vec![self.bell.0.as_raw_fd(), self.bell.1.as_raw_fd()];
        match &self.cable {
            Cable::Stream { socket, .. } => files.push(socket.as_raw_fd()),
            Cable::Tap(card) => files.extend(card.queues.iter().map(AsRawFd::as_raw_fd)),
        }
        files
    }

    fn undetermined(&self) -> Option<String> {
        Some("what a network brings is not the same every time".into())
    }
}
