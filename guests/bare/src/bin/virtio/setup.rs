//! Registers of the transport (virtio 1.2, 3.1 and 4.1.4) in orders and sizes that no driver uses.

use satori_guests::Test;
use satori_guests::defs::virtio::feature::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use satori_guests::defs::virtio::pci::common::*;
use satori_guests::defs::virtio::pci::{CAP_PCI, NO_VECTOR};
use satori_guests::defs::virtio::status::{DRIVER_OK, FEATURES_OK, NEEDS_RESET};
use satori_guests::place;
use satori_guests::virtio::{ACKNOWLEDGE, DRIVER, all};

use satori_guests::disk::Disk;

pub fn features_and_status(t: &mut Test) {
    let mut disk = Disk::new();
    let device = disk.device;
    let offered = device.features();
    t.holds("what all have", offered & VERSION_1 != 0 && offered & EVENT_IDX != 0);
    for select in [2, 3, 0x8000_0000, u32::MAX] {
        device.write(DEVICE_FEATURE_SELECT, 4, select.into());
        t.eq(("no more than 64 bits", select), device.read(DEVICE_FEATURE, 4), 0);
    }
    for features in
        [0, INDIRECT_DESC, VERSION_1 | !offered, u64::MAX, VERSION_1 | 1 << 63, VERSION_1 | 1 << 24]
    {
        t.holds(("refused", features), device.reset() && !device.agree(features));
        device.go();
        t.eq(("and not by going on", features), device.status() & DRIVER_OK, 0);
    }
    // Ready without features, and a doorbell then.
    t.holds("a reset", device.reset());
    device.write(STATUS, 1, u64::from(DRIVER_OK));
    device.ring(0);
    t.eq("not ready without features", device.status() & DRIVER_OK, 0);
    // Once they are agreed on they stay; a bit of the status is not taken back but by a reset.
    t.holds("agreed", device.reset() && device.agree(VERSION_1));
    device.write(DRIVER_FEATURE_SELECT, 4, 0);
    device.write(DRIVER_FEATURE, 4, 0xffff_ffff);
    t.eq("they stay", device.read(DRIVER_FEATURE, 4), 0);
    device.write(STATUS, 1, 1);
    t.eq("bits stay", device.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK);
    device.write(STATUS, 1, u64::from(NEEDS_RESET | ACKNOWLEDGE));
    t.eq("whoever says that it needs a reset", device.status() & NEEDS_RESET, 0);
    // Of several bytes, or at another place, it is no write of the status.
    device.write(STATUS, 2, 0);
    device.write(STATUS, 4, 0);
    device.write(STATUS + 1, 1, 0xff);
    t.eq("no reset", device.status(), ACKNOWLEDGE | DRIVER | FEATURES_OK);
    t.holds("it works", disk.works(1));
}

