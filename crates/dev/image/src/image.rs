//! An image in either format, and what a snapshot keeps of it in memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::Result as IoResult;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use rustix::fs::{OFlags, fcntl_getfl};
use satori_defs::virtio::block::SECTOR;
use satori_lock::Held;
use satori_memory::Scatter;

use crate::qcow2::Qcow2;
use crate::store::{at_once, bytes};
use crate::{DirectFile, Error, HostFile, Store, locks};

/// Bytes of the pieces that a snapshot keeps.
const PIECE: u64 = 64 << 10;
/// Zeroes that are written at once where the file system cannot make them.
const ZEROES: usize = 1 << 20;

/// How an image's bytes are laid out in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// As they are.
    #[default]
    Raw,
    /// QEMU's copy-on-write format, versions 2 and 3.
    Qcow2,
}

/// What becomes of what a guest writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// It is written.
    #[default]
    Write,
    /// It is refused.
    ReadOnly,
    /// It is kept in memory and forgotten at the end.
    Snapshot,
}

/// When what a guest wrote is on the disk, and by which way it goes there. The names and what they mean are QEMU's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// The host keeps what is written, until the guest flushes.
    #[default]
    Writeback,
    /// As `Writeback`, past the host's cache.
    None,
    /// Each write is on the disk before the guest is told of it; the guest is told of no cache.
    Writethrough,
    /// As `Writethrough`, past the host's cache.
    Directsync,
    /// The guest's flushes mean nothing: what it wrote is lost if the host is.
    Unsafe,
}

impl Cache {
    /// All of them.
    pub const ALL: [Cache; 5] =
        [Cache::Writeback, Cache::None, Cache::Writethrough, Cache::Directsync, Cache::Unsafe];

    /// As options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Cache::Writeback => "writeback",
            Cache::None => "none",
            Cache::Writethrough => "writethrough",
            Cache::Directsync => "directsync",
            Cache::Unsafe => "unsafe",
        }
    }

    /// Whether the file is to be opened with O_DIRECT.
    pub const fn direct(self) -> bool {
        matches!(self, Cache::None | Cache::Directsync)
    }

    /// Whether each write is made durable.
    const fn through(self) -> bool {
        matches!(self, Cache::Writethrough | Cache::Directsync)
    }
}

/// Where an image is.
#[derive(Debug)]
pub struct Source {
    /// How messages call it.
    pub name: String,
    /// The file, opened for writing if access is [`Access::Write`]. One that was opened with O_DIRECT is used past the host's cache.
    pub file: File,
    /// Its format.
    pub format: Format,
    /// What becomes of writes.
    pub access: Access,
    /// The folder that the file lies in; what it is based on is found from there.
    pub here: Option<PathBuf>,
    /// The folder that what it is based on has to lie in; without it, the one that it lies in.
    pub backing: Option<PathBuf>,
}

enum Base {
    Raw(Arc<dyn Store>),
    Qcow2(Qcow2),
}

/// An image: the bytes of a disk.
pub struct Image {
    base: Base,
    bytes: u64,
    readonly: bool,
    cache: Cache,
    /// Pieces that were written, by their number.
    kept: Option<Mutex<BTreeMap<u64, Box<[u8]>>>>,
    files: Vec<RawFd>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("bytes", &self.bytes).field("readonly", &self.readonly).finish()
    }
}

impl Image {
    /// Opens it, and locks its file: for this process alone if it may be written.
    pub fn open(source: Source) -> Result<Self, Error> {
        let Source { name, file, format, access, here, backing } = source;
        let host = |why| Error::Host { name: name.clone(), why };
        if !locks::take(&file, access == Access::Write).map_err(host)? {
            return Err(Error::Locked(name));
        }
        let direct = fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        let store: Arc<dyn Store> = match direct {
            true => Arc::new(DirectFile::new(file).map_err(host)?),
            false => Arc::new(HostFile::new(file).map_err(host)?),
        };
        match format {
            Format::Raw => Image::raw(&name, store, access),
            Format::Qcow2 => {
                let image =
                    Qcow2::open(&name, store, access == Access::Write, here.as_deref(), backing.as_deref())?;
                Ok(Image::new(image.bytes(), image.files(), Base::Qcow2(image), access))
            }
        }
    }

    /// The same image, with this said of its writes. Whether they pass by the host's cache is decided where the file is opened.
    #[must_use]
    pub fn with_cache(self, cache: Cache) -> Self {
        Image { cache, ..self }
    }

