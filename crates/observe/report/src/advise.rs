//! What a report says about a guest's configuration: rules as data, and their findings.

use std::fmt::Write;

use satori_hyperv::{Enlightenment, Set};
use serde::Serialize;

use crate::Report;
use crate::rules::RULES;

/// What a condition looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// These reasons make at least so many percent of the exits.
    Exits(&'static [&'static str], f64),
    /// They make at least so many percent of the time.
    Time(&'static [&'static str], f64),
    /// At least one exit of one of these reasons.
    Some(&'static [&'static str]),
    /// They take less than so many percent of the time.
    Less(&'static [&'static str], f64),
    /// No exit of any of these reasons.
    None(&'static [&'static str]),
    /// It is offered, and the guest can see that.
    On(Enlightenment),
    /// It is offered, and the guest can see that; or nobody told, and there are exits of each of these reasons, which a
    /// guest of the interface has.
    Likely(Enlightenment, &'static [&'static str]),
    /// It is not offered, or nobody told what is.
    NotOn(Enlightenment),
    /// Nobody told what is offered.
    Untold,
    /// It is known not to be offered.
    Off(Enlightenment),
    /// The CPU feature `hypervisor` is off.
    Hidden,
    /// It is known that no enlightenment is offered, and the hypervisor is not hidden.
    Nothing,
    /// The processor has APICv, or nobody told that it has none.
    Apicv,
    /// It is known that the processor has no APICv.
    NoApicv,
    /// It is known that the processor sends IPIs without an exit.
    IpiVirtualization,
    /// The processor is not known to send IPIs without an exit.
    NoIpiVirtualization,
    /// Something was offered that the guest never used.
    Unused,
}

impl std::fmt::Display for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            When::Exits(reasons, least) => {
                write!(f, "{} make {least} % of the exits or more", reasons.join(" + "))
            }
            When::Time(reasons, least) => {
                write!(f, "{} take {least} % of the time or more", reasons.join(" + "))
            }
            When::Less(reasons, most) => {
                write!(f, "{} take less than {most} % of the time", reasons.join(" + "))
            }
            When::Some(reasons) => write!(f, "there are exits of {}", reasons.join(" or ")),
            When::None(reasons) => write!(f, "there are none of {}", reasons.join(", ")),
            When::On(one) => write!(f, "{} is offered, and the hypervisor shown", one.name()),
            When::Likely(one, reasons) => write!(
                f,
                "{} is offered, and the hypervisor shown, or nobody told and there are exits of {}",
                one.name(),
                reasons.join(" and of ")
            ),
            When::Untold => f.write_str("nobody told what is offered"),
            When::NotOn(one) => write!(f, "{} is not known to be offered", one.name()),
            When::Off(one) => write!(f, "{} is known not to be offered", one.name()),
            When::Hidden => f.write_str("the CPU feature 'hypervisor' is off"),
            When::Nothing => f.write_str("it is known that no enlightenment is offered"),
            When::Apicv => f.write_str("the processor is not known to lack APICv"),
            When::NoApicv => f.write_str("the processor is known to lack APICv"),
            When::IpiVirtualization => f.write_str("the processor is known to have IPI virtualisation"),
            When::NoIpiVirtualization => f.write_str("the processor is not known to have IPI virtualisation"),
            When::Unused => f.write_str("something offered that leaves a trace left none"),
        }
    }
}

/// A piece of advice, and when it is given.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name.
    pub id: &'static str,
    /// What it finds, in a sentence.
    pub title: &'static str,
    /// All of these must hold.
    pub when: &'static [When],
    /// What to do.
    pub advice: &'static str,
    /// Why.
    pub why: &'static str,
    /// The reasons whose exits would go, wholly or in part.
    pub saves: &'static [&'static str],
    /// Who says so.
    pub source: &'static str,
}

impl Rule {
    /// Every rule.
    pub const ALL: &'static [Rule] = RULES;

    /// The rule with this name.
    pub fn by_name(name: &str) -> Option<&'static Rule> {
        let name = name.to_ascii_lowercase().replace('_', "-");
        Rule::ALL.iter().find(|rule| rule.id == name)
    }
}

