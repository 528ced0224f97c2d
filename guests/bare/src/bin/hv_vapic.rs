//! The APIC's registers as MSRs, and the assist page in which the host says that an EOI is not required.

#![no_std]
#![no_main]

use satori_guests::apic::{self, bit};
use satori_guests::defs::apic::{self as regs, IRR, ISR, icr};
use satori_guests::defs::hyperv::{PAGE_ENABLE, msr};
use satori_guests::harness::option;
use satori_guests::hyperv::bit::APIC_ACCESS;
use satori_guests::hyperv::{interrupt_within, peek32};
use satori_guests::msr::{get, refused, set};
use satori_guests::{Test, guest, insn, paging};

guest!("hv_vapic", eoi, task_priority, command, x2apic, assist, assist_with_others, hostile_assist);

const LONG: u64 = 200_000;

fn skipped(t: &mut Test) {
    for register in [msr::EOI, msr::ICR, msr::TPR, msr::VP_ASSIST_PAGE] {
        refused(t, "not offered", register, 0);
    }
}

fn eoi(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return skipped(t);
    }
    for value in [0, 1, 0xffff_ffff] {
        apic::send_self(0x51);
        apic::send_self(0x51);
        t.eq("comes", interrupt_within(LONG), Some(0x51));
        apic::send_self(0x51);
        t.eq("waits behind itself", interrupt_within(LONG), None);
        t.holds(("ended", value), set(msr::EOI, value));
        t.eq("comes again", interrupt_within(LONG), Some(0x51));
        insn::wrmsr(msr::EOI, value);
        t.holds("none in service", !bit(ISR, 0x51));
    }
    t.holds("one too many does nothing", set(msr::EOI, 0));
    t.eq("write-only", get(msr::EOI), None);
    t.holds("reserved", !set(msr::EOI, 1 << 32));
}

fn task_priority(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return skipped(t);
    }
    for value in [0, 0x10, 0x4f, 0xff] {
        insn::wrmsr(msr::TPR, value);
        t.eq(("TPR", value), u64::from(apic::read(regs::TPR)), value);
        t.eq(("CR8", value), insn::cr8(), value >> 4);
        t.eq(("reads", value), get(msr::TPR), Some(value));
        let holds = value >> 4 >= 6;
        apic::send_self(0x61);
        t.eq(("held back", value), interrupt_within(LONG).is_none(), holds);
        insn::set_cr8(0);
        t.eq("CR8 is the same", get(msr::TPR), Some(0));
        if holds {
            t.eq(("comes then", value), interrupt_within(LONG), Some(0x61));
        }
        insn::wrmsr(msr::EOI, 0);
    }
    t.holds("reserved", !set(msr::TPR, 1 << 32));
    insn::wrmsr(msr::TPR, 0);
}

fn command(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return skipped(t);
    }
    let own = u64::from(apic::read(regs::ID)) << 32;
    for low in [u64::from(icr::SELF | icr::ASSERT) | 0x71, own | u64::from(icr::ASSERT) | 0x71] {
        insn::wrmsr(msr::ICR, low);
        t.eq(("comes", low), interrupt_within(LONG), Some(0x71));
        insn::wrmsr(msr::EOI, 0);
        let read = get(msr::ICR).unwrap_or(0);
        t.eq(("reads back", low), read & 0xffff_ffff, low & 0xffff_ffff);
    }
}

fn x2apic(t: &mut Test) {
    if !APIC_ACCESS.offered() || insn::cpuid(1, 0)[2] >> 21 & 1 == 0 {
        return t.eq("the register", get(msr::TPR).is_some(), APIC_ACCESS.offered());
    }
    apic::to_x2apic();
    let own = insn::rdmsr(apic::msr(regs::ID)) << 32;
    insn::wrmsr(msr::ICR, own | u64::from(icr::ASSERT) | 0x72);
    t.eq("comes", interrupt_within(LONG), Some(0x72));
    insn::wrmsr(msr::EOI, 0);
    let isr = insn::rdmsr(apic::msr(ISR + 0x30)) as u32;
    t.eq("ended", isr, 0);
    insn::wrmsr(msr::TPR, 0x30);
    t.eq("TPR", insn::rdmsr(apic::msr(regs::TPR)), 0x30);
    insn::wrmsr(msr::TPR, 0);
    apic::to_xapic();
}

