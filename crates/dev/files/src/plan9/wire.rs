//! 9P2000.L messages as bytes (Linux: include/net/9p/9p.h).

use rustix::io::Errno;

use super::sort;
use crate::attr::Attr;
use crate::wire::{Args, component};

/// Of every message: its length, its type, its tag.
pub(crate) const HEADER: usize = 7;
/// The longest message: 1 MiB of content, and what stands before it.
pub(crate) const MOST: usize = (1 << 20) + 24;
/// What stands before the content of a read.
pub(super) const READ: usize = HEADER + 4;

/// What is asked for; a reply has the number that follows.
pub(super) mod kind {
    pub(in super::super) const LERROR: u8 = 6;
    pub(in super::super) const STATFS: u8 = 8;
    pub(in super::super) const LOPEN: u8 = 12;
    pub(in super::super) const LCREATE: u8 = 14;
    pub(in super::super) const SYMLINK: u8 = 16;
    pub(in super::super) const MKNOD: u8 = 18;
    pub(in super::super) const READLINK: u8 = 22;
    pub(in super::super) const GETATTR: u8 = 24;
    pub(in super::super) const SETATTR: u8 = 26;
    pub(in super::super) const XATTRWALK: u8 = 30;
    pub(in super::super) const XATTRCREATE: u8 = 32;
    pub(in super::super) const READDIR: u8 = 40;
    pub(in super::super) const FSYNC: u8 = 50;
    pub(in super::super) const LOCK: u8 = 52;
    pub(in super::super) const GETLOCK: u8 = 54;
    pub(in super::super) const LINK: u8 = 70;
    pub(in super::super) const MKDIR: u8 = 72;
    pub(in super::super) const RENAMEAT: u8 = 74;
    pub(in super::super) const UNLINKAT: u8 = 76;
    pub(in super::super) const VERSION: u8 = 100;
    pub(in super::super) const ATTACH: u8 = 104;
    pub(in super::super) const FLUSH: u8 = 108;
    pub(in super::super) const WALK: u8 = 110;
    pub(in super::super) const READ: u8 = 116;
    pub(in super::super) const WRITE: u8 = 118;
    pub(in super::super) const CLUNK: u8 = 120;
    pub(in super::super) const REMOVE: u8 = 122;
}

/// Which attributes a message speaks of.
pub(super) mod attribute {
    /// All that stat(2) tells (P9_GETATTR_BASIC).
    pub(in super::super) const BASIC: u64 = 0x7ff;
    /// In `Tsetattr` and in FUSE alike: mode, owner, group, size, times.
    const SAME: u32 = 0x3f;
    /// The time is the message's, and not now.
    const ATIME_SET: u32 = 1 << 7;
    const MTIME_SET: u32 = 1 << 8;

    /// `setattr_in.valid` of `Tsetattr`'s.
    pub(in super::super) fn to_fuse(which: u32, by_handle: bool) -> u32 {
        const ATIME: u32 = 1 << 4;
        const MTIME: u32 = 1 << 5;
        let now = |time: u32, set: u32, now: u32| if which & time != 0 && which & set == 0 { now } else { 0 };
        which & SAME
            | now(ATIME, ATIME_SET, 1 << 7)
            | now(MTIME, MTIME_SET, 1 << 8)
            | if by_handle { 1 << 6 } else { 0 }
    }
}

impl<'a> Args<'a> {
    pub(super) fn u8(&mut self) -> Result<u8, Errno> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Errno> {
        self.bytes(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Bytes behind their length.
    pub(super) fn text(&mut self) -> Result<&'a [u8], Errno> {
        let length = self.u16()?;
        self.bytes(length.into())
    }

    /// One component of a path, behind its length.
    pub(super) fn file_name(&mut self) -> Result<&'a [u8], Errno> {
        component(self.text()?)
    }
}

/// A reply that grows.
#[derive(Debug, Default)]
pub(crate) struct Out(Vec<u8>);

impl Out {
    pub(super) fn begin(&mut self, kind: u8, tag: u16) {
        self.0.clear();
        self.u32(0).u8(kind).u16(tag);
    }

    pub(super) fn finish(&mut self) -> &[u8] {
        let length = (self.0.len() as u32).to_le_bytes();
        self.0[..4].copy_from_slice(&length);
        &self.0
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes behind a length of 16 bits; names and links are shorter.
    pub(super) fn text(&mut self, text: &[u8]) -> &mut Self {
        let text = &text[..text.len().min(usize::from(u16::MAX))];
        self.u16(text.len() as u16).bytes(text)
    }

    /// Bytes behind a length of 32 bits.
    pub(super) fn data(&mut self, data: &[u8]) -> &mut Self {
        self.u32(data.len() as u32).bytes(data)
    }

    /// Room for the length of what follows.
    pub(super) fn hold(&mut self) -> usize {
        self.u32(0);
        self.0.len()
    }

    /// The length of what followed since `begin`.
    pub(super) fn fill_in(&mut self, begin: usize) {
        let length = ((self.0.len() - begin) as u32).to_le_bytes();
        self.0[begin - 4..begin].copy_from_slice(&length);
    }

    /// What identifies a file: its type, a version that changes as its content does, its number.
    pub(super) fn qid(&mut self, attr: &Attr) -> &mut Self {
        let version = attr.mtime.0 as u32 ^ (attr.size << 8) as u32;
        self.u8(sort(attr)).u32(version).u64(attr.ino)
    }

    /// `Rgetattr`.
    pub(super) fn attributes(&mut self, attr: &Attr) -> &mut Self {
        self.u64(attribute::BASIC).qid(attr).u32(attr.mode).u32(attr.uid).u32(attr.gid);
        let numbers = [attr.nlink.into(), attr.rdev.into(), attr.size, attr.block_size.into(), attr.blocks];
        // The time of birth, a generation and a version of the data are not told.
        let times = [attr.atime, attr.mtime, attr.ctime, (0, 0), (0, 0)];
        let times = times.into_iter().flat_map(|(seconds, rest)| [seconds, rest.into()]);
        numbers.into_iter().chain(times).for_each(|number| {
            self.u64(number);
        });
        self
    }
}
