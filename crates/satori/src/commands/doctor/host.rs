//! What is looked at. Where a thing can be tried it is tried, not believed.

use std::fs::read_to_string;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use satori_machine::host_processors;

use super::State::{Good, Missing, Worse};
use super::{Finding, State};
use crate::commands::engines;
use crate::engine::tried_now;
use crate::probe;

/// Everything, in the order in which it is told.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![clocksource(), tsc(), processors(), memory()];
    findings.extend(processor_features());
    findings.extend([membarrier(), sandbox(), faults(), kvm(), nested(), perf()]);
    findings
}

fn finding(name: &'static str, state: State, found: impl Into<String>, costs: &str) -> Finding {
    let costs = if state == Good { String::new() } else { costs.into() };
    Finding { name, state, found: found.into(), costs }
}

fn line(path: &str) -> Option<String> {
    Some(read_to_string(path).ok()?.trim().to_string())
}

/// A flag of the first processor that /proc/cpuinfo lists.
fn flag(cpuinfo: &str, wanted: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.is_some_and(|(_, flags)| flags.split_whitespace().any(|flag| flag == wanted))
}

/// What the kernel tells the time by. It leaves `tsc` where it found the counters uneven.
fn clocksource() -> Finding {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let Some(current) = line(path) else {
        return finding(
            "clocksource",
            Worse,
            "unknown",
            "It is not known whether the TSC can be trusted; see tsc below.",
        );
    };
    let state = if trusted(&current) { Good } else { Worse };
    finding(
        "clocksource",
        state,
        current,
        "The kernel does not trust the TSC, so the guest's clocks, hv-time's page first, may jump when a vCPU changes \
         processors. Use --clock virtual where that matters.",
    )
}

/// Clock sources that are the TSC, or are made of a stable one by a hypervisor.
fn trusted(source: &str) -> bool {
    ["tsc", "tsc-early", "kvm-clock", "hyperv_clocksource_tsc_page"].contains(&source)
}

fn tsc() -> Finding {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has: Vec<_> = ["constant_tsc", "nonstop_tsc"].into_iter().filter(|one| flag(&cpuinfo, one)).collect();
    finding(
        "tsc",
        if has.len() == 2 { Good } else { Worse },
        if has.is_empty() { "neither constant nor nonstop".into() } else { has.join(", ") },
        "The TSC changes its speed or stops in sleep, and the guest's real time with it. Use --clock virtual where \
         that matters.",
    )
}

fn processors() -> Finding {
    let count = host_processors().len();
    finding(
        "processors",
        if count > 1 { Good } else { Worse },
        format!("this process may use {count}"),
        "Several vCPUs take turns, and wait for locks that others hold. Use one vCPU, or --hyperv +spinlocks,+tlbflush,+ipi.",
    )
}

/// Bytes that a line such as `MemAvailable:  1024 kB` tells.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let number = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    number.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn memory() -> Finding {
    let free = read_to_string("/proc/meminfo").ok().and_then(|text| meminfo(&text, "MemAvailable"));
    let limit = line("/sys/fs/cgroup/memory.max").and_then(|text| text.parse::<u64>().ok());
    let Some(free) = free else {
        return finding("memory", Worse, "unknown", "It is not known how large a guest can be.");
    };
    let most = limit.map_or(free, |limit| limit.min(free));
    let (state, costs) = match most >> 20 {
        ..160 => {
            (Missing, "The smallest guest needs 128 MiB, and Satori some beside. End something else first.")
        }
        160..640 => (Worse, "This is too little for the default guest of 512 MiB. Use --memory 128M."),
        640.. => (Good, ""),
    };
    finding("memory", state, format!("{} MiB are free", most >> 20), costs)
}

/// What the engine uses of the host's processor.
fn processor_features() -> Vec<Finding> {
    #[cfg(target_arch = "x86_64")]
    {
        let present = |name, there: bool, costs| {
            finding(name, if there { Good } else { Worse }, if there { "there" } else { "not there" }, costs)
        };
        // HWCAP2_FSGSBASE: the processor has it, and the kernel lets programs use it.
        let fsgsbase = rustix::param::linux_hwcap().1 & 2 != 0;
        vec![
            present(
                "AVX2",
                is_x86_feature_detected!("avx2"),
                "Guests are offered no AVX and no AVX2, as Satori lets the host's processor compute on vectors.",
            ),
            present(
                "BMI2",
                is_x86_feature_detected!("bmi2"),
                "Guests' BMI2 instructions are interpreted, which is slower.",
            ),
            present("FSGSBASE", fsgsbase, "Each entry into translated code takes a system call."),
        ]
    }
    #[cfg(not(target_arch = "x86_64"))]
    vec![finding(
        "processor",
        Missing,
        std::env::consts::ARCH,
        "The engine needs an x86-64 processor. Run Satori on one.",
    )]
}

