//! Guests that run guests: stock Debian with kvm_intel or kvm_amd, and this very program as the user of its /dev/kvm.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuExit};
use satori_cpuid::{Feature, Topology};
use satori_machine::{Apics, Cmdline, Config, EngineKind, Event, Machine, OfferedCpu, Sinks};

use common::{Ended, fetch, satori};

/// The folder of the kernel modules of the package that `kernel` is from: where a run of a command takes those from that it needs.
fn modules(kernel: &str) -> PathBuf {
    let file = Path::new(kernel).file_name().unwrap().to_string_lossy().into_owned();
    let release = file.split('_').next().unwrap().strip_prefix("linux-image-").unwrap();
    Path::new(&format!("{kernel}.tree")).join("lib/modules").join(release).join("kernel")
}

/// Runs the ignored test `name` of this program in Debian's `series` with VMX; what it says.
fn in_guest(series: &str, options: &[&str], name: &str) -> Ended {
    in_guest_with(series, "vmx", options, name, &[])
}

/// As [`in_guest`], with `more` in the environment.
fn in_guest_with(series: &str, nested: &str, options: &[&str], name: &str, more: &[&str]) -> Ended {
    let kernel = fetch(&["kernel", series]);
    let modules = modules(&kernel);
    let program = std::env::current_exe().unwrap();
    let mut words = vec!["run", "--kernel", &kernel, "--nested", nested, "--timeout", "5m"];
    words.extend(options);
    let setting = format!("MODULES={}", modules.display());
    let vendor = format!("VENDOR={}", if nested == "svm" { "amd" } else { "intel" });
    words.extend(["--", "env", &setting, &vendor]);
    words.extend(more);
    words.extend([program.to_str().unwrap(), "--ignored", "--exact", "--nocapture", name]);
    let ended = satori(&words);
    assert_eq!(ended.status, 0, "{}\n{}", ended.console, ended.messages);
    ended
}

#[test]
fn stock_debian_runs_a_guest_of_its_own() {
    let ended = in_guest("6.1", &["--report", "text"], "client");
    assert!(ended.console.contains("the guest said Hi!"), "{ended:?}");
    let row = cpuid_row(&ended);
    assert!(row[1] >= 1.0 && row[3] > 1.0, "L1 reads the VMCS by VMREAD: {row:?}");
}

#[test]
fn stock_debian_runs_a_guest_of_its_own_on_a_processor_of_amds() {
    for (series, engine) in [("6.1", "translator"), ("6.12", "interpreter")] {
        let options = ["--engine", engine, "--report", "json"];
        let ended = in_guest_with(series, "svm", &options, "client", &[]);
        assert!(ended.console.contains("the guest said Hi!"), "{ended:?}");
        let counted = |what: &str| ended.messages.contains(&format!("\"exits of L2: {what}\""));
        assert!(["cpuid", "io", "npf", "hlt"].into_iter().all(counted), "{}", ended.messages);
    }
}

#[test]
fn satori_runs_its_guests_by_kvm_there() {
    let (kernel, traps) = (fetch(&["kernel", "6.1"]), common::bare::program("traps"));
    let more = [format!("KERNEL={kernel}"), format!("TRAPS={}", traps.display())];
    let more = more.each_ref().map(String::as_str);
    // With 6.1 hypercalls come by a port, with 6.12 by the host's own instruction.
    for (series, nested) in [("6.1", "vmx"), ("6.12", "svm")] {
        let ended = in_guest_with(series, nested, &["--memory", "1G"], "engine", &more);
        runs_guests_by_kvm(&ended);
        let apic = ended.console.contains("four times the guest apic: [1, 1, 1, 1]");
        assert!(apic || nested == "svm", "{ended:?}");
    }
}

