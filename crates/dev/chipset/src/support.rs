//! What several devices need: a lock that survives a panic elsewhere, byte-wide ports, tick arithmetic.

use satori_bus::Nanos;
pub(crate) use satori_lock::lock;

/// Guests must not make a periodic timer fire faster than the host can serve it: however short the
/// period they ask for, the next call comes no sooner. (KVM's PIT has 200 µs.) Counters stay exact;
/// only interrupts merge.
pub(crate) const MIN_PERIOD: Nanos = 50_000;

const NANOS: u128 = 1_000_000_000;

/// Whole ticks of a clock of `hz` in `nanos`.
pub(crate) fn ticks(nanos: Nanos, hz: u64) -> u64 {
    (u128::from(nanos) * u128::from(hz) / NANOS) as u64
}

/// The first nanosecond at which `ticks` have passed.
pub(crate) fn nanos(ticks: u64, hz: u64) -> Nanos {
    u64::try_from((u128::from(ticks) * NANOS).div_ceil(u128::from(hz))).unwrap_or(Nanos::MAX)
}

/// A read of `size` bytes from a device whose registers are a byte wide: byte after byte, as the
/// ISA bus splits it.
pub(crate) fn read_bytes(offset: u16, size: u8, mut byte: impl FnMut(u16) -> u8) -> u32 {
    (0..u16::from(size.min(4))).fold(0, |value, i| value | u32::from(byte(offset.wrapping_add(i))) << (8 * i))
}

/// A write of `size` bytes to a device whose registers are a byte wide.
pub(crate) fn write_bytes(offset: u16, size: u8, value: u32, mut byte: impl FnMut(u16, u8)) {
    for i in 0..u16::from(size.min(4)) {
        byte(offset.wrapping_add(i), (value >> (8 * i)) as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_before_its_tick() {
        for hz in [1_193_182, 3_579_545, 32_768] {
            for t in [0, 1, 2, 65_535, 65_536, 1 << 40] {
                assert_eq!(ticks(nanos(t, hz), hz), t);
            }
        }
        assert_eq!(nanos(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn wide_accesses_are_split_low_byte_first() {
        assert_eq!(read_bytes(4, 4, |o| o as u8), 0x0706_0504);
        let mut seen = Vec::new();
        write_bytes(2, 2, 0xbbaa, |o, v| seen.push((o, v)));
        assert_eq!(seen, [(2, 0xaa), (3, 0xbb)]);
    }
}
