//! Model-specific registers: which exist, what reads give, which bits writes take, what INIT leaves.

#![no_std]
#![no_main]

mod init;
mod local_apic;

use core::sync::atomic::{AtomicBool, Ordering};

use satori_guests::cpu::selector;
use satori_guests::defs::apic::{self as regs};
use satori_guests::defs::msr::*;
use satori_guests::defs::x86::{cr4, efer};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::smp::{self, Barrier};
use satori_guests::subject::reg;
use satori_guests::{Expect, Subject, Test, apic, code, guest, insn};

use crate::init::init;
use crate::local_apic::{apic_base, hyper_v, x2apic};

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
    // Who uses NX goes on with it, as with KVM.
    if efer & nx != 0 {
        kept(t, "XD disabled in use", IA32_MISC_ENABLE, before | bit::XD_DISABLE);
        kept(t, "NXE stays in use", IA32_EFER, efer);
        insn::wrmsr(IA32_MISC_ENABLE, before);
    }
    insn::wrmsr(IA32_EFER, efer & !nx);
    if cpuid_bit(0x8000_0001, EDX, 20) {
        kept(t, "XD disabled", IA32_MISC_ENABLE, before | bit::XD_DISABLE);
        t.holds("CPUID follows", !cpuid_bit(0x8000_0001, EDX, 20));
        refused(t, "NXE while XD is disabled", IA32_EFER, efer | nx);
        insn::wrmsr(IA32_MISC_ENABLE, before);
        t.holds("CPUID follows back", cpuid_bit(0x8000_0001, EDX, 20));
    } else {
        kept(t, "XD disabled where it is not", IA32_MISC_ENABLE, before | bit::XD_DISABLE);
        insn::wrmsr(IA32_MISC_ENABLE, before);
    }
    insn::wrmsr(IA32_EFER, efer);
    // Thermal monitor, EIST and MONITOR are not there, and their bits are kept as KVM keeps them.
    for number in [1, 3, 16, 18, 20, 38] {
        kept(t, "a bit without effect", IA32_MISC_ENABLE, before ^ 1 << number);
    }
    insn::wrmsr(IA32_MISC_ENABLE, before);
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
