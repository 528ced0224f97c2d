//! Breakpoints on data and ports: what they overlap, what counts as an access, strings.

use satori_guests::defs::x86::{cr4, rflags};
use satori_guests::subject::{USER, reg};
use satori_guests::{Code, Expect, Subject, Test, code, insn, paging};

use crate::{ACCESS, DB, FIXED, PORT, WRITE, trapped, with};

/// All lengths, at all offsets, against accesses of all sizes: hit where ranges overlap.
pub fn data_overlaps(t: &mut Test) {
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

pub fn stores(t: &mut Test) {
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

pub fn loads(t: &mut Test) {
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

pub fn no_accesses(t: &mut Test) {
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

pub fn repeated_strings(t: &mut Test) {
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

pub fn ports(t: &mut Test) {
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

pub fn several(t: &mut Test) {
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
