//! File system (virtio 1.2, 5.11): FUSE requests of a guest go to a file server over a socket, replies come back.
//!
//! The server is somebody else's process; it sees requests only, never guest memory. A request is copied out once,
//! its length checked against what the descriptors hold, and numbered by us: so neither a driver that
//! numbers two requests alike nor one that was reset and begins again can be given another one's reply. The vCPU's
//! thread sends; a thread of the device's own waits for replies, and for room when the server is behind.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};

use rustix::event::{PollFd, PollFlags, poll};
use satori_defs::virtio::{fs::*, kind};
use satori_save::Value;

use crate::stream::{Outgoing, Replies};
use crate::{Chain, Device, Error, Link, lock};

/// Queues: one for what must overtake others, one for requests.
const HIPRIO: u16 = 128;
const REQUESTS: u16 = 1024;
/// Bytes of the longest request: a write of 1 MiB, and names.
const REQUEST_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes of requests that may wait for the server before the queues do.
const BACKLOG: usize = 4 << 20;

/// A folder of the host, as one end of a connection to who serves it.
#[derive(Debug)]
pub struct Share {
    /// What the guest mounts it by: up to 36 bytes.
    pub tag: String,
    /// Raw FUSE messages, requests out and replies in.
    pub socket: UnixStream,
}

struct Pending {
    link: Arc<Link>,
    queue: u16,
    chain: Chain,
    /// The driver's number of the request.
    unique: u64,
}

#[derive(Default)]
struct State {
    /// Requests that wait for replies, by our number.
    pending: BTreeMap<u64, Pending>,
    sent: u64,
    outgoing: Outgoing,
    /// Queues that wait until the server has taken what there is.
    stalled: Vec<(Arc<Link>, u16)>,
    /// The server is gone.
    dead: bool,
    running: bool,
}

/// The device.
pub struct Fs {
    tag: String,
    socket: UnixStream,
    /// Rings for the thread: the first end is written to, the second waited for.
    bell: (UnixStream, UnixStream),
    state: Mutex<State>,
    me: Weak<Fs>,
}

