//! AdvSIMD of integers: two or three registers of the same type.
//!
//! What saturates and what is rare is left to the interpreter.

mod long;
mod permute;
mod shifts;
mod structures;

use satori_arm_isa::Op;

use crate::asm::{RAX, Reg, Rm, Vector};
use crate::constants::Constant;
use crate::emit::Emit;
use crate::float::{vex, vex3a, vex38};

/// Host opcodes that do not depend on sizes.
pub(crate) const AND: Vector = vex(1, 0xdb);
/// Of the first operand's complement and the second.
pub(crate) const AND_NOT: Vector = vex(1, 0xdf);
pub(crate) const OR: Vector = vex(1, 0xeb);
pub(crate) const XOR: Vector = vex(1, 0xef);
/// The low halves of both, and the high ones.
pub(crate) const LOW_HALVES: Vector = vex(1, 0x6c);
pub(crate) const HIGH_HALVES: Vector = vex(1, 0x6d);
/// Orders bytes of the first operand by the second.
pub(crate) const SHUFFLE: Vector = vex38(0x00);
/// Orders words by an immediate.
pub(crate) const SHUFFLE_WORDS: Vector = vex(1, 0x70);

/// Additions and subtractions of lanes by size.
pub(crate) fn add(size: u32) -> Vector {
    vex(1, [0xfc, 0xfd, 0xfe, 0xd4][size as usize & 3])
}

pub(crate) fn subtract(size: u32) -> Vector {
    vex(1, 0xf8 + (size as u8 & 3))
}

fn equal(size: u32) -> Vector {
    if size == 3 { vex38(0x29) } else { vex(1, 0x74 + size as u8) }
}

/// Signed.
fn greater(size: u32) -> Vector {
    if size == 3 { vex38(0x37) } else { vex(1, 0x64 + size as u8) }
}

