//! The clock that the hypervisor gives its guest: a reference TSC page, if its own clock is stable, by its own page's scale; else
//! the guest reads a counter by an exit. A change of the TSC's frequency stops the guest until its page is made anew.

use satori_guests::defs::hyperv::{PAGE_ENABLE, REENLIGHTENMENT_ENABLE, TSC_EMULATION, msr};
use satori_guests::hyperv::bit::{REENLIGHTENMENT, REFERENCE_COUNTER, REFERENCE_TSC};
use satori_guests::hyperv::{peek, peek32, vp_index};
use satori_guests::msr::get;
use satori_guests::place::{load, store};
use satori_guests::{Test, harness, insn, l2, paging};

use crate::CPUID;
use crate::events::{INTERRUPT, end, interrupts_exit};
use crate::machine::{Machine, Registers, at};

const VECTOR: u64 = 0xd2;
const RDMSR: u32 = 31;
const READS: u64 = 1000;

/// What follows the guest's reference TSC page (sequence, scale, offset), and is the guest's own.
mod block {
    pub const LAST: u64 = 24;
    pub const REMAINING: u64 = 32;
    pub const BACKWARDS: u64 = 40;
}

struct Clock {
    machine: Machine,
    /// The hypervisor's reference TSC page, if it has one.
    own: Option<u64>,
    /// The guest's.
    page: u64,
    /// The hypervisor's TSC when its guest's was 0.
    begun: u64,
    sequence: u32,
}

/// The hypervisor's own time.
fn now() -> u64 {
    if REFERENCE_COUNTER.offered() { insn::rdmsr(msr::TIME_REF_COUNT) } else { insn::rdtsc() >> 8 }
}

impl Clock {
    fn new() -> Clock {
        let own = REFERENCE_TSC.offered().then(paging::page);
        if let Some(own) = own {
            insn::wrmsr(msr::REFERENCE_TSC, own | PAGE_ENABLE);
        }
        let clock =
            Clock { machine: Machine::new(), own, page: paging::page(), begun: insn::rdtsc(), sequence: 0 };
        clock.machine.vmcs.with(at::PROC, 1 << 3);
        clock.machine.vmcs.set(at::TSC_OFFSET, clock.begun.wrapping_neg());
        interrupts_exit(&clock.machine);
        clock
    }

    /// Gives the guest a page if the hypervisor's clock is stable; tells whether it is.
    fn publish(&mut self) -> bool {
        let Some(own) = self.own.filter(|own| peek32(*own) != 0) else {
            store(self.page, 0_u32);
            return false;
        };
        let (scale, offset) = (peek(own + 8), peek(own + 16));
        let begun = ((u128::from(self.begun) * u128::from(scale)) >> 64) as u64;
        store(self.page + 8, scale);
        store(self.page + 16, offset.wrapping_add(begun));
        self.sequence += 1;
        store(self.page, self.sequence);
        true
    }

    /// Lets the guest read its clock `reads` times, or until an interrupt; how many exits its reads made, and how it ended.
    fn run(&self, launch: bool, reads: u64, registers: &mut Registers) -> (u64, u32) {
        let code = l2!(
            "2:",
            "mov ecx, [rdi]",
            "test ecx, ecx",
            "jz 4f",
            "rdtsc",
            "shl rdx, 32",
            "or rax, rdx",
            "mul qword ptr [rdi + 8]",
            "mov rax, rdx",
            "add rax, [rdi + 16]",
            "cmp ecx, [rdi]",
            "jne 2b",
            "jmp 5f",
            "4:",
            "mov ecx, 0x40000020",
            "rdmsr",
            "shl rdx, 32",
            "or rax, rdx",
            "5:",
            "cmp rax, [rdi + 24]",
            "jae 6f",
            "inc qword ptr [rdi + 40]",
            "6:",
            "mov [rdi + 24], rax",
            "dec qword ptr [rdi + 32]",
            "jnz 2b",
            "cpuid",
        );
        let vmcs = self.machine.vmcs;
        if launch {
            vmcs.set(at::GUEST_RIP, code);
            registers.rdi = self.page;
        }
        store(self.page + block::REMAINING, reads);
        let (mut exits, mut launch) = (0, launch);
        loop {
            let reason = self.machine.go(launch, registers).unwrap_or(0);
            launch = false;
            if reason != RDMSR || registers.rcx as u32 != msr::TIME_REF_COUNT {
                return (exits, reason);
            }
            exits += 1;
            let time = now();
            (registers.rax, registers.rdx) = (time & 0xffff_ffff, time >> 32);
            vmcs.set(at::GUEST_RIP, vmcs.get(at::GUEST_RIP) + u64::from(vmcs.get32(at::LENGTH)));
        }
    }

