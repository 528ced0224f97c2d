//! Messages: a header, and up to 4,096 bytes.

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of the longest payload.
pub const PAYLOAD_MAX: usize = 4096;

/// Types of messages (public/io/xs_wire.h).
pub mod kind {
    /// Names of a node's children.
    pub const DIRECTORY: u32 = 1;
    /// A node's value.
    pub const READ: u32 = 2;
    /// Who may do what with a node.
    pub const GET_PERMS: u32 = 3;
    /// Begins to watch a path.
    pub const WATCH: u32 = 4;
    /// Ends that.
    pub const UNWATCH: u32 = 5;
    /// Begins a transaction.
    pub const TRANSACTION_START: u32 = 6;
    /// Ends one.
    pub const TRANSACTION_END: u32 = 7;
    /// Where a domain's own nodes are.
    pub const GET_DOMAIN_PATH: u32 = 10;
    /// Sets a node's value.
    pub const WRITE: u32 = 11;
    /// Makes a node.
    pub const MKDIR: u32 = 12;
    /// Removes a node and what is below it.
    pub const RM: u32 = 13;
    /// Sets who may do what with a node.
    pub const SET_PERMS: u32 = 14;
    /// Something that is watched has changed.
    pub const WATCH_EVENT: u32 = 15;
    /// An error.
    pub const ERROR: u32 = 16;
    /// Whether there is such a domain.
    pub const IS_DOMAIN_INTRODUCED: u32 = 17;
    /// Ends all watches.
    pub const RESET_WATCHES: u32 = 21;
    /// Names of a node's children, a part of them.
    pub const DIRECTORY_PART: u32 = 22;
    /// Types that only the host may send: control, introduce, release, resume, set_target.
    pub const HOSTS: [u32; 5] = [0, 8, 9, 18, 19];
}

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its type.
    pub kind: u32,
    /// The guest's number for it, which the answer has as well.
    pub request: u32,
    /// The transaction that it belongs to; 0 is none.
    pub transaction: u32,
    /// Bytes behind the header.
    pub len: u32,
}

impl Header {
    /// Reads one.
    pub fn new(bytes: [u8; HEADER]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Header { kind: word(0), request: word(4), transaction: word(8), len: word(12) }
    }

    /// The message with this header, but for its length, and this payload.
    pub(crate) fn with(&self, kind: u32, payload: &[u8]) -> Vec<u8> {
        let words = [kind, self.request, self.transaction, payload.len() as u32];
        words.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect()
    }
}
