//! The two clocks: the host's time-stamp counter, and retired instructions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use satori_bus::{Clock, Nanos};
use satori_seam::{OfHost, TimeSource};

use crate::guest_counter::GuestCounter;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Wall clock at the start of every virtual machine: 2024-01-01 00:00:00 UTC.
const VIRTUAL_EPOCH: u64 = 1_704_067_200 * NANOS_PER_SECOND;

/// How long the host's counter is compared with its clock where it does not tell its frequency.
const CALIBRATION: Duration = Duration::from_millis(20);

/// `value * to / from`, rounded down; what does not fit is the far future.
pub(crate) fn scale(value: u64, to: u64, from: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(to) / u128::from(from.max(1))).unwrap_or(u64::MAX)
}

/// As [`scale`], rounded up.
pub(crate) fn scale_up(value: u64, to: u64, from: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(to)).div_ceil(u128::from(from.max(1)))).unwrap_or(u64::MAX)
}

/// The host's time-stamp counter, scaled to the guest's frequency. Everything the guest can ask
/// for time is derived from it, so that no two of its clocks disagree.
#[derive(Debug)]
pub struct RealClock {
    start: HostTicks,
    host_hz: u64,
    nanos: Nanoseconds,
    counter_hz: u64,
    epoch: AtomicU64,
    /// Ticks at which it stands still; [`RUNS`] while it does not.
    stands: AtomicU64,
    /// Ticks that it stood still, modulo 2^64: less than none where it goes on from a state of another clock.
    stood: AtomicU64,
    pub(crate) guest: GuestCounter,
}

/// Nanoseconds of ticks without a division, which would cost as much as reading the counter.
#[derive(Clone, Copy, Debug)]
struct Nanoseconds {
    /// Nanoseconds of a tick, and 2^-64 of one.
    whole: u64,
    part: u64,
}

impl Nanoseconds {
    fn at(hz: u64) -> Self {
        let hz = u128::from(hz.max(1));
        let nanos = u128::from(NANOS_PER_SECOND);
        // Both are below 2^64: a tick is at most a second, and the rest is below one nanosecond.
        Nanoseconds { whole: (nanos / hz) as u64, part: (((nanos % hz) << 64) / hz) as u64 }
    }

    fn of(self, ticks: u64) -> u64 {
        let part = ((u128::from(ticks) * u128::from(self.part)) >> 64) as u64;
        ticks.saturating_mul(self.whole).saturating_add(part)
    }
}

/// [`RealClock::stands`] of a clock that does not.
const RUNS: u64 = u64::MAX;

impl RealClock {
    /// A clock that starts now. Without `counter_hz` the guest's frequency is the host's.
    pub fn new(counter_hz: Option<u64>) -> Self {
        let host_hz = host::hz();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        RealClock {
            start: host::ticks(),
            host_hz,
            nanos: Nanoseconds::at(host_hz),
            counter_hz: counter_hz.unwrap_or(host_hz).max(1),
            epoch: AtomicU64::new(epoch),
            stands: AtomicU64::new(RUNS),
            stood: AtomicU64::new(0),
            guest: GuestCounter::default(),
        }
    }

    fn ticks(&self) -> u64 {
        match self.stands.load(Ordering::Acquire) {
            RUNS => self.host_ticks().wrapping_sub(self.stood.load(Ordering::Relaxed)),
            ticks => ticks,
        }
    }

    fn host_ticks(&self) -> u64 {
        // Sockets may differ by some ticks; time must not go below its start.
        host::ticks().saturating_sub(self.start)
    }

    /// Stands still from now, or goes on from where it stood.
    pub fn pause(&self, pause: bool) {
        match (pause, self.stands.load(Ordering::Acquire)) {
            (true, RUNS) => self.stands.store(self.ticks(), Ordering::Release),
            (false, ticks) if ticks != RUNS => {
                self.stood.store(self.host_ticks().wrapping_sub(ticks), Ordering::Relaxed);
                self.stands.store(RUNS, Ordering::Release);
            }
            _ => {}
        }
    }
}

impl RealClock {
    /// Nanoseconds that it has run: what it goes on from.
    pub(crate) fn gone(&self) -> Nanos {
        self.now()
    }

    /// Goes on as if it had run so long. The wall clock stays the host's.
    pub(crate) fn set_gone(&self, ran: Nanos) {
        let ticks = scale_up(ran, self.host_hz, NANOS_PER_SECOND);
        let wall = self.epoch.load(Ordering::Relaxed).saturating_add(self.now());
        match self.stands.load(Ordering::Acquire) {
            RUNS => self.stood.store(self.host_ticks().wrapping_sub(ticks), Ordering::Relaxed),
            _ => self.stands.store(ticks, Ordering::Release),
        }
        self.epoch.store(wall.saturating_sub(ran), Ordering::Relaxed);
    }
}

