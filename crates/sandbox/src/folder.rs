//! What the process that serves one of the host's folders gives away before it reads a request.
//!
//! It keeps the caller's user, or the guest would see other owners than the host shows: in a user namespace all
//! users but one are nobody. So without privileges Landlock confines it to the folder, and with them
//! a mount namespace does too, in which there is nothing else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use libc::c_long;

use crate::{Error, Measure, Mode, filter, sys, text, trap};

/// What serving a folder needs.
#[derive(Clone, Copy, Debug)]
pub struct Folder<'a> {
    /// The folder.
    pub root: &'a Path,
    /// Open files that are kept, beside standard input, output and error.
    pub keep: &'a [RawFd],
    /// Whether the folder itself is changed.
    pub writes: bool,
    /// Exit status after a system call that is not permitted.
    pub status: i32,
}

/// Gives away what `folder` does not name, and returns the folder as an open directory (O_PATH).
///
/// Under [`Mode::Require`] a measure that cannot be had is an error; of namespaces and Landlock one suffices.
pub fn enter_folder(mode: Mode, folder: &Folder<'_>) -> io::Result<(OwnedFd, Result<Vec<Measure>, Error>)> {
    let mut root = sys::open_directory(folder.root)?;
    if mode == Mode::Off {
        return Ok((root, Ok(Vec::new())));
    }
    let mut measures = Vec::new();
    let keep = [folder.keep, &[root.as_raw_fd()]].concat();
    crate::find_vdso();
    measures.push(Measure { name: "closed files", outcome: crate::close_files(&keep) });
    let spaces = namespaces(&root, folder.root == Path::new("/"));
    if let Ok(true) = spaces {
        // The handle is on a mount that is no more.
        root = sys::open_directory(Path::new("/"))?;
    }
    let landlock = sys::landlock(&root, folder.writes);
    let confined = spaces.is_ok() || landlock.is_ok();
    let spaces = spaces.map(|_| "the folder is all there is").map_err(text);
    let landlock = landlock.map(|()| "the folder is all that is opened").map_err(text);
    let why = [&spaces, &landlock].map(|one| one.as_ref().err().cloned().unwrap_or_default()).join("; ");
    measures.push(Measure { name: "mount namespace", outcome: spaces });
    measures.push(Measure { name: "Landlock", outcome: landlock });
    if mode == Mode::Require && !confined {
        let missing =
            format!("neither a mount namespace nor Landlock for the file server can be had ({why})");
        return Ok((root, Err(Error(missing))));
    }
    let outcome =
        sys::keep_capabilities(|had| kept(had, folder.writes)).map(|()| "those of files alone").map_err(text);
    measures.push(Measure { name: "capabilities", outcome });
    measures.push(Measure {
        name: "no new privileges",
        outcome: sys::no_new_privileges().map(|()| "set").map_err(text),
    });
    trap::install(folder.status, || {});
    let calls: Vec<c_long> =
        SERVING.iter().chain(CHANGES.iter().filter(|_| folder.writes)).map(|&(call, _)| call).collect();
    measures.push(Measure { name: "system call filter", outcome: filter::install_list(&calls) });
    let failed = measures.iter().find(|m| m.outcome.is_err() && !EITHER.contains(&m.name));
    let result = match failed {
        Some(Measure { name, outcome: Err(why) }) if mode == Mode::Require => {
            Err(Error(format!("{name} for the file server cannot be had ({why})")))
        }
        _ => Ok(measures),
    };
    Ok((root, result))
}

/// The measures of which one suffices.
const EITHER: &[&str] = &["mount namespace", "Landlock"];

/// CAP_DAC_OVERRIDE.
const OVERRIDING: u64 = 1 << 1;
/// CAP_DAC_READ_SEARCH.
const READING: u64 = 1 << 2;
/// Also CAP_CHOWN, CAP_FOWNER, CAP_FSETID.
const CHANGING: u64 = READING | OVERRIDING | 1 << 0 | 1 << 3 | 1 << 4;

/// What is kept of the capabilities that there are: what root of old has for files, if the folder is written to, or to read them. Root of
/// a container often has the right to override permissions and not that which is for reading alone.
fn kept(had: u64, writes: bool) -> u64 {
    match () {
        () if writes => CHANGING,
        () if had & READING != 0 => READING,
        () => OVERRIDING,
    }
}

