//! An emitter for the host instructions that translation adds, and labels between them.
//!
//! Copied guest instructions go through iced's encoder; what stands around them is so frequent
//! that it is written down byte by byte.

mod arithmetic;
mod jumps;
mod moves;
mod vectors;

use std::mem::offset_of;

use iced_x86::{Encoder, Instruction, Register};
use satori_soft::mmu::Tlb;

use crate::Translating;

/// Where in the vCPU GS points: to the TLB's first entry, so that an access reaches the words of an entry by displacements of one
/// byte. Two of three of the accesses that code adds are to these.
pub(crate) const GS_AT: usize = offset_of!(Translating, cpu.mmu.tlb) + Tlb::ENTRIES_OFFSET;

/// A host register by its number in encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(pub u8);

impl Reg {
    fn low(self) -> u8 {
        self.0 & 7
    }
    fn high(self) -> u8 {
        self.0 >> 3
    }
}

/// A memory operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mem {
    /// Relative to where GS points in the vCPU.
    pub cpu: bool,
    pub base: Option<Reg>,
    /// Index and log2 of its scale.
    pub index: Option<(Reg, u8)>,
    pub disp: i32,
}

/// The field of the vCPU at `offset`.
pub(crate) fn field(offset: usize) -> Mem {
    Mem { cpu: true, base: None, index: None, disp: from_gs(offset) }
}

/// How far the field of the vCPU at `offset` is from where GS points.
fn from_gs(offset: usize) -> i32 {
    offset as i32 - GS_AT as i32
}

impl Mem {
    /// `[base + disp]`.
    pub(crate) fn at(base: Reg, disp: i32) -> Self {
        Mem { cpu: false, base: Some(base), index: None, disp }
    }
    /// `[base + index + disp]`.
    pub(crate) fn sum(base: Reg, index: Reg, disp: i32) -> Self {
        Mem { cpu: false, base: Some(base), index: Some((index, 0)), disp }
    }
    /// The word at `index` of a table of the vCPU.
    pub(crate) fn word(index: Reg, offset: usize) -> Self {
        Mem { cpu: true, base: None, index: Some((index, 3)), disp: from_gs(offset) }
    }
    /// The element at `index` bytes of a table of the vCPU.
    pub(crate) fn table(index: Reg, offset: usize) -> Self {
        Mem { cpu: true, base: Some(index), index: None, disp: from_gs(offset) }
    }
}

/// A place in the code that may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Two-operand arithmetic by its number in opcodes.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Alu {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// How much of a vector register is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// The low half; the other one stays.
    Sse,
    /// The low half; the other one becomes zero.
    Low,
    Whole,
}

/// Condition codes.
pub(crate) mod cc {
    pub(crate) const B: u8 = 2;
    pub(crate) const AE: u8 = 3;
    pub(crate) const E: u8 = 4;
    pub(crate) const NE: u8 = 5;
    pub(crate) const BE: u8 = 6;
    pub(crate) const A: u8 = 7;
    pub(crate) const S: u8 = 8;
    pub(crate) const NS: u8 = 9;
}

/// Code that is being written down for a known address.
pub(crate) struct Asm {
    pub code: Vec<u8>,
    /// Where the first byte will be executed.
    pub origin: u64,
    /// Where the bytes from [`Asm::part`] on will be.
    origin_of_rest: u64,
    /// The first byte that stands elsewhere.
    part: Option<usize>,
    labels: Vec<Option<usize>>,
    /// Places of 32-bit distances to labels.
    fixups: Vec<(usize, Label)>,
    encoder: Encoder,
    /// What may have changed RAX so far.
    changes: u32,
    /// What linear addresses are counted from, if the code may be at any.
    base: Option<Base>,
}

/// Where code finds the linear address of its page, and what that is while it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    pub cell: u64,
    pub linear: u64,
    /// Addresses have 32 bits.
    pub narrow: bool,
}

/// What [`Asm::rollback`] goes back to.
#[derive(Clone, Copy)]
pub(crate) struct Mark(usize, usize, u32);

impl Asm {
    pub(crate) fn new(origin: u64) -> Self {
        Asm {
            code: Vec::with_capacity(1024),
            origin,
            origin_of_rest: origin,
            part: None,
            labels: Vec::new(),
            fixups: Vec::new(),
            encoder: Encoder::new(64),
            changes: 0,
            base: None,
        }
    }

    /// Forgets everything and begins anew at `origin`; what seldom runs will be at `rest`. With a `base`, the code may be
    /// at any linear address.
    pub(crate) fn restart(&mut self, origin: u64, rest: u64, base: Option<Base>) {
        (self.origin, self.origin_of_rest) = (origin, rest);
        self.base = base;
        self.part = None;
        self.code.clear();
        self.labels.clear();
        self.fixups.clear();
    }

