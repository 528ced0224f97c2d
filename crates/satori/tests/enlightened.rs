//! The Hyper-V interface, proved by guests that know nothing of the monitor but what CPUID tells them: each
//! bare-metal program runs under many choices of enlightenments, and checks that what is offered behaves as
//! the specification says and what is not offered is refused.

mod common;

use common::bare::{passes, passes_as, run};
use satori_hyperv::Enlightenment;

/// Runs `guest` with nothing, everything, and each enlightenment by itself with what it needs.
fn under_every_choice(guest: &str, cpus: u32) {
    for choice in ["off", "auto"] {
        passes(guest, cpus, &["--hyperv", choice]);
    }
    for one in Enlightenment::ALL.iter().filter(|one| one.row().refused.is_none()) {
        let nested: &[&str] = match one {
            Enlightenment::EnlightenedTlb => &["--nested", "svm"],
            _ if one.row().nested => &["--nested", "vmx"],
            _ => &[],
        };
        passes(guest, cpus, &[&["--hyperv", one.name()], nested].concat());
    }
}

#[test]
fn registers_exist_as_offered() {
    under_every_choice("hv_msrs", 1);
    passes("hv_msrs", 4, &["--hyperv", "auto"]);
    passes("hv_msrs", 4, &["--hyperv", "auto", "--clock", "virtual"]);
}

#[test]
fn overlays_cover_and_give_back() {
    for choice in ["off", "vapic", "time", "auto", "auto,synic"] {
        passes("hv_overlays", 1, &["--hyperv", choice]);
    }
}

/// As [`passes`], with QEMU's test devices, through which messages and events come in.
fn passes_with_testdev(guest: &str, cpus: u32, arguments: &[&str]) {
    let ended = run(guest, cpus, "testdev=on", &[&["--testdev", "--timeout", "4m"], arguments].concat());
    let last = ended.console.lines().last().unwrap_or_default();
    assert!(ended.status == 1 && last.ends_with(" 0 failed"), "{}\n{}", ended.console, ended.messages);
    println!("{last}");
}

#[test]
fn messages_and_events_come_in() {
    for choice in ["off", "auto", "synic"] {
        passes_with_testdev("hv_synic", 1, &["--hyperv", choice]);
    }
    passes("hv_synic", 1, &["--hyperv", "synic"]);
    passes_with_testdev("hv_synic", 4, &["--hyperv", "auto,synic", "--clock", "virtual"]);
    passes_with_testdev("hv_synic", 3, &["--hyperv", "auto,synic"]);
}

#[test]
fn hypercalls_answer_as_offered() {
    for choice in ["off", "auto", "all", "ipi", "spinlocks", "extended-calls", "tlbflush,xmm-input"] {
        passes("hv_calls", 1, &["--hyperv", choice]);
    }
    passes("hv_calls", 1, &["--hyperv", "auto,gpa_flush", "--nested", "vmx"]);
    // By VMMCALL.
    passes("hv_calls", 1, &["--hyperv", "all", "--cpu", "max,vendor=AuthenticAMD"]);
}

#[test]
fn interrupts_and_flushes_reach_whom_they_name() {
    for choice in ["off", "tlbflush", "ipi", "all"] {
        passes("hv_remote", 3, &["--hyperv", choice]);
    }
    passes("hv_remote", 4, &["--hyperv", "all", "--clock", "virtual"]);
}

#[test]
fn timers_expire_on_time() {
    for choice in ["off", "stimer", "stimer-direct"] {
        let arguments = ["--hyperv", choice, "--clock", "virtual", "--timeout", "4m"];
        let ended = run("hv_timers", 2, "clock=virtual", &arguments);
        let last = ended.console.lines().last().unwrap_or_default();
        assert!(ended.status == 1 && last.ends_with(" 0 failed"), "{}\n{}", ended.console, ended.messages);
    }
    passes("hv_timers", 2, &["--hyperv", "all"]);
}

/// One lock for four processors, on however few the host has.
#[test]
fn a_contended_lock_passes_on() {
    for choice in ["off", "auto"] {
        for processor in ["no-apicv", "no-apicv,-ple"] {
            passes("hv_spin", 4, &["--hyperv", choice, "--processor", processor]);
        }
    }
}

