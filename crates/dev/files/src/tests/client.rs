//! Paths and calls as programs make them, turned into requests as Linux does.

use rustix::fs::{Mode as Permissions, OFlags, open};
use rustix::io::Errno;

use super::Folder;
use crate::Mode;
use crate::attr::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::read::TRUNCATE;
use crate::saved::Session as _;
use crate::server::Server;
use crate::wire::{Args, Body, IN_HEADER, Reply, op};

/// Attributes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub node: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
}

pub(crate) struct Client {
    pub server: Server,
    /// Who asks.
    pub uid: u32,
    pub gid: u32,
    /// It was told that nothing has to be opened.
    pub by_node: bool,
}

/// In a handle: it is a node's number.
const NODE: u64 = 1 << 63;

pub(super) type Result<T> = std::result::Result<T, Errno>;

pub(super) fn body() -> Body {
    Body::default()
}

impl Client {
    pub(crate) fn new(folder: &Folder, mode: Mode) -> Client {
        Client::with_budget(folder, mode, 64 << 20)
    }

    pub(super) fn with_budget(folder: &Folder, mode: Mode, budget: u64) -> Client {
        Client::with(folder, mode, budget, None)
    }

    /// Of a folder in which files of `roots` are root's.
    pub(super) fn with(folder: &Folder, mode: Mode, budget: u64, roots: Option<(u32, u32)>) -> Client {
        let open = |path: &std::path::Path| {
            open(path, OFlags::PATH | OFlags::DIRECTORY, Permissions::empty()).expect("a directory")
        };
        let server = Server::new(
            open(&folder.0),
            open("/proc/self/fd".as_ref()),
            mode,
            budget,
            rustix::process::geteuid().is_root(),
            roots,
            // So few that files are closed and opened again all the time.
            3,
        )
        .expect("a server");
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Client { server, uid, gid, by_node: false }
    }

    /// The same guest with another server of the folder; `damage` may change what is saved.
    pub(super) fn moved(
        &mut self,
        folder: &Folder,
        damage: impl FnOnce(&mut satori_save::Value),
    ) -> std::result::Result<Client, satori_save::Error> {
        let packed = self.server.save()?.pack()?;
        let mut value = satori_save::Value::unpack(&packed, "file server")?;
        damage(&mut value);
        let mut other = Client::new(folder, self.server.mode);
        other.server.restore(&value)?;
        other.by_node = self.by_node;
        Ok(other)
    }

    /// Asks what may be asked for, as a kernel that mounts the folder; the flags it is granted.
    pub(super) fn mount(&mut self) -> u32 {
        let asked = body().u32(7).u32(38).u32(1 << 17).u32(u32::MAX);
        Args(&self.ask(op::INIT, 0, asked).expect("flags")[12..]).u32().unwrap()
    }

