//! The local APIC: requests, priorities, shadows, NMI, timer, IPIs, x2APIC; clocks against each other.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicUsize, Ordering};

use satori_guests::apic::{self, bit, eoi, msr, read, send, send_self, write};
use satori_guests::cpu::{Cpu, selector};
use satori_guests::defs::apic::{self as regs, esr, icr, lvt};
use satori_guests::defs::chipset::{mmio, port};
use satori_guests::defs::msr::{IA32_APIC_BASE, IA32_TSC_DEADLINE};
use satori_guests::defs::x86::{rflags, vector};
use satori_guests::smp::{self, Barrier};
use satori_guests::subject::{DONE, reg};
use satori_guests::{Event, Expect, Subject, Test, code, guest, insn};

guest!(
    "apic",
    registers,
    requests,
    priorities,
    task_priority,
    interrupt_shadow,
    interrupted_strings,
    halt,
    nmi,
    errors,
    timer_one_shot,
    timer_periodic,
    timer_deadline,
    x2apic,
    ipis,
    clocks,
);

/// Waits with interrupts on for the next event.
fn wait() -> Event {
    Subject::kernel(code!("2: pause", "jmp 2b")).flags(rflags::IF).run()
}

/// Whether nothing is delivered within a few instructions.
fn quiet() -> bool {
    Subject::kernel(code!("mov ecx, 1000", "2: dec ecx", "jnz 2b")).flags(rflags::IF).run().done()
}

fn registers(t: &mut Test) {
    t.eq("the first vCPU's ID", read(regs::ID) >> 24, insn::cpuid(1, 0)[1] >> 24);
    let version = read(regs::VERSION);
    t.holds("an integrated APIC", (0x10..=0x15).contains(&(version & 0xff)) && version >> 16 & 0xff >= 4);
    for (register, write_mask) in [(regs::TPR, 0xff), (regs::LDR, 0xff00_0000), (regs::TIMER_DIVIDE, 0xb)] {
        let before = read(register);
        for value in [0, u32::MAX, 0x5a5a_5a5a] {
            write(register, value);
            t.eq(("write mask", register, value), read(register), value & write_mask);
        }
        write(register, before);
    }
    let dfr = read(regs::DFR);
    write(regs::DFR, 0);
    t.eq("DFR's low bits are ones", read(regs::DFR), 0x0fff_ffff);
    write(regs::DFR, dfr);
    // Software disable masks every LVT entry, and unmasking does not stick.
    write(regs::LVT_TIMER, 0x40);
    write(regs::SVR, 0xff);
    t.eq("masked by software disable", read(regs::LVT_TIMER) & lvt::MASKED, lvt::MASKED);
    write(regs::LVT_TIMER, 0x40);
    t.eq("stays masked", read(regs::LVT_TIMER) & lvt::MASKED, lvt::MASKED);
    apic::enable();
    t.eq("masked after enabling", read(regs::LVT_TIMER) & lvt::MASKED, lvt::MASKED);
    t.eq(
        "nothing pending",
        (0..8).map(|n| read(regs::IRR + 16 * n) | read(regs::ISR + 16 * n)).sum::<u32>(),
        0,
    );
}

fn requests(t: &mut Test) {
    send_self(0x51);
    t.holds("requested", bit(regs::IRR, 0x51) && !bit(regs::ISR, 0x51));
    // The entering IRETQ turns interrupts on: the first instruction does not begin.
    let event = Subject::kernel(code!("nop")).flags(rflags::IF).run();
    t.event("at once", &event, Expect::trap(0x51).at(satori_guests::subject::At::Probe));
    t.holds("in service", !bit(regs::IRR, 0x51) && bit(regs::ISR, 0x51));
    t.eq("PPR", read(regs::PPR), 0x50);
    t.eq("an interrupt gate turns interrupts off", event.handler_rflags & rflags::IF, 0);
    // The same vector waits behind itself, once.
    send_self(0x51);
    send_self(0x51);
    t.holds("waits", bit(regs::IRR, 0x51) && quiet());
    eoi();
    t.eq("then comes", wait().vector, 0x51);
    eoi();
    t.holds("only once", quiet());
    t.eq("PPR is low again", read(regs::PPR), 0);
    // From user mode.
    send_self(0x52);
    let event = Subject::user(code!("nop")).flags(rflags::IF).run();
    t.eq("from user mode", (event.vector, event.regs.cs), (0x52, selector::USER_CODE.into()));
    eoi();
    eoi();
    t.holds("one EOI too many does nothing", quiet());
}

