//! A generator of numbers that bugs like.

use crate::layout::{PAGES, Rights, page};

/// SplitMix64: the same seed gives the same numbers.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of case `index` of `seed`.
    pub fn new(seed: u64, index: u64) -> Self {
        let mut numbers = Numbers(seed);
        let mixed = numbers.any() ^ index.wrapping_mul(0xd134_2543_de82_ef95);
        Numbers(mixed)
    }

    /// Any value.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A value below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.any() % limit
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `values`.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    /// An integer, often an edge of some size.
    pub fn edgy(&mut self) -> u64 {
        const EDGES: [u64; 10] = [
            0,
            1,
            0x7f,
            0x80,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            0x8000_0000,
            0x7fff_ffff_ffff_ffff,
            0x8000_0000_0000_0000,
        ];
        let edge = self.pick(&EDGES);
        match self.below(9) {
            0 => edge,
            1 => !edge,
            2 => edge.wrapping_add(self.below(3)).wrapping_sub(1),
            3 => self.below(0x100),
            4 => self.any() >> self.below(64),
            5 => 1 << self.below(64),
            6 => self.below(5),
            _ => self.any(),
        }
    }

    /// An address for an operand: mostly where something is, often at an edge of it.
    pub fn place(&mut self, align: u64) -> u64 {
        let writable = [1, 2, 4, 11];
        match self.below(32) {
            0..=13 => {
                let page = page(self.pick(&writable));
                page + (self.below(0x1000) & !(align - 1))
            }
            14..=17 => page(self.pick(&writable)) + self.below(0x1000),
            18..=24 => {
                // Around a boundary.
                let boundary = page(self.below(PAGES.len() as u64) as usize);
                boundary.wrapping_add(self.below(40)).wrapping_sub(20) & !(self.pick(&[1, 1, 2, 8, 16]) - 1)
            }
            25..=26 => page(5) + (self.below(0x1000) & !(align - 1)),
            27 => page(self.pick(&[7, 8, 10])) + self.below(0x1000),
            28 => page(self.pick(&[0, 3, 6, 9, 12])) + self.below(0x1000),
            29 => self
                .pick(&[0x7fff_ffff_f000_u64, 0x8000_0000_0000, 0xffff_8000_0000_0000, 0, 1 << 32])
                .wrapping_add(self.below(64))
                .wrapping_sub(32),
            30 => self.edgy(),
            _ => page(2) + 0x800,
        }
    }

    /// An address in writable memory.
    pub fn writable(&mut self) -> u64 {
        let pages = || (0..PAGES.len()).filter(|place| PAGES[*place] == Rights::Write);
        let count = pages().count() as u64;
        let place = pages().nth(self.below(count) as usize).unwrap_or_default();
        page(place) + self.below(0x1000)
    }

    fn float32(&mut self) -> u32 {
        const SPECIAL: [u32; 14] = [
            0,
            1,
            0x7f_ffff,
            0x80_0000,
            0x3f80_0000,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7f80_0001,
            0x7fc0_0000,
            0x7fff_ffff,
            0x4f00_0000,
            0x4eff_ffff,
            0x5f00_0000,
            0x3f00_0000,
        ];
        let sign = (self.below(2) as u32) << 31;
        sign | match self.below(3) {
            0 => self.pick(&SPECIAL),
            // Values of like size, whose sums and differences are near each other.
            1 => (0x3f00_0000 + (self.below(64) << 20) as u32) | self.any() as u32 & 0xf_ffff,
            _ => self.any() as u32 >> 1,
        }
    }

    fn float64(&mut self) -> u64 {
        const SPECIAL: [u64; 14] = [
            0,
            1,
            0xf_ffff_ffff_ffff,
            0x10_0000_0000_0000,
            0x3ff0_0000_0000_0000,
            0x7fef_ffff_ffff_ffff,
            0x7ff0_0000_0000_0000,
            0x7ff0_0000_0000_0001,
            0x7ff8_0000_0000_0000,
            0x7fff_ffff_ffff_ffff,
            0x41e0_0000_0000_0000,
            0x41df_ffff_ffc0_0000,
            0x43e0_0000_0000_0000,
            0x3fe0_0000_0000_0000,
        ];
        let sign = self.below(2) << 63;
        sign | match self.below(4) {
            0 => self.pick(&SPECIAL),
            1 => (0x3fe0_0000_0000_0000 + (self.below(128) << 49)) | self.any() & 0x1_ffff_ffff_ffff,
            // Around what a single can hold.
            2 => (0x3ff + 120 + self.below(16) - 2 * self.below(130)) << 52 | self.any() >> 12,
            _ => self.any() >> 1,
        }
    }

    /// 128 bits as vector instructions like them.
    pub fn vector(&mut self) -> u128 {
        let half = |numbers: &mut Self, kind| match kind {
            0 | 1 => u64::from(numbers.float32()) | u64::from(numbers.float32()) << 32,
            2 | 3 => numbers.float64(),
            // Short strings of few letters.
            4 => (0..8).fold(0, |text, i| text | ((numbers.below(5) * 0x61) & 0xff) << (8 * i)),
            5 => (0..4).fold(0, |text, i| text | ((numbers.below(5) * 0x4001) & 0xffff) << (16 * i)),
            6 => numbers.below(20),
            _ => numbers.edgy(),
        };
        let kind = self.below(9);
        u128::from(half(self, kind)) | u128::from(half(self, kind)) << 64
    }

    /// 80 bits as x87 instructions like them.
    pub fn extended(&mut self) -> u128 {
        let sign = u128::from(self.below(2)) << 79;
        let integer = 1 << 63;
        let (exponent, significand) = match self.below(11) {
            0 => (0, 0),
            1 => (0x7fff, integer),
            2 => (0x7fff, integer | self.any() >> 1),
            3 => (0, self.any() >> 1 >> self.below(60)),
            4 => (self.below(0x8000), self.any()),
            5 => (self.below(0x8000), integer | self.any()),
            6 => (0x3fff + self.below(70), integer | self.any() << self.below(64)),
            // MMX values.
            7 => return 0xffff << 64 | u128::from(self.edgy()),
            _ => (0x3ff0 + self.below(32), integer | self.any()),
        };
        sign | u128::from(exponent) << 64 | u128::from(significand)
    }
}
