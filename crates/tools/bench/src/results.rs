//! What came out, and what follows from it.

use crate::catalog::{Group, Row};
use crate::line::Reading;
use crate::statistics::{geometric_mean, median, spread};
use crate::subject::{Entry, Setting};

/// A row whose runs differ by more than this is not quoted.
pub const NOISE: f64 = 0.15;

/// A row on one subject.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// The latest runs, as many as there are repetitions.
    pub readings: Vec<Reading>,
    /// Runs in all.
    pub runs: usize,
    /// Why it cannot be had there.
    pub absent: Option<String>,
    /// How it went wrong.
    pub failed: Option<String>,
}

impl Cell {
    /// Whether no more runs are needed: the latest agree, or there is nothing to measure.
    pub fn settled(&self, repetitions: usize) -> bool {
        let agree = || self.spread().is_some() && !self.noisy();
        self.absent.is_some() || self.failed.is_some() || (self.readings.len() >= repetitions && agree())
    }

    /// Adds a run; of the earlier ones those remain that make `repetitions` with it.
    pub fn add(&mut self, reading: Reading, repetitions: usize) {
        self.readings.push(reading);
        self.runs += 1;
        let surplus = self.readings.len().saturating_sub(repetitions);
        self.readings.drain(..surplus);
    }

    fn all(&self) -> Vec<f64> {
        self.readings.iter().map(|r| r.ns).collect()
    }

    /// Nanoseconds an operation: the median of the runs.
    pub fn ns(&self) -> Option<f64> {
        if self.failed.is_some() { None } else { median(&self.all()) }
    }

    /// The least of the runs.
    fn least(&self) -> Option<f64> {
        self.all().into_iter().min_by(f64::total_cmp)
    }

    /// Whether its runs are too far apart to be quoted.
    pub fn noisy(&self) -> bool {
        self.spread().is_some_and(|spread| spread > NOISE)
    }

    /// How far the runs are apart, in parts of the median.
    pub fn spread(&self) -> Option<f64> {
        spread(&self.all())
    }

    /// What two threads gained over one: the median of the runs.
    pub fn gain(&self) -> Option<f64> {
        median(&self.readings.iter().filter_map(|r| r.gain).collect::<Vec<_>>())
    }
}

/// A row on all subjects, in their order: the host first, then Satori, then peers.
#[derive(Clone, Debug)]
pub struct Line {
    /// The row.
    pub row: &'static Row,
    /// One cell a subject.
    pub cells: Vec<Cell>,
}

impl Line {
    /// The host's nanoseconds.
    pub fn native(&self) -> Option<f64> {
        self.cells.first()?.ns()
    }

    /// Satori's nanoseconds.
    pub fn satori(&self) -> Option<f64> {
        self.cells.get(1)?.ns()
    }

    /// The faster peer: which subject it is, and its nanoseconds.
    pub fn peer(&self) -> Option<(usize, f64)> {
        let peers = self.cells.iter().enumerate().skip(2);
        peers.filter_map(|(i, cell)| Some((i, cell.ns()?))).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// How many times as long as the host Satori takes.
    pub fn to_native(&self) -> Option<f64> {
        Some(self.satori()? / self.native()?).filter(|ratio| ratio.is_finite())
    }

    /// How many times as fast as the faster peer Satori is.
    pub fn to_peer(&self) -> Option<f64> {
        Some(self.peer()?.1 / self.satori()?).filter(|ratio| ratio.is_finite())
    }

    /// Whether its ratios are too uncertain to be quoted. The noise of a peer that is slower in its best run
    /// than another is in the median has no part in them.
    pub fn noisy(&self) -> bool {
        let faster = self.peer().map_or(f64::INFINITY, |(_, ns)| ns);
        let counts = |cell: &Cell| cell.least().is_some_and(|least| least <= faster);
        let (own, peers) = self.cells.split_at(self.cells.len().min(2));
        own.iter().chain(peers.iter().filter(|cell| counts(cell))).any(Cell::noisy)
    }

    /// Why the result on subject `index` is not that of the host, if it is not.
    pub fn wrong(&self, index: usize) -> Option<String> {
        let expected = self.cells.first()?.readings.first().and_then(|r| r.sum.as_deref());
        for reading in &self.cells.get(index)?.readings {
            if reading.differing {
                return Some("its operations had different results".into());
            }
            if let (Some(expected), Some(sum)) = (expected, reading.sum.as_deref())
                && expected != sum
            {
                return Some(format!("its result is {sum}, the host's {expected}"));
            }
        }
        None
    }
}

/// The rows under one setting.
#[derive(Clone, Debug)]
pub struct Table {
    /// The kernel's settings.
    pub setting: Setting,
    /// Rows on one processor, and then those on several.
    pub lines: Vec<Line>,
    /// The boots, if they were measured.
    pub boots: Vec<Boot>,
}

impl Table {
    /// The row of this name, if it was measured.
    pub fn line(&self, name: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.row.name == name)
    }

