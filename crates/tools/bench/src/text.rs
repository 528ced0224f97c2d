//! The results for people.

use std::fmt::Write;

use crate::check::Verdict;
use crate::groups::GROUPS;
use crate::results::{Cell, Line, Results, Table};
use crate::statistics::{median, spread};

/// A time in the unit that suits it.
pub fn time(ns: f64) -> String {
    match ns {
        _ if ns < 99.95 => format!("{ns:.1} ns"),
        _ if ns < 9_995.0 => format!("{ns:.0} ns"),
        _ if ns < 9_995e3 => format!("{:.1} us", ns / 1e3),
        _ => format!("{:.1} ms", ns / 1e6),
    }
}

fn ratio(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(v) if v < 9.995 => format!("{v:.2}"),
        Some(v) if v < 99.95 => format!("{v:.1}"),
        Some(v) => format!("{v:.0}"),
    }
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell { failed: Some(_), .. } => "failed".into(),
        Cell { absent: Some(_), .. } => "absent".into(),
        _ => cell.ns().map_or("-".into(), time),
    }
}

/// All tables, and what is to be said about them.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "host: {}\nguests: {}", results.host, results.kernel);
    for note in &results.notes {
        let _ = writeln!(out, "{note}");
    }
    for (subject, how) in &results.stumbles {
        let _ = writeln!(out, "{}: a run was begun again that {how}", results.subjects[*subject]);
    }
    let _ = writeln!(
        out,
        "time an operation, in each run the least of samples of 2 ms; medians of {} runs, interleaved; spread: \
         of all subjects\nthe largest distance between runs; noisy rows are in no mean; of programs the median of three samples or more, the worst first",
        results.repetitions
    );
    for table in &results.tables {
        out += &rows(results, table);
        out += &means(table);
        out += &boots(results, table);
    }
    out += &above(results);
    out
}

fn rows(results: &Results, table: &Table) -> String {
    let mut out = format!("\n== {}\n", table.setting.name());
    if table.lines.is_empty() {
        return out;
    }
    let _ = write!(out, "{:<13}", "row");
    for name in &results.subjects {
        let _ = write!(out, "{name:>12}");
    }
    let _ = writeln!(out, "{:>10}{:>10}{:>8}{:>6}", "x native", "x faster", "spread", "runs");
    for &group in GROUPS {
        let mut first = true;
        for line in table.lines.iter().filter(|line| line.row.group == group) {
            if first {
                let _ = writeln!(out, "-- {}", group.name());
                first = false;
            }
            out += &row(line, results);
        }
    }
    out
}

fn row(line: &Line, results: &Results) -> String {
    let mut out = format!("{:<13}", line.row.name);
    for one in &line.cells {
        let _ = write!(out, "{:>12}", cell(one));
    }
    let spread = line.cells.iter().filter_map(Cell::spread).reduce(f64::max);
    let spread = spread.map_or("-".into(), |spread| format!("{:.0} %", spread * 100.0));
    let runs = line.cells.iter().map(|cell| cell.runs).max().unwrap_or(0);
    let _ = write!(out, "{:>10}{:>10}{spread:>8}{runs:>6}", ratio(line.to_native()), ratio(line.to_peer()));
    if line.noisy() {
        out += "  noisy";
    }
    for (index, cell) in line.cells.iter().enumerate() {
        let name = &results.subjects[index];
        if let Some(wrong) = line.wrong(index) {
            let _ = write!(out, "  WRONG on {name}: {wrong}");
        }
        if let Some(why) = cell.failed.as_ref().or(cell.absent.as_ref()) {
            let _ = write!(out, "  {name}: {why}");
        }
    }
    for (index, name) in results.subjects.iter().enumerate() {
        if let Some(gain) = line.cells.get(index).and_then(Cell::gain) {
            let _ = write!(out, "  {name} gains {gain:.2}");
        }
    }
    out + "\n"
}