/// The greater or lesser of bytes, halves and words.
fn extreme(size: u32, unsigned: bool, max: bool) -> Vector {
    match (size, unsigned, max) {
        (0, false, true) => vex38(0x3c),
        (1, false, true) => vex(1, 0xee),
        (_, false, true) => vex38(0x3d),
        (0, false, false) => vex38(0x38),
        (1, false, false) => vex(1, 0xea),
        (_, false, false) => vex38(0x39),
        (0, true, true) => vex(1, 0xde),
        (1, true, true) => vex38(0x3e),
        (_, true, true) => vex38(0x3f),
        (0, true, false) => vex(1, 0xda),
        (1, true, false) => vex38(0x3a),
        (_, true, false) => vex38(0x3b),
    }
}

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(crate) fn simd(&mut self, op: Op) -> bool {
        self.structures(op)
            || self.logic(op)
            || self.three(op)
            || self.two(op)
            || self.across(op)
            || self.long(op)
            || self.permute(op)
            || self.shifts(op)
            || self.cipher(op)
    }

    /// Bytes of the instruction's operands: a scalar is one lane of 8.
    fn bytes(&self) -> u8 {
        if self.bit(30) && !self.bit(28) { 16 } else { 8 }
    }

    /// A result becomes the register at bits 4:0.
    pub(crate) fn result(&mut self, to: Reg) {
        let bytes = self.bytes();
        if bytes == 8 {
            self.narrow_to(8, to, to);
        }
        self.put_vector(self.bits(4, 0), to, bytes);
    }

    /// All bits: VPCMPEQD.
    fn ones(&mut self, to: Reg) {
        self.vop(vex(1, 0x76), to, to, to);
    }

    /// A register's complement. Changes XMM3.
    fn complement(&mut self, to: Reg, from: Reg) {
        self.ones(3);
        self.vop(XOR, to, from, 3);
    }

    fn logic(&mut self, op: Op) -> bool {
        if !(Op::AndVec..=Op::Bif).contains(&op) {
            return false;
        }
        let (n, m) = (self.vector_at(5), self.vector_at(16));
        let d = if op >= Op::Bsl { self.vector_at(0) } else { n };
        let to = self.fresh();
        match op {
            Op::AndVec => self.vop(AND, to, n, m),
            Op::BicVec => self.vop(AND_NOT, to, m, n),
            Op::OrrVec if n == m => self.vmove(to, n),
            Op::OrrVec => self.vop(OR, to, n, m),
            Op::OrnVec => {
                self.complement(2, m);
                self.vop(OR, to, n, 2);
            }
            Op::EorVec => self.vop(XOR, to, n, m),
            // What the mask chooses, and what it does not.
            Op::Bsl => self.choose_bits(to, d, n, m),
            Op::Bit => self.choose_bits(to, m, n, d),
            _ => self.choose_bits(to, m, d, n),
        }
        self.result(to);
        self.flags = self.flags_before;
        true
    }

    fn choose_bits(&mut self, to: Reg, mask: Reg, yes: Reg, no: Reg) {
        self.vop(AND, 2, mask, yes);
        self.vop(AND_NOT, to, mask, no);
        self.vop(OR, to, to, 2);
    }

    fn three(&mut self, op: Op) -> bool {
        let (size, unsigned) = (self.bits(23, 22), self.bit(29));
        let known = matches!(
            op,
            Op::AddVec
                | Op::AddScalar
                | Op::SubVec
                | Op::SubScalar
                | Op::MulVec
                | Op::MlaVec
                | Op::MlsVec
                | Op::CmeqVec
                | Op::CmeqScalar
                | Op::CmtstVec
                | Op::CmtstScalar
                | Op::CmgtVec
                | Op::CmgtScalar
                | Op::CmgeVec
                | Op::CmgeScalar
                | Op::SmaxVec
                | Op::SminVec
                | Op::SabdVec
                | Op::SabaVec
                | Op::AddpVec
                | Op::SmaxpVec
                | Op::SminpVec
        ) || (op == Op::SrhaddVec && unsigned && size < 2);
        if !known {
            return false;
        }
        let (n, m) = (self.vector_at(5), self.vector_at(16));
        let d = match op {
            Op::MlaVec | Op::MlsVec | Op::SabaVec => self.vector_at(0),
            _ => n,
        };
        let to = self.fresh();
        match op {
            Op::AddVec | Op::AddScalar => self.vop(add(size), to, n, m),
            Op::SubVec | Op::SubScalar => self.vop(subtract(size), to, n, m),
            Op::MulVec => self.multiply_lanes(size, to, n, m),
            Op::MlaVec | Op::MlsVec => {
                self.multiply_lanes(size, to, n, m);
                let accumulate = if op == Op::MlaVec { add(size) } else { subtract(size) };
                self.vop(accumulate, to, d, to);
            }
            Op::CmeqVec | Op::CmeqScalar => self.vop(equal(size), to, n, m),
            Op::CmtstVec | Op::CmtstScalar => {
                self.vop(AND, 2, n, m);
                self.vzero(3);
                self.vop(equal(size), 2, 2, 3);
                self.complement(to, 2);
            }
            Op::CmgtVec | Op::CmgtScalar => self.greater_than(size, unsigned, to, n, m),
            Op::CmgeVec | Op::CmgeScalar => {
                self.greater_than(size, unsigned, to, m, n);
                self.complement(to, to);
            }
            Op::SmaxVec | Op::SminVec => self.vop(extreme(size, unsigned, op == Op::SmaxVec), to, n, m),
            Op::SabdVec | Op::SabaVec => {
                self.vop(extreme(size, unsigned, true), 0, n, m);
                self.vop(extreme(size, unsigned, false), 1, n, m);
                self.vop(subtract(size), to, 0, 1);
                if op == Op::SabaVec {
                    self.vop(add(size), to, d, to);
                }
            }
            Op::SrhaddVec => self.vop(vex(1, if size == 0 { 0xe0 } else { 0xe3 }), to, n, m),
            _ => {
                self.neighbours(size, n, m);
                let what = match op {
                    Op::AddpVec => add(size),
                    _ => extreme(size, unsigned, op == Op::SmaxpVec),
                };
                self.vop(what, to, 0, 1);
            }
        }
        self.result(to);
        self.flags = self.flags_before;
        true
    }

    /// Products of lanes of up to 32 bits.
    pub(crate) fn multiply_lanes(&mut self, size: u32, to: Reg, n: Reg, m: Reg) {
        match size {
            // Even bytes, and odd ones moved down.
            0 => {
                self.shift_right(1, 0, n, 8);
                self.shift_right(1, 1, m, 8);
                self.vop(vex(1, 0xd5), 0, 0, 1);
                self.shift_left(1, 0, 0, 8);
                self.vop(vex(1, 0xd5), to, n, m);
                self.vop_constant(AND, to, to, Constant::LowBytes);
                self.vop(OR, to, to, 0);
            }
            1 => self.vop(vex(1, 0xd5), to, n, m),
            _ => self.vop(vex38(0x40), to, n, m),
        }
    }

    /// Masks of lanes that are greater. Changes XMM2 and XMM3.
    fn greater_than(&mut self, size: u32, unsigned: bool, to: Reg, n: Reg, m: Reg) {
        match (unsigned, size) {
            (false, _) => self.vop(greater(size), to, n, m),
            (true, 3) => {
                self.vop_constant(XOR, 2, n, Constant::Sign64);
                self.vop_constant(XOR, 3, m, Constant::Sign64);
                self.vop(greater(3), to, 2, 3);
            }
            // Not those where the lesser one is the first.
            _ => {
                self.vop(extreme(size, true, false), 2, n, m);
                self.vop(equal(size), 2, 2, n);
                self.complement(to, 2);
            }
        }
    }

    /// The even lanes of `n` and `m` one behind the other in XMM0, the odd ones in XMM1.
    pub(crate) fn neighbours(&mut self, size: u32, n: Reg, m: Reg) {
        let (n, m) = match self.bytes() {
            // Both at once, and nothing behind them.
            8 => {
                self.vop(LOW_HALVES, 2, n, m);
                self.vzero(3);
                (2, 3)
            }
            _ => (n, m),
        };
        let half = (n, m) == (2, 3);
        let (even, odd) = match size {
            0 => (Constant::EvenBytes, Constant::OddBytes),
            1 => (Constant::EvenHalves, Constant::OddHalves),
            // VSHUFPS: words 0 and 2 of both, and 1 and 3.
            2 => {
                self.vop_imm(vex(0, 0xc6), 0, n, m, 0x88);
                return self.vop_imm(vex(0, 0xc6), 1, n, m, 0xdd);
            }
            _ => {
                self.vop(LOW_HALVES, 0, n, m);
                return self.vop(HIGH_HALVES, 1, n, m);
            }
        };
        for (to, order) in [(0, even), (1, odd)] {
            self.vop_constant(SHUFFLE, to, n, order);
            if !half {
                self.vop_constant(SHUFFLE, 2, m, order);
                self.vop(LOW_HALVES, to, to, 2);
            }
        }
    }

    fn two(&mut self, op: Op) -> bool {
        let size = self.bits(23, 22);
        let known = matches!(op, Op::Rev64Vec | Op::Rev32Vec | Op::Rev16Vec | Op::NotVec | Op::CntVec)
            || (Op::CmgtZeroVec..=Op::NegScalar).contains(&op);
        let zero = matches!(
            op,
            Op::CmgtZeroVec
                | Op::CmgtZeroScalar
                | Op::CmgeZeroVec
                | Op::CmgeZeroScalar
                | Op::CmeqZeroVec
                | Op::CmeqZeroScalar
                | Op::CmleZeroVec
                | Op::CmleZeroScalar
                | Op::CmltZeroVec
                | Op::CmltZeroScalar
                | Op::AbsVec
                | Op::AbsScalar
                | Op::NegVec
                | Op::NegScalar
        );
        if !known || ((Op::CmgtZeroVec..=Op::NegScalar).contains(&op) && !zero) {
            return false;
        }
        let (n, to) = (self.vector_at(5), self.fresh());
        if zero {
            self.vzero(2);
        }
        match op {
            Op::Rev64Vec if size == 2 => self.vop_imm(SHUFFLE_WORDS, to, 0, n, 0xb1),
            Op::Rev64Vec | Op::Rev32Vec | Op::Rev16Vec => {
                let order = match (op, size) {
                    (Op::Rev64Vec, 0) => Constant::Reverse64,
                    (Op::Rev64Vec, _) => Constant::ReverseHalves64,
                    (Op::Rev32Vec, 0) => Constant::Reverse32,
                    (Op::Rev32Vec, _) => Constant::ReverseHalves32,
                    _ => Constant::Reverse16,
                };
                self.vop_constant(SHUFFLE, to, n, order);
            }
            Op::NotVec => self.complement(to, n),
            Op::CntVec => self.count_bits(to, n),
            Op::CmgtZeroVec | Op::CmgtZeroScalar => self.vop(greater(size), to, n, 2),
            Op::CmltZeroVec | Op::CmltZeroScalar => self.vop(greater(size), to, 2, n),
            Op::CmeqZeroVec | Op::CmeqZeroScalar => self.vop(equal(size), to, n, 2),
            Op::CmgeZeroVec | Op::CmgeZeroScalar => {
                self.vop(greater(size), to, 2, n);
                self.complement(to, to);
            }
            Op::CmleZeroVec | Op::CmleZeroScalar => {
                self.vop(greater(size), to, n, 2);
                self.complement(to, to);
            }
            Op::AbsVec | Op::AbsScalar if size < 3 => self.vop(vex38(0x1c + size as u8), to, 0, n),
            Op::AbsVec | Op::AbsScalar => {
                // VBLENDVPD chooses by the sign.
                self.vop(subtract(3), 2, 2, n);
                self.vop_imm(vex3a(0x4b), to, n, 2, n << 4);
            }
            _ => self.vop(subtract(size), to, 2, n),
        }
        self.result(to);
        self.flags = self.flags_before;
        true
    }

    fn count_bits(&mut self, to: Reg, n: Reg) {
        let counts = Constant::Counts.at(self.places.constants);
        self.asm.vector(vex(0, 0x28), 2, 0, counts, None);
        self.shift_right(1, 1, n, 4);
        self.vop_constant(AND, 1, 1, Constant::Nibbles);
        self.vop_constant(AND, 0, n, Constant::Nibbles);
        self.vop(SHUFFLE, 0, 2, 0);
        self.vop(SHUFFLE, 1, 2, 1);
        self.vop(add(0), to, 0, 1);
    }

    /// Sums and extremes of all lanes.
    fn across(&mut self, op: Op) -> bool {
        if op == Op::AddpScalar {
            let (n, to) = (self.vector_at(5), self.fresh());
            self.vop_imm(SHUFFLE_WORDS, 2, 0, n, 0xee);
            self.vop(add(3), to, n, 2);
            self.result(to);
            self.flags = self.flags_before;
            return true;
        }
        let (size, unsigned) = (self.bits(23, 22), self.bit(29));
        let sum_of_bytes = size == 0 && (op == Op::Addv || (op == Op::Saddlv && unsigned));
        let fold = match op {
            Op::Addv => add(size),
            Op::Smaxv | Op::Sminv => extreme(size, unsigned, op == Op::Smaxv),
            Op::Saddlv if sum_of_bytes => add(3),
            _ => return false,
        };
        let (n, to) = (self.vector_at(5), self.fresh());
        self.narrow_to(self.bytes(), to, n);
        let (bytes, mut left) = (1 << size, u32::from(self.bytes()));
        if sum_of_bytes {
            // VPSADBW with zero: sums of eight.
            self.vzero(2);
            self.vop(vex(1, 0xf6), to, to, 2);
            self.vop_imm(SHUFFLE_WORDS, 2, 0, to, 0xee);
            self.vop(add(3), to, to, 2);
        } else {
            while left > bytes {
                left /= 2;
                match left {
                    8 => self.vop_imm(SHUFFLE_WORDS, 2, 0, to, 0xee),
                    4 => self.vop_imm(SHUFFLE_WORDS, 2, 0, to, 0x55),
                    _ => self.shift_right(left.trailing_zeros() + 1, 2, to, left * 8),
                }
                self.vop(fold, to, to, 2);
            }
        }
        let result = if op == Op::Saddlv { 2 } else { bytes };
        self.lowest(result, to);
        self.put_vector(self.bits(4, 0), to, result as u8);
        self.flags = self.flags_before;
        true
    }

    /// Nothing but the lowest 1, 2, 4 or 8 bytes stays. Changes RAX.
    fn lowest(&mut self, bytes: u32, to: Reg) {
        if bytes >= 4 {
            return self.narrow_to(bytes as u8, to, to);
        }
        self.move_to_general(false, RAX, to);
        self.asm.op(false, &[0x0f, if bytes == 1 { 0xb6 } else { 0xb7 }], RAX, Rm::Reg(RAX));
        self.move_from_general(false, to, Rm::Reg(RAX));
    }

    /// A round of AES, in the parts that the host has them in.
    fn cipher(&mut self, op: Op) -> bool {
        let (first, last) = match op {
            // VAESENCLAST and VAESDECLAST with a key of zero.
            Op::Aese => (None, vex38(0xdd)),
            Op::Aesd => (None, vex38(0xdf)),
            // Columns are mixed by a round that undoes what the one before it did.
            Op::Aesmc => (Some(vex38(0xdf)), vex38(0xdc)),
            Op::Aesimc => {
                let (n, to) = (self.vector_at(5), self.fresh());
                self.vop(vex38(0xdb), to, 0, n);
                self.put_vector(self.bits(4, 0), to, 16);
                return true;
            }
            _ => return false,
        };
        let (d, n, to) = (self.vector_at(0), self.vector_at(5), self.fresh());
        self.vzero(2);
        match first {
            Some(first) => self.vop(first, to, n, 2),
            None => self.vop(XOR, to, d, n),
        }
        self.vop(last, to, to, 2);
        self.put_vector(self.bits(4, 0), to, 16);
        self.flags = self.flags_before;
        true
    }
}
