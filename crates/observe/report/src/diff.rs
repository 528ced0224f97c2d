//! Two reports against each other, reason by reason.

use std::fmt::Write;

use serde::Serialize;

use crate::{Report, Table};

/// Samples and time of one reason in both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The reason; `total` for the sum.
    pub reason: String,
    /// Samples in the first and in the second.
    pub samples: [u64; 2],
    /// Nanoseconds in the first and in the second.
    pub total_ns: [u64; 2],
    /// Modelled nanoseconds in the first and in the second; none where the cost is not known.
    pub modelled_ns: [Option<u64>; 2],
    /// Samples of the second for one of the first; none where that has none.
    pub samples_ratio: Option<f64>,
    /// The same of time.
    pub time_ratio: Option<f64>,
    /// The same of the modelled cost.
    pub modelled_ratio: Option<f64>,
}

fn change(reason: &str, samples: [u64; 2], total_ns: [u64; 2], modelled_ns: [Option<u64>; 2]) -> Change {
    let ratio = |[a, b]: [u64; 2]| (a > 0).then(|| b as f64 / a as f64);
    Change {
        reason: reason.into(),
        samples,
        total_ns,
        modelled_ns,
        samples_ratio: ratio(samples),
        time_ratio: ratio(total_ns),
        modelled_ratio: modelled_ns[0].zip(modelled_ns[1]).and_then(|(a, b)| ratio([a, b])),
    }
}

/// Every reason of either, the largest change of time first; the last one is the total.
pub fn diff(a: &Report, b: &Report) -> Vec<Change> {
    let (a, b) = (&a.all, &b.all);
    let more = b.exits.iter().filter(|row| a.row(&row.reason).is_none());
    let mut changes: Vec<_> = a
        .exits
        .iter()
        .chain(more)
        .map(|row| {
            let name = [row.reason.as_str()];
            // A reason that there is not costs nothing.
            let modelled = |table: &Table| table.row(name[0]).map_or(Some(0), |row| row.modelled_ns);
            change(
                name[0],
                [a.samples_of(&name), b.samples_of(&name)],
                [a.time_of(&name), b.time_of(&name)],
                [modelled(a), modelled(b)],
            )
        })
        .collect();
    changes.sort_by(|x, y| {
        let by = |one: &Change| one.total_ns[0].abs_diff(one.total_ns[1]);
        by(y).cmp(&by(x)).then_with(|| x.reason.cmp(&y.reason))
    });
    let modelled = |table: &Table| table.modelled().map(|sum| sum.ns);
    let sums = [modelled(a), modelled(b)];
    changes.push(change("total", [a.samples, b.samples], [a.total_ns, b.total_ns], sums));
    changes
}

/// The changes as a table.
pub fn text(changes: &[Change]) -> String {
    let mut out = format!(
        "{:>20} {:>11} {:>11} {:>7} {:>13} {:>13} {:>7} {:>13} {:>13} {:>7}\n",
        "VM-EXIT",
        "samples A",
        "samples B",
        "B/A",
        "time A us",
        "time B us",
        "B/A",
        "modelled A us",
        "modelled B us",
        "B/A"
    );
    let ratio = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"));
    let modelled = |ns: Option<u64>| ns.map_or("-".into(), |ns| format!("{:.2}", ns as f64 / 1e3));
    for one in changes {
        let us = |ns: u64| ns as f64 / 1e3;
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:>20} {:>11} {:>11} {:>7} {:>13.2} {:>13.2} {:>7} {:>13} {:>13} {:>7}",
            one.reason,
            one.samples[0],
            one.samples[1],
            ratio(one.samples_ratio),
            us(one.total_ns[0]),
            us(one.total_ns[1]),
            ratio(one.time_ratio),
            modelled(one.modelled_ns[0]),
            modelled(one.modelled_ns[1]),
            ratio(one.modelled_ratio),
        );
    }
    out
}