fn means(table: &Table) -> String {
    let mut out = String::new();
    for &group in GROUPS {
        let (native, all) = table.ratios(group, Line::to_native);
        if all < 2 {
            continue;
        }
        let (slower, faster) = (table.mean(group, Line::to_native), table.mean(group, Line::to_peer));
        let _ = writeln!(
            out,
            "mean of {:<9} {:>6} times native, {:>6} times as fast as the faster peer ({} of {all} rows)",
            format!("{}:", group.name()),
            ratio(slower),
            ratio(faster),
            native.len()
        );
    }
    out
}

fn boots(results: &Results, table: &Table) -> String {
    let mut out = String::new();
    for boot in &table.boots {
        let name = format!("boot {}, {}", results.subjects[boot.subject], boot.entry.name());
        let _ = match (&boot.failed, boot.whole()) {
            (Some(why), _) => writeln!(out, "{name:<50} failed: {why}"),
            (None, Some(ms)) => writeln!(
                out,
                "{name:<50} {ms:>6.0} ms the whole command, {:>6.0} ms to init, spread {:.0} %",
                median(&boot.to_init).unwrap_or(0.0),
                spread(&boot.runs).unwrap_or(0.0) * 100.0
            ),
            (None, None) => Ok(()),
        };
    }
    out
}

fn above(results: &Results) -> String {
    let mut out = String::new();
    for (name, all) in results.subjects.iter().zip(&results.above) {
        if let Some(bytes) = median(all) {
            let guest = results.memory >> 20;
            let mib = bytes / 1_048_576.0;
            let _ = writeln!(out, "resident above the guest's own {guest} MiB, {name}: {mib:.0} MiB");
        }
    }
    if out.is_empty() { out } else { format!("\n{out}") }
}

/// The bounds, a line each.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    let mut setting = "";
    for verdict in verdicts {
        if verdict.setting != setting {
            setting = verdict.setting;
            let _ = writeln!(out, "\n== bounds, {setting}");
        }
        let sign = if verdict.more { ">=" } else { "<=" };
        let possible = verdict.possible.map_or(String::new(), |p| format!(", possible {p}"));
        let rows = match verdict.rows {
            Some((counted, all)) if counted < all => format!(", {counted} of {all} rows"),
            _ => String::new(),
        };
        let _ = writeln!(
            out,
            "{:<12} {:<50} {:>7} ({sign} {}{possible}{rows})",
            verdict.word(),
            verdict.what,
            ratio(verdict.value),
            verdict.least
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::results::tests::{line, results};

    #[test]
    fn times_have_units() {
        let shown: Vec<_> = [0.5, 99.9, 100.4, 12_345.0, 12_345_678.0].map(time).into();
        assert_eq!(shown, ["0.5 ns", "99.9 ns", "100 ns", "12.3 us", "12.3 ms"]);
    }

    #[test]
    fn a_table_tells_ratios_noise_and_wrong_results() {
        let mut wrong = line("crc32", &[&[10.0], &[20.0], &[90.0], &[80.0]]);
        wrong.cells[1].readings[0].sum = Some("6".into());
        let noisy = line("mix", &[&[10.0], &[20.0, 30.0], &[90.0], &[80.0]]);
        let mut failed = line("avx2", &[&[10.0], &[], &[], &[80.0]]);
        failed.cells[1].absent = Some("no AVX2".into());
        failed.cells[2].failed = Some("took too long".into());
        let results = results(vec![line("fib", &[&[10.0], &[20.0], &[90.0], &[80.0]]), noisy, wrong, failed]);
        let shown = text(&results);
        let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).unwrap_or("").to_string();
        assert!(row("fib").contains(" 2.00 ") && row("fib").contains(" 4.00 "), "{shown}");
        assert!(row("mix").ends_with("noisy"), "{shown}");
        assert!(row("crc32").contains("WRONG on satori: its result is 6, the host's 5"), "{shown}");
        assert!(row("avx2").contains("absent") && row("avx2").contains("tcg-max: took too long"), "{shown}");
        assert!(row("mean of integer").contains("2 of 3 rows"), "{shown}");
        assert!(shown.contains("satori: 58 MiB"), "{shown}");
        let bounds = verdicts(&check(&results));
        assert!(bounds.contains("rows missing integer, times as fast as TCG"), "{bounds}");
    }
}
