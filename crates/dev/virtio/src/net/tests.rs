//! Frames to and from a card, by a driver of our own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use satori_defs::cable::*;
use satori_defs::virtio::feature::*;
use satori_defs::virtio::net::*;
use satori_defs::virtio::split::*;
use satori_memory::Gpa;

use crate::testing::*;
use crate::{Net, Nic};

const MAC_BYTES: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

fn card(pairs: u16, ours: bool) -> (Arc<Net>, UnixStream) {
    let (socket, other) = UnixStream::pair().unwrap();
    (Net::new(Nic { mac: MAC_BYTES, pairs, socket, ours }, Default::default()).unwrap(), other)
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes()[..], frame].concat()
}

/// Offers `rooms` as buffers of queue `queue`, from 0x90000 on.
fn offer(driver: &mut Driver, queue: u16, rooms: &[u32]) {
    let mut at = 0x9_0000;
    for (index, &room) in (0..).zip(rooms) {
        driver.describe(queue, index, at, room, WRITE, 0);
        driver.offer(queue, index);
        at += u64::from(room);
    }
    driver.ring(queue);
}

fn bytes(driver: &Driver, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    driver.memory.read(Gpa(at), &mut bytes).unwrap();
    bytes
}

#[test]
fn a_vcpu_that_waits_for_an_answer_gets_it_itself() {
    let (net, mut other) = card(1, true);
    let mut driver = Driver::new(net.clone(), false);
    driver.begin(VERSION_1 | MAC);
    offer(&mut driver, 0, &[100, 100]);
    let waits = || {
        let polls = std::cell::Cell::new(0);
        crate::Device::attend(&*net, &|| {
            polls.set(polls.get() + 1);
            false
        });
        polls.get() > 0
    };
    assert!(!waits(), "nobody was asked anything");
    let request = [&[0; HEADER][..], &[9; 14]].concat();
    driver.request(1, &request, 0);
    let mut got = [0; 18];
    other.read_exact(&mut got).unwrap();
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    // Unless the cable's own thread looks just then.
    driver.until("it waits, as there may be an answer", |_| waits() == several);
    assert!(!waits(), "there was none");
    // Whoever brings it, it comes once, and what comes behind it, too.
    for frame in [[1; 14], [2; 14]] {
        driver.request(1, &request, 0);
        other.write_all(&framed(&frame)).unwrap();
        waits();
        driver.until("a frame", |driver| driver.given(0) == u16::from(frame[0]));
    }
    for (at, byte) in [(0x9_0000, 1), (0x9_0000 + 100, 2)] {
        assert_eq!(bytes(&driver, at + HEADER as u64, 14), [byte; 14]);
    }
}

#[test]
fn what_is_sent_leaves_without_its_header() {
    let (net, mut other) = card(1, false);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1 | MAC | CSUM);
    assert_eq!(driver.get(0x2000, 4).to_le_bytes()[..4], MAC_BYTES[..4]);
    let mut request = [&[0; HEADER][..], &[9; 14], &[0x12, 0x34, 0, 0, 0x56]].concat();
    driver.request(1, &request, 0);
    let mut got = [0; 23];
    other.read_exact(&mut got).unwrap();
    assert_eq!(got[..], framed(&request[HEADER..])[..]);
    // The same with a checksum to be finished, which passt is not left to do.
    request[..10].copy_from_slice(&[NEEDS_CSUM, 0, 0, 0, 0, 0, 14, 0, 2, 0]);
    driver.request(1, &request, 0);
    other.read_exact(&mut got).unwrap();
    assert_eq!(got[18..], [0x12, 0x34, 0x97, 0xcb, 0x56]);
    // What is no frame goes nowhere, and comes back all the same.
    driver.request(1, &[0; HEADER + 13], 0);
    driver.request(1, &[], 4);
    driver.request(1, &[1; HEADER + 14], 0);
    assert_eq!(driver.given(1), 5);
    let mut got = [0; 18];
    other.read_exact(&mut got).unwrap();
    assert_eq!(got[4..], [1; 14]);
}

