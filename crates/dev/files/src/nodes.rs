//! The files that the guest knows, by number, each with an O_PATH handle on the host's own.

mod number;
mod saved;

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::Errno;

use crate::attr::{Attr, S_IFDIR};
use crate::cow::Change;
use crate::lower::{Key, Place, Pool, Slot, key, stat};
pub(crate) use saved::SavedNodes;

/// The root's number (FUSE_ROOT_ID).
pub(crate) const ROOT: u64 = 1;

/// The most files that a guest may make us remember.
const NODES: usize = 4 << 20;

/// File systems that are no files of anybody, by `f_type` (linux/magic.h): proc, sysfs, devpts, cgroup and
/// cgroup2, debugfs, tracefs, securityfs, bpf, configfs, efivarfs, fusectl, pstore, selinux, binfmt_misc. A guest
/// has its own, and the host's would tell it of other processes.
const PSEUDO: &[u64] = &[
    0x9fa0,
    0x6265_6572,
    0x1cd1,
    0x27_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6265_6570,
    0xde5e_81e4,
    0x6573_5543,
    0x6165_676c,
    0xf97c_ff8c,
    0x4249_4e4d,
];

/// User and group.
pub(crate) type Owner = (u32, u32);

/// The host's file beneath a node.
#[derive(Debug)]
pub(crate) struct Lower {
    slot: Rc<Slot>,
    /// Whose files are shown as root's.
    roots: Option<Owner>,
    /// The root of a pseudo file system: shown as an empty directory.
    pub hidden: bool,
    /// It was seen that it is on no pseudo file system, which of a saved session's files nobody has looked at.
    checked: Cell<bool>,
}

/// A file that the guest knows.
#[derive(Debug)]
pub(crate) struct Node {
    /// How many of the guest's references are still to be forgotten.
    lookups: u64,
    /// Its number within the folder, for the guest's programs.
    pub ino: u64,
    /// The host's file, if it has one beneath it.
    pub lower: Option<Lower>,
    /// What was changed of it, in a copy-on-write folder.
    pub change: Option<Box<Change>>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Nodes {
    all: HashMap<u64, Node>,
    by_key: HashMap<Key, u64>,
    next: u64,
    /// Whose files are shown as root's.
    roots: Option<Owner>,
    /// Devices by first sight; the root's is the first.
    devices: Vec<u64>,
    pool: Rc<Pool>,
    /// The root's place.
    top: Rc<Place>,
}

/// Opens an entry of a directory, and nothing that it might lead to.
pub(crate) fn open_entry(
    directory: &OwnedFd,
    name: &[u8],
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    open_path(directory, name, flags, mode)
}

/// The same behind several names.
pub(crate) fn open_path(
    directory: &OwnedFd,
    name: &[u8],
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    openat2(directory, name, flags, Mode::from_raw_mode(mode), resolve)
}

/// Whether it is on a pseudo file system.
fn is_pseudo(fd: &OwnedFd) -> bool {
    fstatfs(fd).is_ok_and(|fs| PSEUDO.contains(&(fs.f_type as u64)))
}

impl Lower {
    /// The file, opened with O_PATH.
    pub(crate) fn fd(&self) -> Result<Rc<OwnedFd>, Errno> {
        let fd = self.slot.fd()?;
        if !self.checked.get() {
            if !self.hidden && is_pseudo(&fd) {
                return Err(Errno::STALE);
            }
            self.checked.set(true);
        }
        Ok(fd)
    }
}

impl Node {
    /// What the guest is told of it.
    pub(crate) fn attr(&self) -> Result<Attr, Errno> {
        match (&self.change, &self.lower) {
            (Some(change), _) => Ok(change.attr),
            (None, Some(lower)) => {
                let mut attr = Attr::new(&stat(&*lower.fd()?)?, self.ino);
                if let Some((uid, gid)) = lower.roots {
                    attr.uid = if attr.uid == uid { 0 } else { attr.uid };
                    attr.gid = if attr.gid == gid { 0 } else { attr.gid };
                }
                if lower.hidden {
                    attr.mode = S_IFDIR | 0o555;
                }
                Ok(attr)
            }
            (None, None) => Err(Errno::STALE),
        }
    }

    /// The host's directory that names are looked for in; a hidden one has none.
    pub(crate) fn lower_directory(&self) -> Result<Option<Rc<OwnedFd>>, Errno> {
        self.lower.as_ref().filter(|lower| !lower.hidden).map(Lower::fd).transpose()
    }

    /// Where the host's file is.
    fn place(&self) -> Option<Rc<Place>> {
        self.lower.as_ref().and_then(|lower| lower.slot.place())
    }
}

impl Nodes {
    /// The root directory alone, which is never forgotten.
    /// Files of `roots` are shown as root's.
    /// At most `most` of the host's files are open for their nodes' sake.
    pub(crate) fn new(root: OwnedFd, roots: Option<Owner>, most: usize) -> Result<Nodes, Errno> {
        let (all, by_key, devices) = (HashMap::new(), HashMap::new(), Vec::new());
        let pool = Pool::new(root.try_clone().map_err(|_| Errno::MFILE)?, most);
        let mut nodes = Nodes { all, by_key, next: ROOT, roots, devices, pool, top: Place::root() };
        // Without a place it is never closed.
        nodes.of_lower(root, None)?;
        Ok(nodes)
    }

