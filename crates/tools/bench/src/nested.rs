//! `satori bench nested`: tables of "A slightly different nesting: KVM on Hyper-V" (V. Kuznetsov, FOSDEM 2018), with stock Debian
//! as a guest (L1) whose KVM runs a guest in real mode (L2), or Debian once more where the row is of a kernel's clock.
//!
//! Each row of a machine has three figures that do not depend on each other: exits, counted under the virtual clock as the
//! difference of two runs of which one does more; cycles of hardware, by a model of those counts; and cycles measured here.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use satori_report::nested::{self, Nested};
use satori_report::{Report, Table};
use serde_json::{Value, json};

use crate::Error;
use crate::statistics::median;
use crate::traps::Host;

/// What a line of the program's results begins with.
pub const MARK: &str = "satori-nested ";

/// What is measured where.
#[derive(Debug)]
pub struct Row {
    /// Its name, as the program knows it.
    pub name: &'static str,
    /// What one operation is, for a person.
    pub what: &'static str,
    /// Operations of the shorter of the runs whose exits are counted.
    pub operations: u64,
    /// The talk's figure, in cycles.
    pub talk: &'static str,
}

const fn row(name: &'static str, what: &'static str, operations: u64, talk: &'static str) -> Row {
    Row { name, what, operations, talk }
}

/// What a guest is offered, and its rows.
#[derive(Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// `--hyperv`.
    pub hyperv: &'static str,
    /// The rows.
    pub rows: &'static [Row],
}

/// The machines. KVM in L1 takes the clock of L1 for stable if that is the TSC or the TSC page, and lets L2 read its own without a
/// system call then.
pub const CASES: &[Case] = &[
    Case {
        name: "hyper-v",
        what: "L1 on Hyper-V's interface, without an enlightened VMCS",
        hyperv: "auto",
        rows: &[
            row("cpuid-l1", "CPUID in L1", 10_000, "1,350"),
            row("clock-l1", "clock_gettime in L1", 50_000, "70"),
            row("cpuid-l2", "CPUID in L2", 2_000, "20,700; first talk, KVM on KVM: 20,850"),
            row("rdmsr-passed", PASSED, 20_000, "120 with the MSR bitmap"),
            row("rdmsr-intercepted", INTERCEPTED, 2_000, ""),
            row(CLOCK_L2, "clock_gettime in L2", 0, "80; its gain is the stable clock's"),
        ],
    },
    Case {
        name: "evmcs",
        what: "the same with evmcs and emsr_bitmap",
        hyperv: "auto,evmcs,emsr_bitmap",
        rows: &[
            row("cpuid-l2", "CPUID in L2", 2_000, "8,900; first talk, KVM on KVM: 19,400"),
            row("rdmsr-passed", PASSED, 20_000, "120 with the MSR bitmap"),
            row("rdmsr-intercepted", INTERCEPTED, 2_000, ""),
            row(CLOCK_L2, "clock_gettime in L2", 0, "80"),
        ],
    },
    Case {
        name: "no-time",
        what: "L1 on Hyper-V's interface without the TSC page",
        hyperv: "auto,-time",
        rows: &[
            row("clock-l1", "clock_gettime in L1", 2_000, ""),
            row("cpuid-l2", "CPUID in L2", 2_000, "20,700"),
            row(CLOCK_L2, "clock_gettime in L2", 0, "1,500"),
        ],
    },
];

/// The row whose L2 is a Linux, which QEMU in L1 boots. Its time is measured, its exits are not counted: L1 has this host's folders then, which
/// go with no virtual clock.
const CLOCK_L2: &str = "clock-l2";

const PASSED: &str = "RDMSR in L2 that L1's MSR bitmap passes";
const INTERCEPTED: &str = "RDMSR in L2 that L1 intercepts";

/// Rows that the host's own processor measures, with the talk's figure.
const HOST: [(&str, &str, &str); 2] =
    [("cpuid-l1", "CPUID on this host", "180"), ("clock-l1", "clock_gettime on this host", "55")];

