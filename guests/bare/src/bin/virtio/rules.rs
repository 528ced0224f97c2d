//! The rules of queues (virtio 1.2, 2.7), broken one by one.

use satori_guests::defs::apic;
use satori_guests::defs::chipset::mmio;
use satori_guests::defs::virtio::block::*;
use satori_guests::defs::virtio::feature::VERSION_1;
use satori_guests::defs::virtio::split::*;
use satori_guests::hyperv::memory_end;
use satori_guests::place::{load, store};
use satori_guests::virtio::{descriptor, within};
use satori_guests::{Test, insn, paging};

use satori_guests::disk::Disk;

/// What a request does with a device that is not content: it stands still, nothing comes back, and after a reset it works.
fn refused(t: &mut Test, disk: &mut Disk, what: &str, number: u64) {
    let before = disk.queue.used();
    disk.device.ring(0);
    t.holds((what, number, "it stands still"), within(|| disk.device.stands_still()));
    t.eq((what, number, "nothing comes back"), disk.queue.used(), before);
    // What is right is not done any more either.
    disk.chain(SECTOR as u32, WRITE);
    disk.queue.offer(0);
    disk.device.ring(0);
    t.eq((what, number, "nor later"), disk.queue.used(), before);
    t.holds((what, number, "as new after a reset"), disk.works(number));
    disk.begin();
    disk.head(IN, 0);
}

/// A request that is right, whatever it looks like.
fn done(t: &mut Test, disk: &mut Disk, what: &str, number: u64, status: u8) {
    store(disk.status, 0x5a_u8);
    t.holds((what, number, "comes back"), disk.queue.request(&disk.device, 0));
    t.eq((what, number, "its status"), load::<u8>(disk.status), status);
}

pub fn loops(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    // A descriptor that leads to itself, to its predecessor, and around the whole table.
    disk.queue.descriptor(0, disk.header, 16, NEXT, 0);
    disk.queue.offer(0);
    refused(t, &mut disk, "itself", 0);
    disk.chain(512, WRITE);
    disk.queue.descriptor(2, disk.status, 1, WRITE | NEXT, 1);
    disk.queue.offer(0);
    refused(t, &mut disk, "back", 1);
    (0..16).for_each(|index| disk.queue.descriptor(index, disk.header, 1, NEXT, (index + 1) % 16));
    disk.queue.offer(3);
    refused(t, &mut disk, "around", 2);
    // As long as the queue, and no longer.
    (0..16)
        .for_each(|index| disk.queue.descriptor(index, disk.header + u64::from(index), 1, NEXT, index + 1));
    disk.queue.descriptor(15, disk.status, 1, WRITE, 0);
    disk.queue.offer(0);
    disk.device.ring(0);
    t.holds("a header in bytes, one too short", disk.queue.done(&disk.device));
    t.eq("its status", load::<u8>(disk.status), IOERR);
    // In a table, too.
    let table = paging::page();
    for (number, next) in [(3, 0), (4, 1)] {
        descriptor(table, disk.header, 16, NEXT, 1);
        descriptor(table + 16, disk.data, 512, WRITE | NEXT, next);
        disk.queue.descriptor(0, table, 32, INDIRECT, 0);
        disk.queue.offer(0);
        refused(t, &mut disk, "in a table", number);
    }
}

/// Places where no memory is, or where it ends.
fn nowhere(length: u64) -> [u64; 14] {
    let end = memory_end();
    [
        end,
        end - length + 1,
        u64::MAX - length + 1,
        u64::MAX,
        0u64.wrapping_sub(length) + 1,
        1 << 63,
        1 << 52,
        apic::DEFAULT_BASE,
        mmio::IOAPIC,
        mmio::HPET,
        mmio::ECAM,
        0xc000_0000,
        0xffff_fff0,
        1 << 40,
    ]
}

pub fn addresses(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    let apic = load::<u32>(apic::DEFAULT_BASE + u64::from(apic::SVR));
    // Buffers: a device is never reached by another one.
    for (number, at) in (0..).zip(nowhere(512)) {
        disk.chain(512, WRITE);
        disk.queue.descriptor(1, at, 512, WRITE | NEXT, 2);
        disk.queue.offer(0);
        refused(t, &mut disk, "data", number);
    }
    for (number, at) in (0..).zip(nowhere(16)) {
        disk.chain(512, WRITE);
        disk.queue.descriptor(0, at, 16, NEXT, 1);
        disk.queue.offer(0);
        refused(t, &mut disk, "header", number);
    }
    for (number, at) in (0..).zip(nowhere(48)) {
        disk.queue.descriptor(0, at, 48, INDIRECT, 0);
        disk.queue.offer(0);
        refused(t, &mut disk, "table", number);
    }
    t.eq("the local APIC", load::<u32>(apic::DEFAULT_BASE + u64::from(apic::SVR)), apic);
    // Each of the three parts of the queue itself.
    for part in 0..3 {
        for (number, at) in (0..).zip(nowhere(256)) {
            let mut places = disk.queue.places();
            places[part] = at;
            t.holds("a reset", disk.device.reset() && disk.device.agree(VERSION_1));
            disk.queue.clear();
            disk.device.place(0, 16, places);
            disk.device.go();
            disk.chain(512, WRITE);
            disk.queue.offer(0);
            disk.device.ring(0);
            let still = within(|| disk.device.stands_still() || disk.queue.used() != 0);
            t.holds(("a part of the queue", part, number), still);
            t.holds(("as new after a reset", part, number), disk.works(number));
        }
    }
    t.eq("the local APIC still", load::<u32>(apic::DEFAULT_BASE + u64::from(apic::SVR)), apic);
    // The last bytes of memory are memory.
    disk.begin();
    disk.head(IN, 0);
    disk.chain(512, WRITE);
    disk.queue.descriptor(1, memory_end() - 512, 512, WRITE | NEXT, 2);
    done(t, &mut disk, "the last bytes", 0, OK);
}

