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
pub(crate) struct Insn {
    /// What executes it; before it was reached nothing does.
    pub run: Option<Handler>,
    /// Operands, as places in `CpuState::x`.
    pub rd: u8,
    pub rn: u8,
    pub rm: u8,
    pub ra: u8,
    /// It needs the floating-point unit, whose use can trap.
    pub fp: bool,
    /// The word.
    pub raw: u32,
    /// What of it the handler needs worked out.
    pub imm: u64,
}

impl Insn {
    const EMPTY: Insn = Insn { run: None, rd: 0, rn: 0, rm: 0, ra: 0, fp: false, raw: 0, imm: 0 };

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

/// Instructions of a page.
pub(crate) const SLOTS: usize = 1024;

/// A page of code.
pub(crate) struct CodePage {
    /// Where it is; what its state was when it began to be decoded.
    page: HostPage,
    value: u32,
    pub insns: Box<[Insn; SLOTS]>,
}

impl CodePage {
    fn new(page: HostPage, alone: bool) -> Box<Self> {
        let value = page.state().mark_code(alone);
        Box::new(CodePage { page, value, insns: Box::new([Insn::EMPTY; SLOTS]) })
    }

    /// Whether nothing was written to the page since.
    #[inline(always)]
    pub(crate) fn valid(&self) -> bool {
        self.page.state().value() == self.value
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
                *page = CodePage::new(page.page, alone);
            }
            return (Some(slot), false);
        }
        let Some(page) = HostPage::of(memory, gpa) else { return (None, false) };
        let dropped = self.pages.len() >= MOST;
        if dropped {
            self.pages.clear();
            self.by_address.clear();
        }
        self.pages.push(Some(CodePage::new(page, alone)));
        self.by_address.insert(gpa, self.pages.len() - 1);
        (Some(self.pages.len() - 1), dropped)
    }
}
