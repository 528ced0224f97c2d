//! The talk's four tables yield the talk's conclusions; each rule fires where it should, and not where it must not.

use satori_hyperv::{Enlightenment as E, Set};
use satori_report::advise::{Guest, Rule, Setting, Words, advise, compare, text};
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
    advise(report, setting).findings.iter().map(|one| one.rule).collect()
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
    assert_eq!(alone(NONE), ["user-space-timer", "interface-unused", "mmio-devices", "debug-registers"]);
    assert_eq!(
        alone(ALL),
        ["auto-eoi-apicv", "apic-access-hint", "apicv-not-in-force", "msr-writes", "debug-registers"]
    );
    assert_eq!(alone(HIDDEN), ["looks-hidden", "ipi-virtualization", "host-interrupts", "debug-registers"]);
    assert_eq!(alone(REPAIRED), ["as-repaired", "ipi-virtualization", "host-interrupts", "debug-registers"]);
    let told = advise(&table(ALL), &Setting::default()).findings;
    assert!(told[0].figures[0].contains("nobody told whether synic is offered"), "{:?}", told[0].figures);
    assert!(told[0].effect.contains("451342 exits (68.5 %)"), "{}", told[0].effect);
}

#[test]
fn the_four_tables_together_are_ordered_as_the_talk_does() {
    let all = [NONE, ALL, HIDDEN, REPAIRED].concat();
    let compared = compare(&runs(&all), &Setting::default());
    let places: Vec<_> = compared.iter().map(|one| one.name.split(' ').nth(1).unwrap()).collect();
    assert_eq!(places, ["4", "3", "2", "1"]);
    let rules: Vec<_> = compared.iter().map(|one| one.advice.findings[0].rule).collect();
    assert_eq!(rules, ["as-repaired", "looks-hidden", "auto-eoi-apicv", "user-space-timer"]);
    assert!(compared[2].ratio[1] < 0.2 && compared[3].ratio == [1.0, 1.0]);
    let none = Setting { apicv: Some(false), ..Setting::default() };
    let all = compare(&runs(&all), &none);
    assert!(all.iter().all(|one| one.advice.findings.iter().all(|found| found.rule != "auto-eoi-apicv")));
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
        let (total_ns, mean_ns) = (samples * 5000, 5000.0);
        let row = Row {
            reason: reason.into(),
            samples,
            total_ns,
            min_ns: 5000,
            max_ns: 5000,
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
    // Exits of which nobody tells more.
    let alone = |rows: &[(&str, u64)]| (made(rows), Setting::default());
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
            (made(&[("EXTERNAL_INTERRUPT", 100), ("CPUID", 600)]), everything()),
        ),
        (
            "debug-registers",
            (made(&[("DR_ACCESS", 10)]), everything()),
            (made(&[("DR_ACCESS", 5), ("CPUID", 900)]), everything()),
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
        ("unknown-exits", alone(&[("DABT_LOW", 900)]), alone(&[("npf", 900)])),
        ("few-exits", alone(&[("CPUID", 10)]), (table(ALL), Setting::default())),
        ("mostly-idle", alone(&[("CPUID", 10)]), alone(&[("CPUID", 900)])),
        (
            "apicv-not-in-force",
            alone(&[("PENDING_INTERRUPT", 300)]),
            (made(&[("PENDING_INTERRUPT", 300)]), Setting { apicv: Some(false), ..Setting::default() }),
        ),
        ("sleeping-targets", alone(&[("avic_incomplete_ipi", 200), ("io", 500)]), alone(&[("io", 500)])),
        ("msr-writes", alone(&[("msr", 200)]), alone(&[("msr", 20), ("io", 500)])),
        ("msr-reads", alone(&[("MSR_READ", 900)]), alone(&[("msr", 900)])),
        ("port-devices", alone(&[("io", 300)]), alone(&[("npf", 900)])),
        ("mmio-devices", alone(&[("EPT_MISCONFIG", 300)]), alone(&[("npf", 900)])),
        ("memory-faults", alone(&[("EPT_VIOLATION", 300)]), alone(&[("npf", 900)])),
        ("nested-page-faults", alone(&[("npf", 900)]), alone(&[("EPT_VIOLATION", 300)])),
        ("nested-guest", alone(&[("VMRESUME", 300)]), alone(&[("VMCALL", 300)])),
        (
            "pause-loops",
            (made(&[("pause", 300)]), Setting { guest: Some(Guest::Linux), ..Setting::default() }),
            alone(&[("io", 300)]),
        ),
        ("cpuid-loop", alone(&[("cpuid", 300)]), alone(&[("io", 300)])),
    ];
    assert_eq!(cases.len(), Rule::ALL.len(), "a rule without a case");
    for (rule, yes, no) in cases {
        assert!(fired(&yes.0, &yes.1).contains(&rule), "{rule}: {:?}", fired(&yes.0, &yes.1));
        assert!(!fired(&no.0, &no.1).contains(&rule), "{rule}: {:?}", fired(&no.0, &no.1));
    }
}

