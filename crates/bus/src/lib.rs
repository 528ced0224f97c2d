//! How devices meet the machine: port and MMIO maps, time, timers, interrupt lines and sinks.
//!
//! A device knows none of these by type. It is handed trait objects at construction, and is
//! called through [`PortDevice`] or [`MmioDevice`] by whichever map it was put into.

#![forbid(unsafe_code)]

mod interrupt;
mod map;
mod time;

pub use interrupt::{Msi, MsiSink};
pub use map::{MmioDevice, MmioMap, Overlap, PortDevice, PortMap, WeakMmioMap, WeakPortMap};
pub use time::{Armed, Clock, Nanos, Timer, TimerQueue};

/// A level-sensitive or edge-triggered interrupt line, injected into a device.
///
/// For a level line `set(true)` asserts and `set(false)` deasserts; an edge is a pulse of both.
pub trait InterruptLine: Send + Sync {
    /// Drives the line.
    fn set(&self, asserted: bool);

    /// An edge: asserts and at once deasserts.
    fn pulse(&self) {
        self.set(true);
        self.set(false);
    }
}

/// Where a byte-oriented output device puts its bytes.
pub trait ByteSink: Send {
    /// Takes `bytes`; a sink that cannot take them (a closed pipe) remembers it itself.
    fn put(&mut self, bytes: &[u8]);
}

/// Why a guest asked the machine to stop or start again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// ACPI S5 or another power-off.
    PowerOff,
    /// A reset, and the port or interface that asked.
    Reset(&'static str),
    /// isa-debug-exit: the byte, word or dword written.
    DebugExit(u32),
    /// A guest panic, and who told.
    Panic(&'static str),
    /// ACPI S3: its processors stop, until [`PowerEvent::Wake`].
    Sleep,
    /// What sleeps wakes: of the machine before it its memory is left, and what had power.
    Wake,
}

/// Where devices announce [`PowerEvent`]s; the machine stops its vCPUs soon after.
pub trait PowerSink: Send + Sync {
    /// Announces `event`. The first one wins.
    fn power(&self, event: PowerEvent);
}
