//! What an image stands on: bytes that can be made to last.

use std::cell::Cell;
use std::fmt::Debug;
use std::fs::File;
use std::io::{Error, ErrorKind, IoSliceMut, Result, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, preadv2};
use satori_memory::Scatter;

/// A file beneath an image. Several threads may use it.
pub trait Store: Debug + Send + Sync {
    /// Bytes in it.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Makes it shorter, or longer by zeroes.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Reads; behind the end are zeroes.
    fn read(&self, at: u64, data: &mut [u8]) -> Result<()>;
    /// Writes; what is written behind the end makes it longer.
    fn write(&self, at: u64, data: &[u8]) -> Result<()>;
    /// Reads into guest memory.
    fn fill(&self, at: u64, into: &Scatter) -> Result<()> {
        let mut data = vec![0; into.len()];
        self.read(at, &mut data)?;
        into.put(0, &data);
        Ok(())
    }
    /// Writes what is in guest memory.
    fn drain(&self, at: u64, from: &Scatter) -> Result<()> {
        self.write(at, &bytes(from))
    }
    /// Makes bytes within it zero and gives their room back; an error if it cannot, as some file systems.
    fn punch(&self, at: u64, len: u64) -> Result<()>;
    /// What was written before is on the disk, whatever happens to this machine, when this returns.
    fn sync(&self) -> Result<()>;
    /// Descriptors of the host that it uses.
    fn files(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

thread_local! {
    /// Whether reads of this thread fail where they would have to wait for a disk.
    static AT_ONCE: Cell<bool> = const { Cell::new(false) };
}

/// Whether reads of this thread are not to wait.
pub(crate) fn is_at_once() -> bool {
    AT_ONCE.get()
}

/// Calls `read`, in which every [`HostFile`]'s read that would wait is an error.
pub(crate) fn at_once<T>(read: impl FnOnce() -> T) -> T {
    /// Takes the wish back, also when `read` panics.
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            AT_ONCE.set(false);
        }
    }
    let _over = Over;
    AT_ONCE.set(true);
    read()
}

/// A copy of what is in guest memory.
pub(crate) fn bytes(of: &Scatter) -> Vec<u8> {
    let mut data = vec![0; of.len()];
    of.get(0, &mut data);
    data
}

/// A file or block device of the host. Nobody else changes its length.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    /// Its length: fstat is not among the calls that a confined process may make.
    len: AtomicU64,
}

impl HostFile {
    /// `file`, as long as it is now.
    pub fn new(mut file: File) -> Result<Self> {
        let len = file.seek(SeekFrom::End(0))?.into();
        Ok(HostFile { file, len })
    }
}

impl Store for HostFile {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)?;
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    fn read(&self, at: u64, data: &mut [u8]) -> Result<()> {
        let there = self.len().saturating_sub(at).min(data.len() as u64) as usize;
        let (data, behind) = data.split_at_mut(there);
        behind.fill(0);
        if !AT_ONCE.get() {
            return self.file.read_exact_at(data, at);
        }
        let got = preadv2(&self.file, &mut [IoSliceMut::new(data)], at, ReadWriteFlags::NOWAIT)?;
        if got == there { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, at)?;
        self.len.fetch_max(at + data.len() as u64, Ordering::AcqRel);
        Ok(())
    }

    fn fill(&self, at: u64, into: &Scatter) -> Result<()> {
        let there = self.len().saturating_sub(at).min(into.len() as u64) as usize;
        let (now, mut done) = (AT_ONCE.get(), 0);
        while done < there {
            match into.fill(done, there - done, self.file.as_fd(), at + done as u64, now) {
                // It became shorter: somebody else's doing.
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) if now && done + count < there => return Err(ErrorKind::WouldBlock.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if there < into.len() {
            into.put(there, &vec![0; into.len() - there]);
        }
        Ok(())
    }

    fn drain(&self, at: u64, from: &Scatter) -> Result<()> {
        let (len, mut done) = (from.len(), 0);
        while done < len {
            match from.drain(done, len - done, self.file.as_fd(), at + done as u64) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.len.fetch_max(at + len as u64, Ordering::AcqRel);
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
