//! Modes that long mode left behind: protected mode, segments, gates and tasks, virtual-8086 mode,
//! real mode, and the paging of each.

#![no_std]
#![no_main]

use satori_guests::cpu::{descriptor, rights};
use satori_guests::defs::msr::IA32_EFER;
use satori_guests::defs::x86::{cr4, efer, pte, rflags, vector};
use satori_guests::legacy::{self, Event, LegacySubject, Tss, gate, selector, tables};
use satori_guests::subject::{DONE, reg};
use satori_guests::{Test, code, guest, insn, paging};

guest!(
    "modes",
    protected,
    protected_segments,
    protected_levels,
    paging_32,
    paging_pae,
    virtual_8086,
    real,
    real_limits,
    real_interrupts,
    task_switches,
);

/// The subject comes to its end.
fn done(t: &mut Test, what: &str, s: &LegacySubject) -> Event {
    let event = s.run();
    if !event.done() {
        satori_guests::println!("{what}: {event}");
    }
    t.holds(what, event.done());
    event
}

/// The subject ends with this fault of the looked-at instruction.
fn fault(t: &mut Test, what: &str, s: &LegacySubject, vector: u8, code: Option<u32>) -> Event {
    let event = s.run();
    let good = event.fault(vector, code);
    if !good {
        satori_guests::println!("{what}: {event}");
    }
    t.holds(what, good);
    event
}

const GP: u8 = vector::GP;

fn protected(t: &mut Test) {
    legacy::reset();
    let event = done(t, "32-bit code", &LegacySubject::kernel(code!(".code32", "mov eax, 7" => "inc eax")));
    t.eq("its register", event.regs.gpr[reg::RAX], 8);
    done(t, "level 3", &LegacySubject::user(code!(".code32" => "inc eax")));
    fault(t, "HLT at level 3", &LegacySubject::user(code!(".code32" => "hlt")), GP, Some(0));
    fault(t, "UD2", &LegacySubject::user(code!(".code32" => "ud2")), vector::UD, None);
    t.holds("INT3", LegacySubject::user(code!(".code32" => "int3")).run().trap(vector::BP));
    fault(t, "INT 32 at level 3", &LegacySubject::user(code!(".code32" => "int 32")), GP, Some(32 * 8 + 2));
    fault(t, "SYSCALL", &LegacySubject::user(code!(".code32" => "syscall")), vector::UD, None);
    let event = done(
        t,
        "PUSHA",
        &LegacySubject::kernel(
            code!(".code32", "mov ebx, 5", "pushad", "pop edi", "pop esi", "pop ebp", "pop eax" => "pop ecx"),
        ),
    );
    t.eq("PUSHA's order", event.regs.gpr[reg::RCX], 5);
    for (name, code) in [
        ("DAA", code!(".code32", "mov al, 0x1a" => "daa")),
        ("AAA", code!(".code32", "mov al, 0x0a" => "aaa")),
        ("SALC", code!(".code32", "stc" => ".byte 0xd6")),
    ] {
        done(t, name, &LegacySubject::user(code));
    }
    fault(
        t,
        "a REX prefix is INC",
        &LegacySubject::user(code!(".code32", ".byte 0x48" => "ud2")),
        vector::UD,
        None,
    );
}

