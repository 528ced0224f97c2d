//! What of the host's processor translated code uses.

use std::sync::Arc;

use iced_x86::CpuidFeature;
use satori_cpuid::Feature;

/// The host's processor, less what it is to do without: that shows how translation does on a host that
/// does not have it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    without: Arc<[Feature]>,
    /// Vectors of 256 bits.
    pub avx: bool,
    pub bmi2: bool,
    /// The kernel lets programs write the base of GS.
    pub fsgsbase: bool,
}

impl Default for Host {
    fn default() -> Self {
        Self::without(&[])
    }
}

impl Host {
    /// As if it had none of these.
    pub(crate) fn without(features: &[Feature]) -> Self {
        let mut without: Vec<Feature> = features.to_vec();
        without.extend(features.iter().flat_map(|feature| feature.dependents()));
        let lacks = |feature| without.contains(&feature);
        // SAFETY: getauxval reads a table. Bit 1 of it is HWCAP2_FSGSBASE.
        let fsgsbase = unsafe { libc::getauxval(libc::AT_HWCAP2) } & 2 != 0;
        Host {
            avx: is_x86_feature_detected!("avx") && !lacks(Feature::Avx),
            bmi2: is_x86_feature_detected!("bmi2") && !lacks(Feature::Bmi2),
            fsgsbase: fsgsbase && !lacks(Feature::Fsgsbase),
            without: without.into(),
        }
    }

    /// Whether it executes what the decoder calls `feature`.
    pub(crate) fn has(&self, feature: CpuidFeature) -> bool {
        use CpuidFeature::*;
        let (name, has) = match feature {
            BMI1 => (Feature::Bmi1, is_x86_feature_detected!("bmi1")),
            BMI2 => (Feature::Bmi2, is_x86_feature_detected!("bmi2")),
            LZCNT => (Feature::Abm, is_x86_feature_detected!("lzcnt")),
            POPCNT => (Feature::Popcnt, is_x86_feature_detected!("popcnt")),
            ADX => (Feature::Adx, is_x86_feature_detected!("adx")),
            MOVBE => (Feature::Movbe, is_x86_feature_detected!("movbe")),
            SSE3 => (Feature::Sse3, is_x86_feature_detected!("sse3")),
            SSSE3 => (Feature::Ssse3, is_x86_feature_detected!("ssse3")),
            SSE4_1 => (Feature::Sse4_1, is_x86_feature_detected!("sse4.1")),
            SSE4_2 => (Feature::Sse4_2, is_x86_feature_detected!("sse4.2")),
            CMPXCHG16B => (Feature::Cx16, is_x86_feature_detected!("cmpxchg16b")),
            AES => (Feature::Aes, is_x86_feature_detected!("aes")),
            PCLMULQDQ => (Feature::Pclmulqdq, is_x86_feature_detected!("pclmulqdq")),
            SHA => (Feature::ShaNi, is_x86_feature_detected!("sha")),
            AVX => (Feature::Avx, is_x86_feature_detected!("avx")),
            AVX2 => (Feature::Avx2, is_x86_feature_detected!("avx2")),
            FMA => (Feature::Fma, is_x86_feature_detected!("fma")),
            F16C => (Feature::F16c, is_x86_feature_detected!("f16c")),
            VAES => (Feature::Vaes, is_x86_feature_detected!("vaes")),
            VPCLMULQDQ => (Feature::Vpclmulqdq, is_x86_feature_detected!("vpclmulqdq")),
            // They are offered to no guest.
            SSE4A => return is_x86_feature_detected!("sse4a"),
            GFNI => return is_x86_feature_detected!("gfni"),
            // What every 64-bit processor has.
            _ => return true,
        };
        has && !self.without.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_a_lacking_feature_is_lacking_too() {
        let host = Host::without(&[Feature::Avx, Feature::Bmi2, Feature::Fsgsbase]);
        assert!(!host.avx && !host.bmi2 && !host.fsgsbase);
        for feature in [CpuidFeature::AVX, CpuidFeature::AVX2, CpuidFeature::FMA, CpuidFeature::BMI2] {
            assert!(!host.has(feature), "{feature:?}");
        }
        assert!(host.has(CpuidFeature::SSE2));
        assert_eq!(host.has(CpuidFeature::BMI1), is_x86_feature_detected!("bmi1"));
    }
}
