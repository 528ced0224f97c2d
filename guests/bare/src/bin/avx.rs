//! AVX, AVX2, FMA and F16C: what happens to the upper halves, which encodings do not exist, what
//! must be aligned, which elements fault, and arithmetic that only one rounding gets right. Every
//! case asks CPUID first.

#![no_std]
#![no_main]

use satori_guests::defs::fpu::mxcsr;
use satori_guests::defs::x86::{cr4, pte, vector};
use satori_guests::paging::{self, Space};
use satori_guests::subject::{reg, reset_fpu};
use satori_guests::{Code, Event, Expect, Subject, Test, code, guest, insn};

guest!(
    "avx",
    upper_halves,
    switching_tasks,
    encodings,
    alignment,
    masked_moves,
    gathers,
    gathers_go_on,
    fused,
    halves,
    predicates,
    exceptions,
);

const EBX: usize = 1;
const ECX: usize = 2;
const UD: Expect = Expect::fault(vector::UD);
/// Where the cases map two pages, of which the second is absent.
const LINEAR: u64 = paging::FREE;

fn has(leaf: u32, register: usize, bit: u32) -> bool {
    insn::cpuid(leaf, 0)[register] >> bit & 1 != 0
}

/// Whether there is AVX, whose state then is enabled; a case without it has nothing to check.
fn avx(t: &mut Test) -> bool {
    let there = has(1, ECX, 28);
    if there {
        let s = Subject::kernel(code!("xsetbv")).with(reg::RAX, 7).cr4(cr4::OSXSAVE, 0);
        t.event("XSETBV", &s.run(), Expect::done());
    } else {
        t.holds("no AVX", true);
    }
    there
}

/// As [`avx`], for what needs another bit too.
fn avx_and(t: &mut Test, leaf: u32, register: usize, bit: u32) -> bool {
    let there = has(1, ECX, 28) && has(leaf, register, bit);
    if !there {
        t.holds("it is not offered", true);
    }
    there && avx(t)
}

/// A page that can be written, with an absent one behind it.
struct Edge {
    page: u64,
}

impl Edge {
    fn new() -> Edge {
        let (space, page) = (Space::new(), paging::page());
        space.map(LINEAR, page, pte::W | pte::U);
        space.enter();
        Edge { page }
    }

    /// The doubleword so many before the end.
    fn word(&self, before: u64) -> *mut u32 {
        (self.page + 4096 - 4 * before) as *mut u32
    }

    fn get(&self, before: u64) -> u32 {
        // SAFETY: within the case's own page.
        unsafe { self.word(before).read_volatile() }
    }

    fn set(&self, before: u64, value: u32) {
        // SAFETY: as in `get`.
        unsafe { self.word(before).write_volatile(value) };
    }
}

fn run(code: Code) -> Event {
    Subject::kernel(code).cr4(cr4::OSXSAVE | cr4::OSFXSR | cr4::OSXMMEXCPT, 0).run()
}

fn on(code: Code, at: u64) -> Event {
    let s = Subject::kernel(code).with(reg::RDI, at);
    s.cr4(cr4::OSXSAVE | cr4::OSFXSR | cr4::OSXMMEXCPT, 0).run()
}

/// RAX: the low quadword of YMM0's upper half, after all of YMM0 was ones.
macro_rules! upper {
    ($($code:expr),+) => {{
        let event = run(code!(
            "vpcmpeqd xmm0, xmm0, xmm0", "vinsertf128 ymm0, ymm0, xmm0, 1", "vmovaps ymm1, ymm0" => $($code),+ =>
            "vextractf128 xmm2, ymm0, 1", "vmovq rax, xmm2"
        ));
        (event.vector, event.regs.gpr[reg::RAX])
    }};
}

