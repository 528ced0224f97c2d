//! Model-specific registers: which exist, what reads give, which bits writes take, what INIT leaves.

#![no_std]
#![no_main]

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering};

use satori_guests::cpu::selector;
use satori_guests::defs::apic::{self as regs, base, icr};
use satori_guests::defs::hyperv::{leaf, msr as synthetic};
use satori_guests::defs::msr::*;
use satori_guests::defs::x86::{cr0, cr4, efer};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::smp::{self, Barrier};
use satori_guests::subject::reg;
use satori_guests::{Expect, Subject, Test, apic, code, guest, insn};

guest!(
    "msrs",
    absent,
    numbers,
    bits,
    addresses,
    extended_features,
    misc_enable,
    page_attributes,
    memory_types,
    machine_check,
    microcode,
    time_stamp_counter,
    deadline,
    bases,
    apic_base,
    x2apic,
    hyper_v,
    own_registers,
    init,
);

/// A bit of CPUID: leaf, register, bit.
fn cpuid_bit(leaf: u32, register: usize, bit: u32) -> bool {
    leaf <= insn::cpuid(leaf & 0x8000_0000, 0)[0] && insn::cpuid(leaf, 0)[register] >> bit & 1 != 0
}

const ECX: usize = 2;
const EDX: usize = 3;
const EBX: usize = 1;

fn amd() -> bool {
    let [_, ebx, ecx, edx] = insn::cpuid(0, 0);
    [ebx, edx, ecx] == [0x6874_7541, 0x6974_6e65, 0x444d_4163]
}

fn has_x2apic() -> bool {
    cpuid_bit(1, ECX, 21)
}

/// Bits 63:47 alike, and just not.
const CANONICAL: [u64; 4] = [0, 0x7fff_ffff_ffff, 0xffff_8000_0000_0000, u64::MAX];
const NOT_CANONICAL: [u64; 4] = [0x8000_0000_0000, 0xffff_7fff_ffff_ffff, 1 << 63, 0x0001_0000_0000_0000];

fn absent(t: &mut Test) {
    // VMX and SVM are not offered, nor is anything around them.
    let gone = [
        2,
        0x9,
        0x11,
        0x1c,
        0x3c,
        0x49 + 0x50,
        0x9b,
        0xff,
        0x178,
        0x480,
        0x481,
        0x48c,
        0x491,
        0x570,
        0xd90,
        0xda1,
        0x1000,
        0x1b00,
        0x4000_01ff,
        0x4000_0fff,
        0x7fff_ffff,
        0x8000_0000,
        0xbfff_ffff,
        0xc000_0000,
        0xc000_0085,
        0xc000_00ff,
        0xc000_0104,
        0xc000_2000,
        0xc001_0117,
        0xc001_1fff,
        0xdead_beef,
        u32::MAX,
    ];
    for msr in gone {
        t.eq("read", get(msr), None);
        for value in [0, 1, u64::MAX] {
            let taken = set(msr, value);
            t.holds(("write", msr, value), !taken);
        }
    }
    // At other levels it is #GP whether the register exists or not.
    for msr in [IA32_TSC, IA32_EFER, 0xdead_beef] {
        let s = Subject::user(code!("rdmsr")).with(reg::RCX, msr.into());
        t.event(("RDMSR of user mode", msr), &s.run(), Expect::gp(0));
        let s = Subject::user(code!("wrmsr")).with(reg::RCX, msr.into());
        t.event(("WRMSR of user mode", msr), &s.run(), Expect::gp(0));
    }
}

/// Existence follows from CPUID: number, whether it is there.
fn numbers(t: &mut Test) {
    let (intel, amd) = (!amd(), amd());
    let expected = [
        (IA32_TSC, cpuid_bit(1, EDX, 4)),
        (IA32_APIC_BASE, true),
        (IA32_PLATFORM_ID, intel),
        (IA32_FEATURE_CONTROL, intel),
        (IA32_TSC_ADJUST, cpuid_bit(7, EBX, 1)),
        (IA32_BIOS_SIGN_ID, true),
        (IA32_MTRRCAP, cpuid_bit(1, EDX, 12)),
        (IA32_ARCH_CAPABILITIES, cpuid_bit(7, EDX, 29)),
        (IA32_SYSENTER_CS, cpuid_bit(1, EDX, 11)),
        (IA32_SYSENTER_ESP, cpuid_bit(1, EDX, 11)),
        (IA32_SYSENTER_EIP, cpuid_bit(1, EDX, 11)),
        (IA32_MCG_CAP, cpuid_bit(1, EDX, 14)),
        (IA32_MISC_ENABLE, intel),
        (IA32_PAT, cpuid_bit(1, EDX, 16)),
        (IA32_MTRR_DEF_TYPE, cpuid_bit(1, EDX, 12)),
        (IA32_TSC_DEADLINE, cpuid_bit(1, ECX, 24)),
        (IA32_XSS, insn::cpuid(0, 0)[0] >= 0xd && insn::cpuid(0xd, 1)[0] >> 3 & 1 != 0),
        (IA32_EFER, true),
        (IA32_STAR, cpuid_bit(0x8000_0001, EDX, 11)),
        (IA32_LSTAR, cpuid_bit(0x8000_0001, EDX, 11)),
        (IA32_CSTAR, cpuid_bit(0x8000_0001, EDX, 11)),
        (IA32_FMASK, cpuid_bit(0x8000_0001, EDX, 11)),
        (IA32_FS_BASE, true),
        (IA32_GS_BASE, true),
        (IA32_KERNEL_GS_BASE, true),
        (IA32_TSC_AUX, cpuid_bit(0x8000_0001, EDX, 27) || cpuid_bit(7, ECX, 22)),
        (AMD_SYSCFG, amd),
        (AMD_HWCR, amd),
        (AMD_VM_CR, amd),
        (0x6a0, cpuid_bit(7, ECX, 7) || cpuid_bit(7, EDX, 20)),
        (0xe1, cpuid_bit(7, ECX, 5)),
    ];
    for (msr, there) in expected {
        t.eq(("exists", msr), get(msr).is_some(), there);
        if !there {
            let taken = set(msr, 0);
            t.holds(("write of an absent one", msr), !taken);
        }
    }
    for msr in [IA32_PRED_CMD, IA32_BIOS_UPDT_TRIG] {
        t.eq("write-only", get(msr), None);
    }
    for msr in [IA32_MTRRCAP, IA32_MCG_CAP, IA32_ARCH_CAPABILITIES, IA32_PLATFORM_ID] {
        if let Some(value) = get(msr) {
            refused(t, "read-only", msr, value);
            refused(t, "read-only", msr, !value);
        }
    }
}

