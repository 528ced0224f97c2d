//! qcow2 images, and what they are based on.
//!
//! A chain is opened from its top. An image that is based on another names it by a path, which is input: it has to lie in
//! the folder that the user consented to (the image's own, unless told), without links that lead out of it, and its
//! format has to stand beside its name, as guessing it would let a former guest choose.

use std::any::Any;
use std::fs::File;
use std::io::{Error as IoError, Result as IoResult};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use imago::FormatAccess;
use imago::format::drivers::FormatDriverInstance;
use imago::qcow2::Qcow2 as Driver;
use imago::raw::Raw;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use satori_defs::virtio::block::SECTOR;
use satori_lock::Held;

use crate::delayed::{Delayed, counts_are_dense};
use crate::storage::Layer;
use crate::store::at_once;
use crate::{Error, Format, HostFile, Store, locks};

/// Bytes that wait to be written before they are, though no flush asks for it.
const WAITING_MAX: u64 = 32 << 20;
/// Zeroes that are written at once.
const ZEROES: u64 = 1 << 20;
/// Most images that one may stand on.
const CHAIN_MAX: usize = 32;

/// Where the header tells how the image is encrypted, which the library does not look at.
const CRYPT_METHOD: u64 = 32;

type Access = FormatAccess<Layer>;

/// A qcow2 image with its chain.
pub(crate) struct Qcow2 {
    image: Mutex<Opened>,
    files: Vec<RawFd>,
    bytes: u64,
}

/// The image, as far as it changes.
struct Opened {
    access: Access,
    /// Its writes, if it may be written.
    delayed: Option<Arc<Delayed>>,
    /// Clusters were given up since the last commit, which are to serve nothing else before the next.
    freed: bool,
}

/// Where images may lie that others are based on.
struct Folder {
    path: PathBuf,
    file: File,
}

/// What is known while a chain is opened.
struct Opening {
    folder: Option<Folder>,
    files: Vec<RawFd>,
    depth: usize,
}

impl Qcow2 {
    /// Opens the image in `store`, which lies in `here`; images that it is based on have to be in `folder`.
    pub(crate) fn open(
        name: &str,
        store: Arc<dyn Store>,
        write: bool,
        here: Option<&Path>,
        folder: Option<&Path>,
    ) -> Result<Self, Error> {
        let failed = |why| Error::Host { name: name.into(), why };
        let folder = match folder.or(here) {
            Some(path) => Some(Folder::open(path).map_err(failed)?),
            None => None,
        };
        let mut opening = Opening { folder, files: Vec::new(), depth: 0 };
        let here = here.map(std::fs::canonicalize).transpose().map_err(failed)?;
        let delayed = write.then(|| Delayed::new(store.clone()).map(Arc::new)).transpose().map_err(failed)?;
        let access = opening.qcow2(name, store, delayed.clone(), here.as_deref())?;
        let bytes = access.size();
        let image = Opened { access, delayed, freed: false };
        Ok(Qcow2 { image: Mutex::new(image), files: opening.files, bytes })
    }

