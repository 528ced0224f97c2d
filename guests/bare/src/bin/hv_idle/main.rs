//! The idle state that a read of HV_X64_MSR_GUEST_IDLE begins (TLFS, virtual processor idle sleep state): it ends when an
//! interrupt arrives, also one that is masked, by the flag or by the priority of what is in service. Linux' spinlocks wait
//! in it for one IPI; if that is lost, nothing else wakes them. So most of this is such locks, contended by vCPUs with
//! and without timers, and sleep by STI and HLT.
//!
//! `ms=N` on the command line: how long each of the two goes on (default 200).

#![no_std]
#![no_main]

mod lock;

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};

use lock::{CONTEXTS, Lock, Node};
use satori_guests::cpu::Cpu;
use satori_guests::defs::apic::{self as regs, icr};
use satori_guests::defs::hyperv::{PAGE_ENABLE, Status, call, msr};
use satori_guests::defs::x86::{rflags, vector};
use satori_guests::harness::option;
use satori_guests::hyperv::{self as hv, Control, bit};
use satori_guests::msr::{get, refused, set};
use satori_guests::smp::{self, MAX_CPUS};
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, apic, code, guest, handler, insn, paging, println};

guest!("hv_idle", register, ends, masked, deaf, kicked, slept);

/// As Linux has them: what wakes and what calls is of a class above the timer's, whose EOI comes last.
const TICK: u8 = 0xed;
const KICK: u8 = 0xf7;
const CALL: u8 = 0xfb;
const WAKE: u8 = 0xfd;
const NMI: u32 = 4 << 8;

/// What a run without progress for so many milliseconds is: stuck.
const PATIENCE_MS: u64 = 20_000;
/// More rounds than those that the first tokens make are proof that they went on.
const ROUNDS_LEAST: u64 = 10;

fn register(t: &mut Test) {
    if !bit::GUEST_IDLE.offered() {
        return refused(t, "not offered", msr::GUEST_IDLE, 0);
    }
    apic::send_self(KICK);
    t.eq("reads 0 while an interrupt waits", get(msr::GUEST_IDLE), Some(0));
    t.eq("again", get(msr::GUEST_IDLE), Some(0));
    t.holds("read-only", !set(msr::GUEST_IDLE, 0));
    t.eq("which comes now", hv::interrupt_within(200_000), Some(KICK));
    apic::eoi();
}

/// RDMSR with these flags, with an APIC timer running: the event, and the ticks of the APIC's timer that it had left.
fn idle_with(flags: u64) -> (satori_guests::Event, u32) {
    apic::write(regs::TIMER_DIVIDE, 0xb);
    apic::write(regs::LVT_TIMER, u32::from(TICK));
    apic::write(regs::TIMER_INITIAL, 2_000);
    let s = Subject::kernel(code!("rdmsr" => "nop")).with(reg::RCX, msr::GUEST_IDLE.into()).flags(flags);
    let event = s.run();
    (event, apic::read(regs::TIMER_CURRENT))
}

fn ends(t: &mut Test) {
    if !bit::GUEST_IDLE.offered() {
        return t.holds("nothing to end", true);
    }
    for _ in 0..20 {
        let (event, left) = idle_with(0);
        t.holds("it goes on behind the instruction", event.done());
        t.eq("when the timer has run out", left, 0);
        t.holds("and the interrupt waits", apic::bit(regs::IRR, TICK));
        t.eq("to come", hv::interrupt_within(200_000), Some(TICK));
        apic::eoi();
        let (event, left) = idle_with(rflags::IF);
        t.eq("the interrupt comes", (event.vector, left), (TICK, 0));
        t.eq("behind the instruction", event.regs.gpr[reg::RAX], 0);
        t.holds(
            "and not before it",
            event.regs.rip > Subject::kernel(code!("rdmsr" => "nop")).regs.rip
                || event.regs.gpr[reg::RDX] == 0,
        );
        apic::eoi();
    }
    let own = apic::read(regs::ID) >> 24;
    let both = code!("mov dword ptr [rdi + 0x300], eax", "mov ecx, 0x400000f0" => "rdmsr" => "nop");
    apic::write(regs::ICR_HIGH, own << 24);
    let s =
        Subject::kernel(both).with(reg::RDI, regs::DEFAULT_BASE).with(reg::RAX, u64::from(NMI | icr::ASSERT));
    t.eq("NMI", s.run().vector, vector::NMI);
}

