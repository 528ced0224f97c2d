//! What CPUID says, and that it is so: every instruction group, CR4 bit and XSAVE component exists
//! exactly if it is offered, and CPUID agrees with itself and with the registers it tells of.

#![no_std]
#![no_main]

mod leaves;
mod xsave;

use satori_guests::cpu::selector;
use satori_guests::defs::msr::{IA32_CSTAR, IA32_LSTAR, IA32_STAR};
use satori_guests::defs::x86::{cr0, cr4, rflags, vector};
use satori_guests::subject::{DONE, USER, reg, reset_fpu};
use satori_guests::{Code, Event, Expect, Subject, Test, code, guest, insn, paging};

use crate::leaves::{caches, dynamic, every_processor, leaves, topology};
use crate::xsave::{xsave_compacted, xsave_of_keys, xsave_sizes, xsave_standard, xsave_supervisor, xsetbv};

guest!(
    "features",
    leaves,
    topology,
    every_processor,
    caches,
    dynamic,
    instructions,
    ignored_prefixes,
    control_bits,
    xsetbv,
    xsave_sizes,
    xsave_standard,
    xsave_compacted,
    xsave_supervisor,
    xsave_of_keys,
    fsgsbase,
    access_flag,
    random,
    cache_lines,
    counters,
    compatibility_calls,
);

const EAX: usize = 0;
const EBX: usize = 1;
const ECX: usize = 2;
const EDX: usize = 3;
const UD: Expect = Expect::fault(vector::UD);

/// A register of a leaf, 0 beyond the last one.
fn answer(leaf: u32, subleaf: u32, register: usize) -> u32 {
    let last = insn::cpuid(leaf & 0xc000_0000, 0)[EAX];
    if leaf <= last { insn::cpuid(leaf, subleaf)[register] } else { 0 }
}

fn has(leaf: u32, subleaf: u32, register: usize, bit: u32) -> bool {
    if leaf == 7 && subleaf > answer(7, 0, EAX) {
        return false;
    }
    answer(leaf, subleaf, register) >> bit & 1 != 0
}

fn amd() -> bool {
    insn::cpuid(0, 0)[EBX] == u32::from_le_bytes(*b"Auth")
}

/// CR4 with everything on that instructions may want.
fn wide() -> u64 {
    let mut bits = cr4::OSFXSR | cr4::OSXMMEXCPT;
    for (feature, bit) in [
        (has(1, 0, ECX, 26), cr4::OSXSAVE),
        (has(7, 0, EBX, 0), cr4::FSGSBASE),
        (has(7, 0, ECX, 3), cr4::PKE),
    ] {
        if feature {
            bits |= bit;
        }
    }
    bits
}

/// XCR0 with all that there is.
fn all_components() -> u64 {
    u64::from(answer(0xd, 0, EDX)) << 32 | u64::from(answer(0xd, 0, EAX))
}

/// Sets XCR0, where there is one.
fn set_xcr0(value: u64) -> Event {
    let s = Subject::kernel(code!("xsetbv")).with(reg::RAX, value & 0xffff_ffff).with(reg::RDX, value >> 32);
    s.cr4(cr4::OSXSAVE, 0).run()
}

