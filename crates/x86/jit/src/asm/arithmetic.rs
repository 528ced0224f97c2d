//! Arithmetic, comparisons, shifts and string instructions.

use super::{Alu, Asm, Mem, Reg};

impl Asm {
    pub(crate) fn alu_imm(&mut self, op: Alu, to: Reg, value: i32) {
        match i8::try_from(value) {
            Ok(value) => {
                self.registers(true, &[0x83], op as u8, to);
                self.code.push(value as u8);
            }
            Err(_) => {
                self.alu_opcode(true, op, to);
                self.imm32(value);
            }
        }
    }

    pub(crate) fn alu_imm32(&mut self, op: Alu, to: Reg, value: i32) {
        match i8::try_from(value) {
            Ok(value) => {
                self.registers(false, &[0x83], op as u8, to);
                self.code.push(value as u8);
            }
            Err(_) => {
                self.alu_opcode(false, op, to);
                self.imm32(value);
            }
        }
    }

    /// What stands before a constant of 32 bits: RAX has a form without a byte for operands.
    fn alu_opcode(&mut self, wide: bool, op: Alu, to: Reg) {
        if to.0 != 0 {
            return self.registers(wide, &[0x81], op as u8, to);
        }
        self.changes += 1;
        if wide {
            self.code.push(0x48);
        }
        self.code.push((op as u8) << 3 | 5);
    }

    pub(crate) fn alu(&mut self, op: Alu, to: Reg, from: Reg) {
        self.registers(true, &[(op as u8) << 3 | 1], from.0, to);
    }

    pub(crate) fn alu32(&mut self, op: Alu, to: Reg, from: Reg) {
        self.registers(false, &[(op as u8) << 3 | 1], from.0, to);
    }

    /// `op to, [from]`.
    pub(crate) fn alu_mem(&mut self, op: Alu, to: Reg, from: Mem) {
        self.memory(true, &[(op as u8) << 3 | 3], to.0, from);
    }

    /// `op byte [to], value`.
    pub(crate) fn alu_byte(&mut self, op: Alu, to: Mem, value: u8) {
        self.memory(false, &[0x80], op as u8, to);
        self.code.push(value);
    }

    /// `op to, [from]`, 32 bits.
    pub(crate) fn alu_mem32(&mut self, op: Alu, to: Reg, from: Mem) {
        self.memory(false, &[(op as u8) << 3 | 3], to.0, from);
    }

    /// TEST, of 32 bits unless `wide`.
    pub(crate) fn test(&mut self, one: Reg, other: Reg, wide: bool) {
        self.registers(wide, &[0x85], other.0, one);
    }

    pub(crate) fn test_imm(&mut self, reg: Reg, value: i32, wide: bool) {
        self.registers(wide, &[0xf7], 0, reg);
        self.imm32(value);
    }

    pub(crate) fn test_mem(&mut self, reg: Reg, mem: Mem, wide: bool) {
        self.memory(wide, &[0x85], reg.0, mem);
    }

    pub(crate) fn neg(&mut self, reg: Reg, wide: bool) {
        self.registers(wide, &[0xf7], 3, reg);
    }

    /// Divides what is in RDX and RAX, of 32 bits.
    pub(crate) fn divide32(&mut self, by: Reg) {
        self.changes += 1;
        self.registers(false, &[0xf7], 6, by);
    }

    /// INC, or DEC.
    pub(crate) fn step(&mut self, reg: Reg, up: bool, wide: bool) {
        self.registers(wide, &[0xff], u8::from(!up), reg);
    }

    pub(crate) fn shr32(&mut self, to: Reg, by: u8) {
        self.registers(false, &[0xc1], 5, to);
        self.code.push(by);
    }

    /// RORX of 32 bits, of BMI2: leaves the flags alone.
    pub(crate) fn rorx32(&mut self, to: Reg, from: Reg, by: u8) {
        self.changes += u32::from(to.0 == 0);
        let rxb = (to.high() ^ 1) << 7 | 0x40 | (from.high() ^ 1) << 5;
        self.raw(&[0xc4, rxb | 3, 0x7b, 0xf0, 0xc0 | to.low() << 3 | from.low(), by]);
    }

    /// Keeps the low byte of RAX only; leaves the flags alone.
    pub(crate) fn extend_al(&mut self) {
        self.bytes(&[0x0f, 0xb6, 0xc0]);
    }

    pub(crate) fn shr(&mut self, to: Reg, by: u8) {
        self.registers(true, &[0xc1], 5, to);
        self.code.push(by);
    }

    /// Sign-extends 32 bits.
    pub(crate) fn extend(&mut self, reg: Reg) {
        self.registers(true, &[0x63], reg.0, reg);
    }

    pub(crate) fn sar(&mut self, to: Reg, by: u8) {
        self.registers(true, &[0xc1], 7, to);
        self.code.push(by);
    }

    pub(crate) fn sar32(&mut self, to: Reg, by: u8) {
        self.registers(false, &[0xc1], 7, to);
        self.code.push(by);
    }

    /// `to = from * value`, 32 bits.
    pub(crate) fn imul32(&mut self, to: Reg, from: Reg, value: u32) {
        self.registers(false, &[0x69], to.0, from);
        self.raw(&value.to_le_bytes());
    }

    /// `test low byte of the register, value`.
    pub(crate) fn test_byte(&mut self, reg: Reg, value: u8) {
        let rex = 0x40 | reg.high();
        self.raw(&[rex, 0xf6, 0xc0 | reg.low(), value]);
    }

    /// `op qword [to], value`.
    pub(crate) fn alu_at(&mut self, op: Alu, to: Mem, value: i32) {
        self.memory(true, &[0x81], op as u8, to);
        self.imm32(value);
    }

    /// `test byte [at], value`.
    pub(crate) fn test_at(&mut self, at: Mem, value: u8) {
        self.memory(false, &[0xf6], 0, at);
        self.code.push(value);
    }

    /// REP MOVS, or REP STOS, of elements of `1 << shift` bytes.
    pub(crate) fn rep(&mut self, shift: u8, moves: bool) {
        let prefixes: &[u8] = match shift {
            1 => &[0x66, 0xf3],
            3 => &[0xf3, 0x48],
            _ => &[0xf3],
        };
        self.raw(prefixes);
        self.code.push(if moves { 0xa4 } else { 0xaa } | u8::from(shift != 0));
    }

    /// `cmp dword [base], value`.
    pub(crate) fn compare_at(&mut self, base: Reg, value: u32) {
        self.memory(false, &[0x81], 7, Mem::at(base, 0));
        self.imm32(value as i32);
    }
}
