//! Xen's store: a tree of values that a guest and the host's back ends change and watch (Xen, docs/misc/xenstore.txt and
//! `xen/include/public/io/xs_wire.h`).
//!
//! [`Store`] knows no memory: it takes a guest's message and gives the answer; what its watches bring waits in [`Store::events`].
//! The host, domain 0, reads and writes by [`Store::get`], [`Store::set`] and [`Store::remove`], may do everything, and hears by
//! [`Store::take_changed`] what a guest changed. There is one guest: domain [`GUEST`].
//!
//! Whatever a guest sends, it gets an answer or an error, and no more memory than [`quota`] says.

#![forbid(unsafe_code)]

mod message;
mod path;
mod permissions;
pub mod quota;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod tree;
mod watches;

pub use message::{HEADER, Header, PAYLOAD_MAX, kind};
pub use store::{Errno, Store};

/// The guest's number; the host is 0.
pub const GUEST: u16 = 1;
