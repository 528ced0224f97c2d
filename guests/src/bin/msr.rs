//! Model-specific registers: which there are, what each takes, reads back and refuses.

#![no_std]
#![no_main]

use satori_guests::defs::msr::*;
use satori_guests::defs::x86::efer;
use satori_guests::subject::reg;
use satori_guests::{Event, Expect, Subject, Test, code, guest, insn};

guest!("msr", values, absent, time_stamp, extended_feature_enable, bases, operands);

fn read(index: u32) -> Event {
    Subject::kernel(code!("rdmsr")).with(reg::RCX, index.into()).run()
}

fn write(index: u32, value: u64) -> Event {
    let s = Subject::kernel(code!("wrmsr")).with(reg::RCX, index.into());
    s.with(reg::RAX, value & 0xffff_ffff).with(reg::RDX, value >> 32).run()
}

/// What a read event found.
fn value(event: &Event) -> u64 {
    event.regs.gpr[reg::RDX] << 32 | event.regs.gpr[reg::RAX]
}

const HOLE: u64 = 1 << 47;
const HIGH: u64 = 0xffff_8000_0000_0000;

fn values(t: &mut Test) {
    let width = insn::cpuid(0x8000_0008, 0)[0] & 0xff;
    let beyond = 1u64 << width;
    let cases: &[(u32, &[u64], &[u64])] = &[
        // Register, values that are taken and read back, values that are #GP.
        (
            IA32_PAT,
            &[0, 0x0007_0406_0007_0406, 0x0606_0606_0606_0606, 0x0105_0105_0405_0607],
            &[2, 3, 0x0800, 8 << 56],
        ),
        (IA32_MTRR_PHYSBASE0, &[0, 6, 0x1000_0001], &[2, 3, 7, 0x100, 0x800, beyond]),
        (IA32_MTRR_PHYSBASE0 + 1, &[0, 0x800, 0xf000_0800], &[1, 0x400, beyond]),
        (IA32_MTRR_FIX64K_00000, &[0, 0x0606_0606_0606_0606, 0x0001_0405_0600_0104], &[2, 3 << 8, 7 << 56]),
        (IA32_MTRR_FIX4K_F8000, &[0, 0x0505_0505_0505_0505], &[0x0303, 8]),
        (IA32_MTRR_DEF_TYPE, &[0x806, 0xc06, 0xc00, 0x801], &[2, 7, 0x100, 0x1000, 1 << 32]),
        (IA32_SYSENTER_CS, &[0, 8, 0xffff], &[]),
        (IA32_SYSENTER_ESP, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1]),
        (IA32_SYSENTER_EIP, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1]),
        (IA32_STAR, &[0, u64::MAX, 0x0010_0008_0000_0000], &[]),
        (IA32_LSTAR, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1, 1 << 63]),
        (IA32_CSTAR, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1]),
        (IA32_FMASK, &[0, 0xffff_ffff, 0x4_7700], &[1 << 32]),
        (IA32_FS_BASE, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1]),
        (IA32_GS_BASE, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1]),
        (IA32_KERNEL_GS_BASE, &[0, HIGH, HOLE - 1], &[HOLE, HIGH - 1]),
    ];
    for &(index, taken, refused) in cases {
        let old = read(index);
        t.event((index, "read"), &old, Expect::done());
        for &one in taken {
            t.event((index, "write", one), &write(index, one), Expect::done());
            t.eq((index, "reads back", one), value(&read(index)), one);
        }
        let before = value(&read(index));
        for &one in refused {
            t.event((index, "refuses", one), &write(index, one), Expect::gp(0));
            t.eq((index, "unchanged by", one), value(&read(index)), before);
        }
        write(index, value(&old));
    }
    if insn::cpuid(0x8000_0001, 0)[3] >> 27 & 1 != 0 {
        t.event("TSC_AUX", &write(IA32_TSC_AUX, 0x1234_5678), Expect::done());
        let event = Subject::user(code!("rdtscp")).run();
        t.eq("RDTSCP's ECX", event.regs.gpr[reg::RCX], 0x1234_5678);
        write(IA32_TSC_AUX, 0);
    }
    // Read only.
    t.event("IA32_MTRRCAP", &write(IA32_MTRRCAP, 0), Expect::gp(0));
    let variable = value(&read(IA32_MTRRCAP)) & 0xff;
    for n in 0..variable as u32 {
        t.event(("a variable range", n), &read(IA32_MTRR_PHYSBASE0 + 2 * n), Expect::done());
    }
}

