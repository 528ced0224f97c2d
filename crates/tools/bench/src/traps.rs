//! `satori bench traps`: the experiment of the talk "The traps of using Hyper-V features in KVM environment"
//! (L. Li, 2021), with a guest that behaves like the talk's and a model of its processor.

pub mod frames;
mod linux;
mod parameters;
pub mod runs;
pub mod show;

pub use frames::{Charge, Frames, Shot};
pub use linux::{Linux, Witness};
pub use parameters::Parameters;
pub use runs::{Host, Job, Machine, Run};

use crate::Error;

/// What the talk's page "All Hyper V features are set" offers, and the clock that Windows takes with it.
pub const ALL: &str = "relaxed,vapic,spinlocks=4096,vpindex,runtime,synic,stimer,stimer_direct,reset,vendor_id,\
                       frequencies,reenlightenment,tlbflush,ipi,time";

/// A configuration of the talk, and what it says of it.
pub struct Talk {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Exits of its table.
    pub exits: u64,
    /// Seconds in them.
    pub seconds: f64,
}

/// The four tables, from the most to the fewest exits.
pub const TALK: [Talk; 4] = [
    Talk { name: "none", what: "no enlightenment", exits: 1_238_237, seconds: 6.56 },
    Talk { name: "all", what: "all of them", exits: 659_276, seconds: 1.30 },
    Talk { name: "hidden", what: "all, and the hypervisor bit hidden", exits: 326_144, seconds: 0.72 },
    Talk { name: "repaired", what: "all, with the repairs", exits: 306_939, seconds: 0.68 },
];

/// Seconds that a table of the talk is (`data/game.conf`).
pub const TALK_SECONDS: u64 = 5;

/// The four machines. Up to the repairs KVM has the vectors of SINTs in the EOI-exit bitmap.
///
/// The talk's host has no PREEMPTION_TIMER exits where APICv is in force: KVM posts the local APIC timer's interrupt
/// from a timer of the host (`pi_inject_timer`, Linux arch/x86/kvm/lapic.c, `kvm_can_post_timer_interrupt`).
pub fn four(processor: &str) -> [Machine; 4] {
    let made = |hyperv: &str, cpu: &str, more: &str| Machine {
        hyperv: hyperv.into(),
        cpu: cpu.into(),
        processor: format!("{processor},-preemption-timer{more}"),
        rules: String::new(),
    };
    [
        made("off", "max", ",+sint-eoi-exits"),
        made(ALL, "max", ",+sint-eoi-exits"),
        made(ALL, "max,-hypervisor", ",+sint-eoi-exits"),
        made(&repaired(), "max", ""),
    ]
}

/// [`ALL`], auto-EOI deprecated and the hint to use the APIC's MSRs cleared.
pub fn repaired() -> String {
    format!("{ALL},apicv")
}

/// What is to be measured.
pub struct Plan {
    /// What the guest does.
    pub parameters: Parameters,
    /// The modelled processor.
    pub processor: String,
    /// Milliseconds of guest time of the four, and of the further ones.
    pub ms: u64,
    /// The same of a run of the sweep; 0 leaves it out.
    pub sweep_ms: u64,
    /// Whether to make the further configurations and the ladder.
    pub further: bool,
    /// Linux as a second witness.
    pub linux: Option<Linux>,
}

/// A run and what it is.
pub struct Shown {
    /// Its name.
    pub name: &'static str,
    /// What it is, and what the talk says of it.
    pub what: String,
    /// The run.
    pub run: Run,
    /// Its cost by the model: that of its exits, or of another supposition about them.
    pub cost_ns: u64,
    /// What was run.
    pub job: Job,
    /// Its frames where its exits take guest time, in a run of their own.
    pub frames: Option<Frames>,
}

/// Four runs with one parameter changed.
pub struct Swept {
    /// The parameter.
    pub name: String,
    /// By how many percent.
    pub percent: i64,
    /// Its value.
    pub value: u64,
    /// Exits of the four.
    pub exits: [u64; 4],
    /// What they cost in nanoseconds.
    pub cost_ns: [u64; 4],
}

