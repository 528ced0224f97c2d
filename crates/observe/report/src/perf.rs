//! The text of `perf kvm stat report` and `live` (Linux, tools/perf/builtin-kvm.c), also as slides have it:
//! columns apart by tabs, the heading on two lines; and the screen of its browser since perf 6.4, which has whole nanoseconds.

use crate::model::is_reason;
use crate::{Error, Row, Table};

/// A table within a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// The line of its heading.
    pub line: usize,
    /// Whose exits: `all VCPUs`.
    pub whom: String,
    /// The exits.
    pub table: Table,
    /// What of it was passed over.
    pub notes: Vec<String>,
}

/// What perf itself says between the lines of a table, where its standard error went to the same place.
const PERFS_OWN: &[&str] = &[
    "unknown kvm exit code",
    "[ perf record:",
    "Warning:",
    "WARNING:",
    "Couldn't ",
    "Error:",
    "Lost events:",
    "Processed ",
    "Check IO/CPU overload",
    "Failed to ",
    "perf: ",
    "couldn't ",
];

/// Every table of exits in `text`; at least one.
pub fn tables(text: &str) -> Result<Vec<Named>, Error> {
    let mut reading = Reading { whom: "all VCPUs".into(), row: printed, tables: Vec::new(), open: None };
    for (index, raw) in text.lines().enumerate() {
        let (line, quoted) = unquoted(raw);
        reading.line(line.trim(), index + 1)?;
        if let Some(open) = reading.open.as_mut().filter(|_| quoted) {
            open.quoted = true;
        }
    }
    let lines = text.lines().count().max(1);
    if let Some(open) = reading.open.take() {
        reading.tables.push(open.unfinished(lines)?);
    }
    if reading.tables.is_empty() {
        return Err(Error::line(
            lines,
            "no report: neither Satori's JSON nor a table of perf kvm stat, whose heading begins with VM-EXIT",
        ));
    }
    Ok(reading.tables)
}

type ReadRow = fn(&str, usize) -> Result<Row, Error>;

/// A text that is being read.
struct Reading {
    whom: String,
    row: ReadRow,
    tables: Vec<Named>,
    open: Option<Open>,
}

/// A table whose rows are being read.
struct Open {
    named: Named,
    /// A row that a mailer wrapped, and its line.
    begun: Option<(usize, String)>,
    /// Lines that perf wrote to its standard error.
    perfs_own: usize,
    /// Its lines are quoted, as in a mail.
    quoted: bool,
    /// Its author left rows out, with dots.
    dots: bool,
}

impl Reading {
    fn line(&mut self, line: &str, number: usize) -> Result<(), Error> {
        if let Some(rest) = line.strip_prefix("Analyze events for ") {
            self.close(number)?;
            let rest = rest.trim_end_matches(':');
            self.whom = rest.rsplit_once(", ").map_or(rest, |(_, whom)| whom).to_string();
        } else if is_heading(line) {
            self.heading(line, number)?;
        } else if line.starts_with("Total Samples:") {
            let Some(open) = self.open.take() else {
                return Err(Error::line(number, "totals without a table before them"));
            };
            let (samples, time) = totals(line).ok_or_else(|| {
                Error::line(number, "totals are 'Total Samples:N, Total events handled time:T.TTus.'")
            })?;
            self.tables.push(open.finished(samples, time, number)?);
        } else if let Some(open) = &mut self.open {
            open.line(line, number, self.row)?;
        }
        Ok(())
    }

    fn heading(&mut self, line: &str, number: usize) -> Result<(), Error> {
        if let Some(other) = foreign(line) {
            return Err(Error::line(
                number,
                format!(
                    "a table of '{other}': only that of exits is read, perf kvm stat report --event=vmexit"
                ),
            ));
        }
        // A heading of two lines is one.
        if self.open.as_ref().is_some_and(|open| !open.named.table.exits.is_empty()) {
            self.close(number)?;
        }
        self.row = if line.contains("Mean Time") { browsed } else { printed };
        if self.open.is_none() {
            let vcpu = self.whom.strip_prefix("VCPU ").and_then(|n| n.trim().parse().ok());
            let table = Table { vcpu, ..Table::default() };
            let named = Named { line: number, whom: self.whom.clone(), table, notes: Vec::new() };
            self.open = Some(Open { named, begun: None, perfs_own: 0, quoted: false, dots: false });
        }
        Ok(())
    }

