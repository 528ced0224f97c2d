//! Disks and cards, by a front end of our own: as it should be, and as it should not.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use satori_bus::Clock;
use satori_cable::Nic;
use satori_defs::cable::{ANEW, BEGUN, TOLD};
use satori_defs::x86::{cr0, efer};
use satori_defs::xen::{blkif, call, grant};
use satori_image::{Access, Image, Store as Bytes};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_save::{Error, Value};
use satori_state::{CpuState, reg, seg};
use satori_xen::{Caller, Config, Domain, Host, Kind, SPECIAL, Vcpu};

use crate::{Bus, Cable, Devices};

struct Still;

impl Clock for Still {
    fn now(&self) -> u64 {
        0
    }
    fn counter(&self) -> u64 {
        0
    }
    fn counter_hz(&self) -> u64 {
        1_000_000_000
    }
    fn epoch(&self) -> u64 {
        0
    }
}

struct Deaf;

impl Host for Deaf {
    fn line(&self, _gsi: u8, _asserted: bool) {}
    fn intx(&self, _device: u8, _pin: u8) -> u8 {
        0
    }
    fn request(&self, _: u32, _: u8, _: bool) {}
    fn wake(&self, _: u32) {}
    fn console(&self, _: &[u8]) {}
}

/// A file in memory.
#[derive(Debug, Default)]
struct File(Mutex<Vec<u8>>);

