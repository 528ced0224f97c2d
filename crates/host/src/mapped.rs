//! Files that are looked at and not read.

use std::fs::File;
use std::io;

/// A file's bytes as they are mapped.
pub struct Mapped(memmap2::Mmap);

impl Mapped {
    /// Maps `file`, which nobody shortens meanwhile: who reads where bytes were is killed by SIGBUS. What is kept for this user
    /// alone, and replaced only as a whole, is such a file.
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: of a file that somebody else writes nobody relies on what is read; that it may end is said above.
        unsafe { memmap2::MmapOptions::new().populate().map_copy_read_only(file) }.map(Mapped)
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
