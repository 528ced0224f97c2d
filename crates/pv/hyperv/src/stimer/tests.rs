use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use satori_defs::hyperv::synic::stimer::{AUTO_ENABLE, DIRECT, ENABLE, LAZY, PERIODIC};
use satori_memory::{Gpa, GuestMemory};

use super::*;
use crate::msr::tests::{FakeApics, FakeClock, rig};

const CONFIG: u32 = msr::STIMER0_CONFIG;
const COUNT: u32 = msr::STIMER0_CONFIG + 1;
const PAGE: u64 = 0x2000;
const SINT2: u64 = 2 << 16;

struct Rig {
    partition: Partition,
    vp: Vp,
    clock: Arc<FakeClock>,
    apics: Arc<FakeApics>,
    memory: GuestMemory,
}

impl Rig {
    /// Processor 0 with its controller on, and source 2 at vector 0x52.
    fn new(words: &str) -> Self {
        let (partition, clock, memory, apics) = rig(words, 8);
        let mut rig = Rig { partition, vp: Vp::new(0), clock, apics, memory };
        rig.write(msr::SCONTROL, 1);
        rig.write(msr::SIMP, PAGE | 1);
        rig.write(msr::SINT0 + 2, 0x52);
        rig
    }

    fn write(&mut self, register: u32, value: u64) {
        let done = self.partition.msr_write(&mut self.vp, register, value);
        assert!(done.is_ok(), "{register:#x} {value:#x}");
    }

    fn read(&self, register: u32) -> u64 {
        self.partition.msr_read(&self.vp, register).unwrap()
    }

    /// Goes to the first TSC of reference time `at`, as whoever runs the processor does.
    fn go(&mut self, at: u64) {
        self.clock.0.store(self.partition.reference.first_tsc(at), Ordering::SeqCst);
        assert_eq!(self.partition.reference_time(), at);
        if self.vp.deadline_tsc().is_some_and(|tsc| tsc <= self.clock.0.load(Ordering::SeqCst)) {
            self.partition.run_timers(&mut self.vp);
        }
    }

    fn interrupts(&self) -> Vec<(u32, u8)> {
        std::mem::take(&mut self.apics.requested.lock().unwrap())
    }

    /// The message in the slot of source 2, as timer, expiry and delivery; takes it.
    fn take(&self) -> Option<(u32, u64, u64)> {
        let slot = PAGE + 0x200;
        let kind = self.memory.read_u32(Gpa(slot)).unwrap();
        let word = |offset| self.memory.read_u64(Gpa(slot + offset)).unwrap();
        let message = (word(16) as u32, word(24), word(32));
        self.memory.write(Gpa(slot), &[0; 4]).unwrap();
        match kind {
            0 => None,
            kind => {
                assert_eq!((kind, word(8)), (0x8000_0010, 0));
                assert_eq!(self.memory.read_u32(Gpa(slot + 4)).unwrap() & 0xff, 24);
                Some(message)
            }
        }
    }
}

#[test]
fn the_registers_keep_what_they_are_given_and_refuse_reserved_bits() {
    let mut rig = Rig::new("auto");
    for timer in 0..4 {
        assert_eq!((rig.read(CONFIG + 2 * timer), rig.read(COUNT + 2 * timer)), (0, 0));
        rig.write(COUNT + 2 * timer, 1 << 60);
        rig.write(CONFIG + 2 * timer, 0xf_1ffe);
        assert_eq!((rig.read(CONFIG + 2 * timer), rig.read(COUNT + 2 * timer)), (0xf_1ffe, 1 << 60));
    }
    for reserved in (13..16).chain(20..64) {
        let refused = rig.partition.msr_write(&mut rig.vp, CONFIG, 1 << reserved);
        assert_eq!(refused, Err(Gp), "bit {reserved}");
    }
    assert_eq!(rig.read(CONFIG), 0xf_1ffe);
    let mut rig = Rig::new("auto,-stimer_direct");
    for bit in 4..13 {
        assert_eq!(rig.partition.msr_write(&mut rig.vp, CONFIG, 1 << bit), Err(Gp), "bit {bit}");
    }
    rig.write(CONFIG, SINT2 | 0xe);
    let (without, ..) = rig_of("auto,-stimer_direct,-stimer");
    assert_eq!(without.msr_read(&Vp::new(0), CONFIG), Err(Gp));
    assert_eq!(without.msr_write(&mut Vp::new(0), COUNT, 0), Err(Gp));
}

