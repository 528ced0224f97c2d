//! Partition reference time (TLFS 12.4), in units of 100 ns.

use satori_defs::hyperv::{REFERENCE_HZ, ReferenceTscPage};
use serde::{Deserialize, Serialize};

/// How reference time follows from the TSC: `((tsc * scale) >> 64) + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReferenceClock {
    scale: u64,
    offset: i64,
}

impl ReferenceClock {
    /// Reference time that is 0 when the TSC is 0. None for a TSC that is not faster than
    /// 10 MHz, whose scale does not fit.
    pub fn new(tsc_hz: u64) -> Option<Self> {
        let scale = (u128::from(REFERENCE_HZ) << 64).checked_div(u128::from(tsc_hz))?;
        Some(ReferenceClock { scale: u64::try_from(scale).ok()?, offset: 0 })
    }

    /// The time of `exact`, which is the partition's own at `tsc`, by a guest's TSC of another frequency, and at what
    /// that goes on: at `guest`, where `before` told the time, or ahead of that by less than a unit.
    ///
    /// Guests are told whole units to add, and which part of a unit has passed follows from their counter.
    /// If the counter only went on, each change would lose or gain a part of a unit, and since what was read
    /// must not come again, mostly gain: a random walk. So the counter is moved to where the parts agree, to a tick.
    pub fn through(
        tsc_hz: u64,
        exact: (&ReferenceClock, u64),
        before: (&ReferenceClock, u64),
    ) -> Option<(Self, u64)> {
        let (clock, guest) = (ReferenceClock::new(tsc_hz)?, before.1);
        let tick = u128::from(clock.scale);
        // In parts of 2^-64 units. A guest's counter is rounded down, its scale as well: two ticks ahead, no timer is
        // early.
        let time = exact.0.parts(exact.1).wrapping_add(2 * tick);
        let time = time.max(u128::from(before.0.at(guest)) << 64);
        let short = u128::from(time.wrapping_sub(clock.parts(guest)) as u64);
        let ahead = short.div_ceil(tick) as u64;
        let offset = time.wrapping_sub(clock.parts(guest)) >> 64;
        let clock = ReferenceClock { offset: offset as u64 as i64, ..clock };
        Some((clock, guest.wrapping_add(ahead)))
    }

    /// Reference time at `tsc` in parts of 2^-64 units.
    fn parts(&self, tsc: u64) -> u128 {
        let offset = u128::from(self.offset as u64) << 64;
        (u128::from(tsc) * u128::from(self.scale)).wrapping_add(offset)
    }

    /// Whether time passes.
    pub(crate) fn runs(&self) -> bool {
        self.scale != 0
    }

    /// Reference time at `tsc`.
    pub fn at(&self, tsc: u64) -> u64 {
        (self.parts(tsc) >> 64) as u64
    }

    /// The first TSC at which reference time has reached `time`.
    pub fn first_tsc(&self, time: u64) -> u64 {
        let scaled = i128::from(time) - i128::from(self.offset);
        // Beyond 64 bits a TSC does not come.
        let scaled = u64::try_from(scaled.max(0)).unwrap_or(u64::MAX);
        let tsc = (u128::from(scaled) << 64).div_ceil(u128::from(self.scale.max(1)));
        u64::try_from(tsc).unwrap_or(u64::MAX)
    }

    /// The page that tells a guest the same.
    pub fn page(&self, sequence: u32) -> ReferenceTscPage {
        ReferenceTscPage { sequence, reserved: 0, scale: self.scale, offset: self.offset }
    }
}

/// The sequence after `before`: 0 and 0xffffffff mean "not valid".
pub(crate) fn next_sequence(before: u32) -> u32 {
    match before.wrapping_add(1) {
        0 | u32::MAX => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_million_units_are_a_second() {
        for hz in [10_000_001, 1_000_000_000, 2_599_998_000, 5_000_000_000u64] {
            let clock = ReferenceClock::new(hz).unwrap();
            let hour = clock.at(hz * 3600);
            assert!(hour.abs_diff(36_000_000_000) <= 1 + 3600 * hz / (1 << 32), "{hz}: {hour}");
            assert_eq!(clock.at(0), 0);
        }
        assert_eq!(ReferenceClock::new(0), None);
        assert_eq!(ReferenceClock::new(10_000_000), None);
    }

    #[test]
    fn the_first_tsc_of_a_time_is_the_first() {
        for hz in [10_000_001, 1_000_000_000, 2_599_998_000, 5_000_000_000u64] {
            let clock = ReferenceClock::new(hz).unwrap();
            for time in (0..2000).chain((1..2000).map(|n| n * 0x1_2345_6789)) {
                let tsc = clock.first_tsc(time);
                assert!(clock.at(tsc) >= time && (tsc == 0 || clock.at(tsc - 1) < time), "{hz} {time}");
            }
            assert_eq!(clock.first_tsc(u64::MAX), u64::MAX);
        }
    }

    #[test]
    fn sequences_skip_the_two_that_mean_invalid() {
        assert_eq!((next_sequence(0), next_sequence(1)), (1, 2));
        assert_eq!((next_sequence(u32::MAX - 1), next_sequence(u32::MAX)), (1, 1));
    }
}
