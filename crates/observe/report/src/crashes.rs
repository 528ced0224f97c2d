//! Crashes of many runs, grouped by what crashed and where.
//!
//! A report of a run that crashed has the crash in it (`crash`, `docs/report.schema.json`). What differs from one crash to the next of
//! the same kind (addresses, times) is in no key.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Functions that only tell of a crash, or pass a system call on: other kernels have them inlined.
const PASSING: &[&str] = &[
    "dump_stack",
    "dump_stack_lvl",
    "show_stack",
    "panic",
    "vpanic",
    "nmi_panic",
    "oops_end",
    "x64_sys_call",
];
/// Functions of a stack that tell one crash from another.
const DEEP: usize = 8;
/// Linux's identity in P1: the vendor's word of an open source system (TLFS, Guest OS Identity).
const OPEN_SOURCE: u64 = 0x8100;

/// A crash, as a report tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Who told of it: `pvpanic`, the crash MSRs, a triple fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// P0 to P4 of the crash MSRs; empty where the guest did not write them.
    #[serde(default)]
    pub parameters: Vec<u64>,
    /// What the guest said, or its console's line.
    #[serde(default)]
    pub message: Option<String>,
    /// Functions, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

/// Crashes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Kind {
    /// Windows' stop code, or what Linux said.
    pub bugcheck: String,
    /// Its parameters, without addresses.
    pub parameters: Vec<String>,
    /// The stack, innermost first.
    pub stack: Vec<String>,
}

/// How often a kind was seen.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// What they have in common.
    #[serde(flatten)]
    pub kind: Kind,
    /// How many.
    pub count: u64,
    /// When the first was, where anybody told.
    pub first: String,
    /// When the last was.
    pub last: String,
    /// Their reports, in the order of time.
    pub reports: Vec<String>,
}

impl Crash {
    fn kind(&self) -> Kind {
        // Which part of a function it was differs from compiler to compiler: `__handle_sysrq.cold`.
        let whole = self.stack.iter().map(|name| name.split('.').next().unwrap_or(name));
        let telling = whole.filter(|name| !PASSING.contains(name));
        let stack = telling.take(DEEP).map(str::to_owned).collect();
        // With a message there are its address and size (P3, P4), and nothing else (Linux's hyperv_report_panic_msg).
        let told = self.message.is_some() && self.parameters.iter().take(3).all(|value| *value == 0);
        let linux = told || self.parameters.get(1).is_none_or(|id| id >> 48 == OPEN_SOURCE);
        let said = || self.message.as_deref().and_then(headline).or_else(|| self.by.clone());
        if linux {
            // Linux's parameters are an error and registers: the stack says more.
            let error = self.parameters.first().filter(|error| **error != 0);
            let error = error.map(|error| format!("error {error:#x}"));
            let bugcheck = said().or_else(|| error.clone()).unwrap_or_else(|| "it told nothing".into());
            return Kind { bugcheck, parameters: error.into_iter().collect(), stack };
        }
        let code = self.parameters.first().copied().unwrap_or_default();
        // Canonical addresses of a kernel, which differ from boot to boot.
        let shown =
            |value: &u64| if value >> 47 == 0x1_ffff { "an address".into() } else { format!("{value:#x}") };
        let parameters = self.parameters.iter().skip(1).map(shown).collect();
        Kind { bugcheck: format!("{code:#010x}"), parameters, stack }
    }
}

/// A line without a time before it and without what differs from run to run.
fn plain(line: &str) -> String {
    let line = line.trim();
    let line = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((time, rest)) if time.trim().parse::<f64>().is_ok() => rest.trim(),
        _ => line,
    };
    let words = line.split(' ').map(|word| {
        let digits = word.trim_start_matches("0x").trim_end_matches([',', ':', ')']);
        let hex = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if hex { "#".to_owned() } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The line of a log that says what happened.
pub fn headline(log: &str) -> Option<String> {
    const TELLING: &[&str] =
        &["BUG:", "Kernel panic", "Oops", "general protection", "kernel BUG", "panic", "PANIC"];
    let told = |word: &&str| log.lines().find(|line| line.contains(*word)).map(plain);
    TELLING.iter().find_map(told)
}

/// The functions of a log's call trace, the innermost first, without guesses (`? name`).
pub fn stack(log: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut within = false;
    for line in log.lines().map(plain) {
        let rip = line.strip_prefix("RIP: ").filter(|_| found.is_empty());
        if let Some(name) = rip.and_then(|rest| rest.split(':').nth(1)).and_then(function) {
            found.push(name);
        } else if line.starts_with("Call Trace") {
            within = true;
        } else if within && !line.starts_with("? ") && !line.starts_with('<') {
            match function(&line) {
                Some(name) if found.last() != Some(&name) => found.push(name),
                Some(_) => {}
                None => within = false,
            }
        }
    }
    found
}

/// `name` of `name+0x12/0x40`.
fn function(text: &str) -> Option<String> {
    let (name, rest) = text.trim().split_once("+0x")?;
    let named = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b));
    (named && rest.bytes().next().is_some_and(|b| b.is_ascii_hexdigit())).then(|| name.to_owned())
}

