//! Shifts by immediates and by registers.

use satori_arm_isa::Op;

use super::{AND, OR, XOR, add, greater, subtract};
use crate::asm::{RAX, Reg, Rm, Vector};
use crate::emit::Emit;
use crate::float::{vex, vex3a, vex38};

impl Emit<'_> {
    fn shift_lanes(&mut self, size: u32, kind: u8, to: Reg, from: Reg, by: u32) {
        // 71, 72, 73: halves, words, doublewords. The operation is in the field of a register.
        let opcode = 0x70 + size as u8;
        self.asm.vector(vex(1, opcode), kind, to, Rm::Reg(from), Some(by as u8));
    }

    /// VPSRLW, VPSRLD, VPSRLQ of lanes that are longer than a byte.
    pub(super) fn shift_right(&mut self, size: u32, to: Reg, from: Reg, by: u32) {
        self.shift_lanes(size, 2, to, from, by);
    }

    pub(super) fn shift_left(&mut self, size: u32, to: Reg, from: Reg, by: u32) {
        self.shift_lanes(size, 6, to, from, by);
    }

    /// VPSRLDQ
    pub(super) fn byte_shift_right(&mut self, to: Reg, from: Reg, by: u32) {
        match by {
            0 => self.vmove(to, from),
            _ => self.asm.vector(vex(1, 0x73), 3, to, Rm::Reg(from), Some(by as u8)),
        }
    }

    /// The same byte in all lanes. Changes RAX.
    pub(super) fn all_bytes(&mut self, to: Reg, byte: u8) {
        self.asm.constant(RAX, u64::from(byte));
        self.move_from_general(false, to, Rm::Reg(RAX));
        // VPBROADCASTB
        self.vop(vex38(0x78), to, 0, to);
    }

    /// To the right with zeros or signs, by up to the lanes' size. Changes XMM2 and XMM3.
    fn shift_right_any(&mut self, size: u32, unsigned: bool, to: Reg, from: Reg, by: u32) {
        match (size, unsigned) {
            (0, _) => {
                let by = if unsigned { by } else { by.min(7) };
                self.shift_right(1, to, from, by);
                self.all_bytes(2, (0xff_u32 >> by) as u8);
                self.vop(AND, to, to, 2);
                if !unsigned {
                    // The sign where it is now, turned and taken away.
                    self.all_bytes(2, 0x80 >> by);
                    self.vop(XOR, to, to, 2);
                    self.vop(subtract(0), to, to, 2);
                }
            }
            (3, false) => {
                self.vzero(2);
                self.vop(greater(3), 2, 2, from);
                self.shift_left(3, 2, 2, 64 - by);
                self.shift_right(3, to, from, by);
                self.vop(OR, to, to, 2);
            }
            (_, true) => self.shift_right(size, to, from, by),
            _ => self.shift_lanes(size, 4, to, from, by),
        }
    }

    fn shift_left_any(&mut self, size: u32, to: Reg, from: Reg, by: u32) {
        if size > 0 {
            return self.shift_left(size, to, from, by);
        }
        self.shift_left(1, to, from, by);
        self.all_bytes(2, (0xff_u32 << by) as u8);
        self.vop(AND, to, to, 2);
    }

    /// Translates the instruction, if it is one of these.
    pub(super) fn shifts(&mut self, op: Op) -> bool {
        match op {
            Op::SshlVec | Op::SshlScalar => return self.by_register(self.bits(23, 22)),
            Op::XtnVec => {
                let n = self.vector_at(5);
                self.halves(self.bits(23, 22), n);
                self.flags = self.flags_before;
                return true;
            }
            Op::ShllVec => {
                let (size, n, to) = (self.bits(23, 22), self.vector_at(5), self.fresh());
                self.lengthen_lanes(size, to, n);
                self.shift_left(size + 1, to, to, 8 << size);
                self.put_vector(self.bits(4, 0), to, 16);
                return true;
            }
            Op::SshrVec
            | Op::SshrScalar
            | Op::SsraVec
            | Op::SsraScalar
            | Op::ShlVec
            | Op::ShlScalar
            | Op::SshllVec
            | Op::ShrnVec => {}
            _ => return false,
        }
        let (size, immediate) = (31 - self.bits(22, 19).leading_zeros(), self.bits(22, 16));
        let (bits, unsigned, n) = (8 << size, self.bit(29), self.vector_at(5));
        let (right, left) = (2 * bits - immediate, immediate - bits);
        match op {
            Op::SshllVec => {
                let to = self.fresh();
                self.lengthen_lanes(size, to, n);
                if left > 0 {
                    self.shift_left(size + 1, to, to, left);
                }
                self.put_vector(self.bits(4, 0), to, 16);
            }
            Op::ShrnVec => {
                self.shift_right(size + 1, 0, n, right);
                self.halves(size, 0);
            }
            Op::ShlVec | Op::ShlScalar => {
                let to = self.fresh();
                self.shift_left_any(size, to, n, left);
                self.result(to);
            }
            _ => {
                let accumulates = matches!(op, Op::SsraVec | Op::SsraScalar);
                let d = if accumulates { self.vector_at(0) } else { n };
                let to = self.fresh();
                self.shift_right_any(size, unsigned, to, n, right);
                if accumulates {
                    self.vop(add(size), to, d, to);
                }
                self.result(to);
            }
        }
        self.flags = self.flags_before;
        true
    }

    /// SSHL and USHL by the low byte of each lane, to the left if it is positive: of words, and unsigned doublewords.
    fn by_register(&mut self, size: u32) -> bool {
        let unsigned = self.bit(29);
        if size < 2 || (size == 3 && !unsigned) {
            return false;
        }
        let (n, m, to) = (self.vector_at(5), self.vector_at(16), self.fresh());
        // Counts as numbers: one that is negative is a large one without a sign, which shifts everything out.
        match size {
            2 => {
                self.shift_left(2, 0, m, 24);
                self.shift_lanes(2, 4, 0, 0, 24);
            }
            _ => {
                // There is no signed shift of 64 bits: VPMOVSXBQ of the low bytes.
                self.vop_imm(vex3a(0x0f), 0, m, m, 8);
                self.vop(vex(1, 0x60), 0, m, 0);
                self.vop(vex38(0x22), 0, 0, 0);
            }
        }
        self.vzero(1);
        self.vop(subtract(size), 1, 1, 0);
        let wide = |opcode| Vector { wide: size == 3, ..vex38(opcode) };
        // VPSLLV; VPSRLV or VPSRAV
        self.vop(wide(0x47), 2, n, 0);
        self.vop(wide(if unsigned { 0x45 } else { 0x46 }), 1, n, 1);
        match unsigned {
            true => self.vop(OR, to, 1, 2),
            // VBLENDVPS by the count's sign.
            false => self.vop_imm(vex3a(0x4a), to, 2, 1, 0),
        }
        self.result(to);
        self.flags = self.flags_before;
        true
    }
}
