//! Threads of devices: what may have to wait is done there, and not by a vCPU.
//!
//! An [`IoThread`] does pieces of [`Work`] in the order in which it was given them, of as many devices as share it. A device that
//! waits for another process has a thread of its own, on the same processors of the host ([`IoThread::spawn`]). One that has
//! nothing to do looks for work for a moment before it sleeps, as long as that is of use: who gives it some then makes no system call.

use std::collections::VecDeque;
use std::io::Result;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use satori_lock::{Held, lock};

use crate::spin::{Spins, for_a_moment};

/// What a device has to do.
pub trait Work: Send + Sync {
    /// Does a piece of it. Returns whether there is more, for which it is called again behind the others.
    fn step(&self) -> bool;
}

#[derive(Default)]
struct State {
    due: VecDeque<Arc<dyn Work>>,
    /// The thread sleeps.
    waits: bool,
    running: bool,
    over: bool,
    spins: Spins,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// How often it was given something, or told that it is over.
    given: AtomicU64,
    bell: Condvar,
}

#[derive(Default)]
struct Handle {
    shared: Arc<Shared>,
    cpus: Vec<u32>,
}

/// A thread for work of devices; clones are the same one, which ends with the last of them.
#[derive(Clone, Default)]
pub struct IoThread(Arc<Handle>);

impl Shared {
    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(work) = state.due.pop_front() {
                drop(state);
                let more = work.step();
                state = lock(&self.state);
                if more {
                    state.due.push_back(work);
                }
            } else if state.over {
                return;
            } else if state.spins.now() {
                let before = self.given.load(Ordering::Relaxed);
                drop(state);
                let more = || (self.given.load(Ordering::Relaxed) != before).then_some(());
                let useful = for_a_moment(more).is_some();
                state = lock(&self.state);
                state.spins.done(useful);
            } else {
                state.waits = true;
                state = self.bell.wait(state).held();
                state.waits = false;
            }
        }
    }
}

impl IoThread {
    /// One that may run on these processors of the host, or on all that its parent may use where none is named.
    pub fn new(cpus: Vec<u32>) -> Self {
        // Before the sandbox.
        let state = State { spins: Spins::here(), ..State::default() };
        let shared = Shared { state: state.into(), ..Shared::default() };
        IoThread(Arc::new(Handle { shared: shared.into(), cpus }))
    }

    /// Starts it, if it does not run yet.
    pub fn start(&self, name: &str) -> Result<()> {
        let mut state = lock(&self.0.shared.state);
        if !state.running {
            let shared = self.0.shared.clone();
            self.spawn(name, move || shared.run())?;
            state.running = true;
        }
        Ok(())
    }

    /// Has it do `work`. That costs no system call while it does other work.
    pub fn give(&self, work: Arc<dyn Work>) {
        let mut state = lock(&self.0.shared.state);
        state.due.push_back(work);
        self.0.shared.given.fetch_add(1, Ordering::Relaxed);
        // Taken back here, so that who gives more before it wakes does not wake it again.
        if std::mem::take(&mut state.waits) {
            drop(state);
            self.0.shared.bell.notify_one();
        }
    }

    /// Starts a thread of a device's own on the same processors. It is detached.
    pub fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let cpus = self.0.cpus.clone();
        let pinned = move || {
            pin(&cpus);
            work();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(pinned).map(drop)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.given.fetch_add(1, Ordering::Relaxed);
        self.shared.bell.notify_one();
    }
}

/// The processors that this process may use.
pub fn processors() -> Vec<u32> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| cpu.try_into().ok()).collect()
}

/// Lets the calling thread run on `cpus` only; where none is named, it stays as it is.
pub fn pin(cpus: &[u32]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu as usize));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!("a thread cannot be pinned to {cpus:?}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    struct Count {
        left: AtomicU32,
        told: Mutex<Sender<(u32, Vec<u32>)>>,
    }

    impl Work for Count {
        fn step(&self) -> bool {
            let left = self.left.fetch_sub(1, Ordering::SeqCst) - 1;
            lock(&self.told).send((left, processors())).unwrap();
            left > 0
        }
    }

    #[test]
    fn work_takes_turns_on_the_processors_that_were_named() {
        let (told, heard) = channel();
        let last = *processors().last().unwrap();
        let thread = IoThread::new(vec![last]);
        let work = |left| Arc::new(Count { left: AtomicU32::new(left), told: Mutex::new(told.clone()) });
        thread.give(work(3));
        thread.give(work(13));
        thread.start("io").unwrap();
        thread.start("io").unwrap();
        let next = || heard.recv_timeout(Duration::from_secs(60)).unwrap();
        let first: Vec<_> = std::iter::repeat_with(next).take(6).collect();
        assert_eq!(first.iter().map(|(left, _)| *left).collect::<Vec<_>>(), [2, 12, 1, 11, 0, 10]);
        assert!(first.iter().all(|(_, cpus)| *cpus == [last]), "{first:?}");
        (0..10).for_each(|left| assert_eq!(next().0, 9 - left));
        thread.give(work(1));
        assert_eq!(next().0, 0, "it sleeps and wakes");
    }

    /// Counts how often it was done.
    #[derive(Default)]
    struct Done(AtomicU32);

    impl Work for Done {
        fn step(&self) -> bool {
            self.0.fetch_add(1, Ordering::SeqCst);
            false
        }
    }

    #[test]
    fn work_that_comes_within_a_moment_is_no_wait_in_vain() {
        let thread = IoThread::new(Vec::new());
        thread.start("io").unwrap();
        if !lock(&thread.0.shared.state).spins.possible() {
            return;
        }
        let done = Arc::new(Done::default());
        let vain = || lock(&thread.0.shared.state).spins.in_vain();
        let (begun, mut given, mut seen) = (Instant::now(), 0, false);
        // At first nothing comes, which it remembers. Then all comes as soon as it has nothing to do: on a busy host not each time while
        // it looks for that.
        while !seen || vain() {
            assert!(begun.elapsed() < Duration::from_secs(60), "in vain: {seen}, and then for ever");
            seen |= vain();
            if seen {
                given += 1;
                thread.give(done.clone());
                while done.0.load(Ordering::SeqCst) < given {
                    std::hint::spin_loop();
                }
            }
        }
    }

    #[test]
    fn a_thread_ends_with_its_last_handle_and_does_what_it_was_given() {
        for (sleeps, work) in [(false, 10), (true, 10), (true, 0)] {
            let done = Arc::new(Done::default());
            let thread = IoThread::new(Vec::new());
            thread.start("io").unwrap();
            let shared = Arc::downgrade(&thread.0.shared);
            let begun = Instant::now();
            let until = |over: &dyn Fn() -> bool| {
                while !over() {
                    assert!(begun.elapsed() < Duration::from_secs(60), "{sleeps} {work}: it goes on");
                    std::thread::yield_now();
                }
            };
            until(&|| !sleeps || lock(&thread.0.shared.state).waits);
            (0..work).for_each(|_| thread.give(done.clone()));
            drop(thread.clone());
            drop(thread);
            until(&|| shared.strong_count() == 0);
            assert_eq!(done.0.load(Ordering::SeqCst), work);
        }
    }
}
