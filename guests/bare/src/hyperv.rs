//! The Hyper-V interface as its guest sees it: what CPUID offers, registers, calls, pages.

use core::sync::atomic::{AtomicU64, Ordering};

use satori_defs::hyperv::{INTERFACE_SIGNATURE, PAGE_ENABLE, leaf, msr};

use crate::subject::reg;
use crate::{Event, Subject, code, insn, paging, smp};

/// Whether the interface is there at all.
pub fn present() -> bool {
    insn::cpuid(1, 0)[2] >> 31 != 0
        && (leaf::LIMITS..0x4001_0000).contains(&insn::cpuid(leaf::VENDOR, 0)[0])
        && insn::cpuid(leaf::INTERFACE, 0)[0] == INTERFACE_SIGNATURE
}

/// A bit of a leaf that announces something; none is set without the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bit {
    leaf: u32,
    register: usize,
    bit: u32,
}

impl Bit {
    /// Partition privilege, low half: leaf 0x40000003, EAX.
    pub const fn privilege(bit: u32) -> Bit {
        Bit { leaf: leaf::FEATURES, register: 0, bit }
    }
    /// Partition privilege, high half: leaf 0x40000003, EBX.
    pub const fn partition(bit: u32) -> Bit {
        Bit { leaf: leaf::FEATURES, register: 1, bit }
    }
    /// Feature: leaf 0x40000003, EDX.
    pub const fn feature(bit: u32) -> Bit {
        Bit { leaf: leaf::FEATURES, register: 3, bit }
    }
    /// Hint: leaf 0x40000004, EAX.
    pub const fn hint(bit: u32) -> Bit {
        Bit { leaf: leaf::RECOMMENDATIONS, register: 0, bit }
    }
    /// Whether it is offered.
    pub fn offered(self) -> bool {
        present() && insn::cpuid(self.leaf, 0)[self.register] >> self.bit & 1 != 0
    }
}

/// What cases ask for by name; the numbers are the TLFS's (2.4.3, 2.4.4).
#[allow(missing_docs, reason = "the specification's names")]
pub mod bit {
    use super::Bit;

    pub const VP_RUNTIME: Bit = Bit::privilege(0);
    pub const REFERENCE_COUNTER: Bit = Bit::privilege(1);
    pub const SYNIC: Bit = Bit::privilege(2);
    pub const SYNTHETIC_TIMERS: Bit = Bit::privilege(3);
    pub const APIC_ACCESS: Bit = Bit::privilege(4);
    pub const HYPERCALL: Bit = Bit::privilege(5);
    pub const VP_INDEX: Bit = Bit::privilege(6);
    pub const RESET: Bit = Bit::privilege(7);
    pub const REFERENCE_TSC: Bit = Bit::privilege(9);
    pub const GUEST_IDLE: Bit = Bit::privilege(10);
    pub const FREQUENCIES: Bit = Bit::privilege(11);
    pub const REENLIGHTENMENT: Bit = Bit::privilege(13);
    pub const TSC_INVARIANT: Bit = Bit::privilege(15);

    pub const POST_MESSAGES: Bit = Bit::partition(4);
    pub const SIGNAL_EVENTS: Bit = Bit::partition(5);
    pub const EXTENDED_HYPERCALLS: Bit = Bit::partition(20);

    pub const XMM_INPUT: Bit = Bit::feature(4);
    pub const FREQUENCIES_AVAILABLE: Bit = Bit::feature(8);
    pub const CRASH: Bit = Bit::feature(10);
    pub const EXTENDED_GVA_RANGES: Bit = Bit::feature(14);
    pub const DIRECT_TIMERS: Bit = Bit::feature(19);

    pub const REMOTE_TLB_FLUSH: Bit = Bit::hint(2);
    pub const USE_APIC_MSRS: Bit = Bit::hint(3);
    pub const RELAXED_TIMING: Bit = Bit::hint(5);
    pub const DEPRECATE_AUTO_EOI: Bit = Bit::hint(9);
    pub const CLUSTER_IPI: Bit = Bit::hint(10);
    pub const EX_PROCESSOR_MASKS: Bit = Bit::hint(11);
}

/// The identity that these guests give themselves: open source, version 1.
pub const OS_ID: u64 = 1 << 63 | 0x0100 << 48 | 1;

/// The end of contiguous memory above 1 MiB, by trying.
pub fn memory_end() -> u64 {
    const STEP: u64 = 1 << 20;
    let mut at = 16 * STEP;
    while at < 0x7000_0000 {
        let last = (at + STEP - 8) as *mut u64;
        // SAFETY: mapped; where no memory is, nothing is written and ones are read.
        let there = unsafe {
            let before = last.read_volatile();
            last.write_volatile(!before);
            let there = last.read_volatile() == !before;
            last.write_volatile(before);
            there
        };
        if !there {
            return at;
        }
        at += STEP;
    }
    at
}

