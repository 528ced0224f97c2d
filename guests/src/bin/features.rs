//! What CPUID says, and that it is so: every instruction group, CR4 bit and XSAVE component exists
//! exactly if it is offered, and CPUID agrees with itself and with the registers it tells of.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering};

use satori_guests::cpu::selector;
use satori_guests::defs::msr::{IA32_CSTAR, IA32_LSTAR, IA32_STAR};
use satori_guests::defs::x86::{cr0, cr4, rflags, vector};
use satori_guests::subject::{DONE, USER, reg, reset_fpu};
use satori_guests::{Code, Event, Expect, Subject, Test, apic, code, guest, insn, paging, smp};

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

fn leaves(t: &mut Test) {
    let [last, b, c, d] = insn::cpuid(0, 0);
    let vendor = [b, d, c].map(u32::to_le_bytes);
    let vendor: &[u8] = vendor.as_flattened();
    t.holds("a vendor", vendor == b"GenuineIntel" || vendor == b"AuthenticAMD" || vendor.is_ascii());
    t.holds(("leaves", last), (1..0x40).contains(&last));
    let extended = insn::cpuid(0x8000_0000, 0)[EAX];
    t.holds(("extended leaves", extended), (0x8000_0008..0x8000_0040).contains(&extended));
    // Beyond the last: the last one's answer from Intel's, zeros from AMD's.
    let subleaf = 0;
    for beyond in [last + 1, 0x100, 0x3fff_ffff, extended + 1, 0x8000_ffff, 0xc000_0000, u32::MAX] {
        let found = insn::cpuid(beyond, subleaf);
        let expected = if amd() { [0; 4] } else { insn::cpuid(last, subleaf) };
        t.eq(("beyond", beyond), found, expected);
    }
    // Reserved bits of leaf 7 and of leaf 1.
    t.eq("leaf 1's ECX[16]", answer(1, 0, ECX) >> 16 & 1, 0);
    t.eq("leaf 1's EDX[10,20]", answer(1, 0, EDX) & (1 << 10 | 1 << 20), 0);
    t.holds("leaf 7's subleaves beyond the last are empty", {
        let subleaves = answer(7, 0, EAX);
        last < 7 || insn::cpuid(7, subleaves + 1) == [0; 4]
    });
    // The full registers are written, all of RAX to RDX.
    let s = Subject::kernel(code!("cpuid")).with(reg::RAX, 0xffff_ffff_0000_0001);
    let s = s.with(reg::RCX, u64::MAX << 32).with(reg::RDX, u64::MAX).with(reg::RBX, u64::MAX);
    let gpr = s.run().regs.gpr;
    t.holds("high halves are cleared", gpr[..4].iter().all(|value| value >> 32 == 0));
    t.eq("in user mode as well", Subject::user(s.code).run().regs.gpr[reg::RBX] >> 32, 0);
    // The brand string is text that ends.
    let brand = [0x8000_0002, 0x8000_0003, 0x8000_0004].map(|leaf| insn::cpuid(leaf, 0));
    let text = brand.as_flattened().iter().flat_map(|word| word.to_le_bytes());
    t.holds("a brand string", text.clone().all(|byte| byte == 0 || (b' '..0x7f).contains(&byte)));
    t.eq("that ends", text.last(), Some(0));
    if !has(1, 0, ECX, 31) {
        t.eq("no hypervisor's leaves", insn::cpuid(0x4000_0000, 0), insn::cpuid(0x3fff_ffff, 0));
    }
    let address = answer(0x8000_0008, 0, EAX);
    t.holds(
        ("widths", address),
        (36..=52).contains(&(address & 0xff)) && matches!(address >> 8 & 0xff, 48 | 57),
    );
    t.eq("five levels go with LA57", address >> 8 & 0xff == 57, has(7, 0, ECX, 16));
    // What depends on something else.
    for (name, feature, needs) in [
        ("AVX needs XSAVE", has(1, 0, ECX, 28), has(1, 0, ECX, 26)),
        ("AVX2 needs AVX", has(7, 0, EBX, 5), has(1, 0, ECX, 28)),
        ("FMA needs AVX", has(1, 0, ECX, 12), has(1, 0, ECX, 28)),
        ("F16C needs AVX", has(1, 0, ECX, 29), has(1, 0, ECX, 28)),
        ("VAES needs AVX and AES", has(7, 0, ECX, 9), has(1, 0, ECX, 28) && has(1, 0, ECX, 25)),
        ("XSAVEC needs XSAVE", has(0xd, 1, EAX, 1), has(1, 0, ECX, 26)),
        ("XSAVES needs XSAVE", has(0xd, 1, EAX, 3), has(1, 0, ECX, 26)),
        ("SSE4.2 needs SSE4.1", has(1, 0, ECX, 20), has(1, 0, ECX, 19)),
        (
            "AMD repeats leaf 1",
            amd(),
            !amd() || answer(0x8000_0001, 0, EDX) & 0x3ff == answer(1, 0, EDX) & 0x3ff,
        ),
    ] {
        t.holds(name, !feature || needs);
    }
}

