//! QEMU's pc-testdev, for bare-metal suites: storage behind ports and in memory space, and a port
//! for each interrupt line.

mod pci;

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{InterruptLine, MmioDevice, PortDevice};
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::support::{lock, read_bytes, write_bytes};
pub use pci::PciTestdev;

/// Four bytes of storage in port space; a wider access takes those that follow.
pub struct TestPorts([AtomicU8; 4]);

impl TestPorts {
    /// All zero. The same device may stand at several bases.
    pub fn new() -> Arc<Self> {
        Arc::new(TestPorts(Default::default()))
    }
}

impl PortDevice for TestPorts {
    fn read(&self, offset: u16, size: u8) -> u32 {
        read_bytes(offset, size, |at| self.0.get(usize::from(at)).map_or(0, |b| b.load(Ordering::Relaxed)))
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        write_bytes(offset, size, value, |at, byte| {
            if let Some(stored) = self.0.get(usize::from(at)) {
                stored.store(byte, Ordering::Relaxed);
            }
        });
    }
}

/// The port at which a guest has a page of the host's flushed, so that it is mapped anew. There is
/// nothing to be mapped anew here. Reads give zero, as QEMU's do.
pub struct TestFlush;

impl PortDevice for TestFlush {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        0
    }

    fn write(&self, _offset: u16, _size: u8, _value: u32) {}
}

/// One port a line: what is not zero asserts it. Reads give zero, as QEMU's do.
pub struct TestLines(Vec<Arc<dyn InterruptLine>>);

impl TestLines {
    /// Ports for `lines`, in their order.
    pub fn new(lines: Vec<Arc<dyn InterruptLine>>) -> Arc<Self> {
        Arc::new(TestLines(lines))
    }
}

impl PortDevice for TestLines {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        0
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        write_bytes(offset, size, value, |at, byte| {
            if let Some(line) = self.0.get(usize::from(at)) {
                line.set(byte != 0);
            }
        });
    }
}

/// Storage in memory space that is a device: each access to it exits.
pub struct TestMemory(Mutex<Box<[u8]>>);

impl TestMemory {
    /// `size` bytes, all zero.
    pub fn new(size: u64) -> Arc<Self> {
        Arc::new(TestMemory(Mutex::new(vec![0; size as usize].into())))
    }
}

impl MmioDevice for TestMemory {
    fn read(&self, offset: u64, size: u8) -> u64 {
        let bytes = lock(&self.0);
        let at = |i: u64| bytes.get(offset.wrapping_add(i) as usize).copied().unwrap_or(0);
        (0..u64::from(size.min(8))).fold(0, |value, i| value | u64::from(at(i)) << (8 * i))
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        let mut bytes = lock(&self.0);
        for (i, byte) in value.to_le_bytes().into_iter().enumerate().take(size.into()) {
            if let Some(stored) = bytes.get_mut((offset as usize).wrapping_add(i)) {
                *stored = byte;
            }
        }
    }
}

/// The storage behind ports, or in memory space.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBytes {
    bytes: Vec<u8>,
}

impl State for SavedBytes {
    const NAME: &'static str = "pc-testdev";
    const VERSION: u32 = 1;
}

fn state(value: &Value, size: usize) -> Result<Vec<u8>, Error> {
    let SavedBytes { bytes } = value.state()?;
    Error::unless(bytes.len() == size, SavedBytes::NAME, "it has another size")?;
    Ok(bytes)
}

impl Save for TestPorts {
    fn save(&self) -> Result<Value, Error> {
        let bytes = self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Value::of(&SavedBytes { bytes })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let bytes = state(value, self.0.len())?;
        self.0.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        Ok(())
    }
}

impl Save for TestMemory {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedBytes { bytes: lock(&self.0).to_vec() })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let mut own = lock(&self.0);
        let bytes = state(value, own.len())?;
        own.copy_from_slice(&bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Wire;

    #[test]
    fn storage_keeps_what_is_written_at_any_width() {
        let ports = TestPorts::new();
        ports.write(0, 4, 0x4433_2211);
        ports.write(1, 2, 0xbbaa);
        ports.write(3, 4, 0x6655_4477);
        assert_eq!((ports.read(0, 4), ports.read(2, 1), ports.read(3, 2)), (0x77bb_aa11, 0xbb, 0x77));
        let memory = TestMemory::new(0x10);
        memory.write(4, 8, 0x8877_6655_4433_2211);
        memory.write(0xf, 2, 0xffee);
        assert_eq!(
            (memory.read(6, 4), memory.read(0xf, 4), memory.read(0, 8)),
            (0x6655_4433, 0xee, 0x4433_2211 << 32)
        );
        memory.write(u64::MAX, 8, u64::MAX);
        assert_eq!(memory.read(u64::MAX, 1), 0);
    }

    #[test]
    fn each_port_drives_its_line() {
        let wires = [Wire::new(), Wire::new()];
        let lines = TestLines::new(wires.iter().map(|wire| wire.clone() as _).collect());
        lines.write(1, 1, 1);
        assert!(!wires[0].level() && wires[1].level());
        lines.write(0, 2, 0x00ff);
        assert!(wires[0].level() && !wires[1].level());
        lines.write(2, 4, u32::MAX);
        assert_eq!((lines.read(0, 1), TestFlush.read(0, 4)), (0, 0));
    }
}
