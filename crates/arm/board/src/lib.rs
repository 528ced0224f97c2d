//! The board of an AArch64 machine: where things are, interrupt controller, serial port, and what a kernel is told.

#![forbid(unsafe_code)]

mod gic;
mod gpio;
mod image;
mod map;
mod pl011;
mod psci;
mod rtc;
mod tree;

pub use gic::{Gic, SharedLine, Wake};
pub use gpio::Pl061;
pub use image::{Begin, Boot, Error, load};
pub use map::{MESSAGES, PCI, PCI_END, Ppi, RAM, regions};
pub use pl011::Pl011;
pub use psci::{Call, Power, psci};
pub use rtc::Pl031;

use std::sync::Arc;

use satori_bus::{ByteSink, InterruptLine, MmioMap, MsiSink, Overlap};
use satori_pci::PciBus;

/// The devices of a machine.
pub struct Board {
    /// Where they are.
    pub mmio: MmioMap,
    /// The interrupt controller.
    pub gic: Arc<Gic>,
    /// The serial port.
    pub serial: Arc<Pl011>,
    /// The pins, of which [`POWER_KEY`] is the power key.
    pub gpio: Arc<Pl061>,
    /// The bus of devices beside the board's own.
    pub pci: Arc<PciBus>,
    pins: [SharedLine; 4],
}

/// The pin of the power key, which the device tree tells of.
pub const POWER_KEY: u8 = 3;

impl Board {
    /// Those of a machine of so many vCPUs, whose console is `console`; the wall clock is `epoch` seconds at the start, and `now` the
    /// seconds since.
    pub fn new(
        vcpus: u32,
        console: Box<dyn ByteSink>,
        wake: Wake,
        now: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<Self, Overlap> {
        let mmio = MmioMap::default();
        let gic = Gic::new(vcpus, wake);
        let line = gic.clone();
        let serial = Pl011::new(console, Box::new(move |level| line.set_spi(map::SERIAL_SPI, level)));
        let end = |base: u64, size: u64| base + size - 1;
        mmio.add("gicd", map::GICD, end(map::GICD, 0x1_0000), gic.distributor())?;
        let frames = 0x2_0000 * u64::from(vcpus);
        mmio.add("gicr", map::GICR, end(map::GICR, frames), gic.redistributors())?;
        mmio.add("pl011", map::SERIAL, end(map::SERIAL, 0x1000), serial.clone())?;
        let line = gic.clone();
        let gpio = Pl061::new(Box::new(move |level| line.set_spi(map::GPIO_SPI, level)));
        let pci = PciBus::new();
        mmio.add("gicv2m", MESSAGES, end(MESSAGES, 0x1000), gic.messages())?;
        mmio.add("pl061", map::GPIO, end(map::GPIO, 0x1000), gpio.clone())?;
        mmio.add("ecam", map::ECAM, end(map::ECAM, 1 << 20), pci.ecam())?;
        mmio.add("pl031", map::RTC, end(map::RTC, 0x1000), Arc::new(Pl031::new(now)))?;
        let pins = [0, 1, 2, 3].map(|slot| gic.shared_line(map::pci_interrupt(slot)));
        Ok(Board { mmio, gic, serial, gpio, pci, pins })
    }

    /// Where messages of devices on PCI go.
    pub fn messages(&self) -> Arc<dyn MsiSink> {
        self.gic.messages()
    }

    /// Where pin INTA of the device in `slot` leads.
    pub fn pin(&self, slot: u8) -> Arc<dyn InterruptLine> {
        self.pins[usize::from(slot % 4)].end(slot)
    }
}
