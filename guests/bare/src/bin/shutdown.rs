//! Ways into a triple fault, one at a time: `only=CASE`. A case that returns has failed.

#![no_std]
#![no_main]

use satori_guests::cpu::Cpu;
use satori_guests::defs::x86::vector;
use satori_guests::insn::Pointer;
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, code, guest, insn};

guest!("shutdown", empty_idt, double_fault_gate, double_fault_stack, page_fault_stack);

fn survived(t: &mut Test, subject: Subject) {
    let event = subject.run();
    t.eq("it came back", event.vector, vector::DF.wrapping_add(0x80));
}

fn empty_idt(t: &mut Test) {
    insn::lidt(Pointer { limit: 0, base: 0 });
    survived(t, Subject::kernel(code!("ud2")));
}

fn double_fault_gate(t: &mut Test) {
    let cpu = Cpu::this();
    for vector in [vector::GP, vector::DF] {
        cpu.idt[usize::from(vector)] = cpu.idt[usize::from(vector)].absent();
    }
    survived(t, Subject::user(code!("hlt")));
}

fn double_fault_stack(t: &mut Test) {
    let cpu = Cpu::this();
    cpu.tss.ist[0] = 1 << 47;
    cpu.idt[usize::from(vector::GP)] = cpu.idt[usize::from(vector::GP)].absent();
    survived(t, Subject::user(code!("hlt")));
}

fn page_fault_stack(t: &mut Test) {
    let cpu = Cpu::this();
    cpu.idt[usize::from(vector::DF)] = cpu.idt[usize::from(vector::DF)].ist(0);
    survived(t, Subject::kernel(code!("mov al, [rax]")).with(reg::RAX, 8 << 39).with(reg::RSP, 7 << 39));
}