fn instructions(t: &mut Test) {
    let xsave = has(1, 0, ECX, 26);
    if xsave {
        t.event("XSETBV", &set_xcr0(all_components()), Expect::done());
    }
    let avx = has(1, 0, ECX, 28);
    let cases: &[(&str, bool, Code)] = &[
        ("CMPXCHG8B", has(1, 0, EDX, 8), code!("cmpxchg8b [rsp - 32]")),
        ("CMOV", has(1, 0, EDX, 15), code!("cmove eax, ecx")),
        ("MMX", has(1, 0, EDX, 23), code!(=> "paddb mm0, mm0" => "emms")),
        ("FXSAVE", has(1, 0, EDX, 24), code!("fxsave [rdi]")),
        ("SSE", has(1, 0, EDX, 25), code!("addps xmm0, xmm0")),
        ("SSE2", has(1, 0, EDX, 26), code!("paddb xmm0, xmm0")),
        ("CLFLUSH", has(1, 0, EDX, 19), code!("clflush [rdi]")),
        ("SSE3", has(1, 0, ECX, 0), code!("addsubps xmm0, xmm0")),
        ("PCLMULQDQ", has(1, 0, ECX, 1), code!("pclmulqdq xmm0, xmm0, 0")),
        ("SSSE3", has(1, 0, ECX, 9), code!("pshufb xmm0, xmm0")),
        ("SSSE3 of MMX", has(1, 0, ECX, 9), code!(=> "pshufb mm0, mm0" => "emms")),
        ("FMA", has(1, 0, ECX, 12), code!("vfmadd132ps xmm0, xmm0, xmm0")),
        ("CMPXCHG16B", has(1, 0, ECX, 13), code!("cmpxchg16b [rdi]")),
        ("SSE4.1", has(1, 0, ECX, 19), code!("pmulld xmm0, xmm0")),
        ("SSE4.2", has(1, 0, ECX, 20), code!("pcmpgtq xmm0, xmm0")),
        ("CRC32", has(1, 0, ECX, 20), code!("crc32 eax, ecx")),
        ("MOVBE", has(1, 0, ECX, 22), code!("movbe eax, [rdi]")),
        ("POPCNT", has(1, 0, ECX, 23), code!("popcnt eax, ecx")),
        ("AES", has(1, 0, ECX, 25), code!("aesenc xmm0, xmm0")),
        ("XGETBV", xsave, code!("xor ecx, ecx" => "xgetbv")),
        ("AVX", avx, code!("vaddps ymm0, ymm0, ymm0")),
        ("AVX of 128 bits", avx, code!("vaddps xmm0, xmm0, xmm0")),
        ("VZEROUPPER", avx, code!("vzeroupper")),
        ("F16C", has(1, 0, ECX, 29), code!("vcvtph2ps xmm0, xmm0")),
        ("RDRAND", has(1, 0, ECX, 30), code!("rdrand eax")),
        ("FSGSBASE", has(7, 0, EBX, 0), code!("rdfsbase rax")),
        ("BMI1", has(7, 0, EBX, 3), code!("andn eax, eax, eax")),
        ("HLE and RTM", has(7, 0, EBX, 11), code!("xtest")),
        ("AVX2", has(7, 0, EBX, 5), code!("vpaddb ymm0, ymm0, ymm0")),
        ("BMI2", has(7, 0, EBX, 8), code!("pdep eax, eax, eax")),
        ("AVX512F", has(7, 0, EBX, 16), code!(".byte 0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc0")),
        ("RDSEED", has(7, 0, EBX, 18), code!("rdseed eax")),
        ("ADX", has(7, 0, EBX, 19), code!("adcx eax, eax")),
        ("CLFLUSHOPT", has(7, 0, EBX, 23), code!("clflushopt [rdi]")),
        ("CLWB", has(7, 0, EBX, 24), code!("clwb [rdi]")),
        ("SHA", has(7, 0, EBX, 29), code!("sha1msg1 xmm0, xmm0")),
        ("PKU", has(7, 0, ECX, 3), code!("xor ecx, ecx" => "rdpkru")),
        ("WAITPKG", has(7, 0, ECX, 5), code!("xor eax, eax", "xor edx, edx" => "tpause ecx")),
        ("GFNI", has(7, 0, ECX, 8), code!("gf2p8mulb xmm0, xmm0")),
        ("VAES", has(7, 0, ECX, 9), code!("vaesenc ymm0, ymm0, ymm0")),
        ("VPCLMULQDQ", has(7, 0, ECX, 10), code!("vpclmulqdq ymm0, ymm0, ymm0, 0")),
        ("RDPID", has(7, 0, ECX, 22), code!("rdpid rax")),
        ("MOVDIRI", has(7, 0, ECX, 27), code!("movdiri [rdi], eax")),
        ("MOVDIR64B", has(7, 0, ECX, 28), code!("movdir64b rdi, [rdi]")),
        ("SERIALIZE", has(7, 0, EDX, 14), code!(".byte 0x0f, 0x01, 0xe8")),
        ("AVX-VNNI", has(7, 1, EAX, 4), code!(".byte 0xc4, 0xe2, 0x79, 0x50, 0xc0")),
        ("LAHF in 64-bit mode", has(0x8000_0001, 0, ECX, 0), code!("lahf")),
        ("SSE4A", has(0x8000_0001, 0, ECX, 6), code!("extrq xmm0, xmm0")),
        ("XOP", has(0x8000_0001, 0, ECX, 11), code!(".byte 0x8f, 0xe9, 0x78, 0xc1, 0xc0")),
        ("FMA4", has(0x8000_0001, 0, ECX, 16), code!(".byte 0xc4, 0xe3, 0x79, 0x68, 0xc0, 0x00")),
        ("TBM", has(0x8000_0001, 0, ECX, 21), code!(".byte 0x8f, 0xe9, 0x78, 0x01, 0xc8")),
        ("RDTSCP", has(0x8000_0001, 0, EDX, 27), code!("rdtscp")),
        ("3DNow!", has(0x8000_0001, 0, EDX, 31), code!("femms")),
        ("XSAVE", xsave, code!("xor eax, eax", "xor edx, edx" => "xsave [rdi]")),
        ("XSAVEOPT", has(0xd, 1, EAX, 0), code!("xor eax, eax", "xor edx, edx" => "xsaveopt [rdi]")),
        ("XSAVEC", has(0xd, 1, EAX, 1), code!("xor eax, eax", "xor edx, edx" => "xsavec [rdi]")),
        ("CLZERO", has(0x8000_0008, 0, EBX, 0), code!("mov rax, rdi" => "clzero")),
        ("RDPRU", has(0x8000_0008, 0, EBX, 4), code!(".byte 0x0f, 0x01, 0xfd")),
        // Never offered.
        ("VMXON", has(1, 0, ECX, 5), code!("vmxon [rdi]")),
        ("VMREAD", has(1, 0, ECX, 5), code!("vmread rax, rax")),
        ("VMRUN", has(0x8000_0001, 0, ECX, 2), code!("vmrun")),
        ("STGI", has(0x8000_0001, 0, ECX, 2), code!("stgi")),
        ("GETSEC", has(1, 0, ECX, 6), code!("getsec")),
        ("ENCLU", has(7, 0, EBX, 2), code!(".byte 0x0f, 0x01, 0xd7")),
        ("RDSSP is a NOP", true, code!(".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8")),
        ("ENDBR64 is a NOP", true, code!("endbr64")),
        ("CLDEMOTE is a NOP", true, code!(".byte 0x0f, 0x1c, 0x07")),
        ("PREFETCHW is a NOP", true, code!("prefetchw [rdi]")),
        ("PREFETCHNTA is a NOP", true, code!("prefetchnta [rdi]")),
        ("PAUSE", true, code!("pause")),
        ("UD0", false, code!(".byte 0x0f, 0xff, 0xc0")),
        ("UD1", false, code!(".byte 0x0f, 0xb9, 0xc0")),
        ("UMONITOR", has(7, 0, ECX, 5), code!(".byte 0xf3, 0x0f, 0xae, 0xf0")),
        ("PTWRITE", has(0x14, 0, EBX, 4), code!(".byte 0xf3, 0x0f, 0xae, 0xe0")),
        ("ENQCMD", has(7, 0, ECX, 29), code!(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x07")),
    ];
    let place = paging::page();
    for &(name, there, code) in cases {
        for user in [false, true] {
            let s = if user { Subject::user(code) } else { Subject::kernel(code) };
            let s = s.with(reg::RDI, place + if user { USER } else { 0 }).cr4(wide(), 0);
            t.event((name, user), &s.run(), if there { Expect::done() } else { UD });
        }
    }
    privileged(t, place, xsave);
    if xsave {
        set_xcr0(all_components());
        // Without the state enabled there is no AVX.
        if avx {
            without_state(t);
        }
        set_xcr0(1);
    }
    reset_fpu();
}

/// At level 0 alone.
fn privileged(t: &mut Test, place: u64, xsave: bool) {
    for (name, there, code) in [
        ("INVPCID", has(7, 0, EBX, 10), code!("mov eax, 2" => "invpcid rax, [rdi]")),
        ("XSAVES", has(0xd, 1, EAX, 3), code!("xor eax, eax", "xor edx, edx" => "xsaves [rdi]")),
        ("XSETBV", xsave, code!("xor ecx, ecx", "mov eax, 1", "xor edx, edx" => "xsetbv")),
        ("MONITOR", has(1, 0, ECX, 3), code!("xor ecx, ecx", "mov rax, rdi" => "monitor")),
    ] {
        let s = Subject::kernel(code).with(reg::RDI, place).cr4(wide(), 0);
        t.event(name, &s.run(), if there { Expect::done() } else { UD });
        let s = Subject::user(code).with(reg::RDI, place + USER).cr4(wide(), 0);
        let refused = if name == "MONITOR" { UD } else { Expect::gp(0) };
        t.event((name, "in user mode"), &s.run(), if there { refused } else { UD });
    }
    for (name, there, code) in
        [("STAC", has(7, 0, EBX, 20), code!("stac")), ("CLAC", has(7, 0, EBX, 20), code!("clac"))]
    {
        t.event(name, &Subject::kernel(code).run(), if there { Expect::done() } else { UD });
        t.event((name, "in user mode"), &Subject::user(code).run(), UD);
    }
}

fn without_state(t: &mut Test) {
    set_xcr0(3);
    let s = Subject::user(code!("vaddps xmm0, xmm0, xmm0")).cr4(cr4::OSXSAVE, 0);
    t.event("AVX without its state", &s.run(), UD);
    set_xcr0(7);
    t.event("AVX with its state", &s.run(), Expect::done());
    t.event("AVX without OSXSAVE", &s.cr4(0, cr4::OSXSAVE).run(), UD);
    t.event("AVX and TS", &s.cr0(cr0::TS, 0).run(), Expect::fault(vector::NM));
    t.event("AVX and EM", &s.cr0(cr0::EM, 0).run(), Expect::done());
}

/// Where an extension is absent whose encoding is an old instruction with a prefix, that is what runs.
fn ignored_prefixes(t: &mut Test) {
    let tzcnt = Subject::user(code!(".byte 0xf3, 0x0f, 0xbc, 0xc1")).with(reg::RCX, 0).with(reg::RAX, 77);
    let event = tzcnt.run();
    t.event("TZCNT or BSF", &event, Expect::done());
    let found = event.regs.gpr[reg::RAX] as u32;
    t.eq("of 0", found, if has(7, 0, EBX, 3) { 32 } else { 77 });
    let event = Subject::user(code!(".byte 0xf3, 0x0f, 0xbd, 0xc1")).with(reg::RCX, 1).run();
    t.event("LZCNT or BSR", &event, Expect::done());
    t.eq("of 1", event.regs.gpr[reg::RAX], if has(0x8000_0001, 0, ECX, 5) { 31 } else { 0 });
    t.event("WBNOINVD or WBINVD", &Subject::kernel(code!(".byte 0xf3, 0x0f, 0x09")).run(), Expect::done());
    t.event("in user mode", &Subject::user(code!(".byte 0xf3, 0x0f, 0x09")).run(), Expect::gp(0));
    let event = Subject::user(code!(".byte 0xf2, 0x90")).run();
    t.event("a REPNE NOP", &event, Expect::done());
    // XRELEASE and XACQUIRE without HLE.
    let event = Subject::user(code!(".byte 0xf2, 0xf0, 0x0f, 0xb1, 0x4c, 0x24, 0xf0")).run();
    t.event("XACQUIRE LOCK CMPXCHG", &event, Expect::done());
}

fn control_bits(t: &mut Test) {
    let before = insn::cr4();
    let write = code!("mov cr4, rax");
    for (bit, there) in [
        (0, has(1, 0, EDX, 1)),
        (1, has(1, 0, EDX, 1)),
        (2, has(1, 0, EDX, 4)),
        (3, has(1, 0, EDX, 2)),
        (4, has(1, 0, EDX, 3)),
        (6, has(1, 0, EDX, 7)),
        (7, has(1, 0, EDX, 13)),
        (8, true),
        (9, has(1, 0, EDX, 24)),
        (10, has(1, 0, EDX, 25)),
        (11, has(7, 0, ECX, 2)),
        (13, has(1, 0, ECX, 5)),
        (14, has(1, 0, ECX, 6)),
        (15, false),
        (16, has(7, 0, EBX, 0)),
        (17, has(1, 0, ECX, 17)),
        (18, has(1, 0, ECX, 26)),
        (19, has(7, 0, ECX, 23)),
        (20, has(7, 0, EBX, 7)),
        (21, has(7, 0, EBX, 20)),
        (22, has(7, 0, ECX, 3)),
        (23, has(7, 0, ECX, 7) || has(7, 0, EDX, 20)),
        (24, has(7, 0, ECX, 31)),
        (25, has(7, 0, EDX, 5)),
    ] {
        let value = before | 1 << bit;
        let event = Subject::kernel(write).with(reg::RAX, value).run();
        let found = insn::cr4();
        insn::set_cr4(before);
        t.event(("bit", bit), &event, if there { Expect::done() } else { Expect::gp(0) });
        // The way out of a subject puts CR4 back.
        t.eq(("back", bit), found, before);
        let event = Subject::kernel(code!("mov cr4, rax", "mov rcx, cr4")).with(reg::RAX, value).run();
        insn::set_cr4(before);
        if there {
            t.eq(("reads back", bit), event.regs.gpr[reg::RCX], value);
        }
    }
    for bit in 26..64 {
        // LAM is bit 28, FRED bit 32.
        let event = Subject::kernel(write).with(reg::RAX, before | 1 << bit).run();
        t.event(("a reserved bit", bit), &event, Expect::gp(0));
    }
    let event = Subject::kernel(write).with(reg::RAX, before & !cr4::PAE).run();
    t.event("PAE in long mode", &event, Expect::gp(0));
    let event = Subject::kernel(write).with(reg::RAX, before ^ cr4::LA57).run();
    t.event("LA57 in long mode", &event, Expect::gp(0));
    t.event("in user mode", &Subject::user(write).with(reg::RAX, before).run(), Expect::gp(0));
    if has(1, 0, ECX, 17) {
        // PCIDE wants CR3's low bits to be 0.
        let cr3 = insn::cr3();
        insn::set_cr3(cr3 | 0x18);
        let event = Subject::kernel(write).with(reg::RAX, before | cr4::PCIDE).run();
        insn::set_cr3(cr3);
        t.event("PCIDE over a PCID", &event, Expect::gp(0));
    }
}

fn fsgsbase(t: &mut Test) {
    let there = has(7, 0, EBX, 0);
    for (name, code) in [
        ("RDFSBASE", code!("rdfsbase rax")),
        ("RDGSBASE", code!("rdgsbase eax")),
        ("WRFSBASE", code!("wrfsbase rax")),
        ("WRGSBASE", code!("wrgsbase eax")),
    ] {
        t.event((name, "without CR4"), &Subject::user(code).run(), UD);
        if !there {
            continue;
        }
        t.event(name, &Subject::user(code).cr4(cr4::FSGSBASE, 0).run(), Expect::done());
        t.event((name, "at level 0"), &Subject::kernel(code).cr4(cr4::FSGSBASE, 0).run(), Expect::done());
        let legacy = Subject::compat(code!(".code32", ".byte 0xf3, 0x0f, 0xae, 0xc0"));
        t.event((name, "in compatibility mode"), &legacy.cr4(cr4::FSGSBASE, 0).run(), UD);
    }
    if !there {
        return;
    }
    let s = Subject::user(code!("wrfsbase rax" => "rdfsbase rcx")).cr4(cr4::FSGSBASE, 0);
    let value = 0xffff_8000_1234_5678;
    t.eq("64 bits", s.with(reg::RAX, value).run().regs.gpr[reg::RCX], value);
    let s = Subject::user(code!("wrfsbase rax")).cr4(cr4::FSGSBASE, 0);
    t.event("not canonical", &s.with(reg::RAX, 1 << 47).run(), Expect::gp(0));
    let s = Subject::user(code!("wrfsbase eax", "rdfsbase rcx")).cr4(cr4::FSGSBASE, 0);
    t.eq("32 bits", s.with(reg::RAX, u64::MAX).run().regs.gpr[reg::RCX], 0xffff_ffff);
    let s = Subject::user(code!("xor eax, eax", "wrfsbase rax", "wrgsbase rax")).cr4(cr4::FSGSBASE, 0);
    t.event("back", &s.run(), Expect::done());
}

fn access_flag(t: &mut Test) {
    if !has(7, 0, EBX, 20) {
        t.holds("no SMAP", true);
        return;
    }
    let place = paging::page() + USER;
    let read = |prefix: Code| Subject::kernel(prefix).with(reg::RDI, place).cr4(cr4::SMAP, 0);
    let event = read(code!("clac" => "mov eax, [rdi]")).run();
    t.event("CLAC", &event, Expect::pf(1, place));
    t.event("STAC", &read(code!("stac" => "mov eax, [rdi]")).run(), Expect::done());
    t.event("AC", &read(code!("mov eax, [rdi]")).flags(rflags::AC).run(), Expect::done());
    let event = Subject::kernel(code!("stac")).run();
    t.eq("AC is set", event.regs.rflags & rflags::AC, rflags::AC);
    let event = Subject::kernel(code!("clac")).flags(rflags::AC).run();
    t.eq("AC is clear", event.regs.rflags & rflags::AC, 0);
    // They only touch AC, and prefixes make them something else.
    t.event("LOCK STAC", &Subject::kernel(code!(".byte 0xf0, 0x0f, 0x01, 0xcb")).run(), UD);
    t.event("66 STAC", &Subject::kernel(code!(".byte 0x66, 0x0f, 0x01, 0xcb")).run(), UD);
}

fn random(t: &mut Test) {
    for (name, there, long, short) in [
        ("RDRAND", has(1, 0, ECX, 30), code!("rdrand rax"), code!("rdrand ax")),
        ("RDSEED", has(7, 0, EBX, 18), code!("rdseed rax"), code!("rdseed ax")),
    ] {
        if !there {
            t.event((name, "absent"), &Subject::user(long).run(), UD);
            continue;
        }
        let flags = rflags::STATUS & !rflags::CF;
        let mut seen = [0u64; 8];
        for value in &mut seen {
            let event = Subject::user(long).flags(flags).run();
            t.eq((name, "flags"), event.regs.rflags & rflags::STATUS, rflags::CF);
            *value = event.regs.gpr[reg::RAX];
        }
        t.holds((name, "no two alike", seen), (1..8).all(|at| !seen[..at].contains(&seen[at])));
        let event = Subject::user(short).with(reg::RAX, u64::MAX).run();
        t.eq((name, "16 bits"), event.regs.gpr[reg::RAX] >> 16, u64::MAX >> 16);
    }
    t.event("LOCK", &Subject::user(code!(".byte 0xf0, 0x0f, 0xc7, 0xf0")).run(), UD);
}

fn cache_lines(t: &mut Test) {
    let beyond = paging::FREE + 0x9000;
    for (name, there, code) in [
        ("CLFLUSH", has(1, 0, EDX, 19), code!("clflush [rdi]")),
        ("CLFLUSHOPT", has(7, 0, EBX, 23), code!("clflushopt [rdi]")),
        ("CLWB", has(7, 0, EBX, 24), code!("clwb [rdi]")),
    ] {
        if !there {
            t.event((name, "absent"), &Subject::user(code).run(), UD);
            continue;
        }
        let s = Subject::user(code);
        t.event((name, "an absent page"), &s.with(reg::RDI, beyond).run(), Expect::pf(4, beyond));
        t.event((name, "not canonical"), &s.with(reg::RDI, 1 << 63).run(), Expect::gp(0));
        let supervisor = paging::page();
        t.event(
            (name, "a supervisor's page"),
            &s.with(reg::RDI, supervisor).run(),
            Expect::pf(5, supervisor),
        );
    }
    for (name, code) in [
        ("CLDEMOTE", code!(".byte 0x0f, 0x1c, 0x07")),
        ("PREFETCHT0", code!("prefetcht0 [rdi]")),
        ("NOP", code!("nop dword ptr [rdi]")),
    ] {
        let s = Subject::user(code);
        t.event((name, "an absent page"), &s.with(reg::RDI, beyond).run(), Expect::done());
        t.event((name, "not canonical"), &s.with(reg::RDI, 1 << 63).run(), Expect::done());
    }
}

fn counters(t: &mut Test) {
    let count = answer(0xa, 0, EAX) >> 8 & 0xff;
    let extended = has(0x8000_0001, 0, ECX, 23);
    for index in [0, 1, 3, 0x4000_0000, 0x4000_0003, u32::MAX] {
        let s = Subject::kernel(code!("rdpmc")).with(reg::RCX, index.into());
        if count == 0 && !amd() && !extended {
            t.event(("there are none", index), &s.run(), Expect::gp(0));
        } else if index == u32::MAX {
            t.event(("beyond", index), &s.run(), Expect::gp(0));
        }
    }
    let s = Subject::user(code!("rdpmc")).with(reg::RCX, u64::MAX);
    t.event("in user mode with PCE", &s.cr4(cr4::PCE, 0).run(), Expect::gp(0));
    t.event("in user mode", &s.run(), Expect::gp(0));
}

fn compatibility_calls(t: &mut Test) {
    const STAR: u64 = (selector::USER_CODE32 as u64 & !3) << 48 | (selector::CODE as u64) << 32;
    let (long, compat) = (code!("nop"), code!("nop"));
    insn::wrmsr(IA32_STAR, STAR);
    insn::wrmsr(IA32_LSTAR, long.start);
    insn::wrmsr(IA32_CSTAR, compat.start);
    let event = Subject::compat(code!(".byte 0x0f, 0x05")).run();
    if amd() {
        t.eq("to CSTAR", (event.vector, event.regs.rip), (DONE, compat.start + compat.end + 2));
        t.eq("RCX", event.regs.gpr[reg::RCX], event.subject.start + 2);
        // AMD looks at the target only when it is fetched, at the level returned to.
        let s = Subject::kernel(code!("sysretq")).with(reg::RCX, 1 << 47).with(11, 2);
        let event = s.run();
        t.eq("SYSRET to the hole", (event.vector, event.regs.cs & 3), (vector::GP, 3));
    } else {
        t.event("not in compatibility mode", &event, UD);
    }
    insn::wrmsr(IA32_CSTAR, 0);
}
