//! The initramfs of a command: our init, the description of the command, and modules.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, bail};
use rustix::fs::{FileType, fstat, stat};
use rustix::stdio::stdin;
use satori_files::Mode;

use super::modules::Module;
use super::options::{Folders, Place};
use crate::cli::Arch;
use crate::cpio::Cpio;

/// The program of `guests/init/`.
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));
/// Why it was not built.
const MISSING: &str = include_str!(concat!(env!("OUT_DIR"), "/init-missing"));
/// The same for AArch64, of `guests/init/arm64/`.
const INIT_ARM64: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init-arm64"));
const MISSING_ARM64: &str = include_str!(concat!(env!("OUT_DIR"), "/init-arm64-missing"));

/// Where modprobe(8) finds the kernel's modules.
pub(super) struct Found<'a> {
    /// The kernel's release.
    pub release: &'a str,
    /// How the guest reaches them.
    pub way: Way<'a>,
}

/// How a guest reaches a folder of modules.
pub(super) enum Way<'a> {
    /// By this path in its root.
    Root(&'a Path),
    /// As a folder with this tag, which is mounted where modules belong. A root that is `kept` gets no directory for that.
    Share { tag: &'a str, kept: bool },
}

/// What is told of the caller.
struct Spec(Vec<u8>);

impl Spec {
    fn put(&mut self, key: &str, value: impl AsRef<OsStr>) {
        self.0.extend(key.bytes());
        self.0.push(b'=');
        self.0.extend(value.as_ref().as_bytes());
        self.0.push(0);
    }
}

/// Packs it. `terminal` has rows and columns; `network` is how the card is set up; `found` is where modprobe(8) finds
/// modules.
pub(super) fn pack(
    arch: Arch,
    words: &[OsString],
    folders: &Folders,
    modules: &[Module],
    terminal: Option<(u16, u16)>,
    network: Option<&str>,
    found: Option<Found<'_>>,
) -> Result<Vec<u8>> {
    let (init, missing, of) = match arch {
        Arch::X86 => (INIT, MISSING, ""),
        Arch::Arm64 => (INIT_ARM64, MISSING_ARM64, " for arm64"),
    };
    if init.is_empty() {
        bail!("this build cannot run commands{of}: {missing}; then build Satori again");
    }
    let mut cpio = Cpio::new();
    // Where the init's own streams go before it has mounted devices.
    cpio.directory("dev").device("dev/console", 0o600, 5, 1).directory("satori");
    cpio.file("init", 0o755, init);
    let mut spec = describe(words, folders, terminal);
    network.iter().for_each(|text| spec.put("network", text));
    match found {
        Some(Found { release, way: Way::Root(folder) }) => {
            let mut both = OsString::from(format!("{release}:"));
            both.push(folder);
            spec.put("modules", both);
        }
        Some(Found { release, way: Way::Share { tag, kept } }) => {
            let root = if kept { "kept" } else { "changed" };
            spec.put("modules-share", format!("{release}:{tag}:{root}"));
        }
        None => {}
    }
    for module in modules {
        let path = format!("satori/{}", module.name);
        cpio.file(&path, 0o644, &module.bytes);
        spec.put("module", format!("/{path}"));
    }
    cpio.file("satori/spec", 0o600, &spec.0);
    Ok(cpio.finish())
}

/// Whether standard input is /dev/null: the command has its own then, and nobody looks whether it wants what comes.
fn input_is_null() -> bool {
    let null = fstat(stdin()).ok().zip(stat("/dev/null").ok());
    null.is_some_and(|(input, null)| {
        FileType::from_raw_mode(input.st_mode) == FileType::CharacterDevice && input.st_rdev == null.st_rdev
    })
}

fn describe(words: &[OsString], folders: &Folders, terminal: Option<(u16, u16)>) -> Spec {
    let mut spec = Spec(Vec::new());
    for Place { folder, at } in folders.all() {
        let Some(at) = at else { continue };
        let mode = if folder.share.mode == Mode::Ro { "ro" } else { "rw" };
        let mut value = OsString::from(format!("{}:{mode}:", folder.tag));
        value.push(at);
        spec.put("mount", value);
    }
    words.iter().for_each(|word| spec.put("arg", word));
    let own = folders.user.environment.iter().map(|(name, value)| (OsString::from(name), value.clone()));
    let callers = std::env::vars_os().filter(|(name, _)| !own.clone().any(|(other, _)| other == *name));
    for (name, value) in callers.chain(own.clone()) {
        let mut both = name;
        both.push("=");
        both.push(value);
        spec.put("env", both);
    }
    spec.put("cwd", &folders.cwd);
    spec.put("hostname", OsStr::from_bytes(rustix::system::uname().nodename().to_bytes()));
    // There is no way to read it but to change it, and there is one thread only.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    spec.put("umask", mask.bits().to_string());
    spec.put("uid", folders.user.uid.to_string());
    spec.put("gid", folders.user.gid.to_string());
    folders.user.groups.iter().for_each(|group| spec.put("group", group.to_string()));
    if terminal.is_none() && input_is_null() {
        spec.put("input", "none");
    }
    if let Some((rows, columns)) = terminal {
        spec.put("terminal", format!("{rows} {columns}"));
    }
    spec
}
