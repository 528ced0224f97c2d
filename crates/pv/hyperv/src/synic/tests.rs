use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use satori_bus::PortDevice;
use satori_defs::hyperv::Status;
use satori_memory::{Gpa, GuestMemory};

use super::*;
use crate::msr::tests::{FakeApics, rig};
use crate::{TestDevice, Vp};

const MESSAGES: u64 = 0x2000;
const FLAGS: u64 = 0x3000;

struct Rig {
    partition: Arc<Partition>,
    memory: GuestMemory,
    apics: Arc<FakeApics>,
}

impl Rig {
    fn off() -> Self {
        let (partition, _, memory, apics) = rig("auto", 8);
        Rig { partition: Arc::new(partition), memory, apics }
    }

    /// Processor 1 with its controller and pages on; source 5 has vector 0x55.
    fn new() -> Self {
        let rig = Rig::off();
        for (register, value) in
            [(msr::SCONTROL, 1), (msr::SIMP, MESSAGES | 1), (msr::SIEFP, FLAGS | 1), (msr::SINT0 + 5, 0x55)]
        {
            assert_eq!(rig.set(register, value), Ok(()));
        }
        rig
    }

    fn set(&self, register: u32, value: u64) -> Result<(), Gp> {
        self.partition.msr_write(&mut Vp::new(1), register, value).map(drop)
    }

    fn get(&self, register: u32) -> Result<u64, Gp> {
        self.partition.msr_read(&Vp::new(1), register)
    }

    fn interrupts(&self) -> Vec<(u32, u8)> {
        std::mem::take(&mut self.apics.requested.lock().unwrap())
    }

    fn post(&self, kind: u32) -> Result<(), Refusal> {
        self.partition.post_from_host(1, 5, Message::new(kind, 9, &kind.to_le_bytes()).unwrap())
    }

    fn word(&self, gpa: u64) -> u32 {
        self.memory.read_u32(Gpa(gpa)).unwrap()
    }

    /// Type and mark of the slot of source 5.
    fn slot(&self) -> (u32, bool) {
        (self.word(MESSAGES + 0x500), self.word(MESSAGES + 0x504) & 1 << 8 != 0)
    }

    fn empty(&self) {
        self.memory.write(Gpa(MESSAGES + 0x500), &[0; 4]).unwrap();
    }
}

#[test]
fn the_registers_start_as_the_manual_says_and_refuse_only_vectors() {
    let rig = Rig::off();
    for register in [msr::SCONTROL, msr::SIEFP, msr::SIMP, msr::EOM] {
        assert_eq!(rig.get(register), Ok(0), "{register:#x}");
    }
    assert_eq!((rig.get(msr::SVERSION), rig.set(msr::SVERSION, 1)), (Ok(1), Err(Gp)));
    for hole in [0x4000_0085, 0x4000_008f, 0x4000_00a0] {
        assert_eq!((rig.get(hole), rig.set(hole, 0)), (Err(Gp), Err(Gp)));
    }
    for sint in msr::SINT0..=msr::SINT15 {
        assert_eq!(rig.get(sint), Ok(0x1_0000));
        for vector in 0..256 {
            let taken = rig.set(sint, vector);
            assert_eq!(taken, if vector < 16 { Err(Gp) } else { Ok(()) }, "{vector}");
            assert_eq!(rig.set(sint, vector | 0x1_0000), Ok(()));
        }
        assert_eq!((rig.set(sint, 0x4_000f), rig.set(sint, 0xffff_ffff_fff8_ff10)), (Err(Gp), Ok(())));
        assert_eq!(rig.get(sint), Ok(0xffff_ffff_fff8_ff10), "what is reserved is preserved");
    }
    assert_eq!((rig.set(msr::EOM, u64::MAX), rig.get(msr::EOM)), (Ok(()), Ok(0)));
    let (without, ..) = crate::msr::tests::rig("auto,-stimer_direct,-stimer,-synic", 8);
    for register in msr::SCONTROL..=msr::SINT15 {
        assert_eq!(without.msr_read(&Vp::new(1), register), Err(Gp));
        assert_eq!(without.msr_write(&mut Vp::new(1), register, 0x1_0000), Err(Gp));
    }
    let (few, ..) = crate::msr::tests::rig("auto", 8);
    assert_eq!(few.msr_read(&Vp::new(8), msr::SCONTROL), Err(Gp), "no such processor");
}

