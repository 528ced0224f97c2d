//! Selectors and gates: software interrupts, loads of segments, far returns and IRET.

use satori_guests::cpu::{Cpu, Gate, descriptor, flat, rights, selector};
use satori_guests::defs::x86::{rflags, vector};
use satori_guests::subject::{self, At, DONE, USER, entering, reg};
use satori_guests::{Expect, Subject, Test, code, insn};

use crate::HOLE;

/// The error code that names a vector's gate.
pub const fn gate_code(vector: u8, ext: u64) -> u64 {
    (vector as u64) << 3 | 2 | ext
}

pub fn software_interrupts(t: &mut Test) {
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

pub fn data_segments(t: &mut Test) {
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

pub fn stack_segments(t: &mut Test) {
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

pub fn far_returns(t: &mut Test) {
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

pub fn interrupt_returns(t: &mut Test) {
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
