//! Instructions during which no other vCPU executes.
//!
//! A LOCK prefix asks for a bus lock when its operand lies in two pages, which no host
//! instruction gives if the host has the pages apart. Such an instruction waits until every
//! other vCPU stands between two blocks, and lets them go on afterwards.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use satori_engine::Kick;
use satori_lock::Held;

/// The vCPUs of one partition.
#[derive(Debug, Default)]
pub struct World {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The kicks of the vCPUs that execute.
    executing: Vec<Arc<Kick>>,
    /// One of them has, or waits to have, the world for itself.
    claimed: bool,
}

/// While it lives, its vCPU executes. One that panics must not keep others waiting for it.
#[must_use]
pub struct Executing(Arc<World>, Arc<Kick>);

impl Drop for Executing {
    fn drop(&mut self) {
        self.0.left(&mut self.0.state(), &self.1);
    }
}

/// While it lives, its maker is the only vCPU that executes.
pub struct Alone<'w>(&'w World);

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().held()
    }

    fn wait<'w>(&'w self, state: MutexGuard<'w, State>) -> MutexGuard<'w, State> {
        self.changed.wait(state).held()
    }

    /// A vCPU begins to execute: as soon as nobody wants to be alone.
    pub fn enter(self: &Arc<Self>, kick: &Arc<Kick>) -> Executing {
        drop(self.entered(self.state(), kick));
        Executing(self.clone(), kick.clone())
    }

    fn entered<'w>(&'w self, mut state: MutexGuard<'w, State>, kick: &Arc<Kick>) -> MutexGuard<'w, State> {
        while state.claimed {
            state = self.wait(state);
        }
        kick.pause(false);
        state.executing.push(kick.clone());
        state
    }

    fn left(&self, state: &mut State, kick: &Arc<Kick>) -> bool {
        let before = state.executing.len();
        state.executing.retain(|other| !Arc::ptr_eq(other, kick));
        self.changed.notify_all();
        before != state.executing.len()
    }

    /// A vCPU stands still between two instructions for as long as another one wants.
    #[cold]
    pub fn stand_aside(&self, kick: &Arc<Kick>) {
        let mut state = self.state();
        self.left(&mut state, kick);
        drop(self.entered(state, kick));
    }

    /// Waits until no other vCPU executes. The caller has changed nothing of its instruction yet:
    /// others who asked before have their turn first.
    pub fn alone(&self, kick: &Arc<Kick>) -> Alone<'_> {
        let mut state = self.state();
        while state.claimed {
            if self.left(&mut state, kick) {
                state = self.entered(state, kick);
            } else {
                state = self.wait(state);
            }
        }
        state.claimed = true;
        let others = |state: &State| state.executing.iter().any(|other| !Arc::ptr_eq(other, kick));
        for other in state.executing.iter().filter(|other| !Arc::ptr_eq(other, kick)) {
            other.pause(true);
        }
        while others(&state) {
            state = self.wait(state);
        }
        Alone(self)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state().claimed = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn whoever_is_alone_sees_nobody_move() {
        let world = Arc::new(World::default());
        let (inside, done) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for vcpu in 0..4u32 {
                let (world, inside, done) = (&world, &inside, &done);
                scope.spawn(move || {
                    let kick = Arc::new(Kick::default());
                    let _executing = world.enter(&kick);
                    for i in 0..2_000u32 {
                        if kick.pending() {
                            world.stand_aside(&kick);
                        }
                        if (i + vcpu) % 16 == 0 {
                            let _alone = world.alone(&kick);
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                            done.fetch_add(1, Ordering::SeqCst);
                        } else {
                            inside.fetch_add(1, Ordering::SeqCst);
                            std::hint::spin_loop();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::SeqCst), 4 * 2_000 / 16);
    }

    #[test]
    fn nobody_waits_for_a_vcpu_that_panicked() {
        let world = Arc::new(World::default());
        let gone = world.clone();
        let outcome = std::thread::spawn(move || {
            let _executing = gone.enter(&Arc::default());
            std::panic::resume_unwind(Box::new(()));
        })
        .join();
        assert!(outcome.is_err());
        let kick = Arc::default();
        let _executing = world.enter(&kick);
        assert!(world.state().executing.iter().all(|other| Arc::ptr_eq(other, &kick)));
        drop(world.alone(&kick));
    }
}
