//! One run: registers and events to KVM, KVM_RUN, and what it stopped for.

use kvm_bindings::KVM_EXIT_XEN;
use kvm_ioctls::{MsrExitReason, ReadMsrExit, VcpuExit, WriteMsrExit};
use satori_defs::x86::rflags;
use satori_engine::{Exit, Failure, HYPERCALL_PORT, Resume, Until};
use satori_state::{Activity, reg};

use crate::exits::Exits;
use crate::kick::{Alarm, take_came};
use crate::msrs;
use crate::partition::Calls;
use crate::vcpu::{KvmVcpu, Owed, Transfer};

/// Exits that one instruction may need until it is complete, where it is to be forgotten: a 64-byte access byte by byte.
const PIECES_MAX: usize = 64;

/// What KVM_RUN gave, as values.
enum Stopped {
    /// A signal came, or an immediate exit was wanted.
    Interrupted,
    /// A port or a device is accessed.
    Access(Transfer),
    /// A debug exception, with DR6, while a debugger asks for something.
    Debug(u64),
    /// KVM refuses the guest an access to an MSR that is KVM's.
    Refused,
    /// This.
    Exit(Exit, Owed),
    /// KVM cannot go on.
    Failed(Failure),
}

impl KvmVcpu {
    /// [`Vcpu::run`](satori_engine::Vcpu::run).
    pub(crate) fn run_until(&mut self, until: Until) -> Exit {
        if let Some(exit) = self.next_piece() {
            return exit;
        }
        if self.undo {
            self.complete_and_forget();
        }
        let follow = self.vm.follow_memory();
        self.check("KVM_SET_USER_MEMORY_REGION", follow);
        self.store();
        if let Some(exception) = self.fault.take() {
            let done = self.raise(exception);
            self.check("KVM_SET_VCPU_EVENTS", done);
        }
        self.inject_event();
        if let Some(failure) = self.failure {
            return Exit::Failed(failure);
        }
        if until.instructions.is_some() {
            return self.complete();
        }
        loop {
            if let Some(exit) = self.enter(until) {
                return exit;
            }
            if let Some(exception) = self.fault.take() {
                self.store();
                let done = self.raise(exception);
                self.check("KVM_SET_VCPU_EVENTS", done);
            }
        }
    }

    /// Completes the instruction that is half done, and enters the guest no further.
    fn complete(&mut self) -> Exit {
        if std::mem::take(&mut self.owed) == Owed::Nothing {
            return Exit::Budget;
        }
        self.fd.set_kvm_immediate_exit(1);
        match self.kvm_run() {
            Stopped::Interrupted => {
                self.load();
                Exit::Budget
            }
            stopped => self.stopped(stopped).unwrap_or(Exit::Budget),
        }
    }

    /// Completes it, and takes back what that did to the registers.
    pub(crate) fn complete_and_forget(&mut self) {
        self.undo = false;
        self.owed = Owed::Nothing;
        for _ in 0..PIECES_MAX {
            self.fd.set_kvm_immediate_exit(1);
            if matches!(self.kvm_run(), Stopped::Interrupted) {
                break;
            }
        }
        self.set_all();
    }

    /// Enters the guest; none where nothing happened that the machine has to know.
    fn enter(&mut self, until: Until) -> Option<Exit> {
        if self.alarm.is_none() {
            // Threads may be made now: the process is confined.
            self.vm.exits.iter().for_each(Exits::watch);
            let alarm = Alarm::new();
            self.alarm = self.check("timer_create", alarm);
        }
        let Some(alarm) = &self.alarm else {
            return self.failure.map(Exit::Failed);
        };
        let exit = &raw mut self.fd.get_kvm_run().immediate_exit;
        self.inside.enter(alarm.thread, exit);
        let early =
            if self.kick.take() { Some(Exit::ExternalInterrupt) } else { self.set_alarm(until.counter) };
        if let Some(early) = early {
            self.inside.leave();
            // Whoever answers this exit answers nothing that came before.
            return Some(match self.complete() {
                Exit::Budget => early,
                other => other,
            });
        }
        self.entries += 1;
        let stopped = self.kvm_run();
        self.inside.leave();
        match stopped {
            Stopped::Interrupted => {
                self.interrupted += 1;
                self.owed = Owed::Nothing;
                self.load();
                // It was delivered if the guest is elsewhere now.
                self.external = self.external.filter(|(_, rip)| *rip == self.state.rip);
                None
            }
            stopped => {
                if let Some(statistics) = &self.statistics {
                    statistics.exit();
                }
                self.stopped(stopped)
            }
        }
    }

