//! The same folder as 9P2000.L messages, for kernels and tools that have no virtiofs.
//!
//! A message becomes one or several of the requests that [`Server`] knows, so that what may be read and changed is decided there alone.
//! A fid is the guest's own number for a file: it holds one reference to a node, and what was opened through it. Locks are
//! the guest's own, as they are with FUSE. `..` leads nowhere, as a node does not know its directory; Linux never walks it.

mod saved;
mod wire;

use std::collections::HashMap;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::attr::{Attr, S_IFDIR, S_IFLNK, encoded};
use crate::changes::EXCLUSIVE;
use crate::nodes::ROOT;
use crate::read::{ACCESS, READ_WRITE, TRUNCATE, WRITE_ONLY};
use crate::server::Server;
use crate::wire::{Args, Body, Header, Reply, component, op};

pub(crate) use saved::SavedFids;
pub(crate) use wire::{HEADER, MOST, Out};
use wire::{attribute, kind};

/// The one version that is spoken.
const VERSION: &[u8] = b"9P2000.L";
/// The most fids that a guest may hold.
const FIDS: usize = 1 << 20;
/// The longest value of an extended attribute (XATTR_SIZE_MAX), and the longest list of their names.
const VALUE: usize = 1 << 16;
/// The most names of one walk (MAXWELEM).
const NAMES: u16 = 16;
/// AT_REMOVEDIR.
const REMOVE_DIRECTORY: u32 = 0x200;
/// `f_type` of 9P's file systems (V9FS_MAGIC).
const MAGIC: u32 = 0x0102_1997;
/// F_UNLCK: nobody else holds a lock.
const UNLOCKED: u8 = 2;

/// What a fid was opened for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum Opened {
    #[default]
    No,
    File {
        handle: u64,
        writable: bool,
    },
    Directory(u64),
    /// An extended attribute's value, or the names of all, to be read.
    Value(Vec<u8>),
    /// An extended attribute that is written piece by piece, and set when the fid is given back.
    Attribute {
        name: Vec<u8>,
        size: usize,
        flags: u32,
        value: Vec<u8>,
    },
}

/// A file that the guest holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fid {
    node: u64,
    /// On whose behalf it was attached.
    uid: u32,
    opened: Opened,
}

/// A folder that is served to one guest.
#[derive(Debug)]
pub(crate) struct Plan9 {
    server: Server,
    fids: HashMap<u32, Fid>,
    /// The longest message that was agreed upon.
    most: usize,
    reply: Reply,
}

impl Plan9 {
    pub(crate) fn new(server: Server) -> Plan9 {
        Plan9 { server, fids: HashMap::new(), most: MOST, reply: Reply::default() }
    }

