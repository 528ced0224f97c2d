//! A guest that behaves like that of the talk on traps: it takes its timer as Windows does, renders on all vCPUs, and sends
//! interprocessor interrupts to sets of them. What it does how often is on its command line (`crates/tools/bench/data/game.conf`
//! says where that is from). The case `ladder` counts ticks of one timer.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use satori_guests::cpu::Cpu;
use satori_guests::defs::apic::{self as regs, icr, lvt};
use satori_guests::defs::chipset::{hpet, ioapic, irq, mmio, pit, port, rtc};
use satori_guests::defs::hyperv::synic::message::{PENDING, SIZE_AND_FLAGS};
use satori_guests::defs::hyperv::synic::stimer::{DIRECT, ENABLE, PERIODIC, SINT_SHIFT, VECTOR_SHIFT};
use satori_guests::defs::hyperv::synic::{SCONTROL_ENABLE, SINT_AUTO_EOI, SLOT_BYTES};
use satori_guests::defs::hyperv::{NO_EOI_REQUIRED, PAGE_ENABLE, call, flush, leaf, msr};
use satori_guests::harness::option;
use satori_guests::hyperv::{bit, hypercall_page, peek32, present};
use satori_guests::smp::Barrier;
use satori_guests::{Test, apic, guest, handler, insn, paging, println, smp};

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

/// A timer that the guest may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Timer {
    Lapic,
    Stimer,
    StimerMessage,
    Hpet,
    Rtc,
    Pit,
}

impl Timer {
    const ALL: [(&'static str, Timer); 6] = [
        ("lapic", Timer::Lapic),
        ("stimer-direct", Timer::Stimer),
        ("stimer-message", Timer::StimerMessage),
        ("hpet", Timer::Hpet),
        ("rtc", Timer::Rtc),
        ("pit", Timer::Pit),
    ];

    fn name(self) -> &'static str {
        Timer::ALL.iter().find(|(_, timer)| *timer == self).map_or("", |(name, _)| name)
    }

    /// Windows: with a hypervisor the synthetic timer, else HPET, else RTC; without one the local APIC's first.
    fn choose() -> Timer {
        let visible = insn::cpuid(1, 0)[2] >> 31 != 0;
        let stimer = if bit::DIRECT_TIMERS.offered() { Timer::Stimer } else { Timer::StimerMessage };
        let hpet = peek32(mmio::HPET) != u32::MAX && option("hpet") != Some("off");
        if !visible || option("prefer") == Some("lapic") {
            Timer::Lapic
        } else if bit::SYNTHETIC_TIMERS.offered() && bit::SYNIC.offered() {
            stimer
        } else if hpet {
            Timer::Hpet
        } else {
            Timer::Rtc
        }
    }
}

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

fn timer() -> Timer {
    let chosen = SHARED.timer.load(Ordering::Relaxed);
    Timer::ALL.iter().find(|(_, timer)| *timer as u32 == chosen).map_or(Timer::Lapic, |(_, timer)| *timer)
}

