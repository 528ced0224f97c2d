//! What a driver left for its card to do: a checksum that is not finished (virtio 1.2, 5.1.6.2).

use satori_defs::virtio::net::{HEADER, NEEDS_CSUM};

/// The Internet checksum of `bytes` (RFC 1071), not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|&pair| u64::from(u16::from_be_bytes(pair))).sum();
    sum += rest.first().map_or(0, |&last| u64::from(last) << 8);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Finishes the checksum of `frame` where its header asks for that. What the header says may make no sense, and then
/// the frame stays as it is: who receives it drops it.
pub(crate) fn finish(header: &[u8; HEADER], frame: &mut [u8]) {
    let [flags, _, _, _, _, _, s0, s1, o0, o1, _, _] = *header;
    if flags & NEEDS_CSUM == 0 {
        return;
    }
    let start = usize::from(u16::from_le_bytes([s0, s1]));
    let place = start + usize::from(u16::from_le_bytes([o0, o1]));
    let Some(covered) = frame.get(start..).filter(|_| place + 2 <= frame.len()) else { return };
    // The driver left the pseudo header's part where the checksum goes. Zero stands for none in UDP.
    let value = match !sum(covered) {
        0 => 0xffff,
        value => value,
    };
    frame[place..place + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_finished_where_the_header_says() {
        let mut header = [0; HEADER];
        header[..2].copy_from_slice(&[NEEDS_CSUM, 0]);
        header[6] = 14;
        header[8] = 2;
        let mut frame = [&[9; 14][..], &[0x12, 0x34, 0, 0, 0x56]].concat();
        finish(&header, &mut frame);
        assert_eq!(frame[14..], [0x12, 0x34, 0x97, 0xcb, 0x56]);
        let before = frame.clone();
        for (start, offset) in [(14, 4), (19, 0), (0xffff, 0xffff)] {
            header[6..8].copy_from_slice(&u16::to_le_bytes(start));
            header[8..10].copy_from_slice(&u16::to_le_bytes(offset));
            finish(&header, &mut frame);
            assert_eq!(frame, before, "{start} {offset}");
        }
    }
}
