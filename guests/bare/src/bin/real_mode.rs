//! Real mode as whoever comes from firmware finds it: vectors that lead somewhere, data about the machine, a place to
//! jump to for a reset; and interrupts that are opened and closed in all ways while the timer ticks.

#![no_std]
#![no_main]

use satori_guests::cpu::mask_pics;
use satori_guests::defs::x86::rflags;
use satori_guests::harness::option;
use satori_guests::insn::{in8, out8};
use satori_guests::legacy::{self, Event, LegacySubject};
use satori_guests::subject::{DONE, reg};
use satori_guests::{Test, code, guest};

guest!("real_mode", data_area, services, first_tick, windows, halts, waits, reset);

/// Linear address of a vector of real mode.
const fn vector(number: u8) -> u64 {
    4 * number as u64
}

const TIMER: u8 = 8;
/// Ticks since midnight, in the BIOS data area.
const TICKS: u64 = 0x46c;

fn read32(at: u64) -> u32 {
    let value: u32;
    // SAFETY: low memory, some of it at 0, where no reference may point.
    unsafe { core::arch::asm!("mov {:e}, [{}]", out(reg) value, in(reg) at, options(nostack, readonly)) };
    value
}

fn write32(at: u64, value: u32) {
    // SAFETY: as above.
    unsafe { core::arch::asm!("mov [{}], {:e}", in(reg) at, in(reg) value, options(nostack)) };
}

/// The firmware's vectors, which `legacy::reset` replaces by its own. Kept at the first call, of the first case.
fn firmware_vectors() {
    static mut KEPT: [u32; 256] = [0; 256];
    static mut DONE_BEFORE: bool = false;
    // SAFETY: one vCPU.
    unsafe {
        if !DONE_BEFORE {
            for number in 0..=255 {
                KEPT[usize::from(number)] = read32(vector(number));
            }
            DONE_BEFORE = true;
        }
    }
    legacy::reset();
    for number in (0..=255).filter(|number| *number != DONE) {
        // SAFETY: one vCPU.
        write32(vector(number), unsafe { KEPT[usize::from(number)] });
    }
}

/// Both 8259As and counter 0 as firmware leaves them, but for the rate: 1,193,182 Hz by `count`.
fn start_timer(count: u16) {
    for (command, base, cascade, mask) in [(0x20, 0x08, 4, 0xf8), (0xa0, 0x70, 2, 0xff)] {
        out8(command, 0x11);
        for word in [base, cascade, 1, mask] {
            out8(command + 1, word);
        }
    }
    out8(0x43, 0x36);
    for byte in count.to_le_bytes() {
        out8(0x40, byte);
    }
}

/// Waits until the first 8259A has a request of the timer.
fn await_request() {
    out8(0x20, 0x0a);
    while in8(0x20) & 1 == 0 {}
}

fn stop_timer() {
    mask_pics();
    // One more tick of no rate: mode 0 without a count.
    out8(0x43, 0x30);
}

/// It ended where it should, and left the stack as it was.
fn done(t: &mut Test, what: &str, s: &LegacySubject) -> Event {
    let event = s.run();
    if !event.done() {
        satori_guests::println!("{what}: {event}");
    }
    t.holds(what, event.done());
    t.eq((what, "SP"), event.regs.gpr[reg::RSP] & 0xffff, 0xfff0);
    event
}

fn data_area(t: &mut Test) {
    firmware_vectors();
    t.eq("KiB of low memory", read32(0x413) & 0xffff, 639);
    t.eq("the extended data area", read32(0x40e) & 0xffff, 0x9fc0);
    t.eq("its KiB", read32(0x9_fc00) & 0xff, 1);
    t.eq("the first serial port", read32(0x400) & 0xffff, 0x3f8);
    t.eq("the model", read32(0xf_fffc) >> 16 & 0xff, 0xfc);
    for number in 0..=255 {
        t.holds(("a vector leads nowhere", number), read32(vector(number)) >> 16 == 0xf000 || number == DONE);
    }
}

fn services(t: &mut Test) {
    firmware_vectors();
    let event = done(t, "INT 12h", &LegacySubject::real(code!(".code16" => "int 0x12")));
    t.eq("low memory", event.regs.gpr[reg::RAX] & 0xffff, 639);
    let event = done(t, "INT 11h", &LegacySubject::real(code!(".code16" => "int 0x11")));
    t.eq("equipment", event.regs.gpr[reg::RAX] & 0xffff, 0x0202);
    for (name, code) in [
        ("INT 15h", code!(".code16", "mov ax, 0xe820", "clc", "int 0x15" => "nop")),
        ("INT 13h", code!(".code16", "mov ax, 0x0201", "clc", "int 0x13" => "nop")),
    ] {
        let event = done(t, name, &LegacySubject::real(code));
        t.eq((name, "AH"), event.regs.gpr[reg::RAX] >> 8 & 0xff, 0x86);
        t.holds((name, "carry"), event.regs.eflags & rflags::CF as u32 != 0);
    }
    let s = LegacySubject::real(code!(".code16", "mov ax, 0x0e41", "int 0x10" => "nop"));
    let event = done(t, "INT 10h", &s);
    t.eq("it changes nothing", event.regs.gpr[reg::RAX] & 0xffff, 0x0e41);
}

