//! From what options and files ask for to what a partition offers, and who decided it.
//!
//! Each option or file is read into [`Wish`]es. A [`Choice`] takes those of one source after the
//! other: `--libvirt`, then `--hyperv`, then `--cpu`. Within one source, order means nothing and a
//! contradiction is a [`Mistake`]; of two sources the later counts. At the end what is needed is added, and
//! told.

pub mod convert;
mod list;
mod qemu;
mod words;

use std::collections::BTreeMap;

pub use list::list;
pub use qemu::{CpuOption, cpu_option, foreign_cpu_option};
pub use satori_pv::{Mistake, Mistakes, Place};
pub use words::{VersionField, meant, property, retries, vendor};

use crate::{Config, Enlightenment, Set};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Instead of all that was before.
    Base(Base),
    /// One enlightenment on or off.
    Set(Enlightenment, bool),
    /// The vendor of leaf 0x40000000.
    Vendor([u8; 12]),
    /// Retries of a spinlock.
    Retries(u32),
    /// A part of the version.
    Version(VersionField, u32),
}

/// Where a choice begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// With nothing.
    Nothing,
    /// With what suits most guests.
    Auto,
    /// With all that there is.
    All,
}

impl Base {
    fn config(self, apicv: bool) -> Config {
        match self {
            Base::Nothing => Config::off(),
            Base::Auto => Config::auto_on(apicv),
            Base::All => Config::all_nested(),
        }
    }
}

/// Something asked for, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// What is asked for.
    pub what: What,
    /// The words that ask for it.
    pub words: String,
    /// Where they stand.
    pub place: Option<Place>,
}

/// Who decided on an enlightenment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// Nobody: it is so by default.
    Default,
    /// The words of an option or a file.
    Words {
        /// The option, or the file.
        within: String,
        /// The words.
        words: String,
        /// Where they stand.
        place: Option<Place>,
    },
    /// It is on because this one is.
    Needed(Enlightenment),
    /// It is off because this one is.
    GoneWith(Enlightenment),
    /// It is off because the guest cannot have guests, or none of its kind.
    WithoutGuests(Enlightenment),
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            By::Default => write!(f, "the default"),
            By::Words { within, words, place: None } => write!(f, "{within} {words}"),
            By::Words { within, words, place: Some(place) } if place.line.is_some() => {
                write!(f, "{within}:{place}: {words}")
            }
            By::Words { within, words, place: Some(place) } => write!(f, "{within} {words} ({place})"),
            By::Needed(one) => write!(f, "needed by {}", one.name()),
            By::GoneWith(one) => write!(f, "goes with {}", one.name()),
            By::WithoutGuests(one) => f.write_str(match one {
                Enlightenment::Evmcs => "for --nested vmx only",
                Enlightenment::EnlightenedTlb => "for --nested svm only",
                _ => "for --nested only",
            }),
        }
    }
}

/// What has been chosen up to now.
#[derive(Clone, Debug)]
pub struct Choice {
    config: Config,
    /// Who decided on the base, which is on whom no word of its own has decided.
    base: By,
    by: BTreeMap<Enlightenment, By>,
    apicv: bool,
    nested: bool,
    svm: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Choice::on(false)
    }
}

/// What is offered in the end.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// What the partition is made by.
    pub config: Config,
    /// Who decided on each enlightenment, in the order of the table.
    pub by: Vec<(Enlightenment, By)>,
    /// What was missing and has been added: `hv-stimer needs hv-synic and hv-time`.
    pub added: Vec<Added>,
    /// What does not go well together.
    pub conflicts: Vec<String>,
}

/// Something that was missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// What needs it.
    pub needs: Enlightenment,
    /// What was added.
    pub missing: Vec<Enlightenment>,
    /// Who asked for the one that needs it.
    pub by: By,
}

impl std::fmt::Display for Added {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let missing: Vec<_> = self.missing.iter().map(|one| one.property()).collect();
        write!(f, "{} needs {}", self.needs.property(), missing.join(" and "))
    }
}

