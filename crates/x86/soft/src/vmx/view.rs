//! VMX for a debugger: the VMCS in use, and the registers of whoever does not execute.

use satori_engine::{NestedView, Stretch};
use satori_memory::Gpa;
use satori_state::CpuState;
use satori_vmx::Field::{self, Eptp, GuestCr0, GuestCr3, GuestCr4, GuestRflags, GuestRip, GuestRsp};
use satori_vmx::control::proc2;
use satori_vmx::ept::{self, Entry};
use satori_vmx::evmcs::{self, Page};
use satori_vmx::{Vmcs, check};

use super::{NONE, enter, exit};
use crate::cpu::Cpu;
use crate::mmu::Leads;

/// The SDM's name of `field`, as it is written there of the four areas.
fn name(field: Field) -> String {
    let mut name = String::new();
    for letter in format!("{field:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Kinds of fields, in the order of their encodings (SDM appendix B).
const GROUPS: [&str; 4] = ["controls", "exit information", "guest", "host"];

fn group(field: Field) -> &'static str {
    GROUPS[usize::from(field.encoding() >> 10 & 3)]
}

impl Cpu {
    /// The VMCS in use: what the guest executes by, or else what the next entry would find.
    fn vmcs_now(&self) -> Option<(&'static str, u64, Vmcs)> {
        let mut vmcs = self.vmx.vmcs.clone();
        let (form, at) = match &self.vmx.enlightened {
            Some(enlightened) => {
                let mut bytes = [0; evmcs::SIZE];
                let at = Gpa(self.memory.addressed(enlightened.at));
                if !self.vmx.guest && self.memory.read(at, &mut bytes).is_ok() {
                    Page::new(bytes).load(0, &mut vmcs);
                }
                ("enlightened VMCS", enlightened.at)
            }
            None if self.vmx.current != NONE => ("VMCS", self.vmx.current),
            None => return None,
        };
        if self.vmx.guest {
            let state = &self.state;
            for (field, value) in [
                (GuestRip, state.rip),
                (GuestRsp, state.gpr[satori_state::reg::RSP]),
                (GuestRflags, state.rflags),
                (GuestCr0, state.cr0),
                (GuestCr3, state.cr3),
                (GuestCr4, state.cr4),
            ] {
                vmcs.set(field, value);
            }
        }
        Some((form, at, vmcs))
    }

    pub(crate) fn vmx_view(&self) -> Option<NestedView<CpuState>> {
        let (form, at, vmcs) = self.vmcs_now()?;
        let inside = self.vmx.guest;
        let mut other = CpuState { gpr: [0; 18], ..self.state.clone() };
        if inside {
            exit::host_state(&vmcs, &mut other);
            other.rflags = satori_defs::x86::rflags::FIXED;
            self.read_pdptes(&mut other, &Some);
        } else {
            enter::guest_state(&vmcs, &mut other);
            other.rflags = vmcs.get(GuestRflags);
            self.read_pdptes(&mut other, &|gpa| self.second(&vmcs, gpa));
        }
        let mut fields: Vec<_> =
            Field::ALL.iter().map(|field| (group(*field), name(*field), vmcs.get(*field))).collect();
        fields.sort_by_key(|(group, ..)| GROUPS.iter().position(|one| one == group));
        let tables = self.tables(&vmcs).map(|(root, _)| root);
        Some(NestedView { form, at, inside, fields, other, tables })
    }

    /// Where `gpa` of the guest that this VMCS describes is.
    fn second(&self, vmcs: &Vmcs, gpa: u64) -> Option<u64> {
        match self.tables(vmcs) {
            None => Some(gpa),
            Some((root, by_mode)) => self.ept_look_up(root, by_mode, gpa),
        }
    }

    /// The EPT of the guest that this VMCS describes, if it has one: EPTP, and whether its entries tell modes apart.
    fn tables(&self, vmcs: &Vmcs) -> Option<(u64, bool)> {
        let controls = check::secondary(vmcs);
        (controls & proc2::EPT != 0).then(|| (vmcs.get(Eptp), controls & proc2::MODE_BASED_EXECUTE != 0))
    }

    /// The guest's physical memory.
    pub(crate) fn vmx_memory(&self) -> Vec<Stretch> {
        let tables = self.vmcs_now().and_then(|(.., vmcs)| self.tables(&vmcs));
        tables.map_or_else(Vec::new, |(root, by_mode)| {
            self.stretches(root & ept::ADDRESS, &|entry, level| match ept::classify(entry, level, by_mode) {
                Entry::Table(next) => Some(Leads::Table(next)),
                Entry::Leaf(page) => Some(Leads::Page(page)),
                _ => None,
            })
        })
    }

    /// Where `gpa` of whoever does not execute is.
    pub(crate) fn vmx_other_look_up(&self, gpa: u64) -> Option<u64> {
        if self.vmx.guest { Some(gpa) } else { self.second(&self.vmcs_now()?.2, gpa) }
    }
}
