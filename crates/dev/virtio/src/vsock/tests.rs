//! Packets of a driver of our own, and an other side that is a socket.

use std::time::{Duration, Instant};

use satori_defs::virtio::feature::VERSION_1;
use satori_defs::virtio::split::WRITE;
use satori_memory::Gpa;

use super::*;
use crate::testing::Driver;

#[test]
fn packets_go_whole_and_come_in_pieces_that_fit() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut driver =
        Driver::new(Vsock::new(Sockets { cid: 7, socket: ours }, Default::default()).unwrap(), false);
    assert_eq!(driver.get(0x2000, 8), 7);
    driver.begin(VERSION_1);
    let mut packet = vec![0; HEADER + 5];
    packet[LENGTH] = 5;
    packet[HEADER..].copy_from_slice(b"hello");
    driver.request(TX, &packet, 0);
    // One that says another length goes nowhere.
    packet[LENGTH] = 6;
    driver.request(TX, &packet, 0);
    packet[LENGTH] = 5;
    driver.request(TX, &packet, 0);
    let mut seen = vec![0; 4 + 2 * (4 + packet.len())];
    theirs.read_exact(&mut seen).unwrap();
    let whole = [&(packet.len() as u32).to_le_bytes()[..], &packet].concat();
    assert_eq!(seen, [&[0; 4][..], &whole, &whole].concat());
    // Three bytes of room in each buffer. What comes before the answer is another driver's.
    theirs.write_all(&[&(HEADER as u32).to_le_bytes()[..], &[9; HEADER], &[0; 4]].concat()).unwrap();
    theirs.write_all(&whole).unwrap();
    for index in 0..2 {
        driver.describe(RX, index, 0x9_0000 + 0x100 * u64::from(index), HEADER as u32 + 3, WRITE, 0);
        driver.offer(RX, index);
    }
    driver.ring(RX);
    let began = Instant::now();
    while driver.given(RX) < 2 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing came");
        driver.ring(RX);
        std::thread::sleep(Duration::from_millis(1));
    }
    for (index, piece) in [&b"hel"[..], b"lo"].into_iter().enumerate() {
        assert_eq!(driver.used(RX, index as u16), (index as u32, (HEADER + piece.len()) as u32));
        let mut bytes = vec![0; HEADER + piece.len()];
        driver.memory.read(Gpa(0x9_0000 + 0x100 * index as u64), &mut bytes).unwrap();
        assert_eq!((bytes[LENGTH] as usize, &bytes[HEADER..]), (piece.len(), piece));
    }
}

#[test]
fn an_address_that_is_no_guests_is_refused() {
    for cid in [0, 2, 0xffff_ffff, u64::MAX] {
        let (socket, _theirs) = UnixStream::pair().unwrap();
        assert!(Vsock::new(Sockets { cid, socket }, Default::default()).is_err());
    }
}

fn device(cid: u64) -> (Arc<Vsock>, UnixStream) {
    let (socket, theirs) = UnixStream::pair().unwrap();
    (Vsock::new(Sockets { cid, socket }, Default::default()).unwrap(), theirs)
}

/// A packet of the host's with this payload, behind its length.
fn packet(payload: &[u8]) -> Vec<u8> {
    let mut packet = [&((HEADER + payload.len()) as u32).to_le_bytes()[..], &[0; HEADER], payload].concat();
    packet[4 + LENGTH] = payload.len() as u8;
    packet
}

fn offer(driver: &mut Driver, queue: u16, index: u16, room: u32) {
    driver.describe(queue, index, 0x9_0000 + 0x100 * u64::from(index), room, WRITE, 0);
    driver.offer(queue, index);
}

#[test]
fn who_is_restored_hears_that_connections_are_gone_and_goes_on() {
    let (one, mut theirs) = device(7);
    let mut driver = Driver::new(one, false);
    driver.begin(VERSION_1);
    offer(&mut driver, EVENT, 7, 4);
    // A part of what came is in a buffer, the rest waits for another; and something was sent and not told.
    theirs.write_all(&[&[0; 4], &packet(b"hello")[..]].concat()).unwrap();
    offer(&mut driver, RX, 0, HEADER as u32 + 3);
    driver.ring(RX);
    driver.until("the first bytes", |driver| driver.given(RX) == 1);
    driver.memory.write(Gpa(0x8_0000), &packet(b"sent")[4..]).unwrap();
    driver.describe(TX, 0, 0x8_0000, HEADER as u32 + 4, 0, 0);
    driver.offer(TX, 0);

    let (two, mut others) = device(7);
    let mut moved = driver.moved(two, |_| ()).unwrap();
    moved.until("the event", |driver| driver.given(EVENT) == 1);
    assert_eq!(
        (moved.used(EVENT, 0), moved.memory.read_u32(Gpa(0x9_0700)).unwrap()),
        ((7, 4), TRANSPORT_RESET)
    );
    assert_eq!(driver.given(EVENT), 0, "who goes on has all its connections");
    let mut seen = vec![0; 4 + 4 + HEADER + 4];
    others.read_exact(&mut seen).unwrap();
    assert_eq!(seen, [&[0; 4], &packet(b"sent")[..]].concat(), "first that a driver begins");
    // Of the packet of before nothing comes, nor what the other side had sent before it heard of that.
    others.write_all(&[&packet(b"stale")[..], &[0; 4], &packet(b"new")].concat()).unwrap();
    offer(&mut moved, RX, 1, HEADER as u32 + 8);
    moved.ring(RX);
    moved.until("the new packet", |driver| driver.given(RX) == 2);
    assert_eq!(moved.used(RX, 1), (1, HEADER as u32 + 3));

    // Who had no buffer for the event gets it with the first one, however often it was moved.
    let (three, _others) = device(7);
    let (four, _more) = device(7);
    let mut moved = moved.moved(three, |_| ()).unwrap().moved(four, |_| ()).unwrap();
    assert_eq!(moved.given(EVENT), 1);
    offer(&mut moved, EVENT, 6, 4);
    moved.ring(EVENT);
    assert_eq!(moved.used(EVENT, 1), (6, 4));
    moved.ring(EVENT);
    assert_eq!(moved.given(EVENT), 2);
}

#[test]
fn a_state_of_another_guests_sockets_is_refused() {
    let (one, _theirs) = device(7);
    let mut driver = Driver::new(one, false);
    driver.begin(VERSION_1);
    let refused = driver.moved(device(8).0, |_| ()).map(drop);
    assert!(refused.is_err_and(|why| why.to_string().contains("another address")));
    for (field, value) in [("cid", 1 << 33), ("reset_due", 2)] {
        let damage = |saved: &mut Value| {
            *saved.tree_mut().pointer_mut(&format!("/device/tree/{field}")).unwrap() = u64::into(value);
        };
        assert!(driver.moved(device(7).0, damage).is_err(), "{field}");
    }
}

#[test]
fn a_guest_without_a_driver_is_told_nothing() {
    let (one, mut theirs) = device(7);
    let mut moved = Driver::new(device(7).0, false).moved(one, |_| ()).unwrap();
    moved.begin(VERSION_1);
    offer(&mut moved, EVENT, 0, 4);
    moved.ring(EVENT);
    theirs.read_exact(&mut [0; 4]).unwrap();
    assert_eq!(moved.given(EVENT), 0);
}
