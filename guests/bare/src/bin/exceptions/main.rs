//! Exceptions of every class: vector, error code, RIP, RF, priority, double faults, stacks.

#![no_std]
#![no_main]

mod segments;

use satori_guests::cpu::{Cpu, selector};
use satori_guests::defs::x86::{cr0, cr4, rflags, vector};
use satori_guests::subject::{self, reg};
use satori_guests::{Expect, Subject, Test, code, guest, insn};

use crate::segments::{
    data_segments, far_returns, gate_code, interrupt_returns, software_interrupts, stack_segments,
};

guest!(
    "exceptions",
    divide,
    breakpoints,
    invalid_opcodes,
    length,
    device_not_available,
    x87_errors,
    simd_errors,
    privileged,
    canonical,
    alignment_of_vectors,
    software_interrupts,
    data_segments,
    stack_segments,
    far_returns,
    interrupt_returns,
    doubles,
    stacks,
    gates,
);

/// An address in the hole between the halves.
const HOLE: u64 = 0x0000_8000_0000_0000;

fn divide(t: &mut Test) {
    let s = Subject::kernel(code!("xor ecx, ecx" => "div ecx"));
    t.event("by zero", &s.run(), Expect::fault(vector::DE));
    let s = Subject::user(code!("mov ecx, 2", "mov edx, 2" => "div ecx"));
    t.event("too large", &s.run(), Expect::fault(vector::DE));
    let s = Subject::kernel(code!("mov eax, 0x80000000", "mov edx, -1", "mov ecx, -1" => "idiv ecx"));
    t.event("the lowest by -1", &s.run(), Expect::fault(vector::DE));
    let s = Subject::compat(code!(".code32" => ".byte 0xd4, 0"));
    t.event("AAM 0", &s.run(), Expect::fault(vector::DE));
    let s = Subject::user(code!("mov eax, 77", "mov edx, 0", "mov ecx, 10" => "div ecx"));
    let event = s.run();
    t.event("that fits", &event, Expect::done());
    t.eq("quotient and remainder", (event.regs.gpr[reg::RAX], event.regs.gpr[reg::RDX]), (7, 7));
}

fn breakpoints(t: &mut Test) {
    t.event("INT3", &Subject::kernel(code!("int3")).run(), Expect::trap(vector::BP));
    t.event("INT3 of user mode", &Subject::user(code!("int3")).run(), Expect::trap(vector::BP));
    t.event("INT 3", &Subject::user(code!(".byte 0xcd, 3")).run(), Expect::trap(vector::BP));
    let s = Subject::compat(code!(".code32", "mov al, 127", "add al, 1" => "into"));
    t.event("INTO with OF", &s.run(), Expect::trap(vector::OF));
    let s = Subject::compat(code!(".code32", "xor eax, eax" => "into"));
    t.event("INTO without OF", &s.run(), Expect::done());
    t.event("INTO in 64-bit code", &Subject::user(code!(".byte 0xce")).run(), Expect::fault(vector::UD));
    let bounds = code!(".code32", "push 10", "push 5", "mov eax, 11" => "bound eax, [esp]");
    t.event("BOUND above", &Subject::compat(bounds).run(), Expect::fault(vector::BR));
    let bounds = code!(".code32", "push 10", "push -5", "mov eax, -6" => "bound eax, [esp]");
    t.event("BOUND below", &Subject::compat(bounds).run(), Expect::fault(vector::BR));
    let bounds = code!(".code32", "push 10", "push -5", "mov eax, 10" => "bound eax, [esp]");
    t.event("BOUND within", &Subject::compat(bounds).run(), Expect::done());
    // ICEBP is no software interrupt: no DPL is looked at, and DR6 keeps its bits.
    insn::set_dr6(0xffff_0ff0);
    let event = Subject::user(code!(".byte 0xf1")).run();
    t.event("ICEBP", &event, Expect::trap(vector::DB));
    t.eq("ICEBP's DR6", event.dr6, 0xffff_0ff0);
}

