//! `satori bench talks`: the first talk's tables, of this engine, beside the talk's figures.

mod ipis;
mod spins;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use satori_bench::catalog::MARK;
use satori_bench::statistics::median;
use serde_json::{Value, json};

use super::flags::Bench;
use crate::cli;
use crate::say::{Out, say};
use crate::status::Status;

/// Pairs of runs of which the medians are taken.
const ROUNDS: usize = 11;
/// Mappings of the flush program in a run: 80 rounds of its 64 threads.
const MAPPINGS: u64 = 20_480;
/// How long idle guests are watched.
const IDLE_SECONDS: u64 = 10;
/// The mean of an EPT_MISCONFIG exit to a user space that emulates a clock, in the third talk's first table.
const EXIT_US: f64 = 6.50;
/// What the first talk measured, in cycles and seconds.
const TALK_CLOCK: [f64; 2] = [17600.0, 430.0];
const TALK_FLUSH: [(u32, f64, f64); 3] = [(1, 22.08, 22.43), (2, 24.79, 22.90), (3, 26.74, 22.99)];

/// What a guest is given beside the rest.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    /// Words for the kernel.
    kernel: &'static str,
    /// `--cpu`.
    cpu: &'static str,
    /// `--hyperv`.
    hyperv: &'static str,
}

const fn case(name: &'static str, kernel: &'static str, cpu: &'static str, hyperv: &'static str) -> Case {
    Case { name, kernel, cpu, hyperv }
}

const CLOCKS: [Case; 3] = [
    case("without time: the HPET", "clocksource=hpet", "max", "auto"),
    case("with time: the TSC page", "", "max", "auto"),
    case("with tsc-invariant: the guest's own tsc", "", "max", "auto,tsc-invariant"),
];
const FLUSHES: [Case; 2] =
    [case("without tlbflush", "", "max,hv-tlbflush=off", "auto"), case("with tlbflush", "", "max", "auto")];
const TIMERS: [Case; 3] = [
    case("synthetic timers, direct", "", "max", "auto"),
    case("the local APIC's timer", "", "max,hv-stimer-direct=off,hv-stimer=off", "auto"),
    case("no Hyper-V", "", "max", "off"),
];

/// Runs guests.
pub(super) struct Talks<'a> {
    /// This program.
    pub program: PathBuf,
    /// `--engine`.
    pub engine: String,
    /// The kernel.
    pub kernel: PathBuf,
    /// An initramfs with the benchmark program as its init.
    pub initrd: PathBuf,
    /// The guest that contends for a lock.
    pub spin: PathBuf,
    /// Where reports go.
    pub report: PathBuf,
    /// The flags.
    pub flags: &'a Bench,
    /// The user wants no more.
    pub stop: &'a AtomicBool,
}

/// What a run left.
struct Run {
    /// Nanoseconds an operation, of the first row.
    ns: f64,
    /// The same of each row.
    rows: BTreeMap<String, f64>,
    /// Inter-processor interrupts to flush a TLB that the guest's kernel took while the row ran.
    interrupts: u64,
    /// The report.
    report: Value,
    /// Host CPU time in seconds.
    cpu: f64,
}

impl Run {
    fn exits(&self) -> BTreeMap<String, i64> {
        let all = self.report["all"]["exits"].as_array().into_iter().flatten();
        all.filter_map(|exit| Some((exit["reason"].as_str()?.to_string(), exit["samples"].as_i64()?)))
            .collect()
    }
}

