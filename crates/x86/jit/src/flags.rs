//! Where the status flags are, and how they come back.
//!
//! The code that is added between guest instructions changes the host's flags. To keep the guest's, LAHF and SETO put
//! them away; but as long as the registers that they were made from are what they were, the instruction that made them can be
//! executed once more instead: a [`Recipe`]. Code that seldom runs does so before it leaves.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::asm::{Alu, Mem, Reg};
use super::lower::Lower;
use super::stubs::{self, S1};
use super::window::Round;

/// Where the status flags are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flags {
    /// In the host's flags.
    Host,
    /// There, and put away.
    Both,
    /// Put away only.
    Saved,
    /// Nowhere, but there is a recipe.
    Recipe,
}

/// What an instruction made the flags from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// CMP of a register and something.
    Compared(u8, Operand),
    /// A logical instruction, or TEST of a register with itself: the flags are those of this value.
    Value(u8),
    /// TEST of two.
    Tested(u8, Operand),
    /// A register that something was added to.
    Sum(u8, Operand),
    /// A register that something was subtracted from.
    Difference(u8, Operand),
    /// A register that was negated.
    Negated(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Register(u8),
    Constant(i32),
}

/// How the status flags can be made again from registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    origin: Origin,
    wide: bool,
    /// The INC or DEC behind `origin`: its register, 1 or -1, and whether it was of 64 bits.
    step: Option<(u8, i32, bool)>,
}

impl Recipe {
    /// The recipe that makes the flags of `insn` again from registers, if there is one; `before` is that of the flags that
    /// stood before it, of which INC and DEC keep CF.
    pub(crate) fn of(insn: &Instruction, before: Option<Self>) -> Option<Self> {
        use Mnemonic::*;
        if insn.op0_kind() != OpKind::Register {
            return None;
        }
        let r = insn.op0_register();
        if !r.is_gpr32() && !r.is_gpr64() {
            return None;
        }
        let (to, wide) = (r.number() as u8, r.is_gpr64());
        if matches!(insn.mnemonic(), Inc | Dec) {
            let by = if insn.mnemonic() == Inc { 1 } else { -1 };
            // A recipe holds one step, and its operands must not be what this one changes.
            let before = before.filter(|before| before.step.is_none() && !before.uses(1 << to))?;
            return Some(Recipe { step: Some((to, by, wide)), ..before });
        }
        let other = match insn.op1_kind() {
            OpKind::Register => Some(Operand::Register(insn.op1_register().full_register().number() as u8)),
            kind if super::copy::is_immediate(kind) => Some(Operand::Constant(insn.immediate(1) as i32)),
            _ => None,
        };
        let itself = other == Some(Operand::Register(to));
        let origin = match insn.mnemonic() {
            And | Or | Xor => Origin::Value(to),
            Test if itself => Origin::Value(to),
            Test => Origin::Tested(to, other?),
            Cmp => Origin::Compared(to, other?),
            Neg => Origin::Negated(to),
            Add | Sub if itself => return None,
            Add => Origin::Sum(to, other?),
            Sub => Origin::Difference(to, other?),
            _ => return None,
        };
        Some(Recipe { origin, wide, step: None })
    }

    /// The registers that it needs, by number.
    fn needs(&self) -> u16 {
        let operand = |operand| match operand {
            Operand::Register(register) => 1 << register,
            Operand::Constant(_) => 0,
        };
        let origin = match self.origin {
            Origin::Value(register) | Origin::Negated(register) => 1 << register,
            Origin::Compared(register, other)
            | Origin::Tested(register, other)
            | Origin::Sum(register, other)
            | Origin::Difference(register, other) => 1 << register | operand(other),
        };
        origin | self.step.map_or(0, |(register, ..)| 1 << register)
    }

    /// Whether it needs one of `registers`.
    pub(crate) fn uses(&self, registers: u16) -> bool {
        self.needs() & registers != 0
    }
}

