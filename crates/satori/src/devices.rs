//! Devices that options ask for: `--disk`, `--rng`, `--balloon`, and `--net` with [`network`], `--share` with [`shares`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use satori_machine::image::{Access, Cache, Format, Image, Source};
use satori_machine::journal::Journal;
use satori_machine::{DeviceConfig, Devices, Disk, Pins, SerialEnd, SerialPorts, VmbusConfig};

use crate::late;
use crate::opened::Opened;
use crate::places::unix_socket;
use crate::{cli, network, shares};

/// How a guest reaches a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceBus {
    /// PCI, and virtio over it.
    #[default]
    Virtio,
    /// Hyper-V's VMBus.
    Vmbus,
    /// Xen's back ends.
    Xen,
}

impl DeviceBus {
    /// What `bus=` names.
    pub fn named(name: &str) -> Result<Self, String> {
        match name {
            "virtio" => Ok(DeviceBus::Virtio),
            "vmbus" => Ok(DeviceBus::Vmbus),
            "xen" => Ok(DeviceBus::Xen),
            other => Err(format!("there is no bus '{other}': write bus=virtio, bus=vmbus or bus=xen")),
        }
    }
}

/// One `--disk`: `FILE[,format=raw|qcow2][,backing=DIR][,readonly][,snapshot][,cache=..][,serial=TEXT][,io-thread=N][,bus=..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The image.
    pub file: PathBuf,
    format: Format,
    /// The folder that what a qcow2 image is based on has to lie in, if that is not the image's.
    backing: Option<PathBuf>,
    access: Access,
    cache: Cache,
    serial: String,
    /// Which of the I/O threads does its work, from 0 on.
    io_thread: Option<usize>,
    /// How the guest reaches it.
    pub bus: DeviceBus,
}

/// What a part behind the file's name may be.
const PARTS: &str = "format=raw|qcow2, backing=DIR, readonly, snapshot, cache=.., serial=TEXT, io-thread=N or bus=virtio|vmbus|xen (a comma in a name is two)";

/// Reads one `--disk`; the file is not looked at.
pub fn disk(text: &OsStr) -> Result<DiskSpec, String> {
    let mut parts = split(text);
    let file: PathBuf = parts.remove(0).into();
    if file.as_os_str().is_empty() {
        return Err("name an image: --disk FILE".into());
    }
    let (mut readonly, mut snapshot) = (false, false);
    let (cache, access, serial) = (Cache::default(), Access::Write, String::new());
    let bus = DeviceBus::default();
    let mut disk =
        DiskSpec { file, format: Format::Raw, backing: None, access, cache, serial, io_thread: None, bus };
    for part in parts {
        if let Some(folder) = part.as_bytes().strip_prefix(b"backing=") {
            disk.backing = Some(OsStr::from_bytes(folder).into());
            continue;
        }
        let part = part.to_string_lossy().into_owned();
        match part.split_once('=').unwrap_or((&part, "")) {
            ("readonly", "") => readonly = true,
            ("snapshot", "") => snapshot = true,
            ("serial", serial) => disk.serial = serial.into(),
            ("cache", word) => {
                let all = Cache::ALL.map(Cache::name);
                disk.cache = Cache::ALL.into_iter().find(|cache| cache.name() == word).ok_or_else(|| {
                    format!(
                        "'cache={word}': write one of {}, which mean what QEMU means by them",
                        all.join(", ")
                    )
                })?;
            }
            ("io-thread", number) => {
                let index = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                disk.io_thread = Some(index.ok_or_else(|| {
                    format!("'io-thread={number}': write a number from 1 to that of --io-threads")
                })?);
            }
            ("bus", name) => disk.bus = DeviceBus::named(name)?,
            ("format", "raw") => disk.format = Format::Raw,
            ("format", "qcow2") => disk.format = Format::Qcow2,
            ("format", other) => {
                return Err(format!(
                    "images are read as raw or qcow2, not as '{other}': 'qemu-img convert -O qcow2' makes one"
                ));
            }
            _ => return Err(format!("'{part}' is none of {PARTS}")),
        }
    }
    disk.access = match (readonly, snapshot) {
        (true, true) => {
            return Err(
                "a snapshot takes writes, and 'readonly' refuses them: leave one of the two out".into()
            );
        }
        (true, false) => Access::ReadOnly,
        (false, true) => Access::Snapshot,
        (false, false) => Access::Write,
    };
    if disk.bus == DeviceBus::Xen && !disk.serial.is_empty() {
        return Err("disks on Xen's bus have no serial: leave 'serial' or 'bus=xen' out".into());
    }
    if disk.backing.is_some() && disk.format == Format::Raw {
        return Err(
            "only a qcow2 image is based on others: write 'format=qcow2', or leave 'backing' out".into()
        );
    }
    Ok(disk)
}

