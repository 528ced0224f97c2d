//! The host's side of a guest's vsock: its connections are Unix sockets, as Firecracker and Cloud Hypervisor have them.
//!
//! It is a process of its own ([`start`]), which gives away all but the folder that the sockets are in before it looks at the
//! first packet ([`main`]). Who connects to the socket PATH and writes `CONNECT 52\n` speaks with the guest's port 52 once
//! `OK 1073741824\n` came back; when the guest connects to port 52 of the host (CID 2), somebody has to listen at `PATH_52`.
//!
//! Packets come and go whole, each behind its length of 32 bits (little-endian); a length of zero says that the guest's driver
//! begins anew, and all that was connected is not. Nothing that a packet holds is trusted, and everything that grows has an end.

#![forbid(unsafe_code)]

mod connection;
mod packet;
mod process;
mod switch;
#[cfg(test)]
mod tests;

pub use process::{COMMAND, Error, main, start};
pub use satori_sandbox::helper::Helper;
