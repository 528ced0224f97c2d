//! Debug registers and single steps in the corners: every length, alignment and kind of access,
//! events and instructions that meet them, order and priority, DR6. `traps` has the plain cases.

#![no_std]
#![no_main]

mod data;
mod steps;

use satori_guests::cpu::{Cpu, selector};
use satori_guests::defs::x86::{cr4, dr6, rflags, vector};
use satori_guests::subject::{USER, reg, stub};
use satori_guests::{Event, Expect, Subject, Test, code, guest, insn, paging};

use crate::data::{data_overlaps, loads, no_accesses, ports, repeated_strings, several, stores};
use crate::steps::{interrupts, nmi, steps, steps_and_points, steps_of_calls};

guest!(
    "debug",
    registers,
    general_detect,
    data_overlaps,
    stores,
    loads,
    no_accesses,
    repeated_strings,
    ports,
    several,
    faults_first,
    deliveries,
    shadows,
    code_points,
    code_against_others,
    steps,
    steps_of_calls,
    steps_and_points,
    interrupts,
    nmi,
    compatibility,
    sticky,
);

const DB: u8 = vector::DB;
const FIXED: u64 = dr6::FIXED;

/// What a breakpoint waits for, as in R/W of DR7.
const EXECUTE: u64 = 0;
const WRITE: u64 = 1;
const PORT: u64 = 2;
const ACCESS: u64 = 3;

/// LEN of DR7.
const fn encoded(bytes: u64) -> u64 {
    match bytes {
        1 => 0,
        2 => 1,
        4 => 3,
        _ => 2,
    }
}

/// DR0 to DR3 and the bits of DR7: address, kind, bytes.
type Points<'a> = &'a [(u64, u64, u64)];

/// Runs `s` with breakpoints, DR6 clean before.
fn with(points: Points<'_>, s: &Subject) -> Event {
    let mut dr7 = 0x400;
    for (number, &(address, kind, bytes)) in points.iter().enumerate() {
        match number {
            0 => insn::set_dr0(address),
            1 => insn::set_dr1(address),
            2 => insn::set_dr2(address),
            _ => insn::set_dr3(address),
        }
        dr7 |= 2 << (2 * number) | (kind | encoded(bytes) << 2) << (16 + 4 * number);
    }
    insn::set_dr6(FIXED);
    insn::set_dr7(dr7);
    let event = s.run();
    insn::set_dr7(0x400);
    event
}

/// Checks that `event` is the trap after the instruction, with exactly these bits in DR6.
fn trapped(t: &mut Test, what: impl core::fmt::Debug + Copy, event: &Event, bits: u64) {
    t.event(what, event, Expect::trap(DB));
    t.eq((what, "DR6"), event.dr6, FIXED | bits);
}

