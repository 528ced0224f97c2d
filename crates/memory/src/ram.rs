//! The RAM of a partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::code::CodePages;
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
}

/// A contiguous range of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address, page aligned.
    pub start: Gpa,
    /// Bytes, a multiple of the page size.
    pub len: u64,
}

struct Slot {
    region: Region,
    host: *mut u8,
    states: Arc<[PageState]>,
}

struct Inner {
    ram: GuestMemoryMmap<CodePages>,
    slots: Vec<Slot>,
    /// The address lines that processors drive: the others are held low for them.
    lines: AtomicU64,
}

// SAFETY: the raw pointers are into `ram`, which lives as long, and every access through them
// is volatile or atomic.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The RAM of one partition; clones share it.
#[derive(Clone)]
pub struct GuestMemory(Arc<Inner>);

impl GuestMemory {
    /// Reserves RAM at `regions`, which must be page aligned, sorted and apart. The host
    /// allocates a page when it is first touched.
    pub fn new(regions: &[Region]) -> Result<Self, Error> {
        let ranges: Vec<_> = regions.iter().map(|r| (GuestAddress(r.start.0), r.len as usize)).collect();
        let total = regions.iter().map(|r| r.len).sum();
        let failed = |why: String| Error::Reserve { bytes: total, why };
        let (mut mapped, mut states) = (Vec::new(), Vec::new());
        for &(start, len) in &ranges {
            let pages = zeroed_states(len / PAGE_SIZE as usize);
            let region = MmapRegionBuilder::new_with_bitmap(len, CodePages(pages.clone()))
                .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
                .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
                .build()
                .map_err(|e| failed(e.to_string()))?;
            let region = vm_memory::GuestRegionMmap::new(region, start)
                .ok_or_else(|| failed("the region wraps the address space".into()))?;
            mapped.push(region);
            states.push(pages);
        }
        let ram = GuestMemoryMmap::from_regions(mapped).map_err(|e| failed(e.to_string()))?;
        let slots = ram.iter().zip(states).map(|(region, states)| Slot {
            region: Region { start: Gpa(region.start_addr().0), len: region.len() },
            host: region.as_ptr(),
            states,
        });
        let slots = slots.collect();
        Ok(GuestMemory(Arc::new(Inner { ram, slots, lines: AtomicU64::new(ALL_LINES) })))
    }

    pub(crate) fn backend(&self) -> &GuestMemoryMmap<CodePages> {
        &self.0.ram
    }

    /// The ranges of RAM, ascending.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        self.0.slots.iter().map(|slot| slot.region)
    }

    /// The page that holds `gpa`, or nothing where there is no RAM.
    #[inline]
    pub fn page(&self, gpa: Gpa) -> Option<Page<'_>> {
        let slot =
            self.0.slots.iter().find(|slot| gpa.0.wrapping_sub(slot.region.start.0) < slot.region.len)?;
        let index = ((gpa.0 - slot.region.start.0) >> 12) as usize;
        // SAFETY: `index` is within the region, so the page is within its mapping.
        let host = unsafe { slot.host.add(index << 12) };
        Some(Page { host, state: &slot.states[index] })
    }

    /// Lets processors drive these address lines only, the bits of a mask: a gate of the board holds the others low. Each
    /// processor has to drop its translations then. Devices reach all of memory.
    pub fn set_lines(&self, lines: u64) {
        self.0.lines.store(lines, Ordering::Release);
    }

    /// The address lines that processors drive.
    pub fn lines(&self) -> u64 {
        self.0.lines.load(Ordering::Acquire)
    }

    /// Where a processor's access to `gpa` goes, by [`GuestMemory::set_lines`].
    pub fn addressed(&self, gpa: u64) -> u64 {
        gpa & self.lines()
    }

    /// Fills `buf` from guest memory at `gpa`.
    pub fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), Error> {
        let outside = |_| Error::Outside { gpa, len: buf.len() };
        self.0.ram.check_range(GuestAddress(gpa.0), buf.len()).then_some(()).ok_or(()).map_err(outside)?;
        let len = buf.len();
        self.0.ram.read_slice(buf, GuestAddress(gpa.0)).map_err(|_| Error::Outside { gpa, len })
    }

    /// Copies `data` into guest memory at `gpa` and drops code decoded from there. Nothing is
    /// written unless everything fits.
    pub fn write(&self, gpa: Gpa, data: &[u8]) -> Result<(), Error> {
        let outside = || Error::Outside { gpa, len: data.len() };
        if !self.0.ram.check_range(GuestAddress(gpa.0), data.len()) {
            return Err(outside());
        }
        // The region's bitmap drops the code.
        self.0.ram.write_slice(data, GuestAddress(gpa.0)).map_err(|_| outside())
    }

    /// Whether all of `len` bytes at `gpa` are RAM.
    pub fn has(&self, gpa: Gpa, len: u64) -> bool {
        usize::try_from(len).is_ok_and(|len| self.0.ram.check_range(GuestAddress(gpa.0), len))
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

/// All-zero states without touching their memory: a page's state is allocated with its page.
fn zeroed_states(pages: usize) -> Arc<[PageState]> {
    // SAFETY: PageState is a transparent AtomicU32, for which all zeroes is a value.
    unsafe { Arc::new_zeroed_slice(pages).assume_init() }
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
    fn what_is_ram_is_known() {
        let memory = two_regions();
        assert!(memory.has(Gpa(0), 0x4000) && memory.has(Gpa(0x1_0000_0000), 0x2000));
        for (gpa, len) in [(0, 0x4001), (0x4000, 1), (u64::MAX, 2), (0x1000, u64::MAX)] {
            assert!(!memory.has(Gpa(gpa), len), "{gpa:#x} {len:#x}");
        }
    }
}
