//! Files and directories that the guest holds open.

mod saved;

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub(crate) use saved::SavedHandles;

/// The most that a guest may hold open at a time.
const HANDLES: usize = 1 << 16;

/// An entry of a directory, as it was when the directory was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub name: Vec<u8>,
    pub ino: u64,
    /// `d_type`.
    pub kind: u32,
}

/// What was opened.
#[derive(Debug)]
pub(crate) enum Handle {
    /// A file. Without `host` its content is the node's changed one; where there is none, the host's was not found again for a saved
    /// session.
    File { node: u64, host: Option<OwnedFd>, writable: bool },
    /// A directory, its entries since it was last read from its beginning, and whether they were read at all
    /// since it was opened.
    Directory { node: u64, entries: Vec<Entry>, begun: bool },
}

/// All of them, by the number that the guest has.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    all: HashMap<u64, Handle>,
    next: u64,
}

impl Handles {
    pub(crate) fn add(&mut self, handle: Handle) -> Result<u64, Errno> {
        if self.all.len() >= HANDLES {
            return Err(Errno::NFILE);
        }
        self.next += 1;
        self.all.insert(self.next, handle);
        Ok(self.next)
    }

    pub(crate) fn get(&self, id: u64) -> Result<&Handle, Errno> {
        self.all.get(&id).ok_or(Errno::BADF)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Result<&mut Handle, Errno> {
        self.all.get_mut(&id).ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.all.remove(&id);
    }
}