fn protected_segments(t: &mut Test) {
    legacy::reset();
    let free = u32::from(selector::FREE);
    let slot = usize::from(selector::FREE) / 8;
    // A window of 4 KiB over the tables, byte granularity.
    let base = &raw const tables().tss as u64 as u32;
    let cases: &[(&str, u64, u32, u32, bool, bool)] = &[
        // Name, rights, limit, offset, reading and writing a double word are allowed.
        ("inside", 0x4093, 0xfff, 0, true, true),
        ("last double word", 0x4093, 0xfff, 0xffc, true, true),
        ("one byte beyond", 0x4093, 0xfff, 0xffd, false, false),
        ("beyond", 0x4093, 0xfff, 0x1000, false, false),
        ("wraps", 0x4093, 0xfff, 0xffff_fffe, false, false),
        ("read-only", 0x4091, 0xfff, 0, true, false),
        ("code, readable", 0x409b, 0xfff, 0, true, false),
        ("expand-down, at the limit", 0x4097, 0xfff, 0xfff, false, false),
        ("expand-down, over the limit", 0x4097, 0xfff, 0x1000, true, true),
        ("expand-down, 16-bit, top", 0x0097, 0xfff, 0xfffc, true, true),
        ("expand-down, 16-bit, over the top", 0x0097, 0xfff, 0xfffd, false, false),
        ("expand-down, 16-bit, beyond", 0x0097, 0xfff, 0x1_0000, false, false),
    ];
    for &(name, rights, limit, offset, read, write) in cases {
        tables().gdt[slot] = descriptor(base, limit, rights);
        let reading = LegacySubject::kernel(code!(".code32", "mov es, eax" => "mov ecx, es:[ebx]"));
        let writing = LegacySubject::kernel(code!(".code32", "mov es, eax" => "or dword ptr es:[ebx], 0"));
        for (kind, s, allowed) in [("read", reading, read), ("write", writing, write)] {
            let event = s.with(reg::RAX, free).with(reg::RBX, offset).run();
            let good = if allowed { event.done() } else { event.fault(GP, Some(0)) };
            t.holds((name, kind, event.vector, event.code), good);
        }
    }
    tables().gdt[slot] = descriptor(base, 0xfff, 0x4099);
    let s = LegacySubject::kernel(code!(".code32" => "mov es, eax")).with(reg::RAX, free);
    fault(t, "execute-only", &s, GP, Some(free));
    tables().gdt[slot] = descriptor(base, 0xfff, 0x4013);
    fault(t, "absent", &s, vector::NP, Some(free));
    let s = LegacySubject::kernel(code!(".code32" => "mov ss, eax")).with(reg::RAX, free);
    fault(t, "absent stack", &s, vector::SS, Some(free));
    let s = LegacySubject::kernel(code!(".code32", "xor eax, eax", "mov es, eax" => "mov cl, es:[eax]"));
    fault(t, "null", &s, GP, Some(0));
    fault(
        t,
        "null stack",
        &LegacySubject::kernel(code!(".code32", "xor eax, eax" => "mov ss, eax")),
        GP,
        Some(0),
    );
    // A stack segment with a limit: pushes below it are #SS(0).
    tables().gdt[slot] = descriptor(0, 0xfff, 0x40f7);
    let s = LegacySubject::user(code!(".code32", "mov ss, eax", "mov esp, 0x1002" => "push eax"))
        .with(reg::RAX, free | 3);
    fault(t, "a push below the limit", &s, vector::SS, Some(0));
    // Code: a jump beyond its limit.
    tables().gdt[slot] = descriptor(0, 0xfff, 0x409b);
    let s = LegacySubject::kernel(code!(".code32", "push eax", "push 0x1000" => "retf")).with(reg::RAX, free);
    fault(t, "a far return beyond the limit", &s, GP, Some(0));
}

fn protected_levels(t: &mut Test) {
    legacy::reset();
    let free = selector::FREE;
    let slot = usize::from(free) / 8;
    let inner = code!(".code32" => "nop");
    let call = code!(".code32", "push 0", "push 0", "mov [esp + 4], eax" => "call fword ptr [esp]");
    for (name, dpl, user, good) in [
        ("level 0 by a gate of DPL 0", 0u64, false, true),
        ("level 3 by a gate of DPL 3", 3, true, true),
        ("level 3 by a gate of DPL 0", 0, true, false),
    ] {
        tables().gdt[slot] = gate(selector::CODE, inner.start as u32, 0x8c | dpl << 5);
        let s = if user { LegacySubject::user(call) } else { LegacySubject::kernel(call) };
        let event = s.with(reg::RAX, free.into()).run();
        if good {
            // It ends in the inner code.
            let end = inner.start + inner.end + 2;
            t.eq(name, (event.vector, u64::from(event.regs.eip), event.regs.cs & 3), (DONE, end, 0));
        } else {
            t.holds(name, event.fault(GP, Some(free.into())));
        }
    }
    tables().gdt[slot] = gate(selector::CODE, inner.start as u32, 0x0c | 3 << 5);
    let s = LegacySubject::user(call).with(reg::RAX, free.into());
    fault(t, "a gate that is absent", &s, vector::NP, Some(free.into()));
    tables().gdt[slot] = gate(0, inner.start as u32, 0x8c | 3 << 5);
    fault(t, "a gate to nothing", &s, GP, Some(0));
    // Parameters are copied to the inner stack.
    let takes = code!(".code32", "mov eax, [esp + 8]", "mov ecx, [esp + 12]" => "nop");
    tables().gdt[slot] = gate(selector::CODE, takes.start as u32, 0x8c | 3 << 5) | 2 << 32;
    let push = code!(".code32", "push 0x22", "push 0x11", "push 0", "push 0", "mov [esp + 4], eax", "mov edx, esp",
        "add esp, 8" => "call fword ptr [edx]");
    let event = LegacySubject::user(push).with(reg::RAX, free.into()).run();
    t.eq("parameters", (event.regs.gpr[reg::RAX], event.regs.gpr[reg::RCX]), (0x11, 0x22));
    // IRETD outwards to level 3 with data segments of level 0: they become null.
    let s = LegacySubject::user(code!(".code32" => "mov eax, ds"));
    let mut s = s;
    s.regs.es = selector::DATA.into();
    let event = s.run();
    t.eq("a segment of level 0 is dropped", (event.vector, event.regs.es & 0xffff), (DONE, 0));
}

