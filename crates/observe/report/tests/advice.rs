//! The talk's four tables yield the talk's conclusions; each rule fires where it should, and not where it must not.

use satori_hyperv::{Enlightenment as E, Set};
use satori_report::advise::{Rule, Setting, advise, compare};
use satori_report::{Report, Row, Table, Use, Which, diff, read, runs};

/// A report, and what it was made with.
type Case = (Report, Setting);

const NONE: &str = include_str!("talk/none.txt");
const ALL: &str = include_str!("talk/all.txt");
const HIDDEN: &str = include_str!("talk/hidden.txt");
const REPAIRED: &str = include_str!("talk/repaired.txt");

fn table(text: &str) -> Report {
    read(text, Which::Only).unwrap()
}

fn all_but(without: &[E]) -> Set {
    E::ALL.iter().copied().filter(|one| !without.contains(one)).collect()
}

fn setting(offered: Set, hidden: bool) -> Setting {
    Setting { offered: Some(offered), hidden, apicv: Some(true), ..Setting::default() }
}

fn fired(report: &Report, setting: &Setting) -> Vec<&'static str> {
    advise(report, setting).iter().map(|one| one.rule).collect()
}

// The rows of the last table have two exits less than its total.
#[test]
fn the_talks_tables_are_read_whole() {
    for (text, samples, us) in [
        (NONE, 1_238_237, 6_563_955.39),
        (ALL, 659_276, 1_303_363.15),
        (HIDDEN, 326_144, 718_992.36),
        (REPAIRED, 306_937, 683_036.55),
    ] {
        let report = table(text);
        assert_eq!(report.all.samples, samples);
        let read_us = report.all.total_ns as f64 / 1e3;
        assert!((read_us / us - 1.0).abs() < 0.01, "{read_us} {us}");
    }
    assert_eq!(table(NONE).all.row("EPT_MISCONFIG").unwrap().max_ns, 662_310);
}

#[test]
fn the_talks_conclusions() {
    let none = fired(&table(NONE), &setting(Set::default(), false));
    assert!(none.contains(&"user-space-timer") && none.contains(&"nothing-offered"), "{none:?}");
    assert!(none.contains(&"ipi-missing") && !none.contains(&"auto-eoi-apicv"), "{none:?}");

    // Everything on, which in 2021 meant without the deprecation of auto-EOI.
    let all = fired(&table(ALL), &setting(all_but(&[E::Apicv]), false));
    assert!(all.contains(&"auto-eoi-apicv") && all.contains(&"apic-access-hint"), "{all:?}");
    assert!(!all.contains(&"user-space-timer") && !all.contains(&"hypervisor-hidden"), "{all:?}");

    let hidden = fired(&table(HIDDEN), &setting(all_but(&[E::Apicv]), true));
    assert!(hidden.contains(&"hypervisor-hidden") && hidden.contains(&"ipi-missing"), "{hidden:?}");
    assert!(!hidden.contains(&"auto-eoi-apicv"), "{hidden:?}");

    let repaired = fired(&table(REPAIRED), &setting(all_but(&[]), false));
    assert_eq!(repaired, ["as-repaired", "ipi-virtualization", "host-interrupts", "debug-registers"]);
}

#[test]
fn the_talks_conclusions_from_its_tables_alone() {
    let alone = |text| fired(&table(text), &Setting::default());
    assert_eq!(alone(NONE), ["user-space-timer", "interface-unused", "debug-registers"]);
    assert_eq!(alone(ALL), ["auto-eoi-apicv", "apic-access-hint", "debug-registers"]);
    assert_eq!(alone(HIDDEN), ["looks-hidden", "ipi-virtualization", "host-interrupts", "debug-registers"]);
    assert_eq!(alone(REPAIRED), ["as-repaired", "ipi-virtualization", "host-interrupts", "debug-registers"]);
    let told = advise(&table(ALL), &Setting::default());
    assert!(told[0].figures[0].contains("nobody told whether synic is offered"), "{:?}", told[0].figures);
    assert!(told[0].effect.contains("451342 exits (68.5 %)"), "{}", told[0].effect);
}

#[test]
fn the_four_tables_together_are_ordered_as_the_talk_does() {
    let all = [NONE, ALL, HIDDEN, REPAIRED].concat();
    let compared = compare(&runs(&all), &Setting::default());
    let places: Vec<_> = compared.iter().map(|one| one.name.split(' ').nth(1).unwrap()).collect();
    assert_eq!(places, ["4", "3", "2", "1"]);
    let rules: Vec<_> = compared.iter().map(|one| one.findings[0].rule).collect();
    assert_eq!(rules, ["as-repaired", "looks-hidden", "auto-eoi-apicv", "user-space-timer"]);
    assert!(compared[2].ratio[1] < 0.2 && compared[3].ratio == [1.0, 1.0]);
    let none = Setting { apicv: Some(false), ..Setting::default() };
    let all = compare(&runs(&all), &none);
    assert!(all.iter().all(|one| one.findings.iter().all(|found| found.rule != "auto-eoi-apicv")));
    assert!(runs(ALL).is_empty(), "one is no comparison");
    let of_vcpu = ALL.replace("all VCPUs", "VCPU 0");
    assert!(runs(&[ALL, &of_vcpu].concat()).is_empty(), "of one run");
}