/// A reply that tells an error (linux/errno.h).
fn failure(errno: i32, unique: u64) -> [u8; OUT_HEADER] {
    let mut reply = [0; OUT_HEADER];
    reply[..4].copy_from_slice(&(OUT_HEADER as u32).to_le_bytes());
    reply[4..8].copy_from_slice(&(-errno).to_le_bytes());
    reply[8..].copy_from_slice(&unique.to_le_bytes());
    reply
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl Pending {
    fn answer(&self, reply: &[u8]) {
        self.link.give(self.queue, &self.chain, |chain, memory| chain.write(memory, 0, reply));
    }

    fn fail(&self, errno: i32) {
        self.answer(&failure(errno, self.unique));
    }
}

impl Fs {
    /// A device for `share`.
    pub fn new(share: Share) -> Result<Arc<Self>, Error> {
        let Share { tag, socket } = share;
        if tag.is_empty() || tag.len() > TAG || tag.contains('\0') {
            return Err(Error::Config(format!("'{tag}' is no tag of a share: use 1 to {TAG} bytes")));
        }
        let host = |why| Error::Host { what: "a share", why };
        socket.set_nonblocking(true).map_err(host)?;
        let bell = UnixStream::pair().map_err(host)?;
        bell.0.set_nonblocking(true).map_err(host)?;
        bell.1.set_nonblocking(true).map_err(host)?;
        Ok(Arc::new_cyclic(|me| Fs { tag, socket, bell, state: Mutex::default(), me: me.clone() }))
    }

    /// Takes requests until there are none, or the server is too far behind.
    fn pump(&self, link: &Arc<Link>, queue: u16) {
        let mut state = lock(&self.state);
        loop {
            if state.outgoing.len() > BACKLOG {
                state.stalled.push((link.clone(), queue));
                break;
            }
            let Some(chain) = link.pop(queue) else { break };
            self.request(&mut state, link, queue, chain);
        }
        self.send(&mut state);
    }

    fn request(&self, state: &mut State, link: &Arc<Link>, queue: u16, chain: Chain) {
        let mut request = chain.read(link.memory(), 0, REQUEST_MAX + 1);
        let (len, opcode, unique) = (request.len(), word(&request, 4), number(&request, 8));
        let pending = Pending { link: link.clone(), queue, chain, unique };
        if !(IN_HEADER..=REQUEST_MAX).contains(&len) || word(&request, 0) as usize != len {
            // The server could not tell where the next one begins.
            pending.fail(errno::EINVAL);
            return;
        }
        if state.dead {
            pending.fail(errno::ENOTCONN);
            return;
        }
        match opcode {
            // Replies are ours to number, so nobody could say which one is meant; Linux never asks.
            INTERRUPT => pending.answer(&[]),
            FORGET | BATCH_FORGET => {
                state.outgoing.put(&request);
                pending.answer(&[]);
            }
            _ if pending.chain.writable_bytes() < OUT_HEADER => pending.answer(&[]),
            _ => {
                state.sent += 1;
                request[8..16].copy_from_slice(&state.sent.to_le_bytes());
                state.outgoing.put(&request);
                state.pending.insert(state.sent, pending);
            }
        }
    }

    /// Sends what the socket takes without waiting; the thread sends the rest.
    fn send(&self, state: &mut State) {
        match state.outgoing.send(&self.socket) {
            Ok(true) => {}
            Ok(false) => self.ring(),
            Err(why) => self.died(state, &why.to_string()),
        }
    }

    fn ring(&self) {
        // A bell that rings already is enough.
        let _ = (&self.bell.0).write(&[1]);
    }

    /// The server is gone: everybody who waits is told, and whoever comes.
    fn died(&self, state: &mut State, why: &str) {
        if !std::mem::replace(&mut state.dead, true) {
            tracing::warn!(
                "the file server of share '{}' is gone ({why}): the guest gets ENOTCONN from now on",
                self.tag
            );
        }
        state.outgoing = Outgoing::default();
        for (_, pending) in std::mem::take(&mut state.pending) {
            pending.fail(errno::ENOTCONN);
        }
    }

    /// Does what can be done; false if there is nothing to be done any more.
    fn attend(&self, replies: &mut Replies) -> bool {
        let mut rung = [0; 64];
        while matches!((&self.bell.1).read(&mut rung), Ok(1..)) {}
        if let Err(why) = self.receive(replies) {
            self.died(&mut lock(&self.state), &why);
            return false;
        }
        let stalled = {
            let mut state = lock(&self.state);
            self.send(&mut state);
            if state.outgoing.len() <= BACKLOG / 2 { std::mem::take(&mut state.stalled) } else { Vec::new() }
        };
        stalled.iter().for_each(|(link, queue)| self.pump(link, *queue));
        true
    }

    /// Takes all replies that are there. The error is why there can be no more.
    fn receive(&self, replies: &mut Replies) -> Result<(), String> {
        loop {
            match replies.read(&self.socket) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            while let Some(reply) = replies.next()? {
                self.replied(reply);
            }
        }
    }

    fn replied(&self, reply: &mut [u8]) {
        // One that nobody waits for is a notice, or for a driver that was reset.
        let Some(pending) = lock(&self.state).pending.remove(&number(reply, 8)) else { return };
        if reply.len() > pending.chain.writable_bytes() {
            pending.fail(errno::EIO);
            return;
        }
        reply[8..16].copy_from_slice(&pending.unique.to_le_bytes());
        pending.answer(reply);
    }
}

/// Waits for the server and for the bell until the device is gone.
fn run(me: &Weak<Fs>, socket: &UnixStream, bell: &UnixStream) {
    let mut replies = Replies::default();
    loop {
        let waits = match me.upgrade() {
            Some(me) if me.attend(&mut replies) => !lock(&me.state).outgoing.is_empty(),
            _ => return,
        };
        let wanted = if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut files = [PollFd::new(socket, wanted), PollFd::new(bell, PollFlags::IN)];
        let _ = poll(&mut files, None);
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        self.ring();
    }
}

/// Errors that a guest is told (linux/errno.h).
mod errno {
    pub const EIO: i32 = 5;
    pub const EINVAL: i32 = 22;
    pub const ENOTCONN: i32 = 107;
}

impl Device for Fs {
    fn kind(&self) -> u16 {
        kind::FS
    }

    fn class(&self) -> u32 {
        0x01_80_00
    }

    fn queues(&self) -> Vec<u16> {
        vec![HIPRIO, REQUESTS]
    }

    fn config(&self) -> Vec<u8> {
        let mut config = self.tag.clone().into_bytes();
        config.resize(TAG, 0);
        config.extend(1_u32.to_le_bytes());
        config
    }

    fn start(&self, _link: &Arc<Link>) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        let me = self.me.clone();
        let started = self.socket.try_clone().and_then(|socket| {
            let bell = self.bell.1.try_clone()?;
            // Detached, as the server may never answer again.
            std::thread::Builder::new().name("share".into()).spawn(move || run(&me, &socket, &bell))
        });
        if let Err(error) = started {
            self.died(&mut state, &format!("no thread for it: {error}"));
        }
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        self.pump(link, queue);
    }

    fn save(&self) -> Result<Value, satori_save::Error> {
        Err(satori_save::Error::refused(
            "a shared folder",
            "the folder's server is a process with open files; save a machine without shares",
        ))
    }

    fn restore(&self, _link: &Arc<Link>, _value: &Value) -> Result<(), satori_save::Error> {
        self.save().map(drop)
    }

    fn reset(&self) {
        let mut state = lock(&self.state);
        // What the server still answers, nobody waits for.
        state.pending.clear();
        state.stalled.clear();
    }

    fn files(&self) -> Vec<RawFd> {
        vec![self.socket.as_raw_fd(), self.bell.0.as_raw_fd(), self.bell.1.as_raw_fd()]
    }

    fn undetermined(&self) -> Option<String> {
        Some(format!("what is in a shared folder ({}) is not the same every time", self.tag))
    }
}
