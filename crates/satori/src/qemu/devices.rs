//! Disks, networks and other devices in QEMU's words.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use anyhow::{Result, bail};

use super::words::Wishes;

/// A `-drive`.
#[derive(Debug, Default)]
pub(super) struct Drive {
    file: PathBuf,
    id: String,
    format: Option<String>,
    readonly: bool,
    snapshot: bool,
    cache: Option<String>,
    serial: String,
    /// An object's name, which may come later.
    io_thread: Option<String>,
    /// By `if=virtio`, or by the device that names it.
    attached: bool,
}

/// A network card.
#[derive(Debug)]
pub(super) struct Card {
    /// The words of its `--net`.
    net: String,
    mac: Option<String>,
}

/// What -device understands.
const DEVICES: &[(&str, &str)] = &[
    ("virtio-blk-pci", "drive=ID[,serial=TEXT][,iothread=ID]: a disk of -drive if=none"),
    ("virtio-net-pci", "netdev=ID[,mac=ADDRESS]: a network card"),
    ("virtio-rng-pci", "random bytes"),
    ("virtio-balloon-pci", "memory that the guest freed goes back; it is asked for none"),
    ("virtio-9p-pci", "fsdev=ID,mount_tag=TAG: a folder of -fsdev"),
    ("virtio-serial-pci", "where ports are; there is one console for all of them"),
    ("virtserialport", "name=NAME,chardev=ID: a port"),
    ("virtconsole", "chardev=ID: a port that is hvc0"),
    ("i6300esb", "nothing: the guest finds no watchdog"),
    ("isa-debug-exit", "iobase=0xf4: a write of N ends with (N << 1) | 1"),
    ("pvpanic", "always there"),
    ("pc-testdev", "for suites of tests"),
];

/// What belongs to no device's own, and changes nothing here.
const PLACES: &[&str] = &[
    "id",
    "bus",
    "addr",
    "bootindex",
    "disable-legacy",
    "disable-modern",
    "romfile",
    "rng",
    "max-bytes",
    "period",
    "iosize",
];

pub(super) fn list() -> String {
    DEVICES.iter().map(|(name, what)| format!("name \"{name}\", desc \"{what}\"\n")).collect()
}

impl Wishes {
    pub(super) fn drive(&mut self, value: &OsStr) -> Result<()> {
        let mut drive = Drive::default();
        let shown = value.display();
        let mut kind = "ide".to_owned();
        // A file's name may be anything; of the rest all is text.
        for part in value.as_bytes().split(|byte| *byte == b',') {
            if let Some(file) = part.strip_prefix(b"file=") {
                drive.file = OsString::from_vec(file.to_vec()).into();
                continue;
            }
            let part = String::from_utf8_lossy(part);
            match part.split_once('=').unwrap_or((&part, "on")) {
                ("id", id) => drive.id = id.into(),
                ("if", name) => kind = name.into(),
                ("format", format @ ("raw" | "qcow2")) => drive.format = Some(format.into()),
                ("readonly" | "read-only", word) => drive.readonly = word == "on",
                ("snapshot", word) => drive.snapshot = word == "on",
                ("cache", word) => drive.cache = Some(word.into()),
                ("serial", serial) => drive.serial = serial.into(),
                ("media", "disk")
                | ("index" | "aio" | "discard" | "werror" | "rerror" | "detect-zeroes", _) => {}
                _ => bail!("-drive {shown}: '{part}' is not understood here: leave it out"),
            }
        }
        match kind.as_str() {
            "virtio" => drive.attached = true,
            "none" => {}
            _ => bail!(
                "-drive {shown}: there is no IDE or SCSI; write if=virtio, and the guest's disk is /dev/vda"
            ),
        }
        if drive.file.as_os_str().is_empty() {
            bail!("-drive {shown}: write file=FILE");
        }
        if drive.format.is_none() {
            let mut magic = [0; 4];
            // What looks like qcow2 and is taken for raw would be written over.
            if File::open(&drive.file).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
                && magic == *b"QFI\xfb"
            {
                bail!("-drive {shown}: formats are not guessed; write format=qcow2");
            }
        }
        self.drives.push(drive);
        Ok(())
    }

