//! Messages on a stream that carry their own length: what waits to be sent, and a file server's replies as they come.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Bytes of the longest reply that a server may send: a read of 1 MiB and more.
const REPLY_MAX: usize = 2 << 20;
/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

/// What the server did not take yet.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    pub(crate) fn put(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what the socket takes without waiting; whether that was all.
    pub(crate) fn send(&mut self, mut socket: &UnixStream) -> std::io::Result<bool> {
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

/// What came, in pieces of any size, and was not handed out yet.
#[derive(Default)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// Where that begins.
    begin: usize,
}

impl Incoming {
    /// Reads once, at most `piece` bytes.
    pub(crate) fn read(&mut self, mut socket: &UnixStream, piece: usize) -> std::io::Result<usize> {
        self.bytes.drain(..std::mem::take(&mut self.begin));
        let have = self.bytes.len();
        self.bytes.resize(have + piece, 0);
        let result = socket.read(&mut self.bytes[have..]);
        self.bytes.truncate(have + *result.as_ref().unwrap_or(&0));
        result
    }

    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    /// Hands out the first `len` bytes of the rest, which has as many.
    pub(crate) fn take(&mut self, len: usize) -> &mut [u8] {
        let begin = self.begin;
        self.begin += len;
        &mut self.bytes[begin..begin + len]
    }
}

/// Replies as they come.
pub(crate) struct Replies {
    come: Incoming,
    /// Bytes of the shortest.
    least: usize,
}

impl Replies {
    pub(crate) fn new(least: usize) -> Replies {
        Replies { come: Incoming::default(), least }
    }

    /// Reads once.
    pub(crate) fn read(&mut self, socket: &UnixStream) -> std::io::Result<usize> {
        self.come.read(socket, PIECE)
    }

    /// The next whole reply. The error is what is wrong with it: nothing behind it can be understood.
    pub(crate) fn next(&mut self) -> Result<Option<&mut [u8]>, String> {
        let rest = self.come.rest();
        let Some(head) = rest.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if !(self.least..=REPLY_MAX).contains(&len) {
            return Err(format!("it sent a reply of {len} bytes"));
        }
        Ok((rest.len() >= len).then(|| self.come.take(len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_come_whole_however_they_were_cut() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut replies = Replies::new(16);
        let mut message = 20_u32.to_le_bytes().to_vec();
        message.extend([7; 16]);
        for piece in [&message[..3], &message[3..], &message[..]].concat().chunks(9) {
            theirs.write_all(piece).unwrap();
        }
        assert_eq!(replies.read(&ours).unwrap(), 40);
        assert_eq!(replies.next().unwrap().map(|reply| reply.len()), Some(20));
        assert_eq!(replies.next().unwrap().map(|reply| reply.len()), Some(20));
        assert_eq!(replies.next(), Ok(None));
        theirs.write_all(&15_u32.to_le_bytes()).unwrap();
        replies.read(&ours).unwrap();
        assert!(replies.next().is_err());
    }

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
