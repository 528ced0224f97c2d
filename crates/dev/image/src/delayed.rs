//! Writes to a qcow2 file, kept back until they can be made in an order that leaves the image whole at every instant.
//!
//! The library writes a new table's place into the table above it before the count of the cluster's users is in the file:
//! whoever is killed or loses power in between leaves a cluster in use that counts as free. So all its writes wait
//! here. [`Delayed::commit`] makes them in stages, each on the disk before the next:
//!
//! 1. counts, each the greater of before and after;
//! 2. the table of the blocks of counts, 3. the header;
//! 4. data, 5. the L2 tables that lead to it, 6. the L1 table that leads to those;
//! 7. counts as they are after, where some went down.
//!
//! Whatever part of a stage is there, every reference leads to something whole that counts as used. For data this
//! asks that no cluster is given up and used for something else within one commit (see `Qcow2::zero`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Result;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

use satori_lock::Held;

use crate::Store;

/// Longest piece of the file that is kept as one; also a cluster's length, if that is shorter.
const PIECE_MAX: u64 = 4096;
/// Bytes of the longest table that the library takes.
const TABLE_MAX: u64 = 32 << 20;
/// Longest write.
const RUN: usize = 1 << 20;
/// Places of the header's fields (docs/interop/qcow2.rst).
const CLUSTER_BITS: u64 = 20;
const L1_SIZE: u64 = 36;
const L1_PLACE: u64 = 40;
const COUNTS_PLACE: u64 = 48;
const COUNTS_CLUSTERS: u64 = 56;
const COUNT_ORDER: u64 = 96;
/// What version 2 has instead of a field: 16 bits.
const COUNT_ORDER_2: u32 = 4;
/// The place in an entry of a table.
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;

/// The pieces that were written, by where they begin.
type Pieces = BTreeMap<u64, Box<[u8]>>;
/// The same of one stage, in order.
type List = Vec<(u64, Box<[u8]>)>;

#[derive(Debug, Default)]
struct Pending {
    pieces: Pieces,
    len: u64,
}

/// A file whose writes wait for [`commit`](Delayed::commit).
#[derive(Debug)]
pub(crate) struct Delayed {
    store: Arc<dyn Store>,
    pending: Mutex<Pending>,
    piece: u64,
}

/// When a piece is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Counts,
    CountTable,
    Header,
    Data,
    L2,
    L1,
}

/// Where an image's tables are.
struct Tables {
    /// log2 of a cluster's bytes and of a count's bits.
    cluster_bits: u32,
    count_order: u32,
    /// Begin and end of the L1 table and of the table of the blocks of counts.
    l1: (u64, u64),
    count_table: (u64, u64),
    /// Clusters that hold counts, and L2 tables, by their begin.
    counts: BTreeSet<u64>,
    l2: BTreeSet<u64>,
}

