//! What the parts of a switch cost: one documented file, `data/vhe.conf`.

use std::collections::BTreeMap;

use crate::Error;

const BUILT_IN: &str = include_str!("../../data/vhe.conf");

/// Cycles by the names of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs(BTreeMap<String, f64>);

impl Default for Costs {
    /// Those of our file.
    fn default() -> Self {
        // A test reads it.
        Costs(lines(BUILT_IN).unwrap_or_default())
    }
}

fn lines(text: &str) -> Result<BTreeMap<String, f64>, Error> {
    let mut found = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what: String| Error::Parameter(format!("line {number}: {what}"));
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| wrong(format!("'{}' is no NAME = CYCLES", line.escape_debug())))?;
        let (name, value) = (name.trim(), value.trim());
        let value = value.parse().ok().filter(|value| (0.0..=1e6).contains(value));
        let value = value
            .ok_or_else(|| wrong(format!("{} is a number of cycles, up to 10^6", name.escape_debug())))?;
        if found.insert(name.to_string(), value).is_some() {
            return Err(wrong(format!("a second {}", name.escape_debug())));
        }
    }
    Ok(found)
}

impl Costs {
    /// What a user's file changes of ours.
    pub fn with(text: &str) -> Result<Costs, Error> {
        let mut all = Costs::default();
        for (name, value) in lines(text)? {
            let known = all.0.get_mut(&name);
            *known.ok_or_else(|| Error::Parameter(format!("there is no {}", name.escape_debug())))? = value;
        }
        Ok(all)
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Of one event, by the name that the engine counts it by.
    pub fn of(&self, event: &str, slow_vgic: bool) -> f64 {
        let name = match event {
            "instructions" => "instruction",
            "exceptions" => "exception",
            "returns" => "return",
            "barriers" => "barrier",
            "tlbi" => "tlb-invalidation",
            "device_reads" => "slow-vgic-read",
            "device_writes" => "slow-vgic-write",
            "read_virtual_gic" if slow_vgic => "slow-vgic-read",
            "write_virtual_gic" if slow_vgic => "slow-vgic-write",
            _ if event.starts_with("read_") => "register-read",
            _ if event.starts_with("write_") => "register-write",
            // ERETs to EL0 are among all ERETs.
            _ => return 0.0,
        };
        self.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_file_is_whole_and_the_vgic_can_be_slow() {
        let costs = Costs::default();
        assert_eq!(Costs::with(BUILT_IN).unwrap(), costs);
        for event in
            ["instructions", "exceptions", "returns", "barriers", "tlbi", "device_reads", "device_writes"]
        {
            assert!(costs.of(event, false) > 0.0, "{event}");
        }
        assert!(costs.of("read_virtual_gic", true) > 10.0 * costs.of("read_virtual_gic", false));
        assert!(costs.of("read_el1", false) > 0.0 && costs.of("write_el1", true) > 0.0);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (text, told) in [
            ("barrier 3", "line 1: 'barrier 3' is no NAME = CYCLES"),
            ("\nbarrier = -1", "line 2: barrier is a number"),
            ("barrier = 1\nbarrier = 2", "line 2: a second barrier"),
            ("barier = 1", "there is no barier"),
        ] {
            assert!(Costs::with(text).unwrap_err().to_string().contains(told), "{text}");
        }
        assert_eq!(Costs::with("barrier = 7.5 # mine").unwrap().get("barrier"), 7.5);
    }
}