    /// Has the alarm ring at `deadline`, or earlier; the exit if that has passed.
    fn set_alarm(&mut self, deadline: Option<u64>) -> Option<Exit> {
        if take_came() {
            self.armed = None;
        }
        let deadline = deadline?;
        let now = self.vm.time.counter();
        if deadline <= now {
            return Some(Exit::PreemptionTimer);
        }
        // One that rings too early has it set again then.
        let rings = self.armed.is_some_and(|armed| now < armed && armed <= deadline);
        if let (false, Some(host), Some(alarm)) = (rings, self.vm.time.of_host(), &self.alarm) {
            let ticks = u128::from(deadline - now) * 1_000_000_000;
            alarm.set(u64::try_from(ticks.div_ceil(host.hz.max(1).into())).unwrap_or(u64::MAX));
            self.armed = Some(deadline);
        }
        None
    }

    /// Takes what KVM stopped for; none if the machine has nothing to do with it.
    fn stopped(&mut self, stopped: Stopped) -> Option<Exit> {
        self.load();
        self.external = None;
        Some(match stopped {
            Stopped::Interrupted => Exit::ExternalInterrupt,
            Stopped::Refused => {
                self.msr_answer(1, 0);
                return None;
            }
            Stopped::Debug(dr6) => return self.stopped_for_debugger(dr6).map(Exit::Debug),
            Stopped::Access(transfer) => {
                self.transfer = Some(transfer);
                self.next_piece().unwrap_or(Exit::ExternalInterrupt)
            }
            Stopped::Exit(exit, owed) => {
                self.owed = owed;
                match exit {
                    Exit::Hlt => self.state.activity = Activity::Halted,
                    Exit::TripleFault => self.state.activity = Activity::Shutdown,
                    _ => {}
                }
                exit
            }
            Stopped::Failed(failure) => {
                let (rip, cs) = (self.state.rip, self.state.seg[satori_state::seg::CS].selector);
                tracing::error!("{} at {cs:#x}:{rip:#x} ({:#x})", failure.what, failure.detail);
                self.failure = Some(failure);
                Exit::Failed(failure)
            }
        })
    }

