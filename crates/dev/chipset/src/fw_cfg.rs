//! The part of QEMU's fw_cfg that bare-metal suites read: how many processors and how much memory
//! there are. It is read-only and names no files.

use std::sync::{Arc, Mutex};

use satori_bus::PortDevice;
use satori_defs::chipset::fw_cfg::*;
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::support::lock;

/// Selector at offset 0, data at offset 1.
pub struct FwCfg {
    items: Vec<(u16, Vec<u8>)>,
    /// The item that was selected, and how much of it was read.
    selected: Mutex<(u16, usize)>,
}

impl FwCfg {
    /// The items of a machine with `cpus` processors and `memory` bytes of RAM.
    pub fn new(cpus: u32, memory: u64) -> Arc<Self> {
        let cpus = u16::try_from(cpus).unwrap_or(u16::MAX).to_le_bytes().to_vec();
        let items = vec![
            (SIGNATURE, SIGNATURE_VALUE.to_vec()),
            (ID, ID_PORTS.to_le_bytes().to_vec()),
            (RAM_SIZE, memory.to_le_bytes().to_vec()),
            (NOGRAPHIC, 1_u16.to_le_bytes().to_vec()),
            (NB_CPUS, cpus.clone()),
            (MAX_CPUS, cpus),
            (FILE_DIR, 0_u32.to_be_bytes().to_vec()),
        ];
        Arc::new(FwCfg { items, selected: Mutex::new((SIGNATURE, 0)) })
    }
}

impl PortDevice for FwCfg {
    fn read(&self, offset: u16, size: u8) -> u32 {
        if offset != 1 || size != 1 {
            return 0;
        }
        let mut selected = lock(&self.selected);
        let (key, at) = *selected;
        // Beyond an item's end, and for an item that there is not, zeroes come.
        let item = self.items.iter().find(|(own, _)| *own == key);
        let byte = item.and_then(|(_, bytes)| bytes.get(at)).copied().unwrap_or(0);
        *selected = (key, at.saturating_add(1));
        byte.into()
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        if offset == 0 && size == 2 {
            *lock(&self.selected) = (value as u16, 0);
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedFwCfg {
    selected: (u16, usize),
}

impl State for SavedFwCfg {
    const NAME: &'static str = "fw_cfg";
    const VERSION: u32 = 1;
}

impl Save for FwCfg {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedFwCfg { selected: *lock(&self.selected) })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        *lock(&self.selected) = value.state::<SavedFwCfg>()?.selected;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_byte_by_byte_and_end_in_zeroes() {
        let device = FwCfg::new(3, 0x1_2000_0000);
        let read = |key: u32, bytes: usize| {
            device.write(0, 2, key);
            (0..bytes).map(|_| device.read(1, 1) as u8).collect::<Vec<_>>()
        };
        assert_eq!(read(SIGNATURE.into(), 6), b"QEMU\0\0");
        assert_eq!(read(ID.into(), 4), [1, 0, 0, 0]);
        assert_eq!(read(NB_CPUS.into(), 2), [3, 0]);
        assert_eq!(read(RAM_SIZE.into(), 8), [0, 0, 0, 0x20, 1, 0, 0, 0]);
        assert_eq!(read(0xffff, 2), [0, 0]);
        device.write(0, 2, NB_CPUS.into());
        device.write(0, 1, 0);
        device.write(1, 1, 9);
        assert_eq!((device.read(1, 2), device.read(0, 1), device.read(1, 1)), (0, 0, 3));
    }
}
