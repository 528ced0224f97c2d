//! The third phase: the guest has ended, and what became of it is told.

use std::fs::File;

use satori_machine::Outcome;
use satori_report::Origin;
use satori_report::costs::Costs;

use crate::attend::Stop;
use crate::cli;
use crate::judge::Judge;
use crate::late::plain;
use crate::report::{self, Wanted};
use crate::say::say;
use crate::status::Status;

/// A guest's end, and what is known of it.
pub(crate) struct Ran<'a> {
    pub flags: &'a cli::Machine,
    pub outcome: Outcome,
    /// Why it was told to end, if it was.
    pub stopped: Option<Stop>,
    /// Why its console is not complete, if it is not.
    pub broken: Option<String>,
    /// A serial port whose file is not complete, and why.
    pub cut: Option<(&'static str, std::io::Error)>,
    /// Whether somebody had what standard output got.
    pub shown: bool,
    pub report_file: Option<File>,
    pub judge: Option<Judge>,
    pub costs: Costs,
    pub origin: Origin,
}

impl Ran<'_> {
    /// Says how the guest ended, writes the report, and gives the status of the process.
    pub(crate) fn report(self) -> Status {
        let Ran { flags, outcome, broken, cut, .. } = self;
        let status = match Status::of(&outcome.event, &flags.testdev) {
            Some(status) => status,
            None => self.stopped.map_or(Status::User, Stop::status),
        };
        // What is missing in a file that was asked for is our failure, where the guest has none of its own.
        let lost = broken.is_some() || cut.is_some() || report::is_cut(&outcome);
        let status = status.or_lost(lost);
        // Where another program's words were read, an end that is none of an accident is the guest's affair.
        let plain_end = matches!(status, Status::Ok | Status::Reset | Status::DebugExit(_) | Status::User);
        if flags.front.is_none() || !plain_end || broken.is_some() {
            report::tell(&outcome, status, flags.bisect, broken.as_deref(), self.shown && broken.is_none());
        }
        if let Some((port, why)) = cut {
            say(format_args!(
                "what the guest sent to {port} is not complete ({}): make room, or name another place",
                plain(&why)
            ));
        }
        let status = self.judge.map_or(status, |judge| judge.judge(status, &report::last_words(&outcome)));
        match report::write(&outcome, status, &Wanted::of(flags, &self.costs, self.origin), self.report_file)
        {
            Ok(()) => status,
            Err(error) => {
                let status = status.or_lost(true);
                say(format_args!(
                    "cannot write the report: {}; exit status {}",
                    plain(&error),
                    if flags.bisect { status.for_bisect() } else { status.code() }
                ));
                status
            }
        }
    }
}
