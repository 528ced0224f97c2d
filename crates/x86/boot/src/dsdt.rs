//! The DSDT: power-off and sleep, the PCI host bridge, and the devices that no bus reports.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Arg, Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name,
    Package, Path, ResourceTemplate, Return, Scope,
};
use acpi_tables::sdt::Sdt;
use satori_defs::chipset::{irq, mmio, pm, port, uart};

use crate::acpi::Platform;
use crate::layout;

/// Appends the definition block of `platform` to `table`, which has only its header.
pub(crate) fn table(platform: &Platform, mut table: Sdt) -> Sdt {
    let mut body = Vec::new();
    let mut sleep = |name: &str, sleep_type: u16| {
        let sleep_type = sleep_type as u8;
        let values = Package::new(vec![&sleep_type, &sleep_type, &0_u8, &0_u8]);
        Name::new(name.into(), &values).to_aml_bytes(&mut body);
    };
    if platform.suspend {
        sleep("_S3_", pm::SLP_TYP_S3);
    }
    sleep("_S5_", pm::SLP_TYP_S5);
    let mut devices = vec![host_bridge(platform.ecam, platform.pci_devices), mainboard(platform.ecam)];
    if platform.com1 {
        // Alone on its interrupt, unless there are four ports for two of them.
        let shared = platform.more_serials >= SHARING;
        let ports = 1 + platform.more_serials.min(SERIALS.len() - 1);
        devices.extend(SERIALS[..ports].iter().zip(0..).map(|(place, uid)| serial(*place, uid, shared)));
    }
    if platform.rtc {
        devices.push(device("RTC_", "PNP0B00", &[&io(port::RTC, 2), &isa(irq::RTC)]));
    }
    if platform.i8042 {
        let (data, command) = (io(port::I8042_DATA, 1), io(port::I8042_COMMAND, 1));
        devices.push(device("KBD_", "PNP0303", &[&data, &command, &isa(irq::KEYBOARD)]));
    }
    if platform.hpet {
        let registers = Memory32Fixed::new(false, mmio::HPET as u32, mmio::HPET_SIZE as u32);
        devices.push(device("HPET", "PNP0103", &[&registers]));
    }
    if platform.pvpanic {
        devices.push(pvpanic());
    }
    if platform.vmbus {
        devices.push(vmbus());
    }
    let devices: Vec<_> = devices.into_iter().map(Encoded).collect();
    Scope::new("_SB_".into(), devices.iter().map(|device| device as &dyn Aml).collect())
        .to_aml_bytes(&mut body);
    table.append_slice(&body);
    table
}

/// Names, ports and interrupts of the serial ports that every PC has them at.
const SERIALS: [(&str, u16, u8); 4] = [
    ("COM1", port::COM1, irq::COM1),
    ("COM2", port::COM2, irq::COM2),
    ("COM3", port::COM3, irq::COM1),
    ("COM4", port::COM4, irq::COM2),
];
/// So many beyond the first, and two have one interrupt.
const SHARING: usize = 2;

fn serial((name, base, interrupt): (&str, u16, u8), uid: u8, shared: bool) -> Vec<u8> {
    let interrupt = Interrupt::new(true, true, false, shared, interrupt.into());
    numbered(name, "PNP0501", uid, &[&io(base, uart::PORTS as u8), &interrupt])
}

/// A term that is bytes already: the crate's own terms borrow their parts.
struct Encoded(Vec<u8>);

impl Aml for Encoded {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}

fn encode(term: &dyn Aml) -> Vec<u8> {
    let mut out = Vec::new();
    term.to_aml_bytes(&mut out);
    out
}

fn io(base: u16, ports: u8) -> IO {
    IO::new(base, base, 1, ports)
}

/// An ISA interrupt: edge-triggered, active high, exclusive.
fn isa(number: u8) -> Interrupt {
    Interrupt::new(true, true, false, false, number.into())
}

/// A device with a plug-and-play id and resources that do not change.
fn device(name: &str, id: &str, resources: &[&dyn Aml]) -> Vec<u8> {
    numbered(name, id, 0, resources)
}

/// The same, one of several of its kind.
fn numbered(name: &str, id: &str, uid: u8, resources: &[&dyn Aml]) -> Vec<u8> {
    let id = Name::new("_HID".into(), &EISAName::new(id));
    let resources = Name::new("_CRS".into(), &ResourceTemplate::new(resources.to_vec()));
    encode(&Device::new(Path::new(name), vec![&id, &Name::new("_UID".into(), &uid), &resources]))
}

