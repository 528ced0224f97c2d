//! What is told when a run has ended: how, with which last words, and the report of exits.

use std::fs::File;
use std::io::{self, Write, stderr};
use std::os::unix::fs::MetadataExt;

use satori_hyperv::Crash;
use satori_machine::{Event, Outcome};
use satori_pv::Used;
use satori_report::costs::Costs;
use satori_report::crashes;
use satori_report::nested::Nested;
use satori_report::{Origin, Report};

use crate::cli;
use crate::commands::costs;
use crate::registers;
use crate::say::{line, say};
use crate::status::Status;
use crate::switches;

/// Lines of the console that a panic shows.
pub(crate) const TAIL: usize = 24;

/// The crash parameter in which Linux puts RIP (arch/x86/hyperv, hyperv_report_panic).
const CRASH_RIP: u32 = 2;

/// How the run ended, in words.
fn how(outcome: &Outcome, status: Status, broken: Option<&str>) -> String {
    match &outcome.event {
        Event::PowerOff => "the guest powered off".into(),
        Event::Reset(by) => format!("the guest asked for a reset, by {by}"),
        Event::Woken => "the guest wakes".into(),
        Event::DebugExit(value) => format!("the guest wrote {value:#x} to its debug exit"),
        Event::Panic(by) => match crashes::headline(&outcome.console_tail.join("\n")) {
            Some(what) => format!("the guest panicked, told by {by}: {}", printable(&what)),
            None => format!("the guest panicked, told by {by}"),
        },
        Event::TripleFault { vcpu } => format!("triple fault on vCPU {vcpu}"),
        Event::Lost { vcpu, at } => {
            format!(
                "vCPU {vcpu} takes one exception behind the other: nothing can be fetched at its vector {at:#x}"
            )
        }
        Event::Diverged(why) => why.clone(),
        Event::Failed(why) => format!("internal error, please report it: {why}"),
        Event::Stopped if status == Status::Timeout => "--timeout ran out".into(),
        Event::Stopped if status == Status::Stalled => {
            "--stall-timeout ran out: the guest's consoles, disks and folders stood still".into()
        }
        Event::Timeout => "--guest-timeout ran out".into(),
        Event::Stopped if status == Status::Internal => {
            format!("the guest was ended, as {}", broken.unwrap_or("its console has gone"))
        }
        Event::Stopped => "ended by the user".into(),
    }
}

