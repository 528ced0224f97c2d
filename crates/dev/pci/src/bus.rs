//! PCI bus 0: functions, configuration mechanism 1, ECAM, and the host bridge at 00:00.0.
//!
//! The host bridge is Intel's 8086:0d57, as in Cloud Hypervisor: no quirk and no driver in Linux
//! matches it, where QEMU's 8086:1237 brings the Natoma quirk, and Linux's check of mechanism 1 is
//! content with a device of class host bridge on bus 0.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use satori_bus::{MmioDevice, PortDevice};
use satori_defs::pci::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::{ConfigSpace, lock};

/// One function's configuration space. It locks its own state; no lock of the bus is held.
pub trait PciFunction: Send + Sync {
    /// A read of `size` (1, 2 or 4) bytes at `offset`, naturally aligned.
    fn config_read(&self, offset: u16, size: u8) -> u32;
    /// A write of `size` (1, 2 or 4) bytes at `offset`, naturally aligned.
    fn config_write(&self, offset: u16, size: u8, value: u32);
    /// Holds the device still, or lets it go on: what it does beside vCPUs stands still meanwhile, so that what is saved of it, and of
    /// memory and interrupt controllers, is of one moment.
    fn hold(&self, _still: bool) {}
    /// Its state, with that of the device behind it.
    fn save(&self) -> Result<Value, Error>;
    /// Takes a state back; base addresses lead where it says.
    fn restore(&self, value: &Value) -> Result<(), Error>;
}

/// The host bridge, which only has to be there.
struct HostBridge(Mutex<ConfigSpace>);

impl HostBridge {
    fn new() -> Arc<Self> {
        let mut space = ConfigSpace::new(VENDOR_INTEL, DEVICE_HOST_BRIDGE, CLASS_HOST_BRIDGE);
        space.set(COMMAND, &[COMMAND_MEMORY | COMMAND_MASTER]);
        Arc::new(HostBridge(Mutex::new(space)))
    }
}

impl PciFunction for HostBridge {
    fn config_read(&self, offset: u16, size: u8) -> u32 {
        lock(&self.0).read(offset, size)
    }

    fn config_write(&self, offset: u16, size: u8, value: u32) {
        lock(&self.0).write(offset, size, value);
    }

    fn save(&self) -> Result<Value, Error> {
        Value::of(&lock(&self.0).save())
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        lock(&self.0).restore(&value.state()?)
    }
}

/// A slot was taken, or there is no such slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PCI 00:{device:02x}.{function} is taken or does not exist: choose another slot, 00.0 to 1f.7")]
pub struct SlotTaken {
    /// The device number asked for.
    pub device: u8,
    /// The function number asked for.
    pub function: u8,
}

struct State {
    address: u32,
    functions: BTreeMap<u8, Arc<dyn PciFunction>>,
}

/// Bus 0.
pub struct PciBus {
    state: Mutex<State>,
}

impl PciBus {
    /// A bus with its host bridge.
    pub fn new() -> Arc<Self> {
        let bridge: Arc<dyn PciFunction> = HostBridge::new();
        let functions = BTreeMap::from([(0, bridge)]);
        Arc::new(PciBus { state: Mutex::new(State { address: 0, functions }) })
    }

    /// Puts `function` into a slot of bus 0. Whoever has more than function 0 sets the
    /// multi-function bit of its header type.
    pub fn add(
        &self,
        device: u8,
        function: u8,
        function_config: Arc<dyn PciFunction>,
    ) -> Result<(), SlotTaken> {
        let refused = SlotTaken { device, function };
        if device > 31 || function > 7 {
            return Err(refused);
        }
        match lock(&self.state).functions.entry(device << 3 | function) {
            std::collections::btree_map::Entry::Occupied(_) => Err(refused),
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(function_config);
                Ok(())
            }
        }
    }

    fn function(&self, bus: u8, devfn: u8) -> Option<Arc<dyn PciFunction>> {
        if bus != 0 {
            return None;
        }
        lock(&self.state).functions.get(&devfn).cloned()
    }

    /// What the address register points at for a data access: the function and its register.
    fn addressed(&self, offset: u16) -> (Option<Arc<dyn PciFunction>>, u16) {
        let address = lock(&self.state).address;
        let function = (address & ADDRESS_ENABLE != 0)
            .then(|| self.function((address >> 16) as u8, (address >> 8) as u8))
            .flatten();
        (function, (address & 0xfc) as u16 | offset & 3)
    }

    /// The configuration address register, one port that takes dwords.
    pub fn address_port(self: &Arc<Self>) -> Arc<dyn PortDevice> {
        Arc::new(Address(self.clone()))
    }

    /// The configuration data register, four ports.
    pub fn data_port(self: &Arc<Self>) -> Arc<dyn PortDevice> {
        Arc::new(Data(self.clone()))
    }

    /// Enhanced configuration space of bus 0, 1 MiB.
    pub fn ecam(self: &Arc<Self>) -> Arc<dyn MmioDevice> {
        Arc::new(Ecam(self.clone()))
    }
}

