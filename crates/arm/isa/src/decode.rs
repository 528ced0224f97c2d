//! From a word to its row.

use std::sync::LazyLock;

use crate::{ROWS, Row};

/// Bits of a word that choose a list of rows: 31:21, where nearly all instructions differ.
const INDEX_BITS: u32 = 11;

/// For each value of bits 31:21 the rows that could match, as numbers.
static INDEX: LazyLock<Vec<Box<[u16]>>> = LazyLock::new(|| {
    let shift = 32 - INDEX_BITS;
    let of = |index: u32| {
        let fits = |row: &Row| (index << shift ^ row.pattern.value) & row.pattern.mask >> shift << shift == 0;
        ROWS.iter().enumerate().filter(|(_, row)| fits(row)).map(|(number, _)| number as u16).collect()
    };
    (0..1 << INDEX_BITS).map(of).collect()
});

/// The instruction that `word` is; none if it is UNDEFINED.
pub fn decode(word: u32) -> Option<&'static Row> {
    let candidates = &INDEX[(word >> (32 - INDEX_BITS)) as usize];
    candidates.iter().map(|&number| &ROWS[usize::from(number)]).find(|row| row.matches(word))
}

/// The bit mask that a logical immediate stands for (DecodeBitMasks), with `n`, `imms` and `immr` of the word, for a
/// register of 64 or 32 bits; none if it is reserved.
pub const fn logical_immediate(n: u32, imms: u32, immr: u32, wide: bool) -> Option<u64> {
    let selector = n << 6 | (!imms & 0x3f);
    if selector < 2 || (n == 1 && !wide) {
        return None;
    }
    let len = 31 - selector.leading_zeros();
    let size = 1 << len;
    let (ones, rotate) = (imms & (size - 1), immr & (size - 1));
    if ones == size - 1 {
        return None;
    }
    let mask = if size == 64 { u64::MAX } else { (1 << size) - 1 };
    let element = (1_u64 << (ones + 1)) - 1;
    let mut all = match rotate {
        0 => element,
        rotate => (element >> rotate | element << (size - rotate)) & mask,
    };
    let mut filled = size;
    while filled < 64 {
        all |= all << filled;
        filled *= 2;
    }
    Some(if wide { all } else { all & 0xffff_ffff })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, fields};

    #[test]
    fn no_two_rows_have_a_word_in_common() {
        for (at, one) in ROWS.iter().enumerate() {
            for other in &ROWS[at + 1..] {
                let both = one.pattern.mask & other.pattern.mask;
                if (one.pattern.value ^ other.pattern.value) & both != 0 {
                    continue;
                }
                // They overlap as patterns: then limits must keep them apart.
                let fixed = one.pattern.value | other.pattern.value;
                let free = !(one.pattern.mask | other.pattern.mask);
                let mut random = 0x1234_5678_u32;
                for _ in 0..2000 {
                    random = random.wrapping_mul(0x9e37_79b1).rotate_left(7) ^ 0x5bd1_e995;
                    let word = random & free | fixed;
                    let clash = (one.limit)(word) && (other.limit)(word);
                    assert!(!clash, "{:?} and {:?} share {word:08x}", one.op, other.op);
                }
            }
        }
    }

    #[test]
    fn each_row_has_words_and_they_decode_to_it() {
        for row in ROWS {
            let mut found = 0;
            let mut random = 0x2545_f491_u32;
            for _ in 0..4000 {
                random = random.wrapping_mul(0x9e37_79b1).rotate_left(5) ^ 0x27d4_eb2f;
                let Some(word) = row.sample(random) else { continue };
                found += 1;
                assert_eq!(decode(word).map(|row| row.op), Some(row.op), "{word:08x}");
            }
            assert!(found > 0, "{:?} has no words: {:?}", row.op, fields(row.written));
        }
    }

    #[test]
    fn logical_immediates_are_those_of_the_manual() {
        assert_eq!(logical_immediate(1, 0, 0, true), Some(1));
        assert_eq!(logical_immediate(0, 0b11_1100, 0, true), Some(0x5555_5555_5555_5555));
        assert_eq!(logical_immediate(0, 0b00_0111, 0, false), Some(0xff));
        assert_eq!(logical_immediate(1, 62, 1, true), Some(0xbfff_ffff_ffff_ffff));
        assert_eq!(logical_immediate(1, 63, 0, true), None);
        assert_eq!(logical_immediate(1, 0, 0, false), None);
        let all = (0..1 << 13)
            .filter(|&word: &u32| logical_immediate(word >> 12, word >> 6 & 63, word & 63, true).is_some());
        // 5,334 masks, each as often as rotations are equal: the count of encodings.
        let masks: std::collections::BTreeSet<_> =
            all.filter_map(|word| logical_immediate(word >> 12, word >> 6 & 63, word & 63, true)).collect();
        assert_eq!(masks.len(), 5334);
    }

    #[test]
    fn well_known_words() {
        for (word, op) in [
            (0xd503_201f, Op::Hint),
            (0xd503_3f9f, Op::Dsb),
            (0xd69f_03e0, Op::Eret),
            (0xa9bf_7bfd, Op::Stp64),
            (0xc8a0_7c41, Op::Cas),
            (0xf820_0041, Op::Ldadd),
            (0xd538_1000, Op::Mrs),
            (0x4ea1_1c20, Op::OrrVec),
        ] {
            assert_eq!(decode(word).map(|row| row.op), Some(op), "{word:08x}");
        }
    }
}
