//! Where in the guest exits come from: the most frequent instructions of each reason, in bounded memory.

use std::collections::BTreeMap;

use satori_bus::Nanos;
use satori_save::Error;
use satori_seam::Reason;
use serde::{Deserialize, Serialize};

use crate::saved;

/// Places of a set: the last one is for newcomers, the others for those that came more often.
const WAYS: usize = 8;
const SETS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    pc: u64,
    reason: Reason,
    count: u64,
    time: Nanos,
}

/// Counts of exits by reason and address, of at most 2,048 such pairs.
///
/// A set of eight, chosen by the pair, is kept in order. A newcomer takes the last place from whoever has it, and
/// each place is earned by having come more often than who is there. So what comes often is found, however much
/// else there is, and an exit is looked up in the first place or two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    /// By set; made at the first exit.
    slots: Vec<Option<Slot>>,
}

/// One instruction of the guest that exits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// How many exits.
    pub count: u64,
    /// Their time.
    pub time: Nanos,
}

/// A place in its slot, as plain data.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedPlace {
    slot: usize,
    pc: u64,
    reason: u16,
    count: u64,
    time: Nanos,
}

impl Hot {
    pub(crate) fn save(&self) -> Vec<SavedPlace> {
        let place = |(slot, place): (usize, &Option<Slot>)| {
            let Slot { pc, reason, count, time } = (*place)?;
            Some(SavedPlace { slot, pc, reason: reason.number(), count, time })
        };
        self.slots.iter().enumerate().filter_map(place).collect()
    }

    pub(crate) fn restore(&mut self, saved: &[SavedPlace], table: &[Reason]) -> Result<(), Error> {
        let mut slots = if saved.is_empty() { Vec::new() } else { vec![None; SETS * WAYS] };
        for place in saved {
            let slot = slots.get_mut(place.slot);
            let reason = saved::reason(table, place.reason)?;
            saved::unless(slot.is_some(), "there are fewer places in the guest")?;
            if let Some(slot) = slot {
                *slot = Some(Slot { pc: place.pc, reason, count: place.count, time: place.time });
            }
        }
        self.slots = slots;
        Ok(())
    }

    /// Counts an exit at `pc` that took `time` and stands for `weight` of its reason.
    pub fn record(&mut self, reason: Reason, pc: u64, time: Nanos, weight: u64) {
        let time = time.saturating_mul(weight);
        if self.slots.is_empty() {
            self.slots = vec![None; SETS * WAYS];
        }
        // Fibonacci hashing: the highest bits of the product depend on all of the address.
        let hash = (pc ^ u64::from(reason.number()) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let first = hash as usize % SETS * WAYS;
        let set = &mut self.slots[first..first + WAYS];
        let is = |slot: &Option<Slot>| slot.is_some_and(|slot| slot.pc == pc && slot.reason == reason);
        let Some(mut at) = set.iter().position(is) else {
            let free = set.iter().position(Option::is_none).unwrap_or(WAYS - 1);
            set[free] = Some(Slot { pc, reason, count: weight, time });
            return;
        };
        if let Some(slot) = &mut set[at] {
            slot.count = slot.count.saturating_add(weight);
            slot.time = slot.time.saturating_add(time);
        }
        let count = |slot: &Option<Slot>| slot.map_or(0, |slot| slot.count);
        while at > 0 && count(&set[at - 1]) < count(&set[at]) {
            set.swap(at - 1, at);
            at -= 1;
        }
    }

    /// Adds what is known to `sums`, which other vCPUs' may be in already.
    pub fn add_to(&self, sums: &mut BTreeMap<(Reason, u64), Place>) {
        for slot in self.slots.iter().flatten() {
            let sum = sums.entry((slot.reason, slot.pc)).or_default();
            sum.count = sum.count.saturating_add(slot.count);
            sum.time = sum.time.saturating_add(slot.time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HLT, IDENTITY, MMIO, MSR_WRITE};

    fn sums(hot: &Hot) -> BTreeMap<(Reason, u64), Place> {
        let mut sums = BTreeMap::new();
        hot.add_to(&mut sums);
        sums
    }

    #[test]
    fn few_places_are_counted_exactly() {
        let mut hot = Hot::default();
        for at in 0..1000u64 {
            hot.record(MSR_WRITE, 0xffff_ffff_8100_0000 + at % 10, 3, 1);
            hot.record(IDENTITY, 0xffff_ffff_8100_0000, 1, 1);
        }
        let sums = sums(&hot);
        assert_eq!(sums.len(), 11);
        assert_eq!(sums[&(MSR_WRITE, 0xffff_ffff_8100_0003)], Place { count: 100, time: 300 });
        assert_eq!(sums[&(IDENTITY, 0xffff_ffff_8100_0000)], Place { count: 1000, time: 1000 });
    }

    #[test]
    fn what_comes_often_is_found_among_a_million_others() {
        let mut hot = Hot::default();
        for at in 0..1_000_000u64 {
            hot.record(MMIO, at.wrapping_mul(0x1234_5679), 1, 1);
            if at % 10 == 0 {
                hot.record(HLT, 0xffff_ffff_8123_4567, 1, 1);
            }
        }
        let sums = sums(&hot);
        assert!(sums.len() <= SETS * WAYS);
        assert!(sums[&(HLT, 0xffff_ffff_8123_4567)].count > 99_000);
    }
}