fn invalid_opcodes(t: &mut Test) {
    let ud = Expect::fault(vector::UD);
    for (name, bytes) in [
        ("UD2", code!("ud2")),
        ("UD1", code!(".byte 0x0f, 0xb9, 0xc0")),
        ("UD0", code!(".byte 0x0f, 0xff, 0xc0")),
        ("LOCK MOV", code!(".byte 0xf0, 0x89, 0x04, 0x24")),
        ("LOCK ADD to a register", code!(".byte 0xf0, 0x01, 0xc0")),
        ("LOCK CMP", code!(".byte 0xf0, 0x39, 0x04, 0x24")),
        ("LOCK NOP", code!(".byte 0xf0, 0x90")),
        ("PUSH ES", code!(".byte 0x06")),
        ("POP DS", code!(".byte 0x1f")),
        ("DAA", code!(".byte 0x27")),
        ("AAA", code!(".byte 0x37")),
        ("PUSHA", code!(".byte 0x60")),
        ("opcode 82", code!(".byte 0x82, 0xc0, 0")),
        ("far CALL with immediate", code!(".byte 0x9a, 0, 0, 0, 0, 0, 0")),
        ("far JMP with immediate", code!(".byte 0xea, 0, 0, 0, 0, 0, 0")),
        ("AAM", code!(".byte 0xd4, 10")),
        ("SALC", code!(".byte 0xd6")),
        ("MOV to CS", code!(".byte 0x8e, 0xc8")),
        ("MOV to segment 6", code!(".byte 0x8e, 0xf0")),
        ("LEA of a register", code!(".byte 0x8d, 0xc0")),
        ("MOV CR1", code!(".byte 0x0f, 0x20, 0xc8")),
        ("MOV CR5", code!(".byte 0x0f, 0x20, 0xe8")),
        ("group 11 /1", code!(".byte 0xc7, 0xc8, 0, 0, 0, 0")),
        ("group 5 /7", code!(".byte 0xff, 0xf8")),
        ("far CALL through a register", code!(".byte 0xff, 0xd8")),
        ("group 4 /2", code!(".byte 0xfe, 0xd0")),
        ("SGDT of a register", code!(".byte 0x0f, 0x01, 0xc7")),
        ("CMPXCHG8B of a register", code!(".byte 0x0f, 0xc7, 0xc8")),
        ("RSM", code!(".byte 0x0f, 0xaa")),
        ("MOVNTI of a register", code!(".byte 0x0f, 0xc3, 0xc0")),
    ] {
        t.event(name, &Subject::kernel(bytes).run(), ud);
    }
    for (name, bytes) in [
        ("ARPL's opcode is MOVSXD", code!(".byte 0x63, 0xc0")),
        ("NOP with operands", code!(".byte 0x0f, 0x1f, 0xc0")),
        ("hint NOP", code!(".byte 0x0f, 0x1e, 0xc8")),
        ("group 3 /1 is TEST", code!(".byte 0xf6, 0xc8, 1")),
        ("REX before another prefix", code!(".byte 0x48, 0x66, 0x90")),
        ("REP RET's NOP", code!(".byte 0xf3, 0x90")),
    ] {
        t.event(name, &Subject::user(bytes).run(), Expect::done());
    }
    // Invalid opcode comes before a bad operand.
    let s = Subject::kernel(code!(".byte 0xf0, 0x89, 0x00")).with(reg::RAX, HOLE);
    t.event("LOCK MOV to a bad address", &s.run(), ud);
}

fn length(t: &mut Test) {
    let longest = code!(".rept 13", ".byte 0x66", ".endr", ".byte 0x89, 0xc0");
    t.event("15 bytes", &Subject::user(longest).run(), Expect::done());
    let longer = code!(".rept 14", ".byte 0x66", ".endr", ".byte 0x89, 0xc0");
    t.event("16 bytes", &Subject::user(longer).run(), Expect::gp(0));
    let invalid = code!(".rept 14", ".byte 0x66", ".endr", ".byte 0x0f, 0x0b");
    t.event("UD2 of 16 bytes", &Subject::user(invalid).run(), Expect::gp(0));
}

