//! What this host's kernel gives, tried and not believed: the system calls of the command line that need `unsafe`.

pub mod heap;
pub mod io_thread;
pub mod kvm;
pub mod mapped;
pub mod spin;
pub mod tap;
pub mod watch;

use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// Tries userfaultfd(2), for faults in user mode.
pub fn faults() -> std::io::Result<()> {
    // UFFD_USER_MODE_ONLY, which needs no right.
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: the file is closed again without having been told of any memory.
    let got = unsafe { userfaultfd(flags) };
    Ok(got.map(drop)?)
}
