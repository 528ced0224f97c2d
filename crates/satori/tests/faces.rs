//! The interfaces beside Hyper-V's, as a stock kernel finds and uses them.

mod common;

use common::{fetch, satori, scratch};

/// Packs an initramfs whose init runs `commands`.
fn initrd(name: &str, commands: &str) -> String {
    let path = scratch(name).to_str().expect("UTF-8").to_string();
    let made = satori(&["initrd", "--busybox", "--run", commands, "-o", &path]);
    assert_eq!(made.status, 0, "{}", made.messages);
    path
}

/// Boots Debian's 6.1 with `arguments`; its console, and the report.
fn boot(name: &str, commands: &str, arguments: &[&str]) -> (String, serde_json::Value) {
    let (kernel, initrd) = (fetch(&["kernel", "6.1"]), initrd(&format!("{name}.cpio"), commands));
    let report = scratch(&format!("{name}.json")).to_str().expect("UTF-8").to_string();
    let fixed =
        ["run", "--kernel", &kernel, "--initrd", &initrd, "--timeout", "5m", "--engine", "translator"];
    let told = ["--report", "json", "--report-file", &report];
    let ended = satori(&[&fixed[..], &told, arguments].concat());
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    let report = std::fs::read_to_string(report).expect("a report");
    (ended.console, serde_json::from_str(&report).expect("JSON"))
}

const LOOK: &str = "cat /sys/devices/system/clocksource/clocksource0/current_clocksource; \
    for i in 1 2 3 4 5 6; do (for j in 1 2 3; do sleep 0.01; ls -lR /sys/kernel >/dev/null; done) & done; wait; head -5 /proc/stat";

#[test]
fn linux_is_a_guest_of_kvm() {
    let arguments = ["--guest", "kvm", "--cpus", "4", "--processor", "no-apicv", "--clock", "virtual"];
    let clock = ["--append", "clocksource=kvm-clock"];
    let (console, report) = boot("kvm", LOOK, &[&arguments[..], &clock].concat());
    for said in [
        "Hypervisor detected: KVM",
        "kvm-clock: Using msrs 4b564d01 and 4b564d00",
        "kvm-guest: KVM setup pv remote TLB flush",
        "kvm-guest: setup PV sched yield",
        "kvm-guest: PV spinlocks enabled",
        "kvm-guest: setup PV IPIs",
        "\nkvm-clock\r\n",
    ] {
        assert!(console.contains(said), "no '{said}':\n{console}");
    }
    for name in ["clock", "steal-time", "pv-eoi", "pv-tlb-flush"] {
        assert!(report["kvm"][name]["used"].as_u64() > Some(0), "{name}: {}", report["kvm"]);
    }
    let spared = report["kvm"]["pv-eoi"]["ways"]["EOIs without an exit"].as_u64();
    assert!(spared > Some(100), "{}", report["kvm"]);
    // Four vCPUs take turns on one counter of instructions: what the others had is stolen.
    let stolen =
        console.lines().find(|line| line.starts_with("cpu ")).and_then(|line| line.split_whitespace().nth(8));
    assert!(stolen.is_some_and(|ticks| ticks.parse::<u64>().is_ok_and(|ticks| ticks > 0)), "{console}");
    assert!(report.get("hyperv").is_none_or(|rows| rows.as_object().is_none_or(|rows| rows.is_empty())));
    let (again, _) = boot("kvm-again", LOOK, &[&arguments[..], &clock].concat());
    assert_eq!(again, console, "the same under a virtual clock");
}

#[test]
fn kvm_stands_behind_hyper_v_and_is_hidden_on_demand() {
    let (console, report) = boot("both", "true", &["--guest", "kvm+hyperv"]);
    assert!(console.contains("Hypervisor detected: KVM"), "Linux takes the highest base:\n{console}");
    assert!(report["kvm"]["clock"]["used"].as_u64() > Some(0));
    let (console, _) = boot("hidden", "true", &["--guest", "kvm", "--cpu", "max,kvm=off"]);
    assert!(!console.contains("Hypervisor detected"), "{console}");
}

