//! Processor models: which signature, and which features.
//!
//! The signature is that of Saltwell (family 6, model 0x36, "Cedarview"). Linux lists it as
//! NO_SPECULATION and NO_ITLB_MULTIHIT in `cpu_vuln_whitelist` (arch/x86/kernel/cpu/common.c, 6.1
//! and 6.12): every file in `/sys/devices/system/cpu/vulnerabilities` says "Not affected", so
//! there is no page-table isolation, no retpoline, no return thunk, no VERW, no RSB filling and
//! no LFENCE after SWAPGS. A newer signature with every `_NO` bit would still be listed under
//! Spectre v1 and v2. Neither kernel has quirks for the model (performance events, cpufreq, RAPL
//! and TSC calibration match other ones), and stepping 1 is the one that was sold.
//! Guests that do not know the list read the same from IA32_ARCH_CAPABILITIES.

use satori_defs::cpuid::arch_capabilities as cap;

use crate::Feature;
use crate::Feature::*;

/// CPUID.1:EAX of every model: family 6, model 0x36, stepping 1.
pub const SIGNATURE: u32 = 0x0003_0661;

/// IA32_ARCH_CAPABILITIES of every model: immune to everything that has a bit.
pub const ARCH_CAPABILITIES: u64 = cap::RDCL_NO
    | cap::IBRS_ALL
    | cap::SKIP_L1DFL_VMENTRY
    | cap::SSB_NO
    | cap::MDS_NO
    | cap::PSCHANGE_MC_NO
    | cap::TAA_NO
    | cap::SBDR_SSDP_NO
    | cap::FBSDP_NO
    | cap::PSDP_NO
    | cap::BHI_NO
    | cap::PBRSB_NO
    | cap::GDS_NO
    | cap::RFDS_NO
    | cap::ITS_NO;

/// Refused `--cpu` values.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// There is no such model.
    #[error("unknown CPU model '{0}'; known are x86-64-v1, x86-64-v2 and max")]
    UnknownModel(String),
    /// There is no such feature.
    #[error("unknown CPU feature '{0}'; `--cpu max` offers all that there are")]
    UnknownFeature(String),
    /// A `+feature` that the engine cannot execute.
    #[error("the engine does not implement the CPU feature '{0}'; leave it out of --cpu")]
    NotImplemented(&'static str),
    /// A feature of the model that the engine cannot execute.
    #[error("the engine lacks '{feature}', which the CPU model {model} promises; use --cpu max")]
    ModelNeeds {
        /// The model's name.
        model: &'static str,
        /// The missing feature's name.
        feature: &'static str,
    },
}

/// A processor model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuModel {
    /// The x86-64 psABI's baseline.
    V1,
    /// The x86-64 psABI's level 2: up to SSE4.2 and POPCNT.
    V2,
    /// All that the engine implements.
    #[default]
    Max,
}

/// psABI x86-64-v1, with what an operating system needs beside it.
const V1: &[Feature] =
    &[Fpu, De, Pse, Tsc, Msr, Pae, Cx8, Sep, Pge, Cmov, Clflush, Mmx, Fxsr, Sse, Sse2, Syscall, Nx, Lm];
/// What psABI x86-64-v2 adds.
const V2: &[Feature] = &[Sse3, Ssse3, Cx16, Sse4_1, Sse4_2, Popcnt, LahfLm];

impl CpuModel {
    /// Every model.
    pub const ALL: &'static [CpuModel] = &[CpuModel::V1, CpuModel::V2, CpuModel::Max];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            CpuModel::V1 => "x86-64-v1",
            CpuModel::V2 => "x86-64-v2",
            CpuModel::Max => "max",
        }
    }

    /// Whether the model, where the engine has it, offers `feature` of an engine.
    pub fn offers(self, feature: Feature) -> bool {
        match self {
            CpuModel::V1 => V1.contains(&feature) || feature == Pse36,
            CpuModel::V2 => CpuModel::V1.offers(feature) || V2.contains(&feature),
            CpuModel::Max => true,
        }
    }

    /// The features that the model's name promises.
    pub fn promises(self) -> impl Iterator<Item = Feature> {
        let v2: &[Feature] = if self == CpuModel::V2 { V2 } else { &[] };
        let v1: &[Feature] = if self == CpuModel::Max { &[] } else { V1 };
        v1.iter().chain(v2).copied()
    }
}

impl std::str::FromStr for CpuModel {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.iter().copied().find(|model| model.name() == name);
        found.ok_or_else(|| Error::UnknownModel(name.into()))
    }
}

/// The value of `--cpu`: `MODEL[,+FEATURE|,-FEATURE]...`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSpec {
    /// The model.
    pub model: CpuModel,
    /// Features added (true) or removed, in the order given; the last word counts.
    pub changes: Vec<(Feature, bool)>,
}

impl std::str::FromStr for CpuSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.split(',');
        let model = parts.next().unwrap_or_default().parse()?;
        let change = |part: &str| {
            let (name, on) = match (part.strip_prefix('+'), part.strip_prefix('-')) {
                (Some(name), _) => (name, true),
                (_, Some(name)) => (name, false),
                _ => return Err(Error::UnknownFeature(part.into())),
            };
            Feature::by_name(name).map(|f| (f, on)).ok_or_else(|| Error::UnknownFeature(name.into()))
        };
        Ok(CpuSpec { model, changes: parts.map(change).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_parse_and_mistakes_name_what_is_known() {
        let spec: CpuSpec = "x86-64-v2,+rdrand,-sse4_2".parse().unwrap();
        assert_eq!(spec, CpuSpec { model: CpuModel::V2, changes: vec![(Rdrand, true), (Sse4_2, false)] });
        let unknown = "skylake".parse::<CpuSpec>().unwrap_err();
        assert!(CpuModel::ALL.iter().all(|model| unknown.to_string().contains(model.name())), "{unknown}");
        assert_eq!("max,+sse5".parse::<CpuSpec>(), Err(Error::UnknownFeature("sse5".into())));
        assert_eq!("max,rdrand".parse::<CpuSpec>(), Err(Error::UnknownFeature("rdrand".into())));
    }
}
