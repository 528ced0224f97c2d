//! Which features a VM has, and the CPUID leaves that follow.

use satori_cpuid::{Leaf, Registers};
use satori_defs::kvm::SIGNATURE;
use satori_pv::signature;

use crate::Feature;

/// A set of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u32);

impl Set {
    /// Whether `one` is in the set.
    pub const fn has(self, one: Feature) -> bool {
        self.0 & 1 << one as u32 != 0
    }
    /// Whether nothing is in the set: the guest sees no KVM at all.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The members, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.iter().copied().filter(move |one| self.has(*one))
    }
    /// The set with `one` in it.
    #[must_use]
    pub const fn with(self, one: Feature) -> Self {
        Set(self.0 | 1 << one as u32)
    }
    /// The set without `one`.
    #[must_use]
    pub const fn without(self, one: Feature) -> Self {
        Set(self.0 & !(1 << one as u32))
    }
    /// The set with all that its members need; each needs [`Feature::Base`].
    #[must_use]
    pub fn closed(self) -> Self {
        let base = if self.is_empty() { self } else { self.with(Feature::Base) };
        let all = self.iter().flat_map(|one| one.row().needs).fold(base, |set, need| set.with(*need));
        if all == self { self } else { all.closed() }
    }
}

impl FromIterator<Feature> for Set {
    fn from_iter<I: IntoIterator<Item = Feature>>(items: I) -> Self {
        items.into_iter().fold(Set::default(), Set::with)
    }
}

/// What a VM offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The features that are on, closed under what they need; none is no interface at all.
    pub set: Set,
}

impl Config {
    /// What is right for most guests.
    pub fn auto() -> Self {
        Config { set: Feature::ALL.iter().copied().filter(|one| one.row().default).collect() }
    }

    /// Everything that there is.
    pub fn all() -> Self {
        Config { set: Feature::ALL.iter().copied().filter(|one| one.row().refused.is_none()).collect() }
    }

    /// No KVM at all.
    pub fn off() -> Self {
        Config::default()
    }

    /// The leaves at `base`; none if everything is off.
    pub fn leaves(&self, base: u32) -> Vec<Leaf> {
        if self.set.is_empty() {
            return Vec::new();
        }
        let mut features = Registers::default();
        for bit in self.set.iter().flat_map(|one| one.row().cpuid) {
            *features.get_mut(bit.register) |= 1 << bit.bit;
        }
        vec![signature(base, 1, SIGNATURE), Leaf { leaf: base + 1, subleaf: 0, value: features }]
    }
}
