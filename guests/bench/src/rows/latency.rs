//! From a request to the handler.

use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;

use super::fail;
use crate::measure::Meter;
use crate::sys::{self, SIGUSR2, Signal, Timer, now};

/// Between two requests, in nanoseconds.
const PAUSE: u64 = 1_000_000;

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(_: Signal, _: *mut c_void, _: *mut c_void) {
    HANDLED.store(now(), Relaxed);
}

fn requests(m: &Meter) -> u64 {
    (m.budget() / PAUSE).clamp(25, 500)
}

pub fn interrupt(m: &mut Meter) {
    sys::handle(SIGUSR2, note).unwrap_or_else(|e| fail("sigaction", &e));
    let timer = Timer::new(SIGUSR2).unwrap_or_else(|e| fail("timer_create", &e));
    let times: Vec<u64> = (0..requests(m))
        .map(|_| {
            HANDLED.store(0, Relaxed);
            let due = now() + PAUSE;
            timer.arm(due);
            let mut spin = 0u64;
            while HANDLED.load(Relaxed) == 0 {
                spin = black_box(spin.wrapping_mul(3) ^ 1);
            }
            HANDLED.load(Relaxed).saturating_sub(due)
        })
        .collect();
    m.times(&times);
}

pub fn sleep(m: &mut Meter) {
    let times: Vec<u64> = (0..requests(m))
        .map(|_| {
            let due = now() + PAUSE;
            sys::sleep_until(due);
            now().saturating_sub(due)
        })
        .collect();
    m.times(&times);
}

/// One thread waits at a futex on the second processor, which has nothing else to do.
pub fn wake(m: &mut Meter) {
    let (word, seen, stop) = (AtomicU32::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let times: Vec<u64> = thread::scope(|scope| {
        scope.spawn(|| {
            sys::move_to(1);
            let mut last = 0;
            while !stop.load(SeqCst) {
                sys::futex_wait(&word, last);
                last = word.load(SeqCst);
                seen.store(u64::from(last), SeqCst);
            }
        });
        sys::move_to(0);
        let times = (1..=requests(m))
            .map(|request| {
                // Time to fall asleep.
                sys::sleep_until(now() + PAUSE);
                let start = now();
                word.store(request as u32, SeqCst);
                sys::futex_wake(&word);
                while seen.load(SeqCst) != request {
                    std::hint::spin_loop();
                }
                now() - start
            })
            .collect();
        stop.store(true, SeqCst);
        word.store(u32::MAX, SeqCst);
        sys::futex_wake(&word);
        times
    });
    m.times(&times);
}