/// CPU time of the children that have ended, in seconds (proc(5): cutime and cstime, in hundredths).
fn children() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind.split_whitespace().skip(13).take(2).filter_map(|word| word.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

impl Talks<'_> {
    fn run(&self, case: Case, cpus: u32, clock: &str, words: &str) -> Result<Option<Run>> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let _ = fs::remove_file(&self.report);
        let before = children();
        // Under the virtual clock two runs are compared, and an exit takes no time: Linux' HPET driver polls the counter
        // some 100,000 times for some milliseconds, once more or less often.
        let quiet = if clock == "virtual" { "quiet initcall_blacklist=hpet_late_init" } else { "quiet" };
        let cmdline = format!("console=ttyS0 {quiet} panic=-1 {} -- run {words} --cpus {cpus}", case.kernel);
        let limit = format!("{}s", self.flags.timeout.as_secs().max(1) + 30);
        let output = Command::new(&self.program)
            .args(["run", "--engine", &self.engine, "--memory", "512M", "--cpus", &cpus.to_string()])
            .args(["--cpu", case.cpu, "--hyperv", case.hyperv, "--clock", clock, "--timeout", &limit])
            .args(["--cmdline", &cmdline, "--report", "json", "--report-file"])
            .arg(&self.report)
            .arg("--kernel")
            .arg(&self.kernel)
            .arg("--initrd")
            .arg(&self.initrd)
            .stdin(Stdio::null())
            .output()
            .context("cannot start another satori")?;
        let cpu = children() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        let said: Vec<Value> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line.split_once(MARK)?.1.trim()).ok())
            .collect();
        let find = |key: &str| said.iter().find_map(|line| line[key].as_f64());
        let Some(ns) = find("ns") else {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let told = String::from_utf8_lossy(&output.stderr);
            bail!(
                "{} on {cpus} vCPUs failed: {}",
                case.name,
                told.lines().last().unwrap_or("nothing was said")
            );
        };
        let one = |line: &Value| Some((line["row"].as_str()?.to_string(), line["ns"].as_f64()?));
        let rows = said.iter().filter_map(one).collect();
        let interrupts = find("tlb").unwrap_or(0.0) as u64;
        let report = fs::read(&self.report).context("a run left no report")?;
        Ok(Some(Run { ns, rows, interrupts, report: serde_json::from_slice(&report)?, cpu }))
    }

    /// Exits of `more` over those of `fewer`: what the difference of their words costs, exactly, since both
    /// are under the virtual clock.
    fn exits(&self, case: Case, cpus: u32, fewer: &str, more: &str) -> Result<Option<BTreeMap<String, i64>>> {
        let Some(fewer) = self.run(case, cpus, "virtual", fewer)? else { return Ok(None) };
        let Some(more) = self.run(case, cpus, "virtual", more)? else { return Ok(None) };
        let fewer = fewer.exits();
        let mut exits = more.exits();
        exits.iter_mut().for_each(|(reason, count)| *count -= fewer.get(reason).copied().unwrap_or(0));
        exits.retain(|_, count| *count > 0);
        Ok(Some(exits))
    }

    fn clocks(&self) -> Result<Option<Value>> {
        let mut times = [const { Vec::new() }; CLOCKS.len()];
        for round in 0..self.rounds() {
            say(format_args!("clock_gettime, round {} of {}", round + 1, self.rounds()));
            for (case, times) in CLOCKS.iter().zip(&mut times) {
                let Some(run) = self.run(*case, 1, "real", "--rows clock --budget 100")? else {
                    return Ok(None);
                };
                times.push(run.ns);
            }
        }
        let mut rows = Vec::new();
        for (case, times) in CLOCKS.iter().zip(&times) {
            let words = |n: u32| format!("--rows clock --exactly {n}");
            let Some(exits) = self.exits(*case, 1, &words(10_000), &words(20_000))? else { return Ok(None) };
            let mmio = exits.get("EPT_MISCONFIG").copied().unwrap_or(0) as f64 / 10_000.0;
            rows.push(json!({ "case": case.name, "ns": median(times), "mmio_exits": mmio }));
        }
        Ok(Some(rows.into()))
    }

    fn flushes(&self) -> Result<Option<Value>> {
        let here = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let words = format!("--rows shootdown-2 --exactly {MAPPINGS}");
        let mut rows = Vec::new();
        for (times, ..) in TALK_FLUSH {
            let (mut ns, mut interrupts) = ([vec![], vec![]], [vec![], vec![]]);
            for round in 0..self.rounds() {
                say(format_args!(
                    "flushes on {} vCPUs, round {} of {}",
                    times * here,
                    round + 1,
                    self.rounds()
                ));
                for (which, case) in FLUSHES.iter().enumerate() {
                    let Some(run) = self.run(*case, times * here, "real", &words)? else { return Ok(None) };
                    ns[which].push(run.ns * MAPPINGS as f64 / 1e9);
                    interrupts[which].push(run.interrupts as f64);
                }
            }
            let faster = ns[0].iter().zip(&ns[1]).filter(|(without, with)| with < without).count();
            rows.push(json!({
                "times": times, "vcpus": times * here,
                "seconds": ns.each_ref().map(|all| median(all)),
                "interrupts": interrupts.each_ref().map(|all| median(all)),
                "pairs": self.rounds(), "faster_with": faster,
            }));
        }
        Ok(Some(rows.into()))
    }

    fn idle(&self) -> Result<Option<Value>> {
        let words = |linger: u64| format!("--rows clock --exactly 1 --linger {}", linger * 1000);
        let mut rows = Vec::new();
        let counts: &[u32] = if self.flags.quick { &[1] } else { &[1, 4, 8] };
        for &cpus in counts {
            for case in TIMERS {
                say(format_args!("idle, {cpus} vCPUs, {}", case.name));
                let Some(none) = self.run(case, cpus, "real", &words(0))? else { return Ok(None) };
                let Some(all) = self.run(case, cpus, "real", &words(IDLE_SECONDS))? else { return Ok(None) };
                let Some(exits) = self.exits(case, cpus, &words(IDLE_SECONDS), &words(2 * IDLE_SECONDS))?
                else {
                    return Ok(None);
                };
                let exits = exits.values().sum::<i64>() as f64 / IDLE_SECONDS as f64;
                let used = (all.cpu - none.cpu).max(0.0) * 100.0 / IDLE_SECONDS as f64;
                rows.push(
                    json!({ "vcpus": cpus, "case": case.name, "cpu_percent": used, "exits_a_second": exits }),
                );
            }
        }
        Ok(Some(rows.into()))
    }

    fn rounds(&self) -> usize {
        self.flags.repetitions.map_or(if self.flags.quick { 1 } else { ROUNDS }, |n| n as usize)
    }

    /// Measures all, and prints it.
    pub(super) fn perform(&self, host: &str, kernel: &str) -> Result<Status> {
        let Some(clocks) = self.clocks()? else { return Ok(Status::User) };
        let Some(flushes) = self.flushes()? else { return Ok(Status::User) };
        let Some(ipis) = self.ipis()? else { return Ok(Status::User) };
        let Some(spins) = self.spins()? else { return Ok(Status::User) };
        let Some(idle) = self.idle()? else { return Ok(Status::User) };
        let all = json!({
            "host": host, "kernel": kernel, "engine": self.engine, "rounds": self.rounds(),
            "clock_gettime": clocks, "tlbflush": flushes, "ipi": ipis, "spinlocks": spins,
            "idle": idle,
        });
        match self.flags.format {
            cli::Form::Json => writeln!(Out, "{all:#}")?,
            cli::Form::Text => write!(Out, "{}", text(&all))?,
        }
        Ok(Status::Ok)
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn text(all: &Value) -> String {
    let list = |key: &str| all[key].as_array().cloned().unwrap_or_default();
    let mut text = format!(
        "{}; {}; engine {}; medians of {} rounds\n\nclock_gettime{:>44}{:>12}{:>26}\n",
        word(&all["host"]),
        word(&all["kernel"]),
        word(&all["engine"]),
        all["rounds"],
        "ns",
        "MMIO exits",
        "the talk, cycles"
    );
    let clocks = list("clock_gettime");
    for (index, row) in clocks.iter().enumerate() {
        let talk = TALK_CLOCK.get(index).map_or("-".into(), |cycles| format!("{cycles}"));
        let (name, ns, exits) = (word(&row["case"]), number(&row["ns"]), number(&row["mmio_exits"]));
        text += &format!("  {name:<42}{ns:>13.1}{exits:>12.3}{talk:>26}\n");
    }
    if let [hpet, page, ..] = clocks.as_slice() {
        let exits = number(&hpet["mmio_exits"]);
        text += &format!(
            "  ratio {:.1}; the talk's {:.1}. Modelled from the exits: {exits:.2} exits of {EXIT_US} us, the third talk's \
             mean\n  where user space emulates a clock, are {:.0} cycles at 2.6 GHz, assumed: {:.0} times the talk's 430.\n",
            number(&hpet["ns"]) / number(&page["ns"]),
            TALK_CLOCK[0] / TALK_CLOCK[1],
            exits * EXIT_US * 2600.0,
            (exits * EXIT_US * 2600.0 + TALK_CLOCK[1]) / TALK_CLOCK[1],
        );
    }
    text += &format!(
        "\n64 threads, {MAPPINGS} mappings\n  {:<8}{:>22}{:>10}{:>24}{:>10}{:>14}{:>20}\n",
        "vCPUs", "without tlbflush, s", "with", "flush IPIs without", "with", "pairs faster", "the talk, s"
    );
    for (row, (_, without, with)) in list("tlbflush").iter().zip(TALK_FLUSH) {
        text += &format!(
            "  {:<8}{:>22.3}{:>10.3}{:>24.0}{:>10.0}{:>14}{:>20}\n",
            format!("{} x {}", row["times"], number(&row["vcpus"]) / number(&row["times"])),
            number(&row["seconds"][0]),
            number(&row["seconds"][1]),
            number(&row["interrupts"][0]),
            number(&row["interrupts"][1]),
            format!("{} of {}", row["faster_with"], row["pairs"]),
            format!("{without} {with}"),
        );
    }
    text += &ipis::text(&list("ipi"));
    text += &spins::text(&list("spinlocks"));
    text += &format!("\nidle guests{:>47}{:>16}\n", "host CPU, %", "exits a second");
    for row in list("idle") {
        text += &format!(
            "  {:<8}{:<32}{:>16.1}{:>16.1}\n",
            format!("{} vCPU", row["vcpus"]),
            word(&row["case"]),
            number(&row["cpu_percent"]),
            number(&row["exits_a_second"])
        );
    }
    text
}