impl Bytes for File {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn read(&self, at: u64, data: &mut [u8]) -> std::io::Result<()> {
        data.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..data.len()]);
        Ok(())
    }
    fn write(&self, at: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.lock().unwrap()[at as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn set_len(&self, _: u64) -> std::io::Result<()> {
        unreachable!("nobody changes its length")
    }
    fn punch(&self, at: u64, len: u64) -> std::io::Result<()> {
        self.0.lock().unwrap()[at as usize..(at + len) as usize].fill(0);
        Ok(())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
}

const RAM: u64 = 1 << 20;
/// A frame of entries, a ring of a disk, and those of a card.
const ENTRIES: u64 = 0x1000;
const RING: u64 = 0x2000;
const SEND: u64 = 0x3000;
const RECEIVE: u64 = 0x4000;
const ARGS: u64 = 0x8000;
const DATA: u64 = 0x1_0000;
const DISK: u64 = 64 << 10;

struct Rig {
    domain: Arc<Domain>,
    memory: GuestMemory,
    file: Arc<File>,
    other: UnixStream,
    bus: Arc<Bus>,
    vcpu: Vcpu,
    ports: [u32; 2],
}

const DISK_FRONT: &str = "/local/domain/1/device/vbd/51712";
const CARD_FRONT: &str = "/local/domain/1/device/vif/0";
const DISK_BACK: &str = "/local/domain/0/backend/vbd/1/51712";

impl Rig {
    /// A machine whose guest did nothing yet.
    fn blank() -> Self {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: RAM }, SPECIAL]).unwrap();
        let domain = Arc::new(Domain::new(
            Config::new(Kind::Pvh),
            memory.clone(),
            Arc::new(Still),
            1,
            false,
            Arc::new(Deaf),
        ));
        let file = Arc::new(File(Mutex::new((0..DISK).map(|at| (at / 512) as u8).collect())));
        let image = Image::raw("test", file.clone(), Access::Write).unwrap();
        let (socket, other) = UnixStream::pair().unwrap();
        let cable =
            Cable::stream(Nic { mac: [2, 0, 0, 0, 0, 1], pairs: 1, socket, ours: true }, Default::default())
                .unwrap();
        let devices = Devices::new([satori_image::Requests::new(image, Default::default())], vec![cable]);
        let bus = Bus::wire(&devices, &domain, true, &Arc::default());
        Rig { domain, memory, file, other, bus, vcpu: Vcpu::new(0), ports: [0; 2] }
    }

    /// A machine that goes on from here; `damage` may change what is saved of each device, by name. Its guest has no connection.
    fn moved(&self, damage: impl Fn(&str, &mut Value)) -> Result<Rig, Error> {
        self.bus.hold(true);
        let mut other = self.other.try_clone().unwrap();
        let answers = std::thread::spawn(move || {
            let mut question = [0; 9];
            other.read_exact(&mut question).unwrap();
            let number = &question[5..];
            other.write_all(&[&[0x80, 0, 0, 5, TOLD], number].concat()).unwrap();
        });
        let mut states: BTreeMap<_, _> = self.bus.save()?.into_iter().collect();
        answers.join().unwrap();
        let mut memory = vec![0; RAM as usize];
        self.memory.read(Gpa(0), &mut memory).unwrap();
        states.iter_mut().for_each(|(name, value)| damage(name, value));
        let rig = Rig { ports: self.ports, ..Rig::blank() };
        rig.bus.hold(true);
        assert!(rig.domain.restore(self.domain.save()));
        rig.memory.write(Gpa(0), &memory).unwrap();
        rig.bus.restore(&mut |name| Ok(states.remove(name).expect("a device's state")))?;
        rig.bus.hold(false);
        self.bus.hold(false);
        Ok(rig)
    }

    fn new() -> Self {
        let mut rig = Rig::blank();
        assert_eq!(rig.call(call::MEMORY, 7, &[0x7ff0 | 1 << 32, 0, ENTRIES >> 12]), 0);
        // Entry n is of frame n.
        for frame in 0..RAM >> 12 {
            let words = [u32::from(grant::ACCESS), frame as u32].map(u32::to_le_bytes).concat();
            rig.memory.write(Gpa(ENTRIES + frame * 8), &words).unwrap();
        }
        for at in 0..2 {
            assert_eq!(rig.call(call::EVENT_CHANNEL, 6, &[0x7ff0]), 0);
            rig.ports[at] = rig.memory.read_u32(Gpa(ARGS + 4)).unwrap();
        }
        rig
    }

    fn call(&mut self, number: u64, command: u64, structure: &[u64]) -> i64 {
        let bytes: Vec<u8> = structure.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write(Gpa(ARGS), &bytes).unwrap();
        let mut cpu = CpuState { cr0: cr0::PE | cr0::PG, efer: efer::LMA | efer::LME, ..CpuState::default() };
        cpu.seg[seg::CS].rights = 0xa09b;
        cpu.seg[seg::SS].rights = 0xc093;
        (cpu.gpr[reg::RAX], cpu.gpr[reg::RDI], cpu.gpr[reg::RSI]) = (number, command, ARGS);
        let caller = Caller { translate: &Some };
        self.domain.hypercall(&mut self.vcpu, &cpu, &caller).0 as i64
    }

    /// Writes into the store as the guest does, whose device then hears of it.
    fn set(&self, front: &str, facts: &[(&str, &str)]) {
        for (name, value) in facts {
            self.domain.with_store(|store| store.set(&format!("{front}/{name}"), value));
        }
        satori_xen::BackEnds::changed(&*self.bus, &[format!("{front}/state")]);
    }

    fn state(&self) -> String {
        let state =
            self.domain.with_store(|store| store.get(&format!("{DISK_BACK}/state")).map(<[u8]>::to_vec));
        String::from_utf8(state.unwrap()).unwrap()
    }

    fn connect_disk(&self) {
        let port = self.ports[0].to_string();
        self.set(DISK_FRONT, &[("ring-ref", "2"), ("event-channel", &port), ("state", "3")]);
        assert_eq!(self.state(), "4");
    }

    /// Puts a request into slot `at` and notifies; the status of its answer, if there is one.
    fn ask(&mut self, at: u32, request: &[u8]) -> Option<i16> {
        let slot = RING + 64 + u64::from(at % 32) * 112;
        self.memory.write(Gpa(slot), request).unwrap();
        self.memory.store_u32(Gpa(RING), at.wrapping_add(1)).unwrap();
        assert_eq!(self.call(call::EVENT_CHANNEL, 4, &[self.ports[0].into()]), 0);
        let given = self.memory.load_u32(Gpa(RING + 8)).unwrap();
        (given == at.wrapping_add(1)).then(|| (self.memory.read_u32(Gpa(slot + 8)).unwrap() >> 16) as i16)
    }
}