fn rig_of(words: &str) -> (Partition, Arc<FakeClock>) {
    let (partition, clock, ..) = rig(words, 8);
    (partition, clock)
}

#[test]
fn a_one_shot_expires_at_its_time_once_and_is_disabled_by_it() {
    let mut rig = Rig::new("auto");
    rig.write(COUNT, 5000);
    rig.write(CONFIG, ENABLE | SINT2);
    assert_eq!(rig.vp.deadline_tsc(), Some(rig.partition.reference.first_tsc(5000)));
    rig.go(4999);
    assert_eq!((rig.take(), rig.interrupts(), rig.read(CONFIG)), (None, vec![], ENABLE | SINT2));
    rig.go(5000);
    assert_eq!((rig.take(), rig.interrupts()), (Some((0, 5000, 5000)), vec![(0, 0x52)]));
    assert_eq!((rig.read(CONFIG), rig.read(COUNT), rig.vp.deadline_tsc()), (SINT2, 5000, None));
    // In the past: now. Late: the message says so.
    rig.write(CONFIG, ENABLE | SINT2);
    assert_eq!((rig.take(), rig.interrupts()), (Some((0, 5000, 5000)), vec![(0, 0x52)]));
    rig.write(CONFIG + 6, AUTO_ENABLE | SINT2);
    rig.write(COUNT + 6, 7000);
    assert_eq!(rig.read(CONFIG + 6), AUTO_ENABLE | ENABLE | SINT2);
    rig.go(7900);
    assert_eq!((rig.take(), rig.interrupts()), (Some((3, 7000, 7900)), vec![(0, 0x52)]));
    assert_eq!(rig.read(CONFIG + 6), AUTO_ENABLE | SINT2);
}

#[test]
fn a_count_of_zero_and_source_zero_disable() {
    let mut rig = Rig::new("auto");
    rig.write(CONFIG, AUTO_ENABLE | SINT2);
    rig.write(COUNT, 100);
    rig.write(COUNT, 0);
    assert_eq!((rig.read(CONFIG), rig.vp.deadline_tsc()), (AUTO_ENABLE | SINT2, None));
    rig.write(COUNT, 100);
    rig.write(CONFIG, ENABLE);
    assert_eq!((rig.read(CONFIG), rig.vp.deadline_tsc()), (0, None), "SINT0 is the hypervisor's");
    rig.write(CONFIG, AUTO_ENABLE);
    rig.write(COUNT, 100);
    assert_eq!((rig.read(CONFIG), rig.vp.deadline_tsc()), (AUTO_ENABLE, None));
    // In direct mode the source is not looked at.
    rig.write(CONFIG, ENABLE | DIRECT | 0x61 << 4);
    assert!(rig.vp.deadline_tsc().is_some());
    rig.write(CONFIG, ENABLE | SINT2);
    rig.write(COUNT, u64::MAX);
    assert_eq!((rig.read(CONFIG), rig.vp.deadline_tsc()), (ENABLE | SINT2, None), "it does not come");
}

#[test]
fn a_direct_timer_interrupts_without_a_message() {
    let mut rig = Rig::new("auto");
    rig.write(CONFIG, AUTO_ENABLE | DIRECT | 0xed << 4);
    rig.write(COUNT, 3000);
    rig.go(3000);
    assert_eq!((rig.take(), rig.interrupts()), (None, vec![(0, 0xed)]));
    rig.write(CONFIG, AUTO_ENABLE | DIRECT | 0xf << 4);
    rig.write(COUNT, 1);
    assert_eq!(rig.interrupts(), vec![], "no vector of an interrupt");
    let used = rig.partition.usage();
    let direct = used.iter().find(|used| used.name == Enlightenment::StimerDirect.name()).unwrap();
    assert_eq!((direct.offered, direct.count), (true, 1));
    // It needs nothing of the controller.
    rig.write(msr::SCONTROL, 0);
    rig.write(CONFIG, AUTO_ENABLE | DIRECT | 0xed << 4);
    rig.write(COUNT, 1);
    assert_eq!(rig.interrupts(), vec![(0, 0xed)]);
}

