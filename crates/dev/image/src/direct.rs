//! A file or block device of the host past its cache (O_DIRECT): whole blocks, from memory that lies as the host wants it.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use satori_lock::Held;

use crate::Store;
use crate::store::is_at_once;

/// Where memory begins that every host takes, and its largest block.
const PAGE: usize = 4096;
/// A block of most disks.
const SECTOR: u64 = 512;

/// A file that was opened with O_DIRECT. Nobody else changes its length.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    len: AtomicU64,
    /// Bytes of a block: what is read and written begins and ends at multiples of it.
    block: u64,
    /// Memory for blocks, and the lock of who changes a part of one.
    room: Mutex<Vec<u8>>,
}

/// The first `len` bytes of `room` that lie right.
fn right(room: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if room.len() < len + PAGE {
        room.resize(len + PAGE, 0);
    }
    let skip = room.as_ptr().align_offset(PAGE).min(PAGE);
    &mut room[skip..skip + len]
}

impl DirectFile {
    /// `file`, as long as it is now.
    pub fn new(mut file: File) -> Result<Self> {
        let len = file.seek(SeekFrom::End(0))?;
        file.rewind()?;
        let mut room = Vec::new();
        let block = match file.read(right(&mut room, SECTOR as usize)) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => PAGE as u64,
            other => other.map(|_| SECTOR)?,
        };
        Ok(DirectFile { file, len: len.into(), block, room: room.into() })
    }

    /// The blocks that `len` bytes at `at` touch: where they begin, and how many bytes they are.
    fn blocks(&self, at: u64, len: usize) -> Result<(u64, usize)> {
        let begin = at - at % self.block;
        let end = at.checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(self.block));
        let bytes = end.and_then(|end| usize::try_from(end - begin).ok()).ok_or(ErrorKind::InvalidInput)?;
        Ok((begin, bytes))
    }

    /// Reads blocks; behind the end are zeroes.
    fn fill(&self, blocks: &mut [u8], begin: u64) -> Result<()> {
        let mut got = 0;
        while got < blocks.len() {
            match self.file.read_at(&mut blocks[got..], begin + got as u64) {
                Ok(0) => break,
                // A part of a block is the file's last.
                Ok(count) if !(count as u64).is_multiple_of(self.block) => {
                    got += count;
                    break;
                }
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        blocks[got..].fill(0);
        Ok(())
    }
}

impl Store for DirectFile {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: u64, data: &mut [u8]) -> Result<()> {
        // The host has nothing of it in memory.
        if is_at_once() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let there = self.len().saturating_sub(at).min(data.len() as u64) as usize;
        let (data, behind) = data.split_at_mut(there);
        behind.fill(0);
        if data.is_empty() {
            return Ok(());
        }
        let (begin, bytes) = self.blocks(at, there)?;
        let mut room = self.room.lock().held();
        let blocks = right(&mut room, bytes);
        self.fill(blocks, begin)?;
        let skip = (at - begin) as usize;
        data.copy_from_slice(&blocks[skip..skip + there]);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let (begin, bytes) = self.blocks(at, data.len())?;
        let mut room = self.room.lock().held();
        let blocks = right(&mut room, bytes);
        if bytes != data.len() {
            self.fill(blocks, begin)?;
        }
        let skip = (at - begin) as usize;
        blocks[skip..skip + data.len()].copy_from_slice(data);
        self.file.write_all_at(blocks, begin)?;
        let (before, end) = (self.len(), at + data.len() as u64);
        // A last block that is not whole was made so.
        if end <= before && begin + bytes as u64 > before {
            self.file.set_len(before)?;
        }
        self.len.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> Result<()> {
        fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
            .map_err(Error::from)
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data()
    }

    fn files(&self) -> Vec<RawFd> {
        vec![self.file.as_raw_fd()]
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    /// Writes and reads of any place and length come to what a file has that is written as usual; with blocks of either size.
    #[test]
    fn parts_of_blocks_are_written_as_bytes_are() {
        // The target folder is on a disk; /tmp may be memory, which has no direct access before Linux 6.6.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target/tmp");
        std::fs::create_dir_all(&path).unwrap();
        let path = path.join(format!("satori-direct-{}", std::process::id()));
        for block in [SECTOR, PAGE as u64] {
            let mut model = vec![7; 10_752];
            std::fs::write(&path, &model).unwrap();
            // O_DIRECT of asm-generic/fcntl.h is another number on other processors.
            let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
            let file = match File::options().read(true).write(true).custom_flags(direct).open(&path) {
                Ok(file) => file,
                Err(why) => {
                    eprintln!("not tried: no direct access here ({why})");
                    break;
                }
            };
            let file = DirectFile::new(file).unwrap();
            let file = DirectFile { block: file.block.max(block), ..file };
            for (number, (at, len)) in
                [(0, 512), (512, 4096), (5, 3), (10_000, 752), (511, 2), (4000, 5000), (10_751, 1)]
                    .into_iter()
                    .enumerate()
            {
                let data = vec![number as u8; len];
                file.write(at as u64, &data).unwrap();
                model[at..at + len].copy_from_slice(&data);
                assert_eq!(file.len(), model.len() as u64);
                assert!(std::fs::read(&path).unwrap() == model, "{block}: {at}, {len}");
                let mut seen = vec![9; len + 7];
                file.read(at as u64, &mut seen).unwrap();
                let mut wanted = model[at..].to_vec();
                wanted.resize(wanted.len().max(len + 7), 0);
                assert!(seen == wanted[..len + 7], "{block}: {at}, {len}");
            }
            file.write(12_000, b"behind").unwrap();
            assert_eq!(file.len(), 12_006);
            let mut seen = [1; 8];
            file.read(12_000, &mut seen).unwrap();
            assert_eq!(&seen, b"behind\0\0");
        }
        let _ = std::fs::remove_file(&path);
    }
}
