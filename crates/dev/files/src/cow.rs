//! Changes that lie over the host's folder, which stays as it is.
//!
//! A node that was changed holds its attributes, and of its content what differs: a file's whole content
//! once it is written, a directory's entries that were added, removed or replaced. As a change belongs to the node
//! and not to a path, all hard links of a file change together, and a directory that moves takes its entries
//! along, those of the host too.

mod saved;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, pread};

use crate::attr::{Attr, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, now};
use crate::changes::{EXCHANGE, Move, NOREPLACE, New, S_ISGID, Wanted, When};
use crate::content::Content;
use crate::nodes::open_entry;
use crate::server::Server;
pub(crate) use saved::SavedChange;

/// What was changed of a node.
#[derive(Debug)]
pub(crate) struct Change {
    /// What the guest is told, instead of the host's.
    pub attr: Attr,
    pub data: Data,
    /// All extended attributes, once one was changed.
    pub xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Of a directory, entries that were added or replaced, and `None` for those that were removed.
    pub entries: BTreeMap<Vec<u8>, Option<u64>>,
    /// Made without a name, and may still be given one.
    nameless: bool,
}

/// A changed node's content.
#[derive(Debug)]
pub(crate) enum Data {
    /// The host's file's; or none, as of a directory.
    Lower,
    /// A file's own.
    File(Content),
    /// A symbolic link's text.
    Link(Vec<u8>),
}

impl Change {
    fn new(attr: Attr, data: Data) -> Change {
        Change { attr, data, xattrs: None, entries: BTreeMap::new(), nameless: false }
    }

    /// The content has `size` bytes, of which `takes` take room.
    fn sized(&mut self, (size, takes): (u64, u64)) {
        self.attr.size = size;
        self.attr.blocks = takes / 512;
        self.touched();
    }

    fn touched(&mut self) {
        self.attr.mtime = now();
        self.attr.ctime = self.attr.mtime;
    }
}

impl Server {
    /// The change of a node, begun if there is none.
    fn change(&mut self, id: u64) -> Result<&mut Change, Errno> {
        let node = self.nodes.get_mut(id)?;
        let attr = node.attr()?;
        Ok(node.change.get_or_insert_with(|| Box::new(Change::new(attr, Data::Lower))))
    }

    /// The change of a directory whose entries are about to change.
    fn directory(&mut self, id: u64) -> Result<&mut Change, Errno> {
        let change = self.change(id)?;
        // A directory that was removed takes no new entries, though it may still be open.
        match change.attr {
            Attr { nlink: 0, .. } => Err(Errno::NOENT),
            attr if attr.kind() != S_IFDIR => Err(Errno::NOTDIR),
            _ => Ok(change),
        }
    }

    /// Gives a file a content of its own, with the first `keep` bytes of the one that it had.
    pub(crate) fn copy_up(&mut self, id: u64, keep: u64) -> Result<(), Errno> {
        let budget = self.budget.clone();
        let node = self.nodes.get(id)?;
        if let Some(Data::File(_)) = node.change.as_ref().map(|change| &change.data) {
            if keep == 0 {
                self.resize(id, 0)?;
            }
            return Ok(());
        }
        let mut content = Content::new(&budget);
        if keep > 0 {
            let from = self.open_lower(node, OFlags::RDONLY)?;
            copy(&from, &mut content, keep)?;
        }
        let size = content.charge()?;
        let change = self.change(id)?;
        change.data = Data::File(content);
        if change.attr.size != size.0 {
            change.sized(size);
        }
        Ok(())
    }

    /// Does `work` with a file's own content, and takes note of what it takes afterwards.
    fn edit<T>(
        &mut self,
        id: u64,
        room: u64,
        work: impl FnOnce(&mut Content) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.budget.room(room)?;
        let change = self.change(id)?;
        let Data::File(content) = &mut change.data else { return Err(Errno::BADF) };
        let result = work(content);
        let size = content.charge()?;
        change.sized(size);
        result
    }

    fn resize(&mut self, id: u64, size: u64) -> Result<(), Errno> {
        self.edit(id, 0, |content| content.resize(size))
    }

