//! Known sequences, one a case (`only=CASE`): a test counts what exits they are beyond those of `nothing`.

#![no_std]
#![no_main]

use satori_guests::apic::{self, msr};
use satori_guests::defs::apic::{self as regs, icr};
use satori_guests::hyperv::interrupt_within;
use satori_guests::{Test, guest, insn};

guest!(
    "exits",
    nothing,
    eoi,
    task_priority,
    cr8,
    own_ipi,
    ipi,
    registers,
    x2apic,
    debug,
    cpuid,
    interrupt,
    msrs
);

/// How often each is done.
const TIMES: usize = 7;

fn repeat(t: &mut Test, action: impl Fn()) {
    (0..TIMES).for_each(|_| action());
    t.holds("done", true);
}

fn nothing(t: &mut Test) {
    repeat(t, || ());
}

fn eoi(t: &mut Test) {
    repeat(t, apic::eoi);
}

fn task_priority(t: &mut Test) {
    repeat(t, || apic::write(regs::TPR, 0x20));
}

fn cr8(t: &mut Test) {
    repeat(t, || insn::set_cr8(insn::cr8()));
}

fn own_ipi(t: &mut Test) {
    repeat(t, || apic::write(regs::ICR, icr::SELF | icr::ASSERT | 0x51));
}

fn ipi(t: &mut Test) {
    repeat(t, || apic::write(regs::ICR, icr::ASSERT | 0x51));
}

fn registers(t: &mut Test) {
    repeat(t, || {
        apic::write(regs::SVR, apic::read(regs::SVR));
        apic::read(regs::PPR);
        apic::read(regs::TIMER_CURRENT);
    });
}

fn x2apic(t: &mut Test) {
    apic::to_x2apic();
    repeat(t, || {
        insn::wrmsr(msr(regs::EOI), 0);
        insn::wrmsr(msr(regs::ICR), (icr::ASSERT | 0x51).into());
        insn::wrmsr(msr(regs::TPR), insn::rdmsr(msr(regs::TPR)));
        insn::wrmsr(msr(regs::SELF_IPI), 0x52);
        insn::rdmsr(msr(regs::ID));
        insn::rdmsr(msr(regs::TIMER_CURRENT));
    });
}

fn debug(t: &mut Test) {
    repeat(t, || {
        insn::dr7();
    });
}

fn cpuid(t: &mut Test) {
    repeat(t, || {
        insn::cpuid(0, 0);
        insn::dr7();
    });
}

/// A request while interrupts are off, which is delivered when they come on, and ended.
fn interrupt(t: &mut Test) {
    repeat(t, || {
        apic::write(regs::ICR, icr::SELF | icr::ASSERT | 0x61);
        interrupt_within(1000);
        apic::eoi();
    });
}

fn msrs(t: &mut Test) {
    repeat(t, || {
        insn::wrmsr(0x277, insn::rdmsr(0x277));
    });
}
