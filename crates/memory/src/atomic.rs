//! Atomic accesses to guest memory, for what the guest and the monitor change at the same time.

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use vm_memory::{AtomicInteger, GuestAddress, GuestMemoryBackend, VolatileMemory};

use crate::{Error, Gpa, GuestMemory};

impl GuestMemory {
    /// Lets `access` have the aligned word at `gpa`. An address that is not aligned is refused like
    /// one outside memory.
    fn word<A: AtomicInteger, R>(&self, gpa: Gpa, access: impl FnOnce(&A) -> R) -> Result<R, Error> {
        let outside = |_| Error::Outside { gpa, len: size_of::<A>() };
        let slice = self.backend().get_slice(GuestAddress(gpa.0), size_of::<A>()).map_err(outside)?;
        let word = slice.get_atomic_ref(0).map_err(|_| Error::Outside { gpa, len: size_of::<A>() })?;
        Ok(access(word))
    }

    /// Reads an aligned half word that others may be writing, as the index of a ring; what they wrote before
    /// is seen.
    pub fn load_u16(&self, gpa: Gpa) -> Result<u16, Error> {
        self.word(gpa, |word: &AtomicU16| u16::from_le(word.load(Ordering::SeqCst)))
    }

    /// Writes an aligned half word that others may be reading; they then see what was written before.
    pub fn store_u16(&self, gpa: Gpa, value: u16) -> Result<(), Error> {
        self.word(gpa, |word: &AtomicU16| word.store(value.to_le(), Ordering::SeqCst))?;
        self.dropped_code(gpa);
        Ok(())
    }

    /// Reads an aligned word that others may be writing; what they wrote before is seen.
    pub fn load_u32(&self, gpa: Gpa) -> Result<u32, Error> {
        self.word(gpa, |word: &AtomicU32| u32::from_le(word.load(Ordering::SeqCst)))
    }

    /// Writes an aligned word that others may be reading; they then see what was written before.
    pub fn store_u32(&self, gpa: Gpa, value: u32) -> Result<(), Error> {
        self.word(gpa, |word: &AtomicU32| word.store(value.to_le(), Ordering::SeqCst))?;
        self.dropped_code(gpa);
        Ok(())
    }

    /// Sets `bits` of an aligned word; returns what it was before.
    pub fn fetch_or_u32(&self, gpa: Gpa, bits: u32) -> Result<u32, Error> {
        let before = self.word(gpa, |word: &AtomicU32| word.fetch_or(bits.to_le(), Ordering::SeqCst))?;
        self.dropped_code(gpa);
        Ok(u32::from_le(before))
    }

    /// Clears `bits` of an aligned word; returns what it was before.
    pub fn fetch_clear_u32(&self, gpa: Gpa, bits: u32) -> Result<u32, Error> {
        let before = self.word(gpa, |word: &AtomicU32| word.fetch_and((!bits).to_le(), Ordering::SeqCst))?;
        self.dropped_code(gpa);
        Ok(u32::from_le(before))
    }

    fn dropped_code(&self, gpa: Gpa) {
        if let Some(page) = self.page(gpa) {
            page.state.wrote();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    #[test]
    fn words_are_little_endian_aligned_and_drop_code() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x2000 }]).unwrap();
        memory.write(Gpa(0xffc), &[1, 2, 3, 4]).unwrap();
        let marked = memory.page(Gpa(0)).unwrap().state.mark_code(true);
        assert_eq!(memory.load_u32(Gpa(0xffc)).unwrap(), 0x0403_0201);
        assert_eq!(memory.page(Gpa(0)).unwrap().state.value(), marked, "a read drops nothing");
        assert_eq!(memory.fetch_or_u32(Gpa(0xffc), 0x8000_0000).unwrap(), 0x0403_0201);
        assert_ne!(memory.page(Gpa(0)).unwrap().state.value(), marked);
        assert_eq!(memory.read_u32(Gpa(0xffc)).unwrap(), 0x8403_0201);
        assert_eq!(memory.fetch_clear_u32(Gpa(0xffc), 0x0403_0000).unwrap(), 0x8403_0201);
        assert_eq!(memory.load_u32(Gpa(0xffc)).unwrap(), 0x8000_0201);
        memory.store_u32(Gpa(0x1000), 7).unwrap();
        assert_eq!(memory.read_u32(Gpa(0x1000)).unwrap(), 7);
        for wrong in [0x1ffd, 0x1001, 0x2000, u64::MAX - 3, u64::MAX] {
            assert!(memory.load_u32(Gpa(wrong)).is_err(), "{wrong:#x}");
            assert!(memory.store_u32(Gpa(wrong), 0).is_err(), "{wrong:#x}");
            assert!(memory.fetch_or_u32(Gpa(wrong), 0).is_err(), "{wrong:#x}");
            assert!(memory.fetch_clear_u32(Gpa(wrong), 0).is_err(), "{wrong:#x}");
        }
    }
}
