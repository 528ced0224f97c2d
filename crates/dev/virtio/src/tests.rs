//! What drivers do, and what they never do, against devices without a machine.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use satori_defs::virtio::feature::*;
use satori_defs::virtio::pci::common::*;
use satori_defs::virtio::split::*;
use satori_defs::virtio::status::{FEATURES_OK, NEEDS_RESET};
use satori_memory::Gpa;
use satori_pci::PciFunction;

use crate::testing::*;
use crate::{Console, Dialect, Fs, Port, RandomBytes, Rng, Share};

struct Same(u8);

impl RandomBytes for Same {
    fn fill(&mut self, _determined: bool, bytes: &mut [u8]) -> bool {
        bytes.fill(self.0);
        true
    }
    fn seed(&self) -> u64 {
        0
    }
    fn set_seed(&mut self, _seed: u64) {}
}

fn rng() -> Arc<Rng> {
    Rng::new(Same(0x5a))
}

const ALL: u64 = VERSION_1 | INDIRECT_DESC | EVENT_IDX;

#[test]
fn a_driver_negotiates_and_is_served() {
    let mut driver = Driver::new(rng(), false);
    driver.set(DEVICE_FEATURE_SELECT, 4, 1);
    assert_eq!(driver.get(DEVICE_FEATURE, 4), 1, "VERSION_1");
    assert_eq!((driver.get(QUEUES, 2), driver.get(QUEUE_SIZE, 2)), (1, 64));
    driver.begin(VERSION_1);
    driver.request(0, &[], 16);
    assert_eq!((driver.given(0), driver.used(0, 0)), (1, (0, 16)));
    assert_eq!(driver.reply(17), [&[0x5a; 16][..], &[0]].concat());
    assert_eq!((driver.get(0x1000, 1), driver.get(0x1000, 1)), (1, 0), "reading the status clears it");
}

#[test]
fn features_that_are_not_offered_are_not_agreed_on() {
    let driver = Driver::new(rng(), false);
    for wrong in [0, VERSION_1 | 1 << 40, VERSION_1 | 1 << 7] {
        driver.set(STATUS, 1, 0);
        driver.set(STATUS, 1, 3);
        for half in 0..2 {
            driver.set(DRIVER_FEATURE_SELECT, 4, half);
            driver.set(DRIVER_FEATURE, 4, wrong >> (32 * half) & 0xffff_ffff);
        }
        driver.set(STATUS, 1, 11);
        assert_eq!(driver.status() & FEATURES_OK, 0, "{wrong:#x}");
        driver.set(STATUS, 1, 15);
        assert_eq!(driver.status(), 3, "and a driver that goes on anyway is not served");
    }
}

#[test]
fn interrupts_come_by_message_and_only_when_wanted() {
    let mut driver = Driver::new(rng(), false);
    // MSI-X on, vector 1 for the queue.
    let mut at = driver.function.config_read(0x34, 1) as u16;
    while driver.function.config_read(at, 1) != 0x11 {
        at = driver.function.config_read(at + 1, 1) as u16;
    }
    driver.function.config_write(at + 2, 2, 0x8000);
    driver.set(0x4010, 8, 0xfee0_0000);
    driver.set(0x4018, 8, 0x55);
    driver.begin(ALL);
    driver.set(QUEUE_SELECT, 2, 0);
    driver.set(QUEUE_VECTOR, 2, 7);
    assert_eq!(driver.get(QUEUE_VECTOR, 2), 0xffff, "there is no such vector");
    driver.set(QUEUE_VECTOR, 2, 1);
    driver.request(0, &[], 16);
    assert_eq!(*driver.heard.0.lock().unwrap(), [0x55]);
    assert_eq!(driver.get(0x1000, 1), 0, "the pin is not used");
    // The event index stands still: the next one is not wanted.
    driver.request(0, &[], 16);
    assert_eq!((driver.given(0), driver.heard.0.lock().unwrap().len()), (2, 1));
    let (_, ring, _) = Driver::rings(0);
    driver.memory.store_u16(Gpa(ring + RING + 2 * u64::from(SIZE)), 2).unwrap();
    driver.request(0, &[], 16);
    assert_eq!(driver.heard.0.lock().unwrap().len(), 2);
}

