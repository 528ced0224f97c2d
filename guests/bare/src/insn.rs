//! Single privileged instructions as functions.

use core::arch::asm;

macro_rules! control {
    ($($register:literal $read:ident $write:ident)*) => { $(
        #[doc = concat!("Reads ", $register, ".")]
        pub fn $read() -> u64 {
            let value;
            // SAFETY: reading a control or debug register changes nothing.
            unsafe { asm!(concat!("mov {}, ", $register), out(reg) value, options(nomem, nostack)) };
            value
        }

        #[doc = concat!("Writes ", $register, ".")]
        pub fn $write(value: u64) {
            // SAFETY: the guest owns its machine (see the crate's documentation).
            unsafe { asm!(concat!("mov ", $register, ", {}"), in(reg) value, options(nostack)) };
        }
    )* };
}

control! {
    "cr0" cr0 set_cr0
    "cr2" cr2 set_cr2
    "cr3" cr3 set_cr3
    "cr4" cr4 set_cr4
    "cr8" cr8 set_cr8
    "dr0" dr0 set_dr0
    "dr1" dr1 set_dr1
    "dr2" dr2 set_dr2
    "dr3" dr3 set_dr3
    "dr6" dr6 set_dr6
    "dr7" dr7 set_dr7
}

/// Reads a port's byte.
pub fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: the guest owns its machine.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack)) };
    value
}

/// Writes a byte to a port.
pub fn out8(port: u16, value: u8) {
    // SAFETY: the guest owns its machine.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack)) };
}

/// Reads a port's double word.
pub fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: the guest owns its machine.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack)) };
    value
}

/// Writes a double word to a port.
pub fn out32(port: u16, value: u32) {
    // SAFETY: the guest owns its machine.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack)) };
}

/// RDMSR.
pub fn rdmsr(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading a register; one that is absent is an unexpected event, which ends the guest.
    unsafe { asm!("rdmsr", in("ecx") index, out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// WRMSR.
pub fn wrmsr(index: u32, value: u64) {
    // SAFETY: the guest owns its machine.
    unsafe {
        asm!("wrmsr", in("ecx") index, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack));
    }
}

/// CPUID: EAX, EBX, ECX, EDX.
pub fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let found = core::arch::x86_64::__cpuid_count(leaf, subleaf);
    [found.eax, found.ebx, found.ecx, found.edx]
}

/// RDTSC, after everything before it.
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe { asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

/// RDTSCP, which is after everything before it by itself.
pub fn rdtscp() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe { asm!("rdtscp", out("eax") low, out("edx") high, out("ecx") _, options(nostack)) };
    u64::from(high) << 32 | u64::from(low)
}

macro_rules! bare {
    ($($(#[$doc:meta])* $name:ident = $($instruction:literal),+;)*) => { $(
        $(#[$doc])*
        pub fn $name() {
            // SAFETY: the guest owns its machine.
            unsafe { asm!($($instruction),+, options(nostack)) };
        }
    )* };
}

bare! {
    /// CLI.
    cli = "cli";
    /// STI.
    sti = "sti", "nop";
    /// HLT.
    hlt = "hlt";
    /// PAUSE.
    pause = "pause";
    /// STI, and CLI again after one instruction in between, so that what waits is delivered.
    interrupts_once = "sti", "nop", "nop", "cli";
    /// STI and HLT without a window between them, then CLI.
    wait_for_interrupt = "sti", "hlt", "cli";
    /// MFENCE.
    mfence = "mfence";
}

/// INVLPG.
pub fn invlpg(address: u64) {
    // SAFETY: drops translations only.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack)) };
}

/// LGDT or LIDT take this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed)]
pub struct Pointer {
    /// Offset of the last byte.
    pub limit: u16,
    /// Linear address.
    pub base: u64,
}

/// LGDT.
pub fn lgdt(pointer: Pointer) {
    // SAFETY: the guest owns its machine.
    unsafe { asm!("lgdt [{}]", in(reg) &pointer, options(nostack)) };
}

/// LIDT.
pub fn lidt(pointer: Pointer) {
    // SAFETY: the guest owns its machine.
    unsafe { asm!("lidt [{}]", in(reg) &pointer, options(nostack)) };
}

/// SGDT.
pub fn sgdt() -> Pointer {
    let mut pointer = Pointer { limit: 0, base: 0 };
    // SAFETY: ten bytes are written, and the structure has ten.
    unsafe { asm!("sgdt [{}]", in(reg) &mut pointer, options(nostack)) };
    pointer
}

/// SIDT.
pub fn sidt() -> Pointer {
    let mut pointer = Pointer { limit: 0, base: 0 };
    // SAFETY: ten bytes are written, and the structure has ten.
    unsafe { asm!("sidt [{}]", in(reg) &mut pointer, options(nostack)) };
    pointer
}

/// LTR.
pub fn ltr(selector: u16) {
    // SAFETY: the guest owns its machine.
    unsafe { asm!("ltr {0:x}", in(reg) selector, options(nostack)) };
}

/// LLDT.
pub fn lldt(selector: u16) {
    // SAFETY: the guest owns its machine.
    unsafe { asm!("lldt {0:x}", in(reg) selector, options(nostack)) };
}

/// INVPCID of `kind` for `pcid` and `address`.
pub fn invpcid(kind: u64, pcid: u64, address: u64) {
    let descriptor = [pcid, address];
    // SAFETY: drops translations only.
    unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &descriptor, options(nostack)) };
}
