//! Xen's interface for PVH guests: every call with right and wrong arguments, from every caller; no number, address or index
//! harms the monitor.

#![no_std]
#![no_main]

use satori_guests::defs::xen::{call, errno, param, virq};
use satori_guests::hyperv::{memory_end, peek, peek32, poke};
use satori_guests::msr::{get, set};
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, code, guest, insn, paging};

guest!(
    "xen",
    leaves,
    page,
    callers,
    unknown,
    hostile_addresses,
    versions,
    shared_page,
    ports,
    timers,
    console,
    lists,
);

fn present() -> bool {
    let [_, ebx, ecx, edx] = insn::cpuid(0x4000_0000, 0);
    (ebx, ecx, edx) == (0x566e_6558, 0x6558_4d4d, 0x4d4d_566e)
}

fn leaves(t: &mut Test) {
    t.holds("Xen is there", present());
    t.eq("the highest leaf", insn::cpuid(0x4000_0000, 0)[0], 0x4000_0004);
    let [pages, msr, ..] = insn::cpuid(0x4000_0002, 0);
    t.eq("one page, by this MSR", (pages, msr), (1, 0x4000_0000));
    let [eax, vcpu, domain, _] = insn::cpuid(0x4000_0004, 0);
    t.eq(("vCPU, domain and vector", eax), (eax & 0x58, vcpu, domain), (0x58, 0, 1));
}

fn page(t: &mut Test) {
    let page = paging::page();
    t.holds("the page", set(0x4000_0000, page));
    t.eq("it reads 0", get(0x4000_0000), Some(0));
    t.eq("a stub", peek32(page + 32 * 17), 0x11b8);
    t.holds("no page there", !set(0x4000_0000, memory_end()) && !set(0x4000_0000, u64::MAX));
}

fn by(subject: Subject, number: u64, [a, b, c]: [u64; 3]) -> i64 {
    let subject = subject.with(reg::RAX, number).with(reg::RDI, a).with(reg::RSI, b).with(reg::RDX, c);
    subject.run().regs.gpr[reg::RAX] as i64
}

fn hypercall(number: u64, arguments: [u64; 3]) -> i64 {
    by(Subject::kernel(code!("vmcall")), number, arguments)
}

/// The call with these words as its structure.
fn with(number: u64, command: u64, structure: &[u64]) -> (i64, u64) {
    let page = paging::page();
    for (at, word) in (page..).step_by(8).zip(structure) {
        poke(at, *word);
    }
    (hypercall(number, [command, page, 0]), page)
}