    /// The words of `--net` that a `user` network's properties come to.
    fn user(text: &str, parts: &[(&str, &str)]) -> Result<(String, Option<String>)> {
        let (mut net, mut mac) = ("user".to_owned(), None);
        for (key, value) in parts {
            match (*key, *value) {
                ("id" | "ipv4" | "ipv6" | "model", "on" | "off")
                | ("id" | "net" | "host" | "dhcpstart" | "hostname", _) => {}
                ("model", "virtio" | "virtio-net-pci" | "virtio-net") => {}
                ("mac" | "macaddr", address) => mac = Some(address.to_owned()),
                ("restrict", word) => {
                    net += if matches!(word, "on" | "y" | "yes") { ",restrict" } else { "" }
                }
                ("hostfwd", rule) => net = format!("{net},forward={}", forward(text, rule)?),
                _ => bail!("{text}: '{key}={value}' is not understood here: leave it out"),
            }
        }
        Ok((net, mac))
    }

    pub(super) fn netdev(&mut self, text: &str) -> Result<()> {
        let (kind, parts) = Wishes::parts(text);
        if kind != "user" {
            bail!("-netdev {text}: there is no '{kind}' here: write user");
        }
        let Some((_, id)) = parts.iter().find(|(key, _)| *key == "id") else {
            bail!("-netdev {text}: write id=NAME")
        };
        let (net, _) = Wishes::user(&format!("-netdev {text}"), &parts)?;
        self.networks.insert((*id).to_owned(), net);
        Ok(())
    }

    pub(super) fn nic(&mut self, text: &str) -> Result<()> {
        match Wishes::parts(text) {
            ("none", _) => Ok(()),
            ("user", parts) => {
                let (net, mac) = Wishes::user(&format!("-nic {text}"), &parts)?;
                self.cards.push(Card { net, mac });
                Ok(())
            }
            (kind, _) => bail!("-nic {text}: there is no '{kind}' here: write user,model=virtio or none"),
        }
    }

    /// `-net nic` and `-net user`, which belong together.
    pub(super) fn net(&mut self, text: &str) -> Result<()> {
        match Wishes::parts(text) {
            ("none", _) => {}
            ("nic", parts) => {
                let (_, mac) = Wishes::user(&format!("-net {text}"), &parts)?;
                match self.cards.first_mut() {
                    Some(card) => card.mac = mac,
                    None => self.cards.push(Card { net: "user".into(), mac }),
                }
            }
            ("user", parts) => {
                let (net, _) = Wishes::user(&format!("-net {text}"), &parts)?;
                match self.cards.first_mut() {
                    Some(card) => card.net = net,
                    None => self.cards.push(Card { net, mac: None }),
                }
            }
            (kind, _) => {
                bail!("-net {text}: there is no '{kind}' here: write nic,model=virtio and user, or none")
            }
        }
        Ok(())
    }

    pub(super) fn device(&mut self, text: &str) -> Result<()> {
        let (name, parts) = Wishes::parts(text);
        let known =
            |own: &[&str]| match parts.iter().find(|(key, _)| !own.contains(key) && !PLACES.contains(key)) {
                Some((key, _)) => bail!("-device {text}: '{key}' is not understood here: leave it out"),
                None => Ok(()),
            };
        let find = |key: &str| parts.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
        match name {
            "virtio-blk-pci" | "virtio-blk" => {
                known(&["drive", "serial", "num-queues", "scsi", "write-cache", "iothread", "ioeventfd"])?;
                let id = find("drive").unwrap_or_default();
                let Some(drive) = self.drives.iter_mut().find(|drive| drive.id == id && !drive.attached)
                else {
                    bail!("-device {text}: there is no -drive if=none with id={id} before it");
                };
                drive.attached = true;
                if let Some(serial) = find("serial") {
                    drive.serial = serial.into();
                }
                drive.io_thread = find("iothread").map(str::to_owned);
            }
            "virtio-net-pci" | "virtio-net" => {
                known(&["netdev", "mac", "mq", "vectors", "ioeventfd"])?;
                let id = find("netdev").unwrap_or_default();
                // It may come later.
                self.cards.push(Card { net: format!("id={id}"), mac: find("mac").map(str::to_owned) });
            }
            "virtio-rng-pci" | "virtio-rng" => {
                known(&[])?;
                self.rng = true;
            }
            "virtio-balloon-pci" | "virtio-balloon" => {
                known(&["free-page-reporting", "deflate-on-oom", "guest-stats-polling-interval"])?;
                self.balloon = true;
            }
            "virtio-9p-pci" => {
                known(&["fsdev", "mount_tag"])?;
                self.mount(text, find("fsdev"), find("mount_tag"))?;
            }
            "virtio-serial-pci" | "virtio-serial" => known(&["max_ports", "vectors"])?,
            "virtserialport" | "virtconsole" => {
                known(&["name", "chardev", "nr"])?;
                self.port(text, find("name"), find("chardev"), name == "virtconsole")?;
            }
            "isa-debug-exit" if find("iobase") == Some("0xf4") => known(&["iobase"])?,
            "isa-debug-exit" => {
                bail!("-device {text}: the debug exit is at port 0xf4: write iobase=0xf4,iosize=0x04")
            }
            "pvpanic" => known(&["ioport"])?,
            // virtme-ng always adds one. Who needs it sees that there is no /dev/watchdog.
            "i6300esb" => known(&[])?,
            "pc-testdev" => self.suite = true,
            _ => bail!("-device {text}: there is no '{name}' here; '-device help' lists what there is"),
        }
        Ok(())
    }

