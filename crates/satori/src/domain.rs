//! Devices of the file of `--libvirt`, as if the options had named them.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Result, anyhow};
use satori_libvirt::{Disk, Domain, Filesystem, Interface, Network, Node, Place, Placement};
use satori_machine::HostNodes;

use crate::numa::{self, NumaSpec};
use crate::{choose, cli, devices, network, shares};

/// Puts the file's devices before those of the options; of what there can be one of, the option's stays.
pub(crate) fn take(flags: &mut cli::Machine) -> Result<()> {
    let Some(path) = flags.processor.libvirt.clone() else { return Ok(()) };
    let domain = choose::read(&path, false)?;
    let at = |place: Option<Place>, why: String| wrong(&path, place, &why);
    let number =
        |id: u32| domain.iothreads.iter().position(|known| *known == id).map_or(1, |index| index + 1);
    let mut disks = Vec::new();
    for disk in &domain.disks {
        let words = disk_words(disk, disk.iothread.map(|(id, _)| number(id)));
        disks.push(devices::disk(OsStr::new(&words)).map_err(|why| at(disk.place, why))?);
    }
    flags.disk.splice(0..0, disks);
    let mut folders = Vec::new();
    for folder in &domain.filesystems {
        let words = folder_words(folder);
        shares::Folder::read(&words).map_err(|why| at(folder.place, format!("{why:#}")))?;
        folders.push(words);
    }
    flags.share.splice(0..0, folders);
    if let (None, Some(card)) = (&flags.net, domain.interfaces.first()) {
        flags.net = Some(network::spec(&card_words(card)).map_err(|why| at(card.place, why))?);
    }
    flags.rng |= domain.rng;
    if flags.numa.is_empty() {
        flags.numa = nodes(&domain).map_err(|why| wrong(&path, None, &why))?;
    }
    if domain.balloon {
        flags.balloon.get_or_insert(0);
    }
    Ok(())
}

fn wrong(path: &Path, place: Option<Place>, why: &str) -> anyhow::Error {
    match place {
        Some(place) => anyhow!("{}:{place}: {why}", path.display()),
        None => anyhow!("{}: {why}", path.display()),
    }
}

fn disk_words(disk: &Disk, thread: Option<usize>) -> String {
    let format = if disk.qcow2 { "qcow2" } else { "raw" };
    let mut words = format!("{},format={format}", disk.file.replace(',', ",,"));
    words += if disk.readonly { ",readonly" } else { "" };
    words += if disk.transient { ",snapshot" } else { "" };
    if let Some(cache) = &disk.cache {
        words += &format!(",cache={cache}");
    }
    if !disk.serial.is_empty() {
        words += &format!(",serial={}", disk.serial.replace(',', ",,"));
    }
    if let Some(thread) = thread {
        words += &format!(",io-thread={thread}");
    }
    words
}

fn folder_words(folder: &Filesystem) -> String {
    let Filesystem { folder: path, tag, plan9, readonly, .. } = folder;
    let (mode, dialect) = (if *readonly { "ro" } else { "rw" }, if *plan9 { ",9p" } else { "" });
    format!("{path}:{tag},{mode}{dialect}")
}

fn card_words(card: &Interface) -> String {
    let mut words = match &card.network {
        Network::User => "user".to_owned(),
        Network::Tap(name) => format!("tap={name}"),
    };
    for forward in &card.forwards {
        words += &format!(",forward={forward}");
    }
    if let Some(mac) = &card.mac {
        words += &format!(",mac={mac}");
    }
    if let Some(queues) = card.queues {
        words += &format!(",queues={queues}");
    }
    words
}

