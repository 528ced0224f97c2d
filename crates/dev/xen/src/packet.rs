//! What Xen's cards and cables say of a frame beside its bytes, and back: checksums that are to be finished, and TCP that was not cut.

use satori_defs::virtio::net::{HEADER, NEEDS_CSUM};

/// Kinds of TCP that was not cut, in a cable's header.
const TCP4: u8 = 1;
const TCP6: u8 = 4;

/// TCP that was not cut: bytes of its segments, and whether it is IPv6's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segments {
    pub size: u16,
    pub six: bool,
}

/// Where the header of TCP or UDP begins in `frame`, and where in that the checksum is.
fn transport(frame: &[u8]) -> Option<(usize, usize)> {
    let word = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let mut at = 12;
    // VLAN tags.
    while matches!(word(at)?, 0x8100 | 0x88a8) && at < 20 {
        at += 4;
    }
    let (protocol, begin) = match word(at)? {
        0x0800 => {
            let length = usize::from(*frame.get(at + 2)? & 15) * 4;
            (*frame.get(at + 11)?, at + 2 + length)
        }
        0x86dd => (*frame.get(at + 8)?, at + 42),
        _ => return None,
    };
    match protocol {
        6 => Some((begin, 16)),
        17 => Some((begin, 6)),
        _ => None,
    }
}

/// The header before `frame` on a cable.
pub(crate) fn header(frame: &[u8], blank: bool, segments: Option<Segments>) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let Some((begin, place)) = transport(frame).filter(|_| blank || segments.is_some()) else {
        return header;
    };
    header[0] = NEEDS_CSUM;
    header[6..8].copy_from_slice(&(begin as u16).to_le_bytes());
    header[8..10].copy_from_slice(&(place as u16).to_le_bytes());
    if let Some(Segments { size, six }) = segments {
        let tcp = frame.get(begin + 12).map_or(20, |byte| usize::from(byte >> 4) * 4);
        header[1] = if six { TCP6 } else { TCP4 };
        header[2..4].copy_from_slice(&((begin + tcp) as u16).to_le_bytes());
        header[4..6].copy_from_slice(&size.to_le_bytes());
    }
    header
}

/// What a cable's header says of TCP that was not cut.
pub(crate) fn segments(header: &[u8; HEADER]) -> Option<Segments> {
    let size = u16::from_le_bytes([header[4], header[5]]);
    match header[1] & 0x7f {
        TCP4 => Some(Segments { size, six: false }),
        TCP6 => Some(Segments { size, six: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_tells_where_the_checksum_goes() {
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = 17;
        assert_eq!(header(&frame, true, None)[..10], [1, 0, 0, 0, 0, 0, 34, 0, 6, 0]);
        assert_eq!(header(&frame, false, None), [0; HEADER]);
        frame[23] = 6;
        frame[46] = 0x80;
        let cut = Some(Segments { size: 1448, six: false });
        let told = header(&frame, true, cut);
        assert_eq!(told[..10], [1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0]);
        assert_eq!(segments(&told), cut);
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[20] = 6;
        assert_eq!(header(&frame, true, None)[6..10], [54, 0, 16, 0]);
        for len in 0..60 {
            let _ = header(&frame[..len], true, cut);
            let _ = header(&vec![0xff; len], true, cut);
        }
    }
}
