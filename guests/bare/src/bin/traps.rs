//! Single steps, debug registers, alignment checks, fast system calls, what user mode may not see,
//! protection keys and process-context identifiers.

#![no_std]
#![no_main]

use satori_guests::cpu::{Cpu, selector};
use satori_guests::defs::msr::{
    IA32_EFER, IA32_FMASK, IA32_LSTAR, IA32_STAR, IA32_SYSENTER_CS, IA32_SYSENTER_EIP, IA32_SYSENTER_ESP,
};
use satori_guests::defs::x86::{cr0, cr4, efer, pte, rflags, vector};
use satori_guests::paging::{self, Space};
use satori_guests::subject::{DONE, USER, reg};
use satori_guests::{Expect, Subject, Test, code, guest, insn};

guest!(
    "traps",
    single_steps,
    breakpoints_code,
    breakpoints_data,
    debug_registers,
    alignment,
    system_calls,
    system_returns,
    sysenter,
    umip,
    timestamp,
    protection_keys,
    context_identifiers,
);

const DB: u8 = vector::DB;
/// DR6: B0 to B3, BD, BS; and what always reads as one.
const BS: u64 = 1 << 14;
const BD: u64 = 1 << 13;
const DR6_FIXED: u64 = 0xffff_0ff0;

fn single_steps(t: &mut Test) {
    insn::set_dr6(DR6_FIXED);
    let s = Subject::user(code!("nop" => "inc eax" => "nop"));
    let mut subject = s.flags(rflags::TF);
    for step in 1..=3 {
        let event = subject.run();
        t.eq(("step", step), (event.vector, event.dr6), (DB, DR6_FIXED | BS));
        let at = [1, event.subject.after, event.subject.after + 1][step - 1];
        t.eq(("where", step), event.at(), at);
        t.eq(("TF is pushed", step), event.regs.rflags & (rflags::TF | rflags::RF), rflags::TF);
        t.eq(("TF is off in the handler", step), event.handler_rflags & rflags::TF, 0);
        subject = event.go_on();
    }
    // INT clears TF: no trap in the handler, and none after it.
    t.event("INT", &subject.run(), Expect::done());
    // POPF that sets TF: the trap comes after the next instruction; one that clears it still traps.
    let sets = code!("pushfq", "or dword ptr [rsp], 0x100", "popfq" => "nop" => "nop");
    t.event("POPF sets", &Subject::user(sets).run(), Expect::trap(DB));
    let clears = Subject::user(code!("popfq")).flags(rflags::TF);
    let s = Subject { regs: clears.regs, ..clears };
    // SAFETY: the user stack's top words, below which nothing is.
    unsafe { ((s.regs.gpr[reg::RSP] - USER - 8) as *mut u64).write_volatile(2) };
    let mut s = s;
    s.regs.gpr[reg::RSP] -= 8;
    t.event("POPF clears", &s.run(), Expect::trap(DB));
    // A fault comes instead of the trap.
    t.event("a fault", &Subject::user(code!("ud2")).flags(rflags::TF).run(), Expect::fault(vector::UD));
    // REP traps after each iteration, with RIP at the instruction.
    let s = Subject::kernel(code!("rep lodsb")).with(reg::RCX, 3).with(reg::RSI, 0x10_0000).flags(rflags::TF);
    let event = s.run();
    t.eq("an iteration", (event.vector, event.at(), event.regs.gpr[reg::RCX]), (DB, 0, 2));
    let event = event.go_on().run();
    let event = event.go_on().run();
    t.eq(
        "the last",
        (event.vector, event.at() == event.subject.after, event.regs.gpr[reg::RCX]),
        (DB, true, 0),
    );
    // A taken branch, a call, and MOV SS, whose trap is lost to the next instruction's.
    let s = Subject::user(code!("jmp 2f" => "nop" => "2:")).flags(rflags::TF);
    t.event("a branch", &s.run(), Expect::trap(DB));
    insn::set_dr6(DR6_FIXED);
}

