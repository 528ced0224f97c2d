//! Guest pages as one piece of memory: what a GPADL names.

use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};

use crate::Broken;

/// Guest memory that need not be in one piece.
pub struct Pages {
    memory: GuestMemory,
    /// Pieces: where each begins among the bytes, its address and its length.
    runs: Vec<(u64, Gpa, u64)>,
    len: u64,
}

/// Pages as plain data: address and length of each piece.
pub type SavedPages = Vec<(u64, u64)>;

/// Most pieces, and most bytes in all of them.
const PIECES: usize = 1 << 20;
const BYTES: u64 = (PIECES as u64) * PAGE_SIZE;

const OUTSIDE: Broken = Broken("it is longer than its pages");
const NO_RAM: Broken = Broken("a page of it is no RAM");

impl Pages {
    /// The `len` bytes at `offset` of the first of these page frames; none if that is not what they hold, or some are not RAM.
    pub fn new(memory: GuestMemory, offset: u64, len: u64, frames: &[u64]) -> Option<Self> {
        let needed = (offset.checked_add(len)?).div_ceil(PAGE_SIZE);
        if len == 0 || offset >= PAGE_SIZE || needed != frames.len() as u64 {
            return None;
        }
        let mut runs: Vec<(u64, Gpa, u64)> = Vec::new();
        let mut at = 0;
        for (frame, skip) in frames.iter().zip(std::iter::once(offset).chain(std::iter::repeat(0))) {
            let start = frame.checked_mul(PAGE_SIZE)?;
            if !memory.has(Gpa(start), PAGE_SIZE) {
                return None;
            }
            let here = (PAGE_SIZE - skip).min(len - at);
            match runs.last_mut() {
                Some((_, gpa, bytes)) if gpa.0 + *bytes == start => *bytes += here,
                _ => runs.push((at, Gpa(start + skip), here)),
            }
            at += here;
        }
        Some(Pages { memory, runs, len })
    }

    /// Which they are.
    pub fn save(&self) -> SavedPages {
        self.runs.iter().map(|(_, gpa, len)| (gpa.0, *len)).collect()
    }

    /// Those that were saved; none if some are not RAM, or they are more than a guest can name.
    pub fn restored(memory: GuestMemory, saved: &[(u64, u64)]) -> Option<Self> {
        let (mut runs, mut at) = (Vec::with_capacity(saved.len().min(PIECES)), 0_u64);
        for (gpa, len) in saved {
            gpa.checked_add(*len)?;
            if *len == 0 || *len > BYTES - at || !memory.has(Gpa(*gpa), *len) {
                return None;
            }
            runs.push((at, Gpa(*gpa), *len));
            at += len;
        }
        (!runs.is_empty() && runs.len() <= PIECES).then_some(Pages { memory, runs, len: at })
    }

    /// Bytes in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none, which no [`Pages`] has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `each` with the pieces of `len` bytes at `at`: address, and which of the bytes.
    fn pieces(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(Gpa, std::ops::Range<usize>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        if at.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(OUTSIDE);
        }
        let mut index = self.runs.partition_point(|(begin, _, _)| *begin <= at).saturating_sub(1);
        let mut done = 0;
        while done < len {
            let (begin, gpa, bytes) = *self.runs.get(index).ok_or(OUTSIDE)?;
            let skip = at + done as u64 - begin;
            let here = (bytes - skip).min((len - done) as u64) as usize;
            each(gpa.add(skip), done..done + here)?;
            done += here;
            index += 1;
        }
        Ok(())
    }

    /// Copies bytes out.
    pub fn read(&self, at: u64, data: &mut [u8]) -> Result<(), Broken> {
        self.pieces(at, data.len(), |gpa, part| self.memory.read(gpa, &mut data[part]).map_err(|_| NO_RAM))
    }

    /// Copies bytes in.
    pub fn write(&self, at: u64, data: &[u8]) -> Result<(), Broken> {
        self.pieces(at, data.len(), |gpa, part| self.memory.write(gpa, &data[part]).map_err(|_| NO_RAM))
    }

    /// The address of a word, which lies in one page.
    fn word(&self, at: u64) -> Result<Gpa, Broken> {
        let mut found = Err(OUTSIDE);
        self.pieces(at, 4, |gpa, _| {
            found = found.or(Ok(gpa));
            Ok(())
        })?;
        found
    }

    /// An aligned word that the guest may be writing.
    pub fn load(&self, at: u64) -> Result<u32, Broken> {
        self.memory.load_u32(self.word(at)?).map_err(|_| NO_RAM)
    }

    /// Writes an aligned word that the guest may be reading.
    pub fn store(&self, at: u64, value: u32) -> Result<(), Broken> {
        self.memory.store_u32(self.word(at)?, value).map_err(|_| NO_RAM)
    }
}
