//! Lanes that become twice as long.

use satori_arm_isa::Op;

use super::{LOW_HALVES, SHUFFLE, SHUFFLE_WORDS, add, extreme, subtract};
use crate::asm::{Reg, Vector};
use crate::constants::Constant;
use crate::emit::Emit;
use crate::float::{vex, vex3a, vex38};

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(super) fn long(&mut self, op: Op) -> bool {
        let size = self.bits(23, 22);
        match op {
            Op::SaddlVec
            | Op::SsublVec
            | Op::SabdlVec
            | Op::SabalVec
            | Op::SmullVec
            | Op::SmlalVec
            | Op::SmlslVec
            | Op::SmullElem
            | Op::SmlalElem
            | Op::SmlslElem
            | Op::SaddwVec
            | Op::SsubwVec => self.lengthened(op, size),
            Op::MulElem | Op::MlaElem | Op::MlsElem => self.by_element(op, size),
            Op::SaddlpVec | Op::SadalpVec => return self.sums_of_pairs(op, size),
            Op::PmullVec if size == 3 => {
                let (n, m, to) = (self.vector_at(5), self.vector_at(16), self.fresh());
                // VPCLMULQDQ
                self.vop_imm(vex3a(0x44), to, n, m, if self.bit(30) { 0x11 } else { 0 });
                self.put_vector(self.bits(4, 0), to, 16);
            }
            _ => return false,
        }
        self.flags = self.flags_before;
        true
    }

    /// Half of a register with each lane made twice as long.
    pub(super) fn lengthen_lanes(&mut self, size: u32, to: Reg, from: Reg) {
        let (high, unsigned) = (self.bit(30), self.bit(29));
        let from = match high {
            true => {
                self.vop_imm(SHUFFLE_WORDS, to, 0, from, 0xee);
                to
            }
            false => from,
        };
        // VPMOVSX or VPMOVZX
        let opcode = [0x20, 0x23, 0x25][size as usize % 3] + if unsigned { 0x10 } else { 0 };
        self.vop(vex38(opcode), to, 0, from);
    }

    /// One lane of the second operand in all lanes.
    fn one_lane(&mut self, size: u32, to: Reg) {
        let (high, low) = (self.bits(11, 11), self.bits(21, 21));
        match size {
            1 => {
                let m = self.v(self.bits(19, 16));
                self.byte_shift_right(to, m, 2 * (high << 2 | low << 1 | self.bits(20, 20)));
                // VPBROADCASTW
                self.vop(vex38(0x79), to, 0, to);
            }
            _ => {
                let m = self.vector_at(16);
                self.vop_imm(SHUFFLE_WORDS, to, 0, m, ((high << 1 | low) * 0x55) as u8);
            }
        }
    }

    fn by_element(&mut self, op: Op, size: u32) {
        let (n, d) = (self.vector_at(5), self.vector_at(0));
        self.one_lane(size, 1);
        let to = self.fresh();
        self.multiply_lanes(size, to, n, 1);
        match op {
            Op::MlaElem => self.vop(add(size), to, d, to),
            Op::MlsElem => self.vop(subtract(size), to, d, to),
            _ => {}
        }
        self.result(to);
    }

    fn lengthened(&mut self, op: Op, size: u32) {
        let (n, d) = (self.vector_at(5), self.vector_at(0));
        match op {
            Op::SmullElem | Op::SmlalElem | Op::SmlslElem => {
                self.one_lane(size, 1);
                self.lengthen_lanes(size, 1, 1);
            }
            _ => {
                let m = self.vector_at(16);
                self.lengthen_lanes(size, 1, m);
            }
        }
        let to = self.fresh();
        let unsigned = self.bit(29);
        if !matches!(op, Op::SaddwVec | Op::SsubwVec) {
            self.lengthen_lanes(size, 0, n);
        }
        let wide = size + 1;
        let product = match size {
            0 => vex(1, 0xd5),
            1 => vex38(0x40),
            _ if unsigned => vex(1, 0xf4),
            _ => vex38(0x28),
        };
        match op {
            Op::SaddlVec => self.vop(add(wide), to, 0, 1),
            Op::SsublVec => self.vop(subtract(wide), to, 0, 1),
            Op::SaddwVec => self.vop(add(wide), to, n, 1),
            Op::SsubwVec => self.vop(subtract(wide), to, n, 1),
            Op::SabdlVec | Op::SabalVec => {
                // Words of 32 bits are compared before they are made longer.
                let difference = self.difference(size, unsigned, to);
                self.vmove(to, difference);
                if op == Op::SabalVec {
                    self.vop(add(wide), to, d, to);
                }
            }
            Op::SmullVec | Op::SmullElem => self.vop(product, to, 0, 1),
            _ => {
                self.vop(product, to, 0, 1);
                let accumulate = match op {
                    Op::SmlalVec | Op::SmlalElem => add(wide),
                    _ => subtract(wide),
                };
                self.vop(accumulate, to, d, to);
            }
        }
        self.put_vector(self.bits(4, 0), to, 16);
    }

    /// The distance of the lanes in XMM0 and XMM1, which were made longer.
    fn difference(&mut self, size: u32, unsigned: bool, to: Reg) -> Reg {
        if size < 2 {
            self.vop(extreme(size + 1, unsigned, true), to, 0, 1);
            self.vop(extreme(size + 1, unsigned, false), 2, 0, 1);
            self.vop(subtract(size + 1), to, to, 2);
            return to;
        }
        // Both differences: the one that is not negative. 33 bits are enough for either.
        self.vop(subtract(3), to, 0, 1);
        self.vop(subtract(3), 2, 1, 0);
        // VBLENDVPD by the sign of the first.
        self.vop_imm(vex3a(0x4b), to, to, 2, to << 4);
        to
    }

    /// SADDLP and its kind: sums of neighbours.
    fn sums_of_pairs(&mut self, op: Op, size: u32) -> bool {
        let unsigned = self.bit(29);
        if size == 2 && !unsigned {
            return false;
        }
        let (n, d) = (self.vector_at(5), self.vector_at(0));
        let to = self.fresh();
        let multiply: Vector = vex38(0x04);
        match (size, unsigned) {
            // VPMADDUBSW with ones, whose first operand is unsigned; VPMADDWD
            (0, true) => self.vop_constant(multiply, to, n, Constant::Ones8),
            (0, false) => {
                let ones = Constant::Ones8.at(self.places.constants);
                self.asm.vector(vex(0, 0x28), 2, 0, ones, None);
                self.vop(multiply, to, 2, n);
            }
            (1, false) => self.vop_constant(vex(1, 0xf5), to, n, Constant::Ones16),
            _ => {
                // The odd ones moved down, and the even ones alone: VPBLENDW
                self.shift_right(size + 1, 2, n, 8 << size);
                self.vzero(3);
                self.vop_imm(vex3a(0x0e), to, 3, n, if size == 1 { 0x55 } else { 0x33 });
                self.vop(add(size + 1), to, to, 2);
            }
        }
        if op == Op::SadalpVec {
            self.vop(add(size + 1), to, d, to);
        }
        self.result(to);
        self.flags = self.flags_before;
        true
    }

    /// The low halves of lanes, into the low or the high half of the register at bits 4:0.
    pub(super) fn halves(&mut self, size: u32, from: Reg) {
        let (high, d) = (self.bit(30), self.bits(4, 0));
        let old = if high { self.v(d) } else { 0 };
        let to = self.fresh();
        match size {
            0 => self.vop_constant(SHUFFLE, to, from, Constant::EvenBytes),
            1 => self.vop_constant(SHUFFLE, to, from, Constant::EvenHalves),
            _ => self.vop_imm(SHUFFLE_WORDS, to, 0, from, 8),
        }
        match high {
            true => self.vop(LOW_HALVES, to, old, to),
            false => self.narrow_to(8, to, to),
        }
        self.put_vector(d, to, if high { 16 } else { 8 });
    }
}
