//! A vCPU whose local APIC the engine keeps: what is left to do before an entry, and how the state comes and goes.

use satori_state::Activity;

use super::MachineVcpu;
use crate::runs::{Entry, Runs};

impl MachineVcpu {
    /// [`Runs::prepare`] where the engine keeps the local APIC: it takes signals, halts and wakes by itself.
    pub(super) fn prepare_kept(&mut self) -> Entry {
        self.run_timers();
        let deadline = self.deadline();
        if self.vcpu.state().activity == Activity::Shutdown {
            return Entry::Sleep { deadline };
        }
        // What the PIC has.
        if self.owed && !self.quiet && self.injector.waits(&*self.vcpu, &mut self.lapic) {
            return Entry::Finish;
        }
        if !self.owed && !self.quiet {
            self.inject();
        }
        self.set_controls();
        let vectors = self.lapic.auto_eoi();
        if self.vcpu.controls_mut().auto_eoi != vectors {
            self.vcpu.controls_mut().auto_eoi = vectors;
        }
        Entry::Run { deadline }
    }

    /// Takes what the engine has of the local APIC, for who saves it.
    pub(in crate::x86) fn fetch_apic(&mut self) {
        if let Some(registers) = self.vcpu.controller() {
            self.lapic.set_registers(&registers, self.platform.clock.counter());
        }
    }

    /// Hands a local APIC that was restored to the engine.
    pub(in crate::x86) fn store_apic(&mut self) {
        if self.kept {
            let registers = self.lapic.registers(self.platform.clock.counter());
            self.vcpu.set_controller(&registers);
            self.lapic.hand_signals_on();
        }
    }
}
