//! KVM's guest interface: what CPUID offers exists, what it does not is refused, and no number or address harms the monitor.

#![no_std]
#![no_main]

use satori_guests::defs::kvm::{call, error, msr};
use satori_guests::defs::x86::vector;
use satori_guests::hyperv::{memory_end, peek, peek32};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::subject::reg;
use satori_guests::{Expect, Subject, Test, code, guest, insn, paging};

guest!("kvm", leaves, registers, time, hostile_places, steal_and_eoi, calls, callers, ipis,);

/// Where KVM's leaves begin, if they are anywhere.
fn base() -> Option<u32> {
    (0x4000_0000..0x4000_1000).step_by(0x100).find(|base| {
        let [_, ebx, ecx, edx] = insn::cpuid(*base, 0);
        (ebx, ecx, edx) == (0x4b4d_564b, 0x564b_4d56, 0x4d)
    })
}

fn offered(bit: u32) -> bool {
    base().is_some_and(|base| insn::cpuid(base + 1, 0)[0] >> bit & 1 != 0)
}

fn leaves(t: &mut Test) {
    let Some(base) = base() else {
        return t.holds("no features of KVM's", insn::cpuid(0x4000_0001, 0)[0] & 1 << 24 == 0);
    };
    t.eq("the highest leaf", insn::cpuid(base, 0)[0], base + 1);
    let [eax, ebx, ecx, edx] = insn::cpuid(base + 1, 0);
    t.eq("reserved registers", (ebx, ecx, edx & !1), (0, 0, 0));
    // Asynchronous page faults, and encrypted memory.
    t.eq(("what is not there", eax), eax & (1 << 4 | 1 << 10 | 1 << 14 | 1 << 16), 0);
    t.holds("a stable clock is a clock", !offered(24) || offered(3));
}

/// The bit that a register needs.
fn needs(register: u32) -> Option<u32> {
    Some(match register {
        msr::WALL_CLOCK_OLD | msr::SYSTEM_TIME_OLD => 0,
        msr::WALL_CLOCK | msr::SYSTEM_TIME => 3,
        msr::STEAL_TIME => 5,
        msr::PV_EOI_EN => 6,
        msr::POLL_CONTROL => 12,
        msr::MIGRATION_CONTROL => 17,
        _ => return None,
    })
}

fn registers(t: &mut Test) {
    for register in [0x11, 0x12].into_iter().chain(msr::FIRST..msr::FIRST + 0x20) {
        let there = needs(register).is_some_and(offered);
        t.eq(("exists", register), get(register).is_some(), there);
        if !there {
            for value in [0, 1, u64::MAX] {
                t.holds(("is refused", register, value), !set(register, value));
            }
        }
    }
    for register in [msr::POLL_CONTROL, msr::MIGRATION_CONTROL] {
        if needs(register).is_some_and(offered) {
            t.eq(("at power-up", register), get(register), Some(1));
            kept(t, "off", register, 0);
            kept(t, "on", register, 1);
            refused(t, "another bit", register, 2);
        }
    }
}

fn now(area: u64) -> u64 {
    let (mul, shift) = (u64::from(peek32(area + 24)), peek32(area + 28) as u8 as i8);
    let delta = insn::rdtsc().wrapping_sub(peek(area + 8));
    let delta = if shift < 0 { delta >> -shift } else { delta << shift };
    peek(area + 16) + ((u128::from(delta) * u128::from(mul)) >> 32) as u64
}

fn time(t: &mut Test) {
    if !offered(3) {
        return t.eq("no clock", get(msr::SYSTEM_TIME), None);
    }
    let area = paging::page();
    for register in [msr::SYSTEM_TIME, msr::SYSTEM_TIME_OLD] {
        kept(t, "an area", register, area | 1);
        t.eq("the version is even", peek32(area) & 1, 0);
        t.eq("the flag is offered", peek32(area + 28) >> 8 & 1 != 0, offered(24));
        let (before, after) = (now(area), now(area));
        t.holds(("time goes on", before, after), before <= after && after < 1 << 42);
        kept(t, "none", register, 0);
    }
    let wall = area + 64;
    t.holds("the wall clock", set(msr::WALL_CLOCK, wall));
    t.holds(
        ("this century", peek32(wall + 4)),
        peek32(wall + 4) > 1_700_000_000 && peek32(wall + 8) < 1_000_000_000,
    );
    t.eq("the version is even", peek32(wall) & 1, 0);
}

fn hostile_places(t: &mut Test) {
    let end = memory_end();
    for register in [msr::SYSTEM_TIME, msr::SYSTEM_TIME_OLD, msr::WALL_CLOCK, msr::WALL_CLOCK_OLD] {
        if !needs(register).is_some_and(offered) {
            continue;
        }
        for place in [end, end - 8, end - 1, 0xfee0_0000, 1 << 46, 1 << 52, u64::MAX, u64::MAX - 31, 2, 3] {
            t.holds(("is kept", register, place), set(register, place | 1));
        }
        t.holds("none", set(register, 0));
    }
    if offered(5) {
        for place in [end, 0xfee0_0000, 1 << 46, !63] {
            t.holds(("steal", place), set(msr::STEAL_TIME, place | 1));
        }
        t.holds("none", set(msr::STEAL_TIME, 0));
    } else {
        t.holds("no steal time", !set(msr::STEAL_TIME, end | 1));
    }
}