    /// The reply to one whole message, which is at least as long as its header. Every message has one.
    pub(crate) fn answer<'a>(&mut self, message: &[u8], out: &'a mut Out) -> &'a [u8] {
        let mut args = Args(message.get(4..).unwrap_or_default());
        let (asked, tag) = (args.u8().unwrap_or_default(), args.u16().unwrap_or_default());
        out.begin(asked.wrapping_add(1), tag);
        let done = match message.len() > self.most {
            true => Err(Errno::MSGSIZE),
            false => self.perform(asked, args, out),
        };
        if let Err(errno) = done {
            out.begin(kind::LERROR + 1, tag);
            out.u32(errno.raw_os_error() as u32);
        }
        out.finish()
    }

    fn perform(&mut self, asked: u8, args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        match asked {
            kind::VERSION => self.version(args, out),
            kind::ATTACH => self.attach(args, out),
            kind::WALK => self.walk(args, out),
            kind::CLUNK => self.clunk({ args }.u32()?),
            kind::GETATTR => self.getattr(args, out),
            kind::SETATTR => self.setattr(args),
            kind::READLINK => self.readlink(args, out),
            kind::STATFS => self.statfs(args, out),
            kind::LOPEN => self.open(args, out),
            kind::LCREATE => self.create(args, out),
            kind::READ => self.read(args, out),
            kind::WRITE => self.write(args, out),
            kind::READDIR => self.readdir(args, out),
            kind::FSYNC => self.fsync(args),
            kind::SYMLINK => self.symlink(args, out),
            kind::MKNOD => self.mknod(args, out),
            kind::MKDIR => self.mkdir(args, out),
            kind::LINK => self.link(args),
            kind::UNLINKAT => self.unlinkat(args),
            kind::RENAMEAT => self.renameat(args),
            kind::XATTRWALK => self.xattrwalk(args, out),
            kind::XATTRCREATE => self.xattrcreate(args),
            kind::LOCK => self.lock(args, out),
            kind::GETLOCK => self.getlock(args, out),
            // One message at a time: it is done before its flush is read.
            kind::FLUSH => Ok(()),
            // By a fid alone, which does not know its name: Linux asks by the directory and the name first.
            kind::REMOVE => self.clunk({ args }.u32()?).and(Err(Errno::OPNOTSUPP)),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Has the server do something; what follows its reply's header.
    fn ask(&mut self, opcode: u32, who: (u64, u32, u32), body: &Body) -> Result<Args<'_>, Errno> {
        let (node, uid, gid) = who;
        let header = Header { opcode, unique: 0, node, uid, gid };
        self.reply.begin();
        self.server.perform(&header, Args(&body.0), &mut self.reply)?;
        Ok(Args(self.reply.body()))
    }

    fn fid(&self, number: u32) -> Result<&Fid, Errno> {
        self.fids.get(&number).ok_or(Errno::BADF)
    }

    /// A fid's node, on whose behalf it is asked for, and their group, which messages that make something name.
    fn who(&self, number: u32) -> Result<(u64, u32, u32), Errno> {
        self.fid(number).map(|fid| (fid.node, fid.uid, 0))
    }

    fn attr(&self, node: u64) -> Result<Attr, Errno> {
        self.server.nodes.get(node)?.attr()
    }

    /// A new fid, to whose node a reference was taken already.
    fn put(&mut self, number: u32, fid: Fid) -> Result<(), Errno> {
        let why = match self.fids.contains_key(&number) {
            true => Errno::BADF,
            false if self.fids.len() >= FIDS => Errno::NFILE,
            false => {
                self.fids.insert(number, fid);
                return Ok(());
            }
        };
        self.server.nodes.forget(fid.node, 1);
        Err(why)
    }

    /// Gives a fid back, with all that was opened by it.
    fn clunk(&mut self, number: u32) -> Result<(), Errno> {
        let Fid { node, uid, opened } = self.fids.remove(&number).ok_or(Errno::BADF)?;
        let result = match opened {
            Opened::File { handle, .. } | Opened::Directory(handle) => {
                self.server.handles.remove(handle);
                Ok(())
            }
            Opened::Attribute { size, ref value, .. } if value.len() != size => Err(Errno::INVAL),
            // Nothing takes an attribute away but an empty value.
            Opened::Attribute { name, size: 0, .. } => {
                self.ask(op::REMOVEXATTR, (node, uid, 0), &Body::default().name(&name)).map(drop)
            }
            Opened::Attribute { name, flags, value, .. } => {
                let body = Body::default().u32(value.len() as u32).u32(flags).name(&name).bytes(&value);
                self.ask(op::SETXATTR, (node, uid, 0), &body).map(drop)
            }
            Opened::No | Opened::Value(_) => Ok(()),
        };
        self.server.nodes.forget(node, 1);
        result
    }

    fn version(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (most, version) = (args.u32()? as usize, args.text()?);
        // Whatever went before, it is another guest's kernel now.
        for number in self.fids.keys().copied().collect::<Vec<_>>() {
            let _ = self.clunk(number);
        }
        let known = version == VERSION;
        if most < 4096 {
            return Err(Errno::MSGSIZE);
        }
        self.most = most.min(MOST);
        out.u32(self.most as u32).text(if known { VERSION } else { b"unknown" });
        Ok(())
    }

    fn attach(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, _auth, _user, _tree) = (args.u32()?, args.u32()?, args.text()?, args.text()?);
        let uid = args.u32()?;
        let attr = self.attr(ROOT)?;
        self.server.nodes.refer(ROOT);
        // u32::MAX is nobody in particular.
        let uid = if uid == u32::MAX { 0 } else { uid };
        self.put(number, Fid { node: ROOT, uid, opened: Opened::No })?;
        out.qid(&attr);
        Ok(())
    }

    fn walk(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (from, to, count) = (args.u32()?, args.u32()?, args.u16()?);
        let (mut node, uid, _) = self.who(from)?;
        if count > NAMES {
            return Err(Errno::INVAL);
        }
        let names = (0..count).map(|_| args.text()).collect::<Result<Vec<_>, _>>()?;
        self.server.nodes.refer(node);
        let mut seen = Vec::new();
        for name in names {
            let step = match name {
                b"." => Ok(node),
                _ => component(name).and_then(|name| self.server.find(node, name)),
            };
            let step = step.and_then(|next| {
                self.server.nodes.refer(next);
                let attr = self.attr(next);
                let gone = if attr.is_ok() { node } else { next };
                self.server.nodes.forget(gone, 1);
                attr.map(|attr| (next, attr))
            });
            match step {
                Ok((next, attr)) => {
                    node = next;
                    seen.push(attr);
                }
                Err(errno) if seen.is_empty() => {
                    self.server.nodes.forget(node, 1);
                    return Err(errno);
                }
                Err(_) => break,
            }
        }
        if seen.len() < usize::from(count) {
            // So far and no further: there is no new fid.
            self.server.nodes.forget(node, 1);
        } else {
            if to == from {
                self.clunk(from)?;
            }
            self.put(to, Fid { node, uid, opened: Opened::No })?;
        }
        out.u16(seen.len() as u16);
        seen.iter().for_each(|attr| {
            out.qid(attr);
        });
        Ok(())
    }

    fn getattr(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, _wanted) = (args.u32()?, args.u64()?);
        let attr = self.attr(self.fid(number)?.node)?;
        out.attributes(&attr);
        Ok(())
    }

    fn setattr(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (number, which) = (args.u32()?, args.u32()?);
        let (mode, uid, gid, size) = (args.u32()?, args.u32()?, args.u32()?, args.u64()?);
        let (atime, atime_ns, mtime, mtime_ns) = (args.u64()?, args.u64()?, args.u64()?, args.u64()?);
        let handle = match self.fid(number)?.opened {
            Opened::File { handle, writable: true } => Some(handle),
            _ => None,
        };
        let body = Body::default().u32(attribute::to_fuse(which, handle.is_some())).u32(0);
        let body = body.u64(handle.unwrap_or_default()).u64(size).u64(0).u64(atime).u64(mtime).u64(0);
        // No more than a second is refused further on.
        let part = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        let body =
            body.u32(part(atime_ns)).u32(part(mtime_ns)).u32(0).u32(mode).u32(0).u32(uid).u32(gid).u32(0);
        self.ask(op::SETATTR, self.who(number)?, &body).map(drop)
    }

    fn readlink(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let who = self.who(args.u32()?)?;
        let text = self.ask(op::READLINK, who, &Body::default())?;
        out.text(text.0);
        Ok(())
    }

    fn statfs(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let who = self.who(args.u32()?)?;
        let mut told = self.ask(op::STATFS, who, &Body::default())?;
        let counts = [told.u64()?, told.u64()?, told.u64()?, told.u64()?, told.u64()?];
        let (block, name) = (told.u32()?, told.u32()?);
        out.u32(MAGIC).u32(block);
        counts.into_iter().for_each(|count| {
            out.u64(count);
        });
        out.u64(0).u32(name);
        Ok(())
    }

    fn open(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, flags) = (args.u32()?, args.u32()?);
        let fid = self.fid(number)?;
        if !matches!(fid.opened, Opened::No) {
            return Err(Errno::BADF);
        }
        let (who, attr) = (self.who(number)?, self.attr(fid.node)?);
        let writable = matches!(flags & ACCESS, WRITE_ONLY | READ_WRITE);
        let opened = if attr.kind() == S_IFDIR {
            Opened::Directory(self.ask(op::OPENDIR, who, &Body::default())?.u64()?)
        } else {
            let body = Body::default().u32(flags & (ACCESS | TRUNCATE)).u32(0);
            Opened::File { handle: self.ask(op::OPEN, who, &body)?.u64()?, writable }
        };
        self.fids.entry(number).and_modify(|fid| fid.opened = opened);
        out.qid(&attr).u32(0);
        Ok(())
    }

    fn create(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, name) = (args.u32()?, args.file_name()?);
        let (flags, mode, gid) = (args.u32()?, args.u32()?, args.u32()?);
        let (directory, uid, _) = self.who(number)?;
        if !matches!(self.fid(number)?.opened, Opened::No) {
            return Err(Errno::BADF);
        }
        let writable = matches!(flags & ACCESS, WRITE_ONLY | READ_WRITE);
        let flags = flags & (ACCESS | TRUNCATE | EXCLUSIVE);
        let body = Body::default().u32(flags).u32(mode).u32(0).u32(0).name(name);
        let mut told = self.ask(op::CREATE, (directory, uid, gid), &body)?;
        let node = told.u64()?;
        told.bytes(120)?;
        let opened = Opened::File { handle: told.u64()?, writable };
        // The reply counted a reference to the file, which is the fid's from now on.
        self.fids.insert(number, Fid { node, uid, opened });
        self.server.nodes.forget(directory, 1);
        out.qid(&self.attr(node)?).u32(0);
        Ok(())
    }

    fn read(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, offset, count) = (args.u32()?, args.u64()?, args.u32()?);
        let count = (count as usize).min(self.most - wire::READ);
        let (who, handle) = match &self.fid(number)?.opened {
            Opened::File { handle, .. } => (self.who(number)?, *handle),
            Opened::Value(value) => {
                let rest =
                    usize::try_from(offset).ok().and_then(|from| value.get(from..)).unwrap_or_default();
                out.data(&rest[..rest.len().min(count)]);
                return Ok(());
            }
            Opened::Directory(_) => return Err(Errno::ISDIR),
            _ => return Err(Errno::BADF),
        };
        let body = Body::default().u64(handle).u64(offset).u32(count as u32);
        let data = self.ask(op::READ, who, &body)?;
        out.data(data.0);
        Ok(())
    }

    fn write(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, offset, count) = (args.u32()?, args.u64()?, args.u32()?);
        let bytes = args.bytes(count as usize)?;
        let who = self.who(number)?;
        let fid = self.fids.get_mut(&number).ok_or(Errno::BADF)?;
        match &mut fid.opened {
            Opened::File { handle, .. } => {
                let body = Body::default().u64(*handle).u64(offset).u32(count).u32(0);
                let body = body.u64(0).u32(0).u32(0).bytes(bytes);
                let written = self.ask(op::WRITE, who, &body)?.u32()?;
                out.u32(written);
            }
            Opened::Attribute { size, value, .. } => {
                if offset != value.len() as u64 || value.len() + bytes.len() > *size {
                    return Err(Errno::INVAL);
                }
                value.extend(bytes);
                out.u32(count);
            }
            _ => return Err(Errno::BADF),
        }
        Ok(())
    }

    fn readdir(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, offset, count) = (args.u32()?, args.u64()?, args.u32()?);
        let count = (count as usize).min(self.most - wire::READ);
        let Opened::Directory(handle) = self.fid(number)?.opened else { return Err(Errno::NOTDIR) };
        // An entry takes no more here than there.
        let body = Body::default().u64(handle).u64(offset).u32(count as u32);
        let mut told = self.ask(op::READDIR, self.who(number)?, &body)?;
        let begin = out.hold();
        while !told.0.is_empty() {
            let (ino, next, length, sort) = (told.u64()?, told.u64()?, told.u32()? as usize, told.u32()?);
            let name = told.bytes(length)?;
            told.bytes(length.next_multiple_of(8) - length)?;
            let attr = Attr { ino, mode: sort << 12, ..Attr::default() };
            out.qid(&attr).u64(next).u8(sort as u8).text(name);
        }
        out.fill_in(begin);
        Ok(())
    }

    fn fsync(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (number, data_only) = (args.u32()?, args.u32()?);
        let (opcode, handle) = match self.fid(number)?.opened {
            Opened::File { handle, .. } => (op::FSYNC, handle),
            Opened::Directory(handle) => (op::FSYNCDIR, handle),
            _ => return Err(Errno::BADF),
        };
        let body = Body::default().u64(handle).u32(u32::from(data_only != 0)).u32(0);
        self.ask(opcode, self.who(number)?, &body).map(drop)
    }

    /// Makes something that gets no fid, and tells of it.
    fn make(&mut self, opcode: u32, who: (u64, u32, u32), body: &Body, out: &mut Out) -> Result<(), Errno> {
        let node = self.ask(opcode, who, body)?.u64()?;
        let attr = self.attr(node);
        self.server.nodes.forget(node, 1);
        out.qid(&attr?);
        Ok(())
    }

    fn symlink(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, name, text, gid) = (args.u32()?, args.file_name()?, args.text()?, args.u32()?);
        let (node, uid, _) = self.who(number)?;
        if text.contains(&0) {
            return Err(Errno::INVAL);
        }
        self.make(op::SYMLINK, (node, uid, gid), &Body::default().name(name).name(text), out)
    }

    fn mknod(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, name, mode) = (args.u32()?, args.file_name()?, args.u32()?);
        let (major, minor, gid) = (args.u32()?, args.u32()?, args.u32()?);
        let (node, uid, _) = self.who(number)?;
        let body = Body::default().u32(mode).u32(encoded(major, minor)).u32(0).u32(0).name(name);
        self.make(op::MKNOD, (node, uid, gid), &body, out)
    }

    fn mkdir(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, name, mode, gid) = (args.u32()?, args.file_name()?, args.u32()?, args.u32()?);
        let (node, uid, _) = self.who(number)?;
        self.make(op::MKDIR, (node, uid, gid), &Body::default().u32(mode).u32(0).name(name), out)
    }

    fn link(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (directory, number, name) = (args.u32()?, args.u32()?, args.file_name()?);
        let (who, target) = (self.who(directory)?, self.fid(number)?.node);
        self.ask(op::LINK, who, &Body::default().u64(target).name(name))?;
        self.server.nodes.forget(target, 1);
        Ok(())
    }

    fn unlinkat(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (number, name, flags) = (args.u32()?, args.file_name()?, args.u32()?);
        let opcode = if flags & REMOVE_DIRECTORY != 0 { op::RMDIR } else { op::UNLINK };
        self.ask(opcode, self.who(number)?, &Body::default().name(name)).map(drop)
    }

    fn renameat(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (from, old, to, new) = (args.u32()?, args.file_name()?, args.u32()?, args.file_name()?);
        let body = Body::default().u64(self.fid(to)?.node).name(old).name(new);
        self.ask(op::RENAME, self.who(from)?, &body).map(drop)
    }

    fn xattrwalk(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (from, to, name) = (args.u32()?, args.u32()?, args.text()?);
        let who = self.who(from)?;
        let body = Body::default().u32(VALUE as u32).u32(0);
        let value = match name {
            b"" => self.ask(op::LISTXATTR, who, &body)?,
            _ if name.contains(&0) => return Err(Errno::INVAL),
            _ => self.ask(op::GETXATTR, who, &body.name(name))?,
        };
        let value = value.0.to_vec();
        out.u64(value.len() as u64);
        self.server.nodes.refer(who.0);
        self.put(to, Fid { node: who.0, uid: who.1, opened: Opened::Value(value) })
    }

    fn xattrcreate(&mut self, mut args: Args<'_>) -> Result<(), Errno> {
        let (number, name, size, flags) = (args.u32()?, args.text()?, args.u64()?, args.u32()?);
        let fid = self.fids.get_mut(&number).ok_or(Errno::BADF)?;
        match usize::try_from(size) {
            _ if !matches!(fid.opened, Opened::No) || name.is_empty() || name.contains(&0) => {
                Err(Errno::INVAL)
            }
            Ok(size) if size <= VALUE => {
                fid.opened = Opened::Attribute { name: name.to_vec(), size, flags, value: Vec::new() };
                Ok(())
            }
            _ => Err(Errno::TOOBIG),
        }
    }

    fn lock(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        self.fid(args.u32()?)?;
        // Granted: the guest's kernel has looked among its own.
        out.u8(0);
        Ok(())
    }

    fn getlock(&mut self, mut args: Args<'_>, out: &mut Out) -> Result<(), Errno> {
        let (number, _sort, start, length) = (args.u32()?, args.u8()?, args.u64()?, args.u64()?);
        let (process, client) = (args.u32()?, args.text()?);
        self.fid(number)?;
        out.u8(UNLOCKED).u64(start).u64(length).u32(process).text(client);
        Ok(())
    }
}

/// A qid's type: directories and symbolic links are told apart.
fn sort(attr: &Attr) -> u8 {
    match attr.kind() {
        S_IFDIR => 0x80,
        S_IFLNK => 0x02,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
