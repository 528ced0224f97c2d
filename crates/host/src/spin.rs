//! Waiting for a moment without sleeping, for what another process mostly answers sooner than a thread that sleeps is woken.

use std::hint::spin_loop;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// How long that is, for who has nothing else to do.
pub const MOMENT: Duration = Duration::from_micros(50);
/// For who may have.
pub const SHORT: Duration = Duration::from_micros(20);
/// Most waits that are left out behind one that was in vain.
const PAUSE: u32 = 64;

/// Whether to wait so, by how often it was of use. By default never.
#[derive(Debug, Default)]
pub struct Spins {
    /// Another thread can execute while one spins.
    possible: bool,
    /// How many are left out, and how many will be behind the next one in vain.
    skip: u32,
    pause: u32,
}

impl Spins {
    /// Those of a thread of this process. Made before a sandbox is entered, which does not permit the question that this asks.
    pub fn here() -> Self {
        let possible = available_parallelism().is_ok_and(|processors| processors.get() > 1);
        Spins { possible, ..Spins::default() }
    }

    /// Whether to try it now.
    pub fn now(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due && self.possible
    }

    /// Whether another thread can execute while one spins.
    #[cfg(test)]
    pub(crate) fn possible(&self) -> bool {
        self.possible
    }

    /// Whether the last one was in vain.
    #[cfg(test)]
    pub(crate) fn in_vain(&self) -> bool {
        self.pause > 0
    }

    /// Takes note of one that was of use, or not.
    pub fn done(&mut self, useful: bool) {
        self.pause = if useful { 0 } else { (2 * self.pause).clamp(1, PAUSE) };
        self.skip = self.pause;
    }
}

/// What `poll` gives within a moment, if it does.
pub fn for_a_moment<T>(poll: impl FnMut() -> Option<T>) -> Option<T> {
    within(MOMENT, poll)
}

/// What `poll` gives within so long a time, if it does.
pub fn within<T>(time: Duration, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    loop {
        let came = poll();
        if came.is_some() || begun.elapsed() >= time {
            return came;
        }
        (0..16).for_each(|_| spin_loop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many are left out until the next one.
    fn left_out(spins: &mut Spins) -> usize {
        (0..1000).take_while(|_| !spins.now()).count()
    }

    #[test]
    fn waits_in_vain_are_tried_less_and_less_often() {
        let mut spins = Spins { possible: true, ..Spins::default() };
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pauses.push(left_out(&mut spins));
            spins.done(false);
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        left_out(&mut spins);
        spins.done(true);
        assert_eq!(left_out(&mut spins), 0);
        assert!(!Spins::default().now(), "nobody could answer meanwhile");
    }

    #[test]
    fn what_does_not_come_is_not_waited_for_any_longer() {
        assert_eq!(for_a_moment(|| None::<u8>), None);
        let mut polls = 0;
        let first = for_a_moment(|| {
            polls += 1;
            (polls == 1).then_some(7)
        });
        assert_eq!((first, polls), (Some(7), 1));
    }
}
