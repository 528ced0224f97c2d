//! Which files each command reads and writes, from the flag table.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::cli::{Cmdline, Command, Demo, Machine, ModelFlags, Offers, Run};
use crate::commands::bench::flags::{Bench, Other};
use crate::commands::costs;
use crate::commands::reports::Reports;
use crate::commands::test::flags::{Step, Test};
use crate::commands::top::own::guest;
use crate::debian::cache;
use crate::modules;
use crate::places::{Places, unix_socket};

impl Command {
    /// What the flags name; what a file names in turn, as that of --libvirt, is seen when it was read.
    pub fn places(&self) -> Places {
        let mut all = Places::default();
        match self {
            Command::Run(flags) => return flags.places(),
            Command::Demo(flags) => return flags.places(),
            Command::Bench(flags) => return flags.places(),
            Command::Test(flags) => return flags.places(),
            Command::Initrd(flags) => {
                all.reads("--busybox", flags.busybox.iter().flatten())
                    .reads("--init", &flags.init)
                    .reads("--kernel", file(flags.kernel.as_ref()))
                    .writes("--output", [&flags.output]);
            }
            Command::Cpu(flags) => flags.processor.add(&mut all),
            Command::Msrs(flags) => flags.processor.add(&mut all),
            Command::Hyperv(command) | Command::Kvm(command) | Command::Xen(command) => match command {
                Offers::Check { processor, .. } | Offers::Convert { processor, .. } => processor.add(&mut all),
                Offers::List { .. } => {}
            },
            Command::Top(flags) => {
                all.writes("--console", &flags.console);
                if let Ok(Some(run)) = guest(&flags.command) {
                    all.and(run.places());
                }
            }
            Command::Report(command) => command.add(&mut all),
            Command::Costs(costs::Command::Show { costs, .. }) => drop(all.reads("--costs", costs)),
            Command::Costs(costs::Command::Calibrate { input, output, .. }) => {
                all.reads("the report", [&input.report]).writes("--output", output);
            }
            Command::Advise(flags) => {
                all.reads("the report", &flags.report);
                flags.processor.add(&mut all);
            }
            Command::Fetch(_)
            // It compares by itself, when it has made a run of the words.
            | Command::Qemu { .. }
            | Command::Explain { .. }
            | Command::Doctor { .. }
            | Command::Engines { .. }
            | Command::Completions { .. }
            | Command::Man { .. } => {}
        }
        all
    }
}

impl Run {
    /// What 'satori run' reads and writes.
    pub fn places(&self) -> Places {
        let Run {
            arch: _,
            el: _,
            no_vhe: _,
            kernel,
            initrd,
            module,
            boot: _,
            cmdline: Cmdline { .. },
            command,
            machine,
        } = self;
        let mut all = Places::default();
        all.writes("--status-file", &command.status_file)
            .reads("--kernel", kernel)
            .reads("--initrd", initrd.iter().flat_map(|text| modules::initrd_files(text)))
            .reads("--module", module.iter().map(|text| modules::module_file(text)));
        machine.add(&mut all);
        all
    }
}

impl Demo {
    /// What 'satori demo' reads and writes.
    pub fn places(&self) -> Places {
        let mut all = Places::default();
        all.reads("--kernel", file(self.kernel.as_ref())).reads("--busybox", &self.busybox);
        self.machine.add(&mut all);
        all
    }
}

impl Bench {
    /// What 'satori bench' reads and writes.
    pub fn places(&self) -> Places {
        let mut all = Places::default();
        all.reads("--kernel", file(self.kernel.as_ref()))
            .reads("--busybox", &self.busybox)
            .reads("--qemu", &self.qemu)
            .writes("--svg", &self.svg);
        match &self.other {
            Some(Other::Traps(traps)) => {
                all.reads("--parameters", &traps.parameters)
                    .reads("--kernel", file(traps.kernel.as_ref()))
                    .reads("--initrd", &traps.initrd)
                    .reads("--costs", &traps.costs);
            }
            Some(Other::Ablation(ablation)) => drop(all.reads("--costs", &ablation.costs)),
            Some(Other::Nested(nested)) => {
                all.reads("--kernel", file(nested.kernel.as_ref()))
                    .reads("--modules", &nested.modules)
                    .reads("--costs", &nested.costs);
            }
            Some(Other::Vhe(vhe)) => {
                all.reads("--costs", &vhe.costs).reads("--kernel", file(vhe.kernel.as_ref()));
            }
            Some(Other::Overhead(_)) | None => {}
        }
        all
    }
}

impl Test {
    /// What 'satori test' reads and writes.
    pub fn places(&self) -> Places {
        let mut all = Places::default();
        all.reads("the file", &self.file).writes("--junit", &self.junit);
        match &self.step {
            Some(Step::Plan { file, .. } | Step::Exec { file, .. }) => {
                all.reads("the file", [file]);
            }
            Some(Step::Merge { file, junit, .. }) => {
                all.reads("the file", [file]).writes("--junit", junit);
            }
            None => {}
        }
        all
    }
}

