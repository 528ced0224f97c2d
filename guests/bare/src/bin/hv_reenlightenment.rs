//! What becomes of the TSC when its frequency changes while the guest runs. The monitor makes `changes=N` of
//! them; the guest asks for each in another way, and holds reference time against the ACPI timer.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use satori_guests::apic;
use satori_guests::defs::apic::IRR;
use satori_guests::defs::chipset::{pm::TIMER_HZ, port};
use satori_guests::defs::hyperv::{PAGE_ENABLE, REENLIGHTENMENT_ENABLE, REFERENCE_HZ, TSC_EMULATION, msr};
use satori_guests::hyperv::bit::{FREQUENCIES, REENLIGHTENMENT, REFERENCE_COUNTER, REFERENCE_TSC};
use satori_guests::hyperv::{interrupt_within, peek, peek32, vp_index};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::{Test, guest, harness, insn, paging, smp};

guest!("hv_reenlightenment", registers, changes);

const VECTOR: u8 = 0xd1;
const LONG: u64 = 200_000;
/// Longer than the host leaves the thread alone that changes the frequency, and then requests the interrupt.
const SOON: u64 = 20_000_000_000;

fn registers(t: &mut Test) {
    if !REENLIGHTENMENT.offered() {
        for register in [msr::REENLIGHTENMENT_CONTROL, msr::TSC_EMULATION_CONTROL, msr::TSC_EMULATION_STATUS]
        {
            refused(t, "not offered", register, 0);
        }
        return;
    }
    for value in [u64::from(VECTOR), 1 << 32 | u64::from(VECTOR), 0] {
        kept(t, "control", msr::REENLIGHTENMENT_CONTROL, value);
    }
    kept(t, "emulation", msr::TSC_EMULATION_CONTROL, TSC_EMULATION);
    kept(t, "no emulation", msr::TSC_EMULATION_CONTROL, 0);
    t.eq("nothing is emulated", get(msr::TSC_EMULATION_STATUS), Some(0));
    kept(t, "acknowledged for nothing", msr::TSC_EMULATION_STATUS, 0);
    // TLFS: a guest clears it, and cannot say that emulation is in progress.
    for value in [TSC_EMULATION, 2, u64::MAX] {
        refused(t, "status", msr::TSC_EMULATION_STATUS, value);
    }
}

/// What the guest asks for before a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// An interrupt to this VP, and emulation until it acknowledges.
    Everything(usize),
    /// An interrupt; the frequency changes at once.
    Interrupt,
    /// Nothing.
    Nothing,
}

/// The page with reference time.
static PAGE: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);
static LATEST_TIME: AtomicU64 = AtomicU64::new(0);
static LATEST_TSC: AtomicU64 = AtomicU64::new(0);
static BACKWARDS: AtomicU64 = AtomicU64::new(0);
/// How many interrupts a processor that only watches took.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Reference time: the page's, or the counter's while the page is not valid.
fn time() -> u64 {
    let page = PAGE.load(Ordering::Relaxed);
    loop {
        let sequence = peek32(page);
        if sequence == 0 || sequence == u32::MAX {
            return insn::rdmsr(msr::TIME_REF_COUNT);
        }
        let (scale, offset, tsc) = (peek(page + 8), peek(page + 16), insn::rdtsc());
        if peek32(page) == sequence {
            return (((u128::from(tsc) * u128::from(scale)) >> 64) as u64).wrapping_add(offset);
        }
    }
}

/// Neither the TSC nor reference time goes back, on whichever processor they are read.
fn look() {
    for (latest, read) in [(&LATEST_TSC, insn::rdtsc as fn() -> u64), (&LATEST_TIME, time)] {
        let before = latest.load(Ordering::SeqCst);
        let now = read();
        if now < before {
            BACKWARDS.fetch_add(1, Ordering::SeqCst);
        }
        latest.fetch_max(now, Ordering::SeqCst);
    }
}

/// What the other processors do: look at the time, and take the interrupt if it comes to them.
fn watch(_: usize) {
    while !DONE.load(Ordering::SeqCst) {
        look();
        if apic::bit(IRR, VECTOR) {
            if interrupt_within(LONG) == Some(VECTOR) {
                TAKEN.fetch_add(1, Ordering::SeqCst);
            }
            apic::eoi();
        }
    }
}

/// What `clock` shows, and reference time at the same instant: the closest of some looks, as a busy host may
/// hold the processor between the two.
fn with_time(clock: impl Fn() -> u64) -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..50 {
        let (before, shown, after) = (time(), clock(), time());
        let took = after.wrapping_sub(before);
        if took < best.0 {
            best = (took, shown, before);
        }
    }
    (best.1, best.2)
}

/// The ACPI timer, which knows nothing of the TSC, and reference time.
fn both_clocks() -> (u64, u64) {
    with_time(|| u64::from(insn::in32(port::PM_TMR)))
}

/// Reference time that went by since `start`, and what went by on the ACPI timer, in units of 100 ns.
fn since(start: (u64, u64)) -> (u64, u64) {
    let now = both_clocks();
    let ticks = now.0.wrapping_sub(start.0) & 0xff_ffff;
    (now.1.wrapping_sub(start.1), ticks * REFERENCE_HZ / TIMER_HZ)
}

/// Ticks of the TSC in a second of reference time, by some milliseconds of it.
fn measured_hz() -> u64 {
    let start = with_time(insn::rdtsc);
    while time() - start.1 < 50_000 {
        look();
    }
    let end = with_time(insn::rdtsc);
    (end.0 - start.0) * 1000 / (end.1 - start.1) * (REFERENCE_HZ / 1000)
}

fn agree(got: u64, want: u64, parts: u64) -> bool {
    got.abs_diff(want) <= want / parts
}

