//! What is looked at. Where a thing can be tried it is tried, not believed.

use std::fs::read_to_string;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use rustix::mm::{UserfaultfdFlags, userfaultfd};
use satori_machine::host_processors;

use super::State::{Good, Missing, Worse};
use super::{Finding, State};
use crate::{engines, probe};

/// Everything, in the order in which it is told.
pub fn findings() -> Vec<Finding> {
    let mut findings = vec![clocksource(), tsc(), processors(), memory()];
    findings.extend(processor_features());
    findings.extend([membarrier(), sandbox(), faults(), kvm(), perf()]);
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
            "whether the TSC can be trusted is not known: see tsc below",
        );
    };
    let state = if trusted(&current) { Good } else { Worse };
    finding(
        "clocksource",
        state,
        current,
        "the kernel does not trust the TSC: the guest's clocks, hv-time's page first, may jump where vCPUs change \
         processors; use --clock virtual where that matters",
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
        "the TSC changes its speed or stops in sleep, and the guest's real time with it; use --clock virtual where \
         that matters",
    )
}

fn processors() -> Finding {
    let count = host_processors().len();
    finding(
        "processors",
        if count > 1 { Good } else { Worse },
        format!("{count} that this process may use"),
        "vCPUs take turns, and wait for locks that the others hold: use one vCPU, or --hyperv +spinlocks,+tlbflush,+ipi",
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
        return finding("memory", Worse, "unknown", "how large a guest can be is not known");
    };
    let most = limit.map_or(free, |limit| limit.min(free));
    let (state, costs) = match most >> 20 {
        ..160 => (Missing, "the smallest guest has 128 MiB, and Satori some of its own: end something else"),
        160..640 => (Worse, "too little for the default guest of 512 MiB: use --memory 128M"),
        640.. => (Good, ""),
    };
    finding("memory", state, format!("{} MiB to be had", most >> 20), costs)
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
                "guests are not offered AVX and AVX2: instructions on vectors are executed by the host's own",
            ),
            present(
                "BMI2",
                is_x86_feature_detected!("bmi2"),
                "such instructions of guests are executed one by one",
            ),
            present("FSGSBASE", fsgsbase, "each entry into translated code takes a system call"),
        ]
    }
    #[cfg(not(target_arch = "x86_64"))]
    vec![finding(
        "processor",
        Missing,
        std::env::consts::ARCH,
        "the engine needs an x86-64 processor: run it on one",
    )]
}

fn membarrier() -> Finding {
    let wanted = rustix::thread::MembarrierQuery::PRIVATE_EXPEDITED;
    let there = rustix::thread::membarrier_query().contains(wanted);
    finding(
        "membarrier",
        if there { Good } else { Worse },
        if there { "private, expedited" } else { "not there" },
        "a page that first holds code costs two changes of a page's rights instead of one call",
    )
}

/// The sandbox, entered by a child.
fn sandbox() -> Finding {
    let told = engines::probe(probe::SANDBOX);
    let not: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("not ")).collect();
    let had = told.lines().filter(|line| line.starts_with("had ")).count();
    let (state, found) = match (had, not.is_empty()) {
        (0, _) => (Worse, format!("not to be had: {}", told.replace('\n', "; "))),
        (had, true) => (Good, format!("all {had} measures, seccomp's filter among them")),
        (had, false) => (Worse, format!("{had} measures; not had: {}", not.join("; "))),
    };
    finding(
        "sandbox",
        state,
        found,
        "a guest that breaks out reaches more of the host: permit user namespaces and seccomp, or run as root",
    )
}

fn faults() -> Finding {
    // UFFD_USER_MODE_ONLY, which needs no right.
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: the file is closed again without having been told of any memory.
    let got = unsafe { userfaultfd(flags) };
    match got {
        Ok(_) => finding("userfaultfd", Good, "works, for faults in user mode", ""),
        Err(error) => {
            finding("userfaultfd", Worse, format!("refused: {error}"), "nothing today: nothing uses it yet")
        }
    }
}

/// /dev/kvm: what it is, and what it does when it is tried.
fn kvm() -> Finding {
    let costs = "nothing today: every engine of this version is software";
    let Ok(file) = std::fs::metadata("/dev/kvm") else {
        return finding("kvm", Worse, "there is no /dev/kvm", costs);
    };
    let device = rustix::fs::major(file.rdev()) == 10 && rustix::fs::minor(file.rdev()) == 232;
    if !file.file_type().is_char_device() || !device {
        return finding("kvm", Worse, "/dev/kvm is not KVM's device (character device 10:232)", costs);
    }
    let told = engines::probe(probe::KVM);
    let state = if told.starts_with(probe::WORKS) { Good } else { Worse };
    finding("kvm", state, format!("/dev/kvm is KVM's device; tried: {}", told.replace('\n', "; ")), costs)
}

fn perf() -> Finding {
    let costs = "nothing for guests: only who profiles Satori itself misses them";
    let counters = std::path::Path::new("/sys/bus/event_source/devices/cpu").exists();
    let paranoid = line("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse::<i32>().ok());
    match (counters, paranoid) {
        (true, Some(level)) if level <= 2 || rustix::process::geteuid().is_root() => {
            finding("perf", Good, format!("the processor's counters, perf_event_paranoid {level}"), "")
        }
        (true, level) => {
            let level = level.map_or("unknown".into(), |level| level.to_string());
            finding(
                "perf",
                Worse,
                format!("perf_event_paranoid is {level}: no counters without rights"),
                costs,
            )
        }
        (false, _) => finding("perf", Worse, "no counters of the processor", costs),
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
