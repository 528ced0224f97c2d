//! 256 bits, one a vector, as eight 32-bit registers.

use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

/// Bits that any thread may change.
#[derive(Debug, Default)]
pub(crate) struct SharedBits([AtomicU32; 8]);

impl SharedBits {
    pub(crate) fn set(&self, vector: u8) {
        self.0[usize::from(vector >> 5)].fetch_or(1 << (vector & 31), Ordering::SeqCst);
    }
    pub(crate) fn clear(&self, vector: u8) {
        self.0[usize::from(vector >> 5)].fetch_and(!(1 << (vector & 31)), Ordering::SeqCst);
    }
    pub(crate) fn get(&self, vector: u8) -> bool {
        self.word(vector >> 5) & 1 << (vector & 31) != 0
    }
    pub(crate) fn word(&self, index: u8) -> u32 {
        self.0[usize::from(index & 7)].load(Ordering::SeqCst)
    }
    pub(crate) fn words(&self) -> [u32; 8] {
        std::array::from_fn(|index| self.word(index as u8))
    }
    pub(crate) fn highest(&self) -> Option<u8> {
        highest(|index| self.word(index))
    }
    pub(crate) fn reset(&self) {
        self.store([0; 8]);
    }
    pub(crate) fn store(&self, words: [u32; 8]) {
        self.0.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::SeqCst));
    }
}

/// Bits of the vCPU's own thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bits([u32; 8]);

impl From<[u32; 8]> for Bits {
    fn from(words: [u32; 8]) -> Self {
        Bits(words)
    }
}

impl Bits {
    pub(crate) fn set(&mut self, vector: u8) {
        self.0[usize::from(vector >> 5)] |= 1 << (vector & 31);
    }
    pub(crate) fn clear(&mut self, vector: u8) {
        self.0[usize::from(vector >> 5)] &= !(1 << (vector & 31));
    }
    pub(crate) fn word(&self, index: u8) -> u32 {
        self.0[usize::from(index & 7)]
    }
    pub(crate) fn highest(&self) -> Option<u8> {
        highest(|index| self.word(index))
    }
    /// The vector that is set, if it is the only one.
    pub(crate) fn only(&self) -> Option<u8> {
        let count: u32 = self.0.iter().map(|word| word.count_ones()).sum();
        if count == 1 { self.highest() } else { None }
    }
}

fn highest(word: impl Fn(u8) -> u32) -> Option<u8> {
    (0..8).rev().find_map(|index| word(index).checked_ilog2().map(|bit| index << 5 | bit as u8))
}