/// What the guest does instead of an EOI: takes the bit back; where it was clear, an EOI is required.
fn lazy_eoi(page: u64) -> bool {
    // SAFETY: the page is the guest's; the host sets and clears the same bit.
    let before = unsafe { core::sync::atomic::AtomicU32::from_ptr(page as *mut u32) }
        .fetch_and(!1, core::sync::atomic::Ordering::SeqCst);
    if before & 1 == 0 {
        insn::wrmsr(msr::EOI, 0);
    }
    before & 1 != 0
}

fn assist(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return skipped(t);
    }
    let page = paging::page();
    insn::wrmsr(msr::VP_ASSIST_PAGE, page | PAGE_ENABLE);
    let mut spared = 0;
    for round in 0..100 {
        apic::send_self(0x81);
        t.eq((round, "comes"), interrupt_within(LONG), Some(0x81));
        spared += u32::from(lazy_eoi(page));
        // Whichever way it ended, the next one comes.
    }
    // With `eois=all` on a processor whose APICv is in force: the host leaves the interrupt to it.
    let none = option("eois") == Some("all");
    t.holds(("EOIs were spared", spared), if none { spared == 0 } else { spared > 50 });
    t.eq("no more", interrupt_within(LONG), None);
    t.holds("nothing stays in service", !bit(ISR, 0x81) && !bit(IRR, 0x81));
    // Without the page nothing is written to it.
    insn::wrmsr(msr::VP_ASSIST_PAGE, page);
    apic::send_self(0x81);
    t.eq("comes", interrupt_within(LONG), Some(0x81));
    t.eq("not told", peek32(page), 0);
    apic::eoi();
}

fn assist_with_others(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return skipped(t);
    }
    let page = paging::page();
    insn::wrmsr(msr::VP_ASSIST_PAGE, page | PAGE_ENABLE);
    // Another one waits: the EOI is required, or the lower one would be held up.
    apic::send_self(0x95);
    apic::send_self(0x85);
    t.eq("the higher", interrupt_within(LONG), Some(0x95));
    t.holds("an EOI is required", !lazy_eoi(page));
    t.eq("the lower", interrupt_within(LONG), Some(0x85));
    lazy_eoi(page);
    // One comes while the other is in service and its EOI was spared: the host takes that back in time.
    apic::send_self(0x95);
    t.eq("alone", interrupt_within(LONG), Some(0x95));
    apic::send_self(0x85);
    t.eq("waits", interrupt_within(LONG), None);
    lazy_eoi(page);
    t.eq("comes then", interrupt_within(LONG), Some(0x85));
    // Nested: two in service, each needs its own end.
    apic::send_self(0x95);
    t.eq("nested", interrupt_within(LONG), Some(0x95));
    t.holds("both in service", bit(ISR, 0x85) && bit(ISR, 0x95));
    lazy_eoi(page);
    t.holds("the inner ended", !bit(ISR, 0x95) && bit(ISR, 0x85));
    lazy_eoi(page);
    t.holds("the outer ended", !bit(ISR, 0x85));
    // An ordinary EOI although it was spared ends one interrupt, not two.
    apic::send_self(0x85);
    t.eq("comes", interrupt_within(LONG), Some(0x85));
    apic::send_self(0x95);
    t.eq("nested", interrupt_within(LONG), Some(0x95));
    apic::eoi();
    t.holds("one ended", !bit(ISR, 0x95) && bit(ISR, 0x85));
    apic::eoi();
    t.holds("and the other", !bit(ISR, 0x85));
    insn::wrmsr(msr::VP_ASSIST_PAGE, 0);
}

/// The guest writes to the page what it likes, when it likes.
fn hostile_assist(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return skipped(t);
    }
    let page = paging::page();
    insn::wrmsr(msr::VP_ASSIST_PAGE, page | PAGE_ENABLE);
    for garbage in [0, 1, u32::MAX, 0xffff_fffe] {
        for _ in 0..20 {
            // SAFETY: the page is the guest's.
            unsafe { (page as *mut u32).write_volatile(garbage) };
            apic::send_self(0x91);
            interrupt_within(LONG);
            // SAFETY: as above.
            unsafe { (page as *mut u32).write_volatile(garbage ^ 1) };
        }
        insn::wrmsr(msr::VP_ASSIST_PAGE, page | PAGE_ENABLE);
        for _ in 0..4 {
            apic::eoi();
        }
        while interrupt_within(LONG).is_some() {
            apic::eoi();
        }
        t.holds(("nothing in service", garbage), !bit(ISR, 0x91));
    }
    insn::wrmsr(msr::VP_ASSIST_PAGE, 0);
    apic::send_self(0x91);
    t.eq("interrupts still come", interrupt_within(LONG), Some(0x91));
    apic::eoi();
}
