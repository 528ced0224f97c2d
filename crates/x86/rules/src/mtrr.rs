//! Memory type range registers (SDM 12.11).

use crate::memory_type::range;
use crate::{physical, within};

/// IA32_MTRR_DEF_TYPE: the fixed ranges are in use.
pub const FIXED_ENABLE: u64 = 1 << 10;
/// IA32_MTRR_DEF_TYPE: any range is in use.
pub const ENABLE: u64 = 1 << 11;
/// IA32_MTRR_PHYSMASKn: the range is in use.
pub const VALID: u64 = 1 << 11;

/// Whether IA32_MTRR_DEF_TYPE may hold `value`.
pub const fn default(value: u64) -> bool {
    within(value, ENABLE | FIXED_ENABLE | 0xff) && range(value as u8)
}

/// Whether one of IA32_MTRR_FIX* may hold `value`: eight types.
pub fn fixed(value: u64) -> bool {
    value.to_le_bytes().into_iter().all(range)
}

/// Whether IA32_MTRR_PHYSBASEn may hold `value`: an address and a type.
pub const fn base(value: u64, physical_bits: u8) -> bool {
    within(value, physical(physical_bits) & !0xf00) && range(value as u8)
}

/// Whether IA32_MTRR_PHYSMASKn may hold `value`: a mask of addresses, and whether it is in use.
pub const fn mask(value: u64, physical_bits: u8) -> bool {
    within(value, physical(physical_bits) & !0xfff | VALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_and_each_type_is_as_the_manual_says() {
        for bit in 8..64 {
            let one = 1_u64 << bit;
            assert_eq!(default(6 | one), matches!(bit, 10 | 11), "{bit}");
            assert_eq!(base(6 | one, 46), (12..46).contains(&bit), "{bit}");
            assert_eq!(mask(one, 46), bit == 11 || (12..46).contains(&bit), "{bit}");
        }
        for kind in 0..=u8::MAX {
            let known = matches!(kind, 0 | 1 | 4 | 5 | 6);
            assert_eq!((default(kind.into()), base(kind.into(), 46)), (known, known), "{kind}");
            assert_eq!(mask(kind.into(), 46), kind == 0, "{kind}");
            assert!((0..8).all(|byte| fixed(u64::from(kind) << (8 * byte)) == known), "{kind}");
        }
    }
}
