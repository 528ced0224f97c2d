//! A raw image, and what a snapshot keeps of it in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, TryLockError};
use std::io::{IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, preadv2};
use satori_defs::virtio::block::SECTOR;

use crate::{Error, lock};

/// Bytes of the pieces that a snapshot keeps.
const PIECE: u64 = 64 << 10;
/// Zeroes that are written at once where the file system cannot make them.
const ZEROES: usize = 1 << 20;

pub struct Image {
    file: File,
    bytes: u64,
    /// Pieces that were written, by their number.
    kept: Option<Mutex<BTreeMap<u64, Box<[u8]>>>>,
}

impl Image {
    pub fn new(name: &str, mut file: File, readonly: bool, snapshot: bool) -> Result<Self, Error> {
        let host = |why| Error::Host { what: "a disk", why };
        let bytes = file.seek(SeekFrom::End(0)).map_err(host)?;
        if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
            return Err(Error::Config(format!(
                "{name} has {bytes} bytes, which are no whole sectors of {SECTOR}: name an image, or make it as \
                 long as a disk by truncate(1)"
            )));
        }
        // A lock is the file's as long as this descriptor is open, and other users of images look for it.
        let locked = if readonly || snapshot { file.try_lock_shared() } else { file.try_lock() };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Config(format!(
                    "{name} is in use, by another process or twice in this run: end one, or use 'snapshot' in both"
                )));
            }
            Err(TryLockError::Error(why)) => return Err(host(why)),
        }
        Ok(Image { file, bytes, kept: snapshot.then(Mutex::default) })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Calls `each` with the number of every piece that `len` bytes at `at` touch, where they begin in it, and
    /// which of the bytes these are.
    fn pieces(at: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let begin = (here % PIECE) as usize;
            let count = (PIECE as usize - begin).min(len - done);
            each(here / PIECE, begin, done..done + count);
            done += count;
        }
    }

    pub fn read(&self, at: u64, data: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(data, at)?;
        if let Some(kept) = &self.kept {
            let kept = lock(kept);
            Self::pieces(at, data.len(), |piece, begin, range| {
                if let Some(bytes) = kept.get(&piece) {
                    let len = range.len();
                    data[range].copy_from_slice(&bytes[begin..begin + len]);
                }
            });
        }
        Ok(())
    }

    /// Reads what the host has in memory; false if that is not all.
    pub fn read_at_once(&self, at: u64, data: &mut [u8]) -> bool {
        let len = data.len();
        self.kept.is_none()
            && preadv2(&self.file, &mut [IoSliceMut::new(data)], at, ReadWriteFlags::NOWAIT) == Ok(len)
    }

    pub fn write(&self, at: u64, data: &[u8]) -> std::io::Result<()> {
        let Some(kept) = &self.kept else { return self.file.write_all_at(data, at) };
        let mut kept = lock(kept);
        let mut result = Ok(());
        Self::pieces(at, data.len(), |piece, begin, range| {
            let start = piece * PIECE;
            if let Entry::Vacant(place) = kept.entry(piece) {
                let mut bytes = vec![0; PIECE.min(self.bytes - start) as usize].into_boxed_slice();
                match self.file.read_exact_at(&mut bytes, start) {
                    Ok(()) => {
                        place.insert(bytes);
                    }
                    Err(error) => result = Err(error),
                }
            }
            if let Some(bytes) = kept.get_mut(&piece) {
                bytes[begin..begin + range.len()].copy_from_slice(&data[range]);
            }
        });
        result
    }

    /// What was written is on the disk when this returns. A snapshot is nowhere.
    pub fn flush(&self) -> std::io::Result<()> {
        if self.kept.is_some() { Ok(()) } else { self.file.sync_data() }
    }

    /// The guest does not need these bytes any more.
    pub fn discard(&self, at: u64, len: u64) -> std::io::Result<()> {
        if self.kept.is_none() {
            // A file system that cannot keeps them, which is as good.
            let _ = fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
        }
        Ok(())
    }

    /// Makes these bytes zero.
    pub fn zero(&self, at: u64, len: u64) -> std::io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if len == 0 || self.kept.is_none() && fallocate(&self.file, punch, at, len).is_ok() {
            return Ok(());
        }
        let zeroes = vec![0; ZEROES.min(len as usize)];
        let mut done = 0;
        while done < len {
            let count = (len - done).min(zeroes.len() as u64);
            self.write(at + done, &zeroes[..count as usize])?;
            done += count;
        }
        Ok(())
    }
}
