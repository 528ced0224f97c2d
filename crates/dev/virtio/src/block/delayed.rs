//! Requests of a disk in a run that has to be the same every time: each is done, and answered, a stated time after its doorbell.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use satori_bus::{Armed, Nanos, Timer};
use satori_defs::virtio::block::FLUSH_OUT;
use serde::{Deserialize, Serialize};

use crate::queue::SavedChain;
use crate::{Chain, Link, Timing};

/// From the doorbell of a request until it is done.
const REQUEST: Nanos = 100_000;
/// More for each byte that is read or written: 1 GB/s, of each request by itself.
const BYTE: Nanos = 1;
/// From the doorbell of a flush.
const FLUSH: Nanos = 1_000_000;

/// Requests that wait, by when they are due and which came first.
#[derive(Default)]
pub(super) struct Delayed {
    waiting: BTreeMap<(Nanos, u64), (Arc<Link>, u16, Chain)>,
    came: u64,
}

/// Those of a machine that is saved.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedDelayed {
    /// When each is due, its queue, and it.
    waiting: Vec<(Nanos, u16, SavedChain)>,
    armed: Vec<Armed>,
}

/// How long `chain` takes.
fn delay(link: &Link, chain: &Chain) -> Nanos {
    if chain.read(link.memory(), 0, 4) == FLUSH_OUT.to_le_bytes() {
        return FLUSH;
    }
    // What is longer is refused, and takes no longer.
    let bytes = (chain.readable_bytes() + chain.writable_bytes()).min(super::REQUEST_MAX) as u64;
    REQUEST.saturating_add(bytes.saturating_mul(BYTE))
}

impl Delayed {
    /// Has `chain` wait for its time, for which `timer` is armed.
    pub(super) fn put(
        &mut self,
        link: &Arc<Link>,
        timing: &Timing,
        queue: u16,
        chain: Chain,
        timer: Weak<dyn Timer>,
    ) {
        let due = timing.clock.now().saturating_add(delay(link, &chain));
        let first = self.waiting.first_key_value().is_none_or(|((earliest, _), _)| due < *earliest);
        self.came += 1;
        self.waiting.insert((due, self.came), (link.clone(), queue, chain));
        if first {
            timing.timers.replace(due, timer);
        }
    }

    /// Takes the first one that is due. Without any, `timer` is armed for the next.
    pub(super) fn due(&mut self, now: Nanos, timer: &Weak<dyn Timer>) -> Option<(Arc<Link>, u16, Chain)> {
        let first = self.waiting.first_entry()?;
        let (due, _) = *first.key();
        if due <= now {
            return Some(first.remove());
        }
        if let Some(timing) = first.get().0.timing() {
            timing.timers.replace(due, timer.clone());
        }
        None
    }

    pub(super) fn save(&self, timer: &Weak<dyn Timer>) -> SavedDelayed {
        let timing = self.waiting.values().next().and_then(|(link, ..)| link.timing());
        let armed = timing.map(|timing| timing.timers.armed(timer)).unwrap_or_default();
        let saved = |(&(due, _), (_, queue, chain)): (&(Nanos, u64), &(Arc<Link>, u16, Chain))| {
            (due, *queue, chain.saved())
        };
        SavedDelayed { waiting: self.waiting.iter().map(saved).collect(), armed }
    }

    /// Those of another machine, on `link`; nothing if they cannot be of it, or it has no time of its own.
    pub(super) fn restored(saved: SavedDelayed, link: &Arc<Link>, timer: &Weak<dyn Timer>) -> Option<Self> {
        let SavedDelayed { waiting, armed } = saved;
        let mut restored = Delayed::default();
        for (due, queue, chain) in waiting {
            let chain = Chain::restored(&chain, link.memory())?;
            restored.came += 1;
            restored.waiting.insert((due, restored.came), (link.clone(), queue, chain));
        }
        if !restored.waiting.is_empty() {
            link.timing()?.timers.restore(timer, &armed);
        }
        Some(restored)
    }
}