fn device_not_available(t: &mut Test) {
    let (nm, ud) = (Expect::fault(vector::NM), Expect::fault(vector::UD));
    let (x87, mmx, sse) = (code!("fld1"), code!("paddb mm0, mm1"), code!("addps xmm0, xmm1"));
    let (wait, control) = (code!("fwait"), code!("fxsave [rsp - 512]"));
    for (name, code, set, clear, expect) in [
        ("x87 with TS", x87, cr0::TS, 0, nm),
        ("x87 with EM", x87, cr0::EM, 0, nm),
        ("MMX with TS", mmx, cr0::TS, 0, nm),
        ("MMX with EM", mmx, cr0::EM, 0, ud),
        ("MMX with EM and TS", mmx, cr0::EM | cr0::TS, 0, ud),
        ("SSE with TS", sse, cr0::TS, 0, nm),
        ("SSE with EM", sse, cr0::EM, 0, ud),
        ("SSE with EM and TS", sse, cr0::EM | cr0::TS, 0, ud),
        ("FWAIT with TS and MP", wait, cr0::TS, 0, nm),
        ("FWAIT with TS alone", wait, cr0::TS, cr0::MP, Expect::done()),
        ("FWAIT with EM", wait, cr0::EM, 0, Expect::done()),
        ("FXSAVE with TS", control, cr0::TS, 0, nm),
        ("FXSAVE with EM", control, cr0::EM, 0, nm),
    ] {
        for (level, subject) in [("kernel", Subject::kernel(code)), ("user", Subject::user(code))] {
            t.event((name, level), &subject.cr0(set, clear).run(), expect);
        }
    }
    for (name, code) in
        [("ADDPS", sse), ("LDMXCSR", code!("ldmxcsr [rip]")), ("MOVNTDQ", code!("movntdq [rsp-16], xmm0"))]
    {
        t.event((name, "without OSFXSR"), &Subject::user(code).cr4(0, cr4::OSFXSR).run(), ud);
    }
    for code in [
        code!("fxsave [rsp - 512]"),
        code!("movnti [rsp - 8], eax"),
        code!("prefetchnta [rsp]"),
        code!("sfence"),
    ] {
        t.event("needs no OSFXSR", &Subject::user(code).cr4(0, cr4::OSFXSR).run(), Expect::done());
    }
    // TS comes after an invalid opcode and before a bad address.
    let s = Subject::kernel(code!("fld qword ptr [rax]")).with(reg::RAX, HOLE);
    t.event("TS and a bad address", &s.cr0(cr0::TS, 0).run(), nm);
    let clts = Subject::kernel(code!("clts" => "fld1" => "fninit")).cr0(cr0::TS, 0).run();
    t.event("CLTS", &clts, Expect::done());
    subject::reset_fpu();
}

fn x87_errors(t: &mut Test) {
    let mf = Expect::fault(vector::MF);
    // Zero divide unmasked: the division itself completes its bookkeeping, the next waiting one faults.
    macro_rules! after_error {
        ($($next:literal),+) => {
            Subject::user(code!("push 0x37b", "fninit", "fldcw [rsp]", "fldz", "fld1", "fdiv st(0), st(1)" => $($next),+ => "fninit"))
        };
    }
    for (name, subject) in [
        ("FWAIT", after_error!("fwait")),
        ("FLD1", after_error!("fld1")),
        ("FLD of memory", after_error!("fld dword ptr [rsp]")),
        ("EMMS", after_error!("emms")),
        ("an MMX instruction", after_error!("paddb mm0, mm1")),
    ] {
        t.event(name, &subject.run(), mf);
    }
    for (name, subject) in [
        ("FNINIT", after_error!("fninit")),
        ("FNCLEX", after_error!("fnclex")),
        ("FNSTSW", after_error!("fnstsw ax")),
        ("FNSTCW", after_error!("fnstcw [rsp]")),
        ("FXSAVE", after_error!("fxsave [rsp - 520]", "nop")),
        ("SSE", after_error!("addps xmm0, xmm1")),
    ] {
        t.event(name, &subject.run(), Expect::done());
    }
    // A pending error comes before a fault of the waiting instruction's operand.
    let s = after_error!("fld dword ptr [rax]").with(reg::RAX, HOLE);
    t.event("before a bad address", &s.run(), mf);
    let event = after_error!("fwait").cr0(cr0::TS, 0).run();
    t.eq("TS comes first", event.vector, vector::NM);
    subject::reset_fpu();
}