#[test]
fn a_busy_slot_is_marked_and_the_next_message_comes_at_eom_or_eoi() {
    let rig = Rig::new();
    assert_eq!((rig.post(7), rig.slot(), rig.interrupts()), (Ok(()), (7, false), vec![(1, 0x55)]));
    let slot = MESSAGES + 0x500;
    assert_eq!((rig.word(slot + 4), rig.word(slot + 8), rig.word(slot + 16)), (4, 9, 7));
    assert!(!rig.partition.messages_wait(1));
    for kind in [8, 9, 10] {
        assert_eq!((rig.post(kind), rig.slot(), rig.interrupts()), (Ok(()), (7, true), vec![]));
    }
    assert!(rig.partition.messages_wait(1) && !rig.partition.messages_wait(0));
    // Not empty, or another vector: nothing.
    rig.partition.end_of_interrupt(1, 0x55);
    assert_eq!((rig.slot(), rig.interrupts()), ((7, true), vec![]));
    rig.empty();
    rig.partition.end_of_interrupt(1, 0x56);
    rig.partition.end_of_interrupt(0, 0x55);
    assert_eq!(rig.slot().0, 0);
    rig.partition.end_of_interrupt(1, 0x55);
    assert_eq!((rig.slot(), rig.interrupts()), ((8, true), vec![(1, 0x55)]), "more wait, it says");
    rig.empty();
    assert_eq!((rig.set(msr::EOM, 0), rig.slot(), rig.interrupts()), (Ok(()), (9, true), vec![(1, 0x55)]));
    // Another one posted looks as well.
    rig.empty();
    assert_eq!((rig.post(11), rig.slot(), rig.interrupts()), (Ok(()), (10, true), vec![(1, 0x55)]));
    rig.empty();
    assert_eq!((rig.set(msr::EOM, 0), rig.slot()), (Ok(()), (11, false)));
    rig.empty();
    assert_eq!((rig.set(msr::EOM, 0), rig.slot().0, rig.interrupts().len()), (Ok(()), 0, 1));
}

#[test]
fn no_eoi_is_spared_while_a_message_waits() {
    let rig = Rig::new();
    let vp = &mut Vp::new(1);
    assert!(rig.partition.msr_write(vp, msr::VP_ASSIST_PAGE, 0x4001).is_ok());
    let mut told = || {
        rig.partition.spare_eoi(vp);
        let told = rig.word(0x4000);
        rig.partition.take_spared_eoi(vp);
        told
    };
    assert_eq!((rig.post(7), told()), (Ok(()), 1), "it is in the slot");
    assert_eq!((rig.post(8), told()), (Ok(()), 0));
    rig.empty();
    assert_eq!((rig.set(msr::EOM, 0), told()), (Ok(()), 1));
}

#[test]
fn buffers_are_sixteen_and_a_processor_that_does_not_listen_is_told_of() {
    let rig = Rig::new();
    for kind in 1..=17 {
        assert_eq!(rig.post(kind), Ok(()));
    }
    assert_eq!(rig.post(18), Err(Refusal::Full));
    assert_eq!(rig.set(msr::SCONTROL, 0), Ok(()));
    rig.empty();
    assert_eq!((rig.post(18), rig.slot().0), (Err(Refusal::Off), 0));
    assert_eq!(rig.set(msr::SIMP, MESSAGES), Ok(()));
    assert_eq!(rig.set(msr::SCONTROL, 1), Ok(()));
    assert_eq!(rig.post(18), Err(Refusal::Off));
    assert_eq!(rig.set(msr::SIMP, MESSAGES | 1), Ok(()));
    assert_eq!(rig.slot(), (2, true));
    let message = || Message::new(1, 0, &[]).unwrap();
    assert_eq!(rig.partition.post_from_host(8, 5, message()), Err(Refusal::NoSuchVp));
    assert_eq!(rig.partition.post_from_host(1, 16, message()), Err(Refusal::NoSuchVp));
    assert_eq!(rig.partition.signal(1, 255, 0), Err(Refusal::NoSuchVp));
    assert_eq!(rig.partition.raise_sint(1, 16), Err(Refusal::NoSuchVp));
    assert_eq!((Message::new(0, 0, &[]), Message::new(1, 0, &[0; 241])), (None, None));
}

