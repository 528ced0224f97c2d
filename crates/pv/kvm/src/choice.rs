//! From what options ask for to what a VM offers, and who decided it.
//!
//! A [`Choice`] takes the wishes of one source after the other: `--libvirt`, then `--kvm`, then `--cpu`; the later counts. At the
//! end what is needed is added, and told.

pub mod convert;

use std::collections::BTreeMap;

pub use satori_pv::{Mistake, Mistakes, Place};

use crate::{Config, Feature};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Instead of all that was before.
    Base(Config),
    /// One feature on or off.
    Set(Feature, bool),
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

/// What has been chosen up to now.
#[derive(Clone, Debug)]
pub struct Choice {
    config: Config,
    /// Who decided on what no word of its own decided.
    base: String,
    by: BTreeMap<Feature, String>,
}

/// What is offered in the end.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// What the VM is made by.
    pub config: Config,
    /// Who decided on each feature, in the order of the table.
    pub by: Vec<(Feature, String)>,
    /// What was missing and has been added.
    pub added: Vec<String>,
    /// What does not go well together.
    pub conflicts: Vec<String>,
}

impl Choice {
    /// What is chosen without a word: `config`, which `who` decided on.
    pub fn new(config: Config, who: &str) -> Self {
        Choice { config, base: who.into(), by: BTreeMap::new() }
    }

    /// Takes what `within`, an option or a file, asks for.
    pub fn apply(&mut self, within: &str, wishes: &[Wish]) -> Result<(), Mistakes> {
        contradictions(within, wishes)?;
        let who = |wish: &Wish| match wish.place {
            Some(place) if place.line.is_some() => format!("{within}:{place}: {}", wish.words),
            Some(place) => format!("{within} {} ({place})", wish.words),
            None => format!("{within} {}", wish.words),
        };
        let bases = || wishes.iter().filter(|wish| matches!(wish.what, What::Base(_)));
        if let Some(first) = bases().next() {
            (self.config, self.base) = (Config::off(), who(first));
            self.by.clear();
        }
        for wish in bases() {
            if let What::Base(base) = wish.what {
                self.config.set = self.config.set.iter().chain(base.set.iter()).collect();
            }
        }
        for wish in wishes {
            if let What::Set(one, on) = wish.what {
                let set = self.config.set;
                self.config.set = if on { set.with(one) } else { set.without(one) };
                self.by.insert(one, who(wish));
            }
        }
        // kvm=off hides the interface with all that is in it.
        if wishes.iter().any(|wish| wish.what == What::Set(Feature::Base, false)) {
            self.config = Config::off();
        }
        Ok(())
    }

    /// Adds what is needed, and refuses what cannot be.
    pub fn finish(mut self) -> Result<Chosen, Mistakes> {
        loop {
            let off = |need: &Feature| !self.config.set.has(*need) && self.by.contains_key(need);
            let lost = self.config.set.iter().find_map(|one| {
                let needs = one.row().needs.iter().chain((one != Feature::Base).then_some(&Feature::Base));
                Some((one, needs.copied().find(|need| off(need))?))
            });
            let Some((one, gone)) = lost else { break };
            if let Some(by) = self.by.get(&one) {
                let text = format!(
                    "{} ({by}) needs {}, which is off ({}): leave {} out as well",
                    one.property(),
                    gone.property(),
                    self.by[&gone],
                    one.property()
                );
                return Err(Mistakes(vec![Mistake { within: "KVM".into(), place: None, text }]));
            }
            self.config.set = self.config.set.without(one);
            self.by.insert(one, format!("goes with {}", gone.name()));
        }
        let asked = self.config.set;
        self.config.set = asked.closed();
        let (mut added, mut conflicts) = (Vec::new(), Vec::new());
        for one in asked.iter() {
            let missing: Vec<_> = one.row().needs.iter().filter(|need| !asked.has(**need)).collect();
            if !missing.is_empty() {
                let missing: Vec<_> = missing.iter().map(|one| one.property()).collect();
                added.push(format!("{} needs {}", one.property(), missing.join(" and ")));
            }
        }
        for one in self.config.set.iter() {
            for (other, what) in one.row().conflicts.iter().filter(|(other, _)| self.config.set.has(*other)) {
                conflicts.push(format!("{} beside {}: {what}", one.property(), other.property()));
            }
        }
        let by = Feature::ALL.iter().map(|one| {
            let needer = || asked.iter().find(|other| other.row().needs.contains(one));
            let by = match self.by.get(one) {
                Some(by) => by.clone(),
                None if asked.has(*one) || !self.config.set.has(*one) => self.base.clone(),
                None => needer().map_or(self.base.clone(), |needer| format!("needed by {}", needer.name())),
            };
            (*one, by)
        });
        Ok(Chosen { config: self.config, by: by.collect(), added, conflicts })
    }
}