fn breakpoints_code(t: &mut Test) {
    let s = Subject::user(code!("nop" => "inc eax" => "nop"));
    let at = s.code.start + s.code.probe;
    insn::set_dr0(at);
    insn::set_dr7(0x401);
    insn::set_dr6(DR6_FIXED);
    let event = s.run();
    t.eq("an instruction", (event.vector, event.at(), event.dr6), (DB, event.subject.probe, DR6_FIXED | 1));
    t.eq("before it is executed", event.regs.gpr[reg::RAX], 0);
    let mut again = event.go_on();
    again.regs.rflags |= rflags::RF;
    let event = again.run();
    t.event("RF lets it pass", &event, Expect::done());
    t.eq("and is executed", event.regs.gpr[reg::RAX], 1);
    // Not enabled, or not at its first byte.
    insn::set_dr7(0x400);
    t.event("off", &s.run(), Expect::done());
    insn::set_dr0(at + 1);
    insn::set_dr7(0x401);
    t.event("in its middle", &s.run(), Expect::done());
    // The fault of a fetch breakpoint comes before the instruction's own.
    let s = Subject::user(code!("ud2"));
    insn::set_dr0(s.code.start);
    t.eq("before #UD", s.run().vector, DB);
    insn::set_dr7(0x400);
    insn::set_dr6(DR6_FIXED);
}

fn breakpoints_data(t: &mut Test) {
    let page = paging::page() + USER;
    let cases: &[(&str, u64, u64, satori_guests::Code, bool)] = &[
        // Name, LEN and R/W, offset of the access, code, hit.
        ("write of 4, at it", 0b1101, 0, code!("mov [rdi], eax"), true),
        ("write of 4, read", 0b1101, 0, code!("mov eax, [rdi]"), false),
        ("access of 4, read", 0b1111, 0, code!("mov eax, [rdi]"), true),
        ("write of 4, its last byte", 0b1101, 3, code!("mov [rdi], al"), true),
        ("write of 4, beside", 0b1101, 4, code!("mov [rdi], al"), false),
        ("write of 1, beside", 0b0001, 1, code!("mov [rdi], al"), false),
        ("write of 8, far byte", 0b1001, 7, code!("mov [rdi], al"), true),
        ("write of 2, straddling", 0b0101, (-1i64) as u64, code!("mov [rdi], eax"), true),
        ("write of 4, before", 0b1101, (-4i64) as u64, code!("mov [rdi], eax"), false),
        ("access of 4, SSE", 0b1111, (-8i64) as u64, code!("movups xmm0, [rdi]"), true),
        ("write of 4, RMW", 0b1101, 0, code!("inc dword ptr [rdi]"), true),
        ("write of 4, locked", 0b1101, 0, code!("lock inc dword ptr [rdi]"), true),
        ("write of 4, XCHG", 0b1101, 0, code!("xchg [rdi], eax"), true),
        ("write of 4, STOS", 0b1101, 0, code!("stosb"), true),
        ("access of 4, LEA", 0b1111, 0, code!("lea eax, [rdi]"), false),
        ("access of 4, PREFETCH", 0b1111, 0, code!("prefetcht0 [rdi]"), false),
    ];
    for &(name, kind, offset, code, hit) in cases {
        let watched = page + 0x100;
        insn::set_dr3(watched);
        insn::set_dr7(0x400 | 1 << 6 | kind << 28);
        insn::set_dr6(DR6_FIXED);
        let event = Subject::user(code).with(reg::RDI, watched.wrapping_add(offset)).run();
        insn::set_dr7(0x400);
        let expect = if hit { Expect::trap(DB) } else { Expect::done() };
        t.event(name, &event, expect);
        if hit {
            t.eq((name, "DR6"), event.dr6, DR6_FIXED | 8);
        }
    }
    insn::set_dr6(DR6_FIXED);
}

