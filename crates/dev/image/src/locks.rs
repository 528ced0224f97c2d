//! Locks on an image's file: one on the whole file by flock(2), and QEMU's, so that neither its programs nor we use an image that the
//! other one changes.
//!
//! QEMU's are shared locks on single bytes, held by the open file: byte 100 + n says that somebody does what n stands for,
//! 200 + n that nobody else may. After taking its own, each looks whether others' contradict them.

use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

/// The first byte of those that tell what is done, and of those that tell what nobody else may do.
const DONE: i64 = 100;
const FORBIDDEN: i64 = 200;

/// What is done with an image (QEMU's `BLK_PERM_..`, by its bit's number).
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

/// Locks a file for as long as it is open: for one who writes alone, or for readers among readers. False if somebody else's locks
/// forbid that.
pub(crate) fn take(file: &File, writes: bool) -> Result<bool> {
    match if writes { file.try_lock() } else { file.try_lock_shared() } {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(why)) => return Err(why),
    }
    let done: &[i64] = if writes { &[READ, WRITE, RESIZE] } else { &[READ] };
    // Neither of us takes what the other reads for granted while it changes.
    let forbidden = [WRITE, RESIZE];
    for byte in done.iter().map(|what| DONE + what).chain(forbidden.map(|what| FORBIDDEN + what)) {
        match ask(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte) {
            Ok(_) => {}
            // File systems without them have no QEMU that relies on them.
            Err(why) if is_unknown(&why) => return Ok(true),
            Err(why) => return Err(why),
        }
    }
    for byte in done.iter().map(|what| FORBIDDEN + what).chain(forbidden.map(|what| DONE + what)) {
        if ask(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte)? != libc::F_UNLCK {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_unknown(why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput)
        || why.raw_os_error() == Some(libc::ENOLCK)
}

/// Asks for one byte's lock by the open file, and tells what is said of its type.
fn ask(file: &File, operation: libc::c_int, kind: libc::c_int, byte: i64) -> Result<libc::c_int> {
    let whence = libc::SEEK_SET as libc::c_short;
    // l_pid is 0, as locks of open files want it.
    let mut lock =
        libc::flock { l_type: kind as libc::c_short, l_whence: whence, l_start: byte, l_len: 1, l_pid: 0 };
    // SAFETY: the file is open, and the kernel reads and writes the structure that `lock` is.
    match unsafe { libc::fcntl(file.as_raw_fd(), operation, &mut lock) } {
        0 => Ok(lock.l_type.into()),
        _ => Err(Error::last_os_error()),
    }
}

/// Takes the locks that QEMU takes, by another open file than ours.
#[cfg(test)]
pub(crate) fn as_qemu(file: &File, writes: bool) {
    let more: &[i64] = if writes { &[DONE + WRITE, DONE + RESIZE] } else { &[] };
    for byte in [DONE + READ, FORBIDDEN + WRITE, FORBIDDEN + RESIZE].iter().chain(more) {
        ask(file, libc::F_OFD_SETLK, libc::F_RDLCK, *byte).unwrap();
    }
}