/// Reads the double word at `address`.
pub fn peek32(address: u64) -> u32 {
    // SAFETY: a case chose a mapped place.
    unsafe { (address as *const u32).read_volatile() }
}

/// Reads the quad word at `address`.
pub fn peek(address: u64) -> u64 {
    // SAFETY: a case chose a mapped place.
    unsafe { (address as *const u64).read_volatile() }
}

/// Writes the quad word at `address`.
pub fn poke(address: u64, value: u64) {
    // SAFETY: a case chose a place that nobody else uses.
    unsafe { (address as *mut u64).write_volatile(value) };
}

/// Fills the page at `page` with `value`.
pub fn fill(page: u64, value: u64) {
    for at in (page..page + 4096).step_by(8) {
        poke(at, value);
    }
}

/// Whether all of the page at `page` is `value`.
pub fn filled(page: u64, value: u64) -> bool {
    (page..page + 4096).step_by(8).all(|at| peek(at) == value)
}

/// Gives the guest an identity and a hypercall page; tells where the page is. A page that is
/// there already stays.
pub fn hypercall_page() -> u64 {
    insn::wrmsr(msr::GUEST_OS_ID, OS_ID);
    if insn::rdmsr(msr::HYPERCALL) & PAGE_ENABLE == 0 {
        insn::wrmsr(msr::HYPERCALL, paging::page() | PAGE_ENABLE);
    }
    insn::rdmsr(msr::HYPERCALL) & !4095
}

/// The hypercall input word (TLFS 3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control(pub u64);

impl Control {
    /// Just a code.
    pub const fn new(code: u16) -> Control {
        Control(code as u64)
    }
    /// Parameters are in registers.
    pub const fn fast(self) -> Control {
        Control(self.0 | 1 << 16)
    }
    /// Variable header of so many quad words.
    pub const fn header(self, words: u64) -> Control {
        Control(self.0 | words << 17)
    }
    /// So many reps, of which the first to do is `start`.
    pub const fn reps(self, count: u64, start: u64) -> Control {
        Control(self.0 | count << 32 | start << 48)
    }
}

/// Makes a hypercall through the page at `page`: the result value, or the exception's vector.
pub fn call(page: u64, control: Control, first: u64, second: u64) -> Result<u64, u8> {
    let s = Subject::kernel(code!("call rax")).with(reg::RAX, page).with(reg::RCX, control.0);
    result(s.with(reg::RDX, first).with(reg::R8, second).run())
}

/// As [`call`], with XMM0 to XMM5 loaded.
pub fn call_xmm(page: u64, control: Control, first: u64, second: u64, xmm: &[u64; 12]) -> Result<u64, u8> {
    let load = code!(
        "movdqu xmm0, [rsi]", "movdqu xmm1, [rsi + 16]", "movdqu xmm2, [rsi + 32]",
        "movdqu xmm3, [rsi + 48]", "movdqu xmm4, [rsi + 64]", "movdqu xmm5, [rsi + 80]"
        => "call rax"
    );
    let s = Subject::kernel(load).with(reg::RAX, page).with(reg::RCX, control.0);
    result(s.with(reg::RDX, first).with(reg::R8, second).with(reg::RSI, xmm.as_ptr() as u64).run())
}

fn result(event: Event) -> Result<u64, u8> {
    if event.done() { Ok(event.regs.gpr[reg::RAX]) } else { Err(event.vector) }
}

/// Waits with interrupts on until one comes, or so many ticks of the time-stamp counter have gone.
pub fn interrupt_within(ticks: u64) -> Option<u8> {
    let wait = code!(
        "lfence", "rdtsc", "shl rdx, 32", "or rax, rdx", "add rdi, rax"
        => "2: pause", "rdtsc", "shl rdx, 32", "or rax, rdx", "cmp rax, rdi", "jb 2b"
    );
    let event = Subject::kernel(wait).with(reg::RDI, ticks).flags(crate::defs::x86::rflags::IF).run();
    if event.done() { None } else { Some(event.vector) }
}

/// The VP index of vCPU `number`: vCPUs are numbered as they arrived.
pub fn vp_index(number: usize) -> u64 {
    static INDEX: AtomicU64 = AtomicU64::new(0);
    if number == 0 {
        return insn::rdmsr(msr::VP_INDEX);
    }
    smp::begin(number, |_| INDEX.store(insn::rdmsr(msr::VP_INDEX), Ordering::SeqCst));
    smp::wait(number);
    INDEX.load(Ordering::SeqCst)
}