fn upper_halves(t: &mut Test) {
    if !avx(t) {
        return;
    }
    let done = 0x80;
    t.eq("SSE keeps them", upper!("xorps xmm0, xmm0"), (done, u64::MAX));
    t.eq("so does a load", upper!("movups xmm0, [rsp - 64]"), (done, u64::MAX));
    t.eq("and a conversion", upper!("cvtsi2sd xmm0, rax"), (done, u64::MAX));
    t.eq("AVX of 128 bits clears them", upper!("vorps xmm0, xmm0, xmm0"), (done, 0));
    t.eq("so does a scalar", upper!("vaddss xmm0, xmm0, xmm0"), (done, 0));
    t.eq("a load", upper!("vmovss xmm0, [rsp - 64]"), (done, 0));
    t.eq("a move from a general register", upper!("vmovd xmm0, eax"), (done, 0));
    t.eq("the mask of strings", upper!("vpcmpistrm xmm0, xmm0, 0x40"), (done, 0));
    t.eq("AVX of 256 bits does not", upper!("vorps ymm0, ymm0, ymm1"), (done, u64::MAX));
    t.eq("VZEROUPPER", upper!("vzeroupper"), (done, 0));
    t.eq("VZEROALL", upper!("vzeroall"), (done, 0));
    let event = run(code!("vpcmpeqd xmm9, xmm9, xmm9" => "vzeroupper" => "vmovq rax, xmm9"));
    t.eq("VZEROUPPER keeps the lower halves", event.regs.gpr[reg::RAX], u64::MAX);
    // FXSAVE and FXRSTOR do not know them.
    let area = paging::page();
    let event = on(
        code!(
            "vpcmpeqd xmm0, xmm0, xmm0", "vinsertf128 ymm0, ymm0, xmm0, 1", "fxsave [rdi]" => "fxrstor [rdi]" =>
            "vextractf128 xmm2, ymm0, 1", "vmovq rax, xmm2"
        ),
        area,
    );
    t.eq("FXRSTOR keeps them", event.regs.gpr[reg::RAX], u64::MAX);
    reset_fpu();
}

/// As an operating system does between tasks.
fn switching_tasks(t: &mut Test) {
    if !avx(t) {
        return;
    }
    let area = paging::pages(2);
    let switch = |t: &mut Test, name: &str, code: Code| {
        // SAFETY: the case's own pages.
        unsafe { (area as *mut [u64; 1024]).write_volatile([0; 1024]) };
        let event = on(code, area);
        t.event(name, &event, Expect::done());
        let gpr = event.regs.gpr;
        t.eq((name, "the halves of YMM15"), (gpr[reg::RAX], gpr[reg::RCX]), (0x5555, u64::MAX));
        // SAFETY: as above.
        let held = unsafe { ((area + 512) as *const u64).read_volatile() };
        t.eq((name, "XSTATE_BV"), held & 6, 6);
    };
    macro_rules! pair {
        ($save:literal, $restore:literal) => {
            code!(
                "vpcmpeqd xmm1, xmm1, xmm1", "mov eax, 0x5555", "vmovd xmm15, eax", "vinsertf128 ymm15, ymm15, xmm1, 1",
                "mov eax, 7", "xor edx, edx", $save, "vzeroall", "mov eax, 7" => $restore =>
                "vmovd eax, xmm15", "vextractf128 xmm2, ymm15, 1", "vmovq rcx, xmm2"
            )
        };
    }
    let subleaf = insn::cpuid(0xd, 1)[0];
    switch(t, "XSAVE", pair!("xsave64 [rdi]", "xrstor64 [rdi]"));
    if subleaf & 1 != 0 {
        switch(t, "XSAVEOPT", pair!("xsaveopt64 [rdi]", "xrstor64 [rdi]"));
    }
    if subleaf & 2 != 0 {
        switch(t, "XSAVEC", pair!("xsavec64 [rdi]", "xrstor64 [rdi]"));
    }
    if subleaf & 8 != 0 {
        switch(t, "XSAVES", pair!("xsaves64 [rdi]", "xrstors64 [rdi]"));
    }
    // Outside 64-bit mode there are eight registers, and the others' place is left alone.
    let compat = code!(".code32", "xor edx, edx", "mov eax, 4" => "xsave [edi]");
    // SAFETY: the case's own pages.
    unsafe { (area as *mut [u64; 1024]).write_volatile([0x77; 1024]) };
    // SAFETY: as above.
    unsafe { ((area + 512) as *mut [u64; 8]).write_volatile([0; 8]) };
    let s = Subject::compat(compat).with(reg::RDI, area + satori_guests::subject::USER);
    t.event("XSAVE of 32 bits", &s.cr4(cr4::OSXSAVE, 0).run(), Expect::done());
    // SAFETY: as above.
    let behind = unsafe { ((area + 576 + 128) as *const u64).read_volatile() };
    t.eq("YMM8's place", behind, 0x77);
    reset_fpu();
}

