//! The hypercall input word.

/// The hypercall input word (TLFS 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input(pub u64);

/// Lowest bit of the rep start index.
const START: u32 = 48;

impl Input {
    /// Bits that must be zero.
    pub const RESERVED: u64 = 0x1f << 27 | 0xf << 44 | 0xf << 60;

    /// Call code.
    pub const fn code(self) -> u16 {
        self.0 as u16
    }
    /// Parameters are in registers instead of memory.
    pub const fn fast(self) -> bool {
        self.0 & 1 << 16 != 0
    }
    /// Variable header, in units of 8 bytes.
    pub const fn header(self) -> usize {
        (self.0 >> 17 & 0x3ff) as usize
    }
    /// Rep count.
    pub const fn reps(self) -> u16 {
        (self.0 >> 32 & 0xfff) as u16
    }
    /// The first rep that is still to do.
    pub const fn start(self) -> u16 {
        (self.0 >> START & 0xfff) as u16
    }
    /// The same with another rep start index, of which 12 bits count.
    pub const fn with_start(self, start: u16) -> Self {
        Input(self.0 & !(0xfff << START) | (start as u64 & 0xfff) << START)
    }
}
