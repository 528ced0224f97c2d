//! What a kind of device is, to the transport.

use std::os::fd::RawFd;
use std::sync::Arc;

use satori_journal::Journal;
use satori_save::Value;

use crate::Link;

/// Why a device cannot be had; the text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part of what it is made of makes no sense.
    #[error("{0}")]
    Config(String),
    /// Its image cannot be used.
    #[error(transparent)]
    Image(#[from] satori_image::Error),
    /// Its cable cannot be had.
    #[error(transparent)]
    Cable(#[from] satori_cable::Error),
    /// The host refused something that it needs.
    #[error("cannot prepare {what}: {why}")]
    Host {
        /// What was wanted.
        what: &'static str,
        /// Why it was refused.
        why: std::io::Error,
    },
}

/// A device without its transport. It locks its own state.
pub trait Device: Send + Sync {
    /// Its type (virtio 1.2, 5).
    fn kind(&self) -> u16;
    /// Its PCI class code, 24 bits.
    fn class(&self) -> u32;
    /// Its features, beyond the transport's.
    fn features(&self) -> u64 {
        0
    }
    /// The most descriptors of each of its queues.
    fn queues(&self) -> Vec<u16>;
    /// Its configuration, as the driver reads it.
    fn config(&self) -> Vec<u8> {
        Vec::new()
    }
    /// The driver wrote to its configuration, which most devices do not let it.
    fn configure(&self, _at: u64, _size: u8, _value: u64) {}
    /// The driver is ready (DRIVER_OK).
    fn start(&self, link: &Arc<Link>);
    /// A doorbell rang. Runs on a vCPU's thread: what may block is for others.
    fn notify(&self, link: &Arc<Link>, queue: u16);
    /// The driver reset it, or the machine did. It forgets the link.
    fn reset(&self);
    /// Descriptors of the host that it needs, which a sandbox has to keep.
    fn files(&self) -> Vec<RawFd> {
        Vec::new()
    }
    /// The guest ended, or was ended: what it gave away is brought to its end, if that takes time, unless `give_up`
    /// says that nobody wants to wait.
    fn finish(&self, _give_up: &dyn Fn() -> bool) {}
    /// A vCPU has nothing to execute until something comes, and waits as long as `give_up` says that nothing did. What its guest is told
    /// soon by somebody outside, the device may wait for here meanwhile, so that no thread has to be woken for it.
    fn attend(&self, _give_up: &dyn Fn() -> bool) {}
    /// Which of its ports' outputs the host did not take, as on a full disk, and what it said.
    fn lost(&self) -> Option<(String, std::io::Error)> {
        None
    }
    /// Holds it still, or lets it go on: its threads do nothing meanwhile that the guest may see.
    fn hold(&self, _still: bool) {}
    /// Its state beyond the transport's, once nothing is under way any more; no vCPU executes meanwhile, and it is held still.
    fn save(&self) -> Result<Value, satori_save::Error>;
    /// Takes a state back, on a way to the driver on which it has started. What it has to tell its driver then has to wait until it is
    /// let go: interrupt controllers take their states back behind it.
    fn restore(&self, link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error>;
    /// Has everything that reaches it from outside come by `journal`, on the thread that runs the machine; false if it cannot.
    fn journalled(&self, _journal: &Journal) -> bool {
        false
    }
    /// Why it cannot be had in a run that is the same every time, if it cannot.
    fn undetermined(&self) -> Option<String> {
        None
    }
}