fn steal_and_eoi(t: &mut Test) {
    let page = paging::page();
    if offered(5) {
        for bit in 1..6 {
            refused(t, "a reserved bit", msr::STEAL_TIME, page | 1 | 1 << bit);
        }
        kept(t, "an area", msr::STEAL_TIME, page | 1);
        t.eq("it runs", peek32(page + 16), 0);
        kept(t, "none", msr::STEAL_TIME, 0);
    }
    if offered(6) {
        for place in [memory_end() | 1, u64::MAX, page | 3, 1 << 46 | 1] {
            refused(t, "no word", msr::PV_EOI_EN, place);
        }
        kept(t, "a word", msr::PV_EOI_EN, (page + 64) | 1);
        kept(t, "none", msr::PV_EOI_EN, 0);
    } else {
        t.holds("no word", !set(msr::PV_EOI_EN, page | 1));
    }
}

fn vmcall(number: u64, arguments: [u64; 4]) -> u64 {
    call_by(Subject::kernel(code!("vmcall")), number, arguments)
}

fn call_by(subject: Subject, number: u64, [a, b, c, d]: [u64; 4]) -> u64 {
    let subject = subject.with(reg::RAX, number).with(reg::RBX, a).with(reg::RCX, b).with(reg::RDX, c);
    subject.with(reg::RSI, d).run().regs.gpr[reg::RAX]
}

fn calls(t: &mut Test) {
    if base().is_none() {
        return t.event("no interface", &Subject::kernel(code!("vmcall")).run(), Expect::fault(vector::UD));
    }
    let needs = |number| match number {
        call::VAPIC_POLL_IRQ | call::CLOCK_PAIRING => Some(true),
        call::KICK_CPU => Some(offered(7)),
        call::SEND_IPI => Some(offered(11)),
        call::SCHED_YIELD => Some(offered(13)),
        _ => None,
    };
    for number in (0..64).chain([1 << 32 | 1, u64::MAX, 1 << 31]) {
        let got = vmcall(number, [u64::MAX; 4]);
        t.eq(("exists", number), got != error::ENOSYS as u64, needs(number) == Some(true));
    }
    let page = paging::page();
    t.eq("a pair of clocks", vmcall(call::CLOCK_PAIRING, [page, 0, 0, 0]), 0);
    t.holds("this century", peek(page) > 1_700_000_000 && peek(page + 16) != 0);
    for place in [memory_end() - 8, memory_end(), u64::MAX, 1 << 46] {
        t.eq(("no place", place), vmcall(call::CLOCK_PAIRING, [place, 0, 0, 0]), error::EFAULT as u64);
    }
    t.eq("another kind", vmcall(call::CLOCK_PAIRING, [page, 1, 0, 0]), error::EOPNOTSUPP as u64);
}

fn callers(t: &mut Test) {
    if base().is_none() {
        return t.event("no interface", &Subject::user(code!("vmcall")).run(), Expect::fault(vector::UD));
    }
    let number = call::VAPIC_POLL_IRQ;
    t.eq("VMCALL", call_by(Subject::kernel(code!("vmcall")), number, [0; 4]), 0);
    t.eq("VMMCALL", call_by(Subject::kernel(code!("vmmcall")), number, [0; 4]), 0);
    t.eq("user mode", call_by(Subject::user(code!("vmcall")), number, [0; 4]), error::EPERM as u64);
    let compat = call_by(Subject::compat(code!(".code32" => "vmcall")), number, [0; 4]);
    t.eq("user mode, 32 bits", compat, u64::from(error::EPERM as u32));
}

fn ipis(t: &mut Test) {
    if base().is_none() {
        return t.event("no interface", &Subject::kernel(code!("vmmcall")).run(), Expect::fault(vector::UD));
    }
    if !offered(11) {
        return t.eq("no such call", vmcall(call::SEND_IPI, [1, 0, 0, 0x40]), error::ENOSYS as u64);
    }
    for icr in [1 << 11, 1 << 18, 1 << 19, 0x200, 0x500, 0x600, 0x700] {
        t.eq(("refused", icr), vmcall(call::SEND_IPI, [1, 0, 0, icr | 0x40]), error::EINVAL as u64);
    }
    t.eq("nobody", vmcall(call::SEND_IPI, [0, 0, 0, 0x40]), 0);
    for first in [256, 1 << 32, u64::MAX] {
        t.eq(("nobody there", first), vmcall(call::SEND_IPI, [u64::MAX, u64::MAX, first, 0x40]), 0);
    }
}