    fn close(&mut self, number: usize) -> Result<(), Error> {
        let closed = self.open.take().map(|open| open.unfinished(number)).transpose()?;
        self.tables.extend(closed);
        Ok(())
    }
}

impl Open {
    fn line(&mut self, line: &str, number: usize, row: ReadRow) -> Result<(), Error> {
        if PERFS_OWN.iter().any(|known| line.starts_with(known)) {
            self.perfs_own += 1;
            return Ok(());
        }
        // The browser's last line begins with how to get help.
        let passed = ["$ ", "# ", "VM-EXIT", "```", "Press ", "KVM event statistics"];
        let frame = line.bytes().all(|b| matches!(b, b'+' | b'-' | b'=' | b' ' | b':'));
        if frame || passed.iter().any(|known| line.starts_with(known)) {
            return Ok(());
        }
        if line.chars().all(|c| matches!(c, '.' | '[' | ']' | '(' | ')' | '\u{2026}' | ' ')) {
            self.dots = true;
            return Ok(());
        }
        // The rest of a heading that a mailer wrapped.
        if self.named.table.exits.is_empty()
            && self.begun.is_none()
            && !line.bytes().any(|b| b.is_ascii_digit())
        {
            return Ok(());
        }
        let (number, line) = match self.begun.take() {
            Some((number, begun)) => (number, format!("{begun} {line}")),
            None => (number, line.to_owned()),
        };
        let cells: Vec<_> = line.split_whitespace().collect();
        if cells.len() < 7 && cells.len() > 2 && cells[2].ends_with('%') && cells[1].parse::<u64>().is_ok() {
            self.begun = Some((number, line));
            return Ok(());
        }
        let row = row(&line, number)?;
        match self.named.table.exits.iter().any(|known| known.reason == row.reason) {
            // perf has this name for every code that it does not know.
            true if row.reason == "UNKNOWN" => {
                let (samples, total_ns) = (row.samples, row.total_ns);
                self.named.table.add(&Table { samples, total_ns, exits: vec![row], ..Table::default() });
            }
            true => return Err(Error::line(number, format!("a second row of {}", row.reason))),
            false => self.named.table.exits.push(row),
        }
        Ok(())
    }

    /// A table whose totals the text has.
    fn finished(mut self, samples: u64, time: u64, line: usize) -> Result<Named, Error> {
        self.complete()?;
        let rows = &self.named.table.exits;
        let sum = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.samples));
        let ns = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
        // The last table of the talk on traps misses its own total by two of 306,939; the rows are what counts.
        let near = sum.abs_diff(samples) <= samples / 100_000;
        if sum < samples && !near && sum > 0 {
            let left = 100.0 - sum as f64 / samples as f64 * 100.0;
            self.note(format!(
                "rows with {left:.1} % of the exits were left out by whoever copied the table"
            ));
        } else if !near {
            return Err(Error::line(
                line,
                format!("the rows have {sum} samples, the totals {samples}: a row is missing or wrong"),
            ));
        }
        // Averages have two digits: the sum is near the total, which is exact.
        let (a, b) = (ns as f64, time as f64);
        if near && (a - b).abs() > 0.05 * b + 1e5 {
            return Err(Error::line(
                line,
                format!(
                    "the rows take {:.0} us, the totals {:.0} us: a row is missing or wrong",
                    a / 1e3,
                    b / 1e3
                ),
            ));
        }
        Ok(self.summed())
    }

    /// A table that the text breaks off: the sum of its rows, if it has any.
    fn unfinished(mut self, line: usize) -> Result<Named, Error> {
        self.complete()?;
        if self.named.table.exits.is_empty() {
            return Err(Error::line(line, format!("the table of line {} has no rows", self.named.line)));
        }
        if self.dots {
            self.note("rows were left out by whoever copied the table".into());
        }
        Ok(self.summed())
    }

    /// Nothing may be left of a row that was wrapped.
    fn complete(&self) -> Result<(), Error> {
        match &self.begun {
            Some((line, text)) => {
                Err(printed(text, *line).err().unwrap_or_else(|| Error::line(*line, "no row")))
            }
            None => Ok(()),
        }
    }

    fn note(&mut self, text: String) {
        self.named.notes.push(text);
    }

    fn summed(mut self) -> Named {
        if self.quoted {
            self.note("quotation marks of a mail before lines were passed over".into());
        }
        match self.perfs_own {
            0 => {}
            lines => self.note(format!("{lines} lines of perf's own messages were passed over")),
        }
        sum_up(&mut self.named.table);
        self.named
    }
}

