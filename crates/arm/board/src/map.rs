//! Where things are: as on QEMU's `virt`, which kernels know.

use satori_memory::{Gpa, Region};

/// The distributor.
pub(crate) const GICD: u64 = 0x0800_0000;
/// The frame of GICv2m that devices on PCI write their messages to, its size 4 KiB.
pub const MESSAGES: u64 = 0x0802_0000;
/// The redistributors, two frames of 64 KiB each.
pub(crate) const GICR: u64 = 0x080a_0000;
/// The serial port, its size 4 KiB.
pub(crate) const SERIAL: u64 = 0x0900_0000;
/// Its interrupt: of those that are shared.
pub(crate) const SERIAL_SPI: u32 = 1;
/// The clock.
pub(crate) const RTC: u64 = 0x0901_0000;
/// General purpose pins, its size 4 KiB; one of them is the power key.
pub(crate) const GPIO: u64 = 0x0903_0000;
/// Their interrupt.
pub(crate) const GPIO_SPI: u32 = 7;
/// The window of devices on PCI, and its end.
pub const PCI: u64 = 0x1000_0000;
/// See [`PCI`].
pub const PCI_END: u64 = 0x3eff_0000;
/// Enhanced configuration space of bus 0, its size 1 MiB.
pub(crate) const ECAM: u64 = 0x3f00_0000;
/// The first of four interrupts that pins of PCI devices share.
pub(crate) const PCI_SPI: u32 = 3;
/// The first byte of RAM.
pub const RAM: u64 = 0x4000_0000;

/// Private interrupts by what signals them, as INTID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ppi {
    /// The virtual CPU interface has something for its hypervisor.
    Maintenance = 25,
    /// CNTHP: EL2's physical timer.
    HypervisorTimer = 26,
    /// CNTV.
    VirtualTimer = 27,
    /// CNTHV.
    HypervisorVirtualTimer = 28,
    /// CNTP.
    PhysicalTimer = 30,
}

/// The shared interrupt of pin INTA of `device` on bus 0.
pub(crate) const fn pci_interrupt(device: u8) -> u32 {
    PCI_SPI + device as u32 % 4
}

/// The RAM of a machine with so many bytes.
pub fn regions(bytes: u64) -> Vec<Region> {
    vec![Region { start: Gpa(RAM), len: bytes }]
}
