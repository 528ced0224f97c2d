//! A guest that waits for a debugger: with `wait=yes`, until somebody writes to its page.

use satori_guests::paging::{FREE, Space};
use satori_guests::place::{load, store};
use satori_guests::{Test, harness, paging, println};

use crate::CPUID;
use crate::machine::{Machine, at};
use crate::virtualized::tables;

/// The page is at [`FREE`] for the guest alone, and by nested paging somewhere else than the guest knows.
pub fn waits(t: &mut Test) {
    if harness::option("wait") != Some("yes") {
        return t.holds("nobody to wait for", true);
    }
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
    // PAUSE; CMP QWORD [RAX],0; JE to the PAUSE; CPUID.
    let code = [0xf3, 0x90, 0x48, 0x83, 0x38, 0, 0x74, 0xf8, 0x0f, 0xa2];
    t.eq("it left", machine.run(&code), CPUID);
    t.holds("somebody wrote", load::<u64>(elsewhere) != 0);
    machine.end();
}
