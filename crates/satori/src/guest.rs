//! `--guest`: which interfaces a guest finds, and whether the other options agree with that.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use satori_hyperv::choice::{Base, By, Choice, Chosen, What, Wish};
use satori_kvm::choice as kvm;
use satori_pv::{Mistake, Mistakes};
use satori_xen::Kind;
use satori_xen::choice as xen;

/// An interface that a guest finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// Hyper-V's.
    Hyperv,
    /// KVM's.
    Kvm,
    /// Xen's, for guests with hardware's memory management and no emulated devices of its own.
    XenPvh,
    /// Xen's, for guests that take their machine for a PC, with Xen's devices beside.
    XenHvm,
}

impl Face {
    const ALL: [(Face, &'static str); 4] =
        [(Face::Hyperv, "hyperv"), (Face::Kvm, "kvm"), (Face::XenPvh, "xen-pvh"), (Face::XenHvm, "xen-hvm")];
}

/// The value of `--guest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest(Vec<Face>);

impl Default for Guest {
    fn default() -> Self {
        Guest(vec![Face::Hyperv])
    }
}

impl FromStr for Guest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Guest(Vec::new()));
        }
        let mut faces = Vec::new();
        for word in text.split('+') {
            let face = Face::ALL.iter().find(|(_, name)| *name == word).map(|(face, _)| *face);
            match face {
                Some(face) if faces.contains(&face) => {
                    return Err(format!("'{word}' stands twice: leave one out"));
                }
                Some(face) => faces.push(face),
                None if word == "none" => return Err("'none' stands alone: leave the rest out".into()),
                None => {
                    let known: Vec<_> = Face::ALL.iter().map(|(_, name)| *name).collect();
                    return Err(format!(
                        "no interface is called '{word}': write {}, joined by +",
                        known.join(" or ")
                    ));
                }
            }
        }
        let both = |one, other| faces.contains(&one) && faces.contains(&other);
        if both(Face::XenPvh, Face::XenHvm) {
            return Err("xen-pvh and xen-hvm are two kinds of guests: leave one out".into());
        }
        if both(Face::XenPvh, Face::Hyperv) {
            return Err("xen-pvh stands without hyperv, which Xen's hosts show HVM guests alone: say \
                 xen-hvm+hyperv, or leave hyperv out"
                .into());
        }
        if faces.contains(&Face::Kvm) && faces.iter().any(|face| face.is_xen()) {
            return Err("kvm and Xen do not stand together, as no host shows both: leave one out".into());
        }
        Ok(Guest(faces))
    }
}

impl Face {
    fn is_xen(self) -> bool {
        matches!(self, Face::XenPvh | Face::XenHvm)
    }
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self
            .0
            .iter()
            .flat_map(|face| Face::ALL.iter().find(|(known, _)| known == face))
            .map(|one| one.1)
            .collect();
        f.write_str(if names.is_empty() { "none".into() } else { names.join("+") }.as_str())
    }
}

fn refused(within: &str, text: String) -> Mistakes {
    Mistakes(vec![Mistake { within: within.into(), place: None, text }])
}

impl Guest {
    /// Whether the guest finds `face`.
    pub fn has(&self, face: Face) -> bool {
        self.0.contains(&face)
    }

    /// Which guest of Xen's it is, if it is one.
    pub fn xen(&self) -> Option<Kind> {
        match (self.has(Face::XenPvh), self.has(Face::XenHvm)) {
            (true, _) => Some(Kind::Pvh),
            (_, true) => Some(Kind::Hvm),
            _ => None,
        }
    }

    /// Whether no other face may stand beside what the guest finds, or there is none to stand beside.
    fn alone(&self) -> bool {
        self.0.is_empty() || self.has(Face::XenPvh)
    }

    /// What is chosen of Hyper-V before any word: nothing, where it is not among the interfaces.
    pub(crate) fn begin(&self, choice: &mut Choice) -> Result<(), Mistakes> {
        if self.has(Face::Hyperv) {
            return Ok(());
        }
        let wish = Wish { what: What::Base(Base::Nothing), words: self.to_string(), place: None };
        choice.apply("--guest", &[wish])
    }