fn priorities(t: &mut Test) {
    for vector in [0x31, 0x75, 0x42, 0x99, 0x74, 0xfe] {
        send_self(vector);
    }
    for vector in [0xfe, 0x99, 0x75, 0x74, 0x42, 0x31] {
        t.eq("the highest first", wait().vector, vector);
        eoi();
    }
    // A higher class interrupts, the same class waits.
    send_self(0x55);
    t.eq("first", wait().vector, 0x55);
    send_self(0x5f);
    t.holds("the same class waits", quiet());
    send_self(0x60);
    t.eq("a higher class comes", wait().vector, 0x60);
    t.eq("PPR of the higher", read(regs::PPR), 0x60);
    eoi();
    t.eq("PPR of the lower", read(regs::PPR), 0x50);
    t.holds("the same class still waits", quiet());
    eoi();
    t.eq("now it comes", wait().vector, 0x5f);
    eoi();
}

fn task_priority(t: &mut Test) {
    for (tpr, vector, comes) in [
        (0x40, 0x4f, false),
        (0x40, 0x50, true),
        (0x4f, 0x50, true),
        (0x5f, 0x5f, false),
        (0xff, 0xfe, false),
    ] {
        write(regs::TPR, tpr);
        t.eq(("CR8", tpr), insn::cr8(), u64::from(tpr >> 4));
        send_self(vector);
        t.eq(("held back", tpr, vector), quiet(), !comes);
        if comes {
            eoi();
            // `quiet` took it.
            t.holds("nothing left", quiet());
        } else {
            write(regs::TPR, 0);
            t.eq(("after TPR", tpr, vector), wait().vector, vector);
            eoi();
        }
        write(regs::TPR, 0);
    }
    insn::set_cr8(7);
    t.eq("TPR from CR8", read(regs::TPR), 0x70);
    send_self(0x61);
    // MOV to CR8 lets it in after itself.
    let open = code!("nop" => "mov cr8, rax" => "nop", "nop");
    let event = Subject::kernel(open).flags(rflags::IF).with(reg::RAX, 0).run();
    t.event("MOV to CR8", &event, Expect::trap(0x61));
    eoi();
    let s = Subject::kernel(code!("mov cr8, rax")).with(reg::RAX, 16);
    t.event("CR8 has four bits", &s.run(), Expect::gp(0));
    t.eq("and keeps its value", insn::cr8(), 0);
}