fn encodings(t: &mut Test) {
    if !avx(t) {
        return;
    }
    for (name, code) in [
        ("LOCK", code!(".byte 0xf0, 0xc5, 0xf8, 0x58, 0xc0")),
        ("66", code!(".byte 0x66, 0xc5, 0xf8, 0x58, 0xc0")),
        ("F2", code!(".byte 0xf2, 0xc5, 0xf8, 0x58, 0xc0")),
        ("F3", code!(".byte 0xf3, 0xc5, 0xf8, 0x58, 0xc0")),
        ("REX", code!(".byte 0x48, 0xc5, 0xf8, 0x58, 0xc0")),
        ("vvvv of VMOVAPS", code!(".byte 0xc5, 0xf0, 0x28, 0xc1")),
        ("vvvv of VSQRTPS", code!(".byte 0xc5, 0xf0, 0x51, 0xc1")),
        ("vvvv of VPSHUFD", code!(".byte 0xc5, 0xf1, 0x70, 0xc1, 0x00")),
        ("vvvv of VZEROUPPER", code!(".byte 0xc5, 0xf0, 0x77")),
        ("L of VMOVD", code!(".byte 0xc5, 0xfd, 0x6e, 0xc0")),
        ("L of VMOVLPS", code!(".byte 0xc5, 0xfc, 0x12, 0x07")),
        ("L of VPEXTRW", code!(".byte 0xc5, 0xfd, 0xc5, 0xc0, 0x00")),
        ("L of VDPPD", code!(".byte 0xc4, 0xe3, 0x7d, 0x41, 0xc0, 0x00")),
        ("no L of VINSERTF128", code!(".byte 0xc4, 0xe3, 0x79, 0x18, 0xc0, 0x00")),
        ("no L of VBROADCASTSD", code!(".byte 0xc4, 0xe2, 0x79, 0x19, 0x07")),
        ("W of VBROADCASTSS", code!(".byte 0xc4, 0xe2, 0xf9, 0x18, 0x07")),
        ("a register of VBROADCASTF128", code!(".byte 0xc4, 0xe2, 0x7d, 0x1a, 0xc0")),
        ("a register of VMASKMOVPS", code!(".byte 0xc4, 0xe2, 0x79, 0x2c, 0xc0")),
        ("an unknown map", code!(".byte 0xc4, 0xe4, 0x79, 0x58, 0xc0")),
        ("MMX under VEX", code!(".byte 0xc5, 0xf8, 0xfc, 0xc0")),
    ] {
        t.event(name, &run(code), UD);
    }
    if has(7, EBX, 5) {
        for (name, code) in [
            ("mask and result are one", code!(".byte 0xc4, 0xe2, 0x7d, 0x90, 0x04, 0x0f")),
            ("index and result are one", code!(".byte 0xc4, 0xe2, 0x6d, 0x90, 0x04, 0x07")),
            ("index and mask are one", code!(".byte 0xc4, 0xe2, 0x75, 0x90, 0x04, 0x0f")),
            ("a gather without SIB", code!(".byte 0xc4, 0xe2, 0x6d, 0x90, 0x07")),
            ("a gather from a register", code!(".byte 0xc4, 0xe2, 0x6d, 0x90, 0xc1")),
        ] {
            t.event(name, &run(code), UD);
        }
    }
    // Bits that mean nothing.
    t.event("vvvv in all ones", &run(code!(".byte 0xc5, 0xf8, 0x28, 0xc1")), Expect::done());
    t.event("W of VADDPS", &run(code!(".byte 0xc4, 0xe1, 0xf8, 0x58, 0xc0")), Expect::done());
    t.event("L of VADDSS", &run(code!(".byte 0xc5, 0xfe, 0x58, 0xc0")), Expect::done());
    reset_fpu();
}