    /// Whether what was chosen of Hyper-V goes with the list, which was `asked` for or is the default.
    pub(crate) fn agrees(&self, asked: bool, chosen: &Chosen) -> Result<(), Mistakes> {
        let some = chosen.config.set.iter().next();
        match some {
            Some(_) if !self.has(Face::Hyperv) => {
                let by = chosen.by.iter().filter(|(one, _)| chosen.config.set.has(*one)).map(|(_, by)| by);
                let by = by.filter(|by| matches!(by, By::Words { .. })).map(ToString::to_string).next();
                let with = if self.alone() { "hyperv".into() } else { format!("{self}+hyperv") };
                let by = by.unwrap_or_else(|| "an option".into());
                let text = format!(
                    "{self} has no Hyper-V, and {by} asks for it: say --guest {with}, or leave that out"
                );
                Err(refused("--guest", text))
            }
            None if asked && self.has(Face::Hyperv) => {
                let text = format!(
                    "{self} has Hyper-V, and --hyperv, --cpu or --libvirt turns all of it off: leave one out"
                );
                Err(refused("--guest", text))
            }
            _ => Ok(()),
        }
    }
}

/// What is offered of KVM's interface, by `--kvm` and what `--cpu` says of it.
pub(crate) fn kvm(guest: &Guest, list: Option<&str>, of_cpu: &[kvm::Wish]) -> Result<kvm::Chosen, Mistakes> {
    let offered = guest.has(Face::Kvm);
    let (config, who) = match offered {
        true => (satori_kvm::Config::auto(), "the default".to_string()),
        false => (satori_kvm::Config::off(), format!("--guest {guest}")),
    };
    let mut choice = kvm::Choice::new(config, &who);
    if let Some(list) = list {
        choice.apply("--kvm", &kvm::list(list)?)?;
    }
    choice.apply("--cpu", of_cpu)?;
    let chosen = choice.finish()?;
    let some = chosen.by.iter().find(|(one, by)| chosen.config.set.has(*one) && *by != who);
    match some {
        Some((_, by)) if !offered => {
            let beside = !guest.alone() && guest.xen().is_none();
            let with = if beside { format!(" or kvm+{guest}") } else { String::new() };
            let text =
                format!("{guest} has no KVM, and {by} asks for it: say --guest kvm{with}, or leave that out");
            Err(refused("--guest", text))
        }
        None if offered && list.is_some() && chosen.config.set.is_empty() => {
            Err(refused("--kvm", format!("off contradicts --guest {guest}: leave one out")))
        }
        _ => Ok(chosen),
    }
}

/// What is offered of Xen's interface, by `--xen`.
pub(crate) fn xen(guest: &Guest, list: Option<&str>) -> Result<Option<xen::Chosen>, Mistakes> {
    let Some(kind) = guest.xen() else {
        return match list {
            None => Ok(None),
            Some(list) => {
                let text = format!(
                    "{guest} has no Xen, and --xen {list} asks for it: say --guest xen-pvh or xen-hvm, or leave that out"
                );
                Err(refused("--guest", text))
            }
        };
    };
    let mut chosen = xen::Chosen::new(kind, list).map_err(|text| refused("--xen", text))?;
    chosen.config.behind = guest.has(Face::Hyperv);
    Ok(Some(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_alike() {
        for text in ["none", "hyperv", "kvm", "kvm+hyperv", "xen-pvh", "xen-hvm", "xen-hvm+hyperv"] {
            assert_eq!(text.parse::<Guest>().unwrap().to_string(), text);
        }
        for (text, words) in [
            ("kvm+kvm", "twice"),
            ("kvm+none", "alone"),
            ("vmware", "hyperv or kvm or xen-pvh"),
            ("xen-pvh+kvm", "do not stand together"),
            ("xen-pvh+hyperv", "xen-hvm+hyperv"),
            ("xen-pvh+xen-hvm", "two kinds"),
            ("", "''"),
        ] {
            assert!(text.parse::<Guest>().unwrap_err().contains(words), "{text}");
        }
    }
}
