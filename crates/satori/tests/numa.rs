//! NUMA nodes in a stock guest.

mod common;

use common::{Ended, fetch, satori};

/// What Linux finds: a node's processors, distances and memory in MiB, at most 5 % less than it has.
const TELL: &str = "cd /sys/devices/system/node; for n in node*; do
    echo $n $(cat $n/cpulist) / $(cat $n/distance) / $(awk '/MemTotal/ { print int($4 / 1024 / 16 + 1) * 16 }' $n/meminfo); done
    dmesg | grep 'not on the same node'";

#[test]
fn linux_finds_nodes_as_they_are_told() {
    let kernel = fetch(&["kernel", "6.12"]);
    let run = |words: &[&str]| -> Ended {
        let first = ["run", "--kernel", &kernel, "--timeout", "5m", "--user", "root"];
        satori(&[&first, words, &["--", "sh", "-c", TELL]].concat())
    };
    // Equal parts, and a socket for each.
    let even = run(&["--cpus", "4", "-m", "1G", "--numa", "", "--numa", ""]);
    let lines: Vec<_> = even.console.lines().collect();
    assert!(lines.len() == 2 && even.messages.is_empty(), "{even:?}");
    assert!(lines[0].starts_with("node0 0-1 / 10 20 / ") && lines[1].starts_with("node1 2-3 / 20 10 / "));
    // Memory on both sides of the hole below 4 GiB, a node without processors, and distances of its own.
    let odd = run(&[
        "--cpus",
        "3,sockets=3",
        "--numa=memory=3328M,cpus=0:2,distances=10:33:40",
        "--numa=memory=256M,cpus=1,distances=33:10:40",
        "--numa=memory=512M,distances=40:40:10",
    ]);
    let lines: Vec<_> = odd.console.lines().collect();
    assert!(lines.len() == 3 && odd.messages.is_empty(), "{odd:?}");
    for (line, begin, mib) in [
        (lines[0], "node0 0,2 / 10 33 40 / ", 3328),
        (lines[1], "node1 1 / 33 10 40 / ", 256),
        (lines[2], "node2 / 40 40 10 / ", 512),
    ] {
        let memory: u32 = line.strip_prefix(begin).unwrap_or_else(|| panic!("{odd:?}")).parse().unwrap();
        assert!((mib * 9 / 10..=mib).contains(&memory), "{line}");
    }
}

#[test]
fn nodes_that_do_not_come_out_are_refused() {
    let kernel = common::file("kernel", &common::pvh::debug_exit(0));
    let here = satori_machine::host_processors()[0];
    let twice = format!("{here},{here}");
    for (words, said) in [
        (&["--numa", "cpus=0", "--numa", "cpus=0"][..], "vCPU 0 is in two nodes"),
        (&["-m", "1G", "--numa", "memory=512M"], "the nodes have 512 MiB, and the guest 1024"),
        (&["--numa", "node"], "'node' is none of memory=SIZE"),
        (&["--arch", "arm64", "--numa", ""], "--numa is not had on arm64"),
        (&["--numa", "host-nodes=999"], "no memory of its own on node 999"),
        (&["--pin", "1000"], "may not use processor 1000 of the host"),
        (&["--cpus", "3", "--pin", &twice], "there are 3 vCPUs and 2 sets"),
    ] {
        let ended = satori(&[&["run", "--kernel", &kernel], words].concat());
        assert_eq!((ended.status, ended.messages.lines().count()), (2, 1), "{words:?}: {ended:?}");
        assert!(ended.messages.contains(said), "{words:?}: {ended:?}");
    }
}

/// Where the kernel says that this process's memory is: lines of /proc/PID/numa_maps with a policy.
#[test]
fn memory_of_a_node_is_placed_on_the_hosts_nodes() {
    if !std::path::Path::new("/proc/self/numa_maps").exists() {
        eprintln!("skipped: this host has no NUMA");
        return;
    }
    let kernel = common::file("placed", &common::pvh::kernel(&[0xeb, 0xfe]));
    for (words, policy) in [
        (&["--numa", "host-nodes=0"][..], "bind:0"),
        (
            &["--numa", "host-nodes=0,policy=interleave", "--numa", "host-nodes=0,policy=interleave"],
            "interleave:0",
        ),
        (&["--sandbox", "off", "--numa", "host-nodes=0,policy=preferred"], "prefer:0"),
    ] {
        let mut command = std::process::Command::new(common::SATORI);
        command
            .args(["run", "--kernel", &kernel, "-m", "256M", "--cpus", "2", "--timeout", "2m"])
            .args(words);
        command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        let mut child = command.spawn().expect("it runs");
        let maps = format!("/proc/{}/numa_maps", child.id());
        let placed = (0..600).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let told = std::fs::read_to_string(&maps).unwrap_or_default();
            told.lines().any(|line| line.contains(policy))
        });
        child.kill().expect("it is killed");
        child.wait().expect("it is gone");
        assert!(placed, "{words:?}: nothing is placed as {policy}");
    }
}