/// One that the priority holds back ends it, too.
fn masked(t: &mut Test) {
    if !bit::GUEST_IDLE.offered() {
        return t.holds("nothing to end", true);
    }
    insn::set_cr8(15);
    let (event, left) = idle_with(rflags::IF);
    t.holds("by the task priority", event.done() && left == 0 && apic::bit(regs::IRR, TICK));
    insn::set_cr8(0);
    t.eq("it comes", hv::interrupt_within(200_000), Some(TICK));
    apic::eoi();
    apic::send_self(CALL);
    t.eq("in service", hv::interrupt_within(200_000), Some(CALL));
    let (event, left) = idle_with(rflags::IF);
    t.holds("by one in service", event.done() && left == 0 && apic::bit(regs::IRR, TICK));
    apic::eoi();
    t.eq("it comes then", hv::interrupt_within(200_000), Some(TICK));
    apic::eoi();
}

/// A local APIC that is disabled takes no interrupt, so that none could end it: it does not begin.
fn deaf(t: &mut Test) {
    if !bit::GUEST_IDLE.offered() {
        return t.holds("nothing to begin", true);
    }
    let svr = apic::read(regs::SVR);
    apic::write(regs::SVR, svr & !regs::svr::ENABLE);
    apic::send_self(KICK);
    t.eq("reads 0 at once where no interrupt can arrive", get(msr::GUEST_IDLE), Some(0));
    t.eq("again", get(msr::GUEST_IDLE), Some(0));
    apic::write(regs::SVR, svr);
    t.eq("what was sent meanwhile is lost", hv::interrupt_within(20_000), None);
}

handler!(idle_kick, "idle_kick", idle_on_kick, "idle_on_kick");
handler!(idle_tick, "idle_tick", idle_on_tick, "idle_on_tick");
handler!(idle_call, "idle_call", idle_on_call, "idle_on_call");
handler!(idle_wake, "idle_wake", idle_on_wake, "idle_on_wake");
handler!(idle_nmi, "idle_nmi", idle_on_nmi, "idle_on_nmi");

const LOCKS: usize = 3;
/// The first is taken by handlers too, and so with interrupts off.
static LOCK: [Lock; LOCKS] = [const { Lock::new() }; LOCKS];
static NODES: [Node; MAX_CPUS * CONTEXTS] = [const { Node::new() }; MAX_CPUS * CONTEXTS];
static PROTECTED: [AtomicU64; LOCKS] = [const { AtomicU64::new(0) }; LOCKS];
static HYPERCALLS: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

/// One vCPU, as the others see it.
struct Place {
    vp_index: AtomicU64,
    assist: AtomicU64,
    taken: [AtomicU64; LOCKS],
    idled: AtomicU64,
    kicks: AtomicU64,
    spared: AtomicU64,
    /// Calls that it was sent and has answered.
    calls: AtomicU64,
    answered: AtomicU64,
    /// It has something to do, and the rounds that it did.
    needed: AtomicBool,
    rounds: AtomicU64,
    seed: AtomicU64,
    /// What its APIC held when it was asked.
    irr: AtomicU64,
    isr: AtomicU64,
}

static PLACES: [Place; MAX_CPUS] = [const {
    Place {
        vp_index: AtomicU64::new(0),
        assist: AtomicU64::new(0),
        taken: [const { AtomicU64::new(0) }; LOCKS],
        idled: AtomicU64::new(0),
        kicks: AtomicU64::new(0),
        spared: AtomicU64::new(0),
        calls: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        needed: AtomicBool::new(false),
        rounds: AtomicU64::new(0),
        seed: AtomicU64::new(1),
        irr: AtomicU64::new(0),
        isr: AtomicU64::new(0),
    }
}; MAX_CPUS];

fn here() -> (usize, &'static Place) {
    let number = Cpu::this().number;
    (number, &PLACES[number])
}

fn random(place: &Place) -> u64 {
    let next =
        place.seed.load(Relaxed).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    place.seed.store(next, Relaxed);
    next >> 33
}

/// Interrupts off; whether they were on.
fn interrupts_off() -> bool {
    let flags: u64;
    // SAFETY: reads the flags, and masks interrupts.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags & rflags::IF != 0
}

fn restore(on: bool) {
    if on {
        // SAFETY: they were on.
        unsafe { asm!("sti") };
    }
}

