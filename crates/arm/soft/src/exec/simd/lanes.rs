//! Lanes of vector registers, as numbers.

use crate::code::Insn;
use crate::cpu::Cpu;

/// A lane of `8 << size` bits.
#[inline(always)]
pub(in crate::exec) fn lane(value: u128, size: u32, at: usize) -> u64 {
    let bits = 8 << size;
    let low = (value >> (bits * at)) as u64;
    if size == 3 { low } else { low & ((1 << bits) - 1) }
}

/// Changes a lane.
#[inline(always)]
pub(in crate::exec) fn set_lane(value: &mut u128, size: u32, at: usize, lane: u64) {
    let bits = 8 << size;
    let mask = (u128::MAX >> (128 - bits)) << (bits * at);
    *value = (*value & !mask) | ((u128::from(lane) << (bits * at)) & mask);
}

/// A lane's number of `bits` bits, with or without a sign.
#[inline(always)]
pub(super) fn number(value: u64, bits: u32, signed: bool) -> i128 {
    let up = 64 - bits;
    if signed { i128::from((value << up) as i64 >> up) } else { i128::from((value << up) >> up) }
}

/// FPSR.QC.
pub(super) const QC: u32 = 1 << 27;

/// The nearest number of `bits` bits; `saturated` if it is another.
pub(super) fn saturate(value: i128, bits: u32, signed: bool, saturated: &mut bool) -> u64 {
    let (least, most) = if signed {
        (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1)
    } else {
        (0, (1_i128 << bits) - 1)
    };
    let near = value.clamp(least, most);
    *saturated |= near != value;
    near as u64
}

/// The sizes of a vector instruction.
pub(super) struct Shape {
    pub size: u32,
    pub bits: u32,
    pub lanes: usize,
    pub signed: bool,
}

impl Shape {
    /// Of elements by bits 23:22. A scalar (bit 28) is one lane.
    pub(super) fn of(i: &Insn) -> Self {
        Self::sized(i, i.bits(23, 22))
    }

    pub(super) fn sized(i: &Insn, size: u32) -> Self {
        let bytes = if i.bit(30) { 16 } else { 8 };
        let lanes = if i.bit(28) { 1 } else { bytes >> size };
        Shape { size, bits: 8 << size, lanes, signed: !i.bit(29) }
    }
}

impl Cpu {
    #[inline(always)]
    pub(in crate::exec) fn v(&self, register: u8) -> u128 {
        self.s.v[usize::from(register & 31)]
    }

    #[inline(always)]
    pub(in crate::exec) fn set_v(&mut self, register: u8, value: u128) {
        self.s.v[usize::from(register & 31)] = value;
    }

    /// Keeps that something saturated.
    pub(super) fn keep_qc(&mut self, saturated: bool) {
        if saturated {
            self.s.fpsr |= QC;
        }
    }
}

/// The low half, unless all 16 bytes are worked on.
#[inline(always)]
pub(super) fn whole(i: &Insn, value: u128) -> u128 {
    if i.bit(30) { value } else { value & u128::from(u64::MAX) }
}
