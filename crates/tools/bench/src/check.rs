//! The bounds that the translator has to reach.

use crate::catalog::Group;
use crate::results::{Boot, Cell, Line, Results, Table};
use crate::statistics::median;
use crate::subject::Entry;

/// What a bound is set for.
#[derive(Clone, Copy, Debug)]
enum Measure {
    /// The geometric mean of a group, times as fast as the faster peer.
    ToPeer(Group),
    /// The geometric mean of a group, times as long as the host.
    ToNative(Group),
    /// The row of a group that does worst against the faster peer.
    Worst(Group),
    /// A row, times as fast as the faster peer.
    Row(&'static str),
    /// The whole command of a boot, in parts of the fastest machine type of a peer.
    BootFastest,
    /// The same, both entered at the PVH note.
    BootPvh,
    /// What two threads gain, in parts of what they gain on the host.
    Gain,
    /// Resident memory above the guest's, in MiB.
    Above,
    /// A row's time, in microseconds.
    Micros(&'static str),
}

/// One bound. `least` and `possible` are to be exceeded if `more` is true, else not to be reached.
struct Bound {
    what: &'static str,
    measure: Measure,
    more: bool,
    least: f64,
    possible: Option<f64>,
}

const fn bound(what: &'static str, measure: Measure, more: bool, least: f64, possible: Option<f64>) -> Bound {
    Bound { what, measure, more, least, possible }
}

use Measure::{Above, BootFastest, BootPvh, Gain, Micros, Row, ToNative, ToPeer, Worst};

const BOUNDS: &[Bound] = &[
    bound("integer, times as fast as TCG", ToPeer(Group::Integer), true, 2.5, Some(4.0)),
    bound("integer, times native", ToNative(Group::Integer), false, 1.9, Some(1.2)),
    bound("floating point, times as fast as TCG", ToPeer(Group::Float), true, 15.0, Some(30.0)),
    bound("floating point, times native", ToNative(Group::Float), false, 1.5, Some(1.1)),
    bound("memory, times as fast as TCG", ToPeer(Group::Memory), true, 3.0, Some(5.0)),
    bound("memory, times native", ToNative(Group::Memory), false, 2.0, Some(1.3)),
    bound("kernel work, times as fast as TCG", ToPeer(Group::Kernel), true, 2.5, Some(5.0)),
    bound("kernel work, its worst row against TCG", Worst(Group::Kernel), true, 1.0, None),
    bound("written code, times as fast as TCG", ToPeer(Group::Code), true, 6.0, Some(30.0)),
    bound("clock_gettime on 2 vCPUs, times as fast as TCG", Row("clock-2"), true, 10.0, Some(20.0)),
    bound("boot, part of the fastest QEMU machine's time", BootFastest, false, 0.5, None),
    bound("boot at the PVH note, part of QEMU's time", BootPvh, false, 0.7, None),
    bound("2 threads' gain, part of the native gain", Gain, true, 0.9, Some(0.98)),
    bound("resident memory above the guest's, MiB", Above, false, 150.0, Some(60.0)),
    bound("request to handler, median, microseconds", Micros("interrupt"), false, 50.0, None),
];

/// A bound, held against results.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The kernel's settings.
    pub setting: &'static str,
    /// What was looked at.
    pub what: &'static str,
    /// What came out.
    pub value: Option<f64>,
    /// What is to be exceeded, or not to be reached.
    pub least: f64,
    /// What measurements say is possible.
    pub possible: Option<f64>,
    /// Whether `least` is to be exceeded.
    pub more: bool,
    /// Rows that count, and rows that there are.
    pub rows: Option<(usize, usize)>,
}

impl Verdict {
    /// Whether the bound is reached; none if nothing says so. A mean over a part of its rows does not.
    pub fn reached(&self) -> Option<bool> {
        let value = self.value?;
        let reached = if self.more { value >= self.least } else { value <= self.least };
        // What is missing could spoil what is good, never repair what is bad.
        if reached && self.rows.is_some_and(|(counted, all)| counted < all) { None } else { Some(reached) }
    }

    /// In one word.
    pub fn word(&self) -> &'static str {
        match self.reached() {
            Some(true) => "reached",
            Some(false) => "NOT REACHED",
            None if self.value.is_none() => "not measured",
            None => "rows missing",
        }
    }
}

/// Every bound, for every table.
pub fn check(results: &Results) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for table in &results.tables {
        for bound in BOUNDS {
            let (value, rows) = held(results, table, bound.measure);
            verdicts.push(Verdict {
                setting: table.setting.name(),
                what: bound.what,
                value,
                least: bound.least,
                possible: bound.possible,
                more: bound.more,
                rows,
            });
        }
    }
    verdicts
}

