//! The map of a guest's memory, which a partition owns.

use std::sync::Arc;

use satori_bus::MsiSink;
use satori_memory::{Error, Gpa, GuestMemory, Region};

/// What of a partition is the same for every instruction set: which memory the guest has, and which of it was written.
///
/// The provided methods are right for an engine that looks everything up in [`GuestMemory`], at the latest at the start of a
/// run. One that hands its map to somebody else, as to a kernel, does that in its own.
///
/// Whoever changes the map or asks the log has all vCPUs stand outside of their runs meanwhile. Devices may go on: what they
/// write is in this answer of the log or in the next, and after it in memory.
pub trait Space: Send + Sync {
    /// Its memory.
    fn memory(&self) -> &GuestMemory;

    /// Gives the guest more RAM, all zeros.
    fn add_ram(&self, region: Region) -> Result<(), Error> {
        self.memory().add(region)
    }

    /// Moves the RAM that begins at `start`, with what it holds, to `to`.
    fn relocate_ram(&self, start: Gpa, to: Gpa) -> Result<(), Error> {
        self.memory().relocate(start, to)
    }

    /// Takes the RAM that begins at `start` away.
    fn remove_ram(&self, start: Gpa) -> Result<(), Error> {
        self.memory().remove(start)
    }

    /// The partition's interrupt routes: where messages of devices go whose vCPUs' interrupt controllers the engine keeps
    /// itself, as [`Capability::KeepsInterruptController`](crate::Capability::KeepsInterruptController) says. An engine that
    /// executes and does no more has none: messages then go to the interrupt controllers of the machine.
    fn routes(&self) -> Option<Arc<dyn MsiSink>> {
        None
    }

    /// From now on, writes are logged; false if they were already.
    fn start_dirty_log(&self) -> bool {
        self.memory().start_dirty_log()
    }

    /// The pages that were written since the log was started or taken last, ascending; none if it is off.
    fn take_dirty_log(&self) -> Option<Vec<Region>> {
        self.memory().take_dirty_log()
    }

    /// Writes are not logged any more; false if they were not.
    fn stop_dirty_log(&self) -> bool {
        self.memory().stop_dirty_log()
    }
}
