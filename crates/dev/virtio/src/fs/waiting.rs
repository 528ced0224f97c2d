//! Who waits for the server's replies: the device's own thread, or, for the time that a reply mostly takes, a vCPU that has nothing else to
//! do. For each request of a guest that waits for it two threads less have to be woken then, of which each takes longer than what was
//! asked for.

use std::io::{Read, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use satori_host::spin::for_a_moment;

use super::{Fs, State};
use crate::lock;

/// What the device's thread waits for: the bell, and of the socket what is of use.
#[derive(Clone, Debug)]
pub(super) struct Watch(Arc<Watched>);

#[derive(Debug)]
struct Watched {
    epoll: OwnedFd,
    /// Another end writes to it.
    bell: UnixStream,
    /// What of the socket is waited for.
    wanted: Mutex<EventFlags>,
}

impl Watch {
    /// For `socket`, and for `bell`, neither of which blocks.
    pub(super) fn new(bell: UnixStream, socket: &UnixStream) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, EventData::new_u64(0), EventFlags::IN)?;
        epoll::add(&epoll, socket, EventData::new_u64(1), EventFlags::IN)?;
        Ok(Watch(Arc::new(Watched { epoll, bell, wanted: Mutex::new(EventFlags::IN) })))
    }

    /// The descriptors that it needs.
    pub(super) fn files(&self) -> [RawFd; 2] {
        [self.0.epoll.as_raw_fd(), self.0.bell.as_raw_fd()]
    }

    /// The bell rang: it is silent again.
    pub(super) fn hush(&self) {
        let mut rung = [0; 64];
        while matches!((&self.0.bell).read(&mut rung), Ok(1..)) {}
    }

    /// Waits until something is to be done.
    pub(super) fn wait(&self) {
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 2];
        let _ = epoll::wait(&self.0.epoll, &mut events, None);
    }

    /// From here on `wanted` of `socket` is waited for.
    fn want(&self, socket: &UnixStream, wanted: EventFlags) {
        let mut before = lock(&self.0.wanted);
        if *before != wanted && epoll::modify(&self.0.epoll, socket, EventData::new_u64(1), wanted).is_ok() {
            *before = wanted;
        }
    }
}

impl Fs {
    /// Has the thread wait for what is of use, while the device is `still` or not.
    pub(super) fn settle(&self, state: &State, still: bool) {
        let wanted = match state.outgoing.is_empty() {
            _ if still => EventFlags::empty(),
            true if state.attended => EventFlags::empty(),
            true => EventFlags::IN,
            false => EventFlags::IN | EventFlags::OUT,
        };
        self.watch.want(&self.socket, wanted);
    }

    /// Waits for a reply, if there is one to come, for as long as one mostly takes and `give_up` does not say that there is something
    /// else to do.
    pub(super) fn attend_here(&self, give_up: &dyn Fn() -> bool) {
        {
            let mut state = lock(&self.state);
            let waits = !state.pending.is_empty() && state.outgoing.is_empty() && self.source.get().is_none();
            if !waits || state.attended || !state.spins.now() {
                return;
            }
            state.attended = true;
            self.settle(&state, false);
        }
        let came = self.spin(give_up);
        let mut state = lock(&self.state);
        state.attended = false;
        if let Some(came) = came {
            state.spins.done(came);
        }
        self.settle(&state, false);
    }

    /// Whether a reply came; nothing if somebody else has the device, or `give_up` told so.
    fn spin(&self, give_up: &dyn Fn() -> bool) -> Option<bool> {
        let mut work = self.work.try_lock().ok()?;
        let poll = || {
            if work.still || give_up() {
                return Some(None);
            }
            match self.receive(&mut work.replies) {
                Ok(true) => Some(Some(true)),
                Ok(false) => None,
                Err(why) => {
                    self.died(&mut lock(&self.state), &why);
                    Some(None)
                }
            }
        };
        for_a_moment(poll).unwrap_or(Some(false))
    }
}