/// Says how the run ended; where the guest failed, with its registers and last lines.
///
/// `broken` is why the guest's console is not complete, if it is not; `shown` that the console went to standard
/// output and somebody has it; `bisect` that the process ends with the statuses of `git bisect run`.
pub fn tell(outcome: &Outcome, status: Status, bisect: bool, broken: Option<&str>, shown: bool) {
    let what = how(outcome, status, broken);
    if let Some(broken) = broken.filter(|_| outcome.event != Event::Stopped) {
        say(format_args!("the guest's console is not complete: {broken}"));
    }
    let code = if bisect { status.for_bisect() } else { status.code() };
    say(format_args!("{what}; exit status {code}"));
    if let Some(crash) = &outcome.crash {
        line(format_args!("{}", crash_heading(crash)));
        for (value, p) in crash.parameters.iter().zip(0..) {
            let name = parameter(crash, p);
            match outcome
                .symbols
                .as_ref()
                .filter(|_| crash.message.is_none() && p == CRASH_RIP && *value != 0)
            {
                Some(symbols) => {
                    line(format_args!("  P{p} {value:#018x}  {name}: {}", symbols.resolve(*value)))
                }
                // With a message they are zero, and hold nothing.
                None if name.is_empty() && *value == 0 => {}
                None => line(format_args!("  P{p} {value:#018x}  {name}")),
            }
        }
        let message = crash.message.as_deref().unwrap_or_default();
        if !is_on_console(message, &outcome.console_tail) {
            message.lines().for_each(|text| line(format_args!("  {}", printable(text))));
        }
    }
    if !outcome.screen.is_empty() {
        say(format_args!(
            "the guest printed nothing, but wrote to the text screen of a PC, which nobody sees: have it print to the \
             serial port. At the end it was:"
        ));
        outcome.screen.iter().for_each(|row| line(format_args!("  {}", printable(row))));
    }
    if let Some(traced) = &outcome.traced {
        trace(traced);
    }
    if let Some(symbols) = &outcome.symbols {
        tracing::info!("{} functions' names from {}", symbols.len(), symbols.origin());
    }
    for (which, dump) in [("The crash dump", &outcome.crash_dump), ("That of L2", &outcome.crash_dump_l2)] {
        match dump {
            None => {}
            Some(Err(error)) => line(format_args!("{which} could not be written: {error}")),
            Some(Ok(dump)) => line(format_args!(
                "{which} holds {} MiB of memory, {} mapped stretches of the kernel's addresses{}",
                dump.memory >> 20,
                dump.mappings,
                if dump.vmcoreinfo { " and Linux's VMCOREINFO" } else { "" }
            )),
        }
    }
    let too_long = matches!(status, Status::Timeout | Status::Stalled);
    if too_long {
        for (index, state) in outcome.arm.iter().flat_map(|left| &left.registers).enumerate() {
            line(format_args!("vCPU {index} was at {:#x}", state.pc));
        }
        for (index, state) in outcome.registers.iter().enumerate() {
            line(format_args!("vCPU {index} {}", registers::place(state, outcome.symbols.as_deref())));
        }
    }
    let failed = matches!(
        outcome.event,
        Event::Panic(_) | Event::TripleFault { .. } | Event::Lost { .. } | Event::Failed(_)
    );
    if failed {
        for (index, state) in outcome.arm.iter().flat_map(|left| &left.registers).enumerate() {
            line(format_args!("vCPU {index}:"));
            registers::arm(state).iter().for_each(|text| line(format_args!("  {text}")));
        }
        for (index, state) in outcome.registers.iter().enumerate() {
            line(format_args!("vCPU {index}:"));
            registers::lines(state).iter().for_each(|text| line(format_args!("  {text}")));
            if let Some(symbols) = &outcome.symbols {
                line(format_args!("  RIP is at {}", symbols.resolve(state.rip)));
            }
        }
        let last = &outcome.console_tail[outcome.console_tail.len().saturating_sub(TAIL)..];
        let last = if shown { &[] } else { last };
        if !last.is_empty() {
            line(format_args!("The console's last lines:"));
        }
        last.iter().for_each(|text| line(format_args!("  {}", printable(text))));
    }
}

/// Whether the trace is not complete because it could not be written.
pub fn is_cut(outcome: &Outcome) -> bool {
    outcome.traced.as_ref().is_some_and(|traced| traced.error.is_some())
}

/// What became of the trace. What a failed write left out did not come too fast.
pub fn trace(traced: &satori_trace::Told) {
    let (written, dropped) = (traced.written, traced.dropped);
    match &traced.error {
        Some(why) => say(format_args!(
            "trace: it is not complete ({why}), {written} events are in it and {dropped} LOST: make room, or name another place"
        )),
        None if dropped > 0 => say(format_args!(
            "trace: {written} events; {dropped} were LOST, as they came faster than the file took them"
        )),
        None => say(format_args!("trace: {written} events")),
    }
}

/// What the guest told of its crash.
fn crash_heading(crash: &Crash) -> &'static str {
    match crash.message {
        Some(_) => "The guest told of its crash by a message in its memory:",
        None => "The guest's crash parameters, as Linux and as Windows have them:",
    }
}

/// What a parameter holds: what the guest's kernel puts there (Linux's drivers/hv/hv_common.c and
/// arch/x86/hyperv/hv_init.c), which with a message is its place.
fn parameter(crash: &Crash, number: u32) -> &'static str {
    match (&crash.message, number) {
        (Some(_), 3) => "its address",
        (Some(_), 4) => "its size in bytes",
        (Some(_), _) => "",
        (None, 0) => "Linux: error; Windows: bug check",
        (None, 1) => "Linux: OS identity; Windows: parameter 1",
        (None, 2) => "Linux: RIP; Windows: parameter 2",
        (None, 3) => "Linux: RAX; Windows: parameter 3",
        (None, _) => "Linux: RSP; Windows: parameter 4",
    }
}

/// Whether the last words of `message` are on the console, whose last lines are `tail`.
fn is_on_console(message: &str, tail: &[String]) -> bool {
    let last = message.lines().rev().find(|line| !line.trim().is_empty());
    last.is_none_or(|last| tail.iter().any(|line| line.trim() == last.trim()))
}

