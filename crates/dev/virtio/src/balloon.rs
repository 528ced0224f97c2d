//! Memory balloon (virtio 1.2, 5.5): what the guest does not use goes back to the host.
//!
//! The driver reports memory that has been free for a while (free page reporting), and gives away as many pages as it is asked for.
//! Either is memory that reads as zeros from then on, and is there again when the guest touches it; so a driver that lies
//! about what is free loses what it had there, and nobody else does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use satori_defs::virtio::{balloon::*, kind};
use satori_memory::{Gpa, Region};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::{Chain, Device, Link};

/// Descriptors of each queue.
const QUEUE: u16 = 128;
/// Most bytes of page numbers that are taken at once: a driver gives 1 KiB.
const NUMBERS: usize = 64 << 10;

/// A balloon.
pub struct Balloon {
    /// Pages that the driver is to give away, and that it says it gave.
    wanted: u32,
    actual: AtomicU32,
}

impl Balloon {
    /// A device that asks for `bytes` of the guest's memory.
    pub fn new(bytes: u64) -> Arc<Self> {
        let wanted = u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
        Arc::new(Balloon { wanted, actual: AtomicU32::new(0) })
    }

    /// Gives back the pages whose numbers the chain has.
    fn inflate(link: &Link, chain: &Chain) {
        let numbers = chain.read(link.memory(), 0, NUMBERS);
        let mut pages =
            numbers.as_chunks::<4>().0.iter().map(|number| u64::from(u32::from_le_bytes(*number)));
        let Some(first) = pages.next() else { return };
        // A driver lists neighbours one by one, upwards or downwards.
        let (mut begin, mut end) = (first, first + 1);
        let discard = |begin: u64, end: u64| {
            link.memory().discard(Region { start: Gpa(begin * PAGE), len: (end - begin) * PAGE });
        };
        for page in pages {
            if page == end {
                end += 1;
            } else if page + 1 == begin {
                begin = page;
            } else {
                discard(begin, end);
                (begin, end) = (page, page + 1);
            }
        }
        discard(begin, end);
    }
}

impl Device for Balloon {
    fn kind(&self) -> u16 {
        kind::BALLOON
    }

    fn class(&self) -> u32 {
        0x05_00_00
    }

    fn features(&self) -> u64 {
        DEFLATE_ON_OOM | PAGE_REPORTING
    }

    fn queues(&self) -> Vec<u16> {
        vec![QUEUE; 3]
    }

    fn config(&self) -> Vec<u8> {
        [self.wanted.to_le_bytes(), self.actual.load(Ordering::Acquire).to_le_bytes()].concat()
    }

    fn configure(&self, at: u64, size: u8, value: u64) {
        if (at, size) == (ACTUAL as u64, 4) {
            self.actual.store(value as u32, Ordering::Release);
        }
    }

    fn start(&self, _link: &Arc<Link>) {}

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        while let Some(chain) = link.pop(queue) {
            match queue {
                INFLATE => Balloon::inflate(link, &chain),
                REPORTING => chain.writable.iter().for_each(|span| {
                    link.memory().discard(Region { start: span.at, len: span.len.into() });
                }),
                _ => {}
            }
            link.give(queue, &chain, |_, _| 0);
        }
    }

    fn reset(&self) {
        self.actual.store(0, Ordering::Release);
    }

    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedBalloon { wanted: self.wanted, actual: self.actual.load(Ordering::Acquire) })
    }

    fn restore(&self, _link: &Arc<Link>, value: &Value) -> Result<(), Error> {
        let SavedBalloon { wanted, actual } = value.state()?;
        Error::unless(wanted == self.wanted, SavedBalloon::NAME, "it asks for another size")?;
        self.actual.store(actual, Ordering::Release);
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBalloon {
    wanted: u32,
    actual: u32,
}

impl State for SavedBalloon {
    const NAME: &'static str = "memory balloon";
    const VERSION: u32 = 1;
}

#[cfg(test)]
mod tests {
    use satori_defs::virtio::feature::VERSION_1;
    use satori_defs::virtio::split::WRITE;

    use super::*;
    use crate::testing::Driver;

    #[test]
    fn pages_that_are_given_away_or_free_read_as_zeros() {
        let mut driver = Driver::new(Balloon::new(3 << 20), false);
        assert_eq!(driver.get(0x2000, 4), 768);
        driver.begin(VERSION_1 | PAGE_REPORTING);
        let full = |driver: &Driver| driver.memory.write(Gpa(0xa_0000), &vec![7; 0x1_0000]).unwrap();
        let zero = |driver: &Driver| -> Vec<bool> {
            (0..16).map(|page| driver.memory.read_u32(Gpa(0xa_0000 + 0x1000 * page)).unwrap() == 0).collect()
        };
        full(&driver);
        // Downwards, upwards, alone, and where there is no memory.
        let numbers = [0xa3_u32, 0xa2, 0xa7, 0xa8, 0xae, u32::MAX, 0x100];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        driver.request(INFLATE, &bytes, 0);
        let wanted: Vec<_> = (0xa0..0xb0).map(|page| numbers.contains(&page)).collect();
        assert_eq!(zero(&driver), wanted);
        driver.set(0x2004, 4, 5);
        assert_eq!(driver.get(0x2004, 4), 5);
        // Parts of pages stay.
        full(&driver);
        driver.describe(REPORTING, 0, 0xa_0fff, 0x3002, WRITE, 0);
        driver.offer(REPORTING, 0);
        driver.ring(REPORTING);
        assert_eq!((driver.given(INFLATE), driver.given(REPORTING)), (1, 1));
        assert_eq!(zero(&driver), (0..16).map(|page| (1..4).contains(&page)).collect::<Vec<_>>());
        driver.memory.write(Gpa(0xa_1000), b"again").unwrap();
        let mut seen = [0; 6];
        driver.memory.read(Gpa(0xa_1000), &mut seen).unwrap();
        assert_eq!(&seen, b"again\0");
    }
}
