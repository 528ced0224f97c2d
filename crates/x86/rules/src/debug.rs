//! DR6 and DR7 (SDM 17.2).

use satori_defs::x86::{dr6, dr7};

/// Whether either may be loaded with `value`: the upper half is reserved (SDM 17.2.6).
pub const fn legal(value: u64) -> bool {
    crate::low_half(value)
}

/// What DR6 holds once `value` was written.
pub const fn dr6(value: u64) -> u64 {
    value & dr6::WRITABLE | dr6::FIXED
}

/// What DR7 holds once `value` was written.
pub const fn dr7(value: u64) -> u64 {
    value & dr7::WRITABLE | dr7::FIXED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_kept_fixed_or_refused() {
        for bit in 0..64 {
            let one = 1_u64 << bit;
            assert_eq!(legal(one), bit < 32);
            // SDM figure 17-1, without RTM and bus-lock detection: bits 12 and 63:16 of DR6 are not the guest's.
            assert_eq!(
                dr6(one) & !0xffff_0ff0,
                if matches!(bit, 0..=3 | 13..=15) { one } else { 0 },
                "{bit}"
            );
            assert_eq!(dr7(one) & !0x400, if matches!(bit, 0..=9 | 13 | 16..=31) { one } else { 0 }, "{bit}");
            assert_eq!((dr6(one) & 0xffff_0ff0, dr7(one) & 0x400), (0xffff_0ff0, 0x400));
        }
    }
}
