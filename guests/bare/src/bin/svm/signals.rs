//! INIT where there is SVM: held by GIF, intercepted, redirected to #SX (APM 15.13.3, 15.17, 15.28).

use core::arch::asm;

use satori_guests::defs::apic::{ID, icr};
use satori_guests::defs::x86::vector;
use satori_guests::{Expect, Subject, Test, apic, code, insn};

use crate::CPUID;
use crate::machine::{Machine, at};

const VM_CR: u32 = 0xc001_0114;
const R_INIT: u64 = 1 << 1;
const INIT: u64 = 0x63;

pub fn signals(t: &mut Test) {
    let machine = Machine::new();
    let before = insn::rdmsr(VM_CR);
    insn::wrmsr(VM_CR, R_INIT);
    t.eq("VM_CR keeps LOCK", insn::rdmsr(VM_CR), before | R_INIT);
    let init = || {
        // SAFETY: the guest owns its machine.
        unsafe { asm!("clgi") };
        apic::send(icr::ASSERT | 5 << 8, apic::read(ID) >> 24);
    };
    machine.load(&[0x0f, 0xa2]);
    init();
    for (name, bits, wanted) in [("intercepted", 1 << 3, INIT), ("again", 1 << 3, INIT)] {
        machine.fresh();
        machine.with(at::THIRD, bits);
        machine.enter_and_hold();
        t.eq((name, "INIT"), machine.get(at::CODE), wanted);
        t.eq((name, "RIP"), machine.get(at::RIP), machine.code);
    }
    // A guest takes it as #SX.
    machine.fresh();
    machine.with(at::EXCEPTIONS, 1 << vector::SX);
    machine.enter();
    t.eq("redirected", (machine.get(at::CODE), machine.get(at::INFO1)), (0x5e, 1));
    machine.fresh();
    t.eq("once", machine.run(&[0x0f, 0xa2]), CPUID);
    init();
    t.event("behind STGI", &Subject::kernel(code!("stgi" => "nop")).run(), Expect::fault(vector::SX).code(1));
    insn::wrmsr(VM_CR, 0);
    machine.end();
}