fn registers(t: &mut Test) {
    for value in [0, u64::MAX, 0x8000_0000_0000, 0x1234_5678_9abc_def0] {
        insn::set_dr0(value);
        insn::set_dr3(!value);
        t.eq("all 64 bits", (insn::dr0(), insn::dr3()), (value, !value));
    }
    insn::set_dr0(0);
    insn::set_dr3(0);
    insn::set_dr6(0xffff_ffff & !dr6::BT);
    t.eq("DR6: what can be written", insn::dr6() & 0xffff_0fff, FIXED | 0xf);
    t.holds("DR6: bit 12 is 0", insn::dr6() & 1 << 12 == 0);
    insn::set_dr6(FIXED);
    // All of LEN and R/W, GE, LE, but no enable bits, no GD.
    insn::set_dr7(0xffff_0300);
    t.eq("DR7 reads back", insn::dr7(), 0xffff_0700);
    insn::set_dr7(0xd800);
    t.eq("DR7: bits 15, 14, 12 are 0", insn::dr7() & 0xd000, 0);
    insn::set_dr7(0x400);
    for (name, code) in [
        ("DR6", code!("mov dr6, rax")),
        ("DR7", code!("mov dr7, rax")),
        ("DR4", code!(".byte 0x0f, 0x23, 0xe0")),
        ("DR5", code!(".byte 0x0f, 0x23, 0xe8")),
    ] {
        for bit in 32..64 {
            let s = Subject::kernel(code).with(reg::RAX, 0x400 | 1 << bit);
            t.event((name, bit), &s.run(), Expect::gp(0));
        }
    }
    t.eq("unchanged", (insn::dr6(), insn::dr7()), (FIXED, 0x400));
    for (name, code) in [("DR4", code!(".byte 0x0f, 0x21, 0xe0")), ("DR5", code!(".byte 0x0f, 0x21, 0xe8"))] {
        let event = Subject::kernel(code).run();
        let alias = if name == "DR4" { FIXED } else { 0x400 };
        t.eq((name, "is an alias"), event.regs.gpr[reg::RAX], alias);
        let s = Subject::kernel(code).cr4(cr4::DE, 0);
        t.event((name, "with DE"), &s.run(), Expect::fault(vector::UD));
        // #UD comes before the level is looked at.
        let s = Subject::user(code).cr4(cr4::DE, 0);
        t.event((name, "with DE in user mode"), &s.run(), Expect::fault(vector::UD));
        t.event((name, "in user mode"), &Subject::user(code).run(), Expect::gp(0));
    }
    // With REX.R there are no registers.
    t.event("DR8", &Subject::kernel(code!(".byte 0x44, 0x0f, 0x21, 0xc0")).run(), Expect::fault(vector::UD));
    // mod is ignored: always registers; the operand size too.
    let event = Subject::kernel(code!(".byte 0x0f, 0x21, 0x38")).run();
    t.event("mod is ignored", &event, Expect::done());
    t.eq("mod is ignored", event.regs.gpr[reg::RAX], 0x400);
    let event = Subject::kernel(code!(".byte 0x66, 0x0f, 0x21, 0xf8")).with(reg::RAX, u64::MAX).run();
    t.eq("the operand size is fixed", event.regs.gpr[reg::RAX], 0x400);
}

fn general_detect(t: &mut Test) {
    let cases = [
        ("read of DR7", code!("mov rax, dr7")),
        ("read of DR6", code!("mov rax, dr6")),
        ("write of DR1", code!("mov dr1, rax")),
        ("write of DR7", code!("mov dr7, rax")),
    ];
    for (name, code) in cases {
        insn::set_dr6(FIXED);
        insn::set_dr7(0x2400);
        let event = Subject::kernel(code).with(reg::RAX, u64::MAX).run();
        // Before the value is looked at; a fault, so RF is set.
        t.event(name, &event, Expect::fault(DB));
        t.eq((name, "BD"), event.dr6, FIXED | dr6::BD);
        t.eq((name, "GD is off"), insn::dr7(), 0x400);
    }
    // With a single step: the fault alone.
    insn::set_dr6(FIXED);
    insn::set_dr7(0x2400);
    let event = Subject::kernel(code!("mov rax, dr0")).flags(rflags::TF).run();
    t.eq("no step of a fault", (event.vector, event.dr6), (DB, FIXED | dr6::BD));
    insn::set_dr7(0x400);
}

/// An instruction that does not complete reports nothing.
fn faults_first(t: &mut Test) {
    let page = paging::page();
    // The first access is watched, the second is #PF or #GP.
    let s = Subject::kernel(code!("movsb")).with(reg::RSI, page).with(reg::RDI, 1 << 63);
    let event = with(&[(page, ACCESS, 1)], &s);
    t.event("MOVS that faults", &event, Expect::gp(0));
    t.eq("DR6", event.dr6, FIXED);
    let s = Subject::kernel(code!("mov rsp, 0x8000000000000000" => "push [rdi]")).with(reg::RDI, page);
    let event = with(&[(page, ACCESS, 1)], &s);
    t.eq("PUSH that faults", (event.vector, event.dr6), (vector::DF, FIXED));
    let s = Subject::kernel(code!("xor ecx, ecx" => "div dword ptr [rdi]")).with(reg::RDI, page);
    // SAFETY: the case's own page.
    unsafe { (page as *mut u32).write_volatile(0) };
    let event = with(&[(page, ACCESS, 4)], &s);
    t.event("DIV by a watched 0", &event, Expect::fault(vector::DE));
    t.eq("DR6", event.dr6, FIXED);
    let s = Subject::kernel(code!("div dword ptr [rdi]")).with(reg::RDI, page).flags(rflags::TF);
    t.event("with a step", &with(&[(page, ACCESS, 4)], &s), Expect::fault(vector::DE));
}

