//! Processor models and the value of `--cpu`.

use crate::Feature::{self, *};
use crate::Identity;

/// Refused `--cpu` and `--cpus` values.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// There is no such model.
    #[error("unknown CPU model '{0}'; known are x86-64-v1, x86-64-v2, x86-64-v3 and max")]
    UnknownModel(String),
    /// `host`: what it runs on is not what it offers.
    #[error("the CPU model 'host' needs the host's own processor, which no engine uses yet; use max")]
    Host,
    /// A psABI level whose instructions do not exist here.
    #[error(
        "the CPU model {0} promises AVX-512, which this version does not implement yet; use x86-64-v3, or max \
         for all that there is"
    )]
    NotYet(&'static str),
    /// There is no such feature.
    #[error("unknown CPU feature '{name}'{}; `satori cpu --features` lists all", hint(.near))]
    UnknownFeature {
        /// What was asked for.
        name: String,
        /// What it may have been meant for.
        near: Vec<&'static str>,
    },
    /// A feature without a sign.
    #[error("'{0}' says neither on nor off: write +{0}, -{0} or {0}=on")]
    NoSign(String),
    /// A setting with a value that it cannot have.
    #[error("{name}= takes {wants}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What it takes.
        wants: &'static str,
    },
    /// `feature=` with something else than on or off.
    #[error("{0}= takes on or off")]
    OnOff(String),
    /// A `+feature` that the engine cannot execute.
    #[error("the engine does not implement the CPU feature '{0}'; leave it out of --cpu")]
    NotImplemented(&'static str),
    /// A `+feature` that the processors of the vendor do not have.
    #[error("a processor of {vendor} has no '{feature}'; leave it out, or leave vendor= out")]
    VendorLacks {
        /// The feature's name.
        feature: &'static str,
        /// The vendor's string.
        vendor: String,
    },
    /// A `+feature` without what it builds on, which QEMU would leave out with a warning.
    #[error("the CPU feature '{feature}' needs what this processor does not have: say {} as well, or leave it out", added(.missing))]
    FeatureNeeds {
        /// The feature's name.
        feature: &'static str,
        /// What it needs, the first first.
        missing: Vec<&'static str>,
    },
    /// A feature of the model that the engine cannot execute.
    #[error("the engine lacks '{feature}', which the CPU model {model} promises; use --cpu max")]
    ModelNeeds {
        /// The model's name.
        model: &'static str,
        /// The missing feature's name.
        feature: &'static str,
    },
    /// A `+feature` that the engine leaves to the host's own processor, which does not have it.
    #[error(
        "the CPU feature '{0}' needs a host that has it, as the host's own instructions do the work, and this \
         machine's processor does not; leave it out of --cpu"
    )]
    HostLacks(&'static str),
    /// A feature of the model that the engine leaves to the host's own processor.
    #[error(
        "the CPU model {model} promises '{feature}', for which the host's own instructions do the work, and this \
         machine's processor does not have it; use --cpu max for all that can be had here"
    )]
    HostLacksOfModel {
        /// The model's name.
        model: &'static str,
        /// The missing feature's name.
        feature: &'static str,
    },
    /// A number of processors that there cannot be.
    #[error("--cpus: {0}")]
    Topology(String),
}

fn added(missing: &[&'static str]) -> String {
    missing.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(",")
}

fn hint(near: &[&'static str]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

/// A processor model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuModel {
    /// The x86-64 psABI's baseline.
    V1,
    /// The x86-64 psABI's level 2: up to SSE4.2 and POPCNT.
    V2,
    /// The x86-64 psABI's level 3: AVX2, FMA, BMI2 and what goes with them.
    V3,
    /// All that the engine implements.
    #[default]
    Max,
}

/// psABI x86-64-v1, with what an operating system needs beside it.
const V1: &[Feature] =
    &[Fpu, De, Pse, Tsc, Msr, Pae, Cx8, Sep, Pge, Cmov, Clflush, Mmx, Fxsr, Sse, Sse2, Syscall, Nx, Lm];
/// What psABI x86-64-v2 adds.
const V2: &[Feature] = &[Sse3, Ssse3, Cx16, Sse4_1, Sse4_2, Popcnt, LahfLm];
/// What psABI x86-64-v3 adds.
const V3: &[Feature] = &[Fma, Movbe, Xsave, Avx, F16c, Bmi1, Avx2, Bmi2, Abm];

impl CpuModel {
    /// Every model.
    pub const ALL: &'static [CpuModel] = &[CpuModel::V1, CpuModel::V2, CpuModel::V3, CpuModel::Max];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            CpuModel::V1 => "x86-64-v1",
            CpuModel::V2 => "x86-64-v2",
            CpuModel::V3 => "x86-64-v3",
            CpuModel::Max => "max",
        }
    }

    /// Whether the model, where the engine has it, offers `feature` of an engine.
    pub fn offers(self, feature: Feature) -> bool {
        match self {
            CpuModel::V1 => V1.contains(&feature) || feature == Pse36,
            CpuModel::V2 => CpuModel::V1.offers(feature) || V2.contains(&feature),
            CpuModel::V3 => CpuModel::V2.offers(feature) || V3.contains(&feature),
            // Virtualisation is for those who ask for it.
            CpuModel::Max => !matches!(feature, Vmx | Svm),
        }
    }

    /// The features that the model's name promises.
    pub fn promises(self) -> impl Iterator<Item = Feature> {
        let levels: &[&[Feature]] = match self {
            CpuModel::V1 => &[V1],
            CpuModel::V2 => &[V1, V2],
            CpuModel::V3 => &[V1, V2, V3],
            CpuModel::Max => &[],
        };
        levels.iter().copied().flatten().copied()
    }
}

