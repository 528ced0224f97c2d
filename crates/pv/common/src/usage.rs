//! What of all that is offered the guest really used.

use std::sync::atomic::{AtomicU64, Ordering};

use satori_bus::Nanos;
use serde::{Deserialize, Serialize};

/// Nothing was used.
const NEVER: u64 = u64::MAX;

/// A row of the report: its name, and the ways in which it can be used.
#[derive(Clone, Debug)]
pub struct Named {
    /// The row's name.
    pub name: &'static str,
    /// Whether the guest is offered it.
    pub offered: bool,
    /// MSRs, calls and what else counts, by name.
    pub ways: Vec<String>,
    /// Whether a use is always counted in one of them; otherwise none may only be one that was not seen.
    pub seen: bool,
}

#[derive(Debug)]
struct Counter {
    row: Named,
    first: AtomicU64,
    counts: Vec<AtomicU64>,
}

/// Counts of uses, by row and way; shared by all vCPUs.
#[derive(Debug)]
pub struct Usage {
    interface: &'static str,
    rows: Vec<Counter>,
}

/// What became of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// Whose row it is, as `KVM`.
    pub interface: &'static str,
    /// The row's name.
    pub name: &'static str,
    /// Whether the guest was offered it.
    pub offered: bool,
    /// Whether a use is seen at all.
    pub seen: bool,
    /// Guest time of the first use.
    pub first: Option<Nanos>,
    /// How often it was used.
    pub count: u64,
    /// How often in which way.
    pub ways: Vec<(String, u64)>,
}

impl Used {
    /// Adds what came later to `sum`: of the same rows, or of the first life of all.
    pub fn merge_all(sum: &mut Vec<Used>, later: Vec<Used>) {
        match sum.is_empty() {
            true => *sum = later,
            false => sum.iter_mut().zip(later).for_each(|(sum, used)| sum.merge(used)),
        }
    }

    /// Adds what came later, of the same row.
    pub fn merge(&mut self, later: Used) {
        self.first = self.first.or(later.first);
        self.seen |= later.seen;
        self.count += later.count;
        for (way, count) in later.ways {
            match self.ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, sum)) => *sum += count,
                None => self.ways.push((way, count)),
            }
        }
    }
}

/// The counts as plain data: by row when it was first used, and how often in which way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedUsage(Vec<(u64, Vec<u64>)>);

impl Usage {
    /// Nothing used yet of these rows of `interface`.
    pub fn new(interface: &'static str, rows: Vec<Named>) -> Self {
        let counter = |row: Named| Counter {
            first: AtomicU64::new(NEVER),
            counts: row.ways.iter().map(|_| AtomicU64::new(0)).collect(),
            row,
        };
        Usage { interface, rows: rows.into_iter().map(counter).collect() }
    }

    /// Notes a use of row number `row` in its way number `way`.
    pub fn note(&self, row: usize, way: usize, now: Nanos) {
        let Some(counter) = self.rows.get(row) else { return };
        // Counts of different vCPUs need no order, and the earliest time wins.
        if counter.counts.get(way).is_some_and(|count| count.fetch_add(1, Ordering::Relaxed) == 0) {
            counter.first.fetch_min(now, Ordering::Relaxed);
        }
    }

    /// All that was counted, in the order of the rows.
    pub fn report(&self) -> Vec<Used> {
        let report = |counter: &Counter| {
            let counts = counter.counts.iter().map(|count| count.load(Ordering::Relaxed));
            let ways: Vec<_> =
                counter.row.ways.iter().cloned().zip(counts).filter(|(_, count)| *count != 0).collect();
            let first = counter.first.load(Ordering::Relaxed);
            Used {
                interface: self.interface,
                name: counter.row.name,
                offered: counter.row.offered,
                seen: counter.row.seen || ways.iter().any(|(_, count)| *count != 0),
                first: (first != NEVER).then_some(first),
                count: ways.iter().map(|(_, count)| count).sum(),
                ways,
            }
        };
        self.rows.iter().map(report).collect()
    }

    /// What was counted, for whoever saves it.
    pub fn save(&self) -> SavedUsage {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SavedUsage(
            self.rows.iter().map(|row| (get(&row.first), row.counts.iter().map(get).collect())).collect(),
        )
    }

    /// Whether it is of the same rows and ways, each used no more often than can be counted.
    pub fn fits(&self, SavedUsage(saved): &SavedUsage) -> bool {
        let fits = |(own, (_, counts)): (&Counter, &(u64, Vec<u64>))| {
            own.counts.len() == counts.len() && counts.iter().all(|count| count >> 48 == 0)
        };
        saved.len() == self.rows.len() && self.rows.iter().zip(saved).all(fits)
    }

    /// Goes on from that; false if it does not fit.
    pub fn restore(&self, saved: &SavedUsage) -> bool {
        if !self.fits(saved) {
            return false;
        }
        for (own, (first, counts)) in self.rows.iter().zip(&saved.0) {
            own.first.store(*first, Ordering::Relaxed);
            own.counts.iter().zip(counts).for_each(|(to, count)| to.store(*count, Ordering::Relaxed));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> Usage {
        let row = |name, ways: &[&str]| Named {
            name,
            offered: true,
            ways: ways.iter().map(ToString::to_string).collect(),
            seen: !ways.is_empty(),
        };
        Usage::new("Test", vec![row("a", &["x", "y"]), row("b", &[])])
    }

    #[test]
    fn uses_are_told_by_way_and_survive_saving() {
        let usage = usage();
        usage.note(0, 1, 30);
        usage.note(0, 0, 20);
        usage.note(0, 1, 40);
        usage.note(1, 0, 1);
        usage.note(7, 0, 1);
        let report = usage.report();
        assert_eq!((report[0].first, report[0].count), (Some(20), 3));
        assert_eq!(report[0].ways, [("x".to_owned(), 1), ("y".to_owned(), 2)]);
        assert!(report[1].count == 0 && !report[1].seen);
        let again = self::usage();
        let saved = serde_json::from_str(&serde_json::to_string(&usage.save()).unwrap()).unwrap();
        assert!(again.restore(&saved));
        assert_eq!(again.report(), report);
        assert!(!again.restore(&SavedUsage(vec![(0, vec![1])])));
        let mut twice = report[0].clone();
        twice.merge(report[0].clone());
        assert_eq!((twice.count, twice.first), (6, Some(20)));
    }
}
