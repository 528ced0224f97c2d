//! The expensive half of an asymmetric memory barrier.

use std::sync::OnceLock;

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes two integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0) == 0 }
}

/// Where membarrier is missing: revoking a page's rights makes the kernel interrupt every
/// processor that runs a thread of this process, which serialises them.
struct RevokedPage(*mut libc::c_void);

// SAFETY: the pointer is only ever given to mprotect, which any thread may call.
unsafe impl Send for RevokedPage {}
// SAFETY: as above.
unsafe impl Sync for RevokedPage {}

impl RevokedPage {
    fn new() -> Self {
        // SAFETY: an anonymous mapping of one page at an address the kernel chooses.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED, "cannot map one page");
        RevokedPage(page)
    }

    fn barrier(&self) {
        // SAFETY: the page is ours and is touched here only, between the two calls.
        unsafe {
            libc::mprotect(self.0, 4096, libc::PROT_READ | libc::PROT_WRITE);
            self.0.cast::<u8>().write_volatile(1);
            libc::mprotect(self.0, 4096, libc::PROT_NONE);
        }
    }
}

/// Makes every thread of this process that runs now pass a full memory barrier.
///
/// Lets the other side of a store-then-load handshake do with a compiler barrier. Costs some
/// microseconds.
pub fn heavy_barrier() {
    static FALLBACK: OnceLock<Option<RevokedPage>> = OnceLock::new();
    let fallback = FALLBACK
        .get_or_init(|| (!membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)).then(RevokedPage::new));
    match fallback {
        None => {
            membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        }
        Some(page) => page.barrier(),
    }
}
