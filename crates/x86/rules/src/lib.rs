//! Which values of the architecture's registers are legal: pure functions of values, each with its place in the manual.
//!
//! The processor asks them before it loads a register, the handlers of exits where a register is the machine's, a debugger
//! before it sets one. What a processor has follows from its CPUID leaves, which this crate does not know: callers pass the
//! bits that exist.

#![forbid(unsafe_code)]

pub mod address;
pub mod apic_base;
pub mod cr0;
pub mod cr3;
pub mod cr4;
pub mod debug;
pub mod memory_type;
pub mod mtrr;
pub mod segment;
pub mod xcr0;

pub use address::{canonical, instruction};

/// Whether no bit of `value` is set but those of `exist`.
pub const fn within(value: u64, exist: u64) -> bool {
    value & !exist == 0
}

/// Bits 63:32 are reserved: of IA32_FMASK, IA32_TSC_AUX and the like in 64-bit registers.
pub const fn low_half(value: u64) -> bool {
    value >> 32 == 0
}

/// The bits of a physical address of `width` bits (MAXPHYADDR, CPUID 80000008H).
pub const fn physical(width: u8) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_within_what_exists_or_not() {
        for bit in 0..64 {
            assert_eq!(within(1 << bit, 0x8000_0000_0000_0401), matches!(bit, 0 | 10 | 63), "{bit}");
            assert_eq!(low_half(1 << bit), bit < 32, "{bit}");
            assert_eq!(physical(bit).count_ones(), bit.into());
        }
        assert_eq!((physical(46), physical(64)), (0x3fff_ffff_ffff, u64::MAX));
    }
}
