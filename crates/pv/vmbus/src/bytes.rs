//! Little-endian numbers in what a guest sent, which may be shorter than it should.

/// Reads numbers at offsets; what is not there is zero.
pub trait Bytes {
    /// Two bytes.
    fn u16_at(&self, at: usize) -> u16;
    /// Four bytes.
    fn u32_at(&self, at: usize) -> u32;
    /// Eight bytes.
    fn u64_at(&self, at: usize) -> u64;
}

fn some<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

impl Bytes for [u8] {
    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes(some(self, at))
    }
    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(some(self, at))
    }
    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(some(self, at))
    }
}