fn runs_guests_by_kvm(ended: &Ended) {
    assert!(
        ended.console.contains("the bare-metal guest: 1") && ended.console.contains(" 0 failed"),
        "{ended:?}"
    );
    assert!(ended.console.contains("the probe: it runs guests"), "{ended:?}");
    assert!(ended.console.contains("by itself: satori: engine: kvm"), "{ended:?}");
    assert!(ended.console.contains("(not kvm: --clock virtual counts instructions)"), "{ended:?}");
    assert!(ended.console.contains("a debugger did all that it can"), "{ended:?}");
    assert!(ended.console.contains("with the kernel's local APICs"), "{ended:?}");
    // KVM's own count, and the sum of what its tracepoints tell of each.
    let number =
        |line: &str, word| line.split_whitespace().nth(word).and_then(|text| text.parse::<u64>().ok());
    let all =
        ended.console.lines().find(|line| line.ends_with("  VM exits")).and_then(|line| number(line, 0));
    let table = ended.console.split("by the kernel's tracepoints").nth(1).expect("a table of all exits");
    let rows: Vec<_> = table.lines().skip(2).map_while(|line| number(line, 1)).collect();
    assert!(rows.len() > 5, "{table}");
    assert_eq!(Some(rows.iter().sum()), all, "{table}");
    assert!(ended.console.contains("Debian: 0") && ended.console.contains("of L2: Linux"), "{ended:?}");
}

/// Executed in the guest: two guests on its processor, by this program's own engine, in the sandbox.
#[test]
#[ignore = "satori_runs_its_guests_by_kvm_there runs it in a guest"]
fn engine() {
    load_modules();
    let file = |name| std::env::var(name).expect("it is run by another test");
    let (kernel, traps) = (file("KERNEL"), file("TRAPS"));
    let probe = satori(&["probe-kvm"]).console;
    let told = probe.lines().filter(|line| !line.starts_with("step: "));
    println!("the probe: {}", told.collect::<Vec<_>>().join("\n"));
    let words = ["run", "--engine", "kvm", "--timeout", "4m", "--report", "off", "--kernel"];
    // The guest judges SYSRET and SYSENTER by its processor's vendor, whose they are.
    let cpu = if file("VENDOR") == "amd" { "max,vendor=AuthenticAMD" } else { "max" };
    let own = [&traps, "-m", "128M", "--cmdline", "traps cpus=1", "--hyperv", "off", "--cpu", cpu];
    let bare = satori(&[&words[..], &own].concat());
    println!("the bare-metal guest: {}\n{}\n{}", bare.status, bare.console, bare.messages);
    // Interrupts and flushes of four vCPUs: in one run of two an interrupt of long ago came back, where VMX refuses it.
    if file("VENDOR") == "intel" {
        let apic = Path::new(&traps).with_file_name("apic");
        let own =
            ["--cpus", "4", "-m", "128M", "--cmdline", "apic cpus=4", "--hyperv", "off", "--apic", "satori"];
        let apic = || satori(&[&words[..], &[apic.to_str().unwrap()], &own].concat()).status;
        println!("four times the guest apic: {:?}", [apic(), apic(), apic(), apic()]);
    }
    // What auto takes; where it is KVM nothing is said of why not.
    for more in [&[][..], &["--clock", "virtual"]] {
        let words = [
            "run",
            "--timeout",
            "4m",
            "--report",
            "off",
            "-m",
            "128M",
            "--hyperv",
            "off",
            "--kernel",
            &traps,
        ];
        let mut taken = std::process::Command::new(common::SATORI);
        let taken = taken.args(words).args(["--cmdline", "traps cpus=1"]).args(more);
        let taken = taken.env_remove("SATORI_ENGINE").output().unwrap();
        let taken = Ended::from(taken);
        println!("by itself: {}\n{}", taken.messages, taken.status);
    }
    let socket = format!("unix:{}", common::scratch("gdb.socket").display());
    common::gdb::session("gdb-kvm", &[&socket, "--engine", "kvm"], false);
    println!("a debugger did all that it can");
    let seen = ["run", "--engine", "kvm", "--timeout", "4m", "--report", "text", "--kernel", &kernel];
    let debian = satori(&[&seen[..], &["--", "sh", "-c", "touch /new && echo of L2: $(uname)"]].concat());
    println!("Debian: {}\n{}\n{}", debian.status, debian.console, debian.messages);
}

#[test]
fn guests_go_from_the_translator_to_kvm_and_back() {
    let ended = go_between("6");
    // Those that make hypercalls by VMCALL, of which this kernel tells.
    for interface in ["kvm", "xen-pvh"] {
        assert!(ended.console.contains(&format!("{interface}: 0\nof L2: Linux")), "{ended:?}");
    }
    assert!(ended.console.contains("VM exits that it handled itself"), "{ended:?}");
    for guest in ["hv_calls", "apic"] {
        assert!(ended.console.contains(&format!("faults of {guest}: 1\n{guest}: ")), "{ended:?}");
    }
}

