//! The initrds of a guest, joined into the one that Linux reads.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use satori_defs::linux::INITRD_ALIGN;

use crate::Error;

/// Several initrds as one: each begins at a multiple of 4 bytes (initramfs buffer format).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initrd(pub(crate) Vec<u8>);

impl Initrd {
    /// Reads and joins the files at `paths`; errors once they have more than `max` bytes.
    pub fn open(paths: &[PathBuf], max: u64) -> Result<Self, Error> {
        let mut joined = Self::default();
        for path in paths {
            joined.align();
            let before = joined.0.len() as u64;
            let room = max.saturating_sub(before).saturating_add(1);
            let failed = |e: std::io::Error| Error::ReadInitrd { path: path.clone(), why: e.to_string() };
            let file = File::open(path).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            if size > max.saturating_sub(before) {
                return Err(Error::InitrdTooLarge { bytes: before.saturating_add(size) });
            }
            file.take(room).read_to_end(&mut joined.0).map_err(failed)?;
            if joined.0.len() as u64 > max {
                return Err(Error::InitrdTooLarge { bytes: joined.0.len() as u64 });
            }
        }
        Ok(joined)
    }

    /// Joins archives that are in memory.
    pub fn join<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut joined = Self::default();
        for part in parts {
            joined.align();
            joined.0.extend_from_slice(part);
        }
        joined
    }

    /// Bytes of all together.
    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Whether there is none, or nothing in them.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(INITRD_ALIGN), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_at_multiples_of_four() {
        assert_eq!(Initrd::join([&b"abcde"[..], b"", b"f"]).0, b"abcde\0\0\0f");
        assert!(Initrd::join([]).is_empty());
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let error = Initrd::open(&["/nonexistent/initrd.gz".into()], 1 << 20).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/initrd.gz") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn an_endless_file_is_refused() {
        let error = Initrd::open(&["/dev/zero".into()], 1 << 20).unwrap_err();
        assert!(matches!(error, Error::InitrdTooLarge { bytes } if bytes > 1 << 20));
    }
}
