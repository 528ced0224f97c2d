//! The files of the groups disk, folder, net and tools of `satori bench`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use satori_bench::catalog::MODULES;
use satori_bench::devices::{DRIVERS, answer, folder, image};
use satori_bench::subject::{Devices, Files, HOST, unpacked};
use satori_machine::image::{Access, Format, Image, Source, testing};

use super::Scratch;
use super::flags::Bench;
use crate::cli::Arch;
use crate::command::kernel;
use crate::command::modules::Module;
use crate::cpio::Cpio;
use crate::debian::cache::{self, Wanted};

use crate::say::say;

/// What rows of devices are measured on, whoever measures.
pub(super) struct On {
    /// The files of the other rows, with another kernel.
    files: Files,
    modules: Vec<(String, Vec<u8>)>,
    devices: Devices,
}

/// Makes it. Debian's kernel for any machine takes the place of the one for clouds, which has no 9P, and with it no folder in QEMU's guests.
pub(super) fn devices(flags: &Bench, base: &Files, scratch: &Scratch) -> Result<On> {
    let bzimage = if flags.kernel.is_none() { any_machines(&base.bzimage)? } else { base.bzimage.clone() };
    let found = kernel::with_modules(Arch::X86, Some(&bzimage), None)?;
    let Some(modules) = &found.modules else {
        bail!("--kernel {}: no modules are beside it, and a disk needs some", bzimage.display());
    };
    say(format_args!("kernel of disk, folder and net {}", bzimage.display()));
    let (drivers, _) = modules.closure(DRIVERS)?;
    let named = |(number, module): (usize, &Module)| {
        (format!("{}/{number:02}-{}", MODULES.trim_start_matches('/'), module.name), module.bytes.clone())
    };
    let (vmlinux, _) = unpacked(&bzimage)?;
    let (disk, shared) = (scratch.folder.join("disk.img"), scratch.folder.join("folder"));
    let room = "set TMPDIR to a place with room for 500 MiB";
    image(&disk).with_context(|| format!("cannot write {}: {room}", disk.display()))?;
    folder(&shared).with_context(|| format!("cannot write {}: {room}", shared.display()))?;
    let qcow2 = scratch.folder.join("disk.qcow2");
    as_qcow2(&disk, &qcow2).with_context(|| format!("cannot write {}: {room}", qcow2.display()))?;
    Ok(On {
        modules: drivers.iter().enumerate().map(named).collect(),
        files: Files { vmlinux: scratch.file("vmlinux-devices", &vmlinux, 0o644)?, bzimage, ..base.clone() },
        devices: Devices { image: disk, qcow2, folder: shared, port: 0, tap: flags.tap.clone() },
    })
}

impl On {
    /// The files of the static program's rows; its other side answers from now on.
    pub(super) fn of_rows(&self, scratch: &Scratch) -> Result<Files> {
        let program = fs::read(&self.files.program).context("cannot read the program")?;
        let mut archive = Cpio::new();
        for name in ["bin", "dev", "proc", "sys", "tmp"] {
            archive.directory(name);
        }
        archive.device("dev/console", 0o600, 5, 1).device("dev/null", 0o666, 1, 3);
        self.add_modules(&mut archive);
        let initrd = archive.file("init", 0o755, &program).finish();
        let address = self.address();
        let port = answer(address).with_context(|| self.cannot_listen())?;
        Ok(self.with(scratch.file("initrd-devices", &initrd, 0o644)?, self.files.program.clone(), port))
    }

    /// Files of a guest on the devices.
    pub(super) fn with(&self, initrd: PathBuf, program: PathBuf, port: u16) -> Files {
        let devices = Some(Devices { port, ..self.devices.clone() });
        Files { initrd, program, devices, ..self.files.clone() }
    }

    pub(super) fn add_modules(&self, archive: &mut Cpio) {
        archive.directory(MODULES.trim_start_matches('/'));
        for (path, bytes) in &self.modules {
            archive.file(path, 0o644, bytes);
        }
    }

    /// The host's busybox.
    pub(super) fn busybox(&self) -> &Path {
        &self.files.busybox
    }

    /// The folder of the host's.
    pub(super) fn folder(&self) -> &Path {
        &self.devices.folder
    }

    /// Where this host answers.
    pub(super) fn address(&self) -> Ipv4Addr {
        if self.devices.tap.is_some() { HOST } else { Ipv4Addr::LOCALHOST }
    }

    /// What to do where nobody can.
    pub(super) fn cannot_listen(&self) -> String {
        match &self.devices.tap {
            None => "cannot listen on 127.0.0.1".into(),
            Some(tap) => format!(
                "cannot listen on {HOST}: 'ip address add {HOST}/24 dev {tap}' gives --tap its address"
            ),
        }
    }
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
fn any_machines(cloud: &Path) -> Result<PathBuf> {
    let name = cloud.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let package = name.split('_').next().unwrap_or_default().replace("-cloud", "");
    let tree = cache::get(Wanted::Package(&package), false)?;
    let release = package.trim_start_matches("linux-image-");
    Ok(tree.join("boot").join(format!("vmlinuz-{release}")))
}
