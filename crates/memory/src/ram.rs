//! The RAM of a partition.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::code::CodePages;
use crate::map::{Maps, Slot, sound};
use crate::{Gpa, PAGE_SIZE, Page, PageState};

/// Every address line: what processors drive unless a board says otherwise.
pub const ALL_LINES: u64 = u64::MAX;

/// Failures of guest memory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host refused the mapping.
    #[error("cannot reserve {bytes} bytes of guest memory: {why}; use a smaller --memory")]
    Reserve {
        /// Bytes asked for.
        bytes: u64,
        /// The host's reason.
        why: String,
    },
    /// An access left the RAM of the guest.
    #[error("guest address {gpa:#x} (+{len} bytes) is not in guest memory")]
    Outside {
        /// First address of the access.
        gpa: Gpa,
        /// Bytes of the access.
        len: usize,
    },
    /// A range that cannot be RAM.
    #[error(
        "{region} cannot be RAM: begin at a multiple of 4096, and give a length that is one and no more than the address space has"
    )]
    Unsound {
        /// The range.
        region: Region,
    },
    /// There is RAM already.
    #[error("{region} would cover the RAM at {there}: choose other addresses, or move or remove that first")]
    Taken {
        /// What was asked for.
        region: Region,
        /// What is there.
        there: Region,
    },
    /// The host does not place it as it was asked to.
    #[error(
        "the host does not place memory on its nodes {nodes:?}: {why}; name others, or leave host-nodes out"
    )]
    Place {
        /// The host's nodes.
        nodes: Vec<u32>,
        /// Its reason.
        why: std::io::Error,
    },
    /// No RAM begins there.
    #[error("no RAM begins at {start:#x}: give the first address of a range")]
    NoRam {
        /// The address.
        start: Gpa,
    },
}

/// NUMA nodes that a host may have: those of Linux (MAX_NUMNODES).
pub const HOST_NODES: u32 = 1024;

/// How the host places memory on nodes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPolicy {
    /// On these and no others.
    Bind,
    /// On the first of these, and on others where there is no room.
    Preferred,
    /// On these in turn, page by page.
    Interleave,
}

impl HostPolicy {
    /// Its number (linux/mempolicy.h).
    pub(crate) const fn mode(self) -> libc::c_int {
        match self {
            HostPolicy::Preferred => libc::MPOL_PREFERRED,
            HostPolicy::Bind => libc::MPOL_BIND,
            HostPolicy::Interleave => libc::MPOL_INTERLEAVE,
        }
    }
}

/// A contiguous range of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address, page aligned.
    pub start: Gpa,
    /// Bytes, a multiple of the page size.
    pub len: u64,
}

impl Region {
    /// Whether a byte is in both.
    pub fn overlaps(self, other: Region) -> bool {
        self.start.0 < other.start.0.saturating_add(other.len)
            && other.start.0 < self.start.0.saturating_add(self.len)
    }
}

impl fmt::Display for Region {
    /// First and last address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.start.0.wrapping_add(self.len.wrapping_sub(1)))
    }
}

struct Inner {
    maps: Maps,
    /// The address lines that processors drive: the others are held low for them.
    lines: AtomicU64,
    /// Writes are logged.
    logging: AtomicBool,
}

/// The RAM of one partition; clones share it.
#[derive(Clone)]
pub struct GuestMemory(Arc<Inner>);

impl GuestMemory {
    /// Reserves RAM at `regions`, which must be page aligned and apart. The host
    /// allocates a page when it is first touched.
    pub fn new(regions: &[Region]) -> Result<Self, Error> {
        let slots: Result<Vec<_>, _> = regions.iter().map(|region| Slot::new(*region)).collect();
        let inner = Inner {
            maps: Maps::new(slots?)?,
            lines: AtomicU64::new(ALL_LINES),
            logging: AtomicBool::new(false),
        };
        Ok(GuestMemory(Arc::new(inner)))
    }

    pub(crate) fn backend(&self) -> &GuestMemoryMmap<CodePages> {
        &self.0.maps.now().ram
    }

    pub(crate) fn maps(&self) -> &Maps {
        &self.0.maps
    }

    pub(crate) fn logging(&self) -> &AtomicBool {
        &self.0.logging
    }

