//! One folder's server: a request in, its reply out.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::Mode;
use crate::content::Budget;
use crate::handles::Handles;
use crate::nodes::{Nodes, Owner};
use crate::wire::{Args, Header, MAX_IO, Reply, op};

/// Whether a request has a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    Never,
}

/// A folder that is served.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) mode: Mode,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    /// `/proc/self/fd`, through which a file that is known is opened.
    pub(crate) proc: OwnedFd,
    /// What changes may still take.
    pub(crate) budget: Budget,
    /// Files can be given to whoever makes them.
    pub(crate) privileged: bool,
    /// Whose files are root's to the guest, if they are another one's.
    pub(crate) roots: Option<Owner>,
    /// No file is kept from whoever serves.
    pub(crate) reads_all: bool,
    /// The guest opens no files: it reads and writes nodes ([`Server::init`]).
    pub(crate) by_node: bool,
    /// The host's files that were read by their nodes last, the latest first.
    pub(crate) recent: VecDeque<(u64, OwnedFd)>,
}

/// Requests that change something, which a read-only folder refuses.
const CHANGES: &[u32] = &[
    op::SETATTR,
    op::SYMLINK,
    op::MKNOD,
    op::MKDIR,
    op::UNLINK,
    op::RMDIR,
    op::RENAME,
    op::LINK,
    op::WRITE,
    op::SETXATTR,
    op::REMOVEXATTR,
    op::CREATE,
    op::FALLOCATE,
    op::RENAME2,
    op::TMPFILE,
];

/// Flags of FUSE_INIT that we know and Linux offers.
mod init {
    pub(super) const ASYNC_READ: u32 = 1 << 0;
    pub(super) const ATOMIC_O_TRUNC: u32 = 1 << 3;
    pub(super) const BIG_WRITES: u32 = 1 << 5;
    pub(super) const AUTO_INVAL_DATA: u32 = 1 << 12;
    pub(super) const DO_READDIRPLUS: u32 = 1 << 13;
    pub(super) const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub(super) const ASYNC_DIO: u32 = 1 << 15;
    /// The guest takes ENOSYS of an open for an answer to all. It is told so, and we need not say that we know it.
    pub(super) const NO_OPEN_SUPPORT: u32 = 1 << 17;
    pub(super) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(super) const MAX_PAGES: u32 = 1 << 22;
    pub(super) const CACHE_SYMLINKS: u32 = 1 << 23;
    pub(super) const ALL: u32 = ASYNC_READ
        | ATOMIC_O_TRUNC
        | BIG_WRITES
        | AUTO_INVAL_DATA
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS;
}

/// The version of the protocol that we speak: major, and the least and our own minor.
const VERSION: (u32, u32, u32) = (7, 31, 38);

impl Server {
    /// A server of `root`, an open directory. `proc` is `/proc/self/fd`; `privileged` tells that files can be given to
    /// others; files of `roots` are root's to the guest; at most `open_most` files are open only because the guest knows them,
    /// and half as many hold what was changed.
    pub(crate) fn new(
        root: OwnedFd,
        proc: OwnedFd,
        mode: Mode,
        budget: u64,
        privileged: bool,
        roots: Option<Owner>,
        open_most: usize,
    ) -> Result<Server, Errno> {
        let (nodes, handles) = (Nodes::new(root, roots, open_most)?, Handles::default());
        let budget = Budget::new(budget, open_most / 2);
        let recent = VecDeque::new();
        let (reads_all, by_node) = (false, false);
        Ok(Server { mode, nodes, handles, proc, budget, privileged, roots, reads_all, by_node, recent })
    }

