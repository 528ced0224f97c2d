//! An emitter for the host instructions that translation adds, and labels between them.
//!
//! Copied guest instructions go through iced's encoder; what stands around them is so frequent
//! that it is written down byte by byte.

use iced_x86::{Encoder, Instruction, Register};

/// A host register by its number in encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(pub u8);

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
pub struct Mem {
    /// Relative to the vCPU, which GS points to.
    pub cpu: bool,
    pub base: Option<Reg>,
    /// Index and log2 of its scale.
    pub index: Option<(Reg, u8)>,
    pub disp: i32,
}

/// The field of the vCPU at `offset`.
pub fn field(offset: usize) -> Mem {
    Mem { cpu: true, base: None, index: None, disp: offset as i32 }
}

impl Mem {
    /// `[base + disp]`.
    pub fn at(base: Reg, disp: i32) -> Self {
        Mem { cpu: false, base: Some(base), index: None, disp }
    }
    /// `[base + index + disp]`.
    pub fn sum(base: Reg, index: Reg, disp: i32) -> Self {
        Mem { cpu: false, base: Some(base), index: Some((index, 0)), disp }
    }
    /// The word at `index` of a table of the vCPU.
    pub fn word(index: Reg, offset: usize) -> Self {
        Mem { cpu: true, base: None, index: Some((index, 3)), disp: offset as i32 }
    }
    /// The element at `index` bytes of a table of the vCPU.
    pub fn table(index: Reg, offset: usize) -> Self {
        Mem { cpu: true, base: Some(index), index: None, disp: offset as i32 }
    }
}

/// A place in the code that may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Two-operand arithmetic by its number in opcodes.
#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Alu {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// How much of a vector register is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The low half; the other one stays.
    Sse,
    /// The low half; the other one becomes zero.
    Low,
    Whole,
}

/// Condition codes.
pub mod cc {
    pub const B: u8 = 2;
    pub const AE: u8 = 3;
    pub const E: u8 = 4;
    pub const NE: u8 = 5;
    pub const A: u8 = 7;
    pub const S: u8 = 8;
    pub const NS: u8 = 9;
    pub const LE: u8 = 14;
}