#[test]
fn masked_sources_lose_their_interrupt_and_polled_ones_have_none() {
    let rig = Rig::new();
    assert_eq!(rig.set(msr::SINT0 + 5, 0x1_0055), Ok(()));
    assert_eq!((rig.post(7), rig.slot(), rig.interrupts()), (Ok(()), (7, false), vec![]));
    assert_eq!(rig.partition.signal(1, 5, 3), Err(Refusal::Off));
    assert_eq!(rig.word(FLAGS + 0x500), 0);
    rig.empty();
    for value in [0x4_0055, 0x5_0055] {
        assert_eq!(rig.set(msr::SINT0 + 5, value), Ok(()));
        assert_eq!((rig.post(8), rig.slot(), rig.interrupts()), (Ok(()), (8, false), vec![]));
        rig.empty();
    }
    assert_eq!((rig.partition.signal(1, 5, 3), rig.interrupts()), (Ok(()), vec![]));
    assert_eq!(rig.word(FLAGS + 0x500), 8);
    assert_eq!((rig.partition.raise_sint(1, 5), rig.interrupts()), (Ok(()), vec![]));
    assert_eq!(rig.set(msr::SINT0 + 5, 0x55), Ok(()));
    assert_eq!((rig.partition.raise_sint(1, 5), rig.interrupts()), (Ok(()), vec![(1, 0x55)]));
}

#[test]
fn a_flag_interrupts_when_it_becomes_set() {
    let rig = Rig::new();
    for (flag, word, bit) in [(0, 0x500, 1), (31, 0x500, 1 << 31), (32, 0x504, 1), (2047, 0x5fc, 1 << 31)] {
        let before = rig.word(FLAGS + word);
        assert_eq!((rig.partition.signal(1, 5, flag), rig.interrupts()), (Ok(()), vec![(1, 0x55)]));
        assert_eq!(rig.word(FLAGS + word), before | bit, "{flag}");
        assert_eq!((rig.partition.signal(1, 5, flag), rig.interrupts()), (Ok(()), vec![]));
    }
    rig.memory.write(Gpa(FLAGS + 0x500), &[0; 4]).unwrap();
    assert_eq!((rig.partition.signal(1, 5, 0), rig.interrupts()), (Ok(()), vec![(1, 0x55)]));
    for (register, off, on) in [(msr::SIEFP, FLAGS, FLAGS | 1), (msr::SCONTROL, 0, 1)] {
        assert_eq!(rig.set(register, off), Ok(()));
        assert_eq!(rig.partition.signal(1, 5, 1), Err(Refusal::Off));
        assert_eq!(rig.set(register, on), Ok(()));
    }
    assert_eq!(rig.word(FLAGS + 0x500), 1, "the page kept its flags");
}

#[test]
fn the_pages_cover_what_they_give_back_and_take_their_contents_along() {
    let rig = Rig::off();
    for page in 0..8u64 {
        rig.memory.write(Gpa(page << 12), &[0x99; 0x1000]).unwrap();
    }
    assert_eq!(rig.set(msr::SCONTROL, 1), Ok(()));
    assert_eq!(rig.set(msr::SIMP, MESSAGES | 1), Ok(()));
    assert_eq!(rig.word(MESSAGES + 0x500), 0, "empty slots");
    assert_eq!(rig.post(7), Ok(()));
    assert_eq!(rig.set(msr::SIMP, 0x4001), Ok(()));
    assert_eq!((rig.word(MESSAGES + 0x500), rig.word(0x4500)), (0x9999_9999, 7));
    // Beyond memory it is on and nowhere; bits 11:1 are preserved.
    assert_eq!(
        (rig.set(msr::SIMP, 0xffff_f000_ffff_fffd), rig.get(msr::SIMP)),
        (Ok(()), Ok(0xffff_f000_ffff_fffd))
    );
    assert_eq!((rig.word(0x4500), rig.post(8)), (0x9999_9999, Ok(())));
    assert_eq!(rig.set(msr::SIMP, 0), Ok(()));
    assert_eq!(rig.set(msr::SIMP, MESSAGES | 1), Ok(()));
    assert_eq!(rig.slot(), (7, true));
    // Two overlays on one page: what is below is not written, and nothing is lost.
    assert_eq!(rig.set(msr::SIEFP, MESSAGES | 1), Ok(()));
    assert_eq!(rig.slot().0, 0);
    assert_eq!(rig.post(9), Ok(()));
    assert_eq!((rig.set(msr::EOM, 0), rig.slot().0), (Ok(()), 0));
    assert_eq!(rig.set(msr::SIEFP, 0), Ok(()));
    assert_eq!(rig.slot(), (7, true));
    assert_eq!(rig.set(msr::SIMP, 0), Ok(()));
    assert!((0..8u64).all(|page| rig.word(page << 12 | 0x500) == 0x9999_9999));
}