/// Waiters of Linux' spinlocks sleep until an interrupt arrives, masked or not, and who sleeps by HLT misses none either.
#[test]
fn the_idle_state_ends_with_every_interrupt() {
    passes("hv_idle", 1, &["--hyperv", "idle"]);
    for choice in ["off", "idle", "auto"] {
        passes("hv_idle", 4, &["--hyperv", choice]);
    }
    for engine in ["interpreter", "translator"] {
        passes("hv_idle", 6, &["--hyperv", "auto", "--engine", engine]);
        // Every look of who waits counts there: a second of the guest's takes a minute.
        let arguments = ["--hyperv", "auto", "--engine", engine, "--clock", "virtual", "--timeout", "4m"];
        let ended = run("hv_idle", 3, "ms=15", &arguments);
        let last = ended.console.lines().last().unwrap_or_default();
        assert!(ended.status == 1 && last.ends_with(" 0 failed"), "{}\n{}", ended.console, ended.messages);
    }
}

/// A hypervisor that uses what Hyper-V has for nesting, on each engine and by either clock; without a page of reference time it has
/// no clock for its guest, and each change of the TSC's frequency stops that one until there is a new page.
#[test]
fn hypervisors_are_enlightened() {
    const ALL: &str = "auto,evmcs,emsr_bitmap,tlbflush_direct,gpa_flush";
    let nested = ["--nested", "vmx", "--engine"];
    for engine in ["translator", "eager", "interpreter"] {
        for choice in [ALL, "auto,evmcs,-time"] {
            let options = [&nested[..], &[engine, "--hyperv", choice]].concat();
            passes("hv_nested", 1, &options);
            passes("hv_nested", 2, &[&options[..], &["--clock", "virtual"]].concat());
        }
        let changes = ["--tsc-change=100ms=3.3GHz", "--tsc-change=200ms=700MHz", "--tsc-change=300ms=2GHz"];
        let options = [&nested[..], &[engine, "--hyperv", ALL, "--clock", "virtual"], &changes].concat();
        passes_as("hv_nested", 1, "only=changes changes=3", &options);
    }
    passes("hv_nested", 2, &["--nested", "vmx", "--hyperv", "evmcs"]);
    passes("hv_nested", 2, &["--nested", "vmx", "--hyperv", "all"]);
}

/// The TSC's frequency goes up and down, on both engines; on several processors each of them watches the time.
#[test]
fn the_tsc_changes_its_frequency() {
    let four = |unit: u32| {
        let changes = ["=3.3GHz", "=700MHz", "=1333333333", "=2GHz"];
        (1..).zip(changes).map(|(n, to)| format!("--tsc-change={}ms{to}", n * unit)).collect::<Vec<_>>()
    };
    let ends = |cpus: u32, changes: &[String], arguments: &[&str]| {
        let words = format!("changes={}", changes.len());
        let changes: Vec<_> = changes.iter().map(String::as_str).collect();
        let all = [&["--timeout", "4m"], arguments, &changes].concat();
        let ended = run("hv_reenlightenment", cpus, &words, &all);
        let last = ended.console.lines().last().unwrap_or_default();
        assert!(ended.status == 1 && last.ends_with(" 0 failed"), "{}\n{}", ended.console, ended.messages);
    };
    for engine in ["interpreter", "translator"] {
        for (cpus, choice) in [(1, "auto"), (4, "reenlightenment"), (1, "time,frequencies")] {
            ends(cpus, &four(100), &["--hyperv", choice, "--clock", "virtual", "--engine", engine]);
        }
        ends(1, &four(100)[..1], &["--hyperv", "off", "--clock", "virtual", "--engine", engine]);
    }
    // Far apart, as the host may be busy when the guest starts.
    ends(4, &four(700), &["--hyperv", "auto"]);
}

