//! Waiting for a request: for a moment without sleeping, as a guest that asks once mostly asks again at once, and to be woken takes longer
//! than what it asks for.

use std::hint::spin_loop;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::net::UnixStream;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

/// How long the next request is waited for before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Most waits that are left out behind one that was in vain.
const PAUSE: u32 = 64;

/// Whether another thread can execute while one spins. Asked before the sandbox, which does not permit the question.
pub(crate) fn may_spin() -> bool {
    available_parallelism().is_ok_and(|processors| processors.get() > 1)
}

/// A socket that requests come from.
pub(crate) struct Waiting<'a> {
    socket: &'a UnixStream,
    spins: bool,
    /// How many waits are left out now, and how many will be behind the next one in vain.
    skip: u32,
    pause: u32,
}

impl<'a> Waiting<'a> {
    /// With `spins`, of [`may_spin`].
    pub(crate) fn on(socket: &'a UnixStream, spins: bool) -> Self {
        Waiting { socket, spins, skip: 0, pause: 0 }
    }

    /// What came within a moment, if something did.
    fn spin(&mut self, buffer: &mut [u8]) -> Option<Result<usize>> {
        if !self.spins {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let begun = Instant::now();
        loop {
            match recv(self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(error) if Error::from(error).kind() == ErrorKind::WouldBlock => {}
                came => {
                    self.pause = 0;
                    return Some(came.map(|(bytes, _)| bytes).map_err(Error::from));
                }
            }
            if begun.elapsed() >= SPIN {
                self.pause = (2 * self.pause).clamp(1, PAUSE);
                self.skip = self.pause;
                return None;
            }
            (0..16).for_each(|_| spin_loop());
        }
    }
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self.spin(buffer) {
            Some(came) => came,
            None => self.socket.read(buffer),
        }
    }
}
