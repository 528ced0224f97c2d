//! The one model of every report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The exits of one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawRow")]
pub struct Row {
    /// Its name in Linux's uapi `vmx.h` or `svm.h`.
    pub reason: String,
    /// How many.
    pub samples: u64,
    /// How many of them were timed, and stand for the others; none where all were, or nobody told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed: Option<u64>,
    /// The time of all of them in nanoseconds.
    pub total_ns: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The average.
    pub mean_ns: f64,
    /// Standard deviation of the mean, in percent of the mean.
    pub deviation_percent: f64,
    /// How many of them came while APICv was not in force; of EXTERNAL_INTERRUPT only kicks, as an interrupt of the host's own costs
    /// the same either way.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_apicv: u64,
    /// What all of them cost on hardware by the cost file, in nanoseconds; none where that has no entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled_ns: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Deserialize)]
struct RawRow {
    reason: String,
    samples: u64,
    #[serde(default)]
    timed: Option<u64>,
    total_ns: u64,
    min_ns: u64,
    max_ns: u64,
    #[serde(default)]
    deviation_percent: Option<f64>,
    #[serde(default)]
    without_apicv: u64,
    #[serde(default)]
    modelled_ns: Option<u64>,
}

impl TryFrom<RawRow> for Row {
    type Error = String;

    fn try_from(raw: RawRow) -> Result<Self, String> {
        let RawRow {
            reason,
            samples,
            timed,
            total_ns,
            min_ns,
            max_ns,
            deviation_percent,
            without_apicv,
            modelled_ns,
        } = raw;
        if !is_reason(&reason) {
            return Err(format!("'{}' is no name of an exit", reason.escape_debug()));
        }
        if samples == 0 {
            return Err(format!("{reason} has no samples: leave its row out"));
        }
        if min_ns > max_ns || max_ns > total_ns {
            return Err(format!("{reason}: min_ns <= max_ns <= total_ns does not hold"));
        }
        if without_apicv > samples {
            return Err(format!("{reason}: without_apicv is part of its samples, and greater"));
        }
        if timed.is_some_and(|timed| timed > samples) {
            return Err(format!("{reason}: timed is part of its samples, and greater"));
        }
        let mean_ns = total_ns as f64 / samples as f64;
        let deviation_percent = deviation_percent.unwrap_or(0.0);
        Ok(Row {
            reason,
            samples,
            timed,
            total_ns,
            min_ns,
            max_ns,
            mean_ns,
            deviation_percent,
            without_apicv,
            modelled_ns,
        })
    }
}

/// Whether `text` may be the name of an exit: `EPT_MISCONFIG`, `npf`, `0x4d`.
pub(crate) fn is_reason(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// The exits of one vCPU, or of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The vCPU, where it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u64>,
    /// How many exits.
    pub samples: u64,
    /// Their time in nanoseconds.
    pub total_ns: u64,
    /// By reason, most samples first.
    pub exits: Vec<Row>,
}

impl Table {
    /// The row of `reason`.
    pub fn row(&self, reason: &str) -> Option<&Row> {
        self.exits.iter().find(|row| row.reason == reason)
    }

    /// How many exits were timed, where not all were.
    pub fn timed(&self) -> Option<u64> {
        let some = self.exits.iter().any(|row| row.timed.is_some());
        some.then(|| self.exits.iter().map(|row| row.timed.unwrap_or(row.samples)).sum())
    }

    /// How many exits of these reasons.
    pub fn samples_of(&self, reasons: &[&str]) -> u64 {
        reasons.iter().filter_map(|reason| self.row(reason)).map(|row| row.samples).sum()
    }

    /// The time of these reasons in nanoseconds.
    pub fn time_of(&self, reasons: &[&str]) -> u64 {
        reasons
            .iter()
            .filter_map(|reason| self.row(reason))
            .fold(0, |sum, row| sum.saturating_add(row.total_ns))
    }

    /// Adds another table's exits. The deviation of a sum is unknown.
    pub fn add(&mut self, other: &Table) {
        self.samples = self.samples.saturating_add(other.samples);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        for row in &other.exits {
            match self.exits.iter_mut().find(|known| known.reason == row.reason) {
                Some(known) => {
                    if known.timed.or(row.timed).is_some() {
                        let both = [&*known, row].map(|row| row.timed.unwrap_or(row.samples));
                        known.timed = Some(both[0].saturating_add(both[1]));
                    }
                    known.samples = known.samples.saturating_add(row.samples);
                    known.total_ns = known.total_ns.saturating_add(row.total_ns);
                    known.min_ns = known.min_ns.min(row.min_ns);
                    known.max_ns = known.max_ns.max(row.max_ns);
                    known.mean_ns = known.total_ns as f64 / known.samples as f64;
                    known.deviation_percent = 0.0;
                    known.without_apicv = known.without_apicv.saturating_add(row.without_apicv);
                    let both = known.modelled_ns.zip(row.modelled_ns);
                    known.modelled_ns = both.map(|(a, b)| a.saturating_add(b));
                }
                None => self.exits.push(row.clone()),
            }
        }
        self.exits.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.reason.cmp(&b.reason)));
    }
}

/// What was offered of one enlightenment, and what was used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// It was offered to the guest.
    pub offered: bool,
    /// How often the guest used it.
    pub used: u64,
    /// Guest time of the first use in nanoseconds.
    #[serde(default)]
    pub first_ns: Option<u64>,
    /// By MSR or hypercall.
    #[serde(default)]
    pub ways: BTreeMap<String, u64>,
}

/// A counter of the engine or the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// What is counted.
    pub name: String,
    /// How much.
    pub value: u64,
}

/// Exits over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The length of one bucket in nanoseconds of guest time.
    pub bucket_ns: u64,
    /// Exits in each bucket from the guest's start, by reason.
    pub exits: BTreeMap<String, Vec<u64>>,
}

/// Where in the guest exits came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hot {
    /// The exit's reason.
    pub reason: String,
    /// RIP at the exit.
    pub rip: u64,
    /// How many.
    pub samples: u64,
    /// Their time in nanoseconds.
    #[serde(default)]
    pub total_ns: u64,
    /// The guest's function, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
}

/// Where a report comes from. What nobody told is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The version of Satori that made it.
    pub satori: String,
    /// The command.
    pub command: String,
    /// The guest's kernel.
    pub kernel: String,
    /// When the run began, in UTC.
    pub date: String,
    /// The host's processor and kernel.
    pub host: String,
}

/// A report. What its maker did not tell is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// All vCPUs as one.
    pub all: Table,
    /// Each vCPU.
    #[serde(default)]
    pub vcpus: Vec<Table>,
    /// Counters of engine and machine.
    #[serde(default)]
    pub stats: Vec<Counter>,
    /// Enlightenments by name.
    #[serde(default)]
    pub hyperv: BTreeMap<String, Use>,
    /// The modelled processor, as `--processor` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Nanoseconds of guest time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_time_ns: Option<u64>,
    /// Exits over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
    /// Where exits came from, most samples first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hot: Vec<Hot>,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The exit status of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u64>,
    /// How the guest crashed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crash: Option<crate::crashes::Crash>,
    /// What of a text was passed over while it was read.
    #[serde(skip)]
    pub notes: Vec<String>,
}
