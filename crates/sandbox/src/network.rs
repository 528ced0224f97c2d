//! What the process that is a guest's user network gives away before it looks at a frame.
//!
//! It keeps the host's network, which it is there for, and may make sockets of the Internet's kinds and no others. Files it
//! has none: neither names to open them by, nor calls.

use std::os::fd::RawFd;

use crate::calls::{Row, When};
use crate::{Error, Measure, Mode, filter, namespaces, sys, text, trap};

/// Gives away what a user network does not need, but for the open files `keep`. `status` is the exit status after a
/// system call that is not permitted. The process must have one thread only.
///
/// Under [`Mode::Require`] a measure that cannot be had is an error.
pub fn enter_network(mode: Mode, keep: &[RawFd], status: i32) -> Result<Vec<Measure>, Error> {
    let mut measures = Vec::new();
    if mode == Mode::Off {
        return Ok(measures);
    }
    let mut add = |name, outcome: Result<&'static str, String>| {
        if let (Mode::Require, Err(why)) = (mode, &outcome) {
            return Err(Error(format!("{name} for the user network cannot be had ({why})")));
        }
        measures.push(Measure { name, outcome });
        Ok(())
    };
    crate::find_vdso();
    add("closed files", crate::close_files(keep))?;
    let (name, outcome) = namespaces::enter_without_network();
    add(name, outcome)?;
    add("no capabilities", sys::drop_capabilities().map(|()| "none is left").map_err(text))?;
    add("no new privileges", sys::no_new_privileges().map(|()| "set").map_err(text))?;
    trap::install(status, || {});
    add("system call filter", filter::install_rows(CALLS))?;
    Ok(measures)
}

/// AF_INET and AF_INET6: no Unix sockets, no packets of any kind, nothing of the kernel's.
const FAMILIES: &[u64] = &[libc::AF_INET as u64, libc::AF_INET6 as u64];

const LEVELS: &[u64] = &[libc::SOL_SOCKET as u64, libc::IPPROTO_TCP as u64];

use When::{Always, Masked, OneOf};

/// What it needs, and why.
const CALLS: &[Row] = &[
    (libc::SYS_read, Always, "frames"),
    (libc::SYS_recvfrom, Always, "frames; what comes from the network"),
    (libc::SYS_write, Always, "that it is ready; messages"),
    (libc::SYS_sendto, Always, "frames; what goes to the network"),
    (libc::SYS_close, Always, "connections that are done with"),
    (libc::SYS_fcntl, OneOf(1, &[libc::F_GETFD as u64, libc::F_GETFL as u64]), "checks before close"),
    (libc::SYS_ioctl, OneOf(1, &[libc::FIONBIO]), "sockets that do not wait"),
    (libc::SYS_dup2, Always, "the end of what it says before it serves"),
    (libc::SYS_dup3, Always, "as dup2"),
    (libc::SYS_socket, OneOf(0, FAMILIES), "connections, datagrams, pings"),
    (libc::SYS_connect, Always, "whom the guest speaks with"),
    (libc::SYS_accept4, Always, "who comes by a forward"),
    (libc::SYS_shutdown, Always, "a connection whose one direction is done"),
    (libc::SYS_getsockopt, Always, "what became of a connection"),
    (libc::SYS_setsockopt, OneOf(1, LEVELS), "how a connection ends; TCP_NODELAY"),
    (libc::SYS_poll, Always, "waiting"),
    (libc::SYS_ppoll, Always, "waiting"),
    (libc::SYS_clock_gettime, Always, "what is to be sent again"),
    (libc::SYS_getrandom, Always, "where a connection's numbers begin"),
    (libc::SYS_mmap, Masked(2, libc::PROT_EXEC as u64, 0), "memory"),
    (libc::SYS_mprotect, Masked(2, libc::PROT_EXEC as u64, 0), "memory"),
    (libc::SYS_munmap, Always, "memory"),
    (libc::SYS_mremap, Always, "memory"),
    (libc::SYS_madvise, Always, "memory"),
    (libc::SYS_brk, Always, "memory"),
    (libc::SYS_futex, Always, "locks of the C library"),
    (libc::SYS_prctl, Always, "where rustix finds the vDSO"),
    (libc::SYS_sigaltstack, Always, "the end of the process"),
    (libc::SYS_rt_sigreturn, Always, "the end of a signal handler"),
    (libc::SYS_rt_sigprocmask, Always, "the end of the process"),
    (libc::SYS_restart_syscall, Always, "waiting, after SIGSTOP and SIGCONT"),
    (libc::SYS_exit_group, Always, "the end of the process"),
];