/// Who opens interrupts late finds a tick that waits: what handles it is the firmware's.
fn first_tick(t: &mut Test) {
    for rounds in 0..10 {
        firmware_vectors();
        let before = read32(TICKS);
        start_timer(120);
        await_request();
        let event = done(
            t,
            "the first STI",
            &LegacySubject::real(code!(".code16", "mov edx, 0x12345678", "sti", "nop", "nop" => "cli")),
        );
        stop_timer();
        t.eq(("a register", rounds), event.regs.gpr[reg::RDX], 0x1234_5678);
        t.holds(("ticks", rounds), read32(TICKS) != before);
        out8(0x20, 0x0b);
        t.eq(("in service", rounds), in8(0x20), 0);
    }
}

/// Runs `code`, whose looked-at part is the handler of the timer, until it counted `ticks` or more in ESI.
fn ticking(t: &mut Test, what: &str, code: satori_guests::Code, ticks: u32) {
    firmware_vectors();
    let subject = LegacySubject::real(code).with(reg::RBX, ticks).with(reg::RDX, 0x8765_4321);
    write32(vector(TIMER), (legacy::FREE as u32) << 12 | code.probe as u32);
    // 5 kHz.
    start_timer(239);
    let event = done(t, what, &subject);
    stop_timer();
    // Who is stopped while interrupts are open finds another tick when it goes on.
    let counted = event.regs.gpr[reg::RSI];
    t.holds((what, "ticks", counted), counted >= ticks);
    t.eq((what, "EDX"), event.regs.gpr[reg::RDX], 0x8765_4321);
}

/// How many ticks each of the loops below waits for.
fn ticks() -> u32 {
    option("ticks").and_then(|ticks| ticks.parse().ok()).unwrap_or(100)
}

/// The handler of all of them: counts, and ends the interrupt. Then IRET, of 16 bits.
macro_rules! handler {
    ($($before:expr),*) => {
        code!(
            ".code16", "xor esi, esi", $($before,)* "jmp 9f"
            => "push ax", "inc esi", "mov al, 0x20", "out 0x20, al", "pop ax", ".byte 0xcf"
            => "9:", "nop"
        )
    };
}

fn windows(t: &mut Test) {
    let opened = handler!("2:", "sti", "nop", "cli", "cmp esi, ebx", "jb 2b");
    ticking(t, "STI, an instruction, CLI", opened, ticks());
    // Never open: the shadow of STI reaches to CLI. The tick comes by POPF.
    let popped = handler!(
        "2:",
        "sti",
        "cli",
        "mov ax, 0x202",
        "push ax",
        ".byte 0x9d",
        "cli",
        "cmp esi, ebx",
        "jb 2b"
    );
    ticking(t, "POPF", popped, ticks());
    // IRET to what lies behind it: CALL tells where that is.
    let returned = handler!(
        "2:",
        ".byte 0x9c",
        "pop ax",
        "or ax, 0x200",
        "push ax",
        ".byte 0x0e",
        ".byte 0xe8, 0, 0",
        "pop ax",
        ".byte 0x83, 0xc0, 6",
        "push ax",
        ".byte 0xcf",
        "cli",
        "cmp esi, ebx",
        "jb 2b"
    );
    ticking(t, "IRET", returned, ticks());
    let segment = handler!("2:", "sti", "mov ax, ss", "mov ss, ax", "nop", "cli", "cmp esi, ebx", "jb 2b");
    ticking(t, "MOV SS", segment, ticks());
    let repeated = handler!(
        "mov ax, ss",
        "mov es, ax",
        "2:",
        "sti",
        "mov cx, 300",
        "mov di, 0x100",
        "rep stosb",
        "cli",
        "cmp esi, ebx",
        "jb 2b"
    );
    ticking(t, "a repetition", repeated, ticks());
}

fn halts(t: &mut Test) {
    ticking(t, "STI, HLT", handler!("2:", "sti", "hlt", "cli", "cmp esi, ebx", "jb 2b"), ticks());
}

fn waits(t: &mut Test) {
    ticking(t, "an open loop", handler!("sti", "2:", "cmp esi, ebx", "jb 2b", "cli"), ticks());
    // As the above, and software interrupts beside.
    let soft = handler!("sti", "2:", "int 0x1c", "int 0x61", "cmp esi, ebx", "jb 2b", "cli");
    ticking(t, "INT beside", soft, ticks());
}

/// `end=reset`: the way of Linux's `reboot=bios`.
fn reset(t: &mut Test) {
    firmware_vectors();
    if option("end") == Some("reset") {
        LegacySubject::real(code!(".code16" => ".byte 0xea, 0xf0, 0xff, 0x00, 0xf0")).run();
    }
    t.holds("it is not asked for", option("end").is_none());
}
