//! A bus beside a guest that plays by the rules, and by none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{Clock, TimerQueue};
use satori_defs::hyperv::vmbus::message::*;
use satori_defs::hyperv::vmbus::packet::{COMPLETION, GPA_DIRECT, IN_BAND};
use satori_lock::lock;
use satori_memory::{Gpa, GuestMemory, Region};
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::*;

/// Where the rings are: guest to host, then back, of two pages of data each.
const RINGS: u64 = 0x1_0000;
const DATA: u32 = 0x2000;
const SECOND: u64 = RINGS + 0x3000;

struct Clocked;

impl Clock for Clocked {
    fn now(&self) -> u64 {
        0
    }
    fn counter(&self) -> u64 {
        0
    }
    fn counter_hz(&self) -> u64 {
        1
    }
    fn epoch(&self) -> u64 {
        0
    }
}

/// What came to the guest.
#[derive(Default)]
struct Guest {
    messages: Mutex<Vec<Vec<u8>>>,
    signals: AtomicU64,
    connections: Mutex<Vec<u32>>,
    deaf: AtomicU64,
}

impl Host for Guest {
    fn post(&self, _vp: u32, _sint: u8, payload: &[u8]) -> Posted {
        if self.deaf.load(Ordering::Relaxed) != 0 {
            return Posted::Full;
        }
        lock(&self.messages).push(payload.to_vec());
        Posted::Done
    }
    fn signal(&self, _vp: u32, _sint: u8, _flag: u32) {
        self.signals.fetch_add(1, Ordering::Relaxed);
    }
    fn connect(&self, connection: u32, _relid: u32) {
        lock(&self.connections).push(connection);
    }
    fn disconnect(&self, connection: u32) {
        lock(&self.connections).retain(|one| *one != connection);
    }
    fn reference_time(&self) -> u64 {
        7
    }
}

/// Completes whatever comes by what it brought.
#[derive(Default)]
struct Echo {
    closed: AtomicU64,
    came: Mutex<Vec<Packet>>,
}

impl Device for Echo {
    fn offer(&self) -> Offer {
        Offer { class: [1; 16], instance: [2; 16], flags: 0 }
    }
    fn opened(&self, _bus: &Arc<Bus>, _channel: &Arc<Channel>) {}
    fn signalled(&self, bus: &Arc<Bus>, channel: &Arc<Channel>) {
        channel.drain(|packet| {
            if packet.payload().first() == Some(&0xee) {
                bus.offer_beside(channel, 2);
            }
            channel.complete(&packet, packet.payload());
            lock(&self.came).push(packet);
            true
        });
    }
    fn closed(&self, _channel: &Arc<Channel>) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
    fn save(&self) -> Result<Value, Error> {
        Value::with_bytes(&Echoed { closed: self.closed.load(Ordering::Relaxed) }, vec![1, 2, 3])
    }
    fn restore(&self, _bus: &Arc<Bus>, value: &Value) -> Result<(), Error> {
        let Echoed { closed } = value.state()?;
        self.closed.store(closed, Ordering::Relaxed);
        Error::unless(value.bytes() == [1, 2, 3], "echo", "it has other bytes")
    }
}

#[derive(Serialize, Deserialize)]
struct Echoed {
    closed: u64,
}

impl State for Echoed {
    const NAME: &'static str = "echo";
    const VERSION: u32 = 1;
}