fn alignment(t: &mut Test) {
    if !avx(t) {
        return;
    }
    let at = paging::page();
    for offset in [0, 1, 16, 24] {
        let aligned = if offset == 0 { Expect::done() } else { Expect::gp(0) };
        let of_128 = if offset % 16 == 0 { Expect::done() } else { Expect::gp(0) };
        let any = Expect::done();
        for (name, code, expect) in [
            ("VMOVAPS", code!("vmovaps ymm0, [rdi]"), aligned),
            ("VMOVDQA to memory", code!("vmovdqa [rdi], ymm0"), aligned),
            ("VMOVNTPS", code!("vmovntps [rdi], ymm0"), aligned),
            ("VMOVAPD of 128 bits", code!("vmovapd xmm0, [rdi]"), of_128),
            ("VMOVNTDQ of 128 bits", code!("vmovntdq [rdi], xmm0"), of_128),
            ("VMOVUPS", code!("vmovups ymm0, [rdi]"), any),
            ("VADDPS", code!("vaddps ymm0, ymm0, [rdi]"), any),
            ("VPADDB of 128 bits", code!("vpaddb xmm0, xmm0, [rdi]"), any),
            ("VLDDQU", code!("vlddqu ymm0, [rdi]"), any),
            ("ADDPS", code!("addps xmm0, [rdi]"), of_128),
        ] {
            t.event((name, offset), &on(code, at + offset), expect);
        }
    }
    reset_fpu();
}

fn masked_moves(t: &mut Test) {
    if !avx(t) {
        return;
    }
    let edge = Edge::new();
    let end = LINEAR + 4096;
    for before in 1..=4 {
        edge.set(before, 0x100 + before as u32);
    }
    // XMM1: the two lower elements on.
    let load = code!("vpcmpeqd xmm1, xmm1, xmm1", "vmovq xmm1, xmm1" => "vmaskmovps xmm0, xmm1, [rdi]" =>
        "vmovq rax, xmm0", "vpextrq rcx, xmm0, 1");
    let event = on(load, end - 8);
    t.event("elements that are on are all there", &event, Expect::done());
    t.eq("loaded", (event.regs.gpr[reg::RAX], event.regs.gpr[reg::RCX]), (0x101_0000_0102, 0));
    t.event("one is not", &on(load, end - 4), Expect::pf(0, end));
    let store = code!("vpcmpeqd xmm1, xmm1, xmm1", "vmovq xmm1, xmm1" => "vmaskmovps [rdi], xmm1, xmm1");
    t.event("a store of the first two", &on(store, end - 8), Expect::done());
    t.eq("stored", (edge.get(1), edge.get(2), edge.get(3)), (u32::MAX, u32::MAX, 0x103));
    edge.set(1, 0);
    t.event("of which one is not there", &on(store, end - 4), Expect::pf(2, end));
    t.eq("nothing was stored", edge.get(1), 0);
    let nothing = code!("vpxor xmm1, xmm1, xmm1" => "vmaskmovps [rdi], xmm1, xmm1");
    t.event("no element on", &on(nothing, end), Expect::done());
    let nothing = code!("vpxor xmm1, xmm1, xmm1" => "vmaskmovpd ymm0, ymm1, [rdi]");
    t.event("no element on", &on(nothing, end), Expect::done());
    paging::leave();
    reset_fpu();
}

