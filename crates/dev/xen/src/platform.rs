//! The platform PCI device of HVM guests: its drivers find by it that they may use Xen's devices, and where grants may be placed;
//! and the fixed ports beside it, by which a guest unplugs its emulated devices (Xen, docs/misc/hvm-emulated-unplug.pandoc).
//!
//! Nothing here is emulated that one of Xen's devices stands for: what a guest unplugs is noted, and nothing leaves. virtio's
//! devices, which a guest has as somebody asked for them, stay.

use std::sync::{Arc, Mutex};

use satori_bus::{InterruptLine, MmioDevice, PortDevice, WeakMmioMap, WeakPortMap};
use satori_lock::lock;
use satori_pci::{Bar, Function, Identity, Intx, PciFunction, PortBar, SavedFunction};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

const VENDOR: u16 = 0x5853;
const DEVICE: u16 = 0x0001;
/// Class of what fits into none.
const CLASS: u32 = 0xff_80_00;

/// Ports of the function, which have nothing to say.
const PORTS: u16 = 0x100;
/// Memory of the function: a place for frames of grants.
const MEMORY: u64 = 16 << 20;

/// The fixed ports.
pub const FIXED: std::ops::RangeInclusive<u16> = 0x10..=0x1f;

/// Behind the first of the fixed ports: u16, says that the protocol is there; what is written there is unplugged. u32, the version of
/// the drivers.
const UNPLUG: u16 = 0;
const MAGIC: u32 = 0x49d2;
/// u8, the protocol's version; what is written there is for a log. u16, whose drivers they are.
const VERSION: u16 = 2;
/// The version that has products and a blacklist, which is empty.
const WITH_PRODUCTS: u32 = 1;

/// What a guest said of its drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    product: u16,
    version: u32,
    /// What it unplugged: disks, 1; network cards, 2; disks but the first, 4; NVMe, 8.
    unplugged: u16,
}

/// The fixed ports.
struct Fixed(Mutex<Told>);

/// What is read where nothing is.
fn nothing(size: u8) -> u32 {
    u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)))
}

impl PortDevice for Fixed {
    fn read(&self, offset: u16, size: u8) -> u32 {
        match (offset, size) {
            (UNPLUG, 2) => MAGIC,
            // Flags: ROM may be written, as there is none.
            (UNPLUG, 1) => 0,
            (VERSION, 1) => WITH_PRODUCTS,
            _ => nothing(size),
        }
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        let mut told = lock(&self.0);
        match (offset, size) {
            (UNPLUG, 2) => {
                told.unplugged |= value as u16;
                tracing::debug!("the guest unplugged {value:#x}, and has {told:?}");
            }
            (UNPLUG, 4) => told.version = value,
            (VERSION, 2) => told.product = value as u16,
            _ => {}
        }
    }
}

/// The function's own base addresses.
struct Empty;

impl PortDevice for Empty {
    fn read(&self, offset: u16, size: u8) -> u32 {
        if (offset, size) == (0, 1) { 0 } else { nothing(size) }
    }
    fn write(&self, _offset: u16, _size: u8, _value: u32) {}
}

impl MmioDevice for Empty {
    fn read(&self, _offset: u64, _size: u8) -> u64 {
        0
    }
    fn write(&self, _offset: u64, _size: u8, _value: u64) {}
}

/// The platform device.
pub struct PlatformDevice {
    function: Function,
    fixed: Arc<Fixed>,
}

impl PlatformDevice {
    /// One whose memory is at `at`, and whose ports begin at `port`, when it is told to answer there.
    pub fn new(
        (mmio, at): (WeakMmioMap, u64),
        (map, port): (WeakPortMap, u16),
        pin: Arc<dyn InterruptLine>,
    ) -> Arc<Self> {
        let identity =
            Identity { vendor: VENDOR, device: DEVICE, subsystem: DEVICE, class: CLASS, revision: 1 };
        let function = Function::new(identity, mmio, Intx::new(pin));
        let (name, empty) = ("xen-platform", Arc::new(Empty));
        function
            .add_port_bar(PortBar { name, register: 0, size: PORTS, at: port, device: empty.clone() }, map);
        function.add_bar(Bar { name, register: 1, size: MEMORY, at, device: empty });
        Arc::new(PlatformDevice { function, fixed: Arc::new(Fixed(Mutex::default())) })
    }

    /// What answers at the [`FIXED`] ports.
    pub fn ports(&self) -> Arc<dyn PortDevice> {
        self.fixed.clone()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    function: SavedFunction,
    told: Told,
}

impl State for Saved {
    const NAME: &'static str = "Xen's platform device";
    const VERSION: u32 = 1;
}

impl PciFunction for PlatformDevice {
    fn config_read(&self, offset: u16, size: u8) -> u32 {
        self.function.config_read(offset, size)
    }

    fn config_write(&self, offset: u16, size: u8, value: u32) {
        self.function.config_write(offset, size, value);
    }

    fn save(&self) -> Result<Value, Error> {
        Value::of(&Saved { function: self.function.save(), told: *lock(&self.fixed.0) })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let Saved { function, told } = value.state()?;
        *lock(&self.fixed.0) = told;
        self.function.restore(function)
    }
}

#[cfg(test)]
mod tests {
    use satori_bus::{MmioMap, PortMap};
    use satori_defs::pci::{BAR0, COMMAND};

    use super::*;

    struct NoLine;

    impl InterruptLine for NoLine {
        fn set(&self, _asserted: bool) {}
    }

    #[test]
    fn a_guest_finds_the_protocol_and_a_place_for_grants() {
        let (mmio, ports) = (MmioMap::default(), PortMap::default());
        let new = || {
            PlatformDevice::new(
                (mmio.downgrade(), 0xc100_0000),
                (ports.downgrade(), 0xc100),
                Arc::new(NoLine),
            )
        };
        let (device, other) = (new(), new());
        assert_eq!(device.config_read(0, 4), 0x0001_5853);
        assert_eq!(device.config_read(BAR0 as u16, 4), 0xc101);
        assert_eq!(device.config_read(BAR0 as u16 + 4, 4) & !0xf, 0xc100_0000);
        device.config_write(COMMAND as u16, 2, 3);
        assert_eq!(ports.read(0xc100, 1), 0);
        let fixed = device.ports();
        assert_eq!((fixed.read(0, 2), fixed.read(2, 1), fixed.read(4, 4)), (0x49d2, 1, u32::MAX));
        fixed.write(2, 2, 3);
        fixed.write(0, 4, 0x1_0001);
        fixed.write(0, 2, 1);
        fixed.write(0, 2, 2);
        for (offset, size) in [(0, 1), (1, 1), (2, 1), (2, 4), (14, 4), (15, 1)] {
            fixed.write(offset, size, u32::MAX);
        }
        let told = Told { product: 3, version: 0x1_0001, unplugged: 3 };
        assert_eq!(*lock(&device.fixed.0), told);
        other.restore(&device.save().unwrap()).unwrap();
        assert_eq!(*lock(&other.fixed.0), told);
    }
}