#[test]
fn what_comes_waits_for_buffers_and_fills_several() {
    let (net, mut other) = card(1, true);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1 | MRG_RXBUF | GUEST_CSUM | EVENT_IDX);
    let frame: Vec<u8> = (0..50).collect();
    other.write_all(&framed(&frame)).unwrap();
    other.write_all(&framed(&frame[..20])).unwrap();
    offer(&mut driver, 0, &[30, 20, 40, 40]);
    driver.until("two frames", |d| d.given(0) == 4);
    let used: Vec<_> = (0..4).map(|index| driver.used(0, index)).collect();
    assert_eq!(used, [(0, 30), (1, 20), (2, 12), (3, 32)]);
    let first = bytes(&driver, 0x9_0000, 62);
    assert_eq!((first[0], first[BUFFERS], &first[HEADER..]), (DATA_VALID, 3, &frame[..]));
    let second = bytes(&driver, 0x9_0000 + 90, 32);
    assert_eq!((second[BUFFERS], &second[HEADER..]), (1, &frame[..20]));
    assert!(!driver.heard.0.lock().unwrap().is_empty() || driver.get(0x1000, 1) & 1 == 1);
}

#[test]
fn without_merging_a_frame_that_does_not_fit_is_dropped() {
    let (net, mut other) = card(1, true);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1);
    offer(&mut driver, 0, &[40]);
    other.write_all(&framed(&[1; 29])).unwrap();
    other.write_all(&framed(&[2; 28])).unwrap();
    driver.until("the second", |d| d.given(0) == 1);
    assert_eq!(driver.used(0, 0), (0, 40));
    assert_eq!(bytes(&driver, 0x9_0000, 40)[HEADER..], [2; 28]);
}

#[test]
fn a_driver_that_comes_back_hears_nothing_of_the_former_one() {
    let (net, mut other) = card(1, true);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1 | MRG_RXBUF);
    // Half of what the frame needs: the chain is the device's when the driver leaves.
    offer(&mut driver, 0, &[30]);
    other.write_all(&framed(&[1; 40])).unwrap();
    driver.until("the chain was taken", |d| {
        let mut byte = [0; 2];
        d.memory.read(Gpa(Driver::rings(0).2 + INDEX), &mut byte).is_ok()
    });
    driver.begin(VERSION_1 | MRG_RXBUF);
    offer(&mut driver, 0, &[100]);
    other.write_all(&framed(&[3; 20])).unwrap();
    driver.until("a frame", |d| d.given(0) >= 1);
    let (head, len) = driver.used(0, 0);
    let got = bytes(&driver, 0x9_0000 + HEADER as u64, len as usize - HEADER);
    // The first frame may have come to nobody, or to the second driver; never to the first one's chain.
    assert!(head == 0 && (got == [3; 20] || got == [1; 40]), "{got:?}");
}

#[test]
fn pairs_are_chosen_and_flows_stay_with_theirs() {
    let (net, mut other) = card(2, true);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1 | MRG_RXBUF | CTRL_VQ | MQ);
    let tell = |driver: &mut Driver, message: &[u8]| {
        let before = driver.given(4);
        driver.request(4, message, 1);
        driver.until("an answer", |d| d.given(4) == before + 1);
        driver.reply(1)[0]
    };
    assert_eq!(tell(&mut driver, &[4, 0, 3, 0]), ACK_ERR);
    assert_eq!(tell(&mut driver, &[4, 0, 0, 0]), ACK_ERR);
    assert_eq!(tell(&mut driver, &[4, 0, 2]), ACK_ERR);
    assert_eq!(tell(&mut driver, &[0, 0, 1]), ACK_ERR);
    assert_eq!(tell(&mut driver, &[4, 0, 2, 0]), ACK_OK);
    offer(&mut driver, 2, &[100]);
    let mut frame = vec![0; 34];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[29] = 15;
    frame[33] = 2;
    driver.request(3, &[&[0; HEADER][..], &frame].concat(), 0);
    other.read_exact(&mut [0; 38]).unwrap();
    frame.swap(29, 33);
    other.write_all(&framed(&frame)).unwrap();
    driver.until("the answer on the second pair", |d| d.given(2) == 1);
}

