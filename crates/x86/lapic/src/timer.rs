//! The APIC timer (SDM 11.5.4), counted in whole ticks of its clock since the partition began.

use serde::{Deserialize, Serialize};

use crate::Clocks;

/// How the timer runs: LVT timer bits 18:17.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerMode {
    OneShot,
    Periodic,
    TscDeadline,
    Reserved,
}

impl TimerMode {
    pub(crate) fn from_lvt(lvt: u32) -> Self {
        match lvt >> 17 & 3 {
            0 => TimerMode::OneShot,
            1 => TimerMode::Periodic,
            2 => TimerMode::TscDeadline,
            _ => TimerMode::Reserved,
        }
    }
}

/// Shortest period, as a part of a second: a guest must not keep the host busy with expiries
/// (KVM: 200 microseconds).
const MAX_RATE: u64 = 5000;

#[derive(Clone, Debug)]
pub(crate) struct Timer {
    clocks: Clocks,
    /// What the guest's TSC is ahead of the partition's.
    tsc_offset: u64,
    mode: TimerMode,
    divide: u32,
    initial: u32,
    /// Tick at which the count reaches zero.
    expiry: Option<u64>,
    /// IA32_TSC_DEADLINE, and the partition TSC that it means; 0 when disarmed.
    deadline: u64,
    deadline_tsc: u64,
}

/// What of a timer its clocks and its LVT entry do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTimer {
    tsc_offset: u64,
    divide: u32,
    initial: u32,
    expiry: Option<u64>,
    deadline: u64,
    deadline_tsc: u64,
}

impl Timer {
    pub(crate) fn save(&self) -> SavedTimer {
        let Timer { tsc_offset, divide, initial, expiry, deadline, deadline_tsc, .. } = *self;
        SavedTimer { tsc_offset, divide, initial, expiry, deadline, deadline_tsc }
    }

    /// Goes on from `saved`, in the mode of the LVT entry. Whatever numbers they are, the timer works with them.
    pub(crate) fn restore(&mut self, saved: &SavedTimer, mode: TimerMode) {
        let SavedTimer { tsc_offset, divide, initial, expiry, deadline, deadline_tsc } = *saved;
        let divide = divide & 0b1011;
        *self =
            Timer { clocks: self.clocks, tsc_offset, mode, divide, initial, expiry, deadline, deadline_tsc };
    }

    pub(crate) fn new(clocks: Clocks) -> Self {
        Timer {
            clocks: Clocks { tsc_hz: clocks.tsc_hz.max(1), timer_hz: clocks.timer_hz.max(1) },
            tsc_offset: 0,
            mode: TimerMode::OneShot,
            divide: 0,
            initial: 0,
            expiry: None,
            deadline: 0,
            deadline_tsc: 0,
        }
    }

    /// Disarms, and forgets all but the clocks.
    pub(crate) fn reset(&mut self) {
        *self = Timer { tsc_offset: self.tsc_offset, ..Timer::new(self.clocks) };
    }

    /// Goes on in `mode` from the initial and the current count of another one. Where that has come to 0 nobody can tell whether its
    /// interrupt was delivered: it comes once more, as after KVM_SET_LAPIC (Linux arch/x86/kvm/lapic.c, set_target_expiration).
    pub(crate) fn go_on(&mut self, mode: TimerMode, divide: u32, (initial, left): (u32, u32), tsc: u64) {
        self.reset();
        (self.mode, self.divide, self.initial) = (mode, divide & 0b1011, initial);
        let length = match (left, mode) {
            (0, TimerMode::Periodic) => self.period(),
            _ => u64::from(left) * self.divisor(),
        };
        self.expiry = (initial != 0 && counts(mode)).then(|| self.ticks(tsc).saturating_add(length));
    }

    fn ticks(&self, tsc: u64) -> u64 {
        clamp(u128::from(tsc) * u128::from(self.clocks.timer_hz) / u128::from(self.clocks.tsc_hz))
    }

    /// The first TSC at which `ticks` have passed.
    fn tsc(&self, ticks: u64) -> u64 {
        clamp((u128::from(ticks) * u128::from(self.clocks.tsc_hz)).div_ceil(u128::from(self.clocks.timer_hz)))
    }

    /// Ticks for one count.
    fn divisor(&self) -> u64 {
        let bits = self.divide & 3 | self.divide >> 1 & 4;
        1 << (bits.wrapping_add(1) & 7)
    }

    fn period(&self) -> u64 {
        (u64::from(self.initial) * self.divisor()).max(self.clocks.timer_hz / MAX_RATE).max(1)
    }

    /// Takes the mode of the LVT entry. Changing to or from TSC-deadline mode disarms.
    pub(crate) fn set_mode(&mut self, mode: TimerMode) {
        let before = std::mem::replace(&mut self.mode, mode);
        if before != mode && (counts(before) != counts(mode)) {
            self.expiry = None;
            self.initial = 0;
            self.deadline = 0;
        }
    }

    pub(crate) fn initial(&self) -> u32 {
        self.initial
    }
    pub(crate) fn divide(&self) -> u32 {
        self.divide
    }

    /// Starts to count down from `count`; 0 stops. Ignored in TSC-deadline mode.
    pub(crate) fn set_initial(&mut self, count: u32, tsc: u64) {
        if !counts(self.mode) {
            return;
        }
        self.initial = count;
        let length = match self.mode {
            TimerMode::Periodic => self.period(),
            _ => u64::from(count) * self.divisor(),
        };
        self.expiry = (count != 0).then(|| self.ticks(tsc).saturating_add(length));
    }