/// Refuses what says two things at once.
fn contradictions(within: &str, wishes: &[Wish]) -> Result<(), Mistakes> {
    let opposite = |a: &Wish, b: &Wish| matches!((a.what, b.what), (What::Set(a, x), What::Set(b, y)) if a == b && x != y);
    let mut mistakes = Vec::new();
    for (index, wish) in wishes.iter().enumerate() {
        if let Some(earlier) = wishes[..index].iter().find(|earlier| opposite(earlier, wish)) {
            let place = earlier.place.map_or_else(String::new, |place| format!(" at {place}"));
            let text = format!("'{}' contradicts '{}'{place}: leave one out", wish.words, earlier.words);
            mistakes.push(Mistake { within: within.into(), place: wish.place, text });
        }
    }
    if mistakes.is_empty() { Ok(()) } else { Err(Mistakes(mistakes)) }
}

/// Reads the value of `--kvm`: `auto`, `off`, `all`, or a list of these and `NAME`, `+NAME` and `-NAME`. A list that begins with
/// a sign changes what was there before; any other replaces it.
pub fn list(text: &str) -> Result<Vec<Wish>, Mistakes> {
    let (mut wishes, mut mistakes) = (Vec::new(), Vec::new());
    let mut at = 0;
    for part in text.split(',') {
        let word = part.trim();
        let place = Some(Place::column(text, at + part.len() - part.trim_start().len()));
        at += part.len() + 1;
        let what = match word {
            "off" | "none" if text.trim() == word => Ok(What::Base(Config::off())),
            "off" | "none" => Err(format!("'{word}' stands alone: leave the rest out, or write -NAME")),
            "auto" => Ok(What::Base(Config::auto())),
            "all" => Ok(What::Base(Config::all())),
            _ => {
                let on = !word.starts_with('-');
                named(word.strip_prefix(['+', '-']).unwrap_or(word), on).map(|one| What::Set(one, on))
            }
        };
        match what {
            Ok(what) => wishes.push(Wish { what, words: word.into(), place }),
            Err(text) => mistakes.push(Mistake { within: "--kvm".into(), place, text }),
        }
    }
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes));
    }
    let based = wishes.iter().any(|wish| matches!(wish.what, What::Base(_)));
    if !text.trim_start().starts_with(['+', '-']) && !based {
        wishes.insert(0, Wish { what: What::Base(Config::off()), words: text.into(), place: None });
    }
    Ok(wishes)
}

/// Takes KVM's properties out of `rest`, a part of the `whole` value of `--cpu`.
pub fn cpu_option(rest: &str, whole: &str) -> Result<(String, Vec<Wish>), Mistakes> {
    let (mut left, mut wishes, mut mistakes) = (Vec::new(), Vec::new(), Vec::new());
    for part in rest.split(',') {
        let bare = part.strip_prefix(['+', '-']).unwrap_or(part);
        let (name, value) = bare.split_once('=').map_or((bare, None), |(name, value)| (name, Some(value)));
        let plain = name.replace('_', "-");
        if plain != "kvm" && !plain.starts_with("kvm-") && !plain.starts_with("kvmclock") {
            left.push(part);
            continue;
        }
        let place = whole.find(part).map(|at| Place::column(whole, at));
        match property(part, &plain, value) {
            Ok(what) => wishes.extend(what.map(|what| Wish { what, words: part.into(), place })),
            Err(text) => mistakes.push(Mistake { within: "--cpu".into(), place, text }),
        }
    }
    if mistakes.is_empty() { Ok((left.join(","), wishes)) } else { Err(Mistakes(mistakes)) }
}

fn property(part: &str, name: &str, value: Option<&str>) -> Result<Option<What>, String> {
    let on = match (part.as_bytes().first(), value) {
        (Some(b'+' | b'-'), Some(value)) => {
            return Err(format!("a sign and a value at once: write {name}={value}"));
        }
        (Some(b'-'), None) => false,
        (_, None | Some("on" | "yes" | "true" | "y")) => true,
        (_, Some("off" | "no" | "false" | "n")) => false,
        (_, Some(value)) => return Err(format!("{name} takes on or off, not '{value}': write {name}=on")),
    };
    if name == "kvm-pv-enforce-cpuid" {
        let never = || format!("{part}: what is not offered is always refused: leave it out");
        return if on { Ok(None) } else { Err(never()) };
    }
    match named(name, on) {
        // QEMU's `kvm-asyncpf=off` asks for what is so.
        Ok(one) if one.row().refused.is_some() => Ok(None),
        Ok(one) => Ok(Some(What::Set(one, on))),
        Err(text) => Err(text),
    }
}

/// The feature called `name`, which may be asked for.
fn named(name: &str, on: bool) -> Result<Feature, String> {
    let Some(one) = Feature::by_name(name) else {
        let bare = |name: &str| name.trim_start_matches("kvm").replace(['-', '_'], "");
        let near =
            Feature::ALL.iter().min_by_key(|one| satori_cpuid::distance(&bare(one.name()), &bare(name)));
        let near =
            near.filter(|one| name.len() < 40 && satori_cpuid::distance(&bare(one.name()), &bare(name)) <= 2);
        return Err(match near {
            Some(near) => format!("unknown feature '{name}' of KVM: write {}", near.name()),
            None => format!("unknown feature '{name}' of KVM: 'satori kvm list' names all"),
        });
    };
    match one.row().refused {
        Some(why) if on => Err(format!("'{}' cannot be had: {why}; leave it out", one.name())),
        _ => Ok(one),
    }
}
