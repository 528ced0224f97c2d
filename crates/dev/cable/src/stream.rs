//! Bytes on a stream: what waits to be sent, and what came.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use satori_journal::Source;

/// What the server did not take yet.
#[derive(Default)]
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    /// Adds this.
    pub fn put(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what the socket takes without waiting; whether that was all.
    pub fn send(&mut self, mut socket: &UnixStream) -> std::io::Result<bool> {
        while self.sent < self.bytes.len() {
            match socket.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // So what is sent does not pile up.
                    self.bytes.drain(..std::mem::take(&mut self.sent));
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }
}

impl Outgoing {
    /// Sends all, and waits for that.
    pub fn send_all(&mut self, socket: &UnixStream) -> std::io::Result<()> {
        while !self.send(socket)? {
            let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], None);
        }
        Ok(())
    }
}

/// What came, in pieces of any size, and was not handed out yet.
#[derive(Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    /// Where that begins.
    begin: usize,
}

impl Incoming {
    /// Reads once, at most `piece` bytes.
    pub fn read(&mut self, mut socket: &UnixStream, piece: usize) -> std::io::Result<usize> {
        self.bytes.drain(..std::mem::take(&mut self.begin));
        let have = self.bytes.len();
        self.bytes.resize(have + piece, 0);
        let result = socket.read(&mut self.bytes[have..]);
        self.bytes.truncate(have + *result.as_ref().unwrap_or(&0));
        result
    }

    /// Takes bytes that came in another way.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.begin));
        self.bytes.extend(bytes);
    }

    /// What was not handed out.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    /// Hands out the first `len` bytes of the rest, which has as many.
    pub fn take(&mut self, len: usize) -> &mut [u8] {
        let begin = self.begin;
        self.begin += len;
        &mut self.bytes[begin..begin + len]
    }
}

/// Brings all that comes from `socket` to `source`, until it is closed.
pub fn bring_all(mut socket: &UnixStream, source: &Source) {
    let mut bytes = vec![0; 128 << 10];
    loop {
        match socket.read(&mut bytes) {
            Ok(count) => {
                source.bring(&bytes[..count]);
                if count == 0 {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
            }
            Err(_) => return source.bring(&[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_socket_does_not_take_waits() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut outgoing = Outgoing::default();
        outgoing.put(&vec![5; 4 << 20]);
        assert!(!outgoing.send(&ours).unwrap());
        let mut all = 0;
        let mut buffer = vec![0; 1 << 20];
        while !outgoing.send(&ours).unwrap() {
            all += theirs.read(&mut buffer).unwrap();
        }
        while all < 4 << 20 {
            all += theirs.read(&mut buffer).unwrap();
        }
        assert!(outgoing.is_empty() && all == 4 << 20);
    }
}