    /// The rows of `group` that may be quoted and have this ratio; and how many rows it has in all, without
    /// those for which the host's processor lacks the instructions.
    pub fn ratios(&self, group: Group, ratio: fn(&Line) -> Option<f64>) -> (Vec<f64>, usize) {
        let absent = |line: &Line| line.cells.first().is_some_and(|cell| cell.absent.is_some());
        let counts = |line: &&Line| line.row.group == group && !line.row.several && !absent(line);
        let rows = || self.lines.iter().filter(counts);
        (rows().filter(|line| !line.noisy()).filter_map(ratio).collect(), rows().count())
    }

    /// The geometric mean of a ratio over the rows of a group.
    pub fn mean(&self, group: Group, ratio: fn(&Line) -> Option<f64>) -> Option<f64> {
        geometric_mean(&self.ratios(group, ratio).0)
    }
}

/// Boots of one subject in one way.
#[derive(Clone, Debug)]
pub struct Boot {
    /// Which subject.
    pub subject: usize,
    /// How the kernel was entered.
    pub entry: Entry,
    /// The latest runs, as many as there are repetitions: from the command's start to its end, in milliseconds.
    pub runs: Vec<f64>,
    /// From the command's start to init, in milliseconds.
    pub to_init: Vec<f64>,
    /// How it went wrong.
    pub failed: Option<String>,
}

impl Boot {
    /// One of which there are no runs yet.
    pub fn new(subject: usize, entry: Entry) -> Self {
        Boot { subject, entry, runs: Vec::new(), to_init: Vec::new(), failed: None }
    }

    /// Adds a run; of the earlier ones those remain that make `repetitions` with it.
    pub fn add(&mut self, whole: f64, to_init: f64, repetitions: usize) {
        self.runs.push(whole);
        self.to_init.push(to_init);
        let surplus = self.runs.len().saturating_sub(repetitions);
        self.runs.drain(..surplus);
        self.to_init.drain(..surplus);
    }

    /// Whether no more runs are needed.
    pub fn settled(&self, repetitions: usize) -> bool {
        self.failed.is_some() || self.runs.len() >= repetitions && !self.noisy()
    }

    /// Whether its runs are too far apart to be quoted.
    pub fn noisy(&self) -> bool {
        spread(&self.runs).is_some_and(|spread| spread > NOISE)
    }

