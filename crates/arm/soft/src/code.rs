//! Decoded pages of guest code.

use std::collections::HashMap;

use satori_arm_isa::Op;
use satori_memory::{Gpa, GuestMemory};

use crate::cpu::{Cpu, Flow, Stop};
use crate::exec;
use crate::host::HostPage;

/// What executes an instruction.
pub(crate) type Handler = fn(&mut Cpu, &Insn) -> Result<Flow, Stop>;

/// A decoded instruction.
#[derive(Clone, Copy)]
pub struct Insn {
    /// What executes it; before it was reached nothing does.
    pub(crate) run: Option<Handler>,
    /// Operands, as places in `CpuState::x`.
    pub(crate) rd: u8,
    pub(crate) rn: u8,
    pub(crate) rm: u8,
    pub(crate) ra: u8,
    /// It needs the floating-point unit, whose use can trap.
    pub(crate) fp: bool,
    /// The word.
    pub(crate) raw: u32,
    /// What of it the handler needs worked out.
    pub(crate) imm: u64,
}

impl std::fmt::Debug for Insn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}", self.raw)
    }
}

impl Insn {
    const EMPTY: Insn = Insn { run: None, rd: 0, rn: 0, rm: 0, ra: 0, fp: false, raw: 0, imm: 0 };

    /// The instruction that `word` is, for [`Cpu::step`].
    pub fn of(word: u32) -> Insn {
        decoded(word, satori_arm_isa::decode(word).map(|row| row.op))
    }

    /// Bits `high:low` of the word.
    #[inline(always)]
    pub(crate) fn bits(&self, high: u32, low: u32) -> u32 {
        self.raw >> low & ((1 << (high - low + 1)) - 1)
    }

    /// One bit of the word.
    #[inline(always)]
    pub(crate) fn bit(&self, at: u32) -> bool {
        self.raw >> at & 1 != 0
    }
}

/// A page of code to be translated, as it is while its value stays.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    page: HostPage,
    /// Its guest-physical address.
    pub gpa: u64,
    /// The value of its state when it began to be decoded.
    pub value: u32,
}

impl Source {
    /// The instruction of one slot, 0 to 1023.
    pub fn word(&self, slot: usize) -> u32 {
        self.page.read::<4>(slot % SLOTS * 4) as u32
    }
}

/// Instructions of a page.
pub(crate) const SLOTS: usize = 1024;

/// A page of code.
pub(crate) struct CodePage {
    /// Where it is; what its state was when it began to be decoded.
    page: HostPage,
    gpa: u64,
    value: u32,
    pub insns: Box<[Insn; SLOTS]>,
}

impl CodePage {
    fn new(page: HostPage, gpa: u64, alone: bool) -> Box<Self> {
        let value = page.state().mark_code(alone);
        Box::new(CodePage { page, gpa, value, insns: Box::new([Insn::EMPTY; SLOTS]) })
    }

    /// Whether nothing was written to the page since.
    #[inline(always)]
    pub(crate) fn valid(&self) -> bool {
        self.page.state().value() == self.value
    }

    /// The page as who translates it sees it.
    pub(crate) fn source(&self) -> Source {
        Source { page: self.page, gpa: self.gpa, value: self.value }
    }

    /// Decodes the instruction of one slot.
    #[cold]
    pub(crate) fn decode(&mut self, slot: usize) {
        let word = self.page.read::<4>(slot * 4) as u32;
        let op = satori_arm_isa::decode(word).map(|row| row.op);
        self.insns[slot] = decoded(word, op);
    }
}

/// `word` with its operands, and what executes it.
pub(crate) fn decoded(word: u32, op: Option<Op>) -> Insn {
    let register = |low: u32| (word >> low & 31) as u8;
    let mut insn = Insn {
        run: None,
        rd: register(0),
        rn: register(5),
        rm: register(16),
        ra: register(10),
        fp: false,
        raw: word,
        imm: 0,
    };
    insn.run = Some(exec::prepare(&mut insn, op));
    insn
}

/// How many pages are kept at most. When there are more, all go: 24 KiB each.
const MOST: usize = 8192;

/// The decoded pages of a vCPU.
#[derive(Default)]
pub(crate) struct Code {
    /// A page that is being executed is taken out of its slot.
    pub pages: Vec<Option<Box<CodePage>>>,
    by_address: HashMap<u64, usize>,
}

impl Code {
    /// The slot of the page at `gpa`, valid now; none if no RAM is there. `dropped` says that all other slots' numbers are void.
    pub(crate) fn slot(&mut self, memory: &GuestMemory, gpa: u64, alone: bool) -> (Option<usize>, bool) {
        let gpa = Gpa(gpa).page().0;
        if let Some(&slot) = self.by_address.get(&gpa) {
            if let Some(page) = &mut self.pages[slot]
                && !page.valid()
            {
                *page = CodePage::new(page.page, gpa, alone);
            }
            return (Some(slot), false);
        }
        let Some(page) = HostPage::of(memory, gpa) else { return (None, false) };
        let dropped = self.pages.len() >= MOST;
        if dropped {
            self.pages.clear();
            self.by_address.clear();
        }
        self.pages.push(Some(CodePage::new(page, gpa, alone)));
        self.by_address.insert(gpa, self.pages.len() - 1);
        (Some(self.pages.len() - 1), dropped)
    }
}
