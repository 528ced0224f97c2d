//! The noise-proof check of speed: what the translator needs for small fixed programs and for a boot, counted under the
//! virtual clock, where every run is the same, and compared with `counts.txt`. Times of a busy machine say little about
//! one per cent; these numbers do not know who else runs.
//!
//! Of a small program only what it needs beyond a run of none is told: starting and ending, which all share, is a row of its own
//! and hides nothing.
//!
//! A count that grew by more than a hundredth fails. After a change that was wanted, or that made something better,
//! `SATORI_COUNTS=write cargo test -p satori --test counts` makes the table anew, whose diff is the change's effect.
//! The programs run under valgrind, which counts the host's instructions and shows every host with AVX2 as the same processor.

mod common;

use std::fmt::Write as _;
use std::hash::Hasher;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{SATORI, bare, fetch, file, satori, scratch};
use serde_json::Value;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/counts.txt");
const HEAD: &str = "\
# What the translator needs for each program of guests/bare/src/bin/steady.rs, and for a boot: see counts.rs.
# Made by SATORI_COUNTS=write cargo test -p satori --test counts
";

/// The first column: the host's instructions, of the programs alone. That of [`NOTHING`] tells more of the host than of Satori.
const HOST: &str = "host";

/// The others: their name, and the engine's counters that are summed up for them. Of no name is the sum of all exits.
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

const GUEST: &str = "steady";

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
const FEATURES: [&str; 6] = ["avx2", "bmi2", "fma", "movbe", "abm", "fsgsbase"];

fn host_is_as_the_tables() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let flags: Vec<_> = flags.split_whitespace().collect();
    FEATURES.iter().all(|feature| flags.contains(feature))
}

/// A line of the table that names the guest, and another that names what it is made of. Of another guest the programs' rows say
/// nothing: of other sources the table is to be made anew, of the same ones it is another linker's.
fn guest() -> [String; 2] {
    let digest = |files: Vec<std::path::PathBuf>| {
        let mut digest = std::hash::DefaultHasher::new();
        files.iter().for_each(|file| digest.write(&std::fs::read(file).expect("a file of the guest")));
        digest.finish()
    };
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/bare"));
    let mut sources = vec![folder.join("link.ld"), folder.join(format!("src/bin/{GUEST}.rs"))];
    let all = std::fs::read_dir(folder.join("src")).expect("the guests' common code");
    sources.extend(all.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()));
    sources.sort();
    [
        format!("# guest {:016x}", digest(vec![bare::program(GUEST)])),
        format!("# sources {:016x}", digest(sources)),
    ]
}

/// What valgrind counted: the last number of its file.
fn host_instructions(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).expect("what callgrind wrote");
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    line.and_then(|number| number.trim().parse().ok()).expect("a sum of all instructions")
}

/// One row: the program's name and a number for each column.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    counts: Vec<u64>,
}

impl Row {
    fn of_report(name: &str, path: &Path, host: u64) -> Row {
        let report: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let stats = report["stats"].as_array().expect("counters");
        let count = |name: &&str| {
            let found = stats.iter().find(|one| one["name"] == **name);
            found.unwrap_or_else(|| panic!("no counter '{name}'"))["value"].as_u64().expect("a number")
        };
        let exits = report["all"]["exits"].as_array().expect("exits").iter();
        let exits: u64 = exits.map(|one| one["samples"].as_u64().expect("a number")).sum();
        let sum = |names: &[&str]| if names.is_empty() { exits } else { names.iter().map(count).sum() };
        let counts = std::iter::once(host).chain(COLUMNS.iter().map(|(_, names)| sum(names))).collect();
        Row { name: name.into(), counts }
    }

