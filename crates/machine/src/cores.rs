//! The host's processors, as places that vCPUs take in turn where there are more vCPUs than processors.
//!
//! The host's scheduler would share its processors among the threads as well, but it puts a thread
//! aside in the middle of the guest: who waits for that vCPU, to drop translations or for a lock, then waits for
//! the scheduler. A vCPU without a place is outside, and known to be: it is not waited for, as
//! KVM does not wait for a vCPU that was preempted, since that took it out of the guest. And one that
//! spins hands its place to one that has none, which the host's scheduler does not promise.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::shared::{Bells, lock};

/// Turns a second: a vCPU keeps its place for about as long as Linux' scheduler would let it, while others wait.
pub(crate) const TURNS_A_SECOND: u64 = 1000;

/// Places for vCPUs.
pub(crate) struct Cores {
    turns: Mutex<Turns>,
    /// Somebody waits for a place.
    contended: AtomicBool,
    bells: Arc<Bells>,
}

struct Turns {
    free: usize,
    /// Who has a place.
    holders: Vec<u32>,
    waiting: VecDeque<u32>,
}

impl Cores {
    /// So many places for the vCPUs of `bells`.
    pub(crate) fn new(places: usize, bells: &Arc<Bells>) -> Self {
        let turns = Turns { free: places, holders: Vec::new(), waiting: VecDeque::new() };
        Cores { turns: Mutex::new(turns), contended: AtomicBool::new(false), bells: bells.clone() }
    }

    /// Whether somebody waits for a place: who has one keeps it for a turn only, and looks whether it is over.
    #[inline]
    pub(crate) fn contended(&self) -> bool {
        self.contended.load(Ordering::SeqCst)
    }

    /// Whether `index` has a place, which it takes if there is one. If not, it first waits for its place's bell,
    /// and asks again.
    pub(crate) fn take(&self, index: u32) -> bool {
        if !self.ask(index) {
            self.bells.0[index as usize].place.wait(None);
            return false;
        }
        true
    }

    fn ask(&self, index: u32) -> bool {
        let mut turns = lock(&self.turns);
        if turns.holders.contains(&index) {
            return true;
        }
        if turns.free > 0 {
            turns.free -= 1;
            turns.holders.push(index);
            return true;
        }
        if !turns.waiting.contains(&index) {
            turns.waiting.push_back(index);
        }
        if !self.contended.swap(true, Ordering::SeqCst) {
            // Who has a place executes without an end. It would not do to wait here until a turn is over:
            // there is no processor to wait on.
            turns.holders.iter().for_each(|holder| self.bells.0[*holder as usize].kick.kick());
        }
        false
    }

    /// Hands the place of `index` to whoever waits longest, if anybody does, and lets it wait behind the others.
    pub(crate) fn hand_on(&self, index: u32) -> bool {
        let mut turns = lock(&self.turns);
        if turns.waiting.is_empty() {
            return false;
        }
        turns.waiting.push_back(index);
        self.give_up(&mut turns, index);
        true
    }

    /// Leaves the place, or the queue, of `index`.
    pub(crate) fn leave(&self, index: u32) {
        let mut turns = lock(&self.turns);
        turns.waiting.retain(|waiting| *waiting != index);
        self.give_up(&mut turns, index);
    }

    fn give_up(&self, turns: &mut Turns, index: u32) {
        if let Some(at) = turns.holders.iter().position(|holder| *holder == index) {
            turns.holders.remove(at);
            match turns.waiting.pop_front() {
                None => turns.free += 1,
                Some(next) => {
                    turns.holders.push(next);
                    self.bells.0[next as usize].place.ring();
                }
            }
        }
        self.contended.store(!turns.waiting.is_empty(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(places: usize, vcpus: usize) -> (Cores, Arc<Bells>) {
        let bells = Bells::new((0..vcpus).map(|_| Arc::default()));
        (Cores::new(places, &bells), bells)
    }

    #[test]
    fn places_are_handed_on_in_the_order_of_asking() {
        let (cores, bells) = cores(1, 3);
        assert!(cores.ask(0) && cores.ask(0), "who has one keeps it");
        assert!(!cores.hand_on(0) && !cores.contended(), "nobody waits");
        assert!(!cores.ask(1) && cores.contended());
        assert!(bells.0[0].kick.take(), "its turn has an end now");
        assert!(!cores.ask(2) && !bells.0[0].kick.take(), "once");
        assert!(cores.hand_on(0), "1 waits");
        assert!(bells.0[1].place.wait(None) && cores.ask(1));
        assert!(!cores.ask(0), "behind 2");
        cores.leave(1);
        assert!(bells.0[2].place.wait(None) && cores.ask(2));
        cores.leave(0);
        assert!(!cores.contended(), "0 waits no more");
        cores.leave(2);
        assert!(cores.ask(1));
    }

    #[test]
    fn never_more_than_there_are_places_and_none_is_lost() {
        use std::sync::atomic::AtomicUsize;
        let (cores, _) = cores(2, 6);
        let (inside, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for index in 0..6 {
                let (cores, inside, turns) = (&cores, &inside, &turns);
                scope.spawn(move || {
                    for round in 0..200 {
                        while !cores.take(index) {}
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
                        turns.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if round % 3 == 0 {
                            cores.leave(index);
                        } else {
                            cores.hand_on(index);
                        }
                    }
                    cores.leave(index);
                });
            }
        });
        assert_eq!(turns.into_inner(), 1200);
        let turns = lock(&cores.turns);
        assert_eq!((turns.free, turns.holders.len(), turns.waiting.len()), (2, 0, 0));
    }
}
