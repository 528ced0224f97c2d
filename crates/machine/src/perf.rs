//! Names of translated code, for `perf` on the host.
//!
//! perf attributes a sample to code that is in no file by one of two things: a *map*, a text file of
//! addresses and names (tools/perf/Documentation/jit-interface.txt), which cannot say that memory came to hold other code; or a
//! *dump*, binary records with the code itself and the time from when on it is there
//! (tools/perf/Documentation/jitdump-specification.txt), which `perf inject --jit` reads.

mod dump;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use satori_memory::GuestMemory;
use satori_seam::{CodeWatcher, Made, Origin};
use satori_symbols::{Place, Symbols};

use crate::SymbolSource;
use crate::shared::lock;
use dump::Dump;

/// Which of the two files is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfFile {
    /// `perf-PID.map`
    Map,
    /// `jit-PID.dump`
    Dump,
}

/// The begin of the kernel's half of the address space.
const KERNEL: u64 = 1 << 63;

/// Kernel blocks after which names are looked for in the guest's memory: at once, and for a kernel that
/// unpacks itself first some times more. Each look takes a tenth of a second.
const TRIES: [u32; 4] = [1, 256, 4096, 65_536];

/// Writes the names of translated code for perf.
#[derive(Debug)]
pub struct CodeNames {
    path: PathBuf,
    fd: RawFd,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    out: Out,
    source: SymbolSource,
    symbols: Option<Arc<Symbols>>,
    /// Blocks of the kernel's half until now.
    kernel: u32,
}

#[derive(Debug)]
enum Out {
    Map(File),
    Dump(Dump),
    /// Writing failed, and was told.
    Failed,
}

impl CodeNames {
    /// Opens the file that perf looks for, in /tmp. A stale one, of another process that had this
    /// process's number, is replaced; another user's is an error.
    pub fn open(kind: PerfFile, source: SymbolSource) -> io::Result<Self> {
        let pid = std::process::id();
        let path = Path::new("/tmp").join(match kind {
            PerfFile::Map => format!("perf-{pid}.map"),
            PerfFile::Dump => format!("jit-{pid}.dump"),
        });
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Everybody can write to the folder: nothing that somebody put there meanwhile is followed.
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let fd = file.as_raw_fd();
        let out = match kind {
            PerfFile::Map => Out::Map(file),
            PerfFile::Dump => Out::Dump(Dump::begin(file, pid)?),
        };
        let symbols = match &source {
            SymbolSource::Table(symbols) => Some(symbols.clone()),
            SymbolSource::Off | SymbolSource::Auto => None,
        };
        Ok(CodeNames { path, fd, inner: Mutex::new(Inner { out, source, symbols, kernel: 0 }) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing will run: removes the file.
    pub fn take_back(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Its descriptor, which a sandbox has to keep.
    pub fn descriptor(&self) -> RawFd {
        self.fd
    }
}

impl CodeWatcher for CodeNames {
    fn made(&self, made: &Made<'_>) {
        let mut inner = lock(&self.inner);
        let name = match made.origin {
            Origin::Engine(what) => format!("satori: {what}"),
            Origin::Guest { pc, user, memory } => inner.name(pc, user, memory),
        };
        let outcome = match &mut inner.out {
            // One write a line: whoever reads meanwhile sees whole lines.
            Out::Map(file) => {
                file.write_all(format!("{:x} {:x} {name}\n", made.address, made.code.len()).as_bytes())
            }
            Out::Dump(dump) => dump.load(made.address, made.code, &name),
            Out::Failed => Ok(()),
        };
        if let Err(error) = outcome {
            tracing::warn!("--perf: cannot write to {} ({error}): names end here", self.path.display());
            inner.out = Out::Failed;
        }
    }
}

impl Inner {
    /// `guest ADDRESS FUNCTION+OFFSET`.
    fn name(&mut self, rip: u64, user: bool, memory: &GuestMemory) -> String {
        if rip >= KERNEL {
            self.kernel = self.kernel.saturating_add(1);
            if self.symbols.is_none() && TRIES.contains(&self.kernel) {
                self.symbols = self.source.of(memory);
            }
        }
        let place = match &self.symbols {
            Some(symbols) if !user => symbols.resolve(rip),
            _ if user => Place::Low,
            _ if rip >= KERNEL => Place::Kernel,
            None | Some(_) => Place::Low,
        };
        match place {
            Place::Low if !user => format!("guest {rip:x} [early]"),
            place => format!("guest {rip:x} {place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    fn tell(names: &CodeNames) {
        let memory = GuestMemory::new(&[Region { start: satori_memory::Gpa(0), len: 1 << 20 }]).unwrap();
        let guest = |pc, user| Origin::Guest { pc, user, memory: &memory };
        for (address, code, origin) in [
            (0x1000, &[0xc3][..], Origin::Engine("enter")),
            (0x2000, &[0x90, 0xc3], guest(0xffff_ffff_8100_0013, false)),
            (0x3000, &[0x90, 0x90, 0xc3], guest(0x40_1000, true)),
            (0x4000, &[0xc3], guest(0x10_0000, false)),
        ] {
            names.made(&Made { address, code, origin });
        }
    }

    fn table() -> SymbolSource {
        let map = b"ffffffff81000000 T begin\nffffffff81000010 T do_syscall\nffffffff81000080 T end\n";
        SymbolSource::Table(Arc::new(Symbols::parse(map, "System.map").unwrap()))
    }

    /// Both files have the process's number, and the tests one process.
    #[test]
    fn the_files_have_what_perf_reads() {
        let names = CodeNames::open(PerfFile::Map, table()).unwrap();
        tell(&names);
        let text = std::fs::read_to_string(names.path()).unwrap();
        let expected = "1000 1 satori: enter\n2000 2 guest ffffffff81000013 do_syscall+0x3\n\
                        3000 3 guest 401000 [user]\n4000 1 guest 100000 [early]\n";
        assert_eq!(text, expected);
        let again = CodeNames::open(PerfFile::Map, SymbolSource::Off).unwrap();
        assert_eq!(std::fs::read(again.path()).unwrap(), b"", "a stale file is replaced");
        std::fs::remove_file(again.path()).unwrap();

        let names = CodeNames::open(PerfFile::Dump, table()).unwrap();
        tell(&names);
        let bytes = std::fs::read(names.path()).unwrap();
        std::fs::remove_file(names.path()).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((word(0), word(4), word(8), word(12)), (0x4a69_5444, 1, 40, 62), "the head");
        assert_eq!(word(20), std::process::id());
        let (mut at, mut records, mut before) = (40, Vec::new(), 0);
        while at < bytes.len() {
            let size = word(at + 4) as usize;
            let (code, length) = (long(at + 32), long(at + 40) as usize);
            assert_eq!((word(at), long(at + 24)), (0, code), "a load, at the address where it runs");
            assert!(long(at + 8) >= before, "times go up");
            before = long(at + 8);
            assert_eq!(long(at + 48), records.len() as u64, "each has its number");
            let name = std::str::from_utf8(&bytes[at + 56..at + size - length - 1]).unwrap();
            assert_eq!(bytes[at + size - length - 1], 0);
            records.push((code, name.to_owned(), bytes[at + size - length..at + size].to_vec()));
            at += size;
        }
        assert_eq!(at, bytes.len());
        assert_eq!(records.len(), 4);
        let (address, name, code) = &records[1];
        assert_eq!((*address, name.as_str()), (0x2000, "guest ffffffff81000013 do_syscall+0x3"));
        assert_eq!(code[..], [0x90, 0xc3]);
    }
}