#[test]
fn contradictions_are_refused_by_name() {
    for (arguments, words) in [
        (&["--guest", "kvm", "--hyperv", "auto"][..], "kvm+hyperv"),
        (&["--guest", "kvm", "--cpu", "max,hv-time"], "--cpu hv-time"),
        (&["--guest", "hyperv", "--hyperv", "off"], "leave one out"),
        (&["--kvm", "all"], "--guest kvm"),
        (&["--cpu", "max,kvm-pv-eoi"], "kvm-pv-eoi"),
        (&["--guest", "kvm", "--kvm", "off"], "contradicts"),
        (&["--guest", "kvm", "--kvm", "asyncpf"], "cannot be had"),
        (&["--guest", "vmware"], "hyperv or kvm"),
        (&["--guest", "xen-pvh+hyperv"], "stands alone"),
        (&["--guest", "xen-pvh", "--hyperv", "auto"], "--hyperv auto"),
    ] {
        let ended = satori(&[&["kvm", "check"][..], arguments].concat());
        assert_eq!(ended.status, 2, "{arguments:?}: {}", ended.messages);
        assert!(ended.messages.contains(words), "{arguments:?}: {}", ended.messages);
    }
    let written =
        satori(&["kvm", "convert", "--to", "qemu", "--guest", "kvm", "--cpu", "max,kvm-pv-eoi=off"]);
    assert!(
        written.console.contains(",kvmclock=on") && written.console.contains(",kvm-pv-eoi=off"),
        "{written:?}"
    );
}

/// How often the event `name` arrived, by /proc/interrupts.
fn arrived(console: &str, name: &str) -> u64 {
    let row = console.lines().map(str::trim_end).find(|row| row.ends_with(&format!(" {name}")));
    let counts = row.into_iter().flat_map(|row| row.split_whitespace().skip(1));
    counts.map_while(|count| count.parse::<u64>().ok()).sum()
}