struct Bed {
    memory: GuestMemory,
    guest: Arc<Guest>,
    echo: Arc<Echo>,
    bus: Arc<Bus>,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Bed {
    fn new() -> Self {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x10_0000 }]).unwrap();
        let (guest, echo) = (Arc::new(Guest::default()), Arc::new(Echo::default()));
        let bus = Bus::new(Parts {
            host: guest.clone(),
            memory: memory.clone(),
            clock: Arc::new(Clocked),
            timers: TimerQueue::new(),
            devices: vec![echo.clone()],
            determined: true,
        });
        Bed { memory, guest, echo, bus }
    }

    /// A bus that goes on from here; `damage` may change what is saved.
    fn moved(&self, damage: impl FnOnce(&mut Value)) -> Result<Bed, Error> {
        let bed = Bed::new();
        let mut memory = vec![0; 0x10_0000];
        self.memory.read(Gpa(0), &mut memory).unwrap();
        bed.memory.write(Gpa(0), &memory).unwrap();
        let mut saved = self.bus.save()?;
        damage(&mut saved);
        bed.bus.restore(&saved)?;
        Ok(bed)
    }

    /// What comes back for a message.
    fn say(&self, message: &[u32]) -> Vec<Vec<u8>> {
        lock(&self.guest.messages).clear();
        self.bus.message(1, &words(message)).unwrap();
        lock(&self.guest.messages).clone()
    }

    /// The first word of each message, and the third.
    fn said(&self, message: &[u32]) -> Vec<(u32, u32)> {
        self.say(message).iter().map(|one| (one.u32_at(0), one.u32_at(8))).collect()
    }

    fn contact(&self, version: u32) -> Vec<Vec<u8>> {
        self.say(&[INITIATE_CONTACT, 0, version, 0, 2, 0, 0, 0, 0, 0])
    }

    /// A GPADL of `frames` in one message.
    fn gpadl(&self, id: u32, bytes: u32, frames: &[u64]) -> u32 {
        let range = 8 + 8 * frames.len() as u32;
        let mut message = vec![GPADL_HEADER, 0, 1, id, 1 << 16 | range, bytes, 0];
        message.extend(frames.iter().flat_map(|frame| [*frame as u32, (frame >> 32) as u32]));
        let answers = self.say(&message);
        assert_eq!((answers.len(), answers[0].u32_at(0), answers[0].u32_at(12)), (1, GPADL_CREATED, id));
        answers[0].u32_at(16)
    }

    fn opened() -> Self {
        let bed = Bed::new();
        bed.contact(0x5_0003);
        bed.say(&[REQUEST_OFFERS, 0]);
        let frames: Vec<u64> = (0..6).map(|page| RINGS / 4096 + page).collect();
        assert_eq!(bed.gpadl(9, 0x6000, &frames), 0);
        assert_eq!(bed.open(), 0);
        bed
    }

    fn open(&self) -> u32 {
        self.say(&[OPEN, 0, 1, 5, 9, 0, 3])[0].u32_at(16)
    }

    /// Closes it, and opens it again.
    fn opens_again(&self) -> bool {
        self.say(&[CLOSE, 0, 1]);
        self.memory.store_u32(Gpa(RINGS + 4), 0).unwrap();
        self.echo.closed.load(Ordering::Relaxed) == 1 && self.open() == 0
    }

    /// Puts raw bytes into the guest's ring, and tells nobody.
    fn put(&self, packet: &[u8]) {
        let write = self.memory.load_u32(Gpa(RINGS)).unwrap();
        for (at, byte) in packet.iter().chain(&[0; 8]).enumerate() {
            let at = (write as usize + at) % DATA as usize;
            self.memory.write(Gpa(RINGS + 4096 + at as u64), &[*byte]).unwrap();
        }
        let end = (write + packet.len() as u32 + 8) % DATA;
        self.memory.store_u32(Gpa(RINGS), end).unwrap();
    }

    /// Takes a packet out of the host's ring.
    fn take(&self) -> Option<Vec<u8>> {
        let (write, read) = (
            self.memory.load_u32(Gpa(SECOND)).unwrap() as usize,
            self.memory.load_u32(Gpa(SECOND + 4)).unwrap() as usize,
        );
        if write == read {
            return None;
        }
        let byte = |at: usize| {
            let mut one = [0];
            self.memory.read(Gpa(SECOND + 4096 + (at % DATA as usize) as u64), &mut one).unwrap();
            one[0]
        };
        let len = (usize::from(byte(read + 4)) | usize::from(byte(read + 5)) << 8) * 8;
        let packet = (read..read + len).map(byte).collect();
        self.memory.store_u32(Gpa(SECOND + 4), ((read + len + 8) % DATA as usize) as u32).unwrap();
        Some(packet)
    }
}

fn in_band(id: u64, payload: &[u8]) -> Vec<u8> {
    let len = (16 + payload.len()).next_multiple_of(8);
    let mut packet = [IN_BAND, 2, (len / 8) as u16, 1].map(u16::to_le_bytes).as_flattened().to_vec();
    packet.extend(id.to_le_bytes());
    packet.extend(payload);
    packet.resize(len, 0);
    packet
}

