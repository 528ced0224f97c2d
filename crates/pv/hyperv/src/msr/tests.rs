use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use satori_bus::{Clock, Nanos};
use satori_memory::{GuestMemory, Region};

use super::*;
use crate::{Config, Interrupts};

pub(crate) struct FakeClock(pub AtomicU64);

impl Clock for FakeClock {
    fn now(&self) -> Nanos {
        self.counter()
    }
    fn counter(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn counter_hz(&self) -> u64 {
        2_599_998_000
    }
    fn epoch(&self) -> u64 {
        0
    }
}

/// Local APICs that note what they are asked for.
#[derive(Default)]
pub(crate) struct FakeApics {
    /// Processor and vector of each interrupt requested and not taken.
    pub requested: Mutex<Vec<(u32, u8)>>,
    pub auto_eoi: Mutex<BTreeMap<u32, [u32; 8]>>,
}

impl Interrupts for FakeApics {
    fn request(&self, vp: u32, vector: u8, _own: bool) {
        self.requested.lock().unwrap().push((vp, vector));
    }
    fn requested(&self, vp: u32, vector: u8) -> bool {
        self.requested.lock().unwrap().contains(&(vp, vector))
    }
    fn set_auto_eoi(&self, vp: u32, vectors: [u32; 8]) {
        self.auto_eoi.lock().unwrap().insert(vp, vectors);
    }
}

pub(crate) fn partition(words: &str) -> (Partition, Arc<FakeClock>, GuestMemory) {
    partition_of(words, 1)
}

pub(crate) fn partition_of(words: &str, cpus: usize) -> (Partition, Arc<FakeClock>, GuestMemory) {
    let (partition, clock, memory, _) = rig(words, cpus);
    (partition, clock, memory)
}

/// A partition, of eight processors at the synthetic controllers, and what it stands on.
pub(crate) fn rig(words: &str, cpus: usize) -> (Partition, Arc<FakeClock>, GuestMemory, Arc<FakeApics>) {
    rig_of(words.parse().unwrap(), cpus)
}

/// The same of what need not be offered to a guest without guests.
pub(crate) fn rig_of(
    config: Config,
    cpus: usize,
) -> (Partition, Arc<FakeClock>, GuestMemory, Arc<FakeApics>) {
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x8000 }]).unwrap();
    let clock = Arc::new(FakeClock(AtomicU64::new(0)));
    let partition = Partition::new(config, memory.clone(), clock.clone(), 1_000_000_000).unwrap();
    let apics = Arc::new(FakeApics::default());
    let partition = partition.with_synic(8, apics.clone());
    let partition = partition.with_processors((0..cpus).map(|_| Box::new(|| ()) as _).collect());
    (partition, clock, memory, apics)
}

#[test]
fn the_hypercall_page_needs_an_identity_and_gives_its_page_back() {
    let (partition, _, memory) = partition("auto");
    let vp = &mut Vp::new(0);
    let read = |gpa| memory.read_u32(Gpa(gpa)).unwrap();
    memory.write(Gpa(0x2000), &0x1111_1111u32.to_le_bytes()).unwrap();
    assert_eq!(partition.msr_write(vp, msr::HYPERCALL, 0x2001), Ok(Outcome::Done));
    assert_eq!((partition.msr_read(vp, msr::HYPERCALL), read(0x2000)), (Ok(0), 0x1111_1111));
    assert_eq!(partition.msr_write(vp, msr::GUEST_OS_ID, 0x8100), Ok(Outcome::Done));
    assert_eq!(partition.msr_write(vp, msr::HYPERCALL, 0x2001), Ok(Outcome::Done));
    assert_eq!(read(0x2000).to_le_bytes(), HypercallPage::Intel.bytes());
    assert_eq!(partition.msr_write(vp, msr::HYPERCALL, 0x10_0001), Err(Gp), "no memory there");
    assert_eq!(partition.msr_read(vp, msr::HYPERCALL), Ok(0x2001));
    assert_eq!(partition.msr_write(vp, msr::GUEST_OS_ID, 0), Ok(Outcome::Done));
    assert_eq!((partition.msr_read(vp, msr::HYPERCALL), read(0x2000)), (Ok(0x2000), 0x1111_1111));
    assert_eq!(partition.msr_write(vp, msr::GUEST_OS_ID, 1), Ok(Outcome::Done));
    assert_eq!(partition.msr_write(vp, msr::HYPERCALL, 0x3003), Ok(Outcome::Done));
    assert_eq!(partition.msr_write(vp, msr::HYPERCALL, 0), Err(Gp), "locked");
}

#[test]
fn the_tsc_page_and_the_counter_agree_exactly() {
    let (partition, clock, memory) = partition("auto");
    let vp = &mut Vp::new(0);
    assert_eq!(partition.msr_write(vp, msr::REFERENCE_TSC, 0x3001), Ok(Outcome::Done));
    let first = memory.read_u32(Gpa(0x3000)).unwrap();
    assert!(first != 0 && first != u32::MAX);
    let scale = u128::from(memory.read_u64(Gpa(0x3008)).unwrap());
    let offset = memory.read_u64(Gpa(0x3010)).unwrap();
    let mut tsc = 1u64;
    for _ in 0..10_000 {
        tsc = tsc.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        clock.0.store(tsc, Ordering::SeqCst);
        let page = ((u128::from(tsc) * scale) >> 64) as u64;
        assert_eq!(partition.msr_read(vp, msr::TIME_REF_COUNT), Ok(page.wrapping_add(offset)));
    }
    assert_eq!(partition.msr_write(vp, msr::REFERENCE_TSC, 0), Ok(Outcome::Done));
    assert_eq!(memory.read_u64(Gpa(0x3008)).unwrap(), 0, "the page is the guest's again");
    assert_eq!(partition.msr_write(vp, msr::REFERENCE_TSC, 0x3001), Ok(Outcome::Done));
    assert_ne!(memory.read_u32(Gpa(0x3000)).unwrap(), first, "a new sequence");
}

