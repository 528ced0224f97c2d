//! Which device answers a port or a physical address.

use std::sync::{Arc, Mutex, Weak};

use satori_lock::Held;

use arc_swap::ArcSwap;

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

impl<D: ?Sized> Clone for Range<D> {
    fn clone(&self) -> Self {
        Range { name: self.name, first: self.first, last: self.last, device: self.device.clone() }
    }
}

/// Sorted, non-overlapping ranges: one state of a map, which never changes.
struct Ranges<D: ?Sized>(Vec<Range<D>>);

impl<D: ?Sized> Ranges<D> {
    fn add(&mut self, range: Range<D>) -> Result<(), Overlap> {
        let at = self.0.partition_point(|r| r.last < range.first);
        if let Some(next) = self.0.get(at)
            && next.first <= range.last
        {
            return Err(Overlap { taken_by: next.name, refused: range.name });
        }
        self.0.insert(at, range);
        Ok(())
    }

    fn find(&self, address: u64) -> Option<&Range<D>> {
        let at = self.0.partition_point(|r| r.last < address);
        self.0.get(at).filter(|r| r.first <= address)
    }
}

/// A map that may change while vCPUs look addresses up.
///
/// A look-up takes the state of that moment without a lock and keeps it until the access is over; a
/// change makes a new state and swaps it in. So an access that another vCPU's change overtakes still
/// reaches the device where it was, as one that is on its way over a bus does.
struct Changing<D: ?Sized> {
    now: ArcSwap<Ranges<D>>,
    /// Who changes the map: each change begins with what the last one left.
    changing: Mutex<()>,
}

impl<D: ?Sized> Changing<D> {
    fn new() -> Arc<Self> {
        Arc::new(Changing { now: ArcSwap::from_pointee(Ranges(Vec::new())), changing: Mutex::new(()) })
    }

    fn change<R>(&self, change: impl FnOnce(&mut Ranges<D>) -> Result<R, Overlap>) -> Result<R, Overlap> {
        let _one_at_a_time = self.changing.lock().held();
        let mut next = Ranges(self.now.load().0.clone());
        let result = change(&mut next)?;
        self.now.store(Arc::new(next));
        Ok(result)
    }

    fn add(&self, name: &'static str, first: u64, last: u64, device: Arc<D>) -> Result<(), Overlap> {
        self.change(|ranges| ranges.add(Range { name, first, last, device }))
    }

    fn take(ranges: &mut Ranges<D>, first: u64) -> Option<Range<D>> {
        let at = ranges.0.iter().position(|range| range.first == first)?;
        Some(ranges.0.remove(at))
    }

    fn remove(&self, first: u64) -> bool {
        self.change(|ranges| Ok(Self::take(ranges, first).is_some())).unwrap_or(false)
    }

    fn relocate(&self, first: u64, to: u64) -> Result<bool, Overlap> {
        self.change(|ranges| {
            let Some(mut range) = Self::take(ranges, first) else { return Ok(false) };
            range.last = to.saturating_add(range.last - range.first);
            range.first = to;
            ranges.add(range).map(|()| true)
        })
    }

    /// What `look` makes of the range that holds `address`.
    fn at<R>(&self, address: u64, look: impl FnOnce(&Range<D>) -> R) -> Option<R> {
        self.now.load().find(address).map(look)
    }
}

/// Devices by I/O port. Unclaimed ports read all ones and swallow writes. Clones are the same map.
#[derive(Clone)]
pub struct PortMap(Arc<Changing<dyn PortDevice>>);

impl Default for PortMap {
    fn default() -> Self {
        PortMap(Changing::new())
    }
}

impl PortMap {
    /// Puts `device` at `first..=last`.
    pub fn add(
        &self,
        name: &'static str,
        first: u16,
        last: u16,
        device: Arc<dyn PortDevice>,
    ) -> Result<(), Overlap> {
        self.0.add(name, first.into(), last.into(), device)
    }

    /// Takes the range that begins at `first` out of the map; false if none does.
    pub fn remove(&self, first: u16) -> bool {
        self.0.remove(first.into())
    }

    /// Moves the range that begins at `first`, so that it begins at `to`: no look-up finds it at both or
    /// at neither. False if none begins there; refused, and nothing moved, if others are in the way.
    pub fn relocate(&self, first: u16, to: u16) -> Result<bool, Overlap> {
        self.0.relocate(first.into(), to.into())
    }

    /// The map for a device that is in it and moves itself: it does not keep the map alive.
    pub fn downgrade(&self) -> WeakPortMap {
        WeakPortMap(Arc::downgrade(&self.0))
    }

    /// Reads `size` bytes at `port`.
    pub fn read(&self, port: u16, size: u8) -> u32 {
        let read = self.0.at(port.into(), |range| range.device.read(port - range.first as u16, size));
        read.unwrap_or(u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4))))
    }

    /// Writes `size` bytes at `port`.
    pub fn write(&self, port: u16, size: u8, value: u32) {
        self.0.at(port.into(), |range| range.device.write(port - range.first as u16, size, value));
    }

    /// The name of the device at `port`.
    pub fn name(&self, port: u16) -> Option<&'static str> {
        self.0.at(port.into(), |range| range.name)
    }
}

