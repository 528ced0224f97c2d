//! Contents of changed files, in memory.
//!
//! A small one without holes is bytes of ours: a guest that unpacks a kernel's sources makes more files than a process may have open.
//! Others are files of the host's memory, which have holes and know what they take, as far as there are open files for them; beyond that they
//! are bytes of ours, too, and their holes take room.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, fstat, ftruncate, memfd_create, seek};
use rustix::io::Errno;

use crate::changes::write_all;
use crate::read::read_all;

/// What changed contents may take, and have taken. A guest that fills it gets ENOSPC.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Rc<Room>);

#[derive(Debug)]
struct Room {
    bytes: u64,
    left: Cell<u64>,
    /// How many more contents may be open files.
    files: Cell<usize>,
}

impl Budget {
    /// Room for so many bytes, of which at most `files` contents are open files.
    pub(crate) fn new(bytes: u64, files: usize) -> Budget {
        Budget(Rc::new(Room { bytes, left: Cell::new(bytes), files: Cell::new(files) }))
    }

    pub(crate) fn room(&self, bytes: u64) -> Result<(), Errno> {
        if bytes > self.left() { Err(Errno::NOSPC) } else { Ok(()) }
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.0.left.get()
    }

    /// Takes `now` bytes instead of `before`.
    fn charge(&self, before: u64, now: u64) {
        self.0.left.set(self.left().saturating_add(before).saturating_sub(now));
    }
}

/// An open file among those that contents may have.
#[derive(Debug)]
struct Slot(Budget);

impl Slot {
    fn take(budget: &Budget) -> Option<Slot> {
        let files = &budget.0.files;
        files.set(files.get().checked_sub(1)?);
        Some(Slot(budget.clone()))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let files = &self.0.0.files;
        files.set(files.get() + 1);
    }
}

/// The most bytes of a small one.
const SMALL: u64 = 64 << 10;

/// What room is given in.
const BLOCK: u64 = 4096;

#[derive(Debug)]
enum Bytes {
    Own(Vec<u8>),
    File(OwnedFd, #[allow(dead_code, reason = "held until it is dropped")] Slot),
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
        Content { bytes: Bytes::Own(Vec::new()), charged: 0, budget: budget.clone() }
    }

    /// Charges what the content takes now. Returns its size and that.
    pub(crate) fn charge(&mut self) -> Result<(u64, u64), Errno> {
        let (size, takes) = match &self.bytes {
            Bytes::Own(bytes) => (bytes.len() as u64, (bytes.len() as u64).next_multiple_of(BLOCK)),
            Bytes::File(file, _) => {
                let stat = fstat(file)?;
                (stat.st_size as u64, (stat.st_blocks as u64).saturating_mul(512))
            }
        };
        self.budget.charge(self.charged, takes);
        self.charged = takes;
        Ok((size, takes))
    }

    /// Whether so much more would fit.
    pub(crate) fn room(&self, bytes: u64) -> Result<(), Errno> {
        self.budget.room(bytes)
    }

    /// Its size, and where it has bytes; those are put behind `to`.
    pub(crate) fn save(&self, to: &mut Vec<u8>) -> Result<(u64, Vec<(u64, u64)>), Errno> {
        let size = match &self.bytes {
            Bytes::Own(bytes) => bytes.len() as u64,
            Bytes::File(file, _) => fstat(file)?.st_size as u64,
        };
        let (mut pieces, mut at) = (Vec::new(), 0);
        while at < size {
            let begin = match self.seek(SeekFrom::Data(at)) {
                Ok(begin) => begin,
                // Nothing but a hole is left.
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(errno),
            };
            let end = self.seek(SeekFrom::Hole(begin))?.min(size);
            let have = to.len();
            to.resize(have + end.saturating_sub(begin) as usize, 0);
            if self.read(&mut to[have..], begin)? as u64 != end - begin {
                return Err(Errno::IO);
            }
            pieces.push((begin, end - begin));
            at = end;
        }
        Ok((size, pieces))
    }

    /// One of that size, with these bytes.
    pub(crate) fn restore<'a>(
        budget: &Budget,
        size: u64,
        pieces: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Content, Errno> {
        let mut content = Content::new(budget);
        for (at, bytes) in pieces {
            content.room(bytes.len() as u64)?;
            if at.checked_add(bytes.len() as u64).is_none_or(|end| end > size)
                || content.write(at, bytes)? != bytes.len()
            {
                return Err(Errno::INVAL);
            }
            content.charge()?;
        }
        // What is behind the last piece is a hole.
        let now = content.charge()?.0;
        if now > size {
            return Err(Errno::INVAL);
        }
        if now < size {
            content.resize(size)?;
        }
        content.charge()?;
        Ok(content)
    }