#[test]
fn a_message_for_a_busy_slot_comes_late_and_a_write_takes_it_back() {
    let mut rig = Rig::new("auto");
    rig.memory.write(Gpa(PAGE + 0x200), &[1]).unwrap();
    rig.write(COUNT, 1000);
    rig.write(CONFIG, ENABLE | SINT2);
    rig.go(1500);
    assert_eq!((rig.interrupts(), rig.read(CONFIG)), (vec![], SINT2), "expired all the same");
    assert_eq!(rig.memory.read_u32(Gpa(PAGE + 0x204)).unwrap(), 1 << 8, "the mark");
    rig.memory.write(Gpa(PAGE + 0x200), &[0]).unwrap();
    rig.go(2500);
    rig.write(msr::EOM, 0);
    assert_eq!((rig.take(), rig.interrupts()), (Some((0, 1000, 2500)), vec![(0, 0x52)]));
    rig.memory.write(Gpa(PAGE + 0x200), &[1]).unwrap();
    rig.write(CONFIG, ENABLE | SINT2);
    assert!(rig.partition.messages_wait(0));
    rig.write(CONFIG, 0);
    rig.memory.write(Gpa(PAGE + 0x200), &[0]).unwrap();
    rig.write(msr::EOM, 0);
    assert_eq!((rig.take(), rig.interrupts()), (None, vec![]));
    // With the page off it waits for the page.
    rig.write(msr::SIMP, PAGE);
    rig.write(CONFIG, ENABLE | SINT2);
    assert_eq!(rig.interrupts(), vec![]);
    rig.write(msr::SIMP, PAGE | 1);
    assert_eq!((rig.take(), rig.interrupts()), (Some((0, 1000, 2500)), vec![(0, 0x52)]));
}

#[test]
fn a_saved_timer_goes_on_where_it_is_restored() {
    let mut rig = Rig::new("auto");
    rig.write(COUNT, 4000);
    rig.write(CONFIG, ENABLE | PERIODIC | SINT2);
    rig.write(CONFIG + 2, AUTO_ENABLE | DIRECT | 0x61 << 4);
    rig.write(COUNT + 2, 9000);
    rig.go(4000);
    rig.go(8000);
    let text = serde_json::to_string(&(&rig.vp, rig.partition.save())).unwrap();
    let mut page = vec![0; 0x1000];
    rig.memory.read(Gpa(PAGE), &mut page).unwrap();

    let (partition, clock, memory, apics) = self::rig("auto", 8);
    memory.write(Gpa(PAGE), &page).unwrap();
    let (vp, saved) = serde_json::from_str(&text).unwrap();
    partition.restore(saved).unwrap();
    let mut new = Rig { partition, vp, clock, apics, memory };
    assert_eq!((&new.vp, new.vp.deadline_tsc()), (&rig.vp, rig.vp.deadline_tsc()));
    for rig in [&mut rig, &mut new] {
        let _ = rig.interrupts();
        assert_eq!(rig.take(), Some((0, 4000, 4000)));
        rig.go(9000);
        assert_eq!((rig.interrupts(), rig.take()), (vec![(0, 0x61)], None));
        rig.write(msr::EOM, 0);
        assert_eq!((rig.interrupts(), rig.take()), (vec![(0, 0x52)], Some((0, 8000, 9000))));
    }
}

#[test]
fn a_periodic_timer_makes_up_for_missed_expiries_and_a_lazy_one_does_not() {
    let expiries = |config: u64| {
        let mut rig = Rig::new("auto");
        rig.write(COUNT, 4000);
        rig.write(CONFIG, ENABLE | PERIODIC | SINT2 | config);
        let mut seen = Vec::new();
        // Away from 4000 to 17000.
        for at in [3999, 4000].into_iter().chain((17_000..=30_000).step_by(500)) {
            rig.go(at);
            seen.extend(rig.take().map(|(_, expiry, delivery)| (expiry, delivery)));
        }
        assert_eq!(rig.read(CONFIG), ENABLE | PERIODIC | SINT2 | config, "it goes on");
        seen
    };
    let made_up = [(8000, 17_000), (12_000, 19_000), (16_000, 21_000), (20_000, 23_000), (24_000, 24_000)];
    assert_eq!(expiries(0)[..6], [&[(4000, 4000)], &made_up[..]].concat());
    let lazy = [(4000, 4000), (8000, 17_000), (20_000, 20_000), (24_000, 24_000), (28_000, 28_000)];
    assert_eq!(expiries(LAZY), lazy);
}

