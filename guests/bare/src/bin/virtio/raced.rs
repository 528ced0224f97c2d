//! What changes while the device looks at it, and drivers that go away in the middle.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use satori_guests::defs::virtio::block::*;
use satori_guests::defs::virtio::feature::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use satori_guests::defs::virtio::split::*;
use satori_guests::hyperv::memory_end;
use satori_guests::place::{Random, store};
use satori_guests::virtio::{descriptor, within};
use satori_guests::{Test, insn, paging, smp};

use satori_guests::disk::Disk;

/// What the other vCPU changes: descriptor table, a table of an indirect one, available ring.
static PLACES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static OVER: AtomicBool = AtomicBool::new(false);
/// How often it changed something.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// Requests during which it ran, by which it is known whether vCPUs run beside each other.
const BESIDE: u32 = 100;

/// Descriptors as they are, and as they must not be, one after the other.
fn change(_: usize) {
    let mut random = Random(0x5eed);
    let [table, inner, ring] = [0, 1, 2].map(|place: usize| PLACES[place].load(Ordering::Relaxed));
    let end = memory_end();
    while !OVER.load(Ordering::Relaxed) {
        let at = random.of(&[table, inner]) + DESCRIPTOR * random.below(4);
        match random.below(6) {
            0 => store(at, random.of(&[0, end - 256, end, u64::MAX, 1 << 63, table, ring, inner])),
            1 => store(at + 8, random.of(&[0, 1, 16, 48, 512, 1 << 16, u32::MAX])),
            2 => store(at + 12, random.below(8) as u16),
            3 => store(at + 14, random.of(&[0_u16, 1, 2, 3, 16, 0xffff])),
            4 => store(ring + RING + 2 * random.below(16), random.of(&[0_u16, 4, 8, 0xffff])),
            _ => descriptor(at, inner, 48, INDIRECT, 0),
        }
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

pub fn tables_that_change(t: &mut Test) {
    let mut disk = Disk::new();
    let inner = paging::page();
    for (place, at) in PLACES.iter().zip([disk.queue.desc, inner, disk.queue.driver]) {
        place.store(at, Ordering::Relaxed);
    }
    let raced = smp::count() > 1;
    OVER.store(false, Ordering::Relaxed);
    if raced {
        smp::begin(1, change);
    }
    let (mut stood, mut came) = (0_u32, 0_u32);
    let rounds = crate::rounds(3000);
    // Requests during which the other vCPU ran, and those before whose bell it did.
    let (mut ran, mut meddled) = (0_u32, 0_u32);
    // Until both came to pass, whenever the other vCPU gets a turn. Where the two take turns on one processor, these end while the device
    // looks, and hardly ever between writing and ringing.
    let both = within(|| {
        let round = stood + came;
        let before = CHANGES.load(Ordering::Relaxed);
        disk.head(if round % 2 == 0 { IN } else { OUT }, 64);
        disk.chain(512, if round % 2 == 0 { WRITE } else { 0 });
        descriptor(inner, disk.header, 16, NEXT, 1);
        descriptor(inner + 16, disk.data, 512, WRITE | NEXT, 2);
        descriptor(inner + 32, disk.status, 1, WRITE, 0);
        if round % 3 == 0 {
            disk.queue.descriptor(0, inner, 48, INDIRECT, 0);
        }
        meddled += u32::from(CHANGES.load(Ordering::Relaxed) != before);
        if disk.queue.request(&disk.device, 0) {
            came += 1;
        } else {
            stood += 1;
            t.holds("it begins anew", disk.begin());
        }
        ran += u32::from(CHANGES.load(Ordering::Relaxed) != before);
        let turns = ran >= BESIDE && meddled == 0;
        round > rounds && (came > 0 && stood > 0 || !raced || turns || rounds < 3000)
    });
    OVER.store(true, Ordering::Relaxed);
    if raced {
        smp::wait(1);
    }
    t.holds(("both came to pass", came, stood, ran, meddled), both);
    t.holds("as new after a reset", disk.works(11));
}

/// The index of what is available runs while the device looks.
fn run_away(_: usize) {
    let ring = PLACES[2].load(Ordering::Relaxed);
    let mut index = 0_u16;
    while !OVER.load(Ordering::Relaxed) {
        index = index.wrapping_add(1);
        store(ring + INDEX, index);
    }
}

pub fn counts_that_run_away(t: &mut Test) {
    let mut disk = Disk::new();
    disk.head(IN, 0);
    for features in [0, EVENT_IDX] {
        t.holds("a reset", disk.device.begin(VERSION_1 | INDIRECT_DESC | features, [&mut disk.queue]));
        disk.chain(512, WRITE);
        PLACES[2].store(disk.queue.driver, Ordering::Relaxed);
        OVER.store(false, Ordering::Relaxed);
        if smp::count() > 1 {
            smp::begin(1, run_away);
        } else {
            store(disk.queue.driver + INDEX, 16_u16);
        }
        // Whoever rings is not held for ever by one that adds and adds.
        for _ in 0..200 {
            disk.device.ring(0);
        }
        OVER.store(true, Ordering::Relaxed);
        if smp::count() > 1 {
            smp::wait(1);
        }
        t.holds(("as new after a reset", features), disk.works(12));
    }
}

/// Parts of a queue in each other's place: what the device writes is what it reads next.
pub fn rings_in_each_other(t: &mut Test) {
    let mut disk = Disk::new();
    let [desc, driver, device] = disk.queue.places();
    for (number, places) in (0..).zip([
        [desc, desc, desc],
        [desc, driver, desc],
        [desc, driver, driver],
        [desc, desc, device],
        [desc, driver, driver - 2],
        [desc, driver, driver + 2],
        [desc, driver + 1, device],
        [desc + 1, driver, device + 3],
        [disk.data, disk.data + 256, disk.data + 300],
    ]) {
        for features in [0, EVENT_IDX] {
            t.holds("a reset", disk.device.reset() && disk.device.agree(VERSION_1 | features));
            disk.queue.clear();
            disk.device.place(0, 16, places);
            disk.device.go();
            disk.chain(512, WRITE);
            for _ in 0..20 {
                disk.queue.offer(0);
                disk.device.ring(0);
            }
            t.holds(("as new after a reset", number, features), disk.works(number));
        }
    }
    // Data that is read into the rings.
    disk.begin();
    for part in [desc, driver, device] {
        disk.head(IN, 0);
        disk.chain(512, WRITE);
        disk.queue.descriptor(1, part, 512, WRITE | NEXT, 2);
        disk.queue.offer(0);
        disk.device.ring(0);
        t.holds(("data in a ring", part), disk.works(13));
        disk.begin();
    }
}

/// Resets with requests under way: behind a reset nothing is written for who was there before.
pub fn comes_and_goes(t: &mut Test) {
    let mut disk = Disk::new();
    let mut random = Random(77);
    for round in 0..150_u64 {
        disk.begin();
        let several = random.below(16) as u16;
        // Each round has a status of its own that nobody may write behind the reset.
        disk.head(if round % 2 == 0 { OUT } else { FLUSH_OUT }, round);
        disk.chain(if round % 2 == 0 { 4096 } else { 0 }, 0);
        (0..several).for_each(|_| disk.queue.offer(0));
        disk.device.ring(0);
        (0..random.below(200)).for_each(|_| insn::pause());
        let reset = disk.device.reset();
        let used = disk.queue.used();
        store(disk.status, 0xa5_u8);
        smp::spin(random.below(100_000));
        let after = (disk.queue.used(), satori_guests::place::load::<u8>(disk.status));
        t.eq(("nothing behind a reset", round), (reset, after), (true, (used, 0xa5)));
    }
    t.holds("as new", disk.works(14));
}