/// The PCI host bridge: bus 0, all ports but its own, the memory between RAM and the I/O APIC.
/// With `devices` also a window above 4 GiB, and which interrupts their pins have.
fn host_bridge(ecam: bool, devices: bool) -> Vec<u8> {
    let id = if ecam { "PNP0A08" } else { "PNP0A03" };
    let window = |start: u64, end: u64| {
        let uncached = AddressSpaceCacheable::NotCacheable;
        AddressSpace::new_memory(uncached, true, start as u32, (end - 1) as u32, None)
    };
    let (bus, address) =
        (AddressSpace::new_bus_number(0_u16, 0), IO::new(port::PCI_ADDRESS, port::PCI_ADDRESS, 1, 8));
    let below = AddressSpace::new_io(0_u16, port::PCI_ADDRESS - 1, None);
    let above = AddressSpace::new_io(port::PCI_DATA + 4, u16::MAX, None);
    let (low, high) = (window(layout::PCI_LOW, layout::PCI_LOW_END), window(layout::PCI_HIGH, mmio::IOAPIC));
    let uncached = AddressSpaceCacheable::NotCacheable;
    let far = AddressSpace::new_memory(uncached, true, layout::PCI_64, layout::PCI_64_END - 1, None);
    let mut windows: Vec<&dyn Aml> = vec![&bus, &address, &below, &above, &low, &high];
    if devices {
        windows.push(&far);
    }
    let resources = ResourceTemplate::new(windows).to_aml();
    // The system may have control of all that it asks for: there is no firmware that would keep
    // some (PCI Firmware Specification 4.5). Arg3 is the request, returned unchanged.
    let request = Arg(3);
    let grant = Return::new(&request);
    let capabilities = Method::new("_OSC".into(), 4, false, vec![&grant]);
    let (eisa, compatible) = (EISAName::new(id), EISAName::new("PNP0A03"));
    let (hid, cid) = (Name::new("_HID".into(), &eisa), Name::new("_CID".into(), &compatible));
    let (uid, crs) = (Name::new("_UID".into(), &0_u8), Name::new("_CRS".into(), &resources));
    let prt = interrupts();
    let mut parts: Vec<&dyn Aml> = vec![&hid, &cid, &uid, &crs, &capabilities];
    if devices {
        parts.push(&prt);
    }
    encode(&Device::new("PCI0".into(), parts))
}

/// Where pin INTA of each device leads (ACPI 6.5, 6.2.13): to a line of the I/O APIC, through no link that would
/// have to be set up.
fn interrupts() -> Encoded {
    let route = |device: u8| {
        let every_function = u32::from(device) << 16 | 0xffff;
        let line = u32::from(layout::pci_interrupt(device));
        Encoded(encode(&Package::new(vec![&every_function, &0_u8, &0_u8, &line])))
    };
    let routes: Vec<_> = (1..32).map(route).collect();
    let package = Package::new(routes.iter().map(|route| route as &dyn Aml).collect());
    Encoded(encode(&Name::new("_PRT".into(), &package)))
}

/// What belongs to the board and to no device: the ACPI registers, and configuration space,
/// which Linux only uses if a board resource or the memory map reserves it.
fn mainboard(ecam: bool) -> Vec<u8> {
    let registers = io(port::PM1A_EVT, (port::PM_TMR + 4 - port::PM1A_EVT) as u8);
    let space = Memory32Fixed::new(true, mmio::ECAM as u32, mmio::ECAM_SIZE as u32);
    let mut resources: Vec<&dyn Aml> = vec![&registers];
    if ecam {
        resources.push(&space);
    }
    device("MBRD", "PNP0C02", &resources)
}

/// QEMU's pvpanic device: port, and an id that is a string (QEMU docs/specs/pvpanic.rst).
fn pvpanic() -> Vec<u8> {
    encode(&Device::new(
        "PEVT".into(),
        vec![
            &Name::new("_HID".into(), &"QEMU0001"),
            &Name::new("_STA".into(), &0x0f_u8),
            &Name::new("_CRS".into(), &ResourceTemplate::new(vec![&io(port::PVPANIC, 1)])),
        ],
    ))
}

/// VMBus, whose id is a string, as Linux looks for it. Its interrupt is a source of Hyper-V's, and none of its devices wants memory.
fn vmbus() -> Vec<u8> {
    encode(&Device::new(
        "VMBS".into(),
        vec![
            &Name::new("_HID".into(), &"VMBUS"),
            &Name::new("_UID".into(), &0_u8),
            &Name::new("_STA".into(), &0x0f_u8),
            &Name::new("_CRS".into(), &ResourceTemplate::new(Vec::new())),
        ],
    ))
}

/// A resource template whose parts were temporaries.
trait ToAml {
    fn to_aml(&self) -> Encoded;
}

impl ToAml for ResourceTemplate<'_> {
    fn to_aml(&self) -> Encoded {
        Encoded(encode(self))
    }
}