    /// The ranges of RAM, ascending.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.0.maps.now().slots.iter().map(|slot| slot.region)
    }

    /// The page that holds `gpa`, or nothing where there is no RAM.
    #[inline]
    pub fn page(&self, gpa: Gpa) -> Option<Page<'_>> {
        let slots = &self.0.maps.now().slots;
        let slot = slots.iter().find(|slot| gpa.0.wrapping_sub(slot.region.start.0) < slot.region.len)?;
        let index = ((gpa.0 - slot.region.start.0) >> 12) as usize;
        // SAFETY: `index` is within the region, so the page is within its mapping.
        let host = unsafe { slot.host.add(index << 12) };
        Some(Page { host, state: &slot.states[index] })
    }

    /// The page whose state stands for what `gpa` is in of the pieces of `size` bytes, a power of two: the first one there that the
    /// range of RAM around `gpa` has. Ranges share none, even where they share a piece.
    #[inline]
    pub fn piece(&self, gpa: Gpa, size: u64) -> Option<Page<'_>> {
        let slots = &self.0.maps.now().slots;
        let slot = slots.iter().find(|slot| gpa.0.wrapping_sub(slot.region.start.0) < slot.region.len)?;
        self.page(Gpa((gpa.0 & !(size - 1)).max(slot.region.start.0)))
    }

    /// Gives the guest more RAM, all zeros.
    ///
    /// A vCPU keeps what it translated; an engine looks at [`GuestMemory::changes`] at the start of each run and drops that. So
    /// vCPUs that have to agree on the map stand outside of their runs while it changes. The same holds for
    /// [`GuestMemory::relocate`] and [`GuestMemory::remove`].
    pub fn add(&self, region: Region) -> Result<(), Error> {
        sound(region)?;
        let mut changing = self.0.maps.still();
        let map = self.0.maps.now();
        if let Some(there) = map.taken(region) {
            return Err(Error::Taken { region, there });
        }
        changing.set(map.slots.iter().cloned().chain([Slot::new(region)?]).collect())
    }

    /// Moves the RAM that begins at `start`, with what it holds, to `to`. Nothing moves if other RAM is in the way.
    pub fn relocate(&self, start: Gpa, to: Gpa) -> Result<(), Error> {
        let mut changing = self.0.maps.still();
        let (mut slots, mut slot) = self.without(start)?;
        let region = Region { start: to, ..slot.region };
        sound(region)?;
        let others = slots.iter().map(|slot| slot.region);
        if let Some(there) = others.clone().find(|one| one.overlaps(region)) {
            return Err(Error::Taken { region, there });
        }
        slot.region = region;
        let moved = slot.clone();
        slots.push(slot);
        changing.set(slots)?;
        moved.left_its_place();
        Ok(())
    }

    /// Takes the RAM that begins at `start` away from the guest, with what it holds.
    pub fn remove(&self, start: Gpa) -> Result<(), Error> {
        let mut changing = self.0.maps.still();
        let (slots, gone) = self.without(start)?;
        changing.set(slots)?;
        gone.left_its_place();
        gone.give_back();
        Ok(())
    }

    /// Gives the whole pages of `part` that are RAM back to the host, until they are touched again, and tells how many bytes they
    /// are. They read as zeros, as after a write of zeros.
    pub fn discard(&self, part: Region) -> u64 {
        self.0.maps.now().slots.iter().map(|slot| slot.give_back_part(part)).sum()
    }

    /// Has the host place `part`, which nobody has touched, on these nodes of its own.
    pub fn place(&self, part: Region, policy: HostPolicy, nodes: &[u32]) -> Result<(), Error> {
        let slots = &self.0.maps.now().slots;
        let placed = slots.iter().try_for_each(|slot| slot.place(part, policy, nodes));
        placed.map_err(|why| Error::Place { nodes: nodes.to_vec(), why })
    }

    /// The slots but that which begins at `start`, and this.
    fn without(&self, start: Gpa) -> Result<(Vec<Slot>, Slot), Error> {
        let mut slots = self.0.maps.now().slots.clone();
        let at = slots.iter().position(|slot| slot.region.start == start).ok_or(Error::NoRam { start })?;
        let slot = slots.remove(at);
        Ok((slots, slot))
    }

    /// How often RAM came, moved or went.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.0.maps.changes()
    }

    /// Lets processors drive these address lines only, the bits of a mask: a gate of the board holds the others low. Each
    /// processor has to drop its translations then. Devices reach all of memory.
    pub fn set_lines(&self, lines: u64) {
        self.0.lines.store(lines, Ordering::Release);
    }

    /// The address lines that processors drive.
    #[inline]
    pub fn lines(&self) -> u64 {
        self.0.lines.load(Ordering::Acquire)
    }

    /// Where a processor's access to `gpa` goes, by [`GuestMemory::set_lines`].
    #[inline]
    pub fn addressed(&self, gpa: u64) -> u64 {
        gpa & self.lines()
    }

    /// Fills `buf` from guest memory at `gpa`.
    pub fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Error> {
        let outside = |_| Error::Outside { gpa, len: buf.len() };
        self.backend()
            .check_range(GuestAddress(gpa.0), buf.len())
            .then_some(())
            .ok_or(())
            .map_err(outside)?;
        let len = buf.len();
        self.backend().read_slice(buf, GuestAddress(gpa.0)).map_err(|_| Error::Outside { gpa, len })
    }

    /// Copies `data` into guest memory at `gpa` and drops code decoded from there. Nothing is
    /// written unless everything fits.
    pub fn write(&self, gpa: Gpa, data: &[u8]) -> Result<(), Error> {
        let outside = || Error::Outside { gpa, len: data.len() };
        if !self.backend().check_range(GuestAddress(gpa.0), data.len()) {
            return Err(outside());
        }
        // The region's bitmap drops the code.
        self.backend().write_slice(data, GuestAddress(gpa.0)).map_err(|_| outside())
    }

    /// Whether all of `len` bytes at `gpa` are RAM.
    pub fn has(&self, gpa: Gpa, len: u64) -> bool {
        let within = self.host(gpa).is_some_and(|(_, _, there)| len <= there);
        within || usize::try_from(len).is_ok_and(|len| self.backend().check_range(GuestAddress(gpa.0), len))
    }

    /// Where the host has `gpa`, the state of its page and of those behind it, and how many bytes of the range of RAM there are from
    /// there on; nothing where there is no RAM.
    #[inline]
    pub(crate) fn host(&self, gpa: Gpa) -> Option<(*mut u8, &[PageState], u64)> {
        let slots = &self.0.maps.now().slots;
        let slot = slots.iter().find(|slot| gpa.0.wrapping_sub(slot.region.start.0) < slot.region.len)?;
        let at = gpa.0 - slot.region.start.0;
        // SAFETY: `at` is within the region, so the byte is within its mapping.
        let host = unsafe { slot.host.add(at as usize) };
        Some((host, slot.states.get((at / PAGE_SIZE) as usize..)?, slot.region.len - at))
    }

    /// Reads a little-endian u32.
    pub fn read_u32(&self, gpa: Gpa) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.read(gpa, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a little-endian u64.
    pub fn read_u64(&self, gpa: Gpa) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_regions() -> GuestMemory {
        let regions =
            [Region { start: Gpa(0), len: 0x4000 }, Region { start: Gpa(0x1_0000_0000), len: 0x2000 }];
        GuestMemory::new(&regions).unwrap()
    }

    #[test]
    fn reads_see_writes_and_holes_are_refused() {
        let memory = two_regions();
        memory.write(Gpa(0x0ffe), &[1, 2, 3, 4]).unwrap();
        assert_eq!(memory.read_u32(Gpa(0x0ffe)).unwrap(), 0x0403_0201);
        assert!(memory.write(Gpa(0x3ffe), &[1, 2, 3]).is_err());
        assert_eq!(memory.read_u32(Gpa(0x3ffc)).unwrap(), 0, "a refused write leaves nothing behind");
        assert!(memory.read_u64(Gpa(u64::MAX - 3)).is_err());
        assert!(memory.page(Gpa(0x4000)).is_none());
        assert!(memory.page(Gpa(0x1_0000_1fff)).is_some());
    }

    #[test]
    fn a_line_that_is_held_low_clears_its_bit_for_processors() {
        let memory = two_regions();
        assert_eq!(memory.addressed(0xffff_ffff_ffff), 0xffff_ffff_ffff);
        memory.clone().set_lines(!(1 << 20));
        assert_eq!((memory.addressed(0x30_1234), memory.addressed(0xf_ffff)), (0x20_1234, 0xf_ffff));
        memory.set_lines(ALL_LINES);
        assert_eq!(memory.addressed(0x10_0000), 0x10_0000);
    }

    #[test]
    fn a_write_across_pages_drops_code_of_both() {
        let memory = two_regions();
        let marks: Vec<_> =
            [0x0, 0x1000, 0x2000].map(|a| memory.page(Gpa(a)).unwrap().state.mark_code(true)).into();
        memory.write(Gpa(0xfff), &[0xcc, 0xcc]).unwrap();
        let value = |a| memory.page(Gpa(a)).unwrap().state.value();
        assert_ne!(value(0), marks[0]);
        assert_ne!(value(0x1000), marks[1]);
        assert_eq!(value(0x2000), marks[2]);
    }

    #[test]
    fn a_write_by_vm_memory_itself_drops_code() {
        let memory = two_regions();
        let (low, high) = (Gpa(0x1000), Gpa(0x1_0000_1000));
        let marks = [low, high].map(|gpa| memory.page(gpa).unwrap().state.mark_code(true));
        let slice = memory.backend().get_slice(GuestAddress(0xff0), 0x20).unwrap();
        slice.subslice(0x10, 0x10).unwrap().write_slice(&[0xcc], 0).unwrap();
        let value = |gpa| memory.page(gpa).unwrap().state.value();
        assert_ne!(value(low), marks[0]);
        assert_eq!(value(high), marks[1]);
        memory.backend().write_obj(7_u64, GuestAddress(high.0 + 0xff8)).unwrap();
        assert_ne!(value(high), marks[1]);
    }

    #[test]
    fn ram_comes_moves_and_goes_with_its_code() {
        let memory = two_regions();
        let (low, more) = (Gpa(0x1000), Region { start: Gpa(0x10_0000), len: 0x3000 });
        memory.write(Gpa(0), &[1, 2]).unwrap();
        assert!(memory.page(more.start).is_none() && memory.changes() == 0);
        memory.add(more).unwrap();
        memory.write(more.start, &[7]).unwrap();
        assert!(
            matches!(memory.add(Region { start: Gpa(0x10_2000), len: 0x1000 }), Err(Error::Taken { there, .. }) if there == more)
        );
        for (start, len) in [(0x20_0800, 0x1000), (0x20_0000, 0), (0x20_0000, 0x800), (!0xfff, 0x1000)] {
            let refused = memory.add(Region { start: Gpa(start), len });
            assert!(matches!(refused, Err(Error::Unsound { .. })), "{start:#x} {len:#x}");
        }
        let page = memory.page(low).unwrap();
        let decoded = page.state.mark_code(true);
        assert!(matches!(memory.relocate(Gpa(0), Gpa(0x10_2000)), Err(Error::Taken { .. })));
        assert_eq!(page.state.value(), decoded, "nothing moved");
        memory.relocate(Gpa(0), Gpa(0x2000)).unwrap();
        assert_ne!(page.state.value(), decoded, "what was decoded belongs to an address");
        assert_eq!(memory.read_u32(Gpa(0x2000)).unwrap(), 0x201, "over a part of itself");
        assert!(memory.page(Gpa(0)).is_none() && memory.read_u32(Gpa(0)).is_err());
        memory.remove(more.start).unwrap();
        assert!(matches!(memory.remove(more.start), Err(Error::NoRam { .. })));
        assert!(!memory.has(more.start, 1));
        memory.add(more).unwrap();
        assert_eq!((memory.read_u32(more.start).unwrap(), memory.changes()), (0, 4), "other RAM, all zeros");
        let starts: Vec<_> = memory.regions().map(|region| region.start.0).collect();
        assert_eq!(starts, [0x2000, 0x10_0000, 0x1_0000_0000]);
        starts.iter().for_each(|start| memory.remove(Gpa(*start)).unwrap());
        assert!(memory.regions().next().is_none() && memory.page(Gpa(0x2000)).is_none());
    }

    #[test]
    fn who_looks_while_ram_moves_sees_it_at_one_place() {
        let memory = two_regions();
        memory.write(Gpa(0x1_0000_0000), &[0x55]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        assert!(
                            memory.page(Gpa(0x1_0000_0000)).is_some(),
                            "what does not move is always there"
                        );
                        let places = memory.regions().filter(|region| matches!(region.start.0, 0 | 0x8000));
                        assert_eq!(places.count(), 1);
                    }
                });
            }
            for _ in 0..200 {
                memory.relocate(Gpa(0), Gpa(0x8000)).unwrap();
                memory.relocate(Gpa(0x8000), Gpa(0)).unwrap();
            }
        });
    }

    #[test]
    fn what_is_ram_is_known() {
        let memory = two_regions();
        assert!(memory.has(Gpa(0), 0x4000) && memory.has(Gpa(0x1_0000_0000), 0x2000));
        for (gpa, len) in [(0, 0x4001), (0x4000, 1), (u64::MAX, 2), (0x1000, u64::MAX)] {
            assert!(!memory.has(Gpa(gpa), len), "{gpa:#x} {len:#x}");
        }
    }
}
