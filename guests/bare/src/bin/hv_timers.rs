//! The synthetic timers: their registers, messages and direct interrupts, when and how often they expire.
//! With `clock=virtual` on the command line the times must be exact.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::apic;
use satori_guests::defs::hyperv::synic::message::{PAYLOAD, PENDING, SIZE_AND_FLAGS, TIMER_EXPIRED};
use satori_guests::defs::hyperv::synic::stimer::{
    AUTO_ENABLE, DIRECT, ENABLE, LAZY, PERIODIC, SINT_SHIFT, VECTOR_SHIFT,
};
use satori_guests::defs::hyperv::synic::{SINT_MASKED, SLOT_BYTES};
use satori_guests::defs::hyperv::{PAGE_ENABLE, msr};
use satori_guests::hyperv::bit::{DIRECT_TIMERS, SYNTHETIC_TIMERS};
use satori_guests::hyperv::{fill, interrupt_within, peek, peek32};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, code, guest, harness, insn, paging, smp};

guest!(
    "hv_timers",
    registers,
    enabling,
    one_shot,
    past_and_now,
    periodic,
    slot_in_use,
    lazy,
    four_at_once,
    direct,
    wakes_from_halt,
    of_each_processor,
    hostile,
);

const LONG: u64 = 200_000;
const SOON: u64 = 4_000_000_000;
/// A millisecond in units of 100 ns.
const MS: u64 = 10_000;

const fn config(timer: u32) -> u32 {
    msr::STIMER0_CONFIG + 2 * timer
}

const fn count(timer: u32) -> u32 {
    config(timer) + 1
}

/// The bits that name a source.
const fn sint(number: u64) -> u64 {
    number << SINT_SHIFT
}

const fn vector(number: u64) -> u64 {
    number << VECTOR_SHIFT | DIRECT
}

fn now() -> u64 {
    insn::rdmsr(msr::TIME_REF_COUNT)
}

fn exact() -> bool {
    harness::option("clock") == Some("virtual")
}

fn skipped(t: &mut Test) {
    t.eq("no timers, no registers", get(msr::STIMER0_CONFIG).is_some(), SYNTHETIC_TIMERS.offered());
}

/// A controller with a message page; SINT n has vector 0x40 + n.
struct Pages {
    messages: u64,
}

/// HV_TIMER_MESSAGE_PAYLOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry {
    timer: u32,
    expiry: u64,
    delivery: u64,
}

impl Pages {
    fn new() -> Pages {
        let messages = paging::page();
        insn::wrmsr(msr::SIMP, messages | PAGE_ENABLE);
        fill(messages, 0);
        for number in 1..16 {
            insn::wrmsr(msr::SINT0 + number, 0x40 + u64::from(number));
        }
        insn::wrmsr(msr::SCONTROL, 1);
        Pages { messages }
    }

    fn slot(&self, sint: u64) -> u64 {
        self.messages + SLOT_BYTES * sint
    }

    /// The timer's message in the slot of `sint`, which it empties.
    fn take(&self, sint: u64) -> Option<Expiry> {
        let slot = self.slot(sint);
        if peek32(slot) != TIMER_EXPIRED {
            return None;
        }
        let found = Expiry {
            timer: peek32(slot + PAYLOAD),
            expiry: peek(slot + PAYLOAD + 8),
            delivery: peek(slot + PAYLOAD + 16),
        };
        // SAFETY: the slot is this processor's to empty.
        unsafe { (slot as *mut u32).write_volatile(0) };
        insn::mfence();
        if peek32(slot + SIZE_AND_FLAGS) & PENDING != 0 {
            insn::wrmsr(msr::EOM, 0);
        }
        Some(found)
    }

    /// Waits for the interrupt of `sint`, and takes its message.
    fn wait(&self, sint: u64) -> Option<Expiry> {
        let vector = interrupt_within(SOON)?;
        let found = self.take(sint);
        apic::eoi();
        found.filter(|_| u64::from(vector) == 0x40 + sint)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for timer in 0..4 {
            insn::wrmsr(config(timer), 0);
            insn::wrmsr(count(timer), 0);
        }
        while interrupt_within(LONG).is_some() {
            apic::eoi();
        }
        for number in 0..16 {
            insn::wrmsr(msr::SINT0 + number, SINT_MASKED);
        }
        insn::wrmsr(msr::SCONTROL, 0);
        insn::wrmsr(msr::SIMP, 0);
    }
}

