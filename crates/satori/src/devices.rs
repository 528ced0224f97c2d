//! Devices that options ask for: `--disk`, `--rng`, and `--net` with [`network`].

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use satori_machine::{DeviceConfig, Devices, Disk, SerialEnd, SerialPorts};

use crate::late;
use crate::opened::Opened;
use crate::places::unix_socket;
use crate::{cli, network};

/// One `--disk`: `FILE[,format=raw][,readonly][,snapshot][,serial=TEXT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// The image.
    pub file: PathBuf,
    readonly: bool,
    snapshot: bool,
    serial: String,
}

/// What a part behind the file's name may be.
const PARTS: &str = "format=raw, readonly, snapshot or serial=TEXT (a comma in a name is two)";

/// Reads one `--disk`; the file is not looked at.
pub fn disk(text: &OsStr) -> Result<DiskSpec, String> {
    let mut parts = split(text);
    let file: PathBuf = parts.remove(0).into();
    if file.as_os_str().is_empty() {
        return Err("name an image: --disk FILE".into());
    }
    let mut disk = DiskSpec { file, readonly: false, snapshot: false, serial: String::new() };
    for part in parts {
        let part = part.to_string_lossy().into_owned();
        match part.split_once('=').unwrap_or((&part, "")) {
            ("readonly", "") => disk.readonly = true,
            ("snapshot", "") => disk.snapshot = true,
            ("serial", serial) => disk.serial = serial.into(),
            ("format", "raw") | ("bus", "virtio") => {}
            ("format", other) => {
                return Err(format!(
                    "this version reads raw images, not '{other}': 'qemu-img convert -O raw' makes one"
                ));
            }
            _ => return Err(format!("'{part}' is none of {PARTS}")),
        }
    }
    if disk.readonly && disk.snapshot {
        return Err("a snapshot takes writes, and 'readonly' refuses them: leave one of the two out".into());
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
pub fn devices(flags: &cli::Machine) -> Result<Devices> {
    let nics = network::nics(flags)?;
    Ok(Devices::new(DeviceConfig { disks: disks(flags)?, nics, rng: flags.rng, ..DeviceConfig::default() })?)
}

/// The disks of the flags. Opens images, and changes none.
pub fn disks(flags: &cli::Machine) -> Result<Vec<Disk>> {
    flags.disk.iter().map(open).collect()
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
    let written = !spec.readonly && !spec.snapshot;
    let file = File::options().read(true).write(written).open(&spec.file).map_err(|why| {
        anyhow!("cannot open --disk {shown} ({}): name another image", plain(&why, written))
    })?;
    if !file.metadata().is_ok_and(|meta| {
        use std::os::unix::fs::FileTypeExt;
        meta.is_file() || meta.file_type().is_block_device()
    }) {
        bail!("--disk {shown} is neither a file nor a block device: name an image");
    }
    let DiskSpec { readonly, snapshot, serial, .. } = spec.clone();
    Ok(Disk { name: format!("--disk {shown}"), file, readonly, snapshot, serial })
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
        assert!(spec.readonly && !spec.snapshot && spec.serial == "x");
        for (wrong, told) in [
            ("", "name an image"),
            ("a,format=qcow2", "qemu-img convert"),
            ("a,ro", "readonly"),
            ("a,readonly,snapshot", "leave one"),
            ("a,snapshot=on", "snapshot"),
        ] {
            assert!(read(wrong).unwrap_err().contains(told), "{wrong}");
        }
    }
}
