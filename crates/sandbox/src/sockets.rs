//! What the process that is the host's side of a guest's vsock gives away before it looks at a packet.
//!
//! It connects to Unix sockets of one folder, and where namespaces are permitted that folder is all that there is. Files it opens none.

use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use crate::calls::{Row, When};
use crate::{Error, Measure, Mode, filter, namespaces, sys, text, trap};

/// Gives away what is not needed to connect to sockets in `folder`, which becomes the working directory, but for the open files `keep`.
/// `status` is the exit status after a system call that is not permitted. The process must have one thread only.
///
/// Under [`Mode::Require`] a measure that cannot be had is an error.
pub fn enter_sockets(mode: Mode, folder: &Path, keep: &[RawFd], status: i32) -> Result<Vec<Measure>, Error> {
    let mut measures = Vec::new();
    let there = |why: io::Error| Error(format!("{}: cannot be entered ({why})", folder.display()));
    if mode == Mode::Off {
        std::env::set_current_dir(folder).map_err(there)?;
        return Ok(measures);
    }
    let mut add = |name, outcome: Result<&'static str, String>| {
        if let (Mode::Require, Err(why)) = (mode, &outcome) {
            return Err(Error(format!("{name} for the host's side of --vsock cannot be had ({why})")));
        }
        measures.push(Measure { name, outcome });
        Ok(())
    };
    crate::find_vdso();
    add("closed files", crate::close_files(keep))?;
    std::env::set_current_dir(folder).map_err(there)?;
    add("mount namespace", alone().map(|()| "the folder is all there is").map_err(text))?;
    add("no capabilities", sys::drop_capabilities().map(|()| "none is left").map_err(text))?;
    add("no new privileges", sys::no_new_privileges().map(|()| "set").map_err(text))?;
    trap::install(status, || {});
    add("system call filter", filter::install_rows(CALLS))?;
    Ok(measures)
}

/// Makes the working directory the root of a mount namespace of our own, without a network. Sockets with a name in a file system
/// are reached in spite of that.
fn alone() -> io::Result<()> {
    namespaces::own(libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)?;
    sys::make_mounts_private()?;
    if std::env::current_dir()? == Path::new("/") {
        return Ok(());
    }
    sys::bind_here()?;
    // The mount that was just made lies over the directory that we are in.
    std::env::set_current_dir(std::env::current_dir()?)?;
    sys::pivot_root_here()?;
    sys::detach_here()?;
    std::env::set_current_dir("/")
}

use When::{Always, Masked, OneOf};

/// What it needs, and why.
const CALLS: &[Row] = &[
    (libc::SYS_read, Always, "packets; what the host's sockets say"),
    (libc::SYS_recvfrom, Always, "as read"),
    (libc::SYS_write, Always, "that it is ready; messages"),
    (libc::SYS_sendto, Always, "packets; what the guest says"),
    (libc::SYS_close, Always, "connections that are done with"),
    (
        libc::SYS_fcntl,
        OneOf(1, &[libc::F_GETFD as u64, libc::F_DUPFD_CLOEXEC as u64]),
        "checks before close; a second handle",
    ),
    (libc::SYS_ioctl, OneOf(1, &[libc::FIONBIO]), "sockets that do not wait"),
    (libc::SYS_dup2, Always, "the end of what it says before it serves"),
    (libc::SYS_dup3, Always, "as dup2"),
    (libc::SYS_socket, OneOf(0, &[libc::AF_UNIX as u64]), "connections"),
    (libc::SYS_connect, Always, "whom the guest connects to"),
    (libc::SYS_accept4, Always, "who connects to the guest"),
    (libc::SYS_shutdown, Always, "a connection whose one direction is done"),
    (libc::SYS_poll, Always, "waiting"),
    (libc::SYS_ppoll, Always, "waiting"),
    (libc::SYS_getrandom, Always, "keys of hash tables"),
    (libc::SYS_mmap, Masked(2, libc::PROT_EXEC as u64, 0), "memory"),
    (libc::SYS_mprotect, Masked(2, libc::PROT_EXEC as u64, 0), "memory"),
    (libc::SYS_munmap, Always, "memory"),
    (libc::SYS_mremap, Always, "memory"),
    (libc::SYS_madvise, Always, "memory"),
    (libc::SYS_brk, Always, "memory"),
    (libc::SYS_futex, Always, "locks of the C library"),
    (libc::SYS_sigaltstack, Always, "the end of the process"),
    (libc::SYS_rt_sigreturn, Always, "the end of a signal handler"),
    (libc::SYS_rt_sigprocmask, Always, "the end of the process"),
    (libc::SYS_restart_syscall, Always, "waiting, after SIGSTOP and SIGCONT"),
    (libc::SYS_exit_group, Always, "the end of the process"),
];