fn debug_registers(t: &mut Test) {
    // DR4 and DR5 are DR6 and DR7 unless CR4.DE.
    let alias = Subject::kernel(code!(".byte 0x0f, 0x21, 0xe0"));
    t.event("DR4", &alias.run(), Expect::done());
    t.event("DR4 with DE", &alias.cr4(cr4::DE, 0).run(), Expect::fault(vector::UD));
    let s = Subject::kernel(code!("mov dr6, rax")).with(reg::RAX, 1 << 32);
    t.event("high bits of DR6", &s.run(), Expect::gp(0));
    let s = Subject::kernel(code!("mov dr7, rax")).with(reg::RAX, 1 << 32);
    t.event("high bits of DR7", &s.run(), Expect::gp(0));
    insn::set_dr7(0);
    t.eq("DR7's fixed bit", insn::dr7(), 0x400);
    insn::set_dr6(0);
    t.eq("DR6's fixed bits", insn::dr6(), DR6_FIXED);
    // General detect: a fault before any access, once.
    insn::set_dr7(0x400 | 1 << 13);
    let event = Subject::kernel(code!("mov rax, dr0")).run();
    t.eq("general detect", (event.vector, event.at(), event.dr6), (DB, 0, DR6_FIXED | BD));
    t.eq("GD is cleared", insn::dr7(), 0x400);
    let gp = Subject::user(code!("mov rax, dr0")).run();
    t.event("user mode", &gp, Expect::gp(0));
    insn::set_dr6(DR6_FIXED);
}

fn alignment(t: &mut Test) {
    let ac = Expect::fault(vector::AC).code(0);
    let at = Cpu::this().user.top() + USER - 256;
    for (name, code, offset, expect) in [
        ("a word", code!("mov ax, [rdi]"), 1, ac),
        ("a double word", code!("mov eax, [rdi]"), 2, ac),
        ("a quad word", code!("mov rax, [rdi]"), 4, ac),
        ("aligned", code!("mov rax, [rdi]"), 8, Expect::done()),
        ("a byte", code!("mov al, [rdi]"), 3, Expect::done()),
        ("a store", code!("mov [rdi], eax"), 1, ac),
        ("a locked addition", code!("lock add [rdi], eax"), 2, ac),
        ("a push", code!("mov rsp, rdi" => "push rax"), 4, ac),
        ("MOVUPS", code!("movups xmm0, [rdi]"), 4, Expect::done()),
    ] {
        let s = Subject::user(code).with(reg::RDI, at + offset).flags(rflags::AC);
        let event = s.cr0(cr0::AM, 0).run();
        if name == "MOVUPS" {
            // Processors may check it or not.
            t.holds(name, event.done() || expect.met_by(&event) || ac.met_by(&event));
            continue;
        }
        t.event(name, &event, expect);
        t.event((name, "without AM"), &s.run(), Expect::done());
        let s = Subject::user(code).with(reg::RDI, at + offset);
        t.event((name, "without AC"), &s.cr0(cr0::AM, 0).run(), Expect::done());
        let s = Subject::kernel(code).with(reg::RDI, at + offset).flags(rflags::AC);
        t.event((name, "at level 0"), &s.cr0(cr0::AM, 0).run(), Expect::done());
    }
}

/// STAR for the selectors of the GDT.
const STAR: u64 = (selector::USER_CODE32 as u64 & !3) << 48 | (selector::CODE as u64) << 32;

fn system_calls(t: &mut Test) {
    let handler = code!("nop");
    insn::wrmsr(IA32_STAR, STAR);
    insn::wrmsr(IA32_LSTAR, handler.start);
    insn::wrmsr(IA32_FMASK, rflags::DF | rflags::TF);
    let s = Subject::user(code!("syscall")).flags(rflags::DF | rflags::CF);
    let event = s.run();
    t.eq("it arrives", (event.vector, event.regs.rip), (DONE, handler.start + handler.end + 2));
    t.eq("at level 0", (event.regs.cs, event.regs.ss), (selector::CODE.into(), selector::DATA.into()));
    t.eq("RCX", event.regs.gpr[reg::RCX], s.code.start + s.code.after);
    t.eq("R11", event.regs.gpr[11], rflags::DF | rflags::CF | rflags::FIXED);
    t.eq("masked flags", event.regs.rflags, rflags::CF | rflags::FIXED);
    t.eq("RSP stays", event.regs.gpr[reg::RSP], s.regs.gpr[reg::RSP]);
    let value = insn::rdmsr(IA32_EFER);
    insn::wrmsr(IA32_EFER, value & !efer::SCE);
    let event = s.run();
    insn::wrmsr(IA32_EFER, value);
    t.event("without SCE", &event, Expect::fault(vector::UD));
    for (name, index) in [("LSTAR", IA32_LSTAR), ("SYSENTER_EIP", IA32_SYSENTER_EIP)] {
        let s = Subject::kernel(code!("wrmsr")).with(reg::RCX, index.into()).with(reg::RDX, 0x8000);
        t.event((name, "not canonical"), &s.run(), Expect::gp(0));
    }
}