fn paging_32(t: &mut Test) {
    legacy::reset();
    // Four-MiB pages identity-map everything; the fifth directory entry has a table.
    let (directory, table) = (paging::page(), paging::page());
    let slot = |at: u64, n: u64| (at + n * 4) as *mut u32;
    let write = |at: *mut u32, value: u64| {
        // SAFETY: a table of the case.
        unsafe { at.write_volatile(value as u32) };
    };
    for n in 0..1024 {
        write(slot(directory, n), n << 22 | pte::P | pte::W | pte::U | pte::PS);
    }
    let linear = 5u64 << 22 | 3 << 12;
    let data = paging::page();
    let reading = code!(".code32" => "mov ecx, [ebx]");
    let writing = code!(".code32" => "mov [ebx], ecx");
    let run = |code, user: bool, cr0: u64| {
        let s = if user { LegacySubject::user(code) } else { LegacySubject::kernel(code) };
        s.with(reg::RBX, linear as u32).paging(directory, cr0, cr4::PSE).run()
    };
    for upper in 0..8u64 {
        for lower in 0..8u64 {
            write(slot(directory, 5), table | upper);
            let both = upper & lower;
            for (user, wp) in [(false, 0), (false, 1u64 << 16), (true, 0)] {
                for (write_access, code) in [(false, reading), (true, writing)] {
                    write(slot(table, 3), data | lower);
                    let event = run(code, user, wp);
                    let mut want = if user { 4 } else { 0 } | if write_access { 2 } else { 0 };
                    let present = both & 1 != 0;
                    let right =
                        (!user || both & 4 != 0) && (!write_access || both & 2 != 0 || (!user && wp == 0));
                    if present {
                        want |= 1;
                    }
                    let good = if present && right {
                        event.done()
                    } else {
                        event.fault(vector::PF, Some(want)) && u64::from(event.cr2) == linear
                    };
                    t.holds(("32-bit", upper, lower, user, wp, write_access, event.vector, event.code), good);
                }
            }
        }
    }
    // Reserved: bit 21 of a large page.
    write(slot(directory, 5), 5 << 22 | pte::P | pte::W | pte::PS | 1 << 21);
    t.holds("bit 21 of a 4-MiB page", run(reading, false, 0).fault(vector::PF, Some(9)));
    // Without PSE, bit 7 means nothing: the entry leads to a table.
    write(slot(directory, 5), 0);
    let event =
        LegacySubject::kernel(reading).with(reg::RBX, linear as u32).paging(directory, 0, cr4::PSE).run();
    t.holds("absent", event.fault(vector::PF, Some(0)));
}

