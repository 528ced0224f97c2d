//! Guests of a guest: what their exits cost a hypervisor below.
//!
//! On hardware each exit of L2 comes to L0 first, and each VMREAD, VMWRITE and VMRESUME by which L1 handles it is an exit of its
//! own. The engine counts them by L2's reason; here they come to what L0 pays as Linux has it by default, with a shadow VMCS,
//! and with Hyper-V's enlightened VMCS.

use std::fmt::Write;

use satori_defs::svm::ExitCode;
use satori_defs::vmx::{ExitReason, NestedWork};
use serde::{Deserialize, Serialize};

use crate::Report;

/// Cycles of one exit of L2 through L1 and back, as a line through two measurements of a CPUID in L2: 20,700 cycles, with 9 exits to
/// L0, and 8,900 with an enlightened VMCS, with 2.
pub const SOURCE: &str = "V. Kuznetsov, A slightly different nesting, FOSDEM 2018: CPUID in L2, 20,700 cycles and with eVMCS 8,900";
const CYCLES_PER_EXIT: f64 = (20_700.0 - 8_900.0) / 7.0;
const CYCLES_AT_LEAST: f64 = 8_900.0 - 2.0 * CYCLES_PER_EXIT;

/// The exits of L2 for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The reason.
    pub reason: String,
    /// Those that L1 handled.
    pub exits: u64,
    /// Those of which L1 knows nothing, as L0 handled them.
    pub kept: u64,
    /// What L1 executed to handle them, by the names of the columns.
    pub vmread: u64,
    /// VMWRITEs.
    pub vmwrite: u64,
    /// Of both, those of fields that a shadow VMCS holds.
    pub shadowed: u64,
    /// Entries, pointers and invalidations.
    pub instructions: u64,
    /// Other exits of L1.
    pub other: u64,
}

impl Row {
    fn per_exit(&self, works: u64) -> f64 {
        if self.exits == 0 { 0.0 } else { 1.0 + works as f64 / self.exits as f64 }
    }

    /// Exits to L0 for one of L2, if every VMREAD and VMWRITE is one.
    pub fn plain(&self) -> f64 {
        self.per_exit(self.vmread + self.vmwrite + self.instructions)
    }

    /// The same where L0 shadows the VMCS.
    pub fn with_shadowing(&self) -> f64 {
        self.per_exit(
            self.vmread + self.vmwrite - self.shadowed.min(self.vmread + self.vmwrite) + self.instructions,
        )
    }

    /// The same where L1 uses an enlightened VMCS.
    pub fn enlightened(&self) -> f64 {
        self.per_exit(self.instructions)
    }
}

/// What is told of L2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Nested {
    /// VM entries.
    pub entries: u64,
    /// VM entries that failed.
    pub failed: u64,
    /// Of all, those with an enlightened VMCS.
    pub enlightened: u64,
    /// Groups of its fields, of sixteen, that were clean at those, on average.
    pub clean: f64,
    /// Entries whose MSR bitmap L0 need not look at.
    pub bitmaps_spared: u64,
    /// The exits, most first.
    pub rows: Vec<Row>,
    /// The same of an L1 that uses SVM.
    #[serde(default)]
    pub codes: Vec<Code>,
}

/// The exits of L2 with one of SVM's codes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Code {
    /// The code's name, as Linux has it.
    pub code: String,
    /// Those that L1 handled.
    pub exits: u64,
}

/// Modelled cycles of an exit of L2 with so many exits to L0.
pub fn cycles(exits: f64) -> f64 {
    if exits == 0.0 { 0.0 } else { CYCLES_AT_LEAST + CYCLES_PER_EXIT * exits }
}

impl Nested {
    /// What `report` tells, if the guest had guests.
    pub fn of(report: &Report) -> Option<Nested> {
        Nested::of_stats(|name| {
            report.stats.iter().find(|stat| stat.name == name).map_or(0, |stat| stat.value)
        })
    }