#[test]
fn interrupts_end_without_exits() {
    for choice in ["off", "vapic", "auto"] {
        passes("hv_vapic", 1, &["--hyperv", choice, "--processor", "no-apicv"]);
    }
    passes("hv_vapic", 1, &["--hyperv", "vapic", "--processor", "no-apicv", "--clock", "virtual"]);
    // Where APICv is in force each EOI is an exit, if it is by MSR.
    for choice in ["vapic", "auto"] {
        let ended = run("hv_vapic", 1, "eois=all", &["--timeout", "4m", "--hyperv", choice]);
        assert!(ended.status == 1 && ended.console.ends_with(" 0 failed\n"), "{}", ended.console);
    }
}

#[test]
fn races_end_and_leave_the_interface_whole() {
    passes("hv_races", 2, &["--hyperv", "off"]);
    for cpus in [2, 4] {
        passes("hv_races", cpus, &["--hyperv", "all"]);
    }
    passes("hv_races", 2, &["--hyperv", "all", "--clock", "virtual"]);
}

/// What happens once in a life: consents, a lock, and ends, on both engines and by one processor of several.
#[test]
fn lives_end_as_the_guest_says() {
    for (choice, cpus) in [("off", 1), ("auto", 2), ("all", 1), ("all", 3), ("tsc-invariant", 2)] {
        passes("hv_ends", cpus, &["--hyperv", choice]);
    }
    for engine in ["interpreter", "translator"] {
        let ends = |end: &str, choice: &str, more: &[&str]| {
            let fixed = ["--timeout", "4m", "--hyperv", choice, "--engine", engine, "--report", "text"];
            let ended = run("hv_ends", 1, &format!("only=end end={end}"), &[&fixed[..], more].concat());
            (ended.status, format!("{}\n{}", ended.console, ended.messages))
        };
        for (end, wanted) in [
            ("crash", &["0x000000000000dead", "0x0000000012345678"][..]),
            ("message", &["0x000000000000beef", "all is lost", "really"]),
            ("long-message", &["0x000000000000beef", "too muchtoo much"]),
            ("message-beyond-memory", &["0x000000000000beef"]),
        ] {
            let (status, told) = ends(end, "crash", &[]);
            assert_eq!(status, 120, "{end}: {told}");
            wanted.iter().for_each(|words| assert!(told.contains(words), "{end}, {words}: {told}"));
            assert!(!told.contains("\u{1b}[31m"), "a guest does not colour the report: {told}");
            let (status, told) = ends(end, "time", &[]);
            assert_eq!(status, 1, "not offered: {told}");
        }
        let (status, told) = ends("reset", "auto,reset", &["--on-reset", "exit"]);
        assert_eq!(status, 118, "{told}");
        for choice in ["reset", "all"] {
            // There the TSC counts instructions.
            let clock = ["--on-reset", "restart", "--clock", "virtual"];
            let (status, told) = ends("reset-then-more", choice, &clock);
            assert_eq!(status, 1, "{told}");
        }
    }
}

/// KVM's interface, as far as it is offered; the guest asks CPUID.
#[test]
fn kvm_answers_as_offered() {
    passes("kvm", 1, &["--hyperv", "off"]);
    for features in ["auto", "all", "base", "steal-time", "pv-eoi,pv-ipi"] {
        passes("kvm", 1, &["--guest", "kvm", "--kvm", features]);
    }
    passes(
        "kvm",
        2,
        &["--guest", "kvm+hyperv", "--hyperv", "auto", "--engine", "interpreter", "--clock", "virtual"],
    );
}

/// Xen's, from a guest that knows every call and no good manners.
#[test]
fn xen_answers_whoever_asks() {
    for engine in ["interpreter", "translator"] {
        passes("xen", 1, &["--guest", "xen-pvh", "--engine", engine]);
    }
    passes("xen", 2, &["--guest", "xen-pvh", "--clock", "virtual", "--xen", "-upcall-vector,-fifo"]);
    let hvm = ["--guest", "xen-hvm", "--boot", "pvh"];
    for engine in ["interpreter", "translator"] {
        passes_as("xen", 1, "hvm=yes", &[&hvm[..], &["--engine", engine]].concat());
    }
    let hvm = ["--guest", "xen-hvm+hyperv", "--hyperv", "auto", "--boot", "pvh"];
    passes_as("xen", 2, "hvm=yes", &[&hvm[..], &["--clock", "virtual"]].concat());
}
