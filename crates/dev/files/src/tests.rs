//! The server's requests as a guest's kernel makes them, compared with what the host does with a folder itself.

pub(crate) mod client;
mod hostile;
pub(crate) mod model;
mod saved;
mod semantics;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new folder, removed at the end.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("satori-files-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }

    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
