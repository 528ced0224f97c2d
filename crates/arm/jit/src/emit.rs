//! What the translation of any instruction needs: guest registers, flags, calls of the interpreter, exits.
//!
//! X0 to X7 and X19 are in host registers while translated code executes, the others in the register file. N, Z, C and V are
//! kept as LAHF and SETO leave them behind a subtraction: CF is the complement of C. With that each condition is one of the host's.
//!
//! MXCSR has the guest's rounding mode from the first instruction on that needs it (`Cpu::mxcsr_is_guest`), and collects the flags of
//! FPSR, until translated code is left or the interpreter is called: it finds them in FPSR.

use std::mem::offset_of;

use satori_arm_soft::{Cpu, Insn};
use satori_arm_state::CpuState;

use crate::asm::{Alu, Asm, FILE, LEFT, Label, RAX, RCX, RDI, RDX, RSI, Reg, Rm, cc};
use crate::vectors::{Held, Vectors};

/// The place among `CpuState::x` that is zero, and the one where results are lost.
pub(crate) const ZERO: u8 = 32;

/// Where X16 is: what [`FILE`] points to, so that displacements of a byte reach all of them.
pub(crate) const FILE_AT: usize = offset_of!(Cpu, s) + offset_of!(CpuState, x) + 8 * 16;

/// Why translated code was left.
pub(crate) mod reason {
    /// The interpreter stopped.
    pub(crate) const STOPPED: u32 = 1;
    /// More instructions follow than are left.
    pub(crate) const BUDGET: u32 = 2;
    /// Go on at the program counter, and let the jump at an offset lead there.
    pub(crate) const LINK: u32 = 3;
    /// Go on at the program counter, and note where its code is.
    pub(crate) const TARGET: u32 = 4;
}

/// An instruction that translated code has the interpreter execute.
#[derive(Debug)]
pub(crate) struct Call {
    pub insn: Insn,
    pub pc: u64,
    /// Instructions of its block from it on.
    pub rest: u64,
}

/// The calls of a page's blocks.
#[allow(clippy::vec_box, reason = "translated code has their addresses, so that they stay where they are")]
pub(crate) type Calls = Vec<Box<Call>>;

/// Code that all blocks share, and tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Leaves with the reason in EAX and a datum in EDX.
    pub exit: u64,
    /// Has the interpreter execute the [`Call`] in RAX.
    pub step: u64,
    /// Tells the page's state in RDX that the page was written.
    pub wrote: u64,
    /// Has MXCSR be the guest's. Changes RAX and RCX.
    pub environment: u64,
    /// The constants of 16 bytes.
    pub constants: u64,
    /// The table of targets of the mode.
    pub targets: u64,
}

/// The host register of a guest register.
pub(crate) const fn pin(guest: u8) -> Option<Reg> {
    match guest {
        0..=5 => Some(8 + guest),
        6 => Some(RSI),
        7 => Some(RDI),
        19 => Some(14),
        _ => None,
    }
}

/// All guest registers that are in host registers.
pub(crate) const PINNED: [u8; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 19];

/// A field of the vCPU.
pub(crate) const fn field(offset: usize) -> Rm {
    Rm::At(FILE, offset as i32 - FILE_AT as i32)
}

/// The place of a guest register in the register file.
pub(crate) const fn place(guest: u8) -> Rm {
    Rm::At(FILE, (guest as i32 - 16) * 8)
}

/// What seldom runs, behind the block.
enum Cold {
    /// Executes an instruction by the interpreter, and goes on.
    Step { from: Label, back: Label, call: u64, before: Held, after: Held, environment: bool },
    /// A page was written whose writes are to be noticed.
    Wrote { from: Label, back: Label, held: Held, environment: bool },
    /// MXCSR is not the guest's yet.
    Environment { from: Label, back: Label },
    /// A comparison was unordered: C and V.
    Unordered { from: Label, back: Label },
    /// Leaves for an address in the same page; the jump there is at `jump`, where its distance stands.
    Link { from: Label, pc: u64, jump: usize },
    /// Leaves for the address in RAX.
    Target { from: Label },
}