#[test]
#[ignore = "it takes a minute: tools/soak runs it"]
fn more_guests_go_from_the_translator_to_kvm_and_back_more_often() {
    let ended = go_between("24");
    for guest in ["paging with APICs of Machine", "exceptions with APICs of Kernel"] {
        assert!(ended.console.contains(guest), "{ended:?}");
    }
}

/// Runs [`between`], whose guests change their engine so often at most.
fn go_between(changes: &str) -> Ended {
    let folder = common::bare::program("traps").with_file_name("");
    let folder = format!("GUESTS={}", folder.display());
    let kernel = format!("KERNEL={}", fetch(&["kernel", "6.12"]));
    let more = [&*folder, &kernel, &format!("CHANGES={changes}")];
    let ended = in_guest_with("6.12", "vmx", &["--memory", "1G"], "between", &more);
    for guest in ["paging with APICs of Kernel", "hv_msrs with APICs of Machine"] {
        assert!(ended.console.contains(guest), "{ended:?}");
    }
    ended
}

/// Executed in the guest: machines that are saved at random moments, thrown away, and go on by the other engine.
#[test]
#[ignore = "guests_go_from_the_translator_to_kvm_and_back runs it in a guest"]
fn between() {
    load_modules();
    let told = |name| std::env::var(name).expect("it is run by another test");
    let (folder, most) = (PathBuf::from(told("GUESTS")), told("CHANGES").parse().expect("a number"));
    let mut random = 1;
    let guests = [
        ("paging", 2, "off", Apics::Kernel),
        ("hv_msrs", 1, "all", Apics::Machine),
        ("paging", 2, "off", Apics::Machine),
        ("exceptions", 1, "off", Apics::Kernel),
    ];
    for (guest, cpus, hyperv, apics) in guests.into_iter().take(if most > 6 { 4 } else { 2 }) {
        let kernel = folder.join(guest);
        let (changes, console) = change_engines(&kernel, cpus, hyperv, apics, most, &mut random);
        assert!(changes > 0 && console.contains(" 0 failed"), "{guest}: {changes}\n{console}");
        println!("{guest} with APICs of {apics:?}: changed its engine {changes} times");
    }
    if most > 6 {
        return;
    }
    // Faults that Satori raises, with RF in the flags that are pushed, and those that are KVM's to raise.
    for (guest, case) in [("hv_calls", "callers"), ("apic", "x2apic")] {
        let (kernel, cmdline) = (folder.join(guest), format!("{guest} cpus=1 only={case}"));
        let words =
            ["run", "--engine", "kvm", "--timeout", "1m", "--report", "off", "-m", "128M", "--hyperv", "all"];
        let bare = ["--kernel", kernel.to_str().unwrap(), "--cmdline", &cmdline];
        let faults = satori(&[&words[..], &bare].concat());
        println!("faults of {guest}: {}\n{}\n{}", faults.status, faults.console, faults.messages);
    }
    let kernel = told("KERNEL");
    for interface in ["kvm", "xen-pvh"] {
        let words = ["run", "--engine", "kvm", "--guest", interface, "--report", "text", "--kernel", &kernel];
        let debian =
            satori(&[&words[..], &["--timeout", "4m", "--", "sh", "-c", "echo of L2: $(uname)"]].concat());
        println!("{interface}: {}\n{}\n{}", debian.status, debian.console, debian.messages);
    }
}

/// A machine's console.
#[derive(Clone, Default)]
struct Console(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl satori_bus::ByteSink for Console {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().expect("the console").extend_from_slice(bytes);
    }
}

