//! What a processor offers, in the form that an engine asks for it.

use crate::Feature;

/// Whose processor it is: the vendor string of leaf 0. Rules that differ between vendors follow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// GenuineIntel, and all that follow its rules.
    #[default]
    Intel,
    /// AuthenticAMD and HygonGenuine.
    Amd,
    /// Any other string; Intel's rules hold.
    Other,
}

impl Vendor {
    /// That of the processor that executes this.
    pub fn host() -> Self {
        let leaf = std::arch::x86_64::__cpuid(0);
        let words = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
        Vendor::of(words.as_flattened().try_into().unwrap_or(&[0; 12]))
    }

    /// The vendor of a string, in the order in which EBX, EDX and ECX of leaf 0 spell it.
    pub fn of(string: &[u8; 12]) -> Self {
        match string {
            b"GenuineIntel" => Vendor::Intel,
            b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
            _ => Vendor::Other,
        }
    }
}

const WORDS: usize = Feature::ALL.len().div_ceil(64);

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet([u64; WORDS]);

impl FeatureSet {
    /// No feature.
    pub const EMPTY: Self = FeatureSet([0; WORDS]);

    /// The features of a list.
    pub const fn of(features: &[Feature]) -> Self {
        let mut set = Self::EMPTY;
        let mut i = 0;
        while i < features.len() {
            let bit = features[i] as usize;
            set.0[bit / 64] |= 1 << (bit % 64);
            i += 1;
        }
        set
    }

    /// Whether `feature` is among them.
    pub const fn has(&self, feature: Feature) -> bool {
        let bit = feature as usize;
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }

    /// Adds or removes a feature.
    pub const fn set(&mut self, feature: Feature, on: bool) {
        let bit = feature as usize;
        if on {
            self.0[bit / 64] |= 1 << (bit % 64);
        } else {
            self.0[bit / 64] &= !(1 << (bit % 64));
        }
    }
}

impl FromIterator<Feature> for FeatureSet {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        let mut set = Self::EMPTY;
        for feature in features {
            set.set(feature, true);
        }
        set
    }
}

/// What the guest is offered: an engine enforces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Whose rules hold where vendors differ.
    pub vendor: Vendor,
    /// Instructions, registers and register bits of other features do not exist.
    pub features: FeatureSet,
}

impl Offered {
    /// Every feature that has a name, from Intel: nothing is refused.
    pub const EVERYTHING: Self = Offered { vendor: Vendor::Intel, features: FeatureSet::of(Feature::ALL) };

    /// Whether the guest is offered `feature`.
    pub const fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in_and_nothing_else() {
        let mut set = FeatureSet::of(&[Feature::Sse3, Feature::Invtsc]);
        assert!(set.has(Feature::Sse3) && set.has(Feature::Invtsc) && !set.has(Feature::Lm));
        set.set(Feature::Sse3, false);
        set.set(Feature::Lm, true);
        let left: Vec<_> = Feature::ALL.iter().copied().filter(|f| set.has(*f)).collect();
        assert_eq!(left, [Feature::Lm, Feature::Invtsc]);
        assert_eq!(left.into_iter().collect::<FeatureSet>(), set);
    }

    #[test]
    fn vendors_are_told_by_their_string() {
        assert_eq!(Vendor::of(b"GenuineIntel"), Vendor::Intel);
        assert_eq!(Vendor::of(b"HygonGenuine"), Vendor::Amd);
        assert_eq!(Vendor::of(b"CentaurHauls"), Vendor::Other);
    }
}