fn request(operation: u8, sector: u64, segments: &[(u32, u8, u8)]) -> Vec<u8> {
    let mut bytes = vec![operation, segments.len() as u8, 0, 0, 0, 0, 0, 0];
    bytes.extend(77u64.to_le_bytes());
    bytes.extend(sector.to_le_bytes());
    for (reference, first, last) in segments {
        bytes.extend([&reference.to_le_bytes()[..], &[*first, *last, 0, 0]].concat());
    }
    bytes
}

const FRAME: u32 = (DATA >> 12) as u32;

#[test]
fn a_disk_reads_and_writes_what_is_granted() {
    let mut rig = Rig::new();
    assert_eq!(rig.state(), "2");
    rig.connect_disk();
    let told = |name: &str| rig.domain.with_store(|store| store.read::<u64>(&format!("{DISK_BACK}/{name}")));
    assert_eq!((told("sectors"), told("feature-flush-cache")), (Some(128), Some(1)));
    assert_eq!(rig.ask(0, &request(blkif::READ, 3, &[(FRAME, 1, 2), (FRAME + 1, 0, 0)])), Some(0));
    let byte = |at: u64| rig.memory.read_u32(Gpa(at)).unwrap() as u8;
    assert_eq!((byte(DATA), byte(DATA + 512), byte(DATA + 1535), byte(DATA + 4096)), (0, 3, 4, 5));
    rig.memory.write(Gpa(DATA), &[0xee; 4096]).unwrap();
    assert_eq!(rig.ask(1, &request(blkif::WRITE, 8, &[(FRAME, 0, 7)])), Some(0));
    assert!(rig.file.0.lock().unwrap()[8 * 512..16 * 512].iter().all(|byte| *byte == 0xee));
    assert_eq!(rig.ask(2, &request(blkif::FLUSH, u64::MAX, &[])), Some(0), "as Linux asks");
    // Forty segments in a page of their own.
    let list: Vec<u8> = (0..40u32)
        .flat_map(|n| [&FRAME.to_le_bytes()[..], &[(n % 8) as u8, (n % 8) as u8, 0, 0]].concat())
        .collect();
    rig.memory.write(Gpa(DATA + 0x5000), &list).unwrap();
    let mut indirect = vec![blkif::INDIRECT, blkif::READ, 40, 0, 0, 0, 0, 0];
    indirect.extend(
        [&77u64.to_le_bytes()[..], &16u64.to_le_bytes(), &[0; 4], &(FRAME + 5).to_le_bytes()].concat(),
    );
    assert_eq!(rig.ask(3, &indirect), Some(0));
    let byte = |at: u64| rig.memory.read_u32(Gpa(at)).unwrap() as u8;
    assert_eq!(byte(DATA), 16 + 32, "the last one wins");
    let mut discard = request(blkif::DISCARD, 8, &[]);
    discard.extend(8u64.to_le_bytes());
    assert_eq!(rig.ask(4, &discard), Some(0));
    let mut other = rig.moved(|_, _| ()).unwrap();
    assert_eq!(
        other.ask(5, &request(blkif::READ, 3, &[(FRAME, 1, 1)])),
        Some(0),
        "a machine goes on from it"
    );
    rig.set(DISK_FRONT, &[("state", "5")]);
    assert_eq!(rig.state(), "5");
    rig.set(DISK_FRONT, &[("state", "6")]);
    assert_eq!(rig.ask(5, &request(blkif::FLUSH, 0, &[])), None, "nobody is there");
    rig.set(DISK_FRONT, &[("state", "1")]);
    assert_eq!(rig.state(), "2");
    rig.connect_disk();
    assert_eq!(rig.ask(5, &request(blkif::FLUSH, 0, &[])), Some(0));
}

