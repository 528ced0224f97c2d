//! Requests that change something: read here, done by the host's folder or by what lies over it.

use std::os::fd::OwnedFd;

use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;

use crate::Mode;
use crate::attr::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, Time};
use crate::handles::Handle;
use crate::read::{ACCESS, NONE, READ_WRITE, WRITE_ONLY};
use crate::server::Server;
use crate::wire::{Args, Header, PATH_MAX, Reply};

/// `setattr_in.valid`.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const FH: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

/// Permissions, with set-user-ID, set-group-ID and the sticky bit.
pub(crate) const PERMISSIONS: u32 = 0o7777;
/// What a directory gives its new entries of its group.
pub(crate) const S_ISGID: u32 = 0o2000;
/// O_EXCL.
pub(crate) const EXCLUSIVE: u32 = 0o200;

/// Flags of renameat2(2).
pub(crate) const NOREPLACE: u32 = 1;
pub(crate) const EXCHANGE: u32 = 2;

/// What is to become of attributes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<When>,
    pub mtime: Option<When>,
    /// The handle through which it is asked for.
    pub handle: Option<u64>,
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    Now,
    At(Time),
}

/// What is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New<'a> {
    pub name: &'a [u8],
    /// Type and permissions, the umask applied.
    pub mode: u32,
    /// Whose it is.
    pub uid: u32,
    pub gid: u32,
    /// A symbolic link's text.
    pub text: &'a [u8],
    /// A device's number, as the kernel's new_encode_dev has it.
    pub device: u32,
}

impl<'a> New<'a> {
    fn of(header: &Header, name: &'a [u8], mode: u32, text: &'a [u8]) -> New<'a> {
        New { name, mode: mode & (S_IFMT | PERMISSIONS), uid: header.uid, gid: header.gid, text, device: 0 }
    }
}

