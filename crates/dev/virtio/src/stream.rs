//! Messages on a stream that carry their own length: a file server's replies as they come.

use std::os::unix::net::UnixStream;

use satori_cable::Incoming;

/// Bytes of the longest reply that a server may send: a read of 1 MiB and more.
const REPLY_MAX: usize = 2 << 20;
/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

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
    use std::io::Write;

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
}
