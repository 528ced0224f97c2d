//! A hostile driver of virtio devices: registers in any order, rings and descriptors of any content, base addresses
//! that move under it. What it may reach is the device's own memory and its own queues.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use arbitrary::{Result, Unstructured};
use satori_bus::{InterruptLine, MmioMap, Msi, MsiSink, TimerQueue};
use satori_defs::pci::{BAR0, COMMAND};
use satori_defs::virtio::pci::common::*;
use satori_image::{Access, Format, Image, Source};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_pci::PciFunction;
use satori_virtio::{
    BAR_BYTES, Balloon, Block, Console, Device, Dialect, Disk, Fs, Net, Nic, Port, Rng, Share, Sockets,
    VirtioFunction, Vsock, Wiring,
};

struct Nobody;

impl MsiSink for Nobody {
    fn signal(&self, _msi: Msi) {}
}

impl InterruptLine for Nobody {
    fn set(&self, _asserted: bool) {}
}

const BAR: u64 = 0xc000_0000;
const MEMORY: u64 = 0x2_0000;
/// Where the rings of a driver that behaves are, and how large.
const RINGS: u64 = 0x1000;
const SIZE: u16 = 8;
/// Steps of one driver at most.
const STEPS: usize = 300;

/// An image that no driver can change.
fn image() -> File {
    static IMAGE: OnceLock<File> = OnceLock::new();
    let made = IMAGE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("satori-attack-{}", std::process::id()));
        let options = File::options().read(true).write(true).create_new(true).open(&path);
        let file = options.expect("a file in the folder for temporary ones");
        std::fs::remove_file(&path).expect("the file that was made");
        file.write_all_at(&[0x5a; 1 << 16], 0).expect("64 KiB");
        file
    });
    made.try_clone().expect("a descriptor")
}

/// Bytes that are all alike.
struct Same(u8);

impl satori_virtio::RandomBytes for Same {
    fn fill(&mut self, _determined: bool, bytes: &mut [u8]) -> bool {
        bytes.fill(self.0);
        true
    }
    fn seed(&self) -> u64 {
        0
    }
    fn set_seed(&mut self, _seed: u64) {}
}

/// A device, and what has to stay for it.
fn device(which: u8) -> (Arc<dyn Device>, Option<UnixStream>) {
    match which % 8 {
        0 => (Rng::new(Same(1)), None),
        1 => {
            let null = |name: &str, input: bool| {
                let file = File::options().read(true).write(true).open("/dev/null").expect("the null device");
                let (input, output) =
                    if input { (Some(file.into()), None) } else { (None, Some(file.into())) };
                Port { name: name.into(), console: false, input, output }
            };
            (
                Console::new(vec![null("in", true), null("out", false)], &Default::default()).expect("ports"),
                None,
            )
        }
        2 => {
            let source = Source {
                name: "image".into(),
                file: image(),
                format: Format::Raw,
                access: Access::Snapshot,
                here: None,
                backing: None,
            };
            let disk = Disk {
                image: Image::open(source).expect("an image"),
                serial: "serial".into(),
                io_thread: None,
            };
            (Block::new(disk, Default::default()).expect("a disk"), None)
        }
        5 => (Balloon::new(1 << 20), None),
        6 => {
            let (socket, theirs) = UnixStream::pair().expect("a pair");
            (Vsock::new(Sockets { cid: 3, socket }, Default::default()).expect("sockets"), Some(theirs))
        }
        7 => {
            let (socket, theirs) = UnixStream::pair().expect("a pair");
            let nic = Nic { mac: [0x52, 0x54, 0, 0, 0, 1], pairs: 2, socket, ours: false };
            (Net::new(nic, Default::default()).expect("a card"), Some(theirs))
        }
        kind => {
            // A server that reads nothing: requests pile up to their bound.
            let (ours, theirs) = UnixStream::pair().expect("a pair");
            let dialect = if kind == 3 { Dialect::Fuse } else { Dialect::Plan9 };
            (
                Fs::new(Share { tag: "tag".into(), dialect, socket: ours }, Default::default())
                    .expect("a share"),
                Some(theirs),
            )
        }
    }
}

struct Driver {
    memory: GuestMemory,
    map: MmioMap,
    function: Arc<VirtioFunction>,
    timers: Arc<TimerQueue>,
    made: u16,
}

impl Driver {
    fn bar(&self) -> u64 {
        let half = |at: usize| u64::from(self.function.config_read(at as u16, 4));
        (half(BAR0) & !0xf) | half(BAR0 + 4) << 32
    }

    fn set(&self, register: u64, size: u8, value: u64) {
        self.map.write(self.bar().wrapping_add(register), size, value);
    }