fn gathers(t: &mut Test) {
    if !avx_and(t, 7, EBX, 5) {
        return;
    }
    let at = paging::page();
    for i in 0..1024 {
        // SAFETY: the case's own page.
        unsafe { ((at + 4 * i) as *mut u32).write_volatile(i as u32) };
    }
    // Indices 3, 2, 1 and 0, and a mask with the second off.
    let event = on(
        code!(
            "mov rax, 0x200000003", "vmovq xmm1, rax", "mov eax, 1", "vpinsrq xmm1, xmm1, rax, 1",
            "vpcmpeqd xmm2, xmm2, xmm2", "xor eax, eax", "vpinsrd xmm2, xmm2, eax, 1",
            "mov eax, 0x7777", "vpbroadcastd ymm0, [rip + 778f]" =>
            "vpgatherdd xmm0, [rdi + xmm1 * 4], xmm2" =>
            "vmovq rax, xmm0", "vpextrq rcx, xmm0, 1", "vptest xmm2, xmm2", "setz dl", "movzx edx, dl", "jmp 779f",
            "778: .long 0x7777", "779:"
        ),
        at,
    );
    t.event("VPGATHERDD", &event, Expect::done());
    let gpr = event.regs.gpr;
    t.eq("elements", (gpr[reg::RAX], gpr[reg::RCX]), (0x7777_0000_0003, 1));
    t.eq("the mask is clear", gpr[reg::RDX], 1);
    // A negative index.
    let event = on(
        code!(
            "mov rax, -2", "vmovq xmm1, rax", "vpcmpeqd xmm2, xmm2, xmm2", "vmovq xmm2, xmm2", "vpxor xmm0, xmm0, xmm0" =>
            "vpgatherqq xmm0, [rdi + xmm1 * 8 + 8], xmm2" => "vmovq rax, xmm0", "vpextrq rcx, xmm0, 1"
        ),
        at + 64,
    );
    let gpr = event.regs.gpr;
    t.eq("an index of -2", (gpr[reg::RAX], gpr[reg::RCX]), (0xf_0000_000e, 0));
    reset_fpu();
}

fn gathers_go_on(t: &mut Test) {
    if !avx_and(t, 7, EBX, 5) {
        return;
    }
    let edge = Edge::new();
    let end = LINEAR + 4096;
    for before in 1..=8 {
        edge.set(before, 0x1000 + before as u32);
    }
    // In registers that compiled code between two subjects has no use for.
    // Six elements are in the page, the seventh is not.
    let gather = code!(
        "vpcmpeqd xmm15, xmm15, xmm15", "vinsertf128 ymm15, ymm15, xmm15, 1", "vpxor xmm13, xmm13, xmm13",
        "vmovdqu ymm14, [rip + 778f]" => "vpgatherdd ymm13, [rdi + ymm14 * 4], ymm15" => "jmp 779f",
        "778: .long 0, 1, 2, 3, 4, 5, 6, 7", "779:"
    );
    let event = on(gather, end - 24);
    t.event("the seventh element", &event, Expect::pf(0, end));
    let found = run(code!("vextracti128 xmm3, ymm13, 1", "vextracti128 xmm12, ymm15, 1" =>
        "vpextrq rax, xmm13, 1", "vmovq rcx, xmm3", "vmovq rdx, xmm15", "vmovq rsi, xmm12", "vpextrq rdi, xmm12, 1"));
    let gpr = found.regs.gpr;
    t.eq("what was there is loaded", (gpr[reg::RAX], gpr[reg::RCX]), (0x1003_0000_1004, 0x1001_0000_1002));
    t.eq("and off", (gpr[reg::RDX], gpr[reg::RSI]), (0, 0));
    t.eq("the rest is on", gpr[reg::RDI], u64::MAX);
    // With the missing page the rest comes, and only the rest.
    let space = Space { root: insn::cr3() };
    let (behind, other) = (paging::page(), paging::page());
    // SAFETY: the case's own page.
    unsafe { (behind as *mut [u32; 2]).write_volatile([0x2001, 0x2002]) };
    space.map(end, behind, 0);
    space.map(LINEAR, other, 0);
    insn::set_cr3(space.root);
    let event = on(code!("vpgatherdd ymm13, [rdi + ymm14 * 4], ymm15"), end - 24);
    t.event("once more", &event, Expect::done());
    let gpr =
        run(code!("vextracti128 xmm3, ymm13, 1" => "vmovq rax, xmm13", "vpextrq rcx, xmm3, 1")).regs.gpr;
    t.eq("all of them", (gpr[reg::RAX], gpr[reg::RCX]), (0x1005_0000_1006, 0x2002_0000_2001));
    paging::leave();
    reset_fpu();
}