impl Choice {
    /// What is chosen without a word, for a processor that virtualises the APIC or not.
    pub fn on(apicv: bool) -> Self {
        Choice {
            config: Config::auto_on(apicv),
            base: By::Default,
            by: BTreeMap::new(),
            apicv,
            nested: false,
            svm: false,
        }
    }

    /// The same for a guest that can have guests, or not.
    #[must_use]
    pub fn nested(self, nested: bool) -> Self {
        Choice { nested, ..self }
    }

    /// The same for a guest whose guests are of SVM, or not.
    #[must_use]
    pub fn of_svm(self, svm: bool) -> Self {
        Choice { svm, ..self }
    }

    /// Takes what `within`, an option or a file, asks for.
    pub fn apply(&mut self, within: &str, wishes: &[Wish]) -> Result<(), Mistakes> {
        contradictions(within, wishes)?;
        let by =
            |wish: &Wish| By::Words { within: within.into(), words: wish.words.clone(), place: wish.place };
        let bases: Vec<_> = wishes.iter().filter(|wish| matches!(wish.what, What::Base(_))).collect();
        if let Some(first) = bases.first() {
            self.config = Config::off();
            self.by.clear();
            self.base = by(first);
        }
        for wish in bases {
            if let What::Base(base) = wish.what {
                self.config.set = self.config.set.iter().chain(base.config(self.apicv).set.iter()).collect();
            }
        }
        for wish in wishes {
            match wish.what {
                What::Base(_) => {}
                What::Set(one, on) => {
                    self.config.set =
                        if on { self.config.set.with(one) } else { self.config.set.without(one) };
                    self.by.insert(one, by(wish));
                }
                What::Vendor(vendor) => self.config.vendor = vendor,
                What::Retries(retries) => self.config.spin_retries = retries,
                What::Version(field, number) => field.put(&mut self.config.version, number),
            }
        }
        Ok(())
    }

    /// Adds what is needed, and refuses what cannot be.
    pub fn finish(mut self) -> Result<Chosen, Mistakes> {
        if !self.nested {
            self.drop_nested(
                |one| one.row().nested,
                "is for guests that run guests: say --nested vmx as well, or",
            )?;
        } else if self.svm {
            self.drop_nested(
                |one| one == Enlightenment::Evmcs,
                "is for guests of VMX: say --nested vmx, or",
            )?;
        } else {
            self.drop_nested(
                |one| one == Enlightenment::EnlightenedTlb,
                "is for guests of SVM: say --nested svm, or",
            )?;
        }
        self.drop_what_lost_its_needs()?;
        let asked = self.config.set;
        let added = self.add_needs();
        let mut conflicts = Vec::new();
        for one in self.config.set.iter() {
            let row = one.row();
            for (other, what) in row.conflicts.iter().filter(|(other, _)| self.config.set.has(*other)) {
                conflicts.push(format!("{} beside {}: {what}", one.property(), other.property()));
            }
        }
        let by = Enlightenment::ALL.iter().map(|one| {
            let needer = || asked.iter().find(|other| other.all_needs().has(*one));
            let by = match self.by.get(one) {
                Some(by) => by.clone(),
                None if asked.has(*one) || !self.config.set.has(*one) => self.base.clone(),
                None => needer().map_or(self.base.clone(), By::Needed),
            };
            (*one, by)
        });
        let by = by.collect();
        Ok(Chosen { config: self.config, by, added, conflicts })
    }

    /// What is for hypervisors goes if it was not asked for by name.
    fn drop_nested(&mut self, which: fn(Enlightenment) -> bool, why: &str) -> Result<(), Mistakes> {
        let nested: Vec<_> = self.config.set.iter().filter(|one| which(*one)).collect();
        for one in nested {
            if let Some(by) = self.by.get(&one) {
                let (within, place) = match by {
                    By::Words { within, place, .. } => (within.clone(), *place),
                    _ => ("Hyper-V".into(), None),
                };
                let text = format!("{} {why} leave it out", one.property());
                return Err(Mistakes(vec![Mistake { within, place, text }]));
            }
            self.config.set = self.config.set.without(one);
            self.by.insert(one, By::WithoutGuests(one));
        }
        Ok(())
    }

