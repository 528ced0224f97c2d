//! A function of type 0: its header, base addresses that the guest sizes and moves, capabilities.

use std::sync::{Arc, Mutex};

use satori_bus::{MmioDevice, WeakMmioMap};
use satori_defs::pci::*;
use satori_save::Error;
use serde::{Deserialize, Serialize};

use crate::config::SavedConfig;
use crate::{ConfigSpace, Intx, Msix, intx, lock, msix};

/// What a function says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor of the function and of its subsystem.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// The subsystem's device.
    pub subsystem: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// Revision.
    pub revision: u8,
}

/// What a pair of base address registers of 64 bits leads to.
pub struct Bar {
    /// Its name in the map.
    pub name: &'static str,
    /// The first of its registers, 0 to 4.
    pub register: u8,
    /// Bytes, a power of two from 16 on.
    pub size: u64,
    /// Where it is at power-on, a multiple of its size; the guest may move it.
    pub at: u64,
    /// Who answers there.
    pub device: Arc<dyn MmioDevice>,
}

struct Placed {
    bar: Bar,
    /// Where it is in the map now.
    now: Option<u64>,
}

struct State {
    space: ConfigSpace,
    bars: Vec<Placed>,
    /// Where the last capability's pointer to the next is, and where the next may begin.
    last: usize,
    free: usize,
    msix: Option<(usize, Arc<Msix>)>,
}

/// A function's configuration space and what it places in the machine.
pub struct Function {
    state: Mutex<State>,
    map: WeakMmioMap,
    intx: Arc<Intx>,
}

impl Function {
    /// A function without base addresses and capabilities, which has pin INTA.
    pub fn new(identity: Identity, map: WeakMmioMap, intx: Arc<Intx>) -> Self {
        let mut space = ConfigSpace::new(identity.vendor, identity.device, identity.class);
        space.set(REVISION_ID, &[identity.revision]);
        space.set(SUBSYSTEM_VENDOR_ID, &identity.vendor.to_le_bytes());
        space.set(SUBSYSTEM_VENDOR_ID + 2, &identity.subsystem.to_le_bytes());
        space.set(INTERRUPT_PIN, &[1]);
        space.allow(COMMAND, &[COMMAND_MEMORY | COMMAND_MASTER, COMMAND_INTX_DISABLE_HIGH]);
        let (last, free) = (CAPABILITIES_POINTER, HEADER_END);
        let state = State { space, bars: Vec::new(), last, free, msix: None };
        Function { state: Mutex::new(state), map, intx }
    }

    /// Adds a base address.
    pub fn add_bar(&self, bar: Bar) {
        let mut state = lock(&self.state);
        let register = BAR0 + 4 * usize::from(bar.register);
        state.space.set(register, &(bar.at | u64::from(BAR_MEMORY_64)).to_le_bytes());
        // What cannot be written is how software learns the size (PCI 3.0, 6.2.5.1).
        state.space.allow(register, &(!(bar.size - 1) & !BAR_FLAGS).to_le_bytes());
        state.bars.push(Placed { bar, now: None });
    }

    /// Appends a capability: its id and what comes behind the pointer to the next one. Returns where it
    /// begins.
    pub fn add_capability(&self, id: u8, body: &[u8]) -> u8 {
        let mut state = lock(&self.state);
        let at = state.free;
        let last = state.last;
        state.space.set(last, &[at as u8]);
        state.space.set(at, &[id, 0]);
        state.space.set(at + 2, body);
        state.space.set(STATUS, &[STATUS_CAPABILITIES]);
        state.last = at + 1;
        state.free = (at + 2 + body.len()).next_multiple_of(4);
        at as u8
    }

    /// Lets software write bits of configuration space, as a capability may want it.
    pub fn allow(&self, offset: u8, mask: &[u8]) {
        lock(&self.state).space.allow(offset.into(), mask);
    }

    /// Adds `msix`, whose table and pending bits are in base address `register` at these offsets.
    pub fn add_msix(&self, msix: &Arc<Msix>, register: u8, table: u32, pending: u32) {
        let mut body = (msix.vectors() - 1).to_le_bytes().to_vec();
        body.extend((table | u32::from(register)).to_le_bytes());
        body.extend((pending | u32::from(register)).to_le_bytes());
        let at = self.add_capability(CAP_MSIX, &body);
        self.allow(at + 3, &[MSIX_ENABLE_HIGH | MSIX_MASK_ALL_HIGH]);
        lock(&self.state).msix = Some((at.into(), msix.clone()));
    }

