//! A function of type 0: its header, base addresses that the guest sizes and moves, capabilities.

use std::sync::{Arc, Mutex};

use satori_bus::{MmioDevice, MmioMap, PortDevice, PortMap, WeakMmioMap, WeakPortMap};
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

/// What a base address register of port space leads to.
pub struct PortBar {
    /// Its name in the map.
    pub name: &'static str,
    /// The register, 0 to 5.
    pub register: u8,
    /// Ports, a power of two from 4 to 256.
    pub size: u16,
    /// Where it is at power-on, a multiple of its size; the guest may move it.
    pub at: u16,
    /// Who answers there.
    pub device: Arc<dyn PortDevice>,
}

/// One of a machine's maps, and who answers there.
enum Leads<M, P> {
    Memory(M, Arc<dyn MmioDevice>),
    Ports(P, Arc<dyn PortDevice>),
}

/// What a base address leads to, while the machine lives.
type Leading = Leads<MmioMap, PortMap>;

impl Leading {
    /// Puts the device at `to`, if nothing is in the way.
    fn add(&self, name: &'static str, to: u64, size: u64) -> bool {
        let Some(last) = to.checked_add(size - 1) else { return false };
        match self {
            Leads::Memory(map, device) => map.add(name, to, last, device.clone()).is_ok(),
            Leads::Ports(map, device) => match (to.try_into(), last.try_into()) {
                (Ok(to), Ok(last)) => map.add(name, to, last, device.clone()).is_ok(),
                _ => false,
            },
        }
    }

    /// Moves it; false if something is in the way.
    fn relocate(&self, now: u64, to: u64, size: u64) -> bool {
        match self {
            Leads::Memory(map, _) => map.relocate(now, to) == Ok(true),
            Leads::Ports(map, _) => match (now.try_into(), to.try_into()) {
                (Ok(now), Ok(to)) if u16::MAX - to >= size as u16 - 1 => map.relocate(now, to) == Ok(true),
                _ => false,
            },
        }
    }

    fn remove(&self, now: u64) {
        match self {
            Leads::Memory(map, _) => _ = map.remove(now),
            Leads::Ports(map, _) => _ = now.try_into().is_ok_and(|now| map.remove(now)),
        }
    }
}

struct Placed {
    name: &'static str,
    register: u8,
    size: u64,
    leads: Leads<WeakMmioMap, WeakPortMap>,
    /// Where it is in the map now.
    now: Option<u64>,
}

impl Placed {
    fn leading(&self) -> Option<Leading> {
        Some(match &self.leads {
            Leads::Memory(map, device) => Leads::Memory(map.upgrade()?, device.clone()),
            Leads::Ports(map, device) => Leads::Ports(map.upgrade()?, device.clone()),
        })
    }

    /// Where the registers of `space` say that it is, if it answers at all.
    fn wanted(&self, space: &ConfigSpace) -> Option<u64> {
        let register = (BAR0 + 4 * usize::from(self.register)) as u16;
        let low = u64::from(space.read(register, 4));
        let (at, enable) = match self.leads {
            Leads::Memory(..) => {
                (low & !BAR_FLAGS | u64::from(space.read(register + 4, 4)) << 32, COMMAND_MEMORY)
            }
            Leads::Ports(..) => (low & !BAR_PORT_FLAGS, COMMAND_IO),
        };
        let on = space.read(COMMAND as u16, 1) & u32::from(enable) != 0;
        (on && at != 0).then_some(at)
    }

    /// Puts it there. One that is in the way of another device answers nowhere.
    fn place(&mut self, space: &ConfigSpace) {
        let wanted = self.wanted(space);
        let Some(leading) = self.leading().filter(|_| wanted != self.now) else { return };
        self.now = match (self.now, wanted) {
            (Some(now), Some(to)) if leading.relocate(now, to, self.size) => Some(to),
            (now, wanted) => {
                if let Some(now) = now {
                    leading.remove(now);
                }
                wanted.filter(|&to| leading.add(self.name, to, self.size))
            }
        };
    }
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
        let Bar { name, register, size, device, .. } = bar;
        let leads = Leads::Memory(self.map.clone(), device);
        state.bars.push(Placed { name, register, size, leads, now: None });
    }

    /// Adds a base address of port space, in the map `ports`.
    pub fn add_port_bar(&self, bar: PortBar, ports: WeakPortMap) {
        let mut state = lock(&self.state);
        let PortBar { name, register, size, at, device } = bar;
        let place = BAR0 + 4 * usize::from(register);
        state.space.set(place, &(u32::from(at) | BAR_PORT).to_le_bytes());
        state.space.allow(place, &(!(u32::from(size) - 1) & !(BAR_PORT_FLAGS as u32)).to_le_bytes());
        state.space.allow(COMMAND, &[COMMAND_IO | COMMAND_MEMORY | COMMAND_MASTER]);
        state.bars.push(Placed {
            name,
            register,
            size: size.into(),
            leads: Leads::Ports(ports, device),
            now: None,
        });
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

    /// Puts every base address where its registers say.
    fn place(&self, state: &mut State) {
        let State { space, bars, .. } = state;
        bars.iter_mut().for_each(|placed| placed.place(space));
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

    impl PortDevice for Fixed {
        fn read(&self, offset: u16, _size: u8) -> u32 {
            offset.into()
        }
        fn write(&self, _offset: u16, _size: u8, _value: u32) {}
    }

    #[test]
    fn a_bar_of_ports_is_sized_and_moved_and_never_leaves_port_space() {
        let (function, ..) = function();
        let ports = PortMap::default();
        let bar = PortBar { name: "ports", register: 2, size: 64, at: 0xc000, device: Arc::new(Fixed) };
        function.add_port_bar(bar, ports.downgrade());
        assert_eq!(function.config_read(0x18, 4), 0xc001);
        assert_eq!(ports.name(0xc000), None, "it answers when it is told to");
        function.config_write(4, 2, 1);
        assert_eq!(ports.read(0xc03f, 1), 0x3f);
        function.config_write(0x18, 4, u32::MAX);
        assert_eq!(function.config_read(0x18, 4), 0xffff_ffc1);
        assert_eq!(ports.name(0xc000), None, "nothing is beyond port space");
        function.config_write(0x18, 4, 0xffc0);
        assert_eq!(ports.name(0xffff), Some("ports"));
        ports.add("other", 0x2010, 0x2010, Arc::new(Fixed)).unwrap();
        function.config_write(0x18, 4, 0x2000);
        assert_eq!(
            (ports.name(0x2000), ports.name(0x2010)),
            (None, Some("other")),
            "what is in the way stays"
        );
        function.config_write(0x18, 4, 0x3000);
        assert_eq!(ports.name(0x3000), Some("ports"));
        function.config_write(4, 2, 0);
        assert_eq!(ports.name(0x3000), None);
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