    /// Disks, cards and the rest as words of `satori run`.
    pub(super) fn put_devices(&self, all: &mut Vec<OsString>) -> Result<()> {
        for drive in &self.drives {
            if !drive.attached {
                bail!("-drive id={}: no -device uses it; add -device virtio-blk-pci,drive={0}", drive.id);
            }
            let mut word = drive.file.as_os_str().to_owned();
            word.push(format!(",format={}", drive.format.as_deref().unwrap_or("raw")));
            if drive.readonly {
                word.push(",readonly");
            } else if drive.snapshot || self.snapshot {
                word.push(",snapshot");
            }
            if let Some(cache) = &drive.cache {
                word.push(format!(",cache={cache}"));
            }
            if !drive.serial.is_empty() {
                word.push(format!(",serial={}", drive.serial));
            }
            if let Some(id) = &drive.io_thread {
                match self.io_threads.iter().position(|thread| thread == id) {
                    Some(index) => word.push(format!(",io-thread={}", index + 1)),
                    None => bail!("-device virtio-blk-pci: there is no -object iothread with id={id}"),
                }
            }
            all.extend([OsString::from("--disk"), word]);
        }
        if !self.io_threads.is_empty() {
            all.push(format!("--io-threads={}", self.io_threads.len()).into());
        }
        if let [_, another, ..] = self.cards.as_slice() {
            bail!("there is one network card, and '{}' would be a second: leave it out", another.net);
        }
        for Card { net, mac } in &self.cards {
            let mut net = match net.strip_prefix("id=") {
                None => net.clone(),
                Some(id) => match self.networks.get(id) {
                    Some(net) => net.clone(),
                    None => bail!("-device virtio-net-pci: there is no -netdev with id={id}"),
                },
            };
            if let Some(mac) = mac {
                net = format!("{net},mac={mac}");
            }
            all.extend(["--net".to_owned(), net].map(OsString::from));
        }
        if self.balloon {
            all.push("--balloon".into());
        }
        if self.rng {
            all.push("--rng".into());
        }
        if self.suite {
            all.push("--testdev=suite".into());
        }
        Ok(())
    }
}

/// `tcp:ADDRESS:PORT-GUEST:PORT` as Satori writes it. Without an address it is this host's own, which others do not reach.
fn forward(text: &str, rule: &str) -> Result<String> {
    let read = || {
        let (host, guest) = rule.split_once('-')?;
        let mut parts = host.split(':');
        let (protocol, address, port) = (parts.next()?, parts.next()?, parts.next()?);
        let to = guest.rsplit(':').next()?;
        let protocol = if protocol.is_empty() { "tcp" } else { protocol };
        let address = if address.is_empty() { "127.0.0.1" } else { address };
        [port, to]
            .iter()
            .all(|port| port.parse::<u16>().is_ok())
            .then(|| format!("{protocol}:{address}:{port}:{to}"))
    };
    match read() {
        Some(rule) => Ok(rule),
        None => bail!("{text}: write hostfwd=tcp:127.0.0.1:2222-:22"),
    }
}
