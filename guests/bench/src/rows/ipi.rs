//! Interprocessor interrupts: membarrier interrupts each processor on which another thread of the process runs.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;

use super::fail;
use crate::measure::Meter;
use crate::sys;

/// To how many of the other processors.
#[derive(Clone, Copy)]
pub enum Targets {
    One,
    /// Half of them.
    Some,
    All,
}

/// One operation is a membarrier, which returns when all targets have answered. The caller has the first
/// processor, and each of the following a thread that does nothing.
pub fn ipi(m: &mut Meter, targets: Targets) {
    let others = thread::available_parallelism().map_or(1, usize::from).saturating_sub(1);
    let count = match targets {
        Targets::One => 1,
        Targets::Some => others.div_ceil(2),
        Targets::All => others,
    };
    if others == 0 {
        m.absent = Some("there is one processor only".into());
        return;
    }
    sys::membarrier(true).unwrap_or_else(|e| fail("membarrier", &e));
    let (stop, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 1..=count {
            let (stop, ready) = (&stop, &ready);
            scope.spawn(move || {
                sys::move_to(number);
                ready.fetch_add(1, SeqCst);
                while !stop.load(Relaxed) {
                    spin_loop();
                }
            });
        }
        sys::move_to(0);
        while ready.load(SeqCst) < count {
            thread::yield_now();
        }
        m.batches(|n| {
            for _ in 0..n {
                sys::membarrier(false).unwrap_or_else(|e| fail("membarrier", &e));
            }
            n
        });
        stop.store(true, Relaxed);
    });
}
