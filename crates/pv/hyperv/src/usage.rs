//! What of all that is offered the guest really used.

use std::sync::atomic::{AtomicU64, Ordering};

use satori_bus::Nanos;
use serde::{Deserialize, Serialize};

use crate::{Config, Enlightenment, call_name};

/// Nothing was used.
const NEVER: u64 = u64::MAX;
/// Most MSRs and calls that a row of the table has.
const WAYS: usize = 24;

#[derive(Debug)]
struct Counter {
    /// Guest time of the first use.
    first: AtomicU64,
    /// Uses that are neither an MSR access nor a call of the row.
    plain: AtomicU64,
    /// By MSR, then by call, in the order of the row.
    ways: [AtomicU64; WAYS],
}

/// Counts of uses, by enlightenment; shared by all virtual processors.
#[derive(Debug)]
pub struct Usage([Counter; Enlightenment::ALL.len()]);

/// What became of one enlightenment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// Which.
    pub what: Enlightenment,
    /// Whether the guest was offered it.
    pub offered: bool,
    /// Guest time of the first use.
    pub first: Option<Nanos>,
    /// How often it was used.
    pub count: u64,
    /// How often in which way: MSRs by number, calls by name.
    pub ways: Vec<(String, u64)>,
}

impl Used {
    /// Adds what came later, of the same enlightenment.
    pub fn merge(&mut self, later: Used) {
        self.first = self.first.or(later.first);
        self.count += later.count;
        for (way, count) in later.ways {
            match self.ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, sum)) => *sum += count,
                None => self.ways.push((way, count)),
            }
        }
    }
}

/// See [`Usage::save`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedUsage(Vec<(u64, Vec<u64>)>);

impl SavedUsage {
    /// Whether it is of as many enlightenments and ways, each used no more often than can be counted.
    pub fn fits(&self) -> bool {
        let counts = |(_, counts): &(u64, Vec<u64>)| {
            counts.len() == WAYS + 1 && counts.iter().all(|count| count >> 48 == 0)
        };
        self.0.len() == Enlightenment::ALL.len() && self.0.iter().all(counts)
    }
}

impl Default for Usage {
    fn default() -> Self {
        Usage(std::array::from_fn(|_| Counter {
            first: AtomicU64::new(NEVER),
            plain: AtomicU64::new(0),
            ways: std::array::from_fn(|_| AtomicU64::new(0)),
        }))
    }
}

impl Counter {
    fn count(&self, counter: &AtomicU64, now: Nanos) {
        // Counts of different processors need no order, and the earliest time wins.
        if counter.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first.fetch_min(now, Ordering::Relaxed);
        }
    }
}

impl Usage {
    /// Notes a use of `one`.
    pub fn note(&self, one: Enlightenment, now: Nanos) {
        let counter = &self.0[one as usize];
        counter.count(&counter.plain, now);
    }

    /// Notes an access to `msr`, if it belongs to an enlightenment.
    pub fn msr(&self, msr: u32, now: Nanos) {
        if let Some(one) = Enlightenment::of_msr(msr) {
            self.way(one, one.row().msrs.iter().position(|other| *other == msr), now);
        }
    }

    /// Notes hypercall `code`, if it belongs to an enlightenment.
    pub fn call(&self, code: u16, now: Nanos) {
        if let Some(one) = Enlightenment::of_hypercall(code) {
            let row = one.row();
            let at = row.hypercalls.iter().position(|other| *other == code);
            self.way(one, at.map(|at| at + row.msrs.len()), now);
        }
    }

    fn way(&self, one: Enlightenment, way: Option<usize>, now: Nanos) {
        let counter = &self.0[one as usize];
        let place = way.and_then(|way| counter.ways.get(way)).unwrap_or(&counter.plain);
        counter.count(place, now);
    }

    /// What was counted, as plain data: by enlightenment when it was first used, and how often in which way.
    pub(crate) fn save(&self) -> SavedUsage {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let all =
            |one: &Counter| (get(&one.first), [&one.plain].into_iter().chain(&one.ways).map(get).collect());
        SavedUsage(self.0.iter().map(all).collect())
    }

    /// Goes on from that.
    pub(crate) fn restore(&self, SavedUsage(saved): SavedUsage) {
        for (own, (first, counts)) in self.0.iter().zip(saved) {
            own.first.store(first, Ordering::Relaxed);
            let all = [&own.plain].into_iter().chain(&own.ways);
            all.zip(counts).for_each(|(to, count)| to.store(count, Ordering::Relaxed));
        }
    }

    /// All that was counted, in the order of the table.
    pub fn report(&self, config: &Config) -> Vec<Used> {
        let report = |one: &Enlightenment| {
            let (row, counter) = (one.row(), &self.0[*one as usize]);
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let names = row.msrs.iter().map(|msr| format!("MSR {msr:#x}")).chain(
                row.hypercalls
                    .iter()
                    .map(|code| call_name(*code).map_or(format!("call {code:#x}"), Into::into)),
            );
            let ways = names.zip(counter.ways.iter().map(get)).filter(|(_, count)| *count != 0);
            let mut ways: Vec<_> = ways.collect();
            let plain = get(&counter.plain);
            if plain != 0 {
                let way = if *one == Enlightenment::Vapic { "EOIs without an exit" } else { "calls" };
                ways.push((way.to_owned(), plain));
            }
            let first = get(&counter.first);
            Used {
                what: *one,
                offered: config.set.has(*one),
                first: (first != NEVER).then_some(first),
                count: ways.iter().map(|(_, count)| count).sum::<u64>(),
                ways,
            }
        };
        Enlightenment::ALL.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_defs::hyperv::{call, msr};

    #[test]
    fn every_msr_and_call_of_a_row_has_a_counter() {
        for row in Enlightenment::ALL.iter().map(|one| one.row()) {
            assert!(row.msrs.len() + row.hypercalls.len() <= WAYS, "{}", row.name);
        }
    }

    #[test]
    fn first_use_and_counts_are_told_by_way() {
        let usage = Usage::default();
        usage.call(call::FLUSH_VIRTUAL_ADDRESS_LIST, 30);
        usage.call(call::FLUSH_VIRTUAL_ADDRESS_SPACE, 20);
        usage.call(call::FLUSH_VIRTUAL_ADDRESS_LIST, 40);
        usage.note(Enlightenment::Tlbflush, 50);
        usage.msr(msr::REFERENCE_TSC, 7);
        usage.msr(0x1b, 8);
        let report = usage.report(&"tlbflush".parse().unwrap());
        let of = |one: Enlightenment| report.iter().find(|used| used.what == one).unwrap();
        let flush = of(Enlightenment::Tlbflush);
        assert_eq!((flush.offered, flush.first, flush.count), (true, Some(20), 4));
        let ways = [
            ("HvCallFlushVirtualAddressSpace".to_owned(), 1),
            ("HvCallFlushVirtualAddressList".to_owned(), 2),
            ("calls".to_owned(), 1),
        ];
        assert_eq!(flush.ways, ways);
        let mut twice = flush.clone();
        twice.merge(flush.clone());
        assert_eq!((twice.count, twice.first, twice.ways[1].1), (8, Some(20), 4));
        let time = of(Enlightenment::Time);
        assert_eq!((time.offered, time.first, time.count), (false, Some(7), 1));
        assert_eq!((of(Enlightenment::Crash).first, of(Enlightenment::Crash).count), (None, 0));
    }
}
