//! The platform's devices: what a minimal PC has around its processors, one file each.
//!
//! A device knows no bus, thread or descriptor. It is a [`satori_bus::PortDevice`] or
//! [`satori_bus::MmioDevice`], often a [`satori_bus::Timer`], and is handed its clock, interrupt line
//! and sinks; [`Chipset`] puts all of them on one board.
//!
//! # Locks
//!
//! Every device locks its own state, in this order, never upwards:
//!
//! 1. a device (UART, PIT, HPET, RTC, PM, i8042), which drives its line with its lock held, so that
//!    the line always shows the last level;
//! 2. a source and its line in [`IrqRouter`];
//! 3. [`Pic`] or [`IoApic`] state, which is let go before INTR is driven or a message is delivered;
//! 4. whatever stands behind INTR and the message sink: the local APICs.
//!
//! So a local APIC may call [`Pic::acknowledge`], [`Pic::intr`] and [`IoApic::eoi`]. The last may
//! deliver a message and the first may drive INTR in the same call: the caller holds no lock that
//! its own sink or INTR line would take. Power sinks are called with no lock held; byte sinks and the
//! timer queue are leaves.

#![forbid(unsafe_code)]

mod a20;
mod board;
mod debug;
mod fw_cfg;
#[cfg(test)]
mod hammer_tests;
mod hpet;
mod i8042;
mod ioapic;
mod pic;
mod pit;
mod pm;
mod post;
mod reset;
mod router;
mod rtc;
mod support;
mod testdev;
#[cfg(test)]
mod testing;
mod uart;

pub use a20::A20;
pub use board::{Chipset, Com, DebugExitPorts, Error, Options, Parts};
pub use debug::{DebugConsole, DebugExit, Pvpanic};
pub use fw_cfg::FwCfg;
pub use hpet::{Hpet, HpetLines, LegacyGate};
pub use i8042::I8042;
pub use ioapic::IoApic;
pub use pic::Pic;
pub use pit::Pit;
pub use pm::AcpiPm;
pub use reset::{PortA, Register, reset_control, system_control_a};
pub use router::IrqRouter;
pub use rtc::{MemorySizes, Rtc};
pub use testdev::{PciTestdev, TestFlush, TestLines, TestMemory, TestPorts};
pub use uart::Uart;