    /// The median time of the whole command.
    pub fn whole(&self) -> Option<f64> {
        if self.failed.is_some() { None } else { median(&self.runs) }
    }
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Results {
    /// The host's processor and kernel.
    pub host: String,
    /// When it was measured, in UTC.
    pub date: String,
    /// The guests' kernel.
    pub kernel: String,
    /// The subjects' names, the host first, then Satori, then peers.
    pub subjects: Vec<String>,
    /// What was told of subjects: versions, clock sources.
    pub notes: Vec<String>,
    /// Runs that a median is taken of.
    pub repetitions: usize,
    /// The time of a row in a run, in milliseconds.
    pub budget_ms: u64,
    /// Processors of the rows that are on several.
    pub cpus: u32,
    /// One table a setting.
    pub tables: Vec<Table>,
    /// Runs that ended before their first row and were begun again: which subject, and how they ended.
    pub stumbles: Vec<(usize, String)>,
    /// Of each subject the resident memory above its guest's, in bytes, a value a run.
    pub above: Vec<Vec<f64>>,
    /// The guests' memory in bytes.
    pub memory: u64,
    /// The user ended it before all was measured.
    pub stopped: bool,
}

impl Results {
    /// These, and others of the same subjects behind them.
    #[must_use]
    pub fn with(mut self, others: Results) -> Self {
        for (table, more) in self.tables.iter_mut().zip(others.tables) {
            table.lines.extend(more.lines);
        }
        self.stumbles.extend(others.stumbles);
        self.stopped |= others.stopped;
        if others.stopped {
            self.notes.extend(others.notes.into_iter().take(1));
        }
        self
    }

    /// With the rows in which Satori is slowest first.
    #[must_use]
    pub fn worst_first(mut self) -> Self {
        for table in &mut self.tables {
            let worst = |line: &Line| line.to_native().unwrap_or(f64::INFINITY);
            table.lines.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
        }
        self
    }

