//! Interrupts that come while the guest runs, or sleeps: synthetic timers by themselves and by messages, and their ends with and
//! without an EOI.

use satori_guests::defs::apic::ISR;
use satori_guests::defs::hyperv::synic::message::{PENDING, SIZE_AND_FLAGS, TIMER_EXPIRED};
use satori_guests::defs::hyperv::synic::stimer::{AUTO_ENABLE, DIRECT, PERIODIC, SINT_SHIFT, VECTOR_SHIFT};
use satori_guests::defs::hyperv::synic::{SINT_MASKED, SLOT_BYTES};
use satori_guests::defs::hyperv::{NO_EOI_REQUIRED, PAGE_ENABLE, msr};
use satori_guests::hyperv::bit::{DIRECT_TIMERS, SYNIC, SYNTHETIC_TIMERS};
use satori_guests::hyperv::{peek32, poke};
use satori_guests::msr::set;
use satori_guests::place::{load, store};
use satori_guests::{Test, apic, insn, l2, paging};

use crate::machine::{Machine, Registers, at};

const VECTOR: u8 = 0xe1;
/// Reason of an interrupt's exit.
pub const INTERRUPT: u32 = 1;
/// Half a millisecond in units of 100 ns.
const SOON: u64 = 5_000;

/// Interrupts leave the guest, and are taken from the APIC by that.
pub fn interrupts_exit(machine: &Machine) {
    machine.vmcs.with(at::PIN, 1);
    machine.vmcs.with(at::EXIT, 1 << 15);
}

/// Ends the interrupt in service, unless the assist page says that there is no need to.
pub fn end(machine: &Machine) {
    let word: u32 = load(machine.assist);
    store(machine.assist, word & !NO_EOI_REQUIRED);
    if word & NO_EOI_REQUIRED == 0 {
        apic::eoi();
    }
}

/// An exit with `vector`, which is then ended.
fn interrupted(t: &mut Test, name: &str, machine: &Machine, reason: u32, vector: u8) {
    t.eq(name, (reason, machine.vmcs.get32(at::INTERRUPTION)), (INTERRUPT, 1 << 31 | u32::from(vector)));
    t.holds((name, "it is in service"), apic::bit(ISR, vector));
    end(machine);
    t.holds((name, "it is no more"), !apic::bit(ISR, vector));
}

fn guests() -> [(&'static str, u64); 2] {
    [("in a loop", l2!("2: jmp 2b")), ("in HLT", l2!("2: hlt", "jmp 2b"))]
}

pub fn direct_timer(t: &mut Test) {
    let config = AUTO_ENABLE | DIRECT | u64::from(VECTOR) << VECTOR_SHIFT;
    if !DIRECT_TIMERS.offered() {
        return t.holds("direct timers are refused", !set(msr::STIMER0_CONFIG, config));
    }
    let machine = Machine::new();
    for (name, code) in guests() {
        machine.fresh();
        interrupts_exit(&machine);
        let due = insn::rdmsr(msr::TIME_REF_COUNT) + SOON;
        insn::wrmsr(msr::STIMER0_CONFIG, config);
        insn::wrmsr(msr::STIMER0_CONFIG + 1, due);
        let reason = machine.run(true, code, 0).unwrap_or(0);
        t.holds((name, "not early"), insn::rdmsr(msr::TIME_REF_COUNT) >= due);
        interrupted(t, name, &machine, reason, VECTOR);
        // Again and again, the guest being where it was.
        insn::wrmsr(msr::STIMER0_CONFIG, config | PERIODIC);
        insn::wrmsr(msr::STIMER0_CONFIG + 1, SOON);
        for _ in 0..8 {
            let reason = machine.go(false, &mut Registers::default()).unwrap_or(0);
            interrupted(t, name, &machine, reason, VECTOR);
        }
        insn::wrmsr(msr::STIMER0_CONFIG, 0);
        settle(&machine);
    }
    machine.end();
}

/// Takes what a timer had sent before it was stopped.
fn settle(machine: &Machine) {
    while satori_guests::hyperv::interrupt_within(100_000).is_some() {
        end(machine);
    }
}

pub fn messages(t: &mut Test) {
    if !SYNIC.offered() || !SYNTHETIC_TIMERS.offered() {
        let there = set(msr::SCONTROL, 0);
        return t.eq("without sources there is no control of them", there, SYNIC.offered());
    }
    let machine = Machine::new();
    let page = paging::page();
    insn::wrmsr(msr::SIMP, page | PAGE_ENABLE);
    insn::wrmsr(msr::SINT0 + 2, VECTOR.into());
    insn::wrmsr(msr::SCONTROL, 1);
    let slot = page + 2 * SLOT_BYTES;
    poke(slot, 0);
    for (name, code) in guests() {
        machine.fresh();
        interrupts_exit(&machine);
        insn::wrmsr(msr::STIMER0_CONFIG + 2, AUTO_ENABLE | 2 << SINT_SHIFT);
        insn::wrmsr(msr::STIMER0_CONFIG + 3, insn::rdmsr(msr::TIME_REF_COUNT) + SOON);
        let reason = machine.run(true, code, 0).unwrap_or(0);
        t.eq((name, "the message"), peek32(slot), TIMER_EXPIRED);
        store(slot, 0_u32);
        if peek32(slot + SIZE_AND_FLAGS) & PENDING != 0 {
            insn::wrmsr(msr::EOM, 0);
        }
        interrupted(t, name, &machine, reason, VECTOR);
    }
    insn::wrmsr(msr::SINT0 + 2, SINT_MASKED);
    insn::wrmsr(msr::SCONTROL, 0);
    insn::wrmsr(msr::SIMP, 0);
    machine.end();
}
