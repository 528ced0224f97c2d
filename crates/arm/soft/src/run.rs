//! The loop that executes.

mod hosted;

use satori_arm_engine::Exit;
use satori_arm_state::Pstate;
use satori_seam::{DebugCause, Stat, Until};

use crate::code::{Insn, SLOTS, Source};
use crate::cpu::{Cpu, Flow, Stop};
use crate::exception::{Syndrome, ec};

pub(crate) use hosted::Hosted;

/// Instructions between two looks at kicks and lines, at most.
const CHUNK: u64 = 4096;

/// Exceptions without an instruction between them, until the vCPU counts as lost.
const HOPELESS: u32 = 1000;

/// What executes instructions in place of the interpreter.
pub trait Execute: Send {
    /// Executes what was granted ([`Cpu::left`]), unless something stops it, which is counted ([`Cpu::counted`]).
    fn execute(&mut self, cpu: &mut Cpu) -> Option<Stop>;

    /// What it counted.
    fn stats(&self) -> Vec<Stat>;
}

impl Cpu {
    /// Executes until something needs the machine.
    pub(crate) fn run(&mut self, until: Until, with: Option<&mut (dyn Execute + '_)>) -> Exit {
        self.exit = None;
        self.everyone.come_in(self.index);
        self.synchronise();
        let exit = self.run_inside(until, with);
        self.settle();
        self.tell_time();
        self.everyone.go_out(self.index);
        exit
    }

    /// Counts what was executed of the grant.
    fn settle(&mut self) {
        self.retired += self.granted - self.left;
        self.granted = 0;
        self.left = 0;
    }

    fn run_inside(&mut self, until: Until, mut with: Option<&mut (dyn Execute + '_)>) -> Exit {
        let end = until.instructions.map(|most| self.retired.saturating_add(most));
        loop {
            if self.everyone.has_mail(self.index) {
                self.read_mail();
            }
            if self.kick.take() {
                return Exit::Kicked;
            }
            let left = end.map_or(CHUNK, |end| end.saturating_sub(self.retired).min(CHUNK));
            if left == 0 {
                return Exit::Over;
            }
            if let Some(at) = until.counter
                && self.counter() >= at
            {
                return Exit::Over;
            }
            let debugging = !self.debug.breakpoints.is_empty() || self.debug.step;
            // What was asked is replayed for one instruction, which no interrupt divides from its answers.
            let answered = self.replay();
            if !answered && (self.controls.irq || self.virq()) {
                let before = self.s.pc;
                self.take_interrupt();
                // The vector's first instruction comes behind no other.
                if self.s.pc != before && !self.debug.step && self.debug.breakpoints.contains(&self.s.pc) {
                    return Exit::Debug(DebugCause::Breakpoint);
                }
            }
            let hosted = self.hosted.armed();
            let single = answered || debugging || hosted;
            self.granted = if single { 1 } else { left };
            self.left = self.granted;
            let stop = match &mut with {
                _ if hosted => self.execute_debugged(),
                Some(with) if !single => with.execute(self),
                _ => self.execute(),
            };
            self.settle();
            if single && self.exit.is_none() {
                self.forget_answers();
            }
            match stop {
                None | Some(Stop::Exception | Stop::Synchronise) => {}
                Some(Stop::Ask) => return self.exit.take().unwrap_or(Exit::Kicked),
                Some(Stop::Leave) => {
                    self.forget_answers();
                    return self.exit.take().unwrap_or(Exit::Kicked);
                }
            }
            if self.hopeless > HOPELESS {
                return Exit::Lost(self.s.pc);
            }
            if debugging {
                if self.debug.step {
                    return Exit::Debug(DebugCause::Step);
                }
                if self.debug.breakpoints.contains(&self.s.pc) {
                    return Exit::Debug(DebugCause::Breakpoint);
                }
            }
        }
    }

    /// Executes what was granted, unless something stops it.
    fn execute(&mut self) -> Option<Stop> {
        self.interpret(false)
    }

    #[inline(always)]
    fn interpret(&mut self, to_branch: bool) -> Option<Stop> {
        while self.left > 0 {
            let slot = match self.fetch() {
                Ok(slot) => slot,
                Err(stop) => return Some(self.counted(stop)),
            };
            let Some(mut page) = self.code.pages[slot].take() else { return Some(Stop::Synchronise) };
            let base = self.s.pc & !0xfff;
            let stop = loop {
                let at = (self.s.pc >> 2) as usize % SLOTS;
                let insn = &page.insns[at];
                let Some(run) = insn.run else {
                    page.decode(at);
                    continue;
                };
                if insn.fp && !self.fp_ok {
                    break Some(self.fp_trap());
                }
                let jumped = match run(self, insn) {
                    Ok(Flow::Next) => {
                        self.s.pc = self.s.pc.wrapping_add(4);
                        false
                    }
                    Ok(Flow::Jump) => true,
                    Err(stop) => break Some(stop),
                };
                self.left -= 1;
                if (to_branch && jumped) || self.left == 0 || self.s.pc & !0xfff != base {
                    break None;
                }
            };
            self.code.pages[slot] = Some(page);
            if let Some(stop) = stop {
                return Some(self.counted(stop));
            }
            self.hopeless = 0;
            if to_branch {
                break;
            }
        }
        None
    }

    /// Executes up to a branch or the end of the page, or what was granted.
    pub fn interpret_block(&mut self) -> Option<Stop> {
        self.interpret(true)
    }

    /// The page that the program counter is in.
    pub fn source(&mut self) -> Result<Source, Stop> {
        let slot = self.fetch()?;
        self.code.pages[slot].as_ref().map(|page| page.source()).ok_or(Stop::Synchronise)
    }

    /// Executes `insn`, which is at the program counter, without moving that behind it, and without counting it.
    pub fn step(&mut self, insn: &Insn) -> Result<Flow, Stop> {
        if insn.fp && !self.fp_ok {
            return Err(self.fp_trap());
        }
        match insn.run {
            Some(run) => run(self, insn),
            None => Err(Stop::Synchronise),
        }
    }

    /// Instructions were completed: what comes is not hopeless.
    pub fn progressed(&mut self) {
        self.hopeless = 0;
    }

    /// Counts the instruction that stopped: one that asks was not executed, and one that faulted counts, so that time passes.
    pub fn counted(&mut self, stop: Stop) -> Stop {
        match stop {
            Stop::Ask => {}
            Stop::Exception => {
                self.left -= 1;
                self.hopeless += 1;
            }
            Stop::Synchronise | Stop::Leave => {
                self.left -= 1;
                self.hopeless = 0;
            }
        }
        stop
    }

    /// The slot of the page that the program counter is in.
    #[inline(always)]
    fn fetch(&mut self) -> Result<usize, Stop> {
        let pc = self.s.pc;
        if let Some(slot) = self.tlb.code(self.mode, pc)
            && self.code.pages[slot].as_ref().is_some_and(|page| page.valid())
        {
            return Ok(slot);
        }
        self.fetch_slow(pc)
    }

    #[cold]
    fn fetch_slow(&mut self, pc: u64) -> Result<usize, Stop> {
        if self.s.pstate.il {
            return Err(self.raise(Syndrome::new(ec::ILLEGAL, 0)));
        }
        if pc & 3 != 0 {
            return Err(self.raise(Syndrome::new(ec::PC_ALIGNMENT, 0).at(pc)));
        }
        let gpa = self.translate_fetch(pc)?;
        let (slot, dropped) = self.code.slot(&self.memory, gpa, self.alone);
        if dropped {
            self.tlb.forget_code();
        }
        match slot {
            Some(slot) => {
                self.tlb.set_code(self.mode, pc, slot);
                Ok(slot)
            }
            // No code runs from devices: a synchronous external abort.
            None => Err(self.fetch_abort(pc)),
        }
    }

    /// Whether an IRQ for this core would be taken now, masks aside from those of PSTATE.
    pub(crate) fn interrupt_pending(&self) -> bool {
        self.controls.irq || self.virq()
    }

    fn take_interrupt(&mut self) {
        use satori_arm_state::El;
        let masked = self.s.pstate.daif & Pstate::I != 0;
        if self.controls.irq {
            let to_el2 = self.routes_irq_to_el2();
            // An IRQ for EL2 is masked only there.
            if (to_el2 && self.s.pstate.el < El::Two) || !masked {
                if !to_el2 && self.s.pstate.el == El::Two {
                    return;
                }
                return self.interrupt(if to_el2 { El::Two } else { El::One });
            }
        }
        if self.virq() && self.s.pstate.el < El::Two && !masked {
            self.interrupt(El::One);
        }
    }
}
