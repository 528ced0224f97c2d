//! Machines of AArch64: a stock Debian kernel to userland, and what is refused.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Once;

use common::{drivers, fetch, file, satori, scratch};

/// What init does: it looks at the machine, and powers off.
const INIT: &str = "#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
echo fact machine: $(busybox uname -m)
echo fact kernel: $(busybox uname -r)
echo fact processors: $(busybox grep -c ^processor /proc/cpuinfo)
echo fact clocksource: $(busybox cat /sys/devices/system/clocksource/clocksource0/current_clocksource)
i=0; while [ $i -lt 20 ]; do (busybox echo -n x; busybox sleep 0.01) & i=$((i+1)); done; wait; echo
echo fact sum: $(busybox seq 1 1000 | busybox awk '{ s += 1 / $1 } END { printf \"%.6f\", s }')
busybox grep -q 'GICv3' /proc/interrupts && echo fact controller: GICv3
busybox sync; busybox poweroff -f
";

/// What init does at EL2: it runs a guest of its own.
const HYPERVISOR: &str = "#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
echo fact machine: $(busybox uname -m)
echo fact kernel: $(busybox uname -r)
vmm
busybox poweroff -f
";

/// What init does with devices on PCI: it writes and reads a disk, and asks for random bytes.
const DEVICES: &str = "#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for name in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio-rng
do busybox insmod /bin/$name.ko; done
echo fact machine: $(busybox uname -m)
echo fact kernel: $(busybox uname -r)
echo fact functions: $(busybox ls /sys/bus/pci/devices | busybox wc -l)
echo fact first: $(busybox head -c 4 /dev/vda)
echo back | busybox dd of=/dev/vda bs=512 seek=1 conv=sync,fsync 2>/dev/null
echo fact random: $(busybox head -c 64 /dev/hwrng | busybox wc -c)
busybox grep virtio /proc/interrupts | while read -r line; do echo irq $line; done
busybox poweroff -f
";

fn initrd(name: &str, script: &str, programs: &[(&str, &[u8])]) -> String {
    let busybox = std::fs::read(fetch(&["busybox", "--arch", "arm64"])).expect("busybox");
    file(name, &satori::initramfs::build(&busybox, script, programs))
}

/// A program of `guest/`, built by Debian's cross compiler.
fn program(source: &str, name: &str) -> Vec<u8> {
    let source = format!("{}/tests/guest/{source}", env!("CARGO_MANIFEST_DIR"));
    let program = scratch(name);
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    let built = compiler.args(["-O2", "-static", "-o"]).arg(&program).arg(&source).status();
    assert!(built.is_ok_and(|s| s.success()), "cannot build {source}: install gcc-aarch64-linux-gnu");
    std::fs::read(program).expect("the program that was built")
}

fn fact<'a>(console: &'a str, name: &str) -> &'a str {
    common::fact(console, name)
}

/// Boots Debian's kernel of `series` with `initrd`; the console, and the report.
fn boot(series: &str, initrd: &str, arguments: &[&str]) -> (String, serde_json::Value) {
    let kernel = fetch(&["kernel", series, "--arch", "arm64"]);
    let name = initrd.rsplit('/').next().expect("a name");
    let report = scratch(&format!("report-{name}-{}.json", arguments.len()));
    let fixed = ["run", "--arch", "arm64", "--kernel", &kernel, "--initrd", initrd, "--timeout", "5m"];
    let told = ["--report", "json", "--report-file", report.to_str().expect("UTF-8")];
    let ended = satori(&[&fixed[..], &told, arguments].concat());
    let tail: Vec<_> = ended.console.lines().rev().take(40).collect();
    assert_eq!(ended.status, 0, "{tail:#?}\n{}", ended.messages);
    assert_eq!(fact(&ended.console, "machine"), "aarch64");
    assert!(fact(&ended.console, "kernel").starts_with(&format!("{series}.")));
    let report = std::fs::read_to_string(report).expect("a report");
    (ended.console, serde_json::from_str(&report).expect("JSON"))
}

fn exits(report: &serde_json::Value, reason: &str) -> u64 {
    let rows = report["all"]["exits"].as_array().expect("rows");
    rows.iter().find(|row| row["reason"] == reason).map_or(0, |row| row["samples"].as_u64().expect("a count"))
}