/// What a waiter does when it has looked often enough, as hv_qlock_wait.
pub fn wait(byte: &AtomicU8, value: u8) {
    if !bit_idle() {
        return insn::pause();
    }
    let on = interrupts_off();
    if byte.load(Relaxed) == value {
        here().1.idled.fetch_add(1, Relaxed);
        insn::rdmsr(msr::GUEST_IDLE);
    }
    restore(on);
}

static IDLE: AtomicBool = AtomicBool::new(false);
fn bit_idle() -> bool {
    IDLE.load(Relaxed)
}

/// One IPI: by hypercall where there is one.
fn send(to: usize, vector: u8) {
    let on = interrupts_off();
    match HYPERCALLS.load(Relaxed) {
        0 => apic::send(icr::ASSERT | u32::from(vector), if to == 0 { 0 } else { smp::apic_id(to) }),
        page => {
            let control = Control::new(call::SEND_SYNTHETIC_CLUSTER_IPI).fast();
            let mask = 1u64 << PLACES[to].vp_index.load(Relaxed);
            let status: u64;
            // SAFETY: the page holds the hypercall's instruction and a return.
            unsafe {
                asm!("call {page}", page = in(reg) page, in("rcx") control.0, in("rdx") u64::from(vector),
                     in("r8") mask, out("rax") status, clobber_abi("sysv64"));
            }
            if status != Status::Success as u64 {
                REFUSED.fetch_add(1, Relaxed);
            }
        }
    }
    restore(on);
}

/// As hv_apic_eoi_write.
fn eoi(place: &Place) {
    let page = place.assist.load(Relaxed);
    if page != 0 {
        // SAFETY: the page is this vCPU's, and the host's.
        let word = unsafe { core::sync::atomic::AtomicU32::from_ptr(page as *mut u32) };
        if word.swap(0, SeqCst) & 1 != 0 {
            place.spared.fetch_add(1, Relaxed);
            return;
        }
        return insn::wrmsr(msr::EOI, 0);
    }
    apic::eoi();
}

