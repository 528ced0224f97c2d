//! The interfaces beside Hyper-V's, as a stock kernel finds and uses them.

mod common;

use std::net::{Shutdown, TcpListener};

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
        (&["--guest", "xen-pvh+hyperv"], "xen-hvm+hyperv"),
        (&["--guest", "xen-pvh+xen-hvm"], "two kinds"),
        (&["--guest", "xen-hvm+kvm"], "do not stand together"),
        (&["--guest", "xen-hvm", "--hyperv", "auto"], "xen-hvm+hyperv"),
        (&["--guest", "xen-hvm", "--kvm", "all"], "--guest kvm"),
        (&["--xen", "auto"], "--guest xen-pvh or xen-hvm"),
        (&["--guest", "xen-pvh", "--xen", "-callback-vector,-upcall-vector"], "no interrupt line"),
        (&["--guest", "xen-hvm", "--xen", "-acpi"], "nothing of Xen's"),
        (&["--guest", "xen-hvm", "--xen", "tsc=fast"], "tsc=never"),
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

/// Sends back what comes, once.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let (socket, _) = listener.accept()?;
        std::io::copy(&mut &socket, &mut &socket).and_then(|_| socket.shutdown(Shutdown::Write))
    });
    port
}

/// Boots `kernel` as `guest` with Xen's disks and card, and looks at what became of them.
fn has_xens_devices(guest: &str, series: &str, cpus: &str) {
    let kernel = fetch(&["kernel", series]);
    let name = |what: &str| scratch(&format!("{guest}-{series}-{what}")).to_str().expect("UTF-8").to_string();
    let (image, read_only, initrd) = (name("disk.img"), name("readonly.img"), name("devices.cpio"));
    let sector = |at: usize| format!("{at:>511}\n");
    std::fs::write(&image, (0..16 << 11).map(sector).collect::<String>()).expect("an image");
    std::fs::write(&read_only, vec![b'r'; 1 << 20]).expect("an image");
    // Reads in large requests and small ones, writes, flushes, gives up; has itself suspended by the store, and goes on; asks the network for an address of its own, sends and gets
    // 3 MB by TCP; and the store.
    let commands = format!(
        "set -e; for i in 1 2 3 4 5 6 7 8 9; do [ -b /dev/xvdb ] && break; sleep 0.3; done; sha256sum /dev/xvda; \
        dd if=/dev/xvda bs=512 skip=9999 count=1 2>/dev/null | tr -d ' '; \
        dd if=/dev/zero of=/dev/xvda bs=1M seek=3 count=2 conv=fsync 2>/dev/null; blkdiscard -o 8388608 -l 1048576 /dev/xvda || true; \
        cat /sys/block/xvdb/ro /sys/block/xvda/queue/write_cache; grep -E 'blkif|eth0|xenbus' /proc/interrupts; ls /sys/bus/xen/devices; \
        printf '\\013\\000\\000\\000\\001\\000\\000\\000\\000\\000\\000\\000\\030\\000\\000\\000control/shutdown\\000suspend' >/dev/xen/xenbus; \
        sleep 1; dmesg | grep -A99 'suspending xenstore'; \
        dd if=/dev/xvda bs=512 skip=12345 count=1 2>/dev/null | tr -d ' '; \
        ip link set eth0 up; udhcpc -i eth0 -n -q -t 5 -T 1 -s /bin/true 2>&1 | grep obtained; \
        ip addr add 10.0.2.15/24 dev eth0; head -c 3000000 /dev/urandom >/sent; nc 10.0.2.2 {} </sent >/got; \
        cmp /sent /got && echo the same came back; \
        cat /sys/devices/system/xen_memory/xen_memory0/target_kb; dmesg | grep -E 'xen.*(grant|blkfront|netfront)|xvda'; ls -lR /sys/block | head -3",
        echo()
    );
    let modules = ["--kernel", series, "--module", "xen-blkfront", "--module", "xen-netfront"];
    let made =
        satori(&[&["initrd", "--busybox"][..], &modules, &["--run", &commands, "-o", &initrd]].concat());
    assert_eq!(made.status, 0, "{}", made.messages);
    let disks = [format!("{image},bus=xen"), format!("{read_only},bus=xen,readonly")];
    // A busy host's ticks may come too late for the kernel's look at its first timer.
    let fixed = ["--cmdline", "console=hvc0 no_timer_check", "--timeout", "5m", "--cpus", cpus];
    let devices = ["--disk", &disks[0], "--disk", &disks[1], "--net", "user,loopback,bus=xen"];
    let begins = ["run", "--kernel", &kernel, "--initrd", &initrd, "--guest", guest];
    let ended = satori(&[&begins[..], &fixed, &devices].concat());
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    for said in [
        "9999\r\n",
        "suspending xenstore",
        "Restarting tasks",
        "12345\r\n",
        "write back",
        "vbd-51712",
        "vif-0",
        "lease of 10.0.2.15 obtained",
        "the same came back",
        "xen:grant_table: Grant tables using version 1 layout",
        "persistent grants: enabled; indirect descriptors: enabled",
    ] {
        assert!(ended.console.contains(said), "{guest} {series}: no '{said}':\n{}", ended.console);
    }
    assert!(!ended.console.contains("Cannot save"), "{}", ended.console);
    let mut wanted = (0..16 << 11).map(sector).collect::<String>().into_bytes();
    wanted[3 << 20..5 << 20].fill(0);
    let now = std::fs::read(&image).expect("the image");
    let discarded = 8 << 20..9 << 20;
    let same = |range: std::ops::Range<usize>| now[range.clone()] == wanted[range];
    assert!(
        now.len() == wanted.len() && same(0..discarded.start) && same(discarded.end..wanted.len()),
        "what was written is in the file"
    );
}

