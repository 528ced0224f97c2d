//! SVM for a debugger: the VMCB in use, and the registers of whoever does not execute.

use satori_defs::x86::rflags;
use satori_engine::{NestedView, Stretch};
use satori_state::{CpuState, reg};
use satori_svm::vmcb::SAVE;
use satori_svm::{Place, Vmcb};

use super::{enter, npt};
use crate::cpu::Cpu;

impl Cpu {
    /// The VMCB that VMRUN took last: as the guest executes by it, or else as it is in memory.
    fn vmcb_now(&self) -> Option<Vmcb> {
        if !self.svm.guest {
            return if self.svm.account.entries == 0 { None } else { self.load_vmcb(self.svm.at) };
        }
        let (mut vmcb, state) = (self.svm.vmcb.clone(), &self.state);
        for (place, value) in [
            (Place::RIP, state.rip),
            (Place::RSP, state.gpr[reg::RSP]),
            (Place::RAX, state.gpr[reg::RAX]),
            (Place::RFLAGS, state.rflags),
            (Place::CR0, state.cr0),
            (Place::CR2, state.cr2),
            (Place::CR3, state.cr3),
            (Place::CR4, state.cr4),
        ] {
            vmcb.set(place, value);
        }
        Some(vmcb)
    }

    pub(crate) fn svm_view(&self) -> Option<NestedView<CpuState>> {
        let vmcb = self.vmcb_now()?;
        let inside = self.svm.guest;
        let mut other = CpuState { gpr: [0; 18], ..self.state.clone() };
        if inside {
            self.svm.host.restore(&mut other);
            other.rflags = self.svm.host.rflags & !rflags::VM;
            self.read_pdptes(&mut other, &Some);
        } else {
            enter::guest_state(&vmcb, &mut other);
            other.rflags = vmcb.get(Place::RFLAGS);
            self.read_pdptes(&mut other, &|gpa| self.svm_second(&vmcb, gpa));
        }
        let group = |place: Place| if place.at < SAVE { "controls" } else { "guest" };
        let intercepts =
            (0..6).map(|word| ("controls", format!("INTERCEPTS_{word}"), vmcb.intercepts(4 * word).into()));
        let places =
            Place::ALL.iter().map(|(name, place)| (group(*place), (*name).to_owned(), vmcb.get(*place)));
        Some(NestedView {
            form: "VMCB",
            at: self.svm.at,
            inside,
            fields: intercepts.chain(places).collect(),
            other,
            tables: (vmcb.get(Place::NESTED) & 1 != 0).then(|| vmcb.get(Place::NESTED_CR3)),
        })
    }

    fn svm_second(&self, vmcb: &Vmcb, gpa: u64) -> Option<u64> {
        if vmcb.get(Place::NESTED) & 1 == 0 {
            return Some(gpa);
        }
        self.npt_look_up(vmcb.get(Place::NESTED_CR3), gpa)
    }

    /// The guest's physical memory.
    pub(crate) fn svm_memory(&self) -> Vec<Stretch> {
        let vmcb = self.vmcb_now().filter(|vmcb| vmcb.get(Place::NESTED) & 1 != 0);
        vmcb.map_or_else(Vec::new, |vmcb| {
            let root = vmcb.get(Place::NESTED_CR3) & npt::ADDRESS;
            self.stretches(root, &|entry, level| npt::leads(entry, level))
        })
    }

    /// Where `gpa` of whoever does not execute is.
    pub(crate) fn svm_other_look_up(&self, gpa: u64) -> Option<u64> {
        if self.svm.guest { Some(gpa) } else { self.svm_second(&self.vmcb_now()?, gpa) }
    }
}
