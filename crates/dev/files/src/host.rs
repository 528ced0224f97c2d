//! Changes of the host's own folder, which can be written.

use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    XattrFlags, chmodat, chownat, fremovexattr, fsetxattr, ftruncate, linkat, mkdirat, mknodat, openat,
    renameat_with, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::attr::{Attr, S_IFDIR, S_IFLNK, S_IFMT};
use crate::changes::{EXCHANGE, Move, New, S_ISGID, Wanted, When};
use crate::lower::stat;
use crate::nodes::open_entry;
use crate::read::access;
use crate::server::Server;

/// Set-user-ID and set-group-ID, which chown(2) takes away.
const SET_ID: u32 = 0o6000;

impl Server {
    fn host(&self, id: u64) -> Result<Rc<OwnedFd>, Errno> {
        self.nodes.get(id)?.lower.as_ref().ok_or(Errno::STALE)?.fd()
    }

    /// A directory in which names may be changed.
    fn host_directory(&self, id: u64) -> Result<Rc<OwnedFd>, Errno> {
        self.nodes.get(id)?.lower_directory()?.ok_or(Errno::PERM)
    }

    pub(crate) fn host_setattr(&mut self, id: u64, wanted: &Wanted) -> Result<(), Errno> {
        let fd = self.host(id)?;
        let fd = &*fd;
        let number = fd.as_raw_fd().to_string();
        if wanted.uid.is_some() || wanted.gid.is_some() {
            let theirs = |id: u32, of: fn((u32, u32)) -> u32| match self.roots {
                Some(owner) if id == 0 => of(owner),
                _ => id,
            };
            let uid = wanted.uid.map(|uid| Uid::from_raw(theirs(uid, |owner| owner.0)));
            let gid = wanted.gid.map(|gid| Gid::from_raw(theirs(gid, |owner| owner.1)));
            chownat(fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = wanted.mode {
            chmodat(&self.proc, &number, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        if let Some(size) = wanted.size {
            match wanted.handle {
                Some(handle) => ftruncate(self.host_file(handle)?, size)?,
                None => ftruncate(self.open_lower(self.nodes.get(id)?, OFlags::WRONLY)?, size)?,
            }
        }
        if wanted.atime.is_some() || wanted.mtime.is_some() {
            let time = |when: Option<When>| match when {
                None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                Some(When::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                Some(When::At((s, ns))) => Timespec { tv_sec: s as i64, tv_nsec: ns.into() },
            };
            let times = Timestamps { last_access: time(wanted.atime), last_modification: time(wanted.mtime) };
            utimensat(&self.proc, &number, &times, AtFlags::empty())?;
        }
        Ok(())
    }

    pub(crate) fn host_make(&mut self, directory: u64, new: &New<'_>) -> Result<u64, Errno> {
        let parent = self.host_directory(directory)?;
        let parent = &*parent;
        let permissions = Mode::from_raw_mode(new.mode & !S_IFMT);
        match new.mode & S_IFMT {
            S_IFDIR => mkdirat(parent, new.name, permissions)?,
            S_IFLNK => symlinkat(new.text, parent, new.name)?,
            kind => mknodat(parent, new.name, FileType::from_raw_mode(kind), permissions, 0)?,
        }
        let fd = open_entry(parent, new.name, OFlags::PATH, 0)?;
        if self.privileged {
            self.give(parent, &fd, new)?;
        }
        self.nodes.of_lower(fd, Some((directory, new.name)))
    }

    /// Makes a regular file and opens it at once, as its permissions need not let anybody do so later: git's objects are made
    /// read-only and written then.
    pub(crate) fn host_create(
        &mut self,
        directory: u64,
        new: &New<'_>,
        flags: u32,
    ) -> Result<(u64, OwnedFd), Errno> {
        let parent = self.host_directory(directory)?;
        let parent = &*parent;
        let how = access(flags) | OFlags::CREATE | OFlags::EXCL;
        let file = open_entry(parent, new.name, how, new.mode & !S_IFMT)?;
        self.host_made(directory, new, file)
    }

    pub(crate) fn host_tmpfile(
        &mut self,
        directory: u64,
        new: &New<'_>,
        flags: u32,
    ) -> Result<(u64, OwnedFd), Errno> {
        let parent = self.host_directory(directory)?;
        let number = parent.as_raw_fd().to_string();
        let permissions = Mode::from_raw_mode(new.mode & !S_IFMT);
        let file =
            openat(&self.proc, number, access(flags) | OFlags::TMPFILE | OFlags::CLOEXEC, permissions)?;
        self.host_made(directory, new, file)
    }

    /// The node of a file that was made and is open.
    fn host_made(&mut self, directory: u64, new: &New<'_>, file: OwnedFd) -> Result<(u64, OwnedFd), Errno> {
        let fd =
            openat(&self.proc, file.as_raw_fd().to_string(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if self.privileged {
            self.give(&*self.host_directory(directory)?, &fd, new)?;
        }
        let from = (!new.name.is_empty()).then_some((directory, new.name));
        Ok((self.nodes.of_lower(fd, from)?, file))
    }

    /// Gives a new file to whoever made it; its group is the directory's where that says so.
    fn give(&self, parent: &OwnedFd, fd: &OwnedFd, new: &New<'_>) -> Result<(), Errno> {
        let inherited = Attr::new(&stat(parent)?, 0).mode & S_ISGID != 0;
        let gid = (!inherited).then(|| Gid::from_raw(new.gid));
        chownat(fd, "", Some(Uid::from_raw(new.uid)), gid, AtFlags::EMPTY_PATH)?;
        if new.mode & SET_ID != 0 && new.mode & S_IFMT != S_IFLNK {
            let mode = Mode::from_raw_mode(new.mode & !S_IFMT);
            chmodat(&self.proc, fd.as_raw_fd().to_string(), mode, AtFlags::empty())?;
        }
        Ok(())
    }

    pub(crate) fn host_link(&mut self, target: u64, directory: u64, name: &[u8]) -> Result<(), Errno> {
        let target = self.host(target)?;
        let number = target.as_raw_fd().to_string();
        linkat(&self.proc, number, &*self.host_directory(directory)?, name, AtFlags::SYMLINK_FOLLOW)
    }

    pub(crate) fn host_remove(
        &mut self,
        directory: u64,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Errno> {
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let directory = self.host_directory(directory)?;
        self.nodes.without_name(&directory, name, || unlinkat(&*directory, name, flags))
    }

    pub(crate) fn host_rename(&mut self, moved: &Move<'_>) -> Result<(), Errno> {
        let Move { from, to, flags } = *moved;
        let (old, new) = (self.host_directory(from.0)?, self.host_directory(to.0)?);
        let rename = || renameat_with(&*old, from.1, &*new, to.1, RenameFlags::from_bits_retain(flags));
        if flags == EXCHANGE {
            rename()?;
            self.nodes.renamed(from.0, &old, from.1);
        } else {
            self.nodes.without_name(&new, to.1, rename)?;
        }
        self.nodes.renamed(to.0, &new, to.1);
        Ok(())
    }

    pub(crate) fn host_setxattr(
        &mut self,
        id: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let file = self.open_lower(self.nodes.get(id)?, OFlags::RDONLY).map_err(unopened)?;
        fsetxattr(file, name, value, XattrFlags::from_bits_retain(flags))
    }

    pub(crate) fn host_removexattr(&mut self, id: u64, name: &[u8]) -> Result<(), Errno> {
        let file = self.open_lower(self.nodes.get(id)?, OFlags::RDONLY).map_err(unopened)?;
        fremovexattr(file, name)
    }
}

/// What is neither file nor directory has no attributes that users may set (xattr(7)).
fn unopened(errno: Errno) -> Errno {
    if errno == Errno::NXIO { Errno::PERM } else { errno }
}
