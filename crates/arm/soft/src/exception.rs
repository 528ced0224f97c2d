//! Exceptions: taking them, and coming back.

use satori_arm_state::virtual_interface::virtual_irq;
use satori_arm_state::{El, Pstate, Sys};

use crate::cpu::{Cpu, Exclusive, Stop, hcr};
use crate::exits::{Event, Exits};

/// Exception classes, ESR_ELx.EC.
pub(crate) mod ec {
    pub(crate) const UNKNOWN: u32 = 0x00;
    pub(crate) const WFX: u32 = 0x01;
    pub(crate) const FP: u32 = 0x07;
    pub(crate) const ILLEGAL: u32 = 0x0e;
    pub(crate) const SVC: u32 = 0x15;
    pub(crate) const HVC: u32 = 0x16;
    pub(crate) const SMC: u32 = 0x17;
    pub(crate) const SYS: u32 = 0x18;
    pub(crate) const INSTRUCTION_ABORT: u32 = 0x20;
    pub(crate) const PC_ALIGNMENT: u32 = 0x22;
    pub(crate) const DATA_ABORT: u32 = 0x24;
    pub(crate) const SP_ALIGNMENT: u32 = 0x26;
    pub(crate) const BREAKPOINT: u32 = 0x30;
    pub(crate) const STEP: u32 = 0x32;
    pub(crate) const WATCHPOINT: u32 = 0x34;
    pub(crate) const BRK: u32 = 0x3c;
}

/// A synchronous exception that is to be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Syndrome {
    pub ec: u32,
    pub iss: u32,
    /// FAR_ELx, if it is written.
    pub far: Option<u64>,
    /// HPFAR_EL2, if it is written.
    pub hpfar: Option<u64>,
    /// It is for EL2, whatever HCR_EL2 says.
    pub to_el2: bool,
}

impl Syndrome {
    pub(crate) fn new(ec: u32, iss: u32) -> Self {
        Syndrome { ec, iss, far: None, hpfar: None, to_el2: false }
    }

    pub(crate) fn at(self, far: u64) -> Self {
        Syndrome { far: Some(far), ..self }
    }

    pub(crate) fn to_el2(self) -> Self {
        Syndrome { to_el2: true, ..self }
    }
}

const SCTLR_SPAN: u64 = 1 << 23;

/// The registers of a level that takes exceptions.
struct Bank {
    spsr: Sys,
    elr: Sys,
    esr: Sys,
    far: Sys,
    vbar: Sys,
    sctlr: Sys,
}

static EL1: Bank = Bank {
    spsr: Sys::SPSR_EL1,
    elr: Sys::ELR_EL1,
    esr: Sys::ESR_EL1,
    far: Sys::FAR_EL1,
    vbar: Sys::VBAR_EL1,
    sctlr: Sys::SCTLR_EL1,
};
static EL2: Bank = Bank {
    spsr: Sys::SPSR_EL2,
    elr: Sys::ELR_EL2,
    esr: Sys::ESR_EL2,
    far: Sys::FAR_EL2,
    vbar: Sys::VBAR_EL2,
    sctlr: Sys::SCTLR_EL2,
};

impl Cpu {
    /// Takes a synchronous exception of the instruction at the program counter.
    pub(crate) fn raise(&mut self, syndrome: Syndrome) -> Stop {
        self.raise_from(syndrome, self.s.pc)
    }

    /// The same with another address to return to.
    #[cold]
    pub(crate) fn raise_from(&mut self, syndrome: Syndrome, back: u64) -> Stop {
        let from = self.s.pstate.el;
        let to_el2 = from == El::Two || syndrome.to_el2 || (from == El::Zero && self.tge());
        let (target, bank) = if to_el2 { (El::Two, &EL2) } else { (El::One, &EL1) };
        // Aborts and the like have a class of their own from a lower level.
        let same_level = match syndrome.ec {
            ec::INSTRUCTION_ABORT | ec::DATA_ABORT => u32::from(target == from),
            ec::BREAKPOINT | ec::STEP | ec::WATCHPOINT => u32::from(target == from),
            _ => 0,
        };
        let class = syndrome.ec + same_level;
        if target == El::Two {
            self.leave_guest(class as usize, back);
        }
        let esr = class << 26 | 1 << 25 | syndrome.iss;
        self.s.set(bank.esr, esr.into());
        if let Some(far) = syndrome.far {
            self.s.set(bank.far, far);
        }
        if let Some(hpfar) = syndrome.hpfar {
            self.s.set(Sys::HPFAR_EL2, hpfar);
        }
        self.take(target, bank, 0, back);
        Stop::Exception
    }

    /// Takes an IRQ.
    pub(crate) fn interrupt(&mut self, target: El) {
        let back = self.s.pc;
        if target == El::Two {
            self.leave_guest(Exits::IRQ, back);
        }
        self.take(target, if target == El::Two { &EL2 } else { &EL1 }, 0x80, back);
    }

    /// Counts an exception to EL2, if it leaves a hypervisor's guest.
    fn leave_guest(&mut self, class: usize, pc: u64) {
        if self.guest_executes() {
            self.exits.leave(class, pc, self.executed());
        }
    }