fn topology(t: &mut Test) {
    let id = apic::read(satori_guests::defs::apic::ID) >> 24;
    t.eq("leaf 1's APIC ID", insn::cpuid(1, 0)[EBX] >> 24, id);
    for leaf in [0xb, 0x1f] {
        if answer(0, 0, EAX) < leaf || answer(leaf, 0, EBX) == 0 {
            t.holds("none", leaf == 0x1f || amd() || answer(0, 0, EAX) < leaf);
            continue;
        }
        let mut last = 0;
        let mut count = 0;
        for subleaf in 0..8 {
            let [shift, threads, level, x2apic] = insn::cpuid(leaf, subleaf);
            t.eq((leaf, subleaf, "x2APIC ID"), x2apic, id);
            t.eq((leaf, subleaf, "ECX's low byte"), level & 0xff, subleaf);
            if level >> 8 & 0xff == 0 {
                t.eq((leaf, subleaf, "past the end"), (shift, threads), (0, 0));
                continue;
            }
            t.holds((leaf, subleaf, "shifts grow"), shift & 0x1f >= last && threads & 0xffff >= count);
            t.holds((leaf, subleaf, "room"), threads & 0xffff <= 1 << (shift & 0x1f));
            (last, count) = (shift & 0x1f, threads & 0xffff);
        }
        t.holds(
            "leaf 1 has room for them",
            answer(1, 0, EBX) >> 16 & 0xff >= count.min(0xff) || !has(1, 0, EDX, 28),
        );
    }
}

/// What each vCPU found: leaf 1, leaf 0xb, AMD's leaf 0x8000001e, and the local APIC.
static IDS: [[AtomicU32; 4]; smp::MAX_CPUS] = [const { [const { AtomicU32::new(0) }; 4] }; smp::MAX_CPUS];

fn every_processor(t: &mut Test) {
    smp::on_all(smp::count(), |number| {
        let found = [
            answer(1, 0, EBX) >> 24,
            answer(0xb, 0, EDX),
            answer(0x8000_001e, 0, EAX),
            apic::read(satori_guests::defs::apic::ID) >> 24,
        ];
        for (slot, id) in IDS[number].iter().zip(found) {
            slot.store(id, Ordering::Release);
        }
    });
    let mut seen = 0u64;
    for (number, found) in IDS.iter().enumerate().take(smp::count()) {
        let [one, topology, amds, lapic] = found.each_ref().map(|id| id.load(Ordering::Acquire));
        t.eq((number, "leaf 1"), one, lapic);
        t.holds(
            (number, "leaf 0xb"),
            topology == lapic || answer(0, 0, EAX) < 0xb || answer(0xb, 0, EBX) == 0,
        );
        t.holds((number, "leaf 0x8000001e"), amds == lapic || !amd() || answer(0x8000_001e, 0, ECX) == 0);
        t.holds((number, "its own"), seen >> lapic & 1 == 0);
        seen |= 1 << lapic;
    }
}

fn caches(t: &mut Test) {
    let leaf = if amd() { 0x8000_001d } else { 4 };
    if insn::cpuid(leaf & 0x8000_0000, 0)[EAX] < leaf {
        t.holds("none", true);
        return;
    }
    let mut levels = 0;
    for subleaf in 0..16 {
        let [kind, shape, sets, _] = insn::cpuid(leaf, subleaf);
        if kind & 0x1f == 0 {
            t.eq("past the end", (shape, sets), (0, 0));
            break;
        }
        let line = (shape & 0xfff) + 1;
        t.eq(("line", subleaf), line, 64);
        let size = line * ((shape >> 12 & 0x3ff) + 1) * ((shape >> 22) + 1) * (sets + 1);
        t.holds(("size", subleaf, size), size >= 4096);
        levels |= 1 << (kind >> 5 & 7);
    }
    t.holds(("levels", levels), levels == 0 || levels & 2 != 0);
    t.holds("CLFLUSH's line", !has(1, 0, EDX, 19) || answer(1, 0, EBX) >> 8 & 0xff == 8);
}

fn dynamic(t: &mut Test) {
    let code = code!("cpuid");
    for (feature, bit, leaf, told) in
        [(has(1, 0, ECX, 26), cr4::OSXSAVE, 1, 27), (has(7, 0, ECX, 3), cr4::PKE, 7, 4)]
    {
        if !feature {
            t.holds(("never", leaf), !has(leaf, 0, ECX, told));
            continue;
        }
        for s in [Subject::kernel(code), Subject::user(code)] {
            let s = s.with(reg::RAX, leaf.into()).with(reg::RCX, 0);
            t.eq(("off", leaf), s.cr4(0, bit).run().regs.gpr[reg::RCX] >> told & 1, 0);
            t.eq(("on", leaf), s.cr4(bit, 0).run().regs.gpr[reg::RCX] >> told & 1, 1);
        }
    }
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
    // At level 0 alone.
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
    if xsave {
        set_xcr0(all_components());
        // Without the state enabled there is no AVX.
        if avx {
            set_xcr0(3);
            let s = Subject::user(code!("vaddps xmm0, xmm0, xmm0")).cr4(cr4::OSXSAVE, 0);
            t.event("AVX without its state", &s.run(), UD);
            set_xcr0(7);
            t.event("AVX with its state", &s.run(), Expect::done());
            t.event("AVX without OSXSAVE", &s.cr4(0, cr4::OSXSAVE).run(), UD);
            t.event("AVX and TS", &s.cr0(cr0::TS, 0).run(), Expect::fault(vector::NM));
            t.event("AVX and EM", &s.cr0(cr0::EM, 0).run(), Expect::done());
        }
        set_xcr0(1);
    }
    reset_fpu();
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

fn xsetbv(t: &mut Test) {
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

fn xsave_sizes(t: &mut Test) {
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

fn xsave_standard(t: &mut Test) {
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

fn xsave_compacted(t: &mut Test) {
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

fn xsave_supervisor(t: &mut Test) {
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

fn xsave_of_keys(t: &mut Test) {
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
