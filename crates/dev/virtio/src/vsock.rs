//! Sockets between guest and host (virtio 1.2, 5.10): packets go to another process over a stream, and come back.
//!
//! Who knows connections is that process (`satori-vsock`); this is the way there. A packet is copied out on the vCPU's thread and
//! sent if the stream takes it; a thread of the device's own sends what waits and brings what comes. While the other side
//! is behind, what the guest sends stays in its queue; while the guest has no room, what comes stays in the stream.
//!
//! Connections are the other process's, and end when a state is taken back: the other side forgets them, and the guest is told by an
//! event. What was under way is theirs, and goes nowhere.

#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rustix::event::{PollFd, PollFlags, poll};
use satori_cable::{Incoming, Outgoing};
use satori_defs::virtio::{kind, vsock::*};
use satori_host::io_thread::IoThread;
use satori_save::{State as _, Value};
use serde::{Deserialize, Serialize};

use crate::{Device, Error, Link, lock};

/// Descriptors of each queue.
const QUEUE: u16 = 128;
/// Bytes of packets that may wait for the other side before the queue does.
const BACKLOG: usize = 1 << 20;
/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

/// A guest's address, and the way to who serves it.
#[derive(Debug)]
pub struct Sockets {
    /// The guest's address, from 3 on.
    pub cid: u64,
    /// Packets, each behind its length of 32 bits; a length of zero means that a driver begins, and is answered by one.
    pub socket: UnixStream,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    outgoing: Outgoing,
    /// The queue of packets waits until the other side has taken what there is.
    stalled: bool,
    running: bool,
    /// The guest is to be told that all its connections are gone.
    reset_due: bool,
}

/// What the thread has in its hands.
#[derive(Default)]
struct Work {
    come: Incoming,
    /// How many bytes of the first packet in it the guest has.
    given: usize,
    /// The machine is saved or restored: nothing may happen that the guest sees.
    still: bool,
}

/// The device.
pub struct Vsock {
    cid: u64,
    socket: UnixStream,
    /// On whose processors its own thread runs.
    thread: IoThread,
    /// Rings for the thread: the first end is written to, the second waited for.
    bell: (UnixStream, UnixStream),
    state: Mutex<State>,
    /// Locked before `state`.
    work: Mutex<Work>,
    /// Answers that have to come before what comes is for the driver of now.
    awaited: AtomicU32,
    /// The thread waits for a buffer of the guest's.
    starving: AtomicBool,
    /// The other side is gone.
    dead: AtomicBool,
    me: Weak<Vsock>,
}

impl Vsock {
    /// A device for `sockets`, whose thread runs on the processors of `thread`.
    pub fn new(sockets: Sockets, thread: IoThread) -> Result<Arc<Self>, Error> {
        let Sockets { cid, socket } = sockets;
        if !GUESTS.contains(&cid) {
            return Err(Error::Config(format!(
                "{cid} is no address of a guest's sockets: use one from {} to {}",
                GUESTS.start(),
                GUESTS.end()
            )));
        }
        let host = |why| Error::Host { what: "sockets of a guest", why };
        let bell = UnixStream::pair().map_err(host)?;
        for end in [&socket, &bell.0, &bell.1] {
            end.set_nonblocking(true).map_err(host)?;
        }
        let (starving, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new_cyclic(|me| Vsock {
            cid,
            socket,
            thread,
            bell,
            state: Mutex::default(),
            work: Mutex::default(),
            awaited: AtomicU32::new(0),
            starving,
            dead,
            me: me.clone(),
        }))
    }

    /// Takes packets that the driver sends until there are none, or the other side is too far behind.
    fn transmit(&self, state: &mut State, link: &Link) {
        loop {
            state.stalled = state.outgoing.len() > BACKLOG;
            if state.stalled {
                break;
            }
            let Some(chain) = link.pop(TX) else { break };
            let packet = chain.read(link.memory(), 0, HEADER + PAYLOAD + 1);
            link.give(TX, &chain, |_, _| 0);
            let whole = packet.get(LENGTH..LENGTH + 4).and_then(|len| len.try_into().ok());
            let whole = whole.is_some_and(|len| u32::from_le_bytes(len) as usize + HEADER == packet.len());
            if whole && packet.len() <= HEADER + PAYLOAD && !self.dead.load(Ordering::Acquire) {
                state.outgoing.put(&(packet.len() as u32).to_le_bytes());
                state.outgoing.put(&packet);
            }
        }
        self.send(state);
    }

