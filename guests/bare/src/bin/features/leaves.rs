//! CPUID's leaves among each other, and on every processor.

use core::sync::atomic::{AtomicU32, Ordering};

use satori_guests::defs::x86::cr4;
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, apic, code, insn, smp};

use crate::{EAX, EBX, ECX, EDX, amd, answer, has};

pub fn leaves(t: &mut Test) {
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

pub fn topology(t: &mut Test) {
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

pub fn every_processor(t: &mut Test) {
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

pub fn caches(t: &mut Test) {
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

pub fn dynamic(t: &mut Test) {
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
