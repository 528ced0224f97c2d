//! A guest that waits for a debugger: with `wait=yes`, until somebody writes to its page. With `wait=panic` it panics, and with
//! `wait=host` its hypervisor behind it.

use satori_guests::hyperv::{peek, poke};
use satori_guests::paging::{FREE, Space};
use satori_guests::{Test, harness, insn, l2, paging, println};

use crate::CPUID;
use crate::clean::{eptp, tables};
use crate::machine::{Machine, at};

/// The page is at [`FREE`] for the guest alone, and by tables of its hypervisor somewhere else than the guest knows.
pub fn waits(t: &mut Test) {
    let Some(wait) = harness::option("wait") else {
        return t.holds("nobody to wait for", true);
    };
    let machine = Machine::new();
    let [place, elsewhere] = core::array::from_fn::<u64, 2, _>(|_| paging::page());
    let space = Space::new();
    space.map(FREE, place, 2);
    let code = l2!("2:", "pause", "cmp qword ptr [rdi], 0", "je 2b", "cpuid");
    machine.vmcs.with(at::PROC2, 1 << 1);
    machine.vmcs.set(at::EPTP, eptp(tables(place, elsewhere)));
    machine.vmcs.set(at::GUEST_CR3, space.root);
    println!("waits at {code:#x} for {FREE:#x}, which is {elsewhere:#x}");
    println!("for the guest: {place:#x}");
    poke(place, 0x1111);
    poke(elsewhere, if wait == "yes" { 0 } else { 0x2222 });
    // pvpanic's port, which nobody intercepts.
    if wait == "panic" {
        let _ = machine.run(true, l2!("mov dx, 0x505", "mov al, 1", "out dx, al", "3:", "jmp 3b"), FREE);
    } else if wait == "host" {
        t.eq("it left", machine.run(true, l2!("cpuid"), FREE), Ok(CPUID));
        insn::out8(0x505, 1);
    }
    t.eq("it left", machine.run(true, code, FREE), Ok(CPUID));
    t.holds("somebody wrote", peek(elsewhere) != 0);
    machine.end();
}