    /// What counters of these names tell, if the guest had guests.
    pub fn of_stats(stat: impl Fn(&str) -> u64) -> Option<Nested> {
        let (entries, failed) = (stat("entries of L2"), stat("entries of L2 that failed"));
        if entries + failed == 0 {
            return None;
        }
        let enlightened = stat("entries of L2 with eVMCS");
        let row = |reason: &ExitReason| {
            let work = |kinds: &[NestedWork]| kinds.iter().map(|work| stat(reason.nested_work(*work))).sum();
            use NestedWork as Work;
            Row {
                reason: reason.name().into(),
                exits: stat(reason.nested()),
                kept: stat(reason.nested_kept()),
                vmread: work(&[Work::VmreadShadowed, Work::Vmread]),
                vmwrite: work(&[Work::VmwriteShadowed, Work::Vmwrite]),
                shadowed: work(&[Work::VmreadShadowed, Work::VmwriteShadowed]),
                instructions: work(&[Work::Entry, Work::Switch, Work::Invalidate]),
                other: work(&[Work::Other]),
            }
        };
        let mut rows: Vec<_> =
            ExitReason::ALL.iter().map(row).filter(|row| row.exits + row.kept != 0).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.exits, row.kept)));
        let clean = stat("clean fields at entries of L2") as f64 / enlightened.max(1) as f64;
        let bitmaps_spared = stat("MSR bitmaps of L2 known to be unchanged");
        let code = |code: &ExitCode| Code { code: code.name().into(), exits: stat(code.nested()) };
        let mut codes: Vec<_> = ExitCode::ALL.iter().map(code).filter(|code| code.exits != 0).collect();
        codes.sort_by_key(|code| std::cmp::Reverse(code.exits));
        Some(Nested { entries, failed, enlightened, clean, bitmaps_spared, rows, codes })
    }

    /// The section of the text where L1 used SVM.
    fn codes_text(&self) -> String {
        let (entries, failed) = (self.entries, self.failed);
        let mut out = format!("Guests of the guest (L2), by SVM: {entries} entries, {failed} failed\n");
        let _ = writeln!(out, "{:>20} {:>9}", "L2's exit", "to L1");
        for Code { code, exits } in &self.codes {
            let _ = writeln!(out, "{code:>20} {exits:>9}");
        }
        out
    }

    /// The section of the text.
    pub fn text(&self) -> String {
        if !self.codes.is_empty() {
            return self.codes_text();
        }
        let mut out = format!(
            "Guests of the guest (L2): {} entries, {} failed, {} with an enlightened VMCS",
            self.entries, self.failed, self.enlightened
        );
        // Writing to a String cannot fail.
        if self.enlightened != 0 {
            let _ = write!(
                out,
                " ({:.1} of 16 groups clean, {} MSR bitmaps known to be unchanged)",
                self.clean, self.bitmaps_spared
            );
        }
        out += "\nL0's exits for one of L2's, and modelled cycles, were this hardware:\n";
        let _ = writeln!(
            out,
            "{:>20} {:>9} {:>9} {:>8} {:>8} {:>7} | {:>6} {:>8} {:>6} | {:>7} {:>8} {:>7}",
            "L2's exit",
            "to L1",
            "by L0",
            "VMREADs",
            "VMWRITEs",
            "others",
            "plain",
            "shadowed",
            "eVMCS",
            "plain",
            "shadowed",
            "eVMCS"
        );
        for row in &self.rows {
            let each = |count: u64| count as f64 / row.exits.max(1) as f64;
            let ways = [row.plain(), row.with_shadowing(), row.enlightened()];
            let _ = write!(
                out,
                "{:>20} {:>9} {:>9} {:>8.1} {:>8.1} {:>7.1} | {:>6.1} {:>8.1} {:>6.1}",
                row.reason,
                row.exits,
                row.kept,
                each(row.vmread),
                each(row.vmwrite),
                each(row.instructions),
                ways[0],
                ways[1],
                ways[2]
            );
            let [plain, shadowed, enlightened] = ways.map(cycles);
            let _ = writeln!(out, " | {plain:>7.0} {shadowed:>8.0} {enlightened:>7.0}");
        }
        if self.enlightened != 0 {
            out += "An enlightened VMCS is read and written in memory: without it L1's VMREADs and VMWRITEs would be in the table.\n";
        }
        let _ = writeln!(out, "Cycles: {SOURCE}.");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    fn report(stats: &[(&str, u64)]) -> Report {
        let stats = stats.iter().map(|(name, value)| Counter { name: (*name).into(), value: *value });
        Report { stats: stats.collect(), ..Report::default() }
    }

    #[test]
    fn exits_of_svm_have_their_own_names() {
        let told = [("entries of L2", 9), (ExitCode::Npf.nested(), 5), (ExitCode::Msr.nested(), 7)];
        let nested = Nested::of(&report(&told)).unwrap();
        assert!(nested.rows.is_empty() && nested.codes[0] == Code { code: "msr".into(), exits: 7 });
        let text = nested.text();
        assert!(text.contains("by SVM: 9 entries, 0 failed") && text.contains(" npf         5"), "{text}");
    }

    #[test]
    fn a_cpuid_of_l2_costs_what_the_talk_measured() {
        assert_eq!(Nested::of(&report(&[("blocks decoded", 3)])), None);
        let nested = Nested::of(&report(&[
            ("entries of L2", 101),
            (ExitReason::Cpuid.nested(), 100),
            (ExitReason::ExternalInterrupt.nested_kept(), 7),
            (ExitReason::Cpuid.nested_work(NestedWork::VmreadShadowed), 600),
            (ExitReason::Cpuid.nested_work(NestedWork::Vmwrite), 100),
            (ExitReason::Cpuid.nested_work(NestedWork::Entry), 100),
        ]))
        .unwrap();
        let cpuid = &nested.rows[0];
        assert_eq!((cpuid.reason.as_str(), cpuid.exits, cpuid.vmread), ("CPUID", 100, 600));
        assert_eq!((cpuid.plain(), cpuid.with_shadowing(), cpuid.enlightened()), (9.0, 3.0, 2.0));
        assert_eq!((cycles(cpuid.plain()).round(), cycles(cpuid.enlightened()).round()), (20_700.0, 8_900.0));
        assert_eq!((nested.rows[1].reason.as_str(), nested.rows[1].kept), ("EXTERNAL_INTERRUPT", 7));
        let text = nested.text();
        assert!(text.contains("101 entries, 0 failed, 0 with"), "{text}");
        assert!(text.contains("20700") && text.contains("8900"), "{text}");
    }
}
