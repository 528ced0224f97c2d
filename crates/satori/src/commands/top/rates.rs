//! From two pictures of a machine to what happened in between.

use std::collections::BTreeMap;

use satori_profile::{Live, LiveVcpu};

/// A name, how often a second, and how often at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rate {
    /// What happened.
    pub name: String,
    /// How often a second of guest time.
    pub a_second: f64,
    /// How often since the guest's start.
    pub total: u64,
    /// For exits the share of all vCPUs' time that they took, 0 to 1.
    pub share: f64,
}

/// One vCPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vcpu {
    /// Exits a second of guest time.
    pub exits: f64,
    /// Injected interrupts a second.
    pub interrupts: f64,
    /// The share of its time halted, and that in other exits; 0 to 1.
    pub halted: f64,
    /// See `halted`.
    pub exiting: f64,
    /// What it exits for most.
    pub most: String,
}

/// What happened between two pictures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Guest time at the end, in seconds.
    pub now: f64,
    /// Exits a second of all vCPUs.
    pub sum: f64,
    /// Exits by reason, most first; so are all lists.
    pub exits: Vec<Rate>,
    /// By index.
    pub vcpus: Vec<Vcpu>,
    /// Uses of enlightenments.
    pub hyperv: Vec<Rate>,
    /// Interrupts by vector.
    pub interrupts: Vec<Rate>,
    /// Hypercalls by name.
    pub hypercalls: Vec<Rate>,
    /// Guest addresses: reason and function.
    pub hot: Vec<Rate>,
    /// What the engine counts by itself.
    pub engine: Vec<Rate>,
}

/// The reason that waits rather than works.
const HLT: &str = "HLT";

/// Counts by name, before and now. What is less than before was counted anew, after a reset.
struct Counts {
    seconds: f64,
    sums: BTreeMap<String, (u64, u64)>,
}

impl Counts {
    fn new(seconds: f64) -> Self {
        Counts { seconds, sums: BTreeMap::new() }
    }

    fn now(&mut self, name: &str, count: u64) {
        let sum = self.sums.entry(name.to_owned()).or_default();
        sum.1 = sum.1.saturating_add(count);
    }

    fn before(&mut self, name: &str, count: u64) {
        let sum = self.sums.entry(name.to_owned()).or_default();
        sum.0 = sum.0.saturating_add(count);
    }

    /// Those that happened at all, most frequent first.
    fn rates(self) -> Vec<Rate> {
        let seconds = self.seconds;
        let rate = |(name, (before, now)): (String, (u64, u64))| Rate {
            name,
            a_second: more(now, before) as f64 / seconds,
            total: now,
            share: 0.0,
        };
        let mut rates: Vec<_> = self.sums.into_iter().map(rate).filter(|rate| rate.total > 0).collect();
        rates.sort_by(|a, b| b.a_second.total_cmp(&a.a_second).then(b.total.cmp(&a.total)));
        rates
    }
}

