//! What is mounted where.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::spec::{Mount, Spec};
use crate::{modules, network, sys};

const ROOT: &str = "/root";

/// A file system of the guest's own: kind, place, options, and whether a kernel may be without it.
type Own = (&'static str, &'static str, &'static str, bool);

const EARLY: &[Own] =
    &[("devtmpfs", "/dev", "mode=0755", false), ("proc", "/proc", "", false), ("sysfs", "/sys", "", false)];

const INSIDE: &[Own] = &[
    ("proc", "/proc", "", false),
    ("sysfs", "/sys", "", false),
    ("devtmpfs", "/dev", "mode=0755", false),
    ("devpts", "/dev/pts", "gid=5,mode=0620,ptmxmode=0666", false),
    ("tmpfs", "/dev/shm", "mode=1777", false),
    ("tmpfs", "/run", "mode=0755", false),
    ("cgroup2", "/sys/fs/cgroup", "", true),
    ("debugfs", "/sys/kernel/debug", "", true),
    ("tracefs", "/sys/kernel/tracing", "", true),
    ("securityfs", "/sys/kernel/security", "", true),
    ("bpf", "/sys/fs/bpf", "mode=0700", true),
];

const LINKS: &[(&str, &str)] = &[
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// What modules and ports are found by.
pub fn early() {
    for (kind, place, options, _) in EARLY {
        let _ = fs::create_dir(place);
        let _ = sys::mount(kind, OsStr::new(place), kind, false, options);
    }
}

/// Mounts the root and enters it.
pub fn root(spec: &Spec) -> Result<(), String> {
    let Some((first, _)) = spec.mounts.split_first() else { return Err("no root is described".into()) };
    let _ = fs::create_dir(ROOT);
    share(first, OsStr::new(ROOT)).map_err(|why| {
        format!("the root cannot be mounted ({why}): the kernel lacks virtiofs or virtio_pci")
    })?;
    sys::enter_root(ROOT).map_err(|why| format!("the root cannot be entered ({why})"))
}

fn share(mount: &Mount, place: &OsStr) -> std::io::Result<()> {
    sys::mount(&mount.tag, place, "virtiofs", mount.read_only, "")
}

/// Everything else, in the root. What could not be had, in words.
pub fn inside(spec: &Spec) -> Vec<String> {
    let mut wrong = Vec::new();
    for (kind, place, options, optional) in INSIDE {
        let place = OsStr::new(place);
        if let Err(why) = mounted(place, || sys::mount(kind, place, kind, false, options))
            && !optional
        {
            wrong.push(format!("{kind} is not mounted on {} ({why})", place.display()));
        }
    }
    for (target, link) in LINKS {
        let _ = symlink(target, link);
    }
    let _ = fs::create_dir("/run/lock").and_then(|()| mode("/run/lock", 0o1777));
    let runtime = format!("/run/user/{}", spec.uid);
    let made = fs::create_dir_all(&runtime).and_then(|()| mode(&runtime, 0o700));
    if let Err(why) = made.and_then(|()| std::os::unix::fs::chown(&runtime, Some(spec.uid), Some(spec.gid))) {
        wrong.push(format!("{runtime} cannot be made ({why})"));
    }
    for mount in &spec.mounts[1.min(spec.mounts.len())..] {
        if let Err(why) = mounted(&mount.place, || share(mount, &mount.place)) {
            wrong.push(format!("{} is not mounted on {} ({why})", mount.tag, mount.place.display()));
        }
    }
    if let Some((release, found)) = &spec.found
        && let Err(why) = modules::offer(release, found)
    {
        wrong.push(format!("modprobe finds no modules ({why})"));
    }
    if !spec.hostname.is_empty()
        && let Err(why) = sys::set_hostname(spec.hostname.as_bytes())
    {
        wrong.push(format!("the host's name cannot be set ({why})"));
    }
    if let Err(why) = sys::up("lo") {
        wrong.push(format!("the loopback interface is down ({why})"));
    }
    if let Some(addresses) = &spec.network
        && let Err(why) = network::configure(addresses)
    {
        wrong.push(why);
    }
    wrong
}

fn mode(path: &str, mode: u32) -> std::io::Result<()> {
    fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

/// Does `mount`, on a directory that is made where the root has none.
fn mounted(place: &OsStr, mount: impl Fn() -> std::io::Result<()>) -> std::io::Result<()> {
    let place = OsString::from(place);
    if !Path::new(&place).is_dir() {
        fs::create_dir_all(&place)?;
    }
    mount()
}
