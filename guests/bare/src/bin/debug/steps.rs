//! Single steps, of all kinds of instructions, and what comes first where several things come.

use satori_guests::cpu::selector;
use satori_guests::defs::apic::{self as regs, icr};
use satori_guests::defs::msr::{IA32_FMASK, IA32_LSTAR, IA32_STAR};
use satori_guests::defs::x86::{dr6, rflags, vector};
use satori_guests::subject::{At, DONE, USER, reg, stub};
use satori_guests::{Expect, Subject, Test, apic, code, insn, paging};

use crate::{DB, EXECUTE, FIXED, WRITE, trapped, with};

/// Single steps of all kinds of instructions: after each, BS.
pub fn steps(t: &mut Test) {
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

pub fn steps_of_calls(t: &mut Test) {
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

pub fn steps_and_points(t: &mut Test) {
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

pub fn interrupts(t: &mut Test) {
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
pub fn nmi(t: &mut Test) {
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
