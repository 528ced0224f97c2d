//! FUSE messages as bytes: what is read of requests, and how replies are put together
//! (include/uapi/linux/fuse.h, version 7.31 and later).

use rustix::io::Errno;

use crate::attr::Attr;

/// Of `fuse_in_header`.
pub(crate) const IN_HEADER: usize = 40;
/// Of `fuse_out_header`.
const OUT_HEADER: usize = 16;
/// The longest name of a directory's entry (NAME_MAX).
pub(crate) const NAME_MAX: usize = 255;
/// The longest file name with folders, and a symbolic link's text (PATH_MAX).
pub(crate) const PATH_MAX: usize = 4096;
/// The most bytes of one read or write.
pub(crate) const MAX_IO: u32 = 1 << 20;
/// The longest request: a write, its headers, and the longest extended attribute's name.
pub(crate) const MAX_REQUEST: usize = MAX_IO as usize + 4096;

/// Seconds for which the guest may use what it knows of names and attributes without asking.
const VALID: u64 = 1;

/// What is asked for (`enum fuse_opcode`).
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
}

/// `fuse_in_header`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
}

/// What follows the header of a request, read front to back. What is missing is EINVAL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args<'a>(pub &'a [u8]);

impl<'a> Args<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*head))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*head))
    }

    /// Bytes up to the next NUL, which is taken too.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&b| b == 0).ok_or(Errno::INVAL)?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Ok(text)
    }

    /// One component of a path.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Errno> {
        component(self.string()?)
    }
}

/// A component of a path: no more than a name, and not one that leads anywhere else.
pub(crate) fn component(name: &[u8]) -> Result<&[u8], Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::INVAL),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ if name.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
        _ => Ok(name),
    }
}

/// What follows the header of a request, put together.
#[derive(Debug, Default)]
pub(crate) struct Body(pub Vec<u8>);

impl Body {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A name and the NUL behind it.
    pub(crate) fn name(self, name: impl AsRef<[u8]>) -> Self {
        self.bytes(name.as_ref()).bytes(&[0])
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

impl Header {
    /// The header of a request, and what follows it. The length was read already.
    pub(crate) fn parse(message: &[u8]) -> Result<(Header, Args<'_>), Errno> {
        let mut args = Args(message);
        args.u32()?;
        let opcode = args.u32()?;
        let (unique, node) = (args.u64()?, args.u64()?);
        let (uid, gid, _pid, _extension) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        Ok((Header { opcode, unique, node, uid, gid }, args))
    }
}

/// A reply that grows.
#[derive(Debug, Default)]
pub(crate) struct Reply(Vec<u8>);

impl Reply {
    /// Forgets the former reply, and leaves room for the header.
    pub(crate) fn begin(&mut self) {
        self.0.clear();
        self.0.resize(OUT_HEADER, 0);
    }

    /// The whole message; an error's has nothing but the header.
    pub(crate) fn finish(&mut self, unique: u64, result: Result<(), Errno>) -> &[u8] {
        let error = match result {
            Ok(()) => 0,
            Err(errno) => {
                self.0.truncate(OUT_HEADER);
                -errno.raw_os_error()
            }
        };
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0[4..8].copy_from_slice(&error.to_le_bytes());
        self.0[8..16].copy_from_slice(&unique.to_le_bytes());
        &self.0
    }

    /// What follows the header.
    pub(crate) fn body(&self) -> &[u8] {
        &self.0[OUT_HEADER..]
    }

    /// How long what follows the header is.
    pub(crate) fn len(&self) -> usize {
        self.0.len() - OUT_HEADER
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Room for `count` bytes, which `fill` fills up to what it returns.
    pub(crate) fn fill(
        &mut self,
        count: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let start = self.0.len();
        self.0.resize(start + count, 0);
        let filled = fill(&mut self.0[start..])?;
        self.0.truncate(start + filled);
        Ok(())
    }

    /// `fuse_attr`.
    fn attr(&mut self, attr: &Attr) -> &mut Self {
        for value in [attr.ino, attr.size, attr.blocks, attr.atime.0, attr.mtime.0, attr.ctime.0] {
            self.u64(value);
        }
        let seconds = [attr.atime.1, attr.mtime.1, attr.ctime.1];
        let rest = [attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev, attr.block_size, 0];
        for value in seconds.into_iter().chain(rest) {
            self.u32(value);
        }
        self
    }

    /// `fuse_attr_out`.
    pub(crate) fn attr_out(&mut self, attr: &Attr) -> &mut Self {
        self.u64(VALID).u32(0).u32(0).attr(attr)
    }

    /// `fuse_entry_out`.
    pub(crate) fn entry_out(&mut self, node: u64, attr: &Attr) -> &mut Self {
        // A node's number is never given to another one: all generations are 0.
        self.u64(node).u64(0).u64(VALID).u64(VALID).u32(0).u32(0).attr(attr)
    }

    /// The same for a name that is not there, which the guest may remember as well: compilers and interpreters look for their files in
    /// many folders, in all but one of them in vain.
    pub(crate) fn no_entry_out(&mut self) -> &mut Self {
        self.entry_out(0, &Attr::default())
    }

    /// `fuse_open_out`.
    pub(crate) fn open_out(&mut self, handle: u64, flags: u32) -> &mut Self {
        self.u64(handle).u32(flags).u32(0)
    }

    /// `fuse_dirent`.
    pub(crate) fn dirent(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> &mut Self {
        self.u64(ino).u64(next).u32(name.len() as u32).u32(kind).bytes(name);
        let padding = name.len().next_multiple_of(8) - name.len();
        self.bytes(&[0; 8][..padding])
    }
}

/// What a `fuse_dirent` of this name takes; with `plus` the `fuse_entry_out` before it.
pub(crate) fn dirent_length(name: &[u8], plus: bool) -> usize {
    24 + name.len().next_multiple_of(8) + if plus { 128 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_component() {
        for (text, expected) in [
            (&b"a\0"[..], Ok(&b"a"[..])),
            (b"..\0", Err(Errno::INVAL)),
            (b".\0", Err(Errno::INVAL)),
            (b"\0", Err(Errno::INVAL)),
            (b"a/b\0", Err(Errno::INVAL)),
            (b"..a\0", Ok(b"..a")),
            (b"endless", Err(Errno::INVAL)),
        ] {
            assert_eq!(Args(text).name(), expected, "{text:?}");
        }
        let long = [&[b'a'; NAME_MAX + 1][..], &[0]].concat();
        assert_eq!(Args(&long).name(), Err(Errno::NAMETOOLONG));
        assert!(Args(&long[1..]).name().is_ok());
    }

    #[test]
    fn replies_have_the_kernels_lengths() {
        let mut reply = Reply::default();
        let length = |reply: &Reply| reply.len();
        reply.begin();
        assert_eq!(length(reply.attr_out(&Attr::default())), 104);
        reply.begin();
        assert_eq!(length(reply.entry_out(1, &Attr::default())), 128);
        reply.begin();
        assert_eq!(length(reply.dirent(1, 2, 3, b"abc")), dirent_length(b"abc", false));
        assert_eq!(
            reply.finish(7, Err(Errno::NOENT)),
            [16, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