/// Whether something delivered at `delivery` was in time for `expiry`: never early, and late by no more than a
/// run of instructions takes (virtual clock), or by what a busy host allows.
fn in_time(expiry: u64, delivery: u64) -> bool {
    delivery >= expiry && (!exact() || delivery - expiry <= 10)
}

fn registers(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    for timer in 0..4 {
        t.eq(("at first", timer), (get(config(timer)), get(count(timer))), (Some(0), Some(0)));
        for value in [0, PERIODIC, LAZY | sint(3), AUTO_ENABLE | sint(15), sint(1)] {
            kept(t, "not enabled", config(timer), value);
        }
        for bit in (13..16).chain(20..64) {
            refused(t, "a reserved bit", config(timer), 1 << bit | sint(1));
        }
        if DIRECT_TIMERS.offered() {
            kept(t, "direct", config(timer), vector(0x51));
        } else {
            refused(t, "direct is not offered", config(timer), DIRECT);
            refused(t, "direct is not offered", config(timer), vector(0x51));
        }
        kept(t, "off", config(timer), 0);
        for value in [1, u64::MAX, 0] {
            kept(t, "any count", count(timer), value);
        }
    }
}

fn enabling(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let _pages = Pages::new();
    let far = now() + 3_600_000 * MS;
    let enabled = |timer| insn::rdmsr(config(timer)) & ENABLE != 0;
    // SINT 0 is the hypervisor's: such a timer is not enabled (TLFS 12.3.1).
    insn::wrmsr(count(0), far);
    insn::wrmsr(config(0), ENABLE);
    t.holds("SINT 0", !enabled(0));
    insn::wrmsr(config(0), ENABLE | sint(2));
    t.holds("enabled by its bit", enabled(0));
    insn::wrmsr(count(0), 0);
    t.holds("a count of 0 disables", !enabled(0));
    insn::wrmsr(count(0), far);
    t.holds("a count alone does not enable", !enabled(0));
    insn::wrmsr(config(0), AUTO_ENABLE | sint(2));
    t.holds("not yet", !enabled(0));
    insn::wrmsr(count(0), far);
    t.holds("auto-enable", enabled(0));
    insn::wrmsr(count(0), 0);
    t.holds("a count of 0, with auto-enable", !enabled(0));
    insn::wrmsr(count(0), far);
    insn::wrmsr(config(0), sint(2));
    t.holds("disabled by its bit", !enabled(0));
    t.eq("the count stays", get(count(0)), Some(far));
    t.eq("nothing came", interrupt_within(LONG), None);
}

fn one_shot(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    for timer in 0..4u32 {
        for (round, units) in [1, 7, 100, MS, 3 * MS + 1].into_iter().enumerate() {
            let source = 1 + (u64::from(timer) * 5 + round as u64) % 15;
            let expiry = now() + units + 100;
            insn::wrmsr(config(timer), AUTO_ENABLE | sint(source));
            insn::wrmsr(count(timer), expiry);
            let found = pages.wait(source);
            let after = now();
            let Some(found) = found else {
                t.holds((timer, source, "no message"), false);
                continue;
            };
            t.eq((timer, source, "timer and expiry"), (found.timer, found.expiry), (timer, expiry));
            t.holds((timer, "in time", found), in_time(expiry, found.delivery) && found.delivery <= after);
            t.eq((timer, "ended"), insn::rdmsr(config(timer)), AUTO_ENABLE | sint(source));
            t.eq((timer, "the count stays"), insn::rdmsr(count(timer)), expiry);
            t.eq((timer, "once"), interrupt_within(LONG), None);
        }
    }
}

