//! Ethernet frames on a stream, each behind its length as a big-endian word: the form that passt(1) and QEMU's
//! `-netdev stream` have.

use std::os::unix::net::UnixStream;

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

impl Frames {
    /// Reads once.
    pub(crate) fn read(&mut self, socket: &UnixStream) -> std::io::Result<usize> {
        self.0.read(socket, PIECE)
    }

    /// The next whole frame, which stays the next one until [`Frames::pass`]. The error is what is wrong with it:
    /// nothing behind it can be understood.
    pub(crate) fn peek(&self) -> Result<Option<&[u8]>, String> {
        let Some((head, rest)) = self.0.rest().split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_be_bytes(*head) as usize;
        if !(SHORTEST..=LONGEST).contains(&len) {
            return Err(format!("it sent a frame of {len} bytes"));
        }
        Ok(rest.get(..len))
    }

    /// Leaves behind what [`Frames::peek`] showed.
    pub(crate) fn pass(&mut self) {
        if let Ok(Some(frame)) = self.peek() {
            let len = 4 + frame.len();
            self.0.take(len);
        }
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
            assert_eq!(frames.peek(), Ok(Some(&[7; 20][..])));
            frames.pass();
        }
        assert_eq!(frames.peek(), Ok(None));
        theirs.write_all(&13_u32.to_be_bytes()).unwrap();
        frames.read(&ours).unwrap();
        assert!(frames.peek().is_err());
    }
}
