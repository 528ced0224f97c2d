//! GICv2m: a frame whose register makes a write a shared interrupt (Arm Server Base System Architecture, appendix E). PCI devices
//! interrupt by it where there is no ITS.

use std::sync::Arc;

use satori_bus::{MmioDevice, Msi, MsiSink};

use super::{Gic, INTERRUPTS, PRIVATE};
use crate::map;

/// INTIDs below it are lines of the board.
const FIRST: usize = 64;
const _: () = assert!(FIRST >= PRIVATE && FIRST < INTERRUPTS);

/// MSI_TYPER, MSI_SETSPI_NS and MSI_IIDR.
const TYPER: u64 = 8;
const SETSPI: u64 = 0x40;
const IIDR: u64 = 0xfcc;

/// The frame.
pub struct Frame(pub(super) Arc<Gic>);

impl Frame {
    /// The edge of interrupt `intid`, if that is one of messages.
    fn raise(&self, intid: u32) {
        if (FIRST..INTERRUPTS).contains(&(intid as usize)) {
            self.0.pulse_spi(intid - PRIVATE as u32);
        }
    }
}

impl MmioDevice for Frame {
    fn read(&self, offset: u64, _size: u8) -> u64 {
        match offset {
            TYPER => (FIRST << 16 | (INTERRUPTS - FIRST)) as u64,
            // Architecture version 1, implementer Arm.
            IIDR => 1 << 16 | 0x43b,
            _ => 0,
        }
    }

    fn write(&self, offset: u64, _size: u8, value: u64) {
        if offset == SETSPI {
            self.raise(value as u32);
        }
    }
}

impl MsiSink for Frame {
    fn signal(&self, msi: Msi) {
        if msi.address == map::MESSAGES + SETSPI {
            self.raise(msi.data);
        }
    }
}