/// Runs a bare-metal guest to its end by one engine after the other, `most` changes; how often it changed, and what it said.
fn change_engines(
    kernel: &Path,
    cpus: u32,
    hyperv: &str,
    apics: Apics,
    most: usize,
    random: &mut u64,
) -> (usize, String) {
    let name = kernel.file_name().expect("a name").to_string_lossy();
    let config = |engine, model: &str| Config {
        kernel: std::fs::read(kernel).expect("the guest"),
        cmdline: Cmdline::Whole(format!("{name} cpus={cpus}")),
        memory: 128 << 20,
        topology: Topology::flat(cpus),
        hyperv: hyperv.parse().expect("enlightenments"),
        engine,
        apics,
        cpu_model: Some(model.into()),
        processor: "no-apicv,-tpr-shadow,-preemption-timer,-ple".parse().expect("a processor"),
        timeout: Some(Duration::from_secs(200)),
        ..Config::default()
    };
    // What both engines have.
    let offered = |engine| OfferedCpu::new(&config(engine, "max")).expect("an engine").cpuid;
    let (software, kvm) = (offered(EngineKind::Translator), offered(EngineKind::Kvm));
    let lacking = Feature::ALL.iter().filter(|feature| software.has(**feature) && !kvm.has(**feature));
    let model = lacking.fold(String::from("max"), |model, feature| format!("{model},-{}", feature.name()));
    let (console, mut saved, mut changes) = (Console::default(), None, 0);
    let said = |console: &Console| String::from_utf8_lossy(&console.0.lock().unwrap()).into_owned();
    loop {
        let engine = if changes % 2 == 0 { EngineKind::Translator } else { EngineKind::Kvm };
        let sinks = Sinks { console: Box::new(console.clone()), debugcon: None, code: None };
        let mut machine = Machine::new(config(engine, &model), sinks).expect("a machine");
        if let Some(saved) = saved.take() {
            machine = machine.restored(saved).expect("a machine that goes on");
        }
        let handle = machine.handle();
        let running = std::thread::spawn(move || machine.run());
        while changes < most && saved.is_none() && !running.is_finished() {
            *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            std::thread::sleep(Duration::from_micros(*random >> 50));
            handle.suspend();
            saved = handle.save().inspect_err(|why| println!("{name}: {why}")).ok();
            if saved.is_none() {
                handle.go_on();
            }
        }
        let Some(_) = &saved else {
            let event = running.join().expect("the machine's thread").event;
            let console = said(&console);
            assert_eq!(event, Event::DebugExit(0), "{console}");
            return (changes, console);
        };
        handle.stop();
        let event = running.join().expect("the machine's thread").event;
        assert_eq!(event, Event::Stopped, "{}", said(&console));
        changes += 1;
    }
}

/// The report's row on CPUID exits of L2, from behind its name: to L1, by L0, VMREADs, VMWRITEs.
fn cpuid_row(ended: &Ended) -> Vec<f64> {
    let section = ended.messages.split("Guests of the guest (L2)").nth(1).expect("a section on L2");
    let row = section.lines().find(|line| line.trim_start().starts_with("CPUID ")).expect("a CPUID exit");
    row.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect()
}

#[test]
fn stock_debian_on_hyper_v_uses_the_enlightened_vmcs() {
    let options = ["--hyperv", "auto,evmcs,emsr_bitmap,tlbflush_direct", "--report", "text"];
    let ended = in_guest("6.1", &options, "client");
    assert!(ended.console.contains("the guest said Hi!"), "{ended:?}");
    assert!(ended.console.contains("using Hyper-V Enlightened VMCS"), "{ended:?}");
    let row = cpuid_row(&ended);
    assert_eq!((row[3], row[4]), (0.0, 0.0), "neither VMREAD nor VMWRITE: {row:?}");
    assert!(!ended.messages.contains(" 0 with an enlightened VMCS"), "{}", ended.messages);
}

