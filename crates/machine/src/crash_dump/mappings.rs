//! The upper half of an address space, where a 64-bit kernel lives, as stretches.

use satori_defs::x86::{PAGE_SIZE, cr0, cr4, efer, pte};
use satori_memory::{Gpa, Region};
use satori_state::{CpuState, seg};

use super::Physical;

/// Linear addresses that follow each other and lead to physical ones in RAM that do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub linear: u64,
    pub physical: u64,
    pub len: u64,
}

/// Tables that are read at most: a guest's may lead to each other without end. A kernel with 64 GiB
/// mapped by small pages has half as many.
const TABLES: usize = 1 << 16;

/// The kernel's half of the address space of the first vCPU that executes in the kernel, else
/// of the first: at most `room` stretches, the longest.
pub(super) fn of(memory: &dyn Physical, vcpus: &[CpuState], room: usize) -> Vec<Run> {
    let long = |state: &&CpuState| state.efer & efer::LMA != 0 && state.cr0 & cr0::PG != 0;
    let kernel = |state: &&CpuState| long(state) && state.seg[seg::CS].selector & 3 == 0;
    let Some(state) = vcpus.iter().find(kernel).or_else(|| vcpus.iter().find(long)) else {
        return Vec::new();
    };
    let levels = if state.cr4 & cr4::LA57 != 0 { 5 } else { 4 };
    let mut walk = Walk { memory, regions: memory.regions(), runs: Vec::new(), tables: 0, room };
    walk.table(state.cr3 & pte::ADDR, levels, levels, 0);
    walk.trim();
    walk.runs.sort_unstable_by_key(|run| run.linear);
    walk.runs
}

struct Walk<'a> {
    memory: &'a dyn Physical,
    regions: Vec<Region>,
    runs: Vec<Run>,
    tables: usize,
    room: usize,
}

impl Walk<'_> {
    /// Table `gpa` of `level`, of 1 to `top`, whose first entry maps `linear`.
    fn table(&mut self, gpa: u64, level: u32, top: u32, linear: u64) {
        let mut table = [0; PAGE_SIZE as usize];
        if self.tables == TABLES || !self.memory.read(Gpa(gpa), &mut table) {
            return;
        }
        self.tables += 1;
        let shift = 3 + 9 * level;
        for (index, entry) in (0u64..).zip(table.as_chunks::<8>().0) {
            let entry = u64::from_le_bytes(*entry);
            if entry & pte::P == 0 || (level == top && index < 256) {
                continue;
            }
            let linear = linear | index << shift;
            let leaf = level == 1 || ((2..=3).contains(&level) && entry & pte::PS != 0);
            if !leaf {
                self.table(entry & pte::ADDR, level - 1, top, linear);
                continue;
            }
            let size = 1 << shift;
            // From the top bit that is translated on, all are the same.
            let unused = 64 - (3 + 9 * (top + 1));
            let linear = ((linear << unused) as i64 >> unused) as u64;
            self.add(linear, entry & pte::ADDR & !(size - 1), size);
        }
    }

    /// What of a page is RAM.
    fn add(&mut self, linear: u64, physical: u64, len: u64) {
        for index in 0..self.regions.len() {
            let region = self.regions[index];
            let first = physical.max(region.start.0);
            let end = (physical + len).min(region.start.0 + region.len);
            if first < end {
                self.push(Run { linear: linear + (first - physical), physical: first, len: end - first });
            }
        }
    }

    fn push(&mut self, run: Run) {
        if let Some(last) = self.runs.last_mut()
            && last.linear.wrapping_add(last.len) == run.linear
            && last.physical + last.len == run.physical
            && self.regions.iter().all(|region| region.start.0 != run.physical)
        {
            last.len += run.len;
            return;
        }
        if self.runs.len() >= 2 * self.room.max(1) {
            self.trim();
        }
        self.runs.push(run);
    }

    /// Leaves the longest.
    fn trim(&mut self) {
        if self.runs.len() > self.room {
            self.runs.sort_by_key(|run| std::cmp::Reverse(run.len));
            self.runs.truncate(self.room);
        }
    }
}
