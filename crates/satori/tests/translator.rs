//! What the command line tells and asks of the translator.

mod common;

use common::{bare, fact, fetch, satori, scratch, trials, verdict};

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
    assert!(!report.contains("blocks translated") && !report.contains("Engine's time"), "{report}");
    assert!(!report.contains("branch targets in their table"), "{report}");
}

#[test]
fn hosts_without_avx2_bmi2_and_fsgsbase_run_guests_too() {
    let lacks = ["--host-without", "avx2,bmi2,fsgsbase"];
    for engine in ["eager", "translator"] {
        for (guest, cpus) in [("features", 1), ("avx", 1), ("smc", 2)] {
            bare::passes(guest, cpus, &[&["--engine", engine][..], &lacks].concat());
        }
    }
    // Without AVX at all, and what follows from it.
    bare::passes("avx", 1, &["--engine", "eager", "--host-without", "avx,bmi1,abm,popcnt,movbe,adx,sse4_2"]);
    // What is asked for by name is refused, and told why.
    let ended = bare::run("features", 1, "", &[&["--cpu", "x86-64-v3"][..], &lacks].concat());
    assert_eq!(ended.status, 2, "{ended:?}");
    assert!(ended.messages.contains("avx2") && ended.messages.contains("host"), "{}", ended.messages);
}

#[test]
fn linux_boots_on_a_host_without_avx2_bmi2_and_fsgsbase() {
    let kernel = fetch(&["kernel", "6.1"]);
    let machine = ["run", "--kernel", &kernel, "--initrd", trials(), "--cpus", "2", "--engine", "translator"];
    let lacks = ["--host-without", "avx2,bmi2,fsgsbase", "--timeout", "5m"];
    let ended = satori(&[&machine[..], &lacks].concat());
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    if let Err(wrong) = verdict(&ended.console) {
        panic!("{wrong}\n{}", ended.messages);
    }
    // BMI2 and FSGSBASE are done without the host's; vectors are the host's.
    assert_eq!(fact(&ended.console, "extensions"), "avx,bmi1,bmi2,fsgsbase,", "{}", ended.console);
}

#[test]
fn perf_is_told_the_names_of_translated_code() {
    let ended = bare::run("features", 1, "", &["--engine", "eager", "--perf", "map"]);
    assert_eq!(ended.status, 1, "{ended:?}");
    let path =
        ended.messages.split_whitespace().find(|word| word.ends_with(".map")).expect("the file is told");
    let map = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    let names: Vec<_> = map.lines().filter_map(|line| line.splitn(3, ' ').nth(2)).collect();
    assert!(names.len() > 100, "{}", names.len());
    let known = |name: &str| name.starts_with("guest ") || name.starts_with("satori: ");
    assert!(names.iter().all(|name| known(name)), "{names:?}");
    let kernel = fetch(&["kernel", "6.12"]);
    let run = ["run", "--kernel", &kernel, "--engine", "translator", "--perf", "map"];
    let ended = satori(&[&run[..], &["-v", "--", "true"]].concat());
    let path =
        ended.messages.split_whitespace().find(|word| word.ends_with(".map")).expect("the file is told");
    let map = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(map.lines().filter(|line| line.contains(" guest ")).count() > 1000, "{ended:?}");
    let ended = bare::run("features", 1, "", &["--engine", "interpreter", "--perf", "map"]);
    assert_eq!(ended.status, 2, "{ended:?}");
    assert!(ended.messages.contains("the interpreter makes none"), "{ended:?}");
}
