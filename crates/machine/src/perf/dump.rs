//! The dump: perf's jitdump, version 1.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

use rustix::time::{ClockId, clock_gettime};

/// "JiTD" in this machine's byte order.
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
/// Bytes of the head.
const HEAD: u32 = 40;
/// EM_X86_64 of elf.h.
const MACHINE: u32 = 62;
/// JIT_CODE_LOAD, and the bytes of one before its name.
const LOAD: u32 = 0;
const LOAD_HEAD: u32 = 56;

/// A dump that is being written.
#[derive(Debug)]
pub(super) struct Dump {
    file: File,
    pid: u32,
    count: u64,
}

impl Dump {
    /// Writes the head, and maps the file executable once, from which `perf record` learns of it.
    pub(super) fn begin(mut file: File, pid: u32) -> io::Result<Self> {
        let mut head = Vec::new();
        for word in [MAGIC, VERSION, HEAD, MACHINE, 0, pid] {
            head.extend(word.to_le_bytes());
        }
        head.extend(now().to_le_bytes());
        // Flags: times are not the TSC's.
        head.extend(0u64.to_le_bytes());
        file.write_all(&head)?;
        mark(&file)?;
        Ok(Dump { file, pid, count: 0 })
    }

    /// Writes down that `code` is at `address` from now on.
    pub(super) fn load(&mut self, address: u64, code: &[u8], name: &str) -> io::Result<()> {
        let size = LOAD_HEAD as usize + name.len() + 1 + code.len();
        let mut record = Vec::with_capacity(size);
        record.extend(LOAD.to_le_bytes());
        record.extend((size as u32).to_le_bytes());
        record.extend(now().to_le_bytes());
        record.extend(self.pid.to_le_bytes());
        record.extend((rustix::thread::gettid().as_raw_nonzero().get() as u32).to_le_bytes());
        for word in [address, address, code.len() as u64, self.count] {
            record.extend(word.to_le_bytes());
        }
        record.extend(name.as_bytes());
        record.push(0);
        record.extend(code);
        self.count += 1;
        self.file.write_all(&record)
    }
}

/// CLOCK_MONOTONIC in nanoseconds, which `perf record -k mono` stamps samples with.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Maps the first page of `file` readable and executable, until the process ends.
fn mark(file: &File) -> io::Result<()> {
    // SAFETY: a new mapping at an address that the kernel chooses, which nobody uses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            HEAD as usize,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}
