//! What a kind of device is, to the bus; and how the bus reaches the guest.

use std::os::fd::RawFd;
use std::sync::Arc;

use satori_save::{Error, Value};

use crate::{Bus, Channel};

/// How the guest is reached.
pub trait Host: Send + Sync {
    /// Posts a message of the bus to a source of a virtual processor.
    fn post(&self, vp: u32, sint: u8, payload: &[u8]) -> Posted;
    /// Sets an event flag there.
    fn signal(&self, vp: u32, sint: u8, flag: u32);
    /// Has events of connection `connection` come to [`Bus::signalled`] with `relid`.
    fn connect(&self, connection: u32, relid: u32);
    /// Has them refused again.
    fn disconnect(&self, connection: u32);
    /// Reference time in units of 100 ns.
    fn reference_time(&self) -> u64;
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is on its way.
    Done,
    /// As many wait as there are buffers.
    Full,
    /// Nobody can get it.
    Nowhere,
}

/// What the guest is told of a device.
#[derive(Clone, Debug)]
pub struct Offer {
    /// What it is.
    pub class: [u8; 16],
    /// Which one it is; the same in every life.
    pub instance: [u8; 16],
    /// Offer flags.
    pub flags: u16,
}

/// A device. It locks its own state, and outlives resets of the machine.
pub trait Device: Send + Sync {
    /// What the guest is told.
    fn offer(&self) -> Offer;
    /// Descriptors of the host that it needs, which a sandbox has to keep.
    fn files(&self) -> Vec<RawFd> {
        Vec::new()
    }
    /// A life of the machine begins. If `determined`, it does everything on the thread that asks.
    fn begin(&self, _determined: bool) {}
    /// The guest opened `channel`, its own or one beside that.
    fn opened(&self, bus: &Arc<Bus>, channel: &Arc<Channel>);
    /// The guest signalled it. Runs on a vCPU's thread: what may block is for others.
    fn signalled(&self, bus: &Arc<Bus>, channel: &Arc<Channel>);
    /// The guest closed it: when this returns, nothing that came by it touches the guest's memory any more.
    fn closed(&self, channel: &Arc<Channel>);
    /// What it does beside vCPUs stands still, or goes on.
    fn hold(&self, _still: bool) {}
    /// Its state, while it is held still, once nothing is under way any more.
    fn save(&self) -> Result<Value, Error>;
    /// Takes a state back, on a bus that has its channels ([`Bus::open_channel`]). What it has to tell the guest waits until it is let go.
    fn restore(&self, bus: &Arc<Bus>, value: &Value) -> Result<(), Error>;
    /// The guest ended: what it gave away is brought to its end, unless `give_up` says that nobody wants to wait.
    fn finish(&self, _give_up: &dyn Fn() -> bool) {}
    /// Why it cannot be had in a run that is the same every time, if it cannot.
    fn undetermined(&self) -> Option<String> {
        None
    }
}