#[test]
fn auto_eoi_is_told_to_the_apic_and_inhibits_apicv_as_long_as_it_lasts() {
    let rig = Rig::new();
    let told = || rig.apics.auto_eoi.lock().unwrap().get(&1).copied();
    assert_eq!((told(), rig.partition.apicv_inhibited()), (None, false));
    assert_eq!(rig.set(msr::SINT0 + 5, 0x2_0055), Ok(()));
    assert_eq!(rig.set(msr::SINT0 + 6, 0x2_00f0), Ok(()));
    assert_eq!(rig.set(msr::SINT0 + 7, 0x3_0040), Ok(()));
    assert_eq!(told(), Some([0, 0, 1 << 21, 0, 0, 0, 0, 1 << 16]), "a masked one does not count");
    assert!(rig.partition.apicv_inhibited());
    let other = &mut Vp::new(2);
    assert!(rig.partition.msr_write(other, msr::SINT0, 0x2_0055).is_ok());
    assert_eq!(rig.set(msr::SINT0 + 5, 0x55), Ok(()));
    assert_eq!(rig.set(msr::SINT0 + 6, 0x1_0000), Ok(()));
    assert_eq!(told(), Some([0; 8]));
    assert!(rig.partition.apicv_inhibited(), "by another processor");
    assert!(rig.partition.msr_write(other, msr::SINT0, 0x55).is_ok());
    assert!(!rig.partition.apicv_inhibited());
}

#[test]
fn calls_reach_sources_through_connections_with_each_status() {
    let rig = Rig::new();
    let partition = &*rig.partition;
    let guest = Target::Guest { vp: 1, sint: 5 };
    let events = PortKind::Event { base: 40, count: 3 };
    let post = |connection| partition.post_to_connection(connection, 0x1234, b"hello");
    assert_eq!(post(0x10), Status::InvalidConnectionId);
    let port = partition.connect(0x10, PortKind::Message, guest).unwrap();
    assert_eq!(partition.connect(0x10, PortKind::Message, guest), None, "taken");
    partition.connect(0x20, events, guest).unwrap();
    assert_eq!(post(0x10), Status::Success);
    assert_eq!((rig.slot(), rig.word(MESSAGES + 0x508)), ((0x1234, false), port));
    assert_eq!(rig.word(MESSAGES + 0x504), 5);
    for wrong in [0, 0x8000_0010] {
        assert_eq!(partition.post_to_connection(0x10, wrong, b""), Status::InvalidParameter);
    }
    assert_eq!(post(0x20), Status::InvalidPortId, "it is for events");
    assert_eq!(partition.signal_to_connection(0x10, 0), Status::InvalidPortId);
    assert_eq!(partition.signal_to_connection(0x21, 0), Status::InvalidConnectionId);
    assert_eq!(partition.signal_to_connection(0x20, 3), Status::InvalidParameter);
    assert_eq!(partition.signal_to_connection(0x20, 2), Status::Success);
    assert_eq!(rig.word(FLAGS + 0x504), 1 << 10, "flag 42");
    for _ in 0..16 {
        assert_eq!(post(0x10), Status::Success);
    }
    assert_eq!(post(0x10), Status::InsufficientBuffers);
    // The port goes, with its messages; the connection stays without use.
    partition.delete_port(0x10, PortKind::Message);
    assert_eq!((post(0x10), partition.messages_wait(1)), (Status::InvalidPortId, false));
    partition.disconnect(0x10, PortKind::Message);
    assert_eq!(post(0x10), Status::InvalidConnectionId);
    partition.connect(0x10, PortKind::Message, Target::Guest { vp: 99, sint: 5 }).unwrap();
    assert_eq!(post(0x10), Status::InvalidVpIndex);
    partition.connect(0x11, PortKind::Message, Target::Guest { vp: 0, sint: 5 }).unwrap();
    assert_eq!(post(0x11), Status::InvalidSynicState);
    partition.connect(0x12, PortKind::Message, Target::Host { host: 9, tag: 0 }).unwrap();
    assert_eq!(post(0x12), Status::InvalidPortId);
    assert_eq!(partition.connect(0x13, PortKind::Message, Target::Guest { vp: 0, sint: 16 }), None);
    let too_many = PortKind::Event { base: 2047, count: 2 };
    assert_eq!(partition.connect(0x13, too_many, guest), None);
}

