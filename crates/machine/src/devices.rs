//! Devices on the PCI bus: what a configuration wants of them, and how each life of the machine wires them.

use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use satori_boot::layout;
use satori_bus::{InterruptLine, MsiSink, WeakMmioMap};
use satori_chipset::{Chipset, PciTestdev};
use satori_defs::chipset::ioapic;
use satori_engine::Entropy;
use satori_image::Requests;
use satori_journal::Journal;
use satori_memory::GuestMemory;
use satori_pci::PciBus;
use satori_virtio::{
    BAR_BYTES, Balloon, Block, Console, Device, Dialect, Disk, Fs, Net, Nic, Port, RandomBytes, Rng, Share,
    Sockets, TapCard, Timing, VirtioFunction, Vsock, Wiring,
};

use satori_cable::Cable;
use satori_vmbus_devices::{NetVsc, Scsi};

use crate::pins::IoThreads;
use crate::{Error, Pins, entropy};

/// Which devices a machine has on its PCI bus, beside the host bridge. Without any, a guest finds none.
#[derive(Debug, Default)]
pub struct DeviceConfig {
    /// Streams to and from the guest, as ports of one virtio console.
    pub ports: Vec<Port>,
    /// Folders, as virtio file systems or by 9P.
    pub shares: Vec<Share>,
    /// Disks, in this order.
    pub disks: Vec<Disk>,
    /// Network cards, in this order.
    pub nics: Vec<Nic>,
    /// Network cards on taps, behind the others.
    pub taps: Vec<TapCard>,
    /// Disks that the guest reaches by Xen's back ends, in this order; it has to find Xen's interface.
    pub xen_disks: Vec<Disk>,
    /// Network cards that it reaches so.
    pub xen_nics: Vec<Nic>,
    /// The same on taps, behind the others.
    pub xen_taps: Vec<TapCard>,
    /// Sockets between guest and host.
    pub vsock: Option<Sockets>,
    /// A source of random bytes.
    pub rng: bool,
    /// A memory balloon, which asks for so many bytes.
    pub balloon: Option<u64>,
    /// Hyper-V's VMBus, with what is on it beside the utilities.
    pub vmbus: Option<VmbusConfig>,
    /// How many I/O threads there are, and on which processors of the host threads of devices run.
    pub pins: Pins,
    /// What records what comes to them from outside, or plays it again.
    pub journal: Option<Journal>,
}

/// What is on a machine's VMBus beside the utilities.
#[derive(Debug, Default)]
pub struct VmbusConfig {
    /// Disks, in this order.
    pub disks: Vec<Disk>,
    /// Network cards, in this order.
    pub nics: Vec<Nic>,
    /// Network cards on taps, behind the others.
    pub taps: Vec<TapCard>,
}

/// Devices that outlive resets; clones are the same devices.
#[derive(Clone, Default)]
pub struct Devices(Arc<All>);

