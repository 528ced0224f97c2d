//! The flags of `satori test`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use crate::cli::Form;

/// What stands below the flags.
pub const FOOTER: &str = "\
The file is TOML (docs/test.md has all its keys):

  [[kernel]]
  name = \"6.12\"                  # as --kernel: a series, a file, a package, a build tree
  [[config]]
  name = \"two\"
  options = [\"--cpus\", \"2\"]      # of 'satori run'
  [[test]]
  name = \"selftest\"
  command = \"./selftest --all\"   # or a list of words
  ktap = true                    # it tells KTAP, which is judged
  timeout = \"2m\"
  retries = 1

Every test is run with every configuration in every kernel. On many machines: 'plan' lists the cases, 'exec'
runs one, 'merge' reads what they left.

Exit status: 0 if all cases passed, 1 if one failed, 2 if nothing was run, 130 if it was interrupted

Examples:
  satori test tests.toml -j 4 --junit results.xml
  satori test plan tests.toml
  satori test exec tests.toml \"$SLURM_ARRAY_TASK_ID\" --out results
  satori test merge tests.toml results --junit results.xml";

/// `satori test`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Test {
    /// The file of kernels, configurations and tests
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required = true)]
    pub file: Option<PathBuf>,
    /// How many cases run at a time [default: as many as this host has processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub jobs: Option<u32>,
    /// Run every case this often: one that passes and fails is flaky, and then a failure
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repeat: u32,
    /// Only cases whose name contains this text. May be given several times
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Keep what each case left in this folder: its output, its messages, its result
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Also write the results to FILE as JUnit's XML
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub junit: Option<PathBuf>,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: Form,
    /// One of its steps alone
    #[command(subcommand)]
    pub step: Option<Step>,
}

/// A step of `satori test` that is run by itself.
#[derive(Debug, Subcommand)]
pub enum Step {
    /// List the cases, each with its number
    Plan {
        /// The file of kernels, configurations and tests
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Only cases whose name contains this text. May be given several times
        #[arg(long, value_name = "TEXT")]
        only: Vec<String>,
        /// How they are printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
    /// Run one case; status 1 if it failed
    Exec {
        /// The file of kernels, configurations and tests
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Its number or name, as 'plan' lists them
        case: String,
        /// The folder to which its result goes
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        out: PathBuf,
    },
    /// Tell what became of all cases, by what 'exec' left; one that left nothing failed
    Merge {
        /// The file of kernels, configurations and tests
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Folders with results
        #[arg(value_name = "DIR", required = true, value_hint = ValueHint::DirPath)]
        results: Vec<PathBuf>,
        /// Also write the results to FILE as JUnit's XML
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        junit: Option<PathBuf>,
        /// How they are printed
        #[arg(long, value_name = "FORM", default_value = "text")]
        format: Form,
    },
}