pub fn lengths(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    // More than 4 GiB in all, of memory that is there: a sum of 32 bits would be a few bytes.
    let table = paging::page();
    let size = 1 << 26;
    for queue in [false, true] {
        let put = |disk: &Disk, index: u16, at, len, flags, next| {
            if queue {
                disk.queue.descriptor(index, at, len, flags, next);
            } else {
                descriptor(table + 16 * u64::from(index), at, len, flags, next);
            }
        };
        put(&disk, 0, disk.header, 16, NEXT, 1);
        (1..15).for_each(|index| put(&disk, index, 1 << 24, size, WRITE | NEXT, index + 1));
        put(&disk, 15, disk.status, 1, WRITE, 0);
        if !queue {
            disk.queue.descriptor(0, table, 256, INDIRECT, 0);
        }
        // 896 MiB: one that fits into a queue, and is more than a request may have.
        done(t, &mut disk, "896 MiB", queue.into(), IOERR);
    }
    // With a queue of 128 descriptors it is 7.8 GiB.
    t.holds("a reset", disk.device.reset() && disk.device.agree(VERSION_1));
    disk.queue.clear();
    disk.device.place(0, 128, disk.queue.places());
    disk.device.go();
    disk.queue.descriptor(0, disk.header, 16, NEXT, 1);
    (1..127).for_each(|index| disk.queue.descriptor(index, 1 << 24, size, WRITE | NEXT, index + 1));
    disk.queue.descriptor(127, disk.status, 1, WRITE, 0);
    disk.queue.offer(0);
    refused(t, &mut disk, "4 GiB and more", 0);
    for (number, len) in [(1, u32::MAX), (2, 1 << 31), (3, 0xffff_fe00)] {
        disk.chain(512, WRITE);
        disk.queue.descriptor(1, disk.data, len, WRITE | NEXT, 2);
        disk.queue.offer(0);
        refused(t, &mut disk, "longer than memory", number);
    }
    // Buffers of no bytes are passed over, wherever they are.
    disk.head(IN, 0);
    disk.queue.descriptor(0, u64::MAX, 0, NEXT, 1);
    disk.queue.descriptor(1, disk.header, 16, NEXT, 2);
    disk.queue.descriptor(2, 1 << 63, 0, WRITE | NEXT, 3);
    disk.queue.descriptor(3, disk.data, 512, WRITE | NEXT, 4);
    disk.queue.descriptor(4, disk.status, 1, WRITE, 0);
    done(t, &mut disk, "empty buffers", 0, OK);
    // Header and data in odd pieces.
    disk.queue.descriptor(0, disk.header, 3, NEXT, 1);
    disk.queue.descriptor(1, disk.header + 3, 13, NEXT, 2);
    disk.queue.descriptor(2, disk.data, 500, WRITE | NEXT, 3);
    disk.queue.descriptor(3, disk.data + 500, 12, WRITE | NEXT, 4);
    disk.queue.descriptor(4, disk.status, 1, WRITE, 0);
    done(t, &mut disk, "pieces", 0, OK);
    t.eq("their bytes", disk.queue.entry(disk.queue.offered - 1), (0, 513));
    // Header alone, no header, and no room for a status: they come back, and nothing is written.
    disk.queue.descriptor(0, disk.header, 16, 0, 0);
    t.holds("no room for a status", disk.queue.request(&disk.device, 0));
    t.eq("no bytes", disk.queue.entry(disk.queue.offered - 1), (0, 0));
    disk.queue.descriptor(0, disk.status, 1, WRITE, 0);
    done(t, &mut disk, "no header", 0, IOERR);
    disk.queue.descriptor(0, disk.header, 15, NEXT, 1);
    disk.queue.descriptor(1, disk.status, 1, WRITE, 0);
    done(t, &mut disk, "a short header", 0, IOERR);
    disk.queue.descriptor(0, disk.header, 0, 0, 0);
    t.holds("nothing at all", disk.queue.request(&disk.device, 0));
}

