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
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{:>20} {:>10} {:>9} {:>9} {:>11} {:>11} {:>16} \n",
        "VM-EXIT", "Samples", "Samples%", "Time%", "Min Time", "Max Time", "Avg time"
    );
    let us = |ns: u64| ns as f64 / 1e3;
    for row in &table.exits {
        let _ = writeln!(
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
    }
    let time = us(table.total_ns);
    let _ = writeln!(out, "\nTotal Samples:{}, Total events handled time:{time:.2}us.\n", table.samples);
    out
}