/// Whether what standard output gets is had by somebody: it leads to something else than /dev/null. The sandbox does not
/// permit the look.
pub fn is_shown() -> bool {
    std::fs::metadata("/proc/self/fd/1").is_ok_and(|output| output.rdev() != NULL)
}

/// /dev/null, to which nothing leads.
const NULL: u64 = 0x103;

/// What report is wanted.
pub struct Wanted<'a> {
    /// Its form.
    pub form: cli::Report,
    /// Whose exits the text shows, instead of the sum of all.
    pub vcpu: Option<u32>,
    /// Whether the text shows the engine's counters.
    pub counters: bool,
    /// The modelled processor.
    pub processor: String,
    /// What exits cost on it.
    pub costs: &'a Costs,
    /// Where it comes from.
    pub origin: Origin,
}

impl<'a> Wanted<'a> {
    /// That of the flags.
    pub fn of(flags: &cli::Machine, costs: &'a Costs, origin: Origin) -> Self {
        Wanted {
            form: flags.report,
            vcpu: flags.report_vcpu,
            counters: flags.engine_stats,
            processor: flags.processor.vmx.unwrap_or_default().to_string(),
            costs,
            origin,
        }
    }
}

/// Writes the report to `file`, or to standard error.
pub fn write(outcome: &Outcome, status: Status, wanted: &Wanted, file: Option<File>) -> io::Result<()> {
    if wanted.form == cli::Report::Off {
        return Ok(());
    }
    let mut json = json(outcome, status);
    json["processor"] = if outcome.arm.is_some() { "arm64".into() } else { wanted.processor.clone().into() };
    json["origin"] = serde_json::json!(wanted.origin);
    let read = satori_report::read(&json.to_string(), satori_report::Which::Only);
    let mut report = read.map_err(io::Error::other)?;
    report.model(wanted.costs);
    let report = match wanted.form {
        cli::Report::Off | cli::Report::Text => text(outcome, &report, wanted),
        cli::Report::Json => {
            costs::put(&report, &mut json);
            format!("{json:#}\n")
        }
        cli::Report::Html => satori_report::html::page(&[("this run".into(), report)]),
    };
    match file {
        Some(mut file) => file.write_all(report.as_bytes()),
        None => {
            // That standard error is closed is nobody's failure.
            let _ = stderr().lock().write_all(report.as_bytes());
            Ok(())
        }
    }
}