/// RAX of `code` with three doubles in XMM0 to XMM2.
fn doubles(code: Code, a: f64, b: f64, c: f64) -> u64 {
    let s = Subject::kernel(code).with(reg::RAX, a.to_bits()).with(reg::RCX, b.to_bits());
    let event = s.with(reg::RDX, c.to_bits()).cr4(cr4::OSXSAVE | cr4::OSFXSR, 0).run();
    event.regs.gpr[reg::RAX]
}

macro_rules! of_three {
    ($op:literal) => {
        code!("vmovq xmm0, rax", "vmovq xmm1, rcx", "vmovq xmm2, rdx" =>
            concat!($op, " xmm0, xmm1, xmm2") => "vmovq rax, xmm0")
    };
}

fn fused(t: &mut Test) {
    if !avx_and(t, 1, ECX, 12) {
        return;
    }
    // (1 + e)(1 - e) - 1 = -e*e, which two roundings lose.
    let e = f64::EPSILON;
    let lost = (-e * e).to_bits();
    t.eq("213", doubles(of_three!("vfmadd213sd"), 1.0 + e, 1.0 - e, -1.0), lost);
    t.eq("132", doubles(of_three!("vfmadd132sd"), 1.0 + e, -1.0, 1.0 - e), lost);
    t.eq("231", doubles(of_three!("vfmadd231sd"), -1.0, 1.0 + e, 1.0 - e), lost);
    t.eq("a difference", doubles(of_three!("vfmsub213sd"), 1.0 + e, 1.0 - e, 1.0), lost);
    t.eq("negated", doubles(of_three!("vfnmadd213sd"), 1.0 + e, 1.0 - e, 1.0), (e * e).to_bits());
    t.eq("both", doubles(of_three!("vfnmsub213sd"), 1.0 + e, 1.0 - e, -1.0), (e * e).to_bits());
    t.eq("add and subtract", doubles(of_three!("vfmaddsub213pd"), 3.0, 5.0, 1.0), 14f64.to_bits());
    t.eq("subtract and add", doubles(of_three!("vfmsubadd213pd"), 3.0, 5.0, 1.0), 16f64.to_bits());
    let invalid = doubles(of_three!("vfmadd213sd"), f64::INFINITY, 0.0, f64::NAN);
    t.eq("a quiet NaN comes through", invalid & 0x7ff8 << 48, 0x7ff8 << 48);
    reset_fpu();
}

