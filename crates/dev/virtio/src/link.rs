//! What a device and its transport share: queues, features that were agreed on, interrupts.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{Clock, TimerQueue};
use satori_defs::virtio::pci::{ISR_CONFIG, ISR_QUEUE, NO_VECTOR};
use satori_defs::virtio::status::NEEDS_RESET;
use satori_memory::GuestMemory;
use satori_pci::{Intx, Msix};
use satori_save::Error;
use serde::{Deserialize, Serialize};

use crate::{Broken, Chain, Place, Queue, lock};

/// The machine's time, where runs have to be the same every time.
#[derive(Clone)]
pub struct Timing {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// What is called at a time, on the thread that runs the machine.
    pub timers: Arc<TimerQueue>,
}

/// A queue's interrupt vector, and the queue.
struct Slot {
    vector: AtomicU16,
    queue: Mutex<Queue>,
}

/// A device's way to its driver in one life of the machine.
pub struct Link {
    memory: GuestMemory,
    queues: Vec<Slot>,
    features: AtomicU64,
    status: AtomicU8,
    config_vector: AtomicU16,
    generation: AtomicU8,
    /// The interrupt status register, under whose lock the pin is driven.
    isr: Mutex<u8>,
    msix: Arc<Msix>,
    intx: Arc<Intx>,
    timing: Option<Timing>,
    /// Requests that were answered, of all devices that share it.
    moved: Arc<AtomicU64>,
    name: &'static str,
    /// Mistakes of drivers that were told.
    told: AtomicU8,
}

/// Mistakes of a device's drivers that are told at most: a guest must not fill what the host keeps of messages.
const MISTAKES: u8 = 10;

impl Link {
    pub(crate) fn new(
        name: &'static str,
        memory: GuestMemory,
        queues: usize,
        (msix, intx): (Arc<Msix>, Arc<Intx>),
        timing: Option<Timing>,
        moved: Arc<AtomicU64>,
    ) -> Arc<Self> {
        let slot = || Slot { vector: AtomicU16::new(NO_VECTOR), queue: Mutex::default() };
        Arc::new(Link {
            memory,
            queues: (0..queues).map(|_| slot()).collect(),
            features: AtomicU64::new(0),
            status: AtomicU8::new(0),
            config_vector: AtomicU16::new(NO_VECTOR),
            generation: AtomicU8::new(0),
            isr: Mutex::new(0),
            msix,
            intx,
            timing,
            moved,
            name,
            told: AtomicU8::new(0),
        })
    }

    /// Guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Whether the run has to be the same every time: everything is then done where the doorbell rings, or at a time that follows
    /// from it.
    pub fn determined(&self) -> bool {
        self.timing.is_some()
    }

    /// The machine's time, if the run has to be the same every time.
    pub fn timing(&self) -> Option<&Timing> {
        self.timing.as_ref()
    }