    /// Two reads between two looks that are as near as can be, from where the guest was left, and back to there: the first may have
    /// been begun before.
    fn glance(&self, t: &mut Test, number: u64, mut registers: Registers) {
        let vmcs = self.machine.vmcs;
        let left = [at::GUEST_RIP, at::GUEST_RFLAGS].map(|field| (field, vmcs.get(field)));
        let (seen, before) = (self.last(), now());
        let (exits, reason) = self.run(false, 2, &mut registers);
        let (last, after) = (self.last(), now());
        left.into_iter().for_each(|(field, value)| vmcs.set(field, value));
        // What it had read and not yet compared is older than these two.
        store(self.page + block::LAST, seen);
        t.eq((number, "at once"), (exits, reason), (0, CPUID));
        t.holds((number, "time at once", before, last, after), between(before, last, after));
    }

    fn last(&self) -> u64 {
        load(self.page + block::LAST)
    }

    fn finish(self, t: &mut Test) {
        t.eq("times that went back", load::<u64>(self.page + block::BACKWARDS), 0);
        if self.own.is_some() {
            insn::wrmsr(msr::REFERENCE_TSC, 0);
        }
        self.machine.end();
    }
}

/// Whether the guest's time is the hypervisor's between two looks; two sums of rounded terms are one apart.
fn between(before: u64, time: u64, after: u64) -> bool {
    (before.saturating_sub(1)..=after + 1).contains(&time)
}

pub fn clock(t: &mut Test) {
    let mut clock = Clock::new();
    let stable = clock.publish();
    t.eq("it has a stable clock if there is a page", stable, REFERENCE_TSC.offered());
    let before = now();
    let (exits, end) = clock.run(true, READS, &mut Registers::default());
    let after = now();
    t.eq("exits", (exits, end), (if stable { 0 } else { READS }, CPUID));
    t.holds(("its time", before, clock.last(), after), between(before, clock.last(), after));
    clock.finish(t);
}

/// `changes=N` of them are made meanwhile.
pub fn changes(t: &mut Test) {
    let wanted = harness::option("changes").and_then(|n| n.parse().ok()).unwrap_or(0);
    if wanted == 0 || !REENLIGHTENMENT.offered() || !REFERENCE_TSC.offered() {
        let there = get(msr::REENLIGHTENMENT_CONTROL).is_some();
        return t.eq("its register", there, REENLIGHTENMENT.offered());
    }
    let mut clock = Clock::new();
    insn::wrmsr(msr::REENLIGHTENMENT_CONTROL, vp_index(0) << 32 | REENLIGHTENMENT_ENABLE | VECTOR);
    insn::wrmsr(msr::TSC_EMULATION_CONTROL, TSC_EMULATION);
    let mut registers = Registers::default();
    let mut before = now();
    clock.publish();
    for number in 0..wanted {
        let (exits, reason) = clock.run(number == 0, u64::MAX, &mut registers);
        let after = now();
        t.eq((number, "an interrupt, and no exits"), (exits, reason), (0, INTERRUPT));
        t.eq((number, "its vector"), u64::from(clock.machine.vmcs.get32(at::INTERRUPTION) & 0xff), VECTOR);
        t.holds((number, "time", before, clock.last(), after), between(before, clock.last(), after));
        t.eq((number, "emulated"), get(msr::TSC_EMULATION_STATUS), Some(TSC_EMULATION));
        let old = peek(clock.page + 8);
        // No entry while the guest's clock is of the old frequency.
        store(clock.page, 0_u32);
        insn::wrmsr(msr::TSC_EMULATION_STATUS, 0);
        end(&clock.machine);
        t.holds((number, "the clock is stable again"), clock.publish());
        t.holds((number, "another scale"), peek(clock.page + 8) != old);
        clock.glance(t, number, registers);
        before = now();
    }
    let (exits, reason) = clock.run(false, READS, &mut registers);
    let after = now();
    t.eq("behind the last", (exits, reason), (0, CPUID));
    t.holds(("time", before, clock.last(), after), between(before, clock.last(), after));
    insn::wrmsr(msr::REENLIGHTENMENT_CONTROL, 0);
    insn::wrmsr(msr::TSC_EMULATION_CONTROL, 0);
    clock.finish(t);
}