    /// Whether Satori computed something wrongly, or a row of it went wrong.
    pub fn wrong(&self) -> bool {
        let stumbled = self.stumbles.iter().any(|(subject, _)| *subject == 1);
        stumbled
            || self.tables.iter().any(|table| {
                let failed = |line: &Line| line.cells.get(1).is_some_and(|cell| cell.failed.is_some());
                table.lines.iter().any(|line| line.wrong(1).is_some() || failed(line))
                    || table.boots.iter().any(|boot| boot.subject == 1 && boot.failed.is_some())
            })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::catalog::ROWS;

    pub(crate) fn reading(ns: f64, sum: &str) -> Reading {
        Reading {
            ns,
            median: ns,
            samples: 9,
            operations: 10,
            sum: Some(sum.into()),
            differing: false,
            gain: None,
        }
    }

    pub(crate) fn line(name: &str, runs: &[&[f64]]) -> Line {
        let row = ROWS.iter().find(|row| row.name == name).expect("a row");
        let cell = |runs: &&[f64]| {
            let mut cell = Cell::default();
            runs.iter().for_each(|&ns| cell.add(reading(ns, "5"), 3));
            cell
        };
        Line { row, cells: runs.iter().map(cell).collect() }
    }

    pub(crate) fn results(lines: Vec<Line>) -> Results {
        Results {
            host: "a host".into(),
            date: "2026-01-02 03:04:05 UTC".into(),
            kernel: "6.1".into(),
            subjects: ["native", "satori", "tcg-max", "tcg-qemu64"].map(String::from).into(),
            notes: vec!["tcg: QEMU 7.2".into()],
            repetitions: 3,
            budget_ms: 200,
            cpus: 2,
            stumbles: Vec::new(),
            tables: vec![Table { setting: Setting::Defaults, lines, boots: Vec::new() }],
            above: vec![vec![], vec![60e6, 61e6, 62e6], vec![], vec![]],
            memory: 512 << 20,
            stopped: false,
        }
    }

    #[test]
    fn ratios_are_taken_to_the_host_and_to_the_faster_peer() {
        let line = line("fib", &[&[10.0], &[20.0], &[90.0], &[80.0]]);
        assert_eq!((line.to_native(), line.to_peer(), line.peer()), (Some(2.0), Some(4.0), Some((3, 80.0))));
    }

    #[test]
    fn noise_of_a_peer_that_is_slower_anyhow_does_not_count() {
        let with = |peer: &[f64]| line("fib", &[&[10.0], &[20.0], &[60.0], peer]);
        assert!(!with(&[90.0, 61.0, 120.0]).noisy());
        assert!(with(&[90.0, 59.0, 120.0]).noisy(), "it may be the faster one");
        assert!(line("fib", &[&[10.0, 20.0], &[20.0], &[60.0]]).noisy());
    }

    #[test]
    fn only_the_latest_runs_count() {
        let mut noisy = line("fib", &[&[10.0], &[20.0, 40.0, 20.0]]);
        assert!(noisy.noisy());
        for _ in 0..2 {
            noisy.cells[1].add(reading(21.0, "5"), 3);
        }
        assert!(!noisy.noisy(), "the runs of 20, 21 and 21 agree");
        assert_eq!((noisy.cells[1].runs, noisy.satori()), (5, Some(21.0)));
    }

    #[test]
    fn a_cell_is_settled_when_its_latest_runs_agree() {
        let mut cell = Cell::default();
        for (ns, settled) in [(10.0, false), (20.0, false), (10.0, false), (10.0, false), (11.0, true)] {
            cell.add(reading(ns, "5"), 3);
            assert_eq!(cell.settled(3), settled, "{cell:?}");
        }
        let absent = Cell { absent: Some("no AVX2".into()), ..Cell::default() };
        assert!(absent.settled(3));
    }

    #[test]
    fn boots_are_settled_like_rows() {
        let mut boot = Boot::new(1, Entry::Pvh);
        for (ms, settled) in [(500.0, false), (700.0, false), (510.0, false), (520.0, false), (500.0, true)] {
            boot.add(ms, ms / 2.0, 3);
            assert_eq!(boot.settled(3), settled, "{boot:?}");
        }
        assert_eq!((boot.runs.len(), boot.to_init.len(), boot.whole()), (3, 3, Some(510.0)));
        boot.failed = Some("panic".into());
        assert!(boot.settled(9));
    }

    #[test]
    fn a_guest_that_does_not_come_up_is_no_success() {
        let mut results = results(vec![line("fib", &[&[10.0], &[20.0], &[90.0]])]);
        results.stumbles.push((2, "panic".into()));
        assert!(!results.wrong(), "that of a peer is the peer's matter");
        results.stumbles.push((1, "panic".into()));
        assert!(results.wrong());
    }

    #[test]
    fn another_result_than_the_hosts_is_wrong() {
        let mut line = line("fib", &[&[10.0], &[20.0], &[30.0]]);
        assert_eq!(line.wrong(1), None);
        line.cells[1].readings[0].sum = Some("6".into());
        assert!(line.wrong(1).unwrap().contains("6"));
        line.cells[2].readings[0].differing = true;
        assert!(line.wrong(2).is_some());
        let results = results(vec![line]);
        assert!(results.wrong());
    }

    #[test]
    fn programs_come_behind_and_the_worst_first() {
        let rows = results(vec![line("fib", &[&[10.0], &[90.0]])]);
        let programs = [&[10.0][..], &[20.0][..], &[]];
        let programs = programs.map(|satori| line("mix", &[&[10.0], satori]));
        let all = rows.with(results(programs.into()).worst_first());
        let satori: Vec<_> = all.tables[0].lines.iter().map(Line::satori).collect();
        assert_eq!(satori, [Some(90.0), None, Some(20.0), Some(10.0)]);
    }

    #[test]
    fn what_cannot_be_quoted_is_in_no_mean() {
        let calm = line("fib", &[&[10.0], &[20.0], &[80.0]]);
        let noisy = line("mix", &[&[10.0], &[20.0, 30.0], &[80.0]]);
        let mut failed = line("crc32", &[&[10.0], &[20.0], &[80.0]]);
        failed.cells[1].failed = Some("took too long".into());
        let results = results(vec![calm, noisy, failed]);
        assert!(results.wrong());
        let table = &results.tables[0];
        assert_eq!(table.ratios(Group::Integer, Line::to_peer), (vec![4.0], 3));
        assert_eq!(table.mean(Group::Integer, Line::to_native), Some(2.0));
        assert_eq!(table.mean(Group::Code, Line::to_native), None);
    }
}