    /// Features that the driver accepted.
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Acquire)
    }

    /// Takes the next request of `queue`. A queue that is broken has none, and the device needs a reset.
    pub fn pop(&self, queue: u16) -> Option<Chain> {
        let slot = self.queues.get(usize::from(queue)).filter(|_| !self.failed())?;
        let mut queue = lock(&slot.queue);
        // Told before the queue is let go of: a reset, which stops all queues first, takes it back then.
        queue.pop(&self.memory).unwrap_or_else(|broken| {
            self.fail(broken);
            None
        })
    }

    /// Gives `chain` of `queue` back, with the bytes that `fill` writes and counts. Returns whether the driver still
    /// wanted it; if not, `fill` was not called.
    pub fn give(&self, queue: u16, chain: &Chain, fill: impl FnOnce(&Chain, &GuestMemory) -> usize) -> bool {
        let mut fill = Some(fill);
        self.give_all(queue, std::slice::from_ref(chain), |_, chain, memory| {
            fill.take().map_or(0, |fill| fill(chain, memory))
        })
    }

    /// As [`give`](Link::give), several at once: the driver sees all or none of them.
    pub fn give_all(
        &self,
        queue: u16,
        chains: &[Chain],
        mut fill: impl FnMut(usize, &Chain, &GuestMemory) -> usize,
    ) -> bool {
        let Some(slot) = self.queues.get(usize::from(queue)) else { return false };
        let mut filled = false;
        let mut queue = lock(&slot.queue);
        let given = queue.give(&self.memory, chains, |index, chain| {
            filled = true;
            fill(index, chain, &self.memory)
        });
        if filled {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
        // As in `pop`: an interrupt is of the life in which it was made.
        match given {
            Ok(true) => self.interrupt(slot.vector.load(Ordering::Acquire), ISR_QUEUE),
            Ok(false) => {}
            Err(broken) => self.fail(broken),
        }
        filled
    }

    /// Leaves `chains`, the last that were taken of `queue`, to be taken again.
    pub(crate) fn put_back(&self, queue: u16, chains: &[Chain]) {
        if let Some(slot) = self.queues.get(usize::from(queue)) {
            lock(&slot.queue).put_back(chains);
        }
    }

    fn interrupt(&self, vector: u16, cause: u8) {
        if self.msix.enabled() {
            self.msix.trigger(vector);
        } else {
            let mut isr = lock(&self.isr);
            *isr |= cause;
            self.intx.set(true);
        }
    }

    /// Reads the interrupt status, which clears it and lets go of the pin.
    pub(crate) fn take_isr(&self) -> u8 {
        let mut isr = lock(&self.isr);
        self.intx.set(false);
        std::mem::take(&mut isr)
    }

    /// The driver broke a rule: the device stands still until it is reset (2.1.2).
    pub fn fail(&self, broken: Broken) {
        if self.status.fetch_or(NEEDS_RESET, Ordering::AcqRel) & NEEDS_RESET == 0 {
            let (Broken(why), name) = (broken, self.name);
            let told = self.told.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |told| {
                (told < MISTAKES).then_some(told + 1)
            });
            if let Ok(before) = told {
                let last =
                    if before + 1 == MISTAKES { "; of more such mistakes nothing is told" } else { "" };
                tracing::warn!(
                    "virtio {name}: {why}; the device stands still until its driver resets it{last}"
                );
            }
            self.config_changed();
        }
    }

    /// Whether the device stands still.
    pub fn failed(&self) -> bool {
        self.status() & NEEDS_RESET != 0
    }

    /// Tells the driver that the configuration, or the status, is another one.
    pub fn config_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.interrupt(self.config_vector.load(Ordering::Acquire), ISR_CONFIG);
    }

    pub(crate) fn generation(&self) -> u8 {
        self.generation.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> u8 {
        self.status.load(Ordering::Acquire)
    }

    pub(crate) fn add_status(&self, bits: u8) {
        self.status.fetch_or(bits, Ordering::AcqRel);
    }

    pub(crate) fn agree(&self, features: u64) {
        self.features.store(features, Ordering::Release);
    }

    pub(crate) fn begin(&self, queue: usize, place: Place) {
        if let Some(slot) = self.queues.get(queue) {
            lock(&slot.queue).start(place, self.features());
        }
    }

    /// Everything as after a reset.
    pub(crate) fn clear(&self) {
        for slot in &self.queues {
            lock(&slot.queue).stop();
            slot.vector.store(NO_VECTOR, Ordering::Release);
        }
        self.status.store(0, Ordering::Release);
        self.features.store(0, Ordering::Release);
        self.config_vector.store(NO_VECTOR, Ordering::Release);
        self.take_isr();
    }

    /// The vector of `queue`, or of the configuration; there may be no such queue.
    pub(crate) fn vector(&self, queue: Option<u16>) -> u16 {
        self.vector_of(queue).map_or(NO_VECTOR, |vector| vector.load(Ordering::Acquire))
    }

    /// Sets it; a number that no vector has is none (4.1.5.1.2.1).
    pub(crate) fn set_vector(&self, queue: Option<u16>, vector: u16) {
        let vector = if vector < self.msix.vectors() { vector } else { NO_VECTOR };
        if let Some(place) = self.vector_of(queue) {
            place.store(vector, Ordering::Release);
        }
    }

    fn vector_of(&self, queue: Option<u16>) -> Option<&AtomicU16> {
        match queue {
            None => Some(&self.config_vector),
            Some(queue) => self.queues.get(usize::from(queue)).map(|slot| &slot.vector),
        }
    }
}

/// A link's state; those of MSI-X and the pin are the function's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedLink {
    queues: Vec<(u16, Queue)>,
    features: u64,
    status: u8,
    config_vector: u16,
    generation: u8,
    isr: u8,
}

impl Link {
    pub(crate) fn save(&self) -> SavedLink {
        let queue = |slot: &Slot| (slot.vector.load(Ordering::Acquire), lock(&slot.queue).clone());
        SavedLink {
            queues: self.queues.iter().map(queue).collect(),
            features: self.features(),
            status: self.status(),
            config_vector: self.config_vector.load(Ordering::Acquire),
            generation: self.generation(),
            isr: *lock(&self.isr),
        }
    }

    /// Takes a state back, of queues with at most so many descriptors, and features of those that are offered.
    pub(crate) fn restore(&self, saved: SavedLink, most: &[u16], offered: u64) -> Result<(), Error> {
        let unless = |fits, why| Error::unless(fits, "virtio", why);
        unless(saved.queues.len() == self.queues.len(), "the device has another number of queues")?;
        let fit = saved.queues.iter().zip(most).all(|((_, queue), most)| queue.fits(*most));
        unless(fit, "a queue has a size that none has")?;
        unless(saved.features & !offered == 0, "its driver accepted what is not offered")?;
        for (slot, (vector, queue)) in self.queues.iter().zip(saved.queues) {
            slot.vector.store(vector, Ordering::Release);
            *lock(&slot.queue) = queue;
        }
        self.features.store(saved.features, Ordering::Release);
        self.status.store(saved.status, Ordering::Release);
        self.config_vector.store(saved.config_vector, Ordering::Release);
        self.generation.store(saved.generation, Ordering::Release);
        *lock(&self.isr) = saved.isr;
        Ok(())
    }
}
