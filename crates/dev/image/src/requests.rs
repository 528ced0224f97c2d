//! Requests to a disk, whichever bus brought them.
//!
//! What the host has in its memory is read on the thread that asks, which may be a vCPU's; what may have to wait for a disk is
//! done in order by a thread of the disk's own. A flush is answered when fdatasync has returned.

use std::collections::VecDeque;
use std::io::Result as IoResult;
use std::sync::{Arc, Condvar, Mutex};

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
    busy: bool,
    waits: bool,
    running: bool,
    over: bool,
}

struct Shared {
    image: Image,
    state: Mutex<State>,
    bell: Condvar,
    done: Condvar,
}

/// A disk's requests, and its image.
pub struct Requests(Arc<Shared>);

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

    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some((request, answer)) = state.waiting.pop_front() {
                state.busy = true;
                drop(state);
                answer(self.execute(&request));
                state = lock(&self.state);
                state.busy = false;
                self.done.notify_all();
            } else if state.over {
                return;
            } else {
                state.waits = true;
                state = self.bell.wait(state).held();
                state.waits = false;
            }
        }
    }
}

impl Requests {
    /// Those of the disk with this image.
    pub fn new(image: Image) -> Self {
        let (state, bell, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        Requests(Arc::new(Shared { image, state, bell, done }))
    }

    /// The image.
    pub fn image(&self) -> &Image {
        &self.0.image
    }

    /// Starts the thread, if there is none yet; without it everything is done by who asks.
    pub fn start(&self) {
        let mut state = lock(&self.0.state);
        if std::mem::replace(&mut state.running, true) {
            return;
        }
        let shared = self.0.clone();
        if let Err(error) = std::thread::Builder::new().name("disk".into()).spawn(move || shared.run()) {
            tracing::warn!("no thread for a disk ({error}): vCPUs wait for it themselves");
            state.running = false;
        }
    }

    /// Does `request` here if that needs no waiting, or there is nobody else; else the thread does.
    pub fn take(&self, request: Request, answer: Answer) {
        let mut state = lock(&self.0.state);
        if !state.running {
            drop(state);
            answer(self.0.execute(&request));
        } else if state.waiting.is_empty()
            && !state.busy
            && let Some(data) = self.at_once(&request)
        {
            drop(state);
            answer(Ok(data));
        } else {
            state.waiting.push_back((request, answer));
            if state.waits {
                self.0.bell.notify_one();
            }
        }
    }

    /// What `request` reads, if that needs no waiting.
    fn at_once(&self, request: &Request) -> Option<Vec<u8>> {
        match request {
            Request::Read { at, len } if *len <= AT_ONCE_MAX => {
                let mut data = vec![0; *len];
                self.0.image.read_at_once(*at, &mut data).then_some(data)
            }
            _ => None,
        }
    }

    /// Forgets what waits, and waits until the thread has nothing more in its hands.
    pub fn clear(&self) {
        lock(&self.0.state).waiting.clear();
        self.idle();
    }

    /// Waits until the thread has nothing more in its hands.
    pub fn idle(&self) {
        let mut state = lock(&self.0.state);
        while state.busy || !state.waiting.is_empty() {
            state = self.0.done.wait(state).held();
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        lock(&self.0.state).over = true;
        self.0.bell.notify_one();
    }
}
