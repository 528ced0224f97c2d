//! Which bits of control registers and of IA32_SPEC_CTRL a processor has, by its features (SDM 2.5); of IA32_EFER all that a write does.

mod efer;

use satori_defs::x86::cr4;

use crate::Feature;
pub use efer::{EferWrite, efer};

/// CR4 bits that exist only with their feature.
const CR4: &[(u64, Feature)] = &[
    (cr4::VME | cr4::PVI, Feature::Vme),
    (cr4::TSD, Feature::Tsc),
    (cr4::DE, Feature::De),
    (cr4::PSE, Feature::Pse),
    (cr4::PAE, Feature::Pae),
    (cr4::MCE, Feature::Mce),
    (cr4::PGE, Feature::Pge),
    (cr4::OSFXSR, Feature::Fxsr),
    (cr4::OSXMMEXCPT, Feature::Sse),
    (cr4::UMIP, Feature::Umip),
    (cr4::LA57, Feature::La57),
    (cr4::VMXE, Feature::Vmx),
    (cr4::FSGSBASE, Feature::Fsgsbase),
    (cr4::PCIDE, Feature::Pcid),
    (cr4::OSXSAVE, Feature::Xsave),
    (cr4::SMEP, Feature::Smep),
    (cr4::SMAP, Feature::Smap),
    (cr4::PKE, Feature::Pku),
];

/// CR4 bits of every processor that we model.
const CR4_ALWAYS: u64 = cr4::PCE;

fn sum(always: u64, bits: &[(u64, Feature)], has: impl Fn(Feature) -> bool) -> u64 {
    bits.iter().filter(|(_, feature)| has(*feature)).fold(always, |sum, (bit, _)| sum | bit)
}

/// The bits of CR4 that exist on a processor that has these features.
pub fn cr4(has: impl Fn(Feature) -> bool) -> u64 {
    sum(CR4_ALWAYS, CR4, has)
}

/// Bits of IA32_SPEC_CTRL with the features that bring them: Intel's, and AMD's.
const SPEC_CTRL: [(u64, [Feature; 2]); 3] = [
    (1 << 0, [Feature::SpecCtrl, Feature::Ibrs]),
    (1 << 1, [Feature::Stibp, Feature::AmdStibp]),
    (1 << 2, [Feature::Ssbd, Feature::AmdSsbd]),
];

/// The bits of IA32_SPEC_CTRL that exist on a processor that has these features.
pub fn spec_ctrl(has: impl Fn(Feature) -> bool) -> u64 {
    let offered = SPEC_CTRL.iter().filter(|(_, features)| features.iter().any(|feature| has(*feature)));
    offered.fold(0, |mask, (bit, _)| mask | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_vendors_feature_brings_a_bit_of_spec_ctrl() {
        assert_eq!(spec_ctrl(|_| false), 0);
        assert_eq!(spec_ctrl(|feature| matches!(feature, Feature::Ibrs | Feature::Stibp)), 3);
        assert_eq!(spec_ctrl(|feature| matches!(feature, Feature::AmdSsbd | Feature::Ssbd)), 4);
    }

    #[test]
    fn a_bit_comes_and_goes_with_its_feature() {
        assert_eq!(cr4(|_| false), cr4::PCE);
        assert_eq!(cr4(|feature| feature == Feature::Vme), cr4::PCE | cr4::VME | cr4::PVI);
        for table in [CR4, efer::BITS] {
            let all = table.iter().fold(0, |all, (bits, feature)| {
                assert_eq!(all & bits, 0, "{feature:?}: one feature a bit");
                all | bits
            });
            assert_eq!(sum(0, table, |_| true), all);
        }
    }
}