/// Code that is being written down for a known address.
pub struct Asm {
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
pub struct Base {
    pub cell: u64,
    pub linear: u64,
    /// Addresses have 32 bits.
    pub narrow: bool,
}

/// What [`Asm::rollback`] goes back to.
#[derive(Clone, Copy)]
pub struct Mark(usize, usize, u32);

impl Asm {
    pub fn new(origin: u64) -> Self {
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
    pub fn restart(&mut self, origin: u64, rest: u64, base: Option<Base>) {
        (self.origin, self.origin_of_rest) = (origin, rest);
        self.base = base;
        self.part = None;
        self.code.clear();
        self.labels.clear();
        self.fixups.clear();
    }

    /// The place that [`Asm::rollback`] can go back to.
    pub fn mark(&self) -> Mark {
        Mark(self.code.len(), self.fixups.len(), self.changes)
    }

    /// Takes back what was emitted since `mark`.
    pub fn rollback(&mut self, mark: Mark) {
        self.changes = mark.2;
        self.code.truncate(mark.0);
        self.fixups.truncate(mark.1);
    }

    /// What comes from here on seldom runs and stands elsewhere.
    pub fn depart(&mut self) {
        self.part = Some(self.code.len());
    }

    /// The offset of the first byte that stands elsewhere.
    pub fn part(&self) -> usize {
        self.part.unwrap_or(self.code.len())
    }

    /// Where the byte at `offset` will be executed.
    pub fn address(&self, offset: usize) -> u64 {
        match self.part {
            Some(part) if offset >= part => self.origin_of_rest + (offset - part) as u64,
            _ => self.origin + offset as u64,
        }
    }

    /// The offset of the next byte.
    pub fn here(&self) -> usize {
        self.code.len()
    }

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub fn bind(&mut self, label: Label) {
        self.changes += 1;
        self.labels[label.0] = Some(self.code.len());
    }

    pub fn bound(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// The offset of a bound label.
    pub fn offset(&self, label: Label) -> usize {
        self.labels[label.0].expect("the label is bound")
    }

    /// Fills in the distances to labels.
    pub fn resolve(&mut self) {
        for (place, label) in std::mem::take(&mut self.fixups) {
            let to = self.address(self.offset(label));
            let distance = to.wrapping_sub(self.address(place) + 4) as i32;
            self.code[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        }
    }

    /// Emits bytes that may change any register.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.changes += 1;
        self.raw(bytes);
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// Tells times apart between which RAX may have changed, or code may have come from elsewhere.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    fn imm32(&mut self, value: i32) {
        self.raw(&value.to_le_bytes());
    }

    /// Emits a copied instruction; false if it has no encoding.
    pub fn copy(&mut self, insn: &Instruction) -> bool {
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

    /// 64-bit move between registers.
    pub fn mov(&mut self, to: Reg, from: Reg) {
        self.registers(true, &[0x89], from.0, to);
    }

    /// 32-bit move between registers.
    pub fn mov32(&mut self, to: Reg, from: Reg) {
        self.registers(false, &[0x89], from.0, to);
    }

    pub fn load(&mut self, to: Reg, from: Mem) {
        self.memory(true, &[0x8b], to.0, from);
    }

    /// Loads 32 bits, and clears the upper ones.
    pub fn load32(&mut self, to: Reg, from: Mem) {
        self.memory(false, &[0x8b], to.0, from);
    }

    pub fn store(&mut self, to: Mem, from: Reg) {
        self.memory(true, &[0x89], from.0, to);
    }

    pub fn store32(&mut self, to: Mem, from: Reg) {
        self.memory(false, &[0x89], from.0, to);
    }

    /// Stores a sign-extended constant as 64 bits.
    pub fn store_imm(&mut self, to: Mem, value: i32) {
        self.memory(true, &[0xc7], 0, to);
        self.imm32(value);
    }

    /// Stores a constant of 32 bits.
    pub fn store_imm32(&mut self, to: Mem, value: u32) {
        self.memory(false, &[0xc7], 0, to);
        self.imm32(value as i32);
    }

    pub fn lea(&mut self, to: Reg, from: Mem) {
        self.memory(true, &[0x8d], to.0, from);
    }

    /// LEA of which 32 bits are kept.
    pub fn lea32(&mut self, to: Reg, from: Mem) {
        self.memory(false, &[0x8d], to.0, from);
    }

    /// A constant, in the shortest way that leaves the flags alone.
    pub fn constant(&mut self, to: Reg, value: u64) {
        self.changes += u32::from(to.0 == 0);
        if u32::try_from(value).is_ok() {
            if to.high() != 0 {
                self.code.push(0x41);
            }
            self.code.push(0xb8 | to.low());
            self.imm32(value as i32);
        } else if i32::try_from(value as i64).is_ok() {
            self.registers(true, &[0xc7], 0, to);
            self.imm32(value as i32);
        } else {
            self.raw(&[0x48 | to.high(), 0xb8 | to.low()]);
            self.raw(&value.to_le_bytes());
        }
    }

    /// As [`Asm::constant`], for a linear address that moves with the code. Flags stay, too.
    pub fn linear(&mut self, to: Reg, address: u64) {
        let Some(Base { cell, linear, narrow }) = self.base else { return self.constant(to, address) };
        self.changes += u32::from(to.0 == 0);
        // MOV from what stands at a distance from RIP.
        self.raw(&[0x48 | to.high() << 2, 0x8b, to.low() << 3 | 5]);
        self.relative(cell);
        let mut distance = address.wrapping_sub(linear) as i64;
        if narrow {
            return self.lea32(to, Mem::at(to, distance as i32));
        }
        while distance != 0 {
            let some = distance.clamp(i32::MIN.into(), i32::MAX.into());
            self.lea(to, Mem::at(to, some as i32));
            distance -= some;
        }
    }

    /// Whether linear addresses of the code are no constants.
    pub fn moves(&self) -> bool {
        self.base.is_some()
    }

    pub fn alu_imm(&mut self, op: Alu, to: Reg, value: i32) {
        match i8::try_from(value) {
            Ok(value) => {
                self.registers(true, &[0x83], op as u8, to);
                self.code.push(value as u8);
            }
            Err(_) => {
                self.registers(true, &[0x81], op as u8, to);
                self.imm32(value);
            }
        }
    }

    pub fn alu_imm32(&mut self, op: Alu, to: Reg, value: i32) {
        match i8::try_from(value) {
            Ok(value) => {
                self.registers(false, &[0x83], op as u8, to);
                self.code.push(value as u8);
            }
            Err(_) => {
                self.registers(false, &[0x81], op as u8, to);
                self.imm32(value);
            }
        }
    }

    pub fn alu(&mut self, op: Alu, to: Reg, from: Reg) {
        self.registers(true, &[(op as u8) << 3 | 1], from.0, to);
    }

    pub fn alu32(&mut self, op: Alu, to: Reg, from: Reg) {
        self.registers(false, &[(op as u8) << 3 | 1], from.0, to);
    }

    /// `op to, [from]`.
    pub fn alu_mem(&mut self, op: Alu, to: Reg, from: Mem) {
        self.memory(true, &[(op as u8) << 3 | 3], to.0, from);
    }

    /// `op byte [to], value`.
    pub fn alu_byte(&mut self, op: Alu, to: Mem, value: u8) {
        self.memory(false, &[0x80], op as u8, to);
        self.code.push(value);
    }

    /// `op to, [from]`, 32 bits.
    pub fn alu_mem32(&mut self, op: Alu, to: Reg, from: Mem) {
        self.memory(false, &[(op as u8) << 3 | 3], to.0, from);
    }

    /// TEST, of 32 bits unless `wide`.
    pub fn test(&mut self, one: Reg, other: Reg, wide: bool) {
        self.registers(wide, &[0x85], other.0, one);
    }

    pub fn test_imm(&mut self, reg: Reg, value: i32, wide: bool) {
        self.registers(wide, &[0xf7], 0, reg);
        self.imm32(value);
    }

    pub fn test_mem(&mut self, reg: Reg, mem: Mem, wide: bool) {
        self.memory(wide, &[0x85], reg.0, mem);
    }

    pub fn neg(&mut self, reg: Reg, wide: bool) {
        self.registers(wide, &[0xf7], 3, reg);
    }

    /// INC, or DEC.
    pub fn step(&mut self, reg: Reg, up: bool, wide: bool) {
        self.registers(wide, &[0xff], u8::from(!up), reg);
    }

    pub fn shr32(&mut self, to: Reg, by: u8) {
        self.registers(false, &[0xc1], 5, to);
        self.code.push(by);
    }

    /// RORX of 32 bits, of BMI2: leaves the flags alone.
    pub fn rorx32(&mut self, to: Reg, from: Reg, by: u8) {
        self.changes += u32::from(to.0 == 0);
        let rxb = (to.high() ^ 1) << 7 | 0x40 | (from.high() ^ 1) << 5;
        self.raw(&[0xc4, rxb | 3, 0x7b, 0xf0, 0xc0 | to.low() << 3 | from.low(), by]);
    }

    /// Keeps the low byte of RAX only; leaves the flags alone.
    pub fn extend_al(&mut self) {
        self.bytes(&[0x0f, 0xb6, 0xc0]);
    }

    pub fn shr(&mut self, to: Reg, by: u8) {
        self.registers(true, &[0xc1], 5, to);
        self.code.push(by);
    }

    /// Sign-extends 32 bits.
    pub fn extend(&mut self, reg: Reg) {
        self.registers(true, &[0x63], reg.0, reg);
    }

    pub fn sar(&mut self, to: Reg, by: u8) {
        self.registers(true, &[0xc1], 7, to);
        self.code.push(by);
    }

    pub fn sar32(&mut self, to: Reg, by: u8) {
        self.registers(false, &[0xc1], 7, to);
        self.code.push(by);
    }

    /// `to = from * value`, 32 bits.
    pub fn imul32(&mut self, to: Reg, from: Reg, value: u32) {
        self.registers(false, &[0x69], to.0, from);
        self.raw(&value.to_le_bytes());
    }

    /// `test low byte of the register, value`.
    pub fn test_byte(&mut self, reg: Reg, value: u8) {
        let rex = 0x40 | reg.high();
        self.raw(&[rex, 0xf6, 0xc0 | reg.low(), value]);
    }

    /// `op qword [to], value`.
    pub fn alu_at(&mut self, op: Alu, to: Mem, value: i32) {
        self.memory(true, &[0x81], op as u8, to);
        self.imm32(value);
    }

    /// `test byte [at], value`.
    pub fn test_at(&mut self, at: Mem, value: u8) {
        self.memory(false, &[0xf6], 0, at);
        self.code.push(value);
    }

    /// REP MOVS, or REP STOS, of elements of `1 << shift` bytes.
    pub fn rep(&mut self, shift: u8, moves: bool) {
        let prefixes: &[u8] = match shift {
            1 => &[0x66, 0xf3],
            3 => &[0xf3, 0x48],
            _ => &[0xf3],
        };
        self.raw(prefixes);
        self.code.push(if moves { 0xa4 } else { 0xaa } | u8::from(shift != 0));
    }

    /// `cmp dword [base], value`.
    pub fn compare_at(&mut self, base: Reg, value: u32) {
        self.memory(false, &[0x81], 7, Mem::at(base, 0));
        self.imm32(value as i32);
    }

    /// Stores a constant byte.
    pub fn store_byte(&mut self, to: Mem, value: u8) {
        self.memory(false, &[0xc6], 0, to);
        self.code.push(value);
    }

    /// MOVUPS of a register, from or to a field of the vCPU.
    fn vector(&mut self, opcode: u8, register: u8, mem: Mem, width: Width) {
        let length = match width {
            Width::Sse => {
                self.memory(false, &[0x0f, opcode], register, mem);
                return;
            }
            Width::Low => 0,
            Width::Whole => 4,
        };
        debug_assert!(mem.cpu && mem.base.is_none() && mem.index.is_none(), "a field");
        // VEX.0F, of 128 or 256 bits; no base, no index.
        let vex = if register < 8 { 0xf8 } else { 0x78 } | length;
        self.raw(&[0x65, 0xc5, vex, opcode, (register & 7) << 3 | 4, 0x25]);
        self.imm32(mem.disp);
    }

    pub fn load_vector(&mut self, to: u8, from: Mem, width: Width) {
        self.vector(0x10, to, from, width);
    }

    pub fn store_vector(&mut self, to: Mem, from: u8, width: Width) {
        self.vector(0x11, from, to, width);
    }

    /// XSAVE of the components in EDX:EAX.
    pub fn save_state(&mut self, to: Mem) {
        self.memory(true, &[0x0f, 0xae], 4, to);
    }

    /// XRSTOR of the components in EDX:EAX.
    pub fn restore_state(&mut self, from: Mem) {
        self.memory(true, &[0x0f, 0xae], 5, from);
    }

    pub fn load_mxcsr(&mut self, from: Mem) {
        self.memory(false, &[0x0f, 0xae], 2, from);
    }

    pub fn store_mxcsr(&mut self, to: Mem) {
        self.memory(false, &[0x0f, 0xae], 3, to);
    }

    /// Stores the lowest 16 bits.
    pub fn store16(&mut self, to: Mem, from: Reg) {
        self.code.push(0x66);
        self.memory(false, &[0x89], from.0, to);
    }

    /// Loads 16 bits, and clears the upper ones.
    pub fn load16(&mut self, to: Reg, from: Mem) {
        self.memory(false, &[0x0f, 0xb7], to.0, from);
    }

    pub fn jcc(&mut self, condition: u8, to: Label) {
        self.raw(&[0x0f, 0x80 | condition]);
        self.fixups.push((self.code.len(), to));
        self.imm32(0);
    }

    pub fn jmp(&mut self, to: Label) {
        self.code.push(0xe9);
        self.fixups.push((self.code.len(), to));
        self.imm32(0);
    }

    pub fn call(&mut self, to: Label) {
        self.changes += 1;
        self.code.push(0xe8);
        self.fixups.push((self.code.len(), to));
        self.imm32(0);
    }

    fn relative(&mut self, to: u64) {
        let distance = to.wrapping_sub(self.address(self.code.len()) + 4) as i64;
        self.imm32(i32::try_from(distance).expect("code memory is smaller than 2 GiB"));
    }

    pub fn jmp_to(&mut self, to: u64) {
        self.code.push(0xe9);
        self.relative(to);
    }

    pub fn call_to(&mut self, to: u64) {
        self.changes += 1;
        self.code.push(0xe8);
        self.relative(to);
    }

    pub fn jmp_reg(&mut self, to: Reg) {
        self.registers(false, &[0xff], 4, to);
    }

    pub fn jmp_mem(&mut self, to: Mem) {
        self.memory(false, &[0xff], 4, to);
    }

    /// `jmp [rip + distance to label]`.
    pub fn jmp_slot(&mut self, slot: Label) {
        self.raw(&[0xff, 0x25]);
        self.fixups.push((self.code.len(), slot));
        self.imm32(0);
    }

    pub fn call_reg(&mut self, to: Reg) {
        self.changes += 1;
        self.registers(false, &[0xff], 2, to);
    }

    pub fn push(&mut self, reg: Reg) {
        if reg.high() != 0 {
            self.code.push(0x41);
        }
        self.code.push(0x50 | reg.low());
    }

    pub fn pop(&mut self, reg: Reg) {
        self.changes += 1;
        if reg.high() != 0 {
            self.code.push(0x41);
        }
        self.code.push(0x58 | reg.low());
    }

    pub fn ret(&mut self) {
        self.code.push(0xc3);
    }
}

#[cfg(test)]
mod tests;