    /// One request; what follows the reply's header, if there is a reply.
    pub(super) fn ask(&mut self, opcode: u32, node: u64, body: Body) -> Result<Vec<u8>> {
        let mut request = Vec::new();
        let length = (IN_HEADER + body.0.len()) as u32;
        for word in [length, opcode, 77, 0] {
            request.extend(word.to_le_bytes());
        }
        request.extend(node.to_le_bytes());
        for word in [self.uid, self.gid, 1, 0] {
            request.extend(word.to_le_bytes());
        }
        request.extend(body.0);
        let mut reply = Reply::default();
        let Some(bytes) = self.server.answer(&request, &mut reply) else { return Ok(Vec::new()) };
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(length as usize, bytes.len());
        assert_eq!(bytes[8..16], 77_u64.to_le_bytes());
        match i32::from_le_bytes(bytes[4..8].try_into().unwrap()) {
            0 => Ok(bytes[16..].to_vec()),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }

    /// The directory of a path, and its last name.
    fn parent<'a>(&mut self, path: &'a str) -> Result<(u64, &'a str)> {
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut node = 1;
        for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
            let seen = self.lookup(node, folder)?;
            if seen.mode & S_IFMT != S_IFDIR {
                return Err(Errno::NOTDIR);
            }
            node = seen.node;
        }
        Ok((node, name))
    }

    pub(super) fn lookup(&mut self, node: u64, name: &str) -> Result<Seen> {
        let seen = entry(&self.ask(op::LOOKUP, node, body().name(name))?);
        if seen.node == 0 { Err(Errno::NOENT) } else { Ok(seen) }
    }

    pub(super) fn stat(&mut self, path: &str) -> Result<Seen> {
        let (parent, name) = self.parent(path)?;
        self.lookup(parent, name)
    }

    pub(super) fn mkdir(&mut self, path: &str, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.ask(op::MKDIR, parent, body().u32(mode).u32(0).name(name)).map(drop)
    }

    pub(super) fn mknod(&mut self, path: &str, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.ask(op::MKNOD, parent, body().u32(mode).u32(0).u32(0).u32(0).name(name)).map(drop)
    }

    pub(super) fn symlink(&mut self, text: &str, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.ask(op::SYMLINK, parent, body().name(name).name(text)).map(drop)
    }

    pub(super) fn readlink(&mut self, path: &str) -> Result<String> {
        let node = self.stat(path)?.node;
        Ok(String::from_utf8(self.ask(op::READLINK, node, body())?).unwrap())
    }

    pub(super) fn link(&mut self, old: &str, new: &str) -> Result<()> {
        let seen = self.stat(old)?;
        let (parent, name) = self.parent(new)?;
        if self.lookup(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        self.ask(op::LINK, parent, body().u64(seen.node).name(name)).map(drop)
    }

    pub(super) fn unlink(&mut self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.ask(op::UNLINK, parent, body().name(name)).map(drop)
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.ask(op::RMDIR, parent, body().name(name)).map(drop)
    }

    pub(super) fn rename(&mut self, old: &str, new: &str, flags: u32) -> Result<()> {
        let (from, old_name) = self.parent(old)?;
        let (to, new_name) = self.parent(new)?;
        self.lookup(from, old_name)?;
        // In Linux' order: what is there and what is not, then loops, and then it asks.
        let there = self.lookup(to, new_name);
        match flags {
            1 if there.is_ok() => return Err(Errno::EXIST),
            2 => _ = there?,
            _ => {}
        }
        if new.starts_with(&format!("{old}/")) {
            return Err(Errno::INVAL);
        }
        if old.starts_with(&format!("{new}/")) {
            return Err(if flags == 2 { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        let request = body().u64(to).u32(flags).u32(0).name(old_name).name(new_name);
        self.ask(op::RENAME2, from, request).map(drop)
    }

    /// Opens a file, which is made if it is not there.
    pub(super) fn create(&mut self, path: &str, flags: u32, mode: u32) -> Result<u64> {
        let (parent, name) = self.parent(path)?;
        let request = body().u32(flags).u32(mode).u32(0).u32(0).name(name);
        self.ask(op::CREATE, parent, request).map(|reply| Args(&reply[128..]).u64().unwrap())
    }

    pub(super) fn open(&mut self, path: &str, flags: u32) -> Result<u64> {
        let seen = self.stat(path)?;
        match seen.mode & S_IFMT {
            S_IFDIR if flags & 3 != 0 => return Err(Errno::ISDIR),
            S_IFLNK => return Err(Errno::LOOP),
            _ => {}
        }
        if !self.by_node {
            match self.ask(op::OPEN, seen.node, body().u32(flags).u32(0)) {
                Err(Errno::NOSYS) => self.by_node = true,
                reply => return reply.map(|reply| Args(&reply).u64().unwrap()),
            }
        }
        match seen.mode & S_IFMT {
            S_IFREG if flags & TRUNCATE != 0 => self.setattr(path, 1 << 3, 0, 0, 0)?,
            S_IFREG => {}
            _ => return Err(Errno::NXIO),
        }
        Ok(NODE | seen.node)
    }

    /// What a request tells of a handle: its number, and the node beside it.
    fn opened(handle: u64) -> (u64, u64) {
        if handle & NODE == 0 { (handle, 0) } else { (0, handle & !NODE) }
    }

    pub(super) fn pwrite(&mut self, handle: u64, offset: u64, bytes: &[u8]) -> Result<u32> {
        let (handle, node) = Self::opened(handle);
        let request = body().u64(handle).u64(offset).u32(bytes.len() as u32).u32(0).u64(0).u32(0).u32(0);
        let reply = self.ask(op::WRITE, node, request.bytes(bytes))?;
        Ok(Args(&reply).u32().unwrap())
    }

    pub(super) fn pread(&mut self, handle: u64, offset: u64, size: u32) -> Result<Vec<u8>> {
        let (handle, node) = Self::opened(handle);
        self.ask(op::READ, node, body().u64(handle).u64(offset).u32(size).u32(0).u64(0).u32(0).u32(0))
    }

    pub(super) fn release(&mut self, handle: u64) {
        if handle & NODE != 0 {
            return;
        }
        self.ask(op::RELEASE, 0, body().u64(handle).u32(0).u32(0).u64(0)).expect("a release");
    }

    /// Makes a file if there is none, and writes to it.
    pub(super) fn put(&mut self, path: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        let handle = match self.open(path, 2) {
            Err(Errno::NOENT) => self.create(path, 2, 0o644)?,
            other => other?,
        };
        let written = self.pwrite(handle, offset, bytes);
        self.release(handle);
        assert_eq!(written? as usize, bytes.len());
        Ok(())
    }

    /// Makes a file without a name, writes to it, and gives it one.
    pub(super) fn nameless(&mut self, directory: &str, new: &str, bytes: &[u8]) -> Result<()> {
        let seen = self.stat(directory)?;
        if seen.mode & S_IFMT != S_IFDIR {
            return Err(Errno::NOTDIR);
        }
        let request = body().u32(2).u32(0o644).u32(0).u32(0).name("#tmpfile");
        let reply = self.ask(op::TMPFILE, seen.node, request)?;
        let (made, handle) = (entry(&reply[..128]).node, Args(&reply[128..]).u64()?);
        let written = self.pwrite(handle, 0, bytes);
        let linked = self.parent(new).and_then(|(parent, name)| {
            if self.lookup(parent, name).is_ok() {
                return Err(Errno::EXIST);
            }
            self.ask(op::LINK, parent, body().u64(made).name(name)).map(drop)
        });
        self.release(handle);
        assert_eq!(written? as usize, bytes.len());
        linked
    }

    pub(super) fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let handle = self.open(path, 0)?;
        let read = self.pread(handle, 0, 1 << 20);
        self.release(handle);
        read
    }

    pub(super) fn setattr(&mut self, path: &str, which: u32, size: u64, mode: u32, uid: u32) -> Result<()> {
        let node = self.stat(path)?.node;
        let head = body().u32(which).u32(0).u64(0).u64(size).u64(0).u64(5).u64(6).u64(0);
        let request = head.u32(0).u32(0).u32(0).u32(mode).u32(0).u32(uid).u32(uid).u32(0);
        self.ask(op::SETATTR, node, request).map(drop)
    }

    /// Names and `d_type`s in order; in pieces of a few entries.
    pub(super) fn list(&mut self, path: &str) -> Result<Vec<(String, u32)>> {
        let node = if path.is_empty() { 1 } else { self.stat(path)?.node };
        let reply = self.ask(op::OPENDIR, node, body().u32(0).u32(0))?;
        let handle = Args(&reply).u64().unwrap();
        let (mut all, mut offset) = (Vec::new(), 0);
        loop {
            let request = body().u64(handle).u64(offset).u32(160).u32(0).u64(0).u32(0).u32(0);
            let reply = self.ask(op::READDIR, node, request)?;
            if reply.is_empty() {
                break;
            }
            let mut args = Args(&reply);
            while !args.0.is_empty() {
                args.u64()?;
                offset = args.u64()?;
                let (length, kind) = (args.u32()? as usize, args.u32()?);
                let name = args.bytes(length)?;
                all.push((String::from_utf8(name.to_vec()).unwrap(), kind));
                args.bytes(length.next_multiple_of(8) - length)?;
            }
        }
        self.release(handle);
        all.retain(|(name, _)| name != "." && name != "..");
        all.sort();
        Ok(all)
    }

    /// Gives all references back.
    pub(super) fn forget(&mut self, node: u64) {
        self.ask(op::FORGET, node, body().u64(u64::MAX)).expect("no reply");
    }
}

/// `fuse_entry_out`.
fn entry(reply: &[u8]) -> Seen {
    assert_eq!(reply.len(), 128);
    let word = |at: usize| u32::from_le_bytes(reply[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(reply[at..at + 8].try_into().unwrap());
    Seen {
        node: long(0),
        ino: long(40),
        size: long(48),
        mtime: long(72),
        mode: word(100),
        nlink: word(104),
        uid: word(108),
        gid: word(112),
    }
}
