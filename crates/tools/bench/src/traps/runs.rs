//! Runs of the talk's guest: processes of Satori under the virtual clock, several at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use satori_report::costs::Costs;
use satori_report::{Report, Row, Table, Which};

use super::Parameters;
use crate::Error;

/// What runs are made with.
pub struct Host<'a> {
    /// Satori's program.
    pub program: PathBuf,
    /// The guest's.
    pub game: PathBuf,
    /// A folder for reports.
    pub folder: PathBuf,
    /// `--engine`.
    pub engine: String,
    /// What exits cost.
    pub costs: &'a Costs,
    /// Set when the user wants an end.
    pub stop: &'a AtomicBool,
    /// How many runs at once.
    pub threads: usize,
}

/// What a guest is offered, by which processor, and how it behaves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine {
    /// `--hyperv`.
    pub hyperv: String,
    /// `--cpu`.
    pub cpu: String,
    /// `--processor`.
    pub processor: String,
    /// The guest's own rules, as words of its command line.
    pub rules: String,
}

/// One run that is to be done.
#[derive(Clone, Debug)]
pub struct Job {
    /// The machine.
    pub machine: Machine,
    /// What the guest does.
    pub parameters: Parameters,
    /// Milliseconds of guest time; 0 is what it does before and after.
    pub ms: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The exits of all vCPUs, with their modelled costs.
    pub report: Report,
    /// What the guest said: its timer, and how much it did.
    pub told: BTreeMap<String, String>,
    /// How long it took here.
    pub elapsed: Duration,
}

impl Run {
    /// How many exits.
    pub fn exits(&self) -> u64 {
        self.report.all.samples
    }

    /// Nanoseconds that these cost by the model.
    pub fn cost(&self) -> u64 {
        self.report.all.modelled().map_or(0, |sum| sum.ns)
    }
}

/// A number for each file.
static FILES: AtomicUsize = AtomicUsize::new(0);