impl Delayed {
    pub(crate) fn new(store: Arc<dyn Store>) -> Result<Self> {
        let mut bits = [0; 4];
        store.read(CLUSTER_BITS, &mut bits)?;
        let piece = 1u64.checked_shl(u32::from_be_bytes(bits)).unwrap_or(PIECE_MAX).clamp(512, PIECE_MAX);
        let pending = Mutex::new(Pending { pieces: Pieces::new(), len: store.len() });
        Ok(Delayed { store, pending, piece })
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().held()
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> u64 {
        self.pending().pieces.len() as u64 * self.piece
    }

    /// Brings all that waits to the disk. The library's caches are to be empty: it is for them that these are whole.
    pub(crate) fn commit(&self) -> Result<()> {
        let mut pending = self.pending();
        if pending.pieces.is_empty() {
            return self.store.sync();
        }
        let before = Tables::read(&|at, data| self.store.read(at, data))?;
        let after = Tables::read(&|at, data| self.read_over(&pending, at, data))?;
        let mut stages: BTreeMap<Stage, List> = BTreeMap::new();
        let mut lowered = Vec::new();
        for (&at, bytes) in &pending.pieces {
            let stage = after.stage(at);
            let mut bytes = bytes.clone();
            if stage == Stage::Counts && before.counts.contains(&after.cluster(at)) {
                let mut old = vec![0; bytes.len()].into_boxed_slice();
                self.store.read(at, &mut old)?;
                let highest = greater(&old, &bytes, after.count_order);
                if highest != bytes {
                    lowered.push((at, std::mem::replace(&mut bytes, highest)));
                }
            }
            stages.entry(stage).or_default().push((at, bytes));
        }
        for pieces in stages.into_values().chain([lowered]).filter(|pieces| !pieces.is_empty()) {
            self.write_runs(pieces)?;
            self.store.sync()?;
        }
        pending.pieces.clear();
        pending.len = pending.len.max(self.store.len());
        Ok(())
    }

    /// Writes pieces, which are in order, as few long ones.
    fn write_runs(&self, pieces: List) -> Result<()> {
        let (mut begin, mut run) = (0, Vec::new());
        for (at, bytes) in pieces {
            if begin + run.len() as u64 != at || run.len() >= RUN {
                self.store.write(begin, &run)?;
                (begin, run) = (at, Vec::new());
            }
            run.extend_from_slice(&bytes);
        }
        self.store.write(begin, &run)
    }

    /// Where each piece begins that `len` bytes at `at` touch, the first of these in it, and which of the bytes they are.
    fn each(
        &self,
        at: u64,
        len: usize,
    ) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> + use<> {
        let (piece, mut done) = (self.piece, 0);
        std::iter::from_fn(move || {
            let here = at + done as u64;
            let inside = here % piece;
            let count = ((piece - inside) as usize).min(len - done);
            let range = done..done + count;
            done += count;
            (count > 0).then_some((here - inside, inside as usize, range))
        })
    }

    fn read_over(&self, pending: &Pending, at: u64, data: &mut [u8]) -> Result<()> {
        if !self.each(at, data.len()).all(|(piece, ..)| pending.pieces.contains_key(&piece)) {
            self.store.read(at, data)?;
        }
        for (piece, begin, range) in self.each(at, data.len()) {
            if let Some(bytes) = pending.pieces.get(&piece) {
                let len = range.len();
                data[range].copy_from_slice(&bytes[begin..begin + len]);
            }
        }
        Ok(())
    }
}

impl Store for Delayed {
    fn len(&self) -> u64 {
        self.pending().len
    }

    fn set_len(&self, len: u64) -> Result<()> {
        // The library makes its files longer by writing; what it says here is what it expects to find.
        let mut pending = self.pending();
        pending.len = pending.len.max(len);
        Ok(())
    }

    fn read(&self, at: u64, data: &mut [u8]) -> Result<()> {
        self.read_over(&self.pending(), at, data)
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        let mut pending = self.pending();
        for (piece, begin, range) in self.each(at, data.len()) {
            let bytes = match pending.pieces.entry(piece) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(place) => {
                    let mut bytes = vec![0; self.piece as usize].into_boxed_slice();
                    if range.len() < bytes.len() {
                        self.store.read(piece, &mut bytes)?;
                    }
                    place.insert(bytes)
                }
            };
            bytes[begin..begin + range.len()].copy_from_slice(&data[range]);
        }
        pending.len = pending.len.max(at + data.len() as u64);
        Ok(())
    }

    fn punch(&self, _at: u64, _len: u64) -> Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// What waits goes on waiting: [`commit`](Delayed::commit) is the flush.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn files(&self) -> Vec<RawFd> {
        self.store.files()
    }
}

/// The greater of each two counts of 1 << `order` bits.
fn greater(old: &[u8], new: &[u8], order: u32) -> Box<[u8]> {
    if let Some(bytes) = 1usize.checked_shl(order.wrapping_sub(3)).filter(|_| order >= 3) {
        let pairs = old.chunks(bytes).zip(new.chunks(bytes));
        return pairs.flat_map(|(old, new)| old.max(new)).copied().collect();
    }
    // Several in a byte.
    let (width, mask) = (1u32 << order, (1u8 << (1 << order)) - 1);
    let byte = |(old, new): (&u8, &u8)| {
        (0..8 / width).fold(0, |sum, n| {
            sum | ((old >> (n * width)) & mask).max((new >> (n * width)) & mask) << (n * width)
        })
    };
    old.iter().zip(new).map(byte).collect()
}

