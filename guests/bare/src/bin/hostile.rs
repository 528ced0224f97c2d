//! A guest that means harm. The monitor has to survive it; how the guest ends does not matter.
//!
//! Run with `only=CASE seed=N`: most cases do not come back, by their nature.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::cpu::{Cpu, Gate};
use satori_guests::defs::chipset::port;
use satori_guests::defs::x86::{cr4, efer, pte, rflags};
use satori_guests::paging::{self, Space};
use satori_guests::subject::{USER, reg};
use satori_guests::{Subject, Test, code, guest, harness, insn, smp};

guest!(
    "hostile",
    ports,
    msrs,
    mmio,
    cpuid,
    nowhere,
    random_code,
    random_user_code,
    page_tables,
    descriptors,
    controls,
    spin,
);

static SEED: AtomicU64 = AtomicU64::new(0);

/// The next number of a generator whose start is `seed=` (xorshift64*).
fn random() -> u64 {
    let mut x = SEED.load(Ordering::Relaxed);
    if x == 0 {
        x = harness::option("seed").and_then(|seed| seed.parse().ok()).unwrap_or(1u64).wrapping_mul(2) | 1;
    }
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    SEED.store(x, Ordering::Relaxed);
    x.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// Heads or tails.
fn coin() -> bool {
    random() & 1 == 0
}

/// A number that is often near a boundary.
fn nasty() -> u64 {
    match random() % 6 {
        0 => random() % 16,
        1 => (random() % 16).wrapping_neg(),
        2 => 1 << (random() % 64),
        3 => (1u64 << (random() % 64)).wrapping_sub(1),
        4 => random() & 0xffff_ffff,
        _ => random(),
    }
}

/// Ports whose writing would end the run too soon to be of use.
fn ends_the_run(number: u16) -> bool {
    matches!(number, 0x92 | 0x64 | 0xf4..=0xf7)
        || (port::PM1A_EVT..port::PM_TMR).contains(&number)
        || number == port::RESET_CONTROL
        || number == port::PVPANIC
}

fn ports(t: &mut Test) {
    for number in 0..=u16::MAX {
        let value = nasty();
        for code in [code!("in al, dx"), code!("in ax, dx"), code!("in eax, dx")] {
            Subject::kernel(code).with(reg::RDX, number.into()).run();
        }
        if !(number.saturating_sub(3)..=number.saturating_add(3)).any(ends_the_run) {
            for code in [code!("out dx, al"), code!("out dx, ax"), code!("out dx, eax")] {
                Subject::kernel(code).with(reg::RDX, number.into()).with(reg::RAX, value).run();
            }
        }
    }
    t.holds("every port", true);
}

fn msrs(t: &mut Test) {
    let ranges = [
        0..0x2000u32,
        0x4000_0000..0x4000_0200,
        0x4b56_4d00..0x4b56_4d10,
        0xc000_0000..0xc000_0200,
        0xc001_0000..0xc001_0200,
    ];
    for index in ranges.into_iter().flatten() {
        // What the capture of events itself needs.
        if matches!(index, 0x1b | 0xc000_0080 | 0x808 | 0x830 | 0x83f) {
            continue;
        }
        let old = Subject::kernel(code!("rdmsr")).with(reg::RCX, index.into()).run();
        let written = Subject::kernel(code!("wrmsr"));
        for _ in 0..4 {
            let value = nasty();
            written
                .with(reg::RCX, index.into())
                .with(reg::RAX, value & 0xffff_ffff)
                .with(reg::RDX, value >> 32)
                .run();
        }
        if old.done() {
            let (low, high) = (old.regs.gpr[reg::RAX], old.regs.gpr[reg::RDX]);
            written.with(reg::RCX, index.into()).with(reg::RAX, low).with(reg::RDX, high).run();
        }
    }
    t.holds("every MSR", true);
}

fn mmio(t: &mut Test) {
    let space = Space::new();
    let window = paging::FREE;
    space.enter();
    for _ in 0..20_000 {
        let physical = match random() % 8 {
            0 => 0xfee0_0000,
            1 => 0xfec0_0000,
            2 => 0xfed0_0000,
            3 => 0xe000_0000 + (random() & 0xf_f000),
            4 => 0xa_0000 + (random() & 0x5_f000),
            5 => random() & 0x3fff_ffff_f000,
            6 => 0xc000_0000 + (random() & 0x3fff_f000),
            _ => 0xff00_0000 + (random() & 0xff_f000),
        };
        // RAM of the guest itself is not what is looked at here.
        if physical < 0xa_0000 || (0x10_0000..0xc000_0000).contains(&physical) {
            continue;
        }
        space.map(window, physical, pte::W);
        insn::invlpg(window);
        let at = window + (random() & 0xfff);
        // A reset through INIT to itself would end the run: not the ICR.
        if physical == 0xfee0_0000 && (0x2f0..0x310).contains(&(at & 0xfff)) {
            continue;
        }
        for code in [
            code!("mov al, [rdi]", "mov [rdi], al"),
            code!("mov eax, [rdi]", "mov [rdi], esi"),
            code!("mov [rdi], rsi"),
            code!("lock add [rdi], rsi"),
            code!("xchg [rdi], esi"),
            code!("movups xmm0, [rdi]", "movups [rdi], xmm0"),
            code!("mov ecx, 9", "rep stosw"),
            code!("lock cmpxchg16b [rdi]"),
            code!("fxsave [rdi]"),
            code!("fbstp [rdi]", "fninit"),
            code!("push [rdi]", "pop [rdi]"),
            code!("call rdi"),
        ] {
            Subject::kernel(code).with(reg::RDI, at).with(reg::RSI, nasty()).run();
        }
    }
    paging::leave();
    t.holds("many addresses", true);
}

fn cpuid(t: &mut Test) {
    for _ in 0..50_000 {
        insn::cpuid(nasty() as u32, nasty() as u32);
    }
    t.holds("many leaves", true);
}

/// Every gate to the stubs, on stacks that are whole, so that most harm comes back.
fn safe_gates() {
    let cpu = Cpu::this();
    for gate in &mut cpu.idt {
        *gate = Gate(gate.0).ist(2);
    }
}

fn nowhere(t: &mut Test) {
    safe_gates();
    for _ in 0..5000 {
        let mut s = if coin() { Subject::kernel(code!("nop")) } else { Subject::user(code!("nop")) };
        s.regs.rip = nasty();
        for register in 0..16 {
            s.regs.gpr[register] = nasty();
        }
        // A single step, so that what is there by chance does not go far.
        s.regs.rflags |= rflags::TF;
        s.run();
    }
    t.holds("many places", true);
}

/// Executes random bytes with random registers at the given level.
fn chaos(t: &mut Test, user: bool) {
    let page = paging::page();
    safe_gates();
    // Not too long at once: the timer ends what spins.
    satori_guests::apic::write(satori_guests::defs::apic::LVT_TIMER, 0x40 | 1 << 17);
    satori_guests::apic::write(satori_guests::defs::apic::TIMER_INITIAL, 200_000);
    for _ in 0..3000 {
        for word in 0..16u64 {
            // SAFETY: the case's own page.
            unsafe { ((page + 8 * word) as *mut u64).write_volatile(random()) };
        }
        let code = code!("nop").moved(page + random() % 64);
        let mut s = if user { Subject::user(code) } else { Subject::kernel(code) };
        for register in 0..16 {
            if register != reg::RSP {
                s.regs.gpr[register] = if coin() { page + random() % 4096 + USER } else { nasty() };
            }
        }
        s.regs.rflags |= random() & (rflags::IF | rflags::DF | rflags::AC | rflags::STATUS | rflags::TF);
        let event = s.run();
        if event.vector >= 0x20 {
            satori_guests::apic::eoi();
        }
    }
    t.holds("it came back", true);
}

fn random_code(t: &mut Test) {
    chaos(t, false);
}

fn random_user_code(t: &mut Test) {
    chaos(t, true);
}

/// The tables that the other vCPU scribbles over.
static TABLES: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);

