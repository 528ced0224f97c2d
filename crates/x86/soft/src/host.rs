//! Loads, stores and atomic exchanges on guest memory, with the host's own instructions.
//!
//! Guest memory is shared with other vCPUs at any alignment. Rust's references and atomics
//! cannot express that; single host instructions can, and they carry x86's memory order and
//! atomicity with them. Every function needs a pointer valid for the access's size.

use std::arch::asm;

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for u128 {}
}

/// A value that one host instruction loads or stores.
pub trait Scalar: Copy + sealed::Sealed + 'static {
    /// Bytes of the value.
    const SIZE: u64;

    /// Loads from `at`.
    ///
    /// # Safety
    /// `at` must be valid for reads of [`Scalar::SIZE`] bytes; no alignment is needed.
    unsafe fn load(at: *const u8) -> Self;

    /// Stores to `at`.
    ///
    /// # Safety
    /// `at` must be valid for writes of [`Scalar::SIZE`] bytes; no alignment is needed.
    unsafe fn store(at: *mut u8, value: Self);

    /// Stores `new` at `at` if that holds `old`, as one locked operation; returns what was there.
    ///
    /// # Safety
    /// `at` must be valid for reads and writes of [`Scalar::SIZE`] bytes. 16-byte values must be
    /// 16-byte aligned; the others need no alignment.
    unsafe fn compare_exchange(at: *mut u8, old: Self, new: Self) -> Self;

    /// Replaces the value at `at` by what `change` makes of it, as one step if `locked`; returns
    /// what was there. `change` may be called more than once.
    ///
    /// # Safety
    /// As for [`Scalar::compare_exchange`] if `locked`, else as for [`Scalar::store`].
    #[inline(always)]
    unsafe fn update(at: *mut u8, locked: bool, change: impl Fn(Self) -> Self) -> Self
    where
        Self: PartialEq,
    {
        // SAFETY: the caller vouches for `at`.
        unsafe {
            let mut old = Self::load(at);
            if !locked {
                Self::store(at, change(old));
                return old;
            }
            loop {
                let found = Self::compare_exchange(at, old, change(old));
                if found == old {
                    return old;
                }
                old = found;
            }
        }
    }

    /// The value from the low bytes of a little-endian buffer.
    fn from_bytes(bytes: &[u8; 16]) -> Self;

    /// The value's little-endian bytes, in the low bytes of a buffer.
    fn to_bytes(self) -> [u8; 16];
}

