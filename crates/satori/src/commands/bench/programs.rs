//! The files of `satori bench --groups programs`, and of others who run Debian's packages: a folder for the host and an initramfs for guests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use satori_bench::programs::{LEFT_OUT, PACKAGES, script};
use satori_bench::subject::Files;

use super::Scratch;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::say::say;

/// Enters the folder `$0` in a mount namespace of its own, as root of a user namespace where the caller is not root, and runs there what
/// stands before the arguments: on tmpfs, as the guests do. The folder `$2`, if it is none, is there as /tmp/rows.
const ENTER: &str = r#"
for place in dev proc sys; do mount --rbind "/$place" "$0/$place" || exit 1; done
mount -t tmpfs tmp "$0/tmp" && cp "$1" "$0/tmp/satori-bench" || exit 1
[ -z "$2" ] || { mkdir "$0/tmp/rows" && mount --bind "$2" "$0/tmp/rows"; } || exit 1
shift 2
exec chroot "$0" "$@"
"#;

/// Packages of Debian's, unpacked, and a script that runs in them.
pub(super) struct Userland {
    /// Of its files in the scratch folder.
    name: &'static str,
    tree: PathBuf,
    script: String,
    /// Runs what stands behind it there.
    enter: String,
}

impl Userland {
    /// Fetches it. `rows` is a folder that programs find as /tmp/rows.
    pub(super) fn fetch(
        name: &'static str,
        packages: &[&str],
        script: String,
        rows: Option<&Path>,
        scratch: &Scratch,
    ) -> Result<Self> {
        let tree = cache::get(Wanted::Userland(packages, LEFT_OUT), false)?;
        let driver = scratch.file(&format!("{name}-driver"), script.as_bytes(), 0o755)?;
        let mapped = if rustix::process::geteuid().is_root() { "" } else { "--map-root-user" };
        let text = |path: &Path| path.display().to_string().replace('\'', "'\\''");
        let enter = format!(
            "unshare --mount {mapped} sh -c '{}' '{}' '{}' '{}'",
            ENTER.replace('\'', "'\\''"),
            text(&tree),
            text(&driver),
            rows.map(text).unwrap_or_default(),
        );
        Ok(Userland { name, tree, script, enter })
    }

    /// A command in it.
    pub(super) fn command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {} /bin/bash -c \"$0\"", self.enter), script]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// The script as a program of the host's.
    pub(super) fn program(&self, scratch: &Scratch) -> Result<PathBuf> {
        let program = format!("#!/bin/sh\nexec {} /bin/bash /tmp/satori-bench \"$@\"\n", self.enter);
        scratch.file(self.name, program.as_bytes(), 0o755)
    }

    /// The same as a guest's files, whose init it is; `add` adds more.
    pub(super) fn initrd(&self, busybox: &Path, add: impl FnOnce(&mut Cpio)) -> Result<Vec<u8>> {
        say(format_args!("packing {}", self.tree.display()));
        let mut archive = Cpio::new();
        archive.device("dev/console", 0o600, 5, 1).device("dev/null", 0o666, 1, 3);
        pack(&mut archive, &self.tree, "")?;
        add(&mut archive);
        let busybox = fs::read(busybox).context("cannot read busybox")?;
        archive.file("bin/busybox", 0o755, &busybox).file("init", 0o755, self.script.as_bytes());
        Ok(archive.finish())
    }
}

/// The files of the other rows, but for initramfs and program.
pub(super) fn files(base: &Files, scratch: &Scratch) -> Result<Files> {
    let userland = Userland::fetch("programs", PACKAGES, script(), None, scratch)?;
    compile(&userland);
    let program = userland.program(scratch)?;
    let initrd = scratch.file("userland", &userland.initrd(&base.busybox, |_| ())?, 0o644)?;
    Ok(Files { initrd, program, ..base.clone() })
}

/// What python3's package does when it is installed. Where it cannot be done, python compiles its library whenever it starts, here
/// and in the guests alike.
fn compile(userland: &Userland) {
    if userland.tree.join("root/.compiled").exists() {
        return;
    }
    let all =
        "python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3*; : >/root/.compiled";
    if !userland.command(all).status().is_ok_and(|status| status.success()) {
        say(format_args!("python's library is not compiled, so that python starts slowly everywhere"));
    }
}

fn pack(archive: &mut Cpio, folder: &Path, within: &str) -> Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // Debian's names are UTF-8.
        let (Ok(name), path) = (entry.file_name().into_string(), entry.path()) else { continue };
        let name = if within.is_empty() { name } else { format!("{within}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            if let Some(target) = fs::read_link(&path)?.to_str() {
                archive.link(&name, target);
            }
        } else if kind.is_dir() {
            archive.directory(&name);
            pack(archive, &path, &name)?;
        } else if kind.is_file() {
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            archive.file(&name, entry.metadata()?.permissions().mode() & 0o777, &bytes);
        }
    }
    Ok(())
}
