//! Code memory: one piece of memory, mapped twice, writable here and executable there.
//!
//! No page is ever writable and executable through the same address, and nothing has to be mapped
//! or protected once the guest runs, so the sandbox need not permit it.

use std::io;
use std::ptr::NonNull;

/// Bytes of one vCPU's code memory.
pub const SIZE: usize = 96 << 20;
/// From this offset on stands what seldom runs, so that the rest is dense.
pub const SELDOM: usize = 36 << 20;
/// Where the linear addresses of pages stand, behind all code: stores there are none to lines that are executed.
pub const CELLS: usize = SIZE;
/// As many as there are pages in 4 GiB.
pub const PAGES: usize = 1 << 20;
/// Bytes of the mapping.
const MAPPED: usize = CELLS + 8 * PAGES;

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
        let placed = |at: *mut libc::c_void| match NonNull::new(at.cast::<u8>()) {
            _ if at == libc::MAP_FAILED => Err(io::Error::last_os_error()),
            Some(at) => Ok(at),
            None => Err(io::Error::other("mapped at address 0")),
        };
        let (rights, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // Not a memfd: perf would look for the code in a file of that name.
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let writable = placed(unsafe { libc::mmap(std::ptr::null_mut(), MAPPED, rights, flags, -1, 0) })?;
        // SAFETY: mapped just now. An old size of 0 maps the same shared pages once more (mremap(2)).
        let again = unsafe { libc::mremap(writable.as_ptr().cast(), 0, MAPPED, libc::MREMAP_MAYMOVE) };
        let executable = match placed(again) {
            Ok(executable) => executable,
            Err(error) => {
                // SAFETY: mapped above, and nothing points to it.
                unsafe { libc::munmap(writable.as_ptr().cast(), MAPPED) };
                return Err(error);
            }
        };
        let arena = Arena { writable, executable };
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: nothing points there yet.
        match unsafe { libc::mprotect(arena.executable.as_ptr().cast(), MAPPED, rights) } {
            0 => Ok(arena),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where code at `offset` is executed.
    pub fn address(&self, offset: usize) -> u64 {
        self.executable.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`. Nothing may be executing them.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= MAPPED), "code leaves its memory");
        // SAFETY: the range was checked, and no reference into the mapping exists.
        unsafe { self.writable.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Bytes at `offset`.
    #[cfg(test)]
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= MAPPED, "code leaves its memory");
        // SAFETY: the range was checked, and no reference into the mapping exists.
        unsafe { std::slice::from_raw_parts(self.writable.as_ptr().add(offset), length).to_vec() }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for mapping in [self.writable, self.executable] {
            // SAFETY: mapped by `new`; nothing executes or holds a pointer any more.
            unsafe { libc::munmap(mapping.as_ptr().cast(), MAPPED) };
        }
    }
}
