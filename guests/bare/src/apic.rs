//! The local APIC, through its page or its MSRs.

use satori_defs::apic::{self, base, icr};
use satori_defs::msr::{IA32_APIC_BASE, X2APIC_BASE};

use crate::insn;

/// Reads a register through the page (xAPIC mode).
pub fn read(register: u16) -> u32 {
    let at = (apic::DEFAULT_BASE + u64::from(register)) as *const u32;
    // SAFETY: the page is mapped, and registers are aligned.
    unsafe { at.read_volatile() }
}

/// Writes a register through the page (xAPIC mode).
pub fn write(register: u16, value: u32) {
    let at = (apic::DEFAULT_BASE + u64::from(register)) as *mut u32;
    // SAFETY: as in `read`; the guest owns its machine.
    unsafe { at.write_volatile(value) };
}

/// The MSR of a register in x2APIC mode.
pub const fn msr(register: u16) -> u32 {
    X2APIC_BASE + register as u32 / 16
}

/// Sends an interprocessor interrupt (xAPIC mode): the low half of ICR, to this APIC ID.
pub fn send(low: u32, destination: u32) {
    write(apic::ICR_HIGH, destination << 24);
    write(apic::ICR, low);
    while read(apic::ICR) & apic::lvt::STATUS != 0 {
        insn::pause();
    }
}

/// Sends `vector` to this vCPU itself.
pub fn send_self(vector: u8) {
    send(icr::SELF | icr::ASSERT | u32::from(vector), 0);
}

/// Ends the interrupt in service.
pub fn eoi() {
    write(apic::EOI, 0);
}

/// Enables it by software, with spurious vector 0xff.
pub fn enable() {
    write(apic::SVR, apic::svr::ENABLE | 0xff);
}

/// Whether `vector` is set in the 256-bit register that starts at `first` (ISR, TMR or IRR).
pub fn bit(first: u16, vector: u8) -> bool {
    read(first + u16::from(vector / 32) * 16) >> (vector % 32) & 1 != 0
}

/// Changes from xAPIC to x2APIC mode.
pub fn to_x2apic() {
    insn::wrmsr(IA32_APIC_BASE, insn::rdmsr(IA32_APIC_BASE) | base::EXTD);
}

/// Changes from x2APIC to xAPIC mode, which goes through "disabled" (SDM 11.12.5), and enables it again.
pub fn to_xapic() {
    let value = insn::rdmsr(IA32_APIC_BASE);
    insn::wrmsr(IA32_APIC_BASE, value & !(base::EXTD | base::EN));
    insn::wrmsr(IA32_APIC_BASE, value & !base::EXTD | base::EN);
    enable();
}