    fn image(&self) -> MutexGuard<'_, Opened> {
        self.image.lock().held()
    }

    pub(crate) fn files(&self) -> Vec<RawFd> {
        self.files.clone()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn read(&self, at: u64, data: &mut [u8]) -> IoResult<()> {
        sound(|| self.image().access.read(data, at))
    }

    /// Reads what needs no waiting, tables included; false if that is not all.
    pub(crate) fn read_at_once(&self, at: u64, data: &mut [u8]) -> bool {
        let Ok(image) = self.image.try_lock() else { return false };
        sound(|| at_once(|| image.access.read(data, at))).is_ok()
    }

    pub(crate) fn write(&self, at: u64, data: &[u8]) -> IoResult<()> {
        let mut image = self.image();
        if image.freed {
            image.commit()?;
        }
        sound(|| image.access.write(data, at))?;
        match image.delayed.as_ref().is_some_and(|delayed| delayed.waiting() > WAITING_MAX) {
            true => image.commit(),
            false => Ok(()),
        }
    }

    /// What was written is on the disk when this returns.
    pub(crate) fn flush(&self) -> IoResult<()> {
        self.image().commit()
    }

    /// The guest does not need these bytes; what they were stays where the image's version cannot tell.
    pub(crate) fn discard(&self, at: u64, len: u64) -> IoResult<()> {
        let mut image = self.image();
        let (begin, end) = image.clusters(at, len);
        image.give_up(begin, end).map(drop)
    }

    /// Makes these bytes zero.
    pub(crate) fn zero(&self, at: u64, len: u64) -> IoResult<()> {
        let (begin, end) = self.image().clusters(at, len);
        let write = |mut at: u64, end: u64| {
            let zeroes = vec![0; (end - at).min(ZEROES) as usize];
            while at < end {
                let count = (end - at).min(ZEROES);
                self.write(at, &zeroes[..count as usize])?;
                at += count;
            }
            IoResult::Ok(())
        };
        if begin >= end {
            return write(at, at + len);
        }
        // Parts of clusters by themselves and first: the library could use what it gave up for them.
        write(at, begin)?;
        write(end, at + len)?;
        if self.image().give_up(begin, end)? { Ok(()) } else { write(begin, end) }
    }
}

impl Opened {
    fn commit(&mut self) -> IoResult<()> {
        let Some(delayed) = &self.delayed else { return Ok(()) };
        sound(|| self.access.flush())?;
        delayed.commit()?;
        self.freed = false;
        Ok(())
    }

    /// Bytes of a cluster.
    fn cluster(&self) -> u64 {
        self.access.inner().zero_granularity().unwrap_or(SECTOR)
    }

    /// The whole clusters within `len` bytes at `at`.
    fn clusters(&self, at: u64, len: u64) -> (u64, u64) {
        let cluster = self.cluster();
        (at.next_multiple_of(cluster), (at + len) / cluster * cluster)
    }

    /// Makes whole clusters zero, and what they took free; false if the image's version cannot.
    fn give_up(&mut self, begin: u64, end: u64) -> IoResult<bool> {
        // As many as one L2 table has: for the next one the library may take a cluster that it gave up for this.
        let table = self.cluster() * (self.cluster() / 8);
        let mut at = begin;
        while at < end {
            if self.freed {
                self.commit()?;
            }
            let next = (at / table * table + table).min(end);
            match sound(|| self.access.discard_to_zero(at, next - at)) {
                Err(error) if error.kind() == std::io::ErrorKind::Unsupported => return Ok(false),
                result => result?,
            }
            self.freed = true;
            at = next;
        }
        Ok(true)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Err(error) = self.commit() {
            tracing::warn!("an image could not be written at the end: {error}");
        }
    }
}

/// What `call` gives. The library asserts what it believes of tables, which are input here: what it gives up over is an
/// error of this image.
fn sound<T>(call: impl FnOnce() -> IoResult<T>) -> IoResult<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|why| Err(IoError::other(given_up(&*why))))
}

fn given_up(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str).or(why.downcast_ref::<&str>().copied());
    format!("the image's tables make no sense: {}", text.unwrap_or("given up"))
}

