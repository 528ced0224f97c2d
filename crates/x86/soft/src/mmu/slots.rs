//! Sets of slots of the TLB.

/// Slots of the TLB; a power of two.
pub(super) const ENTRIES: usize = 2048;

/// A set of slots.
#[derive(Clone, Copy)]
pub(super) struct Slots([u64; ENTRIES / 64]);

impl Slots {
    pub(super) const NONE: Slots = Slots([0; ENTRIES / 64]);

    pub(super) fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.0[slot / 64] &= !(1 << (slot % 64));
    }

    /// Takes all out, in ascending order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = usize> + use<> {
        let words = std::mem::replace(self, Slots::NONE).0;
        words.into_iter().enumerate().flat_map(|(index, word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(64 * index + bit)
            })
        })
    }
}