    /// The place that [`Asm::rollback`] can go back to.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.code.len(), self.fixups.len(), self.changes)
    }

    /// Takes back what was emitted since `mark`.
    pub(crate) fn rollback(&mut self, mark: Mark) {
        self.changes = mark.2;
        self.code.truncate(mark.0);
        self.fixups.truncate(mark.1);
    }

    /// What comes from here on seldom runs and stands elsewhere.
    pub(crate) fn depart(&mut self) {
        self.part = Some(self.code.len());
    }

    /// The offset of the first byte that stands elsewhere.
    pub(crate) fn part(&self) -> usize {
        self.part.unwrap_or(self.code.len())
    }

    /// Where the byte at `offset` will be executed.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        match self.part {
            Some(part) if offset >= part => self.origin_of_rest + (offset - part) as u64,
            _ => self.origin + offset as u64,
        }
    }

    /// The offset of the next byte.
    pub(crate) fn here(&self) -> usize {
        self.code.len()
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub(crate) fn bind(&mut self, label: Label) {
        self.changes += 1;
        self.labels[label.0] = Some(self.code.len());
    }

    pub(crate) fn bound(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// The offset of a bound label.
    pub(crate) fn offset(&self, label: Label) -> usize {
        self.labels[label.0].expect("the label is bound")
    }

    /// Fills in the distances to labels.
    pub(crate) fn resolve(&mut self) {
        let mut fixups = std::mem::take(&mut self.fixups);
        for (place, label) in fixups.drain(..) {
            let to = self.address(self.offset(label));
            let distance = to.wrapping_sub(self.address(place) + 4) as i32;
            self.code[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        }
        // Its memory serves the next block.
        self.fixups = fixups;
    }

    /// Emits bytes that may change any register.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.changes += 1;
        self.raw(bytes);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// Tells times apart between which RAX may have changed, or code may have come from elsewhere.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    fn imm32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }

    /// Emits a copied instruction; false if it has no encoding.
    pub(crate) fn copy(&mut self, insn: &Instruction) -> bool {
        let before = self.code.len();
        let ip = self.address(before);
        let names = |op| insn.op_register(op).full_register() == Register::RAX;
        self.changes += u32::from((0..insn.op_count()).any(names));
        self.encoder.set_buffer(std::mem::take(&mut self.code));
        let done = self.encoder.encode(insn, ip).is_ok();
        self.code = self.encoder.take_buffer();
        if !done {
            self.code.truncate(before);
        }
        done
    }

    /// Prefixes, opcode, ModRM and SIB of an operation on memory. `wide` is REX.W.
    fn memory(&mut self, wide: bool, opcode: &[u8], reg: u8, mem: Mem) {
        // Stores, comparisons, and those whose register is part of the opcode.
        let only_read = matches!(
            opcode,
            [0x39 | 0x3b | 0x80 | 0x81 | 0x83 | 0x85 | 0x88 | 0x89 | 0xc6 | 0xc7 | 0xf6 | 0xff]
        );
        self.changes += u32::from(reg == 0 && !only_read);
        if mem.cpu {
            self.code.push(0x65);
        }
        let base = mem.base.unwrap_or(Reg(0));
        let index = mem.index.map_or(Reg(0), |(index, _)| index);
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | index.high() << 1 | base.high();
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.raw(opcode);
        let reg = (reg & 7) << 3;
        let Some(base) = mem.base else {
            // SIB without base: an absolute 32-bit displacement.
            let sib = match mem.index {
                Some((index, shift)) => shift << 6 | index.low() << 3 | 5,
                None => 0x25,
            };
            self.raw(&[reg | 4, sib]);
            self.imm32(mem.disp);
            return;
        };
        let (mode, short) = match mem.disp {
            0 if base.low() != 5 => (0x00, true),
            -128..=127 => (0x40, true),
            _ => (0x80, false),
        };
        match mem.index {
            Some((index, shift)) => self.raw(&[mode | reg | 4, shift << 6 | index.low() << 3 | base.low()]),
            None if base.low() == 4 => self.raw(&[mode | reg | 4, 0x24]),
            None => self.code.push(mode | reg | base.low()),
        }
        if mode == 0x40 {
            self.code.push(mem.disp as u8);
        } else if !short {
            self.imm32(mem.disp);
        }
    }

    fn registers(&mut self, wide: bool, opcode: &[u8], reg: u8, rm: Reg) {
        self.changes += u32::from(reg == 0 || rm.0 == 0);
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm.high();
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.raw(opcode);
        self.code.push(0xc0 | (reg & 7) << 3 | rm.low());
    }
}

#[cfg(test)]
mod tests;
