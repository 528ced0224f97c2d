//! Translation for a debugger: a walk that changes nothing and asks for no rights.

use satori_defs::x86::{efer, pte};
use satori_engine::NestedView;
use satori_state::CpuState;

use super::canonical;
use super::paging::Paging;
use crate::cpu::Cpu;

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

    /// As [`Cpu::look_up`], for that one.
    pub(crate) fn look_up_other(&self, linear: u64) -> Option<u64> {
        let other = self.nested_view()?.other;
        let svm = self.state.efer & efer::SVME != 0;
        let second = |gpa| if svm { self.svm_other_look_up(gpa) } else { self.vmx_other_look_up(gpa) };
        self.look_up_as(&other, linear, &second)
    }
}
