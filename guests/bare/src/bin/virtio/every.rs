//! Every device that there is.

use satori_guests::defs::virtio::feature::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use satori_guests::defs::virtio::pci::NO_VECTOR;
use satori_guests::defs::virtio::pci::common::*;
use satori_guests::defs::virtio::split::*;
use satori_guests::hyperv::{fill, memory_end};
use satori_guests::place::{Random, store};
use satori_guests::virtio::{Device, Queue, all, within};
use satori_guests::{Test, insn, paging};

use satori_guests::disk::Disk;

/// How often each queue of each device is tried.
const ROUNDS: u64 = 40;

pub fn every_device(t: &mut Test) {
    let mut queue = Queue::new(0, 16);
    let page = paging::page();
    for device in all() {
        let (kind, queues) = (device.kind, device.queues());
        t.holds(("it has queues", kind), queues > 0 && device.most(queues) == 0);
        t.eq(("its vector", kind), device.read(CONFIG_VECTOR, 2) as u16, NO_VECTOR);
        // What it offers it takes, all at once and only what it must.
        let offered = device.features();
        for features in [offered, VERSION_1] {
            t.holds(("features", kind, features), device.reset() && device.agree(features));
        }
        t.holds(("what is not offered", kind), device.reset() && !device.agree(offered | 1 << 63));
        // A circle in each queue of each: it stands still, and the others do not.
        for number in (0..queues).filter(|number| device.most(*number) > 0) {
            (queue.number, queue.size) = (number, device.most(number).min(16));
            t.holds(("it begins", kind, number), device.begin(VERSION_1, [&mut queue]));
            (0..queue.size)
                .for_each(|index| queue.descriptor(index, page, 64, NEXT, (index + 1) % queue.size));
            queue.offer(0);
            device.ring(number);
            // A queue that the device looks at when something comes from outside is broken then.
            let seen = within_a_moment(|| device.stands_still());
            t.eq(("nothing comes back", kind, number, seen), queue.used(), 0);
            t.holds(("a reset", kind, number), device.reset());
        }
    }
    t.holds("the disk works", Disk::new().works(21));
}

/// As [`within`], but nobody minds.
fn within_a_moment(mut holds: impl FnMut() -> bool) -> bool {
    (0..1000).any(|_| {
        insn::pause();
        holds()
    })
}

/// Descriptors of any kind, a quarter of them such as a driver would make.
fn garbage(queue: &mut Queue, random: &mut Random, page: u64) {
    let end = memory_end();
    for index in 0..queue.size {
        let at = match random.below(8) {
            0 => random.number(),
            1 => random.of(&[
                end,
                end - 1,
                u64::MAX,
                0xfee0_0000,
                0xc000_0000,
                0xe000_0000,
                queue.desc,
                queue.device,
            ]),
            _ => page + random.below(2048),
        };
        let len = match random.below(8) {
            0 => random.number() as u32,
            1 => random.of(&[0, u32::MAX, 1 << 31, 1 << 20]),
            2 => 16 * random.below(17) as u32,
            _ => random.below(2048) as u32,
        };
        let flags = random.of(&[0, NEXT, WRITE, WRITE | NEXT, WRITE, NEXT, INDIRECT, 0xffff]);
        let next = if random.below(6) == 0 { random.number() as u16 } else { (index + 1) % queue.size };
        queue.descriptor(index, at, len, flags, next);
    }
    for at in (page..page + 4096).step_by(8) {
        store(at, if random.below(3) == 0 { random.number() } else { random.below(64) });
    }
    for _ in 0..random.below(u64::from(queue.size) + 2) {
        let head = if random.below(12) == 0 {
            random.number() as u16
        } else {
            random.below(queue.size.into()) as u16
        };
        queue.offer(head);
    }
}

pub fn every_queue_of_garbage(t: &mut Test) {
    let mut random = Random(0xd0_0d);
    let (mut first, mut second) = (Queue::new(0, 16), Queue::new(0, 16));
    let page = paging::page();
    for device in all() {
        let queues = device.queues();
        let mut stood = 0;
        for round in 0..ROUNDS * u64::from(queues) {
            let features = VERSION_1
                | random.of(&[0, INDIRECT_DESC, EVENT_IDX, INDIRECT_DESC | EVENT_IDX, device.features()]);
            first.number = (round % u64::from(queues)) as u16;
            second.number = random.below(queues.into()) as u16;
            let both = first.number != second.number && device.most(second.number) >= 16;
            if device.most(first.number) < 16 {
                continue;
            }
            let begun = if both {
                device.begin(features, [&mut first, &mut second])
            } else {
                device.begin(features, [&mut first])
            };
            t.holds(("it begins", device.kind, round), begun);
            garbage(&mut first, &mut random, page);
            device.ring(first.number);
            if both {
                garbage(&mut second, &mut random, page);
                device.ring(second.number);
            }
            stood += u32::from(device.stands_still());
        }
        fill(page, 0);
        t.holds(("a reset", device.kind, stood), within(|| device.reset()));
        t.holds(("and it begins", device.kind), device.agree(Device::features(&device)) && device.reset());
    }
    t.holds("the disk works", Disk::new().works(22));
}
