//! Which enlightenments a partition has.

use satori_defs::hyperv::VENDOR;

use crate::Enlightenment;
use crate::choice::{self, Choice, Mistakes};

/// A set of enlightenments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u64);

impl Set {
    /// Whether `one` is in the set.
    pub const fn has(self, one: Enlightenment) -> bool {
        self.0 & 1 << one as u32 != 0
    }
    /// Whether nothing is in the set: the guest sees no Hyper-V at all.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The members, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = Enlightenment> {
        Enlightenment::ALL.iter().copied().filter(move |one| self.has(*one))
    }
    pub(crate) const fn with(self, one: Enlightenment) -> Self {
        Set(self.0 | 1 << one as u32)
    }
    pub(crate) const fn without(self, one: Enlightenment) -> Self {
        Set(self.0 & !(1 << one as u32))
    }
    /// The set with all that its members need.
    #[must_use]
    pub fn closed(self) -> Self {
        let all = self.iter().flat_map(|one| one.row().needs).fold(self, |set, need| set.with(*need));
        if all == self { self } else { all.closed() }
    }
}

impl FromIterator<Enlightenment> for Set {
    fn from_iter<I: IntoIterator<Item = Enlightenment>>(items: I) -> Self {
        items.into_iter().fold(Set::default(), Set::with)
    }
}

/// Clocks that cannot be told to a guest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The TSC is too slow for reference time.
    #[error(
        "a TSC of {0} Hz is too slow for Hyper-V's 10 MHz reference time; use a faster one or --hyperv off"
    )]
    SlowTsc(u64),
}

/// What a partition offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The enlightenments that are on, closed under what they need.
    pub set: Set,
    /// The vendor in leaf 0x40000000.
    pub vendor: [u8; 12],
    /// The version in leaf 0x40000002.
    pub version: Version,
    /// With `spinlocks`: how often a guest should try a lock before it tells the hypervisor, in
    /// leaf 0x40000004; [`SPIN_NEVER`] for never, which it also is without.
    pub spin_retries: u32,
}

/// The fewest attempts that QEMU and libvirt accept.
pub const SPIN_RETRIES: u32 = 0xfff;
/// A guest shall never tell of a long spin.
pub const SPIN_NEVER: u32 = u32::MAX;

/// The hypervisor's version, as leaf 0x40000002 has it (TLFS 2.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Build number.
    pub build: u32,
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
    /// Service pack.
    pub service_pack: u32,
    /// Service branch.
    pub branch: u8,
    /// Service number, 24 bits.
    pub number: u32,
}

impl Default for Version {
    /// As QEMU gives it by default: 10.0, build 14393, which is Windows Server 2016.
    fn default() -> Self {
        Version { build: 14393, major: 10, minor: 0, service_pack: 0, branch: 0, number: 0 }
    }
}

impl Config {
    /// What is right for most guests, on whatever processor.
    pub fn auto() -> Self {
        Config::auto_on(false)
    }

    /// What is right for most guests where the processor virtualises the APIC (`apicv`) or not: where it does, nothing is
    /// recommended that would turn that off or bypass it.
    pub fn auto_on(apicv: bool) -> Self {
        Config::of(Enlightenment::ALL.iter().copied().filter(|one| one.row().default.on(apicv)).collect())
    }

    /// Everything that there is for a guest that is no hypervisor.
    pub fn all() -> Self {
        let all = Config::all_nested();
        Config { set: all.set.iter().filter(|one| !one.row().nested).collect(), ..all }
    }

    /// Everything that there is.
    pub fn all_nested() -> Self {
        Config::of(Enlightenment::ALL.iter().copied().filter(|one| one.row().refused.is_none()).collect())
    }

    /// What there is for guests that are hypervisors.
    #[cfg(test)]
    pub(crate) fn of_nested() -> Self {
        let set: Set = Enlightenment::ALL.iter().copied().filter(|one| one.row().nested).collect();
        Config::of(set.closed())
    }

    /// No Hyper-V at all.
    pub fn off() -> Self {
        Config::of(Set::default())
    }

    fn of(set: Set) -> Self {
        Config { set, vendor: VENDOR, version: Version::default(), spin_retries: SPIN_RETRIES }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::auto()
    }
}

/// Parses the value of `--hyperv` (see [`list`](crate::choice::list)).
impl std::str::FromStr for Config {
    type Err = Mistakes;

    fn from_str(text: &str) -> Result<Self, Mistakes> {
        let mut choice = Choice::default();
        choice.apply("--hyperv", &choice::list(text)?)?;
        Ok(choice.finish()?.config)
    }
}