/// A block in the making.
pub(crate) struct Emit<'a> {
    pub asm: Asm,
    pub places: Places,
    /// Of the instruction.
    pub pc: u64,
    pub word: u32,
    /// Instructions of the block from this one on.
    pub rest: u64,
    /// The host's flags are the guest's, at the instruction's beginning and as far as it has been translated.
    pub flags_before: bool,
    pub flags: bool,
    pub vectors: Vectors,
    /// MXCSR is the guest's.
    environment: bool,
    /// What registers are known to hold.
    known: [Option<u64>; 31],
    pub calls: &'a mut Calls,
    /// Where the block goes in code memory.
    pub at: usize,
    cold: Vec<Cold>,
}

impl<'a> Emit<'a> {
    pub(crate) fn new(origin: u64, at: usize, places: Places, calls: &'a mut Calls) -> Self {
        Emit {
            asm: Asm::new(origin),
            places,
            pc: 0,
            word: 0,
            rest: 0,
            flags_before: false,
            flags: false,
            vectors: Vectors::default(),
            environment: false,
            known: [None; 31],
            calls,
            at,
            cold: Vec::new(),
        }
    }

    /// Bits `high:low` of the word.
    pub(crate) fn bits(&self, high: u32, low: u32) -> u32 {
        self.word >> low & ((1 << (high - low + 1)) - 1)
    }

    /// sf, and many others: one bit.
    pub(crate) fn bit(&self, at: u32) -> bool {
        self.word >> at & 1 != 0
    }

    /// A register field where 31 is zero.
    pub(crate) fn r(&self, low: u32) -> u8 {
        match self.bits(low + 4, low) as u8 {
            31 => ZERO,
            register => register,
        }
    }

    /// One where 31 is the stack pointer.
    pub(crate) fn r_sp(&self, low: u32) -> u8 {
        self.bits(low + 4, low) as u8
    }

    /// The operand that a guest register is.
    pub(crate) fn rm(&self, guest: u8) -> Rm {
        pin(guest).map_or(place(guest), Rm::Reg)
    }

    /// A guest register in a host register: its own, or `scratch`, into which it is loaded without a change of flags.
    pub(crate) fn get(&mut self, guest: u8, scratch: Reg) -> Reg {
        pin(guest).unwrap_or_else(|| {
            self.copy(guest, scratch);
            scratch
        })
    }

    /// A guest register copied into a host register.
    pub(crate) fn copy(&mut self, guest: u8, to: Reg) {
        match guest {
            ZERO => self.asm.constant(to, 0),
            _ => self.asm.mov(true, to, self.rm(guest)),
        }
    }

    /// Writes a host register to a guest register.
    pub(crate) fn put(&mut self, guest: u8, from: Reg) {
        self.forget(guest);
        match pin(guest) {
            _ if guest == ZERO => {}
            Some(to) if to == from => {}
            Some(to) => self.asm.mov(true, to, Rm::Reg(from)),
            None => self.asm.store(true, place(guest), from),
        }
    }

    /// The host register that a result for `guest` is made in, if it may not be one of `sources`'.
    pub(crate) fn target(&self, guest: u8, sources: &[u8]) -> Reg {
        pin(guest).filter(|_| !sources.contains(&guest)).unwrap_or(RCX)
    }

    /// Writes a constant to a guest register.
    pub(crate) fn put_constant(&mut self, guest: u8, value: u64) {
        if guest == ZERO {
            return;
        }
        match pin(guest) {
            Some(to) => self.asm.constant(to, value),
            None => {
                self.asm.constant(RCX, value);
                self.asm.store(true, place(guest), RCX);
            }
        }
        if let Some(known) = self.known.get_mut(usize::from(guest)) {
            *known = Some(value);
        }
    }

    /// What a guest register is known to hold.
    pub(crate) fn known(&self, guest: u8) -> Option<u64> {
        if guest == ZERO { Some(0) } else { self.known.get(usize::from(guest)).copied().flatten() }
    }

    fn forget(&mut self, guest: u8) {
        if let Some(known) = self.known.get_mut(usize::from(guest)) {
            *known = None;
        }
    }