/// The parts between single commas.
fn split(text: &OsStr) -> Vec<OsString> {
    let mut parts = vec![Vec::new()];
    let mut rest = text.as_bytes().iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match parts.last_mut() {
            Some(last) if byte != b',' || rest.next_if_eq(&b',').is_some() => last.push(byte),
            _ => parts.push(Vec::new()),
        }
    }
    parts.into_iter().map(OsString::from_vec).collect()
}

/// The devices of the flags.
pub fn devices(flags: &cli::Machine, pins: &Pins, journal: Option<Journal>) -> Result<Devices> {
    buses(flags)?;
    let (disks, nics, taps) = (
        disks(flags, DeviceBus::Virtio)?,
        network::nics(flags, DeviceBus::Virtio)?,
        network::taps(flags, DeviceBus::Virtio)?,
    );
    let folders = shares::folders([], flags)?;
    let shares = folders.iter().map(|folder| folder.serve(flags)).collect::<Result<Vec<_>>>()?;
    let ports = flags.front.as_ref().map(|front| front.ports.take()).unwrap_or_default();
    Ok(Devices::new(DeviceConfig {
        disks,
        nics,
        taps,
        xen_disks: xen_disks(flags)?,
        xen_nics: network::nics(flags, DeviceBus::Xen)?,
        xen_taps: network::taps(flags, DeviceBus::Xen)?,
        vsock: crate::vsock::sockets(flags)?,
        shares,
        ports,
        rng: flags.rng,
        balloon: flags.balloon,
        vmbus: vmbus(flags)?,
        pins: pins.clone(),
        journal,
    })?)
}

/// The disks of the flags that are on `bus`. Opens images, and changes none.
pub fn disks(flags: &cli::Machine, bus: DeviceBus) -> Result<Vec<Disk>> {
    flags.disk.iter().filter(|disk| disk.bus == bus).map(open).collect()
}

/// Those of them that are on Xen's bus.
pub fn xen_disks(flags: &cli::Machine) -> Result<Vec<Disk>> {
    disks(flags, DeviceBus::Xen)
}

/// Refuses devices on Xen's bus where the guest does not find Xen.
pub fn buses(flags: &cli::Machine) -> Result<()> {
    let xen = flags.processor.guest.as_ref().is_some_and(|guest| guest.xen().is_some());
    if !xen && let Some(spec) = flags.disk.iter().find(|spec| spec.bus == DeviceBus::Xen) {
        bail!(
            "--disk {},bus=xen is for guests that find Xen: add --guest xen-pvh or xen-hvm",
            spec.file.display()
        );
    }
    if !xen && flags.net.as_ref().is_some_and(|net| net.bus == DeviceBus::Xen) {
        bail!("--net ..,bus=xen is for guests that find Xen: add --guest xen-pvh or xen-hvm");
    }
    Ok(())
}

/// What is on the guest's VMBus, if it has one.
pub fn vmbus(flags: &cli::Machine) -> Result<Option<VmbusConfig>> {
    let bus = DeviceBus::Vmbus;
    if !flags.has_vmbus() {
        return Ok(None);
    }
    Ok(Some(VmbusConfig {
        disks: disks(flags, bus)?,
        nics: network::nics(flags, bus)?,
        taps: network::taps(flags, bus)?,
    }))
}