/// Every bit alone: whether it is taken, and then read back.
fn bits(t: &mut Test) {
    let low = 0xffff_ffff;
    for (msr, writable) in [
        (IA32_STAR, u64::MAX),
        (IA32_FMASK, low),
        (IA32_TSC_AUX, low),
        (IA32_XSS, 0),
        (IA32_MTRR_DEF_TYPE, 0xc00),
        (AMD_SYSCFG, 0x1f << 18),
    ] {
        let Some(before) = get(msr) else { continue };
        for bit in 0..64 {
            // A type's bits are a matter of `memory_types`.
            if msr == IA32_MTRR_DEF_TYPE && bit < 8 {
                continue;
            }
            let value = before ^ 1 << bit;
            if writable >> bit & 1 != 0 {
                kept(t, "bit", msr, value);
            } else {
                refused(t, "reserved bit", msr, value);
            }
            insn::wrmsr(msr, before);
        }
    }
    if let Some(before) = get(IA32_SYSENTER_CS) {
        for value in [0, 8, 0xffff, 0x1234_5678] {
            kept(t, "SYSENTER_CS", IA32_SYSENTER_CS, value);
        }
        insn::wrmsr(IA32_SYSENTER_CS, before);
    }
}

fn addresses(t: &mut Test) {
    for msr in [
        IA32_SYSENTER_ESP,
        IA32_SYSENTER_EIP,
        IA32_LSTAR,
        IA32_CSTAR,
        IA32_FS_BASE,
        IA32_GS_BASE,
        IA32_KERNEL_GS_BASE,
    ] {
        let Some(before) = get(msr) else { continue };
        for value in CANONICAL {
            kept(t, "canonical", msr, value);
            for bad in NOT_CANONICAL {
                refused(t, "not canonical", msr, bad);
            }
        }
        insn::wrmsr(msr, before);
    }
}

fn extended_features(t: &mut Test) {
    let before = insn::rdmsr(IA32_EFER);
    t.eq("long mode", before & (efer::LME | efer::LMA), efer::LME | efer::LMA);
    refused(t, "LME while paging", IA32_EFER, before & !efer::LME);
    refused(t, "LME and LMA while paging", IA32_EFER, before & !(efer::LME | efer::LMA));
    if !amd() {
        // Writes to LMA are ignored (SDM 2.2.1).
        t.holds("LMA cleared", set(IA32_EFER, before & !efer::LMA));
        t.eq("LMA stays", get(IA32_EFER), Some(before));
    }
    let offered = [
        (0, cpuid_bit(0x8000_0001, EDX, 11)),
        (8, true),
        (10, true),
        (11, cpuid_bit(0x8000_0001, EDX, 20)),
        (12, cpuid_bit(0x8000_0001, ECX, 2)),
        (13, false),
        (14, cpuid_bit(0x8000_0001, EDX, 25) && amd()),
        (15, cpuid_bit(0x8000_0001, ECX, 17)),
        (21, cpuid_bit(0x8000_0021, 0, 8)),
    ];
    for bit in 0..64 {
        if bit == 8 || bit == 10 {
            continue;
        }
        if offered.contains(&(bit, true)) {
            kept(t, "an offered bit", IA32_EFER, before | 1 << bit);
            kept(t, "taken back", IA32_EFER, before & !(1 << bit));
        } else {
            refused(t, "a bit not offered", IA32_EFER, before | 1 << bit);
        }
        insn::wrmsr(IA32_EFER, before);
    }
    // Without SCE there is no SYSCALL.
    let s = Subject::user(code!("syscall"));
    insn::wrmsr(IA32_EFER, before & !efer::SCE);
    t.event("SYSCALL without SCE", &s.run(), Expect::fault(satori_guests::defs::x86::vector::UD));
    let s = Subject::kernel(code!("sysretq"));
    t.event("SYSRET without SCE", &s.run(), Expect::fault(satori_guests::defs::x86::vector::UD));
    insn::wrmsr(IA32_EFER, before);
}