fn interrupt_shadow(t: &mut Test) {
    send_self(0x55);
    let event = Subject::kernel(code!("sti" => "nop" => "nop")).run();
    t.event("after STI's next instruction", &event, Expect::trap(0x55));
    eoi();
    send_self(0x55);
    let event = Subject::kernel(code!("sti", "cli", "nop")).run();
    t.event("STI CLI lets nothing in", &event, Expect::done());
    let event = Subject::kernel(code!("sti", "cli", "sti" => "nop" => "nop")).run();
    t.event("but a second STI", &event, Expect::trap(0x55));
    eoi();
    send_self(0x55);
    let event = Subject::kernel(code!("pushfq", "or dword ptr [rsp], 0x200" => "popfq" => "nop")).run();
    t.event("POPF has no shadow", &event, Expect::trap(0x55));
    eoi();
    // STI with interrupts on already has none either.
    insn::set_cr8(15);
    send_self(0x55);
    let s = Subject::kernel(code!("mov cr8, rax", "sti", "nop")).flags(rflags::IF);
    let event = s.run();
    t.eq("MOV to CR8 before STI", event.vector, 0x55);
    eoi();
    // MOV SS and POP SS hold interrupts off for one instruction, also single steps and NMIs.
    for (name, code) in [
        ("MOV SS", code!("cli", "mov ecx, ss", "sti", "mov ss, ecx" => "nop" => "nop")),
        ("MOV SS and STI", code!("mov ecx, ss", "mov ss, ecx" => "sti" => "nop", "nop")),
    ] {
        send_self(0x56);
        let event = Subject::kernel(code).run();
        let at = event.at();
        let code = event.subject;
        // One instruction more than the last shadow is allowed, none less.
        t.holds((name, at, code.after), event.vector == 0x56 && at >= code.probe);
        eoi();
    }
    let step =
        code!("mov ecx, ss", "pushfq", "or dword ptr [rsp], 0x100", "popfq", "mov ss, ecx" => "nop" => "nop");
    let event = Subject::kernel(step).run();
    t.event("a single step waits for MOV SS's next", &event, Expect::trap(vector::DB));
    // A fault of the next instruction is not held off.
    let event = Subject::kernel(code!("mov ecx, ss", "mov ss, ecx" => "ud2")).run();
    t.event("a fault in the shadow", &event, Expect::fault(vector::UD));
}

fn interrupted_strings(t: &mut Test) {
    // REP with a count that takes longer than the timer: RIP stays at the instruction, RF is set.
    const COUNT: u64 = 1 << 30;
    write(regs::LVT_TIMER, 0x57);
    write(regs::TIMER_DIVIDE, 0xb);
    let s =
        Subject::kernel(code!("rep lodsb")).with(reg::RCX, COUNT).with(reg::RSI, 0x10_0000).flags(rflags::IF);
    // Where the host takes the vCPU away in between, the timer comes before the first iteration.
    for attempt in 1.. {
        write(regs::TIMER_INITIAL, 100_000 * attempt);
        let event = s.run();
        eoi();
        let done = COUNT - event.regs.gpr[reg::RCX];
        if done == 0 && attempt < 100 {
            continue;
        }
        t.eq("interrupted", (event.vector, event.at()), (0x57, 0));
        t.holds("some were done", done > 0 && done < COUNT);
        t.holds("RF is set", event.regs.rflags & rflags::RF != 0);
        t.eq("RSI and RCX agree", event.regs.gpr[reg::RSI], 0x10_0000 + done);
        break;
    }
}

fn halt(t: &mut Test) {
    write(regs::LVT_TIMER, 0x58);
    write(regs::TIMER_DIVIDE, 0xb);
    write(regs::TIMER_INITIAL, 100_000);
    let event = Subject::kernel(code!("sti" => "hlt" => "nop")).run();
    t.event("HLT ends", &event, Expect::trap(0x58));
    eoi();
    // What came before HLT wakes it at once.
    send_self(0x59);
    let event = Subject::kernel(code!("sti" => "hlt" => "nop")).run();
    t.event("no wake-up is lost", &event, Expect::trap(0x59));
    eoi();
}

const NMI: u32 = 4 << 8;

fn nmi(t: &mut Test) {
    let to_self = read(regs::ID) >> 24;
    let send_nmi = || send(NMI | icr::ASSERT, to_self);
    // NMI is masked until the next IRET, which enters the subject.
    let event = Subject::kernel(code!("int3")).run();
    t.eq("a first event", event.vector, vector::BP);
    Cpu::this().idt[2] = Cpu::this().idt[2].ist(2);
    let write_icr =
        code!("mov dword ptr [rdi + 0x310], ecx" => "mov dword ptr [rdi + 0x300], eax" => "nop", "nop");
    let s = Subject::kernel(write_icr)
        .with(reg::RDI, regs::DEFAULT_BASE)
        .with(reg::RCX, u64::from(to_self) << 24)
        .with(reg::RAX, u64::from(NMI | icr::ASSERT));
    let event = s.run();
    t.eq("NMI with interrupts off", (event.vector, event.code), (vector::NMI, None));
    t.eq("its RF", event.regs.rflags & rflags::RF, 0);
    t.holds("right after the write", event.at() >= event.subject.after && event.at() < event.subject.end);
    // This runs with NMIs masked: two more become one.
    send_nmi();
    send_nmi();
    t.holds("masked", true);
    let event = Subject::kernel(code!("nop")).run();
    t.eq("delivered after IRET", event.vector, vector::NMI);
    let event = Subject::kernel(code!("nop")).run();
    t.event("only one was kept", &event, Expect::done());
    t.holds("no trace in IRR", !bit(regs::IRR, 2));
    Cpu::this().reset_gates();
}

