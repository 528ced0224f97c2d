//! Which device answers a port or a physical address.

use std::sync::Arc;

/// A device in port space. It locks its own state.
pub trait PortDevice: Send + Sync {
    /// A read of `size` (1, 2 or 4) bytes at `offset` from the device's base.
    fn read(&self, offset: u16, size: u8) -> u32;
    /// A write of `size` (1, 2 or 4) bytes at `offset` from the device's base.
    fn write(&self, offset: u16, size: u8, value: u32);
}

/// A device in physical memory space. It locks its own state.
pub trait MmioDevice: Send + Sync {
    /// A read of `size` (1, 2, 4 or 8) bytes at `offset` from the device's base.
    fn read(&self, offset: u64, size: u8) -> u64;
    /// A write of `size` (1, 2, 4 or 8) bytes at `offset` from the device's base.
    fn write(&self, offset: u64, size: u8, value: u64);
}

/// Two devices wanted the same addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The range that was already taken.
    pub taken_by: &'static str,
    /// The range that was refused.
    pub refused: &'static str,
}

struct Range<D: ?Sized> {
    name: &'static str,
    first: u64,
    last: u64,
    device: Arc<D>,
}

/// Sorted, non-overlapping ranges.
struct Ranges<D: ?Sized>(Vec<Range<D>>);

impl<D: ?Sized> Ranges<D> {
    fn add(&mut self, name: &'static str, first: u64, last: u64, device: Arc<D>) -> Result<(), Overlap> {
        let at = self.0.partition_point(|r| r.last < first);
        if let Some(next) = self.0.get(at)
            && next.first <= last
        {
            return Err(Overlap { taken_by: next.name, refused: name });
        }
        self.0.insert(at, Range { name, first, last, device });
        Ok(())
    }

    fn find(&self, address: u64) -> Option<&Range<D>> {
        let at = self.0.partition_point(|r| r.last < address);
        self.0.get(at).filter(|r| r.first <= address)
    }
}

/// Devices by I/O port. Unclaimed ports read all ones and swallow writes.
pub struct PortMap(Ranges<dyn PortDevice>);

impl Default for PortMap {
    fn default() -> Self {
        PortMap(Ranges(Vec::new()))
    }
}

impl PortMap {
    /// Puts `device` at `first..=last`.
    pub fn add(
        &mut self,
        name: &'static str,
        first: u16,
        last: u16,
        device: Arc<dyn PortDevice>,
    ) -> Result<(), Overlap> {
        self.0.add(name, first.into(), last.into(), device)
    }

    /// Reads `size` bytes at `port`.
    pub fn read(&self, port: u16, size: u8) -> u32 {
        match self.0.find(port.into()) {
            Some(range) => range.device.read(port - range.first as u16, size),
            None => u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4))),
        }
    }

    /// Writes `size` bytes at `port`.
    pub fn write(&self, port: u16, size: u8, value: u32) {
        if let Some(range) = self.0.find(port.into()) {
            range.device.write(port - range.first as u16, size, value);
        }
    }

    /// The name of the device at `port`.
    pub fn name(&self, port: u16) -> Option<&'static str> {
        self.0.find(port.into()).map(|range| range.name)
    }
}

/// Devices by guest physical address. Unclaimed addresses read all ones and swallow writes.
pub struct MmioMap(Ranges<dyn MmioDevice>);

impl Default for MmioMap {
    fn default() -> Self {
        MmioMap(Ranges(Vec::new()))
    }
}

impl MmioMap {
    /// Puts `device` at `first..=last`.
    pub fn add(
        &mut self,
        name: &'static str,
        first: u64,
        last: u64,
        device: Arc<dyn MmioDevice>,
    ) -> Result<(), Overlap> {
        self.0.add(name, first, last, device)
    }

    /// Reads `size` bytes at `address`.
    pub fn read(&self, address: u64, size: u8) -> u64 {
        match self.0.find(address) {
            Some(range) => range.device.read(address - range.first, size),
            None => u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8))),
        }
    }

    /// Writes `size` bytes at `address`.
    pub fn write(&self, address: u64, size: u8, value: u64) {
        if let Some(range) = self.0.find(address) {
            range.device.write(address - range.first, size, value);
        }
    }

    /// The name of the device at `address`.
    pub fn name(&self, address: u64) -> Option<&'static str> {
        self.0.find(address).map(|range| range.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u32);
    impl PortDevice for Fixed {
        fn read(&self, offset: u16, _size: u8) -> u32 {
            self.0 + u32::from(offset)
        }
        fn write(&self, _offset: u16, _size: u8, _value: u32) {}
    }

    #[test]
    fn ranges_answer_and_overlaps_are_refused() {
        let mut map = PortMap::default();
        map.add("a", 0x10, 0x1f, Arc::new(Fixed(100))).unwrap();
        map.add("b", 0x00, 0x0f, Arc::new(Fixed(200))).unwrap();
        let refused = map.add("c", 0x1f, 0x20, Arc::new(Fixed(0)));
        assert_eq!(refused, Err(Overlap { taken_by: "a", refused: "c" }));
        assert_eq!((map.read(0x12, 1), map.read(0x01, 1)), (102, 201));
        assert_eq!((map.read(0x20, 1), map.read(0x20, 2), map.read(0x20, 4)), (0xff, 0xffff, u32::MAX));
    }
}
