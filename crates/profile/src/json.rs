//! The report as JSON: the columns of the table under their own names, times in nanoseconds.

use serde::Serialize;

use crate::{ExitProfile, Profile};

#[derive(Serialize)]
struct Row {
    reason: &'static str,
    number: u16,
    samples: u64,
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
struct Report<'a> {
    all: Table,
    vcpus: Vec<Table>,
    stats: Vec<Counter<'a>>,
}

fn table(vcpu: Option<usize>, profile: &ExitProfile) -> Table {
    let sum = profile.sum();
    let exits = profile
        .rows()
        .into_iter()
        .map(|(reason, samples)| Row {
            reason: reason.name(),
            number: reason as u16,
            samples: samples.count,
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
    /// The report as a JSON value: `all`, `vcpus` and `stats`.
    pub fn json(&self) -> serde_json::Value {
        let report = Report {
            all: table(None, &self.all()),
            vcpus: self.vcpus.iter().enumerate().map(|(index, vcpu)| table(Some(index), vcpu)).collect(),
            stats: self.stats.iter().map(|(name, value)| Counter { name, value: *value }).collect(),
        };
        // Strings, integers and floats under string keys; not-a-number becomes null.
        serde_json::to_value(report).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use satori_defs::vmx::ExitReason;

    use super::*;

    #[test]
    fn the_report_has_the_tables_columns() {
        let mut vcpu = ExitProfile::default();
        vcpu.record(ExitReason::Hlt, true, 10);
        vcpu.record(ExitReason::Hlt, false, 30);
        let mut profile = Profile { vcpus: vec![vcpu], stats: Vec::new(), shares: None };
        profile.add_stats(&[("tlb_fills", 3)]);
        let row = serde_json::json!({
            "reason": "HLT", "number": 12, "samples": 2, "total_ns": 40, "min_ns": 10, "max_ns": 30,
            "mean_ns": 20.0, "deviation_percent": 50.0, "without_apicv": 1,
        });
        let expected = serde_json::json!({
            "all": { "samples": 2, "total_ns": 40, "exits": [row.clone()] },
            "vcpus": [{ "vcpu": 0, "samples": 2, "total_ns": 40, "exits": [row] }],
            "stats": [{ "name": "tlb_fills", "value": 3 }],
        });
        assert_eq!(profile.json(), expected);
    }
}