    /// Changes the divider; a running count goes on from where it is.
    pub(crate) fn set_divide(&mut self, divide: u32, tsc: u64) {
        let left = self.current(tsc);
        self.divide = divide & 0b1011;
        if left != 0 {
            let length = u64::from(left) * self.divisor();
            self.expiry = Some(self.ticks(tsc).saturating_add(length));
        }
    }

    /// The current count; the expiries until `tsc` must have been taken.
    pub(crate) fn current(&self, tsc: u64) -> u32 {
        let left = self.expiry.map_or(0, |expiry| expiry.saturating_sub(self.ticks(tsc)));
        left.div_ceil(self.divisor()).min(self.initial.into()) as u32
    }

    /// IA32_TSC_DEADLINE.
    pub(crate) fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Arms for guest TSC `value`; 0 disarms. Ignored outside TSC-deadline mode.
    pub(crate) fn set_deadline(&mut self, value: u64, tsc: u64) {
        if self.mode == TimerMode::TscDeadline {
            self.deadline = value;
            let ahead = value.saturating_sub(tsc.wrapping_add(self.tsc_offset));
            self.deadline_tsc = tsc.saturating_add(ahead);
        }
    }

    /// Takes a new difference between the guest's TSC and the partition's.
    pub(crate) fn set_tsc_offset(&mut self, offset: u64, tsc: u64) {
        self.tsc_offset = offset;
        self.set_deadline(self.deadline, tsc);
    }

    /// The partition TSC of the next expiry.
    pub(crate) fn next(&self) -> Option<u64> {
        match self.mode {
            TimerMode::TscDeadline => (self.deadline != 0).then_some(self.deadline_tsc),
            _ => self.expiry.map(|ticks| self.tsc(ticks)),
        }
    }

    /// Takes the expiries until `tsc`; missed periods count as one.
    pub(crate) fn expire(&mut self, tsc: u64) -> bool {
        if self.next().is_none_or(|at| tsc < at) {
            return false;
        }
        match (self.mode, self.expiry) {
            (TimerMode::TscDeadline, _) => self.deadline = 0,
            (TimerMode::Periodic, Some(expiry)) => {
                let missed = self.ticks(tsc).saturating_sub(expiry) / self.period();
                let forward = missed.saturating_add(1).saturating_mul(self.period());
                self.expiry = Some(expiry.saturating_add(forward));
            }
            _ => self.expiry = None,
        }
        true
    }
}

fn counts(mode: TimerMode) -> bool {
    matches!(mode, TimerMode::OneShot | TimerMode::Periodic)
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2.6 TSC cycles a tick: no conversion is exact.
    fn timer(mode: TimerMode) -> Timer {
        let mut timer = Timer::new(Clocks { tsc_hz: 2_600_000_000, timer_hz: 1_000_000_000 });
        timer.set_mode(mode);
        timer.set_divide(0b1011, 0);
        timer
    }

    #[test]
    fn one_shot_counts_to_zero_exactly_at_its_deadline_and_fires_once() {
        let mut timer = timer(TimerMode::OneShot);
        timer.set_initial(1000, 7);
        let at = timer.next().unwrap();
        assert_eq!(timer.current(7), 1000);
        assert_eq!(timer.current(at - 1), 1);
        assert!(!timer.expire(at - 1));
        assert!(timer.expire(at));
        assert_eq!((timer.current(at), timer.next()), (0, None));
        assert!(!timer.expire(at + 1_000_000));
    }

    #[test]
    fn periods_do_not_drift_and_missed_ones_collapse() {
        let mut timer = timer(TimerMode::Periodic);
        timer.set_initial(333_333, 0);
        for n in 1..=3000u64 {
            let at = timer.next().unwrap();
            assert_eq!(at, (n * 333_333 * 26).div_ceil(10));
            assert!(timer.expire(at));
            assert!(!timer.expire(at));
        }
        assert!(timer.expire(u64::MAX / 4));
        assert!(timer.next().unwrap() > u64::MAX / 4);
        assert!(timer.expire(u64::MAX));
    }

    #[test]
    fn a_tiny_period_is_stretched() {
        let mut timer = timer(TimerMode::Periodic);
        timer.set_initial(1, 0);
        assert_eq!(timer.next(), Some(520_000));
        assert_eq!(timer.current(0), 1);
    }

    #[test]
    fn the_divider_takes_its_bits_from_0_1_and_3() {
        let mut timer = timer(TimerMode::OneShot);
        for (bits, by) in [(0, 2), (1, 4), (2, 8), (3, 16), (8, 32), (9, 64), (10, 128), (11, 1)] {
            timer.set_divide(bits, 0);
            assert_eq!(timer.divisor(), by);
        }
        timer.set_initial(1000, 0);
        timer.set_divide(0, 0);
        assert_eq!((timer.current(0), timer.next()), (1000, Some(5200)));
    }

    #[test]
    fn tsc_deadline_is_in_guest_time_and_past_ones_fire_now() {
        let mut timer = timer(TimerMode::TscDeadline);
        timer.set_tsc_offset(1000u64.wrapping_neg(), 5000);
        timer.set_deadline(4500, 5000);
        assert_eq!(timer.next(), Some(5500));
        timer.set_tsc_offset(100, 5000);
        assert_eq!(timer.next(), Some(5000), "the guest's clock went past it");
        timer.set_deadline(u64::MAX, 5000);
        assert_eq!(timer.next(), Some(u64::MAX - 100));
        timer.set_deadline(4500, 5000);
        assert!(timer.expire(5000));
        assert_eq!((timer.deadline(), timer.next()), (0, None));
        timer.set_deadline(9000, 5000);
        timer.set_mode(TimerMode::OneShot);
        assert_eq!((timer.deadline(), timer.next()), (0, None), "leaving the mode disarms");
        timer.set_deadline(9000, 5000);
        assert_eq!(timer.deadline(), 0, "ignored outside its mode");
    }
}
