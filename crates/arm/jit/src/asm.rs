//! An emitter for the host instructions that translated code is made of.

/// A host register by its number in encodings.
pub(crate) type Reg = u8;

pub(crate) const RAX: Reg = 0;
pub(crate) const RCX: Reg = 1;
pub(crate) const RDX: Reg = 2;
/// Address of X16 in the register file.
pub(crate) const FILE: Reg = 3;
pub(crate) const RSP: Reg = 4;
/// Address of the table of pages for accesses of the mode.
pub(crate) const PAGES: Reg = 5;
pub(crate) const RSI: Reg = 6;
pub(crate) const RDI: Reg = 7;
/// Instructions left.
pub(crate) const LEFT: Reg = 15;

/// A register or memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rm {
    Reg(Reg),
    /// `[base + disp]`.
    At(Reg, i32),
    /// `[base + index * (1 << scale) + disp]`.
    Sum(Reg, Reg, u8, i32),
    /// A known address near the code.
    Near(u64),
}

impl Rm {
    /// Base and index as prefixes have them.
    fn registers(self) -> (Reg, Reg) {
        match self {
            Rm::Reg(reg) => (reg, 0),
            Rm::At(base, _) => (base, 0),
            Rm::Sum(base, index, ..) => (base, index),
            Rm::Near(_) => (0, 0),
        }
    }
}

/// An opcode with a VEX prefix: which mandatory prefix it has (0, then those of 0x66, 0xf3, 0xf2) and which map (1: 0x0f, 2: 0x0f38,
/// 3: 0x0f3a).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vector {
    pub prefix: u8,
    pub map: u8,
    pub wide: bool,
    pub opcode: u8,
}

/// Two-operand arithmetic by its number in opcodes.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Alu {
    Add = 0,
    Or = 1,
    Adc = 2,
    Sbb = 3,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// Shifts by their number in opcodes.
pub(crate) mod shift {
    pub(crate) const ROR: u8 = 1;
    pub(crate) const SHL: u8 = 4;
    pub(crate) const SHR: u8 = 5;
    pub(crate) const SAR: u8 = 7;
}

/// Condition codes.
pub(crate) mod cc {
    pub(crate) const B: u8 = 2;
    pub(crate) const AE: u8 = 3;
    pub(crate) const E: u8 = 4;
    pub(crate) const NE: u8 = 5;
    pub(crate) const P: u8 = 0xa;
}

/// A place in the code that may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// Code that is being written down for a known address.
pub(crate) struct Asm {
    pub code: Vec<u8>,
    /// Where the first byte will be executed.
    origin: u64,
    labels: Vec<Option<usize>>,
    /// Places of 32-bit distances to labels.
    fixups: Vec<(usize, Label)>,
}

