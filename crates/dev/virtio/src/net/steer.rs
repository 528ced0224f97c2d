//! Which pair of queues a flow belongs to: the one that its driver last sent it by (virtio 1.2, 5.1.6.5.6).

use std::sync::atomic::{AtomicU8, Ordering};

/// Flows that are told apart.
const FLOWS: usize = 256;

/// The pair of each flow.
pub(super) struct Steering([AtomicU8; FLOWS]);

impl Default for Steering {
    fn default() -> Self {
        Steering(std::array::from_fn(|_| AtomicU8::new(0)))
    }
}

impl Steering {
    /// The driver sent `frame` by `pair`.
    pub(super) fn sent(&self, frame: &[u8], pair: u16) {
        self.0[flow(frame)].store(pair as u8, Ordering::Relaxed);
    }

    /// The pair of each flow.
    pub(super) fn save(&self) -> Vec<u8> {
        self.0.iter().map(|pair| pair.load(Ordering::Relaxed)).collect()
    }

    /// Takes pairs back; false if they are not as many.
    pub(super) fn restore(&self, pairs: &[u8]) -> bool {
        self.0.iter().zip(pairs).for_each(|(own, pair)| own.store(*pair, Ordering::Relaxed));
        pairs.len() == self.0.len()
    }

    /// Where `frame` goes, of `pairs`.
    pub(super) fn pair(&self, frame: &[u8], pairs: u16) -> u16 {
        let pair = u16::from(self.0[flow(frame)].load(Ordering::Relaxed));
        if pair < pairs { pair } else { 0 }
    }
}

/// A number that both directions of a flow have: of addresses and ports, whose order does not count.
fn flow(frame: &[u8]) -> usize {
    let kind = frame.get(12..14).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]));
    let bytes = match kind {
        0x0800 => {
            let header = frame.get(14).map_or(20, |first| usize::from(first & 15) * 4);
            let ports = matches!(frame.get(23), Some(6 | 17)).then_some(14 + header);
            [frame.get(26..34), ports.and_then(|at| frame.get(at..at + 4))]
        }
        0x86dd => {
            let ports = matches!(frame.get(20), Some(6 | 17)).then_some(54);
            [frame.get(22..54), ports.and_then(|at| frame.get(at..at + 4))]
        }
        _ => [None, None],
    };
    let mixed = bytes.into_iter().flatten().map(|bytes| {
        let (one, other) = bytes.split_at(bytes.len() / 2);
        one.iter().zip(other).fold(0_usize, |all, (a, b)| all.wrapping_mul(31) + usize::from(a ^ b))
    });
    mixed.fold(0_usize, |all, part| all.wrapping_mul(0x9e37).wrapping_add(part)) % FLOWS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
        let mut frame = vec![0; 54];
        frame[12] = 8;
        frame[14] = 0x45;
        frame[23] = 6;
        frame[29] = from.0;
        frame[33] = to.0;
        frame[34..36].copy_from_slice(&from.1.to_be_bytes());
        frame[36..38].copy_from_slice(&to.1.to_be_bytes());
        frame
    }

    #[test]
    fn answers_come_by_the_pair_that_sent() {
        let steering = Steering::default();
        let (us, them) = ((15, 40000), (2, 22));
        steering.sent(&frame(us, them), 3);
        assert_eq!(steering.pair(&frame(them, us), 4), 3);
        assert_eq!(steering.pair(&frame(them, us), 2), 0, "a pair that is no longer used");
        assert_eq!(steering.pair(&frame(them, (15, 40001)), 4), 0);
        assert_eq!(steering.pair(&[1; 14], 4), 0);
    }
}
