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

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct Overhead {
    /// Its name.
    pub case: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Nanoseconds of each round: with `--report off`, with the default report, and with `--report off` again. The three of a
    /// round ran one after the other.
    pub rounds: Vec<[f64; 3]>,
}

/// A median, and between what it lies with a probability of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub least: f64,
    /// The median.
    pub median: f64,
    /// The upper end.
    pub most: f64,
}

impl Interval {
    /// That of the median of `values`: it lies between two of them by the binomial distribution, whatever theirs is.
    fn of(mut values: Vec<f64>) -> Interval {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let Some(last) = count.checked_sub(1) else {
            return Interval { least: f64::NAN, median: f64::NAN, most: f64::NAN };
        };
        let outside = ((count as f64 - 1.96 * (count as f64).sqrt()) / 2.0).floor().max(0.0) as usize;
        let median = (values[last / 2] + values[count / 2]) / 2.0;
        // Of six and more: with fewer nothing is so certain.
        match count {
            0..6 => Interval { least: f64::NEG_INFINITY, median, most: f64::INFINITY },
            _ => Interval { least: values[outside], median, most: values[last - outside] },
        }
    }
}

impl Overhead {
    /// What the report costs, in per cent of the time without: of each round, the mean of the two runs without.
    pub fn report(&self) -> Interval {
        let percent = |[off, report, again]: &[f64; 3]| (report / ((off + again) / 2.0) - 1.0) * 100.0;
        Interval::of(self.rounds.iter().map(percent).collect())
    }

    /// By how much the two runs without differ: by nothing but chance.
    pub fn control(&self) -> Interval {
        Interval::of(self.rounds.iter().map(|[off, _, again]| (again / off - 1.0) * 100.0).collect())
    }

    /// Nanoseconds in the median of the rounds.
    fn median(&self, which: usize) -> f64 {
        Interval::of(self.rounds.iter().map(|round| round[which]).collect()).median
    }

    /// Whether it costs less than the bound; none where the interval contains it.
    pub fn within(&self) -> Option<bool> {
        let Interval { least, most, .. } = self.report();
        match (most < BOUND, least >= BOUND) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
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
        let mut rounds = Vec::new();
        for round in 0..plan.repetitions as usize {
            let mut times = [0.0; 3];
            for place in 0..times.len() {
                // Not always the same one first.
                let which = (place + round) % times.len();
                let report: &[&str] = if which == 1 { &[] } else { &["--report", "off"] };
                times[which] = plan.run(case, report)?;
            }
            rounds.push(times);
        }
        all.push(Overhead { case, what, rounds });
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
    let rounds = all.first().map_or(0, |one| one.rounds.len());
    let mut out = format!(
        "What the default report costs a guest that does nothing but exit: medians of {rounds} rounds of three runs, and between what they \
         lie\nwith a probability of 95 %. The control is --report off against itself.\n\n{:<40}{:>9}{:>9}{:>26}{:>26}\n",
        "", "off ns", "on ns", "control", "report"
    );
    let shown = |of: Interval| format!("{:+.2} % ({:+.2} to {:+.2})", of.median, of.least, of.most);
    for one in all {
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{:<40}{:>9.1}{:>9.1}{:>26}{:>26}",
            one.what,
            one.median(0),
            one.median(1),
            shown(one.control()),
            shown(one.report())
        );
    }
    let verdict = match within(all) {
        Some(true) => "is kept",
        Some(false) => "is NOT kept",
        None => "cannot be told: give it more --repetitions, or nothing else to run beside",
    };
    let _ = writeln!(out, "\nThe bound, less than {BOUND} %: it {verdict}.");
    out
}

/// The same for programs.
pub fn json(all: &[Overhead]) -> Value {
    let interval = |of: Interval| json!({ "median": of.median, "least": of.least, "most": of.most });
    let rows = all.iter().map(|one| {
        json!({
            "case": one.case, "what": one.what, "rounds_ns": one.rounds, "within": one.within(),
            "control_percent": interval(one.control()), "report_percent": interval(one.report()),
        })
    });
    json!({
        "format": "satori-overhead", "version": 2, "bound_percent": BOUND, "within": within(all),
        "rows": rows.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds in which the report costs `percent`, and every run some per cent more or less by chance.
    fn made(percent: f64, chance: f64) -> Overhead {
        let mut random = 1_u32;
        let mut off = || {
            // Numerical Recipes' generator.
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            100.0 + chance * f64::from(random >> 16) / 65536.0
        };
        let rounds = (0..40).map(|_| [off(), off() * (1.0 + percent / 100.0), off()]);
        Overhead { case: "cpuid", what: "CPUID", rounds: rounds.collect() }
    }

    #[test]
    fn what_lies_below_the_bound_is_told_through_noise() {
        assert_eq!(made(1.0, 1.0).within(), Some(true), "{:?}", made(1.0, 1.0).report());
        assert_eq!(made(4.0, 2.0).within(), Some(false), "{:?}", made(4.0, 2.0).report());
        assert_eq!(made(2.0, 2.0).within(), None, "the bound itself");
        assert_eq!(within(&[made(1.0, 1.0), made(2.0, 2.0)]), None);
        assert_eq!(within(&[made(1.0, 1.0), made(4.0, 1.0), made(2.0, 2.0)]), Some(false));
        assert!(text(&[made(4.0, 1.0)]).contains("NOT kept"));
        let control = made(4.0, 2.0).control();
        assert!(control.least <= 0.0 && control.most >= 0.0, "{control:?}");
    }

    #[test]
    fn an_interval_is_of_ranks() {
        let of = |count: u32| Interval::of((0..count).rev().map(f64::from).collect());
        // Of 40 the 14th and the 27th (binomial tables).
        assert_eq!(of(40), Interval { least: 13.0, median: 19.5, most: 26.0 });
        assert_eq!(of(5).most, f64::INFINITY);
        assert!(of(0).median.is_nan());
    }
}
