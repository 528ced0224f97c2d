//! The experiment of "To EL2, and beyond! Optimizing the design and implementation of KVM/ARM" (C. Dall, SFO17-403): what a switch
//! between worlds costs in split mode, with VHE, and with each of five optimisations, by a hypervisor of our own.
//!
//! Counts are exact: the software CPU counts what is done between a guest's exit and its return, under the virtual clock. Cycles are
//! a model of the counts ([`Costs`]).

mod costs;
mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use satori_arm_hypervisor::{Benchmark, DESIGNS, Design, image};

pub use satori_arm_hypervisor::monitor;
use satori_report::Report;

pub use costs::Costs;
pub use show::{json, text};

use crate::Error;
use crate::traps::Host;

/// The talk's cycles in split mode, with VHE at first glance and with VHE optimised, and x86's; on an AMD Seattle with a GICv2.
pub const TALK: [(Benchmark, [Option<u32>; 4]); 4] = [
    (Benchmark::Hypercall, [Some(3181), Some(3045), Some(752), Some(1437)]),
    (Benchmark::IoKernel, [Some(3992), None, Some(1604), Some(2565)]),
    (Benchmark::IoUser, [Some(6665), None, Some(7630), Some(6732)]),
    (Benchmark::Ipi, [Some(14155), None, Some(2526), Some(3102)]),
];

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds of each benchmark.
    pub rounds: u32,
    /// Linux as a second witness: a kernel, and a ramdisk whose init is [`monitor`].
    pub linux: Option<(PathBuf, PathBuf)>,
}

/// Events of one round by name.
pub type Events = BTreeMap<String, f64>;

/// What came of a design and a benchmark.
#[derive(Clone, Debug)]
pub struct Cell {
    /// What the guest did.
    pub benchmark: Benchmark,
    /// Exits of one round, by kind.
    pub exits: Events,
    /// What was done between these exits and the guest's return.
    pub events: Events,
}

impl Cell {
    /// Modelled cycles of one round.
    pub fn cycles(&self, costs: &Costs, slow_vgic: bool) -> f64 {
        self.events.iter().map(|(event, count)| count * costs.of(event, slow_vgic)).sum()
    }

    /// How often an event happened in one round.
    pub fn count(&self, event: &str) -> f64 {
        self.events.get(event).copied().unwrap_or(0.0)
    }
}

/// A design and what came of each benchmark.
#[derive(Clone, Debug)]
pub struct Row {
    /// The design's name.
    pub name: &'static str,
    /// The cells, in the order of [`Benchmark::ALL`].
    pub cells: Vec<Cell>,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Results {
    /// What was measured.
    pub plan: Plan,
    /// What events cost.
    pub costs: Costs,
    /// What Linux's KVM does, with VHE and without.
    pub linux: Vec<Row>,
    /// By design, in the order of the talk: split mode first, VHE second, all optimisations last.
    pub rows: Vec<Row>,
}

/// An order of the talk's, and whether it is ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What the talk says.
    pub said: String,
    /// Whether it is so here.
    pub holds: bool,
}

impl Results {
    /// Modelled cycles of a design's benchmark.
    fn cycles(&self, row: usize, benchmark: Benchmark, slow_vgic: bool) -> f64 {
        let cell =
            self.rows.get(row).and_then(|row| row.cells.iter().find(|cell| cell.benchmark == benchmark));
        cell.map_or(f64::NAN, |cell| cell.cycles(&self.costs, slow_vgic))
    }

