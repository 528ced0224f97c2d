//! Where a report comes from: who made it, when, of what, and on which host.

use std::time::{SystemTime, UNIX_EPOCH};

use satori_report::Origin;

use crate::cli::{self, VERSION};
use crate::command::kernel::release;
use crate::commands::run::Boot;

/// What is known before the guest runs, and before the sandbox takes the host's files away.
pub fn origin(boot: &Boot, wanted: cli::Report) -> Origin {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let command = words.map(|word| if word.contains([' ', '\'']) { format!("{word:?}") } else { word });
    // A large vmlinux is looked through for it: only for a report.
    let release = (wanted != cli::Report::Off).then(|| release(&boot.kernel)).flatten();
    Origin {
        satori: VERSION.into(),
        command: command.collect::<Vec<_>>().join(" "),
        kernel: release.map_or(boot.kernel_name.clone(), |told| format!("{} ({told})", boot.kernel_name)),
        date: date(SystemTime::now()),
        host: host(),
    }
}

/// The host's processor and kernel.
pub fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let (model, kernel) = (model.map_or("an unknown processor", |m| m.1), read("/proc/sys/kernel/osrelease"));
    format!("{model}, {count} processors, Linux {}", kernel.trim())
}

/// `2026-11-22 18:05:00 UTC`.
pub fn date(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", days + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, told) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), told);
        }
    }
}
