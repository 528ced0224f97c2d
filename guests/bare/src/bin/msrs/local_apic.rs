//! The local APIC's registers as MSRs, and its modes; the Hyper-V interface's.

use satori_guests::defs::apic::{self as regs, base, icr};
use satori_guests::defs::hyperv::{leaf, msr as synthetic};
use satori_guests::defs::msr::*;
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::{Test, apic, insn};

use crate::{ECX, EDX, cpuid_bit, has_x2apic};

pub fn apic_base(t: &mut Test) {
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
pub fn x2apic(t: &mut Test) {
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

pub fn hyper_v(t: &mut Test) {
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
