//! `satori bench overhead`.

use std::io::Write;

use anyhow::{Context, Result};
use clap::Args;
use satori_bench::overhead::{Plan, json, measure, text, within};
use satori_bench::{Error, program};

use super::{Scratch, busy, stop_on_signals};
use crate::cli;
use crate::engine::of_bench;
use crate::say::{Out, say};
use crate::status::Status;

/// `satori bench overhead`.
#[derive(Debug, Args)]
pub struct Overhead {
    /// Rounds, in each of which a guest is run once with the report and twice without
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(6..=1000))]
    pub repetitions: u32,
    /// Samples of a millisecond in each run, of which the fastest counts
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub samples: u32,
    /// The engine of the guests, as for 'satori run'
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub engine: cli::Engine,
    /// How the results are printed
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub format: cli::Form,
}

/// What stands below the flags.
pub const FOOTER: &str = "\
A guest does nothing but one exit, over and over: with the default report, with --report off, and with that again, in
turn. Times are the guest's own. No guest can exit more often, so none pays more for its report. What is compared is runs of one
round, and of the rounds the median counts, with the interval in which it lies with a probability of 95 %: a machine that does other
things makes that wider, and moves it to neither side.

Exit status: 0; 1 if the default report costs 2 % or more of one, or the interval does not let it be told; 2 if something was refused; 130 if it was interrupted.";

/// Does what `satori bench overhead` was told.
pub fn overhead(flags: &Overhead) -> Result<Status> {
    of_bench(flags.engine)?;
    let scratch = Scratch::new()?;
    let stop = stop_on_signals()?;
    if let Some(load) = busy() {
        say(format_args!("{load}: times will be poor"));
    }
    let plan = Plan {
        program: std::env::current_exe().context("cannot find this program's own file")?,
        guest: scratch.file("rapid", program::rapid()?, 0o644)?,
        engine: of_bench(flags.engine)?,
        repetitions: flags.repetitions,
        samples: flags.samples,
        stop: &stop,
    };
    let all = match measure(&plan, &mut |words: &str| say(format_args!("{words}"))) {
        Ok(all) => all,
        Err(Error::Stopped) => return Ok(Status::User),
        Err(error) => return Err(error.into()),
    };
    match flags.format {
        cli::Form::Text => write!(Out, "{}", text(&all))?,
        cli::Form::Json => writeln!(Out, "{:#}", json(&all))?,
    }
    Ok(if within(&all) == Some(true) { Status::Ok } else { Status::Short })
}