#[test]
fn rules_that_are_broken_stop_the_device_until_a_reset() {
    let table = 0x7_0000;
    type Break = fn(&mut Driver);
    let ways: [(&str, Break); 9] = [
        ("a loop", |d| {
            d.describe(0, 0, 0x9_0000, 1, NEXT | WRITE, 1);
            d.describe(0, 1, 0x9_0000, 1, NEXT | WRITE, 0);
            d.offer(0, 0);
        }),
        ("no such descriptor", |d| d.offer(0, SIZE)),
        ("a next that there is not", |d| {
            d.describe(0, 0, 0x9_0000, 1, NEXT | WRITE, 99);
            d.offer(0, 0);
        }),
        ("outside memory", |d| {
            d.describe(0, 0, 0xf_ffff, 2, WRITE, 0);
            d.offer(0, 0);
        }),
        ("a length that wraps", |d| {
            d.describe(0, 0, u64::MAX - 3, 16, WRITE, 0);
            d.offer(0, 0);
        }),
        ("reading behind writing", |d| {
            d.describe(0, 0, 0x9_0000, 1, NEXT | WRITE, 1);
            d.describe(0, 1, 0x9_0000, 1, 0, 0);
            d.offer(0, 0);
        }),
        ("a table in a table", |d| {
            d.describe(0, 0, 0x7_0000, 16, INDIRECT, 0);
            d.offer(0, 0);
        }),
        ("a table of 17 bytes", |d| {
            d.describe(0, 0, 0x7_0000, 17, INDIRECT, 0);
            d.offer(0, 0);
        }),
        ("an index far ahead", |d| {
            let (_, ring, _) = Driver::rings(0);
            d.memory.store_u16(Gpa(ring + INDEX), SIZE + 1).unwrap();
        }),
    ];
    let mut driver = Driver::new(rng(), false);
    let mut raw = 0x7_0000_u64.to_le_bytes().to_vec();
    raw.extend([16, 0, 0, 0, INDIRECT as u8, 0, 0, 0]);
    driver.memory.write(Gpa(table), &raw).unwrap();
    for (what, way) in ways {
        driver.begin(ALL);
        way(&mut driver);
        driver.ring(0);
        assert_eq!(driver.status() & NEEDS_RESET, NEEDS_RESET, "{what}");
        driver.request(0, &[], 16);
        assert_eq!(driver.given(0), 0, "{what}: it stands still");
        driver.begin(ALL);
        driver.request(0, &[], 16);
        assert_eq!((driver.status(), driver.given(0)), (15, 1), "{what}: and is back after a reset");
    }
}

#[test]
fn rings_may_be_anywhere_and_doorbells_of_no_queue_ring_nothing() {
    let mut driver = Driver::new(rng(), false);
    for place in [u64::MAX, 0xf_fffe, 0x1001, 1 << 40] {
        for register in [QUEUE_DESC, QUEUE_DRIVER, QUEUE_DEVICE] {
            driver.begin(0);
            driver.set(STATUS, 1, 0);
            driver.set(STATUS, 1, 3);
            driver.set(DRIVER_FEATURE_SELECT, 4, 1);
            driver.set(DRIVER_FEATURE, 4, 1);
            driver.set(STATUS, 1, 11);
            driver.set(QUEUE_SELECT, 2, 0);
            let (desc, ring, used) = Driver::rings(0);
            for (to, at) in [(QUEUE_DESC, desc), (QUEUE_DRIVER, ring), (QUEUE_DEVICE, used)] {
                driver.set(to, 8, if to == register { place } else { at });
            }
            driver.set(QUEUE_ENABLE, 2, 1);
            driver.set(STATUS, 1, 15);
            driver.offer(0, 0);
            (0..200).for_each(|queue| driver.ring(queue));
        }
    }
    driver.begin(VERSION_1);
    driver.request(0, &[], 1);
    assert_eq!(driver.given(0), 1);
}

