//! XCR0, and the XSAVE family: sizes, areas and their checks.

use satori_guests::defs::x86::{cr0, cr4, vector};
use satori_guests::subject::{USER, reg, reset_fpu};
use satori_guests::{Code, Event, Expect, Subject, Test, code, insn, paging};

use crate::{EAX, EBX, ECX, EDX, UD, all_components, answer, has, set_xcr0, wide};

pub fn xsetbv(t: &mut Test) {
    if !has(1, 0, ECX, 26) {
        t.eq("no leaf", answer(0xd, 0, EAX), 0);
        return;
    }
    let all = all_components();
    t.eq("x87 and SSE are there", all & 3, 3);
    t.eq("AVX's state with AVX", all >> 2 & 1 != 0, has(1, 0, ECX, 28));
    t.eq("PKRU's state with PKU", all >> 9 & 1 != 0, has(7, 0, ECX, 3));
    for value in [0, 2, 4, 5, 6, 1 << 63, 1 << 63 | 3, 0x11, 0x19, 0xe1, 0x10, 0x60, 0x80, all & !1, u64::MAX]
        .into_iter()
        .chain((0..64).filter(|bit| all >> bit & 1 == 0).map(|bit| 3 | 1 << bit))
    {
        t.event(("refused", value), &set_xcr0(value), Expect::gp(0));
    }
    for value in [1, 3, all] {
        let event = set_xcr0(value);
        t.event(("taken", value), &event, Expect::done());
        let s = Subject::user(code!("xgetbv")).with(reg::RDX, u64::MAX).cr4(cr4::OSXSAVE, 0);
        let gpr = s.run().regs.gpr;
        t.eq("reads back", gpr[reg::RDX] << 32 | gpr[reg::RAX], value);
    }
    let s = Subject::kernel(code!("xsetbv")).with(reg::RAX, 1).cr4(cr4::OSXSAVE, 0);
    for index in [1, 2, 0x8000_0000] {
        t.event(("XCR", index), &s.with(reg::RCX, index).run(), Expect::gp(0));
    }
    t.event("ECX alone counts", &s.with(reg::RCX, 1 << 32).run(), Expect::done());
    t.event("without OSXSAVE", &s.cr4(0, cr4::OSXSAVE).run(), UD);
    t.event(
        "in user mode",
        &Subject::user(s.code).with(reg::RAX, 1).cr4(cr4::OSXSAVE, 0).run(),
        Expect::gp(0),
    );
    for index in [1u64, 2, 0xffff_ffff] {
        let s = Subject::user(code!("xgetbv")).with(reg::RCX, index).cr4(cr4::OSXSAVE, 0);
        let there = index == 1 && has(0xd, 1, EAX, 2);
        t.event(("XGETBV", index), &s.run(), if there { Expect::done() } else { Expect::gp(0) });
    }
    t.event("XGETBV without OSXSAVE", &Subject::user(code!("xgetbv")).cr4(0, cr4::OSXSAVE).run(), UD);
    for (name, code) in [("XSAVE", code!("xsave [rdi]")), ("XRSTOR", code!("xrstor [rdi]"))] {
        let area = Area::new();
        let s = Subject::user(code).with(reg::RDI, area.0 + USER);
        t.event((name, "without OSXSAVE"), &s.run(), UD);
        let s = s.cr4(cr4::OSXSAVE, 0);
        t.event((name, "with TS"), &s.cr0(cr0::TS, 0).run(), Expect::fault(vector::NM));
        for off in [1, 8, 16, 32] {
            t.event((name, "not aligned", off), &s.with(reg::RDI, area.0 + USER + off).run(), Expect::gp(0));
        }
        t.event((name, "not canonical"), &s.with(reg::RDI, 1 << 63).run(), Expect::gp(0));
    }
    set_xcr0(1);
}

/// An XSAVE area in two pages of its own.
struct Area(u64);

impl Area {
    fn new() -> Area {
        Area(paging::pages(2))
    }

    fn word(&self, offset: u64) -> u64 {
        // SAFETY: the case's own pages.
        unsafe { ((self.0 + offset) as *const u64).read_volatile() }
    }

    fn set(&self, offset: u64, value: u64) {
        // SAFETY: the case's own pages.
        unsafe { ((self.0 + offset) as *mut u64).write_volatile(value) };
    }

    fn fill(&self, value: u64) {
        for offset in (0..8192).step_by(8) {
            self.set(offset, value);
        }
    }

    /// Runs an instruction of the family on it, with `mask` in EDX:EAX.
    fn run(&self, code: Code, mask: u64) -> Event {
        let s = Subject::kernel(code).with(reg::RDI, self.0).cr4(wide(), 0);
        s.with(reg::RAX, mask & 0xffff_ffff).with(reg::RDX, mask >> 32).run()
    }
}