/// A bus with a channel open, completions that wait for room in its ring, a list that is not whole, and a message that waits.
fn busy() -> Bed {
    let bed = Bed::opened();
    for id in 0..120 {
        bed.put(&in_band(id, &[id as u8; 72]));
        bed.bus.signalled(1);
    }
    bed.guest.deaf.store(1, Ordering::Relaxed);
    bed.bus.message(1, &words(&[GPADL_HEADER, 0, 1, 20, 1 << 16 | 24, 0x2000, 0, 0x20, 0])).unwrap();
    bed.bus.message(1, &words(&[MODIFY, 0, 1, 1])).unwrap();
    bed
}

#[test]
fn a_bus_that_was_saved_goes_on() {
    let bed = busy();
    let saved = bed.bus.save().unwrap();
    let moved = bed.moved(|_| ()).unwrap();
    assert_eq!(moved.bus.save().unwrap(), saved, "what is taken back is what was given");
    // What waited for a buffer comes when there is one.
    moved.bus.timers().run(u64::MAX / 2);
    let messages = lock(&moved.guest.messages).clone();
    assert_eq!(messages.iter().map(|one| one.u32_at(0)).collect::<Vec<_>>(), [MODIFY_RESPONSE]);
    // Completions come in their order, none is missing and none comes twice.
    let mut ids = Vec::new();
    while ids.len() < 120 {
        let Some(packet) = moved.take() else {
            assert!(!ids.is_empty(), "nothing is there");
            moved.bus.signalled(1);
            continue;
        };
        ids.push(packet.u64_at(8));
    }
    assert_eq!(ids, (0..120).collect::<Vec<_>>());
    assert_eq!(moved.take(), None);
    // The rest of the list, and a new request.
    moved.bus.message(1, &words(&[GPADL_BODY, 0, 0, 20, 0x21, 0])).unwrap();
    assert_eq!(lock(&moved.guest.messages).last().unwrap().u32_at(0), GPADL_CREATED);
    moved.put(&in_band(500, b"hello..."));
    moved.bus.signalled(1);
    assert_eq!(moved.take().unwrap().u64_at(8), 500);
    assert!(moved.opens_again());
}

/// Whatever stands in a saved state, it is refused, or what goes on from it harms nobody.
#[test]
fn damaged_states_are_refused_or_harmless() {
    let bed = busy();
    let saved = bed.bus.save().unwrap();
    let (mut places, mut left) = (Vec::new(), vec![(String::new(), saved.tree())]);
    while let Some((at, tree)) = left.pop() {
        if let Some(fields) = tree.as_object() {
            left.extend(fields.iter().map(|(name, tree)| (format!("{at}/{name}"), tree)));
        } else if let Some(items) = tree.as_array() {
            let most = items.iter().enumerate().take(4);
            left.extend(most.map(|(index, tree)| (format!("{at}/{index}"), tree)));
        }
        places.push(at);
    }
    let (mut refused, mut tried) = (0, 0);
    for at in &places {
        for number in [0, 1, 3, 7, 0x2000, 0x10_0000, 1 << 32, 1 << 62, u64::MAX - 4095, u64::MAX] {
            tried += 1;
            let damage = |value: &mut Value| *value.tree_mut().pointer_mut(at).unwrap() = number.into();
            let Ok(moved) = bed.moved(damage) else {
                refused += 1;
                continue;
            };
            moved.bus.timers().run(u64::MAX / 2);
            moved.put(&in_band(500, b"hello..."));
            (0..3).for_each(|relid| moved.bus.signalled(relid));
            // Where packets are may be anything by now.
            (0..200).for_each(|_| drop(moved.take()));
            moved.bus.signalled(1);
            for kind in 1..30 {
                let _ = moved.bus.message(1, &words(&[kind, 0, 1, 20, 9, 3, 0, 0]));
            }
        }
    }
    assert!(refused * 2 > tried, "{refused} of {tried}");
    assert!(bed.moved(|value| value.set_bytes(vec![1, 2])).is_err());
    assert!(bed.moved(|value| value.set_bytes(vec![1, 2, 3, 4])).is_err());
}

#[test]
fn versions_are_those_that_are_known() {
    let bed = Bed::new();
    for (version, spoken, connection) in
        [(0x5_0003, 1, 4), (0x5_0000, 1, 4), (0x4_0001, 1, 1), (0x2_0004, 1, 1), (0x6_0000, 0, 4), (1, 0, 1)]
    {
        let answers = bed.contact(version);
        assert_eq!(answers.len(), 1);
        let found = (answers[0].u32_at(0), answers[0].u32_at(8), answers[0].u32_at(12));
        assert_eq!(found, (VERSION_RESPONSE, spoken, connection), "{version:#x}");
    }
    assert!(bed.said(&[REQUEST_OFFERS, 0]).is_empty(), "nobody is offered anything without a version");
}