/// What one tick of a timer is.
pub struct Rung {
    /// The timer.
    pub timer: &'static str,
    /// Whether it is in the talk's order, and where.
    pub place: Option<u8>,
    /// Exits by reason.
    pub exits: Vec<(String, f64)>,
    /// Their cost in nanoseconds.
    pub cost_ns: f64,
}

/// What came out.
pub struct Results {
    /// The plan.
    pub plan: Plan,
    /// The four.
    pub four: Vec<Shown>,
    /// Frames where exits take no time.
    pub native: Frames,
    /// The further configurations.
    pub further: Vec<Shown>,
    /// The sweep.
    pub sweep: Vec<Swept>,
    /// The ladder.
    pub ladder: Vec<Rung>,
    /// Linux.
    pub linux: Vec<Witness>,
}

/// Each is more than the next: the talk's order.
pub fn ordered(values: &[u64]) -> bool {
    values.windows(2).all(|pair| pair[0] > pair[1])
}

impl Results {
    /// Exits of the four.
    pub fn exits(&self) -> Vec<u64> {
        self.four.iter().map(|one| one.run.exits()).collect()
    }

    /// Modelled costs of the four.
    pub fn costs(&self) -> Vec<u64> {
        self.four.iter().map(|one| one.cost_ns).collect()
    }

    /// Whether a ladder's cheaper timer of the talk is dearer here.
    pub fn ladder_ordered(&self) -> bool {
        let placed: Vec<_> =
            self.ladder.iter().filter_map(|rung| Some((rung.place?, rung.cost_ns))).collect();
        placed.iter().all(|a| placed.iter().all(|b| a.0 >= b.0 || a.1 < b.1))
    }

    /// Whether Linux' exits, and what they cost, are in the talk's order, as far as it plays.
    pub fn linux_ordered(&self) -> [bool; 2] {
        let plays = self.plan.linux.as_ref().is_some_and(|linux| linux.plays);
        [Run::exits, Run::cost].map(|of| !plays || linux::ordered(&self.linux, of))
    }

    /// Whether everything that the talk orders is in its order here.
    pub fn as_the_talk(&self) -> bool {
        let own = ordered(&self.exits()) && ordered(&self.costs()) && self.ladder_ordered();
        own && self.linux_ordered() == [true; 2]
    }
}

/// What is swept: everything but what shows in no exit.
fn swept(parameters: &Parameters) -> Vec<(String, u64)> {
    let fixed = ["frame-least", "frame-most", "flushes", "wide", "rtc-ticks"];
    let all = parameters.iter().filter(|(name, value)| !fixed.contains(name) && *value > 0);
    all.map(|(name, value)| (name.to_string(), value)).collect()
}