fn errors(t: &mut Test) {
    write(regs::LVT_ERROR, 0x5b);
    write(regs::ESR, 0);
    send(icr::SELF | icr::ASSERT | 5, 0);
    t.eq("an error interrupt", wait().vector, 0x5b);
    eoi();
    t.eq("ESR before it is written", read(regs::ESR), 0);
    write(regs::ESR, 0);
    let found = read(regs::ESR);
    t.holds(("illegal vector", found), found & esr::SEND_ILLEGAL_VECTOR != 0);
    write(regs::ESR, 0);
    t.eq("cleared", read(regs::ESR), 0);
    write(regs::LVT_ERROR, lvt::MASKED);
}

fn timer_one_shot(t: &mut Test) {
    write(regs::TIMER_DIVIDE, 0xb);
    write(regs::LVT_TIMER, lvt::MASKED | 0x5c);
    write(regs::TIMER_INITIAL, u32::MAX);
    let first = read(regs::TIMER_CURRENT);
    smp::spin(10_000);
    t.holds("it counts down", read(regs::TIMER_CURRENT) < first && first > 0);
    write(regs::TIMER_INITIAL, 0);
    t.eq("stopped by 0", read(regs::TIMER_CURRENT), 0);
    write(regs::TIMER_INITIAL, 1000);
    while read(regs::TIMER_CURRENT) != 0 {
        insn::pause();
    }
    write(regs::LVT_TIMER, 0x5c);
    t.holds("what expired masked is lost", quiet());
    write(regs::TIMER_INITIAL, 1000);
    t.eq("it fires", wait().vector, 0x5c);
    t.eq("at 0", read(regs::TIMER_CURRENT), 0);
    eoi();
    t.holds("once", quiet());
}

fn timer_periodic(t: &mut Test) {
    write(regs::LVT_TIMER, lvt::PERIODIC | 0x5d);
    write(regs::TIMER_INITIAL, 50_000);
    for round in 0..5 {
        t.eq(("period", round), wait().vector, 0x5d);
        eoi();
    }
    write(regs::TIMER_INITIAL, 0);
    // One may have come in between.
    if bit(regs::IRR, 0x5d) {
        t.eq("the last", wait().vector, 0x5d);
        eoi();
    }
    t.holds("stopped", quiet());
    write(regs::LVT_TIMER, lvt::MASKED);
}

fn timer_deadline(t: &mut Test) {
    if insn::cpuid(1, 0)[2] >> 24 & 1 == 0 {
        let event = Subject::kernel(code!("rdmsr")).with(reg::RCX, IA32_TSC_DEADLINE.into()).run();
        t.event("absent", &event, Expect::gp(0));
        return;
    }
    write(regs::LVT_TIMER, lvt::TSC_DEADLINE | 0x5e);
    insn::mfence();
    // Far away: the host may take the vCPU away before it is read.
    let far = insn::rdtsc() + 1_000_000_000_000;
    insn::wrmsr(IA32_TSC_DEADLINE, far);
    t.eq("armed", insn::rdmsr(IA32_TSC_DEADLINE), far);
    let deadline = insn::rdtsc() + 100_000;
    insn::wrmsr(IA32_TSC_DEADLINE, deadline);
    t.eq("fires", wait().vector, 0x5e);
    t.holds("not early", insn::rdtsc() >= deadline);
    t.eq("disarmed", insn::rdmsr(IA32_TSC_DEADLINE), 0);
    eoi();
    insn::wrmsr(IA32_TSC_DEADLINE, 1);
    t.eq("in the past", wait().vector, 0x5e);
    eoi();
    insn::wrmsr(IA32_TSC_DEADLINE, insn::rdtsc() + 1_000_000_000_000);
    insn::wrmsr(IA32_TSC_DEADLINE, 0);
    t.holds("taken back", quiet());
    write(regs::TIMER_INITIAL, 1000);
    t.eq("the initial count does nothing", read(regs::TIMER_CURRENT), 0);
    write(regs::LVT_TIMER, lvt::MASKED);
    insn::wrmsr(IA32_TSC_DEADLINE, insn::rdtsc() + 1000);
    t.eq("the MSR does nothing in another mode", insn::rdmsr(IA32_TSC_DEADLINE), 0);
}