fn words(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn callers(t: &mut Test) {
    let version = [0; 3];
    t.eq("VMCALL", hypercall(call::XEN_VERSION, version), 4 << 16 | 17);
    t.eq("VMMCALL", by(Subject::kernel(code!("vmmcall")), call::XEN_VERSION, version), 4 << 16 | 17);
    t.eq("user mode", by(Subject::user(code!("vmcall")), call::XEN_VERSION, version), errno::EPERM);
    let compat = by(Subject::compat(code!(".code32" => "vmcall")), call::XEN_VERSION, version);
    t.eq("user mode, 32 bits", compat as u32, errno::EPERM as u32);
}

const CALLS: [u64; 11] = [
    call::MEMORY,
    call::MULTICALL,
    call::SET_TIMER,
    call::XEN_VERSION,
    call::CONSOLE_IO,
    call::GRANT_TABLE,
    call::VM_ASSIST,
    call::VCPU,
    call::SCHED,
    call::EVENT_CHANNEL,
    call::HVM,
];

fn unknown(t: &mut Test) {
    for number in (0..64).chain([1 << 32 | 17, u64::MAX]).filter(|number| !CALLS.contains(number)) {
        t.eq(("no call", number), hypercall(number, [0; 3]), errno::ENOSYS);
    }
}

/// Every command of every call at addresses that lead nowhere, or not far enough. What stops the machine or this vCPU is left out.
fn hostile_addresses(t: &mut Test) {
    let wrong = [1 << 46, 0x7fff_ffff_f000, 1 << 63, u64::MAX - 7, u64::MAX, 0xffff_8000_0000_0000];
    for number in CALLS.into_iter().filter(|number| *number != call::SET_TIMER) {
        for command in (0..40).chain([u64::from(u32::MAX)]) {
            // Blocking ends with an event, of which there is none.
            if (number, command) == (call::SCHED, 1) || (number, command) == (call::VCPU, 11) {
                continue;
            }
            for place in wrong {
                let _ = hypercall(number, [command, place, place]);
                let _ = hypercall(number, [command, 1 << 45, place]);
            }
        }
    }
    t.eq("still there", hypercall(call::XEN_VERSION, [0; 3]), 4 << 16 | 17);
    for place in wrong {
        t.eq(("features", place), hypercall(call::XEN_VERSION, [6, place, 0]), errno::EFAULT);
        t.eq(("a port", place), hypercall(call::EVENT_CHANNEL, [4, place, 0]), errno::EFAULT);
        t.eq(("a parameter", place), hypercall(call::HVM, [1, place, 0]), errno::EFAULT);
        t.eq(("a reason", place), hypercall(call::SCHED, [2, place, 0]), errno::EFAULT);
    }
}

fn versions(t: &mut Test) {
    let (result, features) = with(call::XEN_VERSION, 6, &[0]);
    t.eq("features", (result, peek32(features + 4) & 0x305), (0, 0x305));
    t.eq("a map too many", with(call::XEN_VERSION, 6, &[2]).0, errno::EINVAL);
    t.eq("pages of 4 KiB", hypercall(call::XEN_VERSION, [7, 0, 0]), 4096);
}

/// A page for the shared_info, mapped.
fn shared() -> u64 {
    let page = paging::page();
    assert!(with(call::MEMORY, 7, &[0x7ff0, 0, page >> 12]).0 == 0, "shared_info");
    page
}

fn shared_page(t: &mut Test) {
    for gfn in [memory_end() >> 12, 1 << 34, u64::MAX, 1 << 52, 0xfee00] {
        t.eq(("no RAM", gfn), with(call::MEMORY, 7, &[0x7ff0, 0, gfn]).0, errno::EINVAL);
    }
    let first = shared();
    t.holds("its time is there", peek32(first + 32) != 0 && peek32(first + 32) & 1 == 0);
    t.holds("so is the wall clock", peek32(first + 0xc04) > 1_700_000_000);
    t.eq("all ports are masked", peek(first + 0xa00), u64::MAX);
    poke(first + 0x800, 1 << 63);
    let second = shared();
    t.eq("it moves with what it holds", peek(second + 0x800), 1 << 63);
    poke(second + 0x800, 0);
}

fn ports(t: &mut Test) {
    let shared = shared();
    let (result, at) = with(call::EVENT_CHANNEL, 7, &[0]);
    let port = peek32(at + 4);
    t.eq("an IPI", result, 0);
    t.eq("sent", with(call::EVENT_CHANNEL, 4, &[port.into()]).0, 0);
    t.eq("pending", peek(shared + 0x800) >> port & 1, 1);
    t.eq("masked, so nobody is told", peek(shared) & 0xff, 0);
    t.eq("unmasked", with(call::EVENT_CHANNEL, 9, &[port.into()]).0, 0);
    t.eq("told", (peek(shared) & 0xff, peek(shared + 8)), (1, 1));
    t.eq("closed", with(call::EVENT_CHANNEL, 3, &[port.into()]).0, 0);
    for wrong in [0, port, 4095, 4096, 1 << 20, u32::MAX] {
        for command in [3, 4, 9] {
            t.eq(
                ("no port", command, wrong),
                with(call::EVENT_CHANNEL, command, &[wrong.into()]).0,
                errno::EINVAL,
            );
        }
    }
    let mut most = 0;
    while with_port(7) == 0 && most < 5000 {
        most += 1;
    }
    t.holds(("no more than there are", most), most > 4000 && most < 4096);
    t.eq("full", with_port(7), errno::ENOSPC);
    t.eq("reset", with(call::EVENT_CHANNEL, 10, &[0x7ff0]).0, 0);
}

/// The command on a zeroed structure at one place, as pages are not given back.
fn with_port(command: u64) -> i64 {
    static STRUCTURE: [core::sync::atomic::AtomicU64; 3] =
        [const { core::sync::atomic::AtomicU64::new(0) }; 3];
    hypercall(call::EVENT_CHANNEL, [command, STRUCTURE.as_ptr() as u64, 0])
}

fn timers(t: &mut Test) {
    let shared = shared();
    let (result, at) = with(call::EVENT_CHANNEL, 1, &[words(virq::TIMER, 0), 0]);
    let port = peek32(at + 8);
    t.eq("VIRQ_TIMER", result, 0);
    t.eq("twice", with(call::EVENT_CHANNEL, 1, &[words(virq::TIMER, 0), 0]).0, errno::EEXIST);
    t.eq("no such", with(call::EVENT_CHANNEL, 1, &[words(virq::COUNT, 0), 0]).0, errno::EINVAL);
    // A time that is over fires at once: the poll finds it.
    t.eq("a timer", hypercall(call::SET_TIMER, [1, 0, 0]), 0);
    let list = paging::page();
    poke(list, port.into());
    t.eq("a poll", with(call::SCHED, 3, &[list, 1, 0]).0, 0);
    t.eq("pending", peek(shared + 0x800) >> port & 1, 1);
    poke(shared + 0x800, 0);
    let (result, _) = with(call::SCHED, 3, &[list, 1, 1]);
    t.eq("a poll whose time is over", (result, peek(shared + 0x800)), (0, 0));
    t.eq("too many ports", with(call::SCHED, 3, &[list, 129, 1]).0, errno::EINVAL);
    poke(list, u64::from(u32::MAX));
    t.eq("no such port", with(call::SCHED, 3, &[list, 1, 1]).0, errno::EINVAL);
    t.eq("stopped", hypercall(call::SET_TIMER, [0, 0, 0]), 0);
    t.eq("reset", with(call::EVENT_CHANNEL, 10, &[0x7ff0]).0, 0);
}

fn console(t: &mut Test) {
    let (result, at) = with(call::HVM, 1, &[words(0x7ff0, param::CONSOLE_PFN), 0]);
    let ring = peek(at + 8) << 12;
    let (second, at) = with(call::HVM, 1, &[words(0x7ff0, param::CONSOLE_EVTCHN), 0]);
    let port = peek(at + 8);
    t.eq("its parameters", (result, second), (0, 0));
    for (consumed, produced) in [(0, u32::MAX), (1 << 31, 0), (7, 2056), (u32::MAX, u32::MAX - 1)] {
        poke(ring + 3080, words(consumed, produced));
        t.eq(("hostile indices", consumed, produced), with(call::EVENT_CHANNEL, 4, &[port]).0, 0);
        t.eq("nothing is taken", peek(ring + 3080), words(consumed, produced));
    }
    poke(ring + 3080, 0);
    t.eq(
        "a parameter that nobody may set",
        with(call::HVM, 0, &[words(0x7ff0, param::CONSOLE_PFN), 1]).0,
        errno::EPERM,
    );
    t.eq("another domain", with(call::HVM, 1, &[words(5, param::CONSOLE_PFN), 0]).0, errno::ESRCH);
}

fn lists(t: &mut Test) {
    let list = paging::page();
    poke(list, call::XEN_VERSION);
    poke(list + 16, 7);
    poke(list + 64, call::MULTICALL);
    t.eq("one", hypercall(call::MULTICALL, [list, 1, 0]), 0);
    t.eq("its result", peek(list + 8), 4096);
    t.eq("a list in a list", hypercall(call::MULTICALL, [list, 2, 0]), errno::EINVAL);
    t.eq("a list that leads nowhere", hypercall(call::MULTICALL, [u64::MAX - 63, 2, 0]), errno::EFAULT);
}