/// The serial ports of `--serial`; files that they lead to are `opened`, and emptied when the guest begins.
pub fn serials(flags: &cli::Machine, opened: &mut Opened) -> Result<SerialPorts> {
    let mut open = |text: &OsString| {
        let wrong = |why: std::io::Error| {
            anyhow!("cannot open --serial {} ({}): name another place", text.display(), late::plain(&why))
        };
        match unix_socket(text) {
            Some(path) => {
                let end = SerialEnd::socket(path).map_err(wrong)?;
                opened.socket(path)?;
                Ok(end)
            }
            None if text == "none" => Ok(SerialEnd::Nowhere),
            None => opened.file("--serial", text.as_ref()).map(SerialEnd::File),
        }
    };
    if flags.serial.len() > 3 {
        bail!("a PC has four serial ports, and the first is the console: use --serial three times at most");
    }
    Ok(SerialPorts::new(flags.serial.iter().map(&mut open).collect::<Result<_>>()?)?)
}

fn open(spec: &DiskSpec) -> Result<Disk> {
    let shown = spec.file.display();
    let written = spec.access == Access::Write;
    let mut options = File::options();
    options.read(true).write(written);
    if spec.cache.direct() {
        options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    }
    let file = options.open(&spec.file).map_err(|why| match why.kind() {
        std::io::ErrorKind::InvalidInput if spec.cache.direct() => anyhow!(
            "--disk {shown}: its file system has no direct access, as cache={} asks for: write cache=writeback",
            spec.cache.name()
        ),
        _ => anyhow!("cannot open --disk {shown} ({}): name another image", plain(&why, written)),
    })?;
    if !file.metadata().is_ok_and(|meta| {
        use std::os::unix::fs::FileTypeExt;
        meta.is_file() || meta.file_type().is_block_device()
    }) {
        bail!("--disk {shown} is neither a file nor a block device: name an image");
    }
    let DiskSpec { format, access, backing, serial, io_thread, .. } = spec.clone();
    let here = spec.file.parent().map(|folder| match folder.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => folder.into(),
    });
    let image = Image::open(Source { name: format!("--disk {shown}"), file, format, access, here, backing })?;
    Ok(Disk { image: image.with_cache(spec.cache), serial, io_thread })
}

fn plain(why: &std::io::Error, written: bool) -> String {
    let text = why.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text).to_string();
    let hint = written && why.kind() == std::io::ErrorKind::PermissionDenied;
    if hint { format!("{text}; 'readonly' or 'snapshot' need not write it") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_name_and_words() {
        let read = |text: &str| disk(OsStr::new(text));
        let spec = read("a,,b.img,readonly,serial=x,format=raw").unwrap();
        assert_eq!(spec.file, PathBuf::from("a,b.img"));
        assert!(spec.access == Access::ReadOnly && spec.serial == "x");
        assert_eq!(read("a,cache=none").unwrap().cache, Cache::None);
        let bus = |text| read(text).unwrap().bus;
        assert_eq!((bus("a,bus=xen"), bus("a,bus=virtio")), (DeviceBus::Xen, DeviceBus::Virtio));
        assert_eq!(bus("a,bus=vmbus"), DeviceBus::Vmbus);
        let spec = read("a,format=qcow2,backing=/b,snapshot").unwrap();
        assert_eq!(read("a,io-thread=2").unwrap().io_thread, Some(1));
        assert!(spec.format == Format::Qcow2 && spec.access == Access::Snapshot);
        assert_eq!(spec.backing, Some("/b".into()));
        for (wrong, told) in [
            ("", "name an image"),
            ("a,format=vmdk", "qemu-img convert"),
            ("a,cache=fast", "writeback, none, writethrough, directsync, unsafe"),
            ("a,backing=/b", "format=qcow2"),
            ("a,ro", "readonly"),
            ("a,io-thread=0", "a number from 1"),
            ("a,io-thread", "a number from 1"),
            ("a,bus=ide", "bus=virtio, bus=vmbus or bus=xen"),
            ("a,bus=xen,serial=x", "no serial"),
            ("a,readonly,snapshot", "leave one"),
            ("a,snapshot=on", "snapshot"),
        ] {
            assert!(read(wrong).unwrap_err().contains(told), "{wrong}");
        }
    }
}
