//! `satori demo --system`: a disk with Debian and systemd, made of packages without root, booted to its login.
//!
//! mmdebstrap unpacks and configures the packages, in a user namespace where we are not root; mke2fs makes a disk of the
//! result. Both are kept in the cache, and a guest's changes are not. What the kernel needs to reach the disk comes from
//! its own package, in an initramfs.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use satori_machine::{Module, ProtocolChoice};

use crate::command::kernel;
use crate::commands::run::Boot;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::inputs;
use crate::say::say;
use crate::{cli, devices, network};

/// Debian's release where this host is none.
const SUITE: &str = "bookworm";
/// What is in it beside the essential packages.
const PACKAGES: &str =
    "systemd,systemd-sysv,systemd-resolved,systemd-timesyncd,udev,dbus,openssh-server,iproute2,kmod,login";
/// The file system's size: what is not used takes no room on the host.
const SIZE: &str = "2G";
/// Where the guest's port 22 is found, unless --net says otherwise.
const NETWORK: &str = "user,forward=tcp:127.0.0.1:2222:22";
const SSH: &str = "ssh -p 2222";
/// Memory of the guest, unless --memory says otherwise.
const MEMORY: u64 = 1 << 30;
const CMDLINE: &str = "root=/dev/vda rw net.ifnames=0";
/// What the guest's kernel may not have built in.
const MODULES: &[&str] = &["virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "ext4"];

/// What is set up in the root file system `$1`; `KEY` is a public key, if there is one.
const CUSTOMIZE: &str = r#"set -e
echo satori > "$1/etc/hostname"
printf '127.0.0.1 localhost satori\n::1 localhost\n' > "$1/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' > "$1/etc/fstab"
: > "$1/etc/machine-id"
mkdir -p "$1/etc/systemd/network" "$1/etc/systemd/system/multi-user.target.wants"
printf '[Match]\nName=eth*\n[Network]\nDHCP=yes\n' > "$1/etc/systemd/network/20-wired.network"
ln -sf /lib/systemd/system/systemd-networkd.service "$1/etc/systemd/system/multi-user.target.wants/"
sed -i 's/^root:[^:]*:/root::/' "$1/etc/shadow"
if [ -n "$SATORI_KEY" ]; then
    mkdir -p "$1/root/.ssh"
    printf '%s\n' "$SATORI_KEY" > "$1/root/.ssh/authorized_keys"
    chmod 700 "$1/root/.ssh"
fi
"#;

/// Makes a disk of the archive, where this is root, if only in a user namespace.
const PACK: &str = "set -e
mkdir root
tar --extract --directory=root --exclude='./dev/*' --file=root.tar
mke2fs -q -t ext4 -L system -d root disk.img \"$1\"
rm -rf root root.tar
";

/// The initramfs' init: loads what `load` lists, and goes on with the disk's.
const INIT: &str = "#!/bin/busybox sh
export PATH=/bin
busybox mount -t devtmpfs devtmpfs /dev
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
while read -r module; do busybox insmod \"$module\"; done </lib/load
busybox mount -t ext4 /dev/vda /root || exec busybox sh
for place in dev proc sys; do busybox mount -o move /$place /root/$place; done
exec busybox switch_root /root /sbin/init
";

/// What boots, with the devices that it wants put into `flags`.
pub(super) fn prepare(flags: &mut cli::Demo) -> Result<Boot> {
    let (image, key) = disk(flags.refresh)?;
    let kernel = kernel::with_modules(cli::Arch::X86, flags.kernel.as_deref(), None)?;
    let busybox = match &flags.busybox {
        None => cache::get(Wanted::Busybox, flags.refresh)?,
        Some(file) => file.clone(),
    };
    let machine = &mut flags.machine;
    let mut spec = OsString::new();
    // A comma in a name is two.
    spec.push(image.to_string_lossy().replace(',', ",,"));
    spec.push(",snapshot,serial=system");
    machine.disk.insert(0, devices::disk(&spec).map_err(anyhow::Error::msg)?);
    machine.rng = true;
    machine.memory.get_or_insert(MEMORY);
    let reached = machine.net.is_none();
    if reached {
        machine.net = Some(network::spec(NETWORK).map_err(anyhow::Error::msg)?);
    }
    say(format_args!("kernel {}", kernel.path.display()));
    say(format_args!("disk {}; what the guest changes is forgotten at its end", image.display()));
    match key.filter(|_| reached) {
        Some(key) => say(format_args!(
            "log in as root without a password, here or by '{SSH} -i {} root@127.0.0.1'; 'poweroff' ends it",
            key.display()
        )),
        None => say(format_args!("log in as root without a password; 'poweroff' ends it")),
    }
    let append = flags.append.as_deref().map_or_else(String::new, |more| format!(" {more}"));
    Ok(Boot {
        initrds: vec![Module {
            data: initramfs(&kernel, &inputs::read("--busybox", &busybox)?)?,
            ..Module::default()
        }],
        kernel_name: kernel.path.display().to_string(),
        kernel: kernel.image,
        cmdline: cli::Cmdline { whole: None, append: Some(format!("{CMDLINE}{append}")) }.text(),
        protocol: ProtocolChoice::Auto,
    })
}

/// What leads from the kernel to its disk.
fn initramfs(kernel: &kernel::Kernel, busybox: &[u8]) -> Result<Vec<u8>> {
    let modules = match &kernel.modules {
        Some(modules) => modules.closure(MODULES)?.0,
        None => Vec::new(),
    };
    let mut cpio = Cpio::new();
    for name in ["bin", "dev", "lib", "proc", "root", "sys"] {
        cpio.directory(name);
    }
    cpio.device("dev/console", 0o600, 5, 1).device("dev/null", 0o666, 1, 3);
    cpio.file("bin/busybox", 0o755, busybox).file("init", 0o755, INIT.as_bytes());
    let mut order = String::new();
    for module in modules {
        let (name, bytes) = module.plain()?;
        order += &format!("/lib/{name}\n");
        cpio.file(format!("lib/{name}"), 0o644, &bytes);
    }
    Ok(cpio.file("lib/load", 0o644, order.as_bytes()).finish())
}

/// The disk's image, and the key that opens it by ssh, if this host has ssh.
fn disk(refresh: bool) -> Result<(PathBuf, Option<PathBuf>)> {
    let suite = suite(&fs::read_to_string("/etc/os-release").unwrap_or_default());
    let image = cache::place(&format!("debian-{suite}-system.img"))?;
    let key = cache::place("system-key")?;
    // Held until the end: two at once would make the same disk.
    let lock = File::create(cache::place("system.lock")?)?;
    lock.lock()?;
    if !image.exists() || refresh {
        let work = cache::place("system.work")?;
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).with_context(|| format!("cannot make {}: make room", work.display()))?;
        let made = make(&suite, &work, &key);
        if made.is_ok() {
            fs::rename(work.join("disk.img"), &image)?;
        }
        let _ = fs::remove_dir_all(&work);
        made?;
    }
    Ok((image, key.exists().then_some(key)))
}

