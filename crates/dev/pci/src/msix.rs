//! MSI-X: a table of messages, which the guest fills, and what waits for a masked one.

use std::sync::{Arc, Mutex};

use satori_bus::{Msi, MsiSink};
use satori_defs::pci::*;
use satori_save::Error;
use serde::{Deserialize, Serialize};

use crate::lock;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    address: u64,
    data: u32,
    masked: bool,
    pending: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    vectors: Vec<Vector>,
    enabled: bool,
    all_masked: bool,
}

/// The vectors of one function.
pub struct Msix {
    state: Mutex<State>,
    sink: Arc<dyn MsiSink>,
}

impl Msix {
    /// `vectors` vectors, all masked as after a reset (PCI 3.0, 6.8.2.9), whose messages go to `sink`.
    pub fn new(vectors: u16, sink: Arc<dyn MsiSink>) -> Arc<Self> {
        let vector = Vector { address: 0, data: 0, masked: true, pending: false };
        let vectors = vec![vector; vectors.clamp(1, MSIX_ENTRIES_MAX).into()];
        Arc::new(Msix { state: Mutex::new(State { vectors, enabled: false, all_masked: false }), sink })
    }

    /// How many vectors there are.
    pub fn vectors(&self) -> u16 {
        lock(&self.state).vectors.len() as u16
    }

    /// Whether the guest chose MSI-X, and the function must not use its pin.
    pub fn enabled(&self) -> bool {
        lock(&self.state).enabled
    }

    /// Sends a vector's message, or remembers it while it is masked. There may be no such vector: its number
    /// is the guest's.
    pub fn trigger(&self, vector: u16) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.vectors.get_mut(usize::from(vector)) {
            entry.pending = true;
            self.send(&mut state);
        }
    }

    pub(crate) fn control(&self, enabled: bool, all_masked: bool) {
        let mut state = lock(&self.state);
        (state.enabled, state.all_masked) = (enabled, all_masked);
        self.send(&mut state);
    }

    /// Delivers what waits and may go.
    fn send(&self, state: &mut State) {
        if !state.enabled || state.all_masked {
            return;
        }
        for vector in state.vectors.iter_mut().filter(|vector| vector.pending && !vector.masked) {
            vector.pending = false;
            self.sink.signal(Msi { address: vector.address, data: vector.data });
        }
    }

    /// Reads the table; `offset` is from its start.
    pub fn read_table(&self, offset: u64, size: u8) -> u64 {
        let state = lock(&self.state);
        let word = |offset: u64| {
            let Some(vector) = state.vectors.get((offset / MSIX_ENTRY) as usize) else { return 0 };
            match offset % MSIX_ENTRY / 4 {
                0 => vector.address as u32,
                1 => (vector.address >> 32) as u32,
                2 => vector.data,
                _ => u32::from(vector.masked),
            }
        };
        match (size, offset % u64::from(size.max(1))) {
            (4, 0) => word(offset).into(),
            (8, 0) => u64::from(word(offset)) | u64::from(word(offset + 4)) << 32,
            // Software must use aligned words of 4 or 8 bytes (PCI 3.0, 6.8.2): others read nothing.
            _ => 0,
        }
    }

    /// Writes the table. A vector that is unmasked sends what waits.
    pub fn write_table(&self, offset: u64, size: u8, value: u64) {
        let mut state = lock(&self.state);
        let mut word = |offset: u64, value: u32| {
            let Some(vector) = state.vectors.get_mut((offset / MSIX_ENTRY) as usize) else { return };
            match offset % MSIX_ENTRY / 4 {
                // The two lowest bits of the address are zero.
                0 => vector.address = vector.address >> 32 << 32 | u64::from(value & !3),
                1 => vector.address = vector.address & 0xffff_ffff | u64::from(value) << 32,
                2 => vector.data = value,
                _ => vector.masked = value & MSIX_MASKED != 0,
            }
        };
        match (size, offset % u64::from(size.max(1))) {
            (4, 0) => word(offset, value as u32),
            (8, 0) => {
                word(offset, value as u32);
                word(offset + 4, (value >> 32) as u32);
            }
            _ => {}
        }
        self.send(&mut state);
    }

    /// Reads the pending bits, which software cannot write.
    pub fn read_pending(&self, offset: u64, size: u8) -> u64 {
        let state = lock(&self.state);
        let first = offset.saturating_mul(8);
        let bits = (0..u64::from(size.min(8)) * 8).filter(|bit| {
            let at = usize::try_from(first.saturating_add(*bit)).unwrap_or(usize::MAX);
            state.vectors.get(at).is_some_and(|vector| vector.pending)
        });
        bits.fold(0, |value, bit| value | 1 << bit)
    }
}

impl Msix {
    pub(crate) fn save(&self) -> State {
        lock(&self.state).clone()
    }

    /// Takes a state back and sends nothing.
    pub(crate) fn restore(&self, saved: State) -> Result<(), Error> {
        let mut state = lock(&self.state);
        Error::unless(saved.vectors.len() == state.vectors.len(), "MSI-X", "there are other vectors")?;
        *state = saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Messages(Mutex<Vec<u8>>);
    impl MsiSink for Messages {
        fn signal(&self, msi: Msi) {
            lock(&self.0).push(msi.data as u8);
        }
    }

    fn table() -> (Arc<Msix>, Arc<Messages>) {
        let sink = Arc::new(Messages::default());
        let msix = Msix::new(3, sink.clone());
        for vector in 0..3 {
            msix.write_table(vector * 16, 8, 0xfee0_0003);
            msix.write_table(vector * 16 + 8, 4, 0x40 + vector);
        }
        (msix, sink)
    }

    #[test]
    fn masked_vectors_wait_with_their_bit_set() {
        let (msix, sink) = table();
        let take = || std::mem::take(&mut *lock(&sink.0));
        assert_eq!(msix.read_table(16, 8), 0xfee0_0000, "the lowest bits are zero");
        msix.trigger(1);
        msix.control(true, false);
        assert_eq!((take(), msix.read_pending(0, 8)), (vec![], 2), "masked since the reset");
        msix.write_table(28, 4, 0);
        assert_eq!((take(), msix.read_pending(0, 8)), (vec![0x41], 0));
        msix.control(true, true);
        msix.trigger(1);
        msix.trigger(1);
        assert_eq!((take(), msix.read_pending(0, 1)), (vec![], 2));
        msix.control(true, false);
        assert_eq!(take(), [0x41], "once");
        msix.trigger(1);
        msix.trigger(3);
        msix.trigger(0xffff);
        assert_eq!(take(), [0x41]);
    }

    #[test]
    fn odd_accesses_do_nothing() {
        let (msix, _) = table();
        msix.control(true, false);
        msix.write_table(0, 8, 0x1234_5678_0000);
        for (offset, size) in [(1, 4), (2, 2), (4, 8), (48, 4), (u64::MAX - 7, 8), (0, 1)] {
            msix.write_table(offset, size, u64::MAX);
            assert_eq!(msix.read_table(offset, size), 0, "{offset} {size}");
        }
        assert_eq!(msix.read_pending(u64::MAX, 8), 0);
    }
}
