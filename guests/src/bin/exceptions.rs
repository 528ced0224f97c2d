//! Exceptions of every class: vector, error code, RIP, RF, priority, double faults, stacks.

#![no_std]
#![no_main]

use satori_guests::cpu::{Cpu, Gate, descriptor, flat, rights, selector};
use satori_guests::defs::x86::{cr0, cr4, rflags, vector};
use satori_guests::subject::{self, At, DONE, USER, entering, reg};
use satori_guests::{Expect, Subject, Test, code, guest, insn};

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

/// The error code that names a vector's gate.
const fn gate_code(vector: u8, ext: u64) -> u64 {
    (vector as u64) << 3 | 2 | ext
}

fn software_interrupts(t: &mut Test) {
    for (name, code, vector) in
        [("INT 13", code!("int 13"), 13), ("INT 32", code!("int 32"), 32), ("INT 255", code!("int 255"), 255)]
    {
        t.event((name, "kernel"), &Subject::kernel(code).run(), Expect::trap(vector));
        t.event((name, "user"), &Subject::user(code).run(), Expect::gp(gate_code(vector, 0)));
    }
    let event = Subject::kernel(code!("int 14")).with(reg::RAX, insn::cr2()).run();
    t.event("INT 14 has no error code", &event, Expect::trap(vector::PF));
    t.eq("INT 14 leaves CR2", event.cr2, event.regs.gpr[reg::RAX]);
    let cpu = Cpu::this();
    cpu.idt[0x70] = cpu.idt[0x70].dpl(3).absent();
    let gone = code!("int 0x70");
    t.event("not present", &Subject::user(gone).run(), Expect::fault(vector::NP).code(gate_code(0x70, 0)));
    cpu.idt[0x70] = cpu.idt[0x70].dpl(0);
    t.event("DPL before presence", &Subject::user(gone).run(), Expect::gp(gate_code(0x70, 0)));
    cpu.idt[0x70] = Gate::interrupt(subject::stub(0x70)).dpl(3).kind(5);
    t.event("a task gate", &Subject::user(gone).run(), Expect::gp(gate_code(0x70, 0)));
    cpu.idt[0x70] = Gate::interrupt(subject::stub(0x70)).kind(12);
    t.event("a call gate", &Subject::kernel(gone).run(), Expect::gp(gate_code(0x70, 0)));
    cpu.idt[0x70] = Gate::interrupt(subject::stub(0x70)).to(HOLE);
    t.event("a handler in the hole", &Subject::kernel(gone).run(), Expect::gp(0));
    for (name, selector, expect) in [
        ("null selector", 0, Expect::gp(0)),
        ("null selector with RPL", 3, Expect::gp(0)),
        ("data selector", selector::DATA, Expect::gp(selector::DATA.into())),
        ("32-bit code", selector::CODE32, Expect::gp(selector::CODE32.into())),
        ("user code", selector::USER_CODE, Expect::gp(u64::from(selector::USER_CODE & !3))),
        ("beyond the limit", 0x1000, Expect::gp(0x1000)),
        ("LDT without LDT", 0x0c, Expect::gp(0x0c)),
    ] {
        cpu.idt[0x70] = Gate::interrupt(subject::stub(0x70)).selector(selector);
        t.event(name, &Subject::kernel(gone).run(), expect);
    }
    let free = selector::FREE;
    cpu.gdt[usize::from(free) / 8] = flat(rights::CODE64 & !rights::PRESENT);
    cpu.idt[0x70] = Gate::interrupt(subject::stub(0x70)).selector(free);
    let np = Expect::fault(vector::NP).code(free.into());
    t.event("code not present", &Subject::kernel(gone).run(), np);
    cpu.idt[0x70] = Gate::interrupt(subject::stub(0x70)).selector(selector::CODE | 3);
    t.event("RPL does not matter", &Subject::kernel(gone).run(), Expect::trap(0x70));
    cpu.reset_gates();
    // A shorter table.
    insn::lidt(insn::Pointer { limit: 0x70 * 16 + 14, base: insn::sidt().base });
    let event = Subject::kernel(gone).run();
    cpu.load_idt();
    t.event("beyond the IDT", &event, Expect::gp(gate_code(0x70, 0)));
}

