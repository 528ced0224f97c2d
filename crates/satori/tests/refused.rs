//! Bad input: status 2, one line that says what to do, no console, nothing left behind.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Ended, SATORI, fetch, file, pvh, satori};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Runs satori with `arguments`, which it must refuse with a line that has each of `words`.
fn refused(arguments: &[&str], words: &[&str]) {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let report = common::scratch(&format!("report-{number}"));
    let _ = std::fs::remove_file(&report);
    let mut all = vec!["run"];
    all.extend(arguments);
    let path = report.to_str().unwrap();
    all.extend(["--report-file", path]);
    let ended = satori(&all);
    assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{all:?}: {ended:?}");
    assert_eq!(ended.messages.lines().count(), 1, "{all:?}: {ended:?}");
    assert!(ended.messages.starts_with("satori: "), "{all:?}: {ended:?}");
    for word in words {
        assert!(ended.messages.contains(word), "{all:?} lacks '{word}': {ended:?}");
    }
    assert!(!report.exists(), "{all:?} left a report file behind");
}

#[test]
fn kernels() {
    refused(&[], &["--kernel <FILE>", "satori run --help"]);
    refused(&["--kernel", "/nonexistent"], &["--kernel /nonexistent", "No such file"]);
    refused(&["--kernel", "/"], &["no regular file"]);
    refused(&["--kernel", "/dev/null"], &["no regular file"]);
    refused(&["--kernel", &file("empty", b"")], &["empty"]);
    refused(&["--kernel", &file("text", b"#!/bin/sh\necho not a kernel\n")], &["bzImage"]);
    refused(&["--kernel", &file("zeros", &[0; 100_000])], &[]);
    let good = pvh::halt();
    for length in [1, 20, 63, 64, 100, 200, 0x1000, 0x1fff] {
        refused(&["--kernel", &file(&format!("cut-{length}"), &good[..length])], &[]);
    }
    let mut foreign = good.clone();
    foreign[18] = 183; // EM_AARCH64
    refused(&["--kernel", &file("foreign", &foreign)], &[]);
}

#[test]
fn initrds() {
    let kernel = file("initrd-kernel", &pvh::halt());
    refused(&["--kernel", &kernel, "--initrd", "/nonexistent"], &["--initrd /nonexistent"]);
    let large = common::scratch("large");
    let sparse = std::fs::File::create(&large).unwrap();
    sparse.set_len(200 << 20).unwrap();
    let large = large.to_str().unwrap();
    refused(&["--kernel", &kernel, "-m", "128M", "--initrd", large], &["memory"]);
    refused(&["--kernel", &kernel, "-m", "256M", "--initrd", large, "--initrd", large], &["memory"]);
    // Refused by its size: to read it would take minutes, and more memory than there is.
    sparse.set_len(1 << 40).unwrap();
    for flag in ["--initrd", "--module"] {
        refused(&["--kernel", &kernel, flag, large], &[flag, "too large", "--memory"]);
    }
    refused(&["--kernel", large], &["--kernel", "too large"]);
    std::fs::remove_file(large).unwrap();
}

#[test]
fn disks() {
    let kernel = file("disk-kernel", &pvh::halt());
    let disk = file("good.img", &[0; 4096]);
    for (disk, told) in [
        ("/nonexistent", "No such file"),
        ("/", "--disk /"),
        (&file("short.img", &[0; 700]), "no whole sectors"),
        (&file("empty.img", b""), "0 bytes"),
        (&format!("{disk},format=qcow2"), "qemu-img check"),
        (&format!("{disk},cache=much"), "write one of writeback"),
        (&format!("{disk},bus=ide"), "write bus=virtio, bus=vmbus or bus=xen"),
        (&format!("{disk},serial=a-serial-that-is-too-long"), "20 bytes"),
    ] {
        refused(&["--kernel", &kernel, "--disk", disk], &[told]);
    }
    refused(&["--kernel", &kernel, "--disk", &disk, "--disk", &disk], &["in use"]);
    let on_bus = format!("{disk},bus=vmbus");
    for how in [vec!["--vmbus"], vec!["--disk", on_bus.as_str()]] {
        let without = vec!["--kernel", kernel.as_str(), "--hyperv", "off"];
        refused(&[without, how].concat(), &["VMBus", "synic", "--hyperv on"]);
    }
    refused(&["--kernel", &kernel, "--net", "user,bus=vmbus,queues=2"], &["one channel"]);
    let ours = std::fs::File::open(&disk).unwrap();
    ours.lock().unwrap();
    refused(&["--kernel", &kernel, "--disk", &format!("{disk},readonly")], &["in use", "snapshot"]);
}

#[test]
fn modules_and_protocols() {
    let kernel = file("boot-kernel", &pvh::halt());
    refused(&["--kernel", &kernel, "--module", "/nonexistent args"], &["--module /nonexistent ("]);
    refused(&["--kernel", &kernel, "--initrd", "/nonexistent a,/b"], &["--initrd /nonexistent ("]);
    for boot in ["multiboot", "linux", "linux32"] {
        refused(&["--kernel", &kernel, "--boot", boot], &["--boot auto"]);
    }
    refused(&["--kernel", &kernel, "--boot", "bios"], &["bios", "multiboot"]);
}

