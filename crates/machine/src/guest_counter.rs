//! The guest's time-stamp counter after its frequency was changed, as a migration does.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};

use satori_lock::Held;

use serde::{Deserialize, Serialize};

use crate::clock::{scale, scale_up};

/// From when on it runs at which frequency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Since {
    /// The partition's counter at the change.
    partition: u64,
    /// The guest's at the change.
    guest: u64,
    hz: u64,
}

impl Since {
    /// The guest's counter where the partition's is `counter`: who read that before the change, and
    /// comes late, gets the moment of the change.
    fn guest_at(&self, counter: u64, base_hz: u64) -> u64 {
        self.guest.wrapping_add(scale(counter.saturating_sub(self.partition), self.hz, base_hz))
    }
}

/// How the guest's counter follows from the partition's, which runs on at its own frequency.
#[derive(Debug, Default)]
pub(crate) struct GuestCounter {
    changed: AtomicBool,
    since: RwLock<Since>,
}

impl GuestCounter {
    /// The change, if there was one. What is read most often takes no lock.
    fn since(&self) -> Option<Since> {
        let changed = self.changed.load(Ordering::Acquire);
        changed.then(|| *self.since.read().held())
    }

    /// Whether it does not follow the partition's any more.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// The guest's counter where the partition's, of `base_hz`, is `counter`.
    pub(crate) fn to_guest(&self, counter: u64, base_hz: u64) -> u64 {
        match self.since() {
            None => counter,
            Some(since) => since.guest_at(counter, base_hz),
        }
    }

    /// The partition's counter where the guest's is `guest`.
    pub(crate) fn of_guest(&self, guest: u64, base_hz: u64) -> u64 {
        match self.since() {
            None => guest,
            Some(since) => {
                let ahead = scale_up(guest.saturating_sub(since.guest), base_hz, since.hz);
                since.partition.saturating_add(ahead)
            }
        }
    }

    /// Its frequency, where the partition's is `base_hz`.
    pub(crate) fn hz(&self, base_hz: u64) -> u64 {
        self.since().map_or(base_hz, |since| since.hz)
    }

    /// Goes on at `hz` from what `begin` says, which is given `counter` of the partition's counter and what the
    /// guest sees then.
    ///
    /// Readers look at the counter first and at the change then. From the moment on at which the
    /// counter is read here they wait: who did not wait has read an earlier one, so that nobody
    /// saw what the slower counter reaches only later.
    pub(crate) fn set(
        &self,
        counter: impl FnOnce() -> u64,
        base_hz: u64,
        hz: u64,
        begin: &mut dyn FnMut(u64, u64) -> u64,
    ) {
        let mut since = self.since.write().held();
        // Sequentially consistent: on the way before the counter is read.
        let again = self.changed.swap(true, Ordering::SeqCst);
        let partition = counter();
        let guest = if again { since.guest_at(partition, base_hz) } else { partition };
        *since = Since { partition, guest: begin(partition, guest).max(guest), hz: hz.max(1) };
    }

    /// The change, for whoever saves it.
    pub(crate) fn save(&self) -> Option<Since> {
        self.since()
    }

    /// Takes it back; false if nothing can run at that frequency.
    pub(crate) fn restore(&self, since: Option<Since>) -> bool {
        let fits = since.is_none_or(|since| since.hz > 0);
        if fits {
            *self.since.write().held() = since.unwrap_or_default();
            self.changed.store(since.is_some(), Ordering::SeqCst);
        }
        fits
    }

    /// Follows the partition's again, as after power-up.
    pub(crate) fn reset(&self) {
        self.changed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_changed_counter_goes_on_from_where_it_was() {
        let guest = GuestCounter::default();
        assert_eq!((guest.to_guest(500, 1000), guest.of_guest(500, 1000), guest.hz(1000)), (500, 500, 1000));
        let mut same = |_, guest| guest;
        guest.set(|| 500, 1000, 2000, &mut same);
        assert_eq!((guest.to_guest(500, 1000), guest.to_guest(600, 1000)), (500, 700));
        assert_eq!((guest.of_guest(700, 1000), guest.of_guest(701, 1000), guest.hz(1000)), (600, 601, 2000));
        assert_eq!(guest.of_guest(0, 1000), 500, "what is over is now");
        guest.set(|| 600, 1000, 500, &mut same);
        assert_eq!((guest.to_guest(600, 1000), guest.to_guest(700, 1000)), (700, 750));
        assert_eq!(guest.to_guest(u64::MAX, 1000), (u64::MAX - 600) / 2 + 700);
        guest.set(|| 700, 1000, 500, &mut |partition, guest| partition + guest);
        assert_eq!((guest.to_guest(700, 1000), guest.of_guest(1460, 1000)), (1450, 720));
        guest.set(|| 700, 1000, 500, &mut |_, _| 0);
        assert_eq!(guest.to_guest(700, 1000), 1450, "never back");
        guest.reset();
        assert_eq!(guest.to_guest(600, 1000), 600);
    }

    #[test]
    fn nobody_sees_the_counter_go_back() {
        let (guest, partition) = (GuestCounter::default(), AtomicU64::new(1));
        let read = || guest.to_guest(partition.fetch_add(1, Ordering::SeqCst), 1_000_000);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..2_000 {
                    let hz = if round % 2 == 0 { 20_000 } else { 3_000_000 };
                    guest.set(|| partition.fetch_add(1, Ordering::SeqCst), 1_000_000, hz, &mut |_, guest| {
                        guest
                    });
                }
                done.store(true, Ordering::SeqCst);
            });
            let mut last = 0;
            while !done.load(Ordering::SeqCst) {
                let now = read();
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
        });
    }
}
