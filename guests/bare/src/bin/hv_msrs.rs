//! The Hyper-V interface's leaves and registers: what is offered exists, what is not is refused, each keeps
//! what it should. Runs under every choice of enlightenments and asks CPUID which one it is.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::defs::hyperv::{self, INTERFACE_SIGNATURE, PAGE_ENABLE, leaf, msr as synthetic};
use satori_guests::defs::msr::IA32_TSC_ADJUST;
use satori_guests::hyperv::bit::*;
use satori_guests::hyperv::{self as hv, Bit, filled, peek, peek32, poke};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::smp::{self, Barrier};
use satori_guests::subject::reg;
use satori_guests::{Expect, Subject, Test, code, guest, insn, paging};

guest!(
    "hv_msrs",
    leaves,
    registers,
    other_levels,
    identity,
    vp_index,
    reference_time,
    reference_page,
    reference_page_of_all,
    runtime,
    frequencies,
    assist_page,
    crash_registers,
    reset_register,
    init_keeps_what_is_the_partitions,
);

/// What a guest may do with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadWrite,
    ReadOnly,
    WriteOnly,
    /// Reading it has an effect: only its absence is looked at here.
    Idle,
}
use Access::*;

/// The registers of the specification that Satori may offer: first, last, what offers them.
const REGISTERS: [(u32, u32, Bit, Access); 26] = [
    (0x4000_0000, 0x4000_0001, HYPERCALL, ReadWrite),
    (0x4000_0002, 0x4000_0002, VP_INDEX, ReadOnly),
    (0x4000_0003, 0x4000_0003, RESET, ReadWrite),
    (0x4000_0010, 0x4000_0010, VP_RUNTIME, ReadOnly),
    (0x4000_0020, 0x4000_0020, REFERENCE_COUNTER, ReadOnly),
    (0x4000_0021, 0x4000_0021, REFERENCE_TSC, ReadWrite),
    (0x4000_0022, 0x4000_0023, FREQUENCIES, ReadOnly),
    (0x4000_0070, 0x4000_0070, APIC_ACCESS, WriteOnly),
    (0x4000_0071, 0x4000_0073, APIC_ACCESS, ReadWrite),
    (0x4000_0080, 0x4000_0080, SYNIC, ReadWrite),
    (0x4000_0081, 0x4000_0081, SYNIC, ReadOnly),
    (0x4000_0082, 0x4000_0084, SYNIC, ReadWrite),
    (0x4000_0090, 0x4000_009f, SYNIC, ReadWrite),
    (0x4000_00b0, 0x4000_00b0, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b1, 0x4000_00b1, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b2, 0x4000_00b2, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b3, 0x4000_00b3, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b4, 0x4000_00b4, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b5, 0x4000_00b5, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b6, 0x4000_00b6, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00b7, 0x4000_00b7, SYNTHETIC_TIMERS, ReadWrite),
    (0x4000_00f0, 0x4000_00f0, GUEST_IDLE, Idle),
    (0x4000_0100, 0x4000_0104, CRASH, ReadWrite),
    (0x4000_0105, 0x4000_0105, CRASH, ReadWrite),
    (0x4000_0106, 0x4000_0108, REENLIGHTENMENT, ReadWrite),
    (0x4000_0118, 0x4000_0118, TSC_INVARIANT, ReadWrite),
];

fn offered(msr: u32) -> Option<Access> {
    let found = REGISTERS.iter().find(|(first, last, ..)| (*first..=*last).contains(&msr))?;
    found.2.offered().then_some(found.3)
}

