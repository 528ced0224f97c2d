//! The state of a whole machine.

use std::collections::BTreeMap;

use crate::{Error, Value};

/// The values of a machine's parts, by their places.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved(BTreeMap<String, Value>);

impl Saved {
    /// Keeps `value` as that of the part at `place`. Two parts at one place are a mistake of ours, which is told.
    pub fn put(&mut self, place: impl Into<String>, value: Value) -> Result<(), Error> {
        let place = place.into();
        match self.0.insert(place.clone(), value) {
            None => Ok(()),
            Some(_) => Err(Error::refused(place, "two parts of the machine have this name")),
        }
    }

    /// Gives the value of the part at `place` away.
    pub fn take(&mut self, place: &str) -> Result<Value, Error> {
        self.0.remove(place).ok_or_else(|| Error::Missing { place: place.into() })
    }

    /// To be called when all parts have taken theirs: there must be none left.
    pub fn finish(self) -> Result<(), Error> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(place) => Err(Error::Unknown { place }),
        }
    }

    /// All values with their places.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(place, value)| (place.as_str(), value))
    }

    /// The same, for whoever damages them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        self.0.iter_mut().map(|(place, value)| (place.as_str(), value))
    }

    /// The places at which this one and `other` are not equal.
    pub fn differences(&self, other: &Saved) -> Vec<String> {
        let mine = self.0.iter().filter(|(place, value)| other.0.get(*place) != Some(value));
        let theirs = other.0.keys().filter(|place| !self.0.contains_key(*place));
        mine.map(|(place, _)| place.clone()).chain(theirs.cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::State;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lamp {
        on: bool,
    }

    impl State for Lamp {
        const NAME: &'static str = "lamp";
        const VERSION: u32 = 2;
    }

    #[test]
    fn a_state_comes_back_only_under_its_name_and_version() {
        let value = Value::of(&Lamp { on: true }).unwrap();
        assert_eq!(value.state::<Lamp>(), Ok(Lamp { on: true }));
        let other = |name: &str, version, tree| {
            let error = Value::from_parts(name.into(), version, tree, Vec::new()).state::<Lamp>();
            error.unwrap_err().to_string()
        };
        assert!(other("door", 2, value.tree().clone()).contains("'door' where a 'lamp'"));
        assert!(
            other("lamp", 1, value.tree().clone()).contains("version 1, and this Satori reads version 2")
        );
        for damaged in ["{}", r#"{"on": 1}"#, r#"{"on": true, "colour": 3}"#, "[]", "null"] {
            let tree = serde_json::from_str(damaged).unwrap();
            assert!(other("lamp", 2, tree).starts_with("the saved 'lamp' is damaged"), "{damaged}");
        }
    }

    #[test]
    fn a_packed_value_is_whole_or_refused() {
        let mut value = Value::of(&Lamp { on: true }).unwrap();
        value.set_bytes(vec![1, 2, 3]);
        let packed = value.pack().unwrap();
        assert_eq!(Value::unpack(&packed, "lamp"), Ok(value));
        let text = packed.len() - 3;
        for len in 0..text {
            let refused = Value::unpack(&packed[..len], "lamp").unwrap_err().to_string();
            assert!(refused.starts_with("the saved 'lamp' is damaged"), "{len}");
        }
        for len in [0, 1, text as u64, u64::MAX, 1 << 63] {
            let other = [&len.to_le_bytes(), &packed[8..]].concat();
            assert!(Value::unpack(&other, "lamp").is_err(), "{len}");
        }
    }

    #[test]
    fn no_part_may_be_missing_or_left_over() {
        let lamp = || Value::of(&Lamp { on: true }).unwrap();
        let mut saved = Saved::default();
        saved.put("hall", lamp()).unwrap();
        assert!(saved.put("hall", lamp()).is_err(), "two lamps in one place");
        saved.put("stairs", lamp()).unwrap();
        let mut dark = saved.clone();
        dark.iter_mut().next().unwrap().1.tree_mut()["on"] = false.into();
        dark.put("cellar", lamp()).unwrap();
        assert_eq!(saved.differences(&dark), ["hall", "cellar"]);
        assert_eq!(saved.take("kitchen"), Err(Error::Missing { place: "kitchen".into() }));
        saved.take("hall").unwrap();
        assert_eq!(saved.clone().finish(), Err(Error::Unknown { place: "stairs".into() }));
        saved.take("stairs").unwrap();
        assert_eq!(saved.finish(), Ok(()));
    }
}