fn misc_enable(t: &mut Test) {
    use satori_guests::defs::msr::misc_enable as bit;
    let Some(before) = get(IA32_MISC_ENABLE) else {
        t.holds("AMD has none", amd());
        return;
    };
    t.holds("fast strings", before & bit::FAST_STRINGS != 0);
    let nx = 1 << 11;
    let efer = insn::rdmsr(IA32_EFER);
    refused(t, "XD disabled in use", IA32_MISC_ENABLE, before | bit::XD_DISABLE);
    insn::wrmsr(IA32_EFER, efer & !nx);
    if cpuid_bit(0x8000_0001, EDX, 20) {
        kept(t, "XD disabled", IA32_MISC_ENABLE, before | bit::XD_DISABLE);
        t.holds("CPUID follows", !cpuid_bit(0x8000_0001, EDX, 20));
        refused(t, "NXE while XD is disabled", IA32_EFER, efer | nx);
        insn::wrmsr(IA32_MISC_ENABLE, before);
        t.holds("CPUID follows back", cpuid_bit(0x8000_0001, EDX, 20));
    } else {
        refused(t, "XD disabled where it is not", IA32_MISC_ENABLE, before | bit::XD_DISABLE);
    }
    insn::wrmsr(IA32_EFER, efer);
    let leaves = insn::cpuid(0, 0)[0];
    kept(t, "CPUID limited", IA32_MISC_ENABLE, before | bit::LIMIT_CPUID);
    t.holds("the last leaf", insn::cpuid(0, 0)[0] <= 3);
    insn::wrmsr(IA32_MISC_ENABLE, before);
    t.eq("and as before", insn::cpuid(0, 0)[0], leaves);
}

fn page_attributes(t: &mut Test) {
    let Some(before) = get(IA32_PAT) else {
        t.holds("no PAT", !cpuid_bit(1, EDX, 16));
        return;
    };
    for entry in 0..8 {
        for kind in 0..=255u64 {
            let value = before & !(0xff << (8 * entry)) | kind << (8 * entry);
            if matches!(kind, 0 | 1 | 4..=7) {
                kept(t, "type", IA32_PAT, value);
            } else {
                let taken = set(IA32_PAT, value);
                t.holds(("reserved type", entry, kind), !taken);
            }
        }
    }
    insn::wrmsr(IA32_PAT, before);
}

fn memory_types(t: &mut Test) {
    let Some(cap) = get(IA32_MTRRCAP) else {
        t.holds("no MTRRs", !cpuid_bit(1, EDX, 12));
        return;
    };
    let physical = insn::cpuid(0x8000_0008, 0)[0] & 0xff;
    let address = ((1u64 << physical) - 1) & !0xfff;
    let variable = (cap & 0xff) as u32;
    t.eq("one beyond the last", get(IA32_MTRR_PHYSBASE0 + 2 * variable), None);
    let known = |kind: u64| matches!(kind, 0 | 1 | 4 | 5 | 6);
    for number in [0, variable - 1] {
        let (low, high) = (IA32_MTRR_PHYSBASE0 + 2 * number, IA32_MTRR_PHYSBASE0 + 2 * number + 1);
        let before = (insn::rdmsr(low), insn::rdmsr(high));
        insn::wrmsr(high, 0);
        for kind in 0..=255 {
            if known(kind) {
                kept(t, "base's type", low, kind | 1 << 20);
            } else {
                refused(t, "base's type", low, kind | 1 << 20);
            }
        }
        for bit in 8..64 {
            let good = address >> bit & 1 != 0;
            if good { kept(t, "base", low, 1 << bit) } else { refused(t, "base", low, 1 << bit) }
        }
        for bit in 0..64 {
            let good = (address | 1 << 11) >> bit & 1 != 0;
            if good { kept(t, "mask", high, 1 << bit) } else { refused(t, "mask", high, 1 << bit) }
        }
        insn::wrmsr(low, before.0);
        insn::wrmsr(high, before.1);
    }
    for msr in [0x250, 0x258, 0x259, 0x268, 0x26b, 0x26f] {
        let before = insn::rdmsr(msr);
        for byte in 0..8 {
            for kind in 0..=255u64 {
                let value = before & !(0xff << (8 * byte)) | kind << (8 * byte);
                let taken = set(msr, value);
                t.eq(("fixed", msr, kind), taken, known(kind));
            }
        }
        kept(t, "fixed", msr, before);
    }
    for msr in [0x251, 0x257, 0x25a, 0x267, 0x270, 0x2fe] {
        t.eq("between them", get(msr), None);
    }
    let before = insn::rdmsr(IA32_MTRR_DEF_TYPE);
    for kind in 0..=255 {
        let taken = set(IA32_MTRR_DEF_TYPE, before & !0xff | kind);
        t.eq(("default type", kind), taken, known(kind));
    }
    insn::wrmsr(IA32_MTRR_DEF_TYPE, before);
}