fn system_returns(t: &mut Test) {
    insn::wrmsr(IA32_STAR, STAR);
    let landing = code!("nop");
    let s = Subject::kernel(code!("sysretq")).with(reg::RCX, landing.start + USER);
    let event = s.with(11, rflags::CF | rflags::RF | rflags::VM | rflags::FIXED).run();
    t.eq("to 64-bit code", (event.vector, event.regs.rip), (DONE, landing.start + USER + landing.end + 2));
    let segments = (event.regs.cs, event.regs.ss);
    // AMD's processors take SS's RPL from STAR (APM volume 3, SYSRET).
    let amd = insn::cpuid(0, 0)[1] == u32::from_le_bytes(*b"Auth");
    let ss = selector::USER_DATA & if amd { !3 } else { !0 };
    t.eq("at level 3", segments, (selector::USER_CODE.into(), ss.into()));
    t.eq("its flags", event.regs.rflags, rflags::CF | rflags::FIXED);
    let event =
        Subject::kernel(code!(".byte 0x0f, 0x07")).with(reg::RCX, landing.start + USER).with(11, 2).run();
    t.eq("to 32-bit code", (event.vector, event.regs.cs), (DONE, selector::USER_CODE32.into()));
    if !amd {
        let s = Subject::kernel(code!("sysretq")).with(reg::RCX, 1 << 47);
        t.event("to the hole", &s.run(), Expect::gp(0));
    }
    t.event("of user mode", &Subject::user(code!("sysretq")).run(), Expect::gp(0));
}

fn sysenter(t: &mut Test) {
    let amd = insn::cpuid(0, 0)[1] == u32::from_le_bytes(*b"Auth");
    if amd {
        t.event("not in long mode", &Subject::user(code!("sysenter")).run(), Expect::fault(vector::UD));
        return;
    }
    let handler = code!("nop");
    insn::wrmsr(IA32_SYSENTER_CS, 0);
    t.event("without CS", &Subject::user(code!("sysenter")).run(), Expect::gp(0));
    t.event("SYSEXIT without CS", &Subject::kernel(code!("sysexit")).run(), Expect::gp(0));
    insn::wrmsr(IA32_SYSENTER_CS, selector::CODE.into());
    insn::wrmsr(IA32_SYSENTER_EIP, handler.start);
    insn::wrmsr(IA32_SYSENTER_ESP, Cpu::this().kernel.top());
    for (name, s) in
        [("64-bit", Subject::user(code!("sysenter"))), ("32-bit", Subject::compat(code!("sysenter")))]
    {
        let event = s.flags(rflags::IF | rflags::CF).run();
        t.eq((name, "arrives"), (event.vector, event.regs.rip), (DONE, handler.start + handler.end + 2));
        t.eq((name, "stack"), event.regs.gpr[reg::RSP], Cpu::this().kernel.top());
        t.eq((name, "IF is off"), event.regs.rflags, rflags::CF | rflags::FIXED);
    }
    let landing = code!("nop");
    let s = Subject::kernel(code!(".byte 0x48, 0x0f, 0x35"))
        .with(reg::RDX, landing.start + USER)
        .with(reg::RCX, Cpu::this().user.top() + USER);
    let event = s.run();
    let found = (event.vector, event.regs.cs, event.regs.ss);
    t.eq("SYSEXIT", found, (DONE, selector::USER_CODE.into(), selector::USER_DATA2.into()));
    t.event("SYSEXIT to the hole", &s.with(reg::RDX, 1 << 47).run(), Expect::gp(0));
    insn::wrmsr(IA32_SYSENTER_CS, 0);
}