#[test]
fn what_no_disk_can_do_is_an_error_and_nothing_more() {
    let mut rig = Rig::new();
    rig.connect_disk();
    let mut list = vec![(request(9, 0, &[]), -2), (request(blkif::READ, 0, &[]), -1)];
    for (sector, segment) in [
        (128, (FRAME, 0, 0)),
        (121, (FRAME, 0, 7)),
        (u64::MAX, (FRAME, 0, 0)),
        (1 << 55, (FRAME, 0, 0)),
        (0, (FRAME, 3, 2)),
        (0, (FRAME, 0, 8)),
        (0, (FRAME, 255, 255)),
        (0, (511, 0, 0)),
        (0, (u32::MAX, 0, 0)),
    ] {
        list.push((request(blkif::READ, sector, &[segment]), -1));
        list.push((request(blkif::WRITE, sector, &[segment]), -1));
    }
    let mut many = request(blkif::READ, 0, &[(FRAME, 0, 0); 11]);
    many[1] = 12;
    list.push((many, -1));
    let mut flush = request(blkif::FLUSH, 0, &[]);
    flush[1] = 1;
    list.push((flush, -1));
    let mut discard = request(blkif::DISCARD, 8, &[]);
    discard.extend(u64::MAX.to_le_bytes());
    list.push((discard, -1));
    for (count, reference) in [(257u16, FRAME), (1, u32::MAX), (0, FRAME)] {
        let mut indirect = vec![blkif::INDIRECT, blkif::READ];
        indirect.extend(count.to_le_bytes());
        indirect.extend([&[0; 4][..], &[0; 8], &[0; 8], &[0; 4], &reference.to_le_bytes()].concat());
        list.push((indirect, -1));
    }
    for (at, (request, status)) in (0..).zip(list) {
        assert_eq!(rig.ask(at, &request), Some(status), "{request:?}");
    }
    let taken = rig.memory.load_u32(Gpa(RING + 8)).unwrap();
    rig.memory.store_u32(Gpa(RING), taken.wrapping_add(33)).unwrap();
    assert_eq!(rig.call(call::EVENT_CHANNEL, 4, &[rig.ports[0].into()]), 0);
    assert_eq!(rig.ask(taken, &request(blkif::FLUSH, 0, &[])), None, "it stands still");
}

#[test]
fn a_connection_that_cannot_be_is_told_in_the_store() {
    for facts in [
        &[("ring-ref", "2")][..],
        &[("ring-ref", "511"), ("event-channel", "3")],
        &[("ring-ref", "2"), ("event-channel", "1")],
        &[("ring-ref", "2"), ("event-channel", "99999")],
        &[("ring-ref", "-1"), ("event-channel", "3")],
        &[("ring-page-order", "9"), ("ring-ref0", "2"), ("event-channel", "3")],
        &[("multi-queue-num-queues", "4000000000")],
        &[("protocol", "x86_32-abi"), ("ring-ref", "2"), ("event-channel", "3")],
    ] {
        let rig = Rig::new();
        rig.set(DISK_FRONT, facts);
        rig.set(DISK_FRONT, &[("state", "3")]);
        assert_eq!(rig.state(), "5", "{facts:?}");
        rig.set(DISK_FRONT, &[("state", "6")]);
        rig.set(
            DISK_FRONT,
            &[("state", "1"), ("protocol", "x86_64-abi"), ("ring-page-order", "0"), ("ring-ref0", "2")],
        );
        assert_eq!(rig.state(), "2");
    }
}

/// Sends by a card whatever is in its ring.
fn connect_card(rig: &Rig) {
    let port = rig.ports[1].to_string();
    let own =
        [("tx-ring-ref", "3"), ("rx-ring-ref", "4"), ("event-channel", &*port), ("request-rx-copy", "1")];
    rig.set(CARD_FRONT, &own);
    rig.set(CARD_FRONT, &[("feature-sg", "1"), ("state", "4")]);
}