fn x2apic(t: &mut Test) {
    if insn::cpuid(1, 0)[2] >> 21 & 1 == 0 {
        t.holds("no x2APIC here", true);
        return;
    }
    let id = read(regs::ID) >> 24;
    let gp = |t: &mut Test, what: &str, code, register: u32, value: u64| {
        let s = Subject::kernel(code).with(reg::RCX, register.into()).with(reg::RAX, value & 0xffff_ffff);
        t.event((what, register, value), &s.with(reg::RDX, value >> 32).run(), Expect::gp(0));
    };
    let (rdmsr, wrmsr) = (code!("rdmsr"), code!("wrmsr"));
    gp(t, "its MSRs in xAPIC mode", rdmsr, msr(regs::ID), 0);
    let base = insn::rdmsr(IA32_APIC_BASE);
    gp(t, "x2APIC without enable", wrmsr, IA32_APIC_BASE, base & !regs::base::EN | regs::base::EXTD);
    gp(t, "reserved bits of the base", wrmsr, IA32_APIC_BASE, base | 1);
    apic::to_x2apic();
    t.eq("ID", insn::rdmsr(msr(regs::ID)), id.into());
    t.eq("LDR", insn::rdmsr(msr(regs::LDR)), u64::from(id >> 4) << 16 | 1 << (id & 15));
    for register in [regs::DFR, regs::ICR_HIGH, regs::APR, 0x0, 0x10, 0x40, 0xc0, 0x390 + 0x10, 0x3f0 - 0x20]
    {
        gp(t, "reserved", rdmsr, msr(register), 0);
    }
    for register in [regs::EOI, regs::SELF_IPI] {
        gp(t, "write only", rdmsr, msr(register), 0);
    }
    for register in [regs::ID, regs::VERSION, regs::PPR, regs::LDR, regs::ISR, regs::IRR, regs::TIMER_CURRENT]
    {
        gp(t, "read only", wrmsr, msr(register), 0);
    }
    gp(t, "EOI of something", wrmsr, msr(regs::EOI), 1);
    gp(t, "ESR of something", wrmsr, msr(regs::ESR), 1);
    gp(t, "reserved bits of TPR", wrmsr, msr(regs::TPR), 0x100);
    gp(t, "reserved bits of SVR", wrmsr, msr(regs::SVR), 1 << 40);
    gp(t, "back to xAPIC at once", wrmsr, IA32_APIC_BASE, base);
    insn::wrmsr(msr(regs::SELF_IPI), 0x64);
    t.eq("a self IPI", wait().vector, 0x64);
    insn::wrmsr(msr(regs::EOI), 0);
    insn::wrmsr(msr(regs::ICR), u64::from(id) << 32 | u64::from(icr::ASSERT) | 0x65);
    t.eq("an IPI in one write", wait().vector, 0x65);
    insn::wrmsr(msr(regs::EOI), 0);
    t.eq("ICR reads back", insn::rdmsr(msr(regs::ICR)) >> 32, id.into());
    apic::to_xapic();
    t.eq("xAPIC again", insn::rdmsr(IA32_APIC_BASE), base);
    send_self(0x66);
    t.eq("and it works", wait().vector, 0x66);
    eoi();
}

