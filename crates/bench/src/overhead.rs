//! What the report costs a guest that does nothing but exit: the same guest with the default report and without one.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::Error;

/// The bound: the default report costs less than this, in per cent.
pub const BOUND: f64 = 2.0;

/// The guest's cases, and what each does over and over.
pub const CASES: &[(&str, &str)] = &[
    ("cpuid", "CPUID"),
    ("msrs", "read of an MSR"),
    ("ports", "read of a port"),
    ("mmio_reads", "read of the HPET in memory"),
    ("nothing", "a thousand instructions without an exit"),
];

/// What runs are made with.
pub struct Plan<'a> {
    /// Satori's program.
    pub program: PathBuf,
    /// The guest's, `guests/src/bin/rapid.rs`.
    pub guest: PathBuf,
    /// `--engine`.
    pub engine: String,
    /// How often each is run.
    pub repetitions: u32,
    /// Samples of a run, of which the least counts.
    pub samples: u32,
    /// Set when the user wants an end.
    pub stop: &'a AtomicBool,
}

/// One case: nanoseconds each time.
#[derive(Clone, Debug, PartialEq)]
pub struct Overhead {
    /// Its name.
    pub case: &'static str,
    /// What it does.
    pub what: &'static str,
    /// With `--report off`.
    pub off: f64,
    /// The same, from runs of their own: what differs is not the report.
    pub again: f64,
    /// With the default report.
    pub report: f64,
}

impl Overhead {
    /// What the report costs, in per cent of the time without.
    pub fn percent(&self) -> f64 {
        percent(self.report, self.off.min(self.again))
    }

    /// How far the two runs without are apart.
    pub fn noise(&self) -> f64 {
        percent(self.off.max(self.again), self.off.min(self.again))
    }
}

impl Overhead {
    /// Whether it costs less than the bound; none where the noise does not let it be told.
    pub fn within(&self) -> Option<bool> {
        match self.percent() {
            percent if percent < BOUND => Some(true),
            percent if percent - self.noise() >= BOUND => Some(false),
            _ => None,
        }
    }
}

fn percent(of: f64, than: f64) -> f64 {
    (of / than - 1.0) * 100.0
}

impl Plan<'_> {
    /// Nanoseconds of one `case`, in the fastest of the samples of one run.
    fn run(&self, case: &str, report: &[&str]) -> Result<f64, Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let mut command = Command::new(&self.program);
        command.arg("run").arg("--kernel").arg(&self.guest);
        command.args(["-m", "128M", "--timeout", "5m", "--engine", &self.engine, "--cmdline"]);
        command.arg(format!("rapid cpus=1 only={case} samples={}", self.samples)).args(report);
        let ended = command.stdin(Stdio::null()).output().map_err(|why| Error::Run(why.to_string()))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let said = String::from_utf8_lossy(&ended.stdout);
        let told = said.split_whitespace().find_map(|word| word.strip_prefix("picoseconds="));
        let picoseconds: Option<f64> = told.and_then(|text| text.parse().ok());
        picoseconds.map(|ps| ps / 1e3).ok_or_else(|| {
            let messages = String::from_utf8_lossy(&ended.stderr);
            Error::Run(format!("{case}: {}", messages.lines().last().unwrap_or("nothing said")))
        })
    }
}

/// Runs each case without a report, with the default one, and without again, in turn.
pub fn measure(plan: &Plan, tell: &mut dyn FnMut(&str)) -> Result<Vec<Overhead>, Error> {
    let mut all = Vec::new();
    for &(case, what) in CASES {
        tell(what);
        let mut least = [f64::MAX; 3];
        for round in 0..plan.repetitions as usize {
            for place in 0..least.len() {
                // Not always the same one first.
                let which = (place + round) % least.len();
                let report: &[&str] = if which == 1 { &[] } else { &["--report", "off"] };
                least[which] = least[which].min(plan.run(case, report)?);
            }
        }
        let [off, report, again] = least;
        all.push(Overhead { case, what, off, again, report });
    }
    Ok(all)
}

/// Whether the report costs less than the bound in each; none if it may cost more in one.
pub fn within(all: &[Overhead]) -> Option<bool> {
    let told: Vec<_> = all.iter().map(Overhead::within).collect();
    match told.contains(&Some(false)) {
        true => Some(false),
        false => told.iter().all(Option::is_some).then_some(true),
    }
}

/// A table.
pub fn text(all: &[Overhead]) -> String {
    let mut out = format!(
        "What the default report costs a guest that does nothing but exit (--report off twice: what differs there is noise).\n\n\
         {:<42}{:>11}{:>11}{:>11}{:>9}{:>9}\n",
        "", "off ns", "off ns", "report ns", "noise", "report"
    );
    for one in all {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:<42}{:>11.1}{:>11.1}{:>11.1}{:>8.1}%{:>8.1}%",
            one.what,
            one.off,
            one.again,
            one.report,
            one.noise(),
            one.percent()
        );
    }
    let verdict = match within(all) {
        Some(true) => "is kept",
        Some(false) => "is NOT kept",
        None => "cannot be told: too much noise, look again with nothing else running and more --repetitions",
    };
    let _ = writeln!(out, "\nThe bound, less than {BOUND} %: it {verdict}.");
    out
}

/// The same for programs.
pub fn json(all: &[Overhead]) -> Value {
    let rows = all.iter().map(|one| {
        json!({
            "case": one.case, "what": one.what, "off_ns": one.off, "off_again_ns": one.again,
            "report_ns": one.report, "noise_percent": one.noise(), "report_percent": one.percent(),
        })
    });
    json!({
        "format": "satori-overhead", "version": 1, "bound_percent": BOUND, "within": within(all),
        "rows": rows.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_run_without_is_what_counts() {
        let one = Overhead { case: "cpuid", what: "CPUID", off: 102.0, again: 100.0, report: 101.5 };
        assert!((one.percent() - 1.5).abs() < 1e-9 && (one.noise() - 2.0).abs() < 1e-9);
        assert_eq!(within(std::slice::from_ref(&one)), Some(true));
        let more = Overhead { report: 102.0, ..one.clone() };
        assert_eq!(within(&[one.clone(), more.clone()]), None, "the bound is crossed by less than the noise");
        let quiet = Overhead { off: 100.0, ..more };
        assert_eq!(within(&[one, quiet.clone()]), Some(false), "the bound itself is too much");
        assert!(text(&[quiet]).contains("NOT kept"));
    }
}