/// What the pushes of a delivery meet comes before the handler's first instruction.
fn deliveries(t: &mut Test) {
    let top = Cpu::this().kernel.top();
    let s = Subject::kernel(code!("int3"));
    // SS is pushed first, below the aligned RSP.
    let event = with(&[(top - 8, WRITE, 8)], &s);
    t.eq("INT3's frame", (event.vector, event.regs.rip), (DB, stub(vector::BP)));
    t.eq("DR6", event.dr6, FIXED | 1);
    let event = with(&[(Cpu::this().inner.top() - 40, WRITE, 8)], &Subject::user(code!("ud2")));
    t.eq("a fault of user mode", (event.vector, event.regs.rip), (DB, stub(vector::UD)));
    t.eq("at level 0", event.regs.cs, selector::CODE.into());
    let event = with(&[(top - 8, WRITE, 8)], &Subject::user(code!("ud2")));
    t.event("another stack", &event, Expect::fault(vector::UD));
    // IRETQ reads its frame.
    let iret = code!(
        "mov rbx, rsp", "mov eax, ss", "push rax", "push rbx", "pushfq", "mov eax, cs", "push rax",
        "lea rax, [rip + 2f]", "push rax" => "iretq" => "2:"
    );
    let event = with(&[(top - 40, ACCESS, 8)], &Subject::kernel(iret));
    t.eq("IRETQ's frame", event.vector, DB);
}

fn shadows(t: &mut Test) {
    let page = paging::page();
    // SAFETY: the case's own page.
    unsafe { (page as *mut u64).write_volatile(selector::DATA.into()) };
    let point = [(page, ACCESS, 2)];
    let s = Subject::kernel(code!("mov ss, [rdi]" => "nop" => "nop")).with(reg::RDI, page);
    trapped(t, "MOV SS holds it back", &with(&point, &s), 1);
    // What is held back is delivered in the handler of INT3 (SDM 6.8.3).
    let s = Subject::kernel(code!("mov ss, [rdi]" => "int3")).with(reg::RDI, page);
    let event = with(&point, &s);
    t.eq("MOV SS, INT3", (event.vector, event.regs.rip, event.dr6), (DB, stub(vector::BP), FIXED | 1));
    // An exception behind it loses what is held back, and that of ICEBP is one (SDM 17.3.1.2).
    let s = Subject::kernel(code!("mov ss, [rdi]" => ".byte 0xf1" => "nop")).with(reg::RDI, page);
    trapped(t, "MOV SS, ICEBP", &with(&point, &s), 0);
    let s = Subject::kernel(code!("mov ss, [rdi]" => "ud2")).with(reg::RDI, page);
    let event = with(&point, &s);
    t.event("MOV SS, UD2", &event, Expect::fault(vector::UD));
    t.eq("MOV SS, UD2: DR6", event.dr6, FIXED);
    let s = Subject::kernel(code!("mov ss, [rdi]" => "nop")).with(reg::RDI, page);
    let event = with(&point, &s.flags(rflags::TF));
    t.eq("with TF", (event.vector, event.at()), (DB, event.subject.after));
    t.eq("DR6", event.dr6, FIXED | 1 | dr6::BS);
    // MOV DS holds nothing back.
    let s = Subject::kernel(code!("mov ds, [rdi]" => "nop")).with(reg::RDI, page);
    let event = with(&point, &s);
    t.eq("MOV DS", (event.vector, event.at()), (DB, event.subject.probe));
    let s = Subject::kernel(code!("mov rbx, rsp", "mov rsp, rdi" => "pop rax" => "mov rsp, rbx"))
        .with(reg::RDI, page);
    trapped(t, "POP", &with(&point, &s), 1);
    // STI's shadow is for interrupts alone.
    let s = Subject::kernel(code!("sti" => "nop")).flags(rflags::TF);
    let event = with(&[], &s);
    t.eq("STI with TF", (event.vector, event.at(), event.dr6), (DB, event.subject.probe, FIXED | dr6::BS));
}

