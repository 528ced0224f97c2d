//! virtio over PCI (virtio 1.2, 4.1): one base address with a page for each of its structures, so that a
//! doorbell shares its page with nothing that is read.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use satori_bus::{InterruptLine, MmioDevice, MsiSink, WeakMmioMap};
use satori_defs::pci::CAP_VENDOR;
use satori_defs::virtio::pci::*;
use satori_defs::virtio::status::DRIVER_OK;
use satori_defs::virtio::{PCI_DEVICE, PCI_VENDOR};
use satori_memory::GuestMemory;
use satori_pci::{Bar, Function, Identity, Intx, Msix, PciFunction, SavedFunction};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::link::SavedLink;
use crate::registers::Registers;
use crate::{Device, Link, Timing, lock};

const PAGE: u64 = 0x1000;
const COMMON: u64 = 0;
const ISR: u64 = 1;
const DEVICE: u64 = 2;
const NOTIFY: u64 = 3;
const TABLE: u64 = 4;
const PENDING: u64 = 5;
/// Bytes from one doorbell to the next.
const DOORBELL: u32 = 4;
/// Bytes of a virtio_pci_cap, from its third byte on.
const CAP_BODY: usize = 14;

/// Bytes of a device's base address.
pub const BAR_BYTES: u64 = 8 * PAGE;

/// What a device is wired to.
pub struct Wiring {
    /// Guest memory.
    pub memory: GuestMemory,
    /// Where its base address is placed.
    pub map: WeakMmioMap,
    /// Where its base address is at power-on.
    pub at: u64,
    /// Where its messages go.
    pub messages: Arc<dyn MsiSink>,
    /// What its pin drives.
    pub pin: Arc<dyn InterruptLine>,
    /// The machine's time, if the run has to be the same every time.
    pub timing: Option<Timing>,
    /// Counts requests that were answered.
    pub moved: Arc<AtomicU64>,
}

/// What is behind the base address.
struct Face {
    device: Arc<dyn Device>,
    link: Arc<Link>,
    msix: Arc<Msix>,
    registers: Mutex<Registers>,
}

impl Face {
    fn ring(&self, queue: u16) {
        if self.link.status() & DRIVER_OK != 0 {
            self.device.notify(&self.link, queue);
        }
    }
}

impl MmioDevice for Face {
    fn read(&self, offset: u64, size: u8) -> u64 {
        let (page, at) = (offset / PAGE, offset % PAGE);
        match page {
            COMMON => lock(&self.registers).read(&*self.device, &self.link, at, size),
            ISR if at == 0 => self.link.take_isr().into(),
            DEVICE => {
                let config = self.device.config();
                let bytes = config.iter().skip(at as usize).take(size.min(8).into()).enumerate();
                bytes.fold(0, |value, (i, &byte)| value | u64::from(byte) << (8 * i))
            }
            TABLE => self.msix.read_table(at, size),
            PENDING => self.msix.read_pending(at, size),
            _ => 0,
        }
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        let (page, at) = (offset / PAGE, offset % PAGE);
        match page {
            COMMON => lock(&self.registers).write(&*self.device, &self.link, at, size, value),
            // The doorbell says which queue; what is written says the same.
            NOTIFY => self.ring((at / u64::from(DOORBELL)) as u16),
            DEVICE => self.device.configure(at, size, value),
            TABLE => self.msix.write_table(at, size, value),
            _ => {}
        }
    }
}

/// A virtio device as a function on the bus, for one life of the machine.
pub struct VirtioFunction {
    function: Function,
    face: Arc<Face>,
    /// Where the capability is that reaches the base address through configuration space.
    window: u16,
}

