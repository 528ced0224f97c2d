//! `--xen`: what of the interface is offered, in words.

pub mod convert;

use crate::{Config, FEATURES, Feature, Kind, TscMode};

/// What was chosen, and by which word; none is the default.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// What the domain is offered.
    pub config: Config,
    /// Each feature, in the order of the table.
    pub by: Vec<(Feature, Option<String>)>,
}

impl Chosen {
    /// What a guest of this kind is offered by `list`: `auto`, or words that change it, joined by commas.
    pub fn new(kind: Kind, list: Option<&str>) -> Result<Self, String> {
        let mut chosen =
            Chosen { config: Config::new(kind), by: FEATURES.iter().map(|row| (row.what, None)).collect() };
        let mut tsc = false;
        for word in list.into_iter().filter(|list| *list != "auto").flat_map(|list| list.split(',')) {
            match word.strip_prefix("tsc=") {
                Some(_) if tsc => return Err(twice("tsc")),
                Some(mode) => {
                    chosen.config.tsc = tsc_mode(mode)?;
                    tsc = true;
                }
                None => chosen.set(word)?,
            }
        }
        let vectors = [Feature::CallbackVector, Feature::UpcallVector];
        if kind == Kind::Pvh && !vectors.iter().any(|one| chosen.config.has(*one)) {
            return Err("-callback-vector and -upcall-vector: a PVH guest has no interrupt line for events; leave one of \
                 the two out, or say --guest xen-hvm"
                .into());
        }
        Ok(chosen)
    }

    fn set(&mut self, word: &str) -> Result<(), String> {
        let (on, name) = match word.strip_prefix('-') {
            Some(name) => (false, name),
            None => (true, word.strip_prefix('+').unwrap_or(word)),
        };
        let Some(row) = FEATURES.iter().find(|row| row.name == name) else {
            let names: Vec<_> = FEATURES.iter().map(|row| row.name).collect();
            return Err(format!(
                "'{word}' is nothing of Xen's: write auto, or a + or - before {}, or tsc=default|emulate|never",
                names.join(", ")
            ));
        };
        for (_, by) in self.by.iter_mut().filter(|(what, _)| *what == row.what) {
            if by.is_some() {
                return Err(twice(name));
            }
            *by = Some(word.into());
        }
        self.config = self.config.with(row.what, on);
        Ok(())
    }
}

fn twice(name: &str) -> String {
    format!("'{name}' stands twice: leave one out")
}

fn tsc_mode(name: &str) -> Result<TscMode, String> {
    let found = TscMode::ALL.iter().find(|row| row.1 == name).map(|row| row.0);
    found.ok_or_else(|| format!("there is no TSC mode '{name}': write tsc=default, tsc=emulate or tsc=never"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_change_what_is_offered() {
        let all = Chosen::new(Kind::Pvh, None).unwrap();
        assert!(FEATURES.iter().all(|row| all.config.has(row.what)));
        assert_eq!(Chosen::new(Kind::Pvh, Some("auto")).unwrap().config, all.config);
        let some = Chosen::new(Kind::Hvm, Some("-callback-vector,+fifo,tsc=never")).unwrap();
        assert!(!some.config.has(Feature::CallbackVector) && some.config.has(Feature::Fifo));
        assert_eq!((some.config.tsc, some.by[0].1.as_deref()), (TscMode::Never, Some("-callback-vector")));
        let written = convert::to_satori(&some.config).text;
        assert_eq!(written, "--guest xen-hvm --xen -callback-vector,tsc=never");
        assert_eq!(convert::to_satori(&all.config).text, "--guest xen-pvh --xen auto");
        let xml = convert::to_libvirt(&some.config).text;
        assert!(xml.contains("hvm</type>") && xml.contains("mode='native'"), "{xml}");
        let qemu = convert::to_qemu("max", &some.config);
        assert!(qemu.text.contains("xen-version=0x40011") && qemu.left_out.len() == 3, "{qemu:?}");
        for (kind, list, words) in [
            (Kind::Pvh, "-callback-vector,-upcall-vector", "--guest xen-hvm"),
            (Kind::Hvm, "-callbacks", "nothing of Xen's"),
            (Kind::Hvm, "", "nothing of Xen's"),
            (Kind::Hvm, "fifo,-fifo", "twice"),
            (Kind::Hvm, "tsc=never,tsc=default", "twice"),
            (Kind::Hvm, "tsc=always", "tsc=emulate"),
        ] {
            let said = Chosen::new(kind, Some(list)).unwrap_err();
            assert!(said.contains(words), "{list}: {said}");
        }
    }
}