fn page_tables(t: &mut Test) {
    safe_gates();
    let space = Space::new();
    let linear = paging::FREE;
    let data = paging::pages(4);
    space.map(linear, data, pte::W | pte::U);
    TABLES.store(space.entry(linear, 0) as u64 & !0xfff, Ordering::SeqCst);
    if smp::count() > 1 {
        smp::begin(1, |_| {
            while DONE.load(Ordering::SeqCst) == 0 {
                scribble();
            }
        });
    }
    space.enter();
    for _ in 0..20_000 {
        scribble();
        insn::invlpg(linear);
        let code = match random() % 4 {
            0 => code!("mov rax, [rdi]"),
            1 => code!("lock add [rdi], rsi"),
            2 => code!("mov [rdi], rsi"),
            _ => code!("mov cl, 100", "rep movsb"),
        };
        let at = linear + (random() & 0x1f_ffff);
        let s = if coin() { Subject::kernel(code) } else { Subject::user(code) };
        s.with(reg::RDI, at).with(reg::RSI, at ^ 0x1000).run();
    }
    DONE.store(1, Ordering::SeqCst);
    paging::leave();
    t.holds("it came back", true);
}

/// Writes one entry of the tables that are raced for: mostly to the first megabyte of the pool, to
/// devices, or to nothing; never to the kernel.
fn scribble() {
    let table = TABLES.load(Ordering::SeqCst);
    let at = (table + (random() & 511) * 8) as *mut u64;
    let entry = match random() % 4 {
        0 => 0,
        1 => random() & !(pte::P),
        2 => 0xfed0_0000 | pte::P | pte::W,
        _ => (0x100_0000_0000 + (random() & 0xff_ffff_f000)) | random() & 0xfff,
    };
    // SAFETY: a table of the case's own space.
    unsafe { at.write_volatile(entry) };
}