fn past_and_now(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    for expiry in [1, now() / 2, now()] {
        insn::wrmsr(count(1), expiry);
        insn::wrmsr(config(1), ENABLE | sint(4));
        let found = pages.take(4);
        t.eq(("at once", expiry), found.map(|found| (found.timer, found.expiry)), Some((1, expiry)));
        t.eq("with an interrupt", interrupt_within(LONG), Some(0x44));
        apic::eoi();
        t.eq("ended", insn::rdmsr(config(1)) & ENABLE, 0);
    }
    insn::wrmsr(count(1), u64::MAX);
    insn::wrmsr(config(1), ENABLE | sint(4));
    t.eq("the end of time does not come", (interrupt_within(LONG), pages.take(4)), (None, None));
}

fn periodic(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    for (timer, period) in [(0u32, 10 * MS), (3, 4 * MS + 321)] {
        let source = 5 + u64::from(timer);
        insn::wrmsr(config(timer), PERIODIC | AUTO_ENABLE | sint(source));
        let before = now();
        insn::wrmsr(count(timer), period);
        let after = now();
        let mut last = None;
        for round in 1..=10 {
            let Some(found) = pages.wait(source) else {
                t.holds((timer, round, "no message"), false);
                break;
            };
            match last {
                None => {
                    let range = before + period..=after + period;
                    t.holds((timer, "the first", found, &range), range.contains(&found.expiry));
                }
                Some(last) => {
                    let step = found.expiry.wrapping_sub(last);
                    let good = if exact() { step == period } else { step > 0 && step.is_multiple_of(period) };
                    t.holds((timer, round, "a period later", step), good);
                }
            }
            t.holds((timer, round, "in time", found), in_time(found.expiry, found.delivery));
            last = Some(found.expiry);
        }
        t.eq((timer, "still enabled"), insn::rdmsr(config(timer)) & ENABLE, ENABLE);
        t.eq((timer, "the count stays"), insn::rdmsr(count(timer)), period);
        insn::wrmsr(config(timer), 0);
        while interrupt_within(LONG).is_some() {
            pages.take(source);
            apic::eoi();
        }
        pages.take(source);
        smp::spin(40_000_000);
        t.eq((timer, "no more"), (interrupt_within(LONG), pages.take(source)), (None, None));
    }
}

/// While the slot is in use the message waits; its expiry is the old one, its delivery the later one.
fn slot_in_use(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    let slot = pages.slot(6);
    // SAFETY: the slot is the guest's.
    unsafe { (slot as *mut u32).write_volatile(0x55) };
    let expiry = now() + MS;
    insn::wrmsr(config(2), AUTO_ENABLE | sint(6));
    insn::wrmsr(count(2), expiry);
    while now() < expiry + 2 * MS {}
    t.eq("no interrupt", interrupt_within(LONG), None);
    t.eq("the slot is not touched", peek32(slot), 0x55);
    t.holds("but marked", peek32(slot + SIZE_AND_FLAGS) & PENDING != 0);
    let before = now();
    // SAFETY: as above.
    unsafe { (slot as *mut u32).write_volatile(0) };
    insn::wrmsr(msr::EOM, 0);
    let found = pages.wait(6);
    t.holds(("delivered late", found), found.is_some_and(|f| f.expiry == expiry && f.delivery >= before));
    // A write to the timer takes a message back that waits.
    // SAFETY: as above.
    unsafe { (slot as *mut u32).write_volatile(0x55) };
    insn::wrmsr(count(2), 1);
    insn::wrmsr(count(2), 0);
    // SAFETY: as above.
    unsafe { (slot as *mut u32).write_volatile(0) };
    insn::wrmsr(msr::EOM, 0);
    t.eq("taken back", (interrupt_within(LONG), pages.take(6)), (None, None));
    // A periodic timer does not lose count while its slot is in use: what it missed comes, or is skipped whole.
    // SAFETY: as above.
    unsafe { (slot as *mut u32).write_volatile(0x55) };
    insn::wrmsr(config(2), PERIODIC | AUTO_ENABLE | sint(6));
    insn::wrmsr(count(2), 2 * MS);
    let start = now();
    while now() < start + 20 * MS {}
    // SAFETY: as above.
    unsafe { (slot as *mut u32).write_volatile(0) };
    insn::wrmsr(msr::EOM, 0);
    let mut last = 0;
    for round in 0..5 {
        let found = pages.wait(6);
        t.holds((round, "goes on", found), found.is_some_and(|f| f.expiry > last && f.delivery >= f.expiry));
        last = found.map_or(last, |f| f.expiry);
    }
}

