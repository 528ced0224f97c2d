//! The initrds of a guest, joined into the one that Linux reads.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use satori_defs::linux::INITRD_ALIGN;
use satori_memory::{Gpa, GuestMemory};

use crate::Error;

/// A file for the guest, and what it is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// A module's command line, whose first word is the file's name: multiboot kernels are told all of it, others what
    /// follows, and Linux nothing.
    pub cmdline: String,
    /// The file's bytes.
    pub data: Vec<u8>,
    /// Whether only a kernel that takes modules can make something of it.
    pub modules_only: bool,
    /// Bytes of the file's name in the command line.
    pub name: usize,
}

impl Module {
    /// What follows the file's name, if anything does.
    pub(crate) fn arguments(&self) -> Option<&str> {
        let arguments = self.cmdline.get(self.name..)?.trim_start_matches(' ');
        Some(arguments).filter(|arguments| !arguments.is_empty())
    }
}

/// Several initrds. Linux reads them as one, in which each begins at a multiple of 4 bytes
/// (initramfs buffer format); for a kernel that takes modules each is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initrd(Vec<Module>);

impl Initrd {
    /// Reads the files at `paths`; errors once they have more than `max` bytes.
    pub fn open(paths: &[PathBuf], max: u64) -> Result<Self, Error> {
        let mut joined = Self::default();
        for path in paths {
            let before = joined.len().next_multiple_of(INITRD_ALIGN as u64);
            let room = max.saturating_sub(before).saturating_add(1);
            let failed = |e: std::io::Error| Error::ReadInitrd { path: path.clone(), why: e.to_string() };
            let file = File::open(path).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            if size > max.saturating_sub(before) {
                return Err(Error::InitrdTooLarge { bytes: before.saturating_add(size) });
            }
            let mut data = Vec::new();
            file.take(room).read_to_end(&mut data).map_err(failed)?;
            let cmdline = path.display().to_string();
            joined.0.push(Module { name: cmdline.len(), cmdline, data, modules_only: false });
            if joined.len() > max {
                return Err(Error::InitrdTooLarge { bytes: joined.len() });
            }
        }
        Ok(joined)
    }

    /// Files that are in memory.
    pub fn new(parts: Vec<Module>) -> Self {
        Self(parts)
    }

    /// The files, one by one.
    pub fn parts(&self) -> &[Module] {
        &self.0
    }

    /// Each file with the offset at which it begins.
    fn offsets(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.0.iter().scan(0, |end: &mut u64, part| {
            let start = end.next_multiple_of(INITRD_ALIGN as u64);
            *end = start + part.data.len() as u64;
            Some((start, part.data.as_slice()))
        })
    }

    /// Bytes of all together.
    pub fn len(&self) -> u64 {
        self.offsets().last().map_or(0, |(start, data)| start + data.len() as u64)
    }

    /// Whether there is none, or nothing in them.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes all of them, joined, at `at`.
    pub(crate) fn write(&self, memory: &GuestMemory, at: Gpa) -> Result<(), satori_memory::Error> {
        let mut end = 0;
        for (start, data) in self.offsets() {
            memory.write(at.add(end), &[0; INITRD_ALIGN][..(start - end) as usize])?;
            memory.write(at.add(start), data)?;
            end = start + data.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_at_multiples_of_four() {
        let part = |data: &[u8]| Module { data: data.into(), ..Module::default() };
        let three = Initrd::new(vec![part(b"abcde"), part(b""), part(b"f")]);
        let memory = GuestMemory::new(&[satori_memory::Region { start: Gpa(0), len: 0x1000 }]).unwrap();
        memory.write(Gpa(0), &[0xff; 16]).unwrap();
        three.write(&memory, Gpa(1)).unwrap();
        let mut bytes = [0; 11];
        memory.read(Gpa(0), &mut bytes).unwrap();
        assert_eq!((three.len(), &bytes), (9, b"\xffabcde\0\0\0f\xff"));
        assert!(Initrd::default().is_empty());
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
