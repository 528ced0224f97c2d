//! A [`Store`] as the qcow2 library wants it.
//!
//! `unsafe` is here the library's word for methods that only it may call: it asks that nobody passes by its own locks
//! on ranges. Ours do nothing that safe code could not do.

use std::fmt::{Display, Formatter};
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

use imago::Storage;
use imago::io_buffers::{IoVector, IoVectorMut};
use imago::storage::PreallocateMode;
use imago::storage::drivers::CommonStorageHelper;

use crate::Store;

/// Zeroes that are written at once where no hole can be made.
const ZEROES: usize = 1 << 20;

/// A file of a chain.
#[derive(Debug)]
pub(crate) struct Layer {
    store: Arc<dyn Store>,
    /// The library's locks on ranges.
    ranges: CommonStorageHelper,
}

impl Layer {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Layer { store, ranges: CommonStorageHelper::default() }
    }

    fn write_zeroes(&self, mut at: u64, len: u64) -> Result<()> {
        let end = at.checked_add(len).ok_or(ErrorKind::InvalidInput)?;
        let zeroes = vec![0; ZEROES.min(usize::try_from(len).unwrap_or(ZEROES))];
        while at < end {
            let count = (end - at).min(zeroes.len() as u64);
            self.store.write(at, &zeroes[..count as usize])?;
            at += count;
        }
        Ok(())
    }
}

impl Display for Layer {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("an image's file")
    }
}

impl Storage for Layer {
    fn size(&self) -> Result<u64> {
        Ok(self.store.len())
    }

    // SAFETY: no memory is at stake; the caller keeps to the library's locks on ranges.
    unsafe fn pure_readv(&self, vector: IoVectorMut<'_>, mut at: u64) -> Result<()> {
        for mut piece in vector.into_inner() {
            self.store.read(at, &mut piece)?;
            at = at.checked_add(piece.len() as u64).ok_or(ErrorKind::InvalidInput)?;
        }
        Ok(())
    }

    // SAFETY: as above.
    unsafe fn pure_writev(&self, vector: IoVector<'_>, mut at: u64) -> Result<()> {
        for piece in vector.into_inner() {
            let end = at.checked_add(piece.len() as u64).ok_or(ErrorKind::InvalidInput)?;
            self.store.write(at, &piece)?;
            at = end;
        }
        Ok(())
    }

    // SAFETY: as above.
    unsafe fn pure_write_zeroes(&self, at: u64, len: u64) -> Result<()> {
        let end = at.checked_add(len).ok_or(ErrorKind::InvalidInput)?;
        if end <= self.store.len() && self.store.punch(at, len).is_ok() {
            return Ok(());
        }
        self.write_zeroes(at, len)
    }

    // SAFETY: as above.
    unsafe fn pure_write_allocated_zeroes(&self, at: u64, len: u64) -> Result<()> {
        self.write_zeroes(at, len)
    }

    // SAFETY: as above.
    unsafe fn pure_discard(&self, at: u64, len: u64) -> Result<()> {
        // A file system that cannot keeps them, which is as good.
        let _ = self.store.punch(at, len);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.store.sync()
    }

    // SAFETY: nothing is kept here that could be lost.
    unsafe fn invalidate_cache(&self) -> Result<()> {
        Ok(())
    }

    fn get_storage_helper(&self) -> &CommonStorageHelper {
        &self.ranges
    }

    fn resize(&self, len: u64, mode: PreallocateMode) -> Result<()> {
        match mode {
            PreallocateMode::None | PreallocateMode::Zero => self.store.set_len(len),
            _ => Err(Error::from(ErrorKind::Unsupported)),
        }
    }
}
