//! The system calls that build the sandbox, as safe functions.

use std::ffi::{CStr, CString};
use std::io;
use std::ptr::null;

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes the files from `first` to `last`. Who owns one must not use it again.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: three integers; files of others are not in the range, as the caller of `enter` says.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })
}

pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: an integer; nothing of ours is shared with another process.
    check(unsafe { libc::unshare(flags) }.into())
}

/// User and group that files are accessed as.
pub fn ids() -> (u32, u32) {
    // SAFETY: both only return a number.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

fn mount(kind: &CStr, target: &CStr, flags: libc::c_ulong, data: &CStr) -> io::Result<()> {
    // SAFETY: four strings that end with NUL and outlive the call.
    check(
        unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) }
            .into(),
    )
}

/// Mounts from here on are nobody else's.
pub fn make_mounts_private() -> io::Result<()> {
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, c"")
}

const BARE: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// An empty file system over `place`.
pub fn mount_empty(place: &str) -> io::Result<()> {
    mount(c"tmpfs", &CString::new(place)?, BARE, c"size=4k,nr_inodes=1,mode=0555")
}

/// The root directory can be changed no more.
pub fn seal_root() -> io::Result<()> {
    mount(c"tmpfs", c"/", BARE | libc::MS_REMOUNT | libc::MS_RDONLY | libc::MS_BIND, c"")
}

pub fn pivot_root_here() -> io::Result<()> {
    // SAFETY: two strings that end with NUL.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })
}

pub fn detach_here() -> io::Result<()> {
    // SAFETY: a string that ends with NUL.
    check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) }.into())
}

pub fn chroot_here() -> io::Result<()> {
    // SAFETY: a string that ends with NUL.
    check(unsafe { libc::chroot(c".".as_ptr()) }.into())
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: integers only, for the options that are used here.
    check(unsafe { libc::prctl(option, argument, 0, 0, 0) }.into())
}

pub fn no_new_privileges() -> io::Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct CapHeader {
    version: u32,
    process: libc::c_int,
}

/// Version 3, whose sets have two words each.
const CAP_VERSION: u32 = 0x2008_0522;
/// More capabilities than the kernel has.
const CAP_END: libc::c_ulong = 64;

/// Empties the ambient, bounding, permitted, effective and inheritable sets.
pub fn drop_capabilities() -> io::Result<()> {
    // A kernel before 4.3 has no ambient set.
    // SAFETY: integers only.
    let _ = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    for capability in 0..CAP_END {
        // Needs CAP_SETPCAP; without it there is nothing to be had by the bounding set either, as
        // no new privileges are granted.
        if prctl(libc::PR_CAPBSET_DROP, capability).is_err() {
            break;
        }
    }
    let header = CapHeader { version: CAP_VERSION, process: 0 };
    let none = [0_u32; 6];
    // SAFETY: a header of version 3, and the two words of each of its three sets.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })
}

/// Sends SIGSYS to `handler`.
pub fn on_sigsys(handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void)) {
    // SAFETY: zero is a valid value of every field.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO promises, and the old action is not wanted.
    unsafe { libc::sigaction(libc::SIGSYS, &raw const action, null::<libc::sigaction>().cast_mut()) };
}

/// Writes to standard error, and ends the process. For signal handlers.
pub fn last_words(text: &[u8], status: libc::c_int) -> ! {
    // SAFETY: the buffer is as long as it says; both calls may be made in a signal handler.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::_exit(status)
    }
}

/// The system call of a SIGSYS.
pub fn trapped_call(info: *const libc::siginfo_t) -> i32 {
    /// `siginfo_t` as SIGSYS fills it (sigaction(2)).
    #[repr(C)]
    struct Sigsys {
        head: [libc::c_int; 4],
        address: *const libc::c_void,
        call: libc::c_int,
    }
    // SAFETY: the kernel gives SIGSYS's handler a siginfo_t of this form.
    unsafe { (*info.cast::<Sigsys>()).call }
}
