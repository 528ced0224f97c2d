//! Disk images: raw files and qcow2, as bytes that are read, written, flushed, given up and zeroed.
//!
//! An [`Image`] stands on [`Store`]s, the files of the host: one for a raw image; for qcow2 one for the image and each
//! that it is based on. The format is told and never probed, since a guest can write any header into a raw image.
//! What an image's tables say is hostile input: an error, and never more.

mod delayed;
mod direct;
mod error;
mod image;
mod locks;
mod qcow2;
mod requests;
mod storage;
mod store;
pub mod testing;
#[cfg(test)]
mod tests;

pub use direct::DirectFile;
pub use error::Error;
pub use image::{Access, Cache, Format, Image, Source};
pub use requests::{Answer, Request, Requests};
pub use store::{HostFile, Store};