const XSTATE_BV: u64 = 512;
const XCOMP_BV: u64 = 520;
const COMPACTED: u64 = 1 << 63;

pub fn xsave_sizes(t: &mut Test) {
    if !has(1, 0, ECX, 26) {
        t.holds("no XSAVE", true);
        return;
    }
    let all = all_components();
    let whole = insn::cpuid(0xd, 0)[ECX];
    let mut largest = 576;
    for component in 2..63 {
        let [size, offset, flags, _] = insn::cpuid(0xd, component);
        if all >> component & 1 == 0 {
            t.eq(("absent", component), (size, offset, flags & 1), (0, 0, 0));
            continue;
        }
        t.holds(("a place of its own", component), size > 0 && offset >= 576 && flags & 1 == 0);
        largest = largest.max(offset + size);
    }
    t.eq("the whole area", whole, largest);
    for xcr0 in [1, 3, all & 7, all] {
        set_xcr0(xcr0);
        let mut now = 576;
        let mut compacted = 576;
        for component in 2..63 {
            if xcr0 >> component & 1 != 0 {
                let [size, offset, flags, _] = insn::cpuid(0xd, component);
                now = now.max(offset + size);
                compacted = if flags & 2 != 0 { (compacted + 63) & !63 } else { compacted } + size;
            }
        }
        t.eq(("the enabled ones", xcr0), insn::cpuid(0xd, 0)[EBX], now);
        if has(0xd, 1, EAX, 3) || has(0xd, 1, EAX, 1) {
            t.eq(("compacted", xcr0), insn::cpuid(0xd, 1)[EBX], compacted);
        }
        // XSAVE writes no byte beyond.
        let area = Area::new();
        area.fill(0x5a5a_5a5a_5a5a_5a5a);
        area.set(XSTATE_BV, 0);
        t.event("XSAVE", &area.run(code!("xsave [rdi]"), u64::MAX), Expect::done());
        t.eq(("the byte behind", xcr0), area.word(u64::from(now).next_multiple_of(8)), 0x5a5a_5a5a_5a5a_5a5a);
    }
    set_xcr0(1);
}