#[test]
fn registers_are_also_reached_through_configuration_space() {
    let driver = Driver::new(rng(), false);
    let mut at = driver.function.config_read(0x34, 1) as u16;
    while driver.function.config_read(at + 3, 1) != 5 {
        at = driver.function.config_read(at + 1, 1) as u16;
    }
    driver.function.config_write(at + 8, 4, STATUS as u32);
    driver.function.config_write(at + 12, 4, 1);
    driver.function.config_write(at + 16, 1, 3);
    assert_eq!(driver.status(), 3);
    assert_eq!(driver.function.config_read(at + 16, 1), 3);
    driver.function.config_write(at + 12, 4, 3);
    driver.function.config_write(at + 16, 4, 0);
    assert_eq!(driver.status(), 3, "no access has three bytes");
}

fn fuse(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let mut request = (40 + body.len() as u32).to_le_bytes().to_vec();
    request.extend(opcode.to_le_bytes());
    request.extend(unique.to_le_bytes());
    request.resize(40, 0);
    request.extend(body);
    request
}

fn reply_to(request: &[u8], body: &[u8]) -> Vec<u8> {
    let mut reply = (16 + body.len() as u32).to_le_bytes().to_vec();
    reply.extend([0; 4]);
    reply.extend(&request[8..16]);
    reply.extend(body);
    reply
}

#[test]
fn requests_and_replies_go_between_guest_and_server() {
    let (ours, mut server) = UnixStream::pair().unwrap();
    let mut driver = Driver::new(
        Fs::new(Share { tag: "t".into(), dialect: Dialect::Fuse, socket: ours }, Default::default()).unwrap(),
        false,
    );
    assert_eq!((driver.get(0x2000, 2), driver.get(0x2024, 4)), (u64::from(b't'), 1));
    driver.begin(ALL);
    // Refused: a length that is not that of the descriptors.
    let mut lies = fuse(3, 5, b"");
    lies[0] += 1;
    driver.request(1, &lies, 64);
    assert_eq!(driver.used(1, 0), (0, 16));
    assert_eq!(driver.reply(16)[4..8], (-22_i32).to_le_bytes());
    driver.request(1, &fuse(2, 0, b"forgotten"), 0);
    assert_eq!(driver.given(1), 2, "nobody replies to that");
    driver.request(1, &fuse(3, 0x77, b"body"), 64);
    let mut got = vec![0; 49 + 44];
    server.read_exact(&mut got).unwrap();
    let got = &got[49..];
    assert_eq!(&got[40..], b"body");
    server.write_all(&reply_to(got, b"reply")).unwrap();
    driver.until("a reply", |d| d.given(1) == 3);
    assert_eq!(driver.used(1, 2), (0, 21));
    assert_eq!(
        (&driver.reply(21)[8..16], &driver.reply(21)[16..]),
        (&0x77_u64.to_le_bytes()[..], &b"reply"[..])
    );

    // A driver that was reset does not get what the one before asked for.
    driver.request(1, &fuse(3, 1, b"old!"), 64);
    let mut old = vec![0; 44];
    server.read_exact(&mut old).unwrap();
    driver.begin(ALL);
    driver.request(1, &fuse(3, 1, b"new!"), 64);
    let mut new = vec![0; 44];
    server.read_exact(&mut new).unwrap();
    server.write_all(&reply_to(&old, b"old")).unwrap();
    server.write_all(&reply_to(&new, b"new")).unwrap();
    driver.until("the new reply", |d| d.given(1) == 1);
    assert_eq!(&driver.reply(19)[16..], b"new");

    // A reply that is longer than its buffer, and a server that is gone.
    driver.request(1, &fuse(3, 2, b""), 20);
    let mut request = vec![0; 40];
    server.read_exact(&mut request).unwrap();
    server.write_all(&reply_to(&request, b"longer")).unwrap();
    driver.until("an error", |d| d.given(1) == 2);
    assert_eq!(driver.reply(8)[4..8], (-5_i32).to_le_bytes());
    driver.request(1, &fuse(3, 3, b""), 64);
    drop(server);
    driver.until("an error", |d| d.given(1) == 3);
    assert_eq!(driver.reply(8)[4..8], (-107_i32).to_le_bytes());
    driver.request(1, &fuse(3, 4, b""), 64);
    assert_eq!(driver.given(1), 4);
}