/// The release that this host has, if it is Debian.
fn suite(os_release: &str) -> String {
    let field = |name: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    match (field("ID").as_deref(), field("VERSION_CODENAME")) {
        (Some("debian"), Some(name)) if name.bytes().all(|b| b.is_ascii_lowercase()) => name,
        _ => SUITE.into(),
    }
}

/// Makes `disk.img` in `work`.
fn make(suite: &str, work: &Path, key: &Path) -> Result<()> {
    say(format_args!("making a disk with Debian {suite} of its packages, once; this takes some minutes"));
    for (program, package) in [("mke2fs", "e2fsprogs"), ("tar", "tar"), ("perl", "perl")] {
        if !has(program) {
            bail!("there is no {program} on this machine to make a disk with: install {package}");
        }
    }
    if !key.exists() && has("ssh-keygen") {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "satori", "-f"]).arg(key);
        finish(&mut keygen, "ssh-keygen")?;
    }
    let public = fs::read_to_string(key.with_extension("pub")).unwrap_or_default();
    // It is a script: unpacked is as good as installed.
    let mut strap = match has("mmdebstrap") {
        true => Command::new("mmdebstrap"),
        false => {
            let mut perl = Command::new("perl");
            perl.arg(cache::get(Wanted::Package("mmdebstrap"), false)?.join("usr/bin/mmdebstrap"));
            perl
        }
    };
    strap.args(["--variant=minbase", "--architectures=amd64", "--format=tar"]);
    strap.arg(format!("--include={PACKAGES}")).arg(format!("--customize-hook={CUSTOMIZE}"));
    strap.arg(suite).arg("-").env("SATORI_KEY", public.trim()).stdout(File::create(work.join("root.tar"))?);
    finish(&mut strap, "mmdebstrap").context(
        "packages are unpacked as root, or as a user with a range in /etc/subuid and Debian's package uidmap",
    )?;
    say(format_args!("packing the disk"));
    let root = rustix::process::geteuid().is_root();
    let mut pack = Command::new(if root { "sh" } else { "unshare" });
    if !root {
        pack.args(["--map-root-user", "--map-auto", "sh"]);
    }
    let path = [OsStr::new("/usr/sbin:/sbin:"), &std::env::var_os("PATH").unwrap_or_default()];
    let path = path.into_iter().collect::<OsString>();
    pack.args(["-c", PACK, "sh", SIZE]).current_dir(work).env("PATH", path);
    finish(&mut pack, "mke2fs")
}

/// Whether there is such a program.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.into_iter().any(|folder| folder.join(program).is_file())
}

/// Runs it to its end; what it says goes to standard error.
fn finish(command: &mut Command, name: &str) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {name}"))?;
    if !status.success() {
        bail!("{name} failed ({status}): its last lines above say why");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_hosts_if_it_is_debian() {
        assert_eq!(suite("ID=debian\nVERSION_CODENAME=trixie\n"), "trixie");
        assert_eq!(suite("VERSION_CODENAME=\"trixie\"\nID=\"debian\"\n"), "trixie");
        for other in
            ["", "ID=debian\n", "ID=ubuntu\nVERSION_CODENAME=noble\n", "ID=debian\nVERSION_CODENAME=a b\n"]
        {
            assert_eq!(suite(other), SUITE, "{other}");
        }
    }
}