fn locked(number: usize, context: usize, which: usize, work: u64) {
    let place = &PLACES[number];
    LOCK[which].lock(&NODES, number * CONTEXTS + context, 1 + (random(place) % 6) as u32);
    let before = PROTECTED[which].load(Relaxed);
    for _ in 0..work {
        insn::pause();
    }
    PROTECTED[which].store(before + 1, Relaxed);
    if let Some(next) = LOCK[which].unlock() {
        send(next / CONTEXTS, KICK);
    }
    place.taken[which].fetch_add(1, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn idle_on_kick() {
    let (_, place) = here();
    eoi(place);
    place.kicks.fetch_add(1, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn idle_on_tick() {
    let (number, place) = here();
    locked(number, 1, 0, random(place) % 8);
    if !STOP.load(Relaxed) {
        apic::write(regs::TIMER_INITIAL, 2_000 + (random(place) % 60_000) as u32);
    }
    eoi(place);
}

#[unsafe(no_mangle)]
extern "C" fn idle_on_call() {
    let (number, place) = here();
    // Linux takes a lock of its clock before the EOI, if the vCPU was idle: the kick is of the same class, and masked.
    if random(place) & 1 == 0 {
        eoi(place);
        locked(number, 1, 0, 0);
    } else {
        locked(number, 1, 0, 0);
        eoi(place);
    }
    place.answered.store(place.calls.load(SeqCst), SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn idle_on_wake() {
    eoi(here().1);
}

#[unsafe(no_mangle)]
extern "C" fn idle_on_nmi() {
    let (_, place) = here();
    let all = |first: u16| u64::from(apic::read(first + 0x70)) << 32 | u64::from(apic::read(first + 0x60));
    place.irr.store(all(regs::IRR), SeqCst);
    place.isr.store(all(regs::ISR) | 1, SeqCst);
}

fn set_up(number: usize) {
    let place = &PLACES[number];
    let handlers = [
        (KICK, &raw const idle_kick),
        (TICK, &raw const idle_tick),
        (CALL, &raw const idle_call),
        (WAKE, &raw const idle_wake),
        (vector::NMI, &raw const idle_nmi),
    ];
    for (vector, handler) in handlers {
        handler::install(vector, handler);
    }
    place.seed.store((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), Relaxed);
    if bit::VP_INDEX.offered() {
        place.vp_index.store(insn::rdmsr(msr::VP_INDEX), Relaxed);
    }
    let assist = place.assist.load(Relaxed);
    if assist != 0 {
        insn::wrmsr(msr::VP_ASSIST_PAGE, assist | PAGE_ENABLE);
    }
}

/// Contends for the locks until it is stopped.
fn contend(number: usize) {
    set_up(number);
    let place = &PLACES[number];
    RUNNING.fetch_add(1, SeqCst);
    // Every other one has no timer: nothing wakes it but what has to.
    if number % 2 == 1 {
        apic::write(regs::TIMER_DIVIDE, 0xb);
        apic::write(regs::LVT_TIMER, u32::from(TICK));
        apic::write(regs::TIMER_INITIAL, 1_000);
    }
    insn::sti();
    while !STOP.load(Relaxed) {
        let choice = random(place);
        // Mostly long enough that others go to sleep.
        let work = if choice & 64 == 0 { choice >> 8 & 2047 } else { choice >> 8 & 15 };
        match choice % 64 {
            0..=35 => {
                let on = interrupts_off();
                locked(number, 0, 0, work);
                restore(on);
            }
            36..=55 => locked(number, 0, 1 + (choice >> 3) as usize % (LOCKS - 1), work),
            _ => {
                let other = 1 + (choice >> 8) as usize % (smp::count() - 1);
                if other != number {
                    PLACES[other].calls.fetch_add(1, SeqCst);
                    send(other, CALL);
                }
            }
        }
        if choice >> 20 & 3 == 0 {
            for _ in 0..choice >> 22 & 63 {
                insn::pause();
            }
        }
        place.rounds.fetch_add(1, Relaxed);
    }
    RUNNING.fetch_sub(1, SeqCst);
    // Those who still wait for a lock that a handler here may be asked for.
    while RUNNING.load(SeqCst) != 0 {
        insn::pause();
    }
    insn::cli();
    apic::write(regs::TIMER_INITIAL, 0);
}

/// Sleeps by STI and HLT until it is needed, and lets the next one be needed.
fn sleep(number: usize) {
    set_up(number);
    let place = &PLACES[number];
    RUNNING.fetch_add(1, SeqCst);
    while !STOP.load(Relaxed) {
        insn::cli();
        while !place.needed.swap(false, SeqCst) {
            // SAFETY: waits for an interrupt, which STI lets in behind HLT only.
            unsafe { asm!("sti", "hlt", "cli") };
        }
        insn::sti();
        let choice = random(place);
        for _ in 0..choice & 31 {
            insn::pause();
        }
        place.rounds.fetch_add(1, Relaxed);
        // Two tokens at most go round; one that would meet the other waits for it.
        let next = 1 + number % (smp::count() - 1);
        while PLACES[next].needed.swap(true, SeqCst) && !STOP.load(Relaxed) {
            insn::pause();
        }
        send(next, WAKE);
        // Something that comes at about the time when the other goes to sleep, and is no reason to wake.
        if choice & 32 != 0 {
            send(1 + (choice >> 8) as usize % (smp::count() - 1), KICK);
        }
    }
    RUNNING.fetch_sub(1, SeqCst);
    insn::cli();
}

/// Rounds of all.
fn rounds() -> u64 {
    PLACES.iter().map(|place| place.rounds.load(SeqCst)).sum()
}

/// Lets all others `work` for a while; whether they never stood still.
fn for_a_while(t: &mut Test, what: &str, work: fn(usize)) {
    let cpus = smp::count();
    IDLE.store(bit::GUEST_IDLE.offered(), SeqCst);
    if bit::APIC_ACCESS.offered() {
        for place in &PLACES[1..cpus] {
            if place.assist.load(SeqCst) == 0 {
                place.assist.store(paging::page(), SeqCst);
            }
        }
    }
    if bit::CLUSTER_IPI.offered() && bit::VP_INDEX.offered() {
        HYPERCALLS.store(hv::hypercall_page(), SeqCst);
    }
    STOP.store(false, SeqCst);
    for number in 1..cpus {
        smp::begin(number, work);
    }
    while RUNNING.load(SeqCst) != cpus - 1 {
        insn::pause();
    }
    // Both tokens of those who sleep.
    for first in [1, cpus / 2] {
        PLACES[first].needed.store(true, SeqCst);
        send(first, WAKE);
    }
    let hz = if bit::FREQUENCIES.offered() { insn::rdmsr(msr::TSC_FREQUENCY) } else { 2_000_000_000 };
    let ms: u64 = option("ms").and_then(|text| text.parse().ok()).unwrap_or(200);
    let patience = hz / 1000 * PATIENCE_MS;
    let start = insn::rdtsc();
    let mut seen = [(0, start); MAX_CPUS];
    let mut stuck = || {
        let now = insn::rdtsc();
        (1..cpus).any(|number| {
            let (rounds, moved) = &mut seen[number];
            let before = core::mem::replace(rounds, PLACES[number].rounds.load(SeqCst));
            if *rounds != before {
                *moved = now;
            }
            now.wrapping_sub(*moved) > patience
        })
    };
    // A host that takes the vCPUs away leaves them fewer rounds: then it takes longer.
    let before = rounds();
    while insn::rdtsc().wrapping_sub(start) < hz / 1000 * ms || rounds() - before <= ROUNDS_LEAST {
        smp::spin(hz / 1000);
        if stuck() {
            return tell(t, what, hz);
        }
    }
    STOP.store(true, SeqCst);
    for (number, place) in PLACES.iter().enumerate().take(cpus).skip(1) {
        place.needed.store(true, SeqCst);
        send(number, WAKE);
    }
    let stopped = insn::rdtsc();
    while RUNNING.load(SeqCst) != 0 {
        insn::pause();
        if insn::rdtsc().wrapping_sub(stopped) > patience {
            return tell(t, what, hz);
        }
    }
    for number in 1..cpus {
        smp::wait(number);
    }
    t.holds((what, "goes on"), (1..cpus).all(|number| PLACES[number].rounds.load(SeqCst) > 0));
    t.eq((what, "no call is refused"), REFUSED.load(SeqCst), 0);
}

/// Somebody waits for ever: what for.
fn tell(t: &mut Test, what: &str, hz: u64) {
    t.holds((what, "goes on"), false);
    for lock in &LOCK {
        println!("lock {:x?}", lock.tell());
    }
    for number in 1..smp::count() {
        let place = &PLACES[number];
        apic::send(NMI | icr::ASSERT, smp::apic_id(number));
        smp::spin(hz / 10);
        let (irr, isr) = (place.irr.load(SeqCst), place.isr.load(SeqCst) & !1);
        let (task, in_handler) = (NODES[number * CONTEXTS].tell(), NODES[number * CONTEXTS + 1].tell());
        let assist = match place.assist.load(SeqCst) {
            0 => 0,
            page => hv::peek32(page),
        };
        println!(
            "{number}: {} rounds, idle {} times, {} kicks, needed {}, IRR {irr:x}, ISR {isr:x}, assist {assist:x}, \
             waits {task:x?}, in a handler {in_handler:x?}",
            place.rounds.load(SeqCst),
            place.idled.load(SeqCst),
            place.kicks.load(SeqCst),
            place.needed.load(SeqCst)
        );
    }
}

fn kicked(t: &mut Test) {
    if smp::count() < 3 {
        return t.holds("nobody contends", true);
    }
    for_a_while(t, "contention", contend);
    let total = |what: fn(&Place) -> u64| -> u64 { PLACES.iter().map(what).sum() };
    for (which, protected) in PROTECTED.iter().enumerate() {
        let taken: u64 = PLACES.iter().map(|place| place.taken[which].load(SeqCst)).sum();
        t.eq(("nobody was in it beside another", which), protected.load(SeqCst), taken);
    }
    let (idled, kicks) = (total(|p| p.idled.load(SeqCst)), total(|p| p.kicks.load(SeqCst)));
    t.eq("they went idle", idled > 0, bit_idle());
    println!(
        "kicked: {} rounds, idle {idled} times, {kicks} kicks, {} EOIs spared",
        total(|p| p.rounds.load(SeqCst)),
        total(|p| p.spared.load(SeqCst))
    );
}

fn slept(t: &mut Test) {
    if smp::count() < 3 {
        return t.holds("nobody to wake", true);
    }
    let before = rounds();
    for_a_while(t, "sleep", sleep);
    let rounds = rounds() - before;
    t.holds("they woke each other", rounds > ROUNDS_LEAST);
    println!("slept: {rounds} rounds");
}