/// Answers requests, each a while after it came, for as long as somebody asks.
fn answers(mut server: UnixStream, late: Option<Duration>) {
    std::thread::spawn(move || {
        let mut request = [0; 40];
        while server.read_exact(&mut request).is_ok() {
            late.into_iter().for_each(std::thread::sleep);
            let _ = server.write_all(&reply_to(&request, b""));
        }
    });
}

#[test]
fn who_asks_waits_for_a_reply_that_comes_at_once_and_the_thread_brings_it_later() {
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    for late in [None, Some(Duration::from_millis(1))] {
        let (ours, server) = UnixStream::pair().unwrap();
        let share = Share { tag: "t".into(), dialect: Dialect::Fuse, socket: ours };
        let fs = Fs::new(share, Default::default()).unwrap();
        let mut driver = Driver::new(fs, false);
        driver.begin(ALL);
        let most = if late.is_some() { 100 } else { 20_000 };
        answers(server, late);
        let (mut asked, mut at_once) = (0, 0);
        // A host that is busy has to let the server run just then, at least once.
        while asked < most && (late.is_some() || at_once == 0) {
            driver.request(1, &fuse(3, 1 + asked as u64, b""), 64);
            asked += 1;
            at_once += usize::from(driver.given(1) == asked as u16);
            driver.until("a reply", |d| d.given(1) == asked as u16);
        }
        assert!(at_once > 0 || late.is_some() || !several, "{asked} were asked");
        assert!(late.is_none() || at_once < asked, "the server is late");
    }
}

#[test]
fn messages_of_9p_are_numbered_by_us_and_replies_by_the_driver() {
    let (ours, mut server) = UnixStream::pair().unwrap();
    let share = Share { tag: "tag".into(), dialect: Dialect::Plan9, socket: ours };
    let mut driver = Driver::new(Fs::new(share, Default::default()).unwrap(), false);
    assert_eq!((driver.get(0x2000, 2), driver.get(0x2002, 1)), (3, u64::from(b't')));
    driver.begin(ALL);
    let message = |tag, body: &[u8]| message_of(24, tag, body);
    // Two with one number; the replies come in the other order.
    driver.request(0, &message(9, b"a"), 64);
    let mut first = [0; 8];
    server.read_exact(&mut first).unwrap();
    driver.request(0, &message(9, b"b"), 64);
    let mut second = [0; 8];
    server.read_exact(&mut second).unwrap();
    assert!(first[5..7] != second[5..7] && first[7] == b'a' && second[7] == b'b');
    let reply = |to: &[u8], body: &[u8]| {
        [&(7 + body.len() as u32).to_le_bytes()[..], &[25], &to[5..7], body].concat()
    };
    server.write_all(&reply(&second, b"B!")).unwrap();
    driver.until("a reply", |d| d.given(0) == 1);
    assert_eq!((driver.used(0, 0).1, driver.reply(9)), (9, message_of(25, 9, b"B!")));
    server.write_all(&reply(&first, b"A")).unwrap();
    driver.until("a reply", |d| d.given(0) == 2);
    assert_eq!((driver.used(0, 1).1, driver.reply(8)), (8, message_of(25, 9, b"A")));
    // A length that is not that of the descriptors, and a server that is gone.
    let mut lies = message(3, b"");
    lies[0] += 1;
    driver.request(0, &lies, 64);
    assert_eq!(driver.reply(11), message_of(7, 3, &22_u32.to_le_bytes()));
    drop(server);
    driver.request(0, &message(4, b""), 64);
    driver.until("an error", |d| d.given(0) == 4);
    assert_eq!(driver.reply(11), message_of(7, 4, &107_u32.to_le_bytes()));
}

