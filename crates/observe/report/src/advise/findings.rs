//! What the rules find in a report.

use satori_hyperv::Enlightenment;
use serde::Serialize;

use super::when::{Exits, Held, percent};
use super::words::written;
use super::{Rule, Setting};
use crate::Report;
use satori_seam::Class;

/// A rule that fired.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    /// What it found.
    pub title: &'static str,
    /// The figures that it rests on.
    pub figures: Vec<String>,
    /// What to do.
    pub advice: &'static str,
    /// What that is in the configuration's own words, and commands that tell more.
    pub write: Vec<String>,
    /// Why.
    pub why: &'static str,
    /// What may be expected of it.
    pub effect: String,
}

/// Exits of a guest that has nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Idle {
    /// How many.
    pub samples: u64,
    /// Nanoseconds, most of which the guest slept.
    pub total_ns: u64,
}

/// What there is to say about a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Advice {
    /// The rules that fire, in the order of [`Rule::ALL`].
    pub findings: Vec<Finding>,
    /// What is no cost, and in no share.
    pub idle: Idle,
    /// The largest reason besides, in words.
    pub largest: Option<String>,
    /// Rules that nobody can judge who does not know what the guest is offered.
    pub without_configuration: Vec<&'static str>,
    /// Rules that nobody can judge who does not know the processor.
    pub without_processor: Vec<&'static str>,
    /// What was left out of the text.
    pub notes: Vec<String>,
}

/// What was offered and never used, of what leaves a trace.
pub fn unused(report: &Report) -> Vec<&str> {
    let idle = report.hyperv.iter().filter(|(_, one)| one.offered && one.used == 0);
    let seen = idle.filter(|(name, _)| {
        Enlightenment::by_name(name)
            .is_some_and(|one| !(one.row().msrs.is_empty() && one.row().hypercalls.is_empty()))
    });
    seen.map(|(name, _)| name.as_str()).collect()
}

/// Judges `rule`: what it found, or the reason why it did not fire.
fn judge(rule: &'static Rule, exits: &Exits, setting: &Setting) -> Result<Finding, Held> {
    let mut figures = Vec::new();
    let mut open = None;
    for when in rule.when {
        match when.holds(exits, setting) {
            Held::Yes(figure) => figures.extend(figure),
            Held::No => return Err(Held::No),
            // What is not known matters only where nothing else speaks against it.
            unknown => open = open.or(Some(unknown)),
        }
    }
    if let Some(unknown) = open {
        return Err(unknown);
    }
    let (samples, ns) = exits.sum(rule.saves);
    let time = match exits.timed() {
        true => format!(
            " and {:.3} s ({:.1} % of the time in exits without idling)",
            ns as f64 / 1e9,
            percent(ns, exits.busy_ns)
        ),
        false => String::new(),
    };
    let effect = match samples {
        0 => "no exit of this report goes".into(),
        _ => format!("at most {samples} exits ({:.1} %){time} go", percent(samples, exits.busy)),
    };
    let Rule { id, title, advice, why, .. } = *rule;
    let write =
        written(setting.words, rule.offer, rule.without, setting.spelled.or(setting.offered), rule.also);
    Ok(Finding { rule: id, title, figures, advice, write, why, effect })
}

/// Judges every rule.
pub fn advise(report: &Report, setting: &Setting) -> Advice {
    let exits = Exits::of(report);
    let (samples, total_ns) = exits.sum(&[Class::Idle]);
    let mut advice =
        Advice { idle: Idle { samples, total_ns }, notes: report.notes.clone(), ..Advice::default() };
    for rule in Rule::ALL {
        match judge(rule, &exits, setting) {
            Ok(finding) => advice.findings.push(finding),
            Err(Held::Configuration) => advice.without_configuration.push(rule.id),
            Err(Held::Processor) => advice.without_processor.push(rule.id),
            Err(_) => {}
        }
    }
    let busy = report.all.exits.iter().filter(|row| !crate::reasons::is(&row.reason, &[Class::Idle]));
    let largest = busy.max_by_key(|row| if exits.timed() { row.total_ns } else { row.samples });
    advice.largest = largest.map(|row| {
        let time = match exits.timed() {
            true => format!(", {:.1} % of the time", percent(row.total_ns, exits.busy_ns)),
            false => String::new(),
        };
        format!("{}: {} exits ({:.1} %{time})", row.reason, row.samples, percent(row.samples, exits.busy))
    });
    advice
}

/// One of several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// What it is.
    pub name: String,
    /// Its exits.
    pub samples: u64,
    /// Nanoseconds in them.
    pub total_ns: u64,
    /// Exits and time, as parts of those of the run that has most time.
    pub ratio: [f64; 2],
    /// What there is to say.
    #[serde(flatten)]
    pub advice: Advice,
}

/// Advises on each of several runs of one `processor`, of which nobody told more than their exits, and orders them: the one that
/// spends least time in exits first. Idling is in no sum.
pub fn compare(runs: &[(String, Report)], processor: &Setting) -> Vec<Compared> {
    let busy = |report: &Report| (Exits::of(report).busy, Exits::of(report).busy_ns);
    let most = runs.iter().map(|(_, report)| busy(report)).max_by_key(|busy| busy.1).unwrap_or_default();
    let part = |of: u64, whole: u64| if whole == 0 { 0.0 } else { of as f64 / whole as f64 };
    let mut all: Vec<_> = runs
        .iter()
        .map(|(name, report)| {
            let (samples, total_ns) = busy(report);
            Compared {
                name: name.clone(),
                samples,
                total_ns,
                ratio: [part(samples, most.0), part(total_ns, most.1)],
                advice: advise(report, processor),
            }
        })
        .collect();
    all.sort_by_key(|one| one.total_ns);
    all
}
