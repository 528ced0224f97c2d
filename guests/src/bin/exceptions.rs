//! Exceptions of every class: vector, error code, RIP, RF, priority, double faults, stacks.

#![no_std]
#![no_main]

use satori_guests::defs::x86::vector;

use satori_guests::{Expect, Subject, Test, code, guest};

guest!("exceptions", divide, breakpoints);

fn divide(t: &mut Test) {
    let s = Subject::kernel(code!("xor ecx, ecx" => "div ecx"));
    t.event("by zero", &s.run(), Expect::fault(vector::DE));
    let s = Subject::user(code!("mov ecx, 2", "mov edx, 2" => "div ecx"));
    t.event("too large", &s.run(), Expect::fault(vector::DE));
    let s = Subject::kernel(code!("mov eax, 0x80000000", "mov edx, -1", "mov ecx, -1" => "idiv ecx"));
    t.event("the lowest by -1", &s.run(), Expect::fault(vector::DE));
    let s = Subject::compat(code!(".code32" => ".byte 0xd4, 0"));
    t.event("AAM 0", &s.run(), Expect::fault(vector::DE));
}

fn breakpoints(t: &mut Test) {
    t.event("INT3", &Subject::kernel(code!("int3")).run(), Expect::trap(vector::BP));
    let s = Subject::user(code!("int3"));
    t.event("INT3 of user mode", &s.run(), Expect::trap(vector::BP));
}
