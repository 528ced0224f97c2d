//! What the guest holds open, as plain data.

use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl};
use serde::{Deserialize, Serialize};

use super::{Entry, HANDLES, Handle, Handles};
use crate::saved::{failed, unless};

/// All handles, by number.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedHandles {
    all: Vec<(u64, SavedHandle)>,
    next: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum SavedHandle {
    /// A file: how the host's is open, if it is.
    File {
        node: u64,
        host: Option<Access>,
        writable: bool,
    },
    Directory {
        node: u64,
        entries: Vec<Entry>,
        begun: bool,
    },
}

/// What one of the host's files is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Access {
    Read,
    Write,
    Both,
}

impl Access {
    fn of(file: &OwnedFd) -> Result<Access, satori_save::Error> {
        let flags = fcntl_getfl(file).map_err(failed)? & OFlags::RWMODE;
        Ok(match flags {
            OFlags::WRONLY => Access::Write,
            OFlags::RDWR => Access::Both,
            _ => Access::Read,
        })
    }

    fn flags(self) -> OFlags {
        match self {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::Both => OFlags::RDWR,
        }
    }
}

impl Handles {
    pub(crate) fn save(&self) -> Result<SavedHandles, satori_save::Error> {
        let mut all = Vec::with_capacity(self.all.len());
        for (&number, handle) in &self.all {
            let saved = match handle {
                Handle::File { node, host, writable } => {
                    let host = host.as_ref().map(Access::of).transpose()?;
                    SavedHandle::File { node: *node, host, writable: *writable }
                }
                Handle::Directory { node, entries, begun } => {
                    SavedHandle::Directory { node: *node, entries: entries.clone(), begun: *begun }
                }
            };
            all.push((number, saved));
        }
        all.sort_unstable_by_key(|(number, _)| *number);
        Ok(SavedHandles { all, next: self.next })
    }

    /// The handles that were saved. `open` opens a node's file on the host again, without which the guest gets ESTALE by the handle;
    /// whether it may be written is `writes`.
    pub(crate) fn restore(
        saved: SavedHandles,
        writes: bool,
        mut open: impl FnMut(u64, OFlags) -> Option<OwnedFd>,
    ) -> Result<Handles, satori_save::Error> {
        let SavedHandles { all, next } = saved;
        unless(all.len() <= HANDLES && next < 1 << 62, "it counts open files otherwise")?;
        let mut handles = Handles { next, ..Handles::default() };
        for (number, saved) in all {
            let handle = match saved {
                SavedHandle::File { node, host, writable } => {
                    let changes = host.is_some_and(|access| access != Access::Read);
                    unless(writes || !changes, "a file is open for writing that may not be")?;
                    let host = host.and_then(|access| open(node, access.flags()));
                    Handle::File { node, host, writable }
                }
                SavedHandle::Directory { node, entries, begun } => Handle::Directory { node, entries, begun },
            };
            let new = handles.all.insert(number, handle).is_none();
            unless(new && number <= next, "it numbers open files otherwise")?;
        }
        Ok(handles)
    }
}
