//! Guests that sleep (ACPI S3, suspend to RAM) and wake: by their clock's alarm, and by the power button.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use common::{Ended, SATORI, fetch, read_until, satori, scratch};

/// A guest of Debian's kernel with a disk and these commands, for `satori run`.
fn guest(name: &str, commands: &str) -> Vec<String> {
    let (kernel, initrd, disk) =
        (fetch(&["kernel", "6.1"]), scratch(&format!("{name}.cpio")), scratch(&format!("{name}.raw")));
    let (initrd, disk) = (initrd.to_str().unwrap(), disk.to_str().unwrap());
    let modules = ["virtio_pci", "virtio_blk", "button"].map(|module| ["--module", module]).concat();
    let pack = ["initrd", "-o", initrd, "--busybox", "--kernel", &kernel, "--run", commands];
    let packed = satori(&[&pack[..], &modules].concat());
    assert_eq!(packed.status, 0, "{}", packed.messages);
    std::fs::write(disk, vec![0; 1 << 20]).unwrap();
    let words = ["run", "--kernel", &kernel, "--initrd", initrd, "--disk", disk, "--report", "off"];
    words.map(String::from).to_vec()
}

/// Twice by the alarm, with everything there again; then without one, until the guest's time is over. Under the virtual clock, whose
/// time goes on without a processor that executes.
#[test]
fn a_guest_that_sleeps_is_woken_by_its_clock() {
    const COMMANDS: &str = "
        head -c 100000 /dev/urandom >/tmp/kept; cp /tmp/kept /dev/vda
        sleeps() { before=$(date +%s); echo mem >/sys/power/state; echo \"$? after $(($(date +%s) - before))\"; }
        alarm=/sys/class/rtc/rtc0/wakealarm
        echo +20 >$alarm; sleeps
        echo +3 >$alarm; sleeps
        echo 3 >/proc/sys/vm/drop_caches; head -c 100000 /dev/vda | cmp - /tmp/kept && echo kept
        taskset 2 nproc; nproc; cat /sys/devices/system/clocksource/clocksource0/current_clocksource
        dmesg | grep -E 'BUG|WARN|Oops|unstable: |I/O error'
        sleeps";
    let guest = guest("alarm", COMMANDS);
    let words: Vec<_> = guest.iter().map(String::as_str).collect();
    let more = ["--cpus", "2", "--clock", "virtual", "--guest-timeout", "60s", "--append", "quiet"];
    let ended = satori(&[&words[..], &more].concat());
    let lines: Vec<_> = ended.console.lines().collect();
    let seconds = |line: &str| line.strip_prefix("0 after ").and_then(|seconds| seconds.parse().ok());
    let slept: Vec<u32> = lines.iter().filter_map(|line| seconds(line)).collect();
    assert!(matches!(slept[..], [19..=21, 2..=4]), "{ended:?}");
    assert_eq!(lines[2..], ["kept", "1", "2", "hyperv_clocksource_tsc_page"], "{ended:?}");
    assert_eq!(ended.status, 124, "{ended:?}");
}

/// With a disk SIGTERM presses the power button, which wakes who sleeps.
#[test]
fn a_guest_that_sleeps_is_woken_by_its_power_button() {
    let guest = guest("button", "echo mem >/sys/power/state; echo \"woke: $?\"; poweroff -f");
    let mut child = Command::new(SATORI)
        .args(guest)
        .args(["--engine", "software", "--timeout", "10m", "--append", "no_console_suspend"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("satori runs");
    let seen = read_until(child.stdout.as_mut().unwrap(), "Preparing to enter system sleep state S3");
    // It is told of sleep before it sleeps; who comes too early is what keeps it awake, and tells as much.
    std::thread::sleep(Duration::from_secs(2));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("the child runs");
    let ended: Ended = child.wait_with_output().unwrap().into();
    assert!(ended.console.contains("woke: 0") && ended.status == 0, "{seen}{ended:?}");
}
