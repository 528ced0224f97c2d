use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::Clock;
use satori_defs::hyperv::msr;
use satori_memory::{Gpa, GuestMemory, Region};

use super::*;
use crate::msr::tests::FakeApics;
use crate::{Config, Outcome, Vp};

const OLD: u64 = 2_000_000_000;
const NEW: u64 = 3_000_000_000;

/// A clock whose guests' counter changes its frequency.
struct Tunable(AtomicU64, Mutex<(u64, u64, u64)>);

impl Clock for Tunable {
    fn now(&self) -> u64 {
        self.counter() / 2
    }
    fn counter(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn counter_hz(&self) -> u64 {
        OLD
    }
    fn epoch(&self) -> u64 {
        0
    }
    fn to_guest(&self, tsc: u64) -> u64 {
        let (partition, guest, hz) = *self.1.lock().unwrap();
        guest + ((tsc - partition) as u128 * hz as u128 / OLD as u128) as u64
    }
    fn guest_counter_hz(&self) -> u64 {
        self.1.lock().unwrap().2
    }
    fn set_guest_counter_hz(&self, hz: u64, begin: &mut dyn FnMut(u64, u64) -> u64) {
        let (tsc, guest) = (self.counter(), self.guest_counter());
        *self.1.lock().unwrap() = (tsc, begin(tsc, guest), hz);
    }
}

struct Rig {
    partition: Partition,
    clock: Arc<Tunable>,
    memory: GuestMemory,
    apics: Arc<FakeApics>,
    vp: Vp,
}

impl Rig {
    fn new(words: &str) -> Self {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x4000 }]).unwrap();
        let clock = Arc::new(Tunable(AtomicU64::new(0), Mutex::new((0, 0, OLD))));
        let apics = Arc::new(FakeApics::default());
        let config: Config = words.parse().unwrap();
        let partition = Partition::new(config, memory.clone(), clock.clone(), 1_000_000_000).unwrap();
        let partition = partition.with_synic(2, apics.clone());
        let partition = partition.with_processors((0..2).map(|_| Box::new(|| ()) as _).collect());
        let mut rig = Rig { partition, clock, memory, apics, vp: Vp::new(0) };
        rig.write(msr::REFERENCE_TSC, 0x1001);
        rig
    }
    fn write(&mut self, register: u32, value: u64) {
        assert_eq!(self.partition.msr_write(&mut self.vp, register, value), Ok(Outcome::Done));
    }
    fn read(&self, register: u32) -> u64 {
        self.partition.msr_read(&self.vp, register).unwrap()
    }
    /// Sequence, and the time that the page gives.
    fn page(&self) -> (u32, u64) {
        let word = |at: u64| self.memory.read_u64(Gpa(0x1000 + at)).unwrap();
        let scaled = (u128::from(self.clock.guest_counter()) * u128::from(word(8))) >> 64;
        (word(0) as u32, (scaled as u64).wrapping_add(word(16)))
    }
}

#[test]
fn the_old_frequency_is_emulated_until_the_guest_knows() {
    let mut rig = Rig::new("reenlightenment");
    rig.write(msr::REENLIGHTENMENT_CONTROL, 1 << 32 | REENLIGHTENMENT_ENABLE | 0xee);
    rig.write(msr::TSC_EMULATION_CONTROL, 1);
    rig.clock.0.store(5 * OLD, Ordering::SeqCst);
    let before = rig.page();
    assert!(before.1.abs_diff(50_000_000) <= 1, "{}", before.1);
    rig.partition.change_tsc_frequency(NEW);
    assert_eq!(*rig.apics.requested.lock().unwrap(), [(1, 0xee)]);
    assert_eq!((rig.read(msr::TSC_EMULATION_STATUS), rig.read(msr::TSC_FREQUENCY)), (1, OLD));
    assert_eq!((rig.page(), rig.clock.guest_counter()), (before, 5 * OLD), "nothing has changed yet");

    rig.clock.0.store(6 * OLD, Ordering::SeqCst);
    rig.write(msr::TSC_EMULATION_STATUS, 0);
    assert_eq!((rig.read(msr::TSC_EMULATION_STATUS), rig.read(msr::TSC_FREQUENCY)), (0, NEW));
    let (sequence, time) = rig.page();
    assert_eq!(sequence, before.0 + 1);
    assert!(time.abs_diff(60_000_000) <= 1, "time has not jumped: {time}");
    rig.clock.0.store(8 * OLD, Ordering::SeqCst);
    let ahead = rig.clock.guest_counter() - (6 * OLD + 2 * NEW);
    assert!(ahead <= NEW.div_ceil(10_000_000), "{ahead} ticks are more than a unit");
    assert!(rig.page().1.abs_diff(80_000_000) <= 1);
    assert_eq!(rig.read(msr::TIME_REF_COUNT), rig.page().1, "page and counter agree");
}

#[test]
fn without_emulation_page_and_frequency_change_at_once_and_nobody_is_interrupted() {
    for words in ["reenlightenment", "time,frequencies"] {
        let rig = Rig::new(words);
        rig.clock.0.store(OLD, Ordering::SeqCst);
        let before = rig.page();
        rig.partition.change_tsc_frequency(NEW);
        let (sequence, time) = rig.page();
        assert_eq!((rig.read(msr::TSC_FREQUENCY), sequence), (NEW, before.0 + 1));
        assert!((before.1..=before.1 + 1).contains(&time), "{} and then {time}", before.1);
        assert!(rig.apics.requested.lock().unwrap().is_empty());
        rig.partition.change_tsc_frequency(0);
        rig.partition.change_tsc_frequency(10_000_000);
        assert_eq!(rig.read(msr::TSC_FREQUENCY), NEW, "what cannot be followed is no frequency");
    }
}

#[test]
fn a_target_that_does_not_exist_is_not_interrupted() {
    let mut rig = Rig::new("reenlightenment");
    rig.write(msr::REENLIGHTENMENT_CONTROL, 2 << 32 | REENLIGHTENMENT_ENABLE | 0xee);
    rig.partition.change_tsc_frequency(NEW);
    assert!(rig.apics.requested.lock().unwrap().is_empty());
}

/// Reference time is what timers expire by: the guest's is never behind it, and never goes back. As it is told in
/// whole units, it may be one ahead; ten thousand changes make that no more, however much or little passes between them.
#[test]
fn many_changes_leave_the_time_as_it_is() {
    for step in [0, 1, 100, 7_919] {
        let rig = Rig::new("time");
        let mut last = 0;
        for round in 0..10_000u64 {
            rig.clock.0.fetch_add(step * (round + 1), Ordering::SeqCst);
            let before = rig.page().1;
            rig.partition.change_tsc_frequency([3_333_333_333, 123_456_789, NEW, OLD][round as usize % 4]);
            let (now, exact) = (rig.page().1, rig.partition.reference.at(rig.clock.counter()));
            assert!(before >= last && now >= before, "{last} {before} {now}");
            assert!((exact..=exact + 1).contains(&now), "{step}, {round}: {now} where timers have {exact}");
            last = now;
        }
    }
}
