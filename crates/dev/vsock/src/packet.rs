//! Packets (virtio 1.2, 5.10.6).

/// Bytes of a header.
pub(crate) const HEADER: usize = 44;
/// Most bytes behind one.
pub(crate) const PAYLOAD: usize = 64 << 10;
/// The host's address.
pub(crate) const HOST: u64 = 2;
/// The one kind of connection that there is.
const STREAM: u16 = 1;

/// Operations.
pub(crate) mod op {
    pub(crate) const REQUEST: u16 = 1;
    pub(crate) const RESPONSE: u16 = 2;
    pub(crate) const RST: u16 = 3;
    pub(crate) const SHUTDOWN: u16 = 4;
    pub(crate) const RW: u16 = 5;
    pub(crate) const CREDIT_UPDATE: u16 = 6;
    pub(crate) const CREDIT_REQUEST: u16 = 7;
}

/// Flags of SHUTDOWN: who sends it receives, or sends, no more.
pub(crate) const NO_RECEIVE: u32 = 1;
pub(crate) const NO_SEND: u32 = 2;

/// What a header says, beside addresses and kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Ports of who sends it and of whom it is for.
    pub from: u32,
    pub to: u32,
    pub op: u16,
    pub flags: u32,
    /// How much room the sender has for a connection, and how much of what it got is not there any more.
    pub room: u32,
    pub taken: u32,
}

/// What a guest's packet is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// One for us.
    Packet(Header, &'a [u8]),
    /// One of a kind that there is not; its sender is told so.
    Unknown(Header),
    /// None, or for somebody else.
    Nothing,
}

/// Reads a packet of the guest `cid`.
pub(crate) fn parse(bytes: &[u8], cid: u64) -> Parsed<'_> {
    let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else { return Parsed::Nothing };
    let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let u16_at = |at: usize| u16::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if u64_at(0) != cid || u64_at(8) != HOST || u32_at(24) as usize != payload.len() {
        return Parsed::Nothing;
    }
    let read = Header {
        from: u32_at(16),
        to: u32_at(20),
        op: u16_at(30),
        flags: u32_at(32),
        room: u32_at(36),
        taken: u32_at(40),
    };
    if u16_at(28) == STREAM { Parsed::Packet(read, payload) } else { Parsed::Unknown(read) }
}

/// Puts a packet for the guest `cid` behind its length.
pub(crate) fn put(to: &mut Vec<u8>, cid: u64, header: &Header, payload: &[u8]) {
    to.extend(((HEADER + payload.len()) as u32).to_le_bytes());
    to.extend(HOST.to_le_bytes());
    to.extend(cid.to_le_bytes());
    to.extend(header.from.to_le_bytes());
    to.extend(header.to.to_le_bytes());
    to.extend((payload.len() as u32).to_le_bytes());
    to.extend(STREAM.to_le_bytes());
    to.extend(header.op.to_le_bytes());
    to.extend(header.flags.to_le_bytes());
    to.extend(header.room.to_le_bytes());
    to.extend(header.taken.to_le_bytes());
    to.extend(payload);
}
