//! Configuration space: bytes, of which software may write some bits.

use satori_defs::pci::*;
use satori_save::{Error, State};
use serde::{Deserialize, Serialize};

/// 256 bytes of configuration space, and which bits software may write.
#[derive(Clone)]
pub struct ConfigSpace {
    bytes: [u8; CONFIG_SIZE],
    writable: [u8; CONFIG_SIZE],
}

impl ConfigSpace {
    /// A type 0 header of `vendor`, `device` and 24-bit class code, with the interrupt line writable.
    pub fn new(vendor: u16, device: u16, class: u32) -> Self {
        let mut space = ConfigSpace { bytes: [0; CONFIG_SIZE], writable: [0; CONFIG_SIZE] };
        space.set(VENDOR_ID, &vendor.to_le_bytes());
        space.set(DEVICE_ID, &device.to_le_bytes());
        space.set(CLASS_CODE, &class.to_le_bytes()[..3]);
        space.allow(INTERRUPT_LINE, &[0xff]);
        space
    }

    /// Sets registers from the device's side. Bytes beyond the space are ignored.
    pub fn set(&mut self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
    }

    /// Sets which bits software may write from `offset` on. Bytes beyond the space are ignored.
    pub fn allow(&mut self, offset: usize, mask: &[u8]) {
        for (to, from) in self.writable.iter_mut().skip(offset).zip(mask) {
            *to = *from;
        }
    }

    /// Reads as software does; zero beyond the space.
    pub fn read(&self, offset: u16, size: u8) -> u32 {
        let bytes = self.bytes.iter().skip(offset.into()).take(size.min(4).into());
        bytes.enumerate().fold(0, |value, (i, &byte)| value | u32::from(byte) << (8 * i))
    }

    /// Writes as software does: only writable bits change.
    pub fn write(&mut self, offset: u16, size: u8, value: u32) {
        let at = usize::from(offset);
        let registers = self.bytes.iter_mut().zip(&self.writable).skip(at).take(size.min(4).into());
        for ((byte, mask), new) in registers.zip(value.to_le_bytes()) {
            *byte = *byte & !mask | new & mask;
        }
    }
}

/// What software has made of configuration space.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedConfig {
    bytes: Vec<u8>,
}

impl State for SavedConfig {
    const NAME: &'static str = "PCI configuration space";
    const VERSION: u32 = 1;
}

impl ConfigSpace {
    pub(crate) fn save(&self) -> SavedConfig {
        SavedConfig { bytes: self.bytes.to_vec() }
    }

    /// Takes it back: only what software may write can be another than it is.
    pub(crate) fn restore(&mut self, saved: &SavedConfig) -> Result<(), Error> {
        let unfit = || Error::unfit(SavedConfig::NAME, "it has 256 bytes");
        let bytes: [u8; CONFIG_SIZE] = saved.bytes.as_slice().try_into().map_err(|_| unfit())?;
        // The status register is the function's, and follows from its pin.
        let fixed = |at: usize| !(STATUS..STATUS + 2).contains(&at);
        let registers = self.bytes.iter().zip(&bytes).zip(&self.writable).enumerate();
        let mut kept = registers.filter(|(at, _)| fixed(*at));
        let fits = kept.all(|(_, ((own, saved), writable))| (own ^ saved) & !writable == 0);
        Error::unless(fits, SavedConfig::NAME, "what identifies the function is another")?;
        self.bytes = bytes;
        Ok(())
    }
}