#[test]
fn a_network_that_goes_takes_the_carrier_with_it() {
    let (net, mut other) = card(1, true);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1 | STATUS);
    assert_eq!(driver.get(0x2006, 2), u64::from(LINK_UP));
    // A length that no frame has ends it as its closed socket does.
    other.write_all(&[0; 4]).unwrap();
    driver.until("no carrier", |d| d.get(0x2006, 2) == 0);
    driver.request(1, &[0; 60], 0);
    assert_eq!(driver.given(1), 1, "frames are taken and go nowhere");
}

#[test]
fn cards_that_cannot_be_are_refused() {
    for (mac, pairs) in [([1; 6], 1), ([0; 6], 1), (MAC_BYTES, 0), (MAC_BYTES, 9)] {
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(Net::new(Nic { mac, pairs, socket, ours: true }, Default::default()).is_err());
    }
}

/// A note of the user network, or to it.
fn note(kind: u8, number: u32, told: &[u8]) -> Vec<u8> {
    let len = NOTE | (NOTE_HEADER + told.len()) as u32;
    [&len.to_be_bytes()[..], &[kind], &number.to_be_bytes(), told].concat()
}

/// Answers the question for connections that comes next, behind `frames`, on a thread of its own, as a vCPU waits for it.
fn tells(other: &UnixStream, frames: &[&[u8]], told: Vec<u8>) -> std::thread::JoinHandle<()> {
    let mut other = other.try_clone().unwrap();
    let frames = frames.iter().map(|frame| framed(frame)).collect::<Vec<_>>().concat();
    std::thread::spawn(move || {
        let mut question = [0; 9];
        other.read_exact(&mut question).unwrap();
        assert_eq!(question[..5], [0x80, 0, 0, 5, ASK]);
        let number = u32::from_be_bytes(question[5..].try_into().unwrap());
        // An answer to an older question is none.
        let notes = [note(TOLD, number.wrapping_sub(1), b""), note(TOLD, number, &told)];
        other.write_all(&[frames, notes.concat()].concat()).unwrap();
    })
}

const FEATURES: u64 = VERSION_1 | MRG_RXBUF | CTRL_VQ | MQ | STATUS;

/// A driver that uses both pairs of a card, sends a flow by the second, and has given a buffer that the frame that came does not fit.
fn busy() -> (Driver, UnixStream, Vec<u8>) {
    let (net, mut other) = card(2, true);
    let mut driver = Driver::new(net, false);
    driver.begin(FEATURES);
    driver.request(4, &[4, 0, 2, 0], 1);
    driver.until("an answer", |d| d.given(4) == 1);
    let mut flow = vec![0; 34];
    flow[12..15].copy_from_slice(&[8, 0, 0x45]);
    (flow[29], flow[33]) = (15, 2);
    driver.request(3, &[&[0; HEADER][..], &flow].concat(), 0);
    other.read_exact(&mut [0; 38]).unwrap();
    flow.swap(29, 33);
    offer(&mut driver, 2, &[30]);
    other.write_all(&framed(&flow)).unwrap();
    (driver, other, flow)
}

