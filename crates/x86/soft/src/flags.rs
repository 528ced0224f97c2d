//! The six status flags, kept as results instead of bits.
//!
//! Most flags are overwritten before anyone looks. So an arithmetic operation stores its
//! sign-extended result and its carries, and a flag is worked out when it is read:
//!
//! * `result`: ZF is `result == 0`; SF its top bit; PF the parity of its low byte.
//! * `carries`: bit 63 is the carry out of the top bit (CF); bit 62 the carry into it, so OF is
//!   their difference; bit 3 is the carry into bit 4 (AF). Bits 8 to 15 are exclusive-ored to
//!   the parity byte and bit 16 to SF, so that any combination of bits can be expressed.

use satori_defs::x86::rflags;

use crate::host::Scalar;

/// An unsigned integer of the sizes that x86 arithmetic has.
pub(crate) trait Int: Scalar + Copy + PartialEq + Eq + Into<u64> {
    /// Bits of the type.
    const BITS: u32;
    /// Truncates.
    fn from_u64(value: u64) -> Self;
    /// Sign-extends to 64 bits.
    fn sext(self) -> u64;
}

macro_rules! int {
    ($unsigned:ty, $signed:ty) => {
        impl Int for $unsigned {
            const BITS: u32 = <$unsigned>::BITS;
            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                value as $unsigned
            }
            #[inline(always)]
            fn sext(self) -> u64 {
                self as $signed as i64 as u64
            }
        }
    };
}
int!(u8, i8);
int!(u16, i16);
int!(u32, i32);
int!(u64, i64);

const CF_BIT: u64 = 1 << 63;
const OF_BIT: u64 = 1 << 62;
const AF_BIT: u64 = 1 << 3;
const SIGN_DELTA: u64 = 1 << 16;
const KEPT: u64 = CF_BIT | OF_BIT | AF_BIT;

/// The status flags of a vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    result: u64,
    carries: u64,
}

impl Flags {
    /// After a logical operation: CF, OF and AF clear.
    #[inline(always)]
    pub(crate) fn logic<T: Int>(&mut self, result: T) {
        self.result = result.sext();
        self.carries = 0;
    }

    #[inline(always)]
    fn arithmetic<T: Int>(&mut self, result: T, carries: u64) {
        self.result = result.sext();
        // The carry out of the type's top bit moves to bit 63; AF's carry keeps its place.
        self.carries = ((carries << (64 - T::BITS)) & (CF_BIT | OF_BIT)) | (carries & AF_BIT);
    }

    /// `a + b + carry`, with its flags.
    #[inline(always)]
    pub(crate) fn add<T: Int>(&mut self, a: T, b: T, carry: bool) -> T {
        let (a, b): (u64, u64) = (a.into(), b.into());
        let sum = a.wrapping_add(b).wrapping_add(carry.into());
        self.arithmetic(T::from_u64(sum), (a & b) | ((a | b) & !sum));
        T::from_u64(sum)
    }

    /// `a - b - borrow`, with its flags.
    #[inline(always)]
    pub(crate) fn sub<T: Int>(&mut self, a: T, b: T, borrow: bool) -> T {
        let (a, b): (u64, u64) = (a.into(), b.into());
        let difference = a.wrapping_sub(b).wrapping_sub(borrow.into());
        self.arithmetic(T::from_u64(difference), (!a & b) | ((!a | b) & difference));
        T::from_u64(difference)
    }

    /// `a + 1`; CF is kept.
    #[inline(always)]
    pub(crate) fn inc<T: Int>(&mut self, a: T) -> T {
        let carry = self.carries & CF_BIT;
        let result = self.add(a, T::from_u64(1), false);
        self.keep_carry(carry);
        result
    }

    /// `a - 1`; CF is kept.
    #[inline(always)]
    pub(crate) fn dec<T: Int>(&mut self, a: T) -> T {
        let carry = self.carries & CF_BIT;
        let result = self.sub(a, T::from_u64(1), false);
        self.keep_carry(carry);
        result
    }

    /// Puts back an old CF under a new OF, which is stored as a difference to it.
    #[inline(always)]
    fn keep_carry(&mut self, carry: u64) {
        let changed = (self.carries ^ carry) & CF_BIT;
        self.carries ^= changed | changed >> 1;
    }

    /// After a shift or rotate by hand: a result with explicit CF and OF; AF clear.
    #[inline(always)]
    pub(crate) fn shifted<T: Int>(&mut self, result: T, carry: bool, overflow: bool) {
        self.result = result.sext();
        self.carries = u64::from(carry) << 63 | u64::from(carry != overflow) << 62;
    }

    /// Sets CF and OF only.
    #[inline(always)]
    pub(crate) fn set_cf_of(&mut self, carry: bool, overflow: bool) {
        self.carries =
            self.carries & !(CF_BIT | OF_BIT) | u64::from(carry) << 63 | u64::from(carry != overflow) << 62;
    }

    /// CF.
    #[inline(always)]
    pub(crate) fn cf(&self) -> bool {
        self.carries & CF_BIT != 0
    }
    /// OF.
    #[inline(always)]
    pub(crate) fn of(&self) -> bool {
        (self.carries ^ (self.carries << 1)) & CF_BIT != 0
    }
    /// ZF.
    #[inline(always)]
    pub(crate) fn zf(&self) -> bool {
        self.result == 0
    }
    /// SF.
    #[inline(always)]
    pub(crate) fn sf(&self) -> bool {
        ((self.result >> 63) ^ (self.carries >> 16)) & 1 != 0
    }
    /// PF.
    #[inline(always)]
    pub(crate) fn pf(&self) -> bool {
        ((self.result ^ (self.carries >> 8)) as u8).count_ones() & 1 == 0
    }
    /// AF.
    #[inline(always)]
    pub(crate) fn af(&self) -> bool {
        self.carries & AF_BIT != 0
    }

