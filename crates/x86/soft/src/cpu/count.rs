//! What a vCPU has executed, in numbers.

use satori_engine::TimeSource;

/// See the module.
#[derive(Default)]
pub(crate) struct Count {
    /// Instructions retired, or ended by a fault that was delivered, before the current block.
    pub retired: u64,
    /// Of those, how many [`TimeSource::retired`] was told.
    told: u64,
    /// The current run ends after so many instructions, exactly.
    exact: bool,
    /// PAUSEs in a row.
    pauses: u32,
    /// Instructions retired at the last PAUSE.
    last_pause: u64,
    /// Exceptions delivered, by vector.
    exceptions: [u64; 32],
}

/// Two PAUSEs further apart than this, in instructions, are not of one loop: the PLE gap.
const PLE_GAP: u64 = 64;

impl Count {
    /// Tells the time source what was retired since it was told last: `retired` in all.
    pub(super) fn tell(&mut self, time: &dyn TimeSource, retired: u64) {
        time.retired(retired - self.told);
        self.told = retired;
    }

    /// A run begins that ends after exactly so many instructions, or does not care.
    pub(crate) fn begin_run(&mut self, exact: bool) {
        self.exact = exact;
    }

    /// Whether the current run ends after so many instructions, exactly.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    /// A PAUSE behind `retired` instructions: whether it is the last of a loop's `window`, which begins anew then.
    pub(crate) fn pause(&mut self, retired: u64, window: u32) -> bool {
        let apart = retired.wrapping_sub(self.last_pause) > PLE_GAP;
        self.last_pause = retired;
        self.pauses = if apart { 1 } else { self.pauses + 1 };
        let over = self.pauses >= window;
        if over {
            self.pauses = 0;
        }
        over
    }

    /// PAUSEs in a row, and instructions retired at the last one.
    pub(crate) fn pauses(&self) -> (u32, u64) {
        (self.pauses, self.last_pause)
    }

    /// Goes on from there.
    pub(crate) fn set_pauses(&mut self, (pauses, last): (u32, u64)) {
        (self.pauses, self.last_pause) = (pauses, last);
    }

    /// Exception `vector` is delivered.
    pub(crate) fn deliver(&mut self, vector: u8) {
        self.exceptions[usize::from(vector & 31)] += 1;
    }

    /// Exceptions that were delivered, by vector.
    pub(crate) fn exceptions(&self) -> &[u64; 32] {
        &self.exceptions
    }

    /// Goes on from `retired` instructions, of which whoever keeps the time knows.
    pub(crate) fn go_on_from(&mut self, retired: u64) {
        (self.retired, self.told) = (retired, retired);
    }
}
