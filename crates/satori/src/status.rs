//! Exit statuses, all of them.

use satori_machine::Event;

use crate::cli::Testdev;

/// How `satori` ends, as the shell sees it.
///
/// Odd numbers below 118 and most above belong to the guest's debug exit, as QEMU gives them;
/// ours are even, but for 125, which makes `git bisect run` skip a revision. With `--bisect` they are those of
/// [`Status::for_bisect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The guest powered off, or a command that runs no guest succeeded.
    Ok,
    /// What 'satori bench' measured is wrong, or falls short of what '--check' asks for; a test of `satori test`, or a result that
    /// `--ktap` or `--junit` looked at, failed.
    Short,
    /// Usage, or an input that was refused; no guest ran.
    Usage,
    /// The guest asked for a reset under `--on-reset exit`.
    Reset,
    /// The guest panicked: pvpanic, crash MSRs or the panic pattern on its console.
    Panic,
    /// The guest's third fault in a row.
    TripleFault,
    /// `--timeout` ran out.
    Timeout,
    /// `--stall-timeout` ran out.
    Stalled,
    /// Satori itself failed.
    Internal,
    /// The user ended it: Ctrl-A x, a signal, or a guest's closed output pipe.
    User,
    /// The value written to isa-debug-exit.
    DebugExit(u32),
    /// The same with `--testdev exit=value`.
    ExitValue(u32),
    /// That of a guest which another process ran.
    Guest(u8),
    /// The status of the command behind `--`.
    Command(u8),
}

impl Status {
    /// What a machine's end comes to with these words of `--testdev`; none if it was told to end, by whoever knows why.
    pub fn of(event: &Event, testdev: &[Testdev]) -> Option<Status> {
        Some(match event {
            Event::PowerOff => Status::Ok,
            Event::Reset(_) | Event::Woken => Status::Reset,
            Event::DebugExit(value) if testdev.contains(&Testdev::ExitValue) => Status::ExitValue(*value),
            Event::DebugExit(value) => Status::DebugExit(*value),
            Event::Panic(_) => Status::Panic,
            Event::TripleFault { .. } | Event::Lost { .. } => Status::TripleFault,
            Event::Timeout => Status::Timeout,
            Event::Diverged(_) => Status::Usage,
            Event::Failed(_) => Status::Internal,
            Event::Stopped => return None,
        })
    }

    /// The number given to exit(2).
    pub const fn code(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::Short => 1,
            Status::Usage => 2,
            Status::Reset => 118,
            Status::Panic => 120,
            Status::TripleFault => 122,
            Status::Timeout | Status::Stalled => 124,
            Status::Internal => 125,
            Status::User => 130,
            Status::Command(status) => status,
            // Truncation is the rule: exit(2) keeps the low eight bits.
            Status::Guest(code) => code,
            Status::ExitValue(value) => value as u8,
            Status::DebugExit(value) => ((value << 1) | 1) as u8,
        }
    }
}

impl Status {
    /// The status where something that was asked for could not be written: ours, unless the guest's tells of a failure.
    pub const fn or_lost(self, lost: bool) -> Status {
        if lost && self.code() == 0 { Status::Internal } else { self }
    }

    /// What `git bisect run` is told: 0 for a good revision, 1 for a bad one, 125 for one that cannot be judged.
    /// Its user's end is none of these and stops it.
    pub const fn for_bisect(self) -> u8 {
        match self.code() {
            0 => 0,
            _ if matches!(self, Status::Usage | Status::Internal) => Status::Internal.code(),
            // A test that cannot judge a revision says so itself.
            125 if matches!(self, Status::Command(_)) => 125,
            _ if matches!(self, Status::User) => self.code(),
            _ => 1,
        }
    }
}

/// The table of exit statuses, for `--help` and the man page.
pub const TABLE: &str = "\
Exit status:
  0    the guest powered off
  1    with --ktap or --junit: the guest ended well, and a result that it told did not
  2    usage, or an input that was refused (no guest ran)
  118  the guest asked for a reset (--on-reset exit)
  120  the guest panicked (pvpanic, crash MSRs or --panic-pattern on its console)
  122  triple fault
  124  --timeout, --guest-timeout or --stall-timeout ran out
  125  Satori itself failed, as on a full disk
  130  ended by the user: Ctrl-A x, a signal, or a guest's closed output pipe; with a --disk SIGTERM presses the
       power button, and a second one, or 10 s, end the guest
  odd  the guest's debug exit: a write of N to port 0xf4 gives (N << 1) | 1, modulo 256; with
       --testdev exit=value it gives N modulo 256
With --bisect: 0 where that is 0, 125 for 2 and 125, 130 for 130, and 1 for all others
With a command behind '--' its own status is passed through, 128 + N if signal N ended it, 126 if it could not be
executed, 127 if it was not found; --status-file tells one from another";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_exit_is_odd_modulo_256() {
        for (value, code) in [(0, 1), (1, 3), (0x10, 33), (0x7f, 255), (0x80, 1), (u32::MAX, 255)] {
            assert_eq!(Status::DebugExit(value).code(), code);
        }
    }

    #[test]
    fn a_bisection_is_told_good_bad_or_neither() {
        let told = [Status::Ok, Status::Usage, Status::Internal, Status::User].map(Status::for_bisect);
        assert_eq!(told, [0, 125, 125, 130]);
        let bad = [Status::Panic, Status::Reset, Status::TripleFault, Status::Timeout, Status::DebugExit(62)];
        assert_eq!(bad.map(Status::for_bisect), [1; 5]);
        assert_eq!(Status::ExitValue(0x100).for_bisect(), 0, "a debug exit can mean success");
        assert_eq!(Status::ExitValue(125).for_bisect(), 1, "the guest's number, not ours");
    }

    #[test]
    fn what_is_lost_is_no_success_and_hides_no_failure() {
        for good in [Status::Ok, Status::Command(0), Status::ExitValue(256)] {
            assert_eq!([good.or_lost(true), good.or_lost(false)], [Status::Internal, good]);
        }
        assert_eq!(Status::Command(3).or_lost(true), Status::Command(3));
    }

    #[test]
    fn the_help_table_names_every_status() {
        for status in [
            Status::Ok,
            Status::Usage,
            Status::Reset,
            Status::Panic,
            Status::TripleFault,
            Status::Timeout,
            Status::Stalled,
            Status::Internal,
            Status::User,
        ] {
            let row = format!("\n  {:<5}", status.code());
            assert!(TABLE.contains(&row), "{status:?} is missing from the table");
        }
    }
}