impl Opening {
    fn qcow2(
        &mut self,
        name: &str,
        store: Arc<dyn Store>,
        delayed: Option<Arc<Delayed>>,
        here: Option<&Path>,
    ) -> Result<Access, Error> {
        let wrong = |why: &dyn std::fmt::Display| Error::Qcow2 { name: name.into(), why: why.to_string() };
        let mut method = [0; 4];
        store.read(CRYPT_METHOD, &mut method).map_err(|e| wrong(&e))?;
        // To write it is to change its header: it is looked at before.
        let load =
            |store, write| sound(|| Driver::open_image(Layer::new(store), write)).map_err(|e| wrong(&e));
        let look: Driver<Layer> = load(store.clone(), false)?;
        let bytes = look.size();
        if bytes == 0 || !bytes.is_multiple_of(SECTOR) || i64::try_from(bytes).is_err() {
            return Err(wrong(&format!("its disk has {bytes} bytes")));
        }
        if method != [0; 4] {
            return Err(wrong(&"it is encrypted"));
        }
        if look.requires_external_data_file() {
            return Err(Error::DataFile(name.into()));
        }
        if delayed.is_some() && !counts_are_dense(&*store).map_err(|e| wrong(&e))? {
            return Err(wrong(
                &"its table of reference counts has holes: 'qemu-img check -r all' may repair it",
            ));
        }
        let backing = match (look.implicit_backing_file(), look.implicit_backing_format()) {
            (None, _) => None,
            (Some(file), format) => Some(self.backing(name, file, format.map(String::as_str), here)?),
        };
        let mut driver = match delayed {
            Some(delayed) => load(delayed, true)?,
            None => look,
        };
        driver.set_data_file(None);
        driver.set_backing(backing);
        self.files.extend(store.files());
        Ok(FormatAccess::new(driver))
    }

    /// Opens what the image `name` in `here` is based on.
    fn backing(
        &mut self,
        name: &str,
        file: &str,
        format: Option<&str>,
        here: Option<&Path>,
    ) -> Result<Access, Error> {
        let wrong = |why: String| Error::Backing { name: name.into(), backing: format!("{file:?}"), why };
        let format = match format {
            Some("raw") => Format::Raw,
            Some("qcow2") => Format::Qcow2,
            Some(other) => {
                return Err(wrong(format!(
                    "whose format {other:?} is neither raw nor qcow2: convert it by qemu-img"
                )));
            }
            None => {
                return Err(wrong(
                    "and does not say in which format: 'qemu-img rebase -u -F raw|qcow2 -b FILE IMAGE' does"
                        .into(),
                ));
            }
        };
        self.depth += 1;
        if self.depth > CHAIN_MAX {
            return Err(wrong(format!("and more than {CHAIN_MAX} images stand on each other: commit some")));
        }
        let (Some(folder), Some(here)) = (&self.folder, here) else {
            return Err(wrong("which cannot be looked for without a folder".into()));
        };
        let path = here.join(file);
        let opened = folder.file(&path).map_err(|why| {
            let why = why.to_string();
            let why = why.split(" (os error").next().unwrap_or(&why);
            wrong(format!(
                "which cannot be opened in {} ({why}): put it there, or tell by 'backing=DIR' where it may lie",
                folder.path.display()
            ))
        })?;
        let host = |why| Error::Host { name: path.display().to_string(), why };
        if !locks::take(&opened, false).map_err(host)? {
            return Err(Error::Locked(path.display().to_string()));
        }
        let store: Arc<dyn Store> = Arc::new(HostFile::new(opened).map_err(host)?);
        let name = path.display().to_string();
        match format {
            Format::Qcow2 => self.qcow2(&name, store, None, path.parent()),
            Format::Raw => {
                self.files.extend(store.files());
                Ok(FormatAccess::new(Raw::open_image(Layer::new(store), false).map_err(host)?))
            }
        }
    }
}

impl Folder {
    fn open(path: &Path) -> IoResult<Self> {
        let path = std::fs::canonicalize(path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
        Ok(Folder { path, file: file.into() })
    }

    /// Opens the file at the absolute `path` for reading, if it is in this folder.
    fn file(&self, path: &Path) -> IoResult<File> {
        let outside = || IoError::other("it is outside");
        let inside = path.strip_prefix(&self.path).map_err(|_| outside())?;
        // A FIFO would wait for its writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.file, inside, flags, Mode::empty(), resolve) {
            Err(rustix::io::Errno::XDEV) => return Err(outside()),
            result => File::from(result?),
        };
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(IoError::other("it is no file")),
        }
    }
}
