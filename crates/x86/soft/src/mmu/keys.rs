//! Which slots of the TLB a protection key decided, so that a write to PKRU reaches those only.

use super::slots::Slots;

/// Slots by protection key: a slot may be named although it holds something else by now, never
/// the other way around.
pub(super) struct KeyedSlots {
    pkru: u32,
    slots: Box<[Slots; 16]>,
}

impl KeyedSlots {
    /// None yet.
    pub(super) fn new() -> Self {
        KeyedSlots { pkru: 0, slots: Box::new([Slots::NONE; 16]) }
    }

    /// The value of PKRU that decisions were made with.
    #[inline]
    pub(super) fn pkru(&self) -> u32 {
        self.pkru
    }

    /// A translation with this key was put into `slot`.
    pub(super) fn note(&mut self, key: Option<u8>, slot: usize) {
        if let Some(key) = key {
            self.slots[usize::from(key & 15)].insert(slot);
        }
    }

    /// Every slot is empty.
    pub(super) fn clear(&mut self) {
        *self.slots = [Slots::NONE; 16];
    }

    /// The keys whose rights differ under a new PKRU, which is kept.
    pub(super) fn changed(&mut self, pkru: u32) -> impl Iterator<Item = usize> + use<> {
        let changed = self.pkru ^ pkru;
        self.pkru = pkru;
        (0..16).filter(move |key| changed >> (2 * key) & 3 != 0)
    }

    /// Takes the slots of `key` out.
    pub(super) fn take(&mut self, key: usize) -> impl Iterator<Item = usize> + use<> {
        self.slots[key].drain()
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::ENTRIES;
    use super::*;

    #[test]
    fn a_change_reaches_the_slots_of_its_keys_only() {
        let mut keys = KeyedSlots::new();
        keys.note(Some(0), 7);
        keys.note(Some(3), 64);
        keys.note(Some(3), ENTRIES - 1);
        keys.note(None, 5);
        // Write disable of key 3, access disable of key 15.
        let changed: Vec<_> = keys.changed(1 << 7 | 1 << 30).collect();
        assert_eq!(changed, [3, 15]);
        assert_eq!(keys.take(3).collect::<Vec<_>>(), [64, ENTRIES - 1]);
        assert_eq!(keys.take(3).count(), 0);
        assert_eq!(keys.changed(1 << 7 | 1 << 30).count(), 0, "nothing changed since");
    }
}