fn simd_errors(t: &mut Test) {
    let xm = Expect::fault(vector::XM);
    macro_rules! unmasked {
        ($mxcsr:literal, $($probe:literal),+) => {
            Subject::user(code!(concat!("push ", $mxcsr), "ldmxcsr [rsp]", "mov eax, 0x3f800000",
                "movd xmm0, eax", "xorps xmm1, xmm1" => $($probe),+ => "stmxcsr [rsp]", "pop rax"))
        };
    }
    let divide = unmasked!("0x1d80", "divss xmm0, xmm1");
    t.event("zero divide", &divide.run(), xm);
    let event = divide.cr4(0, cr4::OSXMMEXCPT).run();
    t.event("without OSXMMEXCPT", &event, Expect::fault(vector::UD));
    let event = unmasked!("0x1f80", "divss xmm0, xmm1").run();
    t.event("masked", &event, Expect::done());
    t.eq("flag of the masked one", event.regs.gpr[reg::RAX], 0x1f84);
    let s = unmasked!("0x0f80", "cvtss2si eax, xmm0");
    t.event("exact", &s.run(), Expect::done());
    let s = unmasked!("0x1f00", "sqrtss xmm0, xmm1");
    t.event("nothing invalid", &s.run(), Expect::done());
    let s = unmasked!("0x1f00", "divss xmm1, xmm1");
    t.event("invalid", &s.run(), xm);
    let s = Subject::user(code!("push 0x10000", "mov eax, 1" => "ldmxcsr [rsp]"));
    t.event("LDMXCSR with a reserved bit", &s.run(), Expect::gp(0));
    subject::reset_fpu();
}

fn privileged(t: &mut Test) {
    for (name, code) in [
        ("HLT", code!("hlt")),
        ("CLI", code!("cli")),
        ("STI", code!("sti")),
        ("CLTS", code!("clts")),
        ("INVD", code!("invd")),
        ("WBINVD", code!("wbinvd")),
        ("INVLPG", code!("invlpg [rsp]")),
        ("LGDT", code!("lgdt [rsp]")),
        ("LIDT", code!("lidt [rsp]")),
        ("LLDT", code!("lldt ax")),
        ("LTR", code!("ltr ax")),
        ("LMSW", code!("lmsw ax")),
        ("MOV from CR0", code!("mov rax, cr0")),
        ("MOV to CR3", code!("mov cr3, rax")),
        ("MOV to CR8", code!("mov cr8, rax")),
        ("MOV from DR0", code!("mov rax, dr0")),
        ("MOV to DR7", code!("mov dr7, rax")),
        ("RDMSR", code!("rdmsr")),
        ("WRMSR", code!("wrmsr")),
        ("SWAPGS", code!("swapgs")),
        ("SYSRET", code!("sysretq")),
        ("SYSEXIT", code!("sysexit")),
        ("IN", code!("in al, 0x80")),
        ("OUT", code!("out dx, eax")),
        ("INS", code!("insb")),
        ("REP OUTS", code!("mov ecx, 1" => "rep outsb")),
    ] {
        t.event(name, &Subject::user(code).run(), Expect::gp(0));
    }
    // IOPL 3 opens CLI, STI and the ports to user mode.
    for code in [code!("cli"), code!("sti", "cli"), code!("in al, 0x80")] {
        t.event("IOPL 3", &Subject::user(code).flags(rflags::IOPL).run(), Expect::done());
    }
    // The I/O permission map: a bit a byte of the access.
    let ports = &mut Cpu::this().tss.ports;
    ports[0x80 / 8] = 0xfc;
    for (name, code, expect) in [
        ("permitted", code!("in al, 0x80"), Expect::done()),
        ("a word permitted", code!("in ax, 0x80"), Expect::done()),
        ("a word half permitted", code!("in ax, 0x81"), Expect::gp(0)),
        ("a double word half permitted", code!("in eax, 0x80"), Expect::gp(0)),
        ("beyond the limit", code!("mov dx, 0x400" => "in al, dx"), Expect::gp(0)),
        ("over the limit", code!("mov dx, 0x3ff" => "in al, dx"), Expect::gp(0)),
    ] {
        t.event(name, &Subject::user(code).run(), expect);
    }
    Cpu::this().tss.ports = [0xff; _];
    // POPF leaves IOPL and, without the right, IF as they are, silently.
    let all = rflags::IOPL | rflags::IF;
    let event = Subject::user(code!("push rax" => "popfq")).with(reg::RAX, all).run();
    t.eq("POPF of user mode", event.regs.rflags & all, 0);
    let event =
        Subject::user(code!("push rax" => "popfq")).flags(rflags::IOPL).with(reg::RAX, rflags::IF).run();
    t.eq("POPF with IOPL 3", event.regs.rflags & all, all);
}

