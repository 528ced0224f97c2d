//! Names and values, and what wrong ones were meant for.

use crate::{Enlightenment, SPIN_NEVER, Version};

/// A part of [`crate::Version`], as QEMU names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionField {
    /// `build`.
    Build,
    /// `major`.
    Major,
    /// `minor`.
    Minor,
    /// `spack`.
    ServicePack,
    /// `sbranch`.
    Branch,
    /// `snumber`.
    Number,
}

impl VersionField {
    /// Every part, with QEMU's name and its largest value.
    pub const ALL: [(VersionField, &'static str, u32); 6] = [
        (VersionField::Build, "build", u32::MAX),
        (VersionField::Major, "major", u16::MAX as u32),
        (VersionField::Minor, "minor", u16::MAX as u32),
        (VersionField::ServicePack, "spack", u32::MAX),
        (VersionField::Branch, "sbranch", u8::MAX as u32),
        (VersionField::Number, "snumber", 0xff_ffff),
    ];

    /// What `version` has there.
    pub fn get(self, version: &Version) -> u32 {
        match self {
            VersionField::Build => version.build,
            VersionField::Major => version.major.into(),
            VersionField::Minor => version.minor.into(),
            VersionField::ServicePack => version.service_pack,
            VersionField::Branch => version.branch.into(),
            VersionField::Number => version.number,
        }
    }

    pub(super) fn put(self, version: &mut Version, number: u32) {
        // The readers check the ranges; what is left over is cut, not wrapped into a neighbour.
        match self {
            VersionField::Build => version.build = number,
            VersionField::Major => version.major = number as u16,
            VersionField::Minor => version.minor = number as u16,
            VersionField::ServicePack => version.service_pack = number,
            VersionField::Branch => version.branch = number as u8,
            VersionField::Number => version.number = number & 0xff_ffff,
        }
    }
}

/// A name in one spelling: small letters and hyphens.
pub(super) fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// `name` as QEMU's property without its prefix, if it has one.
pub fn property(name: &str) -> Option<&str> {
    name.strip_prefix("hv-").or_else(|| name.strip_prefix("hv_"))
}

/// The enlightenment that a wrong `name` was meant for: letters exchanged or left out, hyphens and
/// prefixes lost.
pub fn meant(name: &str) -> Option<Enlightenment> {
    let bare = |name: &str| {
        let name: String = plain(name).chars().filter(char::is_ascii_alphanumeric).collect();
        name.strip_prefix("hv").map(String::from).unwrap_or(name)
    };
    // No name is as long; who writes more does not mean one.
    if name.len() > 40 {
        return None;
    }
    let wanted = bare(name);
    let candidates = Enlightenment::ALL.iter().flat_map(|one| {
        let row = one.row();
        let names = [Some(row.name), row.qemu].into_iter().flatten().chain(row.aliases.iter().copied());
        names.map(|known| (satori_cpuid::distance(&bare(known), &wanted), *one))
    });
    let (far, one) = candidates.min_by_key(|(far, _)| *far)?;
    let near = if wanted.len() > 4 { 2 } else { 1 };
    (far <= near && wanted.len() > 1).then_some(one)
}

/// The value of a vendor: at most twelve characters of ASCII that can be written again. QEMU has no way to write the
/// names on and off.
pub fn vendor(text: &str) -> Result<[u8; 12], String> {
    let mut vendor = [0; 12];
    let printed = text.bytes().all(|byte| !byte.is_ascii_control());
    if !printed || matches!(text, "" | "on" | "off") {
        return Err(format!("'{}' is no vendor's name: write KVM Hv, say", text.escape_debug()));
    }
    match vendor.get_mut(..text.len()) {
        Some(place) if text.is_ascii() => place.copy_from_slice(text.as_bytes()),
        _ => return Err(format!("the vendor '{text}' has more than 12 ASCII characters: shorten it")),
    }
    Ok(vendor)
}

/// The number of a spinlock's retries: 0xfff to 0xffffffff, of which the last means never.
pub fn retries(text: &str) -> Result<u32, String> {
    let wants = "takes 4095 (0xfff) to 4294967295 (0xffffffff, which is never)";
    let number = number(text).filter(|number| (0xfff..=u64::from(SPIN_NEVER)).contains(number));
    let number = number.and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| format!("the number of retries {wants}, not '{text}': write 4096"))
}

/// A number as QEMU takes it: decimal, or hexadecimal behind 0x.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) if digits(hex) => u64::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None if digits(text) => text.parse().ok(),
        None => None,
    }
}
