//! A server in the process of who attacks it.

use std::io::Result;
use std::path::Path;

use rustix::fs::{Mode as Permissions, OFlags, open};

use crate::plan9::{self, Out, Plan9};
use crate::server::Server;
use crate::wire::{IN_HEADER, MAX_REQUEST, Reply};
use crate::{Mode, Protocol};

/// Bytes that changes in memory may take, and files that may be open only as they are known.
const BUDGET: u64 = 1 << 20;
const OPEN: usize = 4;

/// A folder that is served, without a sandbox.
pub struct Served(Inner);

enum Inner {
    Fuse(Box<Server>, Reply),
    Plan9(Box<Plan9>, Out),
}

impl Served {
    /// Serves `root`.
    pub fn new(root: &Path, mode: Mode, protocol: Protocol) -> Result<Served> {
        let folder = |path: &Path| {
            open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Permissions::empty())
        };
        let (root, proc) = (folder(root)?, folder("/proc/self/fd".as_ref())?);
        let privileged = rustix::process::geteuid().is_root();
        let mut server = Server::new(root, proc, mode, BUDGET, privileged, None, OPEN)?;
        server.reads_all = true;
        Ok(Served(match protocol {
            Protocol::Fuse => Inner::Fuse(Box::new(server), Reply::default()),
            Protocol::Plan9 => Inner::Plan9(Box::new(Plan9::new(server)), Out::default()),
        }))
    }

    /// What a whole message is answered, if that is anything.
    pub fn answer(&mut self, message: &[u8]) -> Option<&[u8]> {
        match &mut self.0 {
            Inner::Fuse(..) if !(IN_HEADER..=MAX_REQUEST).contains(&message.len()) => None,
            Inner::Plan9(..) if !(plan9::HEADER..=plan9::MOST).contains(&message.len()) => None,
            Inner::Fuse(server, reply) => server.answer(message, reply),
            Inner::Plan9(server, out) => Some(server.answer(message, out)),
        }
    }
}