fn paging_pae(t: &mut Test) {
    legacy::reset();
    let pointers = paging::page();
    let directories = paging::pages(4);
    let write = |at: u64, value: u64| {
        // SAFETY: a table of the case.
        unsafe { (at as *mut u64).write_volatile(value) };
    };
    for n in 0..4 {
        write(pointers + 8 * n, (directories + 4096 * n) | pte::P);
    }
    for n in 0..2048 {
        write(directories + 8 * n, n << 21 | pte::P | pte::W | pte::U | pte::PS);
    }
    let (table, data) = (paging::page(), paging::page());
    let linear = 11u64 << 21 | 3 << 12;
    let reading = code!(".code32" => "mov ecx, [ebx]");
    let fetch = code!(".code32" => "jmp ebx");
    let run =
        |code| LegacySubject::user(code).with(reg::RBX, linear as u32).paging(pointers, 0, cr4::PAE).run();
    let all = pte::P | pte::W | pte::U;
    // Without NX its bit is a reserved one.
    let nx = insn::rdmsr(IA32_EFER) & efer::NXE != 0;
    for (name, upper, lower, want) in [
        ("open", table | all, data | all, None),
        ("supervisor", table | pte::P | pte::W, data | all, Some(5)),
        ("supervisor page", table | all, data | pte::P, Some(5)),
        ("absent", 0, data | all, Some(4)),
        ("absent page", table | all, 0, Some(4)),
        ("reserved", table | all | 1 << 51, data | all, Some(13)),
        ("reserved page", table | all, data | all | 1 << 51, Some(13)),
        ("ignored is not so in PAE", table | all, data | all | 1 << 62, Some(13)),
        ("large, reserved", 11 << 21 | all | pte::PS | 1 << 13, 0, Some(13)),
        ("a read through NX", table | all | pte::NX, data | all, if nx { None } else { Some(13) }),
    ] {
        write(directories + 11 * 8, upper);
        write(table + 3 * 8, lower);
        let event = run(reading);
        let good = want.map_or(event.done(), |code| event.fault(vector::PF, Some(code)));
        t.holds((name, event.vector, event.code), good);
    }
    write(directories + 11 * 8, table | all);
    write(table + 3 * 8, data | all | pte::NX);
    let event = run(fetch);
    let found = (event.vector, event.code, u64::from(event.regs.eip));
    t.eq("NX", found, (vector::PF, Some(if nx { 0x15 } else { 0xd }), linear));
    // A reserved bit in a pointer: loading CR3 is #GP.
    let bad = paging::page();
    write(bad, directories | pte::P | pte::W);
    let s = LegacySubject::kernel(code!(".code32" => "mov cr3, eax")).with(reg::RAX, bad as u32);
    fault(t, "a reserved bit in a PDPTE", &s.paging(pointers, 0, cr4::PAE), GP, Some(0));
}

fn virtual_8086(t: &mut Test) {
    legacy::reset();
    let v86 = |code| LegacySubject::v86(code);
    let iopl = rflags::IOPL;
    let event = done(t, "plain", &v86(code!(".code16", "mov ax, 0x1234" => "inc ax")).flags(iopl));
    t.eq("AX", event.regs.gpr[reg::RAX] & 0xffff, 0x1235);
    t.eq("VM is pushed", u64::from(event.regs.eflags) & rflags::VM, rflags::VM);
    t.eq("segments", (event.regs.cs, event.regs.ds), (0x1000, 0x1000));
    for (name, code) in [
        ("HLT", code!(".code16" => "hlt")),
        ("MOV CR0", code!(".code16" => "mov eax, cr0")),
        ("LGDT", code!(".code16" => "lgdt [bx]")),
        ("IN", code!(".code16" => "in al, 0x80")),
    ] {
        fault(t, name, &v86(code).flags(iopl), GP, Some(0));
    }
    for (name, code) in [
        ("CLI", code!(".code16" => "cli")),
        ("STI", code!(".code16" => "sti")),
        ("PUSHF", code!(".code16" => ".byte 0x9c")),
        ("POPF", code!(".code16", "push 2" => ".byte 0x9d")),
        ("INT 0x21", code!(".code16" => "int 0x21")),
        ("IRET", code!(".code16" => ".byte 0xcf")),
    ] {
        fault(t, name, &v86(code), GP, Some(0));
    }
    for (name, code) in [
        ("CLI with IOPL 3", code!(".code16" => "cli")),
        ("PUSHF with IOPL 3", code!(".code16" => ".byte 0x9c")),
        ("POPF with IOPL 3", code!(".code16", "push 2" => ".byte 0x9d")),
    ] {
        done(t, name, &v86(code).flags(iopl));
    }
    let s = v86(code!(".code16" => "int 0x21")).flags(iopl);
    fault(t, "INT to a gate of DPL 0", &s, GP, Some(0x21 * 8 + 2));
    for (name, code) in [
        ("LLDT", code!(".code16" => "lldt ax")),
        ("LAR", code!(".code16" => "lar ax, ax")),
        ("ARPL", code!(".code16" => ".byte 0x63, 0xc0")),
        ("STR", code!(".code16" => "str ax")),
    ] {
        fault(t, name, &v86(code).flags(iopl), vector::UD, None);
    }
    let event = LegacySubject::v86(code!(".code16" => "int3")).flags(iopl).run();
    t.holds("INT3", event.trap(vector::BP));
    t.eq("the handler's stack", event.frame, tables().tss.stacks[0][0] - 36);
    let s = v86(code!(".code16" => "mov ax, [bx]")).flags(iopl).with(reg::RBX, 0xffff);
    fault(t, "a word at 0xffff", &s, GP, Some(0));
    let s = v86(code!(".code16", "mov sp, 1" => "push ax")).flags(iopl);
    fault(t, "a push at 1", &s, vector::SS, Some(0));
    // The permission map counts, not IOPL.
    tables().tss.ports[0x80 / 8] = 0;
    let event = v86(code!(".code16" => "in al, 0x80")).run();
    // The final INT needs IOPL 3: that one faults.
    t.eq("a port that is permitted", (event.vector, u64::from(event.at())), (GP, event.subject.after));
    legacy::reset();
}

