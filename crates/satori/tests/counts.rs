//! The noise-proof check of speed: what the translator needs for small fixed programs and for a boot, counted under the
//! virtual clock, where every run is the same, and compared with `counts.txt`. Times of a busy machine say little about
//! one per cent; these numbers do not know who else runs.
//!
//! Of a small program only what it needs beyond a run of none is told: starting and ending, which all share, is a row of its own
//! and hides nothing.
//!
//! A count that grew by more than a hundredth fails. After a change that was wanted, or that made something better,
//! `SATORI_COUNTS=write cargo test -p satori --test counts` makes the table anew, whose diff is the change's effect.
//! The gate looks at the boot; `SATORI_COUNTS=check` at the programs too, against a table made in the same folder.

mod common;

use std::fmt::Write as _;

use common::{bare, fetch, file, satori, scratch};
use serde_json::Value;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/counts.txt");
const HEAD: &str = "\
# What the translator needs for each program of guests/bare/src/bin/steady.rs, and for a boot: see counts.rs.
# Made by SATORI_COUNTS=write cargo test -p satori --test counts
";

/// Columns: their name, and the engine's counters that are summed up for them. Of no name is the sum of all exits.
const COLUMNS: &[(&str, &[&str])] = &[
    ("guest", &["instructions retired"]),
    ("exits", &[]),
    ("interpreted", &["blocks executed"]),
    ("stepped", &["instructions stepped"]),
    ("decoded", &["instructions decoded"]),
    ("translated", &["instructions translated"]),
    ("bytes", &["bytes of host code"]),
    ("dropped", &["translations dropped"]),
    ("called", &["instructions called"]),
    ("missed", &["data misses of translated code"]),
    ("filled", &["TLB fills", "code pages translated"]),
    ("sought", &["jump cache misses", "branch targets not in their table"]),
    ("entered", &["entries of translated code"]),
    ("linked", &["jumps linked"]),
];

/// The programs.
const PROGRAMS: &[&str] = &[
    "arithmetic",
    "carries",
    "products",
    "one_page",
    "many_pages",
    "more_pages_than_the_tlb",
    "crossings",
    "stack",
    "calls",
    "targets",
    "copies",
    "short_strings",
    "locks",
    "sse",
    "avx",
    "x87",
    "bits",
    "system_calls",
    "interrupts",
    "page_faults",
    "address_spaces",
    "written_code",
    "execs",
    "compatibility_mode",
    "protected_mode",
    "real_mode",
    "exits",
    "interrupt_window",
];

/// The name of no program.
const NOTHING: &str = "nothing";

/// Init of the boot: some processes, files and arithmetic, then the end.
const INIT: &str = "#!/bin/sh
/bin/busybox --install -s
mount -t proc proc /proc
for n in 1 2 3 4 5 6 7 8 9 10; do /bin/true; cat /proc/meminfo | wc -l >/tmp/lines; done
seq 1 2000 | sort -rn | awk '{ s += $1 } END { print s }'
poweroff -f
";

/// What every run has: a processor that does not follow the host's, and the clock that makes runs equal.
const FIXED: [&str; 10] = [
    "--clock",
    "virtual",
    "--cpu",
    "x86-64-v3",
    "--engine",
    "translator",
    "--timeout",
    "4m",
    "--report",
    "json",
];

/// Host code depends on these of the host's features: where they are not, the table says nothing.
const HOST: [&str; 6] = ["avx2", "bmi2", "fma", "movbe", "abm", "fsgsbase"];

fn host_is_as_the_tables() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let flags: Vec<_> = flags.split_whitespace().collect();
    HOST.iter().all(|feature| flags.contains(feature))
}

/// One row: the program's name and a number for each column.
#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    counts: Vec<u64>,
}

impl Row {
    fn of_report(name: &str, path: &std::path::Path) -> Row {
        let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let stats = report["stats"].as_array().expect("counters");
        let count = |name: &&str| {
            let found = stats.iter().find(|one| one["name"] == **name);
            found.unwrap_or_else(|| panic!("no counter '{name}'"))["value"].as_u64().expect("a number")
        };
        let exits = report["all"]["exits"].as_array().expect("exits").iter();
        let exits: u64 = exits.map(|one| one["samples"].as_u64().expect("a number")).sum();
        let sum = |names: &[&str]| if names.is_empty() { exits } else { names.iter().map(count).sum() };
        Row { name: name.into(), counts: COLUMNS.iter().map(|(_, names)| sum(names)).collect() }
    }

    /// What the whole run of a case of steady.rs needs, which ends with `status`.
    fn run(name: &str, status: i32) -> Row {
        let path = scratch(&format!("{name}.json"));
        let report = ["--report-file", path.to_str().unwrap()];
        let ended = bare::run("steady", 1, &format!("only={name}"), &[&FIXED[..], &report].concat());
        assert_eq!(ended.status, status, "{name}: {}\n{}", ended.console, ended.messages);
        Row::of_report(name, &path)
    }