    fn take(&mut self, target: El, bank: &Bank, kind: u64, back: u64) {
        self.exits.happened(Event::Exceptions);
        let old = Pstate { ss: self.step_at_exception(back), ..self.s.pstate };
        self.s.set(bank.spsr, old.to_spsr());
        self.s.set(bank.elr, back);
        let table = match (old.el == target, old.own_sp) {
            (true, false) => 0,
            (true, true) => 0x200,
            (false, _) => 0x400,
        };
        self.s.enter(target, true);
        let host = target == El::One || (self.e2h() && self.tge());
        let pan = old.pan || (host && self.s.get(bank.sctlr) & SCTLR_SPAN == 0);
        let state = &mut self.s.pstate;
        (state.daif, state.uao, state.ss, state.il, state.pan) = (Pstate::DAIF, false, false, false, pan);
        self.s.pc = (self.s.get(bank.vbar) & !0x7ff) + table + kind;
        self.event = true;
        self.synchronise();
    }

    /// A hypervisor's guest executes: EL1 or EL0 behind stage 2 translation.
    fn guest_executes(&self) -> bool {
        self.s.pstate.el < El::Two && self.hcr() & (hcr::VM | hcr::TGE) == hcr::VM
    }

    /// ERET.
    pub(crate) fn exception_return(&mut self) -> Stop {
        let bank = if self.s.pstate.el == El::Two { &EL2 } else { &EL1 };
        let (spsr, back) = (self.s.get(bank.spsr), self.s.get(bank.elr));
        let from = self.s.pstate.el;
        let to = Pstate::of_spsr(spsr).filter(|to| {
            to.el <= from && !(to.el == El::One && self.tge()) && (to.el != El::Two || self.offered.el2)
        });
        match to {
            Some(to) => {
                let ss = self.step_after_return(&to);
                self.s.enter(to.el, to.own_sp);
                self.s.pstate = Pstate { ss, ..to };
            }
            // An illegal return: the level stays, and the next instruction faults.
            None => {
                let state = &mut self.s.pstate;
                (state.il, state.ss) = (true, false);
                state.nzcv = spsr as u32 & 0xf000_0000;
                state.daif = spsr as u32 & Pstate::DAIF;
            }
        }
        self.s.pc = back;
        self.exclusive = Exclusive::default();
        self.event = true;
        self.exits.happened(Event::Returns);
        if self.s.pstate.el == El::Zero {
            self.exits.happened(Event::ToPrograms);
        }
        if from == El::Two && self.guest_executes() {
            self.exits.go_on(back, self.executed());
        }
        self.synchronise();
        Stop::Synchronise
    }

    /// UNDEFINED.
    pub(crate) fn undefined(&mut self) -> Stop {
        self.raise(Syndrome::new(ec::UNKNOWN, 0))
    }

    /// The trap of the floating-point unit, which is not to be used now.
    pub(crate) fn fp_trap(&mut self) -> Stop {
        // CV and COND as for an unconditional instruction.
        let syndrome = Syndrome::new(ec::FP, 0x1e0_0000);
        let guest = self.s.pstate.el < El::Two && !(self.e2h() && self.tge());
        match guest && self.fp_enabled_at_el1() {
            true => self.raise(syndrome.to_el2()),
            false => self.raise(syndrome),
        }
    }

    fn fp_enabled_at_el1(&self) -> bool {
        match self.s.get(Sys::CPACR_EL1) >> 20 & 3 {
            3 => true,
            1 => self.s.pstate.el != El::Zero,
            _ => false,
        }
    }

    fn fp_enabled(&self) -> bool {
        let el = self.s.pstate.el;
        let host = self.e2h() && (el == El::Two || self.tge());
        let el1 = host || el == El::Two || self.fp_enabled_at_el1();
        let cptr = self.s.get(Sys::CPTR_EL2);
        let el2 = match (self.offered.el2, self.e2h()) {
            (false, _) => true,
            (true, false) => cptr & 1 << 10 == 0,
            (true, true) => match cptr >> 20 & 3 {
                3 => true,
                1 => !(el == El::Zero && self.tge()),
                _ => false,
            },
        };
        el1 && el2
    }

    /// Works out what depends on level, masks and controls, behind whatever changed them.
    pub(crate) fn synchronise(&mut self) {
        self.fp_ok = self.fp_enabled();
        self.choose_modes();
        self.arm_debug();
    }

    /// Physical IRQs go to EL2.
    pub(crate) fn routes_irq_to_el2(&self) -> bool {
        self.hcr() & (hcr::IMO | hcr::TGE) != 0
    }

    /// A virtual IRQ is pending for EL1: the hypervisor's own (HCR_EL2.VI), or the virtual CPU interface's.
    #[inline]
    pub(crate) fn virq(&self) -> bool {
        let control = self.hcr();
        control & (hcr::IMO | hcr::TGE) == hcr::IMO && (control & hcr::VI != 0 || virtual_irq(&self.s))
    }
}