fn real(t: &mut Test) {
    legacy::reset();
    let event = done(t, "plain", &LegacySubject::real(code!(".code16", "mov ax, 0x1234" => "inc ax")));
    t.eq("AX", event.regs.gpr[reg::RAX] & 0xffff, 0x1235);
    t.eq("CS", event.regs.cs, 0x1000);
    let event = done(t, "MOV CR0", &LegacySubject::real(code!(".code16" => "mov eax, cr0")));
    t.eq("PE is clear", event.regs.gpr[reg::RAX] & 1, 0);
    let event = done(
        t,
        "32-bit operands",
        &LegacySubject::real(code!(".code16", "mov eax, 0x12345678" => "shl eax, 4")),
    );
    t.eq("EAX", event.regs.gpr[reg::RAX], 0x2345_6780);
    let event = done(
        t,
        "segments",
        &LegacySubject::real(
            code!(".code16", "mov ax, 0x2345", "mov es, ax", "mov byte ptr es:[7], 99" => "mov ax, es"),
        ),
    );
    t.eq("ES", event.regs.es, 0x2345);
    // SAFETY: low memory is the case's.
    t.eq("where it wrote", unsafe { (0x23457 as *const u8).read_volatile() }, 99);
    fault(t, "UD2", &LegacySubject::real(code!(".code16" => "ud2")), vector::UD, None);
    fault(t, "DIV", &LegacySubject::real(code!(".code16", "xor cx, cx" => "div cx")), vector::DE, None);
    for (name, code) in [
        ("LLDT", code!(".code16" => "lldt ax")),
        ("STR", code!(".code16" => "str ax")),
        ("LAR", code!(".code16" => "lar ax, ax")),
        ("VERR", code!(".code16" => "verr ax")),
        ("ARPL", code!(".code16" => ".byte 0x63, 0xc0")),
    ] {
        fault(t, name, &LegacySubject::real(code), vector::UD, None);
    }
    done(t, "HLT's rights, by CLI", &LegacySubject::real(code!(".code16" => "cli")));
}

