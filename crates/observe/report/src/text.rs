//! A report as `perf kvm stat report` prints it.

use std::fmt::Write;

use crate::{Report, Table};

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

/// The table of all vCPUs, or of one; of one that is not told of it is empty.
pub fn text(report: &Report, vcpu: Option<u64>) -> String {
    let none = Table::default();
    let (table, whom) = match vcpu {
        None => (&report.all, "all VCPUs".to_string()),
        Some(wanted) => {
            let found = report.vcpus.iter().find(|table| table.vcpu == Some(wanted));
            (found.unwrap_or(&none), format!("VCPU {wanted}"))
        }
    };
    let mut out = format!("\n\nAnalyze events for all VMs, {whom}:\n\n");
    let modelled = table.modelled();
    // perf's columns, and behind them one that only a model fills. Writing to a String cannot fail.
    let _ = write!(
        out,
        "{:>20} {:>10} {:>9} {:>9} {:>11} {:>11} {:>16} ",
        "VM-EXIT", "Samples", "Samples%", "Time%", "Min Time", "Max Time", "Avg time"
    );
    out += if modelled.is_some() { "                 Modelled\n\n" } else { "\n\n" };
    let us = |ns: u64| ns as f64 / 1e3;
    for row in &table.exits {
        let _ = write!(
            out,
            "{:>20} {:>10} {:>8.2}% {:>8.2}% {:>9.2}us {:>9.2}us {:>9.2}us ( +-{:>7.2}% )",
            row.reason,
            row.samples,
            percent(row.samples, table.samples),
            percent(row.total_ns, table.total_ns),
            us(row.min_ns),
            us(row.max_ns),
            row.mean_ns / 1e3,
            row.deviation_percent,
        );
        match row.modelled_ns.filter(|_| modelled.is_some()) {
            Some(ns) => _ = writeln!(out, " {:>10.2}us", us(ns)),
            None if modelled.is_some() => _ = writeln!(out, " {:>12}", "-"),
            None => out.push('\n'),
        }
    }
    let time = us(table.total_ns);
    let _ = writeln!(out, "\nTotal Samples:{}, Total events handled time:{time:.2}us.", table.samples);
    if let Some(timed) = table.timed() {
        let _ = writeln!(out, "Times are those of {timed} of them; where exits come fast, few are timed.");
    }
    if let Some(modelled) = modelled {
        let on = report.processor.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let _ = write!(out, "Modelled cost{on}:{:.2}us", us(modelled.ns));
        if modelled.unknown > 0 {
            let _ = write!(out, ", without {} exits whose cost no file tells", modelled.unknown);
        }
        out += ".\n";
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;

    fn report() -> Report {
        let row = |reason: &str, samples, total_ns, min_ns, max_ns, deviation_percent| Row {
            reason: reason.into(),
            samples,
            total_ns,
            min_ns,
            max_ns,
            mean_ns: total_ns as f64 / samples as f64,
            deviation_percent,
            ..Row::default()
        };
        let first = vec![
            row("EPT_MISCONFIG", 3, 673_190, 4380, 662_310, 97.58),
            row("PREEMPTION_TIMER", 1, 910, 910, 910, 0.0),
        ];
        let first = Table { vcpu: Some(0), samples: 4, total_ns: 674_100, exits: first };
        let second = vec![row("CPUID", 1, 1700, 1700, 1700, 0.0)];
        let second = Table { vcpu: Some(1), samples: 1, total_ns: 1700, exits: second };
        let mut all = first.clone();
        all.add(&second);
        all.exits[0].deviation_percent = 97.58;
        Report { all, vcpus: vec![first, second], ..Report::default() }
    }

    #[test]
    fn all_vcpus_are_joined_in_perfs_layout() {
        let expected = "\n\nAnalyze events for all VMs, all VCPUs:\n\n             VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time \n\n       EPT_MISCONFIG          3    60.00%    99.61%      4.38us    662.31us    224.40us ( +-  97.58% )\n               CPUID          1    20.00%     0.25%      1.70us      1.70us      1.70us ( +-   0.00% )\n    PREEMPTION_TIMER          1    20.00%     0.13%      0.91us      0.91us      0.91us ( +-   0.00% )\n\nTotal Samples:5, Total events handled time:675.80us.\n\n";
        assert_eq!(text(&report(), None), expected);
    }

    #[test]
    fn one_vcpu_or_none_has_its_own_table() {
        let told = text(&report(), Some(1));
        assert!(told.starts_with("\n\nAnalyze events for all VMs, VCPU 1:\n\n"), "{told}");
        assert!(told.ends_with("\nTotal Samples:1, Total events handled time:1.70us.\n\n"), "{told}");
        let told = text(&report(), Some(7));
        assert!(
            told.ends_with("Avg time \n\n\nTotal Samples:0, Total events handled time:0.00us.\n\n"),
            "{told}"
        );
    }

    #[test]
    fn the_modelled_cost_is_a_column_of_its_own() {
        let mut report = report();
        report.processor = Some("haswell".into());
        report.model_if_missing();
        report.all.exits[1].modelled_ns = None;
        let told = text(&report, None);
        let line = |first: &str| told.lines().find(|line| line.trim_start().starts_with(first)).unwrap();
        assert!(line("VM-EXIT").ends_with(" Modelled"), "{told}");
        assert!(line("EPT_MISCONFIG").ends_with("( +-  97.58% )      19.50us"), "{told}");
        assert!(line("CPUID").ends_with(" -"), "{told}");
        assert_eq!(
            line("Modelled"),
            "Modelled cost on haswell:20.41us, without 1 exits whose cost no file tells."
        );
    }
}
