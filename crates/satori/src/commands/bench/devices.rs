//! The files of the groups disk, folder and net of `satori bench`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use satori_bench::catalog::MODULES;
use satori_bench::devices::{DRIVERS, answer, folder, image};
use satori_bench::subject::{Devices, Files, unpacked};
use satori_machine::image::{Access, Format, Image, Source, testing};

use super::Scratch;
use crate::cli::Arch;
use crate::command::kernel;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};
use crate::say::say;

/// The files of the other rows, but for kernel and initramfs. `usual`: Debian's kernel for any machine takes the place of the one for
/// clouds, which has no 9P, and with it no folder in QEMU's guests.
pub(super) fn files(base: &Files, scratch: &Scratch, usual: bool) -> Result<Files> {
    let bzimage = if usual { any_machines(&base.bzimage)? } else { base.bzimage.clone() };
    let found = kernel::with_modules(Arch::X86, Some(&bzimage), None)?;
    let Some(modules) = &found.modules else {
        bail!("--kernel {}: no modules are beside it, and a disk needs some", bzimage.display());
    };
    say(format_args!("kernel of disk, folder and net {}", bzimage.display()));
    let (drivers, _) = modules.closure(DRIVERS)?;
    let program = fs::read(&base.program).context("cannot read the program")?;
    let mut archive = Cpio::new();
    for name in ["bin", "dev", "proc", "sys", "tmp", MODULES.trim_start_matches('/')] {
        archive.directory(name);
    }
    archive.device("dev/console", 0o600, 5, 1).device("dev/null", 0o666, 1, 3);
    for (number, module) in drivers.iter().enumerate() {
        let path = format!("{}/{number:02}-{}", MODULES.trim_start_matches('/'), module.name);
        archive.file(&path, 0o644, &module.bytes);
    }
    let initrd = archive.file("init", 0o755, &program).finish();
    let (vmlinux, _) = unpacked(&bzimage)?;
    let (disk, shared) = (scratch.folder.join("disk.img"), scratch.folder.join("folder"));
    let room = "set TMPDIR to a place with room for 300 MiB";
    image(&disk).with_context(|| format!("cannot write {}: {room}", disk.display()))?;
    folder(&shared).with_context(|| format!("cannot write {}: {room}", shared.display()))?;
    let qcow2 = scratch.folder.join("disk.qcow2");
    as_qcow2(&disk, &qcow2).with_context(|| format!("cannot write {}: {room}", qcow2.display()))?;
    let port = answer().context("cannot listen on 127.0.0.1")?;
    Ok(Files {
        vmlinux: scratch.file("vmlinux-devices", &vmlinux, 0o644)?,
        initrd: scratch.file("initrd-devices", &initrd, 0o644)?,
        devices: Some(Devices { image: disk, qcow2, folder: shared, port }),
        bzimage,
        ..base.clone()
    })
}

/// Bytes of a cluster of an image, as a power of two: what qemu-img makes.
const CLUSTER_BITS: u32 = 16;

/// Writes what `raw` holds as an image of the other format.
fn as_qcow2(raw: &Path, to: &Path) -> Result<()> {
    let content = fs::read(raw)?;
    fs::write(to, testing::qcow2(content.len() as u64, CLUSTER_BITS, None))?;
    let file = fs::File::options().read(true).write(true).open(to)?;
    let name = to.display().to_string();
    let source =
        Source { name, file, format: Format::Qcow2, access: Access::Write, here: None, backing: None };
    let image = Image::open(source)?;
    for (place, piece) in (0..).step_by(1 << 20).zip(content.chunks(1 << 20)) {
        image.write(place, piece)?;
    }
    image.flush()?;
    Ok(image.settle()?)
}

/// Debian's kernel for any machine, of the version of its kernel for clouds.
fn any_machines(cloud: &Path) -> Result<std::path::PathBuf> {
    let name = cloud.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let package = name.split('_').next().unwrap_or_default().replace("-cloud", "");
    let tree = cache::get(Wanted::Package(&package), false)?;
    let release = package.trim_start_matches("linux-image-");
    Ok(tree.join("boot").join(format!("vmlinuz-{release}")))
}
