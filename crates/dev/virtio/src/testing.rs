//! A driver of our own, for tests: it sets a device up through its registers, as a guest does.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{Clock, InterruptLine, MmioMap, Msi, MsiSink, TimerQueue};
use satori_defs::virtio::pci::common::*;
use satori_defs::virtio::split::*;
use satori_memory::{Gpa, GuestMemory, Region};
use satori_pci::PciFunction;

use crate::{Device, Timing, VirtioFunction, Wiring};

pub(crate) const BAR: u64 = 0xc000_0000;
/// Descriptors of each queue; a queue's rings are 0x1000 bytes apart, the queues 0x4000.
pub(crate) const SIZE: u16 = 8;

#[derive(Default)]
pub(crate) struct Heard(pub Mutex<Vec<u8>>);

impl MsiSink for Heard {
    fn signal(&self, msi: Msi) {
        self.0.lock().unwrap().push(msi.data as u8);
    }
}

struct Wire;
impl InterruptLine for Wire {
    fn set(&self, _asserted: bool) {}
}

/// A clock that stands where it was put.
#[derive(Default)]
pub(crate) struct Standing(pub AtomicU64);

impl Clock for Standing {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn counter(&self) -> u64 {
        self.now()
    }
    fn counter_hz(&self) -> u64 {
        1_000_000_000
    }
    fn epoch(&self) -> u64 {
        0
    }
}

/// A machine of one device.
pub(crate) struct Driver {
    /// The time of a machine whose runs are the same every time.
    pub time: Arc<Standing>,
    pub timers: Arc<TimerQueue>,
    pub memory: GuestMemory,
    pub map: MmioMap,
    pub function: Arc<VirtioFunction>,
    pub heard: Arc<Heard>,
    /// How many chains were made available, by queue.
    pub made: Vec<u16>,
}