/// The classic case, of a guest that sleeps half the time.
fn idling() -> Report {
    let mut report = table(NONE);
    let total_ns = report.all.total_ns * 20;
    let row = Row { reason: "HLT".into(), samples: 100_000, total_ns, max_ns: total_ns, ..Row::default() };
    report.all.add(&Table { samples: 100_000, total_ns, exits: vec![row], ..Table::default() });
    report
}

#[test]
fn idling_is_no_cost() {
    let told = advise(&idling(), &Setting::default());
    let timer = told.findings.iter().find(|one| one.rule == "user-space-timer").expect("the classic case");
    assert!(timer.figures[0].contains("(72.2 %), 5.813 s (88.6 %)"), "{:?}", timer.figures);
    assert!(timer.effect.contains("(88.6 % of the time in exits without idling)"), "{}", timer.effect);
    assert!(told.idle.samples == 100_000 && text(&told).contains("Idling, 100000 exits"), "{}", text(&told));
}

#[test]
fn what_cannot_be_judged_is_counted() {
    let told = advise(&table(ALL), &Setting::default());
    assert!(told.without_configuration.contains(&"hypervisor-hidden"), "{told:?}");
    let said = text(&told);
    assert!(
        said.contains(
            " rules could not be judged without the guest's configuration (--libvirt domain.xml would do"
        ),
        "{said}"
    );
    let known =
        advise(&table(ALL), &Setting { ipi_virtualization: Some(false), ..setting(all_but(&[]), false) });
    assert!(known.without_configuration.is_empty() && known.without_processor.is_empty(), "{known:?}");
}

#[test]
fn advice_is_in_the_words_of_the_configuration() {
    let of = |words| advise(&table(NONE), &Setting { words, ..setting(Set::default(), false) });
    let xml = of(Words::Libvirt).findings[0].write.join("\n");
    for part in [
        "<synic state='on'/>",
        "<vpindex state='on'/>",
        "<timer name='hypervclock' present='yes'/><timer name='hpet' present='no'/>",
    ] {
        assert!(xml.contains(part) && !xml.contains("hv-"), "{xml}");
    }
    let qemu = of(Words::Qemu).findings[0].write.join("\n");
    assert!(
        qemu.contains("hv-vpindex,hv-time,") && qemu.contains("hpet=off") && !qemu.contains('<'),
        "{qemu}"
    );
}

#[test]
fn a_linux_guest_is_told_nothing_that_is_windows() {
    let spins = made(&[("PAUSE_INSTRUCTION", 300)]);
    let linux = Setting { guest: Some(Guest::Linux), ..Setting::default() };
    assert_eq!(fired(&spins, &linux), ["few-exits", "pause-loops"]);
    // So many windows and no task priority.
    let guessed =
        fired(&made(&[("PAUSE_INSTRUCTION", 300), ("PENDING_INTERRUPT", 200)]), &Setting::default());
    assert!(!guessed.contains(&"spins") && guessed.contains(&"pause-loops"), "{guessed:?}");
}
