//! What a card is asked for, and told, by object ids of NDIS.

pub(super) const SUCCESS: u32 = 0;
pub(super) const NOT_SUPPORTED: u32 = 0xc000_00bb;
/// Which frames the guest wants.
pub(super) const PACKET_FILTER: u32 = 0x0001_010e;

const MAX_FRAME: u32 = 0x0001_0106;
const LINK_SPEED: u32 = 0x0001_0107;
const LINK: u32 = 0x0001_0114;
const NAME: u32 = 0x0001_0216;
const PERMANENT_ADDRESS: u32 = 0x0101_0101;
const CURRENT_ADDRESS: u32 = 0x0101_0102;
const OFFLOADS: u32 = 0xfc01_020d;
const OFFLOADS_NOW: u32 = 0xfc01_020c;
/// A MAC address that the guest chose; the network takes any.
const PARAMETER: u32 = 0x0001_021b;
const MULTICAST: u32 = 0x0101_0103;

/// Largest packet behind an Ethernet header.
const MTU: u32 = 1500;
/// In units of 100 bit/s: 10 Gbit/s.
const SPEED: u32 = 100_000_000;
/// Bytes of what tells of offloads, in its third revision.
const OFFLOAD_BYTES: usize = 156;

/// What a card is.
pub(super) struct Facts {
    pub mac: [u8; 6],
    pub ours: bool,
    pub up: bool,
}

/// What is told of `oid`; none if it is not known here.
pub(super) fn query(oid: u32, facts: &Facts) -> Option<Vec<u8>> {
    let word = |value: u32| value.to_le_bytes().to_vec();
    Some(match oid {
        MAX_FRAME => word(MTU),
        LINK_SPEED => word(SPEED),
        LINK => word(u32::from(!facts.up)),
        PACKET_FILTER => word(0),
        PERMANENT_ADDRESS | CURRENT_ADDRESS => facts.mac.to_vec(),
        NAME => "Satori\0".encode_utf16().flat_map(u16::to_le_bytes).collect(),
        OFFLOADS => offloads(facts.ours),
        _ => return None,
    })
}

/// What becomes of setting `oid`.
pub(super) fn set(oid: u32) -> u32 {
    match oid {
        PACKET_FILTER | OFFLOADS_NOW | PARAMETER | MULTICAST => SUCCESS,
        _ => NOT_SUPPORTED,
    }
}

/// NDIS_OFFLOAD: none, or checksums and cutting TCP, which a network within this machine needs none of.
fn offloads(ours: bool) -> Vec<u8> {
    /// Checksums of TCP, with options, and of UDP; for IPv6 with extension headers.
    const TX4: u32 = 0x54;
    const TX6: u32 = 0x55;
    const RX: u32 = 0x54;
    /// Frames of Ethernet; the longest segment; the fewest that are worth it.
    const ETHERNET: u32 = 2;
    const SEGMENT: u32 = 62_780;
    const FEWEST: u32 = 2;
    let mut bytes = vec![0; OFFLOAD_BYTES];
    bytes[..2].copy_from_slice(&[0xa7, 3]);
    bytes[2..4].copy_from_slice(&(OFFLOAD_BYTES as u16).to_le_bytes());
    let mut put = |at: usize, words: &[u32]| {
        for (word, at) in words.iter().zip((at..).step_by(4)) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    };
    if ours {
        put(4, &[ETHERNET, TX4, ETHERNET, RX, ETHERNET, TX6, ETHERNET, RX]);
        put(80, &[ETHERNET, SEGMENT, FEWEST, ETHERNET, SEGMENT, FEWEST, 5]);
    }
    bytes
}