#[test]
fn sizes_and_counts() {
    let kernel = file("sizes-kernel", &pvh::halt());
    for size in ["0", "1M", "127M", "65537M", "100T", "99999999999999999999G", "-5", "257M", "much"] {
        refused(&["--kernel", &kernel, &format!("--memory={size}")], &["--memory", "satori run --help"]);
    }
    for cpus in
        ["0", "256", "4294967296", "-1", "two", "8,sockets=3", "4,cores", "2,maxcpus=4", "4,clusters=2"]
    {
        refused(&["--kernel", &kernel, &format!("--cpus={cpus}")], &["--cpus", "satori run --help"]);
    }
    refused(&["--kernel", &kernel, "--timeout", "0"], &["--timeout"]);
    let long = "x".repeat(100_000);
    refused(&["--kernel", &kernel, "--cmdline", &long], &[]);
}

#[test]
fn models_and_flags() {
    let kernel = file("flags-kernel", &pvh::halt());
    refused(&["--kernel", &kernel, "--cpu", "pentium"], &["pentium", "x86-64-v2"]);
    refused(&["--kernel", &kernel, "--cpu", "max,+warp"], &["warp"]);
    refused(&["--kernel", &kernel, "--cpu", "max,+popcount"], &["did you mean popcnt?"]);
    refused(&["--kernel", &kernel, "--cpu", "max,+avx512f"], &["does not implement", "avx512f"]);
    refused(&["--kernel", &kernel, "--cpu", "x86-64-v1,+avx2"], &["'avx2' needs", "say +xsave,+avx as well"]);
    let intel = ["--kernel", &kernel, "--nested", "svm", "--cpu", "max,vendor=GenuineIntel"];
    refused(&intel, &["GenuineIntel", "has no 'svm'"]);
    refused(
        &["--kernel", &kernel, "--nested", "vmx", "--cpu", "max,+svm"],
        &["AuthenticAMD", "has no 'vmx'"],
    );
    let evmcs = ["--kernel", &kernel, "--nested", "svm", "--hyperv", "auto,evmcs"];
    refused(&evmcs, &["evmcs", "--nested vmx"]);
    let amd = ["--kernel", &kernel, "--nested", "vmx", "--cpu", "max,vendor=AuthenticAMD"];
    refused(&amd, &["AuthenticAMD", "has no 'vmx'"]);
    refused(&["--kernel", &kernel, "--cpu", "max,popcnt"], &["+popcnt"]);
    refused(&["--kernel", &kernel, "--cpu", "max,vendor=Intel"], &["twelve characters"]);
    refused(&["--kernel", &kernel, "--cpu", "x86-64-v4"], &["AVX-512", "not implement yet", "x86-64-v3"]);
    refused(&["--kernel", &kernel, "--cpu", "max,-lm"], &["64 bits", "long mode", "-lm"]);
    refused(&["--kernel", &kernel, "--cpus", "4,cores=3"], &["make them agree"]);
    refused(&["--kernel", &kernel, "--hyperv", "warp"], &["warp", "vpindex"]);
    refused(&["--kernel", &kernel, "--hyperv", "off,vpindex"], &["off"]);
    refused(&["--kernel", &kernel, "--clock", "sundial"], &["sundial", "virtual"]);
    for flags in [
        &["--clock", "virtual"][..],
        &["--tsc-change", "1s=2GHz"],
        &["--guest", "kvm"],
        &["--engine-stats"],
        &["--nested", "vmx"],
        &["--nested", "svm"],
        &["--processor", "skylake"],
        &["--perf", "map"],
    ] {
        refused(&[&["--kernel", &kernel, "--engine", "kvm"], flags].concat(), &[flags[0], "kvm"]);
    }
    refused(
        &["--kernel", &kernel, "--engine", "warp"],
        &["warp", "auto, software, interpreter, translator, kvm", "satori run --help"],
    );
    // What is no Linux and enters at its PVH note takes modules.
    let linux = fetch(&["kernel", "6.1"]);
    refused(&["--kernel", &linux, "--module", &kernel], &["multiboot", "PVH", "--initrd"]);
    refused(&["--kernel", &linux, "--initrd", &format!("{kernel} x=1")], &["multiboot", "PVH", "--initrd"]);
    refused(&["--kernel", &kernel, "--frobnicate"], &["--frobnicate"]);
    refused(&["--kernel", &kernel, "--cmdline", "a", "--append", "b"], &["--append", "cannot be used with"]);
    refused(&["--kernel", &kernel, "surplus"], &["surplus"]);
    refused(&["--kernel", &kernel, "--cpus", "2", "--report-vcpu", "2"], &["--report-vcpu 2", "2 vCPUs"]);
    refused(&["--kernel", &kernel, "--report-vcpu", "0", "--report", "json"], &["--report text"]);
    refused(&["--kernel", &kernel, "--report", "off"], &["--report off", "leave one of the two out"]);
    refused(&["--kernel", &kernel, "--charge-costs"], &["--charge-costs", "--clock virtual"]);
    refused(
        &["--kernel", &kernel, "--gdb", "unix:/nonexistent/s"],
        &["--gdb", "No such file", "another place"],
    );
    refused(&["--kernel", &kernel, "--gdb", "1234"], &["--gdb", "tcp::PORT"]);
}