    /// The host's flags, behind an instruction that set them, become the guest's.
    pub(crate) fn save_flags(&mut self) {
        // LAHF; SETO AL
        self.asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0]);
        self.keep_flags();
        self.flags = true;
    }

    /// EAX is what LAHF and SETO made of the guest's flags.
    pub(crate) fn keep_flags(&mut self) {
        self.asm.store(false, field(offset_of!(Cpu, flags)), RAX);
    }

    /// The guest's flags become the host's, if they are not. Changes RAX.
    pub(crate) fn load_flags(&mut self) {
        if !self.flags_before {
            self.asm.mov(false, RAX, field(offset_of!(Cpu, flags)));
            // ADD AL, 0x7f makes OF of AL; SAHF
            self.asm.bytes(&[0x04, 0x7f, 0x9e]);
        }
        self.flags_before = true;
    }

    fn call(&mut self) -> u64 {
        let call = Box::new(Call { insn: Insn::of(self.word), pc: self.pc, rest: self.rest });
        let address = std::ptr::from_ref(&*call).expose_provenance() as u64;
        self.calls.push(call);
        address
    }

    /// The interpreter executes the instruction.
    pub(crate) fn step(&mut self) {
        self.drop_vectors();
        self.environment = false;
        let call = self.call();
        self.asm.constant(RAX, call);
        self.asm.far(0xe8, self.places.step);
        self.known = [None; 31];
    }

    /// A label that leads to the interpreter, if what is fast about the instruction fails before it changed anything; it goes on
    /// at the second one.
    pub(crate) fn or_step(&mut self) -> (Label, Label) {
        let call = self.call();
        let (from, back) = (self.asm.label(), self.asm.label());
        let before = self.vectors.held;
        self.cold.push(Cold::Step { from, back, call, before, after: before, environment: self.environment });
        (from, back)
    }

    /// Where [`Emit::or_step`]'s instruction is over. All host registers that it uses for the guest's were taken before that.
    pub(crate) fn over(&mut self, label: Label) {
        let now = self.vectors.held;
        for cold in self.cold.iter_mut().rev() {
            if let Cold::Step { back, after, .. } = cold
                && *back == label
            {
                *after = now;
                break;
            }
        }
        self.asm.bind(label);
    }

    /// MXCSR becomes the guest's, if it is not. Changes the host's flags, RAX and RCX.
    pub(crate) fn need_environment(&mut self) {
        if !self.environment {
            self.asm.alu_imm(false, Alu::Cmp, field(offset_of!(Cpu, mxcsr_is_guest)), 0);
            let (from, back) = (self.asm.label(), self.asm.label());
            self.asm.jump_if(cc::E, from);
            self.asm.bind(back);
            self.cold.push(Cold::Environment { from, back });
            self.flags_before = false;
        }
        self.environment = true;
    }

    /// A label that leads to flags of the host that stand for C and V, and one that it goes on at.
    pub(crate) fn or_unordered(&mut self) -> (Label, Label) {
        let (from, back) = (self.asm.label(), self.asm.label());
        self.cold.push(Cold::Unordered { from, back });
        (from, back)
    }

    /// Labels to and from what notices a write to the page whose state is in RDX.
    pub(crate) fn or_wrote(&mut self) -> (Label, Label) {
        let (from, back) = (self.asm.label(), self.asm.label());
        let held = self.vectors.held;
        self.cold.push(Cold::Wrote { from, back, held, environment: self.environment });
        (from, back)
    }

    /// A guest register is changed otherwise than by [`Emit::put`].
    pub(crate) fn changed(&mut self, guest: u8) {
        self.forget(guest);
    }

    fn leave(&mut self, reason: u32) {
        self.asm.constant(RAX, reason.into());
        self.asm.far(0xe9, self.places.exit);
    }

    fn leave_for(&mut self, pc: u64, reason: u32) {
        self.asm.constant(RAX, pc);
        self.asm.store(true, field(offset_of!(Cpu, s) + offset_of!(CpuState, pc)), RAX);
        self.leave(reason);
    }

    /// The block's first instructions: it needs `count` of those that are left.
    pub(crate) fn enter(&mut self, count: u64) -> Label {
        let short = self.asm.label();
        self.asm.alu_imm(true, Alu::Sub, Rm::Reg(LEFT), count as i32);
        self.asm.jump_if(cc::B, short);
        short
    }

    /// Goes on at a known address: `code` if it is there, or by a jump that is linked when it is.
    pub(crate) fn go(&mut self, pc: u64, code: Option<u64>) {
        if pc & !0xfff != self.pc & !0xfff {
            self.asm.constant(RAX, pc);
            self.asm.constant(RCX, self.places.targets + (pc >> 2 & (crate::TARGETS as u64 - 1)) * 16);
            self.asm.alu(true, Alu::Cmp, RAX, Rm::At(RCX, 0));
            let miss = self.asm.label();
            self.cold.push(Cold::Target { from: miss });
            self.asm.jump_if(cc::NE, miss);
            return self.asm.op(false, &[0xff], 4, Rm::At(RCX, 8));
        }
        match code {
            Some(code) => self.asm.far(0xe9, code),
            None => {
                let from = self.asm.label();
                self.asm.jump(from);
                let jump = self.at + self.asm.code.len() - 4;
                self.cold.push(Cold::Link { from, pc, jump });
            }
        }
    }

    /// Goes on at the address in RAX.
    pub(crate) fn go_indirect(&mut self) {
        let mask = (crate::TARGETS as i32 - 1) << 2;
        self.asm.mov(false, RCX, Rm::Reg(RAX));
        self.asm.alu_imm(false, Alu::And, Rm::Reg(RCX), mask);
        self.asm.constant(RDX, self.places.targets);
        self.asm.alu(true, Alu::Cmp, RAX, Rm::Sum(RDX, RCX, 2, 0));
        let miss = self.asm.label();
        self.cold.push(Cold::Target { from: miss });
        self.asm.jump_if(cc::NE, miss);
        self.asm.op(false, &[0xff], 4, Rm::Sum(RDX, RCX, 2, 8));
    }

    /// Ends the block, whose first instruction is at `start` and which has `count` of them: the code.
    pub(crate) fn finish(mut self, start: u64, count: u64, short: Label) -> Vec<u8> {
        for cold in std::mem::take(&mut self.cold) {
            self.finish_cold(cold);
        }
        self.asm.bind(short);
        self.asm.alu_imm(true, Alu::Add, Rm::Reg(LEFT), count as i32);
        self.leave_for(start, reason::BUDGET);
        self.asm.resolve();
        self.asm.code
    }

    fn finish_cold(&mut self, cold: Cold) {
        match cold {
            Cold::Step { from, back, call, before, after, environment } => {
                self.asm.bind(from);
                before.spill(&mut self.asm);
                self.asm.constant(RAX, call);
                self.asm.far(0xe8, self.places.step);
                self.resume(after, environment, back);
            }
            Cold::Wrote { from, back, held, environment } => {
                self.asm.bind(from);
                held.spill(&mut self.asm);
                self.asm.far(0xe8, self.places.wrote);
                self.resume(held, environment, back);
            }
            Cold::Environment { from, back } => {
                self.asm.bind(from);
                self.asm.far(0xe8, self.places.environment);
                self.asm.jump(back);
            }
            Cold::Unordered { from, back } => {
                self.asm.bind(from);
                // MOV AL, 0x80; CMP AL, 1
                self.asm.bytes(&[0xb0, 0x80, 0x3c, 0x01]);
                self.asm.jump(back);
            }
            Cold::Link { from, pc, jump } => {
                self.asm.bind(from);
                self.asm.constant(RDX, jump as u64);
                self.leave_for(pc, reason::LINK);
            }
            Cold::Target { from } => {
                self.asm.bind(from);
                self.asm.store(true, field(offset_of!(Cpu, s) + offset_of!(CpuState, pc)), RAX);
                self.leave(reason::TARGET);
            }
        }
    }

    /// Goes on behind a call that kept neither vectors nor MXCSR.
    fn resume(&mut self, held: Held, environment: bool, back: Label) {
        held.reload(&mut self.asm);
        if environment {
            self.asm.far(0xe8, self.places.environment);
        }
        self.asm.jump(back);
    }
}
