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
    /// It, and room for more, which is zeroed once: whoever polls reads again and again.
    bytes: Vec<u8>,
    /// Where it begins and ends.
    begin: usize,
    end: usize,
}

impl Incoming {
    /// Reads once, at most `piece` bytes.
    pub fn read(&mut self, mut socket: &UnixStream, piece: usize) -> std::io::Result<usize> {
        let count = socket.read(self.room(piece))?;
        self.end += count;
        Ok(count)
    }

    /// Room for so many bytes behind what there is.
    fn room(&mut self, len: usize) -> &mut [u8] {
        self.bytes.copy_within(self.begin..self.end, 0);
        self.end -= std::mem::take(&mut self.begin);
        if self.bytes.len() < self.end + len {
            self.bytes.resize(self.end + len, 0);
        }
        &mut self.bytes[self.end..self.end + len]
    }

    /// Takes bytes that came in another way.
    pub fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// What was not handed out.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Hands out the first `len` bytes of the rest, which has as many.
    pub fn take(&mut self, len: usize) -> &mut [u8] {
        let taken = &mut self.bytes[self.begin..self.end][..len];
        self.begin += len;
        taken
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

    #[test]
    fn what_came_is_handed_out_in_order_however_it_came_and_was_taken() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (mut incoming, mut next, mut sent) = (Incoming::default(), 0_u8, 0_u8);
        for round in 0..200_usize {
            let bytes: Vec<u8> = (0..round % 13).map(|i| sent.wrapping_add(i as u8)).collect();
            sent = sent.wrapping_add(bytes.len() as u8);
            match round % 3 {
                0 => incoming.put(&bytes),
                _ if bytes.is_empty() => {}
                _ => {
                    theirs.write_all(&bytes).unwrap();
                    let first = incoming.read(&ours, bytes.len().div_ceil(2)).unwrap();
                    assert_eq!(first + incoming.read(&ours, 64).unwrap_or(0), bytes.len());
                }
            }
            let len = (round * 7 % 11).min(incoming.rest().len());
            for byte in incoming.take(len) {
                assert_eq!(*byte, next);
                next = next.wrapping_add(1);
            }
        }
        assert_eq!(incoming.rest().len(), usize::from(sent.wrapping_sub(next)));
    }
}
