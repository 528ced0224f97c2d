//! Accesses to model-specific registers that may be refused.

use crate::subject::reg;
use crate::{Expect, Subject, Test, code};

/// RDMSR: the value, or nothing at #GP(0). Anything else ends the guest.
pub fn get(msr: u32) -> Option<u64> {
    let marks = (0xdead_0001_u64, 0xdead_0002_u64);
    let s = Subject::kernel(code!("rdmsr")).with(reg::RCX, 0xffff_ffff_0000_0000 | u64::from(msr));
    let event = s.with(reg::RAX, marks.0).with(reg::RDX, marks.1).run();
    let (eax, edx) = (event.regs.gpr[reg::RAX], event.regs.gpr[reg::RDX]);
    if event.done() {
        assert!((eax | edx) >> 32 == 0, "RDMSR of {msr:#x} leaves high halves: {eax:#x}, {edx:#x}");
        return Some(edx << 32 | eax);
    }
    assert!(Expect::gp(0).met_by(&event), "RDMSR of {msr:#x}: {event}");
    assert!((eax, edx) == marks, "a refused RDMSR of {msr:#x} changes {eax:#x}, {edx:#x}");
    None
}

/// WRMSR: whether it was taken rather than #GP(0).
pub fn set(msr: u32, value: u64) -> bool {
    let s = Subject::kernel(code!("wrmsr")).with(reg::RCX, msr.into());
    let s =
        s.with(reg::RAX, 0xffff_ffff_0000_0000 | value).with(reg::RDX, 0xffff_ffff_0000_0000 | value >> 32);
    let event = s.run();
    assert!(event.done() || Expect::gp(0).met_by(&event), "WRMSR of {msr:#x}, {value:#x}: {event}");
    event.done()
}

/// WRMSR should be refused, and change nothing that can be seen.
pub fn refused(t: &mut Test, what: &str, msr: u32, value: u64) {
    let before = get(msr);
    let taken = set(msr, value);
    t.holds((what, msr, value), !taken);
    t.eq(("after", what, msr, value), get(msr), before);
}

/// WRMSR should be taken and read back.
pub fn kept(t: &mut Test, what: &str, msr: u32, value: u64) {
    let taken = set(msr, value);
    t.holds((what, msr, value), taken);
    t.eq((what, msr), get(msr), Some(value));
}