#[test]
fn the_bench_counts_the_exits_that_the_talk_had_with_an_enlightened_vmcs() {
    let words = ["bench", "nested", "--quick", "--cases", "evmcs", "--kernel", "6.1", "--format", "json"];
    let ended = satori(&words);
    let value: serde_json::Value =
        serde_json::from_str(&ended.console).unwrap_or_else(|_| panic!("{}", ended.messages));
    let case = &value["cases"][0];
    assert!(case["evmcs"] == true && case["stable_clock_l2"] == true, "{case:#}");
    let row = |name: &str, what: &str| {
        let rows = case["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["row"] == name).expect("the row");
        row[what].as_f64().expect("a number")
    };
    // A timer may tick in one of the two runs whose difference they are.
    let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.05;
    assert!(near(row("cpuid-l2", "exits_l2"), 1.0) && near(row("cpuid-l2", "exits_l0"), 2.0), "{case:#}");
    assert!(near(row("rdmsr-passed", "exits_l2"), 0.0), "L1's MSR bitmap is looked at: {case:#}");
    assert!(near(row("rdmsr-intercepted", "exits_l0"), 2.0), "{case:#}");
    assert!(row("cpuid-l2", "cycles") > 0.0, "{case:#}");
    // Debian as L2, by this host's QEMU if it has one; of that no exits are counted.
    let linux =
        case["rows"].as_array().expect("rows").iter().find(|row| row["row"] == "clock-l2").expect("the row");
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let has = std::env::split_paths(&folders).any(|folder| folder.join("qemu-system-x86_64").is_file());
    assert_eq!(linux["cycles"].is_f64(), has, "{linux:#}");
    assert!(linux.get("exits_l2").is_none(), "{linux:#}");
}

/// Loads kvm_intel or kvm_amd, and what it needs.
fn load_modules() {
    let folder = PathBuf::from(std::env::var("MODULES").expect("it is run by another test"));
    let own = format!("arch/x86/kvm/kvm-{}.ko", std::env::var("VENDOR").expect("it is run by another test"));
    for module in ["virt/lib/irqbypass.ko", "arch/x86/kvm/kvm.ko", &own] {
        /// The kernel unpacks it.
        const COMPRESSED_FILE: libc::c_int = 4;
        let packed = File::open(folder.join(format!("{module}.xz"))).map(|file| (file, COMPRESSED_FILE));
        let (file, flags) = packed.unwrap_or_else(|_| (File::open(folder.join(module)).unwrap(), 0));
        // SAFETY: the arguments are a descriptor and a string that ends.
        let status = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), flags) };
        assert_eq!(status, 0, "{module}: {}", std::io::Error::last_os_error());
    }
}

/// Executed in the guest: a guest of its own in real mode that uses CPUID, a port, a device in memory, and HLT.
#[test]
#[ignore = "stock_debian_runs_a_guest_of_its_own runs it in a guest"]
fn client() {
    load_modules();
    let vm = Kvm::new().unwrap().create_vm().unwrap();
    const LEN: usize = 0x1_0000;
    let layout = std::alloc::Layout::from_size_align(LEN, 0x1000).unwrap();
    // SAFETY: the layout is not empty.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    let region = kvm_userspace_memory_region {
        slot: 0,
        guest_phys_addr: 0,
        memory_size: LEN as u64,
        userspace_addr: memory as u64,
        flags: 0,
    };
    // SAFETY: the memory stays until this process ends.
    unsafe { vm.set_user_memory_region(region) }.unwrap();
    // XOR EAX,EAX; CPUID; MOV DX,3f8; MOV AL,'H'; OUT DX,AL; MOV AL,'i'; OUT DX,AL; MOV AX,a000; MOV DS,AX;
    // MOV BYTE [10],5a; MOV AL,[20]; OUT DX,AL; HLT.
    let code: &[u8] = &[
        0x66, 0x31, 0xc0, 0x0f, 0xa2, 0xba, 0xf8, 0x03, 0xb0, b'H', 0xee, 0xb0, b'i', 0xee, 0xb8, 0x00, 0xa0,
        0x8e, 0xd8, 0xc6, 0x06, 0x10, 0x00, 0x5a, 0xa0, 0x20, 0x00, 0xee, 0xf4,
    ];
    // SAFETY: the guest does not run yet, and the code fits.
    unsafe { memory.add(0x1000).copy_from(code.as_ptr(), code.len()) };
    let mut vcpu = vm.create_vcpu(0).unwrap();
    let mut segments = vcpu.get_sregs().unwrap();
    (segments.cs.base, segments.cs.selector) = (0, 0);
    vcpu.set_sregs(&segments).unwrap();
    let mut registers = vcpu.get_regs().unwrap();
    (registers.rip, registers.rsp, registers.rflags) = (0x1000, 0x8000, 2);
    vcpu.set_regs(&registers).unwrap();
    let (mut said, mut stored) = (String::new(), Vec::new());
    loop {
        match vcpu.run().unwrap() {
            VcpuExit::IoOut(0x3f8, bytes) => said.extend(bytes.iter().map(|byte| char::from(*byte))),
            VcpuExit::MmioWrite(address, bytes) => stored.push((address, bytes.to_vec())),
            VcpuExit::MmioRead(0xa_0020, bytes) => bytes[0] = b'!',
            VcpuExit::Hlt => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored, [(0xa_0010, vec![0x5a])]);
    println!("the guest said {said}");
    log().lines().filter(|line| line.contains("Enlightened VMCS")).for_each(|line| println!("{line}"));
}