fn leaves(t: &mut Test) {
    t.eq(
        "a hypervisor bit only where something announces itself",
        hv::present(),
        offered(0x4000_0002).is_some(),
    );
    if !hv::present() {
        t.holds("no signature", insn::cpuid(leaf::INTERFACE, 0)[0] != INTERFACE_SIGNATURE);
        return;
    }
    let [highest, ..] = insn::cpuid(leaf::VENDOR, 0);
    t.holds(("the highest leaf", highest), (leaf::LIMITS..=0x4000_00ff).contains(&highest));
    // TLFS 2.4: without these a guest has no interface (facts of Linux and Windows).
    t.holds("hypercall registers", HYPERCALL.offered());
    t.holds("VP index", VP_INDEX.offered());
    let [build, version, _, branch] = insn::cpuid(leaf::VERSION, 0);
    t.holds(("a version", build, version, branch), build != 0 && version >> 16 >= 6);
    let [hardware, ..] = insn::cpuid(leaf::HARDWARE, 0);
    t.eq(("reserved hardware features", hardware), hardware >> 28, 0);
    let [processors, ..] = insn::cpuid(leaf::LIMITS, 0);
    t.holds(("room for all processors", processors), processors as usize >= smp::count());
    // What Satori does not have must not be announced: debugging, guest partitions, statistics.
    let [privileges, high, _, features] = insn::cpuid(leaf::FEATURES, 0);
    t.eq(("statistics and debug privileges", privileges), privileges & (1 << 8 | 1 << 12 | 1 << 14), 0);
    t.eq(("create partitions and the like", high), high & !(1 << 4 | 1 << 5 | 1 << 20), 0);
    t.eq(
        ("MWAIT, performance monitor, debugging", features),
        features & 0b10_1111_1100_1111 & !(1 << 8 | 1 << 10),
        0,
    );
    t.eq("frequencies are announced twice", FREQUENCIES.offered(), FREQUENCIES_AVAILABLE.offered());
    for (one, needs) in [
        (SYNTHETIC_TIMERS, SYNIC),
        (SYNTHETIC_TIMERS, REFERENCE_COUNTER),
        (DIRECT_TIMERS, SYNTHETIC_TIMERS),
        (USE_APIC_MSRS, APIC_ACCESS),
        (EXTENDED_GVA_RANGES, REMOTE_TLB_FLUSH),
    ] {
        t.holds((one, "needs", needs), !one.offered() || needs.offered());
    }
    // The trap of the third talk: one of the two, never both.
    t.holds(
        "APIC MSRs are not advised against virtualised ones",
        !USE_APIC_MSRS.offered() || !DEPRECATE_AUTO_EOI.offered(),
    );
    for subleaf in [1, u32::MAX] {
        t.eq("leaves ignore ECX", insn::cpuid(leaf::FEATURES, subleaf), insn::cpuid(leaf::FEATURES, 0));
    }
}

fn registers(t: &mut Test) {
    for msr in synthetic::FIRST..=0x4000_01ff {
        let access = offered(msr);
        match access {
            Some(Idle) => {
                let taken = set(msr, 0);
                t.holds(("read-only", msr), !taken);
                continue;
            }
            Some(WriteOnly) => t.eq(("write-only", msr), get(msr), None),
            Some(_) => t.holds(("is offered", msr), get(msr).is_some()),
            None => t.eq(("is not offered", msr), get(msr), None),
        }
        let writes = if matches!(access, Some(ReadWrite | WriteOnly)) { &[][..] } else { &[0, 1, u64::MAX] };
        for &value in writes {
            let before = get(msr);
            let taken = set(msr, value);
            t.holds((if access.is_some() { "read-only" } else { "absent" }, msr, value), !taken);
            let moves = matches!(msr, 0x4000_0010 | 0x4000_0020);
            t.holds(("after a refused write", msr), moves || get(msr) == before);
        }
    }
}

fn other_levels(t: &mut Test) {
    for (first, _, _, _) in REGISTERS {
        let s = Subject::user(code!("rdmsr")).with(reg::RCX, first.into());
        t.event(("RDMSR of user mode", first), &s.run(), Expect::gp(0));
        let s = Subject::user(code!("wrmsr")).with(reg::RCX, first.into());
        t.event(("WRMSR of user mode", first), &s.run(), Expect::gp(0));
    }
}

fn identity(t: &mut Test) {
    if !HYPERCALL.offered() {
        return t.holds("not offered", !hv::present());
    }
    t.eq("none at first", insn::rdmsr(synthetic::GUEST_OS_ID), 0);
    let page = paging::page();
    hv::fill(page, 0x1111);
    // TLFS 3.13: without an identity the hypercall page stays off, and the write is ignored.
    t.holds("no fault", set(synthetic::HYPERCALL, page | PAGE_ENABLE));
    t.eq("no page", insn::rdmsr(synthetic::HYPERCALL) & PAGE_ENABLE, 0);
    t.holds("nothing is covered", filled(page, 0x1111));
    for value in [1, u64::MAX, hv::OS_ID] {
        kept(t, "any identity", synthetic::GUEST_OS_ID, value);
    }
    kept(t, "the page", synthetic::HYPERCALL, page | PAGE_ENABLE);
    t.holds("covered", !filled(page, 0x1111));
    kept(t, "another identity", synthetic::GUEST_OS_ID, 3);
    t.eq("the page stays", insn::rdmsr(synthetic::HYPERCALL), page | PAGE_ENABLE);
    insn::wrmsr(synthetic::GUEST_OS_ID, 0);
    t.eq("no identity, no page", insn::rdmsr(synthetic::HYPERCALL) & PAGE_ENABLE, 0);
    t.holds("given back", filled(page, 0x1111));
    insn::wrmsr(synthetic::GUEST_OS_ID, hv::OS_ID);
    t.holds("it does not come back by itself", filled(page, 0x1111));
    insn::wrmsr(synthetic::GUEST_OS_ID, 0);
}

