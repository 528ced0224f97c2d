//! `satori bench`: the program natively and in a guest, and what is refused.

mod common;

use std::process::{Command, Stdio};

use common::{Ended, SATORI, read_until, satori, scratch};
use serde_json::Value;

#[test]
fn two_rows_natively_and_in_a_guest() {
    let chart = scratch("chart.svg");
    let chart = chart.to_str().expect("UTF-8");
    let ended = satori(&[
        "bench",
        "--quick",
        "--rows",
        "fib,getppid",
        "--peers",
        "none",
        "--format",
        "json",
        "--svg",
        chart,
    ]);
    assert_eq!(ended.status, 0, "{}", ended.messages);
    let results: Value = serde_json::from_str(&ended.console).expect("JSON");
    assert_eq!(results["subjects"], serde_json::json!(["native", "satori"]));
    let rows = results["tables"][0]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        let (native, satori) = (&row["subjects"]["native"], &row["subjects"]["satori"]);
        assert_eq!((&satori["wrong"], &satori["failed"]), (&Value::Null, &Value::Null), "{row:#}");
        assert_eq!(satori["sum"], native["sum"]);
        // A guest's clock that ran too slowly would make the guest faster than its host.
        let ratio = row["to_native"].as_f64().expect("a ratio");
        assert!((0.5..10_000.0).contains(&ratio), "{row:#}");
    }
    // fib(16)
    assert_eq!(rows[0]["subjects"]["satori"]["sum"], "00000000000003db");
    let above = results["resident_above_guest"]["satori"]["median"].as_f64().expect("resident memory");
    assert!((1e6..1e9).contains(&above), "{above}");
    let chart = std::fs::read_to_string(chart).expect("the chart");
    assert_eq!(chart.matches("<title>satori ").count(), 2);
}

/// A result that is the host's: each block read is the one that was asked for, each file the one of its name, each byte comes back.
#[test]
fn a_disk_a_folder_and_the_network_natively_and_in_a_guest() {
    let rows = "disk-read,disk-read-32,disk-sync,folder-stat,folder-make,net-ping,net-send";
    let words = ["bench", "--quick", "--rows", rows, "--peers", "none", "--format", "json"];
    let ended = satori(&words);
    assert_eq!(ended.status, 0, "{}", ended.messages);
    let results: Value = serde_json::from_str(&ended.console).expect("JSON");
    let measured = results["tables"][0]["rows"].as_array().expect("rows");
    assert_eq!(measured.len(), rows.split(',').count());
    for row in measured {
        let (native, satori) = (&row["subjects"]["native"], &row["subjects"]["satori"]);
        assert_eq!((&satori["wrong"], &satori["failed"]), (&Value::Null, &Value::Null), "{row:#}");
        assert_eq!((&satori["sum"], &satori["sum"]), (&native["sum"], &"0000000000000000".into()), "{row:#}");
    }
}

#[test]
fn what_was_measured_until_the_user_ends_it_is_told() {
    let mut command = Command::new(SATORI);
    command.args(["bench", "--rows", "fib", "--peers", "none", "--mitigations", "on"]);
    // It would take minutes.
    command.args(["--repetitions", "50", "--budget", "40ms", "--format", "json"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("satori runs");
    let messages = child.stderr.as_mut().expect("a pipe");
    read_until(messages, "round 2: native");
    // SAFETY: our own child's number.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let ended: Ended = child.wait_with_output().expect("it ends").into();
    assert_eq!(ended.status, 130, "{}", ended.messages);
    let results: Value = serde_json::from_str(&ended.console).expect("JSON");
    assert!(results["tables"][0]["rows"][0]["to_native"].as_f64().is_some(), "{results:#}");
    assert!(results["notes"].to_string().contains("ended by the user"), "{results:#}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (arguments, words) in [
        (&["--rows", "fob"][..], "no row or group 'fob'"),
        (&["--groups", "fib"], "no row or group 'fib'"),
        (&["--kernel", "/dev/null"], "--kernel /dev/null"),
        (&["--repetitions", "0"], "--repetitions"),
    ] {
        let ended = satori(&[&["bench"], arguments].concat());
        assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{arguments:?}: {ended:?}");
        assert!(ended.messages.contains(words) && ended.messages.lines().count() == 1, "{ended:?}");
    }
}

#[test]
fn the_rows_are_listed_with_their_groups() {
    let ended = satori(&["bench", "--list"]);
    assert_eq!(ended.status, 0);
    assert!(ended.console.lines().any(|line| line.starts_with("pread ") && line.contains(" kernel ")));
}