#[test]
fn a_lazy_expiry_that_is_late_is_skipped_shortly_before_the_next() {
    let mut timer = Stimer { count: 8000, ..Stimer::default() };
    timer.write_config(ENABLE | PERIODIC | LAZY | SINT2, 0);
    assert_eq!(timer.expire(23_500, true), None, "the next is at 24000");
    assert_eq!(timer.expire(24_000, true), Some(24_000));
    assert_eq!(timer.expire(39_000, true), None);
    assert_eq!(timer.expire(40_000, false), None, "nor is it deferred behind one that waits");
    assert_eq!(timer.expire(48_000, true), Some(48_000));
}

#[test]
fn the_smallest_period_costs_bounded_work() {
    let mut rig = Rig::new("auto");
    rig.write(COUNT, 1);
    rig.write(CONFIG, ENABLE | PERIODIC | DIRECT | 0xed << 4);
    let mut expiries = 0;
    for at in 0..100_000 {
        rig.go(at);
        expiries += rig.interrupts().len();
    }
    assert!((50..=100).contains(&expiries), "{expiries}");
}

/// What the guest and time do to a periodic timer.
#[derive(Clone, Debug)]
enum Step {
    /// So much time passes.
    Pass(u64),
    /// The signal that was given is taken, or not yet.
    Open(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1u64..60_000).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Open),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// Against the timer's description alone: expiries are multiples of the period, each at most
    /// once, in order, never early; one that was not lazy misses none unless it is far behind.
    #[test]
    fn periodic_timers_agree_with_their_description(
        period in 1u64..30_000, lazy in any::<bool>(), start in 0u64..1 << 40, steps in steps(),
    ) {
        let mut timer = Stimer { count: period, ..Stimer::default() };
        timer.write_config(ENABLE | PERIODIC | SINT2 | if lazy { LAZY } else { 0 }, start);
        let (mut now, mut open, mut last) = (start, true, 0);
        for step in steps {
            match step {
                Step::Pass(time) => now += time,
                Step::Open(is) => open = is,
            }
            // All that is due, as whoever runs the processor would at the times of the wakes.
            while let Some(wake) = timer.wake.filter(|wake| *wake <= now) {
                let at = if lazy { now } else { wake.max(now.saturating_sub(period)) };
                if let Some(expiry) = timer.expire(at, open) {
                    prop_assert!(open && expiry <= at);
                    let number = (expiry - start) / period;
                    prop_assert_eq!((expiry - start) % period, 0);
                    prop_assert!(number > last);
                    if !lazy && number != last + 1 {
                        prop_assert!((at - start) / period - number + 1 >= MADE_UP);
                    }
                    last = number;
                }
                prop_assert!(timer.wake.is_some_and(|next| next > at));
            }
        }
        // Once it is heard and seen in time again, it catches up and stays exact.
        if period >= 2 * SHORTEST {
            for _ in 0..4 * MADE_UP {
                now = timer.wake.unwrap().max(now);
                timer.expire(now, true);
            }
            let expected = start + ((now - start) / period + 1) * period;
            prop_assert_eq!(timer.wake, Some(expected));
        }
    }

    /// One-shots against the rule: the first look at or behind the count, once for each arming.
    #[test]
    fn one_shots_agree_with_their_description(
        writes in proptest::collection::vec((any::<bool>(), 0u64..5000, 1u64..4000), 1..50),
        auto in any::<bool>(),
    ) {
        let mut timer = Stimer::default();
        let config = SINT2 | if auto { AUTO_ENABLE } else { 0 };
        timer.write_config(config, 0);
        let mut now = 0;
        for (enable, count, pass) in writes {
            timer.write_count(count, now);
            let was = timer.has(ENABLE);
            if enable {
                timer.write_config(config | ENABLE, now);
            }
            // A timer that was enabled without a count waits for one.
            let mut armed = (count != 0 && (enable || auto || was)).then_some(count);
            now += pass;
            let expected = armed.filter(|count| *count <= now);
            prop_assert_eq!(timer.expire(now, true), expected);
            if expected.is_some() {
                armed = None;
            }
            prop_assert_eq!(timer.wake, armed);
            prop_assert_eq!(timer.expire(now, true), None);
        }
    }
}
