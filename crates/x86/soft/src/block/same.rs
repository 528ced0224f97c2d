//! Blocks whose pages were written, but not their bytes.
//!
//! Kernels patch a few bytes of their text at a time, and programs that write code have some in the same page already. What
//! was decoded there, and translated, is what would be decoded again. A block becomes valid again only when somebody is
//! about to execute it: its page then is one with code as if it had been decoded, and its bytes are compared behind that
//! mark, as they would be read for decoding.

use super::Block;
use crate::cpu::Cpu;
use crate::host::copy;

/// Bytes that are compared at once.
const PIECE: usize = 64;

/// Whether `bytes` stand at `offset` of the page of guest memory at `host`.
///
/// # Safety
/// `host` must be the first byte of such a page, and the range must lie within it.
pub unsafe fn stands(host: *const u8, offset: usize, bytes: &[u8]) -> bool {
    let mut there = [0; PIECE];
    let mut at = offset;
    bytes.chunks(PIECE).all(|piece| {
        let there = &mut there[..piece.len()];
        // SAFETY: the caller's promise.
        unsafe { copy(host, at, there) };
        at += piece.len();
        there == piece
    })
}

impl Block {
    /// Makes a block valid again whose bytes are what they were; whether they are.
    pub(super) fn renew(&self, cpu: &mut Cpu) -> bool {
        // Most that differ do so already, and their page need not hold code for that.
        if self.spoilt.get() || !self.stands() {
            return false;
        }
        // SAFETY: page states live as long as guest memory, which the Cpu holds.
        let value = cpu.mark_code(unsafe { &*self.state });
        let crossing = self.crossing().map(|mut crossing| {
            // SAFETY: as above.
            crossing.value = cpu.mark_code(unsafe { &*crossing.state });
            crossing
        });
        // What is written from here on changes those values.
        let same = self.stands();
        if same {
            // The translator looks what became of it.
            self.forget_translation();
            self.value.set(value);
            if let (Some(here), Some(crossing)) = (&self.crossing, crossing) {
                here.set(crossing);
            }
        }
        same
    }

    fn stands(&self) -> bool {
        let offset = usize::from(self.offset);
        let first = self.bytes.len().min(0x1000 - offset);
        let (here, there) = self.bytes.split_at(first);
        // SAFETY: `host` is the block's page, where `first` bytes are left.
        let same = unsafe { stands(self.host, offset, here) };
        // SAFETY: likewise the page that it crosses into, as it has fewer bytes than a page.
        same && self.crossing().is_none_or(|crossing| unsafe { stands(crossing.host, 0, there) })
    }
}
