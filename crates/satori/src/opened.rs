//! What a run makes on the host before its guest runs.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use satori_machine::CodeNames;

use crate::channel::Channel;
use crate::late::LateFile;

/// Files and sockets that were made for a guest. Dropped before [`begin`](Opened::begin) it takes them back: no guest ran, as for any
/// other refusal. Dropped later it removes the sockets that it can still reach.
#[derive(Debug, Default)]
pub struct Opened {
    files: Vec<LateFile>,
    /// Descriptors of the same files that were handed out, and of channels.
    given: Vec<RawFd>,
    sockets: Vec<PathBuf>,
    names: Option<Arc<CodeNames>>,
}

impl Opened {
    /// Opens a file that the run writes; what is in it stays until the guest begins.
    pub fn file(&mut self, flag: &str, path: &Path) -> Result<File> {
        self.late(LateFile::open(flag, path)?)
    }

    /// As [`file`](Opened::file), one that nobody but its owner may read, where it is new.
    pub fn private(&mut self, flag: &str, path: &Path) -> Result<File> {
        self.late(LateFile::private(flag, path)?)
    }

    fn late(&mut self, late: LateFile) -> Result<File> {
        let file = late.file.try_clone()?;
        self.given.push(file.as_raw_fd());
        self.files.push(late);
        Ok(file)
    }

    /// A socket was made at `path`.
    pub fn socket(&mut self, path: &Path) -> Result<()> {
        // Absolute: a sandbox that cannot be had may have left the working directory.
        self.sockets.push(std::path::absolute(path)?);
        Ok(())
    }

    /// Listens at a socket, whose descriptors are kept.
    pub fn channel(&mut self, channel: &Channel) -> Result<()> {
        self.given.extend(channel.files());
        self.socket(channel.path())
    }

    /// The file of `--perf` was made.
    pub fn names(&mut self, names: Arc<CodeNames>) {
        self.names = Some(names);
    }

    /// Descriptors that a sandbox has to keep open, those of the files that were handed out among them.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let names = self.names.iter().map(|names| names.descriptor());
        let own = self.files.iter().map(|late| late.file.as_raw_fd());
        own.chain(self.given.iter().copied()).chain(names)
    }

    /// The guest runs: files are emptied of what a former run left, and stay. `confined` tells that from now on there is no
    /// way to a file's name, so that sockets stay too, for the next run to replace.
    pub fn begin(&mut self, confined: bool) {
        self.names = None;
        self.files.drain(..).for_each(|late| drop(late.begin()));
        if confined {
            self.sockets.clear();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.files.drain(..).for_each(LateFile::take_back);
        self.sockets.iter().for_each(|path| drop(std::fs::remove_file(path)));
        if let Some(names) = &self.names {
            names.take_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("satori-opened-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_was_made_is_taken_back_and_what_was_there_is_left() {
        let folder = folder("back");
        let (new, old, socket) = (folder.join("new"), folder.join("old"), folder.join("socket"));
        std::fs::write(&old, "before").unwrap();
        std::fs::write(&socket, "").unwrap();
        let mut opened = Opened::default();
        let files = [&new, &old].map(|path| opened.file("--report-file", path).unwrap());
        opened.socket(&socket).unwrap();
        let kept: Vec<_> = opened.descriptors().collect();
        assert!(
            files.iter().all(|file| kept.contains(&file.as_raw_fd())),
            "a sandbox closes what is not kept"
        );
        drop(opened);
        assert!(!new.exists() && !socket.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "before");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_guest_that_begins_keeps_its_files_without_what_was_in_them() {
        for confined in [false, true] {
            let folder = folder(if confined { "kept" } else { "free" });
            let (file, socket) = (folder.join("file"), folder.join("socket"));
            std::fs::write(&file, "before").unwrap();
            std::fs::write(&socket, "").unwrap();
            let mut opened = Opened::default();
            opened.file("--report-file", &file).unwrap();
            opened.socket(&socket).unwrap();
            opened.begin(confined);
            drop(opened);
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "");
            assert_eq!(socket.exists(), confined, "in a sandbox there is no way to it");
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
