//! RNDIS: messages, and frames in them. Offsets in a message count from its ninth byte.

use satori_vmbus::Bytes as _;

use super::oid::{self, Facts};

pub(super) const PACKET: u32 = 1;
pub(super) const INITIALIZE: u32 = 2;
pub(super) const HALT: u32 = 3;
const QUERY: u32 = 4;
pub(super) const SET: u32 = 5;
const RESET: u32 = 6;
const INDICATE: u32 = 7;
const KEEPALIVE: u32 = 8;
/// Set in an answer's type.
const ANSWER: u32 = 0x8000_0000;
/// The cable came off.
pub(super) const MEDIA_DISCONNECT: u32 = 0x4001_000c;
/// Where offsets count from.
const BASE: usize = 8;
/// Bytes of a packet's header.
const HEADER: usize = 44;
/// Messages in one packet, bytes of them all, and their alignment as a power of two.
const MESSAGES: u32 = 8;
const BYTES: u32 = 0x2_0000;
const ALIGNMENT: u32 = 3;

/// Per-packet information of ours to look at.
const LSO: u32 = 2;
const VLAN: u32 = 6;
const CHECKSUM: u32 = 0;
/// Of a frame that comes: its checksums are right (TCP, UDP, IP header).
const CHECKSUMS_RIGHT: u32 = 1 << 2 | 1 << 3 | 1 << 5;

/// The first message of `bytes`, and what is behind it.
pub(super) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = bytes.u32_at(4) as usize;
    if len < BASE { None } else { bytes.split_at_checked(len) }
}

fn message(kind: u32, words: &[u32], tail: &[u8]) -> Vec<u8> {
    let len = (BASE + 4 * words.len() + tail.len()) as u32;
    let all = [kind, len].into_iter().chain(words.iter().copied());
    let mut bytes: Vec<u8> = all.flat_map(u32::to_le_bytes).collect();
    bytes.extend(tail);
    bytes
}

/// What a SET sets.
pub(super) fn value(request: &[u8]) -> Option<&[u8]> {
    let (len, offset) = (request.u32_at(16) as usize, request.u32_at(20) as usize);
    request.get(BASE..)?.get(offset..)?.get(..len)
}

/// What a request is answered, if it is.
pub(super) fn answer(request: &[u8], facts: &Facts) -> Option<Vec<u8>> {
    let (kind, id, asked) = (request.u32_at(0), request.u32_at(8), request.u32_at(12));
    Some(match kind {
        INITIALIZE => message(kind | ANSWER, &[id, 0, 1, 0, 1, 0, MESSAGES, BYTES, ALIGNMENT, 0, 0], &[]),
        QUERY => {
            // A request says how much it brings, and not how much may come back: each object has its size.
            let told = oid::query(asked, facts);
            // Linux looks at the length alone, and takes none for a refusal.
            let status = if told.is_some() { oid::SUCCESS } else { oid::NOT_SUPPORTED };
            let told = told.unwrap_or_default();
            message(kind | ANSWER, &[id, status, told.len() as u32, 16], &told)
        }
        SET => message(kind | ANSWER, &[id, oid::set(asked)], &[]),
        RESET => message(kind | ANSWER, &[oid::SUCCESS, 0], &[]),
        KEEPALIVE => message(kind | ANSWER, &[id, oid::SUCCESS], &[]),
        _ => return None,
    })
}

/// Tells of a change.
pub(super) fn indicate(status: u32) -> Vec<u8> {
    message(INDICATE, &[status, 0, 0], &[])
}

/// A frame for the guest.
pub(super) fn packet(frame: &[u8], right: bool) -> Vec<u8> {
    let checksum = [16, CHECKSUM, 12, CHECKSUMS_RIGHT].map(u32::to_le_bytes);
    let info: &[u8] = if right { checksum.as_flattened() } else { &[] };
    let (offset, len) = ((HEADER - BASE + info.len()) as u32, frame.len() as u32);
    let at = if info.is_empty() { 0 } else { (HEADER - BASE) as u32 };
    let mut bytes = message(PACKET, &[offset, len, 0, 0, 0, at, info.len() as u32, 0, 0], info);
    bytes.extend(frame);
    let whole = bytes.len() as u32;
    bytes[4..8].copy_from_slice(&whole.to_le_bytes());
    bytes
}

/// The frame in a packet of the guest's, as a cable takes it: what was left to the card is done.
pub(super) fn frame(packet: &[u8]) -> Option<Vec<u8>> {
    let part = |offset: u32, len: u32| packet.get(BASE..)?.get(offset as usize..)?.get(..len as usize);
    let mut frame = part(packet.u32_at(8), packet.u32_at(12))?.to_vec();
    let mut info = part(packet.u32_at(28), packet.u32_at(32)).unwrap_or_default();
    let (mut whole, mut tag) = (false, None);
    while let (Some(head), size) = (info.get(..12), info.u32_at(0) as usize) {
        let Some((one, rest)) = info.split_at_checked(size).filter(|_| size >= 12) else { break };
        info = rest;
        let value = one.u32_at(head.u32_at(8) as usize);
        // The highest bit of the type says that it is the driver's own.
        match head.u32_at(4) {
            LSO => whole = true,
            VLAN => tag = Some((value & 7) << 13 | (value >> 3 & 1) << 12 | value >> 4 & 0xfff),
            _ => {}
        }
    }
    if whole {
        lengthen(&mut frame);
    }
    if let Some(tag) = tag.filter(|_| frame.len() >= 12) {
        frame.splice(12..12, [0x81, 0, (tag >> 8) as u8, tag as u8]);
    }
    Some(frame)
}

/// TCP that the card was to cut has no length in its IP header, and that of IPv4 no checksum.
fn lengthen(frame: &mut [u8]) {
    const ETHERNET: usize = 14;
    const IPV6: usize = 40;
    let put = |frame: &mut [u8], at: usize, len: usize| {
        let len = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        if let Some(place) = frame.get_mut(at..at + 2) {
            place.copy_from_slice(&len);
        }
    };
    let len = frame.len();
    match frame.get(12..14) {
        Some([0x08, 0x00]) => {
            put(frame, ETHERNET + 2, len - ETHERNET);
            let header = usize::from(frame.get(ETHERNET).map_or(0, |first| first & 15)) * 4;
            if let Some(header) = frame.get_mut(ETHERNET..ETHERNET + header).filter(|h| h.len() >= 20) {
                header[10..12].fill(0);
                let words = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
                let sum: u32 = words.sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = !((sum + (sum >> 16)) as u16);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        Some([0x86, 0xdd]) => put(frame, ETHERNET + 4, len.saturating_sub(ETHERNET + IPV6)),
        _ => {}
    }
}