fn data_segments(t: &mut Test) {
    let free = u64::from(selector::FREE);
    let slot = usize::from(selector::FREE) / 8;
    let load = code!("mov es, eax");
    let cases: &[(&str, u64, u64, Expect, Expect)] = &[
        // Name, descriptor, RPL, at privilege level 0, at 3.
        ("user data", flat(rights::DATA | rights::DPL3), 3, Expect::done(), Expect::done()),
        ("kernel data", flat(rights::DATA), 0, Expect::done(), Expect::gp(free)),
        ("kernel data, RPL 3", flat(rights::DATA), 3, Expect::gp(free), Expect::gp(free)),
        ("user data, RPL 0", flat(rights::DATA | rights::DPL3), 0, Expect::done(), Expect::done()),
        ("readable code", flat(rights::CODE64 | rights::DPL3), 3, Expect::done(), Expect::done()),
        (
            "execute-only code",
            flat(rights::CODE64 & !2 | rights::DPL3),
            3,
            Expect::gp(free),
            Expect::gp(free),
        ),
        ("conforming code of level 0", flat(rights::CODE64 | 4), 3, Expect::done(), Expect::done()),
        ("a TSS", descriptor(0, 0x67, rights::TSS), 0, Expect::gp(free), Expect::gp(free)),
        (
            "absent",
            flat((rights::DATA | rights::DPL3) & !rights::PRESENT),
            3,
            Expect::fault(vector::NP).code(free),
            Expect::fault(vector::NP).code(free),
        ),
        (
            "absent and forbidden",
            flat(rights::DATA & !rights::PRESENT),
            3,
            Expect::gp(free),
            Expect::gp(free),
        ),
        ("nothing", 0, 0, Expect::gp(free), Expect::gp(free)),
    ];
    for &(name, descriptor, rpl, kernel, user) in cases {
        Cpu::this().gdt[slot] = descriptor;
        t.event((name, 0), &Subject::kernel(load).with(reg::RAX, free | rpl).run(), kernel);
        t.event((name, 3), &Subject::user(load).with(reg::RAX, free | rpl).run(), user);
    }
    for null in 0..4 {
        t.event("null", &Subject::user(load).with(reg::RAX, null).run(), Expect::done());
    }
    let beyond = Subject::user(load).with(reg::RAX, 0x103).run();
    t.event("beyond the limit", &beyond, Expect::gp(0x100));
    let ldt = Subject::user(load).with(reg::RAX, 0x0f).run();
    t.event("LDT without LDT", &ldt, Expect::gp(0x0c));
    // The accessed bit is set by the load.
    Cpu::this().gdt[slot] = flat(rights::DATA & !1 | rights::DPL3);
    t.event("not yet accessed", &Subject::user(load).with(reg::RAX, free | 3).run(), Expect::done());
    // SAFETY: the slot exists; the processor wrote behind the compiler's back.
    let after = unsafe { (&raw const Cpu::this().gdt[slot]).read_volatile() };
    t.eq("accessed", after, flat(rights::DATA | rights::DPL3));
    // In 64-bit mode the null selector's segment is usable; in compatibility mode it is not.
    let s = Subject::user(code!("xor eax, eax", "mov es, eax" => "mov al, es:[rsp - 8]"));
    t.event("null ES in 64-bit mode", &s.run(), Expect::done());
    let s = Subject::compat(code!(".code32", "xor eax, eax", "mov es, eax" => "mov al, es:[esp - 8]"));
    t.event("null ES in compatibility mode", &s.run(), Expect::gp(0));
    Cpu::this().gdt[slot] = descriptor(0, 0xfff, 0x40f3);
    let s =
        Subject::compat(code!(".code32", "mov es, eax" => "mov al, es:[0x1000]")).with(reg::RAX, free | 3);
    t.event("limit in compatibility mode", &s.run(), Expect::gp(0));
    let s = Subject::compat(code!(".code32", "mov es, eax" => "mov ax, es:[0xfff]")).with(reg::RAX, free | 3);
    t.event("across the limit", &s.run(), Expect::gp(0));
    Cpu::this().gdt[slot] = flat(0xc0f1);
    let s =
        Subject::compat(code!(".code32", "mov es, eax" => "mov es:[esp - 8], al")).with(reg::RAX, free | 3);
    t.event("read-only in compatibility mode", &s.run(), Expect::gp(0));
    let s = Subject::user(code!("mov es, eax" => "mov es:[rsp - 8], al")).with(reg::RAX, free | 3);
    t.event("read-only in 64-bit mode", &s.run(), Expect::done());
    Cpu::this().gdt[slot] = descriptor(0, 0x7_ffff, 0xc0f7);
    let s = Subject::compat(code!(".code32", "mov es, eax" => "mov al, es:[0x7ffffff0]"))
        .with(reg::RAX, free | 3);
    t.event("expand-down below its limit", &s.run(), Expect::gp(0));
    let s =
        Subject::compat(code!(".code32", "mov es, eax" => "mov cl, es:[esp - 8]")).with(reg::RAX, free | 3);
    t.event("expand-down above its limit", &s.run(), Expect::done());
}