/// All devices: those on PCI by their names, those on VMBus, if there is one, and those behind Xen's back ends.
#[derive(Default)]
struct All {
    pci: Vec<(&'static str, Arc<dyn Device>)>,
    vmbus: Option<Vec<Arc<dyn satori_vmbus::Device>>>,
    xen: satori_xenback::Devices,
    /// What comes to them from outside comes by a journal.
    journalled: bool,
}

/// Device numbers on the bus that are ours to give: 0 is the host bridge.
const SLOTS: std::ops::RangeInclusive<u8> = 1..=31;

impl Devices {
    /// Makes them. Errors are mistakes of the configuration, or what the host refuses.
    pub fn new(config: DeviceConfig) -> Result<Self, Error> {
        let DeviceConfig { ports, shares, disks, nics, taps, vsock, rng, balloon, vmbus, .. } = config;
        let mut threads = IoThreads::new(&config.pins);
        let cables = cables(config.xen_nics, config.xen_taps, &mut threads)?;
        let xen = config.xen_disks.into_iter().map(|disk| requests(disk, &mut threads).map(|(disk, _)| disk));
        let xen = satori_xenback::Devices::new(xen.collect::<Result<Vec<_>, _>>()?, cables);
        let mut devices: Vec<(&'static str, Arc<dyn Device>)> = Vec::new();
        if !ports.is_empty() {
            devices.push(("console", Console::new(ports, &threads.any())?));
        }
        let mut tags: Vec<_> = shares.iter().map(|share| share.tag.clone()).collect();
        tags.sort();
        if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::Config(format!(
                "two shares have the tag '{}': name one differently",
                pair[0]
            )));
        }
        for share in shares {
            let name = if share.dialect == Dialect::Plan9 { "9p" } else { "fs" };
            devices.push((name, Fs::new(share, threads.any())?));
        }
        for disk in disks {
            let thread = threads.of(disk.io_thread)?;
            devices.push(("disk", Block::new(disk, thread)?));
        }
        for nic in nics {
            devices.push(("net", Net::new(nic, threads.any())?));
        }
        for card in taps {
            devices.push(("net", Net::tap(card, threads.any())?));
        }
        if let Some(sockets) = vsock {
            devices.push(("vsock", Vsock::new(sockets, threads.any())?));
        }
        if rng {
            devices.push(("rng", Rng::new(HostBytes(entropy::Seeded::new(u32::MAX)))));
        }
        if let Some(bytes) = balloon {
            devices.push(("balloon", Balloon::new(bytes)));
        }
        if devices.len() > SLOTS.count() {
            return Err(Error::Config(format!("there is room for {} devices: use fewer", SLOTS.count())));
        }
        let journalled = config.journal.is_some();
        if let Some(journal) = &config.journal {
            let foreign = |(_, device): &&(_, Arc<dyn Device>)| {
                device.undetermined().is_some() && !device.journalled(journal)
            };
            if let Some((name, _)) = devices.iter().find(foreign) {
                return Err(Error::Config(format!(
                    "--record: what comes to such a device ({name}) is not recorded in this version: leave it out"
                )));
            }
        }
        let vmbus = vmbus.map(|config| on_vmbus(config, &mut threads)).transpose()?;
        Ok(Devices(Arc::new(All { pci: devices, vmbus, xen, journalled })))
    }

    /// Whether there are some on PCI.
    pub(crate) fn has_pci(&self) -> bool {
        !self.0.pci.is_empty()
    }

    /// A vCPU has nothing to execute: devices may wait on its thread, until `give_up`, for what comes soon ([`Device::attend`]).
    pub(crate) fn attend(&self, give_up: &dyn Fn() -> bool) {
        self.0.pci.iter().for_each(|(_, device)| device.attend(give_up));
    }

    /// Those on VMBus, if there is one.
    pub(crate) fn vmbus(&self) -> Option<&[Arc<dyn satori_vmbus::Device>]> {
        self.0.vmbus.as_deref()
    }

    fn on_vmbus(&self) -> impl Iterator<Item = &Arc<dyn satori_vmbus::Device>> {
        self.0.vmbus.iter().flatten()
    }

    /// Descriptors that a sandbox has to keep open.
    pub fn files(&self) -> Vec<RawFd> {
        let pci = self.0.pci.iter().flat_map(|(_, device)| device.files());
        let vmbus = self.on_vmbus().flat_map(|device| device.files());
        pci.chain(vmbus).chain(self.0.xen.files()).collect()
    }

    /// Refuses what makes no two runs the same.
    pub(crate) fn determined(&self) -> Result<(), Error> {
        let outside = |device: &Arc<dyn Device>| device.undetermined().filter(|_| !self.0.journalled);
        let pci = self.0.pci.iter().find_map(|(_, device)| outside(device));
        let vmbus = || self.on_vmbus().find_map(|device| device.undetermined());
        let elsewhere = vmbus().or_else(|| self.0.xen.undetermined());
        match pci.or(elsewhere) {
            Some(_) if self.0.journalled => Err(Error::Config(
                "--record: what comes to a card on VMBus or Xen's bus is not recorded in this version: leave bus= out, so that it is on virtio"
                    .into(),
            )),
            Some(why) => Err(Error::Config(format!("--clock virtual: {why}; use --clock real"))),
            None => Ok(()),
        }
    }