/// Measures what `plan` asks for.
pub fn measure(plan: Plan, host: &Host, tell: &mut dyn FnMut(&str)) -> Result<Results, Error> {
    let machines = four(&plan.processor);
    let job = |machine: &Machine, changes: &[(&str, u64)], ms| Job {
        machine: machine.clone(),
        parameters: plan.parameters.but(changes),
        ms,
    };
    tell("the four configurations");
    let jobs: Vec<_> = machines.iter().map(|machine| job(machine, &[], plan.ms)).collect();
    let runs = host.games(&jobs)?;
    let four = runs.into_iter().zip(&TALK).zip(jobs).map(|((run, talk), job)| Shown {
        name: talk.name,
        what: talk.what.into(),
        cost_ns: run.cost(),
        run,
        job,
        frames: None,
    });
    let mut four: Vec<_> = four.collect();
    let (mut further, mut ladder, mut sweep) = (Vec::new(), Vec::new(), Vec::new());
    if plan.further {
        tell("further configurations");
        further = others(&plan, &machines, host)?;
        tell("the ladder of timers");
        ladder = rungs(&plan, &machines, host)?;
    }
    tell("frame times");
    let shots = four.iter().chain(&further).map(|one| Shot {
        job: one.job.clone(),
        charge: if one.name == EOI_CHEAPER { Charge::CheapEoi } else { Charge::Costs },
    });
    let (native, times) = frames::frames(&plan, &machines[3], shots.collect(), host)?;
    four.iter_mut().chain(&mut further).zip(times).for_each(|(one, times)| one.frames = Some(times));
    if plan.sweep_ms > 0 {
        tell("the sweep of parameters");
        let mut points = Vec::new();
        for (name, value) in swept(&plan.parameters) {
            for percent in [-50_i64, -25, 25, 50] {
                let changed = value.saturating_mul((100 + percent) as u64) / 100;
                let in_bounds = plan.parameters.clone().set(&name, changed).is_ok();
                if changed != value && in_bounds {
                    points.push((name.clone(), percent, changed));
                }
            }
        }
        let jobs: Vec<_> = points
            .iter()
            .flat_map(|(name, _, value)| {
                machines.iter().map(|machine| job(machine, &[(name, *value)], plan.sweep_ms))
            })
            .collect();
        let runs = host.games(&jobs)?;
        for ((name, percent, value), runs) in points.into_iter().zip(runs.chunks_exact(4)) {
            let exits = std::array::from_fn(|at| runs[at].exits());
            let cost_ns = std::array::from_fn(|at| runs[at].cost());
            sweep.push(Swept { name, percent, value, exits, cost_ns });
        }
    }
    let linux = match &plan.linux {
        Some(linux) => {
            tell("Linux");
            linux::witness(linux, &plan, &machines, host)?
        }
        None => Vec::new(),
    };
    Ok(Results { plan, four, native, further, sweep, ladder, linux })
}

/// The two enlightenments that make a synthetic timer.
const STIMERS: [&str; 2] = ["stimer", "stimer_direct"];

/// The list without these.
fn less(list: &str, out: &[&str]) -> String {
    list.split(',').filter(|word| !out.contains(word)).collect::<Vec<_>>().join(",")
}

/// A configuration whose exits are those of the one before it.
const EOI_CHEAPER: &str = "eoi-cheaper";