static SEEN: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(u64::MAX) }; smp::MAX_CPUS];

fn vp_index(t: &mut Test) {
    if !VP_INDEX.offered() {
        return t.eq("absent", get(synthetic::VP_INDEX), None);
    }
    smp::on_all(smp::count(), |number| {
        SEEN[number].store(get(synthetic::VP_INDEX).unwrap_or(u64::MAX), Ordering::SeqCst);
    });
    let mut numbers = 0u64;
    for seen in &SEEN[..smp::count()] {
        let index = seen.load(Ordering::SeqCst);
        t.holds(("an index", index), index < 64);
        numbers |= 1 << (index & 63);
    }
    t.eq("each its own, without a gap", numbers, (1 << smp::count()) - 1);
    t.eq("the first VP's", get(synthetic::VP_INDEX), Some(0));
}

fn reference_time(t: &mut Test) {
    if !REFERENCE_COUNTER.offered() {
        return t.eq("absent", get(synthetic::TIME_REF_COUNT), None);
    }
    let mut before = insn::rdmsr(synthetic::TIME_REF_COUNT);
    let first = before;
    let mut steps = 0;
    while before - first < 1000 {
        let now = insn::rdmsr(synthetic::TIME_REF_COUNT);
        t.holds(("never back", before, now), now >= before);
        before = now;
        steps += 1;
        if steps > 10_000_000 {
            return t.holds("it stands still", false);
        }
    }
    if FREQUENCIES.offered() {
        let hz = insn::rdmsr(synthetic::TSC_FREQUENCY);
        // Between the TSC's two readings, however long the host takes for each.
        let read = || (insn::rdtsc(), insn::rdmsr(synthetic::TIME_REF_COUNT), insn::rdtsc());
        let (before, from, begin) = read();
        smp::spin(hz / 1000);
        let (end, to, after) = read();
        let units = |ticks: u64| ticks * 1000 / (hz / 10_000);
        let (least, count, most) = (units(end - begin), to - from, units(after - before));
        let slack = count / 20 + 10;
        t.holds(("10 MHz", least, count, most), least <= count + slack && count <= most + slack);
    }
    // Partition-wide: moving this processor's own TSC does not move it.
    if get(IA32_TSC_ADJUST).is_some() {
        let count = insn::rdmsr(synthetic::TIME_REF_COUNT);
        insn::wrmsr(IA32_TSC_ADJUST, 1 << 50);
        let after = insn::rdmsr(synthetic::TIME_REF_COUNT);
        insn::wrmsr(IA32_TSC_ADJUST, 0);
        t.holds(("not moved by the processor's own TSC", count, after), after - count < 1 << 40);
    }
}

/// The reference time that the page at `page` gives, if it is valid.
fn by_page(page: u64) -> Option<u64> {
    loop {
        let sequence = peek32(page);
        if sequence == 0 || sequence == u32::MAX {
            return None;
        }
        let (scale, offset, tsc) = (peek(page + 8), peek(page + 16), insn::rdtsc());
        if peek32(page) == sequence {
            return Some(((u128::from(tsc) * u128::from(scale)) >> 64) as u64)
                .map(|time| time.wrapping_add(offset));
        }
    }
}

