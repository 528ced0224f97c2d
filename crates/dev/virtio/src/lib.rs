//! virtio 1.2 devices over PCI: the transport, split queues, and the devices.
//!
//! A [`Device`] is what it does: it takes chains from its [`Link`] when a doorbell rings and gives them
//! back, at once on the vCPU's thread where nothing can block, else on a thread of its own. It outlives
//! resets of the machine, as what stands behind it does; [`VirtioFunction`] is the face that one life of the machine sees.
//!
//! # Locks
//!
//! The transport's registers, then a device's own state, then a queue, then its interrupt. A device's threads never
//! take the registers' lock, so a reset that waits for nobody is enough: what a thread still has in its hands is of
//! an earlier life of the queue, which [`Queue::give`] ignores.

#![forbid(unsafe_code)]

mod balloon;
mod block;
mod console;
mod device;
mod fs;
mod link;
mod net;
mod queue;
mod registers;
mod rng;
mod stream;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transport;
mod vsock;

pub use balloon::Balloon;
pub use block::{Block, Disk};
pub use console::{Console, PORTS_MAX, Port};
pub use device::{Device, Error};
pub use fs::{Dialect, Fs, Share};
pub use link::{Link, Timing};
pub use net::Net;
pub use queue::{Broken, Chain, Place, Queue, Span};
pub use rng::{RandomBytes, Rng};
pub use satori_cable::{MTU, Nic, Offload, TapCard};
use satori_lock::lock;
pub use transport::{BAR_BYTES, VirtioFunction, Wiring};
pub use vsock::{Sockets, Vsock};
