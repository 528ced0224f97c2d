//! A memory balloon in Debian's kernel: memory that its programs freed goes back to the host.

mod common;

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{SATORI, fetch, read_until, satori};

/// What the process has of the host's memory, in MiB.
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

#[test]
fn what_a_guest_freed_or_gave_away_is_the_hosts_again() {
    let kernel = fetch(&["kernel", "6.12"]);
    let mut command = Command::new(SATORI);
    command.args([
        "run",
        "--kernel",
        &kernel,
        "--timeout",
        "5m",
        "-m",
        "1G",
        "--balloon=64M",
        "--",
        "sh",
        "-c",
    ]);
    // /dev/shm is the guest's memory; what is in it is not zeros, which nobody would have to keep.
    let script = "cd /dev/shm; head -c 400M /dev/zero | tr '\\0' x > big; echo full; read word; rm big; echo freed; read word
        head -c 100M /dev/zero | tr '\\0' y > more; cksum < more; head -c 100M /dev/zero | tr '\\0' y | cksum";
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().expect("satori runs");
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    read_until(&mut output, "full");
    let full = resident(&child);
    assert!(full > 400, "{full} MiB");
    input.write_all(b"on\n").unwrap();
    read_until(&mut output, "freed");
    // The guest's kernel reports what is free after two seconds, and in pieces.
    let began = Instant::now();
    while resident(&child) > full - 300 {
        assert!(began.elapsed() < Duration::from_secs(120), "{full} MiB, and then {} MiB", resident(&child));
        std::thread::sleep(Duration::from_millis(50));
    }
    input.write_all(b"on\n").unwrap();
    let seen = std::io::read_to_string(output).unwrap();
    let sums: Vec<_> = seen.lines().filter(|line| line.ends_with("104857600")).collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "what came back is memory as any other: {seen}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_balloon_as_large_as_the_guest_is_refused() {
    let kernel = fetch(&["kernel", "6.12"]);
    let ended = satori(&["run", "--kernel", &kernel, "-m", "256M", "--balloon=256M"]);
    assert_eq!((ended.status, ended.messages.lines().count()), (2, 1), "{ended:?}");
    assert!(ended.messages.contains("--balloon=256M"), "{ended:?}");
}