fn canonical(t: &mut Test) {
    let (gp, ss) = (Expect::gp(0), Expect::fault(vector::SS).code(0));
    for (name, code, expect) in [
        ("load", code!("mov al, [rax]"), gp),
        ("store", code!("mov [rax], al"), gp),
        ("through RBP", code!("mov rbp, rax" => "mov al, [rbp]"), ss),
        ("through RSP", code!("mov rsp, rax" => "mov al, [rsp]"), ss),
        ("through RBP with DS", code!("mov rbp, rax" => "mov al, ds:[rbp]"), ss),
        ("through RAX with SS", code!("mov al, ss:[rax]"), gp),
        ("through R13", code!("mov r13, rax" => "mov al, [r13]"), gp),
        ("through R12", code!("mov r12, rax" => "mov al, [r12]"), gp),
        ("string source", code!("mov rsi, rax" => "lodsb"), gp),
        ("string destination", code!("mov rdi, rax" => "stosb"), gp),
        ("JMP", code!("jmp rax"), gp),
        ("CALL", code!("call rax"), gp),
        ("RET", code!("push rax" => "ret"), gp),
        ("PUSH", code!("lea rsp, [rax + 8]" => "push rax"), ss),
        ("POP", code!("mov rsp, rax" => "pop rcx"), ss),
        ("XLAT", code!("mov rbx, rax" => "xlatb"), gp),
        ("MASKMOVDQU", code!("pcmpeqb xmm1, xmm1", "mov rdi, rax" => "maskmovdqu xmm0, xmm1"), gp),
    ] {
        t.event(name, &Subject::user(code).with(reg::RAX, HOLE).run(), expect);
    }
    t.event("LGDT", &Subject::kernel(code!("lgdt [rax]")).with(reg::RAX, HOLE).run(), gp);
    // Nothing that only names an address.
    for code in [
        code!("lea rcx, [rax]"),
        code!("prefetcht0 [rax]"),
        code!("invlpg [rax]"),
        code!("nop dword ptr [rax]"),
    ] {
        t.event("not an access", &Subject::kernel(code).with(reg::RAX, HOLE).run(), Expect::done());
    }
    let base = 0xffff_8000_0000_0000;
    let s = Subject::kernel(code!("mov rax, [rax]")).with(reg::RAX, base - 4);
    t.event("across the hole's end", &s.run(), gp);
    let s = Subject::kernel(code!("mov rax, [rax]")).with(reg::RAX, HOLE - 4);
    t.event("across the hole's begin", &s.run(), gp);
}

