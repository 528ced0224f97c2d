//! The modelled VMX processor: a known sequence yields the exits that such a processor under KVM's controls
//! has, and no others, on both engines.

mod common;

use std::collections::BTreeMap;

use common::bare::run;
use common::scratch;

type Counts = BTreeMap<String, i64>;

fn exits(case: &str, processor: &str, engine: &str) -> Counts {
    let file = scratch(&format!("{case}-{processor}-{engine}.json"));
    let path = file.to_str().expect("UTF-8");
    let flags = ["--processor", processor, "--engine", engine, "--clock", "virtual", "--host-tick", "0"];
    let report = ["--report", "json", "--report-file", path];
    let ended = run("exits", 1, &format!("only={case}"), &[&flags[..], &report].concat());
    assert_eq!(ended.status, 1, "{}\n{}", ended.console, ended.messages);
    let text = std::fs::read_to_string(&file).expect("the report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = report["all"]["exits"].as_array().expect("rows");
    rows.iter()
        .map(|row| (row["reason"].as_str().unwrap().into(), row["samples"].as_i64().unwrap()))
        .collect()
}

/// A case of the guest, a processor, and the exits beyond those of a guest that does nothing.
type Case = (&'static str, &'static str, &'static [(&'static str, i64)]);

const ROWS: &[Case] = &[
    ("eoi", "no-apicv", &[("EPT_VIOLATION", 7)]),
    ("eoi", "haswell", &[]),
    ("eoi", "haswell,-posted-interrupts", &[("EPT_VIOLATION", 7)]),
    ("eoi", "haswell,-tpr-shadow", &[("EPT_MISCONFIG", 7)]),
    ("task_priority", "haswell", &[]),
    ("task_priority", "no-apicv", &[("EPT_VIOLATION", 7)]),
    ("task_priority", "no-apicv,-tpr-shadow", &[("EPT_MISCONFIG", 7)]),
    ("cr8", "no-apicv", &[]),
    ("cr8", "no-apicv,-tpr-shadow", &[("CR_ACCESS", 14)]),
    ("own_ipi", "no-apicv", &[("EPT_VIOLATION", 7)]),
    ("own_ipi", "skylake", &[]),
    ("ipi", "no-apicv", &[("EPT_VIOLATION", 7)]),
    ("ipi", "skylake", &[("APIC_WRITE", 7)]),
    ("ipi", "sapphire-rapids", &[]),
    ("ipi", "sapphire-rapids,-ipi-virtualization", &[("APIC_WRITE", 7)]),
    ("registers", "no-apicv", &[("EPT_VIOLATION", 28)]),
    ("registers", "haswell", &[("APIC_ACCESS", 14), ("APIC_WRITE", 7)]),
    ("x2apic", "no-apicv", &[("MSR_READ", 15), ("MSR_WRITE", 22)]),
    ("x2apic", "haswell", &[("MSR_READ", 8), ("MSR_WRITE", 8)]),
    ("x2apic", "sapphire-rapids", &[("MSR_READ", 8), ("MSR_WRITE", 1)]),
    ("debug", "haswell", &[("DR_ACCESS", 1)]),
    ("cpuid", "haswell", &[("CPUID", 7), ("DR_ACCESS", 7)]),
    // The harness reads DR6 behind each interrupt, and KVM lets go of the debug registers at each exit.
    ("interrupt", "no-apicv", &[("EPT_VIOLATION", 14), ("DR_ACCESS", 7), ("INTERRUPT_WINDOW", 7)]),
    ("interrupt", "haswell", &[("DR_ACCESS", 1)]),
    ("msrs", "haswell", &[("MSR_READ", 7), ("MSR_WRITE", 7)]),
];

#[test]
fn each_switch_yields_exactly_its_exits() {
    let mut wrong = String::new();
    for engine in ["interpreter", "translator"] {
        for &(case, processor, want) in ROWS {
            let without = exits("nothing", processor, engine);
            let mut got = exits(case, processor, engine);
            without.iter().for_each(|(reason, count)| *got.entry(reason.clone()).or_default() -= count);
            got.retain(|_, count| *count != 0);
            let want: Counts = want.iter().map(|&(reason, count)| (reason.into(), count)).collect();
            if got != want {
                wrong += &format!("{case} on {processor}, {engine}: {got:?} instead of {want:?}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
