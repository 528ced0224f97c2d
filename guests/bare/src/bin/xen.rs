//! Xen's interface for PVH and, with `hvm=yes`, HVM guests: every call with right and wrong arguments, from every caller; no number, address or index
//! harms the monitor.

#![no_std]
#![no_main]

use satori_guests::defs::apic as registers;
use satori_guests::defs::chipset::{ioapic, mmio, port};
use satori_guests::defs::xen::{call, errno, param, virq};
use satori_guests::harness::option;
use satori_guests::hyperv::{interrupt_within, memory_end, peek, peek32, poke};
use satori_guests::msr::{get, set};
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, apic, code, guest, insn, paging};

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
    callback_vector,
    interrupt_lines,
    own_vectors,
    platform_device,
);

/// Where Xen's leaves begin: behind others, if there are some.
fn base() -> u32 {
    let named = |base: &u32| {
        let [_, ebx, ecx, edx] = insn::cpuid(*base, 0);
        (ebx, ecx, edx) == (0x566e_6558, 0x6558_4d4d, 0x4d4d_566e)
    };
    [0x4000_0000, 0x4000_0100].into_iter().find(named).unwrap_or(0)
}

fn leaves(t: &mut Test) {
    t.holds("Xen is there", base() != 0);
    t.eq("the highest leaf", insn::cpuid(base(), 0)[0], base() + 4);
    let behind = base() != 0x4000_0000;
    let [pages, msr, ..] = insn::cpuid(base() + 2, 0);
    t.eq("one page, by this MSR", (pages, msr), (1, if behind { 0x4000_0200 } else { 0x4000_0000 }));
    let [eax, vcpu, domain, _] = insn::cpuid(base() + 4, 0);
    t.eq(("vCPU and domain", eax), (eax & 0x18, vcpu, domain), (0x18, 0, 1));
}