    /// The reply to one whole request, if it has one.
    pub(crate) fn answer<'a>(&mut self, request: &[u8], reply: &'a mut Reply) -> Option<&'a [u8]> {
        reply.begin();
        let (header, args) = Header::parse(request).ok()?;
        let mut done = self.perform(&header, args, reply);
        // Handles, and contents in memory, need open files, too. What changes the host's folder may be half done.
        if done == Err(Errno::MFILE) && (self.mode != Mode::Rw || !CHANGES.contains(&header.opcode)) {
            self.nodes.close_some();
            reply.begin();
            done = self.perform(&header, args, reply);
        }
        match done {
            Ok(Answer::Never) => None,
            Ok(Answer::Yes) => Some(reply.finish(header.unique, Ok(()))),
            Err(errno) => Some(reply.finish(header.unique, Err(errno))),
        }
    }

    /// Does what a request asks for.
    pub(crate) fn perform(
        &mut self,
        header: &Header,
        args: Args<'_>,
        reply: &mut Reply,
    ) -> Result<Answer, Errno> {
        if self.mode == Mode::Ro && CHANGES.contains(&header.opcode) {
            return Err(Errno::ROFS);
        }
        match header.opcode {
            op::INIT => self.init(args, reply)?,
            op::FORGET | op::BATCH_FORGET => {
                // There is no reply to tell of a mistake in.
                let _ = self.forget(header, args);
                return Ok(Answer::Never);
            }
            // One request at a time: it is done before its interruption is read.
            op::INTERRUPT => return Ok(Answer::Never),
            op::LOOKUP => self.lookup(header, args, reply)?,
            op::GETATTR => self.getattr(header, reply)?,
            op::READLINK => self.readlink(header, reply)?,
            // Linux asks for the first file it opens, and for no other then.
            op::OPEN if self.by_node => return Err(Errno::NOSYS),
            op::OPEN => self.open(header, args, reply)?,
            op::READ => self.read(header, args, reply)?,
            op::RELEASE | op::RELEASEDIR => self.handles.remove({ args }.u64()?),
            op::STATFS => self.statfs(header, reply)?,
            op::GETXATTR => self.getxattr(header, args, reply)?,
            op::LISTXATTR => self.listxattr(header, args, reply)?,
            op::OPENDIR => self.opendir(header, reply)?,
            op::READDIR => self.readdir(args, reply, false)?,
            op::READDIRPLUS => self.readdir(args, reply, true)?,
            op::LSEEK => self.lseek(header, args, reply)?,
            op::FSYNC | op::FSYNCDIR => self.fsync(args)?,
            // Everything was written when its write was answered: Linux does not ask at each close again.
            op::FLUSH => return Err(Errno::NOSYS),
            op::SYNCFS | op::DESTROY => {}
            op::SETATTR => self.setattr(header, args, reply)?,
            op::SYMLINK => self.symlink(header, args, reply)?,
            op::MKNOD => self.mknod(header, args, reply)?,
            op::MKDIR => self.mkdir(header, args, reply)?,
            op::CREATE => self.create(header, args, reply)?,
            op::TMPFILE => self.tmpfile(header, args, reply)?,
            op::LINK => self.link(header, args, reply)?,
            op::UNLINK => self.remove(header, args, false)?,
            op::RMDIR => self.remove(header, args, true)?,
            op::RENAME => self.rename(header, args, false)?,
            op::RENAME2 => self.rename(header, args, true)?,
            op::WRITE => self.write(header, args, reply)?,
            op::FALLOCATE => self.fallocate(header, args)?,
            op::SETXATTR => self.setxattr(header, args)?,
            op::REMOVEXATTR => self.removexattr(header, args)?,
            _ => return Err(Errno::NOSYS),
        }
        Ok(Answer::Yes)
    }

    /// What the guest may ask for.
    ///
    /// Where its changes go to memory and all files can be read, nothing depends on a file being open: it is told so, and opening and
    /// closing a file asks nobody. Who may not read a file, or not write any, has to be told when it is opened; and of a folder that is
    /// changed itself, a file without a name lives as long as it is open.
    fn init(&mut self, mut args: Args<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let (major, minor, readahead, flags) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        if (major, minor) < (VERSION.0, VERSION.1) {
            return Err(Errno::PROTO);
        }
        self.by_node = self.mode == Mode::Cow && self.reads_all && flags & init::NO_OPEN_SUPPORT != 0;
        // A file that nobody is asked to open is emptied by a request of its own.
        let without = if self.by_node { init::ATOMIC_O_TRUNC } else { 0 };
        let flags = flags & init::ALL & !without;
        reply.u32(VERSION.0).u32(VERSION.2.min(minor)).u32(readahead).u32(flags);
        // Requests in the background and when they are too many, the longest write, and times in nanoseconds.
        reply.u32(64 | 48 << 16).u32(MAX_IO).u32(1);
        // The most pages of a request; no mapping's alignment, no more flags; unused.
        reply.u32(MAX_IO / 4096).bytes(&[0; 32]);
        Ok(())
    }

    fn forget(&mut self, header: &Header, mut args: Args<'_>) -> Result<(), Errno> {
        if header.opcode == op::FORGET {
            self.forget_node(header.node, args.u64()?);
            return Ok(());
        }
        let (count, _) = (args.u32()?, args.u32()?);
        for _ in 0..count {
            let (node, lookups) = (args.u64()?, args.u64()?);
            self.forget_node(node, lookups);
        }
        Ok(())
    }

    fn forget_node(&mut self, node: u64, lookups: u64) {
        self.recent.retain(|(known, _)| *known != node);
        self.nodes.forget(node, lookups);
    }

    /// Tells of a node and counts the guest's new reference.
    pub(crate) fn entry(&mut self, id: u64, reply: &mut Reply) -> Result<(), Errno> {
        let attr = match self.nodes.get(id)?.attr() {
            Ok(attr) => attr,
            Err(errno) => {
                self.nodes.tidy(id);
                return Err(errno);
            }
        };
        self.nodes.refer(id);
        reply.entry_out(id, &attr);
        Ok(())
    }
}