impl Asm {
    pub(crate) fn new(origin: u64) -> Self {
        Asm { code: Vec::with_capacity(1024), origin, labels: Vec::new(), fixups: Vec::new() }
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub(crate) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Fills in the distances to labels. Labels that are not bound are nobody's.
    pub(crate) fn resolve(&mut self) {
        for (place, label) in std::mem::take(&mut self.fixups) {
            if let Some(to) = self.labels[label.0] {
                let distance = to as i32 - (place as i32 + 4);
                self.code[place..place + 4].copy_from_slice(&distance.to_le_bytes());
            }
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// An instruction with a ModRM byte. `byte` says that `reg` or a register operand is one of 8 bits.
    fn full(&mut self, prefix: Option<u8>, wide: bool, byte: bool, opcode: &[u8], reg: Reg, rm: Rm) {
        self.code.extend(prefix);
        let (base, index) = rm.registers();
        let rex = u8::from(wide) << 3 | reg >> 3 << 2 | index >> 3 << 1 | base >> 3;
        let low_byte = byte && (reg > 3 || matches!(rm, Rm::Reg(4..)));
        if rex != 0 || low_byte {
            self.code.push(0x40 | rex);
        }
        self.bytes(opcode);
        self.operands(reg, rm, 0);
    }

    /// The ModRM byte and what follows it, but for an immediate of `behind` bytes.
    fn operands(&mut self, reg: Reg, rm: Rm, behind: u64) {
        let reg = (reg & 7) << 3;
        let (base, disp, sib) = match rm {
            Rm::Reg(rm) => return self.code.push(0xc0 | reg | rm & 7),
            Rm::Near(address) => {
                self.code.push(reg | 5);
                let end = self.origin + self.code.len() as u64 + 4 + behind;
                return self.bytes(&(address.wrapping_sub(end) as i32).to_le_bytes());
            }
            Rm::At(base, disp) if base & 7 == 4 => (4, disp, Some(0x20 | base & 7)),
            Rm::At(base, disp) => (base & 7, disp, None),
            Rm::Sum(base, index, scale, disp) => (4, disp, Some(scale << 6 | (index & 7) << 3 | base & 7)),
        };
        let real = sib.map_or(base, |sib| sib & 7);
        let size = match disp {
            0 if real != 5 => 0,
            -128..=127 => 1,
            _ => 2,
        };
        self.code.push(size << 6 | reg | base);
        self.code.extend(sib);
        match size {
            0 => {}
            1 => self.code.push(disp as u8),
            _ => self.bytes(&disp.to_le_bytes()),
        }
    }

    /// An instruction with a ModRM byte.
    pub(crate) fn op(&mut self, wide: bool, opcode: &[u8], reg: Reg, rm: Rm) {
        self.full(None, wide, false, opcode, reg, rm);
    }

    /// One of 8-bit operands.
    pub(crate) fn op8(&mut self, opcode: &[u8], reg: Reg, rm: Rm) {
        self.full(None, false, true, opcode, reg, rm);
    }

    /// One with a prefix.
    pub(crate) fn op_with(&mut self, prefix: u8, wide: bool, opcode: &[u8], reg: Reg, rm: Rm) {
        self.full(Some(prefix), wide, false, opcode, reg, rm);
    }

    /// An instruction of 128-bit vectors with a VEX prefix, and an immediate if it has one.
    pub(crate) fn vector(&mut self, op: Vector, reg: Reg, first: Reg, rm: Rm, immediate: Option<u8>) {
        let Vector { prefix, map, wide, opcode } = op;
        let (base, index) = rm.registers();
        let rest = (!first & 15) << 3 | prefix;
        if map == 1 && !wide && base < 8 && index < 8 {
            self.bytes(&[0xc5, (!reg >> 3 & 1) << 7 | rest]);
        } else {
            let high = (!reg >> 3 & 1) << 7 | (!index >> 3 & 1) << 6 | (!base >> 3 & 1) << 5;
            self.bytes(&[0xc4, high | map, u8::from(wide) << 7 | rest]);
        }
        self.code.push(opcode);
        self.operands(reg, rm, u64::from(immediate.is_some()));
        self.code.extend(immediate);
    }

    /// Loads or moves 64 or 32 bits.
    pub(crate) fn mov(&mut self, wide: bool, to: Reg, from: Rm) {
        self.op(wide, &[0x8b], to, from);
    }

    pub(crate) fn store(&mut self, wide: bool, to: Rm, from: Reg) {
        self.op(wide, &[0x89], from, to);
    }

    pub(crate) fn alu(&mut self, wide: bool, what: Alu, to: Reg, from: Rm) {
        self.op(wide, &[(what as u8) << 3 | 3], to, from);
    }

    pub(crate) fn alu_imm(&mut self, wide: bool, what: Alu, to: Rm, value: i32) {
        match i8::try_from(value) {
            Ok(value) => {
                self.op(wide, &[0x83], what as u8, to);
                self.code.push(value as u8);
            }
            Err(_) => {
                self.op(wide, &[0x81], what as u8, to);
                self.bytes(&value.to_le_bytes());
            }
        }
    }

    pub(crate) fn lea(&mut self, wide: bool, to: Reg, from: Rm) {
        self.op(wide, &[0x8d], to, from);
    }

    pub(crate) fn shift(&mut self, wide: bool, kind: u8, to: Reg, by: u32) {
        if by != 0 {
            self.op(wide, &[0xc1], kind, Rm::Reg(to));
            self.code.push(by as u8);
        }
    }

    /// A constant, without a change of flags.
    pub(crate) fn constant(&mut self, to: Reg, value: u64) {
        if u32::try_from(value).is_ok() {
            if to > 7 {
                self.code.push(0x41);
            }
            self.code.push(0xb8 | to & 7);
            self.bytes(&(value as u32).to_le_bytes());
        } else if i32::try_from(value as i64).is_ok() {
            self.op(true, &[0xc7], 0, Rm::Reg(to));
            self.bytes(&(value as i32).to_le_bytes());
        } else {
            self.bytes(&[0x48 | to >> 3, 0xb8 | to & 7]);
            self.bytes(&value.to_le_bytes());
        }
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.code.push(0xe9);
        self.distance(to);
    }

    pub(crate) fn jump_if(&mut self, condition: u8, to: Label) {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.distance(to);
    }

    fn distance(&mut self, to: Label) {
        self.fixups.push((self.code.len(), to));
        self.bytes(&[0; 4]);
    }

    /// A jump (0xe9) or call (0xe8) to an address.
    pub(crate) fn far(&mut self, opcode: u8, to: u64) {
        self.code.push(opcode);
        let from = self.origin + self.code.len() as u64 + 4;
        self.bytes(&(to.wrapping_sub(from) as i32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_that_need_more_bytes_have_them() {
        let mut asm = Asm::new(0);
        asm.mov(true, RAX, Rm::At(12, 0));
        asm.mov(true, 13, Rm::At(13, 0));
        asm.mov(false, RCX, Rm::At(FILE, -128));
        asm.mov(true, RDX, Rm::Sum(RAX, 9, 3, 128));
        asm.op8(&[0x88], RSI, Rm::At(RAX, 0));
        asm.constant(8, 1 << 32);
        asm.constant(RAX, u64::MAX);
        let add = Vector { prefix: 1, map: 1, wide: false, opcode: 0x58 };
        asm.vector(add, 9, 1, Rm::Reg(2), None);
        asm.vector(Vector { wide: true, map: 2, opcode: 0xb8, ..add }, 1, 15, Rm::At(12, 8), None);
        asm.mov(true, RAX, Rm::Near(0));
        let expected: &[&[u8]] = &[
            &[0x49, 0x8b, 0x04, 0x24],
            &[0x4d, 0x8b, 0x6d, 0x00],
            &[0x8b, 0x4b, 0x80],
            &[0x4a, 0x8b, 0x94, 0xc8, 0x80, 0, 0, 0],
            &[0x40, 0x88, 0x30],
            &[0x49, 0xb8, 0, 0, 0, 0, 1, 0, 0, 0],
            &[0x48, 0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff],
            // VADDPD XMM9, XMM1, XMM2; VFMADD231PD XMM1, XMM15, [R12 + 8]; MOV RAX, [RIP - 57]
            &[0xc5, 0x71, 0x58, 0xca],
            &[0xc4, 0xc2, 0x81, 0xb8, 0x4c, 0x24, 0x08],
            &[0x48, 0x8b, 0x05, 0xc7, 0xff, 0xff, 0xff],
        ];
        assert_eq!(asm.code, expected.concat());
    }
}
