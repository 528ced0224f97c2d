//! Messages on a stream that carry their own length: a file server's replies and notes as they come.

use std::os::unix::net::UnixStream;

use satori_cable::Incoming;
use satori_defs::share::{NOTE, NOTE_HEADER, NOTE_MAX};

/// Bytes of the longest reply that a server may send: a read of 1 MiB and more.
const REPLY_MAX: usize = 2 << 20;
/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

/// What comes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Come<'a> {
    /// A reply for the guest.
    Reply(&'a mut [u8]),
    /// A note for the device: the word without its mark, and what it tells.
    Note(u32, &'a [u8]),
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

    /// Takes bytes that came in another way.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.come.put(bytes);
    }

    /// The next whole reply or note. The error is what is wrong with it: nothing behind it can be understood.
    pub(crate) fn next(&mut self) -> Result<Option<Come<'_>>, String> {
        let rest = self.come.rest();
        let Some(head) = rest.first_chunk::<4>() else { return Ok(None) };
        let word = u32::from_le_bytes(*head);
        if word & NOTE != 0 {
            let Some((_, len)) = rest.first_chunk::<NOTE_HEADER>().and_then(|head| head.split_last_chunk())
            else {
                return Ok(None);
            };
            let len = u64::from_le_bytes(*len);
            if len > NOTE_MAX {
                return Err(format!("it sent a note of {len} bytes"));
            }
            let len = NOTE_HEADER + len as usize;
            let whole = (rest.len() >= len).then(|| self.come.take(len));
            return Ok(whole.map(|note| Come::Note(word & !NOTE, &note[NOTE_HEADER..])));
        }
        let len = word as usize;
        if !(self.least..=REPLY_MAX).contains(&len) {
            return Err(format!("it sent a reply of {len} bytes"));
        }
        Ok((rest.len() >= len).then(|| Come::Reply(self.come.take(len))))
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
        for _ in 0..2 {
            assert!(matches!(replies.next(), Ok(Some(Come::Reply(reply))) if reply == &message[..]));
        }
        assert_eq!(replies.next(), Ok(None));
        theirs.write_all(&15_u32.to_le_bytes()).unwrap();
        replies.read(&ours).unwrap();
        assert!(replies.next().is_err());
    }

    #[test]
    fn notes_are_told_from_replies() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut replies = Replies::new(16);
        let note = [&(NOTE | 7).to_le_bytes()[..], &3_u64.to_le_bytes(), b"abc"].concat();
        for byte in &note {
            assert_eq!(replies.next(), Ok(None));
            theirs.write_all(&[*byte]).unwrap();
            replies.read(&ours).unwrap();
        }
        assert_eq!(replies.next(), Ok(Some(Come::Note(7, b"abc"))));
        for len in [NOTE_MAX + 1, u64::MAX] {
            let mut replies = Replies::new(16);
            theirs.write_all(&[&NOTE.to_le_bytes()[..], &len.to_le_bytes()].concat()).unwrap();
            replies.read(&ours).unwrap();
            assert!(replies.next().is_err());
        }
    }
}
