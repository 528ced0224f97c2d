//! A guest that waits for a debugger: with `wait=yes`, until somebody writes to its page.

use satori_guests::hyperv::peek;
use satori_guests::paging::{FREE, Space};
use satori_guests::{Test, harness, l2, paging, println};

use crate::CPUID;
use crate::clean::{eptp, tables};
use crate::machine::{Machine, at};

/// The page is at [`FREE`] for the guest alone, and by tables of its hypervisor somewhere else than the guest knows.
pub fn waits(t: &mut Test) {
    if harness::option("wait") != Some("yes") {
        return t.holds("nobody to wait for", true);
    }
    let machine = Machine::new();
    let [place, elsewhere] = core::array::from_fn::<u64, 2, _>(|_| paging::page());
    let space = Space::new();
    space.map(FREE, place, 2);
    let code = l2!("2:", "pause", "cmp qword ptr [rdi], 0", "je 2b", "cpuid");
    machine.vmcs.with(at::PROC2, 1 << 1);
    machine.vmcs.set(at::EPTP, eptp(tables(place, elsewhere)));
    machine.vmcs.set(at::GUEST_CR3, space.root);
    println!("waits at {code:#x} for {FREE:#x}, which is {elsewhere:#x}");
    t.eq("it left", machine.run(true, code, FREE), Ok(CPUID));
    t.holds("somebody wrote", peek(elsewhere) != 0);
    machine.end();
}
