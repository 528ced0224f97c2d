//! Where translations larger than a page were used, so that INVLPG can drop all of them.

/// Linear ranges of which a large page was cached: 2-MiB pieces, and gigabytes for anything
/// larger. Both are hashed, so the answer may be "yes" too often, never "no".
#[derive(Clone, Copy)]
pub(super) struct LargePages {
    pieces: [u64; 64],
    gigabytes: u64,
}

/// What the invalidation of one address must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Its 4-KiB page only.
    Page,
    /// The 2-MiB piece around it.
    Piece,
    /// Everything.
    All,
}

impl LargePages {
    /// None yet.
    pub(super) const fn new() -> Self {
        LargePages { pieces: [0; 64], gigabytes: 0 }
    }

    fn hash(value: u64) -> u64 {
        value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52
    }

    fn piece(linear: u64) -> (usize, u64) {
        let hash = Self::hash(linear >> 21);
        ((hash >> 6) as usize & 63, 1 << (hash & 63))
    }

    fn gigabyte(linear: u64) -> u64 {
        1 << (Self::hash(linear >> 30) & 63)
    }

    /// A translation of `1 << shift` bytes at `linear` was cached.
    pub(super) fn insert(&mut self, linear: u64, shift: u32) {
        match shift {
            0..=12 => {}
            21 => {
                let (word, bit) = Self::piece(linear);
                self.pieces[word] |= bit;
            }
            _ => self.gigabytes |= Self::gigabyte(linear),
        }
    }

    /// How far the invalidation of `linear` reaches.
    pub(super) fn reach(&self, linear: u64) -> Reach {
        let (word, bit) = Self::piece(linear);
        if self.gigabytes & Self::gigabyte(linear) != 0 {
            Reach::All
        } else if self.pieces[word] & bit != 0 {
            Reach::Piece
        } else {
            Reach::Page
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalidation_reaches_as_far_as_the_page_is_large() {
        let mut large = LargePages::new();
        large.insert(0x7fff_1234_5000, 12);
        assert_eq!(large.reach(0x7fff_1234_5000), Reach::Page);
        large.insert(0xffff_ffff_8110_0000, 21);
        assert_eq!(large.reach(0xffff_ffff_8100_0000), Reach::Piece);
        assert_eq!(large.reach(0xffff_ffff_811f_ffff), Reach::Piece);
        large.insert(0xffff_8880_4010_0000, 30);
        assert_eq!(large.reach(0xffff_8880_7fff_f000), Reach::All);
        // 4-MiB pages are in two pieces.
        large.insert(0x0040_0000, 22);
        assert_eq!(large.reach(0x0060_0000), Reach::All);
    }
}
