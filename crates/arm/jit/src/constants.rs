//! Constants of 16 bytes that translated code reads, in its own memory.

use crate::asm::Rm;

/// One of them, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Constant {
    /// All signs of singles, and of doubles.
    Sign32,
    Sign64,
    /// Everything but them.
    Magnitude32,
    Magnitude64,
    /// The least normal single and double, without sign and moved up by a bit.
    Least32,
    Least64,
    /// -2 to the power of 31 in all lanes.
    Lowest32,
    /// Orders of bytes: reversed within 2, 4 and 8, and halves and words reversed within 4 and 8.
    Reverse16,
    Reverse32,
    Reverse64,
    ReverseHalves32,
    ReverseHalves64,
    /// The even bytes, then the odd ones; halves, too.
    EvenBytes,
    OddBytes,
    EvenHalves,
    OddHalves,
    /// Low bytes of halves.
    LowBytes,
    /// Low nibbles.
    Nibbles,
    /// How many bits a nibble has.
    Counts,
    /// 0x70 in all bytes: added to an index that is too large it sets bit 7.
    Beyond,
    /// 1 in all bytes, and in all halves.
    Ones8,
    Ones16,
}

const fn lanes(lane: u64, bits: u32) -> u128 {
    let (mut all, mut at) = (0, 0);
    while at < 128 {
        all |= (lane as u128) << at;
        at += bits;
    }
    all
}

/// Their values, in the order of [`Constant`].
const VALUES: [u128; 22] = [
    lanes(1 << 31, 32),
    lanes(1 << 63, 64),
    lanes(0x7fff_ffff, 32),
    lanes(i64::MAX as u64, 64),
    lanes(1 << 24, 32),
    lanes(1 << 53, 64),
    lanes(1 << 31, 32),
    0x0e0f_0c0d_0a0b_0809_0607_0405_0203_0001,
    0x0c0d_0e0f_0809_0a0b_0405_0607_0001_0203,
    0x0809_0a0b_0c0d_0e0f_0001_0203_0405_0607,
    0x0d0c_0f0e_0908_0b0a_0504_0706_0100_0302,
    0x0908_0b0a_0d0c_0f0e_0100_0302_0504_0706,
    0x8080_8080_8080_8080_0e0c_0a08_0604_0200,
    0x8080_8080_8080_8080_0f0d_0b09_0705_0301,
    0x8080_8080_8080_8080_0d0c_0908_0504_0100,
    0x8080_8080_8080_8080_0f0e_0b0a_0706_0302,
    lanes(0xff, 16),
    lanes(0x0f, 8),
    0x0403_0302_0302_0201_0302_0201_0201_0100,
    lanes(0x70, 8),
    lanes(1, 8),
    lanes(1, 16),
];

/// The bytes of all, for a 16-byte aligned place.
pub(crate) fn bytes() -> Vec<u8> {
    VALUES.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Constant {
    /// Where it is, if all are from `base` on.
    pub(crate) fn at(self, base: u64) -> Rm {
        Rm::Near(base + 16 * self as u64)
    }
}