    /// Starting, setting up and ending, which all programs share: a run in which no case has the name.
    fn nothing() -> Row {
        Row::run(NOTHING, 3)
    }

    /// What a program needs beyond that. A little may be less than nothing, where what is shared has become hot.
    fn program(name: &str, nothing: &Row) -> Row {
        let mut row = Row::run(name, 1);
        row.counts
            .iter_mut()
            .zip(&nothing.counts)
            .for_each(|(all, shared)| *all = all.saturating_sub(*shared));
        row
    }

    fn boot() -> Row {
        let path = scratch("boot.json");
        let busybox = std::fs::read(fetch(&["busybox"])).expect("busybox");
        let initrd = file("counts.cpio", &satori::initramfs::build(&busybox, INIT, &[]));
        let kernel = fetch(&["kernel", "6.1"]);
        let machine =
            ["run", "--kernel", &kernel, "--initrd", &initrd, "--append", "panic=-1 quiet", "-m", "256M"];
        let report = ["--report-file", path.to_str().unwrap()];
        let ended = satori(&[&machine[..], &FIXED, &report].concat());
        assert!(ended.status == 0 && ended.console.contains("2001000"), "{ended:?}");
        // Another kernel needs another number: its version is in the row's name.
        let version = kernel.rsplit('_').next().expect("a package's file name ends with its version");
        Row::of_report(&format!("boot-{version}"), &path)
    }
}

fn print(rows: &[Row]) -> String {
    let mut text = HEAD.to_string();
    let _ = write!(text, "{:<24}", "#");
    COLUMNS.iter().for_each(|(name, _)| _ = write!(text, "{name:>12}"));
    for Row { name, counts } in rows {
        let _ = write!(text, "\n{name:<24}");
        counts.iter().for_each(|count| _ = write!(text, "{count:>12}"));
    }
    text + "\n"
}

fn parse(text: &str) -> Vec<Row> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next().expect("a name").to_string();
        Row { name, counts: words.map(|word| word.parse().expect("a number")).collect() }
    };
    lines.map(row).collect()
}

/// What grew, and by how much. Few of something may become one or two more.
fn grown(kept: &[Row], rows: &[Row]) -> Vec<String> {
    let mut found = Vec::new();
    for row in rows {
        let Some(old) = kept.iter().find(|old| old.name == row.name) else {
            if row.name.starts_with("boot-") {
                println!("not checked: the table has another kernel than {}; make it anew", row.name);
                continue;
            }
            found.push(format!("{} is not in the table", row.name));
            continue;
        };
        for (((column, _), old), new) in COLUMNS.iter().zip(&old.counts).zip(&row.counts) {
            if *new > old + old / 100 + 2 {
                found.push(format!("{}: {column} was {old}, and is {new}", row.name));
            }
        }
    }
    found
}

fn check(rows: Vec<Row>) {
    let kept = parse(&std::fs::read_to_string(FILE).expect("counts.txt"));
    let found = grown(&kept, &rows);
    assert!(
        found.is_empty(),
        "more is needed than before; if that is wanted, make the table anew \
         (SATORI_COUNTS=write cargo test -p satori --test counts) and say why in the commit\n{}\n{}",
        found.join("\n"),
        print(&rows)
    );
}

/// The boot in every run. The programs only with SATORI_COUNTS=check, behind a run with `write` in the same folder
/// before the change: cargo's names depend on the folder's path, and with them where a guest's functions lie.
#[test]
fn a_boot_needs_no_more_than_before() {
    if !host_is_as_the_tables() {
        println!("not checked: the table is of hosts with {}", HOST.join(", "));
        return;
    }
    let asked = std::env::var("SATORI_COUNTS").unwrap_or_default();
    let programs = if asked.is_empty() { &[] } else { PROGRAMS };
    let mut rows = Vec::new();
    if !programs.is_empty() {
        let nothing = Row::nothing();
        rows.extend(programs.iter().map(|name| Row::program(name, &nothing)));
        rows.push(nothing);
    }
    rows.push(Row::boot());
    if asked == "write" {
        std::fs::write(FILE, print(&rows)).expect("counts.txt can be written");
    }
    check(rows);
}

#[test]
fn one_per_cent_more_is_found() {
    let row = |counts: &[u64]| Row { name: "one".into(), counts: counts.to_vec() };
    let kept = [row(&[1000; 14])];
    assert_eq!(parse(&print(&kept)), kept);
    assert!(grown(&kept, &[row(&[1012; 14])]).is_empty(), "a hundredth and two");
    assert_eq!(grown(&kept, &[row(&[1013; 14])]).len(), COLUMNS.len());
    assert!(grown(&kept, &[row(&[1; 14])]).is_empty(), "less is no mistake");
    assert_eq!(grown(&[], &kept), ["one is not in the table"]);
}
