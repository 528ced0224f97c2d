//! A guest that behaves like that of the talk on traps: it takes its timer as Windows does, renders on all vCPUs, and sends
//! interprocessor interrupts to sets of them. What it does how often is on its command line (`crates/tools/bench/data/game.conf`
//! says where that is from). The case `ladder` counts ticks of one timer.

#![no_std]
#![no_main]

mod pace;
mod sets;
mod timer;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pace::{Every, Frame, Share, render};
use satori_guests::cpu::Cpu;
use satori_guests::defs::apic::{self as regs, lvt};
use satori_guests::defs::chipset::{hpet, port};
use satori_guests::defs::hyperv::{NO_EOI_REQUIRED, PAGE_ENABLE, call, flush, leaf, msr};
use satori_guests::harness::option;
use satori_guests::hyperv::{bit, hypercall_page, present};
use satori_guests::smp::Barrier;
use satori_guests::{Test, apic, guest, handler, insn, paging, println, smp};
use sets::{Random, choose_clusters, choose_within, send};
use timer::{Timer, hpet_read, start_timer, stop_timer, ticked, timer};

guest!("game", play, ladder);

/// Vectors: IPIs to sets, remote flushes, the timer's, and that of a SINT that nothing uses.
const IPI: u8 = 0x61;
const FLUSH: u8 = 0x71;
const TICK: u8 = 0x81;
const SPARE: u8 = 0x41;
/// Divide configuration: by 1 (SDM figure 11-10).
const BY_ONE: u32 = 0b1011;
/// The SINT of timer messages.
const TIMER_SINT: u64 = 1;

handler!(game_ipi, "game_ipi", game_interrupt, "game_interrupt", IPI);
handler!(game_flush, "game_flush", game_interrupt, "game_interrupt", FLUSH);
handler!(game_tick, "game_tick", game_interrupt, "game_interrupt", TICK);
handler!(game_spare, "game_spare", game_interrupt, "game_interrupt", SPARE);

/// What the vCPUs agree on. Written before they start.
struct Shared {
    timer: AtomicU32,
    /// Ticks of one vCPU's timer a second.
    tick_hz: AtomicU64,
    tsc_hz: AtomicU64,
    /// Counts of the local APIC's timer for one tick.
    lapic_ticks: AtomicU32,
    /// Counts of the HPET for one tick.
    hpet_ticks: AtomicU64,
    call_page: AtomicU64,
    /// ICR and EOI by the Hyper-V interface's MSRs.
    by_msr: AtomicU32,
    /// SINTs end their interrupts themselves.
    auto_eoi: AtomicU32,
    end: AtomicU64,
}

static SHARED: Shared = Shared {
    timer: AtomicU32::new(0),
    tick_hz: AtomicU64::new(1),
    tsc_hz: AtomicU64::new(1),
    lapic_ticks: AtomicU32::new(1),
    hpet_ticks: AtomicU64::new(1),
    call_page: AtomicU64::new(0),
    by_msr: AtomicU32::new(0),
    auto_eoi: AtomicU32::new(0),
    end: AtomicU64::new(0),
};

/// Of each vCPU: its assist page, its message page, its page for input of calls.
static ASSIST: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];
static MESSAGES: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];
static INPUT: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];
static TICKS: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);
static RECEIVED: AtomicU64 = AtomicU64::new(0);
static FRAMES: AtomicU64 = AtomicU64::new(0);
/// Of the frames: their time, and how many took less than 1/55 s.
static FRAME_TICKS: AtomicU64 = AtomicU64::new(0);
static IN_TIME: AtomicU64 = AtomicU64::new(0);
static ROUNDS: AtomicU64 = AtomicU64::new(0);
static MEETING: Barrier = Barrier::new();

