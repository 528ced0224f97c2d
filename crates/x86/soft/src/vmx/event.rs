//! Events of a guest: which leave it, how VM entry injects them, and the windows for those that wait (SDM 25.2, 26.6, 26.7).

use iced_x86::{Instruction, Mnemonic};
use satori_defs::vmx::ExitReason;
use satori_defs::x86::{dr6, dr7, rflags, vector};
use satori_engine::{Event, Exception};
use satori_state::Activity;
use satori_vmx::Field::{ExceptionBitmap, ExitControls, PfMask, PfMatch};
use satori_vmx::control::{exit, pin, proc};
use satori_vmx::event::{Interruption, kind};

use super::{EXIT, VmExit};
use crate::cpu::{Cpu, Exec, Stop};
use crate::svm::SvmExit;
use crate::system::{self, Undelivered};

/// An exception as interruption information.
pub(super) fn interruption(exception: Exception) -> Interruption {
    Interruption::new(exception.vector, kind::HARDWARE_EXCEPTION, exception.code)
}

impl Cpu {
    /// The exit that `exception` is, if the exception bitmap has it (SDM 25.2).
    fn exception_exit(&self, exception: Exception) -> Option<VmExit> {
        let vmcs = &self.vmx.vmcs;
        let mut bit = vmcs.get(ExceptionBitmap) >> (exception.vector & 31) & 1 != 0;
        if exception.vector == vector::PF {
            let code = exception.code.unwrap_or(0);
            // A page fault whose error code does not match means the opposite.
            bit ^= code & vmcs.get32(PfMask) != vmcs.get32(PfMatch);
        }
        bit.then(|| VmExit {
            reason: ExitReason::ExceptionNmi as u32,
            qualification: match exception.vector {
                vector::PF | vector::DB => exception.payload,
                _ => 0,
            },
            event: interruption(exception),
            ..VmExit::default()
        })
    }

    /// Whether `exception` leaves the guest, if there is one: the exit is then known.
    pub fn exception_leaves(&mut self, exception: Exception) -> bool {
        if self.svm.guest {
            self.svm.exit = self.svm_exception_exit(exception);
            let leaves = self.svm.exit.is_some();
            if leaves && exception.vector == vector::DB {
                // Unlike CR2, DR6 is written before the intercept (APM 15.12.2).
                self.state.dr6 = self.state.dr6 & !dr6::HITS | exception.payload;
                self.state.dr7 &= !dr7::GD;
            }
            return leaves;
        }
        if self.vmx.guest {
            self.vmx.exit = self.exception_exit(exception);
        }
        self.vmx.guest && self.vmx.exit.is_some()
    }

    /// An exception of a guest is about to be delivered: it may be its hypervisor's instead.
    pub fn guest_exception(&mut self, exception: Exception) -> Result<(), Undelivered> {
        if exception == EXIT {
            return Err(Undelivered::Left);
        }
        if self.exception_leaves(exception) {
            if exception.vector == vector::DF {
                // As if the double fault were the first event (SDM 27.2.4).
                self.vmx.vectoring = Interruption::default();
            }
            return Err(Undelivered::Left);
        }
        self.vmx.vectoring = interruption(exception);
        // A later exit is not the IRET's.
        self.vmx.nmi_unblocked = false;
        Ok(())
    }

    /// Leaves the guest, if its hypervisor wants that, instead of what INT3, INTO or INT1 raises.
    pub fn leave_for_software_exception(&mut self, vector: u8, length: u32) -> Exec<()> {
        if self.svm.guest {
            let exit = self.svm_exception_exit(Exception::new(vector));
            let exit = exit.map(|exit| SvmExit { length: length.into(), ..exit });
            return exit.map_or(Ok(()), |exit| Err(self.leave_svm(exit)));
        }
        self.software_exception_exit(vector, length).map_or(Ok(()), |exit| Err(self.leave(exit)))
    }

    /// The exit of INT3, INTO or INT1, if the exception bitmap has it.
    fn software_exception_exit(&self, vector: u8, length: u32) -> Option<VmExit> {
        let kind =
            if vector == vector::DB { kind::PRIVILEGED_SOFTWARE_EXCEPTION } else { kind::SOFTWARE_EXCEPTION };
        let exits = self.vmx.guest && self.vmx.vmcs.get(ExceptionBitmap) >> vector & 1 != 0;
        exits.then(|| VmExit {
            reason: ExitReason::ExceptionNmi as u32,
            event: Interruption::new(vector, kind, None),
            length,
            ..VmExit::default()
        })
    }

    /// An INT n, INT3, INTO or INT1 of a guest is about to be delivered.
    pub fn software_vectoring(&mut self, insn: &Instruction, vector: u8) {
        if self.vmx.guest {
            let kind = match insn.mnemonic() {
                Mnemonic::Int => kind::SOFTWARE_INTERRUPT,
                Mnemonic::Int1 => kind::PRIVILEGED_SOFTWARE_EXCEPTION,
                _ => kind::SOFTWARE_EXCEPTION,
            };
            self.vmx.vectoring = Interruption::new(vector, kind, None);
            self.vmx.vectoring_length = insn.len() as u32;
        }
    }

    /// A guest is about to switch tasks: by CALL, IRET, JMP or an event, as the qualification numbers them. One of VMX has none of its
    /// own (SDM 25.2).
    pub fn leave_for_task(&mut self, selector: u16, source: u64) -> Exec<()> {
        if self.svm.guest {
            return self.svm_task_exit(selector, source).map_or(Ok(()), Err);
        }
        if self.vmx.guest { Err(self.task_exit(selector, source)) } else { Ok(()) }
    }