/// What was offered and what was used, one line each; the ways of a use in brackets.
fn interfaces(used: &[Used]) -> String {
    let mut text = String::new();
    let mut last = "";
    for one in used.iter().filter(|one| one.offered || one.count != 0) {
        if one.interface != last {
            last = one.interface;
            text += &format!("\n{last:<24}{:>8}{:>12}{:>12}\n", "offered", "used", "first at s");
        }
        let offered = if one.offered { "yes" } else { "no" };
        let first = one.first.map_or("-".into(), |at| format!("{:.3}", at as f64 / 1e9));
        let count = if one.seen { one.count.to_string() } else { "unseen".into() };
        let ways: Vec<_> = one.ways.iter().map(|(way, count)| format!("{way} {count}")).collect();
        let line = format!("{:<24}{offered:>8}{count:>12}{first:>12}  {}", one.name, ways.join(", "));
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// What a person wants to know first, in sentences.
fn summary(outcome: &Outcome, report: &Report) -> String {
    let seconds = outcome.elapsed.as_secs_f64();
    let millions = outcome.instructions as f64 / 1e6;
    let mut text = format!(
        "\n{millions:.1} million instructions in {seconds:.2} s ({:.0} million a second); guest time {:.2} s",
        if seconds > 0.0 { millions / seconds } else { 0.0 },
        outcome.guest_time as f64 / 1e9,
    );
    if outcome.resets > 0 {
        text += &format!("; {} resets", outcome.resets);
    }
    let most: Vec<_> =
        report.all.exits.iter().take(MOST).map(|row| format!("{} {}", row.reason, row.samples)).collect();
    if most.is_empty() {
        return text + "\nno exits\n";
    }
    let more = if report.all.exits.len() > MOST { ", .." } else { "" };
    text + &format!("\n{} exits: {}{more}\n", report.all.samples, most.join(", "))
}

/// Reasons that the summary names.
const MOST: usize = 3;

fn text(outcome: &Outcome, report: &Report, wanted: &Wanted) -> String {
    let mut text = summary(outcome, report);
    text += &satori_report::text(report, wanted.vcpu.map(u64::from));
    if let Some(nested) = Nested::of(report) {
        text += &format!("\n{}", nested.text());
    }
    text += &switches::text(outcome);
    if outcome.hyperv.iter().any(|one| one.offered) {
        text += &interfaces(&outcome.hyperv);
    }
    text += &interfaces(&outcome.used);
    if let Some(shares) = &outcome.profile.shares {
        text += &format!("\n{}", shares.text());
    }
    text += &by_kvm(&outcome.profile.stats);
    let counters = outcome.profile.stats_text();
    if wanted.counters && !counters.is_empty() {
        text += &format!("\n{counters}");
    }
    text
}

/// What KVM handled by itself: none of it is in the table of exits.
fn by_kvm(stats: &[(String, u64)]) -> String {
    let counts = stats.iter().filter(|(_, count)| *count > 0);
    let counts = counts.filter_map(|(name, count)| Some((name.strip_prefix("by KVM: ")?, *count)));
    let lines: Vec<_> = counts.map(|(name, count)| format!("{count:>16}  {name}\n")).collect();
    if lines.is_empty() {
        return String::new();
    }
    let title = "Counted by KVM, whose statistics have neither times nor the reasons of exits:";
    let exits = kernel_exits(stats).unwrap_or_else(|| {
        "\nThe reasons of exits that KVM handled itself are not visible: that takes root's right to tracepoints (-v tells what is refused).\n".into()
    });
    format!("\n{title}\n{}{exits}", lines.concat())
}

/// All VM exits, by the kernel's tracepoints, if they could be read: as `perf kvm stat` has them.
fn kernel_exits(stats: &[(String, u64)]) -> Option<String> {
    let of = |prefix: &str, name: &str| {
        stats
            .iter()
            .find(|(known, _)| known.strip_prefix(prefix) == Some(name))
            .map_or(0, |(_, count)| *count)
    };
    let mut rows: Vec<_> = stats
        .iter()
        .filter_map(|(name, count)| Some((name.strip_prefix("VM exits: ")?, *count)))
        .filter(|(name, _)| *name != LOST)
        .map(|(name, count)| (name, count, of("ns of VM exits: ", name)))
        .collect();
    rows.sort_by_key(|(name, count, _)| (std::cmp::Reverse(*count), *name));
    let sum = rows.iter().fold((0, 0), |(all, time), (_, count, spent)| (all + count, time + spent));
    let share = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let row = |&(name, count, time): &(&str, u64, u64)| {
        let average = time as f64 / 1e3 / count.max(1) as f64;
        format!(
            "{name:>28} {count:>10} {:>8.2}% {:>8.2}% {average:>11.2}us\n",
            share(count, sum.0),
            share(time, sum.1)
        )
    };
    if rows.is_empty() {
        return None;
    }
    let title = "All VM exits, by the kernel's tracepoints; the time is until the guest is entered again, sleep included:";
    let head =
        format!("{:>28} {:>10} {:>9} {:>9} {:>13}\n", "VM-EXIT", "Samples", "Samples%", "Time%", "Avg time");
    let mut text = format!("\n{title}\n{head}{}", rows.iter().map(row).collect::<String>());
    let lost = of("VM exits: ", LOST);
    if lost > 0 {
        text += &format!(
            "{lost} records of them did not fit into the kernel's rings, and are not among these.\n"
        );
    }
    Some(text)
}

/// The counter of records that are missing.
const LOST: &str = "records that did not fit";

/// The profile's object, and beside it what the text tells in sentences.
fn json(outcome: &Outcome, status: Status) -> serde_json::Value {
    let mut report =
        outcome.profile.json(|rip| outcome.symbols.as_ref().map(|symbols| symbols.resolve(rip).to_string()));
    report["format"] = "satori-report".into();
    report["version"] = satori_report::VERSION.into();
    report["status"] = status.code().into();
    report["instructions"] = outcome.instructions.into();
    report["guest_time_ns"] = outcome.guest_time.into();
    report["elapsed_ns"] = u64::try_from(outcome.elapsed.as_nanos()).unwrap_or(u64::MAX).into();
    report["resets"] = outcome.resets.into();
    let told = |one: &Used| {
        let ways: serde_json::Map<_, _> =
            one.ways.iter().map(|(way, count)| (way.clone(), (*count).into())).collect();
        serde_json::json!({ "offered": one.offered, "used": one.count, "first_ns": one.first, "ways": ways })
    };
    let hyperv = outcome.hyperv.iter().map(|one| (one.name.to_owned(), told(one)));
    report["hyperv"] = hyperv.collect::<serde_json::Map<_, _>>().into();
    for one in &outcome.used {
        report[one.interface.to_lowercase()][one.name] = told(one);
    }
    let stats = &outcome.profile.stats;
    let stat = |name: &str| stats.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
    if let Some(nested) = Nested::of_stats(stat) {
        report["nested"] = serde_json::json!(nested);
    }
    if let Some(shares) = &outcome.profile.shares {
        report["engine_time"] = shares.json();
    }
    if let Some(crash) = crash(outcome) {
        report["crash"] = serde_json::json!(crash);
    }
    report
}

/// How the guest crashed, if it did: what it told by the crash MSRs, and what its console's last lines do.
fn crash(outcome: &Outcome) -> Option<crashes::Crash> {
    let by = match &outcome.event {
        Event::Panic(by) => Some((*by).to_owned()),
        Event::TripleFault { .. } => Some("a triple fault".to_owned()),
        Event::Lost { .. } => Some("an exception vector that cannot be fetched".to_owned()),
        _ => None,
    };
    if by.is_none() && outcome.crash.is_none() {
        return None;
    }
    let told = outcome.crash.as_ref();
    let log = outcome.console_tail.join("\n");
    let message = told.and_then(|crash| crash.message.clone()).or_else(|| crashes::headline(&log));
    let mut stack = message.as_deref().map(crashes::stack).unwrap_or_default();
    if stack.is_empty() {
        stack = crashes::stack(&log);
    }
    if let (true, Some(symbols), Some(first)) =
        (stack.is_empty(), &outcome.symbols, outcome.registers.first())
    {
        let place = symbols.resolve(first.rip).to_string();
        stack.push(place.split("+0x").next().unwrap_or_default().to_owned());
    }
    let parameters = told.map(|crash| crash.parameters.to_vec()).unwrap_or_default();
    Some(crashes::Crash { by, parameters, message, stack })
}

/// The last lines of a guest's console, for a file.
pub(crate) fn last_words(outcome: &Outcome) -> String {
    outcome.console_tail.iter().map(|text| printable(text)).collect::<Vec<_>>().join("\n")
}

/// A guest's text without what could command our terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '.' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_stands_beside_what_was_offered() {
        let of = |name, offered, first, ways: &[(&str, u64)]| Used {
            interface: "Hyper-V",
            name,
            offered,
            seen: !ways.is_empty(),
            first,
            count: ways.iter().map(|(_, count)| count).sum(),
            ways: ways.iter().map(|(way, count)| ((*way).to_owned(), *count)).collect(),
        };
        let used = [
            of("relaxed", true, None, &[]),
            of("ipi", true, Some(1_500_000_000), &[("HvCallSendSyntheticClusterIpi", 7)]),
            of("reset", false, None, &[]),
        ];
        let text = interfaces(&used);
        let words: Vec<Vec<_>> =
            text.trim_start().lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["relaxed", "yes", "unseen", "-"]);
        assert_eq!(words[2], ["ipi", "yes", "7", "1.500", "HvCallSendSyntheticClusterIpi", "7"]);
        assert_eq!(words.len(), 3, "what is neither offered nor used is not listed");
    }

    #[test]
    fn a_crash_is_told_once_and_its_parameters_by_what_they_hold() {
        let tail = ["[ 1.0] Kernel panic".to_string(), "[ 1.1] Kernel Offset: disabled".to_string()];
        assert!(is_on_console("<0>before\n[ 1.1] Kernel Offset: disabled\n\n", &tail));
        assert!(!is_on_console("[ 1.2] what the console lacks\n", &tail) && is_on_console("", &tail));
        let crash = |message: Option<&str>| Crash { parameters: [0; 5], message: message.map(Into::into) };
        assert_eq!(
            [0, 3, 4].map(|p| parameter(&crash(Some("m")), p)),
            ["", "its address", "its size in bytes"]
        );
        assert!(parameter(&crash(None), CRASH_RIP).starts_with("Linux: RIP"));
    }

    #[test]
    fn a_guests_text_cannot_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}1m\tc\x07"), "a.[2Jb.1m\tc.");
    }
}