/// A lazy timer may be late, but not early, and what it missed is one message.
fn lazy(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    insn::wrmsr(config(0), PERIODIC | LAZY | AUTO_ENABLE | sint(7));
    insn::wrmsr(count(0), 2 * MS);
    let start = now();
    while now() < start + 21 * MS {}
    insn::cli();
    let mut messages = 0;
    let since = now();
    while pages.take(7).is_some() {
        messages += 1;
    }
    // One that waited and the next, and those that came meanwhile if the host took the vCPU away.
    let most = 2 + (now() - since).div_ceil(2 * MS);
    t.holds(("missed periods are not made up for", messages, most), messages <= most);
    for round in 0..3 {
        while interrupt_within(LONG).is_some() {
            pages.take(7);
            apic::eoi();
        }
        let found = pages.wait(7);
        t.holds((round, "goes on", found), found.is_some_and(|f| f.delivery >= f.expiry));
    }
}

fn four_at_once(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    let expiry = now() + 5 * MS;
    for timer in 0..4 {
        insn::wrmsr(config(timer), AUTO_ENABLE | sint(8 + u64::from(timer)));
        insn::wrmsr(count(timer), expiry);
    }
    while now() < expiry {}
    let mut seen = 0;
    while let Some(vector) = interrupt_within(20 * LONG) {
        let source = u64::from(vector) - 0x40;
        let found = pages.take(source);
        apic::eoi();
        t.holds(
            (source, found),
            found.is_some_and(|f| f.expiry == expiry && u64::from(f.timer) == source - 8),
        );
        seen |= 1 << source;
    }
    t.eq("all four", seen, 0xf00);
    // Four on one source: all of them come, one after the other.
    let expiry = now() + 5 * MS;
    for timer in 0..4 {
        insn::wrmsr(config(timer), AUTO_ENABLE | sint(9));
        insn::wrmsr(count(timer), expiry + u64::from(timer));
    }
    let mut seen = 0;
    for round in 0..4 {
        let found = pages.wait(9);
        t.holds((round, found), found.is_some_and(|f| f.expiry == expiry + u64::from(f.timer)));
        seen |= found.map_or(0, |f| 1 << f.timer);
    }
    t.eq("each once", seen, 0xf);
}

fn direct(t: &mut Test) {
    if !DIRECT_TIMERS.offered() {
        return t.holds("refused", !SYNTHETIC_TIMERS.offered() || !set(config(0), DIRECT));
    }
    // Neither a controller nor a page is needed.
    insn::wrmsr(msr::SCONTROL, 0);
    for timer in 0..4u32 {
        let number = 0x71 + u64::from(timer);
        let expiry = now() + MS;
        insn::wrmsr(config(timer), AUTO_ENABLE | vector(number));
        insn::wrmsr(count(timer), expiry);
        t.eq((timer, "comes"), interrupt_within(SOON), Some(number as u8));
        let after = now();
        t.holds((timer, "in time", expiry, after), after >= expiry && (!exact() || after - expiry < 50));
        t.holds((timer, "in service"), apic::bit(satori_guests::defs::apic::ISR, number as u8));
        apic::eoi();
        t.eq((timer, "ended"), insn::rdmsr(config(timer)), AUTO_ENABLE | vector(number));
        t.eq((timer, "once"), interrupt_within(LONG), None);
    }
    // Periodic, counted.
    insn::wrmsr(config(1), PERIODIC | AUTO_ENABLE | vector(0x75));
    let start = now();
    insn::wrmsr(count(1), 5 * MS);
    for _ in 0..10 {
        t.eq("periodic", interrupt_within(SOON), Some(0x75));
        apic::eoi();
    }
    let took = now() - start;
    t.holds(("ten periods", took), took >= 45 * MS && (!exact() || took.abs_diff(50 * MS) < 100));
    insn::wrmsr(config(1), 0);
    // Vectors that the local APIC does not take are not heard.
    for number in [0, 1, 15] {
        insn::wrmsr(config(2), AUTO_ENABLE | vector(number));
        t.holds(("a low vector", number), set(count(2), 1));
    }
    while interrupt_within(LONG).is_some() {
        apic::eoi();
    }
    // Task priority holds it back as any interrupt.
    insn::set_cr8(8);
    insn::wrmsr(config(3), AUTO_ENABLE | vector(0x79));
    insn::wrmsr(count(3), 1);
    t.eq("held back", interrupt_within(LONG), None);
    insn::set_cr8(0);
    t.eq("comes later", interrupt_within(LONG), Some(0x79));
    apic::eoi();
    for timer in 0..4 {
        insn::wrmsr(config(timer), 0);
    }
}