fn machine_check(t: &mut Test) {
    let Some(cap) = get(IA32_MCG_CAP) else {
        t.holds("no machine check", !cpuid_bit(1, EDX, 14));
        return;
    };
    let banks = (cap & 0xff) as u32;
    kept(t, "status cleared", IA32_MCG_STATUS, 0);
    refused(t, "status set", IA32_MCG_STATUS, 1 << 60);
    for bank in 0..banks {
        let first = IA32_MC0_CTL + 4 * bank;
        kept(t, "CTL", first, u64::MAX);
        kept(t, "CTL", first, 0);
        for register in 1..4 {
            kept(t, "nothing happened", first + register, 0);
            refused(t, "only cleared", first + register, u64::MAX);
        }
    }
    t.eq("one beyond the last", get(IA32_MC0_CTL + 4 * banks), None);
}

fn microcode(t: &mut Test) {
    // As SDM 10.11.7.1 wants it read: write 0, CPUID, read.
    t.holds("cleared", set(IA32_BIOS_SIGN_ID, 0));
    insn::cpuid(1, 0);
    let revision = get(IA32_BIOS_SIGN_ID).unwrap_or_default();
    t.holds(("a revision", revision), revision != 0);
}

fn tsc() -> u64 {
    insn::rdtsc()
}

fn time_stamp_counter(t: &mut Test) {
    let near = |a: u64, b: u64| b.wrapping_sub(a) < 1 << 36;
    let first = tsc();
    let read = get(IA32_TSC).unwrap_or_default();
    t.holds("RDMSR of the TSC", near(first, read) && near(read, tsc()));
    let adjust = get(IA32_TSC_ADJUST);
    let big = 1 << 50;
    t.holds("set", set(IA32_TSC, big));
    t.holds("counts from there", near(big, tsc()));
    if let Some(adjust) = adjust {
        let moved = insn::rdmsr(IA32_TSC_ADJUST);
        t.holds(
            ("ADJUST moved as well", moved),
            near(adjust.wrapping_add(big).wrapping_sub(1 << 36), moved.wrapping_sub(1)),
        );
        kept(t, "ADJUST", IA32_TSC_ADJUST, moved.wrapping_add(big));
        t.holds("moves the TSC", near(2 * big, tsc()));
        kept(t, "back", IA32_TSC_ADJUST, adjust);
        t.holds("the TSC as well", near(first, tsc()));
    } else {
        insn::wrmsr(IA32_TSC, first);
    }
    if let Some(before) = get(IA32_TSC_AUX) {
        insn::wrmsr(IA32_TSC_AUX, 0x8765_4321);
        if cpuid_bit(0x8000_0001, EDX, 27) {
            for s in [Subject::kernel(code!("rdtscp")), Subject::user(code!("rdtscp"))] {
                let event =
                    s.with(reg::RCX, u64::MAX).with(reg::RAX, u64::MAX).with(reg::RDX, u64::MAX).run();
                t.event("RDTSCP", &event, Expect::done());
                let gpr = event.regs.gpr;
                t.eq("its ECX", gpr[reg::RCX], 0x8765_4321);
                t.holds("its time", near(gpr[reg::RDX] << 32 | gpr[reg::RAX], tsc()));
            }
        }
        if cpuid_bit(7, ECX, 22) {
            let event = Subject::user(code!("rdpid rax")).with(reg::RAX, u64::MAX).run();
            t.event("RDPID", &event, Expect::done());
            t.eq("its register", event.regs.gpr[reg::RAX], 0x8765_4321);
        }
        insn::wrmsr(IA32_TSC_AUX, before);
    }
    for (name, code) in [("RDTSC", code!("rdtsc")), ("RDTSCP", code!("rdtscp"))] {
        if name == "RDTSCP" && !cpuid_bit(0x8000_0001, EDX, 27) {
            continue;
        }
        let s = Subject::user(code).cr4(cr4::TSD, 0);
        t.event((name, "with TSD"), &s.run(), Expect::gp(0));
        let s = Subject::kernel(code).cr4(cr4::TSD, 0);
        t.event((name, "with TSD at level 0"), &s.run(), Expect::done());
    }
}

fn deadline(t: &mut Test) {
    let Some(before) = get(IA32_TSC_DEADLINE) else {
        t.holds("no deadline mode", !cpuid_bit(1, ECX, 24));
        return;
    };
    t.eq("not armed", before, 0);
    // Outside its mode writes are ignored (SDM 11.5.4.1).
    let far = tsc() + (1 << 50);
    t.holds("in one-shot mode", set(IA32_TSC_DEADLINE, far));
    t.eq("ignored", get(IA32_TSC_DEADLINE), Some(0));
    apic::write(regs::LVT_TIMER, regs::lvt::TSC_DEADLINE | 0x70);
    kept(t, "armed", IA32_TSC_DEADLINE, far);
    apic::write(regs::TIMER_INITIAL, 1000);
    t.eq("the initial count is not for it", apic::read(regs::TIMER_CURRENT), 0);
    apic::write(regs::LVT_TIMER, 0x70);
    t.eq("another mode disarms it", get(IA32_TSC_DEADLINE), Some(0));
    apic::write(regs::LVT_TIMER, regs::lvt::MASKED);
}