    /// As many bytes as there are, up to the buffer's length.
    pub(crate) fn read(&self, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
        match &self.bytes {
            Bytes::Own(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let count = buffer.len().min(bytes.len() - from);
                buffer[..count].copy_from_slice(&bytes[from..from + count]);
                Ok(count)
            }
            Bytes::File(file, _) => read_all(file, buffer, at),
        }
    }

    /// Writes all, or as much as goes.
    pub(crate) fn write(&mut self, at: u64, new: &[u8]) -> Result<usize, Errno> {
        if new.is_empty() {
            return Ok(0);
        }
        let end = at.checked_add(new.len() as u64).ok_or(Errno::FBIG)?;
        let dense = matches!(&self.bytes, Bytes::Own(bytes) if at <= bytes.len() as u64);
        if let Some(file) = self.file(dense && end <= SMALL)? {
            return write_all(file, at, new);
        }
        self.grow(end)?;
        let Bytes::Own(bytes) = &mut self.bytes else { return Err(Errno::BADF) };
        bytes[at as usize..end as usize].copy_from_slice(new);
        Ok(new.len())
    }

    pub(crate) fn resize(&mut self, size: u64) -> Result<(), Errno> {
        match &mut self.bytes {
            Bytes::Own(bytes) if size <= bytes.len() as u64 => {
                bytes.truncate(size as usize);
                bytes.shrink_to_fit();
                Ok(())
            }
            Bytes::File(..) if size == 0 => {
                self.bytes = Bytes::Own(Vec::new());
                Ok(())
            }
            _ => match self.file(false)? {
                Some(file) => ftruncate(file, size),
                None => self.grow(size),
            },
        }
    }

    /// fallocate(2).
    pub(crate) fn allocate(&mut self, mode: FallocateFlags, offset: u64, length: u64) -> Result<(), Errno> {
        let end = offset.checked_add(length).filter(|_| length > 0).ok_or(Errno::INVAL)?;
        let keeps = mode & FallocateFlags::KEEP_SIZE;
        let zeroes = match mode - FallocateFlags::KEEP_SIZE {
            FallocateFlags::PUNCH_HOLE if !keeps.is_empty() => true,
            FallocateFlags::ZERO_RANGE => true,
            kind if kind.is_empty() => false,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let hole = mode.contains(FallocateFlags::PUNCH_HOLE);
        if let Some(file) = self.file(false)? {
            // The host's memory has holes and no ZERO_RANGE.
            if zeroes {
                fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?;
            }
            return if hole { Ok(()) } else { fallocate(file, keeps, offset, length) };
        }
        if keeps.is_empty() {
            self.grow(end)?;
        }
        let Bytes::Own(bytes) = &mut self.bytes else { return Err(Errno::BADF) };
        if zeroes {
            let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
            let range = within(offset)..within(end);
            bytes[range].fill(0);
        }
        Ok(())
    }

    /// Where the next data or the next hole begins.
    pub(crate) fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        match (&self.bytes, to) {
            (Bytes::File(file, _), _) => seek(file, to),
            (Bytes::Own(bytes), SeekFrom::Data(at)) if at < bytes.len() as u64 => Ok(at),
            (Bytes::Own(bytes), SeekFrom::Hole(at)) if at < bytes.len() as u64 => Ok(bytes.len() as u64),
            (Bytes::Own(_), _) => Err(Errno::NXIO),
        }
    }

    /// The content as a file, which it becomes where it is not to be `small` and one more may be open.
    fn file(&mut self, small: bool) -> Result<Option<&OwnedFd>, Errno> {
        if let Bytes::Own(bytes) = &self.bytes
            && !small
            && let Some(slot) = Slot::take(&self.budget)
        {
            let file = memfd_create("satori-changed", MemfdFlags::CLOEXEC)?;
            if write_all(&file, 0, bytes)? < bytes.len() {
                return Err(Errno::NOSPC);
            }
            self.bytes = Bytes::File(file, slot);
        }
        match &self.bytes {
            Bytes::File(file, _) => Ok(Some(file)),
            Bytes::Own(_) => Ok(None),
        }
    }