    /// The six flags at their places in RFLAGS.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        let bit = |set: bool, flag: u64| if set { flag } else { 0 };
        bit(self.cf(), rflags::CF)
            | bit(self.pf(), rflags::PF)
            | bit(self.af(), rflags::AF)
            | bit(self.zf(), rflags::ZF)
            | bit(self.sf(), rflags::SF)
            | bit(self.of(), rflags::OF)
    }

    /// Takes the six flags from their places in RFLAGS.
    #[inline]
    pub(crate) fn set_bits(&mut self, bits: u64) {
        let is = |flag: u64| bits & flag != 0;
        // A result of 0 has SF clear and PF set; a result of 1 has both clear.
        self.result = u64::from(!is(rflags::ZF));
        let natural_parity = is(rflags::ZF);
        self.carries = (u64::from(is(rflags::CF)) << 63)
            | (u64::from(is(rflags::CF) != is(rflags::OF)) << 62)
            | if is(rflags::AF) { AF_BIT } else { 0 }
            | if is(rflags::SF) { SIGN_DELTA } else { 0 }
            | (u64::from(is(rflags::PF) != natural_parity) << 8);
        debug_assert_eq!(self.carries & KEPT & !self.carries, 0);
    }

    /// Condition `code` of Jcc, SETcc and CMOVcc, 0 to 15 (SDM volume 1, appendix B).
    #[inline(always)]
    pub(crate) fn condition(&self, code: u8) -> bool {
        let holds = match code >> 1 {
            0 => self.of(),
            1 => self.cf(),
            2 => self.zf(),
            3 => self.cf() || self.zf(),
            4 => self.sf(),
            5 => self.pf(),
            6 => self.sf() != self.of(),
            _ => self.zf() || self.sf() != self.of(),
        };
        holds != (code & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::arch::asm;

    const EDGES: [u64; 12] =
        [0, 1, 0xf, 0x10, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0x7fff_ffff, 0x8000_0000_0000_0000, u64::MAX];

    macro_rules! native {
        ($name:ident, $op:literal, $ty:ty, $class:ident, $m:literal) => {
            fn $name(a: $ty, b: $ty, carry: bool) -> ($ty, u64) {
                let mut result = a;
                let flags: u64;
                // SAFETY: plain arithmetic; the flags are read through the stack.
                unsafe {
                    asm!(
                        "add {carry:l}, 0xff",
                        concat!($op, " {a", $m, "}, {b", $m, "}"),
                        "pushfq",
                        "pop {flags}",
                        carry = inout(reg) u64::from(carry) => _,
                        a = inout($class) result, b = in($class) b, flags = out(reg) flags,
                    );
                }
                (result, flags & rflags::STATUS)
            }
        };
    }
    native!(adc8, "adc", u8, reg_byte, "");
    native!(sbb8, "sbb", u8, reg_byte, "");
    native!(adc16, "adc", u16, reg, ":x");
    native!(sbb16, "sbb", u16, reg, ":x");
    native!(adc32, "adc", u32, reg, ":e");
    native!(sbb32, "sbb", u32, reg, ":e");
    native!(adc64, "adc", u64, reg, ":r");
    native!(sbb64, "sbb", u64, reg, ":r");

    fn compare<T: Int + std::fmt::Debug>(add: fn(T, T, bool) -> (T, u64), sub: fn(T, T, bool) -> (T, u64)) {
        for a in EDGES.map(T::from_u64) {
            for b in EDGES.map(T::from_u64) {
                for carry in [false, true] {
                    let mut flags = Flags::default();
                    let sum = flags.add(a, b, carry);
                    assert_eq!((sum, flags.bits()), add(a, b, carry), "{a:?} + {b:?} + {carry}");
                    let difference = flags.sub(a, b, carry);
                    assert_eq!((difference, flags.bits()), sub(a, b, carry), "{a:?} - {b:?} - {carry}");
                }
            }
        }
    }

    #[test]
    fn sums_and_differences_equal_the_real_processor() {
        compare(adc8, sbb8);
        compare(adc16, sbb16);
        compare(adc32, sbb32);
        compare(adc64, sbb64);
    }

    #[test]
    fn every_combination_of_bits_is_kept() {
        for mask in 0..64u64 {
            let all = [rflags::CF, rflags::PF, rflags::AF, rflags::ZF, rflags::SF, rflags::OF];
            let bits = (0..6).filter(|i| mask & 1 << i != 0).map(|i| all[i]).sum();
            let mut flags = Flags::default();
            flags.set_bits(bits);
            assert_eq!(flags.bits(), bits);
            let (carry, a) = (flags.cf(), 0x7fu8);
            assert_eq!(flags.inc(a), 0x80);
            assert!(flags.of() && flags.cf() == carry && flags.sf() && !flags.zf());
            flags.set_bits(bits);
            assert_eq!(flags.dec(1u8), 0);
            assert!(!flags.of() && flags.cf() == carry && flags.zf());
        }
    }
}
