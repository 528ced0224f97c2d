//! Memory types, as MTRRs and the PAT encode them (SDM tables 12-8 and 12-10).

/// UC, WC, WT, WP and WB, which a range may have.
pub const fn range(encoding: u8) -> bool {
    matches!(encoding, 0 | 1 | 4 | 5 | 6)
}

/// Those, and UC-, which only the PAT has.
pub const fn attribute(encoding: u8) -> bool {
    range(encoding) || encoding == 7
}

/// Whether IA32_PAT may hold `value`: eight types.
pub fn pat(value: u64) -> bool {
    value.to_le_bytes().into_iter().all(attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoding_in_each_byte_is_as_the_tables_say() {
        for encoding in 0..=u8::MAX {
            let known = [0, 1, 4, 5, 6, 7].contains(&encoding);
            assert_eq!((attribute(encoding), range(encoding)), (known, known && encoding != 7));
            for byte in 0..8 {
                assert_eq!(pat(u64::from(encoding) << (8 * byte)), known, "{encoding} in {byte}");
            }
        }
    }
}
