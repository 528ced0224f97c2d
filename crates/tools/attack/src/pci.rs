//! A hostile guest of a PCI bus: configuration space by both ways, base addresses that move over each other and over nothing, MSI-X tables of any content.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use satori_bus::{InterruptLine, MmioMap, Msi, MsiSink};
use satori_defs::pci::{BAR0, COMMAND};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_pci::{PciBus, PciFunction};
use satori_virtio::{BAR_BYTES, RandomBytes, Rng, VirtioFunction, Wiring};

struct Nobody;

impl MsiSink for Nobody {
    fn signal(&self, _msi: Msi) {}
}

impl InterruptLine for Nobody {
    fn set(&self, _asserted: bool) {}
}

struct Same;

impl RandomBytes for Same {
    fn fill(&mut self, _determined: bool, bytes: &mut [u8]) -> bool {
        bytes.fill(1);
        true
    }
    fn seed(&self) -> u64 {
        0
    }
    fn set_seed(&mut self, _seed: u64) {}
}

const WINDOW: u64 = 0xc000_0000;
const FUNCTIONS: u8 = 4;
const STEPS: usize = 300;
/// Bytes of a bus' configuration space.
const ECAM: u64 = 1 << 20;

fn at(slot: u8) -> u64 {
    WINDOW + u64::from(slot) * BAR_BYTES
}

/// A register of configuration space: of a function that is there, mostly.
fn register(u: &mut Unstructured) -> Result<u64> {
    Ok(if u.ratio(7, 8)? {
        let slot = u.int_in_range(0..=u64::from(FUNCTIONS))?;
        slot << 15
            | *u.choose(&[0, 4, 6, 0x10, 0x14, 0x18, 0x24, 0x30, 0x34, 0x3c])?
            | u.int_in_range(0..=3)?
    } else {
        u.int_in_range(0..=ECAM + 8)?
    })
}

fn attack(u: &mut Unstructured, bus: &Arc<PciBus>, map: &MmioMap) -> Result<()> {
    let (ecam, address, data) = (bus.ecam(), bus.address_port(), bus.data_port());
    for _ in 0..STEPS {
        if u.is_empty() {
            break;
        }
        let size = *u.choose(&[1, 2, 4, 8])?;
        let value = match u.int_in_range(0..=3)? {
            0 => u64::MAX,
            1 => at(u.int_in_range(0..=FUNCTIONS)?) + u64::from(u.arbitrary::<u16>()?),
            2 => u64::from(u.arbitrary::<u16>()?),
            _ => u.arbitrary()?,
        };
        match u.int_in_range(0..=6)? {
            0 | 1 => ecam.write(register(u)?, size, value),
            2 => drop(ecam.read(register(u)?, size)),
            3 => {
                address.write(0, size.min(4), 0x8000_0000 | (register(u)? as u32 & 0xf_ffff) >> 4);
                data.write(u.int_in_range(0..=3)?, size.min(4), value as u32);
            }
            4 => drop(data.read(u.int_in_range(0..=3)?, size.min(4))),
            5 => {
                let place = at(u.int_in_range(0..=FUNCTIONS + 1)?) + u.int_in_range(0..=BAR_BYTES)?;
                map.write(place, size, value);
            }
            _ => drop(map.read(u.arbitrary::<u64>()? >> u.int_in_range(0..=63)?, size)),
        }
    }
    Ok(())
}

/// Does to a bus what `data` says.
pub fn pci(data: &[u8]) {
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x2_0000 }]).expect("memory");
    let (bus, map) = (PciBus::new(), MmioMap::default());
    let functions: Vec<_> = (1..=FUNCTIONS)
        .map(|slot| {
            let wiring = Wiring {
                memory: memory.clone(),
                map: map.downgrade(),
                at: at(slot),
                messages: Arc::new(Nobody),
                pin: Arc::new(Nobody),
                timing: Some(crate::timing::standing()),
                moved: Arc::default(),
            };
            let function = VirtioFunction::new("attacked", Rng::new(Same), wiring);
            bus.add(slot, 0, function.clone()).expect("a free slot");
            function
        })
        .collect();
    let identity = |slot: u8| bus.ecam().read(u64::from(slot) << 15, 4);
    let before: Vec<_> = (0..=FUNCTIONS).map(identity).collect();
    let _ = attack(&mut Unstructured::new(data), &bus, &map);
    assert_eq!(before, (0..=FUNCTIONS).map(identity).collect::<Vec<_>>(), "who is there");
    // Put back where they were, each answers there and nowhere else.
    for function in &functions {
        function.config_write(COMMAND as u16, 2, 0);
    }
    for (function, slot) in functions.iter().zip(1..) {
        function.config_write(BAR0 as u16, 4, at(slot) as u32);
        function.config_write(BAR0 as u16 + 4, 4, 0);
        function.config_write(COMMAND as u16, 2, 6);
        // Number of queues, in the common configuration (virtio 1.2, 4.1.4.3).
        assert_eq!(map.read(at(slot) + 0x12, 2), 1, "function {slot}");
    }
    assert_eq!(map.read(at(FUNCTIONS + 1) + 0x12, 2) & 0xffff, 0xffff, "nobody is there");
}
