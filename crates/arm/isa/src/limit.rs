//! Which words that match a row's pattern are reserved: one predicate a kind of field, named after what it asks for.

use crate::logical_immediate;

const fn bits(word: u32, high: u32, low: u32) -> u32 {
    word >> low & ((1 << (high - low + 1)) - 1)
}

const fn wide(word: u32) -> bool {
    word >> 31 != 0
}

const fn q(word: u32) -> bool {
    bits(word, 30, 30) != 0
}

/// Bits 23:22, the size of elements or the type of a number.
const fn size(word: u32) -> u32 {
    bits(word, 23, 22)
}

pub(crate) fn any(_: u32) -> bool {
    true
}
/// A shift of less than the register's width.
pub(crate) fn shift(word: u32) -> bool {
    wide(word) || bits(word, 15, 15) == 0
}
/// The same, and no rotation.
pub(crate) fn add_shift(word: u32) -> bool {
    shift(word) && size(word) != 3
}
/// An extended register is shifted by 4 at most.
pub(crate) fn extend(word: u32) -> bool {
    bits(word, 12, 10) <= 4
}
pub(crate) fn logical(word: u32) -> bool {
    logical_immediate(bits(word, 22, 22), bits(word, 15, 10), bits(word, 21, 16), wide(word)).is_some()
}
pub(crate) fn move_wide(word: u32) -> bool {
    wide(word) || bits(word, 22, 22) == 0
}
/// N is sf, and positions are within the register.
pub(crate) fn bitfield(word: u32) -> bool {
    bits(word, 22, 22) == word >> 31 && (wide(word) || word & 0x0020_8000 == 0)
}
pub(crate) fn extract(word: u32) -> bool {
    bits(word, 22, 22) == word >> 31 && (wide(word) || bits(word, 15, 15) == 0)
}
pub(crate) fn crc(word: u32) -> bool {
    wide(word) == (bits(word, 11, 10) == 3)
}
/// The access, of bits 31:30, is of less than 8 bytes.
pub(crate) fn below8(word: u32) -> bool {
    word >> 30 != 3
}
/// The access is of 1 or 2 bytes.
pub(crate) fn below4(word: u32) -> bool {
    word >> 31 == 0
}
/// The index register is extended from 32 bits or taken whole.
pub(crate) fn option(word: u32) -> bool {
    bits(word, 14, 14) != 0
}
pub(crate) fn option_below8(word: u32) -> bool {
    option(word) && below8(word)
}
pub(crate) fn option_below4(word: u32) -> bool {
    option(word) && below4(word)
}
/// LDPSW has no form without an addressing mode.
pub(crate) fn pair_mode(word: u32) -> bool {
    bits(word, 24, 23) != 0
}
/// Pairs of registers begin at even ones.
pub(crate) fn even(word: u32) -> bool {
    word & 0x0001_0001 == 0
}
/// MSR (immediate) writes these: UAO, PAN, SPSel, DAIFSet, DAIFClr.
pub(crate) fn pstate(word: u32) -> bool {
    matches!((bits(word, 18, 16), bits(word, 7, 5)), (0, 3..=5) | (3, 6..=7))
}
/// Structures of several registers have no 64-bit elements in half a register.
pub(crate) fn structure(word: u32) -> bool {
    bits(word, 11, 10) != 3 || q(word)
}
/// Single structures: the lane's number leaves no bit over; loads alone replicate.
pub(crate) fn lane(word: u32) -> bool {
    let (load, s, size) = (bits(word, 22, 22) != 0, bits(word, 12, 12) != 0, bits(word, 11, 10));
    match bits(word, 15, 14) {
        0 => true,
        1 => size & 1 == 0,
        2 => size == 0 || (size == 1 && !s),
        _ => load && !s,
    }
}
/// Elements of 64 bits only in a whole register.
pub(crate) fn vector(word: u32) -> bool {
    size(word) != 3 || q(word)
}
/// Elements of 8, 16 or 32 bits.
pub(crate) fn below_d(word: u32) -> bool {
    size(word) != 3
}
/// Elements of 16 or 32 bits.
pub(crate) fn h_or_s(word: u32) -> bool {
    matches!(size(word), 1 | 2)
}
/// Elements of 8 bits.
pub(crate) fn bytes(word: u32) -> bool {
    size(word) == 0
}
/// Elements of 8 or 16 bits.
pub(crate) fn b_or_h(word: u32) -> bool {
    size(word) < 2
}
/// Elements of 64 bits.
pub(crate) fn d_only(word: u32) -> bool {
    size(word) == 3
}
/// Numbers in vectors: double precision only in a whole register (bit 22).
pub(crate) fn fp_vector(word: u32) -> bool {
    bits(word, 22, 22) == 0 || q(word)
}
/// The type of a scalar number is single or double.
pub(crate) fn fp_type(word: u32) -> bool {
    size(word) < 2
}
/// The same with any fixed-point scale that the integer has.
pub(crate) fn fp_fixed(word: u32) -> bool {
    fp_type(word) && (wide(word) || bits(word, 15, 15) != 0)
}
/// FMOV between registers of the same width.
pub(crate) fn fp_same(word: u32) -> bool {
    fp_type(word) && size(word) == word >> 31
}
/// FCVT between two of half, single and double.
pub(crate) fn fp_convert(word: u32) -> bool {
    let (from, to) = (size(word), bits(word, 16, 15));
    from != 2 && to != 2 && from != to
}
/// Polynomials of 8 or, with the AES instructions, of 64 bits.
pub(crate) fn polynomial(word: u32) -> bool {
    matches!(size(word), 0 | 3)
}
/// Sums across lanes need more than two of them.
pub(crate) fn across(word: u32) -> bool {
    matches!((size(word), q(word)), (0 | 1, _) | (2, true))
}
/// Which element is duplicated: its size is the lowest set bit of imm5.
pub(crate) fn duplicate(word: u32) -> bool {
    let imm5 = bits(word, 20, 16);
    imm5 & 15 != 0
}
/// The same, 64-bit elements only in a whole register.
pub(crate) fn duplicate_vector(word: u32) -> bool {
    duplicate(word) && (bits(word, 19, 16) != 8 || q(word))
}
/// SMOV: a register wider than the element.
pub(crate) fn smov(word: u32) -> bool {
    let imm5 = bits(word, 20, 16);
    imm5 & 3 != 0 || (imm5 & 7 == 4 && q(word))
}
/// UMOV: a register of the element's width, or 32 bits.
pub(crate) fn umov(word: u32) -> bool {
    let imm5 = bits(word, 20, 16);
    if imm5 & 7 != 0 { !q(word) } else { imm5 & 15 == 8 && q(word) }
}
/// EXT within half a register.
pub(crate) fn ext(word: u32) -> bool {
    q(word) || bits(word, 14, 14) == 0
}
/// A shift by immediate has an element size.
pub(crate) fn imm_shift(word: u32) -> bool {
    bits(word, 22, 19) != 0 && (bits(word, 22, 22) == 0 || q(word))
}
/// One of 8, 16 or 32 bits: narrowing and lengthening.
pub(crate) fn imm_narrow(word: u32) -> bool {
    matches!(bits(word, 22, 19), 1..8)
}
/// The same for scalars of any size.
pub(crate) fn imm_scalar(word: u32) -> bool {
    bits(word, 22, 19) != 0
}
/// The same for scalars of 64 bits.
pub(crate) fn imm_d(word: u32) -> bool {
    bits(word, 22, 22) != 0
}
/// Fixed-point numbers of 32 or 64 bits.
pub(crate) fn imm_fp(word: u32) -> bool {
    bits(word, 22, 21) != 0 && (bits(word, 22, 22) == 0 || q(word))
}
/// The same for scalars.
pub(crate) fn imm_fp_scalar(word: u32) -> bool {
    bits(word, 22, 21) != 0
}
/// Immediates of vectors: no 64-bit numbers in half a register.
pub(crate) fn modified(word: u32) -> bool {
    bits(word, 15, 12) != 15 || bits(word, 29, 29) == 0 || q(word)
}
/// An element of a number: single, or double in a whole register, whose index has no low bit.
pub(crate) fn fp_element(word: u32) -> bool {
    bits(word, 22, 22) == 0 || (q(word) && bits(word, 21, 21) == 0)
}
/// The same for scalars.
pub(crate) fn fp_element_scalar(word: u32) -> bool {
    bits(word, 22, 22) == 0 || bits(word, 21, 21) == 0
}
