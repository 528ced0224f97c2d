//! Linux as a second witness: the talk's load as a program, or a Linux of the user's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::runs::{Host, Run, without};
use super::{ALL, Machine, Plan, STIMERS, TALK, less};
use crate::Error;
use crate::catalog::MARK;

/// A Linux that boots, does something and powers off.
pub struct Linux {
    /// Its kernel.
    pub kernel: PathBuf,
    /// Its initial ramdisk.
    pub initrd: PathBuf,
    /// The ramdisk's init is the benchmark program, which plays the talk's load; if not, it is the user's.
    pub plays: bool,
    /// How many vCPUs.
    pub cpus: u32,
}

/// Linux under one configuration.
pub struct Witness {
    /// The configuration.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Exits, and their cost: of the load alone, or of the user's whole run.
    pub run: Run,
    /// SINTs with auto-EOI inhibited APICv at some exit.
    pub inhibited: u64,
}

/// Whether what is told of Linux' exits and of their cost has the talk's order: none, all, and then both hidden and repaired, whose
/// own order it is not asked for, as Linux sends an IPI by one exit in either. A Linux of the user's has none to have.
pub(super) fn ordered(linux: &[Witness], of: fn(&Run) -> u64) -> bool {
    let [none, all, hidden, repaired, ..] = linux else { return true };
    let [none, all, hidden, repaired] = [none, all, hidden, repaired].map(|one| of(&one.run));
    none > all && all > hidden && all > repaired
}

/// One configuration.
struct Case {
    name: &'static str,
    what: &'static str,
    machine: Machine,
    /// Words for the kernel.
    words: &'static str,
}

/// What Linux is given. That of `none` is told to take the clock that Windows takes there; otherwise it chooses.
fn cases(machines: &[Machine; 4], plays: bool) -> Vec<Case> {
    let [none, all, hidden, repaired] = machines;
    let of = |machine: &Machine, hyperv: String| Machine { hyperv, ..machine.clone() };
    let hpet = if plays { "clocksource=hpet" } else { "" };
    let case = |name, what, machine: Machine, words| Case { name, what, machine, words };
    vec![
        case(TALK[0].name, "its clock is the HPET, as Windows chooses", none.clone(), hpet),
        case(TALK[1].name, "told to reach the APIC by MSR: each EOI exits", all.clone(), ""),
        case(
            TALK[2].name,
            "the hypervisor bit hidden: IPIs by the APIC, the local APIC's timer",
            hidden.clone(),
            "",
        ),
        case(TALK[3].name, "EOIs by the APIC; IPIs by hypercall", repaired.clone(), ""),
        case(
            "all-stimer",
            "all without synthetic timers: the local APIC's, with the hypervisor visible",
            of(all, less(ALL, &STIMERS)),
            "",
        ),
        case(
            "repaired-ipi",
            "repaired, IPIs by the APIC",
            of(repaired, less(&repaired.hyperv, &["ipi"])),
            "",
        ),
    ]
}

/// Boots Linux under each configuration. Where it plays, the exits of its start and end are left out.
pub(super) fn witness(
    linux: &Linux,
    plan: &Plan,
    machines: &[Machine; 4],
    host: &Host,
) -> Result<Vec<Witness>, Error> {
    let cases = cases(machines, linux.plays);
    let lengths: &[u64] = if linux.plays { &[0, plan.ms] } else { &[0] };
    let jobs: Vec<_> = cases.iter().flat_map(|case| lengths.iter().map(move |ms| (case, *ms))).collect();
    let runs = host.all(&jobs, |(case, ms)| boot(linux, plan, case, *ms, host))?;
    let mut witnesses = Vec::new();
    for (case, runs) in cases.iter().zip(runs.chunks_exact(lengths.len())) {
        let mut run = runs[runs.len() - 1].clone();
        if let [before, _] = runs {
            run.report.all = without(&run.report.all, &before.report.all);
            run.report.vcpus.clear();
            run.report.model(host.costs);
        }
        let inhibited = run.report.all.exits.iter().map(|row| row.without_apicv).sum();
        witnesses.push(Witness { name: case.name, what: case.what, run, inhibited });
    }
    Ok(witnesses)
}

fn boot(linux: &Linux, plan: &Plan, case: &Case, ms: u64, host: &Host) -> Result<Run, Error> {
    let of = &plan.parameters;
    // As many of each vCPU as the guest of the talk has; an interrupt that goes to two is one.
    let share = |name: &str| of.get(name) * u64::from(linux.cpus) / of.get("vcpus").max(1);
    // Words as long in both runs, so that the kernel starts as fast. The HPET's driver reads its counter for three milliseconds as it starts, and exits take no time here: that
    // would be some 100,000, a few more in one run than in another.
    let words = if linux.plays {
        format!(
            "quiet panic=-1 initcall_blacklist=hpet_late_init {} -- play --cpus {} --ms {ms:06} --ipis {} --reads {}",
            case.words,
            linux.cpus,
            share("ipis"),
            share("clock-reads"),
        )
    } else {
        "quiet".into()
    };
    let arguments = [
        "run",
        "--kernel",
        &linux.kernel.display().to_string(),
        "--initrd",
        &linux.initrd.display().to_string(),
        "--append",
        &words,
        "--clock",
        "virtual",
        "--timeout",
        "10m",
        "--engine",
        &host.engine,
        "--cpus",
        &linux.cpus.to_string(),
        "--host-tick",
        &of.get("host-tick").to_string(),
        "--processor",
        &case.machine.processor,
        "--hyperv",
        &case.machine.hyperv,
        "--cpu",
        &case.machine.cpu,
    ]
    .map(String::from);
    let (said, mut report, elapsed) = host.satori(&arguments, Some(0))?;
    if linux.plays && !said.lines().any(|line| line.contains(MARK) && line.contains(r#""end":true"#)) {
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        return Err(Error::Run(format!("Linux did not play, {}: it said last {last}", case.name)));
    }
    report.model(host.costs);
    Ok(Run { report, told: BTreeMap::new(), elapsed })
}