/// The line without terminal sequences, and without a mail's quotation marks; whether it had these.
fn unquoted(raw: &str) -> (String, bool) {
    let line = plain(raw);
    let bare = line.trim_start().trim_start_matches(['>', ' ']).to_owned();
    let quoted = line.trim_start().starts_with('>');
    (if quoted { bare } else { line }, quoted)
}

/// The line without terminal sequences, which `live` writes.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                // CSI: up to its final byte.
                if chars.next() == Some('[') {
                    chars.by_ref().find(|c| ('@'..='~').contains(c));
                }
            }
            // A table that somebody has framed.
            '\t' | '|' => out.push(' '),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

fn is_heading(line: &str) -> bool {
    line.contains("Samples") && line.contains("Time%") && !line.contains("Total")
}

/// The first column's name, where it is none of exits.
fn foreign(line: &str) -> Option<&str> {
    let first = line.split("Samples").next().unwrap_or_default().trim();
    (!matches!(first, "VM-EXIT" | "Event" | "Event name" | "")).then_some(first)
}

fn totals(line: &str) -> Option<(u64, u64)> {
    let rest = line.strip_prefix("Total Samples:")?;
    let (samples, rest) = rest.split_once(',')?;
    let time = rest.trim().strip_prefix("Total events handled time:")?;
    Some((samples.trim().parse().ok()?, nanoseconds(time.trim().trim_end_matches('.'))?))
}

/// `1.47us` in nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(at);
    let scale = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let value = number.parse::<f64>().ok()? * scale;
    (value < 1e18).then_some(value.round() as u64)
}