fn stack_segments(t: &mut Test) {
    let free = u64::from(selector::FREE);
    let slot = usize::from(selector::FREE) / 8;
    let load = code!("mov ss, eax");
    let cases: &[(&str, u64, u64, Expect, Expect)] = &[
        ("of its level", flat(rights::DATA | rights::DPL3), 3, Expect::gp(free), Expect::done()),
        ("of level 0", flat(rights::DATA), 0, Expect::done(), Expect::gp(free)),
        ("RPL 0", flat(rights::DATA | rights::DPL3), 0, Expect::gp(free), Expect::gp(free)),
        ("read-only", flat(rights::DATA & !2 | rights::DPL3), 3, Expect::gp(free), Expect::gp(free)),
        ("code", flat(rights::CODE32 | rights::DPL3), 3, Expect::gp(free), Expect::gp(free)),
        (
            "absent",
            flat((rights::DATA | rights::DPL3) & !rights::PRESENT),
            3,
            Expect::gp(free),
            Expect::fault(vector::SS).code(free),
        ),
    ];
    for &(name, descriptor, rpl, kernel, user) in cases {
        Cpu::this().gdt[slot] = descriptor;
        t.event((name, 0), &Subject::kernel(load).with(reg::RAX, free | rpl).run(), kernel);
        t.event((name, 3), &Subject::user(load).with(reg::RAX, free | rpl).run(), user);
    }
    t.event("null at 3", &Subject::user(load).with(reg::RAX, 3).run(), Expect::gp(0));
    t.event("null at 0", &Subject::kernel(load).with(reg::RAX, 0).run(), Expect::done());
    t.event("null with RPL 3 at 0", &Subject::kernel(load).with(reg::RAX, 3).run(), Expect::gp(0));
    t.event("null in compatibility mode", &Subject::compat(load).with(reg::RAX, 3).run(), Expect::gp(0));
}

fn far_returns(t: &mut Test) {
    let far = code!("push rax", "push rcx" => "retfq");
    let (code, user) = (u64::from(selector::CODE), u64::from(selector::USER_CODE));
    for (name, cs, rip, expect) in [
        ("null", 0, 0, Expect::gp(0)),
        ("data", u64::from(selector::DATA), 0, Expect::gp(selector::DATA.into())),
        ("user code without its RPL", user & !3, 0, Expect::gp(user & !3)),
        ("beyond the limit", 0x1000, 0, Expect::gp(0x1000)),
        ("into the hole", code, HOLE, Expect::gp(0)),
    ] {
        t.event(name, &Subject::kernel(far).with(reg::RAX, cs).with(reg::RCX, rip).run(), expect);
    }
    let s = Subject::user(far).with(reg::RAX, code).with(reg::RCX, 0);
    t.event("inwards", &s.run(), Expect::gp(code));
    // Outwards, to user mode.
    let there = code!("nop").moved(code!("nop").start);
    let landing = code!("nop");
    let out = code!("push rbx", "push rdx", "push rax", "push rcx" => "retfq");
    let s = Subject::kernel(out)
        .with(reg::RBX, selector::USER_DATA.into())
        .with(reg::RDX, Cpu::this().user.top() + USER)
        .with(reg::RAX, user)
        .with(reg::RCX, landing.start + USER);
    let event = s.run();
    t.eq("outwards", (event.vector, event.regs.cs, event.regs.ss), (DONE, user, selector::USER_DATA.into()));
    t.eq("outwards to", event.regs.rip, landing.start + USER + landing.end + 2);
    t.holds("two snippets differ", there.start != landing.start);
}