fn number(name: &str, default: u64) -> u64 {
    option(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Ends an interrupt as the guest is told to: by the assist page where that spares it, else by register.
fn end_of_interrupt(this: usize) {
    if SHARED.by_msr.load(Ordering::Relaxed) == 0 {
        return apic::eoi();
    }
    let page = ASSIST[this].load(Ordering::Relaxed);
    // SAFETY: the page is the guest's; the host sets and clears the same bit.
    let word = unsafe { AtomicU32::from_ptr(page as *mut u32) };
    if word.fetch_and(!NO_EOI_REQUIRED, Ordering::SeqCst) & NO_EOI_REQUIRED == 0 {
        insn::wrmsr(msr::EOI, 0);
    }
}

#[unsafe(no_mangle)]
extern "C" fn game_interrupt(vector: u8) {
    let this = Cpu::this().number;
    RECEIVED.fetch_add(u64::from(vector == IPI), Ordering::Relaxed);
    if vector == FLUSH {
        insn::set_cr3(insn::cr3());
    }
    if vector == TICK && ticked(this) {
        return;
    }
    end_of_interrupt(this);
}

/// Hypercall with its two words in registers.
fn hypercall(control: u64, first: u64, second: u64) -> u64 {
    let result;
    // SAFETY: the page is the hypervisor's code, which keeps what the C convention keeps.
    unsafe {
        core::arch::asm!(
            "call {page}",
            page = in(reg) SHARED.call_page.load(Ordering::Relaxed),
            in("rcx") control,
            in("rdx") first,
            in("r8") second,
            lateout("rax") result,
            clobber_abi("C"),
        );
    }
    result
}

/// Control word: parameters are in registers.
const FAST: u64 = 1 << 16;

fn set_gates() {
    let gates = [
        (IPI, &raw const game_ipi),
        (FLUSH, &raw const game_flush),
        (TICK, &raw const game_tick),
        (SPARE, &raw const game_spare),
    ];
    for (vector, stub) in gates {
        handler::install(vector, stub);
    }
}

/// An IPI to a set of other vCPUs; `broad` ones go to several clusters, which takes a write for each, or one call.
fn send_ipi(this: usize, random: &mut Random, targets: u64, broad: bool, calls: bool) {
    let cpus = smp::count();
    let mut mask = 0;
    for cluster in choose_clusters(random, cpus, broad) {
        let set = choose_within(random, cluster, this, cpus, targets);
        mask |= set << (cluster * 4);
        if set != 0 && !(broad && calls) {
            send(cluster, set, IPI);
        }
    }
    SENT.fetch_add(1, Ordering::Relaxed);
    if broad && calls {
        hypercall(FAST | u64::from(call::SEND_SYNTHETIC_CLUSTER_IPI), IPI.into(), mask);
    }
}

/// Has a set of other vCPUs flush their TLBs, by IPIs or one call.
fn flush_others(this: usize, random: &mut Random, targets: u64, calls: bool) {
    let cpus = smp::count();
    let mut mask = 0;
    for cluster in choose_clusters(random, cpus, true) {
        let set = choose_within(random, cluster, this, cpus, targets);
        mask |= set << (cluster * 4);
        if set != 0 && !calls {
            send(cluster, set, FLUSH);
        }
    }
    if calls {
        let input = INPUT[this].load(Ordering::Relaxed);
        // SAFETY: the page is this vCPU's.
        unsafe {
            (input as *mut [u64; 3]).write_volatile([0, flush::ALL_VIRTUAL_ADDRESS_SPACES, mask]);
        }
        hypercall(call::FLUSH_VIRTUAL_ADDRESS_SPACE.into(), input, 0);
    }
}

/// One vCPU's part of the game.
fn work(this: usize) {
    let cpus = smp::count();
    set_gates();
    apic::write(regs::DFR, 0x0fff_ffff);
    apic::write(regs::LDR, (((this / 4) << 4 | 1 << (this % 4)) as u32) << 24);
    if SHARED.by_msr.load(Ordering::Relaxed) != 0 {
        insn::wrmsr(msr::VP_ASSIST_PAGE, ASSIST[this].load(Ordering::Relaxed) | PAGE_ENABLE);
    }
    let timer = timer();
    let (calls, flush_call) = (bit::CLUSTER_IPI.offered(), bit::REMOTE_TLB_FLUSH.offered());
    let tells_spins = present() && insn::cpuid(leaf::RECOMMENDATIONS, 0)[1] != u32::MAX;
    MEETING.meet(cpus);
    let hz = SHARED.tsc_hz.load(Ordering::Relaxed);
    let start = insn::rdtsc();
    // The first one that is through says when it ends.
    let _ = SHARED.end.compare_exchange(
        0,
        start + hz / 1000 * number("ms", 100),
        Ordering::SeqCst,
        Ordering::SeqCst,
    );
    let end = SHARED.end.load(Ordering::SeqCst);
    let every = |name| Every::new(name, this, cpus, start);
    let [mut ipis, mut reads, mut debug, mut spins, mut io, mut flushes] =
        ["ipis", "clock-reads", "debug", "spins", "io", "flushes"].map(every);
    let [mut masked, mut priority, mut wide] = ["masked", "priority", "wide"].map(Share::of);
    let targets = number("targets", 1);
    let mut random = Random(this as u64);
    let mut state = [this as u64; 8];
    let (least, most) = (number("frame-least", 15_000), number("frame-most", 18_000));
    // Frames that are not measured go by the clock.
    let by_clock = this == 0 && number("round-ps", 0) == 0;
    let frame =
        |random: &mut Random| (least + random.below(most.saturating_sub(least) + 1)) * (hz / 1_000_000);
    let mut shown = start + frame(&mut random);
    let mut rendered = Frame::first(this, start);
    let mut rounds = 0;
    start_timer(this);
    insn::sti();
    loop {
        let now = insn::rdtsc();
        if now >= end {
            break;
        }
        rounds += 1;
        rendered.round(now);
        if by_clock && now >= shown {
            FRAMES.fetch_add(1, Ordering::Relaxed);
            shown += frame(&mut random);
        }
        if cpus > 1 && ipis.due(now) {
            let broad = wide.next();
            send_ipi(this, &mut random, targets, broad, calls);
        }
        if reads.due(now) {
            match timer {
                Timer::Hpet => drop(hpet_read(hpet::MAIN_CNT)),
                Timer::Rtc => drop(insn::in32(port::PM_TMR)),
                _ => {}
            }
        }
        if debug.due(now) {
            insn::dr7();
        }
        if spins.due(now) && tells_spins {
            hypercall(FAST | u64::from(call::NOTIFY_LONG_SPIN_WAIT), 4096, 0);
        }
        if io.due(now) {
            insn::in8(port::SYSTEM_CONTROL_B);
        }
        if cpus > 1 && flushes.due(now) {
            flush_others(this, &mut random, targets, flush_call);
        }
        if masked.next() {
            insn::cli();
            render(&mut state);
            insn::sti();
        } else if priority.next() {
            insn::set_cr8(15);
            render(&mut state);
            insn::set_cr8(0);
        } else {
            render(&mut state);
        }
    }
    insn::cli();
    stop_timer(this);
    ROUNDS.fetch_add(rounds, Ordering::Relaxed);
    core::hint::black_box(state);
}

/// Finds what the interface is and how fast the clocks are; chooses the timer.
fn prepare(timer: Timer, cpus: usize) {
    let [denominator, numerator, crystal, _] = insn::cpuid(0x15, 0);
    let hz = u64::from(crystal) * u64::from(numerator) / u64::from(denominator.max(1));
    SHARED.tsc_hz.store(hz.max(1_000_000), Ordering::Relaxed);
    let name = match timer {
        Timer::Lapic => "lapic-ticks",
        Timer::Stimer | Timer::StimerMessage => "stimer-ticks",
        Timer::Hpet => "hpet-ticks",
        Timer::Rtc | Timer::Pit => "rtc-ticks",
    };
    let all = number(name, 1000);
    let own = matches!(timer, Timer::Lapic | Timer::Stimer | Timer::StimerMessage);
    let rate = if own { all / cpus as u64 } else { all };
    SHARED.tick_hz.store(rate.max(1), Ordering::Relaxed);
    SHARED.timer.store(timer as u32, Ordering::Relaxed);
    if timer == Timer::Hpet {
        // The period is in femtoseconds.
        let period = 1_000_000_000_000_000 / (hpet_read(0) >> 32).max(1) / rate.max(1);
        SHARED.hpet_ticks.store(period.max(1), Ordering::Relaxed);
    }
    // How fast the local APIC's timer counts.
    apic::write(regs::TIMER_DIVIDE, BY_ONE);
    apic::write(regs::LVT_TIMER, lvt::MASKED);
    apic::write(regs::TIMER_INITIAL, u32::MAX);
    let start = insn::rdtsc();
    smp::spin(hz / 1000);
    let counted = u64::from(u32::MAX - apic::read(regs::TIMER_CURRENT));
    let passed = insn::rdtsc() - start;
    apic::write(regs::TIMER_INITIAL, 0);
    let count = counted * (hz / rate.max(1)) / passed.max(1);
    SHARED.lapic_ticks.store(u32::try_from(count).unwrap_or(u32::MAX).max(1), Ordering::Relaxed);
    // A guest that sees no hypervisor asks it nothing.
    if present() {
        SHARED.call_page.store(hypercall_page(), Ordering::Relaxed);
        SHARED
            .by_msr
            .store((bit::APIC_ACCESS.offered() && bit::USE_APIC_MSRS.offered()).into(), Ordering::Relaxed);
        SHARED.auto_eoi.store((!bit::DEPRECATE_AUTO_EOI.offered()).into(), Ordering::Relaxed);
    }
    for pages in [&ASSIST, &MESSAGES, &INPUT] {
        pages[..cpus].iter().for_each(|page| page.store(paging::page(), Ordering::Relaxed));
    }
}

fn play(t: &mut Test) {
    let cpus = smp::count();
    let timer = Timer::choose();
    prepare(timer, cpus);
    smp::on_all(cpus, work);
    let told = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "timer={} ticks={} sent={} received={} frames={} rounds={} in-time={} frame-ns={}",
        timer.name(),
        told(&TICKS),
        told(&SENT),
        told(&RECEIVED),
        told(&FRAMES),
        told(&ROUNDS),
        told(&IN_TIME),
        (u128::from(told(&FRAME_TICKS)) * 1_000_000_000
            / u128::from(SHARED.tsc_hz.load(Ordering::Relaxed).max(1))) as u64
    );
    // A short game may end before the first tick of a slow timer.
    t.holds("it ticked", told(&TICKS) > 0 || number("ms", 100) < 100);
    t.holds("what was sent came", cpus == 1 || told(&RECEIVED) > 0 || told(&SENT) == 0);
}

/// `ladder=N timer=NAME`: N ticks of one timer, and nothing else.
fn ladder(t: &mut Test) {
    let Some(wanted) = option("ladder").and_then(|text| text.parse::<u64>().ok()) else {
        return t.holds("not asked for", true);
    };
    let name = option("timer").unwrap_or("lapic");
    let Some((_, timer)) = Timer::ALL.iter().find(|(known, _)| *known == name) else {
        return t.holds(("no such timer", name), false);
    };
    prepare(*timer, 1);
    set_gates();
    if SHARED.by_msr.load(Ordering::Relaxed) != 0 {
        insn::wrmsr(msr::VP_ASSIST_PAGE, ASSIST[0].load(Ordering::Relaxed) | PAGE_ENABLE);
    }
    TICKS.store(0, Ordering::Relaxed);
    start_timer(0);
    insn::sti();
    let mut state = [1; 8];
    while TICKS.load(Ordering::Relaxed) < wanted {
        render(&mut state);
    }
    insn::cli();
    stop_timer(0);
    core::hint::black_box(state);
    t.holds("it ticked", true);
}
