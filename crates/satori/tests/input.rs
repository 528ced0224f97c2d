//! What a guest reads, and what is left for others.

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::{Ended, SATORI, fetch, file, pvh, satori};

/// Runs `script` in a shell with `input` behind a pipe; `$1` is the binary, `$2` the kernel.
fn shell(script: &str, kernel: &str, input: &[u8]) -> Ended {
    let mut child = Command::new("sh")
        .args(["-c", script, "sh", SATORI, kernel])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_loop_around_guests_that_do_not_read_keeps_its_input() {
    let kernel = file("off", &pvh::power_off("ran "));
    let loops =
        "while read -r line; do $1 run --kernel $2 -m 128M --report off 2>/dev/null; echo $line; done";
    let input = "one\ntwo\nthree\n";
    let ended = shell(loops, &kernel, input.as_bytes());
    assert_eq!(ended.console, "ran one\nran two\nran three\n", "{ended:?}");
    // One that reads gets nothing, if so asked.
    let echo = file("echo", &pvh::echo());
    let none = "$1 run --kernel $2 -m 128M --report off --input none --timeout 1s 2>/dev/null; cat";
    let ended = shell(none, &echo, input.as_bytes());
    assert!(ended.console.trim_start_matches("ready") == input, "{ended:?}");
}

#[test]
fn a_guest_that_stands_still_is_ended_when_that_is_asked_for() {
    let echo = file("still", &pvh::echo());
    let words = ["run", "--kernel", &echo, "-m", "128M", "--report", "off", "--stall-timeout", "1s"];
    let ended = satori(&words);
    assert_eq!((ended.status, ended.console.as_str()), (124, "ready"), "{ended:?}");
    assert!(ended.messages.contains("--stall-timeout ran out"), "{ended:?}");
}

#[test]
fn a_guest_that_reads_gets_all_of_a_pipe_and_of_a_file() {
    let echo = file("echoes", &pvh::echo());
    let text = "0123456789abcdef".repeat(16) + "\n";
    let mut child = Command::new(SATORI)
        .args(["run", "--kernel", &echo, "-m", "128M", "--report", "off", "--timeout", "60s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let seen = common::read_until(child.stdout.as_mut().unwrap(), "\n");
    assert_eq!(seen, format!("ready{text}"));
    child.kill().unwrap();
    child.wait().unwrap();
    let script = file("script", text.as_bytes());
    let run = |number: u32| {
        let report = common::scratch(&format!("virtual-{number}.json"));
        let path = report.to_str().unwrap();
        let words = ["run", "--kernel", &echo, "-m", "128M", "--clock", "virtual", "--guest-timeout", "10ms"];
        let more = ["--input", &script, "--report", "json", "--report-file", path];
        let ended = satori(&[&words[..], &more].concat());
        assert_eq!((ended.status, ended.console), (124, format!("ready{text}")));
        let mut report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
        report["elapsed_ns"] = 0.into();
        report
    };
    let (one, two) = (run(1), run(2));
    assert_eq!(one["all"], two["all"], "each byte comes at the same instruction");
    assert_eq!(one["instructions"], two["instructions"]);
}

#[test]
fn a_shell_in_linux_does_what_is_piped_to_it() {
    let kernel = fetch(&["kernel"]);
    let busybox = std::fs::read(fetch(&["busybox"])).unwrap();
    let init = "#!/bin/busybox sh\n/bin/busybox sh\n/bin/busybox poweroff -f\n";
    let initrd = file("shell.cpio", &satori::initramfs::build(&busybox, init, &[]));
    let script = format!(
        "$1 run --kernel $2 --initrd {initrd} --append quiet --timeout 90s --report off --console-newlines lf"
    );
    let ended = shell(&script, &kernel, b"echo $((40 + 2))\nexit\n");
    assert_eq!(ended.status, 0, "{ended:?}");
    assert!(ended.console.contains("\n42\n") && !ended.console.contains('\r'), "{ended:?}");
}