fn descriptors(t: &mut Test) {
    safe_gates();
    for _ in 0..20_000 {
        let slot = 12 + (random() % 20) as usize;
        Cpu::this().gdt[slot] = random();
        let selector = (slot as u64 * 8) | random() & 7;
        let code = match random() % 8 {
            0 => code!("mov ds, eax"),
            1 => code!("mov ss, eax"),
            2 => code!("lldt ax"),
            3 => code!("lar ecx, eax", "lsl ecx, eax", "verr ax", "verw ax"),
            4 => code!("push rax", "push rbx", "retfq"),
            5 => code!("push rax", "push rbx", "call fword ptr [rsp]"),
            6 => code!("mov fs, eax", "mov gs, eax", "mov rcx, fs:[rbx]"),
            _ => code!("mov es, eax", "mov es:[rbx], cl"),
        };
        let s = if coin() { Subject::kernel(code) } else { Subject::user(code) };
        s.with(reg::RAX, selector).with(reg::RBX, nasty()).run();
    }
    t.holds("it came back", true);
}

fn controls(t: &mut Test) {
    safe_gates();
    for _ in 0..5000 {
        let s = Subject::kernel(code!("mov cr4, rax", "mov rcx, [rbx]", "mov [rbx], rcx"));
        // Not the bits without which nothing runs.
        let keep = cr4::PAE | cr4::OSFXSR | cr4::OSXMMEXCPT;
        let s = s.with(reg::RAX, (nasty() | keep) & !(cr4::LA57 | cr4::PCIDE)).with(reg::RBX, 0x10_0000);
        s.run();
        let s = Subject::kernel(code!("mov cr0, rax", "fld1", "addps xmm0, xmm1"));
        s.with(reg::RAX, nasty() | 1 << 31 | 1).run();
        let s = Subject::kernel(code!("mov dr7, rax", "mov dr0, rbx", "mov rcx, [rbx]"));
        s.with(reg::RAX, nasty() & 0xffff_ffff).with(reg::RBX, nasty()).run();
        insn::set_dr7(0x400);
        let s = Subject::kernel(code!("xor ecx, ecx", "xsetbv"));
        s.with(reg::RAX, nasty() & 0xffff_ffff).with(reg::RDX, 0).run();
        let s = Subject::kernel(code!("wrmsr")).with(reg::RCX, 0xc000_0080);
        let value = nasty() & 0xffff_ffff | efer::LME | efer::LMA | efer::NXE | efer::SCE;
        s.with(reg::RAX, value).with(reg::RDX, 0).run();
    }
    t.holds("it came back", true);
}

fn spin(_: &mut Test) {
    insn::cli();
    loop {
        insn::pause();
    }
}
