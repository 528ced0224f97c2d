//! Why an image cannot be had; the text says what to do next.

use satori_defs::virtio::block::SECTOR;

/// Why an image cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host refused something.
    #[error("cannot read {name}: {why}")]
    Host {
        /// The image.
        name: String,
        /// What the host said.
        why: std::io::Error,
    },
    /// Its length is no disk's.
    #[error(
        "{name} has {bytes} bytes, which are no whole sectors of {SECTOR}: name an image, or make it as long as a disk \
         by truncate(1)"
    )]
    Length {
        /// The image.
        name: String,
        /// How long it is.
        bytes: u64,
    },
    /// Somebody else has it.
    #[error("{0} is in use, by another process or twice in this run: end one, or use 'snapshot' in both")]
    Locked(String),
    /// It is no qcow2 image that can be used.
    #[error(
        "{name} cannot be used as qcow2 ({why}): 'qemu-img check' tells more, and without 'format=qcow2' it is read as raw"
    )]
    Qcow2 {
        /// The image.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// It names its data in another file.
    #[error("{0} has its data in another file: 'qemu-img convert -O qcow2' makes one image of the two")]
    DataFile(String),
    /// What it is based on cannot be had.
    #[error("{name} is based on {backing}, {why}")]
    Backing {
        /// The image.
        name: String,
        /// What it names.
        backing: String,
        /// What is wrong with that, and what to do.
        why: String,
    },
}