    /// What the talk found, held against this.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let last = self.rows.len().saturating_sub(1);
        let (split, vhe, all) = (0, 1, last);
        let mut verdicts = Vec::new();
        let mut say = |said: String, holds: bool| verdicts.push(Verdict { said, holds });
        for benchmark in [Benchmark::Hypercall, Benchmark::IoKernel, Benchmark::Ipi] {
            let of = |row| self.cycles(row, benchmark, true);
            let each = (vhe + 1..all).all(|row| of(vhe) > of(row) && of(row) > of(all));
            say(
                format!("{}: split mode > VHE > VHE with any one optimisation > all five", benchmark.name()),
                of(split) > of(vhe) && each,
            );
        }
        for slow in [true, false] {
            let of = |row| self.cycles(row, Benchmark::Hypercall, slow);
            say(
                format!("a hypercall is over 75 % cheaper{}", if slow { "" } else { ", with a GICv3, too" }),
                of(all) < 0.25 * of(split),
            );
        }
        let own =
            |row| self.cycles(row, Benchmark::IoUser, true) - self.cycles(row, Benchmark::Hypercall, true);
        say(
            "what I/O in user space costs beyond a hypercall grows".into(),
            own(all) > own(vhe) && own(all) > own(split),
        );
        let whole = |row| self.cycles(row, Benchmark::IoUser, true);
        say("I/O in user space costs more with all five than with VHE alone".into(), whole(all) > whole(vhe));
        verdicts
    }

    /// Whether all of them hold.
    pub fn as_the_talk(&self) -> bool {
        self.verdicts().iter().all(|verdict| verdict.holds)
    }
}

/// A machine that is to be run.
struct Job {
    design: Design,
    benchmark: Benchmark,
}

/// Writes the Images of all designs and benchmarks into a folder; their names.
pub fn images(folder: &Path, rounds: u32) -> Result<Vec<PathBuf>, Error> {
    let mut written = Vec::new();
    for (name, design) in DESIGNS {
        for benchmark in Benchmark::ALL {
            let plain = |name: &str| name.replace([',', '/'], "").replace(' ', "-").to_lowercase();
            let path = folder.join(format!("{}.{}.image", plain(name), plain(benchmark.name())));
            let bytes = image(*design, benchmark, rounds).map_err(Error::Run)?;
            let failed = |why| Error::Run(format!("cannot write {}: {why}", path.display()));
            std::fs::write(&path, bytes).map_err(failed)?;
            written.push(path);
        }
    }
    Ok(written)
}

/// Exits and events of a report, a round.
fn events(report: &Report, rounds: u32) -> (Events, Events) {
    let (mut exits, mut events) = (Events::new(), Events::new());
    for stat in &report.stats {
        let Some((kind, event)) = stat.name.strip_prefix("switch.").and_then(|name| name.split_once('.'))
        else {
            continue;
        };
        let (to, name) = if event == "samples" { (&mut exits, kind) } else { (&mut events, event) };
        *to.entry(name.to_string()).or_default() += stat.value as f64 / f64::from(rounds);
    }
    (exits, events)
}

/// The kinds of exits of Linux's guests, and what these did.
const WITNESSED: [(Benchmark, &str); 3] =
    [(Benchmark::Hypercall, "HVC64"), (Benchmark::IoKernel, "MMIO_kernel"), (Benchmark::IoUser, "MMIO_user")];

/// Linux with KVM at EL2, `mode` being what its processors have.
fn witness(host: &Host, plan: &Plan, name: &'static str, mode: &[&str]) -> Result<Option<Row>, Error> {
    let Some((kernel, initrd)) = &plan.linux else { return Ok(None) };
    let files = [kernel, initrd].map(|path| path.display().to_string());
    let machine = ["run", "--arch", "arm64", "--el", "2", "--clock", "virtual", "--append", "quiet"];
    let rest = ["--kernel", &files[0], "--initrd", &files[1], "--on-reset", "exit", "--timeout", "10m"];
    let arguments: Vec<_> =
        machine.into_iter().chain(mode.iter().copied()).chain(rest).map(String::from).collect();
    let (said, report, _) = host.satori(&arguments, Some(0))?;
    if !said.contains("vmm:well") {
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        return Err(Error::Run(format!(
            "{name}: its KVM did not run the guest to its end, it said last {last}"
        )));
    }
    let cells = WITNESSED.map(|(benchmark, kind)| {
        let of = |event: &str| {
            let name = format!("switch.{kind}.{event}");
            report.stats.iter().find(|stat| stat.name == name).map_or(0, |stat| stat.value)
        };
        let samples = of("samples");
        let prefix = format!("switch.{kind}.");
        let stats =
            report.stats.iter().filter_map(|stat| Some((stat.name.strip_prefix(&prefix)?, stat.value)));
        let events = stats.filter(|(event, _)| *event != "samples");
        let events = events.map(|(event, count)| (event.to_string(), count as f64 / samples.max(1) as f64));
        let exits = Events::from([(kind.to_string(), samples as f64 / f64::from(plan.rounds))]);
        Cell { benchmark, exits, events: events.collect() }
    });
    Ok(Some(Row { name, cells: cells.to_vec() }))
}

