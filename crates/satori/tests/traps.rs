//! `satori bench traps`: the talk's order comes out, the same in every run.

mod common;

use common::{file, satori};
use serde_json::Value;

/// Exits and modelled cost of the talk's four.
fn quick(more: &[&str]) -> (i32, Vec<[u64; 2]>, Value) {
    let ended = satori(&[&["bench", "traps", "--quick", "--format", "json"], more].concat());
    let value: Value = serde_json::from_str(&ended.console).unwrap_or_else(|_| panic!("{}", ended.messages));
    let four = value["configurations"].as_array().expect("four").iter();
    let numbers = four.map(|one| ["exits", "modelled_ns"].map(|name| one[name].as_u64().expect("a number")));
    (ended.status, numbers.collect(), value)
}

#[test]
fn the_talks_order_comes_out_the_same_in_every_run() {
    let (status, four, value) = quick(&[]);
    assert_eq!(status, 0, "{:#}", value["order"]);
    for at in 0..2 {
        assert!(four.windows(2).all(|pair| pair[0][at] > pair[1][at]), "{four:?}");
    }
    // Only as near as rates that were derived from rows can be expected to come.
    for (one, talk) in four.iter().zip([1_238_237, 659_276, 326_144, 306_939]) {
        let five_seconds = one[0] * 50;
        assert!(five_seconds.abs_diff(talk) < talk / 8, "{five_seconds} and the talk's {talk}");
    }
    let timers: Vec<_> = (0..4).map(|at| value["configurations"][at]["timer"].clone()).collect();
    assert_eq!(timers, ["hpet", "stimer-direct", "lapic", "stimer-direct"]);
    let (_, again, other) = quick(&["--engine", "interpreter"]);
    assert_eq!(four, again, "another engine, the same exits");
    let frames = |value: &Value| -> Vec<f64> {
        let of = |one: &Value| one["average_ms"].as_f64().expect("a time");
        let four = (0..4).map(|at| of(&value["configurations"][at]["frames"]));
        std::iter::once(of(&value["native_frames"])).chain(four).collect()
    };
    let times = frames(&value);
    assert_eq!(times, frames(&other), "and the same frames");
    let [native, none, all, hidden, repaired] = times[..] else { panic!("{times:?}") };
    assert!(
        [none, all, hidden, repaired].iter().all(|time| *time > native),
        "exits make frames longer: {times:?}"
    );
    assert!(none > all && all > hidden.max(repaired), "in the order of what they cost: {times:?}");
}

#[test]
#[ignore = "half a minute of boots: a part of tools/soak"]
fn linux_is_a_second_witness() {
    for series in ["6.1", "6.12"] {
        let (status, _, value) = quick(&["--kernel", &common::fetch(&["kernel", series])]);
        assert_eq!((status, &value["order"]["linux"]), (0, &serde_json::json!([true, true])), "{series}");
        for one in value["linux"].as_array().expect("six") {
            assert_eq!(one["without_apicv"], 0, "{series} set a SINT with auto-EOI up");
        }
    }
}

#[test]
fn an_order_that_is_not_the_talks_is_status_1() {
    // Hardly any interprocessor interrupt: APICv does not matter.
    let few = file("few.conf", b"ipis = 100\nclock-reads = 0\n");
    let (status, _, value) = quick(&["--parameters", &few]);
    assert_eq!((status, &value["order"]["exits"]), (1, &Value::Bool(false)));
}

#[test]
fn what_is_no_experiment_is_refused() {
    let bad = file("bad.conf", b"ipis = 1\nipi = 2\n");
    for (arguments, told) in [
        (&["traps", "--processor", "no-apicv"][..], "APICv"),
        (&["traps", "--processor", "8086"], "8086"),
        (&["traps", "--time", "1ms"], "--time is from 20ms"),
        (&["traps", "--quick", "--time", "1s"], "--quick"),
        (&["traps", "--parameters", &bad], "there is no ipi"),
        (&["traps", "--parameters", "/nowhere"], "--parameters /nowhere"),
        (&["traps", "--costs", &bad], "line 1"),
        (&["traps", "--initrd", &bad], "--kernel"),
        (&["traps", "--kernel", &bad], "no Linux kernel"),
        (&["traps", "--kernel", "/nowhere"], "--kernel /nowhere"),
        (&["ablation", "--workloads", "none"], "there are game"),
        (&["ablation", "--only", "evmcs"], "--only evmcs"),
        (&["ablation", "--time", "2h"], "--time is from 20ms"),
        (&["ablation", "--", "true"], "'true' is no command"),
        (&["ablation", "--", "satori", "run", "--clock=real"], "--clock is chosen here"),
        (&["ablation", "--", "satori", "run", "--charge-costs"], "--charge-costs is chosen here"),
        (&["--quick", "traps"], "traps"),
    ] {
        let ended = satori(&[&["bench"], arguments].concat());
        assert_eq!(ended.status, 2, "{arguments:?}: {}", ended.messages);
        assert!(ended.messages.contains(told), "{arguments:?}: {}", ended.messages);
    }
}

/// Names of what costs in IPIs alone, of these enlightenments.
fn costly(only: &str, processor: &str) -> (i32, Vec<String>) {
    let fixed = ["bench", "ablation", "--format", "json", "--time", "20ms", "--workloads", "ipis"];
    let ended = satori(&[&fixed[..], &["--only", only, "--processor", processor]].concat());
    let value: Value = serde_json::from_str(&ended.console).unwrap_or_else(|_| panic!("{}", ended.messages));
    let costly = value["costly"].as_array().expect("an array").iter();
    (ended.status, costly.map(|one| one["name"].as_str().expect("a name").to_string()).collect())
}

#[test]
fn ablation_names_what_costs() {
    // The talk's trap: stimer alone brings SINTs with auto-EOI, and these switch APICv off. The default is repaired.
    let (status, names) = costly("stimer", "haswell");
    assert!(status == 0 && names.contains(&"stimer".into()), "{status} {names:?}");
    assert!(!names.contains(&"default".into()), "{names:?}");
    // Without APICv in the processor the APIC's own registers exit.
    let (_, names) = costly("apicv", "no-apicv");
    assert!(names.contains(&"apicv".into()), "{names:?}");
}
