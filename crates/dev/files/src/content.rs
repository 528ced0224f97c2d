//! Contents of changed files, in memory.
//!
//! A small one without holes is bytes of ours: a guest that unpacks a kernel's sources makes more files than a process may have open.
//! Others are files of the host's memory, which have holes and know what they take.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, fstat, ftruncate, memfd_create, seek};
use rustix::io::Errno;

use crate::changes::write_all;
use crate::read::read_all;

/// What changed contents may still take, in bytes. A guest that fills it gets ENOSPC.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Rc<Cell<u64>>);

impl Budget {
    pub(crate) fn new(bytes: u64) -> Budget {
        Budget(Rc::new(Cell::new(bytes)))
    }

    pub(crate) fn room(&self, bytes: u64) -> Result<(), Errno> {
        if bytes > self.0.get() { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

/// The most bytes of a small one.
const SMALL: usize = 64 << 10;

/// What room is given in.
const BLOCK: u64 = 4096;

#[derive(Debug)]
enum Bytes {
    Small(Vec<u8>),
    File(OwnedFd),
}

/// A content, charged to a budget for as long as it is there.
#[derive(Debug)]
pub(crate) struct Content {
    bytes: Bytes,
    charged: u64,
    budget: Budget,
}

impl Content {
    pub(crate) fn new(budget: &Budget) -> Content {
        Content { bytes: Bytes::Small(Vec::new()), charged: 0, budget: budget.clone() }
    }

    /// Charges what the content takes now. Returns its size and that.
    pub(crate) fn charge(&mut self) -> Result<(u64, u64), Errno> {
        let (size, takes) = match &self.bytes {
            Bytes::Small(bytes) => (bytes.len() as u64, (bytes.len() as u64).next_multiple_of(BLOCK)),
            Bytes::File(file) => {
                let stat = fstat(file)?;
                (stat.st_size as u64, (stat.st_blocks as u64).saturating_mul(512))
            }
        };
        let left = &self.budget.0;
        left.set(left.get().saturating_add(self.charged).saturating_sub(takes));
        self.charged = takes;
        Ok((size, takes))
    }

    /// Whether so much more would fit.
    pub(crate) fn room(&self, bytes: u64) -> Result<(), Errno> {
        self.budget.room(bytes)
    }

    /// As many bytes as there are, up to the buffer's length.
    pub(crate) fn read(&self, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
        match &self.bytes {
            Bytes::Small(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let count = buffer.len().min(bytes.len() - from);
                buffer[..count].copy_from_slice(&bytes[from..from + count]);
                Ok(count)
            }
            Bytes::File(file) => read_all(file, buffer, at),
        }
    }

    /// Writes all, or as much as goes.
    pub(crate) fn write(&mut self, at: u64, new: &[u8]) -> Result<usize, Errno> {
        if let Bytes::Small(bytes) = &mut self.bytes
            && at <= bytes.len() as u64
            && at as usize + new.len() <= SMALL
        {
            let (at, end) = (at as usize, at as usize + new.len());
            if end > bytes.len() {
                bytes.reserve_exact(end - bytes.len());
                bytes.resize(end, 0);
            }
            bytes[at..end].copy_from_slice(new);
            return Ok(new.len());
        }
        write_all(self.file()?, at, new)
    }

    pub(crate) fn resize(&mut self, size: u64) -> Result<(), Errno> {
        match &mut self.bytes {
            Bytes::Small(bytes) if size <= bytes.len() as u64 => {
                bytes.truncate(size as usize);
                bytes.shrink_to_fit();
            }
            Bytes::File(_) if size == 0 => self.bytes = Bytes::Small(Vec::new()),
            _ => ftruncate(self.file()?, size)?,
        }
        Ok(())
    }

    /// fallocate(2).
    pub(crate) fn allocate(&mut self, mode: FallocateFlags, offset: u64, length: u64) -> Result<(), Errno> {
        fallocate(self.file()?, mode, offset, length)
    }

    /// Where the next data or the next hole begins.
    pub(crate) fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        match (&self.bytes, to) {
            (Bytes::File(file), _) => seek(file, to),
            (Bytes::Small(bytes), SeekFrom::Data(at)) if at < bytes.len() as u64 => Ok(at),
            (Bytes::Small(bytes), SeekFrom::Hole(at)) if at < bytes.len() as u64 => Ok(bytes.len() as u64),
            (Bytes::Small(_), _) => Err(Errno::NXIO),
        }
    }

    /// The content as a file, which it becomes.
    fn file(&mut self) -> Result<&OwnedFd, Errno> {
        if let Bytes::Small(bytes) = &self.bytes {
            let file = memfd_create("satori-changed", MemfdFlags::CLOEXEC)?;
            if write_all(&file, 0, bytes)? < bytes.len() {
                return Err(Errno::NOSPC);
            }
            self.bytes = Bytes::File(file);
        }
        match &self.bytes {
            Bytes::File(file) => Ok(file),
            Bytes::Small(_) => Err(Errno::BADF),
        }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let left = &self.budget.0;
        left.set(left.get().saturating_add(self.charged));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change<'a> = &'a dyn Fn(&mut Content) -> Result<(), Errno>;

    fn is_small(content: &Content) -> bool {
        matches!(content.bytes, Bytes::Small(_))
    }

    #[test]
    fn small_contents_need_no_open_file() {
        let mut content = Content::new(&Budget::new(1 << 20));
        let all: Vec<u8> = (0..SMALL).map(|n| (n / 256) as u8).collect();
        for (number, piece) in all.chunks(1000).enumerate() {
            assert_eq!(content.write(number as u64 * 1000, piece), Ok(piece.len()));
        }
        content.write(500, b"again").unwrap();
        assert!(is_small(&content));
        assert_eq!(content.charge(), Ok((SMALL as u64, SMALL as u64)));
        let mut seen = vec![9; 10];
        assert_eq!((content.read(&mut seen, 498), &seen[2..7]), (Ok(10), &b"again"[..]));
        assert_eq!(content.read(&mut seen, SMALL as u64 - 3), Ok(3));
        assert_eq!(content.read(&mut seen, u64::MAX), Ok(0));
        assert_eq!(content.seek(SeekFrom::Hole(5)), Ok(SMALL as u64));
        assert_eq!(content.seek(SeekFrom::Data(SMALL as u64)), Err(Errno::NXIO));
    }

    /// Whatever makes a hole, or is large, makes a file of it, which is none any more once it is empty.
    #[test]
    fn contents_are_the_same_as_bytes_and_as_files() {
        let grow = |content: &mut Content| content.resize(100_000);
        let beyond = |content: &mut Content| content.write(8192, b"x").map(drop);
        let large = |content: &mut Content| content.write(2, &[7; SMALL]).map(drop);
        let ahead = |content: &mut Content| content.allocate(FallocateFlags::empty(), 0, 10_000);
        let changes: [(Change<'_>, u64); 4] =
            [(&grow, 100_000), (&beyond, 8193), (&large, 2 + SMALL as u64), (&ahead, 10_000)];
        for (change, size) in changes {
            let budget = Budget::new(1 << 20);
            let mut content = Content::new(&budget);
            content.write(0, b"abc").unwrap();
            change(&mut content).unwrap();
            assert!(!is_small(&content));
            assert_eq!(content.charge().unwrap().0, size);
            let mut seen = [0; 2];
            assert_eq!((content.read(&mut seen, 0), seen), (Ok(2), *b"ab"));
            content.resize(0).unwrap();
            assert!(is_small(&content));
            assert_eq!((content.charge(), budget.room(1 << 20)), (Ok((0, 0)), Ok(())));
        }
    }
}
