//! What is known of a file beside its content.

use rustix::fs::{Statx, StatxTimestamp};
use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds.
pub(crate) type Time = (u64, u32);

/// The type's bits of a mode, and the types.
pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFSOCK: u32 = 0o140_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFBLK: u32 = 0o060_000;
pub(crate) const S_IFCHR: u32 = 0o020_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFIFO: u32 = 0o010_000;

/// `fuse_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attr {
    pub ino: u64,
    pub size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    /// Type and permissions.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub block_size: u32,
}

impl Attr {
    /// What statx(2) tells, with a number that is unique within the folder.
    pub(crate) fn new(stat: &Statx, ino: u64) -> Attr {
        let time = |t: StatxTimestamp| (t.tv_sec as u64, t.tv_nsec);
        Attr {
            ino,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            mode: stat.stx_mode.into(),
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: encoded(stat.stx_rdev_major, stat.stx_rdev_minor),
            block_size: stat.stx_blksize,
        }
    }

    pub(crate) fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
}

/// A device's number as the kernel's new_encode_dev has it.
pub(crate) fn encoded(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// `d_type` of a mode.
pub(crate) fn dirent_kind(mode: u32) -> u32 {
    (mode & S_IFMT) >> 12
}

/// Now, by the clock that file systems use.
pub(crate) fn now() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    (now.tv_sec as u64, now.tv_nsec as u32)
}
