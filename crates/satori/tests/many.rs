//! Linux on many more vCPUs than the host has cores, on the translator: all come up, and init runs, without a
//! word of lockups, stalls or processors that failed to come.

mod common;

use common::{fact, fetch, file, satori};

const INIT: &str = r#"#!/bin/sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox --install -s
mount -t proc none /proc
mount -t sysfs none /sys
echo "fact processors: $(grep -c '^processor' /proc/cpuinfo)"
echo "fact online: $(cat /sys/devices/system/cpu/online)"
# A process on each of some processors, the last included.
done=0
for cpu in 0 $(($(nproc) / 2)) $(($(nproc) - 1)); do
    [ "$(taskset -c $cpu sh -c 'echo $((6 * 7))')" = 42 ] && done=$((done + 1))
done
echo "fact pinned: $done"
dmesg | grep -iE 'BUG:|WARNING:|Oops|Call Trace|lockup|stall|hung|blocked for more|failed to|not responding|clocksource.*unstable' |
    sed 's/^/complaint: /'
poweroff -f
"#;

fn all_come(series: &str, cpus: u32) {
    let busybox = std::fs::read(fetch(&["busybox"])).expect("busybox");
    let initrd = file(&format!("init-{cpus}.cpio"), &satori::initramfs::build(&busybox, INIT, &[]));
    let (kernel, count) = (fetch(&["kernel", series]), cpus.to_string());
    let machine = ["run", "--kernel", &kernel, "--initrd", &initrd, "--cpus", &count, "--memory", "512M"];
    let more = ["--engine", "translator", "--report", "off", "--timeout", "5m", "--append", "panic=-1"];
    let ended = satori(&[&machine[..], &more].concat());
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    assert_eq!(fact(&ended.console, "processors"), count, "{}", ended.console);
    assert_eq!(fact(&ended.console, "online"), format!("0-{}", cpus - 1));
    assert_eq!(fact(&ended.console, "pinned"), "3");
    assert!(!ended.console.contains("complaint: "), "{}", ended.console);
}

#[test]
fn sixteen() {
    all_come("6.12", 16);
}

#[test]
fn seventy() {
    all_come("6.1", 70);
}
