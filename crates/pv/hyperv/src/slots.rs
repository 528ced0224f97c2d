//! What one virtual processor does to another: the translations that it must drop.
//!
//! A request is noted in the target's slot. The target looks there after it has said that it
//! executes and before it does; the requester looks whether the target executes after it has
//! noted the request. So either the target sees the request before its next instruction, or the
//! requester sees it executing: it then interrupts it and waits until it came out once. Who
//! waits does not execute, so nobody waits for somebody who waits, and none that sleeps, or has
//! not been started, is waited for at all.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use satori_lock::{Held, lock};

use crate::{Flush, VpSet};

/// Brings one virtual processor out of the guest.
pub trait Interrupt: Send + Sync {
    /// If it executes, it comes out soon.
    fn interrupt(&self);
}

impl<F: Fn() + Send + Sync> Interrupt for F {
    fn interrupt(&self) {
        self();
    }
}

struct Slot {
    processor: Box<dyn Interrupt>,
    /// Entries and exits: odd while the virtual processor executes.
    crossings: AtomicU64,
    /// There is something in `flush`.
    wanted: AtomicBool,
    flush: Mutex<Flush>,
    /// How many wait for it to come out.
    waiters: AtomicU32,
    gate: Mutex<()>,
    out: Condvar,
}

/// Looks at a processor that was told to come out before the waiting thread sleeps: about 100 us. Most come out
/// within 8 us and nearly all within 64; to sleep and be woken costs more, and made flushes slower than the
/// interrupts that they replace.
const LOOKS: u32 = 4000;

/// One slot for each virtual processor.
pub struct Slots(Box<[Slot]>);

/// A virtual processor executes as long as this lives.
#[must_use]
pub struct Executing<'a>(&'a Slot);

impl Slots {
    pub(crate) fn new(processors: Vec<Box<dyn Interrupt>>) -> Self {
        let slot = |processor| Slot {
            processor,
            crossings: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            flush: Mutex::default(),
            waiters: AtomicU32::new(0),
            gate: Mutex::default(),
            out: Condvar::new(),
        };
        Slots(processors.into_iter().map(slot).collect())
    }

    /// Number of virtual processors.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Says that virtual processor `index` is about to execute; its requests must be looked for afterwards.
    pub fn enter(&self, index: u32) -> Executing<'_> {
        let slot = &self.0[index as usize];
        // Only its own thread counts.
        let crossings = slot.crossings.load(Ordering::Relaxed);
        slot.crossings.store(crossings + 1, Ordering::SeqCst);
        Executing(slot)
    }

    /// Whether `index` has something to drop.
    #[cfg(test)]
    fn wanted(&self, index: u32) -> bool {
        self.0[index as usize].wanted.load(Ordering::SeqCst)
    }

    /// What each virtual processor has still to drop.
    pub(crate) fn save(&self) -> Vec<Flush> {
        self.0.iter().map(|slot| lock(&slot.flush).clone()).collect()
    }

    /// Notes what [`Slots::save`] gave.
    pub(crate) fn restore(&self, saved: Vec<Flush>) {
        for (slot, flush) in self.0.iter().zip(saved) {
            slot.wanted.store(flush != Flush::Nothing, Ordering::SeqCst);
            *lock(&slot.flush) = flush;
        }
    }

    /// Notes `what` with the targets and waits until none executes with what it had before. The
    /// caller, `source`, does not execute; what concerns itself waits for it as well.
    pub(crate) fn flush(&self, source: u32, targets: &VpSet, what: &Flush) {
        let targets = || targets.members(self.count()).map(|index| (index, &self.0[index as usize]));
        for (_, slot) in targets() {
            let mut flush = lock(&slot.flush);
            *flush = std::mem::take(&mut *flush).and(what);
            slot.wanted.store(true, Ordering::SeqCst);
        }
        // All are interrupted before the first is waited for.
        let seen: Vec<_> = targets()
            .filter(|(index, _)| *index != source)
            .map(|(_, slot)| (slot, slot.crossings.load(Ordering::SeqCst)))
            .filter(|(_, crossings)| crossings % 2 != 0)
            .inspect(|(slot, _)| slot.processor.interrupt())
            .collect();
        for (slot, crossings) in seen {
            slot.wait_beyond(crossings);
        }
    }
}

impl Slot {
    fn wait_beyond(&self, crossings: u64) {
        for _ in 0..LOOKS {
            if self.crossings.load(Ordering::SeqCst) != crossings {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut gate = lock(&self.gate);
        while self.crossings.load(Ordering::SeqCst) == crossings {
            gate = self.out.wait(gate).held();
        }
        drop(gate);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Executing<'_> {
    /// Takes what there is to drop.
    pub fn take(&self) -> Flush {
        if !self.0.wanted.load(Ordering::SeqCst) {
            return Flush::Nothing;
        }
        let taken = {
            let mut flush = lock(&self.0.flush);
            self.0.wanted.store(false, Ordering::SeqCst);
            std::mem::take(&mut *flush)
        };
        taken.distinct()
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        let crossings = self.0.crossings.load(Ordering::Relaxed);
        self.0.crossings.store(crossings + 1, Ordering::SeqCst);
        if self.0.waiters.load(Ordering::SeqCst) != 0 {
            // Whoever waits has looked at the crossings under this lock, or will.
            drop(lock(&self.0.gate));
            self.0.out.notify_all();
        }
    }
}

#[cfg(test)]
mod tests;
