//! Requests to a disk, whichever bus brought them.
//!
//! What the host has in its memory is read on the thread that asks, which may be a vCPU's; what may have to wait for a disk is
//! done in order by the disk's [`IoThread`], which others may share. A flush is answered when fdatasync has returned. A vCPU that
//! has nothing else to do waits for a moment for what it asked for ([`Requests::attend`]), so that nobody has to wake it.

use std::collections::VecDeque;
use std::io::{Error, Result as IoResult};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{ThreadId, current};

use satori_host::io_thread::{IoThread, Work};
use satori_host::spin::{Spins, for_a_moment};
use satori_lock::{Held, lock};
use satori_memory::Scatter;

use crate::Image;

/// Bytes of the longest request that is tried on the thread that asks.
const AT_ONCE_MAX: usize = 1 << 20;

/// What is asked for. Its bytes are within the disk, and nothing is written to one that is read-only.
#[derive(Debug)]
pub enum Request {
    /// So many bytes, which the answer has.
    Read {
        /// The first one.
        at: u64,
        /// How many.
        len: usize,
    },
    /// These bytes are to be written.
    Write {
        /// Where the first one goes.
        at: u64,
        /// All of them.
        data: Vec<u8>,
    },
    /// Guest memory is to be filled with bytes of the disk.
    Fill {
        /// The first one.
        at: u64,
        /// Where they go. If the answer is an error, what is there then is anything.
        into: Scatter,
    },
    /// What is in guest memory is to be written.
    Drain {
        /// Where the first byte goes.
        at: u64,
        /// All of them, as they are when it is done.
        from: Scatter,
    },
    /// What was written has to last.
    Flush,
    /// Ranges, as place and length, whose content is of no interest any more.
    Discard(Vec<(u64, u64)>),
    /// Ranges that have to read as zeroes.
    Zero(Vec<(u64, u64)>),
}

/// Who is told what became of a request; of a read, the bytes.
pub type Answer = Box<dyn FnOnce(IoResult<Vec<u8>>) + Send>;

/// Bytes to be written that may wait. Who asks for more waits itself until there are fewer.
const WAITING_MAX: usize = 64 << 20;

impl Request {
    /// Bytes that it keeps.
    fn bytes(&self) -> usize {
        if let Request::Write { data, .. } = self { data.len() } else { 0 }
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Request, Answer)>,
    /// Bytes of those.
    bytes: usize,
    /// The thread has one in its hands.
    busy: bool,
    /// The thread was given this disk, and will look for what waits.
    due: bool,
    running: bool,
    /// Threads that wait until there is nothing left.
    watchers: u32,
    /// Who gave the thread its last request, and how often he waited for one with use.
    asker: Option<ThreadId>,
    spins: Spins,
}

struct Shared {
    image: Image,
    state: Mutex<State>,
    /// Requests that the thread has not answered.
    under_way: AtomicUsize,
    done: Condvar,
    /// Requests that failed and were told.
    told: AtomicU8,
}

/// Requests that failed, of which messages tell: a guest must not fill what the host keeps of them.
const FAILURES: u8 = 10;

/// A disk's requests, and its image.
pub struct Requests {
    shared: Arc<Shared>,
    thread: IoThread,
}

impl Shared {
    fn execute(&self, request: &Request) -> IoResult<Vec<u8>> {
        let none = |()| Vec::new();
        let result = match request {
            Request::Read { at, len } => {
                let mut data = vec![0; *len];
                self.image.read(*at, &mut data).map(|()| data)
            }
            Request::Write { at, data } => self.image.write(*at, data).map(none),
            Request::Fill { at, into } => self.image.fill(*at, into).map(none),
            Request::Drain { at, from } => self.image.drain(*at, from).map(none),
            Request::Flush => self.image.flush().map(none),
            Request::Discard(ranges) => {
                ranges.iter().try_for_each(|&(at, len)| self.image.discard(at, len)).map(none)
            }
            Request::Zero(ranges) => {
                ranges.iter().try_for_each(|&(at, len)| self.image.zero(at, len)).map(none)
            }
        };
        result.inspect_err(|error| self.tell(error))
    }

    fn tell(&self, error: &Error) {
        let one_more = |told| (told < FAILURES).then_some(told + 1);
        if let Ok(before) = self.told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            let last = if before + 1 == FAILURES { "; of more of this disk's nothing is told" } else { "" };
            tracing::warn!("a request to a disk failed: {error}{last}");
        }
    }
}

