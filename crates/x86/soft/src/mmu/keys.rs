//! Which slots of the TLB a protection key decided, so that a write to PKRU reaches those only.

use super::tlb::ENTRIES;

const WORDS: usize = ENTRIES / 64;

/// Slots by protection key: a slot may be named although it holds something else by now, never
/// the other way around.
pub struct KeyedSlots {
    pkru: u32,
    slots: Box<[[u64; WORDS]; 16]>,
}

impl KeyedSlots {
    /// None yet.
    pub fn new() -> Self {
        KeyedSlots { pkru: 0, slots: Box::new([[0; WORDS]; 16]) }
    }

    /// The value of PKRU that decisions were made with.
    #[inline]
    pub fn pkru(&self) -> u32 {
        self.pkru
    }

    /// A translation with this key was put into `slot`.
    pub fn note(&mut self, key: Option<u8>, slot: usize) {
        if let Some(key) = key {
            self.slots[usize::from(key & 15)][slot / 64] |= 1 << (slot % 64);
        }
    }

    /// Every slot is empty.
    pub fn clear(&mut self) {
        *self.slots = [[0; WORDS]; 16];
    }

    /// The keys whose rights differ under a new PKRU, which is kept.
    pub fn changed(&mut self, pkru: u32) -> impl Iterator<Item = usize> + use<> {
        let changed = self.pkru ^ pkru;
        self.pkru = pkru;
        (0..16).filter(move |key| changed >> (2 * key) & 3 != 0)
    }

    /// Takes the slots of `key` out.
    pub fn take(&mut self, key: usize) -> impl Iterator<Item = usize> + use<> {
        let words = std::mem::replace(&mut self.slots[key], [0; WORDS]);
        (0..ENTRIES).filter(move |slot| words[slot / 64] >> (slot % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
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