    /// Has at least so many bytes of ours; new ones are zeros.
    fn grow(&mut self, size: u64) -> Result<(), Errno> {
        let Bytes::Own(bytes) = &mut self.bytes else { return Err(Errno::BADF) };
        let more = size.saturating_sub(bytes.len() as u64);
        self.budget.room(more)?;
        if more > 0 {
            let size = usize::try_from(size).map_err(|_| Errno::FBIG)?;
            let room = bytes.try_reserve_exact(size - bytes.len());
            room.map_err(|_| Errno::NOSPC)?;
            bytes.resize(size, 0);
        }
        Ok(())
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        self.budget.charge(self.charged, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change<'a> = &'a dyn Fn(&mut Content) -> Result<(), Errno>;

    fn is_small(content: &Content) -> bool {
        matches!(content.bytes, Bytes::Own(_))
    }

    #[test]
    fn small_contents_need_no_open_file() {
        let mut content = Content::new(&Budget::new(1 << 20, 1));
        let all: Vec<u8> = (0..SMALL).map(|n| (n / 256) as u8).collect();
        for (number, piece) in all.chunks(1000).enumerate() {
            assert_eq!(content.write(number as u64 * 1000, piece), Ok(piece.len()));
        }
        content.write(500, b"again").unwrap();
        assert!(is_small(&content));
        assert_eq!(content.charge(), Ok((SMALL, SMALL)));
        let mut seen = vec![9; 10];
        assert_eq!((content.read(&mut seen, 498), &seen[2..7]), (Ok(10), &b"again"[..]));
        assert_eq!(content.read(&mut seen, SMALL - 3), Ok(3));
        assert_eq!(content.read(&mut seen, u64::MAX), Ok(0));
        assert_eq!(content.seek(SeekFrom::Hole(5)), Ok(SMALL));
        assert_eq!(content.seek(SeekFrom::Data(SMALL)), Err(Errno::NXIO));
    }

    /// Whatever makes a hole, or is large, makes a file of it, which is none any more once it is empty.
    #[test]
    fn contents_are_the_same_as_bytes_and_as_files() {
        let grow = |content: &mut Content| content.resize(100_000);
        let beyond = |content: &mut Content| content.write(8192, b"x").map(drop);
        let large = |content: &mut Content| content.write(2, &[7; SMALL as usize]).map(drop);
        let ahead = |content: &mut Content| content.allocate(FallocateFlags::empty(), 0, 10_000);
        let changes: [(Change<'_>, u64); 4] =
            [(&grow, 100_000), (&beyond, 8193), (&large, 2 + SMALL), (&ahead, 10_000)];
        for (change, size) in changes {
            let budget = Budget::new(1 << 20, 1);
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

    /// Where no more files may be open, contents are the same, in bytes that are charged with their holes.
    #[test]
    fn contents_without_an_open_file_are_whole() {
        let budget = Budget::new(1 << 20, 1);
        let (zero, punch) = (FallocateFlags::ZERO_RANGE, FallocateFlags::PUNCH_HOLE);
        let keep = FallocateFlags::KEEP_SIZE;
        let mut seen = Vec::new();
        let mut both = [Content::new(&budget), Content::new(&budget)];
        for content in &mut both {
            assert_eq!(content.write(0, &[7; 100_000]), Ok(100_000));
            assert_eq!(content.write(150_000, &[8; 10]), Ok(10));
            content.allocate(keep | punch, 5, 10).unwrap();
            content.allocate(zero, 99_990, 20).unwrap();
            content.allocate(zero | keep, 150_005, 1000).unwrap();
            content.allocate(keep, 200_000, 10_000).unwrap();
            assert_eq!(content.charge().unwrap().0, 150_010);
            content.allocate(zero, 150_008, 92).unwrap();
            content.resize(160_000).unwrap();
            content.resize(155_000).unwrap();
            for mode in [punch, FallocateFlags::COLLAPSE_RANGE, punch | zero | keep] {
                assert_eq!(content.allocate(mode, 0, 4096), Err(Errno::OPNOTSUPP), "{mode:?}");
            }
            assert_eq!(content.allocate(keep, u64::MAX, 2), Err(Errno::INVAL));
            assert_eq!(content.charge().unwrap().0, 155_000);
            let mut bytes = vec![1; 160_000];
            assert_eq!(content.read(&mut bytes, 0), Ok(155_000));
            seen.push(bytes);
        }
        assert!(!is_small(&both[0]) && is_small(&both[1]) && seen[0] == seen[1]);
        for huge in
            [both[1].resize(1 << 40), both[1].write(1 << 60, b"x").map(drop), both[1].resize(u64::MAX)]
        {
            assert_eq!(huge, Err(Errno::NOSPC));
        }
        // What a file was given, another may have.
        let [first, _] = both;
        drop(first);
        let mut next = Content::new(&budget);
        next.resize(1 << 40).unwrap();
        assert!(!is_small(&next));
        drop(next);
        assert_eq!((budget.left(), budget.bytes()), ((1 << 20) - 155_648, 1 << 20));
    }
}
