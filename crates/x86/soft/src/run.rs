//! What may happen between two instructions: events, looks at the clock, instructions by themselves.

use iced_x86::{Instruction, Mnemonic};
use satori_defs::x86::{dr6, rflags, vector};
use satori_engine::{Doing, Event, Exception, Exit, Fate, Resume, Until, Window};
use satori_state::Activity;
use satori_vmx::control::proc;
use satori_vmx::event::{Interruption, kind};

use crate::block::BLOCK_RIP;
use crate::cpu::{Asking, Cpu, Exec, Handler, Stop};
use crate::debug;
use crate::system::{self, InterruptKind};
use crate::vmx;

/// When to look up from executing.
pub struct Horizon {
    until: Until,
    /// Retired instructions at which to look.
    pub look: u64,
    /// Retired instructions at which the budget ends.
    pub end: u64,
    interval: u64,
}

impl Cpu {
    /// Gets ready to execute until something needs the machine; the clock is looked at every `interval` instructions.
    pub(crate) fn begin_run(&mut self, until: Until, interval: u64) -> Horizon {
        self.flags.set_bits(self.state.rflags);
        self.forget_vmx();
        self.forget_svm();
        self.mode_changed();
        self.notice_map();
        self.arm();
        self.notice_watched();
        self.windows.until = until.counter;
        self.count.begin_run(until.instructions.is_some());
        let end = until.instructions.map_or(u64::MAX, |n| self.count.retired.saturating_add(n));
        let look = end.min(self.count.retired + interval);
        if std::mem::take(&mut self.controls.continued) {
            self.debug.owned = self.debug.lent;
        }
        self.doing().set(Doing::Interpreting);
        Horizon { until, look, end, interval }
    }

    /// Brings the register file up to date behind a run that ended with `exit`.
    pub(crate) fn end_run(&mut self, exit: Exit) {
        self.doing().set(Doing::Exit);
        self.leave_block();
        self.return_resume();
        self.keep_shadow(exit);
        self.tell_retired(self.count.retired);
        self.state.rflags = self.rflags();
        if exit.reason().is_some() {
            self.debug.lent = std::mem::take(&mut self.debug.owned);
        }
    }

    /// What comes before the first block of a run: an instruction that was answered, an event that was injected.
    pub(crate) fn go_on(&mut self) -> Option<Exit> {
        if self.state.activity == Activity::Shutdown {
            return Some(Exit::TripleFault);
        }
        if self.pending.answered()
            && let Some(exit) = self.step()
        {
            return Some(exit);
        }
        if let Some(event) = self.pending.injected.take()
            && let Some(exit) = self.deliver(event)
        {
            return Some(exit);
        }
        // A guest that sleeps in HLT is left for its timer and its windows as any other (SDM 25.2, 25.5.1).
        if self.state.activity == Activity::Halted && self.guest_look() {
            return self.shut_down();
        }
        None
    }

    /// The exit of a processor that an event or an abort of VMX shut down.
    pub(crate) fn shut_down(&self) -> Option<Exit> {
        (self.state.activity == Activity::Shutdown).then_some(Exit::TripleFault)
    }

    /// Gives the shadow of an STI of translated code to a run that ends behind it: an interrupt that came between
    /// STI and HLT would leave the guest asleep with what it brought.
    fn keep_shadow(&mut self, exit: Exit) {
        let behind = std::mem::take(&mut self.windows.behind_sti);
        if behind != 0
            && behind == self.state.rip as u32
            && self.state.rflags & rflags::IF != 0
            && matches!(exit, Exit::ExternalInterrupt | Exit::PreemptionTimer)
        {
            self.state.interrupt_shadow = true;
        }
    }

