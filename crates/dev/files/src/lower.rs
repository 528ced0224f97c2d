//! The host's files beneath nodes: handles on them, of which not all are open.
//!
//! A guest that looks at a kernel's sources knows more files than a process may have open (RLIMIT_NOFILE). A handle that was not used
//! for long is closed, and opened again by the names that led to it; what is found there then has to be the same
//! file. One that has no name any more stays open.

mod saved;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;

use crate::nodes::open_path;
pub(crate) use saved::{Places, SavedPlace, SavedSlot};

/// What identifies one of the host's files: device, inode and when it was made, as an inode's number is used again once nobody has the file
/// open.
pub(crate) type Key = (u64, u64, i64, u32);

/// Bytes of names that are given to the host at a time, below PATH_MAX.
const PIECE: usize = 3000;

/// A name in the host's folder, and the directory that it is in; the root has neither.
#[derive(Debug)]
pub(crate) struct Place(RefCell<Option<(Rc<Place>, Vec<u8>)>>);

impl Place {
    pub(crate) fn root() -> Rc<Place> {
        Rc::new(Place(RefCell::new(None)))
    }

    pub(crate) fn new(parent: Rc<Place>, name: &[u8]) -> Rc<Place> {
        Rc::new(Place(RefCell::new(Some((parent, name.to_vec())))))
    }

    /// It is there now, with all that is in it. False if `parent` is known to be within it: whatever the host moved has not all been
    /// found again.
    fn becomes(self: &Rc<Place>, parent: Rc<Place>, name: &[u8]) -> bool {
        let there = |(at, known): &(Rc<Place>, Vec<u8>)| Rc::ptr_eq(at, &parent) && known == name;
        if self.0.borrow().as_ref().is_some_and(there) {
            return true;
        }
        if parent.ancestors().any(|above| Rc::ptr_eq(&above, self)) {
            return false;
        }
        *self.0.borrow_mut() = Some((parent, name.to_vec()));
        true
    }

    fn parent(&self) -> Option<Rc<Place>> {
        self.0.borrow().as_ref().map(|(parent, _)| parent.clone())
    }

    /// It, what it is in, and so on up to the root.
    fn ancestors(self: &Rc<Place>) -> impl Iterator<Item = Rc<Place>> + use<> {
        std::iter::successors(Some(self.clone()), |place| place.parent())
    }

    /// The names from the root to it.
    fn names(self: &Rc<Place>) -> Vec<Vec<u8>> {
        let name = |place: Rc<Place>| place.0.borrow().as_ref().map(|(_, name)| name.clone());
        let mut names: Vec<_> = self.ancestors().filter_map(name).collect();
        names.reverse();
        names
    }
}

impl Drop for Place {
    /// One after the other, as a guest can make directories that are deeper than a stack.
    fn drop(&mut self) {
        let mut above = self.0.take();
        while let Some((parent, _)) = above {
            above = Rc::into_inner(parent).and_then(|last| last.0.take());
        }
    }
}

/// All handles.
#[derive(Debug)]
pub(crate) struct Pool {
    root: OwnedFd,
    /// How many are to be open at most.
    most: usize,
    count: Cell<usize>,
    /// Open ones, those that were opened first in front; also some that are closed or gone.
    queue: RefCell<VecDeque<Weak<Slot>>>,
}

/// A handle, opened with O_PATH when it is needed.
#[derive(Debug)]
pub(crate) struct Slot {
    fd: RefCell<Option<Rc<OwnedFd>>>,
    pub(crate) key: Key,
    /// Where it is found again. One without stays open.
    place: RefCell<Option<Rc<Place>>>,
    /// It was used since it was last looked for one to close.
    used: Cell<bool>,
    pool: Rc<Pool>,
}

/// What the host tells of an open file.
pub(crate) fn stat(fd: &OwnedFd) -> Result<Statx, Errno> {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, flags)
}