/// Whether the table of the blocks of counts is filled from its begin without holes, as everybody makes it who appends. For a hole
/// the library would look for room in each block before it, one within the other, until its stack ends.
pub(crate) fn counts_are_dense(store: &dyn Store) -> Result<bool> {
    let number = |at: u64, len: usize| {
        let mut bytes = [0; 8];
        store.read(at, &mut bytes[8 - len..]).map(|()| u64::from_be_bytes(bytes))
    };
    let (bits, place) = (number(CLUSTER_BITS, 4)?, number(COUNTS_PLACE, 8)?);
    let len = number(COUNTS_CLUSTERS, 4)?.checked_shl(bits as u32).filter(|len| *len <= TABLE_MAX);
    let Some(len) = len else { return Ok(false) };
    let mut bytes = vec![0; len as usize];
    store.read(place, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<8>();
    let filled = words.iter().take_while(|word| **word != [0; 8]).count();
    Ok(filled > 0 && words[filled..].iter().all(|word| *word == [0; 8]))
}

fn overwritten() -> std::io::Error {
    std::io::Error::other("the image's header was overwritten")
}

impl Tables {
    fn read(read: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> Result<Self> {
        let number = |at: u64, len: usize| {
            let mut bytes = [0; 8];
            read(at, &mut bytes[8 - len..]).map(|()| u64::from_be_bytes(bytes))
        };
        let version = number(4, 4)?;
        let cluster_bits = number(CLUSTER_BITS, 4)? as u32;
        let count_order = if version < 3 { COUNT_ORDER_2 } else { number(COUNT_ORDER, 4)? as u32 };
        if cluster_bits > 21 || count_order > 6 {
            return Err(overwritten());
        }
        // The library looked at these numbers, but an image may lead its guest to its own header.
        let table = |place: u64, len: u64| match place.checked_add(len).filter(|_| len <= TABLE_MAX) {
            Some(end) => Ok((place, end)),
            None => Err(overwritten()),
        };
        let l1 = table(number(L1_PLACE, 8)?, number(L1_SIZE, 4)? * 8)?;
        let count_table = table(number(COUNTS_PLACE, 8)?, number(COUNTS_CLUSTERS, 4)? << cluster_bits)?;
        let entries = |(begin, end): (u64, u64)| -> Result<BTreeSet<u64>> {
            let mut bytes = vec![0; (end - begin) as usize];
            read(begin, &mut bytes)?;
            let (words, _) = bytes.as_chunks::<8>();
            Ok(words
                .iter()
                .map(|word| u64::from_be_bytes(*word) & PLACE)
                .filter(|place| *place != 0)
                .collect())
        };
        Ok(Tables {
            cluster_bits,
            count_order,
            l1,
            count_table,
            counts: entries(count_table)?,
            l2: entries(l1)?,
        })
    }

    /// Where the cluster begins that `at` is in.
    fn cluster(&self, at: u64) -> u64 {
        at >> self.cluster_bits << self.cluster_bits
    }

    fn stage(&self, at: u64) -> Stage {
        let within = |(begin, end): (u64, u64)| (begin..end).contains(&at);
        let cluster = self.cluster(at);
        match cluster {
            0 => Stage::Header,
            _ if self.counts.contains(&cluster) => Stage::Counts,
            _ if within(self.count_table) => Stage::CountTable,
            _ if within(self.l1) => Stage::L1,
            _ if self.l2.contains(&cluster) => Stage::L2,
            _ => Stage::Data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::greater;

    #[test]
    fn the_greater_of_two_counts_is_that_of_each() {
        for (order, old, new, both) in [
            (0, 0b0101_0000u8, 0b0011_0001u8, 0b0111_0001u8),
            (1, 0b11_01_00_10, 0b10_10_01_01, 0b11_10_01_10),
            (2, 0x3a, 0x2b, 0x3b),
            (3, 9, 200, 200),
        ] {
            assert_eq!(*greater(&[old], &[new], order), [both], "{order}");
        }
        assert_eq!(*greater(&[0, 9, 1, 0], &[1, 0, 0, 255], 4), [1, 0, 1, 0]);
    }
}