fn alignment_of_vectors(t: &mut Test) {
    for (name, code) in [
        ("MOVAPS", code!("movaps xmm0, [rsp + 8]")),
        ("MOVDQA store", code!("movdqa [rsp + 4], xmm0")),
        ("ADDPS", code!("addps xmm0, [rsp + 1]")),
        ("PXOR", code!("pxor xmm0, [rsp + 8]")),
        ("MOVNTPS", code!("movntps [rsp + 8], xmm0")),
        ("FXSAVE", code!("fxsave [rsp - 520]")),
        ("CMPXCHG16B", code!("cmpxchg16b [rsp + 8]")),
    ] {
        t.event(
            name,
            &Subject::kernel(code).with(reg::RSP, Cpu::this().kernel.top() - 64).run(),
            Expect::gp(0),
        );
    }
    for code in [
        code!("movups xmm0, [rsp - 7]"),
        code!("lddqu xmm0, [rsp - 9]"),
        code!("paddb mm0, [rsp - 9]", "emms"),
    ] {
        t.event("needs none", &Subject::user(code).run(), Expect::done());
    }
    subject::reset_fpu();
}

fn doubles(t: &mut Test) {
    let df = Expect::fault(vector::DF).code(0);
    let gate = |vector: u8| gate_code(vector, 1);
    let pf = code!("mov al, [rax]");
    let cases: &[(&str, Subject, &[u8], Expect)] = &[
        ("#GP, gate absent", Subject::user(code!("hlt")), &[vector::GP], df),
        ("#DE, gate absent", Subject::user(code!("div al")), &[vector::DE], df),
        (
            "#UD, gate absent",
            Subject::user(code!("ud2")),
            &[vector::UD],
            Expect::fault(vector::NP).code(gate(vector::UD)),
        ),
        ("#UD and #NP, gates absent", Subject::user(code!("ud2")), &[vector::UD, vector::NP], df),
        ("#PF, gate absent", Subject::user(pf).with(reg::RAX, 8 << 39), &[vector::PF], df),
        (
            "#BP, gate absent",
            Subject::user(code!("int3")),
            &[vector::BP],
            Expect::fault(vector::NP).code(gate_code(vector::BP, 0)),
        ),
        (
            "ICEBP, gate absent",
            Subject::user(code!(".byte 0xf1")),
            &[vector::DB],
            Expect::fault(vector::NP).code(gate(vector::DB)),
        ),
    ];
    for (name, subject, absent, expect) in cases {
        let cpu = Cpu::this();
        for &vector in *absent {
            let gate = &mut cpu.idt[usize::from(vector)];
            *gate = gate.absent();
        }
        let event = subject.run();
        cpu.reset_gates();
        if *name == "ICEBP, gate absent" {
            // Whether RIP is before or after a trap-like event whose delivery fails differs.
            t.eq(*name, (event.vector, event.code), (expect.vector, expect.code));
        } else {
            t.event(*name, &event, *expect);
        }
    }
    // A page fault whose handler's stack faults: CR2 is the second one's.
    let cpu = Cpu::this();
    let missing = 7 << 39;
    cpu.tss.rsp[0] = missing + 0x1000;
    let event = Subject::user(pf).with(reg::RAX, 8 << 39).run();
    t.event("#PF in the delivery of #PF", &event, df);
    t.eq("CR2 of the second", event.cr2, missing + 0xff8);
    let event = Subject::user(code!("hlt")).run();
    t.eq("#PF in the delivery of #GP", (event.vector, event.code), (vector::DF, Some(0)));
    cpu.idt[usize::from(vector::PF)] = cpu.idt[usize::from(vector::PF)].ist(2);
    let event = Subject::user(code!("hlt")).run();
    t.event("#PF in the delivery of #GP is a page fault", &event, Expect::pf(2, missing + 0xff8));
    cpu.tss.rsp[0] = HOLE;
    cpu.idt[usize::from(vector::SS)] = cpu.idt[usize::from(vector::SS)].ist(2);
    let event = Subject::user(code!("int 0x80")).run();
    t.event("RSP0 in the hole", &event, Expect::fault(vector::SS).code(0));
    let event = Subject::user(code!("ud2")).run();
    t.event("RSP0 in the hole, #UD", &event, Expect::fault(vector::SS).code(1));
    let event = Subject::user(code!("hlt")).run();
    t.event("RSP0 in the hole, #GP", &event, df);
    cpu.tss.rsp[0] = cpu.inner.top();
    cpu.reset_gates();
}

