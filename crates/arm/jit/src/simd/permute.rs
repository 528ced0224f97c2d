//! Copies, permutations, tables and immediates.

use satori_arm_isa::Op;

use super::{AND, AND_NOT, HIGH_HALVES, LOW_HALVES, OR, SHUFFLE, subtract};
use crate::asm::{RAX, RCX, Rm, Vector};
use crate::constants::Constant;
use crate::emit::Emit;
use crate::float::{vex, vex3a, vex38};

/// VPINSRB, W, D, Q.
pub(super) fn insert(size: u32) -> Vector {
    match size {
        0 => vex3a(0x20),
        1 => vex(1, 0xc4),
        _ => Vector { wide: size == 3, ..vex3a(0x22) },
    }
}

/// VPEXTRB, W, D, Q.
pub(super) fn extract(size: u32) -> Vector {
    match size {
        0 => vex3a(0x14),
        1 => vex3a(0x15),
        _ => Vector { wide: size == 3, ..vex3a(0x16) },
    }
}

/// VPBROADCASTB, W, D, Q.
pub(super) fn broadcast(size: u32) -> Vector {
    vex38([0x78, 0x79, 0x58, 0x59][size as usize & 3])
}

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(super) fn permute(&mut self, op: Op) -> bool {
        match op {
            Op::DupElement | Op::DupScalar | Op::DupGeneral => self.duplicate(op),
            Op::Umov | Op::Smov => self.copy_lane(op == Op::Smov),
            Op::InsGeneral | Op::InsElement => self.insert_lane(op),
            Op::Tbl => self.table(),
            Op::Zip1 | Op::Zip2 => self.zip(op == Op::Zip2),
            Op::Uzp1 | Op::Uzp2 => {
                let (n, m, to) = (self.vector_at(5), self.vector_at(16), self.fresh());
                self.neighbours(self.bits(23, 22), n, m);
                self.vmove(to, u8::from(op == Op::Uzp2));
                self.result(to);
            }
            Op::Trn1 | Op::Trn2 => self.transpose(op == Op::Trn2),
            Op::Ext => self.window(),
            Op::Modified => self.immediate(),
            _ => return false,
        }
        self.flags = self.flags_before;
        true
    }

    /// Size and number of the lane that imm5 names.
    fn imm5(&self) -> (u32, u32) {
        let imm5 = self.bits(20, 16);
        let size = imm5.trailing_zeros();
        (size, imm5 >> (size + 1))
    }

    fn duplicate(&mut self, op: Op) {
        let (size, at) = self.imm5();
        if op == Op::DupGeneral {
            let (to, from) = (self.fresh(), self.rm(self.r(5)));
            self.move_from_general(size == 3, to, from);
            self.vop(broadcast(size), to, 0, to);
            return self.result(to);
        }
        let (n, to) = (self.vector_at(5), self.fresh());
        self.byte_shift_right(to, n, at << size);
        if op == Op::DupScalar {
            self.lowest(1 << size, to);
            return self.put_vector(self.bits(4, 0), to, 1 << size);
        }
        self.vop(broadcast(size), to, 0, to);
        self.result(to);
    }

    /// A lane in a general register, with a sign or zeros.
    fn copy_lane(&mut self, signed: bool) {
        let ((size, at), n) = (self.imm5(), self.vector_at(5));
        let to = self.target(self.r(0), &[]);
        match (size, at) {
            (2 | 3, 0) => self.move_to_general(size == 3, to, n),
            _ => self.asm.vector(extract(size), n, 0, Rm::Reg(to), Some(at as u8)),
        }
        if signed {
            self.asm.mov(false, RCX, Rm::Reg(to));
            self.extend_sign(1 << size, self.bit(30), to, Rm::Reg(RCX));
        }
        self.put(self.r(0), to);
    }

    fn insert_lane(&mut self, op: Op) {
        let ((size, at), d) = (self.imm5(), self.bits(4, 0));
        if op == Op::InsGeneral {
            let (old, to, from) = (self.v(d), self.fresh(), self.rm(self.r(5)));
            self.asm.vector(insert(size), to, old, from, Some(at as u8));
            return self.put_vector(d, to, 16);
        }
        let (n, old, to) = (self.vector_at(5), self.v(d), self.fresh());
        let from = self.bits(14, 11) >> size;
        match (size, at, from) {
            // VMOVSD, VUNPCKLPD, VSHUFPD
            (3, 0, 0) => self.vop(vex(3, 0x10), to, old, n),
            (3, 1, 0) => self.vop(LOW_HALVES, to, old, n),
            (3, 1, _) => self.vop_imm(vex(1, 0xc6), to, old, n, 2),
            (3, ..) => self.vop_imm(vex(1, 0xc6), to, n, old, 3),
            // VINSERTPS
            (2, ..) => self.vop_imm(vex3a(0x21), to, old, n, (from << 6 | at << 4) as u8),
            _ => {
                self.asm.vector(extract(size), n, 0, Rm::Reg(RAX), Some(from as u8));
                self.asm.vector(insert(size), to, old, Rm::Reg(RAX), Some(at as u8));
            }
        }
        self.put_vector(d, to, 16);
    }

    /// TBL: each register answers for its sixteen indices, and with zeros for the others.
    fn table(&mut self) {
        let (first, m, to) = (self.bits(9, 5), self.vector_at(16), self.fresh());
        let registers = self.bits(14, 13) + 1;
        for register in 0..registers {
            let n = self.v((first + register) % 32);
            if register == 0 {
                self.vmove(0, m);
            } else {
                self.all_bytes(1, 16);
                self.vop(subtract(0), 0, 0, 1);
            }
            // VPADDUSB sets bit 7 of what is beyond.
            self.vop_constant(vex(1, 0xdc), 1, 0, Constant::Beyond);
            self.vop(SHUFFLE, 1, n, 1);
            match register {
                0 => self.vmove(to, 1),
                _ => self.vop(OR, to, to, 1),
            }
        }
        self.result(to);
    }

    fn zip(&mut self, second: bool) {
        let (size, n, m, to) = (self.bits(23, 22), self.vector_at(5), self.vector_at(16), self.fresh());
        let full = self.bit(30);
        // VPUNPCKL and VPUNPCKH
        let opcode = [0x60, 0x61, 0x62, 0x6c][size as usize & 3];
        let high = if size == 3 { 1 } else { 8 };
        self.vop(vex(1, if second && full { opcode + high } else { opcode }), to, n, m);
        if second && !full {
            self.byte_shift_right(to, to, 8);
        }
        self.result(to);
    }

    fn transpose(&mut self, second: bool) {
        let (size, n, m, to) = (self.bits(23, 22), self.vector_at(5), self.vector_at(16), self.fresh());
        let bits = 8 << size;
        match (size, second) {
            (3, false) => self.vop(LOW_HALVES, to, n, m),
            (3, true) => self.vop(HIGH_HALVES, to, n, m),
            (0, false) => {
                self.vop_constant(AND, 0, n, Constant::LowBytes);
                self.shift_left(1, 1, m, 8);
                self.vop(OR, to, 0, 1);
            }
            (0, true) => {
                self.asm.vector(vex(0, 0x28), 0, 0, Constant::LowBytes.at(self.places.constants), None);
                self.vop(AND_NOT, 0, 0, m);
                self.shift_right(1, 1, n, 8);
                self.vop(OR, to, 0, 1);
            }
            _ => {
                // VPBLENDW takes the odd lanes from the second.
                let odd = if size == 1 { 0xaa } else { 0xcc };
                if second {
                    self.shift_right(size + 1, 0, n, bits);
                    self.vop_imm(vex3a(0x0e), to, 0, m, odd);
                } else {
                    self.shift_left(size + 1, 0, m, bits);
                    self.vop_imm(vex3a(0x0e), to, n, 0, odd);
                }
            }
        }
        self.result(to);
    }

    /// EXT.
    fn window(&mut self) {
        let (n, m, to, by) = (self.vector_at(5), self.vector_at(16), self.fresh(), self.bits(14, 11));
        match self.bit(30) {
            // VPALIGNR
            true => self.vop_imm(vex3a(0x0f), to, m, n, by as u8),
            false => {
                self.vop(LOW_HALVES, to, n, m);
                self.byte_shift_right(to, to, by);
            }
        }
        self.result(to);
    }

    /// MOVI, MVNI, ORR, BIC, FMOV.
    fn immediate(&mut self) {
        let (op, cmode) = (self.bits(29, 29), self.bits(15, 12));
        let half = modified(op, cmode, self.bits(18, 16) << 5 | self.bits(9, 5));
        let changes = cmode & 1 != 0 && cmode < 12;
        let value = if op == 1 && cmode < 14 && !changes { !half } else { half };
        let old = if changes { self.vector_at(0) } else { 0 };
        let to = self.fresh();
        match value {
            0 => self.vzero(to),
            u64::MAX => self.ones(to),
            _ => {
                self.asm.constant(RAX, value);
                self.move_from_general(true, to, Rm::Reg(RAX));
                self.vop(broadcast(3), to, 0, to);
            }
        }
        match (changes, op) {
            (false, _) => {}
            (true, 0) => self.vop(OR, to, old, to),
            (true, _) => self.vop(AND_NOT, to, to, old),
        }
        self.result(to);
    }
}

/// AdvSIMDExpandImm: 64 bits of op, cmode and imm8, before MVNI and BIC invert them.
fn modified(op: u32, cmode: u32, imm8: u32) -> u64 {
    let byte = u64::from(imm8);
    let twice = |value: u64| value | value << 32;
    let four = |value: u64| twice(value | value << 16);
    match cmode {
        0..=7 => twice(byte << (8 * (cmode >> 1))),
        8..=11 => four(byte << (8 * (cmode >> 1 & 1))),
        12 => twice(byte << 8 | 0xff),
        13 => twice(byte << 16 | 0xffff),
        14 if op == 0 => byte * 0x0101_0101_0101_0101,
        14 => (0..8).filter(|bit| byte >> bit & 1 != 0).fold(0, |sum, bit| sum | 0xff << (8 * bit)),
        _ if op == 0 => twice(crate::float::expand(imm8, false)),
        _ => crate::float::expand(imm8, true),
    }
}
