//! The files of `satori bench --groups programs`: Debian's packages as a folder for the host and an initramfs for guests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use satori_bench::programs::{LEFT_OUT, PACKAGES, script};
use satori_bench::subject::Files;

use super::Scratch;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::say::say;

/// Enters the folder `$0` in a mount namespace of its own, as root of a user namespace where the caller is not root, and runs there what
/// stands before the arguments: on tmpfs, as the guests do.
const ENTER: &str = r#"
for place in dev proc sys; do mount --rbind "/$place" "$0/$place" || exit 1; done
mount -t tmpfs tmp "$0/tmp" && cp "$1" "$0/tmp/satori-bench" && shift && exec chroot "$0" "$@"
"#;

/// The files of the other rows, but for initramfs and program.
pub(super) fn files(base: &Files, scratch: &Scratch) -> Result<Files> {
    let tree = cache::get(Wanted::Userland(PACKAGES, LEFT_OUT), false)?;
    let script = script();
    let driver = scratch.file("driver", script.as_bytes(), 0o755)?;
    let mapped = if rustix::process::geteuid().is_root() { "" } else { "--map-root-user" };
    let text = |path: &Path| path.display().to_string().replace('\'', "'\\''");
    let enter = format!(
        "#!/bin/sh\nexec unshare --mount {mapped} sh -c '{}' '{}' '{}' /bin/bash \"$@\"\n",
        ENTER.replace('\'', "'\\''"),
        text(&tree),
        text(&driver)
    );
    let within = scratch.file("enter", enter.as_bytes(), 0o755)?;
    compile(&tree, &within);
    let program = enter.replace("/bin/bash \"$@\"", "/bin/bash /tmp/satori-bench \"$@\"");
    let program = scratch.file("programs", program.as_bytes(), 0o755)?;
    say(format_args!("packing {}", tree.display()));
    let mut archive = Cpio::new();
    archive.device("dev/console", 0o600, 5, 1).device("dev/null", 0o666, 1, 3);
    pack(&mut archive, &tree, "")?;
    let busybox = fs::read(&base.busybox).context("cannot read busybox")?;
    archive.file("bin/busybox", 0o755, &busybox).file("init", 0o755, script.as_bytes());
    let initrd = scratch.file("userland", &archive.finish(), 0o644)?;
    Ok(Files { initrd, program, ..base.clone() })
}

/// What python3's package does when it is installed. Where it cannot be done, python compiles its library whenever it starts, here
/// and in the guests alike.
fn compile(tree: &Path, enter: &Path) {
    let done = tree.join("root/.compiled");
    if done.exists() {
        return;
    }
    let all =
        "python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3*; : >/root/.compiled";
    let ran = Command::new(enter).args(["-c", all]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    if !ran.is_ok_and(|status| status.success()) {
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