/// What is to be measured.
pub struct Plan {
    /// The program itself: an executable of the host.
    pub native: PathBuf,
    /// The kernel of L1.
    pub kernel: PathBuf,
    /// Its initramfs, with all that L2 is.
    pub initrd: PathBuf,
    /// QEMU, by whose KVM L1 has a Linux as L2; without it there are no rows of such.
    pub monitor: Option<PathBuf>,
    /// Names of the cases to leave out all others; empty for all.
    pub cases: Vec<String>,
    /// Words for the kernel of L1: a table for each.
    pub settings: Vec<(&'static str, &'static str)>,
    /// Runs of which the median is taken.
    pub repetitions: usize,
    /// Milliseconds that a row is measured in a run.
    pub budget_ms: u64,
    /// How long a run may take, as `--timeout` has it.
    pub timeout: String,
}

/// What came of a row.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Exits of L1, and of L2, an operation.
    pub exits: [f64; 2],
    /// Exits to L0, were this hardware: with every VMREAD and VMWRITE an exit, and with a shadow VMCS.
    pub to_l0: [f64; 2],
    /// Whether exits were counted at all.
    pub counted: bool,
    /// Cycles by the model; none where nothing exits.
    pub modelled: Option<f64>,
    /// Cycles measured here: of each run the least sample.
    pub cycles: Vec<f64>,
}

/// What came of a case under a setting.
pub struct Measured {
    /// The case.
    pub case: &'static Case,
    /// The setting's name.
    pub setting: &'static str,
    /// The clock of L1.
    pub clock: String,
    /// Whether L1's KVM tells L2 that its clock is stable.
    pub stable: bool,
    /// Whether L1 said that it uses the enlightened VMCS.
    pub evmcs: bool,
    /// What came of each row.
    pub cells: Vec<Cell>,
}

/// What came out.
pub struct Results {
    /// The kernel of L1.
    pub kernel: String,
    /// Cycles of the host's own rows.
    pub host: Vec<f64>,
    /// The rest.
    pub all: Vec<Measured>,
}

/// The lines of results in what a run said.
fn told(said: &str) -> Vec<Value> {
    said.lines().filter_map(|line| serde_json::from_str(line.split_once(MARK)?.1.trim()).ok()).collect()
}

impl Plan {
    /// One run of a guest; the lines that it told, and its report.
    fn run(
        &self,
        host: &Host,
        case: &Case,
        more: &str,
        words: &str,
        clock: &str,
    ) -> Result<(Vec<Value>, Report), Error> {
        // Under the virtual clock two runs are compared, and Linux' HPET driver polls once more in one than in another.
        let quiet = if clock == "virtual" { "quiet initcall_blacklist=hpet_late_init" } else { "quiet" };
        let cmdline = format!("console=ttyS0 {quiet} panic=-1 {more} -- l1 {words}");
        let arguments = [
            "run",
            "--kernel",
            &self.kernel.display().to_string(),
            "--initrd",
            &self.initrd.display().to_string(),
            "--cmdline",
            &cmdline,
            "--memory",
            "512M",
            "--nested",
            "vmx",
            "--hyperv",
            case.hyperv,
            "--clock",
            clock,
            "--engine",
            &host.engine,
            "--timeout",
            &self.timeout,
        ]
        .map(String::from);
        let (said, mut report, _) = host.satori(&arguments, Some(0))?;
        let lines = told(&said);
        if let Some(why) = lines.iter().find_map(|line| line["failed"].as_str()) {
            return Err(Error::Run(format!("{}: {why}", case.name)));
        }
        if lines.last().is_none_or(|line| line["end"] != true) {
            let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            return Err(Error::Run(format!(
                "{}: the guest ended before it was done, it said last {last}",
                case.name
            )));
        }
        report.model(host.costs);
        Ok((lines, report))
    }