fn absent(t: &mut Test) {
    for index in [
        0x0b,
        0xffff,
        0x1234_5678,
        0x3fff_ffff,
        0x8000_0000,
        0xbfff_ffff,
        0xc000_0000,
        0xc000_0085,
        0xffff_ffff,
    ] {
        t.event((index, "read"), &read(index), Expect::gp(0));
        t.event((index, "write"), &write(index, 0), Expect::gp(0));
    }
    // Without the interface on the command line there is no MSR of it.
    for index in [0x4000_0000, 0x4000_0020, 0x4000_0021, 0x4b56_4d00] {
        t.event((index, "read"), &read(index), Expect::gp(0));
    }
}

fn time_stamp(t: &mut Test) {
    let first = insn::rdtsc();
    let second = value(&read(IA32_TSC));
    let third = insn::rdtsc();
    t.holds("RDMSR and RDTSC agree", first < second && second < third);
    t.event("written", &write(IA32_TSC, 1 << 50), Expect::done());
    let now = insn::rdtsc();
    t.holds(("goes on from there", now), (1 << 50..1 << 51).contains(&now));
    if insn::cpuid(7, 0)[1] >> 1 & 1 != 0 {
        let adjust = value(&read(IA32_TSC_ADJUST));
        t.holds("the write shows in TSC_ADJUST", adjust != 0);
        let before = insn::rdtsc();
        write(IA32_TSC_ADJUST, adjust.wrapping_add(1 << 45));
        let after = insn::rdtsc();
        t.holds("TSC_ADJUST moves the counter", after.wrapping_sub(before) >= 1 << 45);
        write(IA32_TSC_ADJUST, adjust);
    }
    t.holds("never back", insn::rdtsc() < insn::rdtsc());
}

fn extended_feature_enable(t: &mut Test) {
    let now = value(&read(IA32_EFER));
    t.eq("LME and LMA", now & (efer::LME | efer::LMA), efer::LME | efer::LMA);
    t.event("LME cannot change under paging", &write(IA32_EFER, now & !efer::LME), Expect::gp(0));
    t.event("reserved bit 1", &write(IA32_EFER, now | 2), Expect::gp(0));
    t.event("reserved bit 63", &write(IA32_EFER, now | 1 << 63), Expect::gp(0));
    t.eq("unchanged", value(&read(IA32_EFER)), now);
    t.event("SCE off", &write(IA32_EFER, now & !efer::SCE), Expect::done());
    t.eq("SCE is off", value(&read(IA32_EFER)), now & !efer::SCE);
    write(IA32_EFER, now);
}

fn bases(t: &mut Test) {
    let place = 0x5566_7788_99aa_bbccu64;
    for (index, code) in [(IA32_FS_BASE, code!("mov rax, fs:[8]")), (IA32_GS_BASE, code!("mov rax, gs:[8]"))]
    {
        insn::wrmsr(index, &raw const place as u64 - 8);
        t.eq((index, "is used"), Subject::kernel(code).run().regs.gpr[reg::RAX], place);
        insn::wrmsr(index, 0);
    }
    insn::wrmsr(IA32_KERNEL_GS_BASE, 0x1234);
    let event = Subject::kernel(code!("swapgs", "mov ecx, 0xc0000101", "rdmsr" => "swapgs")).run();
    t.eq("SWAPGS", event.regs.gpr[reg::RAX], 0x1234);
    t.eq("and back", insn::rdmsr(IA32_GS_BASE), 0);
    // A null selector leaves the base on AMD, and clears it on Intel; a real one loads it.
    insn::wrmsr(IA32_FS_BASE, HIGH);
    Subject::kernel(code!("mov eax, 0x10", "mov fs, eax")).run();
    t.eq("a selector's base", insn::rdmsr(IA32_FS_BASE), 0);
}

fn operands(t: &mut Test) {
    // Only ECX counts; the high halves of RAX and RDX are cleared by a read.
    let s = Subject::kernel(code!("rdmsr")).with(reg::RCX, 0xdead_beef_0000_0000 | u64::from(IA32_PAT));
    let event = s.with(reg::RAX, u64::MAX).with(reg::RDX, u64::MAX).run();
    t.event("the high half of RCX", &event, Expect::done());
    t.eq("RAX and RDX", (event.regs.gpr[reg::RAX] >> 32, event.regs.gpr[reg::RDX] >> 32), (0, 0));
    t.event("at level 3", &Subject::user(code!("rdmsr")).run(), Expect::gp(0));
    t.event("at level 3, absent", &Subject::user(code!("wrmsr")).with(reg::RCX, 0xb).run(), Expect::gp(0));
}
