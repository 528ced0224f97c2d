//! memory_op: where the shared page is, and how much memory there is.

use std::ops::Range;

use satori_defs::xen::errno::{EINVAL, ENOENT, ENOSYS, EPERM};
use satori_defs::xen::{DOMID_SELF, shared_info};
use satori_defs::{apic, chipset};
use satori_memory::{Gpa, PAGE_SIZE, Region};
use satori_pv::{TimeArea, wall_clock};

use crate::domain::State;
use crate::hypercall::{Bytes, Caller, Served, done};
use crate::leaves::DOMID;
use crate::{Domain, Vcpu};

/// Spaces of add_to_physmap.
const SHARED_INFO: u32 = 0;
const GRANT_TABLE: u32 = 1;

/// Pages that come at once where the guest places one beyond its RAM: those that it places next are beside it.
const TOGETHER: u64 = 64 * PAGE_SIZE;
/// Where no page comes: the I/O APIC, the HPET and the local APIC are there, and would be gone.
const INTERRUPT_CONTROLLERS: Range<u64> = chipset::mmio::IOAPIC..apic::DEFAULT_BASE + (1 << 20);
/// Ranges of such pages that there may be.
const RANGES: usize = 256;
/// Pages that one call takes or gives.
const PAGES_AT_ONCE: u64 = 1 << 16;

impl Domain {
    pub(crate) fn memory_op(&self, _: &mut Vcpu, caller: &Caller<'_>, [command, at, ..]: [u64; 5]) -> Served {
        match command as u32 {
            1 | 6 => self.reservation(caller, at, command as u32 == 6),
            3 => {
                let given: u64 = self.state().given.values().map(|bits| u64::from(bits.count_ones())).sum();
                done(self.ram_pages().saturating_sub(given) as i64)
            }
            4 => done(self.ram_pages() as i64),
            14 => {
                let last = self.ram.iter().map(|region| region.start.0 + region.len).max().unwrap_or(0);
                done((last / PAGE_SIZE) as i64 - 1)
            }
            7 => {
                let asked: Bytes<24> = self.structure(caller, at)?;
                self.add(&mut self.state(), asked.u32(4), asked.u64(8), asked.u64(16))?;
                done(0)
            }
            23 => {
                let asked: Bytes<40> = self.structure(caller, at)?;
                for index in 0..u64::from(asked.u16(4)) {
                    let place = |list: usize, size: u64| asked.u64(list).wrapping_add(index * size);
                    let (idx, gfn): (Bytes<8>, Bytes<8>) =
                        (self.structure(caller, place(8, 8))?, self.structure(caller, place(16, 8))?);
                    let space = u32::from(asked.u16(2));
                    let result = self.add(&mut self.state(), space, idx.u64(0), gfn.u64(0));
                    let error = result.map_or_else(|error| error as i32, |()| 0);
                    self.copy_out(caller, place(24, 4), &error.to_le_bytes())?;
                }
                done(0)
            }
            15 => {
                let asked: Bytes<16> = self.structure(caller, at)?;
                let mut state = self.state();
                if state.shared_info.map(|page| page / PAGE_SIZE) != Some(asked.u64(8)) {
                    return Err(ENOENT);
                }
                state.shared_info = None;
                done(0)
            }
            9 => self.memory_map(caller, at),
            _ => Err(ENOSYS),
        }
    }

    /// Puts page `index` of `space` at `gfn`.
    fn add(&self, state: &mut State, space: u32, index: u64, gfn: u64) -> Result<(), i64> {
        match space {
            SHARED_INFO if index == 0 => {}
            SHARED_INFO => return Err(EINVAL),
            GRANT_TABLE => {
                let to = gfn.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
                return self.place_grants(state, index, Gpa(to));
            }
            4 | 5 => return Err(EPERM),
            // A guest's own pages.
            _ => return Err(ENOSYS),
        }
        let to = Gpa(gfn.checked_mul(PAGE_SIZE).ok_or(EINVAL)?);
        // Linux gives a page of its RAM, xen-shim one beyond.
        self.populate(state, to)?;
        let mut page = vec![0; PAGE_SIZE as usize];
        match state.shared_info {
            // All ports are masked until the guest wants them.
            None => page[shared_info::EVTCHN_MASK as usize..][..512].fill(0xff),
            Some(before) => self.memory.read(Gpa(before), &mut page).map_err(|_| EINVAL)?,
        }
        self.memory.write(to, &page).map_err(|_| EINVAL)?;
        state.shared_info = Some(to.0);
        self.write_wall_clock(to);
        for vcpu in 0..state.vcpus.len() as u32 {
            self.place_time(state, vcpu);
        }
        Ok(())
    }

