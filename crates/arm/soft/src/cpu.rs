//! A vCPU: its registers, its tables, and what it asks of the machine.

use std::sync::Arc;

use satori_arm_engine::{Answer, Controls, Exit, Offered};
use satori_arm_state::{CpuState, El, Sys};
use satori_memory::GuestMemory;
use satori_seam::{DebugPlan, Kick, TimeSource};

use crate::code::Code;
use crate::exits::Exits;
use crate::mmu::Tlb;
use crate::run::Hosted;
use crate::shoot::Everyone;

/// How an instruction went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next one follows.
    Next,
    /// It set the program counter.
    Jump,
}

/// Why the run of instructions is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// An exception was taken: the program counter is at its vector.
    Exception,
    /// It needs the machine, and will be executed again.
    Ask,
    /// It is complete, and what follows may be seen differently: translation, level, masks, code.
    Synchronise,
    /// It is complete, and the machine has to look.
    Leave,
}

/// What LDXR noted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exclusive {
    /// Its address.
    pub address: u64,
    /// How many bytes; none if nothing is noted.
    pub size: u64,
    /// What they were.
    pub value: u128,
}

impl Exclusive {
    /// Whether an access of `size` bytes at `address` is what was noted.
    pub(crate) fn is(&self, address: u64, size: u64) -> bool {
        (self.address, self.size) == (address, size)
    }
}

/// A vCPU.
pub struct Cpu {
    /// Its registers.
    pub s: CpuState,
    pub(crate) memory: GuestMemory,
    pub(crate) time: Arc<dyn TimeSource>,
    pub(crate) offered: Offered,
    pub(crate) controls: Controls,
    /// No other vCPU runs at the same time.
    pub(crate) alone: bool,
    pub(crate) index: u32,
    pub(crate) kick: Arc<Kick>,
    pub(crate) everyone: Arc<Everyone>,
    pub(crate) tlb: Tlb,
    pub(crate) code: Code,
    /// What stopped the run.
    pub(crate) exit: Option<Exit>,
    answers: Vec<Answer>,
    answered: usize,
    /// What LDXR noted.
    pub exclusive: Exclusive,
    /// The event register of WFE.
    pub(crate) event: bool,
    /// Whether using the floating-point unit traps nowhere.
    pub(crate) fp_ok: bool,
    /// Translation regime and rights of accesses as they are now: an index below [`crate::MODE_COUNT`].
    pub mode: usize,
    /// Those of LDTR and STTR.
    pub(crate) user_mode: usize,
    /// Instructions left until the run looks around.
    pub left: u64,
    /// N, Z, C and V while translated code executes, in a form of its own.
    pub flags: u64,
    /// Whether the host's MXCSR has this vCPU's rounding mode and collects its flags: only while translated code executes.
    pub mxcsr_is_guest: u32,
    /// What it was when it was given back.
    pub mxcsr: u32,
    /// How many instructions it got.
    pub(crate) granted: u64,
    pub(crate) retired: u64,
    /// How many of them the time source was told of.
    pub(crate) told: u64,
    pub(crate) debug: DebugPlan,
    /// What the guest's own debugger set.
    pub(crate) hosted: Hosted,
    /// Exceptions taken one behind the other without an instruction between.
    pub(crate) hopeless: u32,
    /// Exits of a guest to the hypervisor at EL2.
    pub(crate) exits: Exits,
    /// AT of stage 1: stage 2 is left out.
    pub(crate) tlb_bypass: bool,
}

impl std::fmt::Debug for Cpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cpu").field("index", &self.index).field("s", &self.s).finish_non_exhaustive()
    }
}