#[test]
fn linux_has_xens_disks_and_cards() {
    has_xens_devices("xen-pvh", "6.1", "1");
    has_xens_devices("xen-pvh", "6.12", "4");
    let kernel = fetch(&["kernel", "6.1"]);
    let refused = satori(&["run", "--kernel", &kernel, "--disk", "nothing.img,bus=xen"]);
    assert!(refused.status == 2 && refused.messages.contains("--guest xen-pvh"), "{}", refused.messages);
}

/// Xen's own PVH kernel hands grants and events of its paravirtual domain through to the interface below.
#[test]
fn xen_shim_runs_a_paravirtual_linux_with_xens_devices() {
    let (shim, linux) = (fetch(&["xen-shim"]), fetch(&["kernel", "6.1"]));
    let name = |what: &str| scratch(&format!("shim-{what}")).to_str().expect("UTF-8").to_string();
    let (image, initrd, report) = (name("disk.img"), name("devices.cpio"), name("report.json"));
    let sector = |at: usize| format!("{at:>511}\n");
    std::fs::write(&image, (0..4 << 11).map(sector).collect::<String>()).expect("an image");
    let commands = format!(
        "set -e; for i in 1 2 3 4 5 6 7 8 9; do [ -b /dev/xvda ] && break; sleep 0.3; done; \
        dd if=/dev/xvda bs=512 skip=5678 count=1 2>/dev/null | tr -d ' '; \
        dd if=/dev/zero of=/dev/xvda bs=1M seek=1 count=2 conv=fsync 2>/dev/null; \
        ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; \
        head -c 300000 /dev/urandom >/sent; nc 10.0.2.2 {} </sent >/got; cmp /sent /got && echo the same came back; \
        echo type $(cat /sys/hypervisor/guest_type); echo processors $(nproc); grep -E 'resched|xenbus' /proc/interrupts",
        echo()
    );
    let modules = ["--kernel", "6.1", "--module", "xen-blkfront", "--module", "xen-netfront"];
    let made =
        satori(&[&["initrd", "--busybox"][..], &modules, &["--run", &commands, "-o", &initrd]].concat());
    assert_eq!(made.status, 0, "{}", made.messages);
    let parts = format!("{linux} console=hvc0,{initrd}");
    let disk = format!("{image},bus=xen");
    let begins =
        ["run", "--kernel", &shim, "--initrd", &parts, "--guest", "xen-pvh", "--append", "console=pv"];
    let devices = ["--disk", &disk, "--net", "user,loopback,bus=xen", "--cpus", "2", "--memory", "512M"];
    let told = ["--timeout", "5m", "--report", "json", "--report-file", &report];
    let ended = satori(&[&begins[..], &devices, &told].concat());
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    for said in [
        "Bootloader: PVH Directboot",
        "XEN PV CLOCK",
        "Command line: console=hvc0\r\n",
        "Hypervisor detected: Xen PV",
        "installing Xen timer for CPU 1",
        "cpu 1 spinlock event irq",
        "5678\r\n",
        "the same came back",
        "type PV\r\n",
        "processors 2\r\n",
    ] {
        assert!(ended.console.contains(said), "no '{said}':\n{}", ended.console);
    }
    for (event, name) in [("resched1", "-ipi"), ("xenbus", "-event")] {
        let bound = ended.console.lines().any(|row| row.contains(event) && row.contains(name));
        assert!(bound, "{event}: {}", ended.console);
    }
    let mut wanted = (0..4 << 11).map(sector).collect::<String>().into_bytes();
    wanted[1 << 20..3 << 20].fill(0);
    assert!(std::fs::read(&image).expect("the image") == wanted, "what was written is in the file");
    let report = std::fs::read_to_string(report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let ways = |call: &str, way: &str| report["xen"][call]["ways"][way].as_u64().unwrap_or(0);
    assert_eq!(ways("memory_op", "memory_map"), 1, "{}", report["xen"]);
    assert_eq!(ways("hvm_op", "set_evtchn_upcall_vector"), 2, "{}", report["xen"]);
    // Xen writes IA32_SPEC_CTRL at each of its entries, some hundred thousand times, and that passes through.
    let exits = report["all"]["exits"].as_array().expect("exits");
    let writes =
        exits.iter().find(|row| row["reason"] == "MSR_WRITE").and_then(|row| row["samples"].as_u64());
    assert!(writes.is_some_and(|writes| writes < 50_000), "{writes:?} writes");
}

#[test]
fn linux_has_them_as_an_hvm_guest() {
    has_xens_devices("xen-hvm", "6.1", "4");
    has_xens_devices("xen-hvm", "6.12", "1");
}

/// What every HVM guest of Xen's says, and those whose events come by a vector.
const HVM: [&str; 5] = [
    "Hypervisor detected: Xen HVM",
    "Booting paravirtualized kernel on Xen HVM",
    "unplug emulated disks",
    "unplug emulated NICs",
    "\nHVM\r\n",
];
const BY_VECTOR: [&str; 3] = [
    "Xen HVM callback vector for event delivery is enabled",
    "installing Xen timer for CPU 1",
    "cpu 1 spinlock event irq",
];

#[test]
fn linux_is_an_hvm_guest_of_xen() {
    let look = "cat /sys/hypervisor/guest_type; cat /proc/interrupts; \
        for i in 1 2 3; do (for j in 1 2 3; do sleep 0.01; ls -lR /sys/kernel >/dev/null; done) & done; wait";
    let run = |name: &str, guest: &str, words: &str, more: &[&str]| {
        let line = format!("console=hvc0 {words}");
        let fixed = ["--guest", guest, "--cmdline", &line, "--clock", "virtual", "--cpus", "2"];
        let (console, report) = boot(name, look, &[&fixed[..], more].concat());
        for said in HVM {
            assert!(console.contains(said), "{name}: no '{said}':\n{console}");
        }
        assert!(arrived(&console, "hvc_console") > 0, "{name}:\n{console}");
        (console, report)
    };
    let vectors = |report: &serde_json::Value| {
        report["xen"]["hvm_op"]["ways"]["set_evtchn_upcall_vector"].as_u64().unwrap_or(0)
    };
    // A vector of each vCPU's own; the callback vector, with the two-level ABI; the platform device's line.
    for (name, guest, more, own) in [
        ("hvm-own", "xen-hvm", &[][..], 2),
        ("hvm-callback", "xen-hvm", &["--xen=-upcall-vector,-fifo"][..], 0),
        ("hvm-hyperv", "xen-hvm+hyperv", &[][..], 2),
    ] {
        let (console, report) = run(name, guest, "clocksource=xen", more);
        for said in BY_VECTOR {
            assert!(console.contains(said), "{name}: no '{said}':\n{console}");
        }
        assert_eq!(vectors(&report), own, "{name}: {}", report["xen"]);
        assert_eq!(console.contains("Using FIFO-based ABI"), own == 2, "{name}:\n{console}");
        assert!(arrived(&console, "timer1") > 0, "{name}:\n{console}");
    }
    let (console, report) = run("hvm-line", "xen-hvm", "xen_no_vector_callback", &[]);
    assert!(arrived(&console, "xen-platform-pci") > 0 && vectors(&report) == 0, "{console}");
    let (again, _) = run("hvm-line", "xen-hvm", "xen_no_vector_callback", &[]);
    assert_eq!(again, console, "the same under a virtual clock");
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
