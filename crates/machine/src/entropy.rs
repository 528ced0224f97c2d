//! Where RDRAND and RDSEED get their numbers.

use satori_engine::Entropy;

/// The host's randomness, drawn in pieces so that a number costs no system call.
pub(crate) struct Host {
    drawn: [u64; 32],
    left: usize,
}

impl Host {
    pub(crate) fn new() -> Self {
        Host { drawn: [0; 32], left: 0 }
    }
}

impl Entropy for Host {
    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            let mut bytes = [0; 256];
            getrandom::fill(&mut bytes).ok()?;
            for (number, bytes) in self.drawn.iter_mut().zip(bytes.as_chunks().0) {
                *number = u64::from_le_bytes(*bytes);
            }
            self.left = self.drawn.len();
        }
        self.left -= 1;
        // A number is given once.
        Some(std::mem::take(&mut self.drawn[self.left]))
    }
}

/// SplitMix64, seeded by the vCPU's number: two runs under virtual time must not differ, so a
/// guest that needs secrets has to run under real time.
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(index: u32) -> Self {
        Seeded(STEP ^ u64::from(index) << 32)
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Entropy for Seeded {
    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(STEP);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(value ^ value >> 31)
    }

    fn seed(&self) -> Option<u64> {
        Some(self.0)
    }

    fn set_seed(&mut self, seed: u64) {
        self.0 = seed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(source: &mut dyn Entropy) -> Vec<u64> {
        (0..100).map(|_| source.next().expect("there is always a number")).collect()
    }

    #[test]
    fn the_seeded_numbers_repeat_and_the_hosts_do_not() {
        assert_eq!(take(&mut Seeded::new(3)), take(&mut Seeded::new(3)));
        assert_ne!(take(&mut Seeded::new(3)), take(&mut Seeded::new(4)));
        let mut numbers = [take(&mut Host::new()), take(&mut Host::new())].concat();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200, "the host gave a number twice");
    }
}