/// Crashes by kind, the most frequent first. Each comes with its report's name and when it was.
pub fn group(crashes: &[(String, String, Crash)]) -> Vec<Group> {
    let mut kinds: BTreeMap<Kind, Vec<(&str, &str)>> = BTreeMap::new();
    for (name, when, crash) in crashes {
        kinds.entry(crash.kind()).or_default().push((when, name));
    }
    let mut groups: Vec<_> = kinds
        .into_iter()
        .map(|(kind, mut seen)| {
            seen.sort_unstable();
            let at =
                |one: Option<&(&str, &str)>| one.map_or_else(String::new, |(when, _)| (*when).to_owned());
            Group {
                kind,
                count: seen.len() as u64,
                first: at(seen.first()),
                last: at(seen.last()),
                reports: seen.iter().map(|(_, name)| (*name).to_owned()).collect(),
            }
        })
        .collect();
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.kind.cmp(&b.kind)));
    groups
}

/// The groups for people.
pub fn text(groups: &[Group]) -> String {
    let mut out = String::new();
    for one in groups {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:>5} x  {}", one.count, one.kind.bugcheck);
        let mut line = |what: &str, text: String| {
            if !text.is_empty() {
                let _ = writeln!(out, "         {what:<11} {text}");
            }
        };
        line("parameters", one.kind.parameters.join(", "));
        line("at", one.kind.stack.join(" < "));
        let named = |when: &str, name: Option<&String>| format!("{when}  {}", name.map_or("", |name| name));
        line("first", named(&one.first, one.reports.first()));
        if one.count > 1 {
            line("last", named(&one.last, one.reports.last()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "[    1.234567] BUG: kernel NULL pointer dereference, address: 0000000000000010\n\
        [    1.2] RIP: 0010:ext4_read+0x12/0x80\n[    1.2] Call Trace:\n[    1.2]  <TASK>\n[    1.2]  ? die+0x1/0x2\n\
        [    1.2]  vfs_read+0x9f/0x180\n[    1.2]  ksys_read+0x5f/0xe0\n[    1.2]  </TASK>\n[    1.3] ---[ end trace ]---\n";

    fn linux(address: &str, rip: u64) -> Crash {
        let message = Some(LOG.replace("0000000000000010", address));
        let parameters = vec![0, OPEN_SOURCE << 48 | 0x6_0001, rip, 7, 8];
        Crash { by: Some("the crash MSRs".into()), parameters, message, stack: stack(LOG) }
    }

    #[test]
    fn a_stack_is_read_from_the_log() {
        assert_eq!(stack(LOG), ["ext4_read", "vfs_read", "ksys_read"]);
        assert_eq!(stack("nothing of the kind\n"), [""; 0]);
        assert_eq!(headline(LOG).unwrap(), "BUG: kernel NULL pointer dereference, address: #");
    }

    #[test]
    fn a_message_is_no_parameter() {
        // As stock kernels tell it: P3 and P4 hold the message's address and size.
        let one = |at, size, stack: &[&str]| Crash {
            by: Some("crash MSRs".into()),
            parameters: vec![0, 0, 0, at, size],
            message: Some("Kernel panic - not syncing: sysrq triggered crash".into()),
            stack: stack.iter().map(|name| (*name).to_owned()).collect(),
        };
        let newer = one(0x41d_a000, 0xfe9, &["panic", "__handle_sysrq", "ksys_write", "x64_sys_call"]);
        let older = one(0x3db_4000, 0xfd7, &["dump_stack_lvl", "panic", "__handle_sysrq.cold", "ksys_write"]);
        let kind = newer.kind();
        assert_eq!(kind, older.kind());
        assert_eq!(kind.stack, ["__handle_sysrq", "ksys_write"]);
        assert_eq!(kind.bugcheck, "Kernel panic - not syncing: sysrq triggered crash");
        assert_eq!(kind.parameters, [""; 0]);
    }

    #[test]
    fn crashes_of_one_kind_are_one_group() {
        let windows = |address| Crash { parameters: vec![0xd1, address, 2, 0, 0x1234], ..Crash::default() };
        let all = [
            ("b.json", "2026-02-02", linux("0000000000000010", 0xffff_ffff_8100_0000)),
            ("a.json", "2026-01-01", linux("ffff888000000018", 0xffff_ffff_9200_0000)),
            ("c.json", "2026-03-03", windows(0xffff_f801_0000_0000)),
            ("d.json", "2026-03-04", windows(0xffff_f802_0000_0000)),
            ("e.json", "2026-03-05", Crash { parameters: vec![0x50, 0, 0, 0, 0], ..Crash::default() }),
            ("f.json", "2026-03-06", linux("0000000000000020", 1)),
        ];
        let all = all.map(|(name, when, crash)| (name.to_owned(), when.to_owned(), crash));
        let groups = group(&all);
        let counts: Vec<_> = groups.iter().map(|one| one.count).collect();
        assert_eq!(counts, [3, 2, 1], "{groups:#?}");
        assert_eq!((groups[0].first.as_str(), groups[0].last.as_str()), ("2026-01-01", "2026-03-06"));
        assert_eq!(groups[0].reports, ["a.json", "b.json", "f.json"]);
        assert_eq!(groups[1].kind.bugcheck, "0x000000d1");
        assert_eq!(groups[1].kind.parameters, ["an address", "0x2", "0x0", "0x1234"]);
        let told = text(&groups);
        assert!(
            told.contains("    3 x  BUG: kernel NULL") && told.contains("ext4_read < vfs_read"),
            "{told}"
        );
    }
}