    /// Sends what the stream takes without waiting; the thread sends the rest, and sees why nothing can be sent.
    fn send(&self, state: &mut State) {
        match state.outgoing.send(&self.socket) {
            Ok(true) => {}
            Ok(false) => self.ring(),
            Err(_) => {
                state.outgoing = Outgoing::default();
                self.ring();
            }
        }
    }

    fn ring(&self) {
        // A bell that rings already is enough.
        let _ = (&self.bell.0).write(&[1]);
    }

    fn died(&self, why: &str) {
        if !self.dead.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                "the host's side of the guest's sockets is gone ({why}): nobody answers them from now on"
            );
        }
        lock(&self.state).outgoing = Outgoing::default();
    }

    /// Gives a packet to the guest, in as many as its buffers ask for; false if there is no room, and `given` tells how much of
    /// it is gone.
    fn deliver(&self, packet: &[u8], given: &mut usize) -> bool {
        if self.awaited.load(Ordering::Acquire) != 0 {
            return true;
        }
        let state = lock(&self.state);
        let Some(link) = state.link.as_ref().filter(|link| !link.failed()) else { return true };
        let Some((header, payload)) = packet.split_first_chunk::<HEADER>() else { return true };
        loop {
            let Some(chain) = link.pop(RX) else { return link.failed() };
            let mut header = *header;
            let room = chain.writable_bytes().saturating_sub(HEADER);
            let piece = &payload[*given..];
            let piece = &piece[..piece.len().min(room)];
            header[LENGTH..LENGTH + 4].copy_from_slice(&(piece.len() as u32).to_le_bytes());
            link.give(RX, &chain, |chain, memory| {
                chain.write(memory, 0, &header) + chain.write(memory, HEADER, piece)
            });
            *given += piece.len();
            // A buffer that holds no byte of it brings nobody further.
            if *given == payload.len() || room == 0 {
                return true;
            }
        }
    }

    /// Does what can be done; the error is why there is nothing to be done any more.
    fn attend(&self) -> Result<(), String> {
        let mut rung = [0; 64];
        while matches!((&self.bell.1).read(&mut rung), Ok(1..)) {}
        let mut work = lock(&self.work);
        if work.still {
            return Ok(());
        }
        // Before any packet, as those are of connections that came behind it.
        announce(&mut lock(&self.state));
        let Work { come, given, .. } = &mut *work;
        self.receive(come, given)?;
        let mut state = lock(&self.state);
        self.send(&mut state);
        if state.stalled
            && let Some(link) = state.link.clone()
        {
            self.transmit(&mut state, &link);
        }
        Ok(())
    }

    /// Takes all packets that are there and that the guest has room for.
    fn receive(&self, come: &mut Incoming, given: &mut usize) -> Result<(), String> {
        loop {
            while let Some((head, rest)) = come.rest().split_first_chunk::<4>() {
                let len = u32::from_le_bytes(*head) as usize;
                if len == 0 && self.answered() {
                    come.take(4);
                    continue;
                }
                if !(HEADER..=HEADER + PAYLOAD).contains(&len) {
                    return Err(format!("it sent a packet of {len} bytes"));
                }
                let Some(packet) = rest.get(..len) else { break };
                // Set before the queue is looked at: who adds a buffer then rings the bell.
                self.starving.store(true, Ordering::SeqCst);
                if !self.deliver(packet, given) {
                    return Ok(());
                }
                *given = 0;
                come.take(4 + len);
            }
            self.starving.store(false, Ordering::SeqCst);
            match come.read(&self.socket, PIECE) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Vsock {
    /// The other side forgot what was before; false if nobody had asked it.
    fn answered(&self) -> bool {
        self.awaited.fetch_update(Ordering::AcqRel, Ordering::Acquire, |all| all.checked_sub(1)).is_ok()
    }
}

/// Tells the guest that all its connections are gone, if that is due and it has a buffer for it.
fn announce(state: &mut State) {
    if let Some(link) = state.link.as_ref().filter(|_| state.reset_due)
        && let Some(chain) = link.pop(EVENT)
    {
        link.give(EVENT, &chain, |chain, memory| chain.write(memory, 0, &TRANSPORT_RESET.to_le_bytes()));
        state.reset_due = false;
    }
}

/// Waits for the other side and for the bell until the device is gone, or the other side is.
fn run(me: &Weak<Vsock>, socket: &UnixStream, bell: &UnixStream) {
    loop {
        let Some(device) = me.upgrade() else { return };
        if let Err(why) = device.attend() {
            device.died(&why);
            return;
        }
        let mut wanted = PollFlags::empty();
        if !device.starving.load(Ordering::SeqCst) {
            wanted |= PollFlags::IN;
        }
        if !lock(&device.state).outgoing.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let still = lock(&device.work).still;
        drop(device);
        let mut files = [PollFd::new(bell, PollFlags::IN), PollFd::new(socket, wanted)];
        // A stream whose other end is closed is always ready, which is of no use while the guest has no room.
        let count = if wanted.is_empty() || still { 1 } else { 2 };
        let _ = poll(&mut files[..count], None);
    }
}

impl Drop for Vsock {
    fn drop(&mut self) {
        self.ring();
    }
}

impl Device for Vsock {
    fn kind(&self) -> u16 {
        kind::VSOCK
    }

    fn class(&self) -> u32 {
        0x07_80_00
    }

    fn queues(&self) -> Vec<u16> {
        vec![QUEUE; 3]
    }

    fn config(&self) -> Vec<u8> {
        self.cid.to_le_bytes().to_vec()
    }

    fn start(&self, link: &Arc<Link>) {
        let mut state = lock(&self.state);
        state.link = Some(link.clone());
        // What was connected was another driver's.
        state.outgoing.put(&[0; 4]);
        self.awaited.fetch_add(1, Ordering::AcqRel);
        self.send(&mut state);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        drop(state);
        let me = self.me.clone();
        let started = self.socket.try_clone().and_then(|socket| {
            let bell = self.bell.1.try_clone()?;
            // Detached, as the other side may never say anything again.
            self.thread.spawn("vsock", move || run(&me, &socket, &bell))
        });
        if let Err(error) = started {
            self.died(&format!("no thread for it: {error}"));
        }
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        match queue {
            TX => self.transmit(&mut lock(&self.state), link),
            RX if self.starving.load(Ordering::SeqCst) => self.ring(),
            EVENT => announce(&mut lock(&self.state)),
            _ => {}
        }
    }

    fn hold(&self, still: bool) {
        lock(&self.work).still = still;
        if !still {
            self.ring();
        }
    }

    fn save(&self) -> Result<Value, satori_save::Error> {
        Value::of(&SavedVsock { cid: self.cid, reset_due: lock(&self.state).reset_due })
    }

    fn restore(&self, link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error> {
        let SavedVsock { cid, reset_due } = value.state()?;
        satori_save::Error::unless(cid == self.cid, SavedVsock::NAME, "the guest has another address")?;
        let mut state = lock(&self.state);
        let started = state.link.as_ref().is_some_and(|now| Arc::ptr_eq(now, link));
        // A guest that has no driver has no connections. What it had sent is looked at when the device goes on.
        (state.reset_due, state.stalled) = (reset_due || started, started);
        Ok(())
    }

    fn reset(&self) {
        let mut state = lock(&self.state);
        (state.link, state.stalled, state.reset_due) = (None, false, false);
        drop(state);
        // A packet that waited for room of this driver's waits for nobody.
        self.ring();
    }

    fn files(&self) -> Vec<RawFd> {
        vec![self.socket.as_raw_fd(), self.bell.0.as_raw_fd(), self.bell.1.as_raw_fd()]
    }

    fn undetermined(&self) -> Option<String> {
        Some("who speaks with a guest's sockets is not the same every time".into())
    }
}

/// Its connections are not among it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedVsock {
    cid: u64,
    /// The guest has not been told yet that all its connections are gone.
    reset_due: bool,
}

impl satori_save::State for SavedVsock {
    const NAME: &'static str = "sockets of a guest";
    const VERSION: u32 = 1;
}
