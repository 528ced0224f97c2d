//! Files that are opened before the guest runs, and written when it has ended.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

/// The file of `--report-file`, `--crash-dump` or `--svg`, opened before it is known whether there will be one.
#[derive(Debug)]
pub struct LateFile {
    /// What it is written through.
    pub file: File,
    /// Absolute: a sandbox that cannot be had may have left the working directory.
    path: PathBuf,
    /// It was not there before.
    new: bool,
    /// It has a content that ours replaces; a pipe or a terminal has none.
    regular: bool,
}

impl LateFile {
    /// Opens `path`, which `flag` named, and leaves what is in it.
    pub fn open(flag: &str, path: &Path) -> Result<Self> {
        LateFile::open_as(flag, path, 0o666)
    }

    /// As [`open`](LateFile::open), a file that nobody but its owner may read, where it is new.
    pub fn private(flag: &str, path: &Path) -> Result<Self> {
        LateFile::open_as(flag, path, 0o600)
    }

    fn open_as(flag: &str, path: &Path, mode: u32) -> Result<Self> {
        let attempt = || {
            let new = !path.exists();
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).mode(mode).open(path)?;
            let regular = file.metadata()?.is_file();
            Ok(LateFile { file, path: std::path::absolute(path)?, new, regular })
        };
        attempt().map_err(|why: std::io::Error| {
            anyhow!("cannot write {flag} {} ({}): name another place", path.display(), plain(&why))
        })
    }

    /// Empties the file: what a former run left must not be taken for this one's.
    pub fn begin(self) -> File {
        if self.regular {
            let _ = self.file.set_len(0);
        }
        self.file
    }

    /// No guest ran, as for any other refusal: no file is left behind, and none is lost.
    pub fn take_back(self) {
        if self.new {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An error of the host without the number that std puts behind it.
pub fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