pub fn queue_registers(t: &mut Test) {
    let mut disk = Disk::new();
    let device = disk.device;
    t.holds("a reset", device.reset() && device.agree(VERSION_1));
    let most = device.most(0);
    for size in [0, 3, 7, most + 1, 2 * most, 0x8000, 0xffff] {
        device.write(QUEUE_SIZE, 2, size.into());
        t.eq(("no such size", size), device.read(QUEUE_SIZE, 2) as u16, most);
    }
    for queue in [device.queues(), 0x100, 0x7fff, 0xffff] {
        t.eq(("no such queue", queue), device.most(queue), 0);
        device.place(queue, 16, disk.queue.places());
        let read = (device.read(QUEUE_ENABLE, 2), device.read(QUEUE_DESC, 8), device.read(QUEUE_VECTOR, 2));
        t.eq(("nor anything of it", queue), read, (0, 0, NO_VECTOR.into()));
        device.ring(queue);
    }
    for vector in [device.queues() + 1, 0x7ff, 0xfffe, 0xffff] {
        device.write(QUEUE_SELECT, 2, 0);
        for register in [QUEUE_VECTOR, CONFIG_VECTOR] {
            device.write(register, 2, vector.into());
            t.eq(("no such vector", register, vector), device.read(register, 2) as u16, NO_VECTOR);
        }
    }
    // One that is enabled stays where it is, and is not enabled twice, nor taken away.
    device.write(QUEUE_SELECT, 2, 0);
    device.place(0, 16, disk.queue.places());
    device.place(0, 8, [1, 2, 3]);
    t.eq("its size", device.read(QUEUE_SIZE, 2), 16);
    t.eq("its place", device.read(QUEUE_DESC, 8), disk.queue.desc);
    device.write(QUEUE_ENABLE, 2, 0);
    t.eq("enabled", device.read(QUEUE_ENABLE, 2), 1);
    // A doorbell before the driver is ready, of a queue that is not enabled, and of one that is enabled late.
    disk.queue.clear();
    disk.queue.offer(0);
    device.ring(0);
    t.eq("nothing before it is ready", disk.queue.used(), 0);
    t.holds("a reset", device.reset() && device.agree(VERSION_1));
    device.go();
    device.ring(0);
    device.ring(1);
    t.eq("nothing of one that is not there", (disk.queue.used(), device.stands_still()), (0, false));
    t.holds("it works", disk.works(2));
}

/// Every register of every device, in every size and at every place, with all ones and with zeroes.
pub fn registers_of_every_size(t: &mut Test) {
    for device in all() {
        let bar = device.function.bar();
        for page in 0..9 {
            // Doorbells are another case, and 0x7ff8 is beyond the last of the eight pages' registers.
            for offset in (0..0x48_u64).chain(0xff8..0x1000) {
                for size in [1, 2, 4, 8] {
                    let at = bar + 0x1000 * page + offset;
                    for value in [u64::MAX, 0, 0x5a5a_5a5a_5a5a_5a5a] {
                        place::write(at, size, value);
                        place::read(at, size);
                    }
                }
            }
        }
        t.holds(("as new after a reset", device.kind), device.reset() && device.agree(VERSION_1));
        t.holds("once more", device.reset());
    }
    t.holds("the disk works", Disk::new().works(9));
}

/// The base address through configuration space (4.1.4.9), with places that it does not have, and itself.
pub fn window(t: &mut Test) {
    let mut disk = Disk::new();
    let function = disk.device.function;
    let is = |at: &usize| function.read(*at, 1) == 9 && function.read(at + 3, 1) as u8 == CAP_PCI;
    let window = function.capabilities().find(is).expect("a window");
    let through = |bar: u32, offset: u32, len: u32| {
        function.write(window + 4, 1, bar);
        function.write(window + 8, 4, offset);
        function.write(window + 12, 4, len);
        function.read(window + 16, 4)
    };
    let queues = u32::from(disk.device.queues());
    t.eq("a register", through(0, QUEUES as u32, 2) & 0xffff, queues);
    for (bar, offset, len) in [
        (1, QUEUES as u32, 2),
        (0xff, 0, 4),
        (0, 0x8000, 4),
        (0, 0xffff_fffe, 2),
        (0, 0xffff_ffff, 1),
        (0, 0x7fff, 4),
        (0, 1, 4),
        (0, 0, 0),
        (0, 0, 3),
        (0, 0, 8),
        (0, 0, u32::MAX),
    ] {
        through(bar, offset, len);
        function.write(window + 16, 4, u32::MAX);
        function.write(window + 18, 2, 0);
        t.holds(("no place", bar, offset, len), !disk.device.stands_still());
    }
    through(0, 0x3000, 4);
    function.write(window + 16, 4, 0);
    t.holds("a doorbell", disk.works(4));
    through(0, STATUS as u32, 1);
    function.write(window + 16, 1, 0);
    t.eq("a reset", disk.device.status(), 0);
}