fn halves(t: &mut Test) {
    if !avx_and(t, 1, ECX, 29) {
        return;
    }
    // 1.0009765625 is the half above 1; the single below it by a little rounds by the mode.
    let single = |code: Code, value: f32| {
        let s = Subject::kernel(code).with(reg::RAX, value.to_bits().into());
        s.cr4(cr4::OSXSAVE | cr4::OSFXSR, 0).run().regs.gpr[reg::RAX] as u16
    };
    macro_rules! to_half {
        ($imm:literal) => {
            code!("vmovd xmm0, eax" => concat!("vcvtps2ph xmm1, xmm0, ", $imm) => "vmovd eax, xmm1")
        };
    }
    let value = 1.000_8;
    t.eq("to nearest", single(to_half!("0"), value), 0x3c01);
    t.eq("down", single(to_half!("1"), value), 0x3c00);
    t.eq("up", single(to_half!("2"), value), 0x3c01);
    t.eq("to zero", single(to_half!("3"), value), 0x3c00);
    t.eq("by MXCSR", single(to_half!("4"), value), 0x3c01);
    t.eq("too large", single(to_half!("0"), 65520.0), 0x7c00);
    t.eq("too large, to zero", single(to_half!("3"), 65520.0), 0x7bff);
    t.eq("denormal", single(to_half!("0"), 5.960_464_5e-8), 1);
    let event = Subject::kernel(code!("vmovd xmm0, eax" => "vcvtph2ps xmm1, xmm0" => "vmovq rax, xmm1"))
        .with(reg::RAX, 0x8001_3c01)
        .cr4(cr4::OSXSAVE, 0)
        .run();
    let back = [1.000_976_6f32, -5.960_464_5e-8].map(f32::to_bits);
    t.eq("back", event.regs.gpr[reg::RAX], u64::from(back[1]) << 32 | u64::from(back[0]));
    reset_fpu();
}

fn predicates(t: &mut Test) {
    if !avx(t) {
        return;
    }
    // Answers for 1 < 2, 2 > 1, 1 = 1 and a NaN, as bits; those with 16 more differ in what is invalid.
    const ANSWERS: [u8; 16] = [4, 1, 5, 8, 11, 14, 10, 7, 12, 9, 13, 0, 3, 6, 2, 15];
    macro_rules! answers {
        ($($imm:literal)*) => {
            [$(code!("vmovq xmm0, rax", "vmovq xmm1, rcx" => concat!("vcmpsd xmm0, xmm0, xmm1, ", $imm) => "vmovd eax, xmm0"),)*]
        };
    }
    let codes =
        answers!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    for (i, code) in codes.into_iter().enumerate() {
        let mut found = 0;
        for (bit, (a, b)) in [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (f64::NAN, 1.0)].into_iter().enumerate() {
            found |= ((doubles(code, a, b, 0.0) & 1) as u8) << bit;
        }
        t.eq(("predicate", i), found, ANSWERS[i % 16]);
    }
    reset_fpu();
}

fn exceptions(t: &mut Test) {
    if !avx(t) {
        return;
    }
    let at = paging::page();
    let unmasked = mxcsr::RESET & !(1 << 9);
    // SAFETY: the case's own page.
    unsafe { (at as *mut u32).write_volatile(unmasked) };
    let divide = code!("vldmxcsr [rdi]", "vpcmpeqd xmm1, xmm1, xmm1", "vpsrld xmm1, xmm1, 25", "vpslld xmm1, xmm1, 23",
        "vxorps xmm0, xmm0, xmm0" => "vdivps ymm0, ymm1, ymm0");
    t.event("a division by zero", &on(divide, at), Expect::fault(vector::XM));
    let event = on(code!("vstmxcsr [rdi]"), at);
    t.event("VSTMXCSR", &event, Expect::done());
    // SAFETY: as above.
    let flags = unsafe { (at as *const u32).read_volatile() } & mxcsr::FLAGS;
    t.eq("ZE, and IE of 0 / 0 in the upper half", flags & 5, 5);
    let s = Subject::kernel(divide).with(reg::RDI, at).cr4(cr4::OSXSAVE, cr4::OSXMMEXCPT);
    // SAFETY: as above.
    unsafe { (at as *mut u32).write_volatile(unmasked) };
    t.event("without OSXMMEXCPT", &s.run(), UD);
    // SAFETY: as above.
    unsafe { (at as *mut u32).write_volatile(1 << 16) };
    t.event("a reserved bit of MXCSR", &on(code!("vldmxcsr [rdi]"), at), Expect::gp(0));
    reset_fpu();
}