pub fn order(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    disk.queue.descriptor(0, disk.status, 1, WRITE | NEXT, 1);
    disk.queue.descriptor(1, disk.header, 16, 0, 0);
    disk.queue.offer(0);
    refused(t, &mut disk, "a header behind a status", 0);
    // A request that reads into its own header and status.
    disk.queue.descriptor(0, disk.header, 16, NEXT, 1);
    disk.queue.descriptor(1, disk.header, 512, WRITE | NEXT, 2);
    disk.queue.descriptor(2, disk.header, 1, WRITE, 0);
    t.holds("over its own header", disk.queue.request(&disk.device, 0));
    t.eq("its status is the last", load::<u8>(disk.header), OK);
    t.holds("it goes on", disk.works(3));
}

pub fn indirect(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    let table = paging::page();
    let good = |disk: &Disk| {
        descriptor(table, disk.header, 16, NEXT, 1);
        descriptor(table + 16, disk.data, 512, WRITE | NEXT, 2);
        descriptor(table + 32, disk.status, 1, WRITE, 0);
    };
    good(&disk);
    disk.queue.descriptor(0, table, 48, INDIRECT, 0);
    done(t, &mut disk, "a good one", 0, OK);
    // WRITE says nothing of a table (2.7.5.3.2).
    disk.queue.descriptor(0, table, 48, INDIRECT | WRITE, 0);
    done(t, &mut disk, "with WRITE", 0, OK);
    for (number, len) in (0..).zip([0, 1, 15, 17, 47, 49, 16 * 17, 1 << 31, u32::MAX, u32::MAX - 15]) {
        good(&disk);
        disk.queue.descriptor(0, table, len, INDIRECT, 0);
        disk.queue.offer(0);
        refused(t, &mut disk, "its length", number);
    }
    good(&disk);
    disk.queue.descriptor(0, table, 48, INDIRECT | NEXT, 1);
    disk.queue.offer(0);
    refused(t, &mut disk, "with a next one", 0);
    good(&disk);
    descriptor(table + 16, table, 48, INDIRECT, 0);
    disk.queue.descriptor(0, table, 48, INDIRECT, 0);
    disk.queue.offer(0);
    refused(t, &mut disk, "a table in a table", 0);
    good(&disk);
    descriptor(table + 16, disk.data, 512, WRITE | NEXT, 3);
    disk.queue.descriptor(0, table, 48, INDIRECT, 0);
    disk.queue.offer(0);
    refused(t, &mut disk, "beyond the table", 0);
    // A chain that goes on in a table: permitted as the last of it, and no longer than the queue in all.
    good(&disk);
    disk.queue.descriptor(0, disk.header, 16, NEXT, 1);
    disk.queue.descriptor(1, table + 16, 32, INDIRECT, 0);
    descriptor(table + 16, disk.data, 512, WRITE | NEXT, 1);
    done(t, &mut disk, "a header before a table", 0, OK);
    // The table is the queue's own.
    disk.chain(512, WRITE);
    disk.queue.descriptor(3, disk.queue.desc, 48, INDIRECT, 0);
    disk.queue.offer(3);
    disk.device.ring(0);
    t.holds("the queue's own table", disk.queue.done(&disk.device));
    // Without the feature there are none.
    t.holds("a reset", disk.device.begin(VERSION_1, [&mut disk.queue]));
    good(&disk);
    disk.queue.descriptor(0, table, 48, INDIRECT, 0);
    disk.queue.offer(0);
    refused(t, &mut disk, "without the feature", 0);
}

pub fn heads_and_indices(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    for (number, head) in (0..).zip([16, 17, 0x8000, 0xffff]) {
        disk.queue.offer(head);
        refused(t, &mut disk, "no such head", number);
        disk.chain(512, WRITE);
        disk.queue.descriptor(0, disk.header, 16, NEXT, head);
        disk.queue.offer(0);
        refused(t, &mut disk, "no such next one", number);
    }
    // Ahead by more than there are descriptors, and backwards, which is the same.
    for (number, ahead) in (0..).zip([17_u16, 0x100, 0x8000, 0xffff]) {
        disk.chain(512, WRITE);
        store(disk.queue.driver + INDEX, disk.queue.offered.wrapping_add(ahead));
        insn::mfence();
        refused(t, &mut disk, "an index too far", number);
    }
    // The same chain sixteen times at once.
    disk.chain(512, WRITE);
    (0..16).for_each(|_| disk.queue.offer(0));
    disk.device.ring(0);
    t.holds("one chain many times", disk.queue.done(&disk.device));
    // Around the 16 bits of the index.
    for round in 0..crate::rounds(0x1_0010 / 16) {
        (0..16).for_each(|_| disk.queue.offer(0));
        disk.device.ring(0);
        if !disk.queue.done(&disk.device) {
            t.eq("around the index", round, u32::MAX);
            break;
        }
    }
    t.eq("as many came back", disk.queue.used(), disk.queue.offered);
    // Doorbells without anything behind them.
    (0..100).for_each(|_| disk.device.ring(0));
    (0..1024).for_each(|queue| disk.device.ring(queue));
    t.holds("they are no mistake", !disk.device.stands_still() && disk.works(5));
}
