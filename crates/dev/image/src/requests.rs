//! Requests to a disk, whichever bus brought them.
//!
//! What the host has in its memory is read on the thread that asks, which may be a vCPU's; what may have to wait for a disk is
//! done in order by the disk's [`IoThread`], which others may share. A flush is answered when fdatasync has returned.

use std::collections::VecDeque;
use std::io::Result as IoResult;
use std::sync::{Arc, Condvar, Mutex};

use satori_host::io_thread::{IoThread, Work};
use satori_lock::{Held, lock};

use crate::Image;

/// Bytes of the longest request that is tried on the thread that asks.
const AT_ONCE_MAX: usize = 256 << 10;

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
    /// What was written has to last.
    Flush,
    /// Ranges, as place and length, whose content is of no interest any more.
    Discard(Vec<(u64, u64)>),
    /// Ranges that have to read as zeroes.
    Zero(Vec<(u64, u64)>),
}

/// Who is told what became of a request; of a read, the bytes.
pub type Answer = Box<dyn FnOnce(IoResult<Vec<u8>>) + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<(Request, Answer)>,
    /// The thread has one in its hands.
    busy: bool,
    /// The thread was given this disk, and will look for what waits.
    due: bool,
    running: bool,
    /// Threads that wait until there is nothing left.
    watchers: u32,
}

struct Shared {
    image: Image,
    state: Mutex<State>,
    done: Condvar,
}

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
            Request::Flush => self.image.flush().map(none),
            Request::Discard(ranges) => {
                ranges.iter().try_for_each(|&(at, len)| self.image.discard(at, len)).map(none)
            }
            Request::Zero(ranges) => {
                ranges.iter().try_for_each(|&(at, len)| self.image.zero(at, len)).map(none)
            }
        };
        result.inspect_err(|error| tracing::warn!("a request to a disk failed: {error}"))
    }
}

impl Work for Shared {
    fn step(&self) -> bool {
        let mut state = lock(&self.state);
        if let Some((request, answer)) = state.waiting.pop_front() {
            state.busy = true;
            drop(state);
            answer(self.execute(&request));
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
        let (state, done) = (Mutex::default(), Condvar::new());
        Requests { shared: Arc::new(Shared { image, state, done }), thread }
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
            state.waiting.push_back((request, answer));
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
            _ => None,
        }
    }

    /// Forgets what waits, and waits until the thread has nothing more in its hands.
    pub fn clear(&self) {
        lock(&self.shared.state).waiting.clear();
        self.idle();
    }

    /// Waits until the thread has nothing more in its hands.
    pub fn idle(&self) {
        let mut state = lock(&self.shared.state);
        while state.busy || !state.waiting.is_empty() {
            state.watchers += 1;
            state = self.shared.done.wait(state).held();
            state.watchers -= 1;
        }
    }
}