impl Host<'_> {
    /// Does all jobs, several at once; results are in the jobs' order.
    pub fn all<J: Sync, R: Send>(
        &self,
        jobs: &[J],
        work: impl Fn(&J) -> Result<R, Error> + Sync,
    ) -> Result<Vec<R>, Error> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<Option<Result<R, Error>>>> = Mutex::new(jobs.iter().map(|_| None).collect());
        let failed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, jobs.len().max(1)) {
                scope.spawn(|| {
                    while !failed.load(Ordering::Relaxed) {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(at) else { return };
                        let result = work(job);
                        failed.fetch_or(result.is_err(), Ordering::Relaxed);
                        // Nobody panics with the lock.
                        if let Ok(mut results) = results.lock() {
                            results[at] = Some(result);
                        }
                    }
                });
            }
        });
        let results = results.into_inner().unwrap_or_default();
        let mut all = Vec::with_capacity(results.len());
        // One that failed keeps others from being done: it is what is told.
        for result in results.into_iter().flatten() {
            all.push(result?);
        }
        if all.len() == jobs.len() { Ok(all) } else { Err(Error::Stopped) }
    }

    /// Runs Satori with these arguments, and reads its report. Any end is right if `status` is none.
    pub fn satori(
        &self,
        arguments: &[String],
        status: Option<i32>,
    ) -> Result<(String, Report, Duration), Error> {
        self.satori_in(Path::new("."), arguments, status)
    }

    /// The same in `folder`.
    fn satori_in(
        &self,
        folder: &Path,
        arguments: &[String],
        status: Option<i32>,
    ) -> Result<(String, Report, Duration), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let file = self.folder.join(format!("report-{}", FILES.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(&self.program);
        command.current_dir(folder).args(arguments).args(["--report", "json", "--report-file"]).arg(&file);
        let ended = command.stdin(Stdio::null()).output().map_err(|why| Error::Run(why.to_string()))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        let report = satori_report::read(&text, Which::Only).map_err(|why| {
            let messages = String::from_utf8_lossy(&ended.stderr);
            let last = messages.lines().last().unwrap_or("nothing said");
            Error::Run(if text.is_empty() { last.to_string() } else { why.to_string() })
        })?;
        if status.is_some() && ended.status.code() != status {
            return Err(Error::Run(format!(
                "satori {}: it ended with {}",
                arguments.join(" "),
                ended.status
            )));
        }
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let elapsed = Duration::from_nanos(value["elapsed_ns"].as_u64().unwrap_or(0));
        Ok((said, report, elapsed))
    }

    /// Runs the guest's `case` with these words.
    pub fn guest(
        &self,
        machine: &Machine,
        cpus: u64,
        host_tick: u64,
        words: &str,
        more: &[String],
    ) -> Result<Run, Error> {
        // The guest is given its file's name, and reads it: by a path, which has a process's number, it would have more to do in a
        // longer one.
        let name = self.game.file_name().unwrap_or_default();
        let mut arguments = [
            "run",
            "--kernel",
            &name.to_string_lossy(),
            "-m",
            "128M",
            "--clock",
            "virtual",
            "--timeout",
            "10m",
            "--engine",
            &self.engine,
            "--cpus",
            &cpus.to_string(),
            "--host-tick",
            &host_tick.to_string(),
            "--processor",
            &machine.processor,
            "--hyperv",
            &machine.hyperv,
            "--cpu",
            &machine.cpu,
            "--cmdline",
            &format!("game cpus={cpus} {words}"),
        ]
        .map(String::from)
        .to_vec();
        arguments.extend_from_slice(more);
        let folder = self.game.parent().unwrap_or(Path::new("."));
        let (said, mut report, elapsed) = self.satori_in(folder, &arguments, None)?;
        if !said.trim_end().ends_with(" 0 failed") {
            return Err(Error::Run(format!("the guest failed: {}", said.trim_end().replace('\n', "; "))));
        }
        report.model(self.costs);
        let words = said.split_whitespace().filter_map(|word| word.split_once('='));
        let told = words.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Ok(Run { report, told, elapsed })
    }

    /// Runs the game, with `more` options of Satori.
    pub fn play(&self, job: &Job, more: &[String]) -> Result<Run, Error> {
        let of = &job.parameters;
        let words = format!("only=play ms={}{} {}", job.ms, of.words(), job.machine.rules);
        self.guest(&job.machine, of.get("vcpus"), of.get("host-tick"), &words, more)
    }

    /// Plays, and leaves out what each machine's guest does before and after.
    pub fn games(&self, jobs: &[Job]) -> Result<Vec<Run>, Error> {
        // What is before depends on no rate.
        let key = |job: &Job| (job.machine.clone(), job.parameters.get("vcpus"));
        let idle = |job: &Job| Job { ms: 0, ..job.clone() };
        let idles: BTreeMap<_, _> = jobs.iter().map(|job| (key(job), idle(job))).collect();
        let idles: Vec<_> = idles.into_iter().collect();
        let before = self.all(&idles, |(key, job)| Ok((key.clone(), self.play(job, &[])?)))?;
        let before: BTreeMap<_, _> = before.into_iter().collect();
        let mut runs = self.all(jobs, |job| self.play(job, &[]))?;
        for (run, job) in runs.iter_mut().zip(jobs) {
            if let Some(before) = before.get(&key(job)) {
                run.report.all = without(&run.report.all, &before.report.all);
            }
            // Of them nothing was taken away.
            run.report.vcpus.clear();
            run.report.model(self.costs);
        }
        Ok(runs)
    }
}

/// The exits of `all` that are not in `before`. The extremes of times stay.
pub(crate) fn without(all: &Table, before: &Table) -> Table {
    let mut rest = Table { vcpu: all.vcpu, ..Table::default() };
    for row in &all.exits {
        let known = before.row(&row.reason);
        let less = |of: fn(&Row) -> u64| of(row).saturating_sub(known.map_or(0, of));
        let samples = less(|row| row.samples);
        if samples == 0 {
            continue;
        }
        let total_ns = less(|row| row.total_ns).max(row.max_ns);
        let without_apicv = less(|row| row.without_apicv).min(samples);
        let mean_ns = total_ns as f64 / samples as f64;
        let row = Row { samples, total_ns, mean_ns, without_apicv, modelled_ns: None, ..row.clone() };
        rest.add(&Table { vcpu: None, samples, total_ns, exits: vec![row] });
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_before_is_left_out() {
        let row = |reason: &str, samples, without_apicv| {
            let reason = reason.to_string();
            Row { reason, samples, without_apicv, total_ns: samples, mean_ns: 1.0, ..Row::default() }
        };
        let table = |rows: Vec<Row>| {
            let mut all = Table::default();
            for row in rows {
                all.add(&Table {
                    samples: row.samples,
                    total_ns: row.total_ns,
                    exits: vec![row],
                    vcpu: None,
                });
            }
            all
        };
        let all = table(vec![row("HLT", 10, 4), row("CPUID", 3, 0), row("VMCALL", 2, 0)]);
        let rest = without(&all, &table(vec![row("HLT", 4, 4), row("CPUID", 3, 0)]));
        assert_eq!(rest, table(vec![row("HLT", 6, 0), row("VMCALL", 2, 0)]));
    }
}
