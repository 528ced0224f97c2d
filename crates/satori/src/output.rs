//! The guest's console on standard output.

use std::io::{ErrorKind, Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use satori_bus::ByteSink;

/// What a pipe takes without blocking once poll(2) said that it is writable (POSIX PIPE_BUF is
/// at least 512).
const PIECE: usize = 512;

/// What the rest of the program knows of the console.
#[derive(Debug, Default)]
pub struct Shared {
    /// Nobody reads any more, or the guest is to end: what comes is dropped.
    muted: AtomicBool,
    /// The reader has gone.
    closed: AtomicBool,
}

impl Shared {
    /// Drops output from now on, also output that waits for a reader at this moment.
    pub fn mute(&self) {
        self.muted.store(true, Ordering::Relaxed);
    }

    /// Whether the reader of standard output has gone.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// The sink that a serial port writes to.
#[derive(Debug, Clone, Default)]
pub struct Output(Arc<Shared>);

impl Output {
    /// What the rest of the program knows of this console.
    pub fn shared(&self) -> Arc<Shared> {
        self.0.clone()
    }
}

impl ByteSink for Output {
    fn put(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            // A reader that does not read stops the guest's console, never our way out.
            loop {
                if self.0.muted.load(Ordering::Relaxed) {
                    return;
                }
                if writable() {
                    break;
                }
            }
            let mut out = stdout().lock();
            if let Err(error) = out.write_all(piece).and_then(|()| out.flush())
                && error.kind() != ErrorKind::Interrupted
            {
                self.0.closed.store(true, Ordering::Relaxed);
                self.0.mute();
            }
        }
    }
}

/// Waits a little for standard output to take something; an error counts, for the write to tell.
fn writable() -> bool {
    let out = stdout();
    let mut fds = [PollFd::new(&out, PollFlags::OUT)];
    let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    !matches!(poll(&mut fds, Some(&tenth)), Ok(0) | Err(rustix::io::Errno::INTR))
}