    /// Who turned `one` off by name.
    fn refused(&self, one: Enlightenment) -> Option<&By> {
        self.by.get(&one).filter(|_| !self.config.set.has(one))
    }

    /// What only the base brought goes with what it needs; what was asked for by name cannot.
    fn drop_what_lost_its_needs(&mut self) -> Result<(), Mistakes> {
        loop {
            let mut lost = self.config.set.iter().filter_map(|one| {
                let gone = one.row().needs.iter().copied().find(|need| self.refused(*need).is_some())?;
                Some((one, gone))
            });
            let Some((one, gone)) = lost.next() else { return Ok(()) };
            let (by, off) = (self.by.get(&one), self.refused(gone));
            let off = off.map_or_else(String::new, By::to_string);
            // Without it there is no interface at all.
            if by.is_some() || one == Enlightenment::Base {
                let by = by.unwrap_or(&self.base);
                let help = match one {
                    Enlightenment::Base => "say --hyperv off for no Hyper-V at all".into(),
                    one => format!("leave {} out as well", one.property()),
                };
                return Err(Mistakes(vec![Mistake {
                    within: "Hyper-V".into(),
                    place: None,
                    text: format!(
                        "{} ({by}) needs {}, which is off ({off}): {help}",
                        one.property(),
                        gone.property()
                    ),
                }]));
            }
            self.config.set = self.config.set.without(one);
            self.by.insert(one, By::GoneWith(gone));
        }
    }

    fn add_needs(&mut self) -> Vec<Added> {
        let before = self.config.set;
        self.config.set = before.closed();
        // Whatever is on, the base is: guests refuse the interface without it. That is nobody's omission.
        let silent = |need: Enlightenment| {
            need == Enlightenment::Base || Enlightenment::Base.row().needs.contains(&need)
        };
        let mut added = Vec::new();
        for one in before.iter() {
            let missing = one.row().needs.iter().copied().filter(|need| !before.has(*need));
            let missing: Vec<_> =
                missing.filter(|need| one != Enlightenment::Base && !silent(*need)).collect();
            if !missing.is_empty() {
                let by = self.by.get(&one).unwrap_or(&self.base).clone();
                added.push(Added { needs: one, missing, by });
            }
        }
        added
    }
}

/// Refuses what says two things at once.
fn contradictions(within: &str, wishes: &[Wish]) -> Result<(), Mistakes> {
    let same = |a: What, b: What| match (a, b) {
        (What::Set(a, _), What::Set(b, _)) => a == b,
        (What::Version(a, _), What::Version(b, _)) => a == b,
        (What::Vendor(_), What::Vendor(_)) | (What::Retries(_), What::Retries(_)) => true,
        _ => false,
    };
    let mut mistakes = Vec::new();
    for (index, wish) in wishes.iter().enumerate() {
        let earlier =
            wishes[..index].iter().find(|other| same(other.what, wish.what) && other.what != wish.what);
        if let Some(earlier) = earlier {
            let place = earlier.place.map_or_else(String::new, |place| format!(" at {place}"));
            let text = format!("'{}' contradicts '{}'{place}: leave one out", wish.words, earlier.words);
            mistakes.push(Mistake { within: within.into(), place: wish.place, text });
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(Mistakes(mistakes)) }
}

impl Enlightenment {
    /// Its name with QEMU's prefix, as messages call it.
    pub fn property(self) -> String {
        match self.row().qemu {
            Some(qemu) if self != Enlightenment::VersionId => qemu.into(),
            _ => format!("hv-{}", self.name().replace('_', "-")),
        }
    }

    /// All that it needs, and what these need, without itself.
    pub fn all_needs(self) -> Set {
        let all = [self].into_iter().collect::<Set>().closed();
        // Base and vpindex need each other.
        all.without(self)
    }
}

#[cfg(test)]
mod tests;