fn aligned(offset: u64, size: u8) -> bool {
    matches!(size, 1 | 2 | 4) && offset.is_multiple_of(u64::from(size))
}

fn absent(size: u8) -> u32 {
    u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)))
}

struct Address(Arc<PciBus>);

impl PortDevice for Address {
    fn read(&self, _offset: u16, size: u8) -> u32 {
        // Only a dword access reaches the register (PCI 3.0, 3.2.2.3.2).
        if size == 4 { lock(&self.0.state).address } else { absent(size) }
    }

    fn write(&self, _offset: u16, size: u8, value: u32) {
        if size == 4 {
            lock(&self.0.state).address = value & ADDRESS_WRITABLE;
        }
    }
}

struct Data(Arc<PciBus>);

impl PortDevice for Data {
    fn read(&self, offset: u16, size: u8) -> u32 {
        let (function, register) = self.0.addressed(offset);
        match function.filter(|_| aligned(register.into(), size)) {
            Some(function) => function.config_read(register, size),
            None => absent(size),
        }
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        let (function, register) = self.0.addressed(offset);
        if let Some(function) = function.filter(|_| aligned(register.into(), size)) {
            function.config_write(register, size, value);
        }
    }
}

struct Ecam(Arc<PciBus>);

impl Ecam {
    fn at(&self, offset: u64, size: u8) -> Option<(Arc<dyn PciFunction>, u16)> {
        let function = self.0.function((offset >> 20) as u8, (offset >> 12) as u8)?;
        aligned(offset, size).then_some((function, (offset & 0xfff) as u16))
    }
}

impl MmioDevice for Ecam {
    fn read(&self, offset: u64, size: u8) -> u64 {
        match self.at(offset, size) {
            Some((function, register)) => function.config_read(register, size).into(),
            None => absent(size).into(),
        }
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        if let Some((function, register)) = self.at(offset, size) {
            function.config_write(register, size, value as u32);
        }
    }
}

/// The address register; functions have states of their own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBus {
    address: u32,
}

impl satori_save::State for SavedBus {
    const NAME: &'static str = "PCI bus";
    const VERSION: u32 = 1;
}

impl PciBus {
    /// The functions, each with its place: `00:01.0`.
    pub fn functions(&self) -> Vec<(String, Arc<dyn PciFunction>)> {
        let place = |devfn: &u8| format!("00:{:02x}.{}", devfn >> 3, devfn & 7);
        let functions = &lock(&self.state).functions;
        functions.iter().map(|(devfn, function)| (place(devfn), function.clone())).collect()
    }
}

impl Save for PciBus {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedBus { address: lock(&self.state).address })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        lock(&self.state).address = value.state::<SavedBus>()?.address & ADDRESS_WRITABLE;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_finds_the_host_bridge_by_mechanism_1() {
        let bus = PciBus::new();
        let (address, data) = (bus.address_port(), bus.data_port());
        address.write(0, 4, 0x8000_0000);
        assert_eq!(address.read(0, 4), 0x8000_0000);
        assert_eq!(data.read(0, 4), 0x0d57_8086);
        assert_eq!(data.read(2, 2), 0x0d57);
        address.write(0, 4, 0x8000_0008);
        assert_eq!(data.read(2, 2), 0x0600);
        assert_eq!(data.read(1, 2), 0xffff, "unaligned");
        for nobody in [0x8000_0800, 0x8001_0000, 0x0000_0000] {
            address.write(0, 4, nobody);
            assert_eq!(data.read(0, 4), 0xffff_ffff);
        }
    }

    #[test]
    fn functions_answer_both_ways_and_slots_are_not_shared() {
        let bus = PciBus::new();
        assert!(bus.add(0, 0, HostBridge::new()).is_err());
        assert!(bus.add(32, 0, HostBridge::new()).is_err());
        bus.add(3, 1, HostBridge::new()).unwrap();
        let ecam = bus.ecam();
        let slot = (3 << 3 | 1) << 12;
        assert_eq!(ecam.read(slot, 4), 0x0d57_8086);
        ecam.write(slot + INTERRUPT_LINE as u64, 1, 11);
        ecam.write(slot, 4, 0);
        bus.address_port().write(0, 4, 0x8000_193c);
        assert_eq!(bus.data_port().read(0, 1), 11);
        assert_eq!(ecam.read(slot, 4), 0x0d57_8086, "identity is read-only");
        assert_eq!(ecam.read(slot + 0xffc, 4), 0, "no extended capabilities");
        assert_eq!(ecam.read(slot, 8), 0xffff_ffff);
    }
}
