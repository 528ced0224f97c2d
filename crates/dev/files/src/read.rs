//! Requests that change nothing: names, attributes, content, directories.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{
    Mode as Permissions, OFlags, RawDir, SeekFrom, fgetxattr, flistxattr, fstatvfs, openat, readlinkat, seek,
};
use rustix::io::{Errno, pread};

use crate::Mode;
use crate::attr::{S_IFDIR, S_IFLNK, S_IFREG, dirent_kind};
use crate::content::Content;
use crate::cow::Data;
use crate::handles::{Entry, Handle};
use crate::nodes::{Node, open_entry};
use crate::server::Server;
use crate::wire::{Args, Header, MAX_IO, Reply, dirent_length};

/// FOPEN_KEEP_CACHE: what the guest has read stays good as long as size and time of change do.
const KEEP_CACHE: u32 = 1 << 1;

/// Of one open(2): how the file is opened, and that it is emptied.
pub(crate) const ACCESS: u32 = 3;
pub(crate) const WRITE_ONLY: u32 = 1;
pub(crate) const READ_WRITE: u32 = 2;
pub(crate) const TRUNCATE: u32 = 0o1000;

/// Whether an open(2) reads, writes or both.
pub(crate) fn access(flags: u32) -> OFlags {
    match flags & ACCESS {
        WRITE_ONLY => OFlags::WRONLY,
        READ_WRITE => OFlags::RDWR,
        _ => OFlags::RDONLY,
    }
}

/// The handle of a file that the guest did not open: it means its node.
pub(crate) const NONE: u64 = 0;

/// How many of the host's files stay open that are read so.
const RECENT: usize = 16;

/// The most entries of a directory that are kept for one handle.
const ENTRIES: usize = 1 << 20;

