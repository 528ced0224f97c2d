//! IA32_EFER (SDM 2.2.1, 10.8.5): which bits there are, when a write is refused, and what the register holds behind it.

use satori_defs::x86::efer;
use satori_rules::within;

use super::sum;
use crate::Feature;

/// Bits that can be written only with their feature.
pub(super) const BITS: &[(u64, Feature)] = &[
    (efer::SCE, Feature::Syscall),
    (efer::LME, Feature::Lm),
    (efer::NXE, Feature::Nx),
    (efer::SVME, Feature::Svm),
    (efer::AIBRSE, Feature::AutoIbrs),
];

/// The bits of IA32_EFER that can be written on a processor that has these features. LMA is not among them.
pub fn efer(has: impl Fn(Feature) -> bool) -> u64 {
    sum(0, BITS, has)
}

/// A write, and what decides it beside the processor's features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EferWrite {
    /// What the register holds.
    pub old: u64,
    /// What is written.
    pub value: u64,
    /// CR0.PG.
    pub paging: bool,
    /// IA32_MISC_ENABLE hides the feature of NXE.
    pub nx_hidden: bool,
}

impl EferWrite {
    /// What the register holds then; none if the write is refused, as one of a bit without its feature is. LMA is the processor's: it may
    /// be written and stays; loading CR0 changes it ([`satori_rules::cr0::paging`]). LME cannot change while paging is on. NXE that is set
    /// may stay while its feature is hidden: KVM takes the bit at any time, and its guests go on with NXE.
    pub fn written(self, has: impl Fn(Feature) -> bool) -> Option<u64> {
        let EferWrite { old, value, paging, nx_hidden } = self;
        let hidden = if nx_hidden { efer::NXE & !old } else { 0 };
        let exist = efer(has) & !hidden;
        if !within(value, exist | efer::LMA) || paging && (value ^ old) & efer::LME != 0 {
            return None;
        }
        Some(value & exist | old & efer::LMA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_kept_refused_or_the_processors() {
        let processors: [&dyn Fn(Feature) -> bool; 3] =
            [&|_| true, &|feature| feature == Feature::Lm, &|_| false];
        for has in processors {
            let exist = efer(has);
            for (old, bit) in [0, efer::LME, efer::LME | efer::LMA]
                .into_iter()
                .flat_map(|old| (0..64).map(move |bit| (old, bit)))
            {
                let value = old & exist ^ 1 << bit;
                for (paging, nx_hidden) in [(false, false), (true, false), (false, true)] {
                    let after = EferWrite { old, value, paging, nx_hidden }.written(has);
                    let unknown = value & !(exist | efer::LMA) != 0 || nx_hidden && value & efer::NXE != 0;
                    let length = paging && (value ^ old) >> 8 & 1 != 0;
                    assert_eq!(
                        after.is_none(),
                        unknown || length,
                        "{exist:#x} {old:#x} {bit} {paging} {nx_hidden}"
                    );
                    if let Some(after) = after {
                        assert_eq!(after & efer::LMA, old & efer::LMA, "the processor's");
                        assert_eq!(after & !efer::LMA, value & !efer::LMA);
                    }
                }
            }
        }
    }

    #[test]
    fn nxe_stays_where_its_feature_is_hidden() {
        let write = |old, value| EferWrite { old, value, paging: true, nx_hidden: true }.written(|_| true);
        assert_eq!(write(efer::NXE, efer::NXE | efer::SCE), Some(efer::NXE | efer::SCE));
        assert_eq!((write(0, efer::NXE), write(efer::NXE, 0)), (None, Some(0)));
        assert_eq!((efer(|_| false), efer(|feature| feature == Feature::Nx)), (0, efer::NXE));
    }
}
