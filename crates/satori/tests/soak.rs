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
    /// Numbers of vCPUs; from 65 on Linux makes the calls with VP sets
    #[arg(long, value_delimiter = ',', default_value = "1,4,70")]
    cpus: Vec<u32>,
    /// Boots with vCPUs, memory, clock, processor and engine that a seed of each chooses, before the others
    #[arg(long, default_value_t = 100)]
    random: u32,
    /// One boot with the choices of this seed, to see a failure of those again
    #[arg(long, conflicts_with = "seed")]
    random_seed: Option<u64>,
    /// Words for the kernel; a configuration is booted with each
    #[arg(long, value_delimiter = ',', default_value = ",nox2apic")]
    words: Vec<String>,
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
    if let Some(seed) = flags.random_seed {
        let line = random_boot("random", seed);
        println!("{line}");
        std::process::exit(i32::from(!line.contains(" ok ")));
    }
    let mut summary = String::new();
    let mut failures = 0;
    if flags.seed.is_none() && flags.random > 0 {
        for number in 1..=flags.random {
            let name = format!("random #{number}");
            let line = noted(&flags, &name).unwrap_or_else(|| {
                let line = random_boot(&name, fresh_seed());
                note(&flags, &line);
                line
            });
            println!("{line}");
            failures += u32::from(!line.contains(" ok "));
        }
        let _ = writeln!(summary, "soak: {} boots of random settings, {failures} failed", flags.random);
    }
    for series in &flags.series {
        for (&cpus, words) in flags.cpus.iter().flat_map(|cpus| flags.words.iter().map(move |w| (cpus, w))) {
            let boots = if flags.seed.is_some() { 1 } else { flags.boots };
            let (mut passed, mut failed, mut seconds) = (0, 0, 0.0);
            let what = format!("{series} x{cpus} {words}");
            for number in 1..=boots {
                let name = format!("{} #{number}", what.trim_end());
                let line = match noted(&flags, &name) {
                    Some(line) => line,
                    None => {
                        let line = boot(&name, series, cpus, words, flags.seed.unwrap_or_else(fresh_seed));
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
            let mean = seconds / f64::from(boots.max(1));
            let _ = writeln!(
                summary,
                "soak: Debian {series}, {cpus} vCPU {words}: {passed} of {boots} boots passed, {failed} failed, {mean:.1} s each"
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

/// One boot whose seed chooses everything: what most hosts and guests would never meet together.
fn random_boot(name: &str, seed: u64) -> String {
    let mut rest = seed;
    let mut choose = |from: &[&'static str]| {
        // SplitMix64's mixing, as consecutive seeds shall choose differently.
        rest = rest.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (rest ^ (rest >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        from[((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) as usize % from.len()]
    };
    let series = choose(&["6.1", "6.12"]);
    let settings = [
        ("--cpus", choose(&["1", "1", "2", "2", "3", "4", "6", "8", "16"])),
        ("--memory", choose(&["256M", "384M", "512M", "1G", "2G"])),
        ("--engine", choose(&["translator", "translator", "translator", "eager"])),
        ("--clock", choose(&["real", "real", "real", "virtual"])),
        (
            "--cpu",
            choose(&[
                "max",
                "max",
                "x86-64-v3",
                "x86-64-v2",
                "max,-avx",
                "max,-pcid,-smap,-pku",
                "max,-xsave",
            ]),
        ),
        ("--hyperv", choose(&["auto", "auto", "off"])),
        ("--append", choose(&["", "mitigations=off", "nopti", "nosmp", "nokaslr", "maxcpus=1", "pti=on"])),
    ];
    let append = format!("panic=-1 satori.seed={seed} {}", settings[6].1);
    let kernel = fetch(&["kernel", series]);
    let mut arguments = vec!["run", "--kernel", &kernel, "--initrd", trials(), "--timeout", "10m"];
    arguments.extend(settings[..6].iter().flat_map(|(flag, value)| [*flag, *value]));
    arguments.extend(["--append", &append]);
    let start = Instant::now();
    let ended = satori(&arguments);
    let seconds = start.elapsed().as_secs_f64();
    let chosen = settings.map(|(_, value)| if value.is_empty() { "-" } else { value }).join(" ");
    let result = match (ended.status, verdict(&ended.console)) {
        (0, Ok(())) => "ok".into(),
        (status, verdict) => {
            let wrong =
                verdict.err().map_or_else(|| format!("status {status}"), |wrong| wrong.replace('\n', "; "));
            let kept = common::scratch(&format!("random-{seed}.txt"));
            let _ = std::fs::write(&kept, format!("{}\n{}", ended.console, ended.messages));
            format!("FAILED ({wrong}; console in {})", kept.display())
        }
    };
    format!("{name} seed {seed}: Debian {series} {chosen} {result} {seconds:.1}s")
}

/// One boot. The seed chooses the memory, the modelled processor and the amounts of work in the trials.
fn boot(name: &str, series: &str, cpus: u32, words: &str, seed: u64) -> String {
    let kernel = fetch(&["kernel", series]);
    // What the kernel keeps for each processor has to fit, too.
    let least = if cpus > 16 { 640 } else { 128 };
    let memory = format!("{}M", least + seed % 16 * 64);
    let append = format!("panic=-1 satori.seed={seed} {words}");
    // Without APICv, Linux is told to reach the APIC through MSRs; with it, as by default, it is not.
    let processor = if enlightened_apic(seed) { "no-apicv" } else { "skylake" };
    let report = common::scratch(&format!("{}.json", name.replace(' ', "-")));
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
        "--processor",
        processor,
        "--timeout",
        "5m",
        "--report",
        "json",
        "--report-file",
        report.to_str().expect("UTF-8"),
    ]);
    let seconds = start.elapsed().as_secs_f64();
    let found = fact(&ended.console, "clocksource");
    let wrong = match (ended.status, verdict(&ended.console)) {
        (0, Ok(())) if found == "hyperv_clocksource_tsc_page" => {
            unused(&report, &ended.console, cpus, words, seed)
        }
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

/// Whether the boot of this seed offers the APIC's registers as MSRs.
fn enlightened_apic(seed: u64) -> bool {
    seed % 32 >= 16
}

/// What Linux did not use of what it uses in this configuration.
fn unused(report: &std::path::Path, console: &str, cpus: u32, words: &str, seed: u64) -> Option<String> {
    let text = std::fs::read_to_string(report).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let apic = if words.contains("nox2apic") { "xapic" } else { "x2apic" };
    let said = format!("Hyper-V: Using enlightened APIC ({apic} mode)");
    match (enlightened_apic(seed), console.contains(&said)) {
        (true, false) => return Some(format!("no '{said}'")),
        (false, true) => return Some(format!("'{said}'")),
        _ => {}
    }
    let several: &[_] = if cpus > 1 { &["tlbflush", "ipi"] } else { &[] };
    let mut names = ["base", "vpindex", "time", "vapic", "stimer", "stimer_direct"].iter().chain(several);
    if let Some(name) = names.find(|name| report["hyperv"][**name]["used"].as_u64().unwrap_or(0) == 0) {
        return Some(format!("{name} was not used"));
    }
    // A processor beyond the 64th has no bit in a plain mask.
    let ex = |name: &str| {
        let ways = report["hyperv"][name]["ways"].as_object().into_iter().flatten();
        ways.filter(|(way, _)| way.ends_with("Ex")).filter_map(|(_, count)| count.as_u64()).sum::<u64>()
    };
    let missing = ["tlbflush", "ipi"].into_iter().find(|name| cpus > 64 && ex(name) == 0);
    missing.map(|name| format!("{name} without its _EX forms: {}", report["hyperv"][name]))
}
