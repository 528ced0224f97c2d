//! The stream between a network card and the user network. Frames have the form of passt(1) and QEMU's `-netdev stream`: each
//! stands behind its length as a big-endian word of 32 bits. Notes between the two are Satori's own.

/// Bit of the length: what follows is a note.
pub const NOTE: u32 = 1 << 31;
/// Bytes of a note before what it tells: its kind, and a number that an answer has from its question.
pub const NOTE_HEADER: usize = 5;
/// Most bytes of a note.
pub const NOTE_MAX: usize = NOTE_HEADER + CONNECTIONS_MAX * CONNECTION;

/// Note to the user network: tell which connections there are.
pub const ASK: u8 = 1;
/// Its answer: the connections.
pub const TOLD: u8 = 2;
/// Note to the user network: the guest is one that was saved, and has these connections. They, and all that there are, end.
pub const ANEW: u8 = 3;
/// Its answer: frames behind it are for the guest of now.
pub const BEGUN: u8 = 4;

/// Most connections.
pub const CONNECTIONS_MAX: usize = 1024;
/// Bytes of a connection: the guest's and the other side's address, IPv4 as IPv6 maps it, and both ports; the number of what
/// the other side sends next, and of what it expects (RFC 9293). All are big-endian.
pub const CONNECTION: usize = 16 + 16 + 2 + 2 + 4 + 4;