static BARRIER: Barrier = Barrier::new();
/// What each vCPU was interrupted by, last.
static GOT: [AtomicUsize; smp::MAX_CPUS] = [const { AtomicUsize::new(0) }; smp::MAX_CPUS];
/// Whether each vCPU is in its subject, where an NMI is welcome.
static INSIDE: [AtomicUsize; smp::MAX_CPUS] = [const { AtomicUsize::new(0) }; smp::MAX_CPUS];
/// xAPIC IDs, by number.
static IDS: [AtomicUsize; smp::MAX_CPUS] = [const { AtomicUsize::new(0) }; smp::MAX_CPUS];
/// Whether the waiting is over.
static STOP: AtomicUsize = AtomicUsize::new(0);

/// Waits for interrupts until [`STOP`], and tells which came.
fn receive(number: usize) {
    IDS[number].store((read(regs::ID) >> 24) as usize, Ordering::SeqCst);
    write(regs::LDR, 1 << (24 + number));
    BARRIER.meet(smp::count());
    let code =
        code!("2: mov qword ptr [rsi], 1", "cmp qword ptr [rdi], 0", "jne 3f", "pause", "jmp 2b", "3: nop");
    while STOP.load(Ordering::SeqCst) == 0 {
        let event = Subject::kernel(code)
            .with(reg::RDI, STOP.as_ptr() as u64)
            .with(reg::RSI, INSIDE[number].as_ptr() as u64)
            .flags(rflags::IF)
            .run();
        INSIDE[number].store(0, Ordering::SeqCst);
        if event.vector != DONE {
            GOT[number].store(event.vector.into(), Ordering::SeqCst);
            if event.vector != vector::NMI {
                eoi();
            }
        }
    }
}

fn ipis(t: &mut Test) {
    let cpus = smp::count();
    if cpus < 3 {
        t.holds("more vCPUs are needed, say cpus=4", false);
        return;
    }
    STOP.store(0, Ordering::SeqCst);
    for number in 1..cpus {
        smp::begin(number, receive);
    }
    write(regs::LDR, 1 << 24);
    IDS[0].store((read(regs::ID) >> 24) as usize, Ordering::SeqCst);
    BARRIER.meet(cpus);
    let id = |number: usize| IDS[number].load(Ordering::SeqCst) as u32;
    for number in 1..cpus {
        t.holds(("its own ID", number), (0..number).all(|other| id(other) != id(number)));
    }
    let everyone = (1 << cpus) - 1;
    let fixed = icr::ASSERT;
    let mut check = |what: &str, low: u32, destination: u32, vector: u8, receivers: usize| {
        for got in &GOT {
            got.store(0, Ordering::SeqCst);
        }
        for inside in INSIDE.iter().take(cpus).skip(1) {
            while inside.load(Ordering::SeqCst) == 0 {
                insn::pause();
            }
        }
        send(low | u32::from(vector), destination);
        for (number, got) in GOT.iter().enumerate().take(cpus) {
            let meant = receivers >> number & 1 != 0;
            if number == 0 {
                let pending = vector != 2 && bit(regs::IRR, vector);
                t.eq((what, "this one"), pending, meant);
                if pending {
                    t.eq((what, "this one's"), wait().vector, vector);
                    eoi();
                }
                continue;
            }
            if meant {
                while got.load(Ordering::SeqCst) == 0 {
                    insn::pause();
                }
            }
            let want = if meant { usize::from(vector) } else { 0 };
            t.eq((what, number), got.load(Ordering::SeqCst), want);
        }
    };
    for number in 1..cpus {
        check("physical", fixed, id(number), 0x70 + number as u8, 1 << number);
        check("logical, flat", fixed | icr::LOGICAL, 1 << number, 0x80 + number as u8, 1 << number);
        check("NMI", fixed | NMI, id(number), 2, 1 << number);
    }
    check("all but this", fixed | icr::OTHERS, 0, 0x91, everyone & !1);
    check("all", fixed | icr::ALL, 0, 0x92, everyone);
    check("this by its shorthand", fixed | icr::SELF, 0, 0x93, 1);
    check("physical broadcast", fixed, 0xff, 0x94, everyone);
    check("logical, two", fixed | icr::LOGICAL, 6, 0x95, 6);
    check("logical, all", fixed | icr::LOGICAL, 0xff, 0x96, everyone);
    check("nobody", fixed, 0x77, 0x97, 0);
    STOP.store(1, Ordering::SeqCst);
    for number in 1..cpus {
        smp::wait(number);
    }
}