/// Where a file's bytes are.
enum Source<'a> {
    Changed(&'a Content),
    Host(&'a OwnedFd),
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_all(file: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        let at = offset.checked_add(done as u64).ok_or(Errno::INVAL)?;
        match pread(file, &mut buffer[done..], at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

impl Server {
    pub(crate) fn lookup(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        match self.find(header.node, args.name()?) {
            Err(Errno::NOENT) => {
                reply.no_entry_out();
                Ok(())
            }
            found => self.entry(found?, reply),
        }
    }

    /// The node behind a name.
    pub(crate) fn find(&mut self, directory: u64, name: &[u8]) -> Result<u64, Errno> {
        let node = self.nodes.get(directory)?;
        match node.change.as_ref().and_then(|change| change.entries.get(name)) {
            Some(Some(id)) => return Ok(*id),
            Some(None) => return Err(Errno::NOENT),
            None => {}
        }
        let lower = node.lower_directory()?.ok_or(Errno::NOENT)?;
        let fd = open_entry(&lower, name, OFlags::PATH, 0)?;
        self.nodes.of_lower(fd, Some((directory, name)))
    }

    pub(crate) fn getattr(&mut self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        let attr = self.nodes.get(header.node)?.attr()?;
        reply.attr_out(&attr);
        Ok(())
    }

    pub(crate) fn readlink(&mut self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        let node = self.nodes.get(header.node)?;
        match (&node.change, &node.lower) {
            (Some(change), _) if change.attr.kind() != S_IFLNK => return Err(Errno::INVAL),
            (Some(change), None) => {
                let Data::Link(text) = &change.data else { return Err(Errno::INVAL) };
                reply.bytes(text);
            }
            (_, Some(lower)) => {
                reply.bytes(readlinkat(&*lower.fd()?, "", Vec::new())?.as_bytes());
            }
            (None, None) => return Err(Errno::STALE),
        }
        Ok(())
    }

    /// Opens the host's file beneath a node, which is a regular file or a directory: opening others could
    /// wait for ever, or reach a device.
    pub(crate) fn open_lower(&self, node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
        let lower = node.lower.as_ref().ok_or(Errno::STALE)?.fd()?;
        let kind = crate::attr::Attr::new(&crate::lower::stat(&lower)?, 0).kind();
        if kind != S_IFREG && kind != S_IFDIR {
            return Err(Errno::NXIO);
        }
        let number = std::os::fd::AsRawFd::as_raw_fd(&*lower).to_string();
        openat(&self.proc, number, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Permissions::empty())
    }

    pub(crate) fn open(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let flags = args.u32()?;
        let handle = self.open_node(header.node, flags)?;
        reply.open_out(handle, KEEP_CACHE);
        Ok(())
    }

    /// A handle on a regular file.
    pub(crate) fn open_node(&mut self, id: u64, flags: u32) -> Result<u64, Errno> {
        let writable = matches!(flags & ACCESS, WRITE_ONLY | READ_WRITE);
        let truncate = flags & TRUNCATE != 0;
        if self.mode == Mode::Ro && (writable || truncate) {
            return Err(Errno::ROFS);
        }
        if self.nodes.get(id)?.attr()?.kind() != S_IFREG {
            return Err(Errno::NXIO);
        }
        if self.mode == Mode::Cow && (writable || truncate) {
            self.copy_up(id, if truncate { 0 } else { u64::MAX })?;
        }
        let node = self.nodes.get(id)?;
        let changed = node.change.as_ref().is_some_and(|change| matches!(change.data, Data::File(_)));
        let host = if changed {
            None
        } else {
            let truncate = if truncate { OFlags::TRUNC } else { OFlags::empty() };
            Some(self.open_lower(node, access(flags) | truncate)?)
        };
        self.handles.add(Handle::File { node: id, host, writable })
    }

    /// Sees to it that the host's file of a node, where nothing lies over it, is the first of those that were read last.
    fn open_recent(&mut self, id: u64) -> Result<(), Errno> {
        let at = self.recent.iter().position(|(node, _)| *node == id);
        let file = match at.and_then(|at| self.recent.remove(at)) {
            Some((_, file)) => file,
            None => self.open_lower(self.nodes.get(id)?, OFlags::RDONLY)?,
        };
        self.recent.truncate(RECENT - 1);
        self.recent.push_front((id, file));
        Ok(())
    }

    /// What a node's reads come from, without a handle.
    fn source_of_node(&mut self, id: u64) -> Result<Source<'_>, Errno> {
        if !self.by_node {
            return Err(Errno::BADF);
        }
        let node = self.nodes.get(id)?;
        if node.attr()?.kind() != S_IFREG {
            return Err(Errno::ISDIR);
        }
        if node.change.as_ref().is_none_or(|change| !matches!(change.data, Data::File(_))) {
            self.open_recent(id)?;
            let (_, file) = self.recent.front().ok_or(Errno::STALE)?;
            return Ok(Source::Host(file));
        }
        match self.nodes.get(id)?.change.as_ref().map(|change| &change.data) {
            Some(Data::File(content)) => Ok(Source::Changed(content)),
            _ => Err(Errno::STALE),
        }
    }

    /// What reads of `handle` come from, or of the node if it is [`NONE`].
    fn source_by(&mut self, header: &Header, handle: u64) -> Result<Source<'_>, Errno> {
        if handle == NONE { self.source_of_node(header.node) } else { self.source(handle) }
    }

    /// What a handle's reads come from: the changed content, as soon as there is one.
    fn source(&self, handle: u64) -> Result<Source<'_>, Errno> {
        let Handle::File { node, host, .. } = self.handles.get(handle)? else { return Err(Errno::ISDIR) };
        let change = self.nodes.get(*node).ok().and_then(|node| node.change.as_ref());
        match (change.map(|change| &change.data), host) {
            (Some(Data::File(content)), _) => Ok(Source::Changed(content)),
            (_, Some(file)) => Ok(Source::Host(file)),
            _ => Err(Errno::STALE),
        }
    }

    /// The host's file that a handle is on, where nothing lies over it.
    pub(crate) fn host_file(&self, handle: u64) -> Result<&OwnedFd, Errno> {
        match self.source(handle)? {
            Source::Host(file) => Ok(file),
            Source::Changed(_) => Err(Errno::BADF),
        }
    }

    pub(crate) fn read(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?);
        let size = size.min(MAX_IO) as usize;
        match self.source_by(header, handle)? {
            Source::Changed(content) => reply.fill(size, |buffer| content.read(buffer, offset)),
            Source::Host(file) => reply.fill(size, |buffer| read_all(file, buffer, offset)),
        }
    }

    pub(crate) fn lseek(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        const DATA: u32 = 3;
        const HOLE: u32 = 4;
        let (handle, offset, whence) = (args.u64()?, args.u64()?, args.u32()?);
        let to = match whence {
            DATA => SeekFrom::Data(offset),
            HOLE => SeekFrom::Hole(offset),
            // The others Linux answers itself.
            _ => return Err(Errno::INVAL),
        };
        let found = match self.source_by(header, handle)? {
            Source::Changed(content) => content.seek(to)?,
            Source::Host(file) => seek(file, to)?,
        };
        reply.u64(found);
        Ok(())
    }

    pub(crate) fn statfs(&mut self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        let node = self.nodes.get(header.node)?;
        let root = self.nodes.get(crate::nodes::ROOT)?;
        let lower = node.lower.as_ref().or(root.lower.as_ref()).ok_or(Errno::STALE)?;
        let mut fs = fstatvfs(&*lower.fd()?)?;
        // Room is what changes may take, not what the host's disk has.
        if self.mode == Mode::Cow && fs.f_frsize > 0 {
            let there = fs.f_blocks.saturating_sub(fs.f_bfree);
            (fs.f_bfree, fs.f_blocks) = (self.budget.left() / fs.f_frsize, self.budget.bytes() / fs.f_frsize);
            (fs.f_bavail, fs.f_blocks) = (fs.f_bfree, fs.f_blocks.saturating_add(there));
        }
        for value in [fs.f_blocks, fs.f_bfree, fs.f_bavail, fs.f_files, fs.f_ffree] {
            reply.u64(value);
        }
        reply.u32(fs.f_bsize as u32).u32(fs.f_namemax as u32).u32(fs.f_frsize as u32).bytes(&[0; 28]);
        Ok(())
    }

    pub(crate) fn opendir(&mut self, header: &Header, reply: &mut Reply) -> Result<(), Errno> {
        if self.nodes.get(header.node)?.attr()?.kind() != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        // What may not be read is refused here, as opendir(3) expects.
        let entries = self.entries(header.node)?;
        let handle = self.handles.add(Handle::Directory { node: header.node, entries, begun: false })?;
        reply.open_out(handle, 0);
        Ok(())
    }

    /// All entries of a directory but `.` and `..`: the host's that were not changed, and the changed ones.
    pub(crate) fn entries(&self, id: u64) -> Result<Vec<Entry>, Errno> {
        let node = self.nodes.get(id)?;
        let mut entries = Vec::new();
        let mut changed = BTreeSet::new();
        if let Some(change) = &node.change {
            for (name, id) in &change.entries {
                changed.insert(name.as_slice());
                let Some(node) = id.and_then(|id| self.nodes.get(id).ok()) else { continue };
                let kind = dirent_kind(node.attr()?.mode);
                entries.push(Entry { name: name.clone(), ino: node.ino, kind });
            }
        }
        if node.lower_directory()?.is_none() {
            return Ok(entries);
        }
        let directory = self.open_lower(node, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buffer = [MaybeUninit::uninit(); 1 << 15];
        let mut raw = RawDir::new(directory, &mut buffer);
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || changed.contains(name) {
                continue;
            }
            if entries.len() >= ENTRIES {
                return Err(Errno::NOMEM);
            }
            let kind = dirent_kind(entry.file_type().as_raw_mode());
            entries.push(Entry { name: name.to_vec(), ino: entry.ino(), kind });
        }
        Ok(entries)
    }

    pub(crate) fn readdir(&mut self, mut args: Args<'_>, reply: &mut Reply, plus: bool) -> Result<(), Errno> {
        let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?);
        let size = size.min(MAX_IO) as usize;
        let Handle::Directory { node, entries, begun } = self.handles.get_mut(handle)? else {
            return Err(Errno::NOTDIR);
        };
        // Kept in the handle, so that what is added and removed meanwhile moves no entry; from the
        // beginning it is read anew, as rewinddir(3) says.
        let (id, anew) = (*node, *begun && offset == 0);
        *begun = true;
        let entries = std::mem::take(entries);
        let entries = if anew { self.entries(id)? } else { entries };
        let result = self.put_entries(id, &entries, offset, size, reply, plus);
        if let Ok(Handle::Directory { entries: place, .. }) = self.handles.get_mut(handle) {
            *place = entries;
        }
        result
    }

    /// Entries from number `offset` on, as many as fit; 0 and 1 are `.` and `..`.
    fn put_entries(
        &mut self,
        id: u64,
        entries: &[Entry],
        offset: u64,
        size: usize,
        reply: &mut Reply,
        plus: bool,
    ) -> Result<(), Errno> {
        let own = self.nodes.get(id)?.ino;
        let dots: [&[u8]; 2] = [b".", b".."];
        let dots = dots.map(|name| Entry { name: name.to_vec(), ino: own, kind: dirent_kind(S_IFDIR) });
        let skip = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
        for (entry, next) in dots.iter().chain(entries).zip(1_u64..).skip(skip) {
            if reply.len() + dirent_length(&entry.name, plus) > size {
                break;
            }
            if plus {
                let dot = next <= 2;
                let found = if dot { Err(Errno::NOENT) } else { self.find(id, &entry.name) };
                // Node 0 tells that the entry's attributes are not among them.
                if found.and_then(|found| self.entry(found, reply)).is_err() {
                    reply.bytes(&[0; 128]);
                }
            }
            reply.dirent(entry.ino, next, entry.kind, &entry.name);
        }
        Ok(())
    }

    pub(crate) fn getxattr(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let (size, _) = (args.u32()? as usize, args.u32()?);
        let name = args.string()?;
        let node = self.nodes.get(header.node)?;
        let value = match node.change.as_ref().and_then(|change| change.xattrs.as_ref()) {
            Some(all) => all.get(name).cloned().ok_or(Errno::NODATA)?,
            None => self.lower_xattr(node, name)?,
        };
        put_sized(&value, size, reply)
    }

    pub(crate) fn listxattr(
        &mut self,
        header: &Header,
        mut args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let size = args.u32()? as usize;
        let node = self.nodes.get(header.node)?;
        let names = match node.change.as_ref().and_then(|change| change.xattrs.as_ref()) {
            Some(all) => all.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect(),
            None => self.lower_xattrs(node)?,
        };
        put_sized(&names, size, reply)
    }

    /// The host's attribute; files that cannot be opened have none.
    pub(crate) fn lower_xattr(&self, node: &Node, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let file = self.open_lower(node, OFlags::RDONLY).map_err(|_| Errno::NODATA)?;
        let mut value = vec![0; 1 << 16];
        let length = fgetxattr(&file, name, &mut value).map_err(plain)?;
        value.truncate(length);
        Ok(value)
    }

    pub(crate) fn lower_xattrs(&self, node: &Node) -> Result<Vec<u8>, Errno> {
        let Ok(file) = self.open_lower(node, OFlags::RDONLY) else { return Ok(Vec::new()) };
        let mut names = vec![0; 1 << 16];
        let length = flistxattr(&file, &mut names).map_err(plain)?;
        names.truncate(length);
        Ok(names)
    }
}

/// A host that has no extended attributes has none of this name.
fn plain(errno: Errno) -> Errno {
    if errno == Errno::OPNOTSUPP { Errno::NODATA } else { errno }
}

/// `fuse_getxattr_out` for a size of 0, else the value, which must fit.
fn put_sized(value: &[u8], size: usize, reply: &mut Reply) -> Result<(), Errno> {
    match size {
        0 => reply.u32(value.len() as u32).u32(0),
        _ if value.len() > size => return Err(Errno::RANGE),
        _ => reply.bytes(value),
    };
    Ok(())
}