fn bases(t: &mut Test) {
    let (gs, kernel) = (insn::rdmsr(IA32_GS_BASE), insn::rdmsr(IA32_KERNEL_GS_BASE));
    insn::wrmsr(IA32_GS_BASE, 0x1234_5678_9abc);
    insn::wrmsr(IA32_KERNEL_GS_BASE, 0xffff_8000_0000_0001);
    t.event("SWAPGS", &Subject::kernel(code!("swapgs")).run(), Expect::done());
    t.eq("GS", insn::rdmsr(IA32_GS_BASE), 0xffff_8000_0000_0001);
    t.eq("KERNEL_GS", insn::rdmsr(IA32_KERNEL_GS_BASE), 0x1234_5678_9abc);
    t.event("SWAPGS of user mode", &Subject::user(code!("swapgs")).run(), Expect::gp(0));
    insn::wrmsr(IA32_KERNEL_GS_BASE, kernel);
    // A load of the selector sets the base's low half and clears the high one; the other stays.
    let s = Subject::kernel(code!("mov gs, eax")).with(reg::RAX, selector::USER_DATA.into());
    t.event("MOV to GS", &s.run(), Expect::done());
    t.eq("its base", insn::rdmsr(IA32_GS_BASE), 0);
    insn::wrmsr(IA32_FS_BASE, 0x7fff_0000_1000);
    t.event("a null FS", &Subject::kernel(code!("xor eax, eax", "mov fs, eax")).run(), Expect::done());
    let base = insn::rdmsr(IA32_FS_BASE);
    // Intel clears the base, AMD leaves it (APM volume 2, 4.5.3).
    t.holds(("the base of a null FS", base), base == 0 || amd() && base == 0x7fff_0000_1000);
    insn::wrmsr(IA32_FS_BASE, 0);
    insn::wrmsr(IA32_GS_BASE, gs);
    // Accesses use it at once.
    static WORD: u64 = 0x1122_3344_5566_7788;
    insn::wrmsr(IA32_FS_BASE, &raw const WORD as u64 - 0x40);
    let event = Subject::kernel(code!("mov rax, fs:[0x40]")).run();
    t.eq("an access through FS", event.regs.gpr[reg::RAX], WORD);
    insn::wrmsr(IA32_FS_BASE, 0);
}

fn apic_base(t: &mut Test) {
    let on = insn::rdmsr(IA32_APIC_BASE);
    t.eq("as firmware left it", on, regs::DEFAULT_BASE | base::EN | base::BSP);
    let physical = insn::cpuid(0x8000_0008, 0)[0] & 0xff;
    let address = ((1u64 << physical) - 1) & !0xfff;
    for bit in 0..64 {
        let known = address | base::BSP | base::EXTD | base::EN;
        if known >> bit & 1 == 0 {
            refused(t, "a reserved bit", IA32_APIC_BASE, on | 1 << bit);
        }
    }
    refused(t, "x2APIC without enable", IA32_APIC_BASE, on & !base::EN | base::EXTD);
    // Elsewhere: the page moves.
    const ELSEWHERE: u64 = 0xfed8_0000;
    let version = apic::read(regs::VERSION);
    kept(t, "moved", IA32_APIC_BASE, on & !address | ELSEWHERE);
    // SAFETY: a device's register.
    let there = unsafe { ((ELSEWHERE + u64::from(regs::VERSION)) as *const u32).read_volatile() };
    t.eq("it is there", there, version);
    t.holds("and not here", apic::read(regs::VERSION) != version);
    insn::wrmsr(IA32_APIC_BASE, on);
    t.eq("and here again", apic::read(regs::VERSION), version);
    let off = on & !base::EN;
    if has_x2apic() {
        let extd = on | base::EXTD;
        kept(t, "xAPIC to x2APIC", IA32_APIC_BASE, extd);
        refused(t, "x2APIC to xAPIC", IA32_APIC_BASE, on);
        refused(t, "x2APIC to nowhere", IA32_APIC_BASE, off | base::EXTD);
        t.holds("no page in x2APIC mode", apic::read(regs::VERSION) != version);
        kept(t, "x2APIC to disabled", IA32_APIC_BASE, off);
        t.holds("CPUID's APIC is off", !cpuid_bit(1, EDX, 9));
        refused(t, "disabled to x2APIC", IA32_APIC_BASE, extd);
        kept(t, "disabled to xAPIC", IA32_APIC_BASE, on);
    } else {
        refused(t, "x2APIC is not offered", IA32_APIC_BASE, on | base::EXTD);
    }
    t.holds("CPUID's APIC is on", cpuid_bit(1, EDX, 9));
    kept(t, "xAPIC to disabled", IA32_APIC_BASE, off);
    t.holds("CPUID's APIC is off", !cpuid_bit(1, EDX, 9));
    t.holds("no page while disabled", apic::read(regs::VERSION) != version);
    kept(t, "disabled again", IA32_APIC_BASE, off);
    kept(t, "enabled", IA32_APIC_BASE, on);
    t.eq("it is off by software", apic::read(regs::SVR) & regs::svr::ENABLE, 0);
    apic::enable();
    // The bit of the bootstrap processor is the processor's.
    let event = set(IA32_APIC_BASE, on & !base::BSP);
    t.holds("still the bootstrap processor", !event || insn::rdmsr(IA32_APIC_BASE) & base::EN != 0);
    insn::wrmsr(IA32_APIC_BASE, on);
}

