//! A guest that runs for long, with interrupts of its host's and its own meanwhile: what is saved and restored in the middle of it
//! must not show.

use satori_guests::cpu::Gate;
use satori_guests::defs::apic::{self as register, lvt};
use satori_guests::hyperv::interrupt_within;
use satori_guests::place::{load, store};
use satori_guests::{Test, apic, l2, paging};

use crate::CPUID;
use crate::machine::{Machine, at};

const INTR: u64 = 0x60;
const TICK: u8 = 0x55;
/// Rounds of the guest's loop.
const ROUNDS: u64 = 1_000_000;

pub fn lasting(t: &mut Test) {
    let machine = Machine::new();
    let [block, idt] = core::array::from_fn::<u64, 2, _>(|_| paging::page());
    // Rounds left, rounds done, interrupts taken: at RAX, as an exit leaves no other register.
    let code = l2!("2:", "add qword ptr [rax + 8], 1", "sub qword ptr [rax], 1", "jnz 2b", "cpuid");
    let handler = l2!("add qword ptr [rax + 16], 1", "iretq");
    for number in 0..256 {
        // SAFETY: the page is this case's.
        unsafe { (idt as *mut Gate).add(number).write(Gate::interrupt(handler)) };
    }
    machine.fresh();
    // The host's interrupts leave the guest whatever its own flag says.
    machine.with(at::THIRD, 1);
    machine.set(at::CONTROL, 1 << 24);
    machine.set(at::SEGMENTS + 16 * 8, 0xfff << 32);
    machine.set(at::SEGMENTS + 16 * 8 + 8, idt);
    machine.set(at::RIP, code);
    machine.set(at::RAX, block);
    machine.set(at::RFLAGS, 0x202);
    store(block, ROUNDS);
    apic::write(register::TIMER_DIVIDE, 0b1011);
    apic::write(register::LVT_TIMER, lvt::PERIODIC | u32::from(TICK));
    apic::write(register::TIMER_INITIAL, 50_000);
    let (mut ticks, mut sent, mut other) = (0, 0, 0);
    loop {
        // VMRUN with the host's interrupts open: they come as exits.
        machine.enter_open();
        match machine.get(at::CODE) {
            INTR => ticks += u64::from(interrupt_within(1_000_000) == Some(TICK)),
            CPUID => break,
            _ => other += 1,
        }
        if other > 0 {
            break;
        }
        apic::eoi();
        // One event by EVENTINJ, or by a virtual interrupt, which stays where it is until it is taken.
        if ticks % 2 == 0 {
            machine.set(at::INJECT, 1 << 31 | 0x61);
        } else if machine.get(at::CONTROL) >> 8 & 1 == 0 {
            machine.set(at::CONTROL, 1 << 24 | 1 << 8 | 6 << 16 | 0x62 << 32);
        } else {
            continue;
        }
        sent += 1;
    }
    apic::write(register::TIMER_INITIAL, 0);
    apic::write(register::LVT_TIMER, lvt::MASKED);
    while interrupt_within(100_000).is_some() {
        apic::eoi();
    }
    t.eq("other exits", other, 0);
    t.eq("rounds", load::<u64>(block + 8), ROUNDS);
    t.holds("ticks", ticks > 0);
    t.eq("interrupts of the guest's", load::<u64>(block + 16), sent);
    machine.end();
}
