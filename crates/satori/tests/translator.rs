//! What the command line tells and asks of the translator.

mod common;

use common::{bare, scratch};

#[test]
fn the_engines_time_is_told_by_what_it_went_into() {
    let path = scratch("engine-stats.json");
    let report = ["--engine", "eager", "--engine-stats", "--report", "json", "--report-file"];
    let ended = bare::run("paging", 1, "", &[&report[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(ended.status, 1, "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let time = &report["engine_time"];
    let of = |what: &str| time["time_ns"][what].as_u64().unwrap_or_else(|| panic!("{what}: {time}"));
    let busy = time["busy_ns"].as_u64().unwrap();
    let kinds = ["exits", "interpreter and dispatch", "translated code", "translation", "MMU misses of it"];
    let sum: u64 = kinds.into_iter().map(of).sum::<u64>() + of("helpers called by it");
    assert_eq!(busy, sum, "{time}");
    // A vCPU that is alone and never sleeps is busy all the time, but for the machine's start.
    let elapsed = report["elapsed_ns"].as_u64().unwrap();
    assert!(busy + of("asleep") <= elapsed && busy > elapsed / 2, "{busy} of {elapsed}: {time}");
    assert!(of("translation") > 0, "{time}");
    let stats = report["stats"].as_array().unwrap();
    let count = |name: &str| {
        let found = stats.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {stats:?}"))["value"].as_u64().unwrap()
    };
    assert!(count("branch targets in their table") > count("branch targets not in their table"));
    assert!(count("bytes of code memory in use, at most") >= 4096);
}

#[test]
fn without_being_asked_no_time_is_sampled() {
    let path = scratch("no-engine-stats.txt");
    let ended = bare::run("features", 1, "", &["--report", "text", "--report-file", path.to_str().unwrap()]);
    assert_eq!(ended.status, 1, "{ended:?}");
    let report = std::fs::read_to_string(path).unwrap();
    assert!(report.contains("blocks translated") && !report.contains("Engine's time"), "{report}");
    assert!(!report.contains("branch targets in their table"), "{report}");
}