fn membarrier() -> Finding {
    let wanted = rustix::thread::MembarrierQuery::PRIVATE_EXPEDITED;
    let there = rustix::thread::membarrier_query().contains(wanted);
    finding(
        "membarrier",
        if there { Good } else { Worse },
        if there { "private, expedited" } else { "not there" },
        "Each page of new guest code costs two mprotect calls instead of one membarrier call.",
    )
}

/// The sandbox, entered by a child.
fn sandbox() -> Finding {
    let told = engines::probe(probe::SANDBOX).text;
    let not: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("not ")).collect();
    let had = told.lines().filter(|line| line.starts_with("had ")).count();
    let (state, found) = match (had, not.is_empty()) {
        (0, _) => (Worse, format!("it cannot be entered: {}", told.replace('\n', "; "))),
        (had, true) => (Good, format!("all of its {had} measures work, seccomp's filter among them")),
        (had, false) => (Worse, format!("{had} measures work; these do not: {}", not.join("; "))),
    };
    finding(
        "sandbox",
        state,
        found,
        "A guest that breaks out reaches more of the host. Permit user namespaces and seccomp, or run Satori as root.",
    )
}

fn faults() -> Finding {
    match satori_host::faults() {
        Ok(()) => finding("userfaultfd", Good, "it works, for faults in user mode", ""),
        Err(error) => finding(
            "userfaultfd",
            Worse,
            format!("refused: {error}"),
            "It costs nothing: this version does not use it.",
        ),
    }
}

/// /dev/kvm: what it is, and what it does when it is tried.
fn kvm() -> Finding {
    let costs = "Guests run on software engines only.";
    let Ok(file) = std::fs::metadata("/dev/kvm") else {
        return finding("kvm", Worse, "there is no /dev/kvm", costs);
    };
    let device = rustix::fs::major(file.rdev()) == 10 && rustix::fs::minor(file.rdev()) == 232;
    if !file.file_type().is_char_device() || !device {
        return finding("kvm", Worse, "/dev/kvm is not KVM's device (character device 10:232)", costs);
    }
    let told = tried_now();
    let state = if told.works() { Good } else { Worse };
    finding("kvm", state, format!("/dev/kvm was tried: {}", told.text.replace('\n', "; ")), costs)
}

/// What guests that run guests need.
fn nested() -> Finding {
    finding(
        "guests of guests",
        Good,
        "--nested vmx gives a guest Intel's VMX, --nested svm AMD's SVM; nothing of this host is needed",
        "",
    )
}

fn perf() -> Finding {
    let costs = "Guests lose nothing; only profiling Satori itself with perf needs them.";
    let counters = std::path::Path::new("/sys/bus/event_source/devices/cpu").exists();
    let paranoid = line("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse::<i32>().ok());
    match (counters, paranoid) {
        (true, Some(level)) if level <= 2 || rustix::process::geteuid().is_root() => finding(
            "perf",
            Good,
            format!("the processor's counters can be read, perf_event_paranoid is {level}"),
            "",
        ),
        (true, level) => {
            let level = level.map_or("unknown".into(), |level| level.to_string());
            finding(
                "perf",
                Worse,
                format!("perf_event_paranoid is {level}, so counters need rights that this process lacks"),
                costs,
            )
        }
        (false, _) => finding("perf", Worse, "the processor's counters are not there", costs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_files_are_read() {
        let cpuinfo = "processor : 0\nflags\t\t: fpu constant_tsc avx2\n\nflags : nonstop_tsc\n";
        assert!(flag(cpuinfo, "constant_tsc") && flag(cpuinfo, "avx2"));
        assert!(!flag(cpuinfo, "nonstop_tsc") && !flag(cpuinfo, "avx") && !flag("", "fpu"));
        let text = "MemTotal:  8 kB\nMemAvailable:    1024 kB\n";
        assert_eq!((meminfo(text, "MemAvailable"), meminfo(text, "MemFree")), (Some(1 << 20), None));
        assert!(trusted("tsc") && !trusted("hpet") && !trusted("acpi_pm"));
    }

    #[test]
    fn every_finding_is_told_once_and_what_is_not_good_costs_something() {
        let findings = findings();
        for (index, one) in findings.iter().enumerate() {
            assert_eq!(one.state == Good, one.costs.is_empty(), "{one:?}");
            assert!(!one.found.is_empty(), "{one:?}");
            assert!(findings[..index].iter().all(|other| other.name != one.name), "{} twice", one.name);
        }
    }
}