#[test]
fn a_channel_goes_from_its_offer_to_its_end() {
    let bed = Bed::opened();
    assert_eq!(*lock(&bed.guest.connections), [0x2001]);
    bed.put(&in_band(77, b"hello..."));
    bed.bus.signalled(1);
    let answer = bed.take().unwrap();
    assert_eq!((answer.u16_at(0), answer.u64_at(8), &answer[16..24]), (COMPLETION, 77, &b"hello..."[..]));
    assert_eq!(bed.guest.signals.load(Ordering::Relaxed), 1);
    assert_eq!(bed.said(&[MODIFY, 0, 1, 1]), [(MODIFY_RESPONSE, 1)]);
    assert!(bed.said(&[CLOSE, 0, 1]).is_empty());
    assert_eq!(bed.said(&[GPADL_TEARDOWN, 0, 1, 9]), [(GPADL_TORNDOWN, 9)]);
    assert_eq!(bed.said(&[UNLOAD, 0]), [(UNLOAD_RESPONSE, 0)]);
    assert!(lock(&bed.guest.connections).is_empty());
    bed.contact(0x5_0000);
    assert_eq!(bed.said(&[REQUEST_OFFERS, 0]).len(), 2, "all over again");
}

#[test]
fn channels_beside_go_with_their_first_and_their_numbers_when_they_are_forgotten() {
    let bed = Bed::opened();
    lock(&bed.guest.messages).clear();
    bed.put(&in_band(1, &[0xee; 8]));
    bed.bus.signalled(1);
    let offers: Vec<_> = lock(&bed.guest.messages).iter().map(|m| (m.u32_at(184), m.u16_at(180))).collect();
    assert_eq!(offers, [(2, 1), (3, 2)]);
    assert_eq!(bed.said(&[CLOSE, 0, 1]), [(RESCIND, 2), (RESCIND, 3)]);
    bed.say(&[RELID_RELEASED, 0, 2]);
    assert_eq!(*lock(&bed.guest.connections), [0x2001, 0x2003]);
    assert_eq!(bed.open(), 0);
    bed.put(&in_band(1, &[0xee; 8]));
    lock(&bed.guest.messages).clear();
    bed.bus.signalled(1);
    let offers: Vec<_> = lock(&bed.guest.messages).iter().map(|m| m.u32_at(184)).collect();
    assert_eq!(offers, [2, 4], "3 is the guest's until it says otherwise");
}

#[test]
fn lists_of_pages_come_in_pieces_and_are_refused_where_they_lie() {
    let bed = Bed::new();
    bed.contact(0x5_0003);
    // Two pages in the header, a third in a body; another list between them.
    assert!(bed.say(&[GPADL_HEADER, 0, 1, 3, 1 << 16 | 32, 0x3000, 0, 1, 0, 2, 0]).is_empty());
    assert_eq!(bed.gpadl(4, 0x1000, &[7]), 0);
    assert_eq!(bed.say(&[GPADL_BODY, 0, 0, 3, 3, 0])[0].u32_at(16), 0);
    assert_ne!(bed.gpadl(4, 0x1000, &[7]), 0, "the number is taken");
    assert_ne!(bed.gpadl(5, 0x2000, &[7]), 0, "fewer pages than bytes");
    assert_ne!(bed.gpadl(6, 0x1000, &[0x100]), 0, "no RAM");
    assert_ne!(bed.gpadl(7, 0x1000, &[u64::MAX]), 0, "nowhere");
    assert_ne!(bed.gpadl(8, 0, &[7]), 0, "nothing");
    assert!(bed.say(&[GPADL_BODY, 0, 0, 99, 3, 0]).is_empty());
}

