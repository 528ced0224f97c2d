//! Stock Debian kernels, from the host's own apt, in the gate: one boot of each configuration.

mod common;

use std::fs;
use std::process::Command;

use common::{Ended, SATORI, fact, fetch, file, satori, scratch, trials, verdict};

/// Boots the `series` with `arguments` and the trials, and returns its console.
fn boot(series: &str, arguments: &[&str]) -> String {
    let kernel = fetch(&["kernel", series]);
    let fixed = ["run", "--kernel", &kernel, "--initrd", trials(), "--timeout", "5m", "--append", "panic=-1"];
    let ended = satori(&[&fixed, arguments].concat());
    assert_eq!(ended.status, 0, "{}\n{}", tail(&ended.console), ended.messages);
    if let Err(wrong) = verdict(&ended.console) {
        panic!("{series} {arguments:?}: {wrong}\n{}", tail(&ended.console));
    }
    assert!(fact(&ended.console, "kernel").starts_with(&format!("{series}.")));
    ended.console
}

fn tail(console: &str) -> String {
    let lines: Vec<_> = console.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

fn boot_enlightened(series: &str, cpus: &str) {
    let console = boot_with(series, cpus, &["--cpus", cpus]);
    // The default processor has APICv, which spares exits that the enlightened APIC would make.
    assert!(!console.contains("Using enlightened APIC"), "{}", tail(&console));
}

/// As [`boot_with`] on four processors: Linux says which enlightenments it uses, and the report that it did.
fn boot_and_report(series: &str, apic: &str, arguments: &[&str]) -> String {
    let report = scratch(&format!("used-{series}.json"));
    let path = report.to_str().expect("UTF-8");
    // Without APICv Linux is told to reach the APIC through MSRs.
    let fixed = ["--processor", "no-apicv", "--report", "json", "--report-file", path];
    let console = boot_with(series, "4", &[arguments, &fixed].concat());
    for said in [
        "Hyper-V: Host Build 10.0.14393",
        "Hyper-V: LAPIC Timer Frequency: 0x",
        "Hyper-V: Using hypercall for remote TLB flush",
        "Hyper-V: Using IPI hypercalls",
        "Hyper-V: PV spinlocks enabled",
        &format!("Hyper-V: Using enlightened APIC ({apic} mode)"),
    ] {
        assert!(console.contains(said), "no '{said}':\n{}", tail(&console));
    }
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let used = |name: &str| report["hyperv"][name]["used"].as_u64().unwrap_or_else(|| panic!("no {name}"));
    for name in
        ["base", "vpindex", "time", "frequencies", "vapic", "tlbflush", "ipi", "stimer", "stimer_direct"]
    {
        assert!(used(name) > 0, "{series} did not use {name}: {}", report["hyperv"]);
    }
    // What stock Linux never uses.
    for name in ["runtime", "synic", "reenlightenment", "reset"] {
        assert_eq!(used(name), 0, "{series} used {name}");
    }
    console
}

/// The values of "fact topology" on a console: a line for each processor.
fn topology(console: &str) -> Vec<&str> {
    console.lines().filter_map(|line| line.strip_prefix("fact topology: ")).map(str::trim).collect()
}

fn boot_with(series: &str, cpus: &str, arguments: &[&str]) -> String {
    let console = boot(series, arguments);
    assert!(console.contains("Hypervisor detected: Microsoft Hyper-V"));
    assert_eq!(fact(&console, "hypervisor"), "Microsoft Hyper-V");
    assert_eq!(fact(&console, "clocksource"), "hyperv_clocksource_tsc_page");
    assert_eq!(fact(&console, "processors"), cpus);
    // Direct synthetic timers, on each processor; the local APIC's ticks no more.
    assert_eq!(fact(&console, "clockevents"), "Hyper-V clockevent,");
    assert_eq!(fact(&console, "stimers"), cpus);
    console
}

#[test]
fn debian_6_1_on_one_vcpu() {
    boot_enlightened("6.1", "1");
}

// Also: Linux sees the topology that was asked for; package, core, threads of the core, sharers of the L3.
#[test]
fn debian_6_1_on_four_vcpus() {
    let machine = ["--cpus", "4,sockets=2,cores=1,threads=2", "--cpu", "max,-x2apic"];
    let console = boot_and_report("6.1", "xapic", &machine);
    assert_eq!(topology(&console), ["0 0 0-1 0-1", "0 0 0-1 0-1", "1 0 2-3 2-3", "1 0 2-3 2-3"]);
    assert!(fact(&console, "cpu").starts_with("GenuineIntel 6 54 "), "{}", fact(&console, "cpu"));
}

#[test]
fn debian_6_12_on_one_vcpu() {
    boot_enlightened("6.12", "1");
}

#[test]
fn debian_6_12_on_four_vcpus() {
    boot_and_report("6.12", "x2apic", &["--cpus", "4"]);
}

#[test]
fn without_hyper_v() {
    // Also: a processor of AMD's, with three cores in each socket, so that APIC IDs have a gap.
    let cpu = "max,vendor=AuthenticAMD,model-id=A processor";
    let console = boot("6.1", &["--hyperv", "off", "--cpus", "6,sockets=2,threads=1", "--cpu", cpu]);
    let expected = [0, 1, 2, 0, 1, 2].iter().zip([0, 0, 0, 1, 1, 1]);
    let expected: Vec<_> = expected
        .zip(0..)
        .map(|((core, socket), cpu)| format!("{socket} {core} {cpu} {}-{}", socket * 3, socket * 3 + 2))
        .collect();
    assert_eq!(topology(&console), expected);
    assert_eq!(fact(&console, "cpu"), "AuthenticAMD 26 2 A processor");
    assert!(!console.contains("Hyper-V"));
    assert_ne!(fact(&console, "clocksource"), "hyperv_clocksource_tsc_page");
}

#[test]
fn two_virtual_runs_are_one() {
    let kernel = fetch(&["kernel", "6.1"]);
    let run = |name: &str, engine: &str| {
        let report = scratch(name);
        let path = report.to_str().expect("UTF-8");
        let ended = satori(&[
            "run",
            "--kernel",
            &kernel,
            "--initrd",
            trials(),
            "--timeout",
            "5m",
            "--cpus",
            "4",
            "--clock",
            "virtual",
            "--engine",
            engine,
            "--report",
            "json",
            "--report-file",
            path,
        ]);
        assert_eq!(ended.status, 0, "{}\n{}", tail(&ended.console), ended.messages);
        verdict(&ended.console).unwrap();
        let report = fs::read_to_string(report).unwrap();
        let mut report: serde_json::Value = serde_json::from_str(&report).unwrap();
        // The host's time is the only thing that may differ, and what says where the report is from.
        assert!(report.as_object_mut().unwrap().remove("origin").is_some());
        assert!(report.as_object_mut().unwrap().remove("elapsed_ns").is_some());
        (ended.console, report)
    };
    let (first, second) = (run("virtual-1", "translator"), run("virtual-2", "translator"));
    assert_eq!(first.0, second.0, "the consoles differ");
    assert_eq!(first.1, second.1, "the reports differ");
    assert_eq!(first.1["vcpus"].as_array().unwrap().len(), 4);
    let other = run("virtual-3", "interpreter");
    assert_eq!(first.0, other.0, "the consoles of the engines differ");
    assert_eq!(first.1["all"], other.1["all"], "the exits of the engines differ");
}

#[test]
fn the_smallest_memory_and_a_large_one() {
    let console = boot("6.1", &["-m", "128M"]);
    assert!(fact(&console, "memory").parse::<u64>().unwrap() < 128 << 10);
    let console = boot("6.12", &["-m", "64G", "--clock", "virtual"]);
    assert!(fact(&console, "memory").parse::<u64>().unwrap() > 60 << 20);
}

#[test]
fn a_panic_of_linux_is_told() {
    let kernel = fetch(&["kernel", "6.1"]);
    let dump = file("panic.core", b"what a former run left");
    // Nothing to mount and no init: "VFS: Unable to mount root fs".
    let fixed = ["run", "--kernel", &kernel, "--timeout", "2m", "--clock", "virtual", "--cpus", "2"];
    let ended = satori(&[&fixed[..], &["--crash-dump", &dump]].concat());
    assert_eq!(ended.status, 120, "{}\n{}", tail(&ended.console), ended.messages);
    assert!(ended.messages.contains("Kernel panic - not syncing: VFS"), "{}", ended.messages);
    assert!(ended.messages.contains("RIP ffffffff"), "{}", ended.messages);
    // Once in words above the registers, and whole on the console alone.
    assert_eq!(ended.messages.matches("Kernel panic").count(), 1, "{}", ended.messages);
    assert!(!ended.messages.contains("WARN") && !ended.messages.contains("Call Trace"), "{}", ended.messages);
    assert!(ended.messages.contains("its size in bytes"), "{}", ended.messages);
    assert!(ended.messages.contains("512 MiB of memory") && ended.messages.contains("VMCOREINFO"));
    stock_tools_open(&dump, &ended.messages);
}

/// The log's end is found at the addresses at which the kernel has it, and the registers are those that were told.
fn stock_tools_open(dump: &str, messages: &str) {
    let tool = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.unwrap_or_else(|why| panic!("{program} is needed ({why})"));
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let notes = tool("readelf", &["--wide", "--headers", "--notes", dump]);
    for part in ["CORE (Core file)", "NT_PRSTATUS", "VMCOREINFO", "Advanced Micro Devices X86-64"] {
        assert!(notes.contains(part), "{part}\n{notes}");
    }
    assert!(!notes.contains("Warning") && !notes.contains("Error"), "{notes}");
    let threads = tool("gdb", &["--batch", "--nx", "--core", dump, "--ex", "info threads"]);
    assert!(threads.contains("LWP 1") && threads.contains("LWP 2"), "{threads}");
    let registers = tool(
        "gdb",
        &[
            "--batch",
            "--nx",
            "--core",
            dump,
            "--ex",
            "thread 1",
            "--ex",
            "info registers rip rsp",
            "--ex",
            "x/2gx $rsp",
            "--ex",
            "x/4xb $rip",
        ],
    );
    let told = messages.split("RIP ").nth(1).and_then(|text| text.split_whitespace().next()).unwrap();
    assert!(registers.contains(told), "{told}\n{registers}");
    assert!(!registers.contains("Cannot access"), "code and stack are mapped\n{registers}");
    let bytes = fs::read(dump).unwrap();
    let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    assert!(has(b"VFS: Unable to mount root fs") && has(b"KERNELOFFSET="), "what the kernel logged and told");
}

/// Functions are named from the table in the guest's memory, which is laid out differently in either kernel.
#[test]
fn a_panic_of_linux_names_its_function() {
    for (series, order) in [("6.1", "6.3 or older"), ("6.12", "6.4 or newer")] {
        let kernel = fetch(&["kernel", series]);
        let ended = satori(&["run", "-v", "--kernel", &kernel, "--timeout", "3m", "--report", "off"]);
        assert_eq!(ended.status, 120, "{series}\n{}", ended.messages);
        assert!(ended.messages.contains(order), "{series}\n{}", ended.messages);
        let named = ended.messages.lines().find_map(|line| line.split("RIP is at ").nth(1));
        let (name, offset) = named.and_then(|named| named.split_once("+0x")).expect("a function and offset");
        assert!(!name.is_empty() && u64::from_str_radix(offset, 16).unwrap() < 1 << 16, "{name} {offset}");
    }
}

#[test]
fn a_reboot_of_linux_restarts_or_ends() {
    let kernel = fetch(&["kernel", "6.1"]);
    let busybox = fs::read(fetch(&["busybox"])).unwrap();
    let script = "#!/bin/sh\necho here I am\n/bin/busybox reboot -f\n";
    let initramfs = file("reboot.cpio", &satori::initramfs::build(&busybox, script, &[]));
    let run = |arguments: &[&str]| {
        let fixed = ["run", "--kernel", &kernel, "--initrd", &initramfs, "--append", "quiet"];
        satori(&[&fixed, arguments].concat())
    };
    let ended = run(&["--on-reset", "exit", "--timeout", "2m"]);
    assert_eq!(ended.status, 118, "{}\n{}", ended.console, ended.messages);
    let ended = run(&["--timeout", "25s"]);
    assert_eq!(ended.status, 124, "{}\n{}", ended.console, ended.messages);
    assert!(ended.console.matches("here I am").count() >= 2, "{}", ended.console);
}

#[test]
fn several_initrds_are_joined() {
    let kernel = fetch(&["kernel", "6.12"]);
    let busybox = fs::read(fetch(&["busybox"])).unwrap();
    let script = "#!/bin/sh\n/bin/busybox cat /bin/extra\n/bin/busybox poweroff -f\n";
    let first = file("first.cpio", &satori::initramfs::build(&busybox, script, &[]));
    let mut second = satori::cpio::Cpio::new().file("bin/extra", 0o644, b"from the second\n").finish();
    second.push(0); // not a multiple of four: the join must align what follows
    let second = file("second.cpio", &second);
    let third = satori::cpio::Cpio::new().file("bin/extra", 0o644, b"from the third\n").finish();
    let third = file("third.cpio", &third);
    let ended = satori(&[
        "run",
        "--kernel",
        &kernel,
        "--initrd",
        &first,
        "--initrd",
        &second,
        "--initrd",
        &third,
        "--timeout",
        "2m",
        "--append",
        "quiet",
    ]);
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    assert!(ended.console.contains("from the third"), "{}", ended.console);
}

#[test]
fn truncated_debian_kernels_are_refused() {
    for series in ["6.1", "6.12"] {
        let whole = fs::read(fetch(&["kernel", series])).unwrap();
        for part in [1, 8, 500, 990] {
            let cut = file(&format!("cut-{series}-{part}"), &whole[..whole.len() / 1000 * part]);
            let ended = satori(&["run", "--kernel", &cut, "--timeout", "1m"]);
            assert_eq!((ended.status, ended.messages.lines().count()), (2, 1), "{series} {part}: {ended:?}");
        }
    }
}

#[test]
fn the_demo_shows_what_it_found() {
    let ended = satori(&["demo", "--cpus", "2", "--timeout", "5m"]);
    assert_eq!(ended.status, 0, "{}\n{}", tail(&ended.console), ended.messages);
    for words in [
        "Hypervisor detected: Microsoft Hyper-V",
        "clocksource    hyperv_clocksource_tsc_page",
        "processors     2 x",
    ] {
        assert!(ended.console.contains(words), "no '{words}':\n{}", tail(&ended.console));
    }
    assert!(
        ended.messages.contains("VM-EXIT") && ended.messages.contains("Total Samples"),
        "{}",
        ended.messages
    );
}

/// What a kernel unpacks to is kept, and taken instead of unpacking it again.
#[test]
fn what_a_kernel_unpacks_to_is_kept() {
    let (kernel, cache) = (fetch(&["kernel", "6.12"]), scratch("unpacked-cache"));
    let _ = fs::remove_dir_all(&cache);
    let run = || -> Ended {
        let mut command = Command::new(SATORI);
        command.args([
            "run",
            "--kernel",
            &kernel,
            "--timeout",
            "50ms",
            "--report",
            "off",
            "--engine",
            "translator",
        ]);
        command.env("XDG_CACHE_HOME", &cache).output().expect("satori runs").into()
    };
    let first = run();
    assert_eq!(first.status, 124, "{}", first.messages);
    let kept: Vec<_> = fs::read_dir(cache.join("satori/unpacked")).expect("a folder").flatten().collect();
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    let length = kept.metadata().expect("its length").len() as usize - 4;
    // As long and with a sum that is right, but nothing that the file unpacks to: who unpacked it would not see that.
    let mut other = vec![0; length];
    other.extend(crc32fast::hash(&other).to_le_bytes());
    fs::write(kept.path(), &other).expect("written");
    let second = run();
    assert!(second.status == 2 && second.messages.contains("without ELF"), "{}", second.messages);
    // What was written in part is unpacked again, and whole again.
    fs::write(kept.path(), &other[..length / 2]).expect("written");
    assert_eq!(run().status, 124);
    assert_eq!(kept.path().metadata().expect("its length").len() as usize, length + 4);
}