    /// The exits of one operation of a row.
    fn count(&self, host: &Host, case: &Case, row: &Row, more: &str) -> Result<Cell, Error> {
        if row.name == CLOCK_L2 {
            return Ok(Cell::default());
        }
        let words = |count: u64| format!("--rows {} --exactly {count}", row.name);
        let (_, fewer) = self.run(host, case, more, &words(row.operations), "virtual")?;
        let (_, all) = self.run(host, case, more, &words(row.operations * 2), "virtual")?;
        let each = |count: f64| count / row.operations as f64;
        let mut cell = Cell { counted: true, ..Cell::default() };
        if !row.name.ends_with("l1") {
            let [fewer, all] = [&fewer, &all].map(|report| Nested::of(report).unwrap_or_default());
            let sums = |of: fn(&nested::Row) -> u64| {
                let sum = |nested: &Nested| nested.rows.iter().map(of).sum::<u64>() as f64;
                each(sum(&all) - sum(&fewer))
            };
            let own = sums(|row| row.exits + row.kept);
            let (accesses, shadowed) = (sums(|row| row.vmread + row.vmwrite), sums(|row| row.shadowed));
            let instructions = sums(|row| row.instructions);
            cell.exits[1] = own;
            cell.to_l0 = [own + accesses + instructions, own + accesses - shadowed + instructions];
            // Whoever has an enlightened VMCS executes neither VMREAD nor VMWRITE: its exits are the first figure, too.
            cell.modelled = (own >= 0.5).then(|| nested::cycles(cell.to_l0[0]));
        } else {
            let exits = |table: &Table| table.samples as f64;
            cell.exits[0] = each(exits(&all.all) - exits(&fewer.all));
            let ns = |table: &Table| table.modelled().map_or(0, |sum| sum.ns) as f64;
            let ns = each(ns(&all.all) - ns(&fewer.all));
            cell.modelled = (cell.exits[0] >= 0.5).then_some(ns * GHZ);
        }
        Ok(cell)
    }

    /// Cycles of a row in a Linux that is L2.
    fn in_linux(
        &self,
        host: &Host,
        case: &Case,
        row: &Row,
        more: &str,
        monitor: &Path,
    ) -> Result<f64, Error> {
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let script = format!(
            "modprobe kvm_intel && {} -enable-kvm -cpu host -m 192 -nographic -nodefaults -no-reboot -serial stdio -kernel {} -initrd {} \
             -append 'console=ttyS0 quiet panic=-1 {more} -- l2 --rows {} --budget {}' </dev/null",
            quoted(monitor),
            quoted(&self.kernel),
            quoted(&self.initrd),
            row.name,
            self.budget_ms
        );
        let kernel = self.kernel.display().to_string();
        let mut arguments = vec!["run", "--kernel", &kernel, "--memory", "768M", "--nested", "vmx"];
        arguments.extend(["--hyperv", case.hyperv, "--engine", &host.engine, "--timeout", &self.timeout]);
        if !more.is_empty() {
            arguments.extend(["--append", more]);
        }
        arguments.extend(["--report", "off", "--", "sh", "-c", &script]);
        let ended = Command::new(&host.program).args(arguments).stdin(Stdio::null()).output();
        let said =
            String::from_utf8_lossy(&ended.map_err(|why| Error::Run(why.to_string()))?.stdout).into_owned();
        if host.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let missing = || {
            let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
            Error::Run(format!("{}: {} was not told; the guest said last {last}", case.name, row.name))
        };
        cycles(&told(&said), row.name).ok_or_else(missing)
    }

    /// The host's own rows.
    fn natively(&self) -> Result<Vec<f64>, Error> {
        let names = HOST.map(|(name, ..)| name).join(",");
        let mut command = Command::new(&self.native);
        command
            .args(["host", "--rows", &names, "--budget", &self.budget_ms.to_string()])
            .stdin(Stdio::null());
        let ended = command.output().map_err(|why| Error::Run(why.to_string()))?;
        let lines = told(&String::from_utf8_lossy(&ended.stdout));
        Ok(HOST.iter().map(|(name, ..)| cycles(&lines, name).unwrap_or(f64::NAN)).collect())
    }
}