    /// Looks at everything that can come between two instructions.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_around(&mut self, horizon: &mut Horizon) -> Option<Exit> {
        self.return_resume();
        self.windows.attention = false;
        if let Some(exit) = self.debug.report() {
            self.windows.attention = true;
            return Some(exit);
        }
        // INIT comes before all that a guest's instructions bring (SDM 6.9).
        if self.windows.signal && self.init_fate() != Fate::Waits {
            (self.windows.attention, self.windows.signal) = (true, false);
            return Some(Exit::Budget);
        }
        // Traps of the last instruction come before everything else (SDM 6.9).
        if self.state.pending_debug != 0
            && !self.state.ss_shadow
            && let Some(exit) = self.deliver_traps()
        {
            return Some(exit);
        }
        if std::mem::take(&mut self.pending.comes_out) {
            self.windows.attention = true;
            return Some(Exit::Budget);
        }
        if self.kick().take() {
            self.windows.attention = true;
            return Some(Exit::ExternalInterrupt);
        }
        if self.kick().paused() {
            self.seat().stand_aside();
        }
        if std::mem::take(&mut self.windows.due) || self.count.retired >= horizon.look {
            self.windows.attention = true;
            self.tell_retired(self.count.retired);
            if horizon.until.counter.is_some_and(|deadline| self.time().counter() >= deadline) {
                return Some(Exit::PreemptionTimer);
            }
            if self.count.retired >= horizon.end {
                return Some(Exit::Budget);
            }
            horizon.look = horizon.end.min(self.count.retired + horizon.interval);
            self.windows.attention = false;
        }
        if self.pending.task_switches > 0 {
            self.pending.task_switches -= 1;
            self.windows.attention = true;
            return Some(Exit::TaskSwitch);
        }
        // The trap's own delivery met a breakpoint: another trap, before the handler's first
        // instruction.
        if self.state.pending_debug != 0 && !self.state.ss_shadow {
            self.windows.attention = true;
            return None;
        }
        // What follows comes between two instructions, which a shadow makes one. Kicks and
        // budgets come first: a guest may be under the trap flag for as long as it likes.
        if self.state.interrupt_shadow || self.state.pending_debug != 0 || self.debug.steps() {
            self.windows.attention = true;
            return self.step();
        }
        // What a guest, or its hypervisor, begins with has windows of its own.
        if self.guest_look()
            && let Some(exit) = self.shut_down()
        {
            return Some(exit);
        }
        if self.take_held_nmi() {
            return self.deliver(Event::Nmi);
        }
        if self.state.tpr >> 4 < self.controls.tpr_threshold {
            return Some(Exit::TprBelowThreshold);
        }
        if self.windows.nmi {
            self.windows.attention = true;
            if self.nmis_open() {
                return Some(Exit::NmiWindow);
            }
        }
        if self.windows.interrupt {
            self.windows.attention = true;
            if self.windows.machine && self.interrupts_open() {
                return Some(Exit::InterruptWindow);
            }
            if self.state.rflags & rflags::IF != 0
                && self.svm.takes_held(self.vmx.guest)
                && let Some(vector) = self.vmx.held.take()
            {
                self.choose_windows();
                return self.deliver(Event::Interrupt(vector));
            }
        }
        self.drop_resume(self.count.retired);
        // Interrupts come between single steps as well.
        if self.special() {
            self.windows.attention = true;
            return self.step();
        }
        None
    }

    /// Whether [`Cpu::look_around`] would find nothing that comes before the next instruction.
    #[inline]
    pub fn nothing_to_see(&self) -> bool {
        let state = &self.state;
        !(self.kick().pending()
            || self.windows.due
            || self.special()
            || self.pending.task_switches > 0
            || state.tpr >> 4 < self.controls.tpr_threshold
            || self.windows.nmi
            || self.windows.interrupt && (state.rflags & rflags::IF != 0 || self.vmx.guest))
    }

    /// Whether the next instruction has to be executed by itself, and looked at.
    #[inline]
    pub(crate) fn special(&self) -> bool {
        let state = &self.state;
        state.interrupt_shadow
            || state.rflags & (rflags::TF | rflags::RF) != 0
            || state.pending_debug != 0
            || self.vmx.trap
            || self.vmx.proc & proc::MONITOR_TRAP != 0
            || self.debug.steps()
    }

    /// Executes the one instruction at RIP by its generic implementation, with all that concerns
    /// single instructions: breakpoints, shadows, and the trap flag.
    pub fn step(&mut self) -> Option<Exit> {
        self.leave_block();
        self.decoded.steps += 1;
        let (shadow, ss_shadow) = (self.state.interrupt_shadow, self.state.ss_shadow);
        let held = self.state.pending_debug;
        let guest = self.vmx.guest;
        let (resume, single) = (self.state.rflags & rflags::RF, self.state.rflags & rflags::TF != 0);
        // An instruction that was answered has passed its breakpoints before it asked. A load of
        // SS masks them as RF does (SDM 6.8.3).
        if !self.pending.answered() {
            match self.code_breakpoint(resume != 0 || ss_shadow || !self.svm.gif) {
                Ok(0) => {}
                Ok(hits) => {
                    // As in `stopped`.
                    self.count.retired += 1;
                    return self.deliver(Event::Exception(debug::exception(hits)));
                }
                Err(exit) => return Some(exit),
            }
        }
        (self.state.interrupt_shadow, self.state.ss_shadow) = (false, false);
        self.vmx.in_ss_shadow = ss_shadow;
        // An instruction that ended early had no effect on the local APIC.
        self.vmx.written = None;
        // RF is for one instruction; those that load it set it again.
        self.state.rflags &= !rflags::RF;
        self.debug.begin();
        self.state.gpr[BLOCK_RIP] = self.state.rip;
        let mut mnemonic = Mnemonic::INVALID;
        let (rip, code_mode) = (self.state.rip, self.derived.code_mode);
        let mut asking = None;
        let outcome = self.answered_or_fetched().and_then(|(handler, insn)| {
            mnemonic = insn.mnemonic();
            asking = Some(Asking { rip, code_mode, handler, insn });
            self.next_rip = self.next_ip(&insn);
            self.begin();
            self.pending.by_itself = true;
            handler(self, &insn)
        });
        self.pending.by_itself = false;
        let (completed, exit) = match outcome {
            Ok(()) => {
                self.pending.forget_answers();
                self.state.rip = self.next_rip;
                (true, None)
            }
            Err(Stop::Exit) => {
                // With the answer it is not fetched again.
                self.pending.asking = asking;
                (self.state.rip != self.state.gpr[BLOCK_RIP], Some(self.pending.wanted))
            }
            Err(stop) => {
                self.debug.end(false);
                if self.pending.fault == Some(vmx::EXIT) {
                    // A VM exit leaves the instruction as if it had not begun.
                    (self.state.interrupt_shadow, self.state.ss_shadow) = (shadow, ss_shadow);
                    self.state.rflags |= resume;
                } else if let Stop::Fault = stop {
                    self.lose(held);
                }
                return self.stopped(stop);
            }
        };
        let hits = self.debug.end(completed);
        if !completed {
            // As if it had not begun.
            (self.state.interrupt_shadow, self.state.ss_shadow) = (shadow, ss_shadow);
            self.state.rflags |= resume;
            return exit;
        }
        // HLT and PAUSE have completed when they exit.
        self.count.retired += 1;
        if mnemonic == Mnemonic::Int1 {
            // It is an exception, unlike INT n, INT3 and INTO.
            self.lose(held);
        }
        if guest && self.vmx.proc & proc::MONITOR_TRAP != 0 {
            self.vmx.trap = true;
        }
        // A guest that was entered has traps of its own; without GIF breakpoints are not seen.
        let entered = !guest && self.vmx.guest;
        let single = !entered && single_steps(mnemonic, single, self.state.rflags & rflags::TF != 0);
        let hits = if self.svm.gif { hits } else { 0 };
        // A load of SS suppresses its single step, and holds back its data breakpoints.
        let step = if single && !self.state.ss_shadow { dr6::BS } else { 0 };
        self.state.pending_debug |= hits | step;
        if self.vmx.written.is_some() && self.follow_virtual_write() {
            return exit.or(self.shut_down());
        }
        if self.special() {
            self.windows.attention = true;
            let first = !self.state.ss_shadow && !self.debug.met_watchpoint() && !self.windows.signal;
            if self.state.pending_debug != 0 && first {
                return exit.or(self.deliver_traps());
            }
        }
        exit
    }

    /// The instruction at RIP: if it was answered, as it was when it asked.
    fn answered_or_fetched(&mut self) -> Exec<(Handler, Instruction)> {
        if let Some(asking) = self.pending.asking.take()
            && self.pending.answered()
            && (asking.rip, asking.code_mode) == (self.state.rip, self.derived.code_mode)
        {
            return Ok((asking.handler, asking.insn));
        }
        self.fetch_decoded()
    }

    /// Delivers the debug traps that are pending.
    fn deliver_traps(&mut self) -> Option<Exit> {
        let bits = std::mem::take(&mut self.state.pending_debug);
        let exit = self.deliver(Event::Exception(debug::exception(bits)));
        if self.state.pending_debug != 0 {
            // A guest may watch the stack that the trap itself is pushed to: time has to pass.
            self.count.retired += 1;
        }
        exit
    }

    /// Data breakpoints that a load of SS held back are lost when the instruction behind it causes an exception
    /// (SDM 17.3.1.2).
    fn lose(&mut self, held: u64) {
        self.state.pending_debug &= !held;
    }

    /// Handles an instruction's early end: delivers its exception, or leaves.
    pub fn stopped(&mut self, stop: Stop) -> Option<Exit> {
        match stop {
            Stop::Exit => Some(self.pending.wanted),
            // Only blocks end so, and they go on in [`Cpu::step`].
            Stop::Alone => None,
            Stop::Fault => {
                self.pending.forget_answers();
                let exception = self.pending.fault.take().unwrap_or(Exception::ud());
                // It stands for the instruction that did not complete: a guest whose handlers
                // fault at their first instruction must not stop time, nor outrun its budget.
                self.count.retired += 1;
                if exception == vmx::EXIT {
                    self.vm_exit();
                    return self.shut_down();
                }
                self.deliver(Event::Exception(exception))
            }
        }
    }

    fn deliver(&mut self, event: Event) -> Option<Exit> {
        let trap = !matches!(event, Event::Exception(Exception { vector, .. }) if vector != vector::DB);
        if trap && self.debug.between_iterations(self.state.rip) {
            // What comes between two iterations finds RF set (SDM 17.3.1.1).
            self.state.rflags |= rflags::RF;
        }
        if self.leave_for_event(event) {
            return self.shut_down();
        }
        self.vmx.vectoring = if self.vmx.guest { self.vectoring(event) } else { Interruption::default() };
        self.state.activity = Activity::Active;
        self.pending.delivering = true;
        let outcome = match event {
            Event::Exception(exception) => {
                self.count.deliver(exception.vector);
                system::raise_fault(self, exception)
            }
            Event::Interrupt(vector) => system::interrupt(self, vector, InterruptKind::External),
            Event::Nmi => {
                let outcome = system::interrupt(self, vector::NMI, InterruptKind::Nmi);
                self.state.nmi_blocked = true;
                outcome
            }
        };
        self.pending.delivering = false;
        // A trap of HLT wakes; every event ends a shadow.
        self.state.activity = Activity::Active;
        (self.state.interrupt_shadow, self.state.ss_shadow) = (false, false);
        self.state.pending_debug |= self.debug.delivered();
        self.windows.attention = true;
        match outcome {
            Ok(()) => {
                self.vmx.vectoring = Interruption::default();
                None
            }
            outcome if self.vmx.guest => {
                self.undelivered(outcome);
                self.shut_down()
            }
            Err(_) => {
                self.state.activity = Activity::Shutdown;
                Some(Exit::TripleFault)
            }
        }
    }

    /// What a VM exit on the way of `event` has to tell of it. Exceptions say so themselves; one that came of the delivery of INT n
    /// leaves what is told of that.
    fn vectoring(&self, event: Event) -> Interruption {
        match event {
            Event::Interrupt(vector) => Interruption::new(vector, kind::EXTERNAL_INTERRUPT, None),
            Event::Nmi => Interruption::new(vector::NMI, kind::NMI, None),
            Event::Exception(_) => self.vmx.vectoring,
        }
    }

    /// Has `event` delivered before the next instruction.
    pub fn inject(&mut self, event: Event) {
        self.pending.injected = Some(event);
    }

    /// Whether the machine is to hear when it can inject.
    pub fn request_window(&mut self, window: Window, wanted: bool) {
        match window {
            Window::Interrupt => {
                self.windows.machine = wanted;
                self.choose_windows();
            }
            Window::Nmi => self.windows.nmi = wanted,
        }
    }

    /// Whether it could inject now.
    pub fn can_take(&self, window: Window) -> bool {
        let state = &self.state;
        let open = match window {
            Window::Interrupt => self.interrupts_open(),
            Window::Nmi => self.nmis_open(),
        };
        open && !state.interrupt_shadow && state.pending_debug == 0
    }

    /// Takes the answer to the last exit.
    pub fn resume(&mut self, answer: Resume) {
        match (self.pending.wanted, answer) {
            (_, Resume::Continue) => self.pending.forget_answers(),
            // The instruction will find the memory there, and not ask again.
            (Exit::EptViolation { .. }, Resume::Done) => {}
            (_, answer) => self.pending.answer(answer),
        }
    }
}

