//! A disk: the guest's `/dev/vda`, on the host the same image as a file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::{Random, fail};
use crate::measure::Meter;
use crate::sys::devices::Reads;
use crate::sys::{Mapping, READ, WRITE};

const BLOCK: usize = 4096;
const LARGE: usize = 1 << 20;
/// Reads that are under way at a time.
const DEPTH: usize = 32;
/// O_DIRECT.
const DIRECT: i32 = 0o40000;

/// What the first eight bytes of a block of the image hold.
fn stamp(block: u64) -> u64 {
    block.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

struct Disk {
    file: File,
    blocks: u64,
    random: Random,
}

/// Opens it. A guest's page cache is left out, and what the host has in its own is not: on the host, where the image is a file, that
/// is the cache which its guests' disks are in, too.
fn open(m: &mut Meter, path: Option<&str>) -> Option<Disk> {
    let Some(path) = path else {
        m.absent = Some("no disk was named".into());
        return None;
    };
    let direct = if path.starts_with("/dev/") { DIRECT } else { 0 };
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(path);
    let file = file.unwrap_or_else(|why| fail(path, &why));
    // Block devices have no length but their end.
    let length =
        std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0)).unwrap_or_else(|why| fail(path, &why));
    Some(Disk { file, blocks: length / BLOCK as u64, random: Random(7) })
}

fn buffer(length: usize) -> Mapping {
    Mapping::anonymous(length, READ | WRITE).unwrap_or_else(|why| fail("mmap", &why))
}

fn is(bytes: &[u8], block: u64) -> bool {
    bytes.first_chunk().is_some_and(|head| u64::from_le_bytes(*head) == stamp(block))
}

impl Disk {
    fn place(&mut self) -> u64 {
        self.random.next() % self.blocks
    }
}

/// Reads of 4 KiB.
pub fn read(m: &mut Meter, path: Option<&str>) {
    let Some(mut disk) = open(m, path) else { return };
    let mut page = buffer(BLOCK);
    let mut wrong = 0;
    m.batches(|n| {
        for _ in 0..n {
            let block = disk.place();
            let read = disk.file.read_exact_at(page.bytes(), block * BLOCK as u64);
            wrong += u64::from(read.is_err() || !is(page.bytes(), block));
        }
        n
    });
    m.sum = Some(wrong);
}

/// Reads of 4 KiB, many at a time.
pub fn read_deep(m: &mut Meter, path: Option<&str>) {
    let Some(mut disk) = open(m, path) else { return };
    let pages = buffer(BLOCK * DEPTH);
    let file = disk.file.try_clone().unwrap_or_else(|why| fail("dup", &why));
    let reads = match Reads::new(&file, &pages, BLOCK, DEPTH) {
        Ok(reads) => reads,
        Err(why) => return m.absent = Some(format!("no io_submit: {why}")),
    };
    let mut wrong = 0;
    m.batches(|n| {
        let rounds = n.div_ceil(DEPTH as u64);
        for _ in 0..rounds {
            let blocks: Vec<_> = (0..DEPTH).map(|_| disk.place()).collect();
            let offsets: Vec<_> = blocks.iter().map(|block| block * BLOCK as u64).collect();
            reads.perform(&offsets).unwrap_or_else(|why| fail("io_submit", &why));
            for (place, block) in blocks.into_iter().enumerate() {
                let head: [u8; 8] = std::array::from_fn(|at| pages.read(place * BLOCK + at));
                wrong += u64::from(!is(&head, block));
            }
        }
        rounds * DEPTH as u64
    });
    m.sum = Some(wrong);
}

/// Writes of 4 KiB, each of what stands there; with `sync` each is on the disk before the next.
pub fn write(m: &mut Meter, path: Option<&str>, sync: bool) {
    let Some(mut disk) = open(m, path) else { return };
    let mut page = buffer(BLOCK);
    let mut wrong = 0;
    m.batches(|n| {
        for _ in 0..n {
            let block = disk.place();
            page.bytes()[..8].copy_from_slice(&stamp(block).to_le_bytes());
            let mut done = disk.file.write_all_at(page.bytes(), block * BLOCK as u64);
            if sync {
                done = done.and_then(|()| disk.file.sync_data());
            }
            wrong += u64::from(done.is_err());
        }
        n
    });
    let block = disk.place();
    let read = disk.file.read_exact_at(page.bytes(), block * BLOCK as u64);
    m.sum = Some(wrong + u64::from(read.is_err() || !is(page.bytes(), block)));
}

/// Reads of 1 MiB, one behind the other.
pub fn read_large(m: &mut Meter, path: Option<&str>) {
    let Some(disk) = open(m, path) else { return };
    let mut bytes = buffer(LARGE);
    let (per, mut at, mut wrong) = ((LARGE / BLOCK) as u64, 0, 0);
    m.batches(|n| {
        for _ in 0..n {
            at = if at + per > disk.blocks { 0 } else { at };
            let read = disk.file.read_exact_at(bytes.bytes(), at * BLOCK as u64);
            wrong += u64::from(read.is_err() || !is(bytes.bytes(), at));
            at += per;
        }
        n
    });
    m.sum = Some(wrong);
}

/// Writes of 1 MiB, one behind the other, each of what stands there.
pub fn write_large(m: &mut Meter, path: Option<&str>) {
    let Some(disk) = open(m, path) else { return };
    let mut bytes = buffer(LARGE);
    let (per, mut at, mut wrong) = ((LARGE / BLOCK) as u64, 0, 0);
    m.batches(|n| {
        for _ in 0..n {
            at = if at + per > disk.blocks { 0 } else { at };
            for (place, block) in bytes.bytes().chunks_exact_mut(BLOCK).zip(at..) {
                place[..8].copy_from_slice(&stamp(block).to_le_bytes());
            }
            wrong += u64::from(disk.file.write_all_at(bytes.bytes(), at * BLOCK as u64).is_err());
            at += per;
        }
        n
    });
    m.sum = Some(wrong);
}