    /// KVM_RUN.
    fn kvm_run(&mut self) -> Stopped {
        let failed = |what, detail: u64| Stopped::Failed(Failure { what, detail });
        let exit = |exit| Stopped::Exit(exit, Owed::Nothing);
        let keeps = self.keeps();
        match self.fd.run() {
            Err(error) if error.errno() == libc::EINTR => Stopped::Interrupted,
            Err(error) if error.errno() == libc::EAGAIN => Stopped::Interrupted,
            Err(error) => failed("KVM_RUN failed", error.errno() as u64),
            Ok(VcpuExit::IoIn(port, data)) => {
                let bytes = data.len();
                self.port_access(port, bytes, false)
            }
            Ok(VcpuExit::IoOut(port, data)) => {
                let bytes = data.len();
                if self.vm.calls == Calls::Port && port == u16::from(HYPERCALL_PORT) && bytes == 1 {
                    return Stopped::Exit(Exit::Vmcall, Owed::Hypercall);
                }
                self.port_access(port, bytes, true)
            }
            Ok(VcpuExit::MmioRead(address, data)) => memory_access(address, data.len(), false),
            Ok(VcpuExit::MmioWrite(address, data)) => memory_access(address, data.len(), true),
            // It asks of those as well that it knows and refuses: of the local APIC the machine knows nothing then.
            Ok(
                VcpuExit::X86Rdmsr(ReadMsrExit { reason, index, .. })
                | VcpuExit::X86Wrmsr(WriteMsrExit { reason, index, .. }),
            ) if keeps && reason == MsrExitReason::Inval && msrs::is_of_apic(index) => Stopped::Refused,
            Ok(VcpuExit::X86Rdmsr(msr)) => Stopped::Exit(Exit::MsrRead { msr: msr.index }, Owed::MsrRead),
            Ok(VcpuExit::X86Wrmsr(msr)) => {
                Stopped::Exit(Exit::MsrWrite { msr: msr.index, value: msr.data }, Owed::MsrWrite)
            }
            Ok(VcpuExit::Debug(stop)) => Stopped::Debug(stop.dr6),
            Ok(VcpuExit::Hlt) => exit(Exit::Hlt),
            Ok(VcpuExit::IrqWindowOpen) => exit(Exit::InterruptWindow),
            Ok(VcpuExit::SetTpr) => exit(Exit::TprBelowThreshold),
            Ok(VcpuExit::IoapicEoi(vector)) => exit(Exit::EoiInduced { vector }),
            Ok(VcpuExit::Shutdown) => exit(Exit::TripleFault),
            Ok(VcpuExit::Intr | VcpuExit::Nmi) => exit(Exit::ExternalInterrupt),
            Ok(VcpuExit::InternalError) => {
                let run = self.fd.get_kvm_run();
                // SAFETY: the exit's reason, which the kernel wrote, says that this is the field.
                let code = unsafe { run.__bindgen_anon_1.internal.suberror };
                let what = match code {
                    1 => "KVM could not emulate the guest's instruction",
                    _ => "KVM met an internal error",
                };
                failed(what, code.into())
            }
            Ok(VcpuExit::FailEntry(reason, _)) => failed("the processor refused the guest's state", reason),
            Ok(VcpuExit::Unsupported(KVM_EXIT_XEN)) => Stopped::Exit(Exit::Vmcall, Owed::Hypercall),
            Ok(VcpuExit::Unsupported(reason)) => failed("KVM stopped for an unknown reason", reason.into()),
            Ok(_) => failed("KVM stopped for a reason that no x86 guest has", 0),
        }
    }

    fn port_access(&mut self, port: u16, bytes: usize, write: bool) -> Stopped {
        // SAFETY: the exit's reason, which the kernel wrote, says that this is the field.
        let size = usize::from(unsafe { self.fd.get_kvm_run().__bindgen_anon_1.io.size }).max(1);
        let (address, count) = (port.into(), bytes / size);
        Stopped::Access(Transfer { port: true, address, write, size, count, next: 0 })
    }

    /// The bytes of the access that KVM stopped for.
    fn data(&mut self, transfer: &Transfer) -> &mut [u8] {
        let run = self.fd.get_kvm_run();
        let bytes = transfer.size * transfer.count;
        if transfer.port {
            let start = std::ptr::from_mut(run).cast::<u8>();
            // SAFETY: the kernel says that so many bytes are at this offset of the vCPU's mapping, which lives as long as
            // the descriptor; nobody else refers to them.
            unsafe {
                let at = run.__bindgen_anon_1.io.data_offset as usize;
                std::slice::from_raw_parts_mut(start.add(at), bytes)
            }
        } else {
            // SAFETY: the exit's reason, which the kernel wrote, says that this is the field.
            let data = unsafe { &mut run.__bindgen_anon_1.mmio.data };
            let bytes = bytes.min(data.len());
            &mut data[..bytes]
        }
    }

