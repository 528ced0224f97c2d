//! The MSR areas of VM entry and VM exit (SDM 26.4, 27.4, 27.6).
//!
//! They reach the MSRs that the processor itself holds; another one in a list is an entry that fails, or an abort.

use satori_cpuid::controls;
use satori_defs::msr;
use satori_defs::x86::efer;
use satori_memory::Gpa;
use satori_rules as rules;
use satori_vmx::Field::{
    self, EntryMsrLoad, EntryMsrLoadCount, ExitMsrLoad, ExitMsrLoadCount, ExitMsrStore, ExitMsrStoreCount,
};
use satori_vmx::capability::MSR_LIST;

use crate::cpu::Cpu;

impl Cpu {
    /// The register behind an MSR that lists reach, and whether it can hold `value`.
    fn listed(&mut self, number: u32, value: u64) -> Option<(&mut u64, bool)> {
        let exist = controls::efer(|feature| self.offers(feature)) | efer::LMA;
        let speculation = controls::spec_ctrl(|feature| self.offers(feature));
        let canonical = rules::canonical(value);
        let state = &mut self.state;
        Some(match number {
            msr::IA32_EFER => {
                let paged = (state.efer ^ value) & (efer::LMA | efer::LME) == 0;
                (&mut state.efer, rules::within(value, exist) && paged)
            }
            msr::IA32_STAR => (&mut state.star, true),
            msr::IA32_LSTAR => (&mut state.lstar, canonical),
            msr::IA32_CSTAR => (&mut state.cstar, canonical),
            msr::IA32_FMASK => (&mut state.fmask, rules::low_half(value)),
            msr::IA32_KERNEL_GS_BASE => (&mut state.kernel_gs_base, canonical),
            msr::IA32_SPEC_CTRL => (&mut state.spec_ctrl, rules::within(value, speculation)),
            msr::IA32_TSC_AUX => (&mut state.tsc_aux, rules::low_half(value)),
            msr::IA32_PAT => (&mut state.pat, rules::memory_type::pat(value)),
            msr::IA32_SYSENTER_CS => (&mut state.sysenter_cs, true),
            msr::IA32_SYSENTER_ESP => (&mut state.sysenter_esp, canonical),
            msr::IA32_SYSENTER_EIP => (&mut state.sysenter_eip, canonical),
            _ => return None,
        })
    }

    /// Loads the MSRs of a list; the number of the first entry, from 1, that cannot be.
    fn load_list(&mut self, count: Field, area: Field) -> Result<(), u64> {
        let (count, area) = (self.vmx.vmcs.get32(count), self.vmx.vmcs.get(area));
        for index in 0..count {
            let failed = Err(u64::from(index) + 1);
            // More than IA32_VMX_MISC recommends has undefined results.
            if index >= MSR_LIST {
                return failed;
            }
            let at = area + u64::from(index) * 16;
            let word = |offset| self.memory.read_u64(Gpa(self.memory.addressed(at + offset))).ok();
            let (Some(number), Some(value)) = (word(0), word(8)) else { return failed };
            if number == u64::from(msr::IA32_TSC) {
                self.state.tsc_offset = value.wrapping_sub(self.time().guest_counter());
                continue;
            }
            match u32::try_from(number).ok().and_then(|number| self.listed(number, value)) {
                Some((register, true)) => *register = value,
                _ => return failed,
            }
        }
        self.mode_changed();
        Ok(())
    }

    /// The VM-entry MSR-load area.
    pub(super) fn load_entry_list(&mut self) -> Result<(), u64> {
        self.load_list(EntryMsrLoadCount, EntryMsrLoad)
    }

    /// The VM-exit MSR-load area; whether all could be loaded.
    pub(super) fn load_exit_list(&mut self) -> bool {
        self.load_list(ExitMsrLoadCount, ExitMsrLoad).is_ok()
    }

    /// The VM-exit MSR-store area; whether all could be stored.
    pub(super) fn store_exit_list(&mut self) -> bool {
        let (count, area) = (self.vmx.vmcs.get32(ExitMsrStoreCount), self.vmx.vmcs.get(ExitMsrStore));
        (0..count).all(|index| {
            let at = area + u64::from(index) * 16;
            let number = self.memory.read_u64(Gpa(self.memory.addressed(at)));
            let value = match number.ok().and_then(|number| u32::try_from(number).ok()) {
                Some(msr::IA32_TSC) => Some(self.tsc()),
                Some(number) => self.listed(number, 0).map(|(register, _)| *register),
                None => None,
            };
            let Some(value) = value.filter(|_| index < MSR_LIST) else { return false };
            let place = Gpa(self.memory.addressed(at + 8));
            self.memory.write(place, &value.to_le_bytes()).is_ok()
        })
    }
}