// Under the virtual clock it is also the same run on any host.
#[test]
fn debian_6_1_boots_on_two_vcpus() {
    let archive = initrd("arm64.cpio", INIT, &[]);
    let flags = |engine: &'static str| ["--cpus", "2", "--clock", "virtual", "--engine", engine];
    let (console, report) = boot("6.1", &archive, &flags("translator"));
    let (interpreted, other) = boot("6.1", &archive, &flags("interpreter"));
    assert_eq!(console, interpreted, "both engines count the same instructions");
    assert_eq!(report["instructions"], other["instructions"]);
    assert_eq!(report["all"], other["all"]);
    assert_eq!(fact(&console, "clocksource"), "arch_sys_counter");
    assert_eq!(fact(&console, "controller"), "GICv3");
    // The sum of 1/1 to 1/1000, as any processor of IEEE 754 has it.
    assert_eq!(fact(&console, "sum"), "7.485471");
    assert_eq!(fact(&console, "processors"), "2");
    assert!(console.contains("Brought up 1 node, 2 CPUs"), "both were turned on by PSCI");
    for reason in ["WFx", "DABT_LOW", "IRQ", "SYS64", "HVC64"] {
        assert!(exits(&report, reason) > 0, "no {reason}: {}", report["all"]);
    }
    let each: u64 =
        report["vcpus"].as_array().unwrap().iter().map(|one| one["samples"].as_u64().unwrap()).sum();
    assert_eq!(report["all"]["samples"], each);
    assert_eq!(report["processor"], "arm64");
}

/// Boots with a disk and a source of random bytes; what of /proc/interrupts is virtio's.
fn boot_with_devices(name: &str, arguments: &[&str]) -> Vec<String> {
    let modules = drivers::modules(fetch(&["kernel", "6.1", "--arch", "arm64"]).as_ref());
    let modules: Vec<_> = modules.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let archive = initrd(&format!("{name}.cpio"), DEVICES, &modules);
    let mut image = vec![0; 1 << 20];
    image[..4].copy_from_slice(b"here");
    let disk = file(&format!("{name}.img"), &image);
    let (console, _) =
        boot("6.1", &archive, &[&["--disk", &disk, "--rng", "--clock", "virtual"], arguments].concat());
    for (what, value) in [("functions", "3"), ("first", "here"), ("random", "64")] {
        assert_eq!(fact(&console, what), value, "{console}");
    }
    assert_eq!(std::fs::read(&disk).expect("the image")[512..516], *b"back");
    let told = console.lines().filter_map(|line| line.strip_prefix("irq "));
    told.map(|line| line.trim().to_owned()).collect()
}