fn wakes_from_halt(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    for round in 0..5 {
        let expiry = now() + 10 * MS;
        insn::wrmsr(config(0), AUTO_ENABLE | sint(2));
        insn::wrmsr(count(0), expiry);
        let event = Subject::kernel(code!("sti", "2: hlt", "jmp 2b")).with(reg::RAX, 0).run();
        let after = now();
        let found = pages.take(2);
        apic::eoi();
        t.eq((round, "wakes"), (event.vector, found.map(|f| f.expiry)), (0x42, Some(expiry)));
        t.holds((round, "in time", expiry, after), after >= expiry && (!exact() || after - expiry < 100));
    }
}

static FOUND: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];

fn of_each_processor(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    smp::on_all(smp::count(), |number| {
        let pages = Pages::new();
        insn::wrmsr(config(0), PERIODIC | AUTO_ENABLE | sint(3));
        insn::wrmsr(count(0), (5 + number as u64) * MS);
        let good = (0..10).filter(|_| pages.wait(3).is_some_and(|f| in_time(f.expiry, f.delivery))).count();
        FOUND[number].store(good as u64, Ordering::SeqCst);
    });
    for (number, found) in FOUND.iter().enumerate().take(smp::count()) {
        t.eq(("periods of", number), found.load(Ordering::SeqCst), 10);
    }
}

/// Periods of nothing, and registers rewritten without end: time goes on, and other work gets done.
fn hostile(t: &mut Test) {
    if !SYNTHETIC_TIMERS.offered() {
        return skipped(t);
    }
    let pages = Pages::new();
    let ways = [sint(1), if DIRECT_TIMERS.offered() { vector(0x7f) } else { sint(2) }];
    for way in ways {
        for timer in 0..4 {
            insn::wrmsr(config(timer), PERIODIC | AUTO_ENABLE | way);
            insn::wrmsr(count(timer), 1 + u64::from(timer));
        }
        let start = now();
        let mut interrupts = 0u64;
        while now() < start + 20 * MS && interrupts < 100_000 {
            if interrupt_within(LONG).is_some() {
                for source in [1, 2] {
                    pages.take(source);
                }
                apic::eoi();
                interrupts += 1;
            }
        }
        t.holds(("not more than time allows", interrupts), interrupts < 100_000);
        for timer in 0..4 {
            insn::wrmsr(config(timer), 0);
        }
        while interrupt_within(LONG).is_some() {
            apic::eoi();
        }
    }
    for value in [u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1, i64::MAX as u64 + 2] {
        for bits in [0, PERIODIC, PERIODIC | LAZY, LAZY] {
            insn::wrmsr(config(0), bits | AUTO_ENABLE | sint(1));
            t.holds(("a far end", value, bits), set(count(0), value));
            t.eq(("does not come", value, bits), interrupt_within(LONG / 10), None);
        }
    }
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..3000 {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let timer = (x >> 60) as u32 & 3;
        let bits = (x >> 40) & 0xf | sint(x >> 32 & 15);
        set(config(timer), bits);
        set(count(timer), if x & 1 == 0 { now() + (x >> 50) } else { x >> (x >> 58) });
    }
    t.holds("time goes on", now() > 0);
}
