//! Finds how often an operation fits into a sample, and takes samples.

use std::hint::black_box;

use crate::sys::now;

/// How long a sample is, in nanoseconds: shorter than what a scheduler leaves to a program at a time, so
/// that some samples contain nothing but the operation even where the host does something besides.
const SAMPLE: u64 = 2_000_000;

/// What became of a row.
#[derive(Default)]
pub struct Meter {
    budget: u64,
    /// One sample of so many operations, whatever they take.
    exactly: Option<u64>,
    /// Nanoseconds an operation.
    pub samples: Vec<f64>,
    /// Operations in a sample.
    pub operations: u64,
    /// What each operation results in.
    pub sum: Option<u64>,
    /// Not every operation had the same result.
    pub differing: bool,
    /// A second figure and its name.
    pub more: Option<(&'static str, f64)>,
    /// Why it could not be measured.
    pub absent: Option<String>,
}

impl Meter {
    /// A meter that takes about `budget` nanoseconds.
    pub fn new(budget: u64) -> Self {
        Meter { budget, ..Meter::default() }
    }

    /// Takes one sample of so many operations, where a row is measured in batches: for counts.
    pub fn exactly(self, operations: Option<u64>) -> Self {
        Meter { exactly: operations, ..self }
    }

    /// The time that the row may take, in nanoseconds.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Measures `operation`. Its result must be the same each time: it shows whether the processor
    /// computes rightly.
    pub fn each(&mut self, mut operation: impl FnMut() -> u64) {
        let first = black_box(operation());
        let mut differing = false;
        self.batches(|n| {
            for _ in 0..n {
                differing |= black_box(operation()) != first;
            }
            n
        });
        self.sum = Some(first);
        self.differing |= differing;
    }

    /// Measures `batch`, which does about as many operations as it is asked for and tells how many it
    /// did.
    pub fn batches(&mut self, mut batch: impl FnMut(u64) -> u64) {
        if let Some(n) = self.exactly {
            let (done, took) = timed(&mut batch, n);
            self.operations = done;
            self.samples.push(took as f64 / done.max(1) as f64);
            return;
        }
        let target = SAMPLE.min(self.budget / 10).max(1);
        let mut n = 1;
        let start = now();
        // The calibration is the warm-up, too.
        loop {
            let (done, took) = timed(&mut batch, n);
            if took >= target / 4 || now() - start > self.budget {
                n = scaled(done, target, took);
                break;
            }
            n = scaled(done, target.min(16 * took.max(1)), took).max(n + 1);
        }
        let start = now();
        while self.samples.is_empty() || now() - start < self.budget {
            let (done, took) = timed(&mut batch, n);
            self.operations = done;
            self.samples.push(took as f64 / done as f64);
        }
    }

    /// Takes single times, in nanoseconds, and keeps their median.
    pub fn times(&mut self, times: &[u64]) {
        let mut times = times.to_vec();
        times.sort_unstable();
        self.operations = times.len() as u64;
        self.samples.push(times[times.len() / 2] as f64);
    }
}

fn timed(batch: &mut impl FnMut(u64) -> u64, n: u64) -> (u64, u64) {
    let start = now();
    let done = batch(n);
    (done, now() - start)
}

/// How many operations take `target` nanoseconds if `n` took `took`.
fn scaled(n: u64, target: u64, took: u64) -> u64 {
    (u128::from(n) * u128::from(target) / u128::from(took.max(1))).clamp(1, 1 << 40) as u64
}
