//! Names of groups and rows.

use crate::Error;
use crate::catalog::{DEVICES, Group, ROWS, Row};
use crate::{programs, tools};

/// All groups, in the order of the tables.
pub const GROUPS: &[Group] = &[
    Group::Integer,
    Group::Float,
    Group::Memory,
    Group::Kernel,
    Group::Code,
    Group::Clock,
    Group::Threads,
    Group::Latency,
    Group::Disk,
    Group::Folder,
    Group::Net,
    Group::Programs,
    Group::Tools,
];

impl Group {
    /// Its name on command lines and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Group::Integer => "integer",
            Group::Float => "float",
            Group::Memory => "memory",
            Group::Kernel => "kernel",
            Group::Code => "code",
            Group::Clock => "clock",
            Group::Threads => "threads",
            Group::Latency => "latency",
            Group::Disk => "disk",
            Group::Folder => "folder",
            Group::Net => "net",
            Group::Programs => "programs",
            Group::Tools => "tools",
        }
    }
}

impl Group {
    /// Whether its rows need a disk, a folder of the host's or a network card.
    pub const fn is_of_devices(self) -> bool {
        matches!(self, Group::Disk | Group::Folder | Group::Net)
    }
}

/// The row that is no program's: the boot itself.
pub(crate) const BOOT: &str = "boot";

/// Every row, in the order in which they run.
pub fn all() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(DEVICES).chain(&programs::ROWS).chain(&tools::ROWS)
}

/// The rows that are meant by `named` (names, or parts of names that end with `*`) and `groups`, and
/// whether the boot is; if nothing is said those of the static program, for which nothing but a kernel is fetched.
pub fn rows_named(named: &[String], groups: &[String]) -> Result<(Vec<&'static Row>, bool), Error> {
    if named.is_empty() && groups.is_empty() {
        return Ok((ROWS.iter().collect(), true));
    }
    let rows = all;
    let (mut wanted, mut boot) = (vec![false; rows().count()], false);
    let patterns = named.iter().map(|name| (name, false)).chain(groups.iter().map(|name| (name, true)));
    for (pattern, group) in patterns {
        let mut found = false;
        if pattern == BOOT {
            (boot, found) = (true, true);
        }
        for (row, wanted) in rows().zip(&mut wanted) {
            let meant = match pattern.strip_suffix('*') {
                _ if group => row.group.name() == pattern,
                Some(start) => row.name.starts_with(start),
                None => row.name == pattern,
            };
            found |= meant;
            *wanted |= meant;
        }
        if !found {
            return Err(Error::UnknownRow(pattern.clone()));
        }
    }
    Ok((rows().zip(wanted).filter(|(_, wanted)| *wanted).map(|(row, _)| row).collect(), boot))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rows: &[&str], groups: &[&str]) -> (Vec<&'static str>, bool) {
        let own = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let (rows, boot) = rows_named(&own(rows), &own(groups)).unwrap();
        (rows.iter().map(|row| row.name).collect(), boot)
    }

    #[test]
    fn rows_are_chosen_by_name_start_and_group() {
        assert_eq!(names(&["stat", "fib"], &[]), (vec!["fib", "stat"], false));
        assert_eq!(names(&["chase-*"], &["code"]).0, ["chase-16k", "chase-32m", "patch", "fresh"]);
        assert_eq!(names(&["boot"], &[]), (vec![], true));
        assert_eq!(names(&[], &[]), (ROWS.iter().map(|row| row.name).collect(), true));
        assert_eq!(names(&["c-*"], &[]).0, ["c-musl", "c-64", "c-32"]);
        assert!(names(&[], &["programs"]).0.contains(&"make-2"));
        assert!(DEVICES.iter().all(|row| row.group.is_of_devices()) && names(&[], &["net"]).0.len() == 6);
        assert!(rows_named(&["fob".into()], &[]).is_err());
    }

    #[test]
    fn names_are_unique_and_need_no_quotes() {
        for (i, row) in ROWS.iter().chain(DEVICES).enumerate() {
            assert!(row.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
            assert!(
                ROWS.iter().chain(DEVICES).take(i).all(|other| other.name != row.name),
                "{} twice",
                row.name
            );
            // The text of a guest's kernel command line is short, and its tables are narrow.
            assert!(row.name.len() <= 12, "{}", row.name);
            assert!(GROUPS.contains(&row.group));
        }
    }
}