    /// Sees to it that there is memory at `to`.
    pub(crate) fn populate(&self, state: &mut State, to: Gpa) -> Result<(), i64> {
        if self.memory.has(to, PAGE_SIZE) {
            return Ok(());
        }
        if to.0 >= 1 << 46 || INTERRUPT_CONTROLLERS.contains(&to.0) || state.added.len() >= RANGES {
            return Err(EINVAL);
        }
        let together = Region { start: Gpa(to.0 & !(TOGETHER - 1)), len: TOGETHER };
        let alone = Region { start: to, len: PAGE_SIZE };
        let added = [together, alone].into_iter().find(|region| self.memory.add(*region).is_ok());
        let added = added.ok_or(EINVAL)?;
        state.added.insert(added.start.0, added.len);
        Ok(())
    }

    /// Takes pages that the guest gives away, or gives them back; how many extents that were.
    fn reservation(&self, caller: &Caller<'_>, at: u64, populate: bool) -> Served {
        let asked: Bytes<32> = self.structure(caller, at)?;
        let (list, count, order) = (asked.u64(0), asked.u64(8), asked.u32(16));
        if !matches!(asked.u16(24), DOMID_SELF | DOMID) {
            return Err(EPERM);
        }
        if order > 9 {
            return Err(EPERM);
        }
        let (pages, count) = (1 << order, count.min(PAGES_AT_ONCE >> order));
        for index in 0..count {
            let gfn = match self.structure::<8>(caller, list.wrapping_add(index * 8)) {
                Ok(gfn) => gfn.u64(0),
                Err(_) => return done(index as i64),
            };
            let first = gfn.checked_mul(PAGE_SIZE).filter(|_| gfn.is_multiple_of(pages));
            let ram = |first: u64| {
                let len = pages * PAGE_SIZE;
                self.ram.iter().any(|one| first >= one.start.0 && first + len <= one.start.0 + one.len)
            };
            let Some(first) = first.filter(|first| *first < 1 << 52 && ram(*first)) else {
                return done(index as i64);
            };
            let mut state = self.state();
            for page in gfn..gfn + pages {
                let word = state.given.entry(page / 64).or_default();
                if populate {
                    *word &= !(1 << (page % 64));
                } else {
                    *word |= 1 << (page % 64);
                }
                if *word == 0 {
                    state.given.remove(&(page / 64));
                }
            }
            if !populate {
                self.memory.discard(Region { start: Gpa(first), len: pages * PAGE_SIZE });
            }
        }
        done(count as i64)
    }

    /// The wall clock at system time 0, in the shared page at `page`.
    pub(crate) fn write_wall_clock(&self, page: Gpa) {
        let epoch = self.clock.epoch();
        wall_clock(&self.memory, Gpa(page.0 + shared_info::WALL_CLOCK), epoch);
        let high = ((epoch / 1_000_000_000) >> 32) as u32;
        // The page was in memory when it was mapped, and memory does not shrink.
        let _ = self.memory.store_u32(Gpa(page.0 + shared_info::WALL_CLOCK_SEC_HI), high);
    }

    /// Writes the time of `vcpu` where its vcpu_info is.
    pub(crate) fn place_time(&self, state: &mut State, vcpu: u32) {
        let place = state.vcpu_info(vcpu).map(|info| Gpa(info.0 + shared_info::TIME));
        let scale = state.scale;
        let Some(vcpu) = state.vcpus.get_mut(vcpu as usize) else { return };
        vcpu.times[0] = place.map(TimeArea::new);
        for area in vcpu.times.iter_mut().flatten() {
            area.publish(&self.memory, &scale, vcpu.tsc_offset, satori_pv::STABLE);
        }
    }

    /// The counter of `vcpu` is ahead by `offset` from now on.
    pub fn tsc_moved(&self, vcpu: u32, offset: u64) {
        let mut state = self.state();
        if let Some(vcpu) = state.vcpus.get_mut(vcpu as usize) {
            vcpu.tsc_offset = offset;
        }
        self.place_time(&mut state, vcpu);
    }

    /// The guest's counter runs at another frequency since it was `tsc`.
    pub fn tsc_changed(&self, hz: u64, tsc: u64) {
        let mut state = self.state();
        state.scale = state.scale.changed(hz, tsc);
        for vcpu in 0..state.vcpus.len() as u32 {
            self.place_time(&mut state, vcpu);
        }
    }

    /// What the guest was told of its memory at its entry, as entries of an e820 map.
    fn memory_map(&self, caller: &Caller<'_>, at: u64) -> Served {
        /// Address and length, u64; type, u32.
        const ENTRY: usize = 20;
        let asked: Bytes<16> = self.structure(caller, at)?;
        let (room, to) = (asked.u32(0) as usize, asked.u64(8));
        let mut map = Vec::new();
        let mut entries = 0u32;
        for entry in self.map.get().into_iter().flatten().take(room) {
            map.extend_from_slice(&entry.start.to_le_bytes());
            map.extend_from_slice(&entry.len.to_le_bytes());
            map.extend_from_slice(&entry.kind.to_le_bytes());
            entries += 1;
        }
        debug_assert_eq!(map.len(), entries as usize * ENTRY);
        self.copy_out(caller, to, &map)?;
        self.copy_out(caller, at, &entries.to_le_bytes())?;
        done(0)
    }
}
