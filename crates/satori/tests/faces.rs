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