impl Cpu {
    pub(crate) fn new(
        memory: GuestMemory,
        time: Arc<dyn TimeSource>,
        offered: Offered,
        alone: bool,
        index: u32,
        everyone: Arc<Everyone>,
    ) -> Self {
        let el = if offered.el2 { El::Two } else { El::One };
        let mut s = CpuState::reset(el, index);
        s.set(Sys::CNTFRQ_EL0, offered.counter_hz);
        if offered.el2 {
            s.set(Sys::ID_AA64PFR0_EL1, s.get(Sys::ID_AA64PFR0_EL1) | 1 << 8);
        }
        if !offered.vhe {
            s.set(Sys::ID_AA64MMFR1_EL1, s.get(Sys::ID_AA64MMFR1_EL1) & !0xf00);
        }
        let mut cpu = Cpu {
            s,
            memory,
            time,
            offered,
            controls: Controls::default(),
            alone,
            index,
            kick: Arc::default(),
            everyone,
            tlb: Tlb::new(),
            code: Code::default(),
            exit: None,
            answers: Vec::new(),
            answered: 0,
            exclusive: Exclusive::default(),
            event: false,
            fp_ok: false,
            mode: 0,
            user_mode: 0,
            left: 0,
            flags: 0,
            mxcsr_is_guest: 0,
            mxcsr: 0,
            granted: 0,
            retired: 0,
            told: 0,
            debug: DebugPlan::default(),
            hosted: Hosted::default(),
            hopeless: 0,
            exits: Exits::new(),
            tlb_bypass: false,
        };
        cpu.synchronise();
        cpu
    }

    /// How often translations of addresses were dropped.
    pub fn changes(&self) -> u64 {
        self.tlb.changes()
    }

    /// Where the table of pages for accesses of `mode` is, for as long as this vCPU lives ([`crate::layout`]).
    pub fn table(&self, mode: usize) -> u64 {
        self.tlb.table(mode)
    }

    /// Whether using the floating-point unit traps nowhere.
    pub fn fp_enabled_now(&self) -> bool {
        self.fp_ok
    }

    /// Asks the machine: the answer, if it is there already; otherwise the instruction stops before it changed anything.
    pub(crate) fn ask(&mut self, exit: Exit) -> Result<Answer, Stop> {
        match self.answers.get(self.answered) {
            Some(&answer) => {
                self.answered += 1;
                Ok(answer)
            }
            None => {
                self.exit = Some(exit);
                Err(Stop::Ask)
            }
        }
    }

    /// Keeps an answer for when the instruction is executed again.
    pub(crate) fn answer(&mut self, answer: Answer) {
        self.answers.push(answer);
    }

    /// An instruction begins anew: answers are replayed from the first.
    pub(crate) fn replay(&mut self) -> bool {
        self.answered = 0;
        !self.answers.is_empty()
    }

    /// The instruction that asked is over.
    pub(crate) fn forget_answers(&mut self) {
        self.answers.clear();
        self.answered = 0;
    }

    /// Instructions that it executed so far.
    pub(crate) fn executed(&self) -> u64 {
        self.retired + (self.granted - self.left)
    }

    /// Tells the time source of all instructions that were retired.
    pub(crate) fn tell_time(&mut self) {
        let now = self.executed();
        self.time.retired(now - self.told);
        self.told = now;
    }

    /// The physical counter.
    pub(crate) fn counter(&mut self) -> u64 {
        self.tell_time();
        self.time.counter()
    }

    /// HCR_EL2, which is 0 where EL2 is not.
    #[inline(always)]
    pub(crate) fn hcr(&self) -> u64 {
        if self.offered.el2 { self.s.get(Sys::HCR_EL2) } else { 0 }
    }

    /// HCR_EL2.E2H.
    pub(crate) fn e2h(&self) -> bool {
        self.offered.vhe && self.hcr() & hcr::E2H != 0
    }

    /// HCR_EL2.TGE.
    pub(crate) fn tge(&self) -> bool {
        self.hcr() & hcr::TGE != 0
    }
}

/// Bits of HCR_EL2.
pub(crate) mod hcr {
    pub(crate) const VM: u64 = 1 << 0;
    pub(crate) const FMO: u64 = 1 << 3;
    pub(crate) const IMO: u64 = 1 << 4;
    /// A virtual IRQ is pending.
    pub(crate) const VI: u64 = 1 << 7;
    pub(crate) const FB: u64 = 1 << 9;
    pub(crate) const DC: u64 = 1 << 12;
    pub(crate) const TWI: u64 = 1 << 13;
    pub(crate) const TWE: u64 = 1 << 14;
    pub(crate) const TSC: u64 = 1 << 19;
    pub(crate) const TVM: u64 = 1 << 26;
    pub(crate) const TGE: u64 = 1 << 27;
    pub(crate) const HCD: u64 = 1 << 29;
    pub(crate) const TRVM: u64 = 1 << 30;
    pub(crate) const E2H: u64 = 1 << 34;
}