/// What can be done with each register in x2APIC mode (SDM table 11-6).
fn x2apic(t: &mut Test) {
    for msr in X2APIC_BASE..=X2APIC_LAST {
        t.eq("in xAPIC mode", get(msr), None);
        let taken = set(msr, 0);
        t.holds(("written in xAPIC mode", msr), !taken);
    }
    if !has_x2apic() {
        return;
    }
    let entries = apic::read(regs::VERSION) >> 16 & 0xff;
    apic::to_x2apic();
    for number in 0..0x100 {
        let msr = X2APIC_BASE + number;
        let readable = matches!(number, 2 | 3 | 8 | 0xa | 0xd | 0xf | 0x10..=0x28 | 0x30 | 0x32..=0x39 | 0x3e)
            || number == 0x2f && entries >= 6;
        t.eq(("readable", msr), get(msr).is_some(), readable);
        let writable = matches!(number, 8 | 0xb | 0xf | 0x28 | 0x30 | 0x32..=0x38 | 0x3e)
            || number == 0x2f && entries >= 6;
        if number == 0x30 || number == 0x3f {
            continue;
        }
        // A value that stays what it is; EOI and ESR take only zero.
        let value = if matches!(number, 0xb | 0x28) { 0 } else { get(msr).unwrap_or(0) };
        let taken = set(msr, value);
        t.eq(("writable", msr), taken, writable);
        let taken = set(msr, value | 1 << 32);
        t.holds(("bits 63:32 are reserved", msr), !taken);
    }
    for bit in [0, 8, 31, 32, 63] {
        let taken = set(apic::msr(regs::SELF_IPI), 1 << bit);
        t.eq(("SELF IPI", bit), taken, bit == 0);
    }
    for bit in [13, 16, 17, 20, 31] {
        let taken = set(apic::msr(regs::ICR), 1 << bit | u64::from(icr::ASSERT) | 0x70);
        t.holds(("a reserved bit of ICR", bit), !taken);
    }
    apic::to_xapic();
}

fn hyper_v(t: &mut Test) {
    let there = insn::cpuid(1, 0)[ECX] >> 31 != 0 && {
        let [max, ..] = insn::cpuid(leaf::VENDOR, 0);
        max >= leaf::FEATURES && insn::cpuid(leaf::INTERFACE, 0)[0] == 0x3123_7648
    };
    if !there {
        for msr in synthetic::FIRST..=synthetic::LAST {
            t.eq("no interface", get(msr), None);
            let taken = set(msr, 0);
            t.holds(("write without an interface", msr), !taken);
        }
        return;
    }
    let [privileges, ..] = insn::cpuid(leaf::FEATURES, 0);
    // TLFS 2.4.3: which privilege each register needs.
    for (msr, bit) in [
        (synthetic::GUEST_OS_ID, 5),
        (synthetic::HYPERCALL, 5),
        (synthetic::VP_INDEX, 6),
        (synthetic::RESET, 7),
        (synthetic::TIME_REF_COUNT, 1),
        (synthetic::REFERENCE_TSC, 9),
        (synthetic::TSC_FREQUENCY, 11),
        (synthetic::APIC_FREQUENCY, 11),
        (synthetic::TPR, 4),
        (synthetic::VP_ASSIST_PAGE, 4),
        (0x4000_0080, 2),
        (0x4000_00b0, 3),
    ] {
        t.eq(("the privilege", msr), get(msr).is_some(), privileges >> bit & 1 != 0);
    }
    for msr in [synthetic::VP_INDEX, synthetic::TIME_REF_COUNT, synthetic::TSC_FREQUENCY] {
        if get(msr).is_some() {
            let taken = set(msr, 0);
            t.holds(("read-only", msr), !taken);
        }
    }
    t.eq("VP index", get(synthetic::VP_INDEX), Some(0));
    let times = (get(synthetic::TIME_REF_COUNT), get(synthetic::TIME_REF_COUNT));
    t.holds(("time goes on", times), times.0 <= times.1);
    // Without an identity there is no hypercall page.
    insn::wrmsr(synthetic::GUEST_OS_ID, 0);
    insn::wrmsr(synthetic::HYPERCALL, 0x30_0001);
    t.eq("no identity", get(synthetic::HYPERCALL).unwrap_or(1) & 1, 0);
    for msr in [0x4000_0004, 0x4000_0011, 0x4000_0060, 0x4000_01fe] {
        t.eq("reserved", get(msr), None);
    }
}

/// Registers that each processor has for itself, with a value that all take.
const OWN: [(u32, u64); 9] = [
    (IA32_STAR, 0x1234_5678),
    (IA32_LSTAR, 0x1111_0000),
    (IA32_CSTAR, 0x2222_0000),
    (IA32_FMASK, 0x4700),
    (IA32_FS_BASE, 0x3333_0000),
    (IA32_KERNEL_GS_BASE, 0x4444_0000),
    (IA32_SYSENTER_CS, 0x8),
    (IA32_SYSENTER_ESP, 0x5555_0000),
    (IA32_SYSENTER_EIP, 0x6666_0000),
];

static MEETING: Barrier = Barrier::new();
static SAME: [AtomicBool; smp::MAX_CPUS] = [const { AtomicBool::new(false) }; smp::MAX_CPUS];

