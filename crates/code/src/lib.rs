//! Code memory of translators, whatever their guests' and their host's instructions are: one piece of memory, mapped twice, writable
//! here and executable there.
//!
//! No page is ever writable and executable through the same address, and nothing has to be mapped
//! or protected once the guest runs, so the sandbox need not permit it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes that the host can back by one large page.
pub const LARGE: usize = 2 << 20;
/// Of linux/mman.h; not every C library's headers have it.
const MADV_COLLAPSE: libc::c_int = 25;

/// The code memory of one vCPU.
#[derive(Debug)]
pub struct Arena {
    writable: NonNull<u8>,
    executable: NonNull<u8>,
    /// Bytes of each mapping, a multiple of [`LARGE`].
    size: usize,
    /// Bit n: the n-th [`LARGE`] bytes hold code up to their end.
    filled: u64,
    /// Bit n: they lie in a large page of the host's, or the host refused one. All bits are set once it has refused.
    moved: u64,
}

// SAFETY: the mappings are this value's own.
unsafe impl Send for Arena {}

/// Addresses for `size` bytes, a multiple of [`LARGE`], with nothing behind them.
fn reserve(size: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let bytes = size + LARGE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let all = placed(unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) })?;
    let before = all.as_ptr().align_offset(LARGE);
    // SAFETY: `before` is less than LARGE, so that `size` bytes follow.
    let aligned = unsafe { all.add(before) };
    for (from, len) in [(all.as_ptr(), before), (aligned.as_ptr().wrapping_add(size), LARGE - before)] {
        if len > 0 {
            // SAFETY: it is a part of the mapping made above, which nothing points to.
            unsafe { libc::munmap(from.cast(), len) };
        }
    }
    Ok(aligned)
}

/// What a call that maps returned.
fn placed(at: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(at.cast::<u8>()) {
        _ if at == libc::MAP_FAILED => Err(io::Error::last_os_error()),
        Some(at) => Ok(at),
        None => Err(io::Error::other("mapped at address 0")),
    }
}

impl Arena {
    /// Maps fresh code memory of `size` bytes, up to 128 MiB. The host allocates a page when it is first touched.
    ///
    /// # Errors
    /// The host refuses memory, or to map it twice.
    pub fn new(size: usize) -> io::Result<Self> {
        let size = size.next_multiple_of(LARGE);
        assert!(size / LARGE <= u64::BITS as usize, "each large page has a bit");
        let (writable, executable) = (reserve(size)?, reserve(size)?);
        let arena = Arena { writable, executable, size, filled: 0, moved: 0 };
        arena.map_anonymous().or_else(|_| arena.map_file())?;
        Ok(arena)
    }