fn reference_page(t: &mut Test) {
    if !REFERENCE_TSC.offered() {
        return t.eq("absent", get(synthetic::REFERENCE_TSC), None);
    }
    let pages = paging::pages(3);
    for page in [pages, pages + 4096] {
        hv::fill(page, 0x2222);
    }
    t.eq("off at first", insn::rdmsr(synthetic::REFERENCE_TSC) & PAGE_ENABLE, 0);
    kept(t, "enable", synthetic::REFERENCE_TSC, pages | PAGE_ENABLE);
    for _ in 0..1000 {
        let before = insn::rdmsr(synthetic::TIME_REF_COUNT);
        let page = by_page(pages);
        let after = insn::rdmsr(synthetic::TIME_REF_COUNT);
        // One unit of rounding, as the counter and the page are each rounded down.
        let good = page.is_some_and(|time| (before..=after + 1).contains(&time));
        t.holds(("the page says what the counter says", before, page, after), good);
    }
    t.eq("reserved", peek32(pages + 4), 0);
    kept(t, "move", synthetic::REFERENCE_TSC, (pages + 4096) | PAGE_ENABLE);
    t.holds("given back", filled(pages, 0x2222));
    t.holds("valid elsewhere", by_page(pages + 4096).is_some());
    kept(t, "disable", synthetic::REFERENCE_TSC, pages + 4096);
    t.holds("given back, too", filled(pages + 4096, 0x2222));
    // Enabled again in one place: valid each time, whatever the guest wrote into its copy.
    for _ in 0..3 {
        kept(t, "again", synthetic::REFERENCE_TSC, pages | PAGE_ENABLE);
        t.holds("valid again", by_page(pages).is_some());
        for at in [0, 8, 16] {
            poke(pages + at, u64::MAX);
        }
        let before = insn::rdmsr(synthetic::TIME_REF_COUNT);
        t.holds("the counter does not read the guest's copy", before < 1 << 60);
        kept(t, "off", synthetic::REFERENCE_TSC, 0);
        t.holds("what was covered is whole", filled(pages, 0x2222));
    }
}

static PAGE: AtomicU64 = AtomicU64::new(0);
static LATEST: AtomicU64 = AtomicU64::new(0);
static BACKWARDS: AtomicU64 = AtomicU64::new(0);
static MEETING: Barrier = Barrier::new();

/// Every VP reads the same page; time never goes back from one to the other.
fn reference_page_of_all(t: &mut Test) {
    if !REFERENCE_TSC.offered() {
        return t.eq("absent", get(synthetic::REFERENCE_TSC), None);
    }
    let page = paging::page();
    PAGE.store(page, Ordering::SeqCst);
    insn::wrmsr(synthetic::REFERENCE_TSC, page | PAGE_ENABLE);
    smp::on_all(smp::count(), |_| {
        MEETING.meet(smp::count());
        for _ in 0..2000 {
            let latest = LATEST.load(Ordering::SeqCst);
            let Some(now) = by_page(PAGE.load(Ordering::SeqCst)) else { continue };
            if now < latest {
                BACKWARDS.fetch_add(1, Ordering::SeqCst);
            }
            LATEST.fetch_max(now, Ordering::SeqCst);
        }
    });
    insn::wrmsr(synthetic::REFERENCE_TSC, 0);
    t.eq("times that went back", BACKWARDS.load(Ordering::SeqCst), 0);
    t.holds("time went on", LATEST.load(Ordering::SeqCst) > 0);
}

fn runtime(t: &mut Test) {
    const VP_RUNTIME_MSR: u32 = 0x4000_0010;
    if !VP_RUNTIME.offered() {
        return t.eq("absent", get(VP_RUNTIME_MSR), None);
    }
    let mut before = insn::rdmsr(VP_RUNTIME_MSR);
    let first = before;
    let mut steps = 0;
    // It is the time that this VP ran: it grows while it does.
    while before == first && steps < 10_000_000 {
        let now = insn::rdmsr(VP_RUNTIME_MSR);
        t.holds(("never back", before, now), now >= before);
        before = now;
        steps += 1;
    }
    t.holds("it grows", before > first);
    if REFERENCE_COUNTER.offered() {
        let now = insn::rdmsr(synthetic::TIME_REF_COUNT);
        t.holds(("not more than there was", before, now), before <= now + 10);
    }
}

fn frequencies(t: &mut Test) {
    if !FREQUENCIES.offered() {
        return t.eq("absent", get(synthetic::TSC_FREQUENCY), None);
    }
    let (tsc, apic) = (insn::rdmsr(synthetic::TSC_FREQUENCY), insn::rdmsr(synthetic::APIC_FREQUENCY));
    t.holds(("a TSC's", tsc), (10_000_001..100_000_000_000).contains(&tsc));
    t.holds(("an APIC timer's", apic), (1_000_000..10_000_000_000).contains(&apic));
    if REFERENCE_TSC.offered() {
        let page = paging::page();
        insn::wrmsr(synthetic::REFERENCE_TSC, page | PAGE_ENABLE);
        let scale = peek(page + 8);
        insn::wrmsr(synthetic::REFERENCE_TSC, 0);
        t.eq("the page's scale", scale, ((u128::from(hyperv::REFERENCE_HZ) << 64) / u128::from(tsc)) as u64);
    }
}