#[test]
fn the_test_device_raises_echoes_and_ignores_nonsense() {
    let rig = Rig::new();
    let partition = &*rig.partition;
    let device = TestDevice::new(rig.partition.clone());
    let ask =
        |operation: u32, connection: u32| device.write(0, 4, connection << 24 | operation << 16 | 0x105);
    ask(3, 0);
    assert_eq!(rig.interrupts(), vec![], "no route");
    ask(1, 0);
    ask(3, 0);
    assert_eq!(rig.interrupts(), vec![(1, 0x55)]);
    ask(2, 0);
    ask(3, 0);
    assert_eq!(rig.interrupts(), vec![]);
    ask(4, 0x81);
    ask(6, 0x81);
    assert_eq!(partition.post_to_connection(0x81, 0x55, b"abcdefgh"), Status::Success);
    assert_eq!((rig.slot(), rig.word(MESSAGES + 0x508)), ((0x55, false), 0), "from the host");
    assert_eq!(rig.word(MESSAGES + 0x510).to_le_bytes(), *b"abcd");
    assert_eq!(partition.signal_to_connection(0x81, 1), Status::InvalidParameter);
    assert_eq!(partition.signal_to_connection(0x81, 0), Status::Success);
    assert_eq!(rig.word(FLAGS + 0x510), 2, "the flag of the connection's number");
    ask(5, 0x81);
    ask(7, 0x81);
    assert_eq!(partition.post_to_connection(0x81, 1, b""), Status::InvalidConnectionId);
    ask(8, 7);
    ask(10, 7);
    rig.empty();
    assert_eq!(partition.post_to_connection(7, 0x56, b""), Status::Success);
    assert_ne!(rig.word(MESSAGES + 0x508), 0, "from a port");
    assert_eq!(partition.signal_to_connection(7, 15), Status::Success);
    assert_eq!(rig.word(FLAGS + 0x500), 1 << 22);
    ask(12, 7);
    ask(13, 7);
    assert_eq!(partition.post_to_connection(7, 1, b""), Status::InvalidPortId);
    assert_eq!(partition.signal_to_connection(7, 0), Status::InvalidPortId);
    ask(9, 7);
    ask(11, 7);
    assert_eq!(partition.signal_to_connection(7, 0), Status::InvalidConnectionId);
    // Every request there is, at no source and no processor, and accesses of other widths.
    for request in (0..256u32).map(|operation| operation << 16) {
        for place in [0xffff, 0x0110, 0xff00_0805, 0] {
            device.write(0, 4, request | place);
        }
    }
    device.write(0, 1, 1);
    device.write(2, 2, 1);
    assert_eq!(device.read(0, 4), 0);
}

#[test]
fn everything_survives_being_saved() {
    let rig = Rig::new();
    let device = TestDevice::new(rig.partition.clone());
    device.write(0, 4, 0x0704_0105);
    device.write(0, 4, 0x0808_0105);
    assert_eq!(rig.set(msr::SINT0 + 6, 0x2_0066), Ok(()));
    for kind in 1..=3 {
        assert_eq!(rig.partition.post_to_connection(8, kind, &[1; 240]), Status::Success);
    }
    assert_eq!(rig.set(msr::SIEFP, 0), Ok(()));
    let saved = rig.partition.save_synic();
    let overlays = rig.partition.shared().overlays.clone();
    let text = serde_json::to_string(&(&saved, &overlays)).unwrap();
    let mut page = vec![0; 0x1000];
    rig.memory.read(Gpa(MESSAGES), &mut page).unwrap();

    let new = Rig::off();
    let (back, overlays): (SavedSynic, _) = serde_json::from_str(&text).unwrap();
    assert_eq!(back, saved);
    TestDevice::new(new.partition.clone());
    new.memory.write(Gpa(MESSAGES), &page).unwrap();
    new.partition.shared().overlays = overlays;
    new.partition.restore_synic(back);
    assert_eq!(new.partition.save_synic(), saved);
    assert_eq!(new.apics.auto_eoi.lock().unwrap()[&1], [0, 0, 0, 1 << 6, 0, 0, 0, 0]);
    assert!(new.partition.apicv_inhibited() && new.partition.messages_wait(1));
    new.empty();
    new.partition.end_of_interrupt(1, 0x55);
    assert_eq!((new.slot(), new.interrupts()), ((2, true), vec![(1, 0x55)]));
    assert_eq!(new.partition.post_to_connection(7, 9, b""), Status::Success, "through the host");
    assert_eq!(new.set(msr::SIMP, 0), Ok(()));
    assert_eq!(new.word(MESSAGES + 0x500), 0, "what was below came along");
}

