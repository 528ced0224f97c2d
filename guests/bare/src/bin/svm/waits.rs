//! A guest that waits for a debugger: with `wait=yes`, until somebody writes to its page. With `wait=panic` it panics, and with
//! `wait=host` its hypervisor behind it.

use satori_guests::paging::{FREE, Space};
use satori_guests::place::{load, store};
use satori_guests::{Test, harness, insn, paging, println};

use crate::CPUID;
use crate::machine::{Machine, at};
use crate::virtualized::tables;

/// MOV DX,505; MOV AL,1; OUT DX,AL: pvpanic's port, which nobody intercepts.
const PANIC: &[u8] = &[0x66, 0xba, 5, 5, 0xb0, 1, 0xee, 0xeb, 0xfe];

/// The same by the hypervisor.
fn panic_here() {
    insn::out8(0x505, 1);
}

/// The page is at [`FREE`] for the guest alone, and by nested paging somewhere else than the guest knows.
pub fn waits(t: &mut Test) {
    let Some(wait) = harness::option("wait") else {
        return t.holds("nobody to wait for", true);
    };
    let machine = Machine::new();
    let [place, elsewhere] = core::array::from_fn::<u64, 2, _>(|_| paging::page());
    let space = Space::new();
    space.map(FREE, place, 2);
    let (top, entry) = tables(place);
    store(entry, elsewhere | 7);
    machine.set(at::NESTED, 1);
    machine.set(at::NESTED_CR3, top);
    machine.set(at::CR3, space.root);
    machine.set(at::RAX, FREE);
    println!("waits at {:#x} for {FREE:#x}, which is {elsewhere:#x}", machine.code);
    println!("for the guest: {place:#x}");
    store(place, 0x1111_u64);
    store(elsewhere, if wait == "yes" { 0 } else { 0x2222_u64 });
    if wait == "panic" {
        machine.run(PANIC);
    } else if wait == "host" {
        t.eq("it left", machine.run(&[0x0f, 0xa2]), CPUID);
        panic_here();
    }
    // PAUSE; CMP QWORD [RAX],0; JE to the PAUSE; CPUID.
    let code = [0xf3, 0x90, 0x48, 0x83, 0x38, 0, 0x74, 0xf8, 0x0f, 0xa2];
    t.eq("it left", machine.run(&code), CPUID);
    t.holds("somebody wrote", load::<u64>(elsewhere) != 0);
    machine.end();
}