    /// The bytes of `store`, as they are.
    pub fn raw(name: &str, store: Arc<dyn Store>, access: Access) -> Result<Self, Error> {
        let bytes = store.len();
        if bytes == 0 || !bytes.is_multiple_of(SECTOR) {
            return Err(Error::Length { name: name.into(), bytes });
        }
        Ok(Image::new(bytes, store.files(), Base::Raw(store), access))
    }

    /// The qcow2 image in `store`, which is based on no other.
    pub fn qcow2(name: &str, store: Arc<dyn Store>, access: Access) -> Result<Self, Error> {
        let image = Qcow2::open(name, store, access == Access::Write, None, None)?;
        Ok(Image::new(image.bytes(), image.files(), Base::Qcow2(image), access))
    }

    fn new(bytes: u64, files: Vec<RawFd>, base: Base, access: Access) -> Self {
        let kept = (access == Access::Snapshot).then(Mutex::default);
        Image { base, bytes, readonly: access == Access::ReadOnly, cache: Cache::default(), kept, files }
    }

    /// Descriptors of the host that it uses.
    pub fn files(&self) -> Vec<RawFd> {
        self.files.clone()
    }

    /// Bytes of the disk, a multiple of a sector's.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is never written.
    pub fn readonly(&self) -> bool {
        self.readonly
    }

    /// Whether what is written lasts before the guest hears of it, so that it needs no flush.
    pub fn writes_through(&self) -> bool {
        self.cache.through()
    }