/// Two names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move<'a> {
    pub from: (u64, &'a [u8]),
    pub to: (u64, &'a [u8]),
    pub flags: u32,
}

impl Wanted {
    fn read(args: &mut Args<'_>) -> Result<Wanted, Errno> {
        let (which, _, handle, size) = (args.u32()?, args.u32()?, args.u64()?, args.u64()?);
        let (_owner, atime, mtime, _ctime) = (args.u64()?, args.u64()?, args.u64()?, args.u64()?);
        let (atime_ns, mtime_ns, _) = (args.u32()?, args.u32()?, args.u32()?);
        let (mode, _, uid, gid) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let when = |is: u32, now: u32, at: Time| match which {
            _ if which & is == 0 => Ok(None),
            _ if which & now != 0 => Ok(Some(When::Now)),
            _ if at.1 >= 1_000_000_000 => Err(Errno::INVAL),
            _ => Ok(Some(When::At(at))),
        };
        Ok(Wanted {
            mode: (which & valid::MODE != 0).then_some(mode & PERMISSIONS),
            uid: (which & valid::UID != 0).then_some(uid),
            gid: (which & valid::GID != 0).then_some(gid),
            size: (which & valid::SIZE != 0).then_some(size),
            atime: when(valid::ATIME, valid::ATIME_NOW, (atime, atime_ns))?,
            mtime: when(valid::MTIME, valid::MTIME_NOW, (mtime, mtime_ns))?,
            handle: (which & valid::FH != 0).then_some(handle),
        })
    }
}

impl Server {
    pub(crate) fn setattr(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let wanted = Wanted::read(&mut args)?;
        if wanted.size.is_some_and(|size| size > i64::MAX as u64) {
            return Err(Errno::FBIG);
        }
        match self.mode {
            Mode::Cow => self.cow_setattr(header.node, &wanted)?,
            _ => self.host_setattr(header.node, &wanted)?,
        }
        self.getattr(header, reply)
    }

    pub(crate) fn symlink(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (name, text) = (args.name()?, args.string()?);
        if text.is_empty() || text.len() >= PATH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        self.make(header, name, S_IFLNK | 0o777, text, reply)
    }

    pub(crate) fn mknod(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (mode, device, _umask, _) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let new = New::of(header, args.name()?, mode, b"");
        let new = match mode & S_IFMT {
            S_IFREG | S_IFIFO | S_IFSOCK => new,
            // A device's node would be one of the host's, where it is not in memory.
            S_IFCHR | S_IFBLK if self.mode == Mode::Cow => New { device, ..new },
            _ => return Err(Errno::PERM),
        };
        let id = self.add(header, &new)?;
        self.entry(id, reply)
    }

    pub(crate) fn mkdir(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (mode, _umask) = (args.u32()?, args.u32()?);
        self.make(header, args.name()?, S_IFDIR | mode & PERMISSIONS, b"", reply)
    }

    fn make(
        &mut self,
        header: &Header,
        name: &[u8],
        mode: u32,
        text: &[u8],
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let id = self.add(header, &New::of(header, name, mode, text))?;
        self.entry(id, reply)
    }

    fn add(&mut self, header: &Header, new: &New<'_>) -> Result<u64, Errno> {
        match self.mode {
            Mode::Cow => self.cow_make(header.node, new),
            _ => self.host_make(header.node, new),
        }
    }

    pub(crate) fn create(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (flags, mode, _umask, _) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let name = args.name()?;
        let new = New::of(header, name, S_IFREG | mode & PERMISSIONS, b"");
        // A file without permissions may be written by whoever made it: it is opened as it is made.
        let made = match self.mode {
            Mode::Cow => self.cow_make(header.node, &new).map(|id| (id, None)),
            _ => self.host_create(header.node, &new, flags).map(|(id, file)| (id, Some(file))),
        };
        match made {
            Ok((id, file)) => self.opened(id, file, flags, reply),
            // It came meanwhile, by the host.
            Err(Errno::EXIST) if flags & EXCLUSIVE == 0 => {
                let id = self.find(header.node, name)?;
                self.opened(id, None, flags, reply)
            }
            Err(errno) => Err(errno),
        }
    }

    /// O_TMPFILE: a file without a name, which may be given one. Its name in the request means nothing.
    pub(crate) fn tmpfile(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (flags, mode) = (args.u32()?, args.u32()?);
        let new = New::of(header, b"", S_IFREG | mode & PERMISSIONS, b"");
        let (id, file) = match self.mode {
            Mode::Cow => (self.cow_tmpfile(header.node, &new)?, None),
            _ => self.host_tmpfile(header.node, &new, flags).map(|(id, file)| (id, Some(file)))?,
        };
        self.opened(id, file, flags, reply)
    }

    /// Tells of a node and of a handle on it: `file`, or one that is opened now.
    fn opened(&mut self, id: u64, file: Option<OwnedFd>, flags: u32, reply: &mut Reply) -> Result<(), Errno> {
        let writable = matches!(flags & ACCESS, WRITE_ONLY | READ_WRITE);
        let handle = match file {
            Some(_) => self.handles.add(Handle::File { node: id, host: file, writable })?,
            None => self.open_node(id, flags)?,
        };
        self.entry(id, reply).inspect_err(|_| self.handles.remove(handle))?;
        reply.open_out(handle, 0);
        Ok(())
    }

    pub(crate) fn link(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (target, name) = (args.u64()?, args.name()?);
        if self.nodes.get(target)?.attr()?.kind() == S_IFDIR {
            return Err(Errno::PERM);
        }
        match self.mode {
            Mode::Cow => self.cow_link(target, header.node, name)?,
            _ => self.host_link(target, header.node, name)?,
        }
        self.entry(target, reply)
    }

    pub(crate) fn remove(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        directory: bool,
    ) -> Result<(), Errno> {
        let name = args.name()?;
        match self.mode {
            Mode::Cow => self.cow_remove(header.node, name, directory),
            _ => self.host_remove(header.node, name, directory),
        }
    }

    pub(crate) fn rename(&mut self, header: &Header, mut args: Args<'_>, second: bool) -> Result<(), Errno> {
        let to = args.u64()?;
        let flags = if second { (args.u32()?, args.u32()?).0 } else { 0 };
        let (old, new) = (args.name()?, args.name()?);
        if !matches!(flags, 0 | NOREPLACE | EXCHANGE) {
            return Err(Errno::INVAL);
        }
        let moved = Move { from: (header.node, old), to: (to, new), flags };
        match self.mode {
            Mode::Cow => self.cow_rename(&moved),
            _ => self.host_rename(&moved),
        }
    }

    /// The node of a handle that may be written, or the one that is written without a handle.
    fn written(&mut self, header: &Header, handle: u64) -> Result<u64, Errno> {
        if handle == NONE && self.by_node {
            if self.nodes.get(header.node)?.attr()?.kind() != S_IFREG {
                return Err(Errno::BADF);
            }
            self.copy_up(header.node, u64::MAX)?;
            return Ok(header.node);
        }
        match self.handles.get(handle)? {
            Handle::File { node, writable: true, .. } => Ok(*node),
            _ => Err(Errno::BADF),
        }
    }

    pub(crate) fn write(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (handle, offset, size, _) = (args.u64()?, args.u64()?, args.u32()?, args.u32()?);
        let (_owner, _flags, _) = (args.u64()?, args.u32()?, args.u32()?);
        let bytes = args.bytes(size as usize)?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG);
        }
        let node = self.written(header, handle)?;
        let count = match self.mode {
            Mode::Cow => self.cow_write(node, offset, bytes)?,
            _ => write_all(self.host_file(handle)?, offset, bytes)?,
        };
        reply.u32(count as u32).u32(0);
        Ok(())
    }

    pub(crate) fn fallocate(&mut self, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
        let (handle, offset, length, mode) = (args.u64()?, args.u64()?, args.u64()?, args.u32()?);
        let node = self.written(header, handle)?;
        match self.mode {
            Mode::Cow => self.cow_fallocate(node, offset, length, mode),
            _ => rustix::fs::fallocate(
                self.host_file(handle)?,
                rustix::fs::FallocateFlags::from_bits_retain(mode),
                offset,
                length,
            ),
        }
    }

    pub(crate) fn fsync(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (handle, flags) = (args.u64()?, args.u32()?);
        if self.mode != Mode::Rw {
            return Ok(());
        }
        match self.handles.get(handle)? {
            Handle::File { host: Some(file), .. } if flags & 1 != 0 => fdatasync(file),
            Handle::File { host: Some(file), .. } => fsync(file),
            Handle::File { .. } => Ok(()),
            Handle::Directory { node, .. } => {
                let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
                fsync(self.open_lower(self.nodes.get(*node)?, flags)?)
            }
        }
    }

    pub(crate) fn setxattr(&mut self, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
        let (size, flags) = (args.u32()? as usize, args.u32()?);
        let name = args.string()?;
        let value = args.bytes(size)?;
        // Access control lists (system.): kept but not obeyed they would promise what does not hold.
        if ![&b"user."[..], b"trusted.", b"security."].iter().any(|space| name.starts_with(space)) {
            return Err(Errno::OPNOTSUPP);
        }
        match self.mode {
            Mode::Cow => self.cow_setxattr(header.node, name, value, flags),
            _ => self.host_setxattr(header.node, name, value, flags),
        }
    }

    pub(crate) fn removexattr(&mut self, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
        let name = args.string()?;
        match self.mode {
            Mode::Cow => self.cow_removexattr(header.node, name),
            _ => self.host_removexattr(header.node, name),
        }
    }
}

/// Writes all, or as much as goes before the first error.
pub(crate) fn write_all(file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}
