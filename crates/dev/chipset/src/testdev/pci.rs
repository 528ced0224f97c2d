//! QEMU's pci-testdev (docs/specs/pci-testdev in its source): a function that counts writes, once in memory
//! space and once in port space, at base addresses that the guest may move while it runs.

use std::sync::{Arc, Mutex};

use satori_bus::{InterruptLine, MmioDevice, PortDevice, WeakMmioMap, WeakPortMap};
use satori_pci::{Bar, Function, Identity, Intx, PciFunction, PortBar, SavedFunction};
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::support::{lock, read_bytes};

const VENDOR: u16 = 0x1b36;
const DEVICE: u16 = 0x0005;
/// Class of what fits into none.
const CLASS: u32 = 0x00_ff_00;

/// Bytes of the base address in memory space, and in port space.
const MEMORY_SIZE: u64 = 0x1000;
const PORTS: u16 = 0x100;

/// Where the one test writes, and what.
const OFFSET: u32 = 0x80;
const DATA: u32 = 0xfa;

/// Registers: what a test is, and what came of it.
mod register {
    pub(super) const TEST: u64 = 0;
    pub(super) const WIDTH: u64 = 1;
    pub(super) const OFFSET: u64 = 4;
    pub(super) const DATA: u64 = 8;
    pub(super) const COUNT: u64 = 12;
    pub(super) const NAME: u64 = 16;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counting {
    /// A test that there is was chosen.
    chosen: bool,
    /// Writes since then.
    count: u32,
}

/// One base address.
struct Face {
    counting: Mutex<Counting>,
    name: &'static str,
}

impl Face {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Face { counting: Mutex::default(), name })
    }

    fn byte(&self, at: u64) -> u8 {
        let Counting { chosen, count } = *lock(&self.counting);
        let of = |value: u32, first: u64| value.to_le_bytes()[(at - first) as usize];
        match at {
            // Any other width than 1, 2 and 4 says that there is no such test.
            register::WIDTH => u8::from(chosen),
            register::OFFSET..register::DATA => of(OFFSET, register::OFFSET),
            register::DATA..register::COUNT => of(DATA, register::DATA),
            register::COUNT..register::NAME => of(count, register::COUNT),
            register::NAME.. => {
                self.name.as_bytes().get((at - register::NAME) as usize).copied().unwrap_or(0)
            }
            _ => 0,
        }
    }

    fn store(&self, at: u64, size: u8, value: u8) {
        let mut counting = lock(&self.counting);
        if at == register::TEST {
            *counting = Counting { chosen: value == 0, count: 0 };
        } else if at == u64::from(OFFSET) && size == 1 && counting.chosen {
            counting.count = counting.count.wrapping_add(1);
        }
    }
}

impl PortDevice for Face {
    fn read(&self, offset: u16, size: u8) -> u32 {
        read_bytes(offset, size, |at| self.byte(at.into()))
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        self.store(offset.into(), size, value as u8);
    }
}

impl MmioDevice for Face {
    fn read(&self, offset: u64, size: u8) -> u64 {
        (0..u64::from(size.min(8))).fold(0, |value, at| value | u64::from(self.byte(offset + at)) << (8 * at))
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        self.store(offset, size, value as u8);
    }
}

/// The function.
pub struct PciTestdev {
    function: Function,
    memory: Arc<Face>,
    ports: Arc<Face>,
}

impl PciTestdev {
    /// One whose base addresses are at `at` and at port `port` when it is told to answer there.
    pub fn new(
        (mmio, at): (WeakMmioMap, u64),
        (map, port): (WeakPortMap, u16),
        pin: Arc<dyn InterruptLine>,
    ) -> Arc<Self> {
        let identity =
            Identity { vendor: VENDOR, device: DEVICE, subsystem: 0x1100, class: CLASS, revision: 0 };
        let function = Function::new(identity, mmio, Intx::new(pin));
        let (memory, ports) = (Face::new("mmio-no-eventfd"), Face::new("portio-no-eventfd"));
        let name = "pci-testdev";
        function.add_bar(Bar { name, register: 0, size: MEMORY_SIZE, at, device: memory.clone() });
        function
            .add_port_bar(PortBar { name, register: 2, size: PORTS, at: port, device: ports.clone() }, map);
        Arc::new(PciTestdev { function, memory, ports })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    function: SavedFunction,
    memory: Counting,
    ports: Counting,
}

impl State for Saved {
    const NAME: &'static str = "pci-testdev";
    const VERSION: u32 = 1;
}

impl PciFunction for PciTestdev {
    fn config_read(&self, offset: u16, size: u8) -> u32 {
        self.function.config_read(offset, size)
    }

    fn config_write(&self, offset: u16, size: u8, value: u32) {
        self.function.config_write(offset, size, value);
    }

    fn save(&self) -> Result<Value, Error> {
        let (memory, ports) = (*lock(&self.memory.counting), *lock(&self.ports.counting));
        Value::of(&Saved { function: self.function.save(), memory, ports })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let Saved { function, memory, ports } = value.state()?;
        *lock(&self.memory.counting) = memory;
        *lock(&self.ports.counting) = ports;
        self.function.restore(function)
    }
}