fn run(host: &Host, plan: &Plan, job: &Job) -> Result<Cell, Error> {
    let bytes = image(job.design, job.benchmark, plan.rounds).map_err(Error::Run)?;
    let name = format!("{:?}-{:?}", job.design, job.benchmark);
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let path = host.folder.join(name);
    std::fs::write(&path, bytes).map_err(|why| Error::Run(format!("{}: {why}", path.display())))?;
    let (image, cpus) = (path.display().to_string(), job.benchmark.vcpus().to_string());
    let machine = ["run", "--arch", "arm64", "--el", "2", "--clock", "virtual", "--memory", "128M"];
    let rest = ["--cpus", &cpus, "--kernel", &image, "--on-reset", "exit", "--timeout", "5m"];
    let arguments: Vec<_> = machine.into_iter().chain(rest).map(String::from).collect();
    let ended = host.satori(&arguments, Some(0));
    let _ = std::fs::remove_file(&path);
    let (said, report, _) = ended?;
    let sum = u64::from_str_radix(said.lines().last().unwrap_or_default().trim(), 16).ok();
    if sum != Some(job.benchmark.sum(plan.rounds)) {
        return Err(Error::Run(format!("the guest of {} told a wrong sum: {said}", job.benchmark.name())));
    }
    let (exits, events) = events(&report, plan.rounds);
    Ok(Cell { benchmark: job.benchmark, exits, events })
}

/// Runs everything.
pub fn measure(plan: Plan, costs: Costs, host: &Host, tell: &mut dyn FnMut(&str)) -> Result<Results, Error> {
    let each = DESIGNS.iter().flat_map(|(_, design)| {
        Benchmark::ALL.into_iter().map(|benchmark| Job { design: *design, benchmark })
    });
    let jobs: Vec<_> = each.collect();
    tell(&format!("{} machines, {} rounds each", jobs.len(), plan.rounds));
    let cells = host.all(&jobs, |job| run(host, &plan, job))?;
    let rows = DESIGNS.iter().zip(cells.chunks(Benchmark::ALL.len()));
    let rows = rows.map(|((name, _), cells)| Row { name, cells: cells.to_vec() }).collect();
    if plan.linux.is_some() {
        tell("Linux with VHE, and without");
    }
    let modes: [(&'static str, &[&str]); 2] = [("Linux, VHE", &[]), ("Linux, nVHE", &["--no-vhe"])];
    let linux = host.all(&modes, |(name, mode)| witness(host, &plan, name, mode))?;
    Ok(Results { plan, costs, rows, linux: linux.into_iter().flatten().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_a_round_and_cost_what_the_file_says() {
        let stats = [
            ("switch.HVC64.samples", 20),
            ("switch.HVC64.instructions", 2000),
            ("switch.IRQ.instructions", 200),
            ("switch.HVC64.read_virtual_gic", 10),
            ("el2_HVC64", 21),
        ];
        let stats = stats.map(|(name, value)| satori_report::Counter { name: name.into(), value });
        let report = Report { stats: stats.to_vec(), ..Report::default() };
        let (exits, events) = events(&report, 10);
        assert_eq!((exits["HVC64"], events["instructions"], exits.len()), (2.0, 220.0, 1));
        let cell = Cell { benchmark: Benchmark::Hypercall, exits, events };
        let costs = Costs::with("instruction = 2\nregister-read = 10\nslow-vgic-read = 100").unwrap();
        assert_eq!((cell.cycles(&costs, false), cell.cycles(&costs, true)), (450.0, 540.0));
    }
}
