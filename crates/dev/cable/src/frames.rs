//! Ethernet frames on a stream, each behind its length as a big-endian word: the form that passt(1) and QEMU's
//! `-netdev stream` have. Between them may be notes of our own user network.

use std::os::unix::net::UnixStream;

use satori_defs::cable::{NOTE, NOTE_HEADER, NOTE_MAX};

use crate::stream::Incoming;

/// Bytes of the shortest frame: an Ethernet header.
pub const SHORTEST: usize = 14;
/// Bytes of the longest one: a packet of 64 KiB behind a header.
pub const LONGEST: usize = SHORTEST + 4 + (64 << 10);
/// Bytes that are read at once.
const PIECE: usize = 256 << 10;

/// Frames as they come.
#[derive(Default)]
pub(crate) struct Frames(Incoming);

/// What comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// A frame for the guest.
    Frame(&'a [u8]),
    /// A note for its card: kind, number, and what it tells.
    Note(u8, u32, &'a [u8]),
}

/// The first message in `bytes`, if it is whole, and how many of them it has.
fn first(bytes: &[u8]) -> Result<Option<(Message<'_>, usize)>, String> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let head = u32::from_be_bytes(*head);
    let len = (head & !NOTE) as usize;
    if head & NOTE == 0 {
        if !(SHORTEST..=LONGEST).contains(&len) {
            return Err(format!("it sent a frame of {len} bytes"));
        }
        return Ok(rest.get(..len).map(|frame| (Message::Frame(frame), 4 + len)));
    }
    if !(NOTE_HEADER..=NOTE_MAX).contains(&len) {
        return Err(format!("it sent a note of {len} bytes"));
    }
    let note = rest.get(..len).and_then(|note| note.split_first_chunk::<NOTE_HEADER>());
    Ok(note.map(|(&[kind, a, b, c, d], told)| {
        (Message::Note(kind, u32::from_be_bytes([a, b, c, d]), told), 4 + len)
    }))
}

/// A note, as it is sent.
pub(crate) fn note(kind: u8, number: u32, told: &[u8]) -> Vec<u8> {
    let len = NOTE | (NOTE_HEADER + told.len()) as u32;
    [&len.to_be_bytes()[..], &[kind], &number.to_be_bytes(), told].concat()
}

impl Frames {
    /// Reads once.
    pub(crate) fn read(&mut self, socket: &UnixStream) -> std::io::Result<usize> {
        self.0.read(socket, PIECE)
    }

    /// Takes bytes that came in another way.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.0.put(bytes);
    }

    /// The next whole message, which stays the next one until [`Frames::pass`]. The error is what is wrong with it:
    /// nothing behind it can be understood.
    pub(crate) fn peek(&self) -> Result<Option<Message<'_>>, String> {
        Ok(first(self.0.rest())?.map(|(message, _)| message))
    }

    /// Leaves behind what [`Frames::peek`] showed.
    pub(crate) fn pass(&mut self) {
        if let Ok(Some((_, len))) = first(self.0.rest()) {
            self.0.take(len);
        }
    }

    /// What the note of this kind and number tells, wherever it stands among what came.
    pub(crate) fn find(&self, kind: u8, number: u32) -> Result<Option<&[u8]>, String> {
        let mut rest = self.0.rest();
        while let Some((message, len)) = first(rest)? {
            if let Message::Note(its, own, told) = message
                && (its, own) == (kind, number)
            {
                return Ok(Some(told));
            }
            rest = &rest[len..];
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn frames_come_whole_however_they_were_cut() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut frames = Frames::default();
        let frame = [&20_u32.to_be_bytes()[..], &[7; 20]].concat();
        theirs.write_all(&frame[..9]).unwrap();
        frames.read(&ours).unwrap();
        assert_eq!(frames.peek(), Ok(None));
        theirs.write_all(&[&frame[9..], &frame[..]].concat()).unwrap();
        frames.read(&ours).unwrap();
        for _ in 0..2 {
            assert_eq!(frames.peek(), Ok(Some(Message::Frame(&[7; 20]))));
            frames.pass();
        }
        assert_eq!(frames.peek(), Ok(None));
        theirs.write_all(&13_u32.to_be_bytes()).unwrap();
        frames.read(&ours).unwrap();
        assert!(frames.peek().is_err());
    }

    #[test]
    fn notes_are_told_from_frames_and_found_behind_them() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut frames = Frames::default();
        let notes = [note(4, 1, b""), note(2, 7, b"one"), note(2, 8, b"two")];
        theirs.write_all(&[&20_u32.to_be_bytes()[..], &[7; 20], &notes.concat()[..30]].concat()).unwrap();
        frames.read(&ours).unwrap();
        assert_eq!(frames.find(2, 7), Ok(Some(&b"one"[..])));
        assert_eq!(frames.find(2, 8), Ok(None), "it is not whole");
        theirs.write_all(&notes.concat()[30..]).unwrap();
        frames.read(&ours).unwrap();
        assert_eq!(frames.find(2, 8), Ok(Some(&b"two"[..])));
        frames.pass();
        assert_eq!(frames.peek(), Ok(Some(Message::Note(4, 1, b""))));
        for len in [NOTE, NOTE | 4, NOTE | (NOTE_MAX as u32 + 1)] {
            let mut frames = Frames::default();
            theirs.write_all(&len.to_be_bytes()).unwrap();
            frames.read(&ours).unwrap();
            assert!(frames.peek().is_err() && frames.find(1, 1).is_err(), "{len:#x}");
        }
    }
}