    /// Puts every base address where its registers say, if the function answers at all. One that
    /// is in the way of another device answers nowhere.
    fn place(&self, state: &mut State) {
        let Some(map) = self.map.upgrade() else { return };
        let on = state.space.read(COMMAND as u16, 1) & u32::from(COMMAND_MEMORY) != 0;
        for placed in &mut state.bars {
            let register = (BAR0 + 4 * usize::from(placed.bar.register)) as u16;
            let low = u64::from(state.space.read(register, 4)) & !BAR_FLAGS;
            let at = low | u64::from(state.space.read(register + 4, 4)) << 32;
            let wanted = (on && at != 0).then_some(at);
            if wanted == placed.now {
                continue;
            }
            placed.now = match (placed.now, wanted) {
                (Some(now), Some(to)) if map.relocate(now, to) == Ok(true) => Some(to),
                (now, wanted) => {
                    now.map(|now| map.remove(now));
                    let Bar { name, size, device, .. } = &placed.bar;
                    wanted.filter(|&to| {
                        let last = to.checked_add(size - 1);
                        last.is_some_and(|last| map.add(name, to, last, device.clone()).is_ok())
                    })
                }
            };
        }
    }
}

/// A function's state, without that of the device that it belongs to.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFunction {
    space: SavedConfig,
    intx: intx::State,
    msix: Option<msix::State>,
}

impl Function {
    /// Its state.
    pub fn save(&self) -> SavedFunction {
        let state = lock(&self.state);
        let msix = state.msix.as_ref().map(|(_, msix)| msix.save());
        SavedFunction { space: state.space.save(), intx: self.intx.save(), msix }
    }

    /// Takes a state back; base addresses lead where it says, and no interrupt is made.
    pub fn restore(&self, saved: SavedFunction) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let SavedFunction { space, intx, msix } = saved;
        match (&state.msix, msix) {
            (Some((_, own)), Some(msix)) => own.restore(msix)?,
            (None, None) => {}
            _ => return Err(Error::unfit("MSI-X", "one of the two functions has none")),
        }
        state.space.restore(&space)?;
        self.intx.restore(intx);
        self.place(&mut state);
        Ok(())
    }
}

impl Function {
    /// A read of configuration space.
    pub fn config_read(&self, offset: u16, size: u8) -> u32 {
        let mut state = lock(&self.state);
        let interrupt = if self.intx.pending() { STATUS_INTERRUPT } else { 0 };
        state.space.set(STATUS, &[STATUS_CAPABILITIES | interrupt]);
        state.space.read(offset, size)
    }