fn number(name: &str, default: u64) -> u64 {
    option(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn hpet_read(register: u64) -> u64 {
    // SAFETY: the HPET's registers are mapped, and do nothing when read.
    unsafe { ((mmio::HPET + register) as *const u64).read_volatile() }
}

fn hpet_write(register: u64, value: u64) {
    // SAFETY: as in `hpet_read`; the guest owns its machine.
    unsafe { ((mmio::HPET + register) as *mut u64).write_volatile(value) };
}

fn route(pin: u8, entry: u64) {
    for (half, value) in [(1, (entry >> 32) as u32), (0, entry as u32)] {
        // SAFETY: the I/O APIC's registers are mapped.
        unsafe {
            ((mmio::IOAPIC + ioapic::IOREGSEL) as *mut u32)
                .write_volatile(u32::from(ioapic::IOREDTBL + 2 * pin + half));
            ((mmio::IOAPIC + ioapic::IOWIN) as *mut u32).write_volatile(value);
        }
    }
}

fn rtc_write(register: u8, value: u8) {
    insn::out8(port::RTC, register);
    insn::out8(port::RTC + 1, value);
}

fn rtc_read(register: u8) -> u8 {
    insn::out8(port::RTC, register);
    insn::in8(port::RTC + 1)
}

fn pit_arm() {
    let count = (pit::HZ / SHARED.tick_hz.load(Ordering::Relaxed).max(19)).min(0xffff);
    insn::out8(port::PIT, count as u8);
    insn::out8(port::PIT, (count >> 8) as u8);
}

/// Arms the HPET's first timer for its next tick, as a one-shot.
fn hpet_arm() {
    let next = hpet_read(hpet::MAIN_CNT) + SHARED.hpet_ticks.load(Ordering::Relaxed);
    hpet_write(hpet::TIMER + hpet::TN_COMP, next);
}

/// The message page of this vCPU, with the SINTs as a guest sets them: with auto-EOI unless that is deprecated.
fn set_up_synic(this: usize) {
    let page = MESSAGES[this].load(Ordering::Relaxed);
    insn::wrmsr(msr::SIMP, page | PAGE_ENABLE);
    let ends = if bit::DEPRECATE_AUTO_EOI.offered() { 0 } else { SINT_AUTO_EOI };
    insn::wrmsr(msr::SINT0, u64::from(SPARE) | ends);
    insn::wrmsr(msr::SINT0 + TIMER_SINT as u32, u64::from(TICK) | ends);
    insn::wrmsr(msr::SCONTROL, SCONTROL_ENABLE);
}

/// Starts this vCPU's timer. HPET, RTC and PIT are one for all.
fn start_timer(this: usize) {
    let hz = SHARED.tick_hz.load(Ordering::Relaxed).max(1);
    match timer() {
        Timer::Lapic => {
            apic::write(regs::TIMER_DIVIDE, BY_ONE);
            apic::write(regs::LVT_TIMER, u32::from(TICK));
            apic::write(regs::TIMER_INITIAL, SHARED.lapic_ticks.load(Ordering::Relaxed));
        }
        of @ (Timer::Stimer | Timer::StimerMessage) => {
            set_up_synic(this);
            let how = match of {
                Timer::Stimer => DIRECT | u64::from(TICK) << VECTOR_SHIFT,
                _ => TIMER_SINT << SINT_SHIFT,
            };
            insn::wrmsr(msr::STIMER0_CONFIG + 1, 10_000_000 / hz);
            insn::wrmsr(msr::STIMER0_CONFIG, ENABLE | PERIODIC | how);
        }
        _ if this != 0 => {}
        Timer::Hpet if option("ladder").is_some() => {
            // As a tickless kernel: one-shot, on an edge.
            hpet_write(hpet::GEN_CONF, hpet::ENABLE_CNF);
            let pin = u64::from(hpet::FIRST_PIN);
            hpet_write(hpet::TIMER + hpet::TN_CONF, pin << hpet::TN_INT_ROUTE_SHIFT | hpet::TN_INT_ENB_CNF);
            route(hpet::FIRST_PIN, u64::from(TICK));
            hpet_arm();
        }
        Timer::Hpet => {
            // Periodic, on a level, of which EOI_INDUCED exits come.
            let pin = u64::from(hpet::FIRST_PIN);
            let period = SHARED.hpet_ticks.load(Ordering::Relaxed);
            let how = hpet::TN_INT_TYPE_CNF | hpet::TN_INT_ENB_CNF | hpet::TN_TYPE_CNF | hpet::TN_VAL_SET_CNF;
            hpet_write(hpet::TIMER + hpet::TN_CONF, pin << hpet::TN_INT_ROUTE_SHIFT | how);
            hpet_write(hpet::TIMER + hpet::TN_COMP, hpet_read(hpet::MAIN_CNT) + period);
            hpet_write(hpet::TIMER + hpet::TN_COMP, period);
            route(hpet::FIRST_PIN, u64::from(TICK) | ioapic::TRIGGER_MODE);
            hpet_write(hpet::GEN_CONF, hpet::ENABLE_CNF);
        }
        Timer::Rtc => {
            // Rate n is 65,536 >> n a second, for 3 to 15.
            let rate = (3..=15).find(|rate| 65_536 >> rate <= hz).unwrap_or(15);
            route(irq::RTC, u64::from(TICK));
            rtc_write(rtc::A, 0x20 | rate);
            rtc_write(rtc::B, rtc_read(rtc::B) | 1 << 6);
            rtc_read(rtc::C);
        }
        Timer::Pit => {
            route(ioapic::PIT_PIN as u8, u64::from(TICK));
            // Counter 0, both bytes, mode 0: one tick for each count.
            insn::out8(port::PIT + 3, pit::ACCESS_BOTH);
            pit_arm();
        }
    }
}

fn stop_timer(this: usize) {
    match timer() {
        Timer::Lapic => apic::write(regs::LVT_TIMER, lvt::MASKED),
        Timer::Stimer | Timer::StimerMessage => insn::wrmsr(msr::STIMER0_CONFIG, 0),
        _ if this != 0 => {}
        Timer::Hpet => hpet_write(hpet::TIMER + hpet::TN_CONF, 0),
        Timer::Rtc => route(irq::RTC, ioapic::MASK),
        Timer::Pit => route(ioapic::PIT_PIN as u8, ioapic::MASK),
    }
}

/// What a tick asks of its timer. Whether the interrupt is ended already.
fn ticked(this: usize) -> bool {
    TICKS.fetch_add(1, Ordering::Relaxed);
    match timer() {
        Timer::Lapic => {
            apic::write(regs::TIMER_INITIAL, SHARED.lapic_ticks.load(Ordering::Relaxed));
        }
        Timer::Stimer => {}
        Timer::StimerMessage => {
            let slot = MESSAGES[this].load(Ordering::Relaxed) + SLOT_BYTES * TIMER_SINT;
            // SAFETY: the slot is this vCPU's to empty.
            unsafe { (slot as *mut u32).write_volatile(0) };
            insn::mfence();
            if peek32(slot + SIZE_AND_FLAGS) & PENDING != 0 {
                insn::wrmsr(msr::EOM, 0);
            }
            return SHARED.auto_eoi.load(Ordering::Relaxed) != 0;
        }
        Timer::Hpet if option("ladder").is_some() => hpet_arm(),
        Timer::Hpet => hpet_write(hpet::GINTR_STA, 1),
        Timer::Rtc => {
            rtc_read(rtc::C);
        }
        Timer::Pit => pit_arm(),
    }
    false
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

/// Random numbers that are the same in every run (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// A set of other vCPUs within `cluster`: a bit for each of its four.
fn choose_within(random: &mut Random, cluster: usize, this: usize, cpus: usize, targets: u64) -> u64 {
    let first = cluster * 4;
    let there = (first..cpus.min(first + 4)).filter(|cpu| *cpu != this);
    let mut left = there.clone().count() as u64;
    let mut wanted = targets.clamp(1, left.max(1));
    let mut set = 0;
    for cpu in there {
        // Each of those that are left is as likely.
        if random.below(left) < wanted {
            set |= 1 << (cpu - first);
            wanted -= 1;
        }
        left -= 1;
    }
    set
}

/// The clusters of a set, one that is chosen or all.
fn choose_clusters(random: &mut Random, cpus: usize, wide: bool) -> core::ops::Range<usize> {
    let clusters = cpus.div_ceil(4);
    let one = random.below(clusters as u64) as usize;
    if wide { 0..clusters } else { one..one + 1 }
}

/// Sends `vector` to a set: by the APIC's register, or its MSR where the guest is told to use these.
fn send(cluster: usize, set: u64, vector: u8) {
    let low = icr::ASSERT | icr::LOGICAL | u32::from(vector);
    let destination = (((cluster as u64) << 4 | set) as u32) << 24;
    if SHARED.by_msr.load(Ordering::Relaxed) != 0 {
        insn::wrmsr(msr::ICR, u64::from(destination) << 32 | u64::from(low));
    } else {
        apic::write(regs::ICR_HIGH, destination);
        apic::write(regs::ICR, low);
    }
}

/// Something that is done so many times a second by all vCPUs together.
struct Every {
    period: u64,
    next: u64,
}

impl Every {
    fn new(name: &str, this: usize, cpus: usize, start: u64) -> Every {
        let (rate, hz) = (number(name, 0), SHARED.tsc_hz.load(Ordering::Relaxed));
        let period = (hz * cpus as u64).checked_div(rate).unwrap_or(u64::MAX);
        // Not all at the same time.
        Every { period, next: start.saturating_add(period / cpus as u64 * (this as u64 + 1)) }
    }

    fn due(&mut self, now: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = self.next.saturating_add(self.period);
        }
        due
    }
}

/// What a frame is made of, a little of it.
fn render(state: &mut [u64; 8]) {
    for round in 0..48 {
        for at in 0..state.len() {
            let other = state[(at + 3) % state.len()];
            state[at] = state[at].wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ other ^ round;
        }
    }
}

/// A frame that is being rendered: so many rounds, however long they take.
struct Frame {
    random: Random,
    began: u64,
    left: u64,
    /// How many are still to be counted, the same ones in every run.
    wanted: u64,
    /// How long a round takes where nothing disturbs it; 0: frames are not rendered.
    round_ps: u64,
}

impl Frame {
    fn first(this: usize, now: u64) -> Frame {
        let random = Random(0x1000 + this as u64);
        let (wanted, round_ps) = (number("frames", 0), number("round-ps", 0));
        let mut frame = Frame { random, began: now, left: 0, wanted, round_ps };
        frame.next(now);
        frame
    }

    fn next(&mut self, now: u64) {
        let (least, most) = (number("frame-least", 15_000), number("frame-most", 18_000));
        let us = least + self.random.below(most.saturating_sub(least) + 1);
        self.began = now;
        self.left = (us * 1_000_000).checked_div(self.round_ps).unwrap_or(u64::MAX).max(1);
    }

    /// Counts a round, and the frame if that was its last one.
    fn round(&mut self, now: u64) {
        if self.left == 0 && self.wanted > 0 {
            self.wanted -= 1;
            let took = now - self.began;
            FRAMES.fetch_add(1, Ordering::Relaxed);
            FRAME_TICKS.fetch_add(took, Ordering::Relaxed);
            IN_TIME.fetch_add((took * 55 < SHARED.tsc_hz.load(Ordering::Relaxed)).into(), Ordering::Relaxed);
            self.next(now);
        }
        self.left = self.left.saturating_sub(1);
    }
}

/// Per mille of the rounds, spread evenly.
struct Share {
    part: u64,
    sum: u64,
}

impl Share {
    fn of(name: &str) -> Share {
        Share { part: number(name, 0), sum: 0 }
    }

    fn next(&mut self) -> bool {
        self.sum += self.part;
        let whole = self.sum >= 1000;
        if whole {
            self.sum -= 1000;
        }
        whole
    }
}

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
            // What goes to several clusters takes a write for each, or one call.
            let broad = wide.next();
            let mut mask = 0;
            for cluster in choose_clusters(&mut random, cpus, broad) {
                let set = choose_within(&mut random, cluster, this, cpus, targets);
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
            let mut mask = 0;
            for cluster in choose_clusters(&mut random, cpus, true) {
                let set = choose_within(&mut random, cluster, this, cpus, targets);
                mask |= set << (cluster * 4);
                if set != 0 && !flush_call {
                    send(cluster, set, FLUSH);
                }
            }
            if flush_call {
                let input = INPUT[this].load(Ordering::Relaxed);
                // SAFETY: the page is this vCPU's.
                unsafe {
                    (input as *mut [u64; 3]).write_volatile([0, flush::ALL_VIRTUAL_ADDRESS_SPACES, mask]);
                }
                hypercall(call::FLUSH_VIRTUAL_ADDRESS_SPACE.into(), input, 0);
            }
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