#[test]
fn linux_has_xens_disks_and_cards() {
    let kernel = fetch(&["kernel", "6.1"]);
    let image = scratch("xen-devices.img").to_str().expect("UTF-8").to_string();
    let sector = |at: usize| format!("{at:>511}\n");
    std::fs::write(&image, (0..16 << 11).map(sector).collect::<String>()).expect("an image");
    let read_only = scratch("xen-readonly.img").to_str().expect("UTF-8").to_string();
    std::fs::write(&read_only, vec![b'r'; 1 << 20]).expect("an image");
    // Reads in large requests and small ones, writes, flushes, gives up; asks the network for an address of its own; and the store.
    let commands = "set -e; for i in 1 2 3 4 5 6 7 8 9; do [ -b /dev/xvdb ] && break; sleep 0.3; done; sha256sum /dev/xvda; \
        dd if=/dev/xvda bs=512 skip=9999 count=1 2>/dev/null | tr -d ' '; \
        dd if=/dev/zero of=/dev/xvda bs=1M seek=3 count=2 conv=fsync 2>/dev/null; blkdiscard -o 8388608 -l 1048576 /dev/xvda || true; \
        cat /sys/block/xvdb/ro /sys/block/xvda/queue/write_cache; grep -E 'blkif|eth0|xenbus' /proc/interrupts; ls /sys/bus/xen/devices; \
        ip link set eth0 up; udhcpc -i eth0 -n -q -t 5 -T 1 -s /bin/true 2>&1 | grep obtained; \
        cat /sys/devices/system/xen_memory/xen_memory0/target_kb; dmesg | grep -E 'xen.*(grant|blkfront|netfront)|xvda'; ls -lR /sys/block | head -3";
    let initrd = scratch("xen-devices.cpio").to_str().expect("UTF-8").to_string();
    let modules = ["--kernel", "6.1", "--module", "xen-blkfront", "--module", "xen-netfront"];
    let made =
        satori(&[&["initrd", "--busybox"][..], &modules, &["--run", commands, "-o", &initrd]].concat());
    assert_eq!(made.status, 0, "{}", made.messages);
    for cpus in ["1", "4"] {
        std::fs::write(&image, (0..16 << 11).map(sector).collect::<String>()).expect("an image");
        let disks = [format!("{image},bus=xen"), format!("{read_only},bus=xen,readonly")];
        let ended = satori(&[
            "run",
            "--kernel",
            &kernel,
            "--initrd",
            &initrd,
            "--guest",
            "xen-pvh",
            "--cmdline",
            // A busy host's ticks may come too late for the kernel's look at its first timer.
            "console=hvc0 no_timer_check",
            "--timeout",
            "5m",
            "--cpus",
            cpus,
            "--disk",
            &disks[0],
            "--disk",
            &disks[1],
            "--net",
            "user,bus=xen",
        ]);
        assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
        for said in [
            "9999\r\n",
            "write back",
            "vbd-51712",
            "vif-0",
            "lease of 10.0.2.15 obtained",
            "xen:grant_table: Grant tables using version 1 layout",
            "persistent grants: enabled; indirect descriptors: enabled",
        ] {
            assert!(ended.console.contains(said), "no '{said}':\n{}", ended.console);
        }
        let mut wanted = (0..16 << 11).map(sector).collect::<String>().into_bytes();
        assert!(std::fs::read(&image).expect("the image").len() == wanted.len());
        wanted[3 << 20..5 << 20].fill(0);
        let now = std::fs::read(&image).expect("the image");
        let discarded = 8 << 20..9 << 20;
        let same = |range: std::ops::Range<usize>| now[range.clone()] == wanted[range];
        assert!(
            same(0..discarded.start) && same(discarded.end..wanted.len()),
            "what was written is in the file"
        );
    }
    let refused = satori(&["run", "--kernel", &kernel, "--disk", &format!("{image},bus=xen")]);
    assert!(refused.status == 2 && refused.messages.contains("--guest xen-pvh"), "{}", refused.messages);
}

#[test]
fn linux_is_a_pvh_guest_of_xen() {
    let look = "cat /sys/hypervisor/type /sys/hypervisor/guest_type /sys/hypervisor/version/major; grep xen /proc/interrupts; \
        cat /sys/devices/system/clocksource/clocksource0/current_clocksource; \
        for i in 1 2 3 4; do (for j in 1 2 3; do sleep 0.01; ls -lR /sys/kernel >/dev/null; done) & done; wait";
    let fixed = ["--guest", "xen-pvh", "--cmdline", "console=hvc0 clocksource=xen", "--clock", "virtual"];
    let mut first = None;
    for cpus in ["1", "4", "4"] {
        let (console, report) = boot(&format!("xen{cpus}"), look, &[&fixed[..], &["--cpus", cpus]].concat());
        for said in [
            "Hypervisor detected: Xen HVM",
            "Booting kernel on Xen PVH",
            "xen:events: Using FIFO-based ABI",
            "Xen HVM callback vector for event delivery is enabled",
            "installing Xen timer for CPU 0",
            "\nPVH\r\n",
            "\nxen\r\n",
        ] {
            assert!(console.contains(said), "no '{said}':\n{console}");
        }
        for name in ["memory_op", "event_channel_op", "vcpu_op", "hvm_op", "xen_version"] {
            assert!(report["xen"][name]["used"].as_u64() > Some(0), "{name}: {}", report["xen"]);
        }
        assert!(arrived(&console, "timer0") > 0 && arrived(&console, "hvc_console") > 0, "{console}");
        if cpus == "4" {
            assert!(
                console.contains("installing Xen timer for CPU 3")
                    && arrived(&console, "timer3") > 0
                    && arrived(&console, "callfuncsingle3") > 0,
                "{console}"
            );
            let before = first.get_or_insert_with(|| console.clone());
            assert_eq!(*before, console, "the same under a virtual clock");
        }
    }
}