/// Makes the folder the root directory of a mount namespace of our own, without a network.
///
/// Tells whether the root directory is another one now.
fn namespaces(root: &OwnedFd, whole: bool) -> io::Result<bool> {
    sys::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)?;
    sys::make_mounts_private()?;
    if whole {
        return Ok(false);
    }
    sys::change_directory(root)?;
    sys::bind_here()?;
    // The mount that was just made lies over the directory that the handle names.
    std::env::set_current_dir(std::env::current_dir()?)?;
    sys::pivot_root_here()?;
    sys::detach_here()?;
    std::env::set_current_dir("/")?;
    Ok(true)
}

/// What serving needs, and why.
const SERVING: &[(c_long, &str)] = &[
    (libc::SYS_read, "requests"),
    (libc::SYS_recvfrom, "requests"),
    (libc::SYS_write, "that it is ready; messages"),
    (libc::SYS_sendto, "replies"),
    (libc::SYS_close, "files that are done with"),
    (libc::SYS_fcntl, "checks before close"),
    (libc::SYS_dup2, "the end of what it says before it serves"),
    (libc::SYS_dup3, "as dup2"),
    (libc::SYS_openat2, "names"),
    (libc::SYS_openat, "a file that is known, through /proc/self/fd"),
    (libc::SYS_statx, "attributes"),
    (libc::SYS_fstat, "the size of a changed content"),
    (libc::SYS_newfstatat, "as fstat"),
    (libc::SYS_fstatfs, "the kind of a file system; its size"),
    (libc::SYS_readlinkat, "symbolic links"),
    (libc::SYS_getdents64, "directories"),
    (libc::SYS_pread64, "content"),
    (libc::SYS_pwrite64, "content"),
    (libc::SYS_lseek, "holes"),
    (libc::SYS_fgetxattr, "extended attributes"),
    (libc::SYS_flistxattr, "extended attributes"),
    (libc::SYS_memfd_create, "changed content"),
    (libc::SYS_ftruncate, "changed content"),
    (libc::SYS_fallocate, "changed content"),
    (libc::SYS_clock_gettime, "times of changes"),
    (libc::SYS_getrandom, "keys of hash tables"),
    (libc::SYS_mmap, "memory"),
    (libc::SYS_munmap, "memory"),
    (libc::SYS_mremap, "memory"),
    (libc::SYS_mprotect, "memory"),
    (libc::SYS_madvise, "memory"),
    (libc::SYS_brk, "memory"),
    (libc::SYS_futex, "locks of the C library"),
    (libc::SYS_prctl, "where rustix finds the vDSO"),
    (libc::SYS_sigaltstack, "the end of the process"),
    (libc::SYS_rt_sigreturn, "the end of a signal handler"),
    (libc::SYS_rt_sigprocmask, "the end of the process"),
    (libc::SYS_restart_syscall, "requests, after SIGSTOP and SIGCONT"),
    (libc::SYS_exit_group, "the end of the process"),
];

/// What changing the folder needs beside.
const CHANGES: &[(c_long, &str)] = &[
    (libc::SYS_mkdirat, "directories"),
    (libc::SYS_mknodat, "files, pipes and sockets"),
    (libc::SYS_symlinkat, "symbolic links"),
    (libc::SYS_linkat, "hard links"),
    (libc::SYS_unlinkat, "names that go"),
    (libc::SYS_renameat2, "names that change"),
    (libc::SYS_fchmodat, "permissions"),
    (libc::SYS_fchmodat2, "permissions"),
    (libc::SYS_fchownat, "owners"),
    (libc::SYS_utimensat, "times"),
    (libc::SYS_fsetxattr, "extended attributes"),
    (libc::SYS_fremovexattr, "extended attributes"),
    (libc::SYS_fsync, "what is to stay"),
    (libc::SYS_fdatasync, "what is to stay"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_reads_keeps_one_right_to_read_everything() {
        assert_eq!(kept(u64::MAX, false), READING);
        assert_eq!(kept(!READING, false), OVERRIDING, "root of a container");
        assert_eq!(kept(0, true), kept(u64::MAX, true));
    }
}
