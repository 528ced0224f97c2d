//! An empty root directory and no network.

use std::io;

use crate::sys;

/// What became of one measure.
pub(crate) type Outcome = (&'static str, Result<&'static str, String>);

const ROOT: &str = "empty root directory";
const NETWORK: &str = "network namespace";

/// Directories of which one surely exists: a file system is mounted over it, in our namespace only.
const PLACES: &[&str] = &["/tmp", "/proc", "/usr", "/dev"];

/// Enters namespaces of our own, or does what can be done without.
pub(crate) fn enter() -> [Outcome; 2] {
    let network = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    match own(libc::CLONE_NEWNS | network) {
        Ok(()) => [
            (ROOT, empty_mounts().map(|()| "in a mount namespace of its own").or_else(|_| chroot())),
            (NETWORK, Ok("of its own, with no interface")),
        ],
        Err(why) => {
            let root = chroot();
            [(ROOT, root), (NETWORK, Err(format!("namespaces are not permitted: {why}")))]
        }
    }
}

/// As [`enter`], for who needs the network.
pub(crate) fn enter_without_network() -> Outcome {
    let outcome = match own(libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS) {
        Ok(()) => empty_mounts().map(|()| "in a mount namespace of its own").or_else(|_| chroot()),
        Err(_) => chroot(),
    };
    (ROOT, outcome)
}

/// Enters new namespaces: as who we are, or as the owner of a user namespace.
pub(crate) fn own(flags: libc::c_int) -> io::Result<()> {
    sys::unshare(flags).or_else(|_| {
        let (user, group) = sys::ids();
        sys::unshare(flags | libc::CLONE_NEWUSER)?;
        // Mounting asks for an owner that has a name in the new namespace.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
    })
}

/// Makes an empty file system that cannot be written the only one there is.
fn empty_mounts() -> io::Result<()> {
    sys::make_mounts_private()?;
    let place = PLACES.iter().find(|place| std::fs::metadata(place).is_ok_and(|m| m.is_dir()));
    let place = place.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    sys::mount_empty(place)?;
    std::env::set_current_dir(place)?;
    // The old root is put over the new one, and taken away (pivot_root(2)).
    sys::pivot_root_here()?;
    sys::detach_here()?;
    std::env::set_current_dir("/")?;
    sys::seal_root()
}

/// The root directory becomes one that was removed, in which nothing can be made. Asks for
/// CAP_SYS_CHROOT only, which root in a container has.
fn chroot() -> Result<&'static str, String> {
    let attempt = || -> io::Result<()> {
        let place = std::env::temp_dir().join(format!("satori-{}", std::process::id()));
        std::fs::create_dir(&place)?;
        let entered = std::env::set_current_dir(&place);
        std::fs::remove_dir(&place)?;
        entered?;
        let changed = sys::chroot_here();
        std::env::set_current_dir("/")?;
        changed
    };
    match attempt() {
        Ok(()) => Ok("by chroot, in the host's mount namespace"),
        Err(error) => Err(format!("neither namespaces nor chroot are permitted: {error}")),
    }
}