fn changes(t: &mut Test) {
    let wanted = harness::option("changes").and_then(|n| n.parse().ok()).unwrap_or(0);
    if !FREQUENCIES.offered() || !REFERENCE_TSC.offered() || !REFERENCE_COUNTER.offered() {
        return t.eq("no frequency to look at", get(msr::TSC_FREQUENCY).is_some(), FREQUENCIES.offered());
    }
    let cpus = smp::count();
    PAGE.store(paging::page(), Ordering::SeqCst);
    insn::wrmsr(msr::REFERENCE_TSC, PAGE.load(Ordering::SeqCst) | PAGE_ENABLE);
    let last = vp_index(cpus - 1);
    for number in 1..cpus {
        smp::begin(number, watch);
    }
    for number in 0..wanted {
        let ask = match number % 4 {
            _ if !REENLIGHTENMENT.offered() => Ask::Nothing,
            0 => Ask::Everything(0),
            1 => Ask::Interrupt,
            2 => Ask::Everything(cpus - 1),
            _ => Ask::Nothing,
        };
        change(t, ask, last);
    }
    t.holds("it measures", agree(measured_hz(), insn::rdmsr(msr::TSC_FREQUENCY), 50));
    DONE.store(true, Ordering::SeqCst);
    for number in 1..cpus {
        smp::wait(number);
    }
    t.eq("TSCs and times that went back", BACKWARDS.load(Ordering::SeqCst), 0);
    insn::wrmsr(msr::REFERENCE_TSC, 0);
}

/// Waits for one change, and checks all of it.
fn change(t: &mut Test, ask: Ask, last: u64) {
    let page = PAGE.load(Ordering::SeqCst);
    let shown = || (peek32(page), peek(page + 8));
    let target = if matches!(ask, Ask::Everything(number) if number != 0) { last } else { 0 };
    if ask != Ask::Nothing {
        let control = target << 32 | REENLIGHTENMENT_ENABLE | u64::from(VECTOR);
        kept(t, "control", msr::REENLIGHTENMENT_CONTROL, control);
        let emulate = u64::from(matches!(ask, Ask::Everything(_)));
        kept(t, "emulation", msr::TSC_EMULATION_CONTROL, emulate);
    } else if REENLIGHTENMENT.offered() {
        insn::wrmsr(msr::REENLIGHTENMENT_CONTROL, 0);
        insn::wrmsr(msr::TSC_EMULATION_CONTROL, 0);
    }
    let taken = TAKEN.load(Ordering::SeqCst);
    let (old, (sequence, scale)) = (insn::rdmsr(msr::TSC_FREQUENCY), shown());
    t.eq("the old scale", scale, ((u128::from(REFERENCE_HZ) << 64) / u128::from(old)) as u64);
    let begin = insn::rdmsr(msr::TIME_REF_COUNT);
    let changed = || insn::rdmsr(msr::TSC_FREQUENCY) != old;
    let emulated = || REENLIGHTENMENT.offered() && insn::rdmsr(msr::TSC_EMULATION_STATUS) != 0;
    let mut start = both_clocks();
    while !changed() && !emulated() {
        look();
        let gone = time().wrapping_sub(start.1);
        if gone > REFERENCE_HZ {
            // Before the ACPI timer's 24 bits are used up.
            start = both_clocks();
        }
        if time().wrapping_sub(begin) > 20 * REFERENCE_HZ {
            return t.holds((ask, "there is no change"), false);
        }
    }
    if ask != Ask::Nothing && target == 0 {
        t.eq((ask, "the interrupt"), interrupt_within(SOON), Some(VECTOR));
        apic::eoi();
    }
    t.eq((ask, "only once"), interrupt_within(LONG), None);
    if let Ask::Everything(_) = ask {
        let emulated = measured_hz();
        t.holds(("the old frequency goes on", emulated, old), agree(emulated, old, 50));
        t.eq("it says so", get(msr::TSC_FREQUENCY), Some(old));
        t.eq("in progress", get(msr::TSC_EMULATION_STATUS), Some(TSC_EMULATION));
        t.eq("the page stays", shown(), (sequence, scale));
        for value in [TSC_EMULATION, u64::MAX] {
            refused(t, "no acknowledgement", msr::TSC_EMULATION_STATUS, value);
        }
        t.holds("acknowledged", set(msr::TSC_EMULATION_STATUS, 0));
    }
    if REENLIGHTENMENT.offered() {
        t.eq("nothing is emulated", get(msr::TSC_EMULATION_STATUS), Some(0));
    }
    let new = insn::rdmsr(msr::TSC_FREQUENCY);
    t.holds((ask, "another frequency", old, new), new != old);
    t.eq(
        "the next sequence and scale",
        shown(),
        (sequence.wrapping_add(1), ((u128::from(REFERENCE_HZ) << 64) / u128::from(new)) as u64),
    );
    let (reference, pm) = since(start);
    // 2 ms: what a busy host may take between the two clocks.
    t.holds((ask, "time has not jumped", reference, pm), reference.abs_diff(pm) < 20_000);
    let hz = measured_hz();
    t.holds((ask, "the new frequency", hz, new), agree(hz, new, 50));
    let (before, now, after) = (insn::rdmsr(msr::TIME_REF_COUNT), time(), insn::rdmsr(msr::TIME_REF_COUNT));
    t.holds(("page and counter agree", before, now, after), (before..=after).contains(&now));
    let elsewhere = u64::from(target != 0 && smp::count() > 1);
    while TAKEN.load(Ordering::SeqCst) - taken < elsewhere && time().wrapping_sub(begin) < 20 * REFERENCE_HZ {
        insn::pause();
    }
    t.eq((ask, "interrupts taken elsewhere"), TAKEN.load(Ordering::SeqCst) - taken, elsewhere);
}
