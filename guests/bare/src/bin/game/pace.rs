//! What happens how often: frames, shares of rounds, and so many times a second.

use core::sync::atomic::Ordering;

use super::sets::Random;
use super::{FRAME_TICKS, FRAMES, IN_TIME, SHARED, number};

/// Something that is done so many times a second by all vCPUs together.
pub struct Every {
    period: u64,
    next: u64,
}

impl Every {
    pub fn new(name: &str, this: usize, cpus: usize, start: u64) -> Every {
        let (rate, hz) = (number(name, 0), SHARED.tsc_hz.load(Ordering::Relaxed));
        let period = (hz * cpus as u64).checked_div(rate).unwrap_or(u64::MAX);
        // Not all at the same time.
        Every { period, next: start.saturating_add(period / cpus as u64 * (this as u64 + 1)) }
    }

    pub fn due(&mut self, now: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = self.next.saturating_add(self.period);
        }
        due
    }
}

/// What a frame is made of, a little of it.
pub fn render(state: &mut [u64; 8]) {
    for round in 0..48 {
        for at in 0..state.len() {
            let other = state[(at + 3) % state.len()];
            state[at] = state[at].wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ other ^ round;
        }
    }
}

/// A frame that is being rendered: so many rounds, however long they take.
pub struct Frame {
    random: Random,
    began: u64,
    left: u64,
    /// How many are still to be counted, the same ones in every run.
    wanted: u64,
    /// How long a round takes where nothing disturbs it; 0: frames are not rendered.
    round_ps: u64,
}

impl Frame {
    pub fn first(this: usize, now: u64) -> Frame {
        let random = Random(0x1000 + this as u64);
        let (wanted, round_ps) = (number("frames", 0), number("round-ps", 0));
        let mut frame = Frame { random, began: now, left: 0, wanted, round_ps };
        frame.next(now);
        frame
    }

    pub fn next(&mut self, now: u64) {
        let (least, most) = (number("frame-least", 15_000), number("frame-most", 18_000));
        let us = least + self.random.below(most.saturating_sub(least) + 1);
        self.began = now;
        self.left = (us * 1_000_000).checked_div(self.round_ps).unwrap_or(u64::MAX).max(1);
    }

    /// Counts a round, and the frame if that was its last one.
    pub fn round(&mut self, now: u64) {
        if self.left == 0 && self.wanted > 0 {
            self.wanted -= 1;
            let took = now - self.began;
            FRAMES.fetch_add(1, Ordering::Relaxed);
            FRAME_TICKS.fetch_add(took, Ordering::Relaxed);
            IN_TIME.fetch_add((took * 55 < SHARED.tsc_hz.load(Ordering::Relaxed)).into(), Ordering::Relaxed);
            self.next(now);
        }
        self.left = self.left.saturating_sub(1);
    }
}

/// Per mille of the rounds, spread evenly.
pub struct Share {
    part: u64,
    sum: u64,
}

impl Share {
    pub fn of(name: &str) -> Share {
        Share { part: number(name, 0), sum: 0 }
    }

    pub fn next(&mut self) -> bool {
        self.sum += self.part;
        let whole = self.sum >= 1000;
        if whole {
            self.sum -= 1000;
        }
        whole
    }
}
