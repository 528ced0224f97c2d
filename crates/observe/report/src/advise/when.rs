//! The conditions of rules, and whether they hold.

use std::fmt;

use satori_hyperv::{Enlightenment, Set};

use super::{Guest, Setting, unused};
use satori_seam::Class;

use crate::reasons::{self, Isa};
use crate::{Report, Row};

/// What a condition looks at. Shares are of what is no idling: of exits and of their time without [`Class::Idle`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// These classes make at least so many percent of the exits.
    Exits(&'static [Class], f64),
    /// They make at least so many percent of the time; of the exits, where no times are told.
    Time(&'static [Class], f64),
    /// They take less than so many percent of the time.
    Less(&'static [Class], f64),
    /// At least one exit of one of these classes.
    Some(&'static [Class]),
    /// No exit of any of these classes.
    None(&'static [Class]),
    /// An exit of them takes so many microseconds on average, as one that the monitor's process handles; told of real
    /// hosts only.
    Slow(&'static [Class], f64),
    /// Idling takes at least so many percent of all time in exits.
    Idle(f64),
    /// There are fewer exits than this that are no idling.
    Few(u64),
    /// At least so many percent of the exits have names that no table here has, or ARM's.
    Unknown(f64),
    /// The exits have this vendor's names.
    Isa(Isa),
    /// The exits show that interrupts are injected rather than delivered by the processor.
    Injected,
    /// They do not show that.
    NotInjected,
    /// It is offered, and the guest can see that.
    On(Enlightenment),
    /// It is offered, and the guest can see that; or nobody told, and there are exits of each of these classes, which a
    /// guest of the interface has.
    Likely(Enlightenment, &'static [Class]),
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
    /// The guest is not known to be another one than this.
    Guest(Guest),
    /// Something was offered that the guest never used.
    Unused,
}

/// What a condition came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Held {
    /// It holds; the figure that shows it, if it has one.
    Yes(Option<String>),
    /// It does not.
    No,
    /// Nobody told what the guest is offered.
    Configuration,
    /// Nobody told what the processor has.
    Processor,
}

fn list(classes: &[Class], between: &str) -> String {
    classes.iter().map(|class| reasons::words(*class)).collect::<Vec<_>>().join(between)
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::Exits(classes, least) => {
                write!(f, "{} make {least} % of the exits or more", list(classes, " + "))
            }
            When::Time(classes, least) => {
                write!(f, "{} take {least} % of the time or more", list(classes, " + "))
            }
            When::Less(classes, most) => {
                write!(f, "{} take less than {most} % of the time", list(classes, " + "))
            }
            When::Some(classes) => write!(f, "there are exits of {}", list(classes, " or ")),
            When::None(classes) => write!(f, "there are none of {}", list(classes, ", ")),
            When::Slow(classes, us) => write!(f, "{} take {us} us or more on average", list(classes, " + ")),
            When::Idle(least) => write!(f, "idling takes {least} % of all time in exits or more"),
            When::Few(most) => write!(f, "there are fewer than {most} exits besides idling"),
            When::Unknown(least) => write!(f, "{least} % of the exits or more are in no table of Intel's or AMD's"),
            When::Isa(isa) => write!(f, "the exits have {isa} names"),
            When::Injected => f.write_str(
                "INTERRUPT_WINDOW + TPR_BELOW_THRESHOLD (AMD: vintr, write_cr8) make 0.5 % of the exits, or APIC_ACCESS 5 %",
            ),
            When::NotInjected => write!(f, "not: {}", When::Injected),
            When::On(one) => write!(f, "{} is offered, and the hypervisor shown", one.name()),
            When::Likely(one, classes) => write!(
                f,
                "{} is offered, and the hypervisor shown, or nobody told and there are exits of {}",
                one.name(),
                list(classes, " and of ")
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
            When::Guest(guest) => write!(f, "the guest may be {guest}"),
            When::Unused => f.write_str("something offered that leaves a trace left none"),
        }
    }
}

/// A report's exits by class.
pub(super) struct Exits<'r> {
    report: &'r Report,
    /// How many there are besides idling.
    pub(super) busy: u64,
    /// Nanoseconds in them.
    pub(super) busy_ns: u64,
}

/// `part` of `whole` in percent.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

impl<'r> Exits<'r> {
    pub(super) fn of(report: &'r Report) -> Self {
        let mut all = Exits { report, busy: 0, busy_ns: 0 };
        let idle = all.sum(&[Class::Idle]);
        all.busy = report.all.samples.saturating_sub(idle.0);
        all.busy_ns = report.all.total_ns.saturating_sub(idle.1);
        all
    }

    fn rows(&self, classes: &'static [Class]) -> impl Iterator<Item = &'r Row> {
        self.report.all.exits.iter().filter(|row| reasons::is(&row.reason, classes))
    }

    /// Exits and nanoseconds of these classes.
    pub(super) fn sum(&self, classes: &'static [Class]) -> (u64, u64) {
        self.rows(classes).fold((0, 0), |(samples, ns), row| {
            (samples.saturating_add(row.samples), ns.saturating_add(row.total_ns))
        })
    }

    /// Whether anybody told how long the exits took.
    pub(super) fn timed(&self) -> bool {
        self.report.all.total_ns > 0
    }

    /// Percent of exits, percent of time, and both in words.
    fn share(&self, classes: &'static [Class]) -> (f64, f64, String) {
        let (samples, ns) = self.sum(classes);
        let (exits, spent) = (percent(samples, self.busy), percent(ns, self.busy_ns));
        let there: Vec<_> = self.rows(classes).map(|row| row.reason.as_str()).collect();
        let mut text = format!("{}: {samples} exits ({exits:.1} %)", there.join(" + "));
        if self.timed() {
            text += &format!(", {:.3} s ({spent:.1} %)", ns as f64 / 1e9);
        }
        (exits, if self.timed() { spent } else { exits }, text)
    }

    /// Exits whose names are neither Intel's nor AMD's.
    fn unknown(&self) -> (u64, Vec<&'r str>) {
        let foreign = self
            .report
            .all
            .exits
            .iter()
            .filter(|row| !matches!(reasons::known(&row.reason), Some((Isa::Vmx | Isa::Svm, _))));
        foreign.fold((0, Vec::new()), |(sum, mut names), row| {
            names.push(row.reason.as_str());
            (sum + row.samples, names)
        })
    }

    /// Whose names most exits have.
    pub(super) fn isa(&self) -> Option<Isa> {
        let of = |wanted| {
            let rows = self.report.all.exits.iter();
            let own = rows.filter(|row| reasons::known(&row.reason).is_some_and(|(isa, _)| isa == wanted));
            own.map(|row| row.samples).sum::<u64>()
        };
        let most = [Isa::Vmx, Isa::Svm, Isa::Arm].map(|isa| (of(isa), isa)).into_iter().max()?;
        (most.0 > 0).then_some(most.1)
    }

    fn injected(&self) -> Option<String> {
        const WINDOWS: &[Class] = &[Class::Window, Class::Priority];
        let (exits, _, text) = self.share(WINDOWS);
        if exits >= 0.5 {
            return Some(text);
        }
        let page = self.report.all.row("APIC_ACCESS").map_or(0, |row| row.samples);
        (percent(page, self.busy) >= 5.0)
            .then(|| format!("APIC_ACCESS: {page} exits ({:.1} %)", percent(page, self.busy)))
    }
}

impl When {
    /// Whether it holds for these exits under this setting.
    pub(super) fn holds(self, exits: &Exits, setting: &Setting) -> Held {
        self.of_exits(exits).unwrap_or_else(|| self.of_setting(exits, setting))
    }

    /// The conditions that look at exits alone.
    fn of_exits(self, exits: &Exits) -> Option<Held> {
        let there = |classes| exits.sum(classes).0 > 0;
        let told = |holds: bool, text: String| Some(if holds { Held::Yes(Some(text)) } else { Held::No });
        let plain = |holds: bool| Some(if holds { Held::Yes(None) } else { Held::No });
        match self {
            When::Exits(classes, least) => {
                let (share, _, text) = exits.share(classes);
                told(share >= least && there(classes), text)
            }
            When::Time(classes, least) => {
                let (_, share, text) = exits.share(classes);
                told(share >= least && there(classes), text)
            }
            When::Less(classes, most) => {
                let (_, share, text) = exits.share(classes);
                let none = || format!("no exit of {}", list(classes, ", "));
                told(share < most, if there(classes) { text } else { none() })
            }
            When::Some(classes) => told(there(classes), exits.share(classes).2),
            When::None(classes) => told(!there(classes), format!("no exit of {}", list(classes, ", "))),
            When::Slow(classes, least) => {
                let (samples, ns) = exits.sum(classes);
                let us = ns as f64 / samples.max(1) as f64 / 1e3;
                let own = exits.report.processor.is_some();
                plain(own || exits.timed() && us >= least)
            }
            When::Idle(least) => {
                let (samples, ns) = exits.sum(&[Class::Idle]);
                let share = percent(ns, exits.report.all.total_ns);
                let text =
                    format!("idle: {samples} exits, {:.3} s, {share:.1} % of all time", ns as f64 / 1e9);
                told(share >= least && exits.timed(), text)
            }
            When::Few(most) => told(exits.busy < most, format!("{} exits besides idling", exits.busy)),
            When::Unknown(least) => {
                let (samples, names) = exits.unknown();
                let share = percent(samples, exits.report.all.samples);
                let names = names.into_iter().take(4).collect::<Vec<_>>().join(", ");
                told(share >= least && samples > 0, format!("{names}: {samples} exits ({share:.1} %)"))
            }
            When::Isa(isa) => plain(exits.isa() == Some(isa)),
            When::NotInjected => plain(exits.injected().is_none()),
            When::Injected => Some(exits.injected().map_or(Held::No, |text| Held::Yes(Some(text)))),
            _ => None,
        }
    }

    /// The conditions that look at the configuration.
    fn of_setting(self, exits: &Exits, setting: &Setting) -> Held {
        let on = |one| setting.offered.as_ref().is_some_and(|set| !setting.hidden && set.has(one));
        let yes = |text: String| Held::Yes(Some(text));
        let plain = |holds: bool| if holds { Held::Yes(None) } else { Held::No };
        let untold = setting.offered.is_none() && !setting.hidden;
        match self {
            When::On(one) if on(one) => yes(format!("{} is offered", one.name())),
            When::On(_) => {
                if untold {
                    Held::Configuration
                } else {
                    Held::No
                }
            }
            When::Likely(one, _) if on(one) => yes(format!("{} is offered", one.name())),
            When::Likely(one, classes) if untold => {
                match classes
                    .iter()
                    .all(|class| exits.report.all.exits.iter().any(|row| reasons::is(&row.reason, &[*class])))
                {
                    true => yes(format!(
                        "nobody told whether {} is offered; exits of {} are those of a guest of the interface",
                        one.name(),
                        list(classes, " and ")
                    )),
                    false => Held::Configuration,
                }
            }
            When::Likely(..) => Held::No,
            When::Untold => plain(untold),
            When::NotOn(one) => plain(!on(one)),
            When::Off(_) if untold => Held::Configuration,
            When::Off(one) => {
                if on(one) {
                    Held::No
                } else {
                    yes(format!("{} is not offered", one.name()))
                }
            }
            When::Hidden if setting.hidden => {
                let offered = setting.offered.as_ref();
                let lost =
                    offered.map_or(0, |set| Enlightenment::ALL.iter().filter(|one| set.has(**one)).count());
                yes(format!(
                    "the CPU feature 'hypervisor' is off; {lost} enlightenments are offered and not seen"
                ))
            }
            When::Hidden => {
                if setting.offered.is_none() {
                    Held::Configuration
                } else {
                    Held::No
                }
            }
            When::Nothing if untold => Held::Configuration,
            When::Nothing => plain(!setting.hidden && setting.offered.is_some_and(Set::is_empty)),
            When::Apicv => plain(setting.apicv != Some(false)),
            When::NoApicv => match setting.apicv {
                Some(false) => yes("the processor has no APICv".into()),
                Some(true) => Held::No,
                None => Held::Processor,
            },
            When::IpiVirtualization => match setting.ipi_virtualization {
                Some(true) => yes("the processor has IPI virtualisation".into()),
                Some(false) => Held::No,
                None => Held::Processor,
            },
            When::NoIpiVirtualization => plain(setting.ipi_virtualization != Some(true)),
            When::Guest(wanted) => plain(setting.guest(exits).is_none_or(|guest| guest == wanted)),
            When::Unused => match unused(exits.report) {
                names if names.is_empty() => Held::No,
                names => yes(format!("offered, never used: {}", names.join(", "))),
            },
            // The others are of the exits.
            _ => Held::No,
        }
    }
}
