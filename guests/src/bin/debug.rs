//! Debug registers and single steps in the corners: every length, alignment and kind of access,
//! events and instructions that meet them, order and priority, DR6. `traps` has the plain cases.

#![no_std]
#![no_main]

use satori_guests::cpu::{Cpu, selector};
use satori_guests::defs::apic::{self as regs, icr};
use satori_guests::defs::msr::{IA32_FMASK, IA32_LSTAR, IA32_STAR};
use satori_guests::defs::x86::{cr4, dr6, rflags, vector};
use satori_guests::subject::{At, DONE, USER, reg, stub};
use satori_guests::{Code, Event, Expect, Subject, Test, apic, code, guest, insn, paging};

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

/// All lengths, at all offsets, against accesses of all sizes: hit where ranges overlap.
fn data_overlaps(t: &mut Test) {
    let page = paging::pages(2);
    // In a page, and across two.
    for middle in [page + 0x800, page + 0x1000] {
        for (size, load, store) in [
            (1, code!("mov al, [rdi]"), code!("mov [rdi], al")),
            (2, code!("mov ax, [rdi]"), code!("mov [rdi], ax")),
            (4, code!("mov eax, [rdi]"), code!("mov [rdi], eax")),
            (8, code!("mov rax, [rdi]"), code!("mov [rdi], rax")),
            (16, code!("movups xmm0, [rdi]"), code!("movups [rdi], xmm0")),
        ] {
            for bytes in [1, 2, 4, 8] {
                // An address that is not aligned is taken as if it were.
                for low in 0..bytes {
                    let watched = middle + low;
                    for offset in -17i64..=9 {
                        let at = middle.wrapping_add(offset as u64);
                        let hit = at < middle + bytes && middle < at + size;
                        for (kind, code, writes) in [
                            (WRITE, load, false),
                            (WRITE, store, true),
                            (ACCESS, load, false),
                            (ACCESS, store, true),
                        ] {
                            let s = Subject::kernel(code).with(reg::RDI, at);
                            let event = with(&[(watched, kind, bytes)], &s);
                            let what = (size, bytes, low, offset, kind, writes);
                            if hit && (writes || kind == ACCESS) {
                                trapped(t, what, &event, 1);
                            } else {
                                t.event(what, &event, Expect::done());
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Runs each code with RDI and RSI at a watched place, and looks whether it traps.
fn try_all(t: &mut Test, kind: u64, cases: &[(&'static str, Code, bool)]) {
    let place = paging::page() + 0x400;
    for &(name, code, hit) in cases {
        for user in [false, true] {
            let base = if user { USER } else { 0 };
            let s = if user { Subject::user(code) } else { Subject::kernel(code) };
            let s = s.with(reg::RDI, place + base).with(reg::RSI, place + base);
            let event = with(&[(place + base, kind, 8)], &s);
            if hit {
                trapped(t, (name, user), &event, 1);
            } else {
                t.event((name, user), &event, Expect::done());
            }
        }
    }
}

fn stores(t: &mut Test) {
    try_all(
        t,
        WRITE,
        &[
            ("PUSH", code!("lea rsp, [rdi + 8]" => "push rax"), true),
            ("PUSH memory", code!("lea rsp, [rdi + 8]" => "push [rdi + 64]"), true),
            ("PUSHF", code!("lea rsp, [rdi + 8]" => "pushfq"), true),
            ("CALL", code!("lea rsp, [rdi + 8]" => "call 2f" => "2:"), true),
            ("CALL indirect", code!("lea rsp, [rdi + 8]", "lea rax, [rip + 2f]" => "call rax" => "2:"), true),
            ("ENTER", code!("lea rsp, [rdi + 8]" => "enter 0, 0"), true),
            ("POP to memory", code!("lea rsp, [rdi + 1024]" => "pop [rdi]"), true),
            ("CMPXCHG that succeeds", code!("mov eax, [rdi]" => "cmpxchg [rdi], ecx"), true),
            (
                "CMPXCHG that fails writes as well",
                code!("mov eax, [rdi]", "not eax" => "cmpxchg [rdi], ecx"),
                true,
            ),
            ("LOCK CMPXCHG8B that fails", code!("mov eax, [rdi]", "not eax" => "lock cmpxchg8b [rdi]"), true),
            ("XADD", code!("xadd [rdi], eax"), true),
            ("BTS", code!("mov eax, 3" => "bts [rdi], eax"), true),
            ("BT", code!("mov eax, 3" => "bt [rdi], eax"), false),
            ("CMP", code!("cmp [rdi], eax"), false),
            ("TEST", code!("test [rdi], eax"), false),
            ("SETcc", code!("setc [rdi]"), true),
            ("SHL by 0 does not matter", code!("mov cl, 1" => "shl dword ptr [rdi], cl"), true),
            ("FSTP", code!("fninit", "fld1" => "fstp qword ptr [rdi]"), true),
            ("FNSTCW", code!("fnstcw [rdi]"), true),
            ("FXSAVE over it", code!("lea rax, [rdi - 256]" => "fxsave [rax]"), true),
            ("FXSAVE beside it", code!("lea rax, [rdi + 64]" => "fxsave [rax]"), false),
            ("MOVNTI", code!("movnti [rdi], eax"), true),
            ("MOVNTDQ", code!("movntdq [rdi], xmm0"), true),
            ("STMXCSR", code!("stmxcsr [rdi]"), true),
            ("MOVHPS", code!("movhps [rdi], xmm0"), true),
            ("MASKMOVDQU of nothing", code!("pxor xmm1, xmm1" => "maskmovdqu xmm0, xmm1"), false),
            ("MASKMOVDQU", code!("pcmpeqd xmm1, xmm1" => "maskmovdqu xmm0, xmm1"), true),
            ("MOVS to it", code!("mov rsi, rsp", "sub rsi, 64" => "movsb"), true),
            ("MOVS from it", code!("mov rdi, rsp", "sub rdi, 64" => "movsb"), false),
            ("SGDT", code!("sgdt [rdi]"), true),
            ("MOV to memory of SS", code!("mov [rdi], ss"), true),
            ("MOV of AL to an absolute address", code!("movabs rax, 0" => "mov [rdi], al"), true),
            ("CMPXCHG16B", code!("lea rax, [rdi - 8]" => "cmpxchg16b [rdi]"), true),
        ],
    );
}

fn loads(t: &mut Test) {
    try_all(
        t,
        ACCESS,
        &[
            ("POP", code!("mov rbx, rsp", "mov rsp, rdi" => "pop rax" => "mov rsp, rbx"), true),
            ("LEAVE", code!("mov rbp, rdi" => "leave"), true),
            ("CMOVcc reads whether it moves or not", code!("cmp eax, eax" => "cmovne eax, [rdi]"), true),
            ("TEST", code!("test [rdi], eax"), true),
            ("FXRSTOR", code!("lea rax, [rdi - 512 - 64]", "fxsave [rax]" => "fxrstor [rax + 0]"), false),
            ("FLD", code!("fninit" => "fld qword ptr [rdi]"), true),
            ("LDDQU", code!("lddqu xmm0, [rdi]"), true),
            ("LODS", code!("lodsb"), true),
            ("SCAS", code!("scasb"), true),
            ("CMPS", code!("cmpsb"), true),
            ("MOVS from it", code!("mov rdi, rsp", "sub rdi, 64" => "movsb"), true),
            ("XLAT", code!("xor eax, eax", "mov rbx, rdi" => "xlatb"), true),
            (
                "JMP through it",
                code!("lea rax, [rip + 2f]", "mov [rdi + 8], rax", "lea rax, [rdi + 8]" => "jmp [rax]" => "2:"),
                false,
            ),
            ("MOVAPS before it", code!("lea rax, [rdi - 16]" => "movaps xmm0, [rax]"), false),
            ("BT", code!("mov eax, 63" => "bt [rdi], eax"), true),
            ("BT elsewhere", code!("mov eax, 64 + 8" => "bt [rdi], rax"), false),
        ],
    );
}

fn no_accesses(t: &mut Test) {
    try_all(
        t,
        ACCESS,
        &[
            ("NOP", code!("nop dword ptr [rdi]"), false),
            ("PREFETCHW", code!("prefetchw [rdi]"), false),
            ("LEA", code!("lea rax, [rdi]"), false),
            ("REP of nothing", code!("xor ecx, ecx" => "rep stosb"), false),
            ("a register", code!("mov rdi, rdi"), false),
        ],
    );
    let page = paging::page();
    // Execution is no access, nor is what the processor walks.
    let s = Subject::kernel(code!("nop").copy_to(page));
    t.event("execution", &with(&[(page, ACCESS, 8)], &s), Expect::done());
    let s = Subject::kernel(code!("invlpg [rdi]")).with(reg::RDI, page);
    t.event("INVLPG", &with(&[(page, ACCESS, 8)], &s), Expect::done());
    let root = paging::kernel_cr3();
    let s = Subject::kernel(code!("mov rax, cr3", "mov cr3, rax" => "mov rax, [rdi]")).with(reg::RDI, page);
    t.event("a walk", &with(&[(root, ACCESS, 8)], &s), Expect::done());
    // A lower half's breakpoint is not the higher half's: all 64 bits count.
    let s = Subject::kernel(code!("mov eax, [rdi]")).with(reg::RDI, page);
    t.event("the high bits count", &with(&[(page | 1 << 40, ACCESS, 4)], &s), Expect::done());
}

fn repeated_strings(t: &mut Test) {
    let page = paging::page();
    let watched = page + 0x100;
    let s = Subject::kernel(code!("rep stosb")).with(reg::RCX, 8).with(reg::RDI, watched - 3);
    let event = with(&[(watched, WRITE, 1)], &s);
    // After the iteration that met it, or at the latest after the last (SDM 17.2.5).
    let left = event.regs.gpr[reg::RCX];
    t.holds(("RCX", left), event.vector == DB && left <= 4);
    t.eq("DR6", event.dr6, FIXED | 1);
    t.eq("RDI agrees", event.regs.gpr[reg::RDI], watched + 5 - left);
    let middle = left > 0;
    t.eq("where", event.at(), if middle { event.subject.probe } else { event.subject.after });
    t.eq("RF between iterations", event.regs.rflags & rflags::RF != 0, middle);
    t.event("it goes on", &event.go_on().run(), Expect::done());
    for (name, code, count) in [
        ("MOVSQ", code!("rep movsq"), 4),
        ("MOVSB", code!("rep movsb"), 32),
        ("LODSD", code!("rep lodsd"), 8),
    ] {
        let s = Subject::kernel(code)
            .with(reg::RCX, count)
            .with(reg::RSI, watched - 16)
            .with(reg::RDI, page + 0x800);
        let event = with(&[(watched, ACCESS, 8)], &s);
        t.eq((name, "source"), (event.vector, event.dr6), (DB, FIXED | 1));
        t.holds((name, "RSI"), event.regs.gpr[reg::RSI] > watched);
        let event = with(&[(watched + 0x100, ACCESS, 8)], &s);
        t.event((name, "elsewhere"), &event, Expect::done());
    }
    // REPE CMPSB that stops.
    let s = Subject::kernel(code!("repe cmpsb"))
        .with(reg::RCX, 4)
        .with(reg::RSI, page + 0x300)
        .with(reg::RDI, watched);
    let event = with(&[(watched + 3, ACCESS, 1)], &s);
    t.eq("CMPS", (event.vector, event.regs.gpr[reg::RCX]), (DB, 0));
}

fn ports(t: &mut Test) {
    // POST codes: nobody minds.
    const AT: u64 = 0x80;
    for (size, input, output) in [
        (1, code!("in al, dx"), code!("out dx, al")),
        (2, code!("in ax, dx"), code!("out dx, ax")),
        (4, code!("in eax, dx"), code!("out dx, eax")),
    ] {
        for bytes in [1, 2, 4] {
            for port in AT - 4..AT + 6 {
                let hit = port < AT + bytes && AT < port + size;
                for (code, what) in [(input, "IN"), (output, "OUT")] {
                    let s = Subject::kernel(code).with(reg::RDX, port).cr4(cr4::DE, 0);
                    // DR7 means ports only with DE, which is on while the subject runs.
                    let event = with(&[(AT, PORT, bytes)], &s);
                    if hit {
                        trapped(t, (what, size, bytes, port), &event, 1);
                    } else {
                        t.event((what, size, bytes, port), &event, Expect::done());
                    }
                }
            }
        }
    }
    let s = Subject::kernel(code!("out 0x80, al")).cr4(cr4::DE, 0);
    trapped(t, "immediate", &with(&[(AT, PORT, 1)], &s), 1);
    let buffer = paging::page();
    let s = Subject::kernel(code!("insb")).with(reg::RDX, AT).with(reg::RDI, buffer).cr4(cr4::DE, 0);
    trapped(t, "INSB", &with(&[(AT, PORT, 1)], &s), 1);
    trapped(t, "INSB's memory", &with(&[(AT, PORT, 1), (buffer, WRITE, 1)], &s), 3);
    let s = Subject::kernel(code!("outsb")).with(reg::RDX, AT).with(reg::RSI, buffer).cr4(cr4::DE, 0);
    trapped(t, "OUTSB", &with(&[(AT, PORT, 1)], &s), 1);
    let s = Subject::kernel(code!("mov eax, [rdi]")).with(reg::RDI, AT).cr4(cr4::DE, 0);
    t.event("memory at that number", &with(&[(AT, PORT, 4)], &s), Expect::done());
    let s = Subject::kernel(code!("out dx, al")).with(reg::RDX, AT).cr4(cr4::DE, 0);
    t.event("a port is no memory", &with(&[(AT, ACCESS, 4)], &s), Expect::done());
}

fn several(t: &mut Test) {
    let page = paging::page();
    let s = Subject::kernel(code!("movups [rdi], xmm0")).with(reg::RDI, page);
    let all = [(page, WRITE, 1), (page + 4, WRITE, 4), (page + 15, ACCESS, 1), (page + 8, WRITE, 8)];
    trapped(t, "all four", &with(&all, &s), 0xf);
    trapped(t, "the same place twice", &with(&[(page, WRITE, 1), (page, WRITE, 1)], &s), 3);
    let two = [(page, WRITE, 1), (page + 16, WRITE, 1)];
    trapped(t, "only what was met", &with(&two, &s), 1);
    // Source and destination of one instruction.
    let s = Subject::kernel(code!("movsq")).with(reg::RSI, page).with(reg::RDI, page + 64);
    trapped(t, "both ends", &with(&[(page + 64, WRITE, 8), (page, ACCESS, 8)], &s), 3);
    // Local enable does as well.
    insn::set_dr6(FIXED);
    insn::set_dr0(page);
    insn::set_dr7(0x401 | WRITE << 16);
    let event = Subject::kernel(code!("mov [rdi], al")).with(reg::RDI, page).run();
    insn::set_dr7(0x400);
    trapped(t, "L0", &event, 1);
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

/// Single steps of all kinds of instructions: after each, BS.
fn steps(t: &mut Test) {
    for (name, code) in [
        ("CPUID", code!("cpuid")),
        ("RDTSC", code!("rdtsc")),
        ("IN", code!("in al, 0x80")),
        ("OUT", code!("out 0x80, al")),
        ("MOV CR", code!("mov rax, cr3" => "mov cr3, rax")),
        ("MOV CR8", code!("xor eax, eax" => "mov cr8, rax")),
        ("MOV DR", code!("mov rax, dr0")),
        ("RDMSR", code!("mov ecx, 0x10" => "rdmsr")),
        ("WBINVD", code!("wbinvd")),
        ("INVLPG", code!("invlpg [rsp]")),
        ("PAUSE", code!("pause")),
        ("MFENCE", code!("mfence")),
        ("CLI", code!("cli")),
        ("STD", code!("std" => "cld")),
        ("JMP far away", code!("jmp 2f" => "2:")),
        ("CALL", code!("call 2f" => "2:")),
        ("LOOP", code!("mov ecx, 1" => "loop 2f" => "2:")),
        ("a branch not taken", code!("cmp eax, eax" => "jne 2f" => "2: nop")),
        ("LGDT", code!("sub rsp, 16", "sgdt [rsp]" => "lgdt [rsp]")),
        ("MOV DS", code!("mov eax, ds" => "mov ds, eax")),
        ("a lock", code!("lock inc dword ptr [rsp - 8]")),
        ("XSTATE", code!("fninit")),
        ("SWAPGS", code!("swapgs" => "swapgs")),
        ("REP of nothing", code!("xor ecx, ecx" => "rep movsb")),
        ("HLT does not sleep", code!("hlt")),
    ] {
        // One step for each instruction, up to the one that is looked at.
        let mut s = Subject::kernel(code).flags(rflags::TF);
        for _ in 0..8 {
            let event = with(&[], &s);
            if event.vector != DB || event.at() == code.after {
                trapped(t, name, &event, dr6::BS);
                break;
            }
            t.eq((name, "on the way"), event.dr6, FIXED | dr6::BS);
            s = event.go_on();
        }
    }
    t.event("SWAPGS back", &Subject::kernel(code!("nop")).run(), Expect::done());
    // ICEBP is a trap without a bit, and no step follows it.
    let event = with(&[], &Subject::kernel(code!(".byte 0xf1")).flags(rflags::TF));
    t.event("ICEBP", &event, Expect::trap(DB));
    for (name, code) in [("INT3", code!("int3")), ("INT 3", code!(".byte 0xcd, 3"))] {
        let event = with(&[], &Subject::user(code).flags(rflags::TF));
        t.event(name, &event, Expect::trap(vector::BP));
        t.eq((name, "TF is pushed"), event.regs.rflags & rflags::TF, rflags::TF);
        t.eq((name, "no BS"), event.dr6, FIXED);
    }
    // IRET that sets TF: the step is that of the instruction it returns to; one that clears it steps itself.
    let iret = |_: ()| {
        code!(
            "mov rbx, rsp", "mov eax, ss", "push rax", "push rbx", "push rcx", "mov eax, cs", "push rax",
            "lea rax, [rip + 2f]", "push rax" => "iretq" => "2: nop"
        )
    };
    let s = Subject::kernel(iret(())).with(reg::RCX, rflags::TF | rflags::FIXED);
    let event = with(&[], &s);
    t.eq("IRETQ sets", (event.vector, event.at()), (DB, event.subject.after + 1));
    let mut s = Subject::kernel(iret(())).with(reg::RCX, rflags::FIXED).flags(rflags::TF);
    for _ in 0..20 {
        let event = with(&[], &s);
        if event.vector != DB || event.at() == event.subject.after {
            trapped(t, "IRETQ clears", &event, dr6::BS);
            t.eq("TF is gone", event.regs.rflags & rflags::TF, 0);
            break;
        }
        s = event.go_on();
    }
}

fn steps_of_calls(t: &mut Test) {
    const STAR: u64 = (selector::USER_CODE32 as u64 & !3) << 48 | (selector::CODE as u64) << 32;
    let handler = code!("nop" => "nop");
    insn::wrmsr(IA32_STAR, STAR);
    insn::wrmsr(IA32_LSTAR, handler.start);
    let s = Subject::user(code!("syscall")).flags(rflags::TF);
    // TF counts as SYSCALL leaves it: masked, the handler is not stepped into.
    insn::wrmsr(IA32_FMASK, rflags::TF);
    let event = with(&[], &s);
    t.eq("SYSCALL masks", (event.vector, event.regs.rip), (DONE, handler.start + handler.end + 2));
    t.eq("R11 keeps it", event.regs.gpr[11] & rflags::TF, rflags::TF);
    insn::wrmsr(IA32_FMASK, 0);
    let event = with(&[], &s);
    t.eq("SYSCALL does not mask", (event.vector, event.regs.rip), (DB, handler.start));
    // SYSRET that sets TF traps where it returns to, before anything is executed.
    let landing = code!("nop");
    let s = Subject::kernel(code!("sysretq")).with(reg::RCX, landing.start + USER);
    let event = with(&[], &s.with(11, rflags::TF | rflags::FIXED));
    t.eq("SYSRET sets", (event.vector, event.regs.rip), (DB, landing.start + USER));
    t.eq("its DR6", event.dr6, FIXED | dr6::BS);
    let event = with(&[], &s.with(11, rflags::FIXED));
    t.eq("SYSRET without", event.vector, DONE);
}

fn steps_and_points(t: &mut Test) {
    let page = paging::page();
    let s = Subject::kernel(code!("mov [rdi], eax" => "nop")).with(reg::RDI, page).flags(rflags::TF);
    let event = with(&[(page, WRITE, 4)], &s);
    t.eq(
        "one #DB for both",
        (event.vector, event.at(), event.dr6),
        (DB, event.subject.probe, FIXED | 1 | dr6::BS),
    );
    // A step, then a breakpoint on what comes.
    let s = Subject::kernel(code!("nop" => "nop")).flags(rflags::TF);
    let points = [(s.code.start + s.code.probe, EXECUTE, 1)];
    let event = with(&points, &s);
    t.eq("the step first", (event.vector, event.at()), (DB, event.subject.probe));
    t.holds(("its bit", event.dr6), event.dr6 & dr6::BS != 0);
    let event = with(&points, &event.go_on());
    t.eq("then the breakpoint", (event.vector, event.at(), event.dr6), (DB, event.subject.probe, FIXED | 1));
}

fn interrupts(t: &mut Test) {
    // An interrupt comes before a breakpoint on the instruction that it keeps from beginning.
    let s = Subject::kernel(code!("nop")).flags(rflags::IF);
    let points = [(s.code.start, EXECUTE, 1)];
    apic::send_self(0x55);
    let event = with(&points, &s);
    t.eq("the interrupt first", (event.vector, event.at(), event.dr6), (0x55, 0, FIXED));
    apic::eoi();
    let event = with(&points, &event.go_on());
    t.eq("then the breakpoint", (event.vector, event.at()), (DB, 0));
    // A trap comes before the interrupt that the same instruction let in.
    insn::set_cr8(15);
    apic::send_self(0x56);
    let s = Subject::kernel(code!("nop" => "mov cr8, rax" => "nop")).flags(rflags::IF | rflags::TF);
    let event = with(&[], &with(&[], &s).go_on());
    t.eq("the trap first", (event.vector, event.at(), event.dr6), (DB, event.subject.after, FIXED | dr6::BS));
    let event = with(&[], &event.go_on());
    t.eq("then the interrupt", (event.vector, event.at()), (0x56, event.subject.after));
    apic::eoi();
    // And that of watched data.
    let page = paging::page();
    apic::send_self(0x57);
    let s = Subject::kernel(code!("sti" => "mov [rdi], eax" => "nop")).with(reg::RDI, page);
    let event = with(&[(page, WRITE, 4)], &s);
    trapped(t, "data first", &event, 1);
    let event = with(&[], &event.go_on());
    t.eq("then the interrupt", event.vector, 0x57);
    apic::eoi();
}

/// NMI comes after the trap of its boundary: before the first instruction of the trap's handler.
fn nmi(t: &mut Test) {
    let id = u64::from(apic::read(regs::ID) >> 24);
    let code = code!("mov [rdi + 0x310], ecx" => "mov [rdi + 0x300], eax" => "nop");
    let s = Subject::kernel(code).with(reg::RDI, regs::DEFAULT_BASE).with(reg::RCX, id << 24);
    let s = s.with(reg::RAX, u64::from(4 << 8 | icr::ASSERT));
    let event = with(&[], &with(&[], &s.flags(rflags::TF)).go_on());
    t.eq("a step", (event.vector, event.regs.rip, event.dr6), (vector::NMI, stub(DB), FIXED | dr6::BS));
    // NMIs are masked until the next IRET, which enters this one. Before a breakpoint, too.
    let points = [(code.start + code.after, EXECUTE, 1)];
    let event = with(&points, &s);
    t.eq("before a breakpoint", (event.vector, event.at()), (vector::NMI, event.subject.after));
    t.eq("which is not met", event.dr6, FIXED);
    let event = with(&points, &event.go_on());
    t.event("but then", &event, Expect::fault(DB).rf(false).at(At::After));
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