fn own_registers(t: &mut Test) {
    fn work(number: usize) {
        let own = |(msr, value): (u32, u64)| (msr, value + 8 * number as u64);
        let before = OWN.map(|(msr, _)| insn::rdmsr(msr));
        let pat = insn::rdmsr(IA32_PAT);
        MEETING.meet(smp::count());
        for (msr, value) in OWN.map(own) {
            insn::wrmsr(msr, value);
        }
        insn::wrmsr(IA32_PAT, pat & !7 | [0, 1, 4, 5, 6, 7, 0, 1][number]);
        MEETING.meet(smp::count());
        let same = OWN.map(own).iter().all(|&(msr, value)| insn::rdmsr(msr) == value);
        let same = same && insn::rdmsr(IA32_PAT) & 7 == [0, 1, 4, 5, 6, 7, 0, 1][number];
        SAME[number].store(same, Ordering::Release);
        MEETING.meet(smp::count());
        for ((msr, _), value) in OWN.into_iter().zip(before) {
            insn::wrmsr(msr, value);
        }
        insn::wrmsr(IA32_PAT, pat);
    }
    smp::on_all(smp::count(), work);
    for (number, same) in SAME.iter().enumerate().take(smp::count()) {
        t.holds(("its own", number), same.load(Ordering::Acquire));
    }
}

/// Where the processor begins again, and what it leaves there.
const AGAIN: u64 = 0x9000;
const FOUND: u64 = 0xa000;
const MSRS: u64 = 0xa800;
const VALUES: u64 = 0xac00;
const CR4: u64 = 0xa7e0;
const HAS: u64 = 0xa7e8;
const READY: u64 = 0xa7f0;
const FXSAVED: u64 = 0xb000;

global_asm!(
    ".pushsection .rodata.again, \"a\"",
    ".code16",
    ".globl again_begin, again_end",
    "again_begin:",
    ".byte 0x66, 0x89, 0x3e, 0x00, 0xa0", // mov [0xa000], edi
    "mov di, 0xa000",
    "mov [di + 8], eax",
    "mov [di + 16], ecx",
    "mov [di + 24], edx",
    "mov [di + 32], ebx",
    "mov [di + 40], esp",
    "mov [di + 48], ebp",
    "mov [di + 56], esi",
    "mov esp, 0x9f00",
    "pushfd",
    "pop eax",
    "mov [di + 64], eax",
    "mov eax, cr0",
    "mov [di + 72], eax",
    "mov eax, cr2",
    "mov [di + 80], eax",
    "mov eax, cr3",
    "mov [di + 88], eax",
    "mov eax, cr4",
    "mov [di + 96], eax",
    "mov eax, dr0",
    "mov [di + 104], eax",
    "mov eax, dr1",
    "mov [di + 112], eax",
    "mov eax, dr2",
    "mov [di + 120], eax",
    "mov eax, dr3",
    "mov [di + 128], eax",
    "mov eax, dr6",
    "mov [di + 136], eax",
    "mov eax, dr7",
    "mov [di + 144], eax",
    // The MSRs of the list.
    "mov si, 0xa800",
    "mov bx, 0xac00",
    "2:",
    "mov ecx, [si]",
    "test ecx, ecx",
    "jz 2f",
    "rdmsr",
    "mov [bx], eax",
    "mov [bx + 4], edx",
    "add si, 4",
    "add bx, 8",
    "jmp 2b",
    "2:",
    "mov si, 0xa7e0",
    "mov eax, [si]",
    "mov cr4, eax",
    "mov bx, 0xb000",
    "fxsave [bx]",
    "test byte ptr [si + 8], 1",
    "jz 2f",
    "xor ecx, ecx",
    "xgetbv",
    "mov [di + 152], eax",
    "2:",
    "test byte ptr [si + 8], 2",
    "jz 2f",
    "xor ecx, ecx",
    ".byte 0x0f, 0x01, 0xee", // rdpkru
    "mov [di + 160], eax",
    "2:",
    "mov byte ptr [si + 16], 1",
    "2: cli",
    "hlt",
    "jmp 2b",
    "again_end:",
    ".code64",
    ".popsection",
);

unsafe extern "C" {
    static again_begin: u8;
    static again_end: u8;
}

static STARTED: AtomicBool = AtomicBool::new(false);

fn peek(at: u64) -> u64 {
    // SAFETY: RAM below 1 MiB that this case alone uses.
    unsafe { (at as *const u64).read_volatile() }
}

fn poke(at: u64, value: u64) {
    // SAFETY: as in `peek`.
    unsafe { (at as *mut u64).write_volatile(value) };
}

/// Registers that INIT leaves, and a value for each.
const STAY: [(u32, u64); 9] = [
    (IA32_STAR, 0x1234_5678_9abc_def0),
    (IA32_LSTAR, 0xffff_8000_1111_0000),
    (IA32_CSTAR, 0x2222_0000),
    (IA32_FMASK, 0x4700),
    (IA32_KERNEL_GS_BASE, 0x4444_0000),
    (IA32_SYSENTER_CS, 0x8),
    (IA32_SYSENTER_ESP, 0x5555_0000),
    (IA32_SYSENTER_EIP, 0x6666_0000),
    (IA32_PAT, 0x0007_0406_0007_0406),
];

fn xsave() -> bool {
    cpuid_bit(1, ECX, 26)
}

fn keys() -> bool {
    cpuid_bit(7, ECX, 3)
}