impl Clock for RealClock {
    fn now(&self) -> Nanos {
        self.nanos.of(self.ticks())
    }
    fn counter(&self) -> u64 {
        if self.counter_hz == self.host_hz {
            self.ticks()
        } else {
            scale(self.ticks(), self.counter_hz, self.host_hz)
        }
    }
    fn counter_hz(&self) -> u64 {
        self.counter_hz
    }
    fn to_guest(&self, counter: u64) -> u64 {
        self.guest.to_guest(counter, self.counter_hz)
    }
    fn of_guest(&self, guest: u64) -> u64 {
        self.guest.of_guest(guest, self.counter_hz)
    }
    fn guest_counter_hz(&self) -> u64 {
        self.guest.hz(self.counter_hz)
    }
    fn set_guest_counter_hz(&self, hz: u64, begin: &mut dyn FnMut(u64, u64) -> u64) {
        self.guest.set(|| Clock::counter(self), self.counter_hz, hz, begin);
    }
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }
}

impl TimeSource for RealClock {
    fn counter(&self) -> u64 {
        Clock::counter(self)
    }
    fn guest_counter(&self) -> u64 {
        Clock::guest_counter(self)
    }
    fn of_host(&self) -> Option<OfHost> {
        let same = self.counter_hz == self.host_hz && !self.guest.has_changed();
        let gone = self.start.wrapping_add(self.stood.load(Ordering::Relaxed));
        same.then_some(OfHost { ahead: gone.wrapping_neg(), hz: self.host_hz })
    }
    fn retired(&self, _instructions: u64) {}
}

type HostTicks = u64;

#[cfg(target_arch = "x86_64")]
mod host {
    use std::arch::x86_64::{__cpuid, _rdtsc};
    use std::sync::OnceLock;

    use super::{CALIBRATION, HostTicks, Instant};

    /// The host's time-stamp counter.
    pub(super) fn ticks() -> HostTicks {
        // SAFETY: RDTSC is unprivileged on every host we run on and touches no memory.
        unsafe { _rdtsc() }
    }

    /// Its frequency: CPUID 15H where the processor tells its crystal (SDM 20.7.3), else measured.
    pub(super) fn hz() -> u64 {
        // Once: two measurements differ, and what one machine saves another one goes on from.
        static MEASURED: OnceLock<u64> = OnceLock::new();
        told().unwrap_or_else(|| *MEASURED.get_or_init(measured))
    }

    fn told() -> Option<u64> {
        let leaf = (__cpuid(0).eax >= 0x15).then(|| __cpuid(0x15))?;
        let (denominator, numerator, crystal) = (leaf.eax, leaf.ebx, leaf.ecx);
        let told = denominator != 0 && numerator != 0 && crystal != 0;
        told.then(|| u64::from(crystal) * u64::from(numerator) / u64::from(denominator))
    }

