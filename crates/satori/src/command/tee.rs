//! A command's standard output on its way to the caller's, listened to.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::judge::Ear;

/// Bytes that are passed on at once; a pipe takes as many without blocking if poll(2) finds it writable (POSIX PIPE_BUF).
const PIECE: usize = 4096;
/// How long a reader may let what the guest left behind stand, once it has ended.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The tee, before its thread runs.
#[derive(Debug)]
pub(super) struct Tee {
    from: OwnedFd,
    to: OwnedFd,
    ear: Ear,
    done: UnixStream,
    seen: UnixStream,
}

/// The running tee.
pub(super) struct Running {
    done: Option<UnixStream>,
    thread: JoinHandle<Option<Error>>,
}

impl Tee {
    /// A tee to `to`, and what the guest's port writes to.
    pub(crate) fn new(to: OwnedFd, ear: Ear) -> Result<(Tee, OwnedFd)> {
        let (from, input) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (done, seen) = UnixStream::pair()?;
        Ok((Tee { from, to, ear, done, seen }, input))
    }

    /// The files that it needs.
    pub(crate) fn files(&self) -> [RawFd; 4] {
        [self.from.as_raw_fd(), self.to.as_raw_fd(), self.done.as_raw_fd(), self.seen.as_raw_fd()]
    }

    /// Starts the thread.
    pub(crate) fn start(self) -> std::io::Result<Running> {
        let Tee { from, to, ear, done, seen } = self;
        let pass = move || pass(from, &to, &ear, &seen);
        let thread = std::thread::Builder::new().name("output".into()).spawn(pass)?;
        Ok(Running { done: Some(done), thread })
    }
}

impl Running {
    /// The guest has ended: passes on what is left, and tells why not all could be.
    pub(crate) fn finish(mut self) -> Option<Error> {
        self.done.take();
        self.thread.join().unwrap_or_default()
    }
}

/// Passes on until both the guest has ended and nothing is left, or nobody reads any more; then the guest's port finds a closed pipe, as
/// it would without us.
fn pass(from: OwnedFd, to: &OwnedFd, ear: &Ear, done: &UnixStream) -> Option<Error> {
    let mut buffer = [0; PIECE];
    let mut patience = None;
    loop {
        let mut fds = [PollFd::new(&from, PollFlags::IN), PollFd::new(done, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            Err(why) => return Some(why.into()),
            Ok(_) => {}
        }
        let over = !fds[1].revents().is_empty();
        if fds[0].revents().is_empty() && over {
            return None;
        }
        let length = match rustix::io::read(&from, &mut buffer) {
            Ok(0) => return None,
            Ok(length) => length,
            Err(Errno::INTR) => continue,
            Err(why) => return Some(why.into()),
        };
        ear.hear(&buffer[..length]);
        let mut left = &buffer[..length];
        while !left.is_empty() {
            let mut fds = [PollFd::new(to, PollFlags::OUT), PollFd::new(done, PollFlags::IN)];
            // A guest that has ended leaves `done` readable for good.
            let fds = if patience.is_some() { &mut fds[..1] } else { &mut fds[..] };
            let ready = poll(fds, Some(&LOOK));
            if patience.is_none() && fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                patience = Some(Instant::now() + PATIENCE);
            }
            if fds[0].revents().is_empty() || ready.is_err() {
                if patience.is_some_and(|at| Instant::now() >= at) {
                    return Some(Error::new(ErrorKind::TimedOut, "nobody reads it"));
                }
                continue;
            }
            match rustix::io::write(to, left) {
                Ok(written) => left = &left[written..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::PIPE) => return None,
                Err(why) => return Some(why.into()),
            }
        }
    }
}
