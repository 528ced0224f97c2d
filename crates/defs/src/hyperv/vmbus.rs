//! VMBus: messages between a guest and the bus, ring buffers, and the ids of devices (as Linux's hyperv.h has them).

/// The HV message type of all of them.
pub const MESSAGE_TYPE: u32 = 1;
/// The connections by which guests post: of every version, and of versions from 5.0 on.
pub const CONNECTIONS: [u32; 2] = [1, 4];
/// The source by which versions before 5.0 are told.
pub const SINT: u8 = 2;
/// Versions, major in the upper half.
pub const VERSIONS: [u32; 8] =
    [0x5_0003, 0x5_0002, 0x5_0001, 0x5_0000, 0x4_0001, 0x4_0000, 0x3_0000, 0x2_0004];
/// The first version that says where messages go.
pub const VERSION_5: u32 = 0x5_0000;
/// The first version in which a change of a channel's processor is answered.
pub const VERSION_5_3: u32 = 0x5_0003;
/// The greatest id of a channel: a source has so many event flags, and flag 0 is the bus'.
pub const RELID_MAX: u32 = 2047;
/// Added to a channel's id, its connection.
pub const EVENT_CONNECTION: u32 = 0x2000;

/// Types of messages.
pub mod message {
    /// A channel is offered.
    pub const OFFER: u32 = 1;
    /// An offer is taken back.
    pub const RESCIND: u32 = 2;
    /// The guest asks for offers.
    pub const REQUEST_OFFERS: u32 = 3;
    /// There are no more for now.
    pub const ALL_OFFERS: u32 = 4;
    /// The guest opens a channel.
    pub const OPEN: u32 = 5;
    /// What became of that.
    pub const OPEN_RESULT: u32 = 6;
    /// The guest closes a channel.
    pub const CLOSE: u32 = 7;
    /// Pages for a channel.
    pub const GPADL_HEADER: u32 = 8;
    /// More of them.
    pub const GPADL_BODY: u32 = 9;
    /// What became of them.
    pub const GPADL_CREATED: u32 = 10;
    /// The guest wants pages back.
    pub const GPADL_TEARDOWN: u32 = 11;
    /// It has them.
    pub const GPADL_TORNDOWN: u32 = 12;
    /// The guest forgot a channel that was taken back.
    pub const RELID_RELEASED: u32 = 13;
    /// The guest begins.
    pub const INITIATE_CONTACT: u32 = 14;
    /// Whether its version is spoken.
    pub const VERSION_RESPONSE: u32 = 15;
    /// The guest ends.
    pub const UNLOAD: u32 = 16;
    /// Nothing comes any more.
    pub const UNLOAD_RESPONSE: u32 = 17;
    /// The guest looks for a socket of the host.
    pub const TL_CONNECT: u32 = 21;
    /// Another processor is to be told of a channel's events.
    pub const MODIFY: u32 = 22;
    /// What became of the socket.
    pub const TL_RESULT: u32 = 23;
    /// It is told from now on.
    pub const MODIFY_RESPONSE: u32 = 24;
}

/// A ring buffer: a page of control words, then data.
pub mod ring {
    /// Where the writer is.
    pub const WRITE: u32 = 0;
    /// Where the reader is.
    pub const READ: u32 = 4;
    /// The reader wants no interrupt.
    pub const MASK: u32 = 8;
    /// The writer wants to hear when so much is free.
    pub const PENDING: u32 = 12;
    /// Bytes before the data.
    pub const CONTROL: u32 = 4096;
    /// Bytes of a packet's header.
    pub const HEADER: u32 = 16;
    /// Bytes behind a packet.
    pub const TRAILER: u32 = 8;
}

/// Types of packets.
pub mod packet {
    /// All of it is in the ring.
    pub const IN_BAND: u16 = 6;
    /// Names parts of a buffer that both know.
    pub const TRANSFER_PAGES: u16 = 7;
    /// Names guest memory.
    pub const GPA_DIRECT: u16 = 9;
    /// The other packet with this id is done.
    pub const COMPLETION: u16 = 0xb;
    /// Flag: a completion is wanted.
    pub const WANTS_COMPLETION: u16 = 1;
}

/// Bytes of a GUID as they lie in memory.
const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> [u8; 16] {
    let ([a0, a1, a2, a3], [b0, b1], [c0, c1]) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a0, a1, a2, a3, b0, b1, c0, c1, d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

/// Types of devices.
pub mod class {
    use super::guid;
    /// Network card.
    pub const NET: [u8; 16] =
        guid(0xf861_5163, 0xdf3e, 0x46c5, [0x91, 0x3f, 0xf2, 0xd2, 0xf9, 0x65, 0xed, 0x0e]);
    /// SCSI controller.
    pub const SCSI: [u8; 16] =
        guid(0xba61_63d9, 0x04a1, 0x4d29, [0xb6, 0x05, 0x72, 0xe2, 0xff, 0xb1, 0xdc, 0x7f]);
    /// Shutdown.
    pub const SHUTDOWN: [u8; 16] =
        guid(0x0e0b_6031, 0x5213, 0x4934, [0x81, 0x8b, 0x38, 0xd9, 0x0c, 0xed, 0x39, 0xdb]);
    /// Time synchronisation.
    pub const TIME_SYNC: [u8; 16] =
        guid(0x9527_e630, 0xd0ae, 0x497b, [0xad, 0xce, 0xe8, 0x0a, 0xb0, 0x17, 0x5c, 0xaf]);
    /// Heartbeat.
    pub const HEARTBEAT: [u8; 16] =
        guid(0x5716_4f39, 0x9115, 0x4e78, [0xab, 0x55, 0x38, 0x2f, 0x3b, 0xd5, 0x42, 0x2d]);
    /// Key-value pairs.
    pub const KVP: [u8; 16] =
        guid(0xa9a0_f4e7, 0x5a45, 0x4d96, [0xb8, 0x27, 0x8a, 0x84, 0x1e, 0x8c, 0x03, 0xe6]);
}
