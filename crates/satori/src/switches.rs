//! What left guests of the guest for EL2 on AArch64, and what was done until they went on.

use satori_machine::Outcome;

/// Columns: a heading, and the beginnings of the counters that are added up in it.
const COLUMNS: [(&str, &[&str]); 9] = [
    ("instr.", &["instructions"]),
    ("levels", &["exceptions", "returns"]),
    ("EL1", &["read_el1", "write_el1"]),
    ("EL2", &["read_el2", "write_el2", "read_traps", "write_traps", "read_stage2", "write_stage2"]),
    ("syndr.", &["read_syndrome", "write_syndrome"]),
    ("timer", &["read_timer", "write_timer"]),
    ("vGIC", &["read_virtual_gic", "write_virtual_gic"]),
    ("devices", &["device_reads", "device_writes"]),
    ("barr.", &["barriers", "tlbi"]),
];

/// Exits by exception class, and the anatomy of switches by kind; nothing if nothing left.
pub(crate) fn text(outcome: &Outcome) -> String {
    if outcome.arm.is_none() {
        return String::new();
    }
    let stats = &outcome.profile.stats;
    let counts = stats.iter().filter_map(|(name, count)| Some((name.strip_prefix("el2_")?, *count)));
    let mut rows: Vec<_> = counts.collect();
    rows.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    if rows.is_empty() {
        return String::new();
    }
    let head = format!("\n{:<20}{:>11}\n", "Guests' exits to EL2", "Samples");
    let text = rows.iter().fold(head, |text, (name, count)| text + &format!("{name:>20}{count:>11}\n"));
    text + &anatomy(stats)
}

/// What was done of each kind of exit until the guest went on, as means.
fn anatomy(stats: &[(String, u64)]) -> String {
    let each = stats.iter().filter_map(|(name, count)| {
        let (kind, event) = name.strip_prefix("switch.")?.split_once('.')?;
        Some((kind, event, *count))
    });
    let each: Vec<_> = each.collect();
    let mut kinds: Vec<_> = each.iter().filter(|(_, event, _)| *event == "samples").collect();
    kinds.sort_by_key(|&&(kind, _, count)| (std::cmp::Reverse(count), kind));
    if kinds.is_empty() {
        return String::new();
    }
    let headings = COLUMNS.map(|(name, _)| format!("{name:>9}")).concat();
    let mut text = format!("\n{:<20}{:>11}{headings}\n", "Until it went on", "Samples");
    for &&(kind, _, samples) in &kinds {
        let cells = COLUMNS.map(|(_, events)| {
            let sum: u64 = each
                .iter()
                .filter(|(of, event, _)| *of == kind && events.contains(event))
                .map(|row| row.2)
                .sum();
            format!("{:>9.1}", sum as f64 / samples as f64)
        });
        text += &format!("{kind:>20}{samples:>11}{}\n", cells.concat());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_told_by_means() {
        let stats = [
            ("switch.HVC64.samples", 4),
            ("switch.HVC64.instructions", 400),
            ("switch.HVC64.read_el1", 6),
            ("switch.HVC64.write_el1", 8),
            ("switch.IRQ.samples", 9),
        ];
        let text = anatomy(&stats.map(|(name, count)| (name.to_string(), count)));
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2][..3], ["IRQ", "9", "0.0"]);
        assert_eq!(lines[3][..5], ["HVC64", "4", "100.0", "0.0", "3.5"]);
        assert_eq!(anatomy(&[]), "");
    }
}