#[test]
fn packets_come_and_go() {
    let mut rig = Rig::new();
    connect_card(&rig);
    rig.memory.write(Gpa(DATA), &[5; 4096]).unwrap();
    let slot = |rig: &Rig, at: u64, reference: u32, [offset, flags, id, size]: [u16; 4]| {
        let words = [offset, flags, id, size].map(u16::to_le_bytes).concat();
        rig.memory.write(Gpa(SEND + 64 + at * 12), &[&reference.to_le_bytes()[..], &words].concat()).unwrap();
    };
    // In two pieces, with what tells that it was not cut between them.
    slot(&rig, 0, FRAME, [10, 4 | 8, 1, 60]);
    rig.memory.write(Gpa(SEND + 64 + 12), &[1, 0, 100, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    slot(&rig, 2, FRAME, [100, 0, 2, 20]);
    rig.memory.store_u32(Gpa(SEND), 3).unwrap();
    assert_eq!(rig.call(call::EVENT_CHANNEL, 4, &[rig.ports[1].into()]), 0);
    let mut got = [0; 64];
    rig.other.read_exact(&mut got).unwrap();
    assert_eq!((&got[..4], &got[4..]), (&[0, 0, 0, 60][..], &[5; 60][..]));
    assert_eq!(rig.memory.load_u32(Gpa(SEND + 8)).unwrap(), 3);
    let answer = |at: u64| rig.memory.read_u32(Gpa(SEND + 64 + at * 12)).unwrap();
    assert_eq!([answer(0), answer(1), answer(2)], [1, 1 << 16, 2]);
    // What comes fills two pages.
    rig.other.write_all(&[&5000u32.to_be_bytes()[..], &[9; 5000]].concat()).unwrap();
    for (at, frame) in [(0, FRAME), (1, FRAME + 1)] {
        let request = [at as u32, frame].map(u32::to_le_bytes).concat();
        rig.memory.write(Gpa(RECEIVE + 64 + at * 8), &request).unwrap();
    }
    rig.memory.store_u32(Gpa(RECEIVE), 2).unwrap();
    assert_eq!(rig.call(call::EVENT_CHANNEL, 4, &[rig.ports[1].into()]), 0);
    let begin = Instant::now();
    while rig.memory.load_u32(Gpa(RECEIVE + 8)).unwrap() != 2 {
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
    let word = |at: u64| rig.memory.read_u32(Gpa(RECEIVE + 64 + at)).unwrap();
    assert_eq!((word(4), word(12)), (4096 << 16 | 4 | 1, 904 << 16));
    // A packet that is said to go on and does not; and one that is larger than its pieces.
    slot(&rig, 3, FRAME, [0, 0, 3, 5000]);
    rig.memory.store_u32(Gpa(SEND), 4).unwrap();
    assert_eq!(rig.call(call::EVENT_CHANNEL, 4, &[rig.ports[1].into()]), 0);
    assert_eq!(rig.memory.read_u32(Gpa(SEND + 64 + 36)).unwrap(), 3 | 0xffff << 16);
    slot(&rig, 4, FRAME, [0, 4, 4, 60]);
    rig.memory.store_u32(Gpa(SEND), 5).unwrap();
    assert_eq!(rig.call(call::EVENT_CHANNEL, 4, &[rig.ports[1].into()]), 0);
    assert_eq!(rig.memory.load_u32(Gpa(SEND + 8)).unwrap(), 4, "it stands still");
}

/// What was sent and not taken leaves the machine that goes on, behind what tells its network that it is another; what comes before the
/// answer is for another guest.
#[test]
fn a_card_goes_on_in_another_machine() {
    let rig = Rig::new();
    connect_card(&rig);
    rig.memory.write(Gpa(DATA), &[5; 4096]).unwrap();
    let packet = [FRAME.to_le_bytes(), [0; 4], [1, 0, 60, 0]].concat();
    rig.memory.write(Gpa(SEND + 64), &packet).unwrap();
    rig.memory.store_u32(Gpa(SEND), 1).unwrap();
    let mut moved = rig.moved(|_, _| ()).unwrap();
    let mut got = [0; 9 + 64];
    moved.other.read_exact(&mut got).unwrap();
    assert_eq!((got[4], &got[9..13], &got[13..]), (ANEW, &[0, 0, 0, 60][..], &[5; 60][..]));
    assert_eq!(moved.memory.load_u32(Gpa(SEND + 8)).unwrap(), 1);
    let frame = |byte: u8| [&60u32.to_be_bytes()[..], &[byte; 60]].concat();
    let begun = [&[0x80, 0, 0, 5, BEGUN][..], &got[5..9]].concat();
    moved.other.write_all(&[frame(8), begun, frame(9)].concat()).unwrap();
    moved.memory.write(Gpa(RECEIVE + 64), &[0, FRAME].map(u32::to_le_bytes).concat()).unwrap();
    moved.memory.store_u32(Gpa(RECEIVE), 1).unwrap();
    assert_eq!(moved.call(call::EVENT_CHANNEL, 4, &[moved.ports[1].into()]), 0);
    let begin = Instant::now();
    while moved.memory.load_u32(Gpa(RECEIVE + 8)).unwrap() != 1 {
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing came");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(moved.memory.read_u32(Gpa(DATA)).unwrap(), 0x0909_0909);
}

#[test]
fn states_that_no_device_has_are_refused() {
    let rig = Rig::new();
    rig.connect_disk();
    connect_card(&rig);
    let card = "xen/vif/0";
    let tries: [(&str, &str, u64); 15] = [
        (card, "mac/0", 4),
        (card, "state", 0),
        (card, "state", 7),
        (card, "state", 3),
        (card, "queues/0/send/pages/0", u64::MAX - 4095),
        (card, "queues/0/receive/pages/0", RAM << 20),
        (card, "queues/0/send/pages/0", SEND + 8),
        (card, "queues/0/send/entries", 512),
        (card, "queues/0/send/entries", 3),
        (card, "queues/0/receive/taken", 257),
        (card, "queues/0/send/slot", 4),
        ("xen/vbd/51712", "queues/0/0/pages/0", u64::MAX - 4095),
        ("xen/vbd/51712", "queues/0/0/entries", 0),
        ("xen/vbd/51712", "sectors", 1),
        ("xen/vbd/51712", "state", 255),
    ];
    for (device, field, number) in tries {
        let refused = rig.moved(|name, value| {
            if name == device {
                let place = value.tree_mut().pointer_mut(&format!("/{field}"));
                *place.unwrap_or_else(|| panic!("{name} has no {field}")) = number.into();
            }
        });
        assert!(refused.is_err(), "{device} {field} {number}");
        rig.bus.hold(false);
    }
    let longer = rig.moved(|name, value| {
        if name == card {
            value.set_bytes(vec![0; 7]);
        }
    });
    assert!(longer.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is in its rings and indices, nothing happens but to the guest and its own disk.
    #[test]
    fn rings_full_of_nonsense_harm_nobody(
        noise in prop::collection::vec(any::<u32>(), 64..1024),
        small in prop::collection::vec(prop_oneof![0u8..8, Just(FRAME as u8), any::<u8>()], 3584),
        indices in prop::collection::vec(prop_oneof![0u32..40, any::<u32>()], 1..12),
    ) {
        let mut rig = Rig::new();
        rig.connect_disk();
        connect_card(&rig);
        let noise: Vec<u8> = noise.iter().flat_map(|word| word.to_le_bytes()).collect();
        for (at, index) in indices.iter().enumerate() {
            rig.memory.write(Gpa(RING + 64), &small).unwrap();
            let piece = &noise[..noise.len().min(3000)];
            rig.memory.write(Gpa(if at % 2 == 0 { SEND } else { RECEIVE } + 64), piece).unwrap();
            for ring in [RING, SEND, RECEIVE] {
                rig.memory.store_u32(Gpa(ring + if at % 5 == 4 { 12 } else { 0 }), *index).unwrap();
            }
            for port in rig.ports {
                prop_assert_eq!(rig.call(call::EVENT_CHANNEL, 4, &[port.into()]), 0);
            }
        }
        rig.set(DISK_FRONT, &[("state", "6")]);
        rig.set(CARD_FRONT, &[("state", "6")]);
        prop_assert_eq!(rig.state(), "6");
    }
}