impl VirtioFunction {
    /// Wires `device`, which is called `name` in the map of addresses.
    pub fn new(name: &'static str, device: Arc<dyn Device>, wiring: Wiring) -> Arc<Self> {
        let queues = device.queues();
        let msix = Msix::new(queues.len() as u16 + 1, wiring.messages);
        let intx = Intx::new(wiring.pin);
        let lines = (msix.clone(), intx.clone());
        let link = Link::new(name, wiring.memory, queues.len(), lines, wiring.timing, wiring.moved);
        let identity = Identity {
            vendor: PCI_VENDOR,
            device: PCI_DEVICE + device.kind(),
            subsystem: PCI_DEVICE + device.kind(),
            class: device.class(),
            revision: 1,
        };
        let registers = Mutex::new(Registers::new(&queues));
        let face = Arc::new(Face { device, link, msix: msix.clone(), registers });
        let function = Function::new(identity, wiring.map, intx);
        function.add_bar(Bar { name, register: 0, size: BAR_BYTES, at: wiring.at, device: face.clone() });
        let structure = |kind: u8, page: u64, bytes: u32, more: &[u8]| {
            let mut body = vec![(2 + CAP_BODY + more.len()) as u8, kind, 0, 0, 0, 0];
            body.extend(((page * PAGE) as u32).to_le_bytes());
            body.extend(bytes.to_le_bytes());
            body.extend(more);
            function.add_capability(CAP_VENDOR, &body)
        };
        structure(CAP_COMMON, COMMON, common::BYTES as u32, &[]);
        structure(CAP_ISR, ISR, 1, &[]);
        structure(CAP_DEVICE, DEVICE, PAGE as u32, &[]);
        structure(CAP_NOTIFY, NOTIFY, PAGE as u32, &DOORBELL.to_le_bytes());
        let window = structure(CAP_PCI, COMMON, 0, &[0; 4]);
        // Base address, offset, length and data are software's (4.1.4.9).
        function.allow(window + 4, &[0xff]);
        function.allow(window + 8, &[0xff; 12]);
        function.add_msix(&msix, 0, (TABLE * PAGE) as u32, (PENDING * PAGE) as u32);
        Arc::new(VirtioFunction { function, face, window: window.into() })
    }

    /// What the window's registers lead to, if an access at `offset` is one to its data.
    fn through(&self, offset: u16) -> Option<(u64, u8)> {
        if !(self.window + 16..self.window + 20).contains(&offset) {
            return None;
        }
        let register = |at: u16, size: u8| self.function.config_read(self.window + at, size);
        let (bar, at, len) = (register(4, 1), u64::from(register(8, 4)), register(12, 4));
        let valid = bar == 0 && matches!(len, 1 | 2 | 4) && at.is_multiple_of(len.into()) && at < BAR_BYTES;
        valid.then_some((at, len as u8))
    }
}

impl PciFunction for VirtioFunction {
    fn config_read(&self, offset: u16, size: u8) -> u32 {
        match self.through(offset) {
            Some((at, len)) => self.face.read(at, len) as u32,
            None => self.function.config_read(offset, size),
        }
    }

    fn config_write(&self, offset: u16, size: u8, value: u32) {
        match self.through(offset) {
            Some((at, len)) => self.face.write(at, len, value.into()),
            None => self.function.config_write(offset, size, value),
        }
    }

    fn hold(&self, still: bool) {
        self.face.device.hold(still);
    }

    fn save(&self) -> Result<Value, Error> {
        let Face { device, link, registers, .. } = &*self.face;
        // What the device still did is in queues and interrupts, which come behind it.
        let mut device = device.save()?;
        let bytes = device.take_bytes();
        let registers = lock(registers).clone();
        let saved = SavedVirtio { function: self.function.save(), link: link.save(), registers, device };
        Value::with_bytes(&saved, bytes)
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let saved: SavedVirtio = value.state()?;
        let Face { device, link, registers, .. } = &*self.face;
        let mut registers = lock(registers);
        registers.reset(&**device, link);
        link.restore(saved.link, &registers.most(), Registers::offered(&**device))?;
        registers.restore(saved.registers)?;
        self.function.restore(saved.function)?;
        if link.status() & DRIVER_OK != 0 {
            device.start(link);
        }
        let mut state = saved.device;
        state.set_bytes(value.bytes().to_vec());
        device.restore(link, &state)
    }
}

/// A function's whole state. The bytes of the device's value are those of this one's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedVirtio {
    function: SavedFunction,
    link: SavedLink,
    registers: Registers,
    device: Value,
}

impl State for SavedVirtio {
    const NAME: &'static str = "virtio";
    const VERSION: u32 = 1;
}

impl Drop for VirtioFunction {
    /// The machine is reset or ends: the device forgets this life.
    fn drop(&mut self) {
        lock(&self.face.registers).reset(&*self.face.device, &self.face.link);
    }
}