    pub(crate) fn cow_write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.edit(id, bytes.len() as u64, |content| content.write(offset, bytes))
    }

    pub(crate) fn cow_fallocate(
        &mut self,
        id: u64,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits_retain(mode);
        let takes = if mode.contains(FallocateFlags::PUNCH_HOLE) { 0 } else { length };
        self.edit(id, takes, |content| content.allocate(mode, offset, length))
    }

    pub(crate) fn cow_setattr(&mut self, id: u64, wanted: &Wanted) -> Result<(), Errno> {
        if let Some(size) = wanted.size {
            match self.nodes.get(id)?.attr()?.kind() {
                S_IFREG => {}
                S_IFDIR => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
            self.copy_up(id, size)?;
            self.resize(id, size)?;
        }
        let attr = &mut self.change(id)?.attr;
        attr.ctime = now();
        if let Some(mode) = wanted.mode {
            attr.mode = attr.kind() | mode;
        }
        attr.uid = wanted.uid.unwrap_or(attr.uid);
        attr.gid = wanted.gid.unwrap_or(attr.gid);
        let time = |when: Option<When>, old| match when {
            None => old,
            Some(When::Now) => now(),
            Some(When::At(time)) => time,
        };
        attr.atime = time(wanted.atime, attr.atime);
        attr.mtime = time(wanted.mtime, attr.mtime);
        Ok(())
    }

    pub(crate) fn cow_make(&mut self, directory: u64, new: &New<'_>) -> Result<u64, Errno> {
        let parent = self.directory(directory)?.attr;
        match self.find(directory, new.name) {
            Ok(found) => {
                self.nodes.tidy(found);
                return Err(Errno::EXIST);
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let id = self.cow_new(&parent, new)?;
        self.put(directory, new.name, id)?;
        Ok(id)
    }

    /// O_TMPFILE.
    pub(crate) fn cow_tmpfile(&mut self, directory: u64, new: &New<'_>) -> Result<u64, Errno> {
        let parent = self.directory(directory)?.attr;
        let id = self.cow_new(&parent, new)?;
        let change = self.change(id)?;
        change.nameless = true;
        change.attr.nlink = 0;
        Ok(id)
    }

    /// A node that is in no directory yet.
    fn cow_new(&mut self, parent: &Attr, new: &New<'_>) -> Result<u64, Errno> {
        let kind = new.mode & S_IFMT;
        let inherits = parent.mode & S_ISGID != 0;
        let time = now();
        let attr = Attr {
            size: new.text.len() as u64,
            atime: time,
            mtime: time,
            ctime: time,
            mode: new.mode | if inherits && kind == S_IFDIR { S_ISGID } else { 0 },
            nlink: if kind == S_IFDIR { 2 } else { 1 },
            uid: new.uid,
            gid: if inherits { parent.gid } else { new.gid },
            rdev: new.device,
            block_size: 4096,
            ..Attr::default()
        };
        let data = match kind {
            S_IFREG => Data::File(Content::new(&self.budget)),
            S_IFLNK => Data::Link(new.text.to_vec()),
            _ => Data::Lower,
        };
        self.nodes.of_change(Change::new(attr, data))
    }

    /// Enters a node into a directory.
    fn put(&mut self, directory: u64, name: &[u8], id: u64) -> Result<(), Errno> {
        let is_directory = self.nodes.get(id)?.attr()?.kind() == S_IFDIR;
        let change = self.directory(directory)?;
        change.entries.insert(name.to_vec(), Some(id));
        change.attr.nlink = change.attr.nlink.saturating_add(is_directory.into());
        change.touched();
        Ok(())
    }

    /// Takes a name out of a directory, whatever it stands for.
    fn take(&mut self, directory: u64, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        let lower = self.nodes.get(directory)?.lower_directory()?;
        let beneath = lower.is_some_and(|lower| open_entry(&lower, name, OFlags::PATH, 0).is_ok());
        let change = self.change(directory)?;
        if beneath {
            change.entries.insert(name.to_vec(), None);
        } else {
            change.entries.remove(name);
        }
        // A directory that is there has two at least.
        if is_directory && change.attr.nlink > 2 {
            change.attr.nlink -= 1;
        }
        change.touched();
        Ok(())
    }

    /// One name of a node is gone; of a directory the only one.
    fn unlinked(&mut self, id: u64) -> Result<(), Errno> {
        let attr = &mut self.change(id)?.attr;
        attr.nlink = if attr.kind() == S_IFDIR { 0 } else { attr.nlink.saturating_sub(1) };
        attr.ctime = now();
        self.nodes.tidy(id);
        Ok(())
    }

    /// What a name stands for, if that may be taken away as what it is.
    fn removable(&mut self, directory: u64, name: &[u8], is_directory: bool) -> Result<u64, Errno> {
        let id = self.find(directory, name)?;
        match (self.nodes.get(id)?.attr()?.kind() == S_IFDIR, is_directory) {
            (true, false) => Err(Errno::ISDIR),
            (false, true) => Err(Errno::NOTDIR),
            (true, true) if !self.entries(id)?.is_empty() => Err(Errno::NOTEMPTY),
            _ => Ok(id),
        }
    }

    pub(crate) fn cow_remove(
        &mut self,
        directory: u64,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Errno> {
        let id = self.removable(directory, name, is_directory)?;
        // Begun before the name goes, while the host can be asked for the attributes.
        self.change(id)?;
        self.take(directory, name, is_directory)?;
        self.unlinked(id)
    }

    pub(crate) fn cow_link(&mut self, target: u64, directory: u64, name: &[u8]) -> Result<(), Errno> {
        match self.find(directory, name) {
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let change = self.change(target)?;
        if change.attr.nlink == 0 && !std::mem::take(&mut change.nameless) {
            return Err(Errno::NOENT);
        }
        let attr = &mut change.attr;
        attr.nlink = attr.nlink.saturating_add(1);
        attr.ctime = now();
        let put = self.put(directory, name, target);
        if put.is_err() {
            self.unlinked(target)?;
        }
        put
    }

    pub(crate) fn cow_rename(&mut self, moved: &Move<'_>) -> Result<(), Errno> {
        let Move { from, to, flags } = *moved;
        let id = self.find(from.0, from.1)?;
        let is_directory = self.nodes.get(id)?.attr()?.kind() == S_IFDIR;
        let other = match self.find(to.0, to.1) {
            Ok(other) => Some(other),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        self.directory(from.0)?;
        self.directory(to.0)?;
        // From now on an entry of a directory's change holds the node: it is kept.
        self.change(id)?.attr.ctime = now();
        match other {
            None if flags == EXCHANGE => return Err(Errno::NOENT),
            Some(_) if flags == NOREPLACE => return Err(Errno::EXIST),
            Some(other) if other == id => return Ok(()),
            Some(other) if flags == EXCHANGE => {
                let other_is = self.nodes.get(other)?.attr()?.kind() == S_IFDIR;
                self.change(other)?.attr.ctime = now();
                self.take(from.0, from.1, is_directory)?;
                self.take(to.0, to.1, other_is)?;
                self.put(from.0, from.1, other)?;
                return self.put(to.0, to.1, id);
            }
            Some(_) => {
                let other = self.removable(to.0, to.1, is_directory)?;
                self.change(other)?;
                self.take(to.0, to.1, is_directory)?;
                self.unlinked(other)?;
            }
            None => {}
        }
        self.take(from.0, from.1, is_directory)?;
        self.put(to.0, to.1, id)
    }

    /// The extended attributes of a node, which are changed from now on.
    fn xattrs(&mut self, id: u64) -> Result<&mut BTreeMap<Vec<u8>, Vec<u8>>, Errno> {
        let node = self.nodes.get(id)?;
        let mut all = BTreeMap::new();
        if node.change.as_ref().is_none_or(|change| change.xattrs.is_none()) && node.lower.is_some() {
            let names = self.lower_xattrs(node).unwrap_or_default();
            for name in names.split(|&b| b == 0).filter(|name| !name.is_empty()) {
                if let Ok(value) = self.lower_xattr(node, name) {
                    all.insert(name.to_vec(), value);
                }
            }
        }
        Ok(self.change(id)?.xattrs.get_or_insert(all))
    }

    pub(crate) fn cow_setxattr(
        &mut self,
        id: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        const CREATE: u32 = 1;
        const REPLACE: u32 = 2;
        /// What one file's may take (XATTR_LIST_MAX, and no more for the values).
        const MOST: usize = 1 << 16;
        let all = self.xattrs(id)?;
        match all.contains_key(name) {
            true if flags & CREATE != 0 => return Err(Errno::EXIST),
            false if flags & REPLACE != 0 => return Err(Errno::NODATA),
            _ => {}
        }
        let taken: usize = all.iter().filter(|(key, _)| *key != name).map(|(k, v)| k.len() + v.len()).sum();
        if taken + name.len() + value.len() > MOST {
            return Err(Errno::NOSPC);
        }
        all.insert(name.to_vec(), value.to_vec());
        self.change(id)?.attr.ctime = now();
        Ok(())
    }

    pub(crate) fn cow_removexattr(&mut self, id: u64, name: &[u8]) -> Result<(), Errno> {
        self.xattrs(id)?.remove(name).ok_or(Errno::NODATA)?;
        self.change(id)?.attr.ctime = now();
        Ok(())
    }
}

/// Copies the first `keep` bytes of a file.
fn copy(from: &OwnedFd, to: &mut Content, keep: u64) -> Result<(), Errno> {
    let mut buffer = vec![0; 1 << 17];
    let mut done = 0;
    while done < keep {
        let want = usize::try_from(keep - done).unwrap_or(usize::MAX).min(buffer.len());
        let count = match pread(from, &mut buffer[..want], done) {
            Ok(0) => break,
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        to.room(count as u64)?;
        if to.write(done, &buffer[..count])? < count {
            return Err(Errno::NOSPC);
        }
        to.charge()?;
        done += count as u64;
    }
    Ok(())
}
