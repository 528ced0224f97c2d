//! Waiting for a request: for a moment without sleeping, as a guest that asks once mostly asks again at once, and to be woken takes longer
//! than what it asks for.

use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, recv};
use satori_host::spin::{Spins, for_a_moment};

/// A socket that requests come from.
pub(crate) struct Waiting<'a> {
    pub socket: &'a UnixStream,
    pub spins: Spins,
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.spins.now() {
            let came = for_a_moment(|| match recv(self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(error) if Error::from(error).kind() == ErrorKind::WouldBlock => None,
                came => Some(came),
            });
            self.spins.done(came.is_some());
            if let Some(came) = came {
                return Ok(came?.0);
            }
        }
        self.socket.read(buffer)
    }
}