#[test]
fn the_talks_order_is_that_of_the_totals() {
    let runs = [NONE, ALL, HIDDEN, REPAIRED].map(table);
    for pair in runs.windows(2) {
        let total = diff::diff(&pair[0], &pair[1]).pop().unwrap();
        assert!(total.samples_ratio.unwrap() < 1.0 && total.time_ratio.unwrap() < 1.0, "{total:?}");
    }
}

/// A report of 1,000 exits, so many of each reason; the rest are HLT.
fn made(rows: &[(&str, u64)]) -> Report {
    let rest = 1000 - rows.iter().map(|(_, samples)| samples).sum::<u64>();
    let mut all = Table::default();
    for &(reason, samples) in rows.iter().chain(&[("HLT", rest)]).filter(|(_, samples)| *samples > 0) {
        let (total_ns, mean_ns) = (samples * 1000, 1000.0);
        let row = Row {
            reason: reason.into(),
            samples,
            total_ns,
            min_ns: 1000,
            max_ns: 1000,
            mean_ns,
            ..Row::default()
        };
        all.add(&Table { samples, total_ns, exits: vec![row], ..Table::default() });
    }
    Report { all, ..Report::default() }
}

#[test]
fn each_rule_fires_and_does_not() {
    let used = |used| {
        let mut report = made(&[]);
        report.hyperv.insert("ipi".into(), Use { offered: true, used, ..Use::default() });
        report
    };
    let everything = || setting(all_but(&[]), false);
    let without = |one: &[E]| setting(all_but(one), false);
    let no_apicv = Setting { apicv: Some(false), ..without(&[E::Apicv]) };
    // The rule; where it fires; where it must not.
    let cases: Vec<(&str, Case, Case)> = vec![
        (
            "user-space-timer",
            (made(&[("EPT_MISCONFIG", 300)]), Setting::default()),
            (made(&[("EPT_MISCONFIG", 300)]), everything()),
        ),
        ("auto-eoi-apicv", (table(ALL), without(&[E::Apicv])), (table(ALL), no_apicv.clone())),
        ("apic-access-hint", (table(ALL), without(&[E::Apicv])), (table(ALL), everything())),
        ("hypervisor-hidden", (made(&[]), setting(all_but(&[]), true)), (made(&[]), everything())),
        ("nothing-offered", (made(&[]), setting(Set::default(), false)), (made(&[]), Setting::default())),
        (
            "interface-unused",
            (made(&[("EPT_MISCONFIG", 300)]), Setting::default()),
            (made(&[("EPT_MISCONFIG", 300), ("MSR_WRITE", 1)]), Setting::default()),
        ),
        (
            "looks-hidden",
            (made(&[("APIC_WRITE", 300)]), Setting::default()),
            (made(&[("APIC_WRITE", 300), ("VMCALL", 1)]), Setting::default()),
        ),
        (
            "as-repaired",
            (made(&[("APIC_WRITE", 300), ("VMCALL", 1)]), everything()),
            (made(&[("APIC_WRITE", 300), ("VMCALL", 1), ("INTERRUPT_WINDOW", 1)]), everything()),
        ),
        (
            "stimer-messages",
            (made(&[("EOI_INDUCED", 20)]), without(&[E::StimerDirect])),
            (made(&[("EOI_INDUCED", 20)]), everything()),
        ),
        (
            "ipi-missing",
            (made(&[("APIC_WRITE", 200)]), without(&[E::Ipi])),
            (made(&[("APIC_WRITE", 200)]), everything()),
        ),
        (
            "ipi-virtualization",
            (made(&[("APIC_WRITE", 500)]), everything()),
            (made(&[("APIC_WRITE", 500), ("INTERRUPT_WINDOW", 9)]), everything()),
        ),
        (
            "ipi-hypercalls",
            (made(&[("VMCALL", 200)]), Setting { ipi_virtualization: Some(true), ..everything() }),
            (made(&[("VMCALL", 200)]), everything()),
        ),
        (
            "apicv-deprecation-alone",
            (made(&[("APIC_ACCESS", 200)]), Setting { apicv: Some(false), ..everything() }),
            (made(&[("APIC_ACCESS", 200)]), no_apicv.clone()),
        ),
        (
            "host-interrupts",
            (made(&[("EXTERNAL_INTERRUPT", 400)]), everything()),
            (made(&[("EXTERNAL_INTERRUPT", 100)]), everything()),
        ),
        (
            "debug-registers",
            (made(&[("DR_ACCESS", 10)]), everything()),
            (made(&[("DR_ACCESS", 9)]), everything()),
        ),
        (
            "spins",
            (made(&[("PAUSE_INSTRUCTION", 60)]), without(&[E::Spinlocks])),
            (made(&[("PAUSE_INSTRUCTION", 60)]), everything()),
        ),
        (
            "clock-reads",
            (made(&[("MSR_READ", 300)]), without(&[E::Time])),
            (made(&[("MSR_READ", 300)]), Setting::default()),
        ),
        ("unused", (used(0), everything()), (used(1), everything())),
    ];
    assert_eq!(cases.len(), Rule::ALL.len(), "a rule without a case");
    for (rule, yes, no) in cases {
        assert!(fired(&yes.0, &yes.1).contains(&rule), "{rule}: {:?}", fired(&yes.0, &yes.1));
        assert!(!fired(&no.0, &no.1).contains(&rule), "{rule}: {:?}", fired(&no.0, &no.1));
    }
}
