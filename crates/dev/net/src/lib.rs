//! The user network: what a guest sends as Ethernet frames becomes sockets of this host, without any right.
//!
//! It is a process of its own ([`start`]), which gives away files and rights, and all system calls but those of sockets,
//! before it looks at the first frame ([`main`]). The guest finds one cable with three others at it:
//!
//! ```text
//! 10.0.2.15   the guest; DHCP gives it this address, and frames from any other are dropped
//! 10.0.2.2    the gateway: answers ARP, pings and DHCP; everything beyond is reached through it
//! 10.0.2.3    the name server: questions go to the host's own resolvers
//! ```
//!
//! and the same in IPv6 where the host has it (`addresses`). A TCP connection ends here, and a connection of the host's
//! goes on from here (`tcp`); so do datagrams and pings (`datagram`). What a guest must not reach stands in
//! `addresses::Policy`: it is this host itself and what is link-local, unless options say otherwise. Nothing that a frame holds is
//! trusted, and everything that grows has an end.

#![forbid(unsafe_code)]

mod addresses;
mod anew;
mod buffer;
mod datagram;
mod neighbours;
mod options;
mod process;
mod stack;
mod tcp;
pub mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use options::{Forward, Options};
pub use process::{COMMAND, Error, main, start};
pub use satori_sandbox::helper::Helper;