    /// A write of configuration space.
    pub fn config_write(&self, offset: u16, size: u8, value: u32) {
        let mut state = lock(&self.state);
        state.space.write(offset, size, value);
        let (first, end) = (usize::from(offset), usize::from(offset) + usize::from(size));
        if first < COMMAND + 2 && end > COMMAND {
            let high = state.space.read(COMMAND as u16 + 1, 1) as u8;
            self.intx.disable(high & COMMAND_INTX_DISABLE_HIGH != 0);
            self.place(&mut state);
        } else if (BAR0..CAPABILITIES_POINTER).contains(&first) {
            self.place(&mut state);
        }
        if let Some((at, msix)) = &state.msix
            && first < at + 4
            && end > at + 2
        {
            let control = state.space.read(*at as u16 + 3, 1) as u8;
            msix.control(control & MSIX_ENABLE_HIGH != 0, control & MSIX_MASK_ALL_HIGH != 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_bus::{InterruptLine, MmioMap, Msi, MsiSink};
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Fixed;
    impl MmioDevice for Fixed {
        fn read(&self, offset: u64, _size: u8) -> u64 {
            offset
        }
        fn write(&self, _offset: u64, _size: u8, _value: u64) {}
    }

    #[derive(Default)]
    struct Wire(AtomicBool);
    impl InterruptLine for Wire {
        fn set(&self, asserted: bool) {
            self.0.store(asserted, Ordering::SeqCst);
        }
    }

    struct Nowhere;
    impl MsiSink for Nowhere {
        fn signal(&self, _msi: Msi) {}
    }

    const AT: u64 = 0xc000_0000;

    fn function() -> (Function, MmioMap, Arc<Intx>, Arc<Wire>) {
        let (map, wire) = (MmioMap::default(), Arc::new(Wire::default()));
        let intx = Intx::new(wire.clone());
        let identity =
            Identity { vendor: 0x1af4, device: 0x1043, subsystem: 7, class: 0x07_80_00, revision: 1 };
        let function = Function::new(identity, map.downgrade(), intx.clone());
        function.add_bar(Bar { name: "bar", register: 0, size: 0x8000, at: AT, device: Arc::new(Fixed) });
        (function, map, intx, wire)
    }

    #[test]
    fn a_bar_is_sized_and_moved_as_software_does() {
        let (function, map, ..) = function();
        assert_eq!(function.config_read(0x10, 4), AT as u32 | BAR_MEMORY_64);
        assert_eq!(map.name(AT), None, "it answers when it is told to");
        function.config_write(4, 2, 2);
        assert_eq!(map.read(AT + 0x7fff, 1), 0x7fff);
        function.config_write(4, 2, 0);
        assert_eq!(map.name(AT), None);
        for register in [0x10, 0x14] {
            function.config_write(register, 4, u32::MAX);
        }
        assert_eq!((function.config_read(0x10, 4), function.config_read(0x14, 4)), (0xffff_8004, u32::MAX));
        function.config_write(4, 2, 2);
        assert_eq!(map.name(0xffff_ffff_ffff_8000), Some("bar"));
        function.config_write(0x10, 4, 0x4000_0000);
        function.config_write(0x14, 4, 0x40);
        assert_eq!(map.name(0x40_4000_0000), Some("bar"));
        assert_eq!(map.name(0xffff_ffff_ffff_8000), None);
        map.add("other", 0x5000_0000, 0x5000_ffff, Arc::new(Fixed)).unwrap();
        function.config_write(0x14, 4, 0);
        function.config_write(0x10, 4, 0x5000_8000);
        assert_eq!(map.name(0x5000_8000), Some("other"), "what is in the way stays");
        function.config_write(0x10, 4, 0x6000_0000);
        assert_eq!(map.name(0x6000_0000), Some("bar"));
        function.config_write(0x10, 4, 0);
        assert_eq!(map.name(0x6000_0000), None, "address 0 is no place");
    }

    #[test]
    fn capabilities_are_a_list_and_msix_is_told_of_its_bits() {
        let (function, ..) = function();
        let first = function.add_capability(CAP_VENDOR, &[5, 1, 2, 3]);
        let msix = Msix::new(3, Arc::new(Nowhere));
        function.add_msix(&msix, 0, 0x4000, 0x5000);
        assert_eq!(function.config_read(6, 2) & 0x10, 0x10);
        let at = function.config_read(0x34, 1);
        assert_eq!((at, function.config_read(at as u16, 1)), (first.into(), CAP_VENDOR.into()));
        let next = function.config_read(at as u16 + 1, 1) as u16;
        assert_eq!(function.config_read(next, 4), u32::from(CAP_MSIX) | 2 << 16);
        assert_eq!(function.config_read(next + 4, 4), 0x4000);
        assert!(!msix.enabled());
        function.config_write(next + 2, 2, 0xffff);
        assert!(msix.enabled());
        assert_eq!(function.config_read(next + 2, 2), 0xc002, "the size is not software's");
        function.config_write(next, 4, 0);
        assert!(!msix.enabled());
    }

    #[test]
    fn the_pin_is_silent_while_it_is_disabled() {
        let (function, _, intx, wire) = function();
        intx.set(true);
        assert!(wire.0.load(Ordering::SeqCst));
        assert_eq!(function.config_read(6, 1) & 8, 8);
        function.config_write(4, 2, 0x400);
        assert!(!wire.0.load(Ordering::SeqCst));
        assert_eq!(function.config_read(6, 1) & 8, 8, "still pending");
        function.config_write(5, 1, 0);
        assert!(wire.0.load(Ordering::SeqCst));
        intx.set(false);
        assert!(!wire.0.load(Ordering::SeqCst));
    }
}
