//! Exits over time: a bounded number of buckets, whose width doubles when the run outgrows them.

use satori_bus::Nanos;
use satori_seam::Reason;

use satori_save::Error;
use serde::{Deserialize, Serialize};

use crate::saved;

/// Buckets of a timeline; it takes a kilobyte for each reason that occurred.
pub(crate) const BUCKETS: usize = 256;
/// The width of a bucket in the beginning.
const FIRST_WIDTH: Nanos = 1_000_000;

/// Exits by reason in each stretch of guest time. Counts saturate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    width: Nanos,
    /// Where the bucket begins that was used last, and its number: exits come close together.
    begin: Nanos,
    at: usize,
    /// By number of the reason.
    exits: Vec<Option<Row>>,
}

/// The counts of a reason that occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    reason: Reason,
    counts: Box<[u32; BUCKETS]>,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { width: FIRST_WIDTH, begin: 0, at: 0, exits: vec![None; Reason::NUMBERS] }
    }
}

/// A timeline as plain data.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedTimeline {
    width: Nanos,
    at: usize,
    /// By number of the reason, of those that occurred.
    rows: Vec<(u16, Vec<u32>)>,
}

impl Timeline {
    pub(crate) fn save(&self) -> SavedTimeline {
        let rows = self.exits.iter().flatten().map(|row| (row.reason.number(), row.counts.to_vec()));
        SavedTimeline { width: self.width, at: self.at, rows: rows.collect() }
    }

    pub(crate) fn restore(&mut self, saved: &SavedTimeline, table: &[Reason]) -> Result<(), Error> {
        let doubled = saved.width / FIRST_WIDTH;
        let width = doubled.is_power_of_two() && doubled < 1 << 40 && saved.width == doubled * FIRST_WIDTH;
        saved::unless(width, "buckets of the timeline have another width")?;
        saved::unless(saved.at < BUCKETS, "the timeline has fewer buckets")?;
        let mut fresh = Timeline { width: saved.width, at: saved.at, ..Timeline::default() };
        fresh.begin = saved.at as u64 * saved.width;
        for (number, counts) in &saved.rows {
            let counts: Option<[u32; BUCKETS]> = counts.as_slice().try_into().ok();
            saved::unless(counts.is_some(), "the timeline has another number of buckets")?;
            let reason = saved::reason(table, *number)?;
            fresh.exits[reason.index()] = counts.map(|counts| Row { reason, counts: Box::new(counts) });
        }
        *self = fresh;
        Ok(())
    }

    /// Counts `count` exits at `now`.
    pub fn record(&mut self, reason: Reason, now: Nanos, count: u64) {
        if now.wrapping_sub(self.begin) >= self.width {
            self.seek(now);
        }
        self.again(reason, count);
    }

    /// Counts `count` exits where the last one was.
    pub fn again(&mut self, reason: Reason, count: u64) {
        self.add(reason, self.at, u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Finds the bucket of `now`, and widens all if there is none.
    #[cold]
    fn seek(&mut self, now: Nanos) {
        while now / self.width >= BUCKETS as u64 {
            self.widen();
        }
        self.at = (now / self.width) as usize;
        self.begin = self.at as u64 * self.width;
    }

    fn add(&mut self, reason: Reason, at: usize, count: u32) {
        let fresh = || Row { reason, counts: Box::new([0; BUCKETS]) };
        let row = &mut self.exits[reason.index()].get_or_insert_with(fresh).counts;
        row[at] = row[at].saturating_add(count);
    }

    /// Joins each two buckets.
    fn widen(&mut self) {
        for row in self.exits.iter_mut().flatten() {
            for at in 0..BUCKETS {
                let pair = row.counts.get(2 * at..2 * at + 2).unwrap_or_default();
                row.counts[at] = pair.iter().fold(0, |sum: u32, count| sum.saturating_add(*count));
            }
        }
        self.width = self.width.saturating_mul(2);
        (self.begin, self.at) = (0, 0);
    }

    /// Adds another vCPU's.
    pub fn merge(&mut self, other: &Timeline) {
        while self.width < other.width {
            self.widen();
        }
        let ratio = (self.width / other.width) as usize;
        for (reason, counts) in other.rows() {
            for (at, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                self.add(reason, at / ratio, count);
            }
        }
    }

    /// The width of a bucket in nanoseconds of guest time.
    pub fn width(&self) -> Nanos {
        self.width
    }

    /// The counts of each reason that occurred, from the start of guest time to the last bucket that has one.
    pub fn rows(&self) -> impl Iterator<Item = (Reason, &[u32])> {
        self.exits.iter().flatten().map(|Row { reason, counts }| {
            let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
            (*reason, &counts[..used])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ALL, HLT, IDENTITY};

    fn counts(timeline: &Timeline, reason: Reason) -> Vec<u32> {
        timeline.rows().find(|(one, _)| *one == reason).map_or_else(Vec::new, |(_, row)| row.to_vec())
    }

    #[test]
    fn buckets_widen_until_the_run_fits() {
        let mut timeline = Timeline::default();
        for ms in [0, 0, 1, 3, 255, 256, 1] {
            timeline.record(HLT, ms * 1_000_000, 1);
        }
        assert_eq!(timeline.width(), 2_000_000, "256 ms do not fit in 256 buckets of 1 ms");
        let row = counts(&timeline, HLT);
        assert_eq!((&row[..3], &row[126..]), (&[4, 1, 0][..], &[0, 1, 1][..]));
        timeline.record(IDENTITY, u64::MAX, 1);
        assert_eq!(counts(&timeline, HLT), [7]);
        let last = counts(&timeline, IDENTITY);
        assert_eq!((last.len() <= BUCKETS, last.last()), (true, Some(&1)), "the end of time has a bucket");
    }

    #[test]
    fn merging_equals_recording_into_one() {
        let (mut a, mut b, mut both) = (Timeline::default(), Timeline::default(), Timeline::default());
        for at in 0..500u64 {
            let (now, reason) = (at * at * 7_919, ALL[at as usize % ALL.len()]);
            if at % 3 == 0 { &mut a } else { &mut b }.record(reason, now, 1);
            both.record(reason, now, 1);
        }
        let mut early = Timeline::default();
        early.merge(&a);
        a.merge(&b);
        b.merge(&early);
        assert!(a.rows().eq(both.rows()) && b.rows().eq(both.rows()));
    }
}
