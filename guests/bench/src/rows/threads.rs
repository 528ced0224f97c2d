//! Threads on one and on several processors.

use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;

use super::{fail, noise, sha};
use crate::measure::Meter;
use crate::sys::{Mapping, move_to, now};

pub fn thread(m: &mut Meter) {
    m.each(|| thread::spawn(|| black_box(5u64)).join().unwrap_or(0));
}

/// The program of the talk on Hyper-V's enlightenments: 64 threads map, read and unmap parts of a file,
/// so that each unmapping concerns the processors on which the others run.
pub fn shootdown(m: &mut Meter) {
    const THREADS: usize = 64;
    const CHUNKS: usize = 4;
    const PAGES: usize = 8;
    const PAGE: usize = 4096;
    let file = std::fs::write("shared", noise((CHUNKS + PAGES) * PAGE))
        .and_then(|()| std::fs::File::open("shared"))
        .unwrap_or_else(|e| fail("shared", &e));
    let sums = AtomicU64::new(0);
    let round = |file: &std::fs::File| {
        let chunks: [Mapping; CHUNKS] = std::array::from_fn(|i| {
            Mapping::shared(file, (i * PAGE) as i64, PAGES * PAGE).unwrap_or_else(|e| fail("mmap", &e))
        });
        chunks.iter().fold(0, |sum, chunk| sum + u64::from(chunk.read(PAGE)))
    };
    let expected = round(&file);
    // The threads are there before the clock runs: their creation is another row.
    let (start, end, rounds, stop) =
        (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    start.wait();
                    if stop.load(SeqCst) {
                        break;
                    }
                    for _ in 0..rounds.load(SeqCst) {
                        sums.fetch_add(u64::from(round(&file) != expected), Relaxed);
                    }
                    end.wait();
                }
            });
        }
        let per_round = (THREADS * CHUNKS) as u64;
        m.batches(|n| {
            rounds.store(n.div_ceil(per_round), SeqCst);
            start.wait();
            end.wait();
            n.div_ceil(per_round) * per_round
        });
        stop.store(true, SeqCst);
        start.wait();
    });
    m.sum = Some(sums.load(SeqCst));
}

/// What two threads gain over one. Both times are taken in turn, so that they see the same machine, and
/// the least of each counts, as for other rows. The second thread is there and awake before the clock runs: creating
/// and waking it are other rows.
pub fn parallel(m: &mut Meter) {
    let data = noise(64);
    let work =
        |n: u64| (0..n * 100).fold(0, |sum: u64, _| sum.rotate_left(1) ^ sha::digest(black_box(&data)));
    // Several of the kernel's ticks, and so short that some see an otherwise idle machine.
    const PART: u64 = 20_000_000;
    let (mut n, mut took) = (1, 0);
    while took < PART / 4 {
        n *= 2;
        let start = now();
        black_box(work(n));
        took = now() - start;
    }
    n = (n * PART / took).max(1);
    let timed = |n: u64| {
        let start = now();
        (work(n), start, now())
    };
    let (mut one, mut two, mut result) = (u64::MAX, u64::MAX, None);
    // One sleeps until there is work for both, which begin it together.
    let (waking, stop, awake) = (Barrier::new(2), AtomicBool::new(false), AtomicU64::new(0));
    let together = |round: u64| {
        awake.fetch_add(1, SeqCst);
        while awake.load(SeqCst) < 2 * round {
            spin_loop();
        }
        timed(n)
    };
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let (stop, waking, together) = (&stop, &waking, &together);
        scope.spawn(move || {
            // Who wakes another has it on its own processor often, where both wait for each other.
            move_to(1);
            for round in 1.. {
                waking.wait();
                if stop.load(SeqCst) || sender.send(together(round)).is_err() {
                    break;
                }
            }
        });
        move_to(0);
        let begin = now();
        for round in 1.. {
            if result.is_some() && now() - begin >= 4 * m.budget() {
                break;
            }
            let (alone, start, end) = timed(n);
            one = one.min(end - start);
            waking.wait();
            let (this, start, end) = together(round);
            let Ok((other, begun, ended)) = receiver.recv() else { break };
            let took = end.max(ended) - start.min(begun);
            two = two.min(took);
            m.differing |= [this, other] != [alone, alone] || result.is_some_and(|r| r != alone);
            result = Some(alone);
            m.samples.push(took as f64 / n as f64);
        }
        stop.store(true, SeqCst);
        waking.wait();
    });
    m.operations = n;
    // The sum of n rounds depends on n; that of one round does not.
    m.sum = Some(work(1));
    m.more = Some(("gain", 2.0 * one as f64 / two as f64));
}
