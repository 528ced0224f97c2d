//! XCR0 (SDM volume 1, 13.3).

/// x87 state, which cannot be turned off.
pub const X87: u64 = 1 << 0;
/// SSE state.
pub const SSE: u64 = 1 << 1;
/// AVX state, which needs that of SSE.
pub const AVX: u64 = 1 << 2;

/// Whether XCR0 may hold `value` where CPUID 0DH offers `offered`.
pub const fn legal(value: u64, offered: u64) -> bool {
    let vectors = value & AVX == 0 || value & SSE != 0;
    value & X87 != 0 && vectors && crate::within(value, offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_of_components_is_as_the_manual_says() {
        for offered in 0..16 {
            for value in 0..16_u64 {
                let [x87, sse, avx] = [0, 1, 2].map(|bit| value >> bit & 1 == 1);
                let expected =
                    x87 && (sse || !avx) && (0..64).all(|bit| value >> bit & 1 <= offered >> bit & 1);
                assert_eq!(legal(value, offered), expected, "{value:#x} of {offered:#x}");
            }
        }
        assert!((3..64).all(|bit| !legal(1 | 1 << bit, 7)));
    }
}
