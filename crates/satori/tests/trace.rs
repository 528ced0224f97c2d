//! `--trace`: what is in the file agrees with the report, and a run under the virtual clock leaves the same bytes.

mod common;

use std::collections::BTreeMap;

use common::bare::run;
use common::scratch;
use serde_json::Value;

/// A run of a guest on two processors: the trace's text, and the report.
fn traced(name: &str, filter: &str, more: &[&str]) -> (String, Value) {
    let (trace, report) = (scratch(&format!("{name}.trace")), scratch(&format!("{name}.json")));
    let spec = format!("{}{filter}", trace.display());
    let flags = ["--trace", &spec, "--report", "json", "--report-file", report.to_str().expect("UTF-8")];
    let ended = run("exits", 2, "", &[&flags[..], more].concat());
    assert_eq!(ended.status, 1, "{}\n{}", ended.console, ended.messages);
    assert!(ended.messages.contains("trace: "), "{}", ended.messages);
    let read = |path| std::fs::read_to_string(path).expect("a text");
    (read(&trace), serde_json::from_str(&read(&report)).expect("JSON"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Exits by reason of each vCPU, with nanoseconds; slices of a track are in order and do not overlap.
fn exits(trace: &Value) -> BTreeMap<(u64, String), (u64, f64)> {
    let mut sums: BTreeMap<_, (u64, f64)> = BTreeMap::new();
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    let events = trace["traceEvents"].as_array().expect("events");
    for event in events.iter().filter(|event| event["cat"] == "exit") {
        let (track, begin, length) =
            (event["tid"].as_u64().unwrap(), number(&event["ts"]), number(&event["dur"]));
        let end = ends.entry(track).or_default();
        assert!(begin + 1e-6 >= *end, "{event} begins before the one before it has ended");
        *end = begin + length;
        let sum = sums.entry((track - 1, event["name"].as_str().unwrap().to_owned())).or_default();
        *sum = (sum.0 + 1, sum.1 + length * 1e3);
    }
    sums
}

fn agree(trace: &Value, report: &Value) {
    let traced = exits(trace);
    let mut reported = 0;
    for table in report["vcpus"].as_array().expect("tables") {
        let vcpu = table["vcpu"].as_u64().unwrap();
        for row in table["exits"].as_array().unwrap() {
            let reason = row["reason"].as_str().unwrap();
            let (count, time) = traced.get(&(vcpu, reason.to_owned())).copied().unwrap_or_default();
            assert_eq!(Some(count), row["samples"].as_u64(), "{reason} of vCPU {vcpu}");
            // The file has whole nanoseconds as fractions of microseconds.
            assert!(
                (time - number(&row["total_ns"])).abs() < 1.0 + count as f64 * 0.01,
                "{reason}: {time}, {row}"
            );
            reported += 1;
        }
    }
    assert_eq!(traced.len(), reported, "the trace has what the report has not: {traced:?}");
}

#[test]
fn a_trace_agrees_with_the_report() {
    let (text, report) = traced("real", "", &[]);
    agree(&serde_json::from_str(&text).expect("JSON"), &report);
    let exact = ["--clock", "virtual"];
    let (text, report) = traced("virtual", "", &exact);
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    agree(&trace, &report);
    assert_eq!(trace["otherData"]["dropped"], "0");
    for kind in ["exit", "msr", "interrupt"] {
        let mut events = trace["traceEvents"].as_array().unwrap().iter();
        assert!(events.any(|event| event["cat"] == kind), "no {kind}");
    }
    assert!(traced("again", "", &exact).0 == text, "two runs under the virtual clock leave different traces");
}

#[test]
fn only_what_is_asked_for_is_in_the_file() {
    let (text, report) = traced("filtered", ",events=exit,vcpu=0,reason=CPUID", &["--clock", "virtual"]);
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let wanted = report["vcpus"][0]["exits"].as_array().unwrap().iter().find(|row| row["reason"] == "CPUID");
    let exits = exits(&trace);
    assert_eq!(exits.len(), 1, "{exits:?}");
    assert_eq!(exits.values().next().map(|sum| sum.0), wanted.unwrap()["samples"].as_u64());
}

#[test]
fn a_trace_that_cannot_be_written_is_refused() {
    let ended = run("exits", 1, "", &["--trace", "/nowhere/trace.json"]);
    assert_eq!(ended.status, 2);
    assert!(ended.messages.contains("cannot write --trace /nowhere/trace.json"), "{}", ended.messages);
    let ended = run("exits", 1, "", &["--trace", "t,reason=HALT"]);
    assert_eq!(ended.status, 2);
    assert!(ended.messages.contains("reason=HALT"), "{}", ended.messages);
}