#[test]
fn what_is_not_offered_is_refused_and_what_is_read_only_not_written() {
    let (partition, ..) = partition("auto");
    let vp = &mut Vp::new(7);
    assert_eq!(partition.msr_read(vp, msr::VP_INDEX), Ok(7));
    assert_eq!(partition.msr_read(vp, msr::TSC_FREQUENCY), Ok(2_599_998_000));
    assert_eq!(partition.msr_read(vp, msr::APIC_FREQUENCY), Ok(1_000_000_000));
    for read_only in [msr::VP_INDEX, msr::TIME_REF_COUNT, msr::TSC_FREQUENCY, msr::APIC_FREQUENCY] {
        assert_eq!(partition.msr_write(vp, read_only, 0), Err(Gp), "{read_only:#x}");
    }
    for register in msr::FIRST..=msr::LAST {
        assert_eq!(
            partition.offers(register),
            Enlightenment::of_msr(register).is_some_and(|one| one.row().default.on(false))
        );
        let elsewhere = [msr::EOI, msr::ICR, msr::TPR, msr::VP_RUNTIME, msr::GUEST_IDLE];
        let offered = partition.offers(register) && !elsewhere.contains(&register);
        assert_eq!(partition.msr_read(vp, register).is_ok(), offered, "{register:#x}");
        if !offered {
            assert_eq!(partition.msr_write(vp, register, 0), Err(Gp), "{register:#x}");
        }
    }
    let (off, ..) = self::partition("off");
    assert!((msr::FIRST..=msr::LAST).all(|register| off.msr_read(vp, register) == Err(Gp)));
}

#[test]
fn the_vp_assist_page_is_each_processors_and_only_its_assist_is_cleared() {
    let (partition, _, memory) = partition("auto");
    let (vp, other) = (&mut Vp::new(0), &mut Vp::new(1));
    memory.write(Gpa(0x2000), &[0xff; 0x1000]).unwrap();
    assert_eq!(partition.msr_write(vp, msr::VP_ASSIST_PAGE, 0x2000), Ok(Outcome::Done));
    assert_eq!(memory.read_u32(Gpa(0x2000)).unwrap(), u32::MAX, "not enabled");
    assert_eq!(partition.msr_write(vp, msr::VP_ASSIST_PAGE, 0x2ff1), Ok(Outcome::Done));
    assert_eq!(partition.msr_read(vp, msr::VP_ASSIST_PAGE), Ok(0x2ff1), "reads what was written");
    assert_eq!(partition.msr_read(other, msr::VP_ASSIST_PAGE), Ok(0));
    assert_eq!(memory.read_u64(Gpa(0x2000)).unwrap(), 0xffff_ffff_0000_0000);
    assert_eq!(memory.read_u32(Gpa(0x2ffc)).unwrap(), u32::MAX);
    for outside in [0x8001, u64::MAX] {
        assert_eq!(partition.msr_write(vp, msr::VP_ASSIST_PAGE, outside), Err(Gp));
    }
    assert_eq!(partition.msr_read(vp, msr::VP_ASSIST_PAGE), Ok(0x2ff1));
    let (without, ..) = self::partition("auto,-vapic");
    for register in msr::EOI..=msr::VP_ASSIST_PAGE {
        assert!(partition.offers(register) && !without.offers(register), "{register:#x}");
        assert_eq!(without.msr_read(vp, register), Err(Gp), "{register:#x}");
        assert_eq!(without.msr_write(vp, register, 0), Err(Gp), "{register:#x}");
    }
}

#[test]
fn crash_and_reset_are_told_to_the_machine() {
    let (partition, _, memory) = partition("auto,reset");
    let vp = &mut Vp::new(0);
    memory.write(Gpa(0x1000), b"Kernel panic").unwrap();
    for (index, value) in [9, 8, 7, 0x1000, 12].into_iter().enumerate() {
        assert_eq!(partition.msr_write(vp, msr::CRASH_P0 + index as u32, value), Ok(Outcome::Done));
    }
    let parameters = [9, 8, 7, 0x1000, 12];
    let plain = Outcome::Crash(Crash { parameters, message: None });
    assert_eq!(partition.msr_write(vp, msr::CRASH_CTL, 1 << 63), Ok(plain));
    let told = Outcome::Crash(Crash { parameters, message: Some("Kernel panic".into()) });
    assert_eq!(partition.msr_write(vp, msr::CRASH_CTL, 3 << 62), Ok(told));
    assert_eq!(partition.msr_write(vp, msr::CRASH_CTL, 1 << 62), Ok(Outcome::Done));
    // A hostile address and length.
    let _ = partition.msr_write(vp, msr::CRASH_P0 + 3, u64::MAX - 2);
    let _ = partition.msr_write(vp, msr::CRASH_P4, u64::MAX);
    let Ok(Outcome::Crash(crash)) = partition.msr_write(vp, msr::CRASH_CTL, 3 << 62) else { panic!() };
    assert_eq!(crash.message, None);
    assert_eq!(partition.msr_write(vp, msr::RESET, 1), Ok(Outcome::Reset));
    assert_eq!(partition.msr_write(vp, msr::RESET, 2), Ok(Outcome::Done));
    assert_eq!(partition.msr_read(vp, msr::RESET), Ok(0));
}
