//! Counters and times of exits.

use satori_bus::Nanos;
use satori_save::wide;
use satori_seam::Reason;
use serde::{Deserialize, Serialize};

/// Count and times of one kind of exit. Times are nanoseconds of guest time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// How many.
    pub count: u64,
    /// How many of them were timed.
    pub timed: u64,
    /// Sum of the times of those.
    pub measured: Nanos,
    /// Sum of the times of all: what was measured, each counted for those before it that were not.
    pub total: Nanos,
    /// The shortest that was measured; 0 without samples.
    pub min: Nanos,
    /// The longest.
    pub max: Nanos,
    /// Sum of the squares of the times that were measured.
    #[serde(with = "wide")]
    pub squares: u128,
    /// How many of all came while APICv was not in force; of EXTERNAL_INTERRUPT only kicks for other vCPUs' interrupts.
    pub without_apicv: u64,
}

impl Samples {
    /// Adds `count` of them, `bare` while APICv was not in force.
    pub fn count(&mut self, count: u64, bare: u64) {
        self.count = self.count.saturating_add(count);
        self.without_apicv = self.without_apicv.saturating_add(bare);
    }

    /// Adds the time of one that was counted, which stands for `weight` of them.
    pub fn time(&mut self, time: Nanos, weight: u64) {
        self.min = if self.timed == 0 { time } else { self.min.min(time) };
        self.max = self.max.max(time);
        self.timed = self.timed.saturating_add(1);
        self.measured = self.measured.saturating_add(time);
        self.total = self.total.saturating_add(time.saturating_mul(weight));
        self.squares = self.squares.saturating_add(square(time));
    }

    /// Counts the mean for each of `count` that were not timed, and for which nothing stands.
    pub fn settle(&mut self, count: u64) {
        let all = u128::from(self.measured) * u128::from(count);
        let rest = all.checked_div(u128::from(self.timed)).unwrap_or(0);
        self.total = self.total.saturating_add(u64::try_from(rest).unwrap_or(u64::MAX));
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &Samples) {
        if other.count == 0 {
            return;
        }
        self.min = match (self.timed, other.timed) {
            (0, _) => other.min,
            (_, 0) => self.min,
            _ => self.min.min(other.min),
        };
        self.max = self.max.max(other.max);
        self.count = self.count.saturating_add(other.count);
        self.timed = self.timed.saturating_add(other.timed);
        self.measured = self.measured.saturating_add(other.measured);
        self.total = self.total.saturating_add(other.total);
        self.squares = self.squares.saturating_add(other.squares);
        self.without_apicv = self.without_apicv.saturating_add(other.without_apicv);
    }

    /// Mean time in nanoseconds; 0 without samples.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total as f64 / self.count as f64 }
    }

    /// Standard deviation of the mean in percent of the mean, what perf prints as `+-`.
    pub fn deviation(&self) -> f64 {
        if self.timed < 2 || self.measured == 0 {
            return 0.0;
        }
        // In integers: a difference of two large sums would lose everything in floating point.
        let about_mean = self.squares.saturating_sub(square(self.measured) / u128::from(self.timed));
        let n = self.timed as f64;
        100.0 * (about_mean as f64 / (n - 1.0) / n).sqrt() / (self.measured as f64 / n)
    }
}

fn square(time: Nanos) -> u128 {
    u128::from(time) * u128::from(time)
}

/// The exits of one vCPU, or of several merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitProfile(Box<[Slot; Reason::NUMBERS]>);

/// What is counted of one reason, which is there once it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    reason: Option<Reason>,
    samples: Samples,
}

impl Default for ExitProfile {
    fn default() -> Self {
        ExitProfile(Box::new([Slot::default(); Reason::NUMBERS]))
    }
}

impl ExitProfile {
    fn slot(&mut self, reason: Reason) -> &mut Samples {
        let slot = &mut self.0[reason.index()];
        slot.reason = Some(reason);
        &mut slot.samples
    }

    /// Counts exits, `bare` of them while APICv was not in force.
    pub fn count(&mut self, reason: Reason, count: u64, bare: u64) {
        self.slot(reason).count(count, bare);
    }

    /// Adds the time of one that was counted, which stands for `weight` of them.
    pub fn time(&mut self, reason: Reason, time: Nanos, weight: u64) {
        self.slot(reason).time(time, weight);
    }

    /// As [`Samples::settle`], of one reason.
    pub fn settle(&mut self, reason: Reason, count: u64) {
        self.slot(reason).settle(count);
    }

    /// Adds another vCPU's.
    pub fn merge(&mut self, other: &ExitProfile) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            mine.reason = mine.reason.or(theirs.reason);
            mine.samples.merge(&theirs.samples);
        }
    }

    /// Sets the samples of one reason.
    pub(crate) fn set(&mut self, reason: Reason, samples: Samples) {
        *self.slot(reason) = samples;
    }

    /// The samples of one reason.
    pub fn get(&self, reason: Reason) -> &Samples {
        &self.0[reason.index()].samples
    }

    /// Reasons that occurred, most samples first; of equals, the lower number first.
    pub fn rows(&self) -> Vec<(Reason, Samples)> {
        let occurred = self.0.iter().filter_map(|slot| Some((slot.reason?, slot.samples)));
        let mut rows: Vec<_> = occurred.filter(|(_, samples)| samples.count > 0).collect();
        rows.sort_by_key(|&(reason, samples)| (std::cmp::Reverse(samples.count), reason));
        rows
    }

    /// All reasons as one.
    pub fn sum(&self) -> Samples {
        let mut sum = Samples::default();
        self.0.iter().for_each(|slot| sum.merge(&slot.samples));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::HLT;

    #[test]
    fn deviation_is_that_of_the_mean() {
        let mut samples = Samples::default();
        samples.time(1000, 1);
        assert_eq!(samples.deviation(), 0.0, "one sample deviates from nothing");
        samples.time(3000, 5);
        // Variance 2e6, of the mean 1e6, standard deviation 1000, mean 2000.
        assert!((samples.deviation() - 50.0).abs() < 1e-9);
    }

    #[test]
    fn long_times_with_a_small_deviation_keep_it() {
        let mut samples = Samples::default();
        for time in [1 << 40, (1 << 40) + 2] {
            samples.time(time, 1);
        }
        let expected = 100.0 / ((1u64 << 40) as f64 + 1.0);
        assert!((samples.deviation() / expected - 1.0).abs() < 1e-3, "{}", samples.deviation());
    }

    #[test]
    fn merging_equals_recording_into_one_and_extremes_do_not_overflow() {
        let (mut a, mut b, mut both) =
            (ExitProfile::default(), ExitProfile::default(), ExitProfile::default());
        for (at, time) in [5, u64::MAX, 7, 0, u64::MAX].into_iter().enumerate() {
            for profile in [if at % 2 == 0 { &mut a } else { &mut b }, &mut both] {
                profile.count(HLT, 1, (at == 3).into());
                if at != 2 {
                    profile.time(HLT, time, 1);
                }
            }
        }
        a.merge(&b);
        assert_eq!(a, both);
        assert_eq!((a.sum().min, a.sum().max, a.sum().count, a.sum().timed), (0, u64::MAX, 5, 4));
    }
}