impl Lower<'_> {
    /// Stores the guest's flags in the context, so that the code behind may change the host's; S1 is lost.
    pub(crate) fn save_flags(&mut self) {
        self.put_flags_away();
        self.status.flags = Flags::Saved;
    }

    /// Lets the code behind change the host's flags, if they can be made again by the recipe without storing them; S1 is lost.
    /// An exit from there stores them first ([`Lower::seldom`]).
    pub(crate) fn spare_flags(&mut self) {
        match self.status.flags {
            Flags::Host if self.status.recipe.is_some() && self.flags_pass() => {
                self.status.flags = Flags::Recipe
            }
            Flags::Recipe => {}
            _ => self.save_flags(),
        }
    }

    /// Whether the flags are replaced, or needed once more, before the block's end, where they have to be put away.
    fn flags_pass(&self) -> bool {
        let touched = |effect: &Effect| effect.changes || effect.reads;
        self.views.round != Round::Only || self.block.effects.iter().skip(self.current.at).any(touched)
    }

    /// Puts the flags away and leaves them in the host too, unless they were put away before; S1 is lost.
    pub(crate) fn put_flags_away(&mut self) {
        if self.status.flags == Flags::Recipe {
            self.restore_flags();
        }
        if self.status.flags == Flags::Host {
            // LAHF; SETO AL.
            self.asm.bytes(&[0x9f, 0x0f, 0x90, 0xc0]);
            self.asm.store16(stubs::flags(), S1);
            self.status.flags = Flags::Both;
        }
    }

    /// Brings the flags back to the host; S1 is lost.
    pub(crate) fn restore_flags(&mut self) {
        match (self.status.flags, self.status.recipe) {
            (Flags::Saved, _) => {
                self.asm.load16(S1, stubs::flags());
                // ADD AL, 7Fh sets OF if AL is 1; SAHF.
                self.asm.bytes(&[0x04, 0x7f, 0x9e]);
                self.status.flags = Flags::Both;
            }
            (Flags::Recipe, Some(recipe)) => {
                self.follow(&recipe);
                self.status.flags = Flags::Host;
            }
            (Flags::Recipe, None) => unreachable!("flags that are nowhere have a recipe"),
            (Flags::Host | Flags::Both, _) => {}
        }
    }

    /// Makes the flags again; S1 is lost.
    fn follow(&mut self, recipe: &Recipe) {
        let wide = recipe.wide;
        match recipe.origin {
            Origin::Value(register) => {
                let value = self.value(register);
                self.asm.test(value, value, wide);
            }
            Origin::Compared(register, other) => {
                let value = self.value(register);
                self.operate(Alu::Cmp, value, other, wide);
            }
            Origin::Tested(register, Operand::Constant(other)) => {
                let value = self.value(register);
                self.asm.test_imm(value, other, wide);
            }
            Origin::Tested(register, Operand::Register(other)) => {
                let (value, other) = match (self.home(register.into()), self.home(other.into())) {
                    (Some(value), Some(other)) => (value, other),
                    (Some(value), None) => (self.value(other), value),
                    (None, Some(other)) => (self.value(register), other),
                    (None, None) => {
                        self.asm.load(S1, stubs::gpr(register.into()));
                        self.asm.test_mem(S1, stubs::gpr(other.into()), wide);
                        return self.step_again(recipe);
                    }
                };
                self.asm.test(value, other, wide);
            }
            Origin::Sum(register, other) => {
                self.copy_of(register);
                self.operate(Alu::Sub, S1, other, wide);
                self.operate(Alu::Add, S1, other, wide);
            }
            Origin::Difference(register, other) => {
                self.copy_of(register);
                self.operate(Alu::Add, S1, other, wide);
                self.operate(Alu::Cmp, S1, other, wide);
            }
            Origin::Negated(register) => {
                self.copy_of(register);
                self.asm.neg(S1, wide);
                self.asm.neg(S1, wide);
            }
        }
        self.step_again(recipe);
    }

    fn step_again(&mut self, recipe: &Recipe) {
        if let Some((register, by, wide)) = recipe.step {
            // No flags are lost on the way.
            match self.home(register.into()) {
                Some(host) => self.asm.lea(S1, Mem::at(host, -by)),
                None => {
                    self.asm.load(S1, stubs::gpr(register.into()));
                    self.asm.lea(S1, Mem::at(S1, -by));
                }
            }
            self.asm.step(S1, by > 0, wide);
        }
    }

    /// Where the host has the guest's register; that is S1 if it is in memory.
    fn value(&mut self, register: u8) -> Reg {
        match self.home(register.into()) {
            Some(host) => host,
            None => {
                self.asm.load(S1, stubs::gpr(register.into()));
                S1
            }
        }
    }

    fn copy_of(&mut self, register: u8) {
        match self.home(register.into()) {
            Some(host) => self.asm.mov(S1, host),
            None => self.asm.load(S1, stubs::gpr(register.into())),
        }
    }

    fn operate(&mut self, op: Alu, to: Reg, other: Operand, wide: bool) {
        match other {
            Operand::Constant(value) if wide => self.asm.alu_imm(op, to, value),
            Operand::Constant(value) => self.asm.alu_imm32(op, to, value),
            Operand::Register(other) => match self.home(other.into()) {
                Some(other) if wide => self.asm.alu(op, to, other),
                Some(other) => self.asm.alu32(op, to, other),
                None if wide => self.asm.alu_mem(op, to, stubs::gpr(other.into())),
                None => self.asm.alu_mem32(op, to, stubs::gpr(other.into())),
            },
        }
    }

    /// The host's flags are those that `insn` made.
    pub(crate) fn flags_made(&mut self, insn: &Instruction) {
        self.status.flags = Flags::Host;
        self.status.recipe = Recipe::of(insn, self.status.recipe);
    }

    /// Before `insn`, which changes `registers`: if the recipe reads one of them, the flags are made now, unless `insn` replaces
    /// all of them, and the recipe ends.
    pub(crate) fn keep_recipe(&mut self, insn: &Instruction, registers: u16) {
        let effect = self.block.effects[self.current.at];
        // It is certain to be copied and to make all flags anew, before which it leaves the code at most.
        let replaces = effect.changes && !effect.needs && super::copy::is_copied(insn);
        if self.status.recipe.is_some_and(|recipe| recipe.uses(registers)) && !replaces {
            if self.status.flags == Flags::Recipe {
                self.restore_flags();
            }
            self.status.recipe = None;
        }
    }
}

