//! The "newc" archive that Linux unpacks as its initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Writes entries one after another; times, owners and links are always zero or one, so that
/// the same entries give the same bytes.
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
}

const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

impl Cpio {
    /// An empty archive.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) -> &mut Self {
        self.entry(path, S_IFDIR | 0o755, (0, 0), b"")
    }

    /// Adds a regular file with permissions `mode`.
    pub fn file(&mut self, path: impl AsRef<OsStr>, mode: u32, content: &[u8]) -> &mut Self {
        self.entry(path, S_IFREG | mode, (0, 0), content)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: impl AsRef<OsStr>, target: impl AsRef<OsStr>) -> &mut Self {
        self.entry(path, S_IFLNK | 0o777, (0, 0), target.as_ref().as_bytes())
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> &mut Self {
        self.entry(path, S_IFCHR | mode, (major, minor), b"")
    }

    /// How many bytes it has by now.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Ends the archive.
    pub fn finish(&mut self) -> Vec<u8> {
        self.inode = u32::MAX; // the trailer's becomes 0, as cpio(1) has it
        self.entry("TRAILER!!!", 0, (0, 0), b"");
        std::mem::take(&mut self.bytes)
    }

    /// Adds what `mode` says, its kind among it; `device` is the major and the minor number of one.
    pub fn entry(
        &mut self,
        path: impl AsRef<OsStr>,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> &mut Self {
        let path = path.as_ref().as_bytes();
        self.inode = self.inode.wrapping_add(1);
        let length = u32::try_from(content.len()).expect("an initramfs file is below 4 GiB");
        let name = path.len() as u32 + 1;
        self.bytes.extend(b"070701");
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        for field in [self.inode, mode, 0, 0, 1, 0, length, 0, 0, device.0, device.1, name, 0] {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(path);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_laid_out_as_the_kernel_reads_it() {
        let bytes = Cpio::new().file("init", 0o755, b"abc").finish();
        let header = "070701\
             00000001000081ED00000000000000000000000100000000\
             0000000300000000000000000000000000000000\
             0000000500000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        assert_eq!(&bytes[110..120], b"init\0\0abc\0");
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.windows(11).any(|w| w == b"TRAILER!!!\0"));
    }

    #[test]
    fn the_same_entries_give_the_same_bytes() {
        let make = || Cpio::new().directory("dev").device("dev/console", 0o600, 5, 1).link("a", "b").finish();
        assert_eq!(make(), make());
    }
}
