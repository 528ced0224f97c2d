//! Invalidation of translations on other vCPUs: TLBI of the inner shareable domain.
//!
//! Who invalidates puts a letter into everyone's box; at the next DSB it waits until those that execute have read theirs. One that
//! is outside reads its box before it executes again, and need not be waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use satori_lock::Held;

use crate::cpu::Cpu;
use crate::mmu::Tlbi;

#[derive(Default)]
struct Box {
    letters: Mutex<Vec<Tlbi>>,
    waiting: AtomicBool,
    inside: AtomicBool,
}

/// The boxes of a partition's vCPUs.
#[derive(Default)]
pub(crate) struct Everyone(Vec<Box>);

/// Letters in a box at most: who has more drops everything.
const MOST: usize = 64;

impl Everyone {
    pub(crate) fn new(vcpus: usize) -> Arc<Self> {
        Arc::new(Everyone((0..vcpus).map(|_| Box::default()).collect()))
    }

    fn of(&self, index: u32) -> Option<&Box> {
        self.0.get(index as usize)
    }

    /// vCPU `index` executes from now on.
    pub(crate) fn come_in(&self, index: u32) {
        if let Some(own) = self.of(index) {
            own.inside.store(true, Ordering::SeqCst);
        }
    }

    /// It does not any more.
    pub(crate) fn go_out(&self, index: u32) {
        if let Some(own) = self.of(index) {
            own.inside.store(false, Ordering::SeqCst);
        }
    }

    /// Whether letters wait for it.
    #[inline(always)]
    pub(crate) fn has_mail(&self, index: u32) -> bool {
        self.of(index).is_some_and(|own| own.waiting.load(Ordering::SeqCst))
    }

    fn take(&self, index: u32) -> Vec<Tlbi> {
        let Some(own) = self.of(index) else { return Vec::new() };
        let mut letters = own.letters.lock().held();
        own.waiting.store(false, Ordering::SeqCst);
        std::mem::take(&mut letters)
    }

    fn send(&self, from: u32, what: Tlbi) -> bool {
        let mut sent = false;
        for (_, other) in self.0.iter().enumerate().filter(|(index, _)| *index as u32 != from) {
            let mut letters = other.letters.lock().held();
            match letters.len() >= MOST {
                true => *letters = vec![Tlbi::Everything],
                false => letters.push(what),
            }
            other.waiting.store(true, Ordering::SeqCst);
            sent = true;
        }
        sent
    }
}

impl Cpu {
    /// Reads the letters.
    pub(crate) fn read_mail(&mut self) {
        for letter in self.everyone.clone().take(self.index) {
            self.invalidate(letter);
        }
    }

    /// Invalidates on all vCPUs.
    pub(crate) fn broadcast(&mut self, what: Tlbi) {
        self.invalidate(what);
        self.everyone.send(self.index, what);
    }

    /// DSB: all that executes has read what was sent. Two that wait for each other read meanwhile.
    pub(crate) fn wait_for_others(&mut self) {
        if self.alone {
            return;
        }
        let everyone = self.everyone.clone();
        let busy = |index: usize, one: &Box| {
            index as u32 != self.index
                && one.inside.load(Ordering::SeqCst)
                && one.waiting.load(Ordering::SeqCst)
        };
        while everyone.0.iter().enumerate().any(|(index, one)| busy(index, one)) {
            // What is sent to this one meanwhile is read behind the instruction; until then it counts as outside.
            everyone.go_out(self.index);
            std::thread::yield_now();
            everyone.come_in(self.index);
        }
        if everyone.has_mail(self.index) {
            self.read_mail();
        }
    }
}
