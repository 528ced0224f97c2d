//! `satori costs` and `--costs`: where modelled costs come from, and what is refused.

mod common;

use common::{file, pvh, satori, scratch};
use serde_json::Value;

const HOST: &str = "\
             VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time \n\n\
               CPUID        100    50.00%    10.00%      1.00us      3.00us      2.00us ( +-   0.10% )\n\
              VMCALL        100    50.00%    90.00%     10.00us     30.00us     18.00us ( +-   0.10% )\n\n\
Total Samples:200, Total events handled time:2000.00us.\n";

fn rows(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).expect("JSON");
    report["all"]["exits"].as_array().expect("rows").clone()
}

#[test]
fn costs_are_shown_calibrated_and_applied() {
    let shown = satori(&["costs", "show"]);
    assert_eq!(shown.status, 0, "{}", shown.messages);
    assert!(
        shown.console.contains("EPT_MISCONFIG          any                  6500.0  L. Li"),
        "{}",
        shown.console
    );

    let host = file("host.txt", HOST.as_bytes());
    let mine = scratch("mine.json");
    let (host, mine) = (host.as_str(), mine.to_str().unwrap());
    let made = satori(&["costs", "calibrate", host, "--processor", "skylake", "-o", mine]);
    assert_eq!(made.status, 0, "{}", made.messages);
    let shown = satori(&["costs", "show", "--costs", mine, "--format", "json"]);
    let costs: Value = serde_json::from_str(&shown.console).expect("JSON");
    let first = &costs["entries"][1];
    assert_eq!((&first["reason"], &first["ns"]), (&"VMCALL".into(), &18_000.0.into()), "{first}");
    assert!(first["source"].as_str().unwrap().contains("host.txt"), "{first}");

    // An imported report has no processor: a skylake's costs are not for it, but what is for all is.
    let ours = satori(&["report", "show", host, "--format", "json"]);
    assert_eq!(rows(&ours.console)[0]["modelled_ns"], 100 * 1963);
    let text = std::fs::read_to_string(mine).unwrap().replace("\"processor\": \"skylake\",", "");
    let all = file("all.json", text.as_bytes());
    let theirs = satori(&["report", "show", host, "--costs", &all, "--format", "json"]);
    assert_eq!(rows(&theirs.console)[0]["modelled_ns"], 100 * 2000, "{}", theirs.messages);
    let text = satori(&["report", "diff", host, host, "--costs", &all]);
    assert!(
        text.console.lines().last().unwrap().ends_with("2000.00       2000.00   1.000"),
        "{}",
        text.console
    );
}

#[test]
fn what_is_no_cost_file_is_refused() {
    let host = file("host2.txt", HOST.as_bytes());
    let host = host.as_str();
    let text = "{\"format\":\"satori-costs\",\"version\":1,\"entries\":[\n{\"reason\":\"HLT\",\"ns\":1}]}";
    let bad = file("bad.json", text.as_bytes());
    let bad = bad.as_str();
    for (arguments, told) in [
        (&["costs", "show", "--costs", bad][..], "line 2: missing field `source`"),
        (&["report", "show", host, "--costs", bad], "line 2"),
        (&["report", "show", host, "--costs", host], "line 1"),
        (&["report", "show", host, "--costs", "/nowhere"], "--costs /nowhere"),
        (&["costs", "calibrate", bad], "bad.json"),
        (&["costs", "calibrate", host, "--processor", "a b"], "no name"),
        (&["run", "--kernel", host, "--costs", bad], "line 2"),
        (&["run", "--kernel", host, "--costs", bad, "--report", "off"], "--report off"),
    ] {
        let ended = satori(arguments);
        assert_eq!(ended.status, 2, "{arguments:?}: {}", ended.messages);
        assert!(ended.messages.contains(told), "{arguments:?}: {}", ended.messages);
        assert_eq!(ended.messages.trim_end().lines().count(), 1, "{arguments:?}: {}", ended.messages);
    }
}

#[test]
fn charged_exits_take_guest_time() {
    // `xor %eax, %eax; cpuid; jmp` to the CPUID, which costs 1,963 ns of the 10 ms.
    let kernel = file("charged.elf", &pvh::kernel(&[0x31, 0xc0, 0x0f, 0xa2, 0xeb, 0xfa]));
    let counted = |more: &[&str]| {
        let report = scratch("charged.json").display().to_string();
        let words =
            ["run", "--kernel", &kernel, "-m", "128M", "--clock", "virtual", "--guest-timeout", "10ms"];
        let report_to = ["--host-tick", "0", "--report", "json", "--report-file", &report];
        let ended = satori(&[&words[..], &report_to, more].concat());
        assert_eq!(ended.status, 124, "{}", ended.messages);
        let rows = rows(&std::fs::read_to_string(&report).expect("the report"));
        let row = rows.iter().find(|row| row["reason"] == "CPUID").expect("a row").clone();
        row["samples"].as_u64().expect("a number")
    };
    let charged = counted(&["--charge-costs"]);
    assert!(
        (5_000..5_100).contains(&charged),
        "{charged}: 10 ms are 5,094 of 1,963 ns, and some instructions"
    );
    assert!(counted(&[]) > 1_000_000, "without that exits take no guest time");
}
