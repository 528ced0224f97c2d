//! Loads the modules that the initramfs holds, in the order given, and shows the guest where the others are.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::spec::Found;
use crate::sys;

/// Device nodes that anybody may open; the rest are root's (systemd's 50-udev-default.rules).
const OPEN: &[&str] = &["fuse", "net/tun"];

/// Loads each; what went wrong, in words. One that is there already is nothing wrong.
pub fn load(modules: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    for module in modules {
        let (path, options) = module.split_once(' ').unwrap_or((module, ""));
        let loaded = File::open(path).and_then(|file| {
            // The kernel unpacks these itself (MODULE_DECOMPRESS).
            sys::load_module(&file, options, path.ends_with(".xz"))
        });
        match loaded {
            Err(why) if why.kind() != std::io::ErrorKind::AlreadyExists => {
                wrong.push(format!("the module {path} was not loaded ({why})"));
            }
            _ => {}
        }
    }
    wrong
}

/// Where modprobe(8) looks.
const MODULES: &str = "/lib/modules";

/// Has modprobe(8), and the kernel where it calls that, find the modules of `release`; and makes the device nodes
/// that load a module when they are opened, as kmod-static-nodes.service does. A root that has these modules keeps its own.
pub fn offer(release: &str, found: &Found) -> std::io::Result<()> {
    let place = Path::new(MODULES).join(release);
    // A root without even that directory has no programs that look there, and stays as it was made.
    let bare = !Path::new(MODULES).parent().is_some_and(Path::is_dir);
    let own = bare || place.join("modules.dep.bin").exists();
    match found {
        _ if own => {}
        Found::Root(folder) => {
            let _ = fs::create_dir_all(MODULES).and_then(|()| symlink(folder, &place));
        }
        Found::Share { tag, kept } => {
            if *kept && !place.is_dir() {
                if !Path::new(MODULES).is_dir() {
                    return Ok(());
                }
                // Over the root's own modules, which are of other kernels: a directory more would stay on the disk.
                sys::mount("tmpfs", OsStr::new(MODULES), "tmpfs", false, "mode=0755")?;
            }
            fs::create_dir_all(&place)?;
            sys::mount(tag, place.as_os_str(), "virtiofs", true, "")?;
        }
    }
    let nodes = fs::read_to_string(place.join("modules.devname")).unwrap_or_default();
    for line in nodes.lines() {
        let _ = node(line);
    }
    Ok(())
}

/// Makes the node that a line such as `tun net/tun c10:200` tells of.
fn node(line: &str) -> Option<()> {
    let mut words = line.split(' ').skip(1);
    let (name, device) = (words.next()?, words.next()?);
    let (numbers, block) = match device.strip_prefix('c') {
        Some(numbers) => (numbers, false),
        None => (device.strip_prefix('b')?, true),
    };
    let (major, minor) = numbers.split_once(':')?;
    let path = Path::new("/dev").join(name);
    fs::create_dir_all(path.parent()?).ok()?;
    sys::make_node(path.as_os_str(), block, major.parse().ok()?, minor.parse().ok()?).ok()?;
    let mode = if OPEN.contains(&name) { 0o666 } else { 0o600 };
    fs::set_permissions(&path, Permissions::from_mode(mode)).ok()
}
