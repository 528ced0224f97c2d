//! Where the guest has which RAM: slots, which come, move and go while vCPUs run.
//!
//! A map never changes; a change makes another one and swaps a pointer, so that a look-up takes no lock and costs what it
//! would in a map that stays. Earlier maps are kept, since somebody may still be looking into one, and with them the
//! host's addresses of what they show: a pointer that a vCPU or a device holds stays one into memory of this process,
//! only that the guest does not have it any more. A map is some hundred bytes; the RAM of a slot that goes is given back
//! to the host at once, but for the addresses.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use satori_lock::Held;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::code::CodePages;
use crate::ram::{HOST_NODES, HostPolicy};
use crate::{Error, Gpa, PAGE_SIZE, PageState, Region};

/// A range of RAM, and where the host has it.
#[derive(Clone)]
pub(crate) struct Slot {
    pub region: Region,
    pub host: *mut u8,
    pub states: Arc<[PageState]>,
    /// The mapping that `host` points into.
    mapping: Arc<MmapRegion<CodePages>>,
}

// SAFETY: `host` points into `mapping`, which the slot keeps, and every access through it is volatile or atomic.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    /// New RAM, all zeros, at `region`. The host allocates a page when it is first touched.
    pub(crate) fn new(region: Region) -> Result<Self, Error> {
        let pages = region.len / PAGE_SIZE;
        let failed = |why: &dyn ToString| Error::Reserve { bytes: region.len, why: why.to_string() };
        let bytes = usize::try_from(region.len).map_err(|e| failed(&e))?;
        let states = zeroed_states(pages as usize);
        let mapping = MmapRegionBuilder::new_with_bitmap(bytes, CodePages(states.clone()))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
            .build()
            .map_err(|e| failed(&e))?;
        Ok(Slot { region, host: mapping.as_ptr(), states, mapping: Arc::new(mapping) })
    }

    /// Its range as vm-memory has it.
    fn view(&self) -> Result<GuestRegionMmap<CodePages>, String> {
        // SAFETY: the bytes are those of `mapping`, which lives as long as the map that has the view.
        let view = unsafe {
            MmapRegionBuilder::new_with_bitmap(self.mapping.size(), CodePages(self.states.clone()))
                .with_raw_mmap_pointer(self.host)
        };
        let view = view.build().map_err(|e| e.to_string())?;
        GuestRegionMmap::new(view, GuestAddress(self.region.start.0))
            .ok_or_else(|| "the region wraps the address space".into())
    }

    /// It is not where it was: code that was decoded from there is void, and the log has its pages as written.
    pub(crate) fn left_its_place(&self) {
        self.states.iter().filter(|state| state.watched()).for_each(|state| _ = state.wrote());
    }

    /// Gives the whole pages of the part that is in it back to the host, and tells how many bytes they are. What they held reads
    /// as zeros, and code that was decoded from them is void.
    pub(crate) fn give_back_part(&self, part: Region) -> u64 {
        let whole = |at: u64| at.saturating_sub(self.region.start.0).min(self.region.len) / PAGE_SIZE;
        let first = whole(part.start.0.saturating_add(PAGE_SIZE - 1)) as usize;
        let end = whole(part.start.0.saturating_add(part.len)) as usize;
        let Some(states) = self.states.get(first..end).filter(|states| !states.is_empty()) else { return 0 };
        let bytes = states.len() * PAGE_SIZE as usize;
        // SAFETY: the pages are within the region, which is a private mapping of ours that stays one; who reads there while
        // they go reads zeros or what was there, as of memory that a device writes.
        let failed = unsafe {
            let host = self.host.add(first * PAGE_SIZE as usize);
            libc::madvise(host.cast(), bytes, libc::MADV_DONTNEED) != 0
        };
        if failed {
            return 0;
        }
        states.iter().for_each(|state| _ = state.wrote());
        bytes as u64
    }

    /// Has the host place the part that is in it, which nobody has touched, on these nodes of its own.
    pub(crate) fn place(&self, part: Region, policy: HostPolicy, nodes: &[u32]) -> std::io::Result<()> {
        let start = part.start.0.max(self.region.start.0);
        let end = part.start.0.saturating_add(part.len);
        let end = end.min(self.region.start.0.saturating_add(self.region.len));
        if start >= end {
            return Ok(());
        }
        let mut mask = [0_u64; HOST_NODES as usize / 64];
        for &node in nodes.iter().filter(|node| **node < HOST_NODES) {
            mask[node as usize / 64] |= 1 << (node % 64);
        }
        // Linux counts one bit more than it looks at (mbind(2)).
        let bits = u64::from(HOST_NODES) + 1;
        // SAFETY: the range is part of a private mapping of ours, of which only the placement changes, and the mask is as long as is
        // told.
        let done = unsafe {
            let host = self.host.add((start - self.region.start.0) as usize);
            libc::syscall(libc::SYS_mbind, host, end - start, policy.mode(), mask.as_ptr(), bits, 0)
        };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Gives its memory back to the host; what it held is lost, and reads as zeros.
    pub(crate) fn give_back(&self) {
        // SAFETY: the range is a private mapping of ours, which stays one and reads as zeros; nobody keeps a
        // reference to what was there.
        let failed =
            unsafe { libc::madvise(self.host.cast(), self.mapping.size(), libc::MADV_DONTNEED) } != 0;
        debug_assert!(!failed, "a private mapping can be emptied");
    }
}