impl Work for Shared {
    fn step(&self) -> bool {
        let mut state = lock(&self.state);
        if let Some((request, answer)) = state.waiting.pop_front() {
            state.bytes -= request.bytes();
            state.busy = true;
            drop(state);
            answer(self.execute(&request));
            self.under_way.fetch_sub(1, Ordering::Release);
            state = lock(&self.state);
            state.busy = false;
            if state.watchers > 0 {
                self.done.notify_all();
            }
        }
        state.due = !state.waiting.is_empty();
        state.due
    }
}

impl Requests {
    /// Those of the disk with this image, of which `thread` does what may have to wait.
    pub fn new(image: Image, thread: IoThread) -> Self {
        // Before the sandbox.
        let state = Mutex::new(State { spins: Spins::here(), ..State::default() });
        let (under_way, told) = (AtomicUsize::new(0), AtomicU8::new(0));
        Requests { shared: Arc::new(Shared { image, state, under_way, done: Condvar::new(), told }), thread }
    }

    /// The thread that does what may have to wait.
    pub fn thread(&self) -> &IoThread {
        &self.thread
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.shared.image
    }

    /// Starts the thread, if it does not run yet; without it everything is done by who asks.
    pub fn start(&self) {
        let mut state = lock(&self.shared.state);
        if state.running {
            return;
        }
        match self.thread.start("disk") {
            Ok(()) => state.running = true,
            Err(error) => tracing::warn!("no thread for a disk ({error}): vCPUs wait for it themselves"),
        }
    }

    /// Does `request` here if that needs no waiting, or there is nobody else; else the thread does.
    pub fn take(&self, request: Request, answer: Answer) {
        let mut state = lock(&self.shared.state);
        if !state.running {
            drop(state);
            answer(self.shared.execute(&request));
        } else if state.waiting.is_empty()
            && !state.busy
            && let Some(data) = self.at_once(&request)
        {
            drop(state);
            answer(Ok(data));
        } else {
            state = self.until(state, |state| state.bytes <= WAITING_MAX);
            state.bytes += request.bytes();
            state.waiting.push_back((request, answer));
            state.asker = Some(current().id());
            self.shared.under_way.fetch_add(1, Ordering::Relaxed);
            if !std::mem::replace(&mut state.due, true) {
                drop(state);
                self.thread.give(self.shared.clone());
            }
        }
    }

    /// What `request` reads, if that needs no waiting.
    fn at_once(&self, request: &Request) -> Option<Vec<u8>> {
        match request {
            Request::Read { at, len } if *len <= AT_ONCE_MAX => {
                let mut data = vec![0; *len];
                self.shared.image.read_at_once(*at, &mut data).then_some(data)
            }
            Request::Fill { at, into } if into.len() <= AT_ONCE_MAX => {
                self.shared.image.fill_at_once(*at, into).then(Vec::new)
            }
            _ => None,
        }
    }

    /// The caller has nothing to do until `give_up` says so: if the thread does what he asked for, he waits for a moment for that.
    pub fn attend(&self, give_up: &dyn Fn() -> bool) {
        let under_way = || self.shared.under_way.load(Ordering::Acquire) > 0;
        if !under_way() {
            return;
        }
        {
            let mut state = lock(&self.shared.state);
            if state.asker != Some(current().id()) || !state.spins.now() {
                return;
            }
        }
        let useful = for_a_moment(|| (give_up() || !under_way()).then_some(())).is_some();
        lock(&self.shared.state).spins.done(useful);
    }

    /// Forgets what waits, and waits until the thread has nothing more in its hands.
    pub fn clear(&self) {
        {
            let mut state = lock(&self.shared.state);
            self.shared.under_way.fetch_sub(state.waiting.len(), Ordering::Relaxed);
            state.waiting.clear();
            state.bytes = 0;
        }
        self.idle();
    }

    /// Waits until the thread has nothing more in its hands.
    pub fn idle(&self) {
        drop(self.until(lock(&self.shared.state), |state| !state.busy && state.waiting.is_empty()));
    }

    /// Waits until `done` holds.
    fn until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while !done(&state) {
            state.watchers += 1;
            state = self.shared.done.wait(state).held();
            state.watchers -= 1;
        }
        state
    }
}

#[cfg(test)]
mod tests;
