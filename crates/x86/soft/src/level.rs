//! Which faults of an instruction come before its intercept, in VMX and SVM alike: those that follow from the mode and the
//! privilege level alone (SDM 26.1.1, APM volume 2, 15.7).

use satori_defs::x86::cr4;
use satori_engine::Exception;

use crate::cpu::{Cpu, Exec};

/// Whose fault comes before the exit of an instruction that a guest's hypervisor intercepts.
#[derive(Clone, Copy)]
pub(crate) enum Level {
    /// #GP outside privilege level 0.
    Supervisor,
    /// None.
    Any,
    /// Those of RDTSC: CR4.TSD.
    Time,
    /// Those of RDPMC: CR4.PCE.
    Counter,
    /// #UD without CR4.OSXSAVE, then #GP outside privilege level 0.
    Xsetbv,
    /// #UD outside privilege level 0.
    Wait,
    /// Those of SVM's own instructions.
    Svm,
    /// Those of user-mode instruction prevention.
    Told,
    /// #UD where selectors are paragraphs, then those of user-mode instruction prevention.
    Selector,
    /// #UD where selectors are paragraphs, then #GP outside privilege level 0.
    LoadsSelector,
}

impl Cpu {
    /// Raises the fault of `level`, if there is one now.
    pub(crate) fn fault_first(&mut self, level: Level) -> Exec<()> {
        if matches!(level, Level::Selector | Level::LoadsSelector) {
            self.require_selectors()?;
        }
        if matches!(level, Level::Selector | Level::Told) {
            self.require_no_umip()?;
        }
        let supervisor = match level {
            Level::Supervisor | Level::LoadsSelector => true,
            Level::Any | Level::Told | Level::Selector => false,
            Level::Time => self.state.cr4 & cr4::TSD != 0,
            Level::Counter => self.state.cr4 & cr4::PCE == 0,
            Level::Xsetbv if self.state.cr4 & cr4::OSXSAVE == 0 => {
                return Err(self.raise(Exception::ud()));
            }
            Level::Xsetbv => true,
            Level::Wait if self.cpl() != 0 => return Err(self.raise(Exception::ud())),
            Level::Wait => false,
            Level::Svm => {
                self.require_svm()?;
                false
            }
        };
        if supervisor {
            self.require_supervisor()?;
        }
        Ok(())
    }
}