/// The kernel's log.
fn log() -> String {
    const READ_ALL: libc::c_int = 3;
    let mut log = vec![0_u8; 1 << 18];
    // SAFETY: the buffer is as long as is said.
    let length = unsafe { libc::klogctl(READ_ALL, log.as_mut_ptr().cast(), log.len() as libc::c_int) };
    log.truncate(usize::try_from(length).expect("root may read it"));
    String::from_utf8_lossy(&log).into_owned()
}

/// Of an ELF core file the word at a physical address, and the first vCPU's RIP.
struct Core(Vec<u8>);

impl Core {
    fn number<const N: usize>(&self, at: usize) -> u64 {
        (0..N).map(|byte| u64::from(self.0[at + byte]) << (8 * byte)).sum()
    }

    /// Type, offset, physical address and length of each program header.
    fn segments(&self) -> impl Iterator<Item = [u64; 4]> + '_ {
        (0..self.number::<2>(56) as usize).map(|index| 64 + 56 * index).map(|at| {
            [
                self.number::<4>(at),
                self.number::<8>(at + 8),
                self.number::<8>(at + 24),
                self.number::<8>(at + 32),
            ]
        })
    }

    fn word(&self, physical: u64) -> Option<u64> {
        let [_, offset, first, _] = self
            .segments()
            .find(|[kind, _, first, len]| *kind == 1 && (*first..first + len).contains(&physical))?;
        Some(self.number::<8>((offset + (physical - first)) as usize))
    }

    fn rip(&self) -> u64 {
        let [_, notes, ..] = self.segments().find(|[kind, ..]| *kind == 4).unwrap();
        // Behind the note's head and name: NT_PRSTATUS, its registers at 112, the 17th of them.
        self.number::<8>(notes as usize + 12 + 8 + 112 + 16 * 8)
    }
}

/// Whoever panics leaves both: in the hypervisor's file and in its guest's the page that the guest knows by one address, and the hypervisor by
/// another, is where it is for each.
#[test]
fn crash_dumps_have_a_guest_and_its_own_guest_apart() {
    let evmcs = ["--nested", "vmx", "--hyperv", "auto,evmcs"];
    for (name, flags, engine) in
        [("svm", &["--nested", "svm"][..], "translator"), ("hv_nested", &evmcs, "interpreter")]
    {
        for who in ["panic", "host"] {
            let [own, nested] = ["own", "l2"].map(|what| common::file(&format!("{name}-{who}.{what}"), b""));
            let cmdline = format!("{name} cpus=1 only=waits wait={who}");
            let kernel = common::bare::program(name);
            let words = [
                "run",
                "--kernel",
                kernel.to_str().unwrap(),
                "--cmdline",
                &cmdline,
                "--engine",
                engine,
                "-m",
                "192M",
            ];
            let dumps = ["--crash-dump", &own, "--crash-dump-l2", &nested];
            let ended = satori(&[&words[..], flags, &dumps].concat());
            assert_eq!(ended.status, 120, "{name} {who}: {ended:?}");
            assert!(ended.messages.contains("That of L2 holds"), "{}", ended.messages);
            let told = ended
                .console
                .lines()
                .filter(|line| line.contains("waits at") || line.contains("for the guest:"));
            let told: Vec<u64> = told
                .flat_map(|line| line.split("0x").skip(1))
                .map(|rest| {
                    u64::from_str_radix(rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap(), 16)
                        .unwrap()
                })
                .collect();
            let [code, _, elsewhere, place] = told[..] else { panic!("{told:x?}") };
            let [own, nested] = [own, nested].map(|file| Core(std::fs::read(file).unwrap()));
            assert_eq!((own.word(elsewhere), own.word(place)), (Some(0x2222), Some(0x1111)), "{name} {who}");
            assert_eq!(nested.word(place), Some(0x2222), "{name} {who}");
            assert!(nested.rip().abs_diff(code) < 0x100, "{name} {who}: {:#x} at {code:#x}", nested.rip());
            assert_ne!(own.rip().abs_diff(nested.rip()), 0, "{name} {who}");
        }
    }
    let kernel = common::bare::program("shutdown");
    let dump = common::file("alone.l2", b"");
    let words = ["run", "--kernel", kernel.to_str().unwrap(), "--cmdline", "x cpus=1 only=empty_idt"];
    let ended = satori(&[&words[..], &["--crash-dump-l2", &dump]].concat());
    assert!(
        ended.messages.contains("That of L2 could not be written: the guest has no guest of its own"),
        "{ended:?}"
    );
}
