//! What a domain's file says, as plain values.

use satori_cpuid::{Feature, Topology};
use satori_hyperv::choice::{Mistake, Mistakes, Place, Wish};

use crate::reader::Reader;
use crate::tree;

/// What a file says of a machine. What it does not say is none, or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// Bytes of memory, and where that stands.
    pub memory: Option<(u64, Place)>,
    /// Virtual processors, and where that stands.
    pub vcpus: Option<(u32, Place)>,
    /// How they make up cores, dies and sockets.
    pub topology: Option<(Topology, Place)>,
    /// Model and features.
    pub cpu: Cpu,
    /// The kernel's file.
    pub kernel: Option<String>,
    /// The initial ramdisk's file.
    pub initrd: Option<String>,
    /// The kernel's command line.
    pub cmdline: Option<String>,
    /// What is asked of Hyper-V; empty if the file says nothing about it.
    pub wishes: Vec<Wish>,
    /// Which of the host's processors threads may use.
    pub pins: Vec<Pin>,
    /// Numbers of I/O threads, as pins and disks have them.
    pub iothreads: Vec<u32>,
    /// Nodes of processors and memory.
    pub numa: Vec<Node>,
    /// Disks that can be had.
    pub disks: Vec<Disk>,
    /// Network cards that can be had.
    pub interfaces: Vec<Interface>,
    /// Folders of the host that can be had.
    pub filesystems: Vec<Filesystem>,
    /// A source of random bytes.
    pub rng: bool,
    /// A memory balloon.
    pub balloon: bool,
    /// Where the host places the memory of all nodes that say nothing themselves.
    pub placement: Option<Placement>,
    /// What a reset does.
    pub on_reboot: Option<OnReboot>,
    /// Frequency of the TSC in Hz.
    pub tsc_hz: Option<u64>,
    /// What cannot be honoured.
    pub warnings: Vec<Mistake>,
}

/// `<cpu>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// The model's name.
    pub model: Option<&'static str>,
    /// The vendor of CPUID leaf 0.
    pub vendor: Option<String>,
    /// Features on and off.
    pub features: Vec<(Feature, bool)>,
}

impl Cpu {
    /// The words that `--cpu` has for it; none if the file does not say anything of it.
    pub fn words(&self) -> Option<String> {
        if *self == Cpu::default() {
            return None;
        }
        let mut words = self.model.unwrap_or("max").to_string();
        for (feature, on) in &self.features {
            words += &format!(",{}{}", if *on { '+' } else { '-' }, feature.name());
        }
        if let Some(vendor) = &self.vendor {
            words += &format!(",vendor={vendor}");
        }
        Some(words)
    }
}

/// Threads, and the processors of the host that they may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Whose threads.
    pub whose: Whose,
    /// The host's processors.
    pub cpus: Vec<u32>,
    /// Where that stands.
    pub place: Place,
}

/// A thread of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// That of a virtual processor.
    Vcpu(u32),
    /// Those of all virtual processors of which nothing else is said.
    Vcpus,
    /// That of the devices' timers, and those of devices that no I/O thread has.
    Emulator,
    /// That of devices, by its number.
    IoThread(u32),
}

/// `<disk>` on virtio.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The image.
    pub file: String,
    /// It is qcow2, and not raw.
    pub qcow2: bool,
    /// How the host keeps what is written, in QEMU's words.
    pub cache: Option<String>,
    /// The guest may not write.
    pub readonly: bool,
    /// What it writes is forgotten.
    pub transient: bool,
    /// What the guest finds as its serial.
    pub serial: String,
    /// The number of the I/O thread that does its work, and where that stands.
    pub iothread: Option<(u32, Place)>,
    /// Where it stands.
    pub place: Option<Place>,
    /// It is one that cannot be had.
    pub(crate) other: bool,
}

/// `<interface>` on virtio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Where it leads.
    pub network: Network,
    /// The card's address.
    pub mac: Option<String>,
    /// Pairs of queues.
    pub queues: Option<u32>,
    /// Ports of the host that lead to the guest's, as PROTOCOL:ADDRESS:PORT:GUESTPORT.
    pub forwards: Vec<String>,
    /// Where it stands.
    pub place: Option<Place>,
}

/// Where an `<interface>` leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// A network of a process without rights.
    User,
    /// A tap that is there.
    Tap(String),
}

/// `<filesystem>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// The host's folder.
    pub folder: String,
    /// What the guest mounts it by.
    pub tag: String,
    /// By 9P, and not virtiofs.
    pub plan9: bool,
    /// The guest may not write.
    pub readonly: bool,
    /// Where it stands.
    pub place: Option<Place>,
}

/// A `mode` and a `nodeset` of `<numatune>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// strict, preferred or interleave.
    pub mode: String,
    /// The host's nodes.
    pub nodes: Vec<u32>,
}

/// A `<cell>` of `<numa>`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its vCPUs.
    pub cpus: Vec<u32>,
    /// Bytes.
    pub memory: u64,
    /// Distances to others, by their numbers.
    pub distances: Vec<(usize, u8)>,
    /// Where the host places its memory.
    pub placement: Option<Placement>,
    /// Where it stands.
    pub place: Option<Place>,
}

/// What a reset of the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnReboot {
    /// The machine starts again.
    Restart,
    /// The run ends.
    Destroy,
}

/// The largest file that is read.
const LARGEST: usize = 1 << 18;

/// Reads `text`, the content of the file `name`. `offered` tells which features the engine has.
pub fn read(name: &str, text: &str, offered: &dyn Fn(Feature) -> bool) -> Result<Domain, Mistakes> {
    read_as(name, text, offered, false)
}

/// Reads the domain of a guest that another program runs, to look at it: what libvirt has and Satori does not is a warning.
pub fn read_foreign(name: &str, text: &str, offered: &dyn Fn(Feature) -> bool) -> Result<Domain, Mistakes> {
    read_as(name, text, offered, true)
}

fn read_as(
    name: &str,
    text: &str,
    offered: &dyn Fn(Feature) -> bool,
    foreign: bool,
) -> Result<Domain, Mistakes> {
    if text.len() > LARGEST {
        let text = format!("more than {LARGEST} bytes: that is no domain");
        return Err(Mistakes(vec![Mistake { within: name.into(), place: None, text }]));
    }
    let text = tree::plain_spaces(text);
    let forest = tree::parse(&text);
    let mut reader = Reader::new(name, &text, offered, foreign);
    for (at, text) in forest.wrong {
        reader.wrong(at, text);
    }
    if forest.roots.is_empty() && reader.mistakes.is_empty() {
        reader.wrong(
            0,
            "there is no element: name a file with <domain>, or a part of one as <features>".into(),
        );
    }
    for root in &forest.roots {
        reader.root(root);
    }
    reader.finish()
}