    /// Puts all of them on `bus` of one life.
    pub(crate) fn wire(
        &self,
        bus: &Bus<'_>,
        memory: &GuestMemory,
        timing: Option<&Timing>,
        moved: &Arc<AtomicU64>,
    ) -> Result<(), Error> {
        for ((name, device), slot) in self.0.pci.iter().zip(SLOTS) {
            let wiring = Wiring {
                memory: memory.clone(),
                map: bus.map.clone(),
                at: bus.window + u64::from(slot) * BAR_BYTES,
                messages: bus.messages.clone(),
                pin: (bus.pin)(slot)?,
                timing: timing.cloned(),
                // A guest's kernel takes random bytes and gives memory back whatever else it does.
                moved: if matches!(*name, "rng" | "balloon") { Arc::default() } else { moved.clone() },
            };
            let function = VirtioFunction::new(name, device.clone(), wiring);
            bus.pci.add(slot, 0, function).map_err(|taken| Error::Config(taken.to_string()))?;
        }
        Ok(())
    }

    /// Those that a guest reaches by Xen's back ends.
    pub(crate) fn xen(&self) -> &satori_xenback::Devices {
        &self.0.xen
    }

    /// Which port's output the host did not take, as on a full disk, and what it said. Asked once, at the end.
    pub fn lost(&self) -> Option<(String, std::io::Error)> {
        self.0.pci.iter().find_map(|(_, device)| device.lost())
    }

    /// Waits until what the guest gave away has left, or somebody does not want to wait any longer.
    pub fn finish(&self, give_up: &dyn Fn() -> bool) {
        self.0.pci.iter().for_each(|(_, device)| device.finish(give_up));
        self.on_vmbus().for_each(|device| device.finish(give_up));
        self.0.xen.finish();
    }
}

/// The requests of a disk, and its serial.
fn requests(disk: Disk, threads: &mut IoThreads) -> Result<(Requests, String), Error> {
    let Disk { image, serial, io_thread } = disk;
    Ok((Requests::new(image, threads.of(io_thread)?), serial))
}

/// The cables of these cards.
fn cables(nics: Vec<Nic>, taps: Vec<TapCard>, threads: &mut IoThreads) -> Result<Vec<Arc<Cable>>, Error> {
    let mut cables = Vec::new();
    for nic in nics {
        cables.push(Cable::stream(nic, threads.any()).map_err(satori_virtio::Error::from)?);
    }
    for card in taps {
        cables.push(Cable::tap(card, threads.any()).map_err(satori_virtio::Error::from)?);
    }
    Ok(cables)
}

/// The devices on VMBus.
fn on_vmbus(
    config: VmbusConfig,
    threads: &mut IoThreads,
) -> Result<Vec<Arc<dyn satori_vmbus::Device>>, Error> {
    let VmbusConfig { disks, nics, taps } = config;
    let mut devices: Vec<Arc<dyn satori_vmbus::Device>> = Vec::new();
    if !disks.is_empty() {
        let disks = disks.into_iter().map(|disk| requests(disk, threads)).collect::<Result<_, _>>()?;
        devices.push(Scsi::new(disks).map_err(Error::Config)?);
    }
    for (cable, index) in cables(nics, taps, threads)?.into_iter().zip(0..) {
        devices.push(NetVsc::new(cable, index));
    }
    Ok(devices)
}

/// A machine's PCI bus, as devices are put on it.
pub(crate) struct Bus<'a> {
    pub pci: &'a PciBus,
    /// Where base addresses are placed.
    pub map: WeakMmioMap,
    /// The beginning of the bus' window, where those of devices are at power-on.
    pub window: u64,
    pub messages: Arc<dyn MsiSink>,
    /// Where pin INTA of the device in a slot leads.
    pub pin: &'a dyn Fn(u8) -> Result<Arc<dyn InterruptLine>, Error>,
}