impl Driver {
    pub(crate) fn new(device: Arc<dyn Device>, determined: bool) -> Self {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 1 << 20 }]).unwrap();
        let (map, heard) = (MmioMap::default(), Arc::new(Heard::default()));
        let made = vec![0; device.queues().len()];
        let (time, timers) = (Arc::new(Standing::default()), TimerQueue::new());
        let clock: Arc<dyn Clock> = time.clone();
        let timing = determined.then(|| Timing { clock, timers: timers.clone() });
        let wiring = Wiring {
            memory: memory.clone(),
            map: map.downgrade(),
            at: BAR,
            messages: heard.clone(),
            pin: Arc::new(Wire),
            timing,
            moved: Arc::default(),
        };
        let function = VirtioFunction::new("test", device, wiring);
        function.config_write(4, 2, 6);
        Driver { time, timers, memory, map, function, heard, made }
    }

    /// A machine of `device` that goes on from here, where this one stands still; `damage` may change what is saved.
    pub(crate) fn moved(
        &self,
        device: Arc<dyn Device>,
        damage: impl FnOnce(&mut satori_save::Value),
    ) -> Result<Driver, satori_save::Error> {
        self.moved_to(Driver::new(device, false), damage)
    }

    /// As [`moved`](Driver::moved), to a machine that is there, with the same time.
    pub(crate) fn moved_to(
        &self,
        other: Driver,
        damage: impl FnOnce(&mut satori_save::Value),
    ) -> Result<Driver, satori_save::Error> {
        let other = Driver { made: self.made.clone(), ..other };
        other.time.0.store(self.time.now(), Ordering::Relaxed);
        self.function.hold(true);
        let mut saved = self.function.save()?;
        let mut memory = vec![0; 1 << 20];
        self.memory.read(Gpa(0), &mut memory).unwrap();
        self.function.hold(false);
        damage(&mut saved);
        other.function.hold(true);
        other.memory.write(Gpa(0), &memory).unwrap();
        other.function.restore(&saved)?;
        other.function.hold(false);
        Ok(other)
    }

    pub(crate) fn get(&self, register: u64, size: u8) -> u64 {
        self.map.read(BAR + register, size)
    }

    pub(crate) fn set(&self, register: u64, size: u8, value: u64) {
        self.map.write(BAR + register, size, value);
    }

    pub(crate) fn status(&self) -> u8 {
        self.get(STATUS, 1) as u8
    }

    pub(crate) fn rings(queue: u16) -> (u64, u64, u64) {
        let base = 0x1_0000 + 0x4000 * u64::from(queue);
        (base, base + 0x1000, base + 0x2000)
    }

    /// From a reset to DRIVER_OK, with these features and every queue enabled.
    pub(crate) fn begin(&mut self, features: u64) {
        self.set(STATUS, 1, 0);
        assert_eq!(self.status(), 0);
        self.set(STATUS, 1, 3);
        for half in 0..2 {
            self.set(DRIVER_FEATURE_SELECT, 4, half);
            self.set(DRIVER_FEATURE, 4, features >> (32 * half) & 0xffff_ffff);
        }
        self.set(STATUS, 1, 11);
        self.enable_queues();
        self.set(STATUS, 1, 15);
    }

    pub(crate) fn enable_queues(&mut self) {
        for queue in 0..self.made.len() as u16 {
            let (desc, driver, device) = Self::rings(queue);
            self.memory.write(Gpa(driver), &[0; 0x1000]).unwrap();
            self.memory.write(Gpa(device), &[0; 0x1000]).unwrap();
            self.set(QUEUE_SELECT, 2, queue.into());
            self.set(QUEUE_SIZE, 2, SIZE.into());
            self.set(QUEUE_DESC, 8, desc);
            self.set(QUEUE_DRIVER, 4, driver);
            self.set(QUEUE_DRIVER + 4, 4, 0);
            self.set(QUEUE_DEVICE, 8, device);
            self.set(QUEUE_ENABLE, 2, 1);
            self.made[usize::from(queue)] = 0;
        }
    }

    /// Writes descriptor `index` of `queue`: address, length, flags, next.
    pub(crate) fn describe(&self, queue: u16, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        let mut raw = at.to_le_bytes().to_vec();
        raw.extend(len.to_le_bytes());
        raw.extend(flags.to_le_bytes());
        raw.extend(next.to_le_bytes());
        self.memory.write(Gpa(Self::rings(queue).0 + DESCRIPTOR * u64::from(index)), &raw).unwrap();
    }

    /// Makes the chain that begins at `head` available, without ringing.
    pub(crate) fn offer(&mut self, queue: u16, head: u16) {
        let driver = Self::rings(queue).1;
        let made = &mut self.made[usize::from(queue)];
        let slot = u64::from(*made % SIZE);
        self.memory.store_u16(Gpa(driver + RING + 2 * slot), head).unwrap();
        *made = made.wrapping_add(1);
        self.memory.store_u16(Gpa(driver + INDEX), *made).unwrap();
    }

    pub(crate) fn ring(&self, queue: u16) {
        self.set(0x3000 + 4 * u64::from(queue), 2, queue.into());
    }

    /// How many chains the device gave back.
    pub(crate) fn given(&self, queue: u16) -> u16 {
        self.memory.load_u16(Gpa(Self::rings(queue).2 + INDEX)).unwrap()
    }

    /// Head and bytes written of what it gave back as number `index`.
    pub(crate) fn used(&self, queue: u16, index: u16) -> (u32, u32) {
        let at = Self::rings(queue).2 + RING + USED * u64::from(index % SIZE);
        (self.memory.read_u32(Gpa(at)).unwrap(), self.memory.read_u32(Gpa(at + 4)).unwrap())
    }

    /// A request of `out` at 0x80000 and room for `room` bytes at 0x90000, as chain 0 and 1; offered and rung.
    pub(crate) fn request(&mut self, queue: u16, out: &[u8], room: u32) {
        self.memory.write(Gpa(0x8_0000), out).unwrap();
        let room_flags = WRITE;
        match (out.len() as u32, room) {
            (len, 0) => self.describe(queue, 0, 0x8_0000, len, 0, 0),
            (0, room) => self.describe(queue, 0, 0x9_0000, room, room_flags, 0),
            (len, room) => {
                self.describe(queue, 0, 0x8_0000, len, NEXT, 1);
                self.describe(queue, 1, 0x9_0000, room, room_flags, 0);
            }
        }
        self.offer(queue, 0);
        self.ring(queue);
    }

    /// Lets time go on to `to`, with what is due until then.
    pub(crate) fn at(&self, to: u64) {
        while let Some(next) = self.timers.next().filter(|next| *next <= to) {
            self.time.0.store(next, Ordering::Relaxed);
            self.timers.run(next);
        }
        self.time.0.store(to, Ordering::Relaxed);
    }

    pub(crate) fn reply(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(Gpa(0x9_0000), &mut bytes).unwrap();
        bytes
    }

    /// Waits until `done`, which somebody's thread brings about.
    pub(crate) fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if done(self) {
                return;
            }
            if let Some(next) = self.timers.next() {
                self.at(next);
                continue;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("waited 20 s for {what}");
    }
}

/// A pipe: what reads and what writes.
pub(crate) fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

pub(crate) fn own(file: impl Into<OwnedFd>) -> OwnedFd {
    file.into()
}