    fn task_exit(&mut self, selector: u16, source: u64) -> Stop {
        // An event has the length of an instruction only if that caused it, which then is executed again.
        let length =
            if self.pending.delivering { 0 } else { self.next_rip.wrapping_sub(self.state.rip) as u32 };
        let qualification = u64::from(selector) | source << 30;
        self.leave(VmExit {
            reason: ExitReason::TaskSwitch as u32,
            qualification,
            length,
            ..VmExit::default()
        })
    }

    /// Leaves the guest, if there is one, for an event of the machine that its hypervisor wants; whether it did.
    pub fn leave_for_event(&mut self, event: Event) -> bool {
        if self.svm.guest {
            self.svm.exit = self.svm_event_exit(event);
        } else if self.vmx.guest {
            self.vmx.exit = self.event_exit(event);
        }
        self.left()
    }

    /// Leaves the guest if an exit is known; whether it did.
    fn left(&mut self) -> bool {
        let leaves = self.vmx.guest && (self.vmx.exit.is_some() || self.svm.exit.is_some());
        if leaves {
            self.vm_exit();
        }
        leaves
    }

    /// The exit that an event of the machine is, if the pin-based controls have it. Activity is as the event finds it.
    fn event_exit(&mut self, event: Event) -> Option<VmExit> {
        match event {
            Event::Interrupt(vector) if self.vmx.pin & pin::EXTERNAL_INTERRUPT != 0 => {
                let told = self.vmx.vmcs.get32(ExitControls) & exit::ACKNOWLEDGE != 0;
                if !told {
                    self.vmx.held = Some(vector);
                }
                let event = Interruption::new(vector, kind::EXTERNAL_INTERRUPT, None);
                let event = if told { event } else { Interruption::default() };
                Some(VmExit { reason: ExitReason::ExternalInterrupt as u32, event, ..VmExit::default() })
            }
            Event::Nmi if self.vmx.pin & pin::NMI != 0 => Some(VmExit {
                reason: ExitReason::ExceptionNmi as u32,
                event: Interruption::new(vector::NMI, kind::NMI, None),
                ..VmExit::default()
            }),
            _ => None,
        }
    }

    /// What comes between two instructions of a guest before anything of the machine's; whether something came.
    pub fn guest_look(&mut self) -> bool {
        if self.svm.guest {
            return self.svm_look();
        }
        if self.vmx.guest {
            if self.follow_virtual_write() {
                return true;
            }
            self.vmx.exit = self.look_exit();
            if self.vmx.exit.is_none() && self.virtual_interrupt_open() {
                self.deliver_virtual_interrupt();
                return true;
            }
        }
        self.left()
    }

    /// The exit between two instructions: expired timer, trap flag, windows.
    fn look_exit(&mut self) -> Option<VmExit> {
        let plain = |reason: ExitReason| Some(VmExit { reason: reason as u32, ..VmExit::default() });
        if std::mem::take(&mut self.vmx.trap) {
            return plain(ExitReason::MonitorTrapFlag);
        }
        if let Some(exit) = self.timer_expired() {
            return Some(exit);
        }
        let state = &self.state;
        if state.interrupt_shadow || state.pending_debug != 0 {
            return None;
        }
        if self.vmx.proc & proc::NMI_WINDOW != 0 && !state.nmi_blocked {
            return plain(ExitReason::NmiWindow);
        }
        if self.vmx.proc & proc::INTERRUPT_WINDOW != 0 && state.rflags & rflags::IF != 0 {
            return plain(ExitReason::InterruptWindow);
        }
        None
    }

    /// Delivers what VM entry injects: no bitmap is looked at, and neither CR2 nor DR6 is changed.
    pub(crate) fn inject_event(&mut self, event: Interruption, length: u64) {
        let vector = event.vector();
        if event.kind() == kind::OTHER {
            self.vmx.trap = true;
            return;
        }
        let software = matches!(event.kind(), kind::SOFTWARE_INTERRUPT | kind::SOFTWARE_EXCEPTION);
        let behind = software || event.kind() == kind::PRIVILEGED_SOFTWARE_EXCEPTION;
        let rip = if behind { self.state.rip.wrapping_add(length) } else { self.state.rip };
        let interrupt = matches!(event.kind(), kind::EXTERNAL_INTERRUPT | kind::NMI);
        let external = interrupt || !software && self.exceptions_external();
        let code = event.error_code();
        let delivery = system::Delivery { vector, code, software, external, resume: false, rip };
        self.state.activity = Activity::Active;
        self.vmx.vectoring = event;
        self.vmx.vectoring_length = length as u32;
        self.pending.delivering = true;
        let outcome = system::inject(self, &delivery, event.kind() == kind::HARDWARE_EXCEPTION);
        self.pending.delivering = false;
        if event.kind() == kind::NMI {
            self.state.nmi_blocked = true;
        }
        (self.state.interrupt_shadow, self.state.ss_shadow) = (false, false);
        self.undelivered(outcome);
    }

    /// What becomes of a delivery in a guest that did not end at a handler. Whether it did not.
    pub fn undelivered(&mut self, outcome: Result<(), Undelivered>) -> bool {
        match outcome {
            Ok(()) => {
                self.vmx.vectoring = Interruption::default();
                return false;
            }
            Err(Undelivered::Left) => {}
            Err(Undelivered::Shutdown) => {
                self.vmx.vectoring = Interruption::default();
                if self.svm.guest {
                    self.pending.fault = None;
                    self.svm_shutdown();
                    return true;
                }
                let reason = ExitReason::TripleFault as u32;
                self.vmx.exit = Some(VmExit { reason, ..VmExit::default() });
            }
        }
        self.pending.fault = None;
        self.vm_exit();
        true
    }
}