fn code_points(t: &mut Test) {
    for user in [false, true] {
        let code = code!("mov ecx, 3" => "2: dec ecx" => "jnz 2b");
        let s = if user { Subject::user(code) } else { Subject::kernel(code) };
        let at = s.code.start + s.code.probe;
        let mut event = with(&[(at, EXECUTE, 1)], &s);
        for left in (1..=3).rev() {
            // A breakpoint's own #DB pushes RF as it was (SDM 17.3.1.1).
            t.event(("each time", left), &event, Expect::fault(DB).rf(false));
            t.eq("DR6", event.dr6, FIXED | 1);
            t.eq("ECX", event.regs.gpr[reg::RCX], left);
            let mut again = event.go_on();
            again.regs.rflags |= rflags::RF;
            event = with(&[(at, EXECUTE, 1)], &again);
        }
        t.event("RF is for one instruction", &event, Expect::done());
    }
    let s = Subject::kernel(code!("nop" => ".byte 0x48, 0x90" => "nop"));
    let at = s.code.start + s.code.probe;
    t.eq("at the prefix", with(&[(at, EXECUTE, 1)], &s).vector, DB);
    t.event("behind the prefix", &with(&[(at + 1, EXECUTE, 1)], &s), Expect::done());
    // RF without a breakpoint, then one: it was for the first.
    let mut first = Subject::kernel(code!("nop" => "nop"));
    first.regs.rflags |= rflags::RF;
    let event = with(&[(first.code.start, EXECUTE, 1), (first.code.start + 1, EXECUTE, 1)], &first);
    t.eq("RF passes the first only", (event.vector, event.at(), event.dr6), (DB, 1, FIXED | 2));
    // RF stays for all iterations of a repeated string instruction.
    let mut s = Subject::kernel(code!("rep lodsb")).with(reg::RCX, 5).with(reg::RSI, 0x10_0000);
    s.regs.rflags |= rflags::RF;
    t.event("REP with RF", &with(&[(s.code.start, EXECUTE, 1)], &s), Expect::done());
    // A fault keeps RF for the restart.
    let mut s = Subject::kernel(code!("ud2"));
    s.regs.rflags |= rflags::RF;
    t.event("#UD with RF", &with(&[(s.code.start, EXECUTE, 1)], &s), Expect::fault(vector::UD));
    // POPF does not load RF.
    let s = Subject::kernel(code!("pushfq", "or dword ptr [rsp], 0x10000", "popfq" => "nop"));
    let at = s.code.start + s.code.probe;
    t.event("POPF", &with(&[(at, EXECUTE, 1)], &s), Expect::fault(DB).rf(false));
}