/// A kernel that is no series of Debian's.
fn file(kernel: Option<&PathBuf>) -> Option<&PathBuf> {
    kernel.filter(|kernel| cache::series(kernel).is_none())
}

impl Machine {
    fn add(&self, all: &mut Places) {
        let symbols = Path::new(&self.symbols);
        // A disk that may not be written is only read, but an output would destroy it as well.
        all.reads("--disk", self.disk.iter().map(|disk| &disk.file));
        all.writes("--vsock", self.vsock.iter().map(|vsock| &vsock.path));
        all.reads("--symbols", Some(symbols).filter(|text| !["auto", "off"].map(Path::new).contains(text)))
            .reads("--costs", &self.costs)
            .reads("--input", self.input_file())
            .writes("--record", &self.record)
            .reads("--replay", &self.replay)
            .writes("--report-file", &self.report_file)
            .writes("--junit", &self.junit)
            .writes("--crash-dump", &self.crash_dump)
            .writes("--crash-dump-l2", &self.crash_dump_l2)
            .writes("--trace", self.trace.as_ref().map(|spec| &spec.file))
            .writes("--stats-socket", &self.stats_socket)
            .writes("--serial", self.serial.iter().filter_map(|text| serial_place(text)))
            .writes("--qmp", self.qmp.as_ref().and_then(crate::qmp::Address::path))
            .writes("--gdb", self.gdb.as_deref().and_then(unix_socket));
        self.processor.add(all);
    }
}

/// The file or socket of a `--serial`.
fn serial_place(text: &OsStr) -> Option<&Path> {
    unix_socket(text).or(Some(Path::new(text)).filter(|text| *text != Path::new("none")))
}

impl Machine {
    /// The file of `--input`.
    pub fn input_file(&self) -> Option<&Path> {
        let words = ["stdin", "none"].map(Path::new);
        Some(Path::new(&self.input)).filter(|file| !words.contains(file))
    }
}

impl ModelFlags {
    fn add(&self, all: &mut Places) {
        all.reads("--libvirt", &self.libvirt);
    }
}

impl Reports {
    fn add(&self, all: &mut Places) {
        match self {
            Reports::Show { input, costs, .. } => {
                all.reads("the report", [&input.report]).reads("--costs", costs)
            }
            Reports::Import { input, output } => {
                all.reads("the report", [&input.report]).writes("--output", output)
            }
            Reports::Diff { a, b, costs, .. } => all.reads("the report", [a, b]).reads("--costs", costs),
            // It only reads.
            Reports::Crashes { .. } => all,
            Reports::Html { reports, costs, output } => {
                all.reads("the report", reports).reads("--costs", costs).writes("--output", [output])
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser, ValueHint};

    use super::*;
    use crate::cli::Cli;

    /// What a command cannot be without.
    fn least(command: &str, flag: &str) -> Vec<&'static str> {
        match (command, flag) {
            ("run", "kernel") => vec![],
            ("run", "status-file") => vec!["--", "true"],
            ("run", _) => vec!["--kernel", "/k"],
            ("bench traps", "initrd") => vec!["--kernel", "/k"],
            ("hyperv convert" | "kvm convert" | "xen convert", _) => vec!["--to", "qemu"],
            ("test", _) => vec!["/t"],
            ("test merge", _) => vec!["/t", "/d"],
            ("top", _) => vec!["--", "run", "--kernel", "/k"],
            ("initrd", "output") => vec![],
            ("initrd", _) => vec!["--output", "/o", "--module", "m"],
            ("report html", "output") => vec!["/r"],
            ("report html", _) => vec!["/r", "--output", "/o"],
            ("report diff", _) => vec!["/r", "/r2"],
            ("report show" | "report import" | "costs calibrate" | "advise", _) => vec!["/r"],
            _ => vec![],
        }
    }

    fn each(command: &clap::Command, path: &str, look: &mut impl FnMut(&str, &clap::Arg)) {
        for argument in command.get_arguments() {
            look(path, argument);
        }
        for below in command.get_subcommands() {
            each(below, format!("{path} {}", below.get_name()).trim_start(), look);
        }
    }

    #[test]
    fn every_flag_that_names_a_file_is_compared() {
        let mut seen = 0;
        each(&Cli::command(), "", &mut |command, argument| {
            let Some(flag) = argument.get_long() else { return };
            if argument.get_value_hint() != ValueHint::FilePath {
                return;
            }
            let flag_text = format!("--{flag}=/the/file");
            let mut words: Vec<&str> = ["satori"].into_iter().chain(command.split(' ')).collect();
            words.push(flag_text.as_str());
            words.extend(least(command, flag));
            let cli = Cli::try_parse_from(&words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
            let places = cli.command.places();
            assert!(places.paths().any(|path| path == Path::new("/the/file")), "{command} {flag_text}");
            seen += 1;
        });
        assert!(seen > 20, "{seen}");
    }
}