/// The configuration under which a report was made, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// What is offered of Hyper-V.
    pub offered: Option<Set>,
    /// The CPU feature `hypervisor` is off.
    pub hidden: bool,
    /// Whether the processor has APICv.
    pub apicv: Option<bool>,
    /// Whether it has IPI virtualisation.
    pub ipi_virtualization: Option<bool>,
}

impl Setting {
    /// What the report itself tells.
    pub fn of(report: &Report) -> Self {
        let offered = report.hyperv.iter().filter(|(_, one)| one.offered);
        let offered = offered.filter_map(|(name, _)| Enlightenment::by_name(name)).collect();
        Setting { offered: (!report.hyperv.is_empty()).then_some(offered), ..Setting::default() }
    }
}

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
    /// Why.
    pub why: &'static str,
    /// What may be expected of it.
    pub effect: String,
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

fn share(report: &Report, reasons: &[&str]) -> (f64, f64, String) {
    let (samples, time) = (report.all.samples_of(reasons), report.all.time_of(reasons));
    let (exits, spent) = (percent(samples, report.all.samples), percent(time, report.all.total_ns));
    let there: Vec<_> = reasons.iter().copied().filter(|reason| report.all.row(reason).is_some()).collect();
    let seconds = time as f64 / 1e9;
    let text =
        format!("{}: {samples} exits ({exits:.1} %), {seconds:.3} s ({spent:.1} %)", there.join(" + "));
    (exits, spent, text)
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

/// Whether a condition holds; the figure that shows it, if it has one.
fn holds(when: When, report: &Report, setting: &Setting) -> Option<Option<String>> {
    let on = |one| setting.offered.as_ref().is_some_and(|set| !setting.hidden && set.has(one));
    let plain = |holds: bool| holds.then_some(None);
    match when {
        When::Exits(reasons, least) => {
            let (exits, _, text) = share(report, reasons);
            (exits >= least && report.all.samples_of(reasons) > 0).then_some(Some(text))
        }
        When::Time(reasons, least) => {
            let (_, time, text) = share(report, reasons);
            (time >= least && report.all.samples_of(reasons) > 0).then_some(Some(text))
        }
        When::Less(reasons, most) => {
            let (_, time, text) = share(report, reasons);
            let there = report.all.samples_of(reasons) > 0;
            (time < most).then(|| Some(if there { text } else { format!("no exit of {}", reasons.join(", ")) }))
        }
        When::Some(reasons) => (report.all.samples_of(reasons) > 0).then(|| Some(share(report, reasons).2)),
        When::None(reasons) => {
            (report.all.samples_of(reasons) == 0).then(|| Some(format!("no exit of {}", reasons.join(", "))))
        }
        When::On(one) => on(one).then(|| Some(format!("{} is offered", one.name()))),
        When::Likely(one, reasons) => match setting.offered {
            Some(_) => on(one).then(|| Some(format!("{} is offered", one.name()))),
            None => (!setting.hidden && reasons.iter().all(|reason| report.all.samples_of(&[reason]) > 0)).then(|| {
                let seen = reasons.join(" and ");
                Some(format!(
                    "nobody told whether {} is offered; exits of {seen} are those of a guest of the interface",
                    one.name()
                ))
            }),
        },
        When::Untold => plain(setting.offered.is_none() && !setting.hidden),
        When::NotOn(one) => plain(!on(one)),
        When::Off(one) => {
            (setting.offered.is_some() && !on(one)).then(|| Some(format!("{} is not offered", one.name())))
        }
        When::Hidden => setting.hidden.then(|| {
            let lost = setting
                .offered
                .as_ref()
                .map_or(0, |set| Enlightenment::ALL.iter().filter(|one| set.has(**one)).count());
            Some(format!(
                "the CPU feature 'hypervisor' is off; {lost} enlightenments are offered and not seen"
            ))
        }),
        When::Nothing => plain(!setting.hidden && setting.offered.is_some_and(Set::is_empty)),
        When::Apicv => plain(setting.apicv != Some(false)),
        When::NoApicv => (setting.apicv == Some(false)).then(|| Some("the processor has no APICv".into())),
        When::IpiVirtualization => {
            let has = setting.ipi_virtualization == Some(true);
            has.then(|| Some("the processor has IPI virtualisation".into()))
        }
        When::NoIpiVirtualization => plain(setting.ipi_virtualization != Some(true)),
        When::Unused => {
            let unused = unused(report);
            (!unused.is_empty()).then(|| Some(format!("offered, never used: {}", unused.join(", "))))
        }
    }
}

/// The rules that fire, in the order of [`Rule::ALL`].
pub fn advise(report: &Report, setting: &Setting) -> Vec<Finding> {
    let fired = Rule::ALL.iter().filter_map(|rule| {
        let figures: Option<Vec<_>> = rule.when.iter().map(|when| holds(*when, report, setting)).collect();
        let figures = figures?.into_iter().flatten().collect();
        let (samples, time) = (report.all.samples_of(rule.saves), report.all.time_of(rule.saves));
        let effect = match samples {
            0 => "no exit of this report goes".into(),
            _ => format!(
                "at most {samples} exits ({:.1} %) and {:.3} s ({:.1} % of the time in exits) go",
                percent(samples, report.all.samples),
                time as f64 / 1e9,
                percent(time, report.all.total_ns)
            ),
        };
        let Rule { id, title, advice, why, .. } = *rule;
        Some(Finding { rule: id, title, figures, advice, why, effect })
    });
    fired.collect()
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
    /// The rules that fire.
    pub findings: Vec<Finding>,
}

/// Advises on each of several runs of one `processor`, of which nobody told more than their exits, and orders them: the one that
/// spends least time in exits first.
pub fn compare(runs: &[(String, Report)], processor: &Setting) -> Vec<Compared> {
    let most = runs.iter().map(|(_, report)| &report.all).max_by_key(|all| all.total_ns);
    let [exits, time] = most.map_or([0, 0], |all| [all.samples, all.total_ns]);
    let part = |of: u64, whole: u64| if whole == 0 { 0.0 } else { of as f64 / whole as f64 };
    let mut all: Vec<_> = runs
        .iter()
        .map(|(name, report)| Compared {
            name: name.clone(),
            samples: report.all.samples,
            total_ns: report.all.total_ns,
            ratio: [part(report.all.samples, exits), part(report.all.total_ns, time)],
            findings: advise(report, processor),
        })
        .collect();
    all.sort_by_key(|one| one.total_ns);
    all
}

/// Several runs for people, each with its findings.
pub fn text_of_several(runs: &[Compared]) -> String {
    let mut out = String::from("From the least to the most time in exits:\n\n");
    for one in runs {
        let rules: Vec<_> = one.findings.iter().map(|finding| finding.rule).collect();
        let _ = writeln!(
            out,
            "{:<28} {:>12} exits {:>10.3} s   {:.3} and {:.3} of the most   {}",
            one.name,
            one.samples,
            one.total_ns as f64 / 1e9,
            one.ratio[0],
            one.ratio[1],
            if rules.is_empty() { "no rule fires".into() } else { rules.join(", ") }
        );
    }
    for one in runs {
        let _ = write!(out, "\n{}\n\n{}", one.name, findings(&one.findings));
    }
    out + EXPLAIN
}

const EXPLAIN: &str = "'satori explain RULE' tells when a rule fires, and who says so.\n";

/// The findings for people.
pub fn text(all: &[Finding]) -> String {
    match all.len() {
        0 => findings(all),
        _ => findings(all) + EXPLAIN,
    }
}

fn findings(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing to advise: no rule fires on this report and configuration\n".into();
    }
    let mut out = String::new();
    for one in findings {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}: {}", one.rule, one.title);
        one.figures.iter().for_each(|figure| {
            let _ = writeln!(out, "  seen    {figure}");
        });
        let _ = writeln!(out, "  do      {}\n  why     {}\n  effect  {}\n", one.advice, one.why, one.effect);
    }
    out
}
