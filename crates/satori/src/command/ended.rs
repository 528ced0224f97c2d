//! How a command's run ended: its status, what is said of it, and `--status-file`.

use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use anyhow::Result;
use satori_machine::Outcome;

use crate::late::LateFile;
use crate::report;
use crate::say::{line, say};
use crate::status::Status;

/// Who ended it, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The command, with a status.
    Exited(u8),
    /// The command, by a signal.
    Killed(u8),
    /// The command did not run: the status that a shell would give, and why.
    Failed(u8, String),
    /// A limit, or the user.
    Stopped(Status),
    /// The command made the guest power off.
    PoweredOff,
    /// The guest powered off before the command ran.
    Vanished,
    /// The guest's machine: a panic, a triple fault, a reset.
    Machine(Status),
}

impl End {
    /// The status of the process.
    pub(super) fn status(&self) -> Status {
        match *self {
            End::Exited(status) | End::Failed(status, _) => Status::Command(status),
            End::Killed(signal) => Status::Command(128_u8.saturating_add(signal)),
            End::PoweredOff => Status::Ok,
            End::Stopped(status) | End::Machine(status) => status,
            End::Vanished => Status::Internal,
        }
    }

    /// Who, how, and the number, for other programs.
    fn told(&self) -> (&'static str, &'static str, Option<u8>) {
        match *self {
            End::Exited(status) => ("command", "exited", Some(status)),
            End::Killed(signal) => ("command", "killed", Some(signal)),
            End::Failed(..) => ("satori", "not-started", None),
            End::Stopped(Status::Timeout) => ("satori", "timeout", None),
            End::Stopped(Status::Stalled) => ("satori", "stalled", None),
            End::Stopped(_) => ("user", "stopped", None),
            End::PoweredOff => ("command", "powered-off", None),
            End::Vanished => ("guest", "powered-off", None),
            End::Machine(Status::Panic) => ("guest", "panicked", None),
            End::Machine(Status::TripleFault) => ("guest", "triple-fault", None),
            End::Machine(Status::Reset) => ("guest", "reset", None),
            End::Machine(Status::DebugExit(_)) => ("guest", "debug-exit", None),
            End::Machine(_) => ("satori", "failed", None),
        }
    }
}

/// Says what is wrong, if something is.
pub(super) fn tell(end: &End, outcome: &Outcome, status: Status, bisect: bool) {
    match end {
        // Nobody waits for good news.
        End::Exited(_) | End::Killed(_) | End::PoweredOff => {
            if let Some(name) = outcome.console_tail.iter().find_map(|line| without_memory(line)) {
                say(format_args!(
                    "the guest's memory was full, and its kernel killed '{}': give it more with -m",
                    report::printable(name)
                ));
            }
            outcome
                .traced
                .iter()
                .filter(|told| told.error.is_some() || told.dropped > 0)
                .for_each(report::trace);
        }
        End::Failed(_, why) => say(format_args!("{why}")),
        End::Stopped(_) => {
            report::tell(outcome, status, bisect, None, false);
            tail(outcome);
        }
        End::Machine(_) => report::tell(outcome, status, bisect, None, false),
        End::Vanished => {
            let code = if bisect { status.for_bisect() } else { status.code() };
            say(format_args!("the guest powered off before the command ran; exit status {code}"));
            tail(outcome);
        }
    }
}

/// Whom Linux killed as memory was full, if a line of its console tells so ("Out of memory: Killed process 7 (cc1) total-vm:.."). Where a
/// group's memory was full, that group's maker knows.
fn without_memory(line: &str) -> Option<&str> {
    let (_, killed) = line.split_once("Out of memory: Killed process ")?;
    let (_, name) = killed.split_once('(')?;
    Some(name.split_once(") total-vm").map_or(name, |(name, _)| name))
}

/// The kernel's last words.
fn tail(outcome: &Outcome) {
    let last = &outcome.console_tail[outcome.console_tail.len().saturating_sub(report::TAIL)..];
    if !last.is_empty() {
        line(format_args!("The console's last lines:"));
    }
    last.iter().for_each(|text| line(format_args!("  {}", report::printable(text))));
}

/// The file of `--status-file`, opened before the sandbox.
#[derive(Debug)]
pub(super) struct StatusFile(LateFile);

impl StatusFile {
    /// Opens it.
    pub(super) fn open(path: &Path) -> Result<StatusFile> {
        LateFile::open("--status-file", path).map(StatusFile)
    }

    /// What a sandbox has to keep.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }

    /// No guest ran.
    pub(super) fn take_back(self) {
        self.0.take_back();
    }

    /// Writes how it ended, as one JSON object.
    pub(super) fn write(self, end: &End, status: Status) -> std::io::Result<()> {
        let (who, how, number) = end.told();
        let why = if let End::Failed(_, why) = end { Some(why) } else { None };
        let object = serde_json::json!({
            "format": "satori-status", "version": 1,
            "who": who, "how": how, "number": number, "why": why, "status": status.code(),
        });
        writeln!(self.0.begin(), "{object}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_124_is_no_timeout() {
        let (command, limit) = (End::Exited(124), End::Stopped(Status::Timeout));
        assert_eq!(command.status().code(), limit.status().code());
        assert_ne!(command.told(), limit.told());
        assert_eq!(End::Killed(9).status().code(), 137);
        assert_eq!(End::Killed(255).status().code(), 255);
    }

    #[test]
    fn who_was_killed_for_memory_is_found_in_the_kernels_words() {
        let line = "[    2.5] Out of memory: Killed process 71 (a (b) c) total-vm:1234kB, anon-rss:1kB";
        assert_eq!(without_memory(line), Some("a (b) c"));
        let of_a_group = "Memory cgroup out of memory: Killed process 71 (x) total-vm:1kB";
        assert_eq!((without_memory(of_a_group), without_memory("Out of memory")), (None, None));
    }
}