/// Devices by guest physical address. Unclaimed addresses read all ones and swallow writes. Clones
/// are the same map.
#[derive(Clone)]
pub struct MmioMap(Arc<Changing<dyn MmioDevice>>);

impl Default for MmioMap {
    fn default() -> Self {
        MmioMap(Changing::new())
    }
}

impl MmioMap {
    /// Puts `device` at `first..=last`.
    pub fn add(
        &self,
        name: &'static str,
        first: u64,
        last: u64,
        device: Arc<dyn MmioDevice>,
    ) -> Result<(), Overlap> {
        self.0.add(name, first, last, device)
    }

    /// Takes the range that begins at `first` out of the map; false if none does.
    pub fn remove(&self, first: u64) -> bool {
        self.0.remove(first)
    }

    /// Moves the range that begins at `first`, so that it begins at `to`: no look-up finds it at both or
    /// at neither. False if none begins there; refused, and nothing moved, if others are in the way.
    pub fn relocate(&self, first: u64, to: u64) -> Result<bool, Overlap> {
        self.0.relocate(first, to)
    }

    /// Reads `size` bytes at `address`.
    pub fn read(&self, address: u64, size: u8) -> u64 {
        let read = self.0.at(address, |range| range.device.read(address - range.first, size));
        read.unwrap_or(u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8))))
    }

    /// Writes `size` bytes at `address`.
    pub fn write(&self, address: u64, size: u8, value: u64) {
        self.0.at(address, |range| range.device.write(address - range.first, size, value));
    }

    /// The name of the device at `address`.
    pub fn name(&self, address: u64) -> Option<&'static str> {
        self.0.at(address, |range| range.name)
    }

    /// The map for a device that is in it and moves itself: it does not keep the map alive.
    pub fn downgrade(&self) -> WeakMmioMap {
        WeakMmioMap(Arc::downgrade(&self.0))
    }
}

/// A [`PortMap`] as long as somebody else has it.
#[derive(Clone)]
pub struct WeakPortMap(Weak<Changing<dyn PortDevice>>);

impl WeakPortMap {
    /// The map, if it still is.
    pub fn upgrade(&self) -> Option<PortMap> {
        self.0.upgrade().map(PortMap)
    }
}

/// A [`MmioMap`] as long as somebody else has it.
#[derive(Clone)]
pub struct WeakMmioMap(Weak<Changing<dyn MmioDevice>>);

impl WeakMmioMap {
    /// The map, if it still is.
    pub fn upgrade(&self) -> Option<MmioMap> {
        self.0.upgrade().map(MmioMap)
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
        let map = PortMap::default();
        map.add("a", 0x10, 0x1f, Arc::new(Fixed(100))).unwrap();
        map.add("b", 0x00, 0x0f, Arc::new(Fixed(200))).unwrap();
        let refused = map.add("c", 0x1f, 0x20, Arc::new(Fixed(0)));
        assert_eq!(refused, Err(Overlap { taken_by: "a", refused: "c" }));
        assert_eq!((map.read(0x12, 1), map.read(0x01, 1)), (102, 201));
        assert_eq!((map.read(0x20, 1), map.read(0x20, 2), map.read(0x20, 4)), (0xff, 0xffff, u32::MAX));
    }

    struct Named(u64);
    impl MmioDevice for Named {
        fn read(&self, offset: u64, _size: u8) -> u64 {
            self.0 + offset
        }
        fn write(&self, _offset: u64, _size: u8, _value: u64) {}
    }

    #[test]
    fn ranges_move_and_go_away() {
        let map = MmioMap::default();
        map.add("a", 0x1000, 0x1fff, Arc::new(Named(0xa000))).unwrap();
        map.add("b", 0x3000, 0x3fff, Arc::new(Named(0xb000))).unwrap();
        assert_eq!(map.relocate(0x1000, 0x2800), Err(Overlap { taken_by: "b", refused: "a" }));
        assert_eq!((map.read(0x1008, 4), map.name(0x3000)), (0xa008, Some("b")), "nothing moved");
        assert_eq!(map.relocate(0x1000, 0x1800), Ok(true), "over a part of itself");
        assert_eq!((map.read(0x1000, 1), map.read(0x1808, 4)), (0xff, 0xa008));
        assert_eq!(map.relocate(0x1000, 0x5000), Ok(false));
        assert!(map.remove(0x1800) && !map.remove(0x1800));
        assert_eq!(map.name(0x1800), None);
        let weak = map.downgrade();
        assert!(weak.upgrade().is_some());
        drop(map);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn a_range_that_moves_is_always_at_one_of_its_places() {
        let map = MmioMap::default();
        map.add("a", 0x1000, 0x1fff, Arc::new(Named(0))).unwrap();
        map.add("other", 0x8000, 0x8fff, Arc::new(Named(0x77))).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        assert_eq!(map.read(0x8000, 1), 0x77, "what does not move is always there");
                    }
                });
            }
            for _ in 0..500 {
                map.relocate(0x1000, 0x4000).unwrap();
                assert_eq!((map.name(0x1000), map.name(0x4000)), (None, Some("a")));
                map.relocate(0x4000, 0x1000).unwrap();
            }
        });
    }
}