fn real_limits(t: &mut Test) {
    legacy::reset();
    for (name, code, bx, vector) in [
        ("a word at 0xffff", code!(".code16" => "mov ax, [bx]"), 0xffff, GP),
        ("a double word at 0xfffd", code!(".code16" => "mov eax, [bx]"), 0xfffd, GP),
        ("a stack word at 0xffff", code!(".code16", "mov bp, bx" => "mov ax, [bp]"), 0xffff, vector::SS),
        (
            "a 32-bit address beyond",
            code!(".code16", "movzx ebx, bx", "add ebx, 0x1000" => "mov al, [ebx]"),
            0xf000,
            GP,
        ),
    ] {
        let s = LegacySubject::real(code).with(reg::RBX, bx);
        // Real mode pushes no error code.
        fault(t, name, &s, vector, None);
    }
    let s = LegacySubject::real(code!(".code16" => "mov ax, [bx]")).with(reg::RBX, 0xfffe);
    done(t, "the last word", &s);
    // 16-bit addresses wrap before the segment is added.
    let s = LegacySubject::real(code!(".code16", "mov byte ptr [1], 77", "mov si, 2" => "mov al, [bx + si]"));
    // The write hits the code's own second byte, which was executed.
    let event = s.with(reg::RBX, 0xffff).run();
    t.eq("BX + SI wraps", (event.vector, event.regs.gpr[reg::RAX] & 0xff), (DONE, 77));
    // PUSH at SP = 0 wraps to 0xfffe.
    let event = LegacySubject::real(code!(".code16", "xor sp, sp" => "push ax")).run();
    t.eq("PUSH at 0", (event.vector, event.regs.gpr[reg::RSP] & 0xffff), (DONE, 0xfffe));
}

fn real_interrupts(t: &mut Test) {
    legacy::reset();
    let event = LegacySubject::real(code!(".code16" => "int 0x21")).run();
    t.holds("INT 0x21", event.trap(0x21));
    let event = LegacySubject::real(code!(".code16" => "int3")).run();
    t.holds("INT3", event.trap(3));
    let event = LegacySubject::real(code!(".code16", "mov al, 127", "inc al" => "into")).run();
    t.holds("INTO", event.trap(4));
    let event = LegacySubject::real(code!(".code16" => "int 0x21")).flags(rflags::DF | rflags::CF).run();
    let flags = u64::from(event.regs.eflags) & (rflags::DF | rflags::CF | rflags::IF);
    t.eq("FLAGS on the stack", flags, rflags::DF | rflags::CF);
    // PUSHF, PUSH CS and a near CALL over the next three bytes make the frame that IRET takes.
    let round = code!(".code16", ".byte 0x9c, 0x0e, 0xe8, 3, 0" => "nop" => ".byte 0xeb, 1", ".byte 0xcf");
    done(t, "IRET", &LegacySubject::real(round));
}

/// A second task: 32-bit, level 0, that begins at `code`.
static SECOND: Second = Second(core::cell::UnsafeCell::new([0; 256]));

#[repr(C, align(256))]
struct Second(core::cell::UnsafeCell<[u8; 256]>);

// SAFETY: only the first vCPU uses it.
unsafe impl Sync for Second {}

fn second(code: u64) -> &'static mut Tss {
    // SAFETY: large enough, aligned, and nobody else has it.
    let tss = unsafe { &mut *SECOND.0.get().cast::<Tss>() };
    tss.eip = code as u32;
    tss.eflags = rflags::FIXED as u32;
    tss.gpr = [1, 2, 3, 4, tables().tss.stacks[0][0] - 256, 6, 7, 8];
    let data = selector::DATA.into();
    tss.segments = [data, selector::CODE.into(), data, data, 0, 0];
    tss.stacks = tables().tss.stacks;
    (tss.ldt, tss.link, tss.trap, tss.cr3) = (0, 0, 0, 0);
    tss
}

