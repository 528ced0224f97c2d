//! Back ends of Xen's devices: disks and network cards that a guest reaches by its store, grants and event channels (Xen,
//! `xen/include/public/io/{xenbus,blkif,netif,ring}.h`).
//!
//! A [`Bus`] belongs to one life of a machine. It puts each device's two folders into the store, and connects a device when its front end
//! has written there which pages are its rings. What does the work outlives resets: a disk's [`Requests`], a card's [`Cable`].
//!
//! # Locks
//!
//! A device's connection, then a queue, then the interface's own state. None of them is held while a disk is asked or a frame sent, since
//! the answer may come at once.

#![forbid(unsafe_code)]

mod block;
mod bus;
mod connection;
mod net;
mod packet;
mod platform;
mod ring;
mod saved;
#[cfg(test)]
mod tests;

pub use bus::{Bus, Devices};
pub use platform::{FIXED, PlatformDevice};
pub use satori_cable::Cable;
pub use satori_image::Requests;
