//! How long a vCPU ran: time that the host gave to others, and sleep, are not in it.

use rustix::time::{ClockId, clock_gettime};
use satori_bus::Nanos;
use satori_exits::Runtime;

use crate::VirtualClock;

/// Under real time, the processor time of the vCPU's thread, which executes the guest and what
/// is done on its behalf.
pub(crate) struct ThreadTime;

impl ThreadTime {
    /// Asks the clock for the first time: for that rustix looks where the vDSO is, before Linux 6.4 in a file, which a sandbox does not let it
    /// open later.
    pub(crate) fn new() -> Self {
        let _ = clock_gettime(ClockId::ThreadCPUTime);
        ThreadTime
    }
}

impl Runtime for ThreadTime {
    fn ran(&self, _retired: u64) -> Nanos {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        // It begins at 0, so that neither part is negative.
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Under virtual time, the instructions that it retired: exits take none.
impl Runtime for VirtualClock {
    fn ran(&self, retired: u64) -> Nanos {
        self.nanos_of(retired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn sleep_is_not_in_it_and_work_is() {
        let start = ThreadTime.ran(0);
        std::thread::sleep(Duration::from_millis(30));
        let slept = ThreadTime.ran(0) - start;
        assert!(slept < 20_000_000, "{slept} ns");
        let began = Instant::now();
        while ThreadTime.ran(0) - start < slept + 5_000_000 {
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(VirtualClock::new(500_000_000, None).ran(10), 20);
    }
}
