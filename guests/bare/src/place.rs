//! Plain accesses to physical addresses: registers of devices, and memory that devices read.

/// What can be read and written in one access.
pub trait Word: Copy {}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}
impl Word for u64 {}

/// Reads a word at `at`, aligned or not, in one instruction.
pub fn load<T: Word>(at: u64) -> T {
    // SAFETY: a case chose a mapped place; x86 takes any alignment.
    unsafe { Unaligned::<T>::at(at).read_volatile().0 }
}

/// Writes a word at `at`, aligned or not, in one instruction.
pub fn store<T: Word>(at: u64, value: T) {
    // SAFETY: a case chose a place that nobody else needs; x86 takes any alignment.
    unsafe { Unaligned::<T>::at(at).write_volatile(Unaligned(value)) };
}

/// A word without an alignment of its own, as a volatile access of Rust's wants one.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

impl<T> Unaligned<T> {
    fn at(at: u64) -> *mut Self {
        at as *mut Self
    }
}

/// Reads `size` (1, 2, 4 or 8) bytes at `at`.
pub fn read(at: u64, size: u8) -> u64 {
    match size {
        1 => load::<u8>(at).into(),
        2 => load::<u16>(at).into(),
        4 => load::<u32>(at).into(),
        _ => load::<u64>(at),
    }
}

/// Writes `size` (1, 2, 4 or 8) bytes at `at`.
pub fn write(at: u64, size: u8, value: u64) {
    match size {
        1 => store(at, value as u8),
        2 => store(at, value as u16),
        4 => store(at, value as u32),
        _ => store(at, value),
    }
}

/// Copies `bytes` to `at`.
pub fn put(at: u64, bytes: &[u8]) {
    (at..).zip(bytes).for_each(|(at, byte)| store(at, *byte));
}

/// The `N` bytes at `at`.
pub fn take<const N: usize>(at: u64) -> [u8; N] {
    core::array::from_fn(|index| load(at + index as u64))
}

/// Numbers that look random and are the same in every run (xorshift64*).
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.number() >> 16) % bound
    }

    /// One of `all`.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
