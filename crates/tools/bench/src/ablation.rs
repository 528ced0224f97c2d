//! `satori bench ablation`: each enlightenment alone, each one removed, none, the default and all, over workloads
//! or a user's own guest; and which of them cost.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::Error;
use crate::traps::{Host, Job, Machine, Parameters};

/// A workload: the talk's guest, with some of what it does.
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// What is left of the guest's parameters; nothing for all.
    keeps: &'static [&'static str],
    /// What is changed in them.
    changes: &'static [(&'static str, u64)],
}

/// All workloads.
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "game", what: "everything that the talk's guest does", keeps: &[], changes: &[] },
    Workload {
        name: "ipis",
        what: "IPIs to sets of vCPUs, half of them wide, and these by hypercall where that is offered",
        keeps: &["ipis"],
        changes: &[("wide", 500)],
    },
    Workload {
        name: "flushes",
        what: "remote TLB flushes, by hypercall where that is offered",
        keeps: &[],
        changes: &[("ipis", 0), ("clock-reads", 0), ("debug", 0), ("spins", 0), ("io", 0), ("flushes", 5000)],
    },
    Workload { name: "clock", what: "readings of the system timer", keeps: &["clock-reads"], changes: &[] },
    Workload { name: "ticks", what: "ticks of the system timer", keeps: &["ticks"], changes: &[] },
    Workload { name: "spins", what: "long waits for a lock", keeps: &["spins"], changes: &[] },
];

/// Rates that a workload may leave out.
const RATES: [&str; 5] = ["ipis", "clock-reads", "debug", "spins", "io"];

impl Workload {
    /// What the guest does.
    fn parameters(&self, all: &Parameters) -> Parameters {
        let gone = RATES.iter().filter(|name| !self.keeps.is_empty() && !self.keeps.contains(name));
        let changes: Vec<_> = gone.map(|name| (*name, 0)).chain(self.changes.iter().copied()).collect();
        all.but(&changes)
    }
}

/// What a configuration is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// Nothing, the default, or everything.
    Whole,
    /// This one, with what it needs.
    Alone(String),
    /// All without this one, and without what needs it.
    AllWithout(String),
    /// The default without this one.
    DefaultWithout(String),
}

/// A configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in tables: `none`, `ipi`, `all-ipi`.
    pub name: String,
    /// `--hyperv`.
    pub hyperv: String,
    /// What it is about.
    pub about: About,
}

/// `none`, `default`, `all`, and what is made of the names of enlightenments.
///
/// `can` tells whether a list of `--hyperv` can be had.
pub fn configs<'a>(names: impl Iterator<Item = &'a str> + Clone, can: impl Fn(&str) -> bool) -> Vec<Config> {
    let config = |name: String, hyperv: String, about| Config { name, hyperv, about };
    let whole = [("none", "off"), ("default", "auto"), ("all", "all")];
    let whole = whole.map(|(name, hyperv)| config(name.into(), hyperv.into(), About::Whole));
    let alone = names.clone().map(|one| config(one.into(), one.into(), About::Alone(one.into())));
    let less = |base: &'static str, hyperv: &'static str, about: fn(String) -> About| {
        names
            .clone()
            .map(move |one| config(format!("{base}-{one}"), format!("{hyperv},-{one}"), about(one.into())))
    };
    whole
        .into_iter()
        .chain(alone)
        .chain(less("all", "all", About::AllWithout))
        .chain(less("default", "auto", About::DefaultWithout))
        .filter(|config| can(&config.hyperv))
        .collect()
}

/// What one guest did under one configuration.
#[derive(Clone, Debug)]
pub struct Cell {
    /// How many exits.
    pub exits: u64,
    /// What these cost by the model.
    pub cost_ns: u64,
    /// What is compared: the modelled cost, and for a user's guest also how long it worked.
    pub compared_ns: u64,
}

/// What came out.
pub struct Results {
    /// The modelled processor.
    pub processor: String,
    /// The workloads' names.
    pub workloads: Vec<String>,
    /// The configurations.
    pub configs: Vec<Config>,
    /// One row a configuration, one cell a workload.
    pub cells: Vec<Vec<Cell>>,
}