    /// The next piece of an access, as an exit.
    fn next_piece(&mut self) -> Option<Exit> {
        let transfer = self.transfer?;
        let Transfer { port, address, write, size, next, count } = transfer;
        if next >= count {
            self.transfer = None;
            return None;
        }
        self.owed = Owed::Piece(next);
        let mut bytes = [0; 8];
        if write {
            let piece = self.data(&transfer).get(next * size..(next + 1) * size)?;
            bytes[..size].copy_from_slice(piece);
        }
        let value = u64::from_le_bytes(bytes);
        let width = size as u8;
        if port {
            let port = address as u16;
            return Some(match write {
                true => Exit::IoWrite { port, size: width, value: value as u32 },
                false => Exit::IoRead { port, size: width },
            });
        }
        let gpa = address + (next * size) as u64;
        let page = self.controls.apic_access_page.filter(|page| gpa & !0xfff == *page);
        let offset = (gpa & 0xfff) as u16;
        Some(match (page, write) {
            (Some(_), true) => Exit::ApicWrite { offset, size: width, value },
            (Some(_), false) => Exit::ApicRead { offset, size: width },
            (None, true) => Exit::MmioWrite { gpa, size: width, value },
            (None, false) => Exit::MmioRead { gpa, size: width },
        })
    }

    /// [`Vcpu::resume`](satori_engine::Vcpu::resume).
    pub(crate) fn take(&mut self, answer: Resume) {
        match (std::mem::take(&mut self.owed), answer) {
            (Owed::Nothing, _) => {}
            // Not to be: the instruction is executed again, or another one comes.
            (_, Resume::Continue) => {
                self.transfer = None;
                self.undo = true;
            }
            (Owed::MsrRead | Owed::MsrWrite, Resume::Fault(_)) => self.msr_answer(1, 0),
            (_, Resume::Fault(exception)) => {
                self.transfer = None;
                self.undo = true;
                // KVM sets it for faults of its own alone (Linux arch/x86/kvm/x86.c, `kvm_check_and_inject_events`).
                self.state.rflags |= rflags::RF;
                self.fault = Some(exception);
            }
            (Owed::MsrRead, Resume::Value(value)) => self.msr_answer(0, value),
            (Owed::MsrRead | Owed::MsrWrite, _) => self.msr_answer(0, 0),
            (Owed::Piece(piece), answer) => {
                let Some(mut transfer) = self.transfer else { return };
                if let (false, Resume::Value(value)) = (transfer.write, answer) {
                    let size = transfer.size;
                    let place = self.data(&transfer).get_mut(piece * size..(piece + 1) * size);
                    if let Some(place) = place {
                        place.copy_from_slice(&value.to_le_bytes()[..size]);
                    }
                }
                transfer.next = piece + 1;
                self.transfer = (transfer.next < transfer.count).then_some(transfer);
                self.owed = Owed::Completion;
            }
            (Owed::Hypercall, _) => {
                if self.vm.calls == Calls::Instruction {
                    // KVM sets RAX to it when it completes the instruction.
                    let result = self.state.gpr[reg::RAX];
                    self.fd.get_kvm_run().__bindgen_anon_1.xen.u.hcall.result = result;
                }
                self.owed = Owed::Completion;
            }
            (Owed::Completion, _) => self.owed = Owed::Completion,
        }
    }

    fn msr_answer(&mut self, error: u8, value: u64) {
        let run = self.fd.get_kvm_run();
        // SAFETY: an MSR's exit is what is answered, so this is the field.
        let msr = unsafe { &mut run.__bindgen_anon_1.msr };
        msr.error = error;
        if error == 0 {
            msr.data = value;
        }
        self.owed = Owed::Completion;
    }
}

fn memory_access(address: u64, bytes: usize, write: bool) -> Stopped {
    let (size, count) = if matches!(bytes, 1 | 2 | 4 | 8) { (bytes, 1) } else { (1, bytes) };
    Stopped::Access(Transfer { port: false, address, write, size, count, next: 0 })
}