#[test]
fn a_report_that_cannot_be_written_is_told_before_the_guest_runs() {
    let kernel = file("report-kernel", &pvh::print("never"));
    let ended = satori(&["run", "--kernel", &kernel, "--report-file", "/nonexistent/report"]);
    assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{ended:?}");
}

#[test]
fn arguments_that_are_no_text() {
    let odd = OsStr::from_bytes(b"\xff\xfe");
    for arguments in
        [vec![odd], vec![OsStr::new("run"), odd], vec![OsStr::new("cpu"), OsStr::new("--cpu"), odd]]
    {
        let ended = Command::new(env!("CARGO_BIN_EXE_satori")).args(&arguments).output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), told.lines().count()), (Some(2), 1), "{arguments:?}: {told}");
    }
}

#[test]
fn a_former_report_is_replaced_and_by_a_refusal_kept() {
    let kernel = file("replace-kernel", &pvh::print_and_exit("now", 1));
    let report = file("former-report", &[b'x'; 100_000]);
    let long = "x".repeat(100_000);
    let ended = satori(&["run", "--kernel", &kernel, "--report-file", &report, "--cmdline", &long]);
    assert_eq!((ended.status, std::fs::read(&report).unwrap().len()), (2, 100_000), "{ended:?}");
    let ended = satori(&["run", "--kernel", &kernel, "--report-file", &report, "--report", "json"]);
    let written = std::fs::read_to_string(&report).unwrap();
    assert!(
        ended.status == 3 && written.starts_with('{') && written.ends_with("}\n"),
        "{ended:?}: {written}"
    );
    std::fs::remove_file(&report).unwrap();
}

#[test]
fn processors_and_engines_are_shown() {
    let ended = satori(&["cpu", "--cpu", "x86-64-v2,-popcnt", "--cpus", "4,threads=2", "--vcpu", "3"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    for words in ["user: -popcnt", "platform: x2apic", "vCPU 3 has APIC ID 0x3", "enlightenments: 0x31237648"]
    {
        assert!(ended.console.contains(words), "no '{words}': {}", ended.console);
    }
    assert_eq!(satori(&["cpu", "--vcpu", "1"]).status, 2, "there is one");
    let json = satori(&["cpu", "--format", "json", "--cpu", "max,vendor=AuthenticAMD"]).console;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["leaves"][0]["ebx"], 0x6874_7541);
    let features = ["cpu", "--features", "--cpu", "max,-popcnt", "--format"];
    let json = satori(&[&features[..], &["json"]].concat()).console;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let found = |name| json["features"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    assert_eq!((&found("popcnt")["offered"], &found("popcnt")["by"]), (&false.into(), &"user".into()));
    assert_eq!((&found("lm")["offered"], &found("lm")["register"]), (&true.into(), &"edx".into()));
    let raw = satori(&[&features[..], &["raw"]].concat()).console;
    assert!(raw.lines().any(|line| line == "lm") && !raw.lines().any(|line| line == "popcnt"), "{raw}");
    let engines = |auto: &str| {
        let mut command = Command::new(SATORI);
        let output = command.args(["engines", "--format", "json"]).env("SATORI_ENGINE", auto).output();
        Ended::from(output.unwrap())
    };
    let told = |auto| serde_json::from_str::<serde_json::Value>(&engines(auto).console).unwrap();
    let json = told("software");
    assert_eq!(json["auto"], "translator");
    // Whether KVM is usable is the host's to say.
    assert_eq!(json["engines"][0]["name"], "kvm");
    let best = if json["engines"][0]["usable"].as_bool().unwrap() { "kvm" } else { "translator" };
    assert_eq!((&told("")["auto"], &told("interpreter")["auto"]), (&best.into(), &"interpreter".into()));
    let ended = engines("warp");
    assert!(ended.status == 2 && ended.messages.contains("SATORI_ENGINE=warp: write auto"), "{ended:?}");
    assert!(satori(&["msrs"]).console.contains("IA32_MISC_ENABLE"));
}

#[test]
fn commands_and_help() {
    let ended = satori(&["frobnicate"]);
    assert_eq!((ended.status, ended.messages.lines().count()), (2, 1), "{ended:?}");
    assert_eq!(satori(&[]).status, 2);
    let ended = satori(&["run", "--help"]);
    assert_eq!(ended.status, 0);
    for word in ["--panic-pattern", "118", "git bisect", "Ctrl-A x"] {
        assert!(ended.console.contains(word), "--help lacks {word}");
    }
    assert_eq!(satori(&["man", "frobnicate"]).status, 2);
}
