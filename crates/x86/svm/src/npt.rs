//! Nested paging: what an entry allows, and what #VMEXIT(NPF) tells (APM 15.25).

/// Error code in EXITINFO1: the entry was present.
pub const PRESENT: u64 = 1 << 0;
/// It was a write.
pub const WRITE: u64 = 1 << 1;
/// It was one of a user's, as each is here.
pub const USER: u64 = 1 << 2;
/// A reserved bit was set.
pub const RESERVED: u64 = 1 << 3;
/// It was a fetch, where those can be refused.
pub const FETCH: u64 = 1 << 4;
/// It was of the guest's own translation's result.
pub const FINAL: u64 = 1 << 32;
/// It was of a walk of the guest's page tables.
pub const WALK: u64 = 1 << 33;