#[test]
fn a_ring_that_breaks_a_rule_closes_its_channel_alone() {
    let broken: [&dyn Fn(&Bed); 7] = [
        &|bed| bed.memory.store_u32(Gpa(RINGS), DATA).unwrap(),
        &|bed| bed.memory.store_u32(Gpa(RINGS), 9).unwrap(),
        &|bed| bed.memory.store_u32(Gpa(RINGS), u32::MAX - 7).unwrap(),
        // Less than a header.
        &|bed| bed.memory.store_u32(Gpa(RINGS), 8).unwrap(),
        // A length beyond what is there, and an offset beyond the length.
        &|bed| bed.put(&[6, 0, 2, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        &|bed| bed.put(&[6, 0, 9, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        &|bed| bed.put(&[6, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    ];
    for (index, break_it) in broken.iter().enumerate() {
        let bed = Bed::opened();
        break_it(&bed);
        bed.bus.signalled(1);
        bed.memory.store_u32(Gpa(RINGS), 0).unwrap();
        bed.put(&in_band(1, b"hello..."));
        bed.bus.signalled(1);
        assert_eq!(bed.take(), None, "{index}: it is dead");
        assert!(bed.opens_again(), "{index}: and can be closed and opened");
    }
    // The index by which the guest reads is looked at only when something is sent.
    let bed = Bed::opened();
    bed.memory.store_u32(Gpa(SECOND + 4), 4).unwrap();
    bed.put(&in_band(1, b"hello..."));
    bed.bus.signalled(1);
    assert_eq!(lock(&bed.echo.came).len(), 1);
    assert_eq!(bed.memory.load_u32(Gpa(SECOND)).unwrap(), 0);
}

#[test]
fn ranges_of_a_packet_are_memory_or_the_end() {
    let direct = |ranges: u32, bytes: u32, offset: u32, frame: u64| {
        let mut packet = [GPA_DIRECT, 5, 5, 1].map(u16::to_le_bytes).as_flattened().to_vec();
        packet.extend(3_u64.to_le_bytes());
        packet.extend(words(&[0, ranges, bytes, offset, frame as u32, (frame >> 32) as u32]));
        packet
    };
    for (packet, spans) in [
        (direct(1, 0x100, 0x20, 2), Some(1)),
        (direct(0, 0, 0, 0), Some(0)),
        (direct(1, 0x1000, 1, 2), None),
        (direct(2, 0x100, 0x20, 2), None),
        (direct(u32::MAX, 0x100, 0x20, 2), None),
        (direct(1, u32::MAX, u32::MAX, 2), None),
        (direct(1, 0x100, 0x20, 0x100), None),
        (direct(1, 0x100, 0x20, u64::MAX), None),
    ] {
        let bed = Bed::opened();
        bed.put(&packet);
        bed.bus.signalled(1);
        let came = lock(&bed.echo.came).first().map(|packet| packet.spans.len());
        assert_eq!(came, spans, "{packet:?}");
    }
}

#[test]
fn a_guest_that_reads_no_answers_is_not_asked_more_and_loses_none() {
    let bed = Bed::opened();
    let (mut sent, mut got) = (0, 0);
    for round in 0..400_u64 {
        bed.put(&in_band(round, &[5; 200]));
        bed.bus.signalled(1);
        sent += 1;
        // From time to time it reads all, and says so.
        if round % 20 == 19 {
            while let Some(answer) = bed.take() {
                assert_eq!(answer.u64_at(8), got);
                got += 1;
                bed.bus.signalled(1);
            }
        }
    }
    assert_eq!((sent, got), (400, 400));
}

#[test]
fn messages_wait_for_buffers_and_the_guest_for_messages() {
    let bed = Bed::new();
    bed.contact(0x5_0003);
    lock(&bed.guest.messages).clear();
    bed.guest.deaf.store(1, Ordering::Relaxed);
    let refused = (0..1000).find(|_| bed.bus.message(1, &words(&[GPADL_TEARDOWN, 0, 1, 9])) == Err(Full));
    assert_eq!(refused, Some(256));
    bed.guest.deaf.store(0, Ordering::Relaxed);
    bed.bus.timers().run(10_000_000);
    assert_eq!(lock(&bed.guest.messages).len(), 256);
}

#[test]
fn messages_of_any_bytes_are_harmless() {
    let bed = Bed::opened();
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = |shift: u64| (seed >> shift) as u32 % 40;
        let kind = word(33) % 26;
        let message =
            [kind, 0, word(20), word(25), word(7) << 16 | word(40), word(50) << 8, word(3), 0, 0, 0];
        let _ = bed.bus.message(1, &words(&message)[..(seed >> 58) as usize % 41]);
        bed.bus.signalled(word(11));
    }
}