/// What an instruction does with the status flags.
#[derive(Clone, Copy)]
pub(crate) struct Effect {
    /// It changes some.
    pub changes: bool,
    /// It depends on some.
    pub reads: bool,
    /// It needs them as they were: it reads some, or keeps some of them.
    pub needs: bool,
}

/// What `insn` does with the status flags.
pub(crate) fn effect(insn: &Instruction) -> Effect {
    let status = |bits: u32| {
        use iced_x86::RflagsBits as B;
        bits & (B::OF | B::SF | B::ZF | B::AF | B::CF | B::PF)
    };
    let all = status(u32::MAX);
    let changed = status(insn.rflags_modified());
    // A count of zero changes nothing.
    let shift = matches!(
        insn.mnemonic(),
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar | Mnemonic::Shld | Mnemonic::Shrd
    );
    let last = insn.op_count().saturating_sub(1);
    let counted = shift
        && !(super::copy::is_immediate(insn.op_kind(last)) && {
            let mask =
                if insn.op_count() > 0 && insn.op0_register().size() == 8 || insn.memory_size().size() == 8 {
                    63
                } else {
                    31
                };
            // 8- and 16-bit double shifts beyond their size are undefined.
            insn.immediate(last) as u8 & mask != 0
        });
    Effect {
        changes: changed != 0,
        reads: status(insn.rflags_read()) != 0,
        needs: status(insn.rflags_read()) != 0 || changed != 0 && (changed != all || counted),
    }
}