fn stacks(t: &mut Test) {
    let cpu = Cpu::this();
    let event = Subject::user(code!("int 0x80")).run();
    t.eq("RSP0", event.frame, cpu.inner.top() - 40);
    t.eq("SS is null", event.handler_ss, 0);
    let event = Subject::user(code!("hlt")).run();
    t.eq("RSP0 with an error code", event.frame, cpu.inner.top() - 48);
    for unaligned in 0..16 {
        let event = Subject::kernel(code!("int3")).with(reg::RSP, cpu.kernel.top() - 32 - unaligned).run();
        let down = if unaligned == 0 { 32 } else { 48 };
        t.eq(("aligned", unaligned), event.frame, cpu.kernel.top() - down - 40);
        t.eq(("the pushed RSP", unaligned), event.regs.gpr[reg::RSP], cpu.kernel.top() - 32 - unaligned);
        cpu.tss.rsp[0] = cpu.inner.top() - unaligned;
        let event = Subject::user(code!("int3")).run();
        t.eq(("RSP0 aligned", unaligned), event.frame, ((cpu.inner.top() - unaligned) & !15) - 40);
    }
    cpu.tss.rsp[0] = cpu.inner.top();
    cpu.idt[3] = cpu.idt[3].ist(2);
    let event = Subject::kernel(code!("int3")).run();
    t.eq("IST at level 0", (event.frame, event.handler_ss), (cpu.ist2.top() - 40, selector::DATA.into()));
    let event = Subject::user(code!("int3")).run();
    t.eq("IST at level 3", (event.frame, event.handler_ss), (cpu.ist2.top() - 40, 0));
    cpu.reset_gates();
    // A TSS too short for RSP0.
    let tss = usize::from(selector::TSS) / 8;
    let (low, high) = (cpu.gdt[tss], cpu.gdt[tss + 1]);
    cpu.gdt[tss] = low & !0xffff & !(2 << 40) | 0x23;
    insn::ltr(selector::TSS);
    cpu.idt[usize::from(vector::TS)] = cpu.idt[usize::from(vector::TS)].ist(0);
    let event = Subject::kernel(code!("int3")).run();
    t.event("no stack is needed", &event, Expect::trap(vector::BP));
    cpu.gdt[tss] = low & !(2 << 40);
    cpu.gdt[tss + 1] = high;
    insn::ltr(selector::TSS);
    // SAFETY: as above, the processor sets the busy bit.
    let busy = unsafe { (&raw const cpu.gdt[tss]).read_volatile() };
    t.eq("LTR marks the TSS busy", busy >> 40 & 15, 11);
    let again = Subject::kernel(code!("ltr ax")).with(reg::RAX, selector::TSS.into()).run();
    t.event("LTR of a busy TSS", &again, Expect::gp(selector::TSS.into()));
}

fn gates(t: &mut Test) {
    let cpu = Cpu::this();
    // NT cannot be set on the way in: the entering IRETQ would have to return to a task.
    let flags = rflags::IF | rflags::TF | rflags::RF | rflags::AC | rflags::DF | rflags::CF | rflags::FIXED;
    let ud = code!("ud2");
    let event = Subject::kernel(ud).flags(flags & !rflags::TF).run();
    let kept = rflags::AC | rflags::DF | rflags::CF | rflags::FIXED;
    t.eq("an interrupt gate's flags", event.handler_rflags, kept);
    t.eq("the pushed flags", event.regs.rflags, flags & !rflags::TF);
    cpu.idt[usize::from(vector::UD)] = cpu.idt[usize::from(vector::UD)].kind(15);
    let event = Subject::kernel(ud).flags(flags & !rflags::TF).run();
    t.eq("a trap gate's flags", event.handler_rflags, kept | rflags::IF);
    cpu.reset_gates();
    let nested = code!("pushfq", "or dword ptr [rsp], 0x4000", "popfq" => "ud2");
    let event = Subject::kernel(nested).run();
    t.eq(
        "NT is cleared",
        (event.regs.rflags & rflags::NT, event.handler_rflags & rflags::NT),
        (rflags::NT, 0),
    );
}
