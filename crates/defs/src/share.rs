//! Notes between a shared folder's device and the folder's server, on the stream of their messages. They are Satori's own: a message
//! begins with its length as a little-endian word of 32 bits, which is never as large as that of a note.

/// Bit of the word: what follows is a note.
pub const NOTE: u32 = 1 << 31;
/// Bits of a note's word that are its kind. The others are a number, which an answer has from its question.
pub const KIND: u32 = 0xff;
/// The least of those.
pub const NUMBER: u32 = 1 << 8;
/// Bytes of a note before what it tells: the word, and how many bytes it tells as one of 64 bits.
pub const NOTE_HEADER: usize = 12;
/// Most bytes that a note tells: a session with all that it keeps in memory.
pub const NOTE_MAX: u64 = 1 << 36;

/// Note to the server: tell the session.
pub const TELL: u32 = 1;
/// Its answer: the session.
pub const TOLD: u32 = 2;
/// Note to the server: this is the session from now on.
pub const TAKE: u32 = 3;
/// Its answer.
pub const TAKEN: u32 = 4;
/// The other answer to either: why not, as text.
pub const REFUSED: u32 = 5;
