//! File system (virtio 1.2, 5.11), or 9P transport: requests of a guest go to a file server over a socket, replies come back.
//!
//! The server is somebody else's process; it sees requests only, never guest memory. A request is copied out once,
//! its length checked against what the descriptors hold, and numbered by us: so neither a driver that
//! numbers two requests alike nor one that was reset and begins again can be given another one's reply. The vCPU's
//! thread sends; a thread of the device's own waits for replies, and for room when the server is behind.
//!
//! What the guest has of the server, files that it knows and holds open, is the server's: it gives that session when the machine is
//! saved, and takes one when a state is taken back (`saved`).

mod dialect;
mod saved;
mod waiting;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use satori_cable::{Outgoing, bring_all};
use satori_host::io_thread::IoThread;
use satori_host::spin::Spins;
use satori_host::watch::Watch;
use satori_journal::{Journal, Source};
use satori_save::Value;

use crate::stream::{Come, Replies};
use crate::{Chain, Device, Error, Link, lock};
pub use dialect::Dialect;
use dialect::Sort;

/// Bytes of the longest request: a write of 1 MiB, and names.
const REQUEST_MAX: usize = (1 << 20) + (64 << 10);
/// Bytes of requests that may wait for the server before the queues do.
const BACKLOG: usize = 4 << 20;

/// A folder of the host, as one end of a connection to who serves it.
#[derive(Debug)]
pub struct Share {
    /// What the guest mounts it by: up to 36 bytes.
    pub tag: String,
    /// Which device it is, and how the server is spoken to.
    pub dialect: Dialect,
    /// Raw messages, requests out and replies in.
    pub socket: UnixStream,
}

struct Pending {
    dialect: Dialect,
    link: Arc<Link>,
    queue: u16,
    chain: Chain,
    /// The driver's number of the request.
    number: u64,
}

#[derive(Default)]
struct State {
    /// Requests that wait for replies, by our number.
    pending: BTreeMap<u64, Pending>,
    last: u64,
    outgoing: Outgoing,
    /// Queues that wait until the server has taken what there is.
    stalled: Vec<(Arc<Link>, u16)>,
    /// The server is gone.
    dead: bool,
    running: bool,
    /// A vCPU waits for replies itself, and how often that was of use, when it had nothing else to do and as soon as it had asked.
    attended: bool,
    spins: Spins,
    at_once: Spins,
}

/// What the thread has in its hands.
struct Work {
    replies: Replies,
    /// The machine is saved or restored: nothing may happen that the guest sees.
    still: bool,
    /// The last question's number.
    asked: u32,
}

/// The device.
pub struct Fs {
    tag: String,
    dialect: Dialect,
    socket: UnixStream,
    /// On whose processors its own thread runs.
    thread: IoThread,
    /// Rings for the thread, which waits for the other end.
    bell: UnixStream,
    watch: Watch,
    /// Locked before `state`.
    work: Mutex<Work>,
    state: Mutex<State>,
    /// By which replies come, where the run is recorded or played again: then a request is sent whole, and nobody waits for room.
    source: OnceLock<Source>,
    me: Weak<Fs>,
}

impl Pending {
    fn answer(&self, reply: &[u8]) {
        self.link.give(self.queue, &self.chain, |chain, memory| chain.write(memory, 0, reply));
    }

    fn fail(&self, errno: i32) {
        self.answer(&self.dialect.failure(errno, self.number));
    }
}

impl Fs {
    /// A device for `share`, whose thread runs on the processors of `thread`.
    pub fn new(share: Share, thread: IoThread) -> Result<Arc<Self>, Error> {
        let Share { tag, dialect, socket } = share;
        if tag.is_empty() || tag.len() > dialect::TAG || tag.contains('\0') {
            return Err(Error::Config(format!(
                "'{tag}' is no tag of a share: use 1 to {} bytes",
                dialect::TAG
            )));
        }
        let host = |why| Error::Host { what: "a share", why };
        socket.set_nonblocking(true).map_err(host)?;
        let (bell, rung) = UnixStream::pair().map_err(host)?;
        bell.set_nonblocking(true).map_err(host)?;
        rung.set_nonblocking(true).map_err(host)?;
        let watch = Watch::new(rung, &[socket.as_fd()]).map_err(host)?;
        let work = Mutex::new(Work { replies: Replies::new(dialect.reply_header()), still: false, asked: 0 });
        // Before the sandbox.
        let state = Mutex::new(State { spins: Spins::here(), at_once: Spins::here(), ..State::default() });
        Ok(Arc::new_cyclic(|me| Fs {
            tag,
            dialect,
            socket,
            thread,
            bell,
            watch,
            work,
            state,
            source: OnceLock::new(),
            me: me.clone(),
        }))
    }

