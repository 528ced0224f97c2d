//! Two guests on one processor of the host, each with four vCPUs that want one lock.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use satori_bench::statistics::median;
use serde_json::{Value, json};

use super::{Talks, number, word};
use crate::say::say;

const VCPUS: u32 = 4;
/// How long the guests contend.
const MS: u32 = 1000;
/// What they have: a name, `--hyperv`, `--processor`.
const SETTINGS: [(&str, &str, &str); 4] = [
    ("nothing", "auto,-spinlocks", "no-apicv,-ple"),
    ("pause-loop exiting", "auto,-spinlocks", "no-apicv"),
    ("long-spin notification", "auto", "no-apicv,-ple"),
    ("both", "auto", "no-apicv"),
];

impl Talks<'_> {
    pub(super) fn spins(&self) -> Result<Option<Value>> {
        let mut locks = [const { Vec::new() }; SETTINGS.len()];
        let mut notified = [const { Vec::new() }; SETTINGS.len()];
        for round in 0..self.rounds() {
            say(format_args!("contended locks, round {} of {}", round + 1, self.rounds()));
            for (which, (_, hyperv, processor)) in SETTINGS.iter().enumerate() {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
                let both = self.on_one_processor(|| {
                    [(); 2].map(|()| self.contend(hyperv, processor)).into_iter().collect::<Result<Vec<_>>>()
                })?;
                let mut sums = [0.0; 2];
                for guest in both {
                    let output = guest.wait_with_output().context("a guest was lost")?;
                    let text = String::from_utf8_lossy(&output.stdout);
                    let found = text.lines().find_map(|line| line.strip_prefix("spin "));
                    let found: Value =
                        found.and_then(|json| serde_json::from_str(json).ok()).ok_or_else(|| {
                            let told = String::from_utf8_lossy(&output.stderr);
                            anyhow!("the guest failed: {}", told.lines().last().unwrap_or("nothing was said"))
                        })?;
                    let seconds = number(&found["ticks"]) / number(&found["tsc_hz"]);
                    sums[0] += number(&found["locks"]) / seconds;
                    sums[1] += number(&found["notified"]) / seconds;
                }
                locks[which].push(sums[0]);
                notified[which].push(sums[1]);
            }
        }
        let rows = SETTINGS.iter().zip(locks.iter().zip(&notified)).map(|((name, ..), (locks, notified))| {
            json!({ "with": name, "locks_a_second": median(locks), "notifications_a_second": median(notified) })
        });
        Ok(Some(rows.collect()))
    }

    /// What `start` starts shares one processor of the host.
    fn on_one_processor<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let all = sched_getaffinity(None).context("cannot tell the host's processors")?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu)).unwrap_or(0);
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(None, &one).context("cannot choose a processor of the host")?;
        let started = start();
        sched_setaffinity(None, &all).context("cannot go back to the host's processors")?;
        started
    }

    fn contend(&self, hyperv: &str, processor: &str) -> Result<Child> {
        let words = format!("hv_spin cpus={VCPUS} ms={MS}");
        let mut guest = Command::new(&self.program);
        guest.args(["run", "--engine", &self.engine, "--memory", "128M", "--cpus", &VCPUS.to_string()]);
        guest.args(["--hyperv", hyperv, "--processor", processor, "--timeout", "60s", "--report", "off"]);
        guest.args(["--cmdline", &words, "--kernel"]).arg(&self.spin);
        guest.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        guest.spawn().context("cannot start another satori")
    }
}

/// The table.
pub(super) fn text(rows: &[Value]) -> String {
    let mut text = format!(
        "\ntwo guests of {VCPUS} vCPUs on one processor, a contended fair lock each (the talk gives no figures)\n  {:<26}{:>16}{:>10}{:>24}\n",
        "", "locks a second", "ratio", "notifications a second"
    );
    let nothing = rows.first().map_or(f64::NAN, |row| number(&row["locks_a_second"]));
    for row in rows {
        let locks = number(&row["locks_a_second"]);
        text += &format!(
            "  {:<26}{locks:>16.0}{:>10.1}{:>24.0}\n",
            word(&row["with"]),
            locks / nothing,
            number(&row["notifications_a_second"]),
        );
    }
    text
}
