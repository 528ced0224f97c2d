//! Virtual devices over PCI, for cases that do with them what no driver does: nothing is checked here, and everything can be said.

use satori_defs::pci::{CAP_VENDOR, COMMAND_MASTER, COMMAND_MEMORY};
use satori_defs::virtio::pci::common::*;
use satori_defs::virtio::pci::{CAP_COMMON, CAP_DEVICE, CAP_ISR, CAP_NOTIFY};
use satori_defs::virtio::split::*;
use satori_defs::virtio::status::{DRIVER_OK, FEATURES_OK, NEEDS_RESET};
use satori_defs::virtio::{PCI_DEVICE, PCI_VENDOR};

use crate::pci::{self, Function};
use crate::place::{load, store};
use crate::{insn, paging};

/// Device status: the driver knows the device, and how to drive it.
pub const ACKNOWLEDGE: u8 = 1;
/// Device status: it knows how.
pub const DRIVER: u8 = 2;

/// A device, and where its structures are.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// Its function.
    pub function: Function,
    /// Its type.
    pub kind: u16,
    /// Common configuration.
    pub common: u64,
    /// Interrupt status.
    pub isr: u64,
    /// Its own configuration.
    pub config: u64,
    doorbells: u64,
    stride: u64,
}

impl Device {
    /// Finds the structures of a function, if it is such a device, and lets it answer and be master.
    pub fn of(function: Function) -> Option<Device> {
        let (vendor, device) = function.id();
        let kind = device.checked_sub(PCI_DEVICE).filter(|_| vendor == PCI_VENDOR)?;
        function.command(COMMAND_MEMORY | COMMAND_MASTER, 0);
        let structure = |kind: u8| {
            let is = |at: &usize| {
                function.read(*at, 1) as u8 == CAP_VENDOR && function.read(at + 3, 1) as u8 == kind
            };
            function.capabilities().find(is)
        };
        let place = |kind| Some(function.bar() + u64::from(function.read(structure(kind)? + 8, 4)));
        Some(Device {
            function,
            kind,
            common: place(CAP_COMMON)?,
            isr: place(CAP_ISR)?,
            config: place(CAP_DEVICE)?,
            doorbells: place(CAP_NOTIFY)?,
            stride: function.read(structure(CAP_NOTIFY)? + 16, 4).into(),
        })
    }

    /// The first device of a type.
    pub fn find(kind: u16) -> Option<Device> {
        all().find(|device| device.kind == kind)
    }

    /// Reads a register of the common configuration.
    pub fn read(&self, register: u64, size: u8) -> u64 {
        crate::place::read(self.common + register, size)
    }

    /// Writes one.
    pub fn write(&self, register: u64, size: u8, value: u64) {
        crate::place::write(self.common + register, size, value);
    }

    /// Its status.
    pub fn status(&self) -> u8 {
        self.read(STATUS, 1) as u8
    }

    /// Whether it stands still, as a rule was broken.
    pub fn stands_still(&self) -> bool {
        self.status() & NEEDS_RESET != 0
    }

    /// Resets it, and tells whether it says so.
    pub fn reset(&self) -> bool {
        self.write(STATUS, 1, 0);
        self.status() == 0
    }

    /// Its features.
    pub fn features(&self) -> u64 {
        let half = |select: u64| {
            self.write(DEVICE_FEATURE_SELECT, 4, select);
            self.read(DEVICE_FEATURE, 4)
        };
        half(1) << 32 | half(0)
    }

    /// Asks for features, and tells whether the device is content.
    pub fn agree(&self, features: u64) -> bool {
        self.write(STATUS, 1, u64::from(ACKNOWLEDGE | DRIVER));
        for (select, half) in [(0, features & 0xffff_ffff), (1, features >> 32)] {
            self.write(DRIVER_FEATURE_SELECT, 4, select);
            self.write(DRIVER_FEATURE, 4, half);
        }
        self.write(STATUS, 1, u64::from(ACKNOWLEDGE | DRIVER | FEATURES_OK));
        self.status() & FEATURES_OK != 0
    }

    /// How many queues there are.
    pub fn queues(&self) -> u16 {
        self.read(QUEUES, 2) as u16
    }

