//! Code memory: one piece of memory, mapped twice, writable here and executable there.
//!
//! Nothing has to be mapped or protected once the guest runs, so the sandbox need not permit it.

use std::io;
use std::ptr::NonNull;

/// Bytes of a vCPU's code memory.
pub(crate) const SIZE: usize = 32 << 20;

/// The code memory of one vCPU.
#[derive(Debug)]
pub(crate) struct Arena {
    writable: NonNull<u8>,
    executable: NonNull<u8>,
}

// SAFETY: the mappings are this value's own.
unsafe impl Send for Arena {}

/// What a call that maps returned.
fn placed(at: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(at.cast::<u8>()) {
        _ if at == libc::MAP_FAILED => Err(io::Error::last_os_error()),
        Some(at) => Ok(at),
        None => Err(io::Error::other("mapped at address 0")),
    }
}

impl Arena {
    /// Maps fresh code memory. The host allocates a page when it is first touched.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let writable = placed(unsafe { libc::mmap(std::ptr::null_mut(), SIZE, rights, flags, -1, 0) })?;
        // SAFETY: an old size of 0 maps the same shared pages once more (mremap(2)).
        let again = unsafe { libc::mremap(writable.as_ptr().cast(), 0, SIZE, libc::MREMAP_MAYMOVE) };
        let executable = match placed(again) {
            Ok(executable) => executable,
            Err(error) => {
                // SAFETY: mapped above, and nothing points there.
                unsafe { libc::munmap(writable.as_ptr().cast(), SIZE) };
                return Err(error);
            }
        };
        let arena = Arena { writable, executable };
        let rights = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: nothing points there yet.
        match unsafe { libc::mprotect(executable.as_ptr().cast(), SIZE, rights) } {
            0 => Ok(arena),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Where code at `offset` is executed.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.executable.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`. Nothing may be executing them.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
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
