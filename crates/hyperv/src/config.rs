//! Which enlightenments a partition has, and the words that choose them.

use satori_defs::hyperv::VENDOR;

use crate::Enlightenment;

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
    const fn with(self, one: Enlightenment) -> Self {
        Set(self.0 | 1 << one as u32)
    }
    const fn without(self, one: Enlightenment) -> Self {
        Set(self.0 & !(1 << one as u32))
    }
    /// The set with all that its members need.
    fn closed(self) -> Self {
        let all = self.iter().flat_map(|one| one.row().needs).fold(self, |set, need| set.with(*need));
        if all == self { self } else { all.closed() }
    }
}

impl FromIterator<Enlightenment> for Set {
    fn from_iter<I: IntoIterator<Item = Enlightenment>>(items: I) -> Self {
        items.into_iter().fold(Set::default(), Set::with)
    }
}

/// Refused values of `--hyperv`, and clocks that cannot be told to a guest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// There is no such enlightenment.
    #[error("unknown enlightenment '{word}'; known are auto, off, {known}")]
    Unknown {
        /// The word.
        word: String,
        /// What there is.
        known: String,
    },
    /// It cannot be had.
    #[error("'{0}' cannot be had: {1}; leave it out")]
    Refused(&'static str, &'static str),
    /// Something that stays needs what was taken away.
    #[error("'{kept}' needs '{removed}'; leave '{kept}' out as well, or use --hyperv off")]
    Needed {
        /// What stays.
        kept: &'static str,
        /// What was removed.
        removed: &'static str,
    },
    /// `off` beside something else.
    #[error("--hyperv off stands alone; name only what you want")]
    OffWithOthers,
    /// The vendor's name does not fit.
    #[error("the vendor '{0}' has more than 12 ASCII characters; shorten it")]
    Vendor(String),
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
    /// What is right for most guests.
    pub fn auto() -> Self {
        Config::of(Enlightenment::ALL.iter().copied().filter(|one| one.row().default).collect())
    }

    /// Everything that there is.
    pub fn all() -> Self {
        Config::of(Enlightenment::ALL.iter().copied().filter(|one| one.row().refused.is_none()).collect())
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

/// Parses `auto`, `off`, or a list of names: `auto` stands for the defaults, `NAME` or `+NAME`
/// adds with all that it needs, `-NAME` removes, `vendor_id=TEXT` sets the vendor.
impl std::str::FromStr for Config {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "off" {
            return Ok(Config::off());
        }
        let mut config = Config::off();
        let mut removed = Vec::new();
        for word in text.split(',').map(str::trim) {
            match word {
                "off" => return Err(Error::OffWithOthers),
                "auto" => {
                    config.set = config.set.iter().chain(Config::auto().set.iter()).collect();
                    continue;
                }
                _ => {}
            }
            if let Some(name) = word.strip_prefix('-') {
                let one = named(name)?;
                config.set = config.set.without(one);
                removed.push(one);
                continue;
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word.strip_prefix('+').unwrap_or(word), None),
            };
            let one = named(name)?;
            match (one, value) {
                (Enlightenment::VendorId, Some(value)) => config.vendor = vendor(value)?,
                (_, Some(_)) => return Err(unknown(word)),
                _ => {}
            }
            removed.retain(|other| *other != one);
            config.set = config.set.with(one);
        }
        config.set = config.set.closed();
        // What was removed, and came back because something that stays needs it.
        let back = removed.into_iter().find(|one| config.set.has(*one));
        if let Some(removed) = back {
            let kept = config.set.iter().find(|one| one.row().needs.contains(&removed));
            let kept = kept.map_or("the rest", Enlightenment::name);
            return Err(Error::Needed { kept, removed: removed.name() });
        }
        Ok(config)
    }
}

fn named(name: &str) -> Result<Enlightenment, Error> {
    let one = Enlightenment::by_name(name).ok_or_else(|| unknown(name))?;
    match one.row().refused {
        Some(why) => Err(Error::Refused(one.name(), why)),
        None => Ok(one),
    }
}

fn unknown(word: &str) -> Error {
    let known: Vec<_> = Config::all().set.iter().map(Enlightenment::name).collect();
    Error::Unknown { word: word.into(), known: known.join(", ") }
}

fn vendor(text: &str) -> Result<[u8; 12], Error> {
    let mut vendor = [0; 12];
    match vendor.get_mut(..text.len()) {
        Some(place) if text.is_ascii() => place.copy_from_slice(text.as_bytes()),
        _ => return Err(Error::Vendor(text.into())),
    }
    Ok(vendor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<&'static str>, Error> {
        text.parse::<Config>().map(|config| config.set.iter().map(Enlightenment::name).collect())
    }

    #[test]
    fn lists_bring_what_they_need_and_refuse_what_contradicts() {
        assert_eq!(names("off"), Ok(vec![]));
        assert_eq!(names("hv-time"), Ok(vec!["base", "vpindex", "time"]));
        let auto = [
            "base",
            "vpindex",
            "time",
            "frequencies",
            "crash",
            "relaxed",
            "vapic",
            "vendor_id",
            "version_id",
        ];
        assert_eq!(names("auto").as_deref(), Ok(auto.as_slice()));
        assert_eq!(names("auto,reset,-crash,-hv-time").map(|list| list.len()), Ok(8));
        assert_eq!(names("hv-evmcs").map_err(|error| error.to_string().contains("no VMX")), Err(true));
        assert_eq!(names("auto,-vpindex"), Err(Error::Needed { kept: "base", removed: "vpindex" }));
        assert_eq!(names("off,time"), Err(Error::OffWithOthers));
        let unknown = names("auto,vapci").unwrap_err().to_string();
        assert!(unknown.contains("vapci") && unknown.contains("frequencies"), "{unknown}");
        assert!(names("").is_err() && names("time=3").is_err());
    }

    #[test]
    fn the_vendor_is_padded_and_limited() {
        let config: Config = "auto,vendor_id=Me".parse().unwrap();
        assert_eq!(&config.vendor, b"Me\0\0\0\0\0\0\0\0\0\0");
        let long = "vendor_id=thirteen-char".parse::<Config>();
        assert_eq!(long, Err(Error::Vendor("thirteen-char".into())));
        assert!("vendor_id=ä".parse::<Config>().is_err());
    }
}
