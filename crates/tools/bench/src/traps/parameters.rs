//! The parameters of the talk's guest: one documented file, `data/game.conf`.

use crate::Error;

const BUILT_IN: &str = include_str!("../../data/game.conf");

/// Names and values, in the file's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters(Vec<(String, u64)>);

impl Default for Parameters {
    /// Those of our file.
    fn default() -> Self {
        // A test reads it.
        Parameters(lines(BUILT_IN).unwrap_or_default())
    }
}

fn lines(text: &str) -> Result<Vec<(String, u64)>, Error> {
    let mut found: Vec<(String, u64)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| Error::Parameter(format!("line {number}: {what}"));
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| wrong(format!("'{}' is no NAME = NUMBER", line.escape_debug())))?;
        let (name, value) = (name.trim(), value.trim());
        if found.iter().any(|(known, _)| known == name) {
            return Err(wrong(format!("a second {}", name.escape_debug())));
        }
        let value = value.parse().ok().filter(|value| *value <= 1_000_000_000);
        let value = value.ok_or_else(|| wrong(format!("{} is a number up to 10^9", name.escape_debug())))?;
        found.push((name.into(), value));
    }
    Ok(found)
}

impl Parameters {
    /// What a user's file changes of ours.
    pub fn with(text: &str) -> Result<Parameters, Error> {
        let mut all = Parameters::default();
        for (name, value) in lines(text)? {
            all.set(&name, value)?;
        }
        let (least, most) = (all.get("frame-least"), all.get("frame-most"));
        if least == 0 || least > most {
            return Err(Error::Parameter("frame-least is above 0 and at most frame-most".into()));
        }
        Ok(all)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The value of one; 0 if there is none of that name.
    pub fn get(&self, name: &str) -> u64 {
        self.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| value)
    }

    /// Changes one that there is.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), Error> {
        let most = match name {
            "vcpus" => 20,
            "targets" => 4,
            "masked" | "priority" | "wide" => 1000,
            _ => u64::MAX,
        };
        let least = u64::from(matches!(name, "vcpus" | "targets"));
        if !(least..=most).contains(&value) {
            return Err(Error::Parameter(format!("{name} is from {least} to {most}")));
        }
        let known = self.0.iter_mut().find(|(known, _)| known == name);
        let (_, known) =
            known.ok_or_else(|| Error::Parameter(format!("there is no {}", name.escape_debug())))?;
        *known = value;
        Ok(())
    }

    /// With some of them changed; names are those of the file.
    pub fn but(&self, changes: &[(&str, u64)]) -> Parameters {
        let mut all = self.clone();
        for (name, value) in changes {
            // What is out of bounds stays as it is.
            let _ = all.set(name, *value);
        }
        all
    }

    /// As words of the guest's command line.
    pub fn words(&self) -> String {
        self.iter().map(|(name, value)| format!(" {name}={value}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_file_is_whole_and_says_where_each_is_from() {
        let all = lines(BUILT_IN).unwrap();
        assert_eq!(Parameters::with(BUILT_IN).unwrap().0, all);
        let before: Vec<_> = BUILT_IN.lines().collect();
        for (name, _) in &all {
            let at = before.iter().position(|line| line.starts_with(&format!("{name} ="))).unwrap();
            let told = before[at - 1].starts_with('#') || name == "frame-most" || name == "wide";
            assert!(told, "{name} is not explained");
        }
        assert!(Parameters::default().words().len() < 800, "the guest has 1,024 bytes");
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (text, told) in [
            ("ipis 3", "line 1: 'ipis 3' is no NAME = NUMBER"),
            ("\nipis = x", "line 2: ipis is a number"),
            ("ipis = 1\nipis = 2", "line 2: a second ipis"),
            ("ipi = 1", "there is no ipi"),
            ("vcpus = 21", "vcpus is from 1 to 20"),
            ("targets = 0", "targets is from 1 to 4"),
            ("frame-least = 99999", "frame-least is above 0"),
        ] {
            assert!(Parameters::with(text).unwrap_err().to_string().contains(told), "{text}");
        }
        assert_eq!(Parameters::with("ipis = 7 # mine").unwrap().get("ipis"), 7);
    }
}
