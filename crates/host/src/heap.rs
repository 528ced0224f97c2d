//! The C library's heap, as a monitor uses it.

/// One heap for all threads, which grows by megabytes. Of glibc's own heaps for threads each grows by a page and a system call at a time: a
/// vCPU that translates a boot made 5,700 of them, through the sandbox's filter. To be called before there are threads.
pub fn one_for_all() {
    // Whoever sets one of the last three has to set all, as none adapts itself any more then. What the threshold is for are images of
    // kernels and disks.
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TOP_PAD, 2 << 20),
        (libc::M_TRIM_THRESHOLD, 16 << 20),
        (libc::M_MMAP_THRESHOLD, 4 << 20),
    ] {
        // SAFETY: sets a number of the allocator's.
        unsafe { libc::mallopt(parameter, value) };
    }
}