/// Which file it is.
pub(crate) fn key(stat: &Statx) -> Key {
    let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    (device, stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
}

impl Pool {
    /// A pool of files in `root`, of which at most `most` are open.
    pub(crate) fn new(root: OwnedFd, most: usize) -> Rc<Pool> {
        Rc::new(Pool { root, most, count: Cell::new(0), queue: RefCell::default() })
    }

    /// A handle that is open.
    pub(crate) fn slot(self: &Rc<Pool>, fd: OwnedFd, key: Key, place: Option<Rc<Place>>) -> Rc<Slot> {
        let (fd, place) = (RefCell::default(), (fd, RefCell::new(place)));
        let slot = Rc::new(Slot { fd, key, place: place.1, used: Cell::new(true), pool: self.clone() });
        slot.hold(place.0);
        slot
    }

    /// Closes handles until no more than `most` are open, as far as that goes.
    pub(crate) fn shrink(&self, most: usize) {
        let mut queue = self.queue.borrow_mut();
        // Each is passed over once, if it was used.
        for _ in 0..2 * queue.len() {
            if self.count.get() <= most {
                break;
            }
            let Some(slot) = queue.pop_front() else { break };
            match slot.upgrade() {
                Some(open) if open.used.replace(false) || open.place.borrow().is_none() => {
                    queue.push_back(slot);
                }
                Some(open) => open.close(),
                None => {}
            }
        }
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    fn open(&self, place: &Rc<Place>) -> Result<OwnedFd, Errno> {
        let names = place.names();
        let (mut from, mut path) = (None, Vec::new());
        for (number, name) in names.iter().enumerate() {
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
            if path.len() > PIECE || number + 1 == names.len() {
                from = Some(open_path(from.as_ref().unwrap_or(&self.root), &path, OFlags::PATH, 0)?);
                path.clear();
            }
        }
        from.ok_or(Errno::STALE)
    }
}

impl Slot {
    /// The file, opened again if it had been closed; ESTALE if another or none is in its place.
    pub(crate) fn fd(self: &Rc<Slot>) -> Result<Rc<OwnedFd>, Errno> {
        self.used.set(true);
        if let Some(fd) = &*self.fd.borrow() {
            return Ok(fd.clone());
        }
        let place = self.place().ok_or(Errno::STALE)?;
        let gone = |errno| match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::STALE,
            other => other,
        };
        let fd = self.pool.open(&place).map_err(gone)?;
        if key(&stat(&fd)?) != self.key {
            return Err(Errno::STALE);
        }
        Ok(self.hold(fd))
    }

    pub(crate) fn place(&self) -> Option<Rc<Place>> {
        self.place.borrow().clone()
    }

    /// Keeps it open from now on, as its name goes. Returns where it was.
    pub(crate) fn pin(self: &Rc<Slot>) -> Option<Rc<Place>> {
        // One that cannot be opened any more is lost anyhow.
        let _ = self.fd();
        self.place.borrow_mut().take()
    }

    /// It is there again.
    pub(crate) fn is_at(&self, place: Option<Rc<Place>>) {
        *self.place.borrow_mut() = place;
    }

    /// It was found as `fd` by that name in a directory that is at `parent`, and is found there from now on. Where nobody knows the
    /// directory's place, or that place cannot be, it stays open.
    pub(crate) fn found(self: &Rc<Slot>, fd: OwnedFd, parent: Option<Rc<Place>>, name: &[u8]) {
        if self.fd.borrow().is_none() {
            self.hold(fd);
        }
        match (self.place(), parent) {
            (Some(place), Some(parent)) => {
                if !place.becomes(parent, name) {
                    self.is_at(None);
                }
            }
            (None, Some(parent)) => self.is_at(Some(Place::new(parent, name))),
            (_, None) => self.is_at(None),
        }
    }

    /// It was found as `fd`, without a name. Of a session that was saved it may be known and lost: its inode's number is given again, to a
    /// file that is made within the same tick of the host's clock.
    pub(crate) fn found_nameless(self: &Rc<Slot>, fd: OwnedFd) {
        if self.fd.borrow().is_none() {
            self.hold(fd);
            self.is_at(None);
        }
    }

    fn hold(self: &Rc<Slot>, fd: OwnedFd) -> Rc<OwnedFd> {
        let fd = Rc::new(fd);
        self.pool.shrink(self.pool.most.saturating_sub(1));
        *self.fd.borrow_mut() = Some(fd.clone());
        self.pool.count.set(self.pool.count.get() + 1);
        let mut queue = self.pool.queue.borrow_mut();
        queue.push_back(Rc::downgrade(self));
        // What is gone is taken out when it is the most.
        if queue.len() > 64 && queue.len() > 2 * self.pool.count.get() {
            queue.retain(|slot| slot.upgrade().is_some_and(|slot| slot.fd.borrow().is_some()));
        }
        fd
    }

    fn close(&self) {
        if self.fd.borrow_mut().take().is_some() {
            self.pool.count.set(self.pool.count.get() - 1);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_deeper_than_a_stack_are_forgotten() {
        let mut deep = Place::root();
        for _ in 0..1_000_000 {
            deep = Place::new(deep, b"d");
        }
        assert_eq!(deep.names().len(), 1_000_000);
        drop(deep);
    }
}