/// An enlightenment that costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Costly {
    /// Its name, or `default` for all that is on without being asked for.
    pub name: String,
    /// The workload.
    pub workload: String,
    /// What was compared.
    pub what: String,
    /// By how many percent it costs.
    pub percent: f64,
}

/// What is called a cost: more than this many percent.
const LEAST: f64 = 1.0;

impl Results {
    /// Enlightenments with which a workload is slower than without.
    pub fn costly(&self) -> Vec<Costly> {
        let row = |name: &str| self.configs.iter().position(|config| config.name == name);
        let mut found = Vec::new();
        for (at, config) in self.configs.iter().enumerate() {
            // With it, and without it.
            let (name, with, without) = match &config.about {
                About::Whole if config.name == "default" => ("default", Some(at), row("none")),
                About::Whole => continue,
                About::Alone(one) => (one.as_str(), Some(at), row("none")),
                About::AllWithout(one) => (one.as_str(), row("all"), Some(at)),
                About::DefaultWithout(one) => (one.as_str(), row("default"), Some(at)),
            };
            let (Some(with), Some(without)) = (with, without) else { continue };
            for (column, workload) in self.workloads.iter().enumerate() {
                let ns = |row: usize| self.cells[row][column].compared_ns as f64;
                let percent = (ns(with) / ns(without).max(1.0) - 1.0) * 100.0;
                if percent > LEAST {
                    let what = format!("{} against {}", self.configs[with].name, self.configs[without].name);
                    found.push(Costly { name: name.into(), workload: workload.clone(), what, percent });
                }
            }
        }
        found
    }
}

/// Runs the workloads of these names, of guest time `ms` each, under all configurations.
pub fn workloads(
    names: &[&Workload],
    configs: Vec<Config>,
    processor: &str,
    ms: u64,
    host: &Host,
) -> Result<Results, Error> {
    let all = Parameters::default();
    let jobs: Vec<_> = configs
        .iter()
        .flat_map(|config| {
            names.iter().map(|workload| Job {
                machine: Machine {
                    hyperv: config.hyperv.clone(),
                    cpu: "max".into(),
                    processor: processor.into(),
                    rules: String::new(),
                },
                parameters: workload.parameters(&all),
                ms,
            })
        })
        .collect();
    let runs = host.games(&jobs)?;
    let cell =
        |run: &crate::traps::Run| Cell { exits: run.exits(), cost_ns: run.cost(), compared_ns: run.cost() };
    let cells = runs.chunks(names.len().max(1)).map(|row| row.iter().map(cell).collect()).collect();
    let workloads = names.iter().map(|workload| workload.name.to_string()).collect();
    Ok(Results { processor: processor.into(), workloads, configs, cells })
}

/// The column of a user's guest.
const COMMAND: &str = "command";

/// Runs a user's guest, the arguments of a command of Satori, under all configurations.
///
/// It is compared by its guest time, in which each exit takes its modelled cost. Were exits to take none, a guest that polls a device
/// for some time would poll it a hundred times as often: Linux' HPET driver alone makes 100,000 exits, once more in one boot than in
/// another, beside which no enlightenment is seen.
pub fn command(
    arguments: &[String],
    configs: Vec<Config>,
    processor: &str,
    host: &Host,
) -> Result<Results, Error> {
    let file = host.folder.join("costs.json");
    std::fs::write(&file, host.costs.to_json()).map_err(|why| Error::Run(format!("costs.json: {why}")))?;
    let file = file.display().to_string();
    let cells = host.all(&configs, |config| {
        let more = ["--hyperv", &config.hyperv, "--processor", processor, "--clock", "virtual"];
        let more = more.into_iter().chain(["--charge-costs", "--costs", &file]);
        let arguments: Vec<_> = arguments.iter().cloned().chain(more.map(String::from)).collect();
        let (_, mut report, _) = host.satori(&arguments, Some(0))?;
        report.model(host.costs);
        let cost_ns = report.all.modelled().map_or(0, |sum| sum.ns);
        let compared_ns = report.guest_time_ns.unwrap_or(0);
        Ok(vec![Cell { exits: report.all.samples, cost_ns, compared_ns }])
    })?;
    Ok(Results { processor: processor.into(), workloads: vec![COMMAND.into()], configs, cells })
}

