//! The disk, asked for what it has and for what it has not.

use satori_guests::defs::virtio::block::*;
use satori_guests::disk::Disk;
use satori_guests::harness::option;
use satori_guests::place::{load, store};
use satori_guests::{Test, insn, println};

/// Sectors of the disk.
const SECTORS: u64 = (1 << 20) / SECTOR;

pub fn requests(t: &mut Test) {
    let mut disk = Disk::new();
    t.eq("its size", load::<u64>(disk.device.config), SECTORS);
    t.holds("a sector", disk.works(7));
    t.eq("what was written", disk.queue.entry(0), (0, 1));
    t.eq("what was read", disk.queue.entry(1), (0, SECTOR as u32 + 1));
    t.eq("a flush", disk.ask(FLUSH_OUT, 0, 0), Some(OK));
    t.eq("its serial", disk.ask(GET_ID, 0, ID as u32), Some(OK));
    // Sectors that are none: nothing is read, and the device goes on.
    for sector in [SECTORS, SECTORS - 1, u64::MAX, u64::MAX / SECTOR, u64::MAX / SECTOR + 1, 1 << 63] {
        store(disk.data, 0x1234_5678_u32);
        for request in [IN, OUT] {
            t.eq(("beyond its end", request, sector), disk.ask(request, sector, 1024), Some(IOERR));
        }
        t.eq("nothing was read", load::<u32>(disk.data), 0x1234_5678);
    }
    for len in [1, 511, 513] {
        t.eq(("no whole sectors", len), disk.ask(IN, 0, len), Some(IOERR));
        t.eq(("no whole sectors", len), disk.ask(OUT, 0, len), Some(IOERR));
    }
    for request in [2, 3, 5, 9, 10, 12, 14, 0x8000_0000, u32::MAX] {
        t.eq(("no such request", request), disk.ask(request, 0, 512), Some(UNSUPP));
    }
    // Ranges that wrap, are too long, too many, of another length, or have flags that nobody knows.
    let range = |disk: &Disk, sector: u64, sectors: u32, flags: u32| {
        store(disk.data, sector);
        store(disk.data + 8, sectors);
        store(disk.data + 12, flags);
    };
    for request in [DISCARD_OUT, WRITE_ZEROES_OUT] {
        for (sector, sectors) in
            [(u64::MAX, 1), (u64::MAX / SECTOR, 2), (SECTORS, 1), (0, u32::MAX), (SECTORS - 1, 2)]
        {
            range(&disk, sector, sectors, 0);
            t.eq(("a range", request, sector, sectors), disk.ask(request, 0, RANGE as u32), Some(IOERR));
        }
        range(&disk, 0, 1, 0);
        for len in [0, 1, 15, 17, 33 * RANGE as u32] {
            t.eq(("ranges of bytes", request, len), disk.ask(request, 0, len), Some(IOERR));
        }
        range(&disk, 0, 1, 0xffff_fffe);
        t.eq(("flags", request), disk.ask(request, 0, RANGE as u32), Some(UNSUPP));
        range(&disk, 9, 1, 0);
        t.eq(("a good one", request), disk.ask(request, 0, RANGE as u32), Some(OK));
    }
    t.holds("it goes on", disk.works(8));
}

/// How long requests take, by the time-stamp counter: with `delays=yes` on the command line it is told, for runs in which it is the
/// same every time.
pub fn delays(t: &mut Test) {
    let mut disk = Disk::new();
    for (name, request, len) in [("read", IN, 512), ("page", IN, 4096), ("flush", FLUSH_OUT, 0)] {
        let start = insn::rdtsc();
        t.eq(name, disk.ask(request, 0, len), Some(OK));
        let ticks = insn::rdtsc() - start;
        if option("delays") == Some("yes") {
            println!("{name} took {ticks}");
        }
    }
}