fn held(results: &Results, table: &Table, measure: Measure) -> (Option<f64>, Option<(usize, usize)>) {
    let quoted = |name: &str| table.line(name).filter(|line| !line.noisy());
    // Of the host or of Satori alone.
    let cell = |name: &str, index: usize| table.line(name)?.cells.get(index).filter(|cell| !cell.noisy());
    let counted = |group, ratio: fn(&Line) -> Option<f64>| {
        let (ratios, all) = table.ratios(group, ratio);
        Some((ratios.len(), all.max(1)))
    };
    match measure {
        ToPeer(group) => (table.mean(group, Line::to_peer), counted(group, Line::to_peer)),
        ToNative(group) => (table.mean(group, Line::to_native), counted(group, Line::to_native)),
        Worst(group) => {
            let ratios = table.ratios(group, Line::to_peer).0;
            (ratios.into_iter().min_by(f64::total_cmp), counted(group, Line::to_peer))
        }
        Row(name) => (quoted(name).and_then(Line::to_peer), None),
        BootFastest => (boot(table, Entry::BzImage, &[Entry::Q35, Entry::Microvm]), None),
        BootPvh => (boot(table, Entry::Pvh, &[Entry::Pvh]), None),
        Gain => {
            let gain = |index: usize| cell("parallel-2", index)?.gain();
            (gain(1).zip(gain(0)).map(|(guest, host)| guest / host), None)
        }
        Above => (results.above.get(1).and_then(|all| median(all)).map(|bytes| bytes / 1_048_576.0), None),
        Micros(name) => (cell(name, 1).and_then(Cell::ns).map(|ns| ns / 1e3), None),
    }
}

/// Satori's boot in parts of the fastest of the peers' boots; nothing if either cannot be quoted.
fn boot(table: &Table, own: Entry, theirs: &[Entry]) -> Option<f64> {
    let own = table.boots.iter().find(|boot| boot.subject == 1 && boot.entry == own)?;
    let peers = table.boots.iter().filter(|boot| boot.subject > 1 && theirs.contains(&boot.entry));
    let peers = || peers.clone().filter_map(|boot| Some((boot, boot.whole()?)));
    let fastest = peers().map(|(_, whole)| whole).min_by(f64::total_cmp)?;
    // As with rows: that of a boot that is slower anyhow has no part in it.
    let counts = |boot: &Boot| boot.runs.iter().any(|&run| run <= fastest);
    let noisy = own.noisy() || peers().any(|(boot, _)| counts(boot) && boot.noisy());
    own.whole().filter(|_| !noisy).map(|whole| whole / fastest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{line, results};

    fn verdict(verdicts: &[Verdict], what: &str) -> Verdict {
        verdicts.iter().find(|v| v.what.starts_with(what)).expect("a bound").clone()
    }

    #[test]
    fn bounds_are_held_against_means_and_rows() {
        let verdicts = check(&results(vec![
            line("fib", &[&[10.0], &[20.0], &[100.0]]),
            line("mix", &[&[10.0], &[10.0], &[20.0]]),
            line("fork", &[&[10.0], &[30.0], &[20.0]]),
            // It is about Satori alone.
            line("interrupt", &[&[10e3, 30e3], &[51e3], &[20e3, 40e3]]),
        ]));
        let integer = verdict(&verdicts, "integer, times as fast");
        assert!((integer.value.unwrap() - 10f64.sqrt()).abs() < 1e-9);
        assert_eq!((integer.reached(), integer.word()), (Some(true), "reached"));
        assert_eq!(verdict(&verdicts, "kernel work, its worst").reached(), Some(false));
        assert_eq!(verdict(&verdicts, "request to handler").reached(), Some(false));
        assert_eq!(verdict(&verdicts, "resident").reached(), Some(true));
        assert_eq!(verdict(&verdicts, "floating point, times native").word(), "not measured");
    }

    #[test]
    fn a_mean_over_a_part_of_its_rows_proves_nothing_good() {
        let rows = |calm: f64| {
            vec![line("fib", &[&[10.0], &[20.0], &[calm]]), line("mix", &[&[10.0], &[10.0, 20.0], &[20.0]])]
        };
        let good = verdict(&check(&results(rows(100.0))), "integer, times as fast");
        assert_eq!((good.rows, good.word()), (Some((1, 2)), "rows missing"));
        let bad = verdict(&check(&results(rows(10.0))), "integer, times as fast");
        assert_eq!(bad.word(), "NOT REACHED");
    }

    #[test]
    fn boots_are_compared_like_with_like() {
        let mut results = results(Vec::new());
        let boot = |subject, entry, ms| Boot { runs: vec![ms], ..Boot::new(subject, entry) };
        results.tables[0].boots = vec![
            boot(1, Entry::BzImage, 900.0),
            boot(1, Entry::Pvh, 800.0),
            boot(2, Entry::Q35, 2400.0),
            boot(3, Entry::Microvm, 1800.0),
            boot(3, Entry::Pvh, 1000.0),
        ];
        let verdicts = check(&results);
        assert_eq!(verdict(&verdicts, "boot, part").value, Some(0.5));
        assert_eq!(verdict(&verdicts, "boot at the PVH note").value, Some(0.8));
        assert_eq!(verdict(&verdicts, "boot at the PVH note").reached(), Some(false));
        // A slow peer's noise changes nothing; that of the fastest, or one that may be it, does.
        for (place, runs, value) in [
            (2, [2000.0, 2400.0, 3000.0], Some(0.5)),
            (3, [1500.0, 1800.0, 2000.0], None),
            (0, [800.0, 900.0, 1000.0], None),
        ] {
            let mut noisy = results.clone();
            noisy.tables[0].boots[place].runs = runs.into();
            assert_eq!(verdict(&check(&noisy), "boot, part").value, value, "{runs:?}");
        }
    }
}
