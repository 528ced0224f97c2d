//! A time that stands still: what waits for it is done when an attack says so.

use std::sync::Arc;

use satori_bus::{Clock, TimerQueue};
use satori_virtio::Timing;

struct Standing;

impl Clock for Standing {
    fn now(&self) -> u64 {
        0
    }
    fn counter(&self) -> u64 {
        0
    }
    fn counter_hz(&self) -> u64 {
        1_000_000_000
    }
    fn epoch(&self) -> u64 {
        0
    }
}

/// The time of one machine.
pub(crate) fn standing() -> Timing {
    Timing { clock: Arc::new(Standing), timers: TimerQueue::new() }
}