macro_rules! scalar {
    ($ty:ty, $size:literal, $class:ident, $modifier:literal, $word:literal, $acc:tt) => {
        impl Scalar for $ty {
            const SIZE: u64 = $size;

            #[inline(always)]
            unsafe fn load(at: *const u8) -> Self {
                let value: $ty;
                // SAFETY: the caller vouches for `at`; one MOV, no flags, no stack.
                unsafe {
                    asm!(
                        concat!("mov {value", $modifier, "}, ", $word, " ptr [{at}]"),
                        at = in(reg) at, value = lateout($class) value,
                        options(nostack, preserves_flags, readonly)
                    );
                }
                value
            }

            #[inline(always)]
            unsafe fn store(at: *mut u8, value: Self) {
                // SAFETY: the caller vouches for `at`; one MOV, no flags, no stack.
                unsafe {
                    asm!(
                        concat!("mov ", $word, " ptr [{at}], {value", $modifier, "}"),
                        at = in(reg) at, value = in($class) value,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn compare_exchange(at: *mut u8, old: Self, new: Self) -> Self {
                let found: $ty;
                // SAFETY: the caller vouches for `at`; LOCK works at any alignment.
                unsafe {
                    asm!(
                        concat!("lock cmpxchg ", $word, " ptr [{at}], {new", $modifier, "}"),
                        at = in(reg) at, new = in($class) new,
                        inlateout($acc) old => found,
                        options(nostack)
                    );
                }
                found
            }

            fn from_bytes(bytes: &[u8; 16]) -> Self {
                u128::from_le_bytes(*bytes) as $ty
            }

            fn to_bytes(self) -> [u8; 16] {
                u128::from(self).to_le_bytes()
            }
        }
    };
}

scalar!(u8, 1, reg_byte, "", "byte", "al");
scalar!(u16, 2, reg, ":x", "word", "ax");
scalar!(u32, 4, reg, ":e", "dword", "eax");
scalar!(u64, 8, reg, ":r", "qword", "rax");

impl Scalar for u128 {
    const SIZE: u64 = 16;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> Self {
        let value: std::arch::x86_64::__m128i;
        // SAFETY: the caller vouches for `at`; MOVDQU takes any alignment.
        unsafe {
            asm!("movdqu {value}, xmmword ptr [{at}]", at = in(reg) at, value = lateout(xmm_reg) value,
                options(nostack, preserves_flags, readonly));
            std::mem::transmute(value)
        }
    }

    #[inline(always)]
    unsafe fn store(at: *mut u8, value: Self) {
        // SAFETY: the caller vouches for `at`; MOVDQU takes any alignment; the types have one size.
        unsafe {
            let value: std::arch::x86_64::__m128i = std::mem::transmute(value);
            asm!("movdqu xmmword ptr [{at}], {value}", at = in(reg) at, value = in(xmm_reg) value,
                options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn compare_exchange(at: *mut u8, old: Self, new: Self) -> Self {
        let (low, high): (u64, u64);
        // SAFETY: the caller vouches for `at` and its alignment. RBX is reserved by the compiler,
        // so it is swapped around the instruction. The class `reg` has it all the same: `at` must
        // not be there, so it has a register by name.
        unsafe {
            asm!(
                "xchg rbx, {new_low}",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "mov rbx, {new_low}",
                in("rdi") at,
                new_low = inout(reg) new as u64 => _,
                in("rcx") (new >> 64) as u64,
                inlateout("rax") old as u64 => low,
                inlateout("rdx") (old >> 64) as u64 => high,
                options(nostack)
            );
        }
        u128::from(low) | u128::from(high) << 64
    }

    fn from_bytes(bytes: &[u8; 16]) -> Self {
        u128::from_le_bytes(*bytes)
    }

    fn to_bytes(self) -> [u8; 16] {
        self.to_le_bytes()
    }
}

/// Copies code bytes from `offset` of a page of guest memory, where others may be writing.
///
/// # Safety
/// `host` must be the first byte of such a page, and the range must lie within it.
pub unsafe fn copy(host: *const u8, offset: usize, buffer: &mut [u8]) {
    debug_assert!(offset + buffer.len() <= 4096);
    let (words, rest) = buffer.as_chunks_mut::<8>();
    let whole = 8 * words.len();
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: the range lies within the page at `host`.
        *word = unsafe { u64::load(host.add(offset + 8 * i)) }.to_le_bytes();
    }
    for (i, byte) in rest.iter_mut().enumerate() {
        // SAFETY: as above.
        *byte = unsafe { u8::load(host.add(offset + whole + i)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Scalar + PartialEq + std::fmt::Debug>(a: T, b: T) {
        #[repr(align(16))]
        struct Buffer([u8; 64]);
        let mut buffer = Buffer([0xee; 64]);
        let offset = if T::SIZE == 16 { 16 } else { 13 };
        // SAFETY: all accesses lie within the buffer; the 16-byte one is aligned.
        unsafe {
            let at = buffer.0.as_mut_ptr().add(offset);
            T::store(at, a);
            assert_eq!(T::load(at), a);
            assert_eq!(T::compare_exchange(at, b, b), a);
            assert_eq!(T::load(at), a, "a failed exchange stores nothing");
            assert_eq!(T::compare_exchange(at, a, b), a);
            assert_eq!(T::load(at), b);
        }
        assert_eq!(buffer.0[offset - 1], 0xee);
        assert_eq!(buffer.0[offset + T::SIZE as usize], 0xee);
        assert_eq!(T::from_bytes(&b.to_bytes()), b);
    }

    #[test]
    fn every_size_loads_stores_and_exchanges() {
        round_trip(0x12u8, 0x34);
        round_trip(0x1234u16, 0x5678);
        round_trip(0x1234_5678u32, 0x9abc_def0);
        round_trip(0x1234_5678_9abc_def0u64, 0x0fed_cba9_8765_4321);
        round_trip(0x0011_2233_4455_6677_8899_aabb_ccdd_eeffu128, 1 << 100);
    }
}