/// Whether a single-step trap follows an instruction, by the trap flag before and after it (SDM
/// 17.3.1.4).
fn single_steps(mnemonic: Mnemonic, before: bool, after: bool) -> bool {
    match mnemonic {
        // Gates clear the flag before the trap would be taken.
        Mnemonic::Int | Mnemonic::Int1 | Mnemonic::Int3 | Mnemonic::Into => before && after,
        // Only the new flag counts, so that a system masks the trap by IA32_FMASK and SYSRET takes
        // it as if the SYSCALL had just completed (Linux c8401dda2f0a).
        Mnemonic::Syscall | Mnemonic::Sysret | Mnemonic::Sysretq => after,
        _ => before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, machine64};
    use satori_defs::x86::efer;
    use satori_engine::CpuidResult;
    use satori_memory::Gpa;
    use satori_state::{DescriptorTable, reg};

    const CODE: u64 = 0x5_0000;

    fn at_code(bytes: &[u8]) -> Machine {
        let mut cpu = machine64();
        cpu.memory.write(Gpa(CODE), bytes).unwrap();
        for piece in 0..2u64 {
            if let Some(page) = cpu.memory.page(Gpa(piece << 21)) {
                page.state.touch();
            }
        }
        cpu.state.rip = CODE;
        cpu
    }

    fn instructions(n: u64) -> Until {
        Until { counter: None, instructions: Some(n) }
    }

    #[test]
    fn a_budget_ends_exactly_under_a_shadow_too() {
        // STI; NOP; NOP.
        let mut cpu = at_code(&[0xfb, 0x90, 0x90, 0x90]);
        for (retired, shadow) in [(1, true), (2, false), (3, false)] {
            assert_eq!(cpu.run(instructions(1)), Exit::Budget);
            assert_eq!((cpu.count.retired, cpu.state.rip), (retired, CODE + retired));
            assert_eq!(cpu.state.interrupt_shadow, shadow, "after {retired}");
        }
    }

    #[test]
    fn the_shadow_ends_with_an_answered_instruction() {
        // STI; CPUID; NOP.
        let mut cpu = at_code(&[0xfb, 0x0f, 0xa2, 0x90]);
        assert!(matches!(cpu.run(instructions(9)), Exit::Cpuid { .. }));
        assert!(cpu.state.interrupt_shadow, "CPUID has not been executed");
        cpu.resume(Resume::Cpuid(Default::default()));
        assert_eq!(cpu.run(instructions(1)), Exit::Budget);
        assert_eq!((cpu.state.rip, cpu.state.interrupt_shadow), (CODE + 3, false));
    }

    #[test]
    fn an_answer_is_for_the_instruction_that_asked() {
        // STI; CPUID, which is by itself in the shadow.
        let mut cpu = at_code(&[0xfb, 0x0f, 0xa2, 0x90]);
        assert!(matches!(cpu.run(instructions(9)), Exit::Cpuid { .. }));
        // Somebody writes UD2 there meanwhile.
        cpu.memory.write(Gpa(CODE + 1), &[0x0f, 0x0b]).unwrap();
        cpu.resume(Resume::Cpuid(CpuidResult { eax: 7, ..Default::default() }));
        assert_eq!(cpu.run(instructions(1)), Exit::Budget);
        assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RAX]), (CODE + 3, 7));
    }

    #[test]
    fn a_syscall_to_itself_under_the_trap_flag_does_not_run_for_ever() {
        let mut cpu = at_code(&[0x0f, 0x05]);
        cpu.state.efer |= efer::SCE;
        cpu.state.star = 8 << 32;
        cpu.state.lstar = CODE;
        cpu.state.fmask = 0;
        cpu.state.rflags |= rflags::TF;
        // There is no IDT for the trap.
        cpu.state.idtr.limit = 0;
        assert_eq!(cpu.run(instructions(1_000)), Exit::TripleFault);
    }

    #[test]
    fn a_handler_that_faults_for_ever_uses_up_its_budget() {
        // UD2, whose handler it is itself.
        let mut cpu = at_code(&[0x0f, 0x0b]);
        let idt = 0x8000;
        let gate = CODE & 0xffff | 8 << 16 | 0x8e00 << 32 | (CODE >> 16 & 0xffff) << 48;
        cpu.memory.write(Gpa(idt + 16 * u64::from(vector::UD)), &gate.to_le_bytes()).unwrap();
        cpu.state.idtr = DescriptorTable { base: idt, limit: 0x1ff };
        let gdt = 0x9000;
        cpu.memory.write(Gpa(gdt + 8), &0x00af_9b00_0000_ffff_u64.to_le_bytes()).unwrap();
        cpu.state.gdtr = DescriptorTable { base: gdt, limit: 0xf };
        cpu.state.gpr[reg::RSP] = 0x20_0000;
        assert_eq!(cpu.run(instructions(10_000)), Exit::Budget);
        assert_eq!((cpu.count.retired, cpu.state.rip), (10_000, CODE));
    }

    #[test]
    fn a_kick_ends_a_run_under_the_trap_flag() {
        let mut cpu = at_code(&[0x90, 0x90]);
        cpu.state.rflags |= rflags::TF;
        cpu.kick().kick();
        assert_eq!(cpu.run(Until::default()), Exit::ExternalInterrupt);
        assert_eq!(cpu.state.rip, CODE);
    }
}
