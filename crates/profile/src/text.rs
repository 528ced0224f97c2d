//! The table of `perf kvm stat report`, column for column (Linux, tools/perf/builtin-kvm.c).

use std::fmt::Write;

use satori_bus::Nanos;

use crate::{ExitProfile, Profile};

fn us(time: Nanos) -> f64 {
    time as f64 / 1000.0
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

impl Profile {
    /// The table of one vCPU, or of all. A vCPU that does not exist has no exits.
    pub fn text(&self, vcpu: Option<usize>) -> String {
        match vcpu {
            None => table(&self.all(), "all VCPUs"),
            Some(index) => {
                let profile = self.vcpus.get(index).cloned().unwrap_or_default();
                table(&profile, &format!("VCPU {index}"))
            }
        }
    }

    /// The counters, one a line; empty without any.
    pub fn stats_text(&self) -> String {
        let width = self.stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut out = String::new();
        for (name, value) in &self.stats {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{name:<width$} {value:>16}");
        }
        out
    }
}

fn table(profile: &ExitProfile, whom: &str) -> String {
    let sum = profile.sum();
    let mut out = format!("\n\nAnalyze events for all VMs, {whom}:\n\n");
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{:>20} {:>10} {:>9} {:>9} {:>11} {:>11} {:>16} \n",
        "VM-EXIT", "Samples", "Samples%", "Time%", "Min Time", "Max Time", "Avg time"
    );
    for (reason, samples) in profile.rows() {
        let _ = writeln!(
            out,
            "{:>20} {:>10} {:>8.2}% {:>8.2}% {:>9.2}us {:>9.2}us {:>9.2}us ( +-{:>7.2}% )",
            reason.name(),
            samples.count,
            percent(samples.count, sum.count),
            percent(samples.total, sum.total),
            us(samples.min),
            us(samples.max),
            samples.mean() / 1000.0,
            samples.deviation(),
        );
    }
    let _ =
        writeln!(out, "\nTotal Samples:{}, Total events handled time:{:.2}us.\n", sum.count, us(sum.total));
    out
}

#[cfg(test)]
mod tests {
    use satori_defs::vmx::ExitReason;

    use super::*;

    fn profile() -> Profile {
        let mut first = ExitProfile::default();
        for time in [4380, 6500, 662_310] {
            first.record(ExitReason::EptMisconfig, time);
        }
        first.record(ExitReason::PreemptionTimer, 910);
        let mut second = ExitProfile::default();
        second.record(ExitReason::Cpuid, 1700);
        let mut profile = Profile { vcpus: vec![first, second], stats: Vec::new() };
        profile.add_stats(&[("instructions", 10), ("blocks", 1)]);
        profile.add_stats(&[("instructions", 32)]);
        profile
    }

    #[test]
    fn all_vcpus_are_joined_in_perfs_layout() {
        let expected = "\n\nAnalyze events for all VMs, all VCPUs:\n\n             VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time \n\n       EPT_MISCONFIG          3    60.00%    99.61%      4.38us    662.31us    224.40us ( +-  97.58% )\n               CPUID          1    20.00%     0.25%      1.70us      1.70us      1.70us ( +-   0.00% )\n    PREEMPTION_TIMER          1    20.00%     0.13%      0.91us      0.91us      0.91us ( +-   0.00% )\n\nTotal Samples:5, Total events handled time:675.80us.\n\n";
        assert_eq!(profile().text(None), expected);
    }

    #[test]
    fn one_vcpu_or_none_has_its_own_table() {
        let text = profile().text(Some(1));
        assert!(text.starts_with("\n\nAnalyze events for all VMs, VCPU 1:\n\n"), "{text}");
        assert!(text.ends_with("\nTotal Samples:1, Total events handled time:1.70us.\n\n"), "{text}");
        let text = profile().text(Some(7));
        assert!(
            text.ends_with("Avg time \n\n\nTotal Samples:0, Total events handled time:0.00us.\n\n"),
            "{text}"
        );
    }

    #[test]
    fn counters_of_one_name_are_summed() {
        assert_eq!(profile().stats_text(), "instructions               42\nblocks                      1\n");
    }
}
