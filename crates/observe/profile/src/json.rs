//! The report as JSON: the columns of the table under their own names, times in nanoseconds.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::live::hottest;
use crate::{ExitProfile, Profile, Timeline};

/// Addresses in a report, those that exited most.
const HOTTEST: usize = 512;

#[derive(Serialize)]
struct Row {
    reason: &'static str,
    number: u16,
    samples: u64,
    /// Where not all of them were.
    #[serde(skip_serializing_if = "Option::is_none")]
    timed: Option<u64>,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
    mean_ns: f64,
    deviation_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    without_apicv: Option<u64>,
}

#[derive(Serialize)]
struct Table {
    #[serde(skip_serializing_if = "Option::is_none")]
    vcpu: Option<usize>,
    samples: u64,
    total_ns: u64,
    exits: Vec<Row>,
}

#[derive(Serialize)]
struct Counter<'a> {
    name: &'a str,
    value: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    bucket_ns: u64,
    exits: BTreeMap<&'static str, &'a [u32]>,
}

#[derive(Serialize)]
struct HotRow {
    reason: &'static str,
    rip: u64,
    samples: u64,
    total_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    symbol: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    all: Table,
    vcpus: Vec<Table>,
    stats: Vec<Counter<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeline: Option<Line<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hot: Vec<HotRow>,
}

fn line(timeline: &Timeline) -> Option<Line<'_>> {
    let exits: BTreeMap<_, _> = timeline.rows().map(|(reason, row)| (reason.name(), row)).collect();
    (!exits.is_empty()).then(|| Line { bucket_ns: timeline.width(), exits })
}

fn table(vcpu: Option<usize>, profile: &ExitProfile) -> Table {
    let sum = profile.sum();
    let exits = profile
        .rows()
        .into_iter()
        .map(|(reason, samples)| Row {
            reason: reason.name(),
            number: reason.number(),
            samples: samples.count,
            timed: (samples.timed < samples.count).then_some(samples.timed),
            total_ns: samples.total,
            min_ns: samples.min,
            max_ns: samples.max,
            mean_ns: samples.mean(),
            deviation_percent: samples.deviation(),
            without_apicv: (samples.without_apicv > 0).then_some(samples.without_apicv),
        })
        .collect();
    Table { vcpu, samples: sum.count, total_ns: sum.total, exits }
}

impl Profile {
    /// The report as a JSON value: `all`, `vcpus`, `stats`, and where there were exits `timeline` and `hot`, whose
    /// addresses `name` names.
    pub fn json(&self, name: impl Fn(u64) -> Option<String>) -> serde_json::Value {
        let hot = hottest(&self.hot, HOTTEST).into_iter().map(|((reason, rip), place)| HotRow {
            reason: reason.name(),
            rip,
            samples: place.count,
            total_ns: place.time,
            symbol: name(rip),
        });
        let report = Report {
            all: table(None, &self.all()),
            vcpus: self.vcpus.iter().enumerate().map(|(index, vcpu)| table(Some(index), vcpu)).collect(),
            stats: self.stats.iter().map(|(name, value)| Counter { name, value: *value }).collect(),
            timeline: line(&self.timeline),
            hot: hot.collect(),
        };
        // Strings, integers and floats under string keys; not-a-number becomes null.
        serde_json::to_value(report).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ALL, HLT};

    use super::*;
    use crate::{Meter, Timing};

    #[test]
    fn the_report_has_the_tables_columns() {
        let mut meter = Meter::new(ALL, true, Timing::Each);
        for (apicv, rip, from, to) in [(true, 0x1000, 5, 15), (false, 0x2000, 1_000_000, 1_000_030)] {
            meter.exit(HLT, apicv, rip, || from);
            meter.entry(|| to);
        }
        let mut profile = Profile::default();
        profile.add(0, &meter.recorded());
        profile.add_stats(&[("tlb_fills", 3)]);
        let row = serde_json::json!({
            "reason": "HLT", "number": 12, "samples": 2, "total_ns": 40, "min_ns": 10, "max_ns": 30,
            "mean_ns": 20.0, "deviation_percent": 50.0, "without_apicv": 1,
        });
        let expected = serde_json::json!({
            "all": { "samples": 2, "total_ns": 40, "exits": [row.clone()] },
            "vcpus": [{ "vcpu": 0, "samples": 2, "total_ns": 40, "exits": [row] }],
            "stats": [{ "name": "tlb_fills", "value": 3 }],
            "timeline": { "bucket_ns": 1_000_000, "exits": { "HLT": [1, 1] } },
            "hot": [
                { "reason": "HLT", "rip": 0x1000, "samples": 1, "total_ns": 10, "symbol": "idle+0x0" },
                { "reason": "HLT", "rip": 0x2000, "samples": 1, "total_ns": 30 },
            ],
        });
        assert_eq!(profile.json(|rip| (rip == 0x1000).then(|| "idle+0x0".into())), expected);
    }

    #[test]
    fn without_exits_there_is_neither_timeline_nor_address() {
        let json = Profile::default().json(|_| None);
        assert_eq!((json.get("timeline"), json.get("hot")), (None, None));
    }
}