    /// What a snapshot keeps, and is locked meanwhile.
    fn kept(&self) -> Option<MutexGuard<'_, BTreeMap<u64, Box<[u8]>>>> {
        self.kept.as_ref().map(|kept| kept.lock().held())
    }

    /// What a snapshot keeps: the numbers of its pieces, if it is one, and what is in them, one behind the other.
    pub fn snapshot(&self) -> (Option<Vec<u64>>, Vec<u8>) {
        let Some(kept) = self.kept() else { return (None, Vec::new()) };
        (Some(kept.keys().copied().collect()), kept.values().flatten().copied().collect())
    }

    /// Has a snapshot keep that instead; false if it is not of this image, and nothing is changed.
    pub fn set_snapshot(&self, pieces: &Option<Vec<u64>>, mut bytes: &[u8]) -> bool {
        let (Some(mut kept), Some(pieces)) = (self.kept(), pieces) else {
            return self.kept.is_none() && pieces.is_none() && bytes.is_empty();
        };
        let mut fresh = BTreeMap::new();
        for &piece in pieces {
            let left = piece.checked_mul(PIECE).and_then(|start| self.bytes.checked_sub(start));
            let left = left.map(|left| PIECE.min(left) as usize).filter(|left| *left > 0);
            let Some((these, rest)) = left.and_then(|left| bytes.split_at_checked(left)) else {
                return false;
            };
            fresh.insert(piece, these.into());
            bytes = rest;
        }
        let all = bytes.is_empty() && fresh.len() == pieces.len();
        if all {
            *kept = fresh;
        }
        all
    }

    fn read_base(&self, at: u64, data: &mut [u8]) -> IoResult<()> {
        match &self.base {
            Base::Raw(store) => store.read(at, data),
            Base::Qcow2(image) => image.read(at, data),
        }
    }

    /// Reads bytes of the disk, all of which are within it.
    pub fn read(&self, at: u64, data: &mut [u8]) -> IoResult<()> {
        self.read_base(at, data)?;
        if let Some(kept) = self.kept() {
            pieces(at, data.len(), |piece, begin, range| {
                if let Some(bytes) = kept.get(&piece) {
                    let len = range.len();
                    data[range].copy_from_slice(&bytes[begin..begin + len]);
                }
            });
        }
        Ok(())
    }

    /// Reads bytes of the disk, all of which are within it, into guest memory.
    pub fn fill(&self, at: u64, into: &Scatter) -> IoResult<()> {
        match &self.base {
            Base::Raw(store) if self.kept.is_none() => store.fill(at, into),
            _ => {
                let mut data = vec![0; into.len()];
                self.read(at, &mut data)?;
                into.put(0, &data);
                Ok(())
            }
        }
    }

    /// As [`fill`](Image::fill), what the host has in memory; false if that is not all: then what is there is anything.
    pub fn fill_at_once(&self, at: u64, into: &Scatter) -> bool {
        if let (Base::Raw(store), None) = (&self.base, &self.kept) {
            return at_once(|| store.fill(at, into)).is_ok();
        }
        let mut data = vec![0; into.len()];
        let came = self.read_at_once(at, &mut data);
        if came {
            into.put(0, &data);
        }
        came
    }

    /// Reads what the host has in memory; false if that is not all.
    pub fn read_at_once(&self, at: u64, data: &mut [u8]) -> bool {
        self.kept.is_none()
            && match &self.base {
                Base::Raw(store) => at_once(|| store.read(at, data)).is_ok(),
                Base::Qcow2(image) => image.read_at_once(at, data),
            }
    }

    /// Writes bytes of the disk, all of which are within it.
    pub fn write(&self, at: u64, data: &[u8]) -> IoResult<()> {
        self.write_back(at, data)?;
        self.through()
    }

    /// Makes what was written last, if every change is to.
    fn through(&self) -> IoResult<()> {
        if self.cache.through() { self.commit() } else { Ok(()) }
    }

    /// Writes what is in guest memory, all within the disk. Nothing is on it for certain before [`Image::flush`].
    pub fn drain(&self, at: u64, from: &Scatter) -> IoResult<()> {
        match &self.base {
            Base::Raw(store) if self.kept.is_none() => store.drain(at, from)?,
            _ => self.write_back(at, &bytes(from))?,
        }
        self.through()
    }

    fn write_back(&self, at: u64, data: &[u8]) -> IoResult<()> {
        let Some(mut kept) = self.kept() else {
            return match &self.base {
                Base::Raw(store) => store.write(at, data),
                Base::Qcow2(image) => image.write(at, data),
            };
        };
        let mut result = Ok(());
        pieces(at, data.len(), |piece, begin, range| {
            let start = piece * PIECE;
            if let Entry::Vacant(place) = kept.entry(piece) {
                let mut bytes = vec![0; PIECE.min(self.bytes - start) as usize].into_boxed_slice();
                match self.read_base(start, &mut bytes) {
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
    pub fn flush(&self) -> IoResult<()> {
        if self.cache == Cache::Unsafe { Ok(()) } else { self.commit() }
    }

    fn commit(&self) -> IoResult<()> {
        match &self.base {
            _ if self.kept.is_some() || self.readonly => Ok(()),
            Base::Raw(store) => store.sync(),
            Base::Qcow2(image) => image.flush(),
        }
    }

    /// What was written is with the host when this returns, and outlives this process.
    pub fn settle(&self) -> IoResult<()> {
        match &self.base {
            Base::Qcow2(image) if self.kept.is_none() && !self.readonly => image.flush(),
            _ => Ok(()),
        }
    }

    /// The guest does not need these bytes any more.
    pub fn discard(&self, at: u64, len: u64) -> IoResult<()> {
        self.give_up(at, len)?;
        self.through()
    }

    fn give_up(&self, at: u64, len: u64) -> IoResult<()> {
        match &self.base {
            _ if self.kept.is_some() || len == 0 => Ok(()),
            Base::Raw(store) => {
                // A file system that cannot keeps them, which is as good.
                let _ = store.punch(at, len);
                Ok(())
            }
            Base::Qcow2(image) => image.discard(at, len),
        }
    }

    /// Makes these bytes zero.
    pub fn zero(&self, at: u64, len: u64) -> IoResult<()> {
        self.make_zero(at, len)?;
        self.through()
    }

    fn make_zero(&self, at: u64, len: u64) -> IoResult<()> {
        if len == 0 {
            return Ok(());
        }
        match &self.base {
            _ if self.kept.is_some() => {}
            Base::Raw(store) if store.punch(at, len).is_ok() => return Ok(()),
            Base::Raw(_) => {}
            Base::Qcow2(image) => return image.zero(at, len),
        }
        let zeroes = vec![0; ZEROES.min(len as usize)];
        let mut done = 0;
        while done < len {
            let count = (len - done).min(zeroes.len() as u64);
            self.write_back(at + done, &zeroes[..count as usize])?;
            done += count;
        }
        Ok(())
    }
}

/// Calls `each` with the number of every piece that `len` bytes at `at` touch, where they begin in it, and
/// which of the bytes these are.
fn pieces(at: u64, len: usize, mut each: impl FnMut(u64, usize, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let here = at + done as u64;
        let begin = (here % PIECE) as usize;
        let count = (PIECE as usize - begin).min(len - done);
        each(here / PIECE, begin, done..done + count);
        done += count;
    }
}