/// Puts `devices` on the bus of an x86 machine.
pub(crate) fn wire_chipset(
    devices: &Devices,
    chipset: &Chipset,
    memory: &GuestMemory,
    messages: &Arc<dyn MsiSink>,
    timing: Option<&Timing>,
    moved: &Arc<AtomicU64>,
) -> Result<(), Error> {
    let bus = Bus {
        pci: &chipset.pci,
        map: chipset.mmio.downgrade(),
        window: layout::PCI_LOW,
        messages: messages.clone(),
        pin: &|slot| pin(chipset, slot),
    };
    devices.wire(&bus, memory, timing, moved)
}

/// Where pin INTA of the device in `slot` leads.
fn pin(chipset: &Chipset, slot: u8) -> Result<Arc<dyn InterruptLine>, Error> {
    let number = layout::pci_interrupt(slot);
    let line = chipset.router.line(number).filter(|_| usize::from(number) < ioapic::PINS);
    line.ok_or_else(|| Error::Config(format!("internal error: no interrupt line {number}")))
}

/// Port at which pci-testdev is until the guest moves it.
const TESTDEV_PORT: u16 = 0xc000;

/// Puts QEMU's pci-testdev into the last slot of the bus.
pub(crate) fn wire_testdev(chipset: &Chipset) -> Result<(), Error> {
    let slot = *SLOTS.end();
    let at = layout::PCI_LOW + u64::from(slot) * BAR_BYTES;
    let (mmio, ports) = (chipset.mmio.downgrade(), chipset.ports.downgrade());
    let function = PciTestdev::new((mmio, at), (ports, TESTDEV_PORT), pin(chipset, slot)?);
    chipset.pci.add(slot, 0, function).map_err(|taken| Error::Config(taken.to_string()))
}

/// Where the ports of Xen's platform device are until the guest moves them, and how far its memory is above the bus' window.
const XEN_PLATFORM: (u16, u64) = (0xc100, 16 << 20);

/// Puts Xen's platform device into the last slot but one, and what goes with it at fixed ports.
pub(crate) fn wire_xen_platform(chipset: &Chipset) -> Result<(), Error> {
    let (slot, (port, above)) = (*SLOTS.end() - 1, XEN_PLATFORM);
    let (mmio, ports) = (chipset.mmio.downgrade(), chipset.ports.downgrade());
    let at = (mmio, layout::PCI_LOW + above);
    let platform = satori_xenback::PlatformDevice::new(at, (ports, port), pin(chipset, slot)?);
    let (first, last) = (*satori_xenback::FIXED.start(), *satori_xenback::FIXED.end());
    chipset.ports.add("xen-platform", first, last, platform.ports()).map_err(satori_chipset::Error::from)?;
    chipset.pci.add(slot, 0, platform).map_err(|taken| Error::Config(taken.to_string()))
}

/// Bytes of the host, or the same ones in every run if that is how runs are.
struct HostBytes(entropy::Seeded);

impl RandomBytes for HostBytes {
    fn fill(&mut self, determined: bool, bytes: &mut [u8]) -> bool {
        if determined {
            for piece in bytes.chunks_mut(8) {
                let number = self.0.next().unwrap_or_default().to_le_bytes();
                piece.copy_from_slice(&number[..piece.len()]);
            }
        } else if let Err(error) = getrandom::fill(bytes) {
            // Zeroes would be taken for random: the guest hears nothing instead.
            tracing::warn!("the host gives no random bytes: {error}");
            return false;
        }
        true
    }

    fn seed(&self) -> u64 {
        self.0.seed().unwrap_or_default()
    }

    fn set_seed(&mut self, seed: u64) {
        self.0.set_seed(seed);
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = f.debug_list().entries(self.0.pci.iter().map(|(name, _)| name)).finish();
        names.and_then(|()| if self.0.vmbus.is_some() { f.write_str(" and VMBus") } else { Ok(()) })
    }
}

impl PartialEq for Devices {
    fn eq(&self, other: &Self) -> bool {
        let none =
            |devices: &Devices| !devices.has_pci() && devices.vmbus().is_none() && devices.xen().is_empty();
        Arc::ptr_eq(&self.0, &other.0) || none(self) && none(other)
    }
}

impl Eq for Devices {}
