//! Files that options name and a run reads whole: regular ones, of a size that is known before a byte is read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use satori_machine::KERNEL_MAX;

use crate::late::plain;

/// How many bytes files may have, of what. A file is asked for its size before a byte is read.
#[derive(Debug)]
pub struct Room {
    /// What is left.
    pub bytes: u64,
    /// What it is, in words.
    pub of: &'static str,
}

impl Room {
    /// For a file of its own, of which none is larger than a kernel may be.
    pub fn own() -> Self {
        Room { bytes: KERNEL_MAX, of: "any such file has" }
    }

    /// The content of the file that `flag` names, which takes its room.
    pub fn read(&mut self, flag: &str, path: &Path) -> Result<Vec<u8>> {
        let shown = path.display();
        let cannot = |why: std::io::Error| {
            anyhow!("cannot read {flag} {shown} ({}): name a file that can be read", plain(&why))
        };
        // Also a directory opens; and a fifo or a device would be read for ever.
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            bail!("{flag} {shown} is no regular file: name one");
        }
        let file = File::open(path).map_err(cannot)?;
        let size = file.metadata().map_err(cannot)?.len();
        if size > self.bytes {
            bail!("{flag} {shown} is too large: {size} bytes, more than {} ({})", self.of, self.bytes);
        }
        let mut bytes = Vec::with_capacity(size as usize);
        // It may grow meanwhile.
        file.take(self.bytes).read_to_end(&mut bytes).map_err(cannot)?;
        self.bytes -= bytes.len() as u64;
        Ok(bytes)
    }
}

/// `bytes`, of which the file that `flag` names has some.
pub fn full(flag: &str, bytes: Vec<u8>, path: impl AsRef<Path>) -> Result<Vec<u8>> {
    if bytes.is_empty() {
        bail!("{flag} {} is empty: name another file", path.as_ref().display());
    }
    Ok(bytes)
}

/// The content of the file that `flag` names, which has some.
pub fn read(flag: &str, path: &Path) -> Result<Vec<u8>> {
    full(flag, Room::own().read(flag, path)?, path)
}