#[test]
fn posters_and_a_taker_race_and_every_message_comes_once_and_in_order() {
    const EACH: u32 = 1000;
    let rig = Rig::new();
    let done = AtomicBool::new(false);
    let post = |sender: u32| {
        for number in 1..=EACH {
            let full = Status::InsufficientBuffers;
            while rig.partition.post_to_connection(sender, number, &sender.to_le_bytes()) == full {
                std::hint::spin_loop();
            }
        }
    };
    for sender in [1, 2] {
        let guest = Target::Guest { vp: 1, sint: 5 };
        rig.partition.connect(sender, PortKind::Message, guest).unwrap();
    }
    let slot = Gpa(MESSAGES + 0x500);
    let mut last = [0; 3];
    std::thread::scope(|scope| {
        let (post, rig, done) = (&post, &rig, &done);
        let posters = [1, 2].map(|sender| scope.spawn(move || post(sender)));
        // Another processor moves its own pages, and signals into this one's.
        scope.spawn(move || {
            let other = &mut Vp::new(2);
            for flag in (0..2048).cycle().take_while(|_| !done.load(Ordering::SeqCst)) {
                let page = [0x5001, 0x6001, 0][flag as usize % 3];
                assert!(rig.partition.msr_write(other, msr::SIMP, page).is_ok());
                rig.partition.signal(1, 6, flag).unwrap_err();
                rig.partition.signal(1, 5, flag).unwrap();
            }
        });
        while last[1..] != [EACH, EACH] {
            let number = rig.memory.load_u32(slot).unwrap();
            if number != 0 {
                let sender = rig.memory.load_u32(slot.add(16)).unwrap() as usize;
                assert_eq!(number, last[sender] + 1, "from {sender}");
                last[sender] = number;
                rig.memory.store_u32(slot, 0).unwrap();
                if rig.memory.load_u32(slot.add(4)).unwrap() & 1 << 8 != 0 {
                    rig.set(msr::EOM, 0).unwrap();
                }
            }
        }
        done.store(true, Ordering::SeqCst);
        posters.into_iter().for_each(|poster| poster.join().unwrap());
    });
    assert!(!rig.partition.messages_wait(1));
}

#[test]
fn pages_of_two_processors_at_one_place_harm_nobody_else() {
    let rig = Rig::off();
    rig.memory.write(Gpa(MESSAGES), &[0x99; 0x1000]).unwrap();
    std::thread::scope(|scope| {
        for vp in 0..3 {
            let rig = &rig;
            scope.spawn(move || {
                let own = &mut Vp::new(vp);
                let mut set = |register, value| rig.partition.msr_write(own, register, value).unwrap();
                let (mut posted, message) = (0, Message::new(1, 0, &[]).unwrap());
                let _ = set(msr::SCONTROL, 1);
                for round in 0..500u64 {
                    let _ = set([msr::SIMP, msr::SIEFP][round as usize % 2], MESSAGES | (round / 2 % 2));
                    posted += u32::from(rig.partition.post_from_host(vp, 1, message.clone()).is_ok());
                    let _ = rig.partition.signal((vp + 1) % 3, 1, round as u32);
                }
                let _ = (set(msr::SIMP, 0), set(msr::SIEFP, 0));
                assert!(posted >= 16);
            });
        }
    });
    assert_eq!((rig.word(MESSAGES), rig.word(MESSAGES + 0xffc)), (0x9999_9999, 0x9999_9999));
}

/// What happens to a controller.
#[derive(Clone, Debug)]
enum Step {
    /// A message for one of two sources.
    Post(usize),
    /// The guest empties a slot.
    Take(usize),
    Eom,
    /// An interrupt of this vector ends: 0x50, 0x51, or another.
    Eoi(u8),
    Sint(usize, u64),
    Control(u64),
    Page(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0usize..2).prop_map(Step::Post),
        6 => (0usize..2).prop_map(Step::Take),
        2 => Just(Step::Eom),
        3 => (0x50u8..0x53).prop_map(Step::Eoi),
        2 => (0usize..2, prop_oneof![Just(0x50), Just(0x51), Just(0x1_0050), Just(0x4_0051)])
            .prop_map(|(sint, value)| Step::Sint(sint, value)),
        1 => (0u64..2).prop_map(Step::Control),
        1 => prop_oneof![Just(0), Just(MESSAGES | 1), Just(0x4001), Just(0x100_0001)].prop_map(Step::Page),
    ];
    proptest::collection::vec(step, 1..150)
}