fn page(t: &mut Test) {
    let (page, msr) = (paging::page(), insn::cpuid(base() + 2, 0)[1]);
    t.holds("the page", set(msr, page));
    t.eq("it reads 0", get(msr), Some(0));
    t.eq("a stub", peek32(page + 32 * 17), 0x11b8);
    t.holds("no page there", !set(msr, memory_end()) && !set(msr, u64::MAX));
    if msr == 0x4000_0000 {
        t.holds("no other register", !set(0x4000_0200, page) && get(0x4000_0200).is_none());
        return;
    }
    // Hyper-V's own page says that its calls are Hyper-V's: or eax, 1 << 31.
    let own = paging::page();
    t.holds("an identity", set(0x4000_0000, 1 << 48 | 1) && set(0x4000_0001, own | 1));
    t.eq("its page", (peek32(own), peek32(own + 4) & 0xff), (0x0000_000d, 0x80));
    let call =
        Subject::kernel(code!("call rbx")).with(reg::RBX, own).with(reg::RCX, 0xffff).with(reg::RAX, 17);
    let call = call.run();
    t.eq("Hyper-V answers: no such call", (call.done(), call.regs.gpr[reg::RAX] & 0xffff), (true, 2));
    t.eq("and Xen beside", hypercall(call::XEN_VERSION, [7, 0, 0]), 4096);
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
    // With bit 31 set it would be Hyper-V's, if that is there.
    let last = if base() == 0x4000_0000 { u64::MAX } else { !(1 << 31) };
    for number in (0..64).chain([1 << 32 | 17, last]).filter(|number| !CALLS.contains(number)) {
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
    for gfn in [1 << 34, u64::MAX, 1 << 52, 0xfec00, 0xfed00, 0xfee00] {
        t.eq(("no place", gfn), with(call::MEMORY, 7, &[0x7ff0, 0, gfn]).0, errno::EINVAL);
    }
    t.eq("behind RAM", with(call::MEMORY, 7, &[0x7ff0, 0, memory_end() >> 12]).0, 0);
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

/// HVM_PARAM_CALLBACK_IRQ.
fn set_callback(kind: u64, value: u64) -> i64 {
    with(call::HVM, 0, &[words(0x7ff0, param::CALLBACK_IRQ), kind << param::CALLBACK_TYPE_SHIFT | value]).0
}

/// An IPI of the first vCPU, unmasked; its port.
fn own_port() -> u64 {
    let (result, at) = with(call::EVENT_CHANNEL, 7, &[0]);
    let port = peek32(at + 4).into();
    assert!(result == 0 && with(call::EVENT_CHANNEL, 9, &[port]).0 == 0, "an IPI");
    port
}

fn send(port: u64) {
    assert!(with(call::EVENT_CHANNEL, 4, &[port]).0 == 0, "sent");
}

/// Looks at the events in the page `shared`, as a handler does.
fn look(shared: u64) {
    poke(shared, 0);
    poke(shared + 8, 0);
    poke(shared + 0x800, 0);
}

/// Ticks in which an interrupt that waits comes, and in which none comes.
const SOON: u64 = 3_000_000;

fn callback_vector(t: &mut Test) {
    const VECTOR: u8 = 0x24;
    let (shared, port) = (shared(), own_port());
    look(shared);
    apic::enable();
    // No priority holds it back, and it is in no register of the APIC's.
    apic::write(registers::TPR, 0xff);
    t.eq("chosen", set_callback(param::CALLBACK_VECTOR, VECTOR.into()), 0);
    t.eq("nothing yet", interrupt_within(SOON), None);
    send(port);
    t.eq("it comes", interrupt_within(SOON), Some(VECTOR));
    t.eq("and again, as nobody looked", interrupt_within(SOON), Some(VECTOR));
    t.holds("past the APIC", !apic::bit(registers::ISR, VECTOR) && !apic::bit(registers::IRR, VECTOR));
    look(shared);
    t.eq("looked", interrupt_within(SOON), None);
    // It wakes HLT; the timer's event comes while the vCPU sleeps.
    let (result, at) = with(call::EVENT_CHANNEL, 1, &[words(virq::TIMER, 0), 0]);
    t.eq("a timer", (result, with(call::EVENT_CHANNEL, 9, &[peek32(at + 8).into()]).0), (0, 0));
    t.eq("set", hypercall(call::SET_TIMER, [1, 0, 0]), 0);
    let event = Subject::kernel(code!("sti", "hlt" => "2: jmp 2b")).run();
    t.eq("out of HLT", event.vector, VECTOR);
    look(shared);
    t.eq("other vectors", set_callback(param::CALLBACK_VECTOR, 0xf1), 0);
    send(port);
    t.eq("the new one", interrupt_within(SOON), Some(0xf1));
    t.eq("no callback any more", set_callback(param::CALLBACK_GSI, 0), 0);
    t.eq("silence", interrupt_within(SOON), None);
    look(shared);
    apic::write(registers::TPR, 0);
    t.eq("reset", with(call::EVENT_CHANNEL, 10, &[0x7ff0]).0, 0);
}

/// Lets the I/O APIC send `vector`, level-triggered, for `pin`; or masks the pin.
fn route(pin: u8, vector: Option<u8>) {
    let low = vector.map_or(ioapic::MASK, |vector| u64::from(vector) | ioapic::TRIGGER_MODE);
    for (half, value) in [(1, 0), (0, low as u32)] {
        // SAFETY: the I/O APIC's registers are mapped.
        unsafe {
            let select = (mmio::IOAPIC + ioapic::IOREGSEL) as *mut u32;
            select.write_volatile(u32::from(ioapic::IOREDTBL + 2 * pin + half));
            ((mmio::IOAPIC + ioapic::IOWIN) as *mut u32).write_volatile(value);
        }
    }
}

fn interrupt_lines(t: &mut Test) {
    const VECTOR: u8 = 0x61;
    let (shared, port) = (shared(), own_port());
    look(shared);
    apic::enable();
    // A line by its number; a pin of a device: the fourth of device 2.
    let ways = [(param::CALLBACK_GSI, 5, 5), (param::CALLBACK_INTX, 2 << 11 | 3, 16 + (2 + 3) % 4)];
    for (kind, value, pin) in ways {
        route(pin, Some(VECTOR));
        t.eq(("chosen", kind), set_callback(kind, value), 0);
        t.eq(("nothing yet", kind), interrupt_within(SOON), None);
        send(port);
        t.eq(("it comes", kind), interrupt_within(SOON), Some(VECTOR));
        t.holds(("in service", kind), apic::bit(registers::ISR, VECTOR));
        t.eq(("once before its end", kind), interrupt_within(SOON), None);
        apic::eoi();
        t.eq(("the level stays, as nobody looked", kind), interrupt_within(SOON), Some(VECTOR));
        look(shared);
        apic::eoi();
        t.eq(("looked before the end", kind), interrupt_within(SOON), None);
        send(port);
        t.eq(("the next", kind), interrupt_within(SOON), Some(VECTOR));
        look(shared);
        apic::eoi();
        route(pin, None);
    }
    // No such line, no such type, a line that is off: nobody hears, and nothing breaks.
    for (kind, value) in
        [(0, 255), (0, 24), (0, 0), (3, 5), (0xff, u64::MAX >> 8), (param::CALLBACK_INTX, 0xffff)]
    {
        t.eq(("odd", kind, value), set_callback(kind, value), 0);
        send(port);
        look(shared);
    }
    t.eq("off", set_callback(0, 0), 0);
    t.eq("reset", with(call::EVENT_CHANNEL, 10, &[0x7ff0]).0, 0);
}

fn own_vectors(t: &mut Test) {
    const VECTOR: u8 = 0x52;
    if insn::cpuid(base() + 4, 0)[0] & 1 << 6 == 0 {
        t.eq("not offered", with(call::HVM, 23, &[words(0, VECTOR.into())]).0, errno::ENOSYS);
        return;
    }
    let (shared, port) = (shared(), own_port());
    look(shared);
    apic::enable();
    route(5, Some(0x61));
    t.eq("a line", set_callback(param::CALLBACK_GSI, 5), 0);
    t.eq("reserved", with(call::HVM, 23, &[words(0, 0xf)]).0, errno::EINVAL);
    t.eq("no such vCPU", with(call::HVM, 23, &[words(1000, VECTOR.into())]).0, errno::ENOENT);
    t.eq("a vector", with(call::HVM, 23, &[words(0, VECTOR.into())]).0, 0);
    send(port);
    t.eq("it comes, and no line", interrupt_within(SOON), Some(VECTOR));
    t.holds("in service", apic::bit(registers::ISR, VECTOR));
    apic::eoi();
    t.eq("an edge", interrupt_within(SOON), None);
    look(shared);
    send(port);
    apic::write(registers::TPR, 0xff);
    t.eq("held back by the priority", interrupt_within(SOON), None);
    apic::write(registers::TPR, 0);
    t.eq("then there", interrupt_within(SOON), Some(VECTOR));
    apic::eoi();
    look(shared);
    route(5, None);
    t.eq("off", set_callback(0, 0), 0);
    t.eq("reset", with(call::EVENT_CHANNEL, 10, &[0x7ff0]).0, 0);
}

fn in16(port: u16) -> u16 {
    Subject::kernel(code!("in ax, dx")).with(reg::RDX, port.into()).run().regs.gpr[reg::RAX] as u16
}

fn out16(port: u16, value: u16) {
    Subject::kernel(code!("out dx, ax")).with(reg::RDX, port.into()).with(reg::RAX, value.into()).run();
}

/// A register of the platform device's configuration space.
fn configuration(register: u32) {
    insn::out32(port::PCI_ADDRESS, 1 << 31 | 30 << 11 | register);
}

fn platform_device(t: &mut Test) {
    configuration(0);
    let there = insn::in32(port::PCI_DATA);
    if option("hvm").is_none() {
        // A PVH guest has neither the ports nor the device.
        t.eq("no ports", (in16(0x10), insn::in8(0x12), insn::in32(0x10)), (0xffff, 0xff, u32::MAX));
        t.eq("no device", there, u32::MAX);
        return;
    }
    t.eq("the protocol", (in16(0x10), insn::in8(0x12)), (0x49d2, 1));
    out16(0x12, 3);
    insn::out32(0x10, 1);
    t.eq("not on a blacklist", in16(0x10), 0x49d2);
    out16(0x10, 3);
    for byte in b"log\n\x1b\xff" {
        insn::out8(0x12, *byte);
    }
    t.eq("still there", (in16(0x10), insn::in8(0x10), insn::in8(0x1f)), (0x49d2, 0, 0xff));
    t.eq("the device", there, 0x0001_5853);
    configuration(0x10);
    let ports = insn::in32(port::PCI_DATA);
    configuration(0x14);
    let memory = u64::from(insn::in32(port::PCI_DATA) & !0xf);
    t.holds(("ports and memory", ports, memory), ports & 1 != 0 && memory > memory_end());
    configuration(4);
    insn::out32(port::PCI_DATA, 3);
    // Grants are placed there.
    t.eq("a frame", with(call::MEMORY, 7, &[words(0x7ff0, 1), 0, memory >> 12]).0, 0);
    poke(memory + 8, 0x1234_5678_0001_0001);
    t.eq("it is memory", peek(memory + 8), 0x1234_5678_0001_0001);
    poke(memory + 8, 0);
}