fn message_of(sort: u8, tag: u16, body: &[u8]) -> Vec<u8> {
    [&(7 + body.len() as u32).to_le_bytes()[..], &[sort], &tag.to_le_bytes(), body].concat()
}

fn message(driver: &Driver, queue: u16, index: u16) -> (u32, u16, u16, Vec<u8>) {
    let (_, len) = driver.used(queue, index);
    let raw = driver.reply(len as usize);
    let half = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
    (u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]), half(4), half(6), raw[8..].to_vec())
}

#[test]
fn a_port_is_announced_named_opened_and_closed_at_its_end() {
    let ((theirs, ours), (mut out, output)) = (pipe(), pipe());
    let (input, output) = (Some(own(theirs)), Some(own(output)));
    let ports = vec![
        Port { name: "in".into(), console: false, input, output: None },
        Port { name: "out".into(), console: false, input: None, output },
    ];
    let mut driver = Driver::new(Console::new(ports, &Default::default()).unwrap(), false);
    driver.begin(ALL | satori_defs::virtio::console::MULTIPORT);
    assert_eq!(driver.get(0x2004, 4), 3, "the most ports");
    let mut heard = 0;
    let mut control = |driver: &mut Driver, id: u8, event: u8, value: u8| {
        driver.request(3, &[id, 0, 0, 0, event, 0, value, 0], 0);
        let mut said = Vec::new();
        loop {
            driver.request(2, &[], 64);
            if driver.given(2) == heard {
                break said;
            }
            said.push(message(driver, 2, heard));
            heard += 1;
            // The room that is left over is for the next message, so it is taken now.
            if said.len() == 2 {
                break said;
            }
        }
    };
    let said = control(&mut driver, 0, 0, 1);
    assert_eq!(said, [(1, 1, 1, vec![]), (2, 1, 1, vec![])]);
    let said = control(&mut driver, 1, 3, 1);
    assert_eq!(said, [(1, 7, 1, b"in".to_vec()), (1, 6, 1, vec![])]);
    control(&mut driver, 2, 3, 1);

    // Of the second port's queues, 6 and 7, the latter takes what the guest writes.
    driver.request(7, b"to the host", 0);
    let mut got = [0; 11];
    out.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"to the host");

    // What comes in waits until the guest has opened the port, and room.
    (&ours).write_all(b"to the guest").unwrap();
    drop(ours);
    driver.request(3, &[1, 0, 0, 0, 6, 0, 1, 0], 0);
    driver.request(4, &[], 5);
    driver.until("the first bytes", |d| d.given(4) == 1);
    assert_eq!((driver.used(4, 0).1, driver.reply(5)), (5, b"to th".to_vec()));
    driver.request(4, &[], 64);
    driver.until("the rest", |d| d.given(4) == 2);
    assert_eq!(driver.reply(7), b"e guest");
    driver.request(2, &[], 64);
    driver.until("the end", |d| d.given(2) > heard);
    assert_eq!(message(&driver, 2, heard), (1, 6, 0, vec![]), "closed");

    // Nobody reads any more: the writer is told.
    drop(out);
    driver.request(7, b"to nobody", 0);
    driver.request(2, &[], 64);
    driver.until("the other end", |d| d.given(2) > heard + 1);
    assert_eq!(message(&driver, 2, heard + 1), (2, 6, 0, vec![]));
}