#[test]
fn a_card_that_is_saved_goes_on_and_one_that_is_restored_begins_with_resets() {
    let (mut driver, other, flow) = busy();
    // Sent, and not told: whoever is restored looks for it.
    driver.memory.write(Gpa(0x8_0000), &[5; HEADER + 20]).unwrap();
    driver.describe(1, 0, 0x8_0000, HEADER as u32 + 20, 0, 0);
    driver.offer(1, 0);
    let connections: Vec<u8> = (0..2 * CONNECTION).map(|at| at as u8).collect();
    let answers = tells(&other, &[&[6; 40]], connections.clone());
    let (net, mut others) = card(2, true);
    let mut moved = driver.moved(net, |_| ()).unwrap();
    answers.join().unwrap();
    // The one that was saved has lost nothing: the chain that it had taken is filled, with what came before and while it was asked.
    offer_more(&mut driver, 2, 1, 100);
    offer_more(&mut driver, 0, 0, 100);
    driver.until("both frames", |d| (d.given(2), d.given(0)) == (2, 1));
    assert_eq!((driver.used(2, 0).1, driver.used(2, 1).1, driver.used(0, 0).1), (30, 16, 52));

    // The other one tells the network of before what was connected, and then what was sent.
    let mut seen = vec![0; 9 + connections.len() + 24];
    others.read_exact(&mut seen).unwrap();
    let number = u32::from_be_bytes(seen[5..9].try_into().unwrap());
    assert_eq!(seen, [note(ANEW, number, &connections), framed(&[5; 20])].concat());
    // What comes before the answer is of another time, and so is another answer. Then a flow comes by its pair.
    let stale = [framed(&[9; 40]), note(BEGUN, number + 1, b""), framed(&[9; 40]), note(BEGUN, number, b"")];
    others.write_all(&[&stale.concat()[..], &framed(&flow)].concat()).unwrap();
    offer_more(&mut moved, 2, 1, 100);
    moved.until("the flow", |d| d.given(2) == 2);
    assert_eq!((moved.used(2, 0), moved.used(2, 1)), ((0, 30), (1, 16)));
    assert_eq!((moved.given(0), moved.given(1), moved.get(0x2006, 2)), (0, 1, LINK_UP.into()));
}

/// Offers one more buffer.
fn offer_more(driver: &mut Driver, queue: u16, index: u16, room: u32) {
    driver.describe(queue, index, 0xa_0000 + 0x1000 * u64::from(queue), room, WRITE, 0);
    driver.offer(queue, index);
    driver.ring(queue);
}

#[test]
fn a_carrier_that_is_there_again_is_told() {
    let (net, other) = card(1, true);
    let mut driver = Driver::new(net, false);
    driver.begin(VERSION_1 | STATUS);
    drop(other);
    driver.until("no carrier", |d| d.get(0x2006, 2) == 0);
    let (net, _others) = card(1, true);
    let moved = driver.moved(net, |_| ()).unwrap();
    assert_eq!((moved.get(0x2006, 2), moved.get(0x1000, 1) & 2), (LINK_UP.into(), 2));
    assert_ne!(moved.get(0x15, 1), driver.get(0x15, 1), "the configuration is another one");
}

#[test]
fn states_that_no_card_has_are_refused() {
    let (driver, other, _flow) = busy();
    let tries: [(&str, u64); 7] = [
        ("mac/0", 2),
        ("most", 1),
        ("pairs", 0),
        ("pairs", 3),
        ("carrier", 2),
        ("steering/0", 256),
        ("steering/3", 1 << 40),
    ];
    for (field, number) in tries {
        let answers = tells(&other, &[], Vec::new());
        let refused = driver.moved(card(2, true).0, |saved| {
            *saved.tree_mut().pointer_mut(&format!("/device/tree/{field}")).unwrap() = number.into();
        });
        answers.join().unwrap();
        assert!(refused.is_err(), "{field} {number}");
    }
    for len in [1, CONNECTION - 1, (CONNECTIONS_MAX + 1) * CONNECTION] {
        let answers = tells(&other, &[], Vec::new());
        let refused = driver.moved(card(2, true).0, |saved| saved.set_bytes(vec![0; len])).map(drop);
        answers.join().unwrap();
        assert!(refused.is_err_and(|why| why.to_string().contains("no such connections")), "{len}");
    }
    let answers = tells(&other, &[], Vec::new());
    let refused = driver.moved(card(2, true).0, |saved| {
        saved.tree_mut().pointer_mut("/device/tree/steering").unwrap().as_array_mut().unwrap().pop();
    });
    answers.join().unwrap();
    assert!(refused.is_err());
}