/// The processor that will meet INIT: everything has a value of its own.
fn fill(_: usize) {
    for (msr, value) in STAY {
        insn::wrmsr(msr, value);
    }
    insn::wrmsr(IA32_FS_BASE, 0x1000);
    insn::wrmsr(IA32_GS_BASE, 0x2000);
    insn::set_dr0(0x1000);
    insn::set_dr1(0x2000);
    insn::set_dr2(0x3000);
    insn::set_dr3(0x4000);
    insn::set_dr6(0xffff_4ff3);
    insn::set_dr7(0x700);
    insn::set_cr2(0x1234);
    // SAFETY: nothing runs on this processor after INIT that would miss these.
    unsafe {
        core::arch::asm!("fninit", "fld1", "fldpi", "movq xmm5, {}", "ldmxcsr [{}]", in(reg) 0x5555_6666_u64,
            in(reg) &0x9fc0_u32);
        if xsave() {
            insn::set_cr4(insn::cr4() | cr4::OSXSAVE);
            core::arch::asm!("xsetbv", in("ecx") 0, in("eax") 3, in("edx") 0);
        }
        if keys() {
            insn::set_cr4(insn::cr4() | cr4::PKE);
            core::arch::asm!(".byte 0x0f, 0x01, 0xef", in("ecx") 0, in("eax") 0x0c0f_feec, in("edx") 0);
        }
    }
    STARTED.store(true, Ordering::Release);
    loop {
        insn::pause();
    }
}

/// SDM table 10-1, the column INIT. The last case, since the processor does not come back.
fn init(t: &mut Test) {
    if smp::count() < 2 {
        t.holds("one processor only", true);
        return;
    }
    let list = [
        IA32_STAR,
        IA32_LSTAR,
        IA32_CSTAR,
        IA32_FMASK,
        IA32_KERNEL_GS_BASE,
        IA32_SYSENTER_CS,
        IA32_SYSENTER_ESP,
        IA32_SYSENTER_EIP,
        IA32_PAT,
        IA32_EFER,
        IA32_FS_BASE,
        IA32_GS_BASE,
        IA32_APIC_BASE,
    ];
    let begin = &raw const again_begin;
    let length = &raw const again_end as usize - begin as usize;
    // SAFETY: the pages are RAM that nobody uses.
    unsafe {
        ((AGAIN) as *mut u8).copy_from(begin, length);
        for (at, msr) in list.into_iter().chain([0]).enumerate() {
            ((MSRS + 4 * at as u64) as *mut u32).write_volatile(msr);
        }
    }
    let mut set = cr4::OSFXSR;
    let mut has = 0;
    if xsave() {
        set |= cr4::OSXSAVE;
        has |= 1;
    }
    if keys() {
        set |= cr4::PKE;
        has |= 2;
    }
    poke(CR4, set);
    poke(HAS, has);
    poke(READY, 0);
    smp::begin(1, fill);
    while !STARTED.load(Ordering::Acquire) {
        insn::pause();
    }
    apic::send(icr::OTHERS | icr::ASSERT | 5 << 8, 0);
    smp::spin(1_000_000);
    apic::send(icr::OTHERS | icr::ASSERT | 6 << 8 | (AGAIN >> 12) as u32, 0);
    while peek(READY) & 1 == 0 {
        insn::pause();
    }
    let found = |slot: u64| peek(FOUND + 8 * slot) & 0xffff_ffff;
    for (slot, name) in [(0, "EDI"), (1, "EAX"), (2, "ECX"), (4, "EBX"), (5, "ESP"), (6, "EBP"), (7, "ESI")] {
        t.eq(name, found(slot), 0);
    }
    t.eq("EDX is the signature", found(3), u64::from(insn::cpuid(1, 0)[0]));
    t.eq("EFLAGS", found(8), 2);
    // CD and NW stay as they were.
    t.eq("CR0", found(9), cr0::ET | insn::cr0() & (cr0::CD | cr0::NW));
    t.eq("CR2", found(10), 0);
    t.eq("CR3", found(11), 0);
    t.eq("CR4", found(12), 0);
    t.eq("DR0 to DR3", [13, 14, 15, 16].map(found), [0; 4]);
    t.eq("DR6", found(17), 0xffff_0ff0);
    t.eq("DR7", found(18), 0x400);
    if xsave() {
        t.eq("XCR0 stays", found(19), 3);
    }
    if keys() {
        t.eq("PKRU stays", found(20), 0x0c0f_feec);
    }
    for (at, (msr, value)) in STAY.into_iter().enumerate() {
        t.eq(("stays", msr), peek(VALUES + 8 * at as u64), value);
    }
    let value = |at: u64| peek(VALUES + 8 * (STAY.len() as u64 + at));
    t.eq("EFER", value(0), 0);
    t.eq("FS's base", value(1), 0);
    t.eq("GS's base", value(2), 0);
    t.eq("IA32_APIC_BASE", value(3), regs::DEFAULT_BASE | base::EN);
    t.eq("x87 control, status and tags", peek(FXSAVED) & 0xff_ffff_ffff, 0xc0_3000_037f);
    t.eq("MXCSR stays", peek(FXSAVED + 24) & 0xffff_ffff, 0x9fc0);
    t.eq("XMM5 stays", peek(FXSAVED + 160 + 5 * 16), 0x5555_6666);
}
