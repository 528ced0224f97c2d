//! Translation for a debugger: a walk that changes nothing and asks for no rights.

use satori_defs::x86::{efer, pte};
use satori_engine::{NestedView, Stretch};
use satori_state::CpuState;

use super::canonical;
use super::paging::Paging;
use crate::cpu::Cpu;

/// What an entry of a second translation leads to.
pub(crate) enum Leads {
    Table(u64),
    Page(u64),
}

/// Tables of a second translation that are read at most: a guest's may lead to each other without end.
const TABLES: usize = 1 << 14;

/// A walk through all tables of a second translation.
struct Stretches<'a> {
    leads: &'a dyn Fn(u64, u32) -> Option<Leads>,
    tables: usize,
    found: Vec<Stretch>,
}

impl Cpu {
    /// The physical address that `linear` is mapped to.
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        self.look_up_as(&self.state, linear, &|gpa| self.nested_look_up(gpa))
    }

    /// The same for a processor with these registers, whose physical addresses are what `second` makes of them.
    pub(crate) fn look_up_as(
        &self,
        state: &CpuState,
        linear: u64,
        second: &dyn Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let paging = Paging::of(state);
        let fits = if paging == Paging::FourLevel { canonical(linear) } else { linear >> 32 == 0 };
        if !fits || paging == Paging::None {
            return if fits { second(linear) } else { None };
        }
        let (mut table, mut level) = match paging {
            Paging::Pae => {
                let pdpte = state.pdpte[(linear >> 30) as usize & 3];
                if pdpte & pte::P == 0 {
                    return None;
                }
                (paging.table(pdpte), 2)
            }
            Paging::Bits32 => (paging.table(state.cr3), 2),
            _ => (paging.table(state.cr3), 4),
        };
        loop {
            level -= 1;
            let at = second(table + paging.offset(linear, level))?;
            let entry = self.entry_load(at, paging.wide())?;
            if entry & pte::P == 0 {
                return None;
            }
            let large = self.is_large(paging, level, entry, state.cr4);
            if level == 0 || large {
                let shift = paging.shift(level);
                return second(paging.frame(entry, shift, large) | (linear & ((1 << shift) - 1)));
            }
            table = paging.table(entry);
        }
    }

    /// Reads the PDPTEs of a processor with these registers from memory, if it has any.
    pub(crate) fn read_pdptes(&self, state: &mut CpuState, second: &dyn Fn(u64) -> Option<u64>) {
        if Paging::of(state) == Paging::Pae {
            for index in 0..4 {
                let at = second((state.cr3 & 0xffff_ffe0) + 8 * index as u64);
                state.pdpte[index] = at.and_then(|at| self.entry_load(at, true)).unwrap_or(0);
            }
        }
    }

    /// The registers of whichever of a guest and its hypervisor does not execute, and what describes the guest.
    pub(crate) fn nested_view(&self) -> Option<NestedView<CpuState>> {
        if self.svm.guest || self.state.efer & efer::SVME != 0 { self.svm_view() } else { self.vmx_view() }
    }

    /// That guest's physical memory.
    pub(crate) fn nested_memory(&self) -> Vec<Stretch> {
        if self.svm.guest || self.state.efer & efer::SVME != 0 {
            self.svm_memory()
        } else {
            self.vmx_memory()
        }
    }

    /// All that the tables at `root` map, of whose entries `leads` tells by their levels, 0 to 3.
    pub(crate) fn stretches(&self, root: u64, leads: &dyn Fn(u64, u32) -> Option<Leads>) -> Vec<Stretch> {
        let mut walk = Stretches { leads, tables: 0, found: Vec::new() };
        self.stretches_of(&mut walk, root, 3, 0);
        walk.found
    }

    fn stretches_of(&self, walk: &mut Stretches<'_>, table: u64, level: u32, inner: u64) {
        if walk.tables == TABLES {
            return;
        }
        walk.tables += 1;
        for index in 0..512 {
            let Some(entry) = self.entry_load(table + 8 * index, true) else { return };
            let (inner, len) = (inner | index << (12 + 9 * level), 1 << (12 + 9 * level));
            match (walk.leads)(entry, level) {
                Some(Leads::Table(next)) if level > 0 => self.stretches_of(walk, next, level - 1, inner),
                Some(Leads::Page(outer)) => match walk.found.last_mut() {
                    Some(last) if last.inner + last.len == inner && last.outer + last.len == outer => {
                        last.len += len
                    }
                    _ => walk.found.push(Stretch { inner, outer, len }),
                },
                _ => {}
            }
        }
    }

    /// As [`Cpu::look_up`], for that one.
    pub(crate) fn look_up_other(&self, linear: u64) -> Option<u64> {
        let other = self.nested_view()?.other;
        let svm = self.state.efer & efer::SVME != 0;
        let second = |gpa| if svm { self.svm_other_look_up(gpa) } else { self.vmx_other_look_up(gpa) };
        self.look_up_as(&other, linear, &second)
    }
}
