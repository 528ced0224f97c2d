//! The section on guests of the guest: each run's, so that one with an enlightened VMCS stands below one without.

use std::fmt::Write;

use super::grouped;
use crate::Report;
use crate::nested::{Nested, SOURCE, cycles};
use crate::svg::escape;

/// The section of `run`, if its guest had guests.
pub(super) fn section(body: &mut String, name: &str, run: &Report) {
    let Some(nested) = Nested::of(run) else { return };
    // Writing to a String cannot fail.
    let _ = write!(
        body,
        "<section class=\"exits\"><h2>{}: guests of the guest (L2)</h2><p>{} entries, {} failed, {} with an enlightened VMCS. \
         What one exit of L2 would cost a hypervisor below L1: exits to it, and modelled cycles ({}).</p>\
         <table><tr><th>L2's exit</th><th>to L1</th><th>by L0</th><th>VMREADs</th><th>VMWRITEs</th><th>exits, plain</th>\
         <th>shadowed</th><th>eVMCS</th><th>cycles, plain</th><th>shadowed</th><th>eVMCS</th></tr>",
        escape(name),
        grouped(nested.entries),
        grouped(nested.failed),
        grouped(nested.enlightened),
        escape(SOURCE)
    );
    for row in &nested.rows {
        let each = |count: u64| count as f64 / row.exits.max(1) as f64;
        let ways = [row.plain(), row.with_shadowing(), row.enlightened()];
        let _ = write!(
            body,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td>",
            escape(&row.reason),
            grouped(row.exits),
            grouped(row.kept),
            each(row.vmread),
            each(row.vmwrite)
        );
        ways.iter().for_each(|exits| _ = write!(body, "<td>{exits:.1}</td>"));
        ways.iter().for_each(|exits| _ = write!(body, "<td>{}</td>", grouped(cycles(*exits).round() as u64)));
        *body += "</tr>";
    }
    *body += "</table></section>";
}

#[cfg(test)]
mod tests {
    use satori_defs::vmx::{ExitReason, NestedWork};

    use super::*;
    use crate::Counter;

    #[test]
    fn only_a_guest_with_guests_has_the_section() {
        let stat = |name: &str, value| Counter { name: name.into(), value };
        let mut run = Report::default();
        let mut body = String::new();
        section(&mut body, "plain", &run);
        assert_eq!(body, "");
        run.stats = vec![
            stat("entries of L2", 1234),
            stat(ExitReason::Cpuid.nested(), 10),
            stat(ExitReason::Cpuid.nested_work(NestedWork::Vmread), 70),
            stat(ExitReason::Cpuid.nested_work(NestedWork::Entry), 10),
        ];
        section(&mut body, "<a>", &run);
        assert!(body.contains("&lt;a&gt;: guests of the guest") && body.contains("1,234 entries"), "{body}");
        assert!(
            body.contains("<td>CPUID</td><td>10</td><td>0</td><td>7.0</td>") && body.contains("20,700"),
            "{body}"
        );
    }
}
