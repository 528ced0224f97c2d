//! The system calls that build the sandbox, as safe functions.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null;

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes the files from `first` to `last`. Who owns one must not use it again.
pub(crate) fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: three integers; files of others are not in the range, as the caller of `enter` says.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: an integer; nothing of ours is shared with another process.
    check(unsafe { libc::unshare(flags) }.into())
}

/// User and group that files are accessed as.
pub(crate) fn ids() -> (u32, u32) {
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
pub(crate) fn make_mounts_private() -> io::Result<()> {
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, c"")
}

const BARE: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

/// An empty file system over `place`.
pub(crate) fn mount_empty(place: &str) -> io::Result<()> {
    mount(c"tmpfs", &CString::new(place)?, BARE, c"size=4k,nr_inodes=1,mode=0555")
}

/// The root directory can be changed no more.
pub(crate) fn seal_root() -> io::Result<()> {
    mount(c"tmpfs", c"/", BARE | libc::MS_REMOUNT | libc::MS_RDONLY | libc::MS_BIND, c"")
}

pub(crate) fn pivot_root_here() -> io::Result<()> {
    // SAFETY: two strings that end with NUL.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })
}

pub(crate) fn detach_here() -> io::Result<()> {
    // SAFETY: a string that ends with NUL.
    check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) }.into())
}

pub(crate) fn chroot_here() -> io::Result<()> {
    // SAFETY: a string that ends with NUL.
    check(unsafe { libc::chroot(c".".as_ptr()) }.into())
}

fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: integers only, for the options that are used here.
    check(unsafe { libc::prctl(option, argument, 0, 0, 0) }.into())
}

pub(crate) fn no_new_privileges() -> io::Result<()> {
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
pub(crate) fn drop_capabilities() -> io::Result<()> {
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

/// Drops all capabilities but those that `kept` tells of what there is, a bit each, as far as they are there at all.
pub(crate) fn keep_capabilities(kept: impl FnOnce(u64) -> u64) -> io::Result<()> {
    let header = CapHeader { version: CAP_VERSION, process: 0 };
    // The low words of effective, permitted and inheritable, then the high ones.
    let mut sets = [0_u32; 6];
    // SAFETY: a header of version 3, and room for the two words of each of its three sets.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) })?;
    let kept = kept(u64::from(sets[1]) | u64::from(sets[4]) << 32);
    // SAFETY: integers only.
    let _ = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    for capability in (0..CAP_END).filter(|capability| kept >> capability & 1 == 0) {
        // As in `drop_capabilities`.
        if prctl(libc::PR_CAPBSET_DROP, capability).is_err() {
            break;
        }
    }
    let (low, high) = (sets[1] & kept as u32, sets[4] & (kept >> 32) as u32);
    let sets = [low, low, 0, high, high, 0];
    // SAFETY: as above, to read from.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) })
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    check(result)?;
    // SAFETY: the kernel has just given us this number, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as libc::c_int) })
}

/// A handle on a directory, for names within it.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a string that ends with NUL.
    owned(unsafe { libc::open(path.as_ptr(), flags) }.into())
}

pub(crate) fn change_directory(to: &OwnedFd) -> io::Result<()> {
    // SAFETY: an open directory.
    check(unsafe { libc::fchdir(to.as_raw_fd()) }.into())
}

/// The working directory becomes a mount, with all that is mounted beneath it.
pub(crate) fn bind_here() -> io::Result<()> {
    // SAFETY: two strings that end with NUL; the others are not looked at.
    check(
        unsafe { libc::mount(c".".as_ptr(), c".".as_ptr(), null(), libc::MS_BIND | libc::MS_REC, null()) }
            .into(),
    )
}

/// `struct landlock_ruleset_attr` as of Landlock's first version.
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    allowed_access: u64,
    parent_fd: libc::c_int,
}

const LANDLOCK_CREATE_RULESET_VERSION: libc::c_int = 1;
const LANDLOCK_RULE_PATH_BENEATH: libc::c_int = 1;
/// LANDLOCK_ACCESS_FS_READ_FILE and READ_DIR.
const LANDLOCK_READ: u64 = 1 << 2 | 1 << 3;
/// WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_SYM, REFER, TRUNCATE; no
/// devices, and no execution.
const LANDLOCK_WRITE: u64 =
    1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12 | 1 << 13 | 1 << 14;

/// Lets this thread, and those that it starts, open nothing but what is beneath `root`.
pub(crate) fn landlock(root: &OwnedFd, writes: bool) -> io::Result<()> {
    // SAFETY: no attributes are given where the version is asked for.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION) };
    check(version)?;
    // Rights that a version does not know it refuses: REFER came with 2, TRUNCATE with 3.
    let handled = match version {
        1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        _ => (1 << 15) - 1,
    };
    let attributes = Ruleset { handled_access_fs: handled };
    // SAFETY: a structure and its length.
    let rules = owned(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size_of::<Ruleset>(), 0)
    })?;
    let allowed = handled & (LANDLOCK_READ | if writes { LANDLOCK_WRITE } else { 0 });
    let beneath = Beneath { allowed_access: allowed, parent_fd: root.as_raw_fd() };
    let (number, kind) = (rules.as_raw_fd(), LANDLOCK_RULE_PATH_BENEATH);
    // SAFETY: the structure that this kind of rule has; both descriptors are open.
    check(unsafe { libc::syscall(libc::SYS_landlock_add_rule, number, kind, &raw const beneath, 0) })?;
    no_new_privileges()?;
    // SAFETY: an open descriptor and no flags.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, number, 0) })
}

/// Sends SIGSYS to `handler`.
pub(crate) fn on_sigsys(handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void)) {
    // SAFETY: zero is a valid value of every field.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO promises, and the old action is not wanted.
    unsafe { libc::sigaction(libc::SIGSYS, &raw const action, null::<libc::sigaction>().cast_mut()) };
}

/// Writes to standard error, and ends the process. For signal handlers.
pub(crate) fn last_words(text: &[u8], status: libc::c_int) -> ! {
    // SAFETY: the buffer is as long as it says; both calls may be made in a signal handler.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::_exit(status)
    }
}

/// The system call of a SIGSYS.
pub(crate) fn trapped_call(info: *const libc::siginfo_t) -> i32 {
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