/// The frequency at which the costs of L1's exits, which are known in time, are told in cycles: an assumption.
pub const GHZ: f64 = 2.6;

fn cycles(lines: &[Value], name: &str) -> Option<f64> {
    lines.iter().find(|line| line["row"] == name)?["cycles"].as_f64()
}

/// Measures what `plan` asks for.
pub fn measure(plan: &Plan, host: &Host, tell: &mut dyn FnMut(&str)) -> Result<Results, Error> {
    let cases: Vec<_> = CASES
        .iter()
        .filter(|case| plan.cases.is_empty() || plan.cases.iter().any(|name| name == case.name))
        .collect();
    let mut results = Results { kernel: String::new(), host: plan.natively()?, all: Vec::new() };
    for &(setting, more) in &plan.settings {
        for &case in &cases {
            if host.stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            tell(&format!("{}, {setting}: exits", case.name));
            let mut cells = host.all(case.rows, |row| plan.count(host, case, row, more))?;
            let of_linux = |row: &Row| row.name == CLOCK_L2;
            let bare = case.rows.iter().filter(|row| !of_linux(row));
            let names = bare.map(|row| row.name).collect::<Vec<_>>().join(",");
            let words = format!("--rows {names} --budget {}", plan.budget_ms);
            let (mut clock, mut stable, mut evmcs) = (String::new(), false, false);
            for round in 0..plan.repetitions {
                tell(&format!("{}, {setting}: times, run {} of {}", case.name, round + 1, plan.repetitions));
                let (lines, _) = plan.run(host, case, more, &words, "real")?;
                for (cell, row) in cells.iter_mut().zip(case.rows) {
                    if of_linux(row) {
                        if let Some(monitor) = &plan.monitor {
                            cell.cycles.push(plan.in_linux(host, case, row, more, monitor)?);
                        }
                        continue;
                    }
                    let missing = || Error::Run(format!("{}: {} was not told", case.name, row.name));
                    cell.cycles.push(cycles(&lines, row.name).ok_or_else(missing)?);
                }
                let text = |key: &str| {
                    lines.iter().find_map(|line| line[key].as_str()).unwrap_or_default().to_string()
                };
                (clock, results.kernel) = (text("clocksource"), text("kernel"));
                let told = |key: &str| lines.iter().any(|line| line[key] == true);
                (stable, evmcs) = (told("stable_clock"), told("evmcs"));
            }
            if evmcs != case.hyperv.contains("evmcs") {
                let not = if evmcs { "" } else { "not " };
                return Err(Error::Run(format!(
                    "{}: L1's KVM does {not}use the enlightened VMCS",
                    case.name
                )));
            }
            results.all.push(Measured { case, setting, clock, stable, evmcs, cells });
        }
    }
    Ok(results)
}

fn middle(cell: &Cell) -> f64 {
    median(&cell.cycles).unwrap_or(f64::NAN)
}

impl Results {
    fn cell(&self, setting: &str, case: &str, row: &str) -> Option<&Cell> {
        let one = self.all.iter().find(|one| one.setting == setting && one.case.name == case)?;
        let at = one.case.rows.iter().position(|known| known.name == row)?;
        one.cells.get(at)
    }