fn umip(t: &mut Test) {
    let has = insn::cpuid(7, 0)[2] >> 2 & 1 != 0;
    for (name, code) in [
        ("SGDT", code!("sgdt [rsp - 16]")),
        ("SIDT", code!("sidt [rsp - 16]")),
        ("SLDT", code!("sldt eax")),
        ("STR", code!("str eax")),
        ("SMSW", code!("smsw eax")),
    ] {
        t.event(name, &Subject::user(code).run(), Expect::done());
        if has {
            t.event((name, "UMIP"), &Subject::user(code).cr4(cr4::UMIP, 0).run(), Expect::gp(0));
            t.event((name, "level 0"), &Subject::kernel(code).cr4(cr4::UMIP, 0).run(), Expect::done());
        }
    }
}

fn timestamp(t: &mut Test) {
    t.event("RDTSC", &Subject::user(code!("rdtsc")).run(), Expect::done());
    t.event("TSD", &Subject::user(code!("rdtsc")).cr4(cr4::TSD, 0).run(), Expect::gp(0));
    t.event("TSD at level 0", &Subject::kernel(code!("rdtsc")).cr4(cr4::TSD, 0).run(), Expect::done());
    t.event("RDPMC", &Subject::user(code!("rdpmc")).run(), Expect::gp(0));
}

const LINEAR: u64 = paging::FREE + (13 << 12);

fn protection_keys(t: &mut Test) {
    let wrpkru = code!("xor ecx, ecx", "xor edx, edx" => "wrpkru");
    if insn::cpuid(7, 0)[2] >> 3 & 1 == 0 {
        t.event("absent", &Subject::kernel(wrpkru).run(), Expect::fault(vector::UD));
        return;
    }
    t.event("without PKE", &Subject::user(wrpkru).run(), Expect::fault(vector::UD));
    let s = Subject::user(code!("xor ecx, ecx", "mov edx, 1" => "wrpkru"));
    t.event("EDX is not 0", &s.cr4(cr4::PKE, 0).run(), Expect::gp(0));
    let space = Space::new();
    let data = paging::page();
    space.enter();
    let read = code!("xor ecx, ecx", "xor edx, edx", "wrpkru" => "mov cl, [rdi]" => "xor eax, eax", "xor ecx, ecx", "wrpkru");
    let write = code!("xor ecx, ecx", "xor edx, edx", "wrpkru" => "mov [rdi], cl" => "xor eax, eax", "xor ecx, ecx", "wrpkru");
    for key in [0u64, 1, 7, 15] {
        for bits in 0..4u64 {
            for user_page in [false, true] {
                for (user, wp) in [(true, true), (false, true), (false, false)] {
                    let rights = pte::W | if user_page { pte::U } else { 0 };
                    space.map(LINEAR, data, rights | key << 59);
                    insn::invlpg(LINEAR);
                    for (writes, code) in [(false, read), (true, write)] {
                        let s = if user { Subject::user(code) } else { Subject::kernel(code) };
                        let pkru = bits << (2 * key);
                        let s = s.with(reg::RAX, pkru).with(reg::RDI, LINEAR).cr4(cr4::PKE, 0);
                        let event = s.cr0(0, if wp { 0 } else { cr0::WP }).run();
                        let denied =
                            user_page && (bits & 1 != 0 || (bits & 2 != 0 && writes && (user || wp)));
                        let plain = user && !user_page;
                        let code = 1
                            | if writes { 2 } else { 0 }
                            | if user { 4 } else { 0 }
                            | if denied { 0x20 } else { 0 };
                        let expect = if denied || plain { Expect::pf(code, LINEAR) } else { Expect::done() };
                        t.event((key, bits, user_page, user, wp, writes), &event, expect);
                    }
                }
            }
        }
    }
    // PKRU open again, for what follows.
    let s = Subject::kernel(wrpkru).with(reg::RAX, 0).cr4(cr4::PKE, 0);
    t.event("open again", &s.run(), Expect::done());
    paging::leave();
}