fn percent(text: &str) -> Option<f64> {
    text.strip_suffix('%')?.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

/// The name of an exit. Other events are an address or a number with a direction.
fn named(reason: &str, number: usize) -> Result<String, Error> {
    match is_reason(reason) {
        true => Ok(reason.to_string()),
        false if reason.contains(':') => Err(Error::line(
            number,
            format!("'{reason}' is no exit: only these are read, perf kvm stat report --event=vmexit"),
        )),
        false => Err(Error::line(number, format!("'{reason}' is no name of an exit"))),
    }
}

/// `REASON samples sample% time time% max min mean`, in nanoseconds: the columns of the browser (`kvm_hists__init`).
fn browsed(line: &str, number: usize) -> Result<Row, Error> {
    let wrong = |what: String| Error::line(number, what);
    let line = &line.replacen(" excp ", "_excp ", 1);
    let cells: Vec<&str> = line.split_whitespace().collect();
    let &[reason, samples, share, time, time_share, max, min, mean] = &cells[..] else {
        let shown: String = line.chars().take(40).collect();
        return Err(wrong(format!("'{shown}' is no row: eight columns from Event name to Mean Time (ns)")));
    };
    let reason = named(reason, number)?;
    for cell in [share, time_share] {
        percent(cell).ok_or_else(|| wrong(format!("'{cell}' is no percentage")))?;
    }
    let count = |cell: &str| {
        let value: Option<u64> = cell.parse().ok().filter(|value| *value < 1 << 60);
        value.ok_or_else(|| wrong(format!("'{cell}' is no whole number")))
    };
    let [samples, total_ns, max_ns, min_ns, mean] =
        [count(samples)?, count(time)?, count(max)?, count(min)?, count(mean)?];
    if samples == 0 || min_ns > mean || mean > max_ns || max_ns > total_ns {
        return Err(wrong(format!(
            "{reason}: samples above 0 and Min Time <= Mean Time <= Max Time <= Time do not hold"
        )));
    }
    let mean_ns = total_ns as f64 / samples as f64;
    Ok(Row { reason, samples, total_ns, min_ns, max_ns, mean_ns, ..Row::default() })
}

/// `REASON samples samples% time% min max avg ( +- deviation% )`.
fn printed(line: &str, number: usize) -> Result<Row, Error> {
    let wrong = |what: String| Error::line(number, what);
    // SVM's exceptions have names of two words.
    let line = &line.replacen(" excp ", "_excp ", 1);
    let cells: Vec<&str> = line.split_whitespace().collect();
    let shown = || line.chars().take(40).collect::<String>();
    let &[reason, samples, share, time, min, max, avg, ref rest @ ..] = &cells[..] else {
        return Err(wrong(format!("'{}' is no row: eight columns from VM-EXIT to Avg time", shown())));
    };
    // Satori's own column, behind perf's.
    let (rest, modelled_ns) = match rest {
        [rest @ .., last] if last.ends_with("us") => (rest, nanoseconds(last)),
        [rest @ .., "-"] => (rest, None),
        rest => (rest, None),
    };
    let reason = named(reason, number)?;
    let samples: u64 = samples.parse().map_err(|_| wrong(format!("'{samples}' is no count of samples")))?;
    for cell in [share, time] {
        percent(cell).ok_or_else(|| wrong(format!("'{cell}' is no percentage")))?;
    }
    let ns =
        |cell: &str| nanoseconds(cell).ok_or_else(|| wrong(format!("'{cell}' is no time such as 1.47us")));
    let (min_ns, max_ns, mean) = (ns(min)?, ns(max)?, ns(avg)?);
    let deviation = rest.concat();
    let deviation = deviation.trim_start_matches('(').trim_end_matches(')').trim_start_matches("+-");
    let deviation_percent = match deviation {
        "" => 0.0,
        // A mean of zero.
        "nan%" | "-nan%" => 0.0,
        text => {
            percent(text).ok_or_else(|| wrong(format!("'{text}' is no deviation such as ( +- 0.17% )")))?
        }
    };
    if samples == 0 || min_ns > max_ns || mean > max_ns {
        return Err(wrong(format!(
            "{reason}: samples above 0 and Min Time <= Avg time <= Max Time do not hold"
        )));
    }
    let total_ns = samples.saturating_mul(mean).max(max_ns);
    let mean_ns = total_ns as f64 / samples as f64;
    Ok(Row {
        timed: None,
        reason,
        samples,
        total_ns,
        min_ns,
        max_ns,
        mean_ns,
        deviation_percent,
        without_apicv: 0,
        modelled_ns,
    })
}

fn sum_up(table: &mut Table) {
    let rows = std::mem::take(&mut table.exits);
    let vcpu = table.vcpu;
    let samples = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.samples));
    let total_ns = rows.iter().fold(0u64, |sum, row| sum.saturating_add(row.total_ns));
    let mut sorted = Table { vcpu, samples: 0, total_ns: 0, exits: Vec::new() };
    sorted.add(&Table { vcpu, samples, total_ns, exits: rows });
    *table = sorted;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Report, Which, read, text};

    fn wrong(text: &str) -> String {
        tables(text).unwrap_err().to_string()
    }

    const HEADING: &str = "VM-EXIT Samples Samples% Time% Min Time Max Time Avg time\n";

    #[test]
    fn live_is_read_with_its_terminal_sequences() {
        let one = "CPUID 2 100.00% 100.00% 1.00us 3.00us 2.00us ( +- 50.00% )\nTotal Samples:2, Total events handled time:4.00us.\n";
        let live =
            format!("\x1b[H\x1b[2J13:20:40.1\n\nAnalyze events for all VMs, all VCPUs:\n\n{HEADING}\n{one}");
        let both = format!("{live}{live}");
        assert_eq!(tables(&both).unwrap().len(), 2);
        assert!(matches!(read(&both, Which::Only), Err(Error::Several(_))));
        assert_eq!(read(&both, Which::All).unwrap().all.samples, 4);
        assert_eq!(read(&both, Which::Number(3)), Err(Error::NoTable { wanted: 3, there: 2 }));
    }

    #[test]
    fn a_framed_table_of_an_svm_host_is_read() {
        // As people paste what the browser shows: with SVM's names, one of which has a hyphen.
        let rule = "+-----------+---------+---------+------+-------+----+----+----+\n";
        let text = format!(
            "$ perf kvm stat report\nKVM event statistics (2 entries)\n{rule}|Event name | Samples | Sample% | Time (ns) | Time% | \
             Max Time (ns) | Min Time (ns) | Mean Time (ns) |\n{rule}| idle-halt | 3 | 75.00% | 9000 | 90.00% | 5000 | 1000 | 3000 |\n|    \
             npf | 1 | 25.00% | 1000 | 10.00% | 1000 | 1000 | 1000 |\n{rule}"
        );
        let table = &tables(&text).unwrap()[0].table;
        assert_eq!((table.samples, table.total_ns), (4, 10_000));
        assert_eq!(table.row("idle-halt").unwrap().samples, 3);
        let two = tables(&[text.as_str(), &text].concat()).unwrap();
        assert_eq!(two.iter().map(|one| one.table.samples).collect::<Vec<_>>(), [4, 4]);
        let again = Report { all: table.clone(), ..Report::default() }.to_json().to_string();
        assert_eq!(&read(&again, Which::Only).unwrap().all, table, "and as JSON");
    }

    #[test]
    fn the_screen_of_the_browser_is_read() {
        let heading =
            "Event name  Samples  Sample%  Time (ns)  Time%  Max Time (ns)  Min Time (ns)  Mean Time (ns)\n";
        let screen = format!(
            "KVM event statistics (2 entries)\n{heading}EPT_MISCONFIG 40 80.00% 5000 62.50% 900 100 125\n\
             HLT 10 20.00% 3000 37.50% 400 200 300\nPress '?' for help on key bindings\n"
        );
        let all = read(&screen, Which::Only).unwrap().all;
        assert_eq!((all.samples, all.total_ns), (50, 8000));
        let hlt = all.row("HLT").unwrap();
        assert_eq!((hlt.samples, hlt.min_ns, hlt.max_ns, hlt.mean_ns), (10, 200, 400, 300.0));
        for (row, told) in [
            ("0xfee000b0:W 1 100.00% 9 100.00% 9 9 9", "--event=vmexit"),
            ("CPUID 1 100.00% 9us 100.00% 9 9 9", "no whole number"),
            ("CPUID 1 100.00% 9 100.00% 8 9 8", "do not hold"),
            ("CPUID 1 100.00% 9 100.00% 9 9", "no row"),
        ] {
            let said = wrong(&format!("{heading}{row}\n"));
            assert!(said.starts_with("line 2: ") && said.contains(told), "{said}");
        }
    }

    #[test]
    fn mistakes_have_their_line() {
        assert!(wrong("hello\nworld\n").starts_with("line 2: no report"), "{}", wrong("hello\nworld\n"));
        let of = |row: &str| wrong(&format!("{HEADING}{row}\n"));
        for (row, told) in [
            ("CPUID 1 2", "no row"),
            ("CPUID 1 2%", "no row"),
            ("CPUID 1 2%\nCPUID 1 1% 1% 1us 1us 1us", "no percentage"),
            ("CPU/ID 1 1% 1% 1us 1us 1us", "no name"),
            ("CPUID x 1% 1% 1us 1us 1us", "no count"),
            ("CPUID 1 1 1% 1us 1us 1us", "no percentage"),
            ("CPUID 1 1% 1% 1 1us 1us", "no time"),
            ("CPUID 1 1% 1% 1us 1us 1us ( +- x )", "no deviation"),
            ("CPUID 1 1% 1% 3us 1us 1us", "do not hold"),
            (
                "CPUID 9 9% 9% 1us 1us 1us\nTotal Samples:8, Total events handled time:8.00us.",
                "line 3: the rows have 9",
            ),
            (
                "CPUID 9 9% 9% 1us 1us 1us\nTotal Samples:9, Total events handled time:800000.00us.",
                "line 3: the rows take",
            ),
            ("", "has no rows"),
        ] {
            assert!(of(row).contains(told) && of(row).starts_with("line "), "{row}: {}", of(row));
        }
        assert!(wrong("MMIO Access Samples Samples% Time% Min Time\n").contains("--event=vmexit"));
    }

    #[test]
    fn a_mails_quotation_marks_and_perfs_messages_are_passed_over_and_told() {
        let mail = ">> > Analyze events for all VMs, all VCPUs:\n>> >   VM-EXIT Samples Samples% Time% Min Time Max\n>> > Time Avg time\n\
                    >> > CPUID 2 66.67% 66.67% 1.00us\n>> > 3.00us 2.00us ( +- 50.00% )\n\
                    unknown kvm exit code:131072 on VMX\n> UNKNOWN 1 1% 1% 1us 1us 1us\n\
                    unknown kvm exit code:327680 on VMX\n> UNKNOWN 2 1% 1% 1us 2us 1us ( +- 1% )\n\
                    >> > Total Samples:10, Total events handled time:90.00us.\n";
        let report = read(mail, Which::Only).unwrap();
        assert_eq!((report.all.samples, report.all.row("UNKNOWN").unwrap().samples), (5, 3));
        assert_eq!(report.all.row("CPUID").unwrap().max_ns, 3000, "a wrapped row");
        let notes = report.notes.join("; ");
        for told in ["50.0 % of the exits were left out", "quotation marks", "2 lines of perf's own messages"]
        {
            assert!(notes.contains(told), "{notes}");
        }
        let dots = format!("{HEADING}UD excp 1 1% 1% 1us 1us 1us\n[..]\n");
        let report = read(&dots, Which::Only).unwrap();
        assert!(report.all.row("UD_excp").is_some() && report.notes[0].contains("left out"), "{report:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(\\PC|\n|\t|[0-9.%]|us|VM-EXIT Samples Time%|CPUID 1 1% 1% 1us 1us 1us\n){0,60}") {
            if let Ok(report) = read(&text, Which::All) {
                prop_assert!(!report.all.exits.is_empty());
            }
        }

        #[test]
        fn any_json_is_read_or_refused(text in "\\{(\"all\":|\"exits\":|\\[|\\]|\\{|\\}|,|\"samples\":1|\"a\"|:|null|1e99|\n){0,40}") {
            let _ = read(&text, Which::Only);
        }

        #[test]
        fn what_is_written_is_read_again(modelled: bool, rows in proptest::collection::vec((1u64..1_000_000, 1u64..10_000_000), 1..8)) {
            let names = ["CPUID", "HLT", "VMCALL", "MSR_READ", "MSR_WRITE", "npf", "DR_ACCESS", "APIC_WRITE"];
            let mut table = Table::default();
            for (&(samples, mean), name) in rows.iter().zip(names) {
                // perf writes times in units of 10 ns.
                let mean = mean * 10;
                let row = Row { reason: name.into(), samples, total_ns: samples * mean, min_ns: mean, max_ns: mean, mean_ns: mean as f64, deviation_percent: 0.25, modelled_ns: modelled.then_some(samples * 10), ..Row::default() };
                table.add(&Table { samples, total_ns: samples * mean, exits: vec![row], ..Table::default() });
            }
            let report = Report { all: table, ..Report::default() };
            prop_assert_eq!(&read(&text(&report, None), Which::Only).unwrap(), &report);
            let json = format!("{:#}", report.to_json());
            prop_assert_eq!(&read(&json, Which::Only).unwrap(), &report);
        }
    }
}