    /// What the talk says of one figure against another, and what it is here: measured, and by the model of what was counted.
    fn verdicts(&self, setting: &str) -> Vec<String> {
        let pairs = [(
            "an enlightened VMCS, CPUID in L2",
            ("hyper-v", "cpuid-l2"),
            ("evmcs", "cpuid-l2"),
            20_700.0 / 8_900.0,
        )];
        let mut all = Vec::new();
        for (what, without, with, talk) in pairs {
            let of = |(case, row): (&str, &str)| self.cell(setting, case, row);
            let (Some(without), Some(with)) = (of(without), of(with)) else { continue };
            let measured = middle(without) / middle(with);
            let mut text =
                format!("{what}: {talk:.1} times as fast in the talk; here {measured:.2} times, measured");
            if let (Some(without), Some(with)) = (without.modelled, with.modelled) {
                // Writing to a String cannot fail.
                let _ = write!(text, ", {:.2} times, modelled", without / with);
            }
            text += match measured / talk {
                ratio if ratio < 0.5 && talk > 1.1 => {
                    ": the talk's gain is not there in the time of this machine"
                }
                _ if measured < 0.95 => ": slower, not faster",
                _ => "",
            };
            all.push(text);
        }
        let clock = |name: &str| self.all.iter().find(|one| one.setting == setting && one.case.name == name);
        if let (Some(with), Some(without)) = (clock("hyper-v"), clock("no-time")) {
            let word = |one: &Measured| if one.stable { "stable" } else { "not stable" };
            let last = all.len();
            all.push(format!(
                "clock_gettime in L2: 1,500 cycles in the talk, 80 once L1's KVM took the TSC page for stable; here KVM calls the clock of \
                 L2 {} where L1 has the TSC page, and {} where it has none ({})",
                word(with),
                word(without),
                without.clock
            ));
            let of = |case| self.cell(setting, case, CLOCK_L2).map_or(f64::NAN, middle);
            let (page, none) = (of("hyper-v"), of("no-time"));
            if page.is_finite() && none.is_finite() {
                // Writing to a String cannot fail.
                let _ = write!(all[last], "; {none:.0} cycles become {page:.0}, measured");
            }
        }
        all
    }
}

/// The results as tables.
pub fn text(results: &Results) -> String {
    let mut out =
        format!("KVM on Hyper-V (V. Kuznetsov, FOSDEM 2018); L1: Linux {}, L2: real mode\n", results.kernel);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "\n{:<44}{:>7}{:>7} |{:>9}{:>9} |{:>10} |{:>10}   talk, cycles",
        "", "of L1", "of L2", "to L0", "shadowed", "modelled", "measured"
    );
    for ((_, what, talk), cycles) in HOST.iter().zip(&results.host) {
        let _ = writeln!(
            out,
            "{what:<44}{:>7}{:>7} |{:>9}{:>9} |{:>10} |{cycles:>10.0}   {talk}",
            "", "", "", "", ""
        );
    }
    let mut last = "";
    for one in &results.all {
        if last != one.setting {
            let _ = writeln!(out, "\n{}", one.setting);
            last = one.setting;
        }
        let stable = if one.stable { "stable" } else { "not stable" };
        let (what, hyperv, clock) = (one.case.what, one.case.hyperv, &one.clock);
        let _ = writeln!(out, "{what}: --hyperv {hyperv}; L1's clock is {clock}, L2's {stable}");
        for (row, cell) in one.case.rows.iter().zip(&one.cells) {
            // A timer that ticked in the shorter run only is no exit less than none.
            let count = |exits: f64| if cell.counted { format!("{:.2}", exits.max(0.0)) } else { "-".into() };
            let [l1, l2] = cell.exits.map(count);
            let [plain, shadowed] = cell.to_l0.map(count);
            let measured = if cell.cycles.is_empty() { "-".into() } else { format!("{:.0}", middle(cell)) };
            let modelled = cell.modelled.map_or("-".into(), |cycles| format!("{cycles:.0}"));
            let _ = writeln!(
                out,
                "  {:<42}{l1:>7}{l2:>7} |{plain:>9}{shadowed:>9} |{modelled:>10} |{measured:>10}   {}",
                row.what, row.talk
            );
        }
    }
    let mut settings: Vec<_> = results.all.iter().map(|one| one.setting).collect();
    settings.dedup();
    out.push('\n');
    for setting in settings {
        results.verdicts(setting).iter().for_each(|line| _ = writeln!(out, "{setting}: {line}"));
    }
    let _ = write!(
        out,
        "\nExits are counted, an operation: of L1 or L2; and, were this hardware, all that would come to L0 for one of L2, where\n\
         each VMREAD and VMWRITE is an exit, and where L0 shadows the VMCS. Modelled: cycles on hardware of what was counted,\n\
         in L2 by two measurements of this talk, in L1 by what an exit costs (satori costs show) at {GHZ} GHz, assumed; - where\n\
         nothing exits. Measured: cycles of the guest's TSC here, where an exit of L2 comes to L1 without a way through L0: what\n\
         an enlightened VMCS spares is no time here but that of VMREAD and VMWRITE.\n\
         clock_gettime in L2 is of Linux as L2, by QEMU in L1, and only measured. Not measured: the talk's build of a kernel (26:42, 26:55, with eVMCS 27:53: no gain) and its iperf.\n"
    );
    out
}

