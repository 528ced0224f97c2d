//! Requests to a disk, good and bad ones, by a driver of our own.

mod power;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use satori_defs::virtio::block::*;
use satori_defs::virtio::feature::*;
use satori_host::io_thread::IoThread;
use satori_image::{Access, Format, Image, Source};
use satori_memory::Gpa;

use crate::testing::*;
use crate::{Block, Disk};

const BYTES: u64 = 1 << 20;

/// A file without a name, of `BYTES` bytes, and another descriptor of it.
fn image() -> (File, File) {
    let file = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).map(File::from).unwrap();
    file.set_len(BYTES).unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.write_all_at(b"last", BYTES - 4).unwrap();
    (file.try_clone().unwrap(), file)
}

fn open(file: File, access: Access) -> Image {
    let name = "disk".into();
    Image::open(Source { name, file, format: Format::Raw, access, here: None, backing: None }).unwrap()
}

fn disk(access: Access) -> (Arc<Block>, File) {
    let (file, other) = image();
    (
        Block::new(
            Disk { image: open(file, access), serial: "S-1".into(), io_thread: None },
            IoThread::default(),
        )
        .unwrap(),
        other,
    )
}

/// A request, and its status and what came before it.
fn ask(driver: &mut Driver, kind: u32, sector: u64, data: &[u8], room: u32) -> (u8, Vec<u8>) {
    let mut request = kind.to_le_bytes().to_vec();
    request.extend([0; 4]);
    request.extend(sector.to_le_bytes());
    request.extend(data);
    driver.memory.write(Gpa(0x9_0000), &vec![0xee; room as usize + 1]).unwrap();
    let before = driver.given(0);
    driver.request(0, &request, room + 1);
    driver.until("a request", |d| d.given(0) == before.wrapping_add(1));
    let reply = driver.reply(room as usize + 1);
    (reply[room as usize], reply[..room as usize].to_vec())
}