fn interrupt_returns(t: &mut Test) {
    // The entering IRETQ itself is looked at.
    let here = |expect: Expect| expect.at(At::Address(entering())).rf(true);
    let mut check = |name: &str, change: fn(&mut Subject), expect: Expect| {
        let mut s = Subject::user(code!("nop"));
        change(&mut s);
        t.event(name, &s.run(), expect);
    };
    let free = u64::from(selector::FREE);
    Cpu::this().gdt[usize::from(selector::FREE) / 8] = flat(rights::CODE64 & !rights::PRESENT | rights::DPL3);
    Cpu::this().gdt[usize::from(selector::FREE) / 8 + 1] =
        flat((rights::DATA | rights::DPL3) & !rights::PRESENT);
    check("as it is", |_| {}, Expect::done());
    check("RIP in the hole", |s| s.regs.rip = HOLE, here(Expect::gp(0)));
    check("null CS", |s| s.regs.cs = 0, here(Expect::gp(0)));
    check("null CS with RPL 3", |s| s.regs.cs = 3, here(Expect::gp(0)));
    check(
        "data as CS",
        |s| s.regs.cs = selector::USER_DATA.into(),
        here(Expect::gp(u64::from(selector::USER_DATA) & !3)),
    );
    check("CS beyond the limit", |s| s.regs.cs = 0x1003, here(Expect::gp(0x1000)));
    check("CS of level 0 with RPL 3", |s| s.regs.cs = u64::from(selector::CODE) | 3, here(Expect::gp(8)));
    check(
        "CS not present",
        |s| s.regs.cs = u64::from(selector::FREE) | 3,
        here(Expect::fault(vector::NP).code(free)),
    );
    check("null SS", |s| s.regs.ss = 3, here(Expect::gp(0)));
    check("SS of level 0", |s| s.regs.ss = selector::DATA.into(), here(Expect::gp(selector::DATA.into())));
    check("SS with RPL 0", |s| s.regs.ss &= !3, here(Expect::gp(u64::from(selector::USER_DATA) & !3)));
    check(
        "code as SS",
        |s| s.regs.ss = selector::USER_CODE.into(),
        here(Expect::gp(u64::from(selector::USER_CODE) & !3)),
    );
    check(
        "SS not present",
        |s| s.regs.ss = (u64::from(selector::FREE) + 8) | 3,
        here(Expect::fault(vector::SS).code(free + 8)),
    );
    // A non-canonical RSP is loaded; it is the next use that faults.
    check("RSP in the hole", |s| s.regs.gpr[reg::RSP] = HOLE, Expect::done());
    // To level 0 with a null SS.
    let mut s = Subject::kernel(code!("nop"));
    s.regs.ss = 0;
    t.event("null SS at level 0", &s.run(), Expect::done());
    s.regs.ss = 3;
    t.event("null SS with RPL 3 at level 0", &s.run(), here(Expect::gp(0)));
    // Within 64-bit mode NT makes IRET fault.
    let nested = code!("pushfq", "or dword ptr [rsp], 0x4000", "popfq" => "iretq");
    t.event("NT", &Subject::kernel(nested).run(), Expect::gp(0));
    // Flags that user mode may not change.
    let frame = code!("push rax", "push rbx", "push rcx", "push rdx", "push rsi" => "iretq");
    let landing = code!("nop");
    let s = Subject::user(frame)
        .with(reg::RAX, selector::USER_DATA.into())
        .with(reg::RBX, Cpu::this().user.top() + USER)
        .with(reg::RCX, rflags::IOPL | rflags::IF | rflags::ID | rflags::FIXED | rflags::VIF | rflags::VIP)
        .with(reg::RDX, selector::USER_CODE.into())
        .with(reg::RSI, landing.start + USER);
    let event = s.run();
    t.eq("IRET of user mode", event.vector, DONE);
    t.eq("its flags", event.regs.rflags, rflags::ID | rflags::FIXED);
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
