//! The flags of `satori bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::{ablation, nested, overhead, traps, vhe};
use crate::{cli, units};

/// `satori bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// Something else than the rows: the tables of the talk on Hyper-V's enlightenments
    #[arg(value_name = "WHAT", conflicts_with_all = ["rows", "groups", "list", "svg", "check"])]
    pub what: Option<What>,
    /// Another measurement than that of speed
    #[command(subcommand)]
    pub other: Option<Other>,
    /// Only these rows: names, or beginnings of names with a * behind them; boot is one, too
    #[arg(long, value_name = "ROW,..", value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Only the rows of these groups, besides those of --rows
    #[arg(long, value_name = "GROUP,..", value_delimiter = ',')]
    pub groups: Vec<String>,
    /// List the rows, their groups and what one operation is, and measure nothing
    #[arg(long)]
    pub list: bool,
    /// One run of 40 ms a row, under the kernel's defaults only; good for a first look, not to be quoted
    #[arg(long)]
    pub quick: bool,
    /// Runs of which the median is taken; a row whose runs differ by more than 15 % is run up to three times
    /// as often [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub repetitions: Option<u32>,
    /// How long a row is measured in a run [default: 200ms]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub budget: Option<Duration>,
    /// Virtual processors of the rows whose names end with -2; all others have one
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub cpus: u32,
    /// Kernel settings: a table for each [default: both]
    #[arg(long, value_name = "WHICH")]
    pub mitigations: Option<Mitigations>,
    /// The engine of Satori's guests, as for 'satori run'
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: cli::Engine,
    /// Peers to compare with, of those that are installed
    #[arg(long, value_name = "PEER,..", value_delimiter = ',', default_value = "tcg-max,tcg-qemu64")]
    pub peers: Vec<Peer>,
    /// Measure rows of devices with something turned
    #[arg(long, value_name = "NAME")]
    pub knob: Option<Turned>,
    /// Measure networks through this tap of two queues, which has the address 10.0.2.2, instead of user networks
    #[arg(long, value_name = "NAME")]
    pub tap: Option<String>,
    /// A qemu-system-x86_64; several can be compared [default: that of $PATH]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub qemu: Vec<PathBuf>,
    /// A Debian kernel series such as 6.12, or a kernel FILE [default: Debian's current one]
    #[arg(long, value_name = "SERIES|FILE", value_hint = ValueHint::FilePath)]
    pub kernel: Option<PathBuf>,
    /// A statically linked busybox [default: Debian's busybox-static]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub busybox: Option<PathBuf>,
    /// Give a row up after this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub timeout: Duration,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: cli::Form,
    /// Write a chart of the results there, too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Tell of each bound of the translator whether it is reached; the status is 1 if one is not
    #[arg(long)]
    pub check: bool,
}

/// What is measured other than rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// clock_gettime, TLB flushes, IPIs, contended locks and idle guests, with and without what Hyper-V's interface
    /// offers for them
    Talks,
}

/// Measurements of their own.
#[derive(Debug, Subcommand)]
pub enum Other {
    /// Repeat the experiment of a talk: which enlightenments cost, and which repair that
    #[command(after_long_help = traps::FOOTER)]
    Traps(traps::Traps),
    /// Run each enlightenment alone, and all without each one, and name those that cost
    #[command(after_long_help = ablation::FOOTER)]
    Ablation(ablation::Ablation),
    /// Measure what the default report costs a guest that does nothing but exit
    #[command(after_long_help = overhead::FOOTER)]
    Overhead(overhead::Overhead),
    /// Run guests in a guest's KVM: the tables of the talk on KVM on Hyper-V, with and without an enlightened VMCS
    #[command(after_long_help = nested::FOOTER)]
    Nested(nested::NestedFlags),
    /// Repeat the experiment of a talk on ARM: what each step from split mode to VHE takes out of a switch between worlds
    #[command(after_long_help = vhe::FOOTER)]
    Vhe(vhe::Vhe),
}

/// `--mitigations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mitigations {
    /// The kernel's defaults
    On,
    /// mitigations=off on its command line
    Off,
    /// A table for each
    Both,
}

/// `--peers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// QEMU's TCG with -cpu max
    TcgMax,
    /// QEMU's TCG with -cpu qemu64
    TcgQemu64,
    /// None
    None,
}

impl Peer {
    /// The processor model that QEMU is given.
    pub fn cpu(self) -> Option<&'static str> {
        match self {
            Peer::TcgMax => Some("max"),
            Peer::TcgQemu64 => Some("qemu64"),
            Peer::None => None,
        }
    }
}

/// What stands below the flags.
pub const FOOTER: &str = "\
The same static program runs natively, as init of a guest of Satori, and as init of the same guest of
each peer, in turn and again and again. It measures rows: how long an operation takes, in samples of
2 ms, of which a run keeps the least, so that what the host did besides does not count. The figures
are medians of the runs. Ratios are Satori's time in times of the host's ('x native', less is better)
and the faster peer's in times of Satori's ('x faster', more is better). On the host the program is
kept to as many processors as the guests have. Runs that differ by more than 15 % are repeated; what
stays so is marked noisy and counts for nothing. Every row has a result, which must be the host's.

The kernel comes through this machine's apt, as for 'satori demo'. All rows, both tables and two
models of QEMU take about a quarter of an hour; nothing else should run on the machine meanwhile.

Exit status: 0; 1 if Satori had a wrong result or a row failed on it, or with --check if a bound is
not reached or not measured; 2 if something was refused; 130 if it was interrupted.

Examples:
  satori bench --quick                      a first look, in two minutes
  satori bench --svg bench.svg --check      everything, a chart, and the bounds
  satori bench talks                        what the enlightenments bring, beside a talk's figures
  satori bench --rows 'fork,chase-*,boot'   some rows
  satori bench --groups kernel --format json --peers none";

/// `--knob`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Turned {
    /// One I/O thread for all disks
    Io,
    /// vCPUs on all of the host's processors but the last, devices' threads on that
    Pin,
    /// Two pairs of queues of the network card
    Mq,
}

impl Turned {
    /// What the rows' guests have.
    pub fn knob(self) -> satori_bench::subject::Knob {
        use satori_bench::subject::Knob;
        match self {
            Turned::Io => Knob::IoThread,
            Turned::Pin => Knob::Pinned,
            Turned::Mq => Knob::Queues,
        }
    }
}