impl std::str::FromStr for CpuModel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "x86-64-v4" => return Err(Error::NotYet("x86-64-v4")),
            "host" => return Err(Error::Host),
            _ => {}
        }
        let found = Self::ALL.iter().copied().find(|model| model.name() == name);
        found.ok_or_else(|| Error::UnknownModel(name.into()))
    }
}

/// The value of `--cpu`: `MODEL[,+FEATURE|,-FEATURE|,FEATURE=on|off|,SETTING=VALUE]...`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSpec {
    /// The model.
    pub model: CpuModel,
    /// Features added (true) or removed, in the order given; the last word counts.
    pub changes: Vec<(Feature, bool)>,
    /// Vendor, family, model, stepping and name.
    pub identity: Identity,
}

impl std::str::FromStr for CpuSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.split(',');
        let mut spec = CpuSpec { model: parts.next().unwrap_or_default().parse()?, ..CpuSpec::default() };
        let mut vendor = false;
        for part in parts {
            vendor |= part.starts_with("vendor=");
            spec.change(part)?;
        }
        // Only AMD's processors have it.
        if spec.asks(Svm) && !vendor {
            spec.identity.vendor = *b"AuthenticAMD";
        }
        Ok(spec)
    }
}

impl CpuSpec {
    /// Whether `feature`, which no model has by itself, is asked for.
    pub fn asks(&self, feature: Feature) -> bool {
        self.changes.iter().rev().find(|(one, _)| *one == feature).is_some_and(|(_, on)| *on)
    }

    fn change(&mut self, part: &str) -> Result<(), Error> {
        let feature = |name: &str| {
            let unknown = || Error::UnknownFeature { name: name.into(), near: Feature::near(name) };
            Feature::by_name(name).ok_or_else(unknown)
        };
        let change = if let Some(name) = part.strip_prefix('+') {
            (feature(name)?, true)
        } else if let Some(name) = part.strip_prefix('-') {
            (feature(name)?, false)
        } else if let Some((name, value)) = part.split_once('=') {
            if self.identity.set(name, value)? {
                return Ok(());
            }
            let feature = feature(name)?;
            match value {
                "on" | "yes" | "true" | "y" => (feature, true),
                "off" | "no" | "false" | "n" => (feature, false),
                _ => return Err(Error::OnOff(name.into())),
            }
        } else {
            feature(part)?;
            return Err(Error::NoSign(part.into()));
        };
        self.changes.push(change);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Vendor;

    #[test]
    fn specs_parse_as_qemus_do() {
        let spec: CpuSpec = "x86-64-v2,+rdrand,-sse4_2,smep=on,popcnt=off".parse().unwrap();
        assert_eq!(spec.model, CpuModel::V2);
        assert_eq!(spec.changes, [(Rdrand, true), (Sse4_2, false), (Smep, true), (Popcnt, false)]);
        let spec: CpuSpec =
            "max,vendor=AuthenticAMD,family=23,model=0x31,stepping=0,model-id=My CPU".parse().unwrap();
        assert_eq!(spec.identity.vendor(), Vendor::Amd);
        assert_eq!(
            (spec.identity.signature(), spec.identity.model_id.as_deref()),
            (0x0083_0f10, Some("My CPU"))
        );
        let other: CpuSpec = "max,vendor=Shanghai  ok".parse().unwrap();
        assert_eq!((other.identity.vendor(), &other.identity.vendor), (Vendor::Other, b"Shanghai  ok"));
    }

    #[test]
    fn mistakes_say_what_to_do() {
        for (text, words) in [
            ("skylake", "x86-64-v1, x86-64-v2, x86-64-v3 and max"),
            ("", "known are"),
            ("x86-64-v4", "AVX-512, which this version does not implement yet; use x86-64-v3"),
            ("host", "use max"),
            ("max,+sse5", "did you mean"),
            ("max,+warp", "unknown CPU feature 'warp'; `satori cpu"),
            ("max,-popcount", "did you mean popcnt?"),
            ("max,rdrand", "write +rdrand, -rdrand or rdrand=on"),
            ("max,rdrand=maybe", "rdrand= takes on or off"),
            ("max,", "unknown CPU feature ''"),
            ("max,vendor=Intel", "twelve characters"),
            ("max,vendor=Genuine\u{e9}ntel", "twelve characters"),
            ("max,family=271", "0 to 270"),
            ("max,model=-1", "0 to 255"),
            ("max,stepping=0x10", "0 to 15"),
            ("max,model-id=123456789012345678901234567890123456789012345678x", "48 bytes"),
        ] {
            let error = text.parse::<CpuSpec>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
