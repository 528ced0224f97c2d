//! Where an engine's time went, as samples of what its vCPUs were doing tell.

use std::fmt::Write;

use satori_bus::Nanos;
use satori_seam::Doing;

/// Wall-clock time of all vCPUs, by what they did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Looks that were taken, at one vCPU each.
    pub samples: u64,
    time: [Nanos; Doing::ALL.len()],
}

impl Shares {
    /// Counts a vCPU that was seen `doing`, for the time since it was looked at before.
    pub fn add(&mut self, doing: Doing, time: Nanos) {
        self.samples += 1;
        let sum = &mut self.time[doing as usize];
        *sum = sum.saturating_add(time);
    }

    /// Adds what another life of the machine took.
    pub fn merge(&mut self, other: &Shares) {
        self.samples += other.samples;
        self.time.iter_mut().zip(other.time).for_each(|(sum, time)| *sum = sum.saturating_add(time));
    }

    /// The time that went into `doing`.
    pub fn time(&self, doing: Doing) -> Nanos {
        self.time[doing as usize]
    }

    /// Time in which a vCPU's thread had something to do.
    pub fn busy(&self) -> Nanos {
        let busy = Doing::ALL.into_iter().filter(|doing| !idle(*doing));
        busy.map(|doing| self.time(doing)).sum()
    }

    /// A table, the busy kinds as parts of the busy time.
    pub fn text(&self) -> String {
        let busy = self.busy();
        let mut out =
            format!("{:<26}{:>12}{:>9}   ({} samples)\n", "Engine's time", "ms", "of busy", self.samples);
        let mut rows: Vec<_> = Doing::ALL.into_iter().filter(|doing| self.time(*doing) > 0).collect();
        rows.sort_by_key(|doing| (idle(*doing), std::cmp::Reverse(self.time(*doing))));
        for doing in rows {
            let time = self.time(doing);
            let part = match idle(doing) || busy == 0 {
                true => "-".into(),
                false => format!("{:.1}%", time as f64 / busy as f64 * 100.0),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{:<26}{:>12.1}{part:>9}", doing.name(), time as f64 / 1e6);
        }
        out
    }

    /// The same as an object; times in nanoseconds.
    pub fn json(&self) -> serde_json::Value {
        let times: serde_json::Map<_, _> =
            Doing::ALL.into_iter().map(|doing| (doing.name().into(), self.time(doing).into())).collect();
        serde_json::json!({ "samples": self.samples, "busy_ns": self.busy(), "time_ns": times })
    }
}

/// Whether a vCPU that does this takes no time of the host.
const fn idle(doing: Doing) -> bool {
    matches!(doing, Doing::Asleep | Doing::Waiting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_no_part_of_the_busy_time() {
        let mut shares = Shares::default();
        shares.add(Doing::Translated, 3_000_000);
        shares.add(Doing::Missing, 1_000_000);
        shares.add(Doing::Asleep, 50_000_000);
        let mut sum = Shares::default();
        sum.merge(&shares);
        assert_eq!((sum.busy(), sum.samples), (4_000_000, 3));
        let text = sum.text();
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["translated", "code", "3.0", "75.0%"]);
        assert_eq!(lines[2], ["MMU", "misses", "of", "it", "1.0", "25.0%"]);
        assert_eq!(lines[3], ["asleep", "50.0", "-"]);
        assert_eq!(lines.len(), 4, "what took no time is not listed");
        assert_eq!(sum.json()["time_ns"]["translated code"], 3_000_000);
    }
}