pub fn xsave_standard(t: &mut Test) {
    if !has(1, 0, ECX, 26) {
        t.holds("no XSAVE", true);
        return;
    }
    let all = all_components();
    set_xcr0(all);
    let area = Area::new();
    // All in their first state but SSE.
    let save = code!("fninit", "pcmpeqd xmm3, xmm3" => "xsave [rdi]");
    area.fill(u64::MAX);
    area.set(XSTATE_BV, 0);
    t.event("XSAVE", &area.run(save, 3), Expect::done());
    t.eq("XSTATE_BV", area.word(XSTATE_BV) & !1, 2);
    t.eq("XCOMP_BV is left", area.word(XCOMP_BV), u64::MAX);
    t.eq("XMM3", (area.word(160 + 48), area.word(160 + 56)), (u64::MAX, u64::MAX));
    t.eq("FCW", area.word(0) & 0xffff, 0x37f);
    // Bits of XSTATE_BV that were not asked for stay.
    area.set(XSTATE_BV, 0xf4);
    t.event("XSAVE of x87", &area.run(save, 1), Expect::done());
    t.eq("other bits stay", area.word(XSTATE_BV) & !1, 0xf4);
    // Neither asked for: MXCSR is left alone.
    area.set(24, 0x1234_5678_9abc_def0);
    t.event("XSAVE of x87", &area.run(save, 1), Expect::done());
    t.eq("MXCSR is not written", area.word(24), 0x1234_5678_9abc_def0);
    if all & 4 != 0 {
        t.event("XSAVE of AVX", &area.run(save, 4), Expect::done());
        t.eq("MXCSR goes with AVX", area.word(24) as u32, 0x1f80);
    }
    // XRSTOR's header.
    let restore = code!("xrstor [rdi]");
    let good = || {
        for offset in (512..576).step_by(8) {
            area.set(offset, 0);
        }
        area.set(24, 0xffff_0000_1f80);
        area.set(0, 0x37f);
    };
    good();
    t.event("XRSTOR", &area.run(restore, u64::MAX), Expect::done());
    for offset in [XCOMP_BV, 528] {
        for bit in [0, 5, 62] {
            good();
            area.set(offset, 1 << bit);
            t.event(("XRSTOR of a header", offset, bit), &area.run(restore, 0), Expect::gp(0));
        }
    }
    for offset in [536, 544, 552, 560, 568] {
        good();
        area.set(offset, u64::MAX);
        // The standard form looks at bytes 23:8 only.
        t.event(("XRSTOR of a header", offset), &area.run(restore, 0), Expect::done());
    }
    for bit in 0..64 {
        good();
        area.set(XSTATE_BV, 1 << bit);
        let there = all >> bit & 1 != 0;
        let expect = if there { Expect::done() } else { Expect::gp(0) };
        t.event(("XSTATE_BV", bit), &area.run(restore, 0), expect);
    }
    good();
    area.set(24, 0xffff_0001_0000);
    area.set(XSTATE_BV, 2);
    t.event("a reserved bit of MXCSR", &area.run(restore, 2), Expect::gp(0));
    if all & 4 != 0 {
        area.set(XSTATE_BV, 0);
        t.event("it is loaded with AVX as well", &area.run(restore, 4), Expect::gp(0));
    }
    t.event("x87 alone does not load it", &area.run(restore, 1), Expect::done());
    // What is 0 in XSTATE_BV goes to its first state.
    good();
    let s = code!("pcmpeqd xmm3, xmm3" => "xrstor [rdi]" => "movq rcx, xmm3");
    let event = area.run(s, 2);
    t.eq("XMM3's first state", event.regs.gpr[reg::RCX], 0);
    let event = area.run(s, 1);
    t.eq("not asked for: it stays", event.regs.gpr[reg::RCX], u64::MAX);
    if all & 4 != 0 {
        let s = code!("vpcmpeqd xmm3, xmm3, xmm3", "vinsertf128 ymm3, ymm3, xmm3, 1" => "xrstor [rdi]" => "vextractf128 xmm3, ymm3, 1", "vmovq rcx, xmm3");
        t.eq("YMM3's first state", area.run(s, 4).regs.gpr[reg::RCX], 0);
        t.eq("it stays", area.run(s, 3).regs.gpr[reg::RCX], u64::MAX);
        t.event("cleared again", &area.run(code!("vzeroall"), 0), Expect::done());
    }
    // XGETBV of what is in use.
    if has(0xd, 1, EAX, 2) {
        good();
        let s = code!("xrstor [rdi]", "mov ecx, 1" => "xgetbv");
        t.eq("nothing in use", area.run(s, u64::MAX).regs.gpr[reg::RAX] & 7 & !2, 0);
        let s = code!("xrstor [rdi]", "pcmpeqd xmm3, xmm3", "mov ecx, 1" => "xgetbv");
        t.eq("SSE in use", area.run(s, u64::MAX).regs.gpr[reg::RAX] & 7, 2);
        let s = code!("xrstor [rdi]", "fldz", "mov ecx, 1" => "xgetbv");
        t.eq("x87 in use", area.run(s, u64::MAX).regs.gpr[reg::RAX] & 1, 1);
    }
    set_xcr0(1);
    reset_fpu();
}

pub fn xsave_compacted(t: &mut Test) {
    if !has(0xd, 1, EAX, 1) {
        t.holds("no XSAVEC", true);
        return;
    }
    let all = all_components();
    set_xcr0(all);
    let area = Area::new();
    let first = code!("fninit" => "xsavec [rdi]");
    for mask in [0, 1, 2, 3, 7, u64::MAX] {
        area.fill(0x77);
        t.event(("XSAVEC", mask), &area.run(first, mask), Expect::done());
        t.eq(("XCOMP_BV", mask), area.word(XCOMP_BV), COMPACTED | all & mask);
        t.eq(("XSTATE_BV has only what was asked for", mask), area.word(XSTATE_BV) & !(all & mask), 0);
    }
    let used = code!("pcmpeqd xmm3, xmm3" => "xsavec [rdi]");
    area.fill(0);
    t.event("SSE in use", &area.run(used, 3), Expect::done());
    t.eq("XSTATE_BV", area.word(XSTATE_BV) & 2, 2);
    t.eq("XMM3", area.word(160 + 48), u64::MAX);
    // XRSTOR takes the compacted form.
    let restore = code!("pxor xmm3, xmm3" => "xrstor [rdi]" => "movq rcx, xmm3");
    let event = area.run(restore, 3);
    t.event("XRSTOR", &event, Expect::done());
    t.eq("XMM3 is back", event.regs.gpr[reg::RCX], u64::MAX);
    for (name, bv, comp) in [
        ("a component that is not in XCOMP_BV", 2, COMPACTED | 1),
        ("a component that is not enabled in XCOMP_BV", 0, COMPACTED | 1 << 62),
        ("bit 63 of XSTATE_BV", 1 << 63, COMPACTED | 3),
        ("no bit 63", 0, 3),
    ] {
        area.set(XSTATE_BV, bv);
        area.set(XCOMP_BV, comp);
        t.event(name, &area.run(code!("xrstor [rdi]"), 0), Expect::gp(0));
    }
    for offset in (528..576).step_by(8) {
        area.set(XSTATE_BV, 0);
        area.set(XCOMP_BV, COMPACTED);
        area.set(offset, 1);
        t.event(("the rest of the header", offset), &area.run(code!("xrstor [rdi]"), 0), Expect::gp(0));
        area.set(offset, 0);
    }
    set_xcr0(1);
    reset_fpu();
}