fn assist_page(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return t.eq("absent", get(synthetic::VP_ASSIST_PAGE), None);
    }
    let pages = paging::pages(2);
    t.eq("off at first", insn::rdmsr(synthetic::VP_ASSIST_PAGE), 0);
    hv::fill(pages, 0x3333_3333_3333_3333);
    kept(t, "an address alone", synthetic::VP_ASSIST_PAGE, pages);
    t.holds("touches nothing", filled(pages, 0x3333_3333_3333_3333));
    kept(t, "enable", synthetic::VP_ASSIST_PAGE, pages | PAGE_ENABLE);
    // Only the APIC assist field is made new; a guest may have prepared the rest.
    t.eq("apic_assist", peek32(pages), 0);
    t.eq("the field behind it", peek32(pages + 4), 0x3333_3333);
    t.eq("the last field", peek(pages + 4088), 0x3333_3333_3333_3333);
    poke(pages + 48, 0x5555);
    kept(t, "the other page", synthetic::VP_ASSIST_PAGE, (pages + 4096) | PAGE_ENABLE);
    kept(t, "and back", synthetic::VP_ASSIST_PAGE, pages | PAGE_ENABLE);
    t.eq("what the guest wrote", peek(pages + 48), 0x5555);
    kept(t, "off", synthetic::VP_ASSIST_PAGE, 0);
}

fn crash_registers(t: &mut Test) {
    if !CRASH.offered() {
        return t.eq("absent", get(synthetic::CRASH_P0), None);
    }
    for (number, msr) in (synthetic::CRASH_P0..=synthetic::CRASH_P4).enumerate() {
        for value in [u64::MAX, 0x1234_5678_9abc_def0 + number as u64] {
            kept(t, "a parameter", msr, value);
        }
    }
    for (number, msr) in (synthetic::CRASH_P0..=synthetic::CRASH_P4).enumerate() {
        t.eq(("each for itself", msr), get(msr), Some(0x1234_5678_9abc_def0 + number as u64));
        insn::wrmsr(msr, 0);
    }
    // It tells what a guest may ask for: to notify, and to give a message.
    let ability = hyperv::CRASH_NOTIFY | hyperv::CRASH_MESSAGE;
    t.eq("abilities", insn::rdmsr(synthetic::CRASH_CTL), ability);
    for value in [0, 1, hyperv::CRASH_MESSAGE, hyperv::CRASH_NOTIFY - 1] {
        let taken = set(synthetic::CRASH_CTL, value);
        t.holds(("no crash without its bit", value), taken);
        t.eq("abilities stay", get(synthetic::CRASH_CTL), Some(ability));
    }
}

fn reset_register(t: &mut Test) {
    if !RESET.offered() {
        return t.eq("absent", get(synthetic::RESET), None);
    }
    t.eq("reads 0", get(synthetic::RESET), Some(0));
    t.holds("0 does nothing", set(synthetic::RESET, 0));
    t.eq("still 0", get(synthetic::RESET), Some(0));
}

/// INIT makes a processor new, but not the partition: what another VP set up stays.
fn init_keeps_what_is_the_partitions(t: &mut Test) {
    if !hv::present() || smp::count() < 2 {
        return t.eq("no registers", get(synthetic::GUEST_OS_ID).is_some(), hv::present());
    }
    let page = hv::hypercall_page();
    let index = || {
        smp::begin(1, |_| SEEN[1].store(insn::rdmsr(synthetic::VP_INDEX), Ordering::SeqCst));
        smp::wait(1);
        SEEN[1].load(Ordering::SeqCst)
    };
    let before = index();
    smp::restart(1);
    t.eq("identity", get(synthetic::GUEST_OS_ID), Some(hv::OS_ID));
    t.eq("page", get(synthetic::HYPERCALL), Some(page | PAGE_ENABLE));
    t.eq("its index", index(), before);
    insn::wrmsr(synthetic::GUEST_OS_ID, 0);
    refused(t, "VP index", synthetic::VP_INDEX, 7);
}