/// A controller as the TLFS tells of it, with two sources and no pages.
#[derive(Default)]
struct Model {
    on: bool,
    /// The page register, of which the address decides whether there is memory.
    page: u64,
    sints: [u64; 2],
    queue: Vec<(usize, u32)>,
    slots: [u32; 2],
    interrupts: Vec<(u32, u8)>,
}

impl Model {
    fn deliver(&mut self, sources: impl Iterator<Item = usize>) {
        for sint in sources {
            let listens = self.on && self.page & 1 != 0 && self.page < 0x8000;
            let next = self.queue.iter().position(|(of, _)| *of == sint);
            if let Some(next) = next.filter(|_| listens && self.slots[sint] == 0) {
                self.slots[sint] = self.queue.remove(next).1;
                if self.sints[sint] & 0x5_0000 == 0 {
                    self.interrupts.push((1, self.sints[sint] as u8));
                }
            }
        }
    }

    fn step(&mut self, step: &Step, number: u32) -> bool {
        match *step {
            Step::Post(sint) => {
                let off = !self.on || self.page & 1 == 0;
                if off || self.queue.len() == 16 {
                    return false;
                }
                self.queue.push((sint, number));
                self.deliver([sint].into_iter());
            }
            Step::Take(sint) => self.slots[sint] = 0,
            Step::Eom => self.deliver(0..2),
            Step::Eoi(vector) => {
                let sints = self.sints;
                self.deliver((0..2).filter(|&sint| sints[sint] == u64::from(vector)));
            }
            Step::Sint(sint, value) => self.sints[sint] = value,
            Step::Control(on) => {
                self.on = on != 0;
                self.deliver(0..2);
            }
            Step::Page(value) => {
                self.page = value;
                self.deliver(0..2);
            }
        }
        true
    }
}

proptest! {
    #[test]
    fn a_controller_agrees_with_its_description(steps in steps()) {
        let rig = Rig::off();
        let mut model = Model { sints: [0x1_0000; 2], ..Model::default() };
        for (number, step) in (1..).zip(&steps) {
            let page = model.page & !0xfff;
            let slot = |sint: usize| Gpa(page + 0x300 + 0x100 * sint as u64);
            let shown = model.page & 1 != 0 && page < 0x8000;
            let done = match *step {
                Step::Post(sint) => {
                    let message = Message::new(number, 0, &[7]).unwrap();
                    rig.partition.post_from_host(1, 3 + sint as u8, message).is_ok()
                }
                // A page that is nowhere cannot be written.
                Step::Take(_) if !shown => continue,
                Step::Take(sint) => rig.memory.store_u32(slot(sint), 0).is_ok(),
                Step::Eom => rig.set(msr::EOM, number.into()).is_ok(),
                Step::Eoi(vector) => {
                    rig.partition.end_of_interrupt(1, vector);
                    true
                }
                Step::Sint(sint, value) => rig.set(msr::SINT0 + 3 + sint as u32, value).is_ok(),
                Step::Control(on) => rig.set(msr::SCONTROL, on).is_ok(),
                Step::Page(value) => rig.set(msr::SIMP, value).is_ok(),
            };
            prop_assert_eq!(done, model.step(step, number), "{:?}", step);
            prop_assert_eq!(rig.interrupts(), std::mem::take(&mut model.interrupts));
            let page = model.page & !0xfff;
            if model.page & 1 != 0 && page < 0x8000 {
                for sint in 0..2 {
                    let slot = page + 0x300 + 0x100 * sint as u64;
                    prop_assert_eq!(rig.word(slot), model.slots[sint]);
                    // Whoever has to tell of an empty slot can see it in the slot.
                    let waits = model.queue.iter().any(|(of, _)| *of == sint);
                    if waits && model.slots[sint] != 0 && model.on {
                        prop_assert!(rig.word(slot + 4) & 1 << 8 != 0);
                    }
                }
            }
        }
    }
}