    /// Takes requests until there are none, or the server is too far behind.
    fn pump(&self, link: &Arc<Link>, queue: u16) {
        let mut state = lock(&self.state);
        loop {
            if state.outgoing.len() > BACKLOG && self.source.get().is_none() {
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
        let (len, dialect) = (request.len(), self.dialect);
        let sort = dialect.sort(&request);
        let number = dialect.number(&request);
        let pending = Pending { dialect, link: link.clone(), queue, chain, number };
        if !(dialect.request_header()..=REQUEST_MAX).contains(&len) || dialect::length(&request) != len {
            // The server could not tell where the next one begins.
            pending.fail(errno::EINVAL);
            return;
        }
        if state.dead {
            pending.fail(errno::ENOTCONN);
            return;
        }
        match sort {
            Sort::Ignored => pending.answer(&[]),
            Sort::Notice => {
                state.outgoing.put(&request);
                pending.answer(&[]);
            }
            Sort::Question if pending.chain.writable_bytes() < dialect.reply_header() => pending.answer(&[]),
            Sort::Question => {
                // There are fewer that wait than numbers, as a queue has no more than its descriptors.
                while {
                    state.last = dialect.after(state.last);
                    state.pending.contains_key(&state.last)
                } {}
                dialect.set_number(&mut request, state.last);
                state.outgoing.put(&request);
                state.pending.insert(state.last, pending);
            }
        }
    }

    /// Sends what the socket takes without waiting; the thread sends the rest.
    fn send(&self, state: &mut State) {
        if let Some(source) = self.source.get() {
            // A server that does not take it is gone, which the other direction tells.
            if source.replays() || state.outgoing.send_all(&self.socket).is_err() {
                state.outgoing = Outgoing::default();
            }
            return;
        }
        match state.outgoing.send(&self.socket) {
            Ok(true) => {}
            Ok(false) => self.ring(),
            Err(why) => self.died(state, &why.to_string()),
        }
    }

    fn ring(&self) {
        // A bell that rings already is enough.
        let _ = (&self.bell).write(&[1]);
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
    fn work(&self) -> bool {
        self.watch.hush();
        // Held to the end: whoever holds the device still waits for all that the guest sees of this.
        let mut work = lock(&self.work);
        if work.still {
            return true;
        }
        if let Err(why) = self.receive(&mut work.replies) {
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

    /// Takes all replies that are there, and tells whether there were some. The error is why there can be no more.
    fn receive(&self, replies: &mut Replies) -> Result<bool, String> {
        let mut some = false;
        loop {
            match replies.read(&self.socket) {
                Ok(0) => return Err("it closed its connection".into()),
                Ok(_) => some = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(some),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
            self.hand_out(replies)?;
        }
    }

    fn hand_out(&self, replies: &mut Replies) -> Result<(), String> {
        while let Some(come) = replies.next()? {
            match come {
                Come::Reply(reply) => self.replied(reply),
                // An answer that was not waited for so long.
                Come::Note(..) => {}
            }
        }
        Ok(())
    }

    /// Bytes of the server, on the thread that runs the machine.
    fn come(&self, bytes: &[u8]) {
        let mut work = lock(&self.work);
        work.replies.put(bytes);
        let done = self.hand_out(&mut work.replies);
        let done = if bytes.is_empty() { Err("it closed its connection".into()) } else { done };
        if let Err(why) = done {
            self.died(&mut lock(&self.state), &why);
        }
    }

    fn replied(&self, reply: &mut [u8]) {
        // One that nobody waits for is a notice, or for a driver that was reset.
        let Some(pending) = lock(&self.state).pending.remove(&self.dialect.number(reply)) else { return };
        if reply.len() > pending.chain.writable_bytes() {
            pending.fail(errno::EIO);
            return;
        }
        self.dialect.set_number(reply, pending.number);
        pending.answer(reply);
    }
}

/// Waits for the server and for the bell until the device is gone.
fn run(me: &Weak<Fs>) {
    loop {
        let watch = match me.upgrade() {
            Some(me) if me.work() => {
                let still = lock(&me.work).still;
                me.settle(&lock(&me.state), still);
                me.watch.clone()
            }
            _ => return,
        };
        watch.wait();
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        self.ring();
    }
}

/// Errors that a guest is told (linux/errno.h).
mod errno {
    pub(super) const EIO: i32 = 5;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOTCONN: i32 = 107;
}

impl Device for Fs {
    fn kind(&self) -> u16 {
        self.dialect.kind()
    }

    fn class(&self) -> u32 {
        0x01_80_00
    }

    fn features(&self) -> u64 {
        self.dialect.features()
    }

    fn queues(&self) -> Vec<u16> {
        self.dialect.queues()
    }

    fn config(&self) -> Vec<u8> {
        self.dialect.config(&self.tag)
    }

    fn start(&self, _link: &Arc<Link>) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        if let Some(source) = self.source.get() {
            let source = source.clone();
            if !source.replays() {
                let started = self.socket.try_clone();
                let started = started
                    .and_then(|socket| self.thread.spawn("share", move || bring_all(&socket, &source)));
                if let Err(error) = started {
                    self.died(&mut state, &format!("no thread for it: {error}"));
                }
            }
            return;
        }
        let me = self.me.clone();
        // Detached, as the server may never answer again.
        if let Err(error) = self.thread.spawn("share", move || run(&me)) {
            self.died(&mut state, &format!("no thread for it: {error}"));
        }
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        self.pump(link, queue);
        self.attend_at_once();
    }

    fn attend(&self, give_up: &dyn Fn() -> bool) {
        self.attend_here(give_up);
    }

    fn hold(&self, still: bool) {
        lock(&self.work).still = still;
        if !still {
            self.ring();
        }
    }

    fn save(&self) -> Result<Value, satori_save::Error> {
        self.saved()
    }

    fn restore(&self, link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error> {
        self.take_back(link, value)
    }

    fn reset(&self) {
        let mut state = lock(&self.state);
        // What the server still answers, nobody waits for.
        state.pending.clear();
        state.stalled.clear();
    }

    fn files(&self) -> Vec<RawFd> {
        let watched = self.watch.files();
        [self.socket.as_raw_fd(), self.bell.as_raw_fd()].into_iter().chain(watched).collect()
    }

    fn journalled(&self, journal: &Journal) -> bool {
        let (source, me) = (journal.source(&format!("folder {}", self.tag)), self.me.clone());
        source.to(move |bytes| me.upgrade().iter().for_each(|me| me.come(bytes)));
        self.source.set(source).is_ok()
    }

    fn undetermined(&self) -> Option<String> {
        Some(format!("what is in a shared folder ({}) is not the same every time", self.tag))
    }
}
