use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;

fn idle(count: usize) -> Slots {
    Slots::new((0..count).map(|_| Box::new(|| ()) as _).collect())
}

#[test]
fn who_does_not_execute_is_not_waited_for() {
    let slots = idle(3);
    slots.flush(0, &VpSet::ALL, &Flush::All);
    assert!((0..3).all(|index| slots.wanted(index)));
    let executing = slots.enter(1);
    assert_eq!(executing.take(), Flush::All);
    assert_eq!(executing.take(), Flush::Nothing, "once");
}

#[test]
fn nobody_executes_with_what_it_was_told_to_drop() {
    const PROCESSORS: usize = 4;
    const ROUNDS: u64 = 300;
    let kicks: Arc<[AtomicBool; PROCESSORS]> = Arc::default();
    // What each has cached, and what is true. To execute with a cached value older than a
    // completed flush would be a stale translation.
    let truth = Arc::new(AtomicU64::new(0));
    let slots: Slots = Slots::new(
        (0..PROCESSORS)
            .map(|index| {
                let kicks = kicks.clone();
                Box::new(move || kicks[index].store(true, Ordering::SeqCst)) as _
            })
            .collect(),
    );
    let flushed = AtomicU64::new(0);
    let left = AtomicU64::new(PROCESSORS as u64);
    thread::scope(|scope| {
        for index in 0..PROCESSORS {
            let (slots, kicks, truth, flushed, left) = (&slots, &kicks, &truth, &flushed, &left);
            scope.spawn(move || {
                let mut cached = 0;
                let mut rounds = 0;
                while left.load(Ordering::SeqCst) != 0 {
                    kicks[index].store(false, Ordering::SeqCst);
                    let executing = slots.enter(index as u32);
                    if executing.take() != Flush::Nothing {
                        cached = truth.load(Ordering::SeqCst);
                    }
                    for _ in 0..50 {
                        let complete = flushed.load(Ordering::SeqCst);
                        assert!(cached >= complete, "{cached} after a flush of {complete}");
                        if kicks[index].load(Ordering::SeqCst) {
                            break;
                        }
                    }
                    drop(executing);
                    if rounds < ROUNDS {
                        rounds += 1;
                        let new = truth.fetch_add(1, Ordering::SeqCst) + 1;
                        slots.flush(index as u32, &VpSet::ALL, &Flush::All);
                        flushed.fetch_max(new, Ordering::SeqCst);
                        if rounds == ROUNDS {
                            left.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(flushed.load(Ordering::SeqCst), PROCESSORS as u64 * ROUNDS);
}

#[test]
fn a_thread_that_panics_lets_those_go_who_wait_for_it() {
    let slots = idle(2);
    let entered = AtomicBool::new(false);
    thread::scope(|scope| {
        let (slots, entered) = (&slots, &entered);
        let dying = scope.spawn(move || {
            let _executing = slots.enter(1);
            entered.store(true, Ordering::SeqCst);
            while !slots.wanted(1) {
                thread::yield_now();
            }
            std::panic::resume_unwind(Box::new(()));
        });
        while !entered.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        slots.flush(0, &VpSet::mask(2), &Flush::All);
        assert!(dying.join().is_err());
    });
}