pub fn xsave_supervisor(t: &mut Test) {
    if !has(0xd, 1, EAX, 3) {
        t.holds("no XSAVES", true);
        return;
    }
    let all = all_components();
    set_xcr0(all);
    let area = Area::new();
    t.eq("no supervisor's component", (insn::cpuid(0xd, 1)[ECX], insn::cpuid(0xd, 1)[EDX]), (0, 0));
    t.event("XSAVES", &area.run(code!("pcmpeqd xmm3, xmm3" => "xsaves [rdi]"), u64::MAX), Expect::done());
    t.eq("XCOMP_BV", area.word(XCOMP_BV), COMPACTED | all);
    let event = area.run(code!("pxor xmm3, xmm3" => "xrstors [rdi]" => "movq rcx, xmm3"), u64::MAX);
    t.event("XRSTORS", &event, Expect::done());
    t.eq("XMM3", event.regs.gpr[reg::RCX], u64::MAX);
    area.set(XCOMP_BV, 0);
    t.event("XRSTORS of the standard form", &area.run(code!("xrstors [rdi]"), 0), Expect::gp(0));
    for (name, code) in [("XSAVES", code!("xsaves [rdi]")), ("XRSTORS", code!("xrstors [rdi]"))] {
        let s = Subject::user(code).with(reg::RDI, area.0 + USER).cr4(cr4::OSXSAVE, 0);
        t.event((name, "in user mode"), &s.run(), Expect::gp(0));
        t.event(
            (name, "not aligned"),
            &Subject::kernel(code).with(reg::RDI, area.0 + 8).cr4(cr4::OSXSAVE, 0).run(),
            Expect::gp(0),
        );
    }
    set_xcr0(1);
    reset_fpu();
}

pub fn xsave_of_keys(t: &mut Test) {
    if all_components() >> 9 & 1 == 0 {
        t.holds("no PKRU", !has(7, 0, ECX, 3) || !has(1, 0, ECX, 26));
        return;
    }
    set_xcr0(all_components());
    let area = Area::new();
    let at = u64::from(insn::cpuid(0xd, 9)[EBX]);
    t.eq("its size", insn::cpuid(0xd, 9)[EAX], 8);
    // Key 15 only, which nobody uses.
    let save = code!("mov rbx, rax", "mov eax, 0xc0000000", "xor ecx, ecx", "xor edx, edx", "wrpkru", "mov rax, rbx" => "xsave [rdi]");
    area.set(XSTATE_BV, 0);
    t.event("XSAVE", &area.run(save, 1 << 9), Expect::done());
    t.eq("PKRU", (area.word(XSTATE_BV), area.word(at) as u32), (1 << 9, 0xc000_0000));
    let restore = code!("xrstor [rdi]", "xor ecx, ecx" => "rdpkru");
    area.set(at, 0x8000_0000);
    t.eq("XRSTOR", area.run(restore, 1 << 9).regs.gpr[reg::RAX], 0x8000_0000);
    area.set(XSTATE_BV, 0);
    t.eq("its first state is 0", area.run(restore, 1 << 9).regs.gpr[reg::RAX], 0);
    set_xcr0(1);
    // RDPKRU's operands.
    let s = Subject::user(code!("rdpkru")).cr4(cr4::PKE, 0).with(reg::RDX, u64::MAX).with(reg::RAX, u64::MAX);
    let event = s.run();
    t.eq("RDPKRU", (event.regs.gpr[reg::RAX], event.regs.gpr[reg::RDX]), (0, 0));
    t.event("ECX must be 0", &s.with(reg::RCX, 1).run(), Expect::gp(0));
    t.event("the high half of RCX does not matter", &s.with(reg::RCX, 1 << 32).run(), Expect::done());
    let s = Subject::user(code!("wrpkru")).cr4(cr4::PKE, 0);
    t.event("WRPKRU's ECX", &s.with(reg::RCX, 1).run(), Expect::gp(0));
    t.event("WRPKRU's EDX", &s.with(reg::RDX, 1).run(), Expect::gp(0));
}