fn code_against_others(t: &mut Test) {
    let beyond = paging::FREE + 0x7000;
    // Before the fetch's own fault.
    let mut s = Subject::kernel(code!("nop"));
    s.regs.rip = beyond;
    let event = with(&[(beyond, EXECUTE, 1)], &s);
    t.eq("an absent page", (event.vector, event.regs.rip, event.dr6), (DB, beyond, FIXED | 1));
    s.regs.rflags |= rflags::RF;
    let event = with(&[(beyond, EXECUTE, 1)], &s);
    t.eq("then its fault", (event.vector, event.cr2), (vector::PF, beyond));
    for (name, code, then) in [
        ("#UD", code!("ud2"), Expect::fault(vector::UD)),
        ("#GP", code!("mov rax, [rdi]"), Expect::gp(0)),
        ("HLT of user mode", code!("hlt"), Expect::gp(0)),
        ("INT3", code!("int3"), Expect::trap(vector::BP)),
    ] {
        let s = Subject::user(code).with(reg::RDI, 1 << 63);
        let point = [(s.code.start, EXECUTE, 1)];
        let event = with(&point, &s);
        t.event((name, "first"), &event, Expect::fault(DB).rf(false));
        let mut again = event.go_on();
        again.regs.rflags |= rflags::RF;
        t.event((name, "then"), &with(&point, &again), then);
    }
    // The instruction after a load of SS is not looked at (SDM 6.8.3), the next one is.
    let s = Subject::kernel(code!("mov eax, ss", "mov ss, eax" => "nop" => "nop"));
    let (at, after) = (s.code.start + s.code.probe, s.code.start + s.code.after);
    t.event("after MOV SS", &with(&[(at, EXECUTE, 1)], &s), Expect::done());
    let event = with(&[(after, EXECUTE, 1)], &s);
    t.eq("one further", (event.vector, event.regs.rip), (DB, after));
    // The trap of the instruction before comes first, and takes the breakpoint's place.
    let page = paging::page();
    let s = Subject::kernel(code!("mov [rdi], eax" => "nop")).with(reg::RDI, page);
    let points = [(s.code.start + s.code.probe, EXECUTE, 1), (page, WRITE, 4)];
    let event = with(&points, &s);
    t.eq("the trap first", (event.vector, event.at()), (DB, event.subject.probe));
    t.holds(("its bit", event.dr6), event.dr6 & 2 != 0);
    let event = with(&points, &event.go_on());
    t.event("then the breakpoint", &event, Expect::fault(DB).rf(false));
}

/// In compatibility mode addresses have 32 bits.
fn compatibility(t: &mut Test) {
    let page = paging::page() + USER;
    let s = Subject::compat(code!(".code32", "nop" => "mov [edi], eax" => "nop")).with(reg::RDI, page);
    trapped(t, "data", &with(&[(page, WRITE, 4)], &s), 1);
    let s = s.with(reg::RDI, 0xffff_ffff_0000_0000 | page);
    trapped(t, "the high half does not count", &with(&[(page, WRITE, 4)], &s), 1);
    let event = with(&[(s.code.start + s.code.probe, EXECUTE, 1)], &s);
    t.event("code", &event, Expect::fault(DB).rf(false));
    let event = with(&[], &s.flags(rflags::TF));
    t.eq("a step", (event.vector, event.at(), event.dr6), (DB, event.subject.probe, FIXED | dr6::BS));
    let s = Subject::compat(code!(".code32", "push eax" => "nop"));
    let top = s.regs.gpr[reg::RSP];
    let event = with(&[(top - 4, WRITE, 4)], &s);
    t.eq("PUSH", (event.vector, event.dr6), (DB, FIXED | 1));
    t.event("PUSH has four bytes", &with(&[(top - 8, WRITE, 4)], &s), Expect::done());
}

fn sticky(t: &mut Test) {
    let page = paging::page();
    // The processor never clears BS, BD and BT (SDM 17.2.3).
    insn::set_dr6(FIXED | dr6::BS | dr6::BD);
    insn::set_dr0(page);
    insn::set_dr7(0x402 | WRITE << 16);
    let event = Subject::kernel(code!("mov [rdi], al")).with(reg::RDI, page).run();
    insn::set_dr7(0x400);
    t.eq("BS and BD stay", event.dr6, FIXED | dr6::BS | dr6::BD | 1);
    insn::set_dr6(FIXED | 1);
    let event = Subject::kernel(code!("ud2")).run();
    t.eq("other exceptions do not touch it", event.dr6, FIXED | 1);
    insn::set_dr6(FIXED);
    // GE and LE do nothing.
    insn::set_dr7(0x700);
    t.event("GE and LE", &Subject::kernel(code!("mov [rdi], al")).with(reg::RDI, page).run(), Expect::done());
    insn::set_dr7(0x400);
}