    /// What the whole run of a case of steady.rs needs, which ends with `status`.
    fn run(name: &str, status: i32) -> Row {
        let (path, counted) = (scratch(&format!("{name}.json")), scratch(&format!("{name}.callgrind")));
        // Code that changes is found wherever it lies: the translator's is in a file of memory there.
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind", "--smc-check=all"]);
        command.arg(format!("--callgrind-out-file={}", counted.display())).arg(SATORI);
        // The guest is given its file's name, and reads it: by a path it would have more to do in a longer one.
        command.current_dir(bare::program(GUEST).parent().expect("a folder"));
        command.args(["run", "-m", "128M", "--hyperv", "off", "--sandbox", "off", "--kernel", GUEST]);
        command
            .args(["--cmdline", &format!("{GUEST} cpus=1 only={name}"), "--report-file"])
            .arg(&path)
            .args(FIXED);
        let ended = command.output().expect("valgrind");
        assert_eq!(ended.status.code(), Some(status), "{name}: {ended:?}");
        Row::of_report(name, &path, host_instructions(&counted))
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
        Row::of_report(&format!("boot-{version}"), &path, 0)
    }
}

/// All programs, two at a time, then what they share.
fn programs() -> Vec<Row> {
    let nothing = Row::run(NOTHING, 3);
    let next = AtomicUsize::new(0);
    let some = || {
        let names = std::iter::from_fn(|| PROGRAMS.get(next.fetch_add(1, Ordering::Relaxed)));
        names.map(|name| Row::program(name, &nothing)).collect::<Vec<_>>()
    };
    let mut rows = std::thread::scope(|scope| {
        let other = scope.spawn(some);
        [some(), other.join().expect("rows of the other thread")].concat()
    });
    rows.sort_by_key(|row| PROGRAMS.iter().position(|name| *name == row.name));
    rows.push(Row { counts: [&[0], &nothing.counts[1..]].concat(), ..nothing });
    rows
}

fn print(guest: &[String], rows: &[Row]) -> String {
    let mut text = format!("{HEAD}{}\n", guest.join("\n"));
    let _ = write!(text, "{:<24}{HOST:>12}", "#");
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
        // Two runs of the same program differ by some hundred of the host's instructions: of hash tables with random keys.
        let columns = std::iter::once((HOST, 1000)).chain(COLUMNS.iter().map(|(name, _)| (*name, 2)));
        for (((column, few), old), new) in columns.zip(&old.counts).zip(&row.counts) {
            if *new > old + old / 100 + few {
                found.push(format!("{}: {column} was {old}, and is {new}", row.name));
            }
        }
    }
    found
}

/// The boot in every run, and the programs where valgrind is and the guest is that of the table.
#[test]
fn nothing_needs_more_than_before() {
    if !host_is_as_the_tables() {
        println!("not checked: the table is of hosts with {}", FEATURES.join(", "));
        return;
    }
    let write = std::env::var("SATORI_COUNTS").is_ok_and(|asked| asked == "write");
    let kept = std::fs::read_to_string(FILE).expect("counts.txt");
    let guest = guest();
    let mut rows = Vec::new();
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert!(!write, "a table needs valgrind");
        println!("programs not checked: install valgrind");
    } else if !write && !kept.contains(&guest[0]) {
        assert!(
            kept.contains(&guest[1]),
            "the guest was changed: make the table anew, by SATORI_COUNTS=write"
        );
        println!("programs not checked: another linker made another guest of the same sources");
    } else {
        rows = programs();
    }
    rows.push(Row::boot());
    if write {
        std::fs::write(FILE, print(&guest, &rows)).expect("counts.txt can be written");
        return;
    }
    let found = grown(&parse(&kept), &rows);
    assert!(
        found.is_empty(),
        "more is needed than before; if that is wanted, make the table anew \
         (SATORI_COUNTS=write cargo test -p satori --test counts) and say why in the commit\n{}\n{}",
        found.join("\n"),
        print(&guest, &rows)
    );
}

#[test]
fn one_per_cent_more_is_found() {
    let row = |counts: &[u64]| Row { name: "one".into(), counts: counts.to_vec() };
    let counts = |host, other| [&[host][..], &[other; COLUMNS.len()]].concat();
    let kept = [row(&counts(1_000_000, 1000))];
    assert_eq!(parse(&print(&["# guest 1".into()], &kept)), kept);
    assert!(grown(&kept, &[row(&counts(1_011_000, 1012))]).is_empty(), "a hundredth and a little");
    assert_eq!(grown(&kept, &[row(&counts(1_011_001, 1013))]).len(), 1 + COLUMNS.len());
    assert!(grown(&kept, &[row(&counts(1, 1))]).is_empty(), "less is no mistake");
    assert_eq!(grown(&[], &kept), ["one is not in the table"]);
}