/// Nodes of memory and processors. Where there is only a word on where memory is placed, it is of one node with all that there is.
fn nodes(domain: &Domain) -> Result<Vec<NumaSpec>, String> {
    let host = |own: Option<&Placement>| {
        let placed = own.or(domain.placement.as_ref());
        let nodes = |placed: &Placement| {
            let host = HostNodes { nodes: placed.nodes.clone(), policy: numa::host_policy(&placed.mode)? };
            numa::sound(&host).map(|()| host)
        };
        placed.map(nodes).transpose()
    };
    let cells = &domain.numa;
    if cells.is_empty() {
        return Ok(host(None)?
            .map(|host| NumaSpec { host: Some(host), ..NumaSpec::default() })
            .into_iter()
            .collect());
    }
    let spec = |(number, cell): (usize, &Node)| {
        let told = |other| cell.distances.iter().find(|(to, _)| *to == other).map(|(_, far)| *far);
        let far = |other| told(other).unwrap_or_else(|| numa::distance(other == number));
        Ok(NumaSpec {
            memory: Some(cell.memory),
            cpus: Some(cell.cpus.clone()),
            distances: Some((0..cells.len()).map(far).collect()),
            host: host(cell.placement.as_ref())?,
        })
    };
    cells.iter().enumerate().map(spec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Flags that name a file, which is there as long as they are.
    struct Flags(cli::Machine, std::path::PathBuf);

    impl std::ops::Deref for Flags {
        type Target = cli::Machine;

        fn deref(&self) -> &cli::Machine {
            &self.0
        }
    }

    impl Drop for Flags {
        fn drop(&mut self) {
            std::fs::remove_file(&self.1).unwrap();
        }
    }

    fn flags(xml: &str, words: &[&str]) -> Result<Flags, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let file = std::env::temp_dir().join(format!("satori-domain-{}-{number}", std::process::id()));
        std::fs::write(&file, xml).unwrap();
        let file_word = file.display().to_string();
        let all = ["satori", "run", "--kernel", "k", "--libvirt", &file_word]
            .into_iter()
            .chain(words.iter().copied());
        let cli::Command::Run(mut run) = cli::Cli::try_parse_from(all).unwrap().command else {
            panic!("another command")
        };
        let taken = take(&mut run.machine).map_err(|why| format!("{why:#}").replace(&file_word, "d.xml"));
        let flags = Flags(run.machine, file);
        taken.map(|()| flags)
    }

    const ALL: &str = "<domain><iothreads>2</iothreads><memory unit='MiB'>512</memory><vcpu>2</vcpu>
<cputune><iothreadpin iothread='2' cpuset='0'/></cputune>
<numatune><memory mode='strict' nodeset='0'/><memnode cellid='1' mode='preferred' nodeset='0'/></numatune>
<cpu><numa><cell id='0' cpus='0' memory='256' unit='MiB'/>
<cell id='1' cpus='1' memory='256' unit='MiB'><distances><sibling id='0' value='30'/></distances></cell></numa></cpu>
<devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2' cache='none' iothread='2'/><source file='/a,b.qcow2'/>
<target dev='vda' bus='virtio'/><serial>S1</serial><transient/></disk>
<interface type='user'><mac address='52:54:00:00:00:07'/><model type='virtio'/><driver name='vhost' queues='2'/>
<portForward proto='tcp' address='127.0.0.1'><range start='2222' end='2223' to='22'/></portForward></interface>
<filesystem type='mount'><driver type='virtiofs'/><source dir='/tmp'/><target dir='t'/><readonly/></filesystem>
<rng model='virtio'/><memballoon model='virtio'/><controller type='pci' model='pcie-root'/></devices></domain>";

    #[test]
    fn devices_of_a_domain_are_those_of_options() {
        // Not every process may use processor 0.
        let here = satori_machine::host_processors()[0];
        let all = &ALL.replace("cpuset='0'", &format!("cpuset='{here}'"));
        let machine = flags(all, &["--disk", "other.img", "--share", "/usr:u"]).unwrap();
        let disk = |words: &str| devices::disk(OsStr::new(words)).unwrap();
        let first = disk("/a,,b.qcow2,format=qcow2,snapshot,cache=none,serial=S1,io-thread=2");
        assert_eq!(machine.disk, [first, disk("other.img")]);
        assert_eq!(machine.share, ["/tmp:t,ro", "/usr:u"]);
        let net =
            "user,forward=tcp:127.0.0.1:2222:22,forward=tcp:127.0.0.1:2223:23,mac=52:54:00:00:00:07,queues=2";
        assert_eq!(machine.net, Some(network::spec(net).unwrap()));
        assert_eq!(
            machine.numa[1],
            numa::spec("memory=256M,cpus=1,distances=30:10,host-nodes=0,policy=preferred").unwrap()
        );
        assert_eq!(machine.numa[0].host, numa::spec("host-nodes=0").unwrap().host);
        assert_eq!((machine.rng, machine.balloon), (true, Some(0)));
        let chosen = choose::machine(&machine).unwrap();
        assert_eq!(chosen.pins.io, [vec![], vec![here]]);
        assert!(
            chosen.warnings.iter().any(|text| text.contains("a thread of Satori's own")),
            "{:?}",
            chosen.warnings
        );
        let own = flags(all, &["--net", "user,restrict", "--io-threads", "3"]).unwrap();
        assert_eq!(own.net, Some(network::spec("user,restrict").unwrap()));
        assert_eq!(choose::machine(&own).unwrap().pins.io.len(), 3);
    }

    #[test]
    fn a_device_that_is_wrong_is_told_with_its_place() {
        for (xml, said) in [
            ("<devices><disk><target dev='vda'/></disk></devices>", "d.xml:1:10: <disk> names no image"),
            (
                "<disk><source file='a'/><target dev='vda'/><driver cache='fast'/></disk>",
                "d.xml:1:1: 'cache=fast'",
            ),
            (
                "<disk><source file='a'/><target dev='vda'/><driver iothread='1'/></disk>",
                "there is no I/O thread 1",
            ),
            ("<iothreadpin iothread='0' cpuset='0'/>", "'0' is no I/O thread"),
            ("<iothreads>many</iothreads>", "write 1 to 64"),
            ("<interface type='ethernet'/>", "names no tap"),
            ("<interface type='user'><driver queues='9'/></interface>", "1 to 8"),
            (
                "<interface type='user'><portForward proto='tcp'><range start='x'/></portForward></interface>",
                "start='2222'",
            ),
            ("<filesystem><source dir='/tmp'/></filesystem>", "needs a folder and a tag"),
            ("<filesystem><source dir='/nonexistent'/><target dir='t'/></filesystem>", "cannot be found"),
            ("<cpu><numa><cell id='1' memory='1'/></numa></cpu>", "write id='0'"),
        ] {
            let why = flags(xml, &[]).err().expect("a mistake");
            assert!(why.contains(said), "{xml}: {why}");
        }
    }
}