/// The results as tables.
pub fn text(results: &Results) -> String {
    let mut out = format!(
        "Enlightenments on a modelled {}, virtual clock: exits, and what is compared in times of 'none'\n\n{:<32}",
        results.processor, ""
    );
    // Writing to a String cannot fail.
    results.workloads.iter().for_each(|name| _ = write!(out, "{name:>20}"));
    out.push('\n');
    for (config, cells) in results.configs.iter().zip(&results.cells) {
        let _ = write!(out, "{:<32}", config.name);
        for (cell, none) in cells.iter().zip(&results.cells[0]) {
            let ratio = cell.compared_ns as f64 / none.compared_ns.max(1) as f64;
            let _ = write!(out, "{:>12}{ratio:>8.3}", cell.exits);
        }
        out.push('\n');
    }
    let costly = results.costly();
    out += match results.workloads.first().map(String::as_str) {
        Some(COMMAND) => "\nCompared is the guest's time, in which each exit takes its modelled cost.\n\n",
        _ => {
            "\nCompared is what exits cost the vCPU that exits. What a call spares other vCPUs, as long spin waits and remote flushes do \
            where there are more\nvCPUs than processors, and what is spared in the guest's own instructions, is not in it.\n\n"
        }
    };
    if costly.is_empty() {
        let _ = writeln!(out, "No enlightenment makes any of these slower by more than {LEAST} %.");
    }
    for one in costly {
        let _ = writeln!(out, "{} costs {:.1} % on {} ({})", one.name, one.percent, one.workload, one.what);
    }
    out
}

/// The same for programs.
pub fn json(results: &Results) -> Value {
    let rows = results.configs.iter().zip(&results.cells).map(|(config, cells)| {
        let cells = results.workloads.iter().zip(cells).map(|(name, cell)| {
            let of =
                json!({ "exits": cell.exits, "modelled_ns": cell.cost_ns, "compared_ns": cell.compared_ns });
            (name.clone(), of)
        });
        json!({
            "name": config.name,
            "hyperv": config.hyperv,
            "workloads": cells.collect::<serde_json::Map<_, _>>(),
        })
    });
    let costly = results.costly().into_iter().map(|one| {
        json!({ "name": one.name, "workload": one.workload, "compared": one.what, "percent": one.percent })
    });
    json!({
        "format": "satori-bench-ablation",
        "version": 1,
        "processor": results.processor,
        "configurations": rows.collect::<Vec<_>>(),
        "costly": costly.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_alone_and_each_removed_where_that_can_be() {
        let made = configs(["ipi", "base"].into_iter(), |list| list != "all,-base" && list != "auto,-base");
        let names: Vec<_> = made.iter().map(|config| config.name.as_str()).collect();
        assert_eq!(names, ["none", "default", "all", "ipi", "base", "all-ipi", "default-ipi"]);
        assert_eq!(made[6].hyperv, "auto,-ipi");
    }

    #[test]
    fn what_costs_is_named() {
        let configs = configs(["a", "b"].into_iter(), |_| true);
        // none, default, all, a, b, all-a, all-b, default-a, default-b
        let ns = [100, 90, 120, 100, 110, 120, 80, 90, 90];
        let cells = ns.map(|ns| vec![Cell { exits: 1, cost_ns: ns, compared_ns: ns }]).to_vec();
        let results = Results { processor: "haswell".into(), workloads: vec!["game".into()], configs, cells };
        let found: Vec<_> =
            results.costly().iter().map(|one| format!("{}: {}", one.name, one.what)).collect();
        assert_eq!(found, ["b: b against none", "b: all against all-b"]);
    }

    #[test]
    fn workloads_keep_what_they_say() {
        let of =
            |name| WORKLOADS.iter().find(|one| one.name == name).unwrap().parameters(&Parameters::default());
        assert_eq!(of("game"), Parameters::default());
        assert_eq!((of("clock").get("ipis"), of("clock").get("clock-reads")), (0, 178_704));
        assert_eq!((of("ipis").get("ipis"), of("ipis").get("wide")), (35_000, 500));
    }
}
