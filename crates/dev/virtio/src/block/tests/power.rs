//! What a power cut leaves: whatever the guest was told to be flushed.
//!
//! [`Disk`] is a disk with a cache that loses its power at a random operation. Of what was written since the last completed
//! sync nothing, a beginning or any part is there afterwards.

use std::io::{Error, Result};
use std::sync::{Arc, Mutex};

use satori_defs::virtio::block::*;
use satori_defs::virtio::feature::*;
use satori_image::testing::{faults, qcow2};
use satori_image::{Access, Image, Store};

use super::ask;
use crate::testing::Driver;
use crate::{Block, lock};

const BYTES: u64 = 1 << 20;
/// Sectors that records are written to, scattered over the disk.
const SLOTS: u64 = 64;
const STRIDE: u64 = BYTES / SECTOR / SLOTS;

#[derive(Debug, Default)]
struct Contents {
    /// What the next power-up finds in any case.
    durable: Vec<u8>,
    /// What is read now.
    current: Vec<u8>,
    /// Writes since the last sync that was completed.
    since: Vec<(u64, Vec<u8>)>,
    /// Operations until the power is cut.
    left: u64,
}

/// The file beneath the image.
#[derive(Debug)]
struct Disk {
    contents: Mutex<Contents>,
    /// Whether a sync makes anything last: without, it is as if the device never asked for one.
    lasting: bool,
}

fn apply(bytes: &mut Vec<u8>, (at, data): &(u64, Vec<u8>)) {
    let end = *at as usize + data.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[*at as usize..end].copy_from_slice(data);
}

impl Disk {
    fn new(image: Vec<u8>, lasting: bool, left: u64) -> Arc<Self> {
        let contents = Contents { durable: image.clone(), current: image, since: Vec::new(), left };
        Arc::new(Disk { contents: Mutex::new(contents), lasting })
    }

    /// Does `operation`, unless the power was cut before it.
    fn powered<T>(&self, operation: impl FnOnce(&mut Contents) -> T) -> Result<T> {
        let mut contents = lock(&self.contents);
        contents.left = contents.left.checked_sub(1).ok_or_else(|| Error::other("no power"))?;
        Ok(operation(&mut contents))
    }

    /// What is found when the power is back, with those of the last writes that `kept` chooses.
    fn after(&self, mut kept: impl FnMut(usize, usize) -> bool) -> Vec<u8> {
        let contents = lock(&self.contents);
        let mut bytes = contents.durable.clone();
        let count = contents.since.len();
        let kept = contents.since.iter().enumerate().filter(|(index, _)| kept(*index, count));
        kept.for_each(|(_, write)| apply(&mut bytes, write));
        bytes
    }
}

impl Store for Disk {
    fn len(&self) -> u64 {
        lock(&self.contents).current.len() as u64
    }

    fn set_len(&self, _len: u64) -> Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn read(&self, at: u64, data: &mut [u8]) -> Result<()> {
        self.powered(|contents| {
            let there = contents.current.get(at as usize..).unwrap_or_default();
            let count = there.len().min(data.len());
            data[..count].copy_from_slice(&there[..count]);
            data[count..].fill(0);
        })
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        self.powered(|contents| {
            contents.since.push((at, data.to_vec()));
            apply(&mut contents.current, &(at, data.to_vec()));
        })
    }

    fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.write(at, &vec![0; len as usize])
    }

    fn sync(&self) -> Result<()> {
        self.powered(|contents| {
            if self.lasting {
                contents.durable = contents.current.clone();
                contents.since.clear();
            }
        })
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Raw,
    Qcow2,
}

impl Format {
    fn image(self, store: Arc<dyn Store>) -> std::result::Result<Image, satori_image::Error> {
        match self {
            Format::Raw => Image::raw("disk", store, Access::Write),
            Format::Qcow2 => Image::qcow2("disk", store, Access::Write),
        }
    }
}

fn device(image: Image) -> Driver {
    let block = Block::new(crate::Disk { image, serial: String::new(), io_thread: None }, Default::default())
        .unwrap();
    let mut driver = Driver::new(block, true);
    driver.begin(VERSION_1 | FLUSH | DISCARD | WRITE_ZEROES);
    driver
}

/// A guest writes records and flushes until the power is cut. Returns how many of the records that it was told to be
/// flushed are not there afterwards.
fn lost(format: Format, seed: u64, lasting: bool) -> usize {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let blank = match format {
        Format::Raw => vec![0; BYTES as usize],
        // Small clusters, so that many tables change.
        Format::Qcow2 => qcow2(BYTES, 9 + 3 * (random.below(2) as u32), None),
    };
    let disk = Disk::new(blank, lasting, 40 + random.below(600));
    let mut driver = device(format.image(disk.clone()).unwrap());
    // What each slot may hold: what was flushed last, and everything that was written behind it.
    let mut may: Vec<Vec<u64>> = vec![vec![0]; SLOTS as usize];
    for number in 1.. {
        let slot = random.below(SLOTS);
        let sector = slot * STRIDE + slot % STRIDE;
        let (status, value) = if random.below(8) == 0 {
            let range = [&sector.to_le_bytes()[..], &1u32.to_le_bytes(), &UNMAP.to_le_bytes()].concat();
            (ask(&mut driver, WRITE_ZEROES_OUT, 0, &range, 0).0, 0)
        } else {
            let record = u64::to_le_bytes(number).repeat(SECTOR as usize / 8);
            (ask(&mut driver, OUT, sector, &record, 0).0, number)
        };
        // One that failed may be there all the same.
        may[slot as usize].push(value);
        if status != OK {
            break;
        }
        if random.below(4) == 0 {
            if ask(&mut driver, FLUSH_OUT, 0, &[], 0).0 != OK {
                break;
            }
            may.iter_mut().for_each(|values| drop(values.drain(..values.len() - 1)));
        }
    }
    let (mode, part) = (random.below(3), random.below(1000));
    let bytes = disk.after(|index, count| match mode {
        0 => false,
        1 => random.below(2) == 0,
        _ => (index as u64) < count as u64 * part / 1000,
    });
    if format == Format::Qcow2 && lasting {
        assert_eq!(faults(&bytes), Vec::<String>::new(), "seed {seed} mode {mode}");
    }
    let Ok(image) = format.image(Disk::new(bytes, true, u64::MAX)) else { return SLOTS as usize };
    let found = |slot: u64| {
        let mut sector = [0; SECTOR as usize];
        image.read((slot * STRIDE + slot % STRIDE) * SECTOR, &mut sector).ok()?;
        let (words, _) = sector.as_chunks::<8>();
        words.iter().all(|word| *word == words[0]).then(|| u64::from_le_bytes(words[0]))
    };
    (0..SLOTS).filter(|slot| !found(*slot).is_some_and(|value| may[*slot as usize].contains(&value))).count()
}

#[test]
fn a_power_cut_loses_no_record_that_was_flushed() {
    for format in [Format::Raw, Format::Qcow2] {
        for seed in 0..200 {
            assert_eq!(lost(format, seed, true), 0, "seed {seed}");
        }
    }
}

/// The test above is worth something: it fails for a device that never has the disk sync.
#[test]
fn without_a_sync_a_power_cut_loses_records() {
    for format in [Format::Raw, Format::Qcow2] {
        assert!((0..20).map(|seed| lost(format, seed, false)).sum::<usize>() > 20);
    }
}