    /// Maps shared memory of no file, both times: perf would look for the code of a memfd in a file of its name.
    fn map_anonymous(&self) -> io::Result<()> {
        self.map_writable(libc::MAP_ANONYMOUS, -1)?;
        let (at, again) = (self.writable.as_ptr().cast(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        let to = self.executable.as_ptr();
        // SAFETY: an old size of 0 maps the same shared pages once more (mremap(2)), in place of what `reserve` mapped.
        placed(unsafe { libc::mremap(at, 0, self.size, again, to) })?;
        // SAFETY: nothing points there yet.
        match unsafe { libc::mprotect(to.cast(), self.size, libc::PROT_READ | libc::PROT_EXEC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The same by a memfd, where mremap maps nothing again: under valgrind, and where a system only looks like Linux.
    fn map_file(&self) -> io::Result<()> {
        // SAFETY: the name is a C string.
        let file = match unsafe { libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: the descriptor was made just now, and nobody else has it.
            new => unsafe { OwnedFd::from_raw_fd(new) },
        };
        // SAFETY: it changes the length of a file that nobody else has.
        if unsafe { libc::ftruncate(file.as_raw_fd(), self.size as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.map_writable(0, file.as_raw_fd())?;
        let (flags, rights) =
            (libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED, libc::PROT_READ | libc::PROT_EXEC);
        let to = self.executable.as_ptr().cast();
        // SAFETY: it takes the place of what `reserve` mapped, `size` bytes that nothing points to.
        placed(unsafe { libc::mmap(to, self.size, rights, flags, file.as_raw_fd(), 0) })?;
        Ok(())
    }

    fn map_writable(&self, flags: libc::c_int, file: libc::c_int) -> io::Result<()> {
        let flags = flags | libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let (at, rights) = (self.writable.as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: it takes the place of what `reserve` mapped, `size` bytes that nothing points to.
        placed(unsafe { libc::mmap(at, self.size, rights, flags, file, 0) })?;
        Ok(())
    }

    /// `offset` was reached, from `before` on: the [`LARGE`] bytes that it left are full.
    #[inline]
    pub fn reached(&mut self, before: usize, offset: usize) {
        if before / LARGE != offset / LARGE {
            self.filled |= 1 << (before / LARGE);
        }
    }

    /// Moves the first filled [`LARGE`] bytes that are not in a large page yet into one: the host's TLB then needs one entry
    /// for them in place of 512. Their addresses stay the same, and other threads may execute them meanwhile.
    pub fn enlarge(&mut self) {
        let piece = (self.filled & !self.moved).trailing_zeros();
        if piece == u64::BITS {
            return;
        }
        self.moved |= 1 << piece;
        let from = self.executable.as_ptr().wrapping_add(piece as usize * LARGE).cast();
        // SAFETY: the range is a part of our mapping; the call changes no content and no right.
        if unsafe { libc::madvise(from, LARGE, MADV_COLLAPSE) } != 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
        {
            // Before Linux 6.1, or where it is configured so, there are none of shared memory.
            self.moved = u64::MAX;
        }
    }

    /// Where code at `offset` is executed.
    #[inline]
    pub fn address(&self, offset: usize) -> u64 {
        self.executable.as_ptr() as u64 + offset as u64
    }

    /// Writes `bytes` at `offset`. Nothing may be executing them.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset.checked_add(bytes.len()).is_some_and(|end| end <= self.size),
            "code leaves its memory"
        );
        // SAFETY: the range was checked, and no reference into the mapping exists.
        unsafe { self.writable.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// `N` bytes at `offset`.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert!(offset.checked_add(N).is_some_and(|end| end <= self.size), "code leaves its memory");
        // SAFETY: the range was checked, and no reference into the mapping exists.
        unsafe { self.writable.as_ptr().add(offset).cast::<[u8; N]>().read() }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for mapping in [self.writable, self.executable] {
            // SAFETY: mapped by `new`; nothing executes or holds a pointer any more.
            unsafe { libc::munmap(mapping.as_ptr().cast(), self.size) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_large_page_stays_where_it_was() {
        let mut arena = Arena::new(2 * LARGE).expect("memory can be mapped");
        assert!(arena.address(0).is_multiple_of(LARGE as u64));
        let code: Vec<u8> = (0..LARGE + 100).map(|place| ((place * 7) >> 3) as u8).collect();
        arena.write(0, &code);
        arena.enlarge();
        assert_eq!(arena.moved, 0, "nothing was full");
        arena.reached(64, LARGE + 100);
        arena.enlarge();
        assert_eq!(arena.moved & 1, 1);
        arena.write(5, &[99]);
        for (place, byte) in code.iter().enumerate() {
            // SAFETY: it is within the mapping, which is readable.
            let there = unsafe { (arena.address(place) as *const u8).read() };
            assert_eq!(there, if place == 5 { 99 } else { *byte }, "{place:#x}");
        }
    }

    #[test]
    fn memory_of_a_file_is_mapped_twice_as_well() {
        let mut arena = Arena::new(2 * LARGE).expect("memory can be mapped");
        arena.map_file().expect("a memfd can be mapped, in place of what was there");
        arena.write(LARGE - 2, &[1, 2, 3, 4]);
        // SAFETY: it is within the mapping, which is readable.
        let there = unsafe { (arena.address(LARGE - 2) as *const [u8; 4]).read_unaligned() };
        assert_eq!((there, arena.read(LARGE - 2)), ([1, 2, 3, 4], [1, 2, 3, 4]));
    }
}
