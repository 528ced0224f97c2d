//! A disk whose image says anything: each request comes back with some status, and the device goes on. With `whole=yes` on the
//! command line all of them have to be done.

#![no_std]
#![no_main]

use satori_guests::defs::virtio::block::*;
use satori_guests::disk::Disk;
use satori_guests::harness::option;
use satori_guests::place::{Random, store};
use satori_guests::{Test, guest};

guest!("image", read, changed);

/// Bytes of a request.
const PIECE: u64 = 4096;

/// Asks, and counts what was done and what failed; whatever else came is a mistake.
fn ask(t: &mut Test, disk: &mut Disk, request: u32, sector: u64, len: u32, counts: &mut [u32; 2]) {
    match disk.ask(request, sector, len) {
        Some(OK) => counts[0] += 1,
        Some(IOERR) => counts[1] += 1,
        other => t.eq(("a status", request, sector), other, Some(IOERR)),
    }
}

fn end(t: &mut Test, disk: &Disk, [done, failed]: [u32; 2]) {
    t.holds(("all came back", done, failed), done + failed > 0 && !disk.device.stands_still());
    if option("whole") == Some("yes") {
        t.eq(("all were done", done), failed, 0);
    }
}

fn read(t: &mut Test) {
    let mut disk = Disk::new();
    let mut counts = [0; 2];
    for sector in (0..disk.sectors()).step_by((PIECE / SECTOR) as usize) {
        ask(t, &mut disk, IN, sector, PIECE as u32, &mut counts);
    }
    end(t, &disk, counts);
}

fn changed(t: &mut Test) {
    let mut disk = Disk::new();
    let (mut random, mut counts) = (Random(0x1a6e), [0; 2]);
    let pieces = disk.sectors() * SECTOR / PIECE;
    for round in 0..300_u64 {
        let sector = random.below(pieces) * (PIECE / SECTOR);
        match random.below(8) {
            0 => ask(t, &mut disk, IN, sector, PIECE as u32, &mut counts),
            1 => ask(t, &mut disk, FLUSH_OUT, 0, 0, &mut counts),
            2 | 3 => {
                store(disk.data, sector);
                store(disk.data + 8, 8_u32);
                store(disk.data + 12, 0_u32);
                let request = random.of(&[DISCARD_OUT, WRITE_ZEROES_OUT]);
                ask(t, &mut disk, request, 0, RANGE as u32, &mut counts);
            }
            _ => {
                store(disk.data, round);
                ask(t, &mut disk, OUT, sector, PIECE as u32, &mut counts);
            }
        }
    }
    ask(t, &mut disk, FLUSH_OUT, 0, 0, &mut counts);
    end(t, &disk, counts);
}