    /// The most descriptors of a queue; 0 if there is none of that number.
    pub fn most(&self, queue: u16) -> u16 {
        self.write(QUEUE_SELECT, 2, queue.into());
        self.read(QUEUE_SIZE, 2) as u16
    }

    /// Tells where a queue is and enables it. Addresses may be anything.
    pub fn place(&self, queue: u16, size: u16, [desc, driver, device]: [u64; 3]) {
        self.write(QUEUE_SELECT, 2, queue.into());
        self.write(QUEUE_SIZE, 2, size.into());
        for (register, at) in [(QUEUE_DESC, desc), (QUEUE_DRIVER, driver), (QUEUE_DEVICE, device)] {
            self.write(register, 8, at);
        }
        self.write(QUEUE_ENABLE, 2, 1);
    }

    /// The driver is ready.
    pub fn go(&self) {
        self.write(STATUS, 1, u64::from(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK));
    }

    /// Rings a doorbell.
    pub fn ring(&self, queue: u16) {
        store(self.doorbells + u64::from(queue) * self.stride, queue);
    }

    /// A reset, these features, and this queue alone, in memory of its own that is zeroed.
    pub fn begin<const N: usize>(&self, features: u64, queues: [&mut Queue; N]) -> bool {
        let began = self.reset() && self.agree(features);
        for queue in queues {
            queue.clear();
            self.place(queue.number, queue.size, queue.places());
        }
        self.go();
        began
    }
}

/// All devices.
pub fn all() -> impl Iterator<Item = Device> {
    pci::functions().filter_map(Device::of)
}

/// A split queue in three pages of its own.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Its number.
    pub number: u16,
    /// Its descriptors, at most 256.
    pub size: u16,
    /// The descriptor table.
    pub desc: u64,
    /// The available ring.
    pub driver: u64,
    /// The used ring.
    pub device: u64,
    /// How many chains were made available.
    pub offered: u16,
}

impl Queue {
    /// Pages for one.
    pub fn new(number: u16, size: u16) -> Queue {
        let [desc, driver, device] = [paging::page(), paging::page(), paging::page()];
        Queue { number, size, desc, driver, device, offered: 0 }
    }

    /// Where its parts are.
    pub fn places(&self) -> [u64; 3] {
        [self.desc, self.driver, self.device]
    }

    /// Zeroes it.
    pub fn clear(&mut self) {
        self.offered = 0;
        for page in self.places() {
            crate::hyperv::fill(page, 0);
        }
    }

    /// Writes a descriptor.
    pub fn descriptor(&self, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        descriptor(self.desc + DESCRIPTOR * u64::from(index), at, len, flags, next);
    }

    /// Makes the chain that begins with `head` available, without ringing.
    pub fn offer(&mut self, head: u16) {
        let slot = u64::from(self.offered % self.size);
        store(self.driver + RING + 2 * slot, head);
        self.offered = self.offered.wrapping_add(1);
        insn::mfence();
        store(self.driver + INDEX, self.offered);
    }

    /// How many chains came back.
    pub fn used(&self) -> u16 {
        load(self.device + INDEX)
    }

    /// What came back in that place: the chain's head, and how many bytes were written to it.
    pub fn entry(&self, number: u16) -> (u32, u32) {
        let at = self.device + RING + USED * u64::from(number % self.size);
        (load(at), load(at + 4))
    }

    /// Waits until all that was made available came back, or the device stands still.
    pub fn done(&self, device: &Device) -> bool {
        within(|| self.used() == self.offered || device.stands_still()) && self.used() == self.offered
    }

    /// Offers `head`, rings, and tells whether it came back.
    pub fn request(&mut self, device: &Device, head: u16) -> bool {
        self.offer(head);
        device.ring(self.number);
        self.done(device)
    }
}

/// Writes a descriptor at an address.
pub fn descriptor(place: u64, at: u64, len: u32, flags: u16, next: u16) {
    store(place, at);
    store(place + 8, len);
    store(place + 12, flags);
    store(place + 14, next);
}

/// Waits until something holds; a minute of any processor's is never.
pub fn within(mut holds: impl FnMut() -> bool) -> bool {
    let start = insn::rdtsc();
    while insn::rdtsc().wrapping_sub(start) < 100_000_000_000 {
        if holds() {
            return true;
        }
        insn::pause();
    }
    false
}