/// The same for programs.
pub fn json(results: &Results) -> Value {
    let all = results.all.iter().map(|one| {
        let rows = one.case.rows.iter().zip(&one.cells).map(|(row, cell)| {
            if !cell.counted {
                return json!({
                    "row": row.name, "what": row.what, "cycles": median(&cell.cycles), "runs": cell.cycles, "talk": row.talk,
                });
            }
            json!({
                "row": row.name, "what": row.what, "exits_l1": cell.exits[0], "exits_l2": cell.exits[1],
                "exits_l0": cell.to_l0[0], "exits_l0_shadowed": cell.to_l0[1], "modelled_cycles": cell.modelled,
                "cycles": middle(cell), "runs": cell.cycles, "talk": row.talk,
            })
        });
        json!({
            "case": one.case.name, "hyperv": one.case.hyperv, "setting": one.setting, "clock": one.clock,
            "stable_clock_l2": one.stable, "evmcs": one.evmcs,
            "rows": rows.collect::<Vec<_>>(),
        })
    });
    let host =
        HOST.iter().zip(&results.host).map(|((name, ..), cycles)| json!({ "row": name, "cycles": cycles }));
    json!({
        "format": "satori-bench-nested",
        "version": 1,
        "kernel": results.kernel,
        "host": host.collect::<Vec<_>>(),
        "cases": all.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_levels_are_found_among_others() {
        let lines = told(concat!(
            "[    0.1] Linux\nsatori-nested {\"clocksource\":\"tsc\"}\n",
            "x satori-nested {\"row\":\"cpuid-l2\",\"cycles\":12.5}\r\nsatori-nested nonsense\n"
        ));
        assert_eq!(lines.len(), 2);
        assert_eq!((cycles(&lines, "cpuid-l2"), cycles(&lines, "clock-l2")), (Some(12.5), None));
    }

    #[test]
    fn what_the_talk_gained_and_this_machine_did_not_is_said() {
        let measured = |name: &str, cycles: f64, modelled: f64| {
            let case = CASES.iter().find(|case| case.name == name).unwrap();
            let cell =
                Cell { cycles: vec![cycles], modelled: Some(modelled), counted: true, ..Cell::default() };
            let cells = vec![cell; case.rows.len()];
            Measured { case, setting: "s", clock: String::new(), stable: true, evmcs: false, cells }
        };
        let all = vec![measured("hyper-v", 1_000.0, 20_700.0), measured("evmcs", 1_100.0, 8_900.0)];
        let results = Results { kernel: String::new(), host: vec![], all };
        let verdicts = results.verdicts("s");
        assert!(verdicts[0].contains("2.3 times as fast in the talk; here 0.91"), "{verdicts:?}");
        assert!(verdicts[0].contains("2.33 times, modelled: the talk's gain is not there"), "{verdicts:?}");
        assert!(results.verdicts("another").is_empty());
    }
}