/// Ticks of the PM timer in a second (ACPI 6.5, 4.8.3.3).
const PM_HZ: u64 = 3_579_545;
/// Ticks of the PIT in a second.
const PIT_HZ: u64 = 1_193_182;

fn clocks(t: &mut Test) {
    // Channel 2 of the PIT, gated on, counts down while the PM timer, HPET and TSC go on.
    insn::out8(port::SYSTEM_CONTROL_B, insn::in8(port::SYSTEM_CONTROL_B) & !2 | 1);
    insn::out8(port::PIT + 3, 0xb4);
    insn::out8(port::PIT + 2, 0xff);
    insn::out8(port::PIT + 2, 0xff);
    let pit = || {
        insn::out8(port::PIT + 3, 0x80);
        u64::from(insn::in8(port::PIT + 2)) | u64::from(insn::in8(port::PIT + 2)) << 8
    };
    let pm = || u64::from(insn::in32(port::PM_TMR) & 0xff_ffff);
    let hpet = |offset: u64| {
        // SAFETY: the HPET's registers are mapped.
        unsafe { ((mmio::HPET + offset) as *mut u64).read_volatile() }
    };
    // SAFETY: as above; the enable bit of the general configuration.
    unsafe { ((mmio::HPET + 0x10) as *mut u64).write_volatile(1) };
    let period = hpet(0) >> 32;
    let pm_since = |start: u64| pm().wrapping_sub(start) & 0xff_ffff;
    // All clocks at one time: again if the host took the vCPU away in between.
    let all = || loop {
        let first = pm();
        let read = (pit(), first, hpet(0xf0), insn::rdtsc());
        if pm_since(first) < PM_HZ / 1000 {
            break read;
        }
    };
    // The host may take the vCPU away for longer than the PIT takes to wrap, 54 ms: then again.
    let (start, end) = loop {
        let start = all();
        while pm_since(start.1) < PM_HZ / 50 {
            insn::pause();
        }
        let end = all();
        if end.1.wrapping_sub(start.1) & 0xff_ffff < PM_HZ / 25 {
            break (start, end);
        }
    };
    let pm_us = (end.1.wrapping_sub(start.1) & 0xff_ffff) * 1_000_000 / PM_HZ;
    let pit_us = (start.0.wrapping_sub(end.0) & 0xffff) * 1_000_000 / PIT_HZ;
    let hpet_us = u128::from(end.2 - start.2) * u128::from(period) / 1_000_000_000;
    // Each reading took less than a millisecond of the 20 in between.
    let near = |other: u64| other * 10 > pm_us * 9 && other * 9 < pm_us * 10;
    t.holds(("PIT and PM timer", pit_us, pm_us), near(pit_us));
    t.holds(("HPET and PM timer", hpet_us, pm_us), near(hpet_us as u64));
    t.holds("TSC goes on", end.3 > start.3);
    let leaf = insn::cpuid(0x15, 0);
    if insn::cpuid(0, 0)[0] >= 0x15 && leaf[2] != 0 && leaf[0] != 0 {
        let hz = u64::from(leaf[2]) * u64::from(leaf[1]) / u64::from(leaf[0]);
        let tsc_us = (end.3 - start.3) * 1000 / (hz / 1000);
        t.holds(("TSC and PM timer", tsc_us, pm_us), near(tsc_us));
    }
}