    fn measured() -> u64 {
        let (start, from) = (Instant::now(), ticks());
        std::thread::sleep(CALIBRATION);
        let (elapsed, to) = (start.elapsed(), ticks());
        let hz = super::scale(to.saturating_sub(from), super::NANOS_PER_SECOND, elapsed.as_nanos() as u64);
        // Frequencies are told in kHz; what is below is noise of the measurement.
        (hz / 1000 * 1000).max(1000)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod host {
    use super::{HostTicks, Instant};
    use std::sync::OnceLock;

    /// Nanoseconds, in place of a counter.
    pub fn ticks() -> HostTicks {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    /// One tick a nanosecond.
    pub fn hz() -> u64 {
        super::NANOS_PER_SECOND
    }
}

/// Retired instructions at a stated rate. Idle time is skipped by [`VirtualClock::advance_to`].
#[derive(Debug)]
pub struct VirtualClock {
    /// Instructions, and instructions that would have fit into skipped time.
    count: AtomicU64,
    rate: u64,
    counter_hz: u64,
    pub(crate) guest: GuestCounter,
}

impl VirtualClock {
    /// A clock at zero on which `rate` instructions make a second. Without `counter_hz` the counter
    /// counts instructions.
    pub fn new(rate: u64, counter_hz: Option<u64>) -> Self {
        let rate = rate.max(1);
        VirtualClock {
            count: AtomicU64::new(0),
            rate,
            counter_hz: counter_hz.unwrap_or(rate).max(1),
            guest: GuestCounter::default(),
        }
    }

    /// Skips to `at` nanoseconds, or to the first instruction after it. Never goes back.
    pub fn advance_to(&self, at: Nanos) {
        self.count.fetch_max(self.count_at(at), Ordering::Relaxed);
    }

    /// Skips to the first instruction at which the counter has reached `counter`.
    pub fn advance_to_counter(&self, counter: u64) {
        self.count.fetch_max(self.count_at_counter(counter), Ordering::Relaxed);
    }

    /// Instructions, and instructions that would have fit into skipped time: what it goes on from.
    pub(crate) fn gone(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Goes on from there.
    pub(crate) fn set_gone(&self, count: u64) {
        self.count.store(count, Ordering::Relaxed);
    }

    /// Instructions a second.
    pub(crate) fn rate(&self) -> u64 {
        self.rate
    }

    /// Instructions from now until the counter reaches `counter`.
    pub fn instructions_until_counter(&self, counter: u64) -> u64 {
        self.count_at_counter(counter).saturating_sub(self.count.load(Ordering::Relaxed))
    }

    /// Instructions from now until `at` nanoseconds.
    pub fn instructions_until(&self, at: Nanos) -> u64 {
        self.count_at(at).saturating_sub(self.count.load(Ordering::Relaxed))
    }

    /// How many instructions so many nanoseconds are.
    pub fn instructions_of(&self, nanos: Nanos) -> u64 {
        scale(nanos, self.rate, NANOS_PER_SECOND)
    }

    /// How long so many instructions take.
    pub fn nanos_of(&self, instructions: u64) -> Nanos {
        scale(instructions, NANOS_PER_SECOND, self.rate)
    }

    fn count_at(&self, at: Nanos) -> u64 {
        scale_up(at, self.rate, NANOS_PER_SECOND)
    }

    fn count_at_counter(&self, counter: u64) -> u64 {
        scale_up(counter, self.rate, self.counter_hz)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        scale(self.count.load(Ordering::Relaxed), NANOS_PER_SECOND, self.rate)
    }
    fn counter(&self) -> u64 {
        scale(self.count.load(Ordering::Relaxed), self.counter_hz, self.rate)
    }
    fn counter_hz(&self) -> u64 {
        self.counter_hz
    }
    fn to_guest(&self, counter: u64) -> u64 {
        self.guest.to_guest(counter, self.counter_hz)
    }
    fn of_guest(&self, guest: u64) -> u64 {
        self.guest.of_guest(guest, self.counter_hz)
    }
    fn guest_counter_hz(&self) -> u64 {
        self.guest.hz(self.counter_hz)
    }
    fn set_guest_counter_hz(&self, hz: u64, begin: &mut dyn FnMut(u64, u64) -> u64) {
        self.guest.set(|| Clock::counter(self), self.counter_hz, hz, begin);
    }
    fn epoch(&self) -> u64 {
        VIRTUAL_EPOCH
    }
}

impl TimeSource for VirtualClock {
    fn counter(&self) -> u64 {
        Clock::counter(self)
    }
    fn guest_counter(&self) -> u64 {
        Clock::guest_counter(self)
    }
    fn retired(&self, instructions: u64) {
        self.count.fetch_add(instructions, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_is_instructions_and_skipped_time() {
        let clock = VirtualClock::new(500_000_000, Some(2_000_000_000));
        clock.retired(10);
        assert_eq!((clock.now(), Clock::counter(&clock)), (20, 40));
        clock.advance_to(21);
        assert_eq!(clock.now(), 22, "the first instruction after");
        clock.advance_to(5);
        assert_eq!(clock.now(), 22, "never back");
        assert_eq!(clock.instructions_until_counter(48), 1);
        assert_eq!(clock.instructions_until(100), 39);
        clock.advance_to_counter(48);
        assert_eq!(Clock::counter(&clock), 48);
        assert_eq!(clock.epoch(), VIRTUAL_EPOCH);
    }

    #[test]
    fn nanoseconds_need_no_division() {
        for hz in [1, 999_999_999, 1_000_000_000, 1_000_000_001, 2_695_000_000, 5_000_000_000] {
            for ticks in [0, 1, 7, 12_345_678_901, 1 << 60] {
                let (fast, exact) = (Nanoseconds::at(hz).of(ticks), scale(ticks, NANOS_PER_SECOND, hz));
                assert!(exact - fast <= 1, "{ticks} at {hz}: {fast}, not {exact}");
            }
        }
    }

    #[test]
    fn a_paused_clock_goes_on_where_it_stood() {
        let clock = RealClock::new(Some(1_000_000_000));
        clock.pause(true);
        let at = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        clock.pause(true);
        assert_eq!(clock.now(), at);
        clock.pause(false);
        let after = clock.now();
        assert!((at..at + 15_000_000).contains(&after), "{at} then {after}");
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= after + 2_000_000);
        clock.pause(false);
        assert!(clock.now() >= after);
    }

    #[test]
    fn real_clocks_agree_with_each_other_and_the_host() {
        let clock = RealClock::new(Some(1_000_000_000));
        let (start, before) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(30));
        let (host, guest) = (start.elapsed().as_nanos() as f64, (clock.now() - before) as f64);
        assert!((guest / host - 1.0).abs() < 0.1, "{guest} ns here, {host} ns on the host");
        let (low, counter, high) = (clock.now(), Clock::counter(&clock), clock.now());
        assert!((low..=high).contains(&counter), "at 1 GHz a tick is a nanosecond");
    }
}
