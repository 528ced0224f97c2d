//! Code memory: one piece of memory, mapped twice, writable here and executable there.
//!
//! No page is ever writable and executable through the same address, and nothing has to be mapped
//! or protected once the guest runs, so the sandbox need not permit it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes of one vCPU's code memory.
pub const SIZE: usize = 32 << 20;
/// From this offset on stands what seldom runs, so that the rest is dense.
pub const SELDOM: usize = 12 << 20;

/// The code memory of one vCPU.
#[derive(Debug)]
pub struct Arena {
    writable: NonNull<u8>,
    executable: NonNull<u8>,
}

// SAFETY: the mappings are this value's own.
unsafe impl Send for Arena {}

impl Arena {
    /// Maps fresh code memory. The host allocates a page when it is first touched.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the name is a C string; the descriptor is new and nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(c"satori-code".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(file.as_raw_fd(), SIZE as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let map = |rights| {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let at = unsafe {
                libc::mmap(std::ptr::null_mut(), SIZE, rights, libc::MAP_SHARED, file.as_raw_fd(), 0)
            };
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
        };
        let writable = map(libc::PROT_READ | libc::PROT_WRITE)?;
        match map(libc::PROT_READ | libc::PROT_EXEC) {
            Ok(executable) => Ok(Arena { writable, executable }),
            Err(error) => {
                // SAFETY: mapped above, and nothing points to it.
                unsafe { libc::munmap(writable.as_ptr().cast(), SIZE) };
                Err(error)
            }
        }
    }

    /// Where code at `offset` is executed.
    pub fn address(&self, offset: usize) -> u64 {
        self.executable.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`. Nothing may be executing them.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= SIZE), "code leaves its memory");
        // SAFETY: the range was checked, and no reference into the mapping exists.
        unsafe { self.writable.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for mapping in [self.writable, self.executable] {
            // SAFETY: mapped by `new`; nothing executes or holds a pointer any more.
            unsafe { libc::munmap(mapping.as_ptr().cast(), SIZE) };
        }
    }
}