    /// From a reset to DRIVER_OK, as a driver should.
    fn begin(&mut self, features: u64) {
        self.set(STATUS, 1, 0);
        self.set(STATUS, 1, 3);
        for half in 0..2 {
            self.set(DRIVER_FEATURE_SELECT, 4, half);
            self.set(DRIVER_FEATURE, 4, (features | 1 << 32) >> (32 * half) & 0xffff_ffff);
        }
        self.set(STATUS, 1, 11);
        for queue in 0..8 {
            self.set(QUEUE_SELECT, 2, queue);
            self.set(QUEUE_SIZE, 2, SIZE.into());
            // All queues share their rings: what is offered is offered to each.
            for (register, page) in [(QUEUE_DESC, 0), (QUEUE_DRIVER, 1), (QUEUE_DEVICE, 2)] {
                self.set(register, 8, RINGS + 0x1000 * page);
            }
            self.set(QUEUE_ENABLE, 2, 1);
        }
        self.set(STATUS, 1, 15);
        self.made = 0;
    }

    fn step(&mut self, u: &mut Unstructured) -> Result<()> {
        let size = *u.choose(&[1, 2, 4, 8])?;
        match u.int_in_range(0..=9)? {
            0 => self.function.config_write(u.int_in_range(0..=255)?, size.min(4), u.arbitrary()?),
            1 => self.set(u.int_in_range(0..=BYTES)?, size, u.arbitrary()?),
            2 => self.set(u.int_in_range(0..=BAR_BYTES)?, size, u.arbitrary()?),
            3 => drop(self.map.read(self.bar().wrapping_add(u.int_in_range(0..=BAR_BYTES)?), size)),
            4 => self.begin(u64::from(u.arbitrary::<u32>()?)),
            5 => {
                let at = u.int_in_range(0..=MEMORY)?;
                let _ = self.memory.write(Gpa(at), u.bytes(8)?);
            }
            6 => {
                // A descriptor that may be good, and what it leads to a request that may be.
                let index = u64::from(u.int_in_range(0..=SIZE)?);
                let at = *u.choose(&[0x8000, 0x9000, RINGS, MEMORY - 8, u64::MAX - 7])?;
                let mut raw = at.to_le_bytes().to_vec();
                raw.extend(u32::from(*u.choose(&[8_u16, 16, 40, 512, 513, 0xffff])?).to_le_bytes());
                raw.extend(u16::from(u.int_in_range(0..=7_u8)?).to_le_bytes());
                raw.extend(u16::from(u.int_in_range(0..=8_u8)?).to_le_bytes());
                let _ = self.memory.write(Gpa(RINGS + 16 * index), &raw);
                let word = u32::from(u.int_in_range(0..=45_u8)?);
                let _ = self.memory.write(Gpa(0x8000), &word.to_le_bytes());
            }
            7 => {
                let slot = u64::from(self.made % SIZE);
                let head = u16::from(u.int_in_range(0..=SIZE as u8)?);
                self.made = self.made.wrapping_add(1);
                let _ = self.memory.store_u16(Gpa(RINGS + 0x1004 + 2 * slot), head);
                let _ = self.memory.store_u16(Gpa(RINGS + 0x1002), self.made);
            }
            _ => {
                self.set(0x3000 + 4 * u.int_in_range(0..=9)?, 2, 0);
                // What waits for its time is done now, or later, when more was changed.
                if size < 8 {
                    self.timers.run(u64::MAX);
                }
            }
        }
        Ok(())
    }
}

/// Drives a device by `data`.
pub fn virtio(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let (device, _server) = device(u.arbitrary().unwrap_or(0));
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: MEMORY }]).expect("memory");
    let (map, timing) = (MmioMap::default(), crate::timing::standing());
    let wiring = Wiring {
        memory: memory.clone(),
        map: map.downgrade(),
        at: BAR,
        messages: Arc::new(Nobody),
        pin: Arc::new(Nobody),
        // On this thread, so that the same bytes do the same.
        timing: Some(timing.clone()),
        moved: Arc::default(),
    };
    let function = VirtioFunction::new("attacked", device, wiring);
    function.config_write(COMMAND as u16, 2, 6);
    let mut driver = Driver { memory, map, function, timers: timing.timers, made: 0 };
    for _ in 0..STEPS {
        if u.is_empty() || driver.step(&mut u).is_err() {
            break;
        }
    }
    // Whatever it did, the device is there again after a reset.
    driver.function.config_write(COMMAND as u16, 2, 0);
    driver.function.config_write(BAR0 as u16 + 4, 4, 0);
    driver.function.config_write(BAR0 as u16, 4, BAR as u32);
    driver.function.config_write(COMMAND as u16, 2, 6);
    driver.set(STATUS, 1, 0);
    assert_eq!(driver.map.read(BAR + STATUS, 1), 0, "a reset");
    driver.begin(0);
    assert_eq!(driver.map.read(BAR + STATUS, 1) & 0xf, 15, "and a driver that behaves");
}
