//! The other vCPUs: started by INIT and SIPI, then waiting for work.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use satori_defs::apic::{ID, icr};

use crate::cpu::Cpu;
use crate::{apic, insn};

/// vCPUs that a guest can use.
pub const MAX_CPUS: usize = 20;

/// Where the others begin, in real mode; the SIPI's vector is its page.
const TRAMPOLINE: u64 = 0x8000;

/// Delivery modes of the ICR.
const INIT: u32 = 5 << 8;
const STARTUP: u32 = 6 << 8;

global_asm!(
    ".pushsection .rodata.trampoline, \"a\"",
    ".code16",
    ".globl trampoline_begin, trampoline_end",
    "trampoline_begin:",
    "cli",
    "cld",
    // CS's base is the trampoline.
    ".byte 0x2e, 0x66, 0x0f, 0x01, 0x16", // lgdtd cs:[...]
    ".word trampoline_gdt_pointer - trampoline_begin",
    "mov eax, 0x11",
    "mov cr0, eax",
    ".byte 0x66, 0xea",
    ".long {base} + trampoline32 - trampoline_begin",
    ".word 8",
    ".code32",
    "trampoline32:",
    "mov ax, 16",
    "mov ds, ax",
    "mov es, ax",
    "mov ss, ax",
    "mov ebp, 1",
    "lock xadd [smp_next], ebp",
    "mov eax, offset start_long",
    "jmp eax",
    ".balign 8",
    "trampoline_gdt: .quad 0, 0x00cf9b000000ffff, 0x00cf93000000ffff",
    "trampoline_gdt_pointer: .word 23",
    ".long {base} + trampoline_gdt - trampoline_begin",
    "trampoline_end:",
    ".code64",
    ".popsection",
    ".pushsection .data.smp, \"aw\"",
    ".globl smp_next",
    "smp_next: .long 1",
    ".popsection",
    base = const TRAMPOLINE,
);

unsafe extern "C" {
    static trampoline_begin: u8;
    static trampoline_end: u8;
    /// The number of the next vCPU that comes through the trampoline.
    safe static smp_next: AtomicU32;
}

static ONLINE: AtomicUsize = AtomicUsize::new(1);
/// The APIC ID of each vCPU, once it has arrived.
static APIC_IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];
/// What each vCPU is to run: a `fn(usize)`, or 0.
static WORK: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// How many vCPUs there are.
pub fn count() -> usize {
    ONLINE.load(Ordering::Acquire)
}

/// Starts the others, until `cpus` run. All numbers are in order of arrival.
pub(crate) fn start(cpus: usize) {
    apic::enable();
    if cpus <= 1 {
        return;
    }
    assert!(cpus <= MAX_CPUS, "a guest has room for {MAX_CPUS} vCPUs");
    let begin = &raw const trampoline_begin;
    let length = &raw const trampoline_end as usize - begin as usize;
    // SAFETY: the page is RAM that nobody uses.
    unsafe { (TRAMPOLINE as *mut u8).copy_from(begin, length) };
    apic::send(icr::OTHERS | icr::ASSERT | INIT, 0);
    spin(1_000_000);
    apic::send(icr::OTHERS | icr::ASSERT | STARTUP | (TRAMPOLINE >> 12) as u32, 0);
    while count() < cpus {
        insn::pause();
    }
}

/// The APIC ID of vCPU `number`, not the first.
pub fn apic_id(number: usize) -> u32 {
    APIC_IDS[number].load(Ordering::Relaxed)
}

/// INIT and SIPI for vCPU `number`, not the first, which has no work; it is there again afterwards.
pub fn restart(number: usize) {
    wait(number);
    start_again(number);
}

/// As [`restart`], of a vCPU whose work, if it has any, begins anew.
pub fn start_again(number: usize) {
    let online = count();
    smp_next.store(number as u32, Ordering::Release);
    apic::send(icr::ASSERT | INIT, apic_id(number));
    // A SIPI is lost on a vCPU that the INIT has not reset yet, as one in root operation.
    while count() == online {
        spin(1_000_000);
        apic::send(icr::ASSERT | STARTUP | (TRAMPOLINE >> 12) as u32, apic_id(number));
    }
    ONLINE.store(online, Ordering::Release);
    smp_next.store(online as u32, Ordering::Release);
}

/// Waits for so many ticks of the time-stamp counter.
pub fn spin(ticks: u64) {
    let start = insn::rdtsc();
    while insn::rdtsc().wrapping_sub(start) < ticks {
        insn::pause();
    }
}

/// Another vCPU arrives, and works for ever.
pub(crate) fn arrive(number: usize) -> ! {
    Cpu::set_up(number);
    apic::enable();
    APIC_IDS[number].store(apic::read(ID) >> 24, Ordering::Relaxed);
    ONLINE.fetch_add(1, Ordering::AcqRel);
    loop {
        let work = WORK[number].load(Ordering::Acquire);
        if work == 0 {
            insn::pause();
            continue;
        }
        // SAFETY: only `begin` stores here, and only such functions.
        let work: fn(usize) = unsafe { core::mem::transmute(work) };
        work(number);
        WORK[number].store(0, Ordering::Release);
    }
}

/// Lets vCPU `number`, not the first, run `work` with its number.
pub fn begin(number: usize, work: fn(usize)) {
    wait(number);
    WORK[number].store(work as usize, Ordering::Release);
}

/// Waits until vCPU `number` has no work.
pub fn wait(number: usize) {
    while WORK[number].load(Ordering::Acquire) != 0 {
        insn::pause();
    }
}

/// Runs `work` on the first `cpus` vCPUs at the same time, and waits for all.
pub fn on_all(cpus: usize, work: fn(usize)) {
    for number in 1..cpus {
        begin(number, work);
    }
    work(0);
    for number in 1..cpus {
        wait(number);
    }
}

/// A meeting of vCPUs that can be used again and again.
pub struct Barrier {
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl Barrier {
    /// Nobody there.
    pub const fn new() -> Barrier {
        Barrier { arrived: AtomicUsize::new(0), round: AtomicUsize::new(0) }
    }

    /// Waits until `cpus` have come.
    pub fn meet(&self, cpus: usize) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == cpus {
            self.arrived.store(0, Ordering::Release);
            self.round.store(round.wrapping_add(1), Ordering::Release);
        } else {
            while self.round.load(Ordering::Acquire) == round {
                insn::pause();
            }
        }
    }
}

impl Default for Barrier {
    fn default() -> Self {
        Barrier::new()
    }
}
