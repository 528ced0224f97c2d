//! Events of a guest: which leave it, and virtual interrupts (APM 15.12, 15.13, 15.21).

use satori_defs::svm::ExitCode;
use satori_defs::x86::{rflags, vector};
use satori_engine::{Event, Exception};
use satori_state::Activity;
use satori_svm::intercept::EXCEPTIONS;
use satori_svm::vmcb::interrupt;
use satori_svm::{Intercept, Place};
use satori_vmx::event::{Interruption, kind};

use super::SvmExit;
use crate::cpu::{Cpu, Stop};
use crate::system::{self, InterruptKind};

impl Cpu {
    /// The exit that `exception` is, if it is intercepted.
    pub(crate) fn svm_exception_exit(&self, exception: Exception) -> Option<SvmExit> {
        let bit = self.svm.vmcb.intercepts(EXCEPTIONS) >> (exception.vector & 31) & 1 != 0;
        bit.then(|| SvmExit {
            code: ExitCode::ExceptionDe as u64 + u64::from(exception.vector),
            info1: exception.code.unwrap_or(0).into(),
            info2: if exception.vector == vector::PF { exception.payload } else { 0 },
            length: 0,
        })
    }

    /// The exit that an event of the machine is, if it is intercepted. It waits until the host takes it.
    pub(crate) fn svm_event_exit(&mut self, event: Event) -> Option<SvmExit> {
        match event {
            Event::Interrupt(vector) if self.svm.has(Intercept::INTR) => {
                self.vmx.held = Some(vector);
                Some(SvmExit::of(ExitCode::Intr))
            }
            Event::Nmi if self.svm.has(Intercept::NMI) => {
                self.svm.held_nmi = true;
                Some(SvmExit::of(ExitCode::Nmi))
            }
            _ => None,
        }
    }

    /// What comes between two instructions of a guest before anything of the machine's; whether something came.
    pub(crate) fn svm_look(&mut self) -> bool {
        let leaves = if self.svm.held_nmi && self.svm.gif && self.svm.has(Intercept::NMI) {
            // The host entered again before it took what is for it.
            Some(ExitCode::Nmi)
        } else if self.vmx.held.is_some() && self.svm.has(Intercept::INTR) {
            let flags = if self.svm.masks() { self.svm.host.rflags } else { self.state.rflags };
            (flags & rflags::IF != 0).then_some(ExitCode::Intr)
        } else {
            None
        };
        if let Some(code) = leaves {
            self.svm.exit = Some(SvmExit::of(code));
            self.svm_exit();
            return true;
        }
        let state = &self.state;
        if state.interrupt_shadow || state.pending_debug != 0 || !self.svm.gif || !self.svm.virtual_open() {
            return false;
        }
        if self.svm.virtual_nmis() && self.svm.control(interrupt::NMI) && !state.nmi_blocked {
            self.virtual_event_taken(interrupt::NMI);
            self.deliver_virtual(vector::NMI, kind::NMI, InterruptKind::Nmi);
            return true;
        }
        if state.rflags & rflags::IF == 0 {
            return false;
        }
        let control = self.svm.vmcb.get(Place::INTERRUPT_CONTROL);
        let priority = control >> interrupt::PRIORITY_SHIFT & 0xf;
        let above = control & interrupt::IGNORE_TPR != 0 || priority > (control & interrupt::TPR) & 0xf;
        if control & interrupt::PENDING == 0 || !above {
            return false;
        }
        if self.svm.has(Intercept::VINTR) {
            self.svm.exit = Some(SvmExit::of(ExitCode::Vintr));
            self.svm_exit();
            return true;
        }
        let vector = self.svm.vmcb.get(Place::INTERRUPT_VECTOR) as u8;
        self.virtual_event_taken(interrupt::PENDING);
        self.deliver_virtual(vector, kind::EXTERNAL_INTERRUPT, InterruptKind::External);
        true
    }

    /// Delivers a virtual interrupt or NMI.
    pub(crate) fn deliver_virtual(&mut self, vector: u8, kind: u32, how: InterruptKind) {
        self.vmx.vectoring = Interruption::new(vector, kind, None);
        self.state.activity = Activity::Active;
        self.pending.delivering = true;
        let outcome = system::interrupt(self, vector, how);
        self.pending.delivering = false;
        if matches!(how, InterruptKind::Nmi) {
            self.state.nmi_blocked = true;
        }
        (self.state.interrupt_shadow, self.state.ss_shadow) = (false, false);
        // The machine may have more, for which it waits.
        self.windows.attention = true;
        self.undelivered(outcome);
    }

    /// An NMI that left a guest, when the host can take it.
    pub(crate) fn take_held_nmi(&mut self) -> bool {
        let takes = self.svm.held_nmi && !self.svm.guest && self.svm.gif && !self.state.nmi_blocked;
        if takes {
            self.svm.held_nmi = false;
            self.choose_windows();
        }
        takes
    }

    /// A guest is about to switch tasks, which its host wants to do for it.
    pub(crate) fn svm_task_exit(&mut self, selector: u16, source: u64) -> Option<Stop> {
        /// Where EXITINFO2 says that IRET and a far JMP were the cause, or an event with an error code.
        const IRET: u64 = 1 << 36;
        const JUMP: u64 = 1 << 38;
        const ERROR_CODE: u64 = 1 << 44;
        let cause = match source {
            1 => IRET,
            2 => JUMP,
            3 => self.vmx.vectoring.error_code().map_or(0, |code| ERROR_CODE | u64::from(code)),
            _ => 0,
        };
        let exit = SvmExit { info1: selector.into(), info2: cause, ..SvmExit::of(ExitCode::TaskSwitch) };
        self.svm.has(Intercept::TASK_SWITCH).then(|| self.leave_svm(exit))
    }

    /// A guest has shut down: its host gets it, or the processor has. Whether the host did.
    pub(crate) fn svm_shutdown(&mut self) -> bool {
        if self.svm.has(Intercept::SHUTDOWN) {
            self.svm.exit = Some(SvmExit::of(ExitCode::Shutdown));
            self.svm_exit();
            return true;
        }
        self.state.activity = Activity::Shutdown;
        false
    }
}
