//! Sets of virtual processors, as masks and HV_VP_SETs name them.

use satori_defs::hyperv::{Status, vp_set};

/// Banks that a set can have: one for each bit of the valid bank mask.
const BANKS: usize = 64;

/// A set of virtual processors, in banks of 64 by VP index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VpSet {
    banks: [u64; BANKS],
}

impl VpSet {
    /// All virtual processors that a set can name.
    pub const ALL: VpSet = VpSet { banks: [u64::MAX; BANKS] };

    /// The first 64 by a mask.
    pub fn mask(mask: u64) -> Self {
        let mut banks = [0; BANKS];
        banks[0] = mask;
        VpSet { banks }
    }

    /// An HV_VP_SET: format and valid bank mask, and the banks in the variable header.
    ///
    /// Linux leaves the mask of the format "all" as it was, so it is not looked at then.
    pub fn sparse(format: u64, valid: u64, banks: &[u64]) -> Result<Self, Status> {
        match format {
            vp_set::ALL => Ok(VpSet::ALL),
            vp_set::SPARSE if valid.count_ones() as usize != banks.len() => {
                Err(Status::InvalidHypercallInput)
            }
            vp_set::SPARSE => {
                let mut set = VpSet::mask(0);
                let places = (0..BANKS).filter(|bank| valid & 1 << bank != 0);
                places.zip(banks).for_each(|(place, bank)| set.banks[place] = *bank);
                Ok(set)
            }
            _ => Err(Status::InvalidParameter),
        }
    }

    /// Whether the virtual processor with this index is in the set.
    pub fn has(&self, index: u32) -> bool {
        let bank = self.banks.get((index / vp_set::BANK) as usize);
        bank.is_some_and(|bank| bank & 1 << (index % vp_set::BANK) != 0)
    }

    /// The members below `count`, which is how many there are: others do not exist.
    pub fn members(&self, count: u32) -> impl Iterator<Item = u32> + '_ {
        (0..count).filter(|index| self.has(*index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_are_where_the_mask_says() {
        let set = VpSet::sparse(vp_set::SPARSE, 0b101, &[0x21, 0x4]).unwrap();
        assert_eq!(set.members(200).collect::<Vec<_>>(), [0, 5, 130], "the example of the TLFS");
        assert_eq!(set.members(100).collect::<Vec<_>>(), [0, 5]);
        assert!(!set.has(u32::MAX) && !VpSet::ALL.has(4096) && VpSet::ALL.has(4095));
        assert_eq!(VpSet::sparse(0, 0b101, &[1]), Err(Status::InvalidHypercallInput));
        assert_eq!(VpSet::sparse(0, 0, &[1]), Err(Status::InvalidHypercallInput));
        assert_eq!(VpSet::sparse(1, 0b101, &[]), Ok(VpSet::ALL), "the mask does not matter");
        assert_eq!(VpSet::sparse(2, 0, &[]), Err(Status::InvalidParameter));
        assert_eq!(VpSet::mask(1 << 63).members(70).collect::<Vec<_>>(), [63]);
    }
}
