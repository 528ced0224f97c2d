//! Linear addresses (SDM volume 1, 3.3.7.1), and those of instructions.

/// Whether bits 63:47 of `linear` are all alike, as 4-level paging wants them.
#[inline(always)]
pub const fn canonical(linear: u64) -> bool {
    ((linear as i64) << 16 >> 16) as u64 == linear
}

/// Whether RIP may hold `rip`: in 64-bit code what is canonical, else 32 bits (SDM 26.3.1.4).
pub const fn instruction(rip: u64, code64: bool) -> bool {
    if code64 { canonical(rip) } else { rip >> 32 == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_instructions_are_as_wide_as_the_code() {
        assert!(instruction(0xffff_ffff, false) && !instruction(1 << 32, false));
        assert!(instruction(u64::MAX, true) && !instruction(1 << 47, true) && !instruction(u64::MAX, false));
    }

    #[test]
    fn the_upper_seventeen_bits_are_alike_or_the_address_is_none() {
        for low in [0, 1, 0x7fff_ffff_ffff_u64, 0x1234_5678_9abc] {
            assert!(canonical(low) && canonical(low | 0xffff_8000_0000_0000));
            for upper in 1..0x1ffff_u64 {
                assert!(!canonical(low & 0x7fff_ffff_ffff | upper << 47), "{upper:#x}");
            }
        }
    }
}