#[test]
fn devices_on_pci_interrupt_by_messages() {
    let lines = boot_with_devices("messages", &[]);
    assert!(lines.iter().any(|line| line.ends_with("Edge virtio0-req.0")), "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("MSI")), "{lines:#?}");
}

#[test]
fn devices_on_pci_interrupt_by_their_pins() {
    let lines = boot_with_devices("pins", &["--append", "pci=nomsi"]);
    // Slots 1 and 2 have the second and third of the four lines.
    let lines: Vec<_> = lines.iter().map(|line| line.split(" GICv3 ").nth(1).expect("a line")).collect();
    assert_eq!(lines, ["36 Level virtio0", "37 Level virtio1"]);
}

/// Runs a command with this standard input; its status, and what it wrote to standard output and error.
fn command(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    // What the first one fetches is told on its standard error.
    static FETCHED: Once = Once::new();
    FETCHED.call_once(|| {
        let first = ["run", "--arch", "arm64", "--kernel", "6.1", "--timeout", "5m", "--", "true"];
        assert_eq!(satori(&first).status, 0, "Debian's packages are needed for this test");
    });
    let mut satori = Command::new(env!("CARGO_BIN_EXE_satori"));
    satori.args(["run", "--arch", "arm64", "--kernel", "6.1", "--timeout", "5m"]).args(arguments);
    satori.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = satori.spawn().expect("satori runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("a pipe takes it");
    let ended = child.wait_with_output().expect("satori ends");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

#[test]
fn a_command_has_streams_a_network_and_a_status() {
    let script = "cat; uname -m; echo wrong >&2; grep -c . /etc/resolv.conf; ping -c 1 10.0.2.2 >/dev/null || echo no way out
        touch /changed && test ! -e /lib && pwd; exit 7";
    let ended = command(&["--net", "user", "--", "sh", "-c", script], "given\n");
    assert_eq!(ended, (Some(7), "given\naarch64\n1\n/\n".into(), "wrong\n".into()));
}

#[test]
fn a_command_that_is_not_there_is_told_of_as_by_a_shell() {
    let status = scratch("arm-command.json");
    let told = ["--status-file", status.to_str().expect("UTF-8"), "--", "nosuch"];
    let (code, output, messages) = command(&told, "");
    assert_eq!((code, output.as_str()), (Some(127), ""), "{messages}");
    assert!(messages.contains("cannot execute 'nosuch' (No such file or directory"), "{messages}");
    let status = std::fs::read_to_string(status).expect("a file");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!((&status["who"], &status["how"]), (&"satori".into(), &"not-started".into()));
}

#[test]
fn a_machine_is_steered_by_qmp() {
    let path = scratch("arm-qmp.sock");
    let mut satori = Command::new(env!("CARGO_BIN_EXE_satori"));
    satori.args(["run", "--arch", "arm64", "--kernel", "6.1", "--timeout", "5m", "--qmp"]);
    satori.arg(format!("unix:{}", path.display())).args(["--", "sh", "-c", "echo up; sleep 999"]);
    let mut child = satori.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("satori runs");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("text");
    assert_eq!(line, "up\n");
    let mut socket = UnixStream::connect(&path).expect("it listens");
    let words = ["qmp_capabilities", "query-status", "stop", "query-status", "cont", "quit"];
    for word in words {
        writeln!(socket, "{{\"execute\":\"{word}\"}}").expect("it listens");
    }
    let mut said = String::new();
    socket.read_to_string(&mut said).expect("text");
    let said: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let statuses: Vec<_> = said.iter().filter_map(|value| value["return"]["status"].as_str()).collect();
    assert_eq!(statuses, ["running", "paused"], "{said:?}");
    let events: Vec<_> = said.iter().filter_map(|value| value["event"].as_str()).collect();
    assert_eq!(events, ["STOP", "RESUME", "SHUTDOWN"], "{said:?}");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}

/// Boots with EL2 and a guest in it: `said` is what the kernel tells of its hypervisor.
fn boot_hypervisor(name: &str, arguments: &[&str], said: &str) {
    let archive = initrd(&format!("{name}.cpio"), HYPERVISOR, &[("vmm", &program("vmm-arm64.c", name))]);
    let (console, report) = boot("6.1", &archive, arguments);
    assert!(console.contains("CPU: All CPU(s) started at EL2") && console.contains(said), "{console}");
    let told: Vec<_> =
        console.lines().filter_map(|line| line.strip_prefix("fact l2: ")).map(str::trim).collect();
    // PSCI 1.1 of Linux' KVM, the hundredth read of a device, and fifty interrupts of the virtual timer.
    assert_eq!(told, ["65537", "100", "50"], "{console}");
    assert!(console.contains("fact l2 event: 1"), "the guest turned itself off");
    let stats = report["stats"].as_array().expect("counters");
    let count = |name: &str| {
        stats.iter().find(|row| row["name"] == name).map_or(0, |row| row["value"].as_u64().expect("a count"))
    };
    assert_eq!(count("el2_HVC64"), 1000 + 1, "{stats:?}");
    assert!(count("el2_DABT_LOW") > 100 && count("el2_WFx") > 0, "{stats:?}");
}

/// What init does to have a program debugged.
const DEBUG: &str = "#!/bin/busybox sh
busybox mount -t proc proc /proc
echo fact machine: $(busybox uname -m)
echo fact kernel: $(busybox uname -r)
debug
busybox poweroff -f
";

#[test]
fn a_guests_debugger_steps_and_has_breakpoints_and_watchpoints() {
    let archive = initrd("debug.cpio", DEBUG, &[("debug", &program("debug-arm64.c", "debug"))]);
    for engine in ["translator", "interpreter"] {
        let (console, _) = boot("6.1", &archive, &["--clock", "virtual", "--engine", engine]);
        assert!(console.contains("ok it ends") && !console.contains("FAILED"), "{engine}: {console}");
    }
}

#[test]
fn kvm_runs_a_guest_with_vhe() {
    boot_hypervisor("vhe", &["--el", "2", "--clock", "virtual"], "VHE mode initialized successfully");
}

#[test]
fn kvm_runs_a_guest_without_vhe() {
    let flags = ["--el", "2", "--no-vhe", "--clock", "virtual"];
    boot_hypervisor("nvhe", &flags, "Hyp mode initialized successfully");
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let kernel = file("no-image", &[0; 4096]);
    let run = |more: &[&str]| satori(&[&["run", "--arch", "arm64", "--kernel", &kernel], more].concat());
    let bare = run(&[]);
    assert_eq!(bare.status, 2);
    assert!(bare.messages.contains("no arm64 Image"), "{}", bare.messages);
    for (name, given) in [
        ("--hyperv", &["--hyperv", "off"][..]),
        ("--cpu", &["--cpu", "max"]),
        ("--processor", &["--processor", "skylake"]),
        ("--nested", &["--nested", "vmx"]),
        ("--engine kvm", &["--engine", "kvm"]),
        ("--trace", &["--trace", "/dev/null"]),
        ("--testdev", &["--testdev", "suite"]),
        ("--cpus", &["--cpus", "4,sockets=2"]),
        ("--cpus", &["--cpus", "65"]),
        ("--crash-dump", &["--crash-dump", "/dev/null", "--", "true"]),
    ] {
        let ended = run(given);
        assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{given:?}: {}", ended.messages);
        assert!(
            ended.messages.contains("--arch arm64") && ended.messages.contains(name),
            "{}",
            ended.messages
        );
    }
}

#[test]
fn the_talks_experiment_has_the_talks_orders() {
    let ended = satori(&["bench", "vhe", "--rounds", "50", "--kernel", "6.1", "--format", "json"]);
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    let told: serde_json::Value = serde_json::from_str(&ended.console).expect("JSON");
    let designs = told["designs"].as_array().expect("designs");
    assert_eq!(designs.len(), 8);
    let hypercall = |design: &serde_json::Value| design["benchmarks"][0].clone();
    let count =
        |design: &serde_json::Value, event: &str| hypercall(design)["events"][event].as_f64().unwrap_or(0.0);
    // One exit a round; split mode comes to EL2 twice, and moves EL1's registers of guest and host.
    let [split, plain, all] = [0, 1, 7].map(|at| &designs[at]);
    for design in designs {
        assert!((hypercall(design)["exits"]["HVC64"].as_f64().expect("a count") - 1.0).abs() < 0.05);
    }
    assert_eq!([split, plain, all].map(|design| count(design, "exceptions")), [2.0, 1.0, 1.0]);
    assert_eq!([split, plain, all].map(|design| count(design, "write_el1")), [36.0, 18.0, 0.0]);
    assert_eq!(count(all, "read_virtual_gic") + count(all, "write_timer"), 0.0);
    let user = |design: &serde_json::Value| design["benchmarks"][2]["modelled_cycles"]["gicv2"].as_f64();
    assert!(user(all) > user(plain), "I/O in user space");
    // Stock Linux: with VHE EL1's registers stay the guest's, without it they move four times.
    let [vhe, split] = [0, 1].map(|at| &told["linux"][at]);
    assert_eq!([vhe, split].map(|linux| count(linux, "read_el1").round()), [0.0, 36.0]);
    assert_eq!([vhe, split].map(|linux| count(linux, "write_el1").round()), [0.0, 36.0]);
    let ratio = count(split, "instructions") / count(vhe, "instructions");
    assert!((1.2..2.0).contains(&ratio), "{ratio}");
}

#[test]
fn a_kernel_for_arm64_is_refused_with_what_to_add() {
    let mut image = vec![0; 4096];
    image[56..60].copy_from_slice(b"ARM\x64");
    let ended = satori(&["run", "--kernel", &file("image", &image)]);
    assert_eq!(ended.status, 2);
    assert!(ended.messages.contains("--arch arm64"), "{}", ended.messages);
}