    /// Closes half of the files that are open for nodes' sake.
    pub(crate) fn close_some(&self) {
        self.pool.shrink(self.pool.count() / 2);
    }

    /// Where a directory is, if that is known.
    fn place_of(&self, directory: u64) -> Option<Rc<Place>> {
        if directory == ROOT { Some(self.top.clone()) } else { self.get(directory).ok()?.place() }
    }

    /// The handle of what has that name in the host's directory, if the guest knows it, and what it was opened as.
    fn known(&self, directory: &OwnedFd, name: &[u8]) -> Option<(Rc<Slot>, OwnedFd)> {
        let file = open_entry(directory, name, OFlags::PATH, 0).ok()?;
        let id = self.by_key.get(&key(&stat(&file).ok()?))?;
        let lower = self.all.get(id)?.lower.as_ref()?;
        Some((lower.slot.clone(), file))
    }

    /// Does `work`, which takes away a name of the host's directory; the file, if the guest knows it, stays open.
    pub(crate) fn without_name(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        work: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some((slot, _)) = self.known(directory, name) else { return work() };
        let was = slot.pin();
        let done = work();
        // A rename of a file to another of its own names takes none away.
        let stays = || self.known(directory, name).is_some_and(|(there, _)| Rc::ptr_eq(&there, &slot));
        if done.is_err() || stays() {
            slot.is_at(was);
        }
        done
    }

    /// Notes that what has that name in the host's directory, which is node `id`, came there by a rename.
    pub(crate) fn renamed(&self, id: u64, directory: &OwnedFd, name: &[u8]) {
        if let Some((slot, file)) = self.known(directory, name) {
            slot.found(file, self.place_of(id), name);
        }
    }

    pub(crate) fn get(&self, id: u64) -> Result<&Node, Errno> {
        self.all.get(&id).ok_or(Errno::STALE)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Result<&mut Node, Errno> {
        self.all.get_mut(&id).ok_or(Errno::STALE)
    }

    /// The node of one of the host's files, made if it is new. `from` is the directory and the name by which it was found, if it has one.
    pub(crate) fn of_lower(&mut self, fd: OwnedFd, from: Option<(u64, &[u8])>) -> Result<u64, Errno> {
        let stat = stat(&fd)?;
        let key = key(&stat);
        if let Some(&id) = self.by_key.get(&key) {
            // Names that the guest looked up last are those that its renames tell of.
            let slot = self.all.get(&id).and_then(|node| node.lower.as_ref()).map(|lower| &lower.slot);
            match (slot.filter(|_| id != ROOT), from) {
                (Some(slot), Some((directory, name))) => slot.found(fd, self.place_of(directory), name),
                (Some(slot), None) => slot.found_nameless(fd),
                (None, _) => {}
            }
            return Ok(id);
        }
        let (index, new) = match self.devices.iter().position(|&device| device == key.0) {
            Some(index) => (index, false),
            None => {
                self.devices.push(key.0);
                (self.devices.len() - 1, true)
            }
        };
        let directory = u32::from(stat.stx_mode) & crate::attr::S_IFMT == S_IFDIR;
        // Whether a device is a pseudo file system's is asked at each directory on it but the root's.
        let hidden = directory && (new || index != 0) && self.next != ROOT && is_pseudo(&fd);
        let ino = number::of_host(stat.stx_ino, index);
        let place = from.and_then(|(directory, name)| Some(Place::new(self.place_of(directory)?, name)));
        let lower = Lower {
            slot: self.pool.slot(fd, key, place),
            roots: self.roots,
            hidden,
            checked: Cell::new(true),
        };
        let id = self.add(Node { lookups: 0, ino, lower: Some(lower), change: None })?;
        self.by_key.insert(key, id);
        Ok(id)
    }

    /// A node of which the host has nothing.
    pub(crate) fn of_change(&mut self, mut change: Change) -> Result<u64, Errno> {
        let ino = number::of_change(self.next);
        change.attr.ino = ino;
        self.add(Node { lookups: 0, ino, lower: None, change: Some(Box::new(change)) })
    }

    fn add(&mut self, node: Node) -> Result<u64, Errno> {
        if self.all.len() >= NODES {
            return Err(Errno::NFILE);
        }
        let id = self.next;
        self.next += 1;
        self.all.insert(id, node);
        Ok(id)
    }

    /// The guest has one reference more.
    pub(crate) fn refer(&mut self, id: u64) {
        if let Some(node) = self.all.get_mut(&id) {
            node.lookups = node.lookups.saturating_add(1);
        }
    }

    /// The guest gives `count` references back; a number that is too large is no more than all of them.
    pub(crate) fn forget(&mut self, id: u64, count: u64) {
        if let Some(node) = self.all.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
            self.tidy(id);
        }
    }

    /// Drops a node that the guest cannot reach any more and that holds no change.
    pub(crate) fn tidy(&mut self, id: u64) {
        let Some(node) = self.all.get(&id) else { return };
        let gone = node.change.as_ref().is_none_or(|change| change.attr.nlink == 0);
        if id != ROOT && node.lookups == 0 && gone {
            if let Some(lower) = &node.lower {
                self.by_key.remove(&lower.slot.key);
            }
            self.all.remove(&id);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}
