//! The platform's devices: what a minimal PC has around its processors.
mod debug;
mod hpet;
mod i8042;
mod ioapic;
mod pic;
mod pit;
mod pm;
mod reset;
mod router;
mod support;
#[cfg(test)]
mod testing;
mod uart;
pub use hpet::{Hpet, HpetLines, LegacyGate};
pub use ioapic::IoApic;
pub use pic::Pic;
pub use pit::Pit;
pub use router::IrqRouter;
pub use debug::{DebugConsole, DebugExit, Pvpanic};
pub use i8042::I8042;
pub use pm::AcpiPm;
pub use reset::{reset_control, system_control_a};
pub use uart::Uart;