fn context_identifiers(t: &mut Test) {
    if insn::cpuid(1, 0)[2] >> 17 & 1 == 0 {
        let s = Subject::kernel(code!("mov rax, cr4", "or eax, 0x20000" => "mov cr4, rax"));
        t.event("absent", &s.run(), Expect::gp(0));
        return;
    }
    let read = || {
        // SAFETY: the case maps it.
        unsafe { (LINEAR as *const u64).read_volatile() }
    };
    let (one, two) = (Space::new(), Space::new());
    let pages = [paging::page(), paging::page(), paging::page()];
    for (number, &page) in pages.iter().enumerate() {
        // SAFETY: a fresh page.
        unsafe { (page as *mut u64).write_volatile(number as u64) };
    }
    one.map(LINEAR, pages[0], pte::W);
    two.map(LINEAR, pages[1], pte::W);
    let s = Subject::kernel(code!("mov rax, cr4", "or eax, 0x20000" => "mov cr4, rax"));
    insn::set_cr3(paging::kernel_cr3() | 0x18);
    t.event("PCIDE with any low bit of CR3", &s.run(), Expect::gp(0));
    paging::leave();
    let before = insn::cr4();
    insn::set_cr4(before | cr4::PCIDE);
    const KEEP: u64 = 1 << 63;
    for round in 0..50 {
        insn::set_cr3(one.root | 1 | if round > 0 { KEEP } else { 0 });
        t.eq(("the first", round), read(), 0);
        insn::set_cr3(two.root | 2 | if round > 0 { KEEP } else { 0 });
        t.eq(("the second", round), read(), 1);
    }
    // Changed while another is loaded: a load without KEEP drops it.
    one.map(LINEAR, pages[2], pte::W);
    insn::set_cr3(one.root | 1);
    t.eq("dropped by the load", read(), 2);
    if insn::cpuid(7, 0)[1] >> 10 & 1 != 0 {
        insn::set_cr3(two.root | 2 | KEEP);
        for (name, kind, pcid, address, page, want) in [
            ("one address", 0, 1, LINEAR, pages[0], 0),
            ("one context", 1, 1, 0, pages[2], 2),
            ("all but global", 3, 0, 0, pages[0], 0),
            ("all", 2, 0, 0, pages[2], 2),
        ] {
            one.map(LINEAR, page, pte::W);
            insn::invpcid(kind, pcid, address);
            insn::set_cr3(one.root | 1 | KEEP);
            t.eq(name, read(), want);
            insn::set_cr3(two.root | 2 | KEEP);
            t.eq((name, "the other"), read(), 1);
        }
        let s = Subject::kernel(code!("push 0", "push 0" => "invpcid rax, [rsp]")).with(reg::RAX, 4);
        t.event("INVPCID of type 4", &s.run(), Expect::gp(0));
        let s = Subject::kernel(code!("push 0", "push 0x1000" => "invpcid rax, [rsp]")).with(reg::RAX, 1);
        t.event("INVPCID's reserved bits", &s.run(), Expect::gp(0));
        let s = Subject::kernel(code!("push rbx", "push 1" => "invpcid rax, [rsp]"));
        t.event("INVPCID in the hole", &s.with(reg::RAX, 0).with(3, 1 << 47).run(), Expect::gp(0));
        let s = Subject::user(code!("invpcid rax, [rsp]"));
        t.event("INVPCID of user mode", &s.run(), Expect::gp(0));
    }
    // It can be cleared at any PCID; a fault here would end the guest.
    insn::set_cr3(one.root | 5);
    insn::set_cr4(before);
    insn::set_cr3(paging::kernel_cr3() | 5);
    let s = Subject::kernel(code!("mov rax, cr4", "or eax, 0x20000" => "mov cr4, rax")).run();
    t.event("but set only at PCID 0", &s, Expect::gp(0));
    paging::leave();
}
