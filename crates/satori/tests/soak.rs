//! The soak: many boots of every configuration, each with a fresh printed seed. It is no part of
//! the gate; `tools/soak` runs it, and its output is quoted when an issue closes.
//!
//! Every boot is one line in a log, so that a soak that was interrupted goes on where it ended.

mod common;

use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::hash::BuildHasher;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use common::{fact, fetch, satori, trials, verdict};

/// Boots every configuration many times and counts the failures
#[derive(Debug, Parser)]
struct Flags {
    /// Boots of each configuration
    #[arg(long, default_value_t = 20)]
    boots: u32,
    /// Kernel series
    #[arg(long, value_delimiter = ',', default_value = "6.1,6.12")]
    series: Vec<String>,
    /// Numbers of vCPUs
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    cpus: Vec<u32>,
    /// Where the boots are noted, and looked up when the soak goes on
    #[arg(long, default_value = concat!(env!("CARGO_TARGET_TMPDIR"), "/soak.log"))]
    log: PathBuf,
    /// Forget the boots noted before
    #[arg(long)]
    fresh: bool,
    /// One boot with this seed, to see a failure again
    #[arg(long)]
    seed: Option<u64>,
}

fn main() {
    let flags = Flags::parse();
    if flags.fresh {
        let _ = std::fs::remove_file(&flags.log);
    }
    println!("soak: noting boots in {}", flags.log.display());
    let mut summary = String::new();
    let mut failures = 0;
    for series in &flags.series {
        for &cpus in &flags.cpus {
            let boots = if flags.seed.is_some() { 1 } else { flags.boots };
            let (mut passed, mut failed, mut seconds) = (0, 0, 0.0);
            for number in 1..=boots {
                let name = format!("{series} x{cpus} #{number}");
                let line = match noted(&flags, &name) {
                    Some(line) => line,
                    None => {
                        let line = boot(&name, series, cpus, flags.seed.unwrap_or_else(fresh_seed));
                        note(&flags, &line);
                        line
                    }
                };
                println!("{line}");
                match line.contains(" ok ") {
                    true => passed += 1,
                    false => failed += 1,
                }
                seconds +=
                    line.rsplit(' ').next().and_then(|s| s.trim_end_matches('s').parse().ok()).unwrap_or(0.0);
            }
            failures += failed;
            let mean = seconds / f64::from(boots);
            let _ = writeln!(
                summary,
                "soak: Debian {series}, {cpus} vCPU: {passed} of {boots} boots passed, {failed} failed, {mean:.1} s each"
            );
        }
    }
    print!("{summary}");
    println!("soak: {}", if failures == 0 { "all passed" } else { "FAILED" });
    std::process::exit(i32::from(failures != 0));
}

/// The line of boot `name`, when it was made before.
fn noted(flags: &Flags, name: &str) -> Option<String> {
    if flags.seed.is_some() {
        return None;
    }
    let log = std::fs::read_to_string(&flags.log).ok()?;
    log.lines().find(|line| line.starts_with(&format!("{name} "))).map(str::to_string)
}

fn note(flags: &Flags, line: &str) {
    if flags.seed.is_none() {
        let mut log = OpenOptions::new().create(true).append(true).open(&flags.log).expect("a log");
        writeln!(log, "{line}").expect("a log");
    }
}

/// std's hasher keys are random; that is all that is wanted here.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one(0) % 1_000_000
}

/// One boot. The seed chooses the memory and the amounts of work in the trials.
fn boot(name: &str, series: &str, cpus: u32, seed: u64) -> String {
    let kernel = fetch(&["kernel", series]);
    let memory = format!("{}M", 128 + seed % 16 * 64);
    let append = format!("panic=-1 satori.seed={seed}");
    let start = Instant::now();
    let ended = satori(&[
        "run",
        "--kernel",
        &kernel,
        "--initrd",
        trials(),
        "--cpus",
        &cpus.to_string(),
        "--memory",
        &memory,
        "--append",
        &append,
        "--timeout",
        "5m",
    ]);
    let seconds = start.elapsed().as_secs_f64();
    let found = fact(&ended.console, "clocksource");
    let wrong = match (ended.status, verdict(&ended.console)) {
        (0, Ok(())) if found == "hyperv_clocksource_tsc_page" => None,
        (0, Ok(())) => Some(format!("clocksource {found}")),
        (0, Err(wrong)) => Some(wrong.replace('\n', "; ")),
        (status, _) => Some(format!("status {status}")),
    };
    let result = match &wrong {
        None => "ok".into(),
        Some(wrong) => {
            let kept = common::scratch(&format!("{}.txt", name.replace(' ', "-")));
            let _ = std::fs::write(&kept, format!("{}\n{}", ended.console, ended.messages));
            format!("FAILED ({wrong}; console in {})", kept.display())
        }
    };
    format!("{name} seed {seed} memory {memory} {result} {seconds:.1}s")
}