#[test]
fn numbers_in_control_messages_may_be_any() {
    let mut driver = Driver::new(Console::new(Vec::new(), &Default::default()).unwrap(), true);
    driver.begin(ALL);
    for id in [0_u32, 1, 31, u32::MAX] {
        for event in 0..9_u16 {
            let mut raw = id.to_le_bytes().to_vec();
            raw.extend(event.to_le_bytes());
            raw.extend([1, 0]);
            driver.request(3, &raw, 0);
            driver.request(3, &raw[..7], 0);
        }
    }
    assert_eq!(driver.status(), 15);
}

/// Lets the driver hear of port 1, open it, and give it room for `room` bytes.
fn open_port(driver: &mut Driver, room: u32) {
    driver.begin(ALL | satori_defs::virtio::console::MULTIPORT);
    driver.request(3, &[0, 0, 0, 0, 0, 0, 1, 0], 0);
    driver.request(3, &[1, 0, 0, 0, 6, 0, 1, 0], 0);
    driver.request(4, &[], room);
}

#[test]
fn a_port_that_was_saved_goes_on_where_it_was() {
    let machine = |name: &str| {
        let flags = rustix::fs::MemfdFlags::empty();
        let mut file = std::fs::File::from(rustix::fs::memfd_create("input", flags).unwrap());
        file.write_all(b"to the guest").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let port = Port { name: name.into(), console: false, input: Some(own(file)), output: None };
        Driver::new(Console::new(vec![port], &Default::default()).unwrap(), true)
    };
    let mut one = machine("in");
    open_port(&mut one, 5);
    assert_eq!((one.used(4, 0).1, one.reply(5)), (5, b"to th".to_vec()));
    let saved = one.function.save().unwrap();

    let mut other = machine("in");
    let mut memory = vec![0; 1 << 20];
    one.memory.read(Gpa(0), &mut memory).unwrap();
    other.memory.write(Gpa(0), &memory).unwrap();
    other.made.clone_from(&one.made);
    other.function.restore(&saved).unwrap();
    assert_eq!(other.function.save().unwrap().tree(), saved.tree());
    other.request(4, &[], 64);
    assert_eq!((other.used(4, 1).1, other.reply(7)), (7, b"e guest".to_vec()));
    // The announcement waited for a buffer, and still does; the end comes behind it.
    other.request(2, &[], 64);
    assert_eq!(message(&other, 2, 0), (1, 1, 1, vec![]));

    let refused = machine("another").function.restore(&saved);
    assert!(refused.is_err_and(|why| why.to_string().contains("another name")));
}

#[test]
fn what_comes_in_while_a_port_is_held_is_for_who_goes_on() {
    let machine = || {
        let (theirs, ours) = pipe();
        let port = Port { name: "in".into(), console: false, input: Some(own(theirs)), output: None };
        (Console::new(vec![port], &Default::default()).unwrap(), ours)
    };
    let (console, ours) = machine();
    let mut driver = Driver::new(console, false);
    open_port(&mut driver, 5);
    driver.function.hold(true);
    let saved = driver.function.save().unwrap();
    (&ours).write_all(b"to the guest").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((driver.given(4), saved.bytes().len()), (0, 0));
    driver.function.hold(false);
    driver.until("the first bytes", |d| d.given(4) == 1);
    assert_eq!(driver.reply(5), b"to th");
    // What the guest has no room for is held by the port, and part of the state.
    let (other, others) = machine();
    let mut moved = driver.moved(other, |saved| assert_eq!(saved.bytes(), b"e guest")).unwrap();
    (&others).write_all(b", more").unwrap();
    moved.request(4, &[], 64);
    moved.until("the rest", |d| d.given(4) == 2);
    assert_eq!(moved.reply(7), b"e guest");
    moved.request(4, &[], 64);
    moved.until("what came then", |d| d.given(4) == 3);
    assert_eq!(moved.reply(6), b", more");
}