/// The configurations that the talk argues, beyond its tables.
fn others(plan: &Plan, machines: &[Machine; 4], host: &Host) -> Result<Vec<Shown>, Error> {
    let [none, all, hidden, repaired] = machines;
    let of = |machine: &Machine, hyperv: String, rules: &str| Machine {
        hyperv,
        rules: rules.into(),
        ..machine.clone()
    };
    let more = plan.parameters.get("ipis").saturating_add(1200);
    let more: &[(&str, u64)] = &[("ipis", more)];
    // One of five IPIs to sets in every cluster, and as many flushes as the talk has calls.
    let calls: &[(&str, u64)] = &[("wide", 200), ("flushes", plan.parameters.get("spins"))];
    let messages = of(repaired, less(&repaired.hyperv, &["stimer_direct"]), "");
    let bitmap = Machine { processor: format!("{},+sint-eoi-exits", messages.processor), ..messages.clone() };
    type Row<'a> = (&'static str, &'static str, Machine, &'a [(&'a str, u64)]);
    let rows: Vec<Row> = vec![
        (
            "all-stimer",
            "all minus stimer: \"will increase overall virtualization overhead\"",
            of(all, less(ALL, &STIMERS), ""),
            &[],
        ),
        (
            "lapic-preferred",
            "all, the guest prefers the local APIC's timer although it sees the hypervisor: APICv stays on",
            of(all, all.hyperv.clone(), "prefer=lapic"),
            &[],
        ),
        (
            "lapic-repaired",
            "the same with the repairs",
            of(repaired, repaired.hyperv.clone(), "prefer=lapic"),
            &[],
        ),
        ("eoi-exits", "repaired, timers by message, each of whose EOIs exits", bitmap, &[]),
        ("eoi-avoided", "the same, and no exit for EOIs of stimers", messages, &[]),
        ("none+1200", "none with 1,200 more IPIs a second (Remote Desktop)", none.clone(), more),
        ("all+1200", "all with 1,200 more IPIs a second", all.clone(), more),
        ("hidden+1200", "hidden with 1,200 more IPIs a second", hidden.clone(), more),
        ("repaired+1200", "repaired with 1,200 more IPIs a second", repaired.clone(), more),
        (
            "calls-hidden",
            "hidden: remote flushes, and a fifth of the IPIs, to many vCPUs, cannot be calls",
            hidden.clone(),
            calls,
        ),
        ("calls-repaired", "repaired: the same as calls", repaired.clone(), calls),
    ];
    let jobs: Vec<_> = rows
        .iter()
        .map(|(_, _, machine, changes)| Job {
            machine: machine.clone(),
            parameters: plan.parameters.but(changes),
            ms: plan.ms,
        })
        .collect();
    let runs = host.games(&jobs)?;
    let mut shown: Vec<_> = rows
        .into_iter()
        .zip(runs)
        .zip(jobs)
        .map(|(((name, what, ..), run), job)| Shown {
            name,
            what: what.into(),
            cost_ns: run.cost(),
            run,
            job,
            frames: None,
        })
        .collect();
    // "Optimize the cost of EOI induced vm-exit": the same exits, at half the cost.
    if let Some(at) = shown.iter().position(|one| one.name == "eoi-exits") {
        let run = shown[at].run.clone();
        let spared = run.report.all.row("EOI_INDUCED").and_then(|row| row.modelled_ns).unwrap_or(0) / 2;
        let (cost_ns, job) = (run.cost().saturating_sub(spared), shown[at].job.clone());
        let what = "the same, an exit for an EOI at half the cost".into();
        shown.insert(at + 1, Shown { name: EOI_CHEAPER, what, run, cost_ns, job, frames: None });
    }
    Ok(shown)
}

/// Ticks whose exits are counted.
const TICKS: u64 = 400;

/// What a tick of each timer costs on a machine without anything else.
fn rungs(plan: &Plan, machines: &[Machine; 4], host: &Host) -> Result<Vec<Rung>, Error> {
    let [none, _, _, repaired] = machines;
    // The local APIC's timer is the preemption timer here, as KVM has it where nothing else is asked for.
    let with = |machine: &Machine| Machine { processor: plan.processor.clone(), ..machine.clone() };
    let (none, repaired) = (with(none), with(repaired));
    let timers: [(&str, Option<u8>, &Machine); 6] = [
        ("lapic", Some(0), &none),
        ("stimer-direct", Some(0), &repaired),
        ("stimer-message", Some(0), &repaired),
        ("hpet", Some(1), &none),
        ("pit", None, &none),
        ("rtc", Some(2), &none),
    ];
    host.all(&timers, |(timer, place, machine)| {
        let run = |ticks: u64| {
            let words = format!("only=ladder ladder={ticks} timer={timer} rtc-ticks=1024{}", machine.rules);
            host.guest(machine, 1, 0, &words, &[])
        };
        let (few, many) = (run(100)?, run(100 + TICKS)?);
        let mut all = runs::without(&many.report.all, &few.report.all);
        all.exits.retain(|row| row.samples >= TICKS / 10);
        let mut report =
            satori_report::Report { all, processor: many.report.processor, ..Default::default() };
        report.model(host.costs);
        let each = |count: u64| count as f64 / TICKS as f64;
        let exits = report.all.exits.iter().map(|row| (row.reason.clone(), each(row.samples)));
        let cost_ns = each(report.all.modelled().map_or(0, |sum| sum.ns));
        Ok(Rung { timer, place: *place, exits: exits.collect(), cost_ns })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_strict() {
        assert!(
            ordered(&TALK.map(|talk| talk.exits)) && ordered(&TALK.map(|talk| (talk.seconds * 1e3) as u64))
        );
        assert!(!ordered(&[3, 3, 1]) && !ordered(&[1, 2]));
    }
}