fn task_switches(t: &mut Test) {
    legacy::reset();
    let free = selector::FREE;
    let slot = usize::from(free) / 8;
    let there = code!(".code32", "mov edi, 0x55" => "nop");
    let tss = second(there.start);
    let address = tss as *const Tss as u64 as u32;
    // The task segment ends before the redirection map: 104 bytes are what a task needs.
    let available = descriptor(address, 0x67, rights::TSS);
    let jump =
        code!(".code32", "push 0", "push 0", "mov [esp + 4], eax", "mov ebx, 0x77" => "jmp fword ptr [esp]");
    let call = code!(".code32", "push 0", "push 0", "mov [esp + 4], eax", "mov ebx, 0x77" => "call fword ptr [esp]" => "mov esi, 0x99");
    let busy = |slot: usize| {
        // SAFETY: the processor writes there.
        unsafe { (&raw const tables().gdt[slot]).read_volatile() >> 41 & 1 }
    };
    tables().gdt[slot] = available;
    let event = LegacySubject::kernel(jump).with(reg::RAX, free.into()).run();
    let end = (there.start + there.end + 2) as u32;
    t.eq("JMP", (event.vector, event.regs.eip, event.tr), (DONE, end, free));
    t.eq(
        "its registers",
        (event.regs.gpr[reg::RAX], event.regs.gpr[reg::RBX], event.regs.gpr[reg::RDI]),
        (1, 4, 0x55),
    );
    t.eq("the new one is busy, the old one free", (busy(slot), busy(usize::from(selector::TSS) / 8)), (1, 0));
    // SAFETY: the processor wrote there.
    let old = unsafe { (&raw const tables().tss).read_volatile() };
    t.eq("the old task's EBX and EIP", (old.gpr[3], old.eip), (0x77, (jump.start + jump.after) as u32));
    // CALL nests, and IRET comes back.
    legacy::reset();
    second(there.start);
    tables().gdt[slot] = available;
    let event = LegacySubject::kernel(call).with(reg::RAX, free.into()).run();
    t.eq(
        "CALL",
        (event.vector, event.tr, u64::from(event.regs.eflags) & rflags::NT),
        (DONE, free, rflags::NT),
    );
    // SAFETY: as above.
    let link = unsafe { (&raw const second_link().link).read_volatile() };
    t.eq("the link", link as u16, selector::TSS);
    t.eq("both are busy", (busy(slot), busy(usize::from(selector::TSS) / 8)), (1, 1));
    legacy::reset();
    let back = code!(".code32", "mov edi, 0x55" => "iretd" => "ud2");
    second(back.start);
    tables().gdt[slot] = available;
    let event = done(t, "CALL and IRET", &LegacySubject::kernel(call).with(reg::RAX, free.into()));
    t.eq(
        "goes on",
        (event.regs.gpr[reg::RSI], event.regs.gpr[reg::RBX], event.tr),
        (0x99, 0x77, selector::TSS),
    );
    t.eq("the callee is free again", busy(slot), 0);
    // A busy task, an absent one, a short one.
    legacy::reset();
    second(there.start);
    let s = LegacySubject::kernel(jump).with(reg::RAX, free.into());
    tables().gdt[slot] = available | 2 << 40;
    fault(t, "busy", &s, GP, Some(free.into()));
    tables().gdt[slot] = available & !(1 << 47);
    fault(t, "absent", &s, vector::NP, Some(free.into()));
    tables().gdt[slot] = descriptor(address, 0x66, rights::TSS);
    fault(t, "short", &s, vector::TS, Some(free.into()));
    // Through a task gate, from an exception: the error code is on the new task's stack.
    legacy::reset();
    second(there.start);
    tables().gdt[slot] = available;
    tables().idt[usize::from(vector::UD)] = gate(free, 0, 0x85);
    let event = LegacySubject::user(code!(".code32" => "ud2")).run();
    t.eq("#UD through a task gate", (event.vector, event.tr), (DONE, free));
    legacy::reset();
    let tss = second(there.start);
    let stack = tss.gpr[4];
    tables().gdt[slot] = available;
    tables().idt[usize::from(GP)] = gate(free, 0, 0x85);
    let event = LegacySubject::user(code!(".code32" => "mov es, eax")).with(reg::RAX, 0x1000).run();
    t.eq("#GP through a task gate", (event.vector, event.tr), (DONE, free));
    // SAFETY: the new task's stack.
    t.eq("its error code", unsafe { ((stack - 4) as *const u32).read_volatile() }, 0x1000);
    // A data segment of the new task that cannot be loaded: #TS in the new task.
    legacy::reset();
    second(there.start).segments[0] = 0x1000;
    tables().gdt[slot] = available;
    let event = LegacySubject::kernel(jump).with(reg::RAX, free.into()).run();
    t.eq("a bad ES", (event.vector, event.code, event.tr), (vector::TS, Some(0x1000), free));
    // SYSENTER's neighbour: the gate's DPL counts for INT n.
    legacy::reset();
    tables().idt[0x60] = gate(free, 0, 0x85);
    let event = LegacySubject::user(code!(".code32" => "int 0x60")).run();
    t.holds("a task gate of DPL 0", event.fault(GP, Some(0x60 * 8 + 2)));
    legacy::reset();
}

fn second_link() -> &'static Tss {
    // SAFETY: as in `second`.
    unsafe { &*SECOND.0.get().cast::<Tss>() }
}