#[test]
fn what_was_written_is_read_and_in_the_file() {
    for determined in [false, true] {
        let (block, file) = disk(Access::Write);
        let mut driver = Driver::new(block, determined);
        driver.begin(VERSION_1 | FLUSH | DISCARD | WRITE_ZEROES);
        assert_eq!(driver.get(0x2000, 8), BYTES / SECTOR);
        let (status, data) = ask(&mut driver, IN, BYTES / SECTOR - 1, &[], 512);
        assert_eq!((status, &data[508..]), (OK, &b"last"[..]));
        assert_eq!(ask(&mut driver, OUT, 3, &[7; 1024], 0), (OK, vec![]));
        assert_eq!(ask(&mut driver, FLUSH_OUT, 0, &[], 0).0, OK);
        let mut got = [0; 1026];
        file.read_exact_at(&mut got, 3 * 512 - 1).unwrap();
        assert_eq!((got[0], &got[1..1025], got[1025]), (0, &[7; 1024][..], 0));
        assert_eq!(ask(&mut driver, GET_ID, 0, &[], 20), (OK, [&b"S-1"[..], &[0; 17]].concat()));
        let range = |sector: u64, sectors: u32, flags: u32| {
            [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
        };
        assert_eq!(ask(&mut driver, WRITE_ZEROES_OUT, 0, &range(4, 1, UNMAP), 0).0, OK);
        file.read_exact_at(&mut got, 3 * 512 - 1).unwrap();
        assert!(got[1..513] == [7; 512] && got[513..1025] == [0; 512]);
        assert_eq!(ask(&mut driver, DISCARD_OUT, 0, &range(0, 8, 0), 0).0, OK);
        for (kind, range, status) in [
            (DISCARD_OUT, range(0, 8, 1), UNSUPP),
            (DISCARD_OUT, range(BYTES / SECTOR, 1, 0), IOERR),
            (WRITE_ZEROES_OUT, range(u64::MAX, 2, 0), IOERR),
            (WRITE_ZEROES_OUT, vec![0; 15], IOERR),
            (99, vec![], UNSUPP),
        ] {
            assert_eq!(ask(&mut driver, kind, 0, &range, 0).0, status, "{kind} {range:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (block, file) = disk(Access::Write);
    let mut driver = Driver::new(block, false);
    driver.begin(VERSION_1);
    let last = BYTES / SECTOR;
    for (kind, sector, data, room) in [
        (IN, last, 0, 512),
        (IN, last - 1, 0, 1024),
        (IN, u64::MAX, 0, 512),
        (IN, u64::MAX / SECTOR, 0, 512),
        (IN, 0, 0, 511),
        (OUT, last, 512, 0),
        (OUT, 0, 5, 0),
    ] {
        let (status, _) = ask(&mut driver, kind, sector, &vec![1; data], room);
        assert_eq!(status, IOERR, "{kind} {sector} {data} {room}");
    }
    // Too short for a header, and without room for a status.
    driver.request(0, &[1, 2, 3], 1);
    driver.request(0, &[0; 16], 0);
    driver.until("both", |d| d.given(0) == 9);
    let mut all = vec![0; BYTES as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    assert!(all.iter().filter(|byte| **byte != 0).count() == 9, "nothing was written");
}

#[test]
fn a_snapshot_keeps_and_a_readonly_disk_refuses() {
    let (block, file) = disk(Access::Snapshot);
    let mut driver = Driver::new(block, false);
    driver.begin(VERSION_1);
    let (at, new) = (126, vec![9; 2048]);
    assert_eq!(ask(&mut driver, OUT, at, &new, 0).0, OK, "across pieces");
    assert_eq!(ask(&mut driver, IN, at, &[], 2048), (OK, new));
    assert_eq!(ask(&mut driver, IN, 0, &[], 512).1[..5], *b"first");
    let mut got = [0; 2048];
    file.read_exact_at(&mut got, at * SECTOR).unwrap();
    assert_eq!(got, [0; 2048]);

    let (block, _file) = disk(Access::ReadOnly);
    let mut driver = Driver::new(block, false);
    driver.begin(VERSION_1 | RO);
    assert_eq!(ask(&mut driver, OUT, 0, &[1; 512], 0).0, IOERR);
    assert_eq!(ask(&mut driver, IN, 0, &[], 512).1[..5], *b"first");
}

#[test]
fn long_serials_are_refused() {
    let (file, _other) = image();
    let serial = "123456789012345678901".into();
    let disk = Disk { image: open(file, Access::Write), serial, io_thread: None };
    assert!(Block::new(disk, IoThread::default()).err().unwrap().to_string().contains("serial"));
}

/// Descriptors 0 to 2 of queue 0 as a request for the first sector, whose data goes to 0x91000.
fn describe(driver: &Driver, kind: u32) {
    driver.memory.write(Gpa(0x8_0000), &[&kind.to_le_bytes()[..], &[0; 12]].concat()).unwrap();
    driver.describe(0, 0, 0x8_0000, 16, 1, 1);
    driver.describe(0, 1, 0x9_1000, 512, 3, 2);
    driver.describe(0, 2, 0x9_0000, 1, 2, 0);
}

#[test]
fn a_request_is_done_when_its_time_has_come_and_not_before() {
    let (block, _file) = disk(Access::Write);
    let mut driver = Driver::new(block, true);
    driver.begin(VERSION_1 | FLUSH);
    driver.at(5_000);
    describe(&driver, IN);
    driver.offer(0, 0);
    driver.ring(0);
    // A flush behind it, which takes a millisecond, and another read that is done before.
    driver.memory.write(Gpa(0x8_1000), &FLUSH_OUT.to_le_bytes()).unwrap();
    driver.describe(0, 3, 0x8_1000, 16, 1, 4);
    driver.describe(0, 4, 0x9_0001, 1, 2, 0);
    driver.offer(0, 3);
    driver.ring(0);
    let due = 5_000 + 100_000 + 16 + 512 + 1;
    for (at, given) in [(due - 1, 0), (due, 1), (5_000 + 999_999, 1), (5_000 + 1_000_000, 2)] {
        driver.at(at);
        assert_eq!(driver.given(0), given, "{at}");
    }
    assert_eq!((driver.used(0, 0), driver.used(0, 1)), ((0, 513), (3, 1)));
    let mut data = [0; 5];
    driver.memory.read(Gpa(0x9_1000), &mut data).unwrap();
    assert_eq!(&data, b"first");
    // What waits is forgotten by a reset.
    driver.offer(0, 0);
    driver.ring(0);
    driver.begin(VERSION_1);
    driver.at(90_000_000);
    assert_eq!(driver.given(0), 0);
}

#[test]
fn a_request_that_waits_is_done_at_the_same_time_in_another_machine() {
    let (block, _file) = disk(Access::Write);
    let mut driver = Driver::new(block, true);
    driver.begin(VERSION_1);
    describe(&driver, IN);
    driver.offer(0, 0);
    driver.ring(0);
    driver.at(50_000);
    let other = || Driver::new(disk(Access::Write).0, true);
    let moved = driver.moved_to(other(), |_| {}).unwrap();
    for (at, given) in [(100_528, 0), (100_529, 1)] {
        moved.at(at);
        assert_eq!(moved.given(0), given, "{at}");
    }
    // Where there is no such time, and where what it waits with is no memory, it is refused.
    assert!(driver.moved_to(Driver::new(disk(Access::Write).0, false), |_| {}).is_err());
    for at in [u64::MAX - 511, 1 << 20, (1 << 20) - 511] {
        let refused = driver.moved_to(other(), |saved| {
            let place = "/device/tree/delayed/waiting/0/2/writable/0/0";
            *saved.tree_mut().pointer_mut(place).unwrap() = at.into();
        });
        assert!(refused.is_err(), "{at:#x}");
    }
}

#[test]
fn no_more_requests_are_taken_than_there_are_descriptors() {
    let (block, _file) = disk(Access::Write);
    let mut driver = Driver::new(block, true);
    driver.begin(VERSION_1);
    describe(&driver, IN);
    for _ in 0..SIZE {
        driver.offer(0, 0);
        driver.ring(0);
    }
    assert_eq!(driver.status() & 64, 0);
    driver.offer(0, 0);
    driver.ring(0);
    assert_eq!(driver.status() & 64, 64, "NEEDS_RESET");
}
