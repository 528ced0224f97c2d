//! memory_op: where the shared page is, and how much memory there is.

use satori_defs::xen::errno::{EINVAL, ENOENT, ENOSYS, EPERM};
use satori_defs::xen::shared_info;
use satori_memory::{Gpa, PAGE_SIZE};
use satori_pv::{TimeArea, wall_clock};

use crate::hypercall::{Bytes, Caller, Served, done};
use crate::partition::State;
use crate::{Partition, Vp};

/// Spaces of add_to_physmap.
const SHARED_INFO: u32 = 0;

impl Partition {
    pub(crate) fn memory_op(&self, _: &mut Vp, caller: &Caller<'_>, [command, at, ..]: [u64; 5]) -> Served {
        let pages = || self.memory.regions().map(|region| region.len / PAGE_SIZE).sum::<u64>();
        match command as u32 {
            3 | 4 => done(pages() as i64),
            14 => {
                let last = self.memory.regions().map(|region| region.start.0 + region.len).max().unwrap_or(0);
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
            // The balloon's, and what else there is.
            _ => Err(ENOSYS),
        }
    }

    /// Puts page `index` of `space` at `gfn`.
    fn add(&self, state: &mut State, space: u32, index: u64, gfn: u64) -> Result<(), i64> {
        match space {
            SHARED_INFO if index == 0 => {}
            SHARED_INFO => return Err(EINVAL),
            4 | 5 => return Err(EPERM),
            // Grant tables, and a guest's own pages.
            _ => return Err(ENOSYS),
        }
        let to = Gpa(gfn.checked_mul(PAGE_SIZE).ok_or(EINVAL)?);
        if !self.memory.has(to, PAGE_SIZE) {
            return Err(EINVAL);
        }
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

    /// The RAM, as entries of an e820 map.
    fn memory_map(&self, caller: &Caller<'_>, at: u64) -> Served {
        /// Address and length, u64; type, u32.
        const ENTRY: usize = 20;
        let asked: Bytes<16> = self.structure(caller, at)?;
        let (room, to) = (asked.u32(0) as usize, asked.u64(8));
        let mut map = Vec::new();
        let mut entries = 0u32;
        for region in self.memory.regions().filter(|region| region.start != crate::SPECIAL.start).take(room) {
            map.extend_from_slice(&region.start.0.to_le_bytes());
            map.extend_from_slice(&region.len.to_le_bytes());
            map.extend_from_slice(&1u32.to_le_bytes());
            entries += 1;
        }
        debug_assert_eq!(map.len(), entries as usize * ENTRY);
        self.copy_out(caller, to, &map)?;
        self.copy_out(caller, at, &entries.to_le_bytes())?;
        done(0)
    }
}
