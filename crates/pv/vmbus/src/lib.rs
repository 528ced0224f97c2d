//! VMBus, the bus of Hyper-V's paravirtual devices, without an engine and without Hyper-V's hypercalls.
//!
//! A [`Bus`] is of one life of a machine. It is handed what guests post ([`Bus::message`]) and signal ([`Bus::signalled`]), and
//! reaches the guest by a [`Host`]. A [`Device`] is what it does: it takes packets from its [`Channel`] when that is signalled and
//! answers them. [`utilities`] are those that need nothing of the host but its clock.
//!
//! Nothing that is read of guest memory is trusted: it is read once, checked, and the copy is used. A ring that breaks a rule
//! closes its channel alone.
//!
//! # Locks
//!
//! One message of the guest's is handled at a time, and its devices are told of it while that lock is held; a device's
//! own threads and what is signalled never take it. Then a device's state, the bus' table, a channel, what `Host` locks.

#![forbid(unsafe_code)]

mod bus;
mod bytes;
mod channel;
mod device;
mod gpadl;
mod packet;
mod pages;
mod ring;
#[cfg(test)]
mod tests;
pub mod utilities;

pub use bus::{Bus, Full, Parts};
pub use bytes::Bytes;
pub use channel::{Channel, Sent};
pub use device::{Device, Host, Offer, Posted};
pub use packet::{Packet, Span};
pub use pages::{Pages, SavedPages};
pub use ring::Broken;
