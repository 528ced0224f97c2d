//! Instructions during which no other vCPU executes.
//!
//! A LOCK prefix asks for a bus lock when its operand lies in two pages, which no host
//! instruction gives if the host has the pages apart. Such an instruction waits until every
//! other vCPU stands between two blocks, and lets them go on afterwards.
//!
//! Whoever executes says so in its [`Seat`] and then looks whether the world is claimed; whoever claims it says so and then looks who
//! executes. So one of the two sees the other, and who comes and goes while nobody claims takes no lock: each exit does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

use satori_engine::Kick;
use satori_lock::Held;

/// The vCPUs of one partition.
#[derive(Debug, Default)]
pub struct World {
    /// One of them has, or waits to have, the world for itself. Changed by who holds `seats` only.
    claimed: AtomicBool,
    seats: Mutex<Vec<Weak<Seat>>>,
    changed: Condvar,
}

/// A vCPU's place in its world.
#[derive(Debug)]
pub struct Seat {
    world: Arc<World>,
    kick: Arc<Kick>,
    /// Its vCPU executes, or is about to look whether it may.
    executing: AtomicBool,
}

/// While it lives, its vCPU executes. One that panics must not keep others waiting for it.
#[must_use]
pub struct Executing(Arc<Seat>);

impl Drop for Executing {
    fn drop(&mut self) {
        self.0.executing.store(false, Ordering::SeqCst);
        if self.0.world.claimed() {
            self.0.tell_others();
        }
    }
}

/// While it lives, its maker is the only vCPU that executes.
pub struct Alone(Arc<Seat>);

type Seats<'w> = MutexGuard<'w, Vec<Weak<Seat>>>;

impl World {
    /// The place of the vCPU with this kick, which does not execute yet.
    pub fn join(self: &Arc<Self>, kick: Arc<Kick>) -> Arc<Seat> {
        let seat = Arc::new(Seat { world: self.clone(), kick, executing: AtomicBool::new(false) });
        let mut seats = self.seats();
        seats.retain(|seat| seat.strong_count() > 0);
        seats.push(Arc::downgrade(&seat));
        seat
    }

    fn claimed(&self) -> bool {
        self.claimed.load(Ordering::SeqCst)
    }

    fn seats(&self) -> Seats<'_> {
        self.seats.lock().held()
    }

    fn wait<'w>(&'w self, seats: Seats<'w>) -> Seats<'w> {
        self.changed.wait(seats).held()
    }
}

impl Seat {
    /// Its vCPU begins to execute: as soon as nobody wants to be alone.
    pub fn enter(self: &Arc<Self>) -> Executing {
        self.executing.store(true, Ordering::SeqCst);
        if self.world.claimed() {
            self.stand_aside();
        }
        Executing(self.clone())
    }

    /// Its vCPU stands still between two instructions for as long as another one wants.
    #[cold]
    pub fn stand_aside(&self) {
        drop(self.stood_aside(self.world.seats()));
    }

    fn stood_aside<'w>(&'w self, mut seats: Seats<'w>) -> Seats<'w> {
        self.executing.store(false, Ordering::SeqCst);
        self.world.changed.notify_all();
        while self.world.claimed() {
            seats = self.world.wait(seats);
        }
        self.kick.pause(false);
        self.executing.store(true, Ordering::SeqCst);
        seats
    }

    /// Wakes who waits for it, and has looked before it stopped.
    #[cold]
    fn tell_others(&self) {
        // Who looks holds the lock until it sleeps.
        drop(self.world.seats());
        self.world.changed.notify_all();
    }

    /// Waits until no other vCPU executes. The caller has changed nothing of its instruction yet:
    /// others who asked before have their turn first.
    pub fn alone(self: &Arc<Self>) -> Alone {
        let world = &*self.world;
        let mut seats = world.seats();
        while world.claimed() {
            seats = match self.executing.load(Ordering::SeqCst) {
                true => self.stood_aside(seats),
                false => world.wait(seats),
            };
        }
        world.claimed.store(true, Ordering::SeqCst);
        let others = |seats: &Seats<'_>, of: &dyn Fn(&Seat)| {
            let live = seats.iter().filter_map(Weak::upgrade).filter(|seat| !Arc::ptr_eq(seat, self));
            let executing = live.filter(|seat| seat.executing.load(Ordering::SeqCst));
            executing.inspect(|seat| of(seat)).count() > 0
        };
        let mut found = others(&seats, &|seat| seat.kick.pause(true));
        while found {
            seats = world.wait(seats);
            found = others(&seats, &|_| {});
        }
        drop(seats);
        Alone(self.clone())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let world = &self.0.world;
        let seats = world.seats();
        world.claimed.store(false, Ordering::SeqCst);
        drop(seats);
        world.changed.notify_all();
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
                    let seat = world.join(kick.clone());
                    // As often as it stands aside it leaves, as for an exit, without a lock.
                    let mut executing = Some(seat.enter());
                    for i in 0..2_000u32 {
                        if kick.pending() {
                            seat.stand_aside();
                        }
                        if i % 8 == 0 {
                            drop(executing.take());
                            executing = Some(seat.enter());
                        }
                        if (i + vcpu) % 16 == 0 {
                            let _alone = seat.alone();
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
            let seat = gone.join(Arc::default());
            let _executing = seat.enter();
            std::panic::resume_unwind(Box::new(()));
        })
        .join();
        assert!(outcome.is_err());
        let seat = world.join(Arc::default());
        let _executing = seat.enter();
        assert_eq!(world.seats().len(), 1, "who is gone has no seat");
        drop(seat.alone());
        assert!(seat.executing.load(Ordering::SeqCst), "who was alone still executes");
    }
}
