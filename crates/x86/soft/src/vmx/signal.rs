//! INIT and SIPI where there are guests of a guest: held back, or had by the hypervisor (SDM 23.8, 25.2; APM 15.13.3, 15.17). And
//! interrupts that only notify such a guest of others.

use satori_defs::svm::ExitCode;
use satori_defs::vmx::ExitReason;
use satori_engine::{Fate, Signal};
use satori_state::Activity;
use satori_svm::Intercept;

use super::VmExit;
use crate::cpu::Cpu;
use crate::svm::SvmExit;

impl Cpu {
    /// What becomes of `signal` now. One that leaves a guest of VMX is gone by that; one that leaves a guest of VMRUN waits for its host.
    pub(crate) fn signal(&mut self, signal: Signal) -> Fate {
        match signal {
            Signal::Init => {
                let mut fate = self.init_fate();
                if fate == Fate::Taken && self.svm.guest {
                    self.svm.exit = Some(SvmExit::of(ExitCode::Init));
                    self.leave_for_signal();
                    fate = Fate::Waits;
                } else if fate == Fate::Taken {
                    let reason = ExitReason::InitSignal as u32;
                    self.vmx.exit = Some(VmExit { reason, ..VmExit::default() });
                    self.leave_for_signal();
                }
                self.windows.signal = fate == Fate::Waits;
                fate
            }
            // An INIT that waits does so beyond it.
            Signal::StartUp(page) if self.waits_in_guest() => {
                let reason = ExitReason::SipiSignal as u32;
                self.vmx.exit = Some(VmExit { reason, qualification: page.into(), ..VmExit::default() });
                self.leave_for_signal();
                Fate::Taken
            }
            Signal::Interrupt(vector) if self.take_posted(vector) => Fate::Taken,
            Signal::StartUp(_) | Signal::Interrupt(_) => Fate::Machine,
        }
    }

    /// Makes the exit that a signal caused.
    fn leave_for_signal(&mut self) {
        // Outside a run the register file has all flags.
        self.flags.set_bits(self.state.rflags);
        self.vm_exit();
    }

    /// What becomes of an INIT: root operation, the state that waits for a SIPI, and a clear GIF hold it back.
    pub(crate) fn init_fate(&self) -> Fate {
        let root = self.vmx.on && !self.vmx.guest;
        if !self.svm.gif || root || self.waits_in_guest() {
            Fate::Waits
        } else if self.vmx.on || self.svm.has(Intercept::INIT) {
            Fate::Taken
        } else {
            Fate::Machine
        }
    }

    /// Whether a guest of VMX waits for a SIPI.
    pub(super) fn waits_in_guest(&self) -> bool {
        self.vmx.on && self.vmx.guest && self.state.activity == Activity::WaitForSipi
    }
}
