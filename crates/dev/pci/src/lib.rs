//! PCI: bus 0 with its host bridge and both ways to configuration space, and what a function is made of.
//!
//! A device on the bus is a [`Function`] (its configuration space, whose base address registers
//! place it in the machine's [`satori_bus::MmioMap`]), an [`Msix`] and an [`Intx`]. None of them knows what the
//! device does.
//!
//! # Locks
//!
//! A function's lock is held while the map changes and while its MSI-X or INTx is told of a change;
//! these lock themselves, and hold their lock while they drive their line or sink. Nothing behind calls back.

#![forbid(unsafe_code)]

mod bus;
mod config;
mod function;
mod intx;
mod msix;

pub use bus::{PciBus, PciFunction, SlotTaken};
pub use config::ConfigSpace;
pub use function::{Bar, Function, Identity, PortBar, SavedFunction};
pub use intx::Intx;
pub use msix::Msix;
use satori_lock::lock;