fn more(now: u64, before: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Counters of the engine's, where that of nanoseconds of something is a share of the time of `vcpus` behind the something's name.
fn timed(rates: Vec<Rate>, vcpus: usize) -> Vec<Rate> {
    let (times, mut counts): (Vec<_>, Vec<_>) =
        rates.into_iter().partition(|rate| rate.name.starts_with("ns of "));
    for time in times {
        let name = time.name.trim_start_matches("ns of ");
        if let Some(rate) = counts.iter_mut().find(|rate| rate.name == name) {
            rate.share = time.a_second / 1e9 / vcpus.max(1) as f64;
            rate.name = format!("{name}, {:.2} % of the time", 100.0 * rate.share);
        }
    }
    counts
}

impl Rates {
    /// What happened from `before` to `now`. Without guest time in between nothing did.
    pub(super) fn between(before: &Live, now: &Live) -> Self {
        let nanos = more(now.now_ns, before.now_ns).max(1) as f64;
        let seconds = nanos / 1e9;
        let none = LiveVcpu::default();
        let old = |index: usize| before.vcpus.get(index).unwrap_or(&none);
        let counts = || Counts::new(seconds);
        let (mut exits, mut interrupts, mut hyperv, mut calls, mut hot, mut engine) =
            (counts(), counts(), counts(), counts(), counts(), counts());
        let mut times = BTreeMap::<&str, u64>::new();
        for (index, vcpu) in now.vcpus.iter().enumerate() {
            for (reason, &(count, time)) in &vcpu.exits {
                exits.now(reason, count);
                *times.entry(reason).or_default() +=
                    more(time, old(index).exits.get(reason).map_or(0, |one| one.1));
            }
            vcpu.interrupts
                .iter()
                .for_each(|(vector, count)| interrupts.now(&format!("{vector:#04x}"), *count));
        }
        for vcpu in &before.vcpus {
            vcpu.exits.iter().for_each(|(reason, (count, _))| exits.before(reason, *count));
            vcpu.interrupts
                .iter()
                .for_each(|(vector, count)| interrupts.before(&format!("{vector:#04x}"), *count));
        }
        for (live, is_now) in [(before, false), (now, true)] {
            let add = |counts: &mut Counts, name: &str, count| match is_now {
                true => counts.now(name, count),
                false => counts.before(name, count),
            };
            for (name, ways) in &live.hyperv {
                add(&mut hyperv, name, ways.values().sum());
                for (way, count) in ways.iter().filter(|(way, _)| !way.starts_with("MSR ")) {
                    add(&mut calls, way, *count);
                }
            }
            live.engine.iter().for_each(|(name, count)| add(&mut engine, name, *count));
            for place in &live.hot {
                let at = place.symbol.clone().unwrap_or_default();
                add(&mut hot, &format!("{:<20} {:#018x} {at}", place.reason, place.rip), place.count);
            }
        }
        let vcpus: Vec<_> = now
            .vcpus
            .iter()
            .enumerate()
            .map(|(index, vcpu)| Vcpu::between(old(index), vcpu, nanos))
            .collect();
        let mut exits = exits.rates();
        let all = nanos * now.vcpus.len().max(1) as f64;
        exits.iter_mut().for_each(|rate| rate.share = times[rate.name.as_str()] as f64 / all);
        Rates {
            now: now.now_ns as f64 / 1e9,
            sum: vcpus.iter().map(|vcpu| vcpu.exits).sum(),
            exits,
            vcpus,
            hyperv: hyperv.rates(),
            interrupts: interrupts.rates(),
            hypercalls: calls.rates(),
            hot: hot.rates(),
            engine: timed(engine.rates(), now.vcpus.len()),
        }
    }
}

impl Vcpu {
    fn between(before: &LiveVcpu, now: &LiveVcpu, nanos: f64) -> Self {
        let mut vcpu = Vcpu::default();
        let mut most = 0;
        for (reason, &(count, time)) in &now.exits {
            let old = before.exits.get(reason).copied().unwrap_or_default();
            let (count, time) = (more(count, old.0), more(time, old.1) as f64 / nanos);
            vcpu.exits += count as f64 / nanos * 1e9;
            *(if reason == HLT { &mut vcpu.halted } else { &mut vcpu.exiting }) += time;
            if count > most {
                (most, vcpu.most) = (count, reason.clone());
            }
        }
        let sum = |vcpu: &LiveVcpu| vcpu.interrupts.values().sum::<u64>();
        vcpu.interrupts = more(sum(now), sum(before)) as f64 / nanos * 1e9;
        vcpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_profile::LiveHot;

    fn live(now_ns: u64, hlt: (u64, u64), calls: u64) -> Live {
        let vcpu = LiveVcpu {
            exits: [("HLT".to_owned(), hlt), ("VMCALL".to_owned(), (calls, calls * 1_000))].into(),
            interrupts: [(0xec, hlt.0)].into(),
        };
        Live {
            now_ns,
            vcpus: vec![vcpu],
            hyperv: [("ipi".to_owned(), [("HvCallSendSyntheticClusterIpi".to_owned(), calls)].into())].into(),
            hot: vec![LiveHot { reason: "VMCALL".into(), rip: 0x1000, count: calls, symbol: None }],
            ..Live::default()
        }
    }

    #[test]
    fn the_time_of_exits_that_the_kernel_counts_is_a_share() {
        let rate = |name: &str, a_second| Rate { name: name.into(), a_second, total: 7, share: 0.0 };
        let all = vec![
            rate("ns of VM exits: HLT", 5e8),
            rate("VM exits: HLT", 9.0),
            rate("by KVM: VM exits", 10.0),
        ];
        let names: Vec<_> = timed(all, 2).into_iter().map(|rate| (rate.name, rate.a_second)).collect();
        assert_eq!(
            names,
            [("VM exits: HLT, 25.00 % of the time".into(), 9.0), ("by KVM: VM exits".into(), 10.0)]
        );
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let rates =
            Rates::between(&live(1_000_000_000, (10, 0), 5), &live(3_000_000_000, (14, 1_000_000_000), 105));
        let row = |rates: &[Rate], at: usize| (rates[at].name.clone(), rates[at].a_second, rates[at].total);
        assert_eq!(row(&rates.exits, 0), ("VMCALL".into(), 50.0, 105), "the most frequent first");
        assert_eq!(row(&rates.exits, 1), ("HLT".into(), 2.0, 14));
        assert_eq!((rates.exits[1].share, rates.sum), (0.5, 52.0));
        assert_eq!((rates.vcpus[0].halted, rates.vcpus[0].interrupts), (0.5, 2.0));
        assert_eq!(rates.vcpus[0].most, "VMCALL");
        assert_eq!(row(&rates.interrupts, 0), ("0xec".into(), 2.0, 14));
        assert_eq!(row(&rates.hypercalls, 0), ("HvCallSendSyntheticClusterIpi".into(), 50.0, 105));
        assert_eq!(row(&rates.hyperv, 0), ("ipi".into(), 50.0, 105));
        assert!(rates.hot[0].name.starts_with("VMCALL") && rates.hot[0].a_second == 50.0);
    }

    #[test]
    fn a_reset_starts_again_and_a_clock_that_stands_divides_by_nothing() {
        let rates = Rates::between(&live(5_000_000_000, (100, 0), 50), &live(6_000_000_000, (7, 0), 3));
        assert_eq!((rates.exits[0].a_second, rates.exits[1].a_second), (7.0, 3.0));
        let same = live(5, (1, 1), 1);
        assert_eq!(Rates::between(&same, &same).sum, 0.0);
    }
}