/// All-zero states without touching their memory: a page's state is allocated with its page.
fn zeroed_states(pages: usize) -> Arc<[PageState]> {
    // SAFETY: PageState is a transparent AtomicU32, for which all zeroes is a value.
    unsafe { Arc::new_zeroed_slice(pages).assume_init() }
}

/// One state of the map.
pub(crate) struct Map {
    pub ram: GuestMemoryMmap<CodePages>,
    /// Ascending and apart.
    pub slots: Vec<Slot>,
}

impl Map {
    fn new(mut slots: Vec<Slot>) -> Result<Self, Error> {
        slots.sort_by_key(|slot| slot.region.start);
        let bytes = slots.iter().map(|slot| slot.region.len).sum();
        let failed = |why| Error::Reserve { bytes, why };
        let views: Result<Vec<_>, _> = slots.iter().map(Slot::view).collect();
        let views = views.map_err(failed)?;
        let ram = match views.is_empty() {
            true => GuestMemoryMmap::new(),
            false => GuestMemoryMmap::from_regions(views).map_err(|e| failed(e.to_string()))?,
        };
        Ok(Map { ram, slots })
    }

    /// The slot that has a byte of `region`.
    pub(crate) fn taken(&self, region: Region) -> Option<Region> {
        self.slots.iter().map(|slot| slot.region).find(|one| one.overlaps(region))
    }
}

/// The map of now, and those before it.
pub(crate) struct Maps {
    /// What the last of `kept` holds.
    now: AtomicPtr<Map>,
    /// Ascending in time. Whoever changes the map holds the lock.
    kept: Mutex<Vec<Arc<Map>>>,
    changes: AtomicU64,
}

impl Maps {
    pub(crate) fn new(slots: Vec<Slot>) -> Result<Self, Error> {
        let first = Arc::new(Map::new(slots)?);
        let now = AtomicPtr::new(Arc::as_ptr(&first).cast_mut());
        Ok(Maps { now, kept: Mutex::new(vec![first]), changes: AtomicU64::new(0) })
    }

    /// The map as it is.
    #[inline]
    pub(crate) fn now(&self) -> &Map {
        // SAFETY: it points to what an Arc in `kept` holds; none leaves that before `self` goes.
        unsafe { &*self.now.load(Ordering::Acquire) }
    }

    /// How often it changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Has nobody else change the map.
    pub(crate) fn still(&self) -> Changing<'_> {
        Changing { maps: self, kept: self.kept.lock().held() }
    }
}

/// Who may change the map.
pub(crate) struct Changing<'m> {
    maps: &'m Maps,
    kept: MutexGuard<'m, Vec<Arc<Map>>>,
}

impl Changing<'_> {
    /// The map has these slots from now on.
    pub(crate) fn set(&mut self, slots: Vec<Slot>) -> Result<(), Error> {
        let next = Arc::new(Map::new(slots)?);
        self.maps.now.store(Arc::as_ptr(&next).cast_mut(), Ordering::Release);
        self.kept.push(next);
        self.maps.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Whether `region` can be one of RAM.
pub(crate) fn sound(region: Region) -> Result<(), Error> {
    let Region { start: Gpa(start), len } = region;
    let aligned = len > 0 && (start | len) % PAGE_SIZE == 0;
    match aligned && start.checked_add(len).is_some() {
        true => Ok(()),
        false => Err(Error::Unsound { region }),
    }
}
