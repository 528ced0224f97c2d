//! Exit statuses, all of them.

/// How `satori` ends, as the shell sees it.
///
/// Odd numbers below 118 and most above belong to the guest's debug exit, as QEMU gives them;
/// ours are even, but for 125, which makes `git bisect run` skip a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The guest powered off, or a command that runs no guest succeeded.
    Ok,
    /// What 'satori bench' measured is wrong, or falls short of what '--check' asks for.
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
    /// Satori itself failed.
    Internal,
    /// The user ended it: Ctrl-A x, a signal, or a guest's closed output pipe.
    User,
    /// The value written to isa-debug-exit.
    DebugExit(u32),
}

impl Status {
    /// The number given to exit(2).
    pub const fn code(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::Short => 1,
            Status::Usage => 2,
            Status::Reset => 118,
            Status::Panic => 120,
            Status::TripleFault => 122,
            Status::Timeout => 124,
            Status::Internal => 125,
            Status::User => 130,
            // Truncation is the rule: exit(2) keeps the low eight bits.
            Status::DebugExit(value) => ((value << 1) | 1) as u8,
        }
    }
}

/// The table of exit statuses, for `--help` and the man page.
pub const TABLE: &str = "\
Exit status:
  0    the guest powered off
  2    usage, or an input that was refused (no guest ran)
  118  the guest asked for a reset (--on-reset exit)
  120  the guest panicked (pvpanic, crash MSRs or --panic-pattern on its console)
  122  triple fault
  124  --timeout or --guest-timeout ran out
  125  Satori itself failed (git bisect run skips it)
  130  ended by the user: Ctrl-A x, a signal, or a guest's closed output pipe
  odd  the guest's debug exit: a write of N to port 0xf4 gives (N << 1) | 1, modulo 256";

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
    fn the_help_table_names_every_status() {
        for status in [
            Status::Ok,
            Status::Usage,
            Status::Reset,
            Status::Panic,
            Status::TripleFault,
            Status::Timeout,
            Status::Internal,
            Status::User,
        ] {
            let row = format!("\n  {:<5}", status.code());
            assert!(TABLE.contains(&row), "{status:?} is missing from the table");
        }
    }
}
