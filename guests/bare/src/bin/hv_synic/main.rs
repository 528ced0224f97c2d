//! The synthetic interrupt controller: its registers, sources, message slots and event flags. With QEMU's
//! hyperv-testdev (`testdev=on` on the command line says that it is there) also everything that comes in.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

mod controller;
mod hostile;

use controller::operation::*;
use controller::*;
use hostile::{hostile_requests, hostile_slots};
use satori_guests::apic::{self, bit};
use satori_guests::defs::apic::{IRR, ISR};
use satori_guests::defs::hyperv::synic::message::{HYPERVISOR, PAYLOAD, PENDING, SENDER, SIZE_AND_FLAGS};
use satori_guests::defs::hyperv::synic::{SINT_AUTO_EOI, SINT_MASKED, SINT_POLLING, SINTS, SLOT_BYTES};
use satori_guests::defs::hyperv::{PAGE_ENABLE, Status, call as code, msr};
use satori_guests::hyperv::bit::{POST_MESSAGES, SIGNAL_EVENTS, SYNIC};
use satori_guests::hyperv::{self as hv, Control, call, fill, filled, interrupt_within, peek, peek32, poke};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::{Test, guest, insn, paging, smp};

guest!(
    "hv_synic",
    registers,
    of_each_processor,
    sources,
    auto_eoi,
    message_slots,
    messages_wait,
    acknowledged_by_eoi,
    message_statuses,
    event_flags,
    event_statuses,
    through_the_host,
    to_other_processors,
    pages_apart,
    hostile_slots,
    hostile_requests,
);

fn registers(t: &mut Test) {
    if !SYNIC.offered() {
        return skipped(t);
    }
    // Values after reset (TLFS 11.8).
    for (register, value) in
        [(msr::SCONTROL, 0), (msr::SVERSION, 1), (msr::SIEFP, 0), (msr::SIMP, 0), (msr::EOM, 0)]
    {
        t.eq(("at first", register), get(register), Some(value));
    }
    for register in msr::SINT0..=msr::SINT15 {
        t.eq(("at first", register), get(register), Some(SINT_MASKED));
        for vector in 0..=0xff {
            kept(t, "masked", register, vector | SINT_MASKED);
            if vector < 16 {
                for more in [0, SINT_AUTO_EOI, SINT_POLLING] {
                    refused(t, "a vector below 16", register, vector | more);
                }
            } else {
                kept(t, "any vector", register, vector | ((vector & 1) * SINT_AUTO_EOI));
            }
        }
        kept(t, "polling", register, 0x30 | SINT_POLLING);
        kept(t, "as at first", register, SINT_MASKED);
    }
    for value in [0, 1, u64::MAX] {
        refused(t, "read-only", msr::SVERSION, value);
        t.holds("EOM takes anything", set(msr::EOM, value));
        t.eq("EOM reads 0", get(msr::EOM), Some(0));
    }
    kept(t, "on", msr::SCONTROL, 1);
    kept(t, "off", msr::SCONTROL, 0);
}

static READ: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];

fn of_each_processor(t: &mut Test) {
    if !SYNIC.offered() {
        return skipped(t);
    }
    smp::on_all(smp::count(), |number| {
        insn::wrmsr(msr::SINT0 + 5, 0x50 + number as u64);
        insn::wrmsr(msr::SCONTROL, number as u64 & 1);
    });
    smp::on_all(smp::count(), |number| {
        READ[number].store(insn::rdmsr(msr::SINT0 + 5) << 8 | insn::rdmsr(msr::SCONTROL), Ordering::SeqCst);
        insn::wrmsr(msr::SINT0 + 5, SINT_MASKED);
        insn::wrmsr(msr::SCONTROL, 0);
    });
    for (number, read) in READ.iter().enumerate().take(smp::count()) {
        let number = number as u64;
        t.eq(("its own", number), read.load(Ordering::SeqCst), (0x50 + number) << 8 | number & 1);
    }
}

fn sources(t: &mut Test) {
    if !testdev() {
        return skipped(t);
    }
    let _pages = turn_on();
    let own = hv::vp_index(0);
    for sint in 0..SINTS as u32 {
        let register = msr::SINT0 + sint;
        insn::wrmsr(register, 0x40 + u64::from(sint));
        request(RAISE, 0, own, sint);
        t.eq(("no route yet", sint), came(), None);
        request(CREATE_ROUTE, 0, own, sint);
        request(RAISE, 0, own, sint);
        t.eq(("raised", sint), came(), Some(0x40 + sint as u8));
        request(RAISE, 0, own, sint);
        request(RAISE, 0, own, sint);
        t.eq(("twice is once", sint), (came(), came()), (Some(0x40 + sint as u8), None));
        insn::wrmsr(register, 0x40 | SINT_MASKED);
        request(RAISE, 0, own, sint);
        t.eq(("masked", sint), came(), None);
        insn::wrmsr(register, 0x40 | SINT_POLLING);
        request(RAISE, 0, own, sint);
        t.eq(("polled", sint), came(), None);
        insn::wrmsr(register, 0x40);
        insn::wrmsr(msr::SCONTROL, 0);
        request(RAISE, 0, own, sint);
        t.eq(("controller off", sint), came(), None);
        insn::wrmsr(msr::SCONTROL, 1);
        t.eq(("nothing was kept", sint), came(), None);
        request(DESTROY_ROUTE, 0, own, sint);
        request(RAISE, 0, own, sint);
        t.eq(("the route is gone", sint), came(), None);
    }
    // Two sources, one vector.
    for sint in [3, 4] {
        insn::wrmsr(msr::SINT0 + sint, 0x55);
        request(CREATE_ROUTE, 0, own, sint);
        request(RAISE, 0, own, sint);
    }
    t.eq("one interrupt", (came(), came()), (Some(0x55), None));
    for sint in [3, 4] {
        request(DESTROY_ROUTE, 0, own, sint);
    }
}

fn auto_eoi(t: &mut Test) {
    if !testdev() {
        return skipped(t);
    }
    let _pages = turn_on();
    let own = hv::vp_index(0);
    request(CREATE_ROUTE, 0, own, 2);
    for (value, ends) in [(0x61, false), (0x61 | SINT_AUTO_EOI, true), (0x61, false)] {
        insn::wrmsr(msr::SINT0 + 2, value);
        request(RAISE, 0, own, 2);
        t.holds((value, "requested"), bit(IRR, 0x61));
        t.eq((value, "comes"), interrupt_within(LONG), Some(0x61));
        t.eq((value, "in service"), bit(ISR, 0x61), !ends);
        // A second one comes at once where the first has ended, else after its EOI.
        request(RAISE, 0, own, 2);
        t.eq((value, "the next"), interrupt_within(LONG), ends.then_some(0x61));
        apic::eoi();
        t.eq((value, "after an EOI"), interrupt_within(LONG), (!ends).then_some(0x61));
        apic::eoi();
    }
    // Only by the source's vector: an IPI with another one is ended as ever.
    insn::wrmsr(msr::SINT0 + 2, 0x61 | SINT_AUTO_EOI);
    apic::send_self(0x62);
    t.eq("another vector", interrupt_within(LONG), Some(0x62));
    t.holds("is in service", bit(ISR, 0x62));
    apic::eoi();
    request(DESTROY_ROUTE, 0, own, 2);
}

fn message_slots(t: &mut Test) {
    let Some(Rig { pages, page, block, own }) = rig(t, &POST_MESSAGES) else { return };
    for (sint, size) in [(1u32, 0u32), (2, 1), (7, 8), (14, 239), (15, 240), (2, 240)] {
        insn::wrmsr(msr::SINT0 + sint, 0x60 + u64::from(sint));
        request(CREATE_OWN_MESSAGES, 9, own, sint);
        t.eq(("posted", sint, size), post(page, block, 9, 0x1234, size, 0xa5), SUCCESS);
        t.eq(("interrupts", sint), came(), Some(0x60 + sint as u8));
        let slot = pages.slot(sint);
        t.eq(("type", sint), peek32(slot), 0x1234);
        t.eq(("size and flags", sint), peek32(slot + SIZE_AND_FLAGS), size);
        t.holds(("a sender", sint), peek(slot + SENDER) >> 24 == 0);
        let good = (0..u64::from(size)).all(|at| {
            // SAFETY: within the slot.
            unsafe { ((slot + PAYLOAD + at) as *const u8).read_volatile() == 0xa5 }
        });
        t.holds(("payload", sint, size), good);
        t.holds(("taken", sint), pages.take(sint).is_some());
        t.eq(("no more", sint), (came(), pages.take(sint)), (None, None));
        // Masked and polled sources get messages, too.
        for quiet in [SINT_MASKED, SINT_POLLING] {
            insn::wrmsr(msr::SINT0 + sint, (0x60 + u64::from(sint)) | quiet);
            t.eq(("posted quietly", sint, quiet), post(page, block, 9, 7, 8, 1), SUCCESS);
            t.eq(("quiet", sint, quiet), (came(), pages.take(sint).map(|m| m.0)), (None, Some(7)));
        }
        request(DESTROY_OWN_MESSAGES, 9, own, sint);
        insn::wrmsr(msr::SINT0 + sint, SINT_MASKED);
    }
    let others = (0..SINTS as u64).all(|sint| peek32(pages.messages + SLOT_BYTES * sint) == 0);
    t.holds("no other slot was touched", others);
}

fn messages_wait(t: &mut Test) {
    let Some(Rig { pages, page, block, own }) = rig(t, &POST_MESSAGES) else { return };
    insn::wrmsr(msr::SINT0 + 3, 0x63);
    request(CREATE_OWN_MESSAGES, 9, own, 3);
    let mut posted = 0;
    let last = loop {
        let status = post(page, block, 9, 100 + posted, 8, posted as u8);
        if status != SUCCESS || posted > 1000 {
            break status;
        }
        posted += 1;
    };
    t.eq("buffers run out", last, Status::InsufficientBuffers as u64);
    t.holds(("several messages wait", posted), (2..=64).contains(&posted));
    t.eq("one interrupt", (came(), came()), (Some(0x63), None));
    t.eq("pending", peek32(pages.slot(3) + SIZE_AND_FLAGS), PENDING | 8);
    // EOM without an empty slot changes nothing.
    insn::wrmsr(msr::EOM, 0);
    t.eq("still the first", (came(), peek32(pages.slot(3))), (None, 100));
    for number in 0..posted {
        let payload = u64::from(number) * 0x0101_0101_0101_0101;
        t.eq(("in order", number), pages.take(3), Some((100 + number, payload)));
        let more = (number + 1 < posted).then_some(0x63);
        t.eq(("the next interrupts", number), came(), more);
    }
    t.eq("all taken", pages.take(3), None);
    t.eq("room again", post(page, block, 9, 5, 8, 5), SUCCESS);
    t.eq("comes", (came(), pages.take(3).map(|m| m.0)), (Some(0x63), Some(5)));
    // Another source is not held up by a busy slot.
    insn::wrmsr(msr::SINT0 + 4, 0x64);
    request(CREATE_OWN_MESSAGES, 10, own, 4);
    t.eq("busy", (post(page, block, 9, 1, 8, 1), post(page, block, 9, 2, 8, 2)), (SUCCESS, SUCCESS));
    t.eq("the other", post(page, block, 10, 3, 8, 3), SUCCESS);
    t.eq("comes", [came(), came()], [Some(0x64), Some(0x63)]);
    t.eq("taken", pages.take(4).map(|m| m.0), Some(3));
    t.eq(
        "both",
        (pages.take(3).map(|m| m.0), came(), pages.take(3).map(|m| m.0)),
        (Some(1), Some(0x63), Some(2)),
    );
    // What waits goes with its port.
    for number in 0..3 {
        post(page, block, 9, 50 + number, 8, 0);
    }
    request(DESTROY_OWN_MESSAGES, 9, own, 3);
    request(DESTROY_OWN_MESSAGES, 10, own, 4);
    t.eq("the one in the slot", pages.take(3).map(|m| m.0), Some(50));
    came();
    insn::wrmsr(msr::EOM, 0);
    t.eq("nothing follows", (came(), pages.take(3)), (None, None));
}

/// A waiting message also comes after the EOI of its source's interrupt (TLFS 11.2).
fn acknowledged_by_eoi(t: &mut Test) {
    let Some(Rig { pages, page, block, own }) = rig(t, &POST_MESSAGES) else { return };
    insn::wrmsr(msr::SINT0 + 3, 0x63);
    request(CREATE_OWN_MESSAGES, 9, own, 3);
    post(page, block, 9, 1, 8, 1);
    post(page, block, 9, 2, 8, 2);
    t.eq("the first", (interrupt_within(LONG), peek32(pages.slot(3))), (Some(0x63), 1));
    poke(pages.slot(3), 0);
    apic::eoi();
    t.eq("the second", (interrupt_within(LONG), peek32(pages.slot(3))), (Some(0x63), 2));
    poke(pages.slot(3), 0);
    apic::eoi();
    t.eq("no third", interrupt_within(LONG), None);
    request(DESTROY_OWN_MESSAGES, 9, own, 3);
}

fn message_statuses(t: &mut Test) {
    if !POST_MESSAGES.offered() {
        return skipped(t);
    }
    let (page, block) = (hv::hypercall_page(), paging::page());
    for connection in [0, 9, 0xff_ffff, u32::MAX] {
        t.eq(
            ("no connection", connection),
            post(page, block, connection, 1, 8, 0),
            Status::InvalidConnectionId as u64,
        );
    }
    if !testdev() {
        return;
    }
    let pages = turn_on();
    let own = hv::vp_index(0);
    request(CREATE_OWN_MESSAGES, 9, own, 3);
    for size in [241, 256, 0x8000_0000, u32::MAX] {
        t.eq(("too long", size), post(page, block, 9, 1, size, 0), Status::InvalidParameter as u64);
    }
    for kind in [0, HYPERVISOR, HYPERVISOR | 0x10, u32::MAX] {
        t.eq(("not a guest's type", kind), post(page, block, 9, kind, 8, 0), Status::InvalidParameter as u64);
    }
    // No such connection, or one whose port is of the wrong kind.
    t.holds("an event to a message's connection", matches!(signal(page, 9, 0), 0x11 | 0x12));
    insn::wrmsr(msr::SIMP, 0);
    t.holds("no page", post(page, block, 9, 1, 8, 0) != SUCCESS);
    insn::wrmsr(msr::SIMP, pages.messages | PAGE_ENABLE);
    insn::wrmsr(msr::SCONTROL, 0);
    t.holds("controller off", post(page, block, 9, 1, 8, 0) != SUCCESS);
    insn::wrmsr(msr::SCONTROL, 1);
    t.eq("nothing came of it", pages.take(3), None);
    t.eq("now it goes", (post(page, block, 9, 1, 8, 0), pages.take(3).is_some()), (SUCCESS, true));
    request(DELETE_MESSAGE_PORT, 9, own, 3);
    t.eq("its port is gone", post(page, block, 9, 1, 8, 0), Status::InvalidPortId as u64);
    request(DESTROY_OWN_MESSAGES, 9, own, 3);
    t.eq("the connection, too", post(page, block, 9, 1, 8, 0), Status::InvalidConnectionId as u64);
}

fn event_flags(t: &mut Test) {
    let Some(Rig { pages, page, block, own }) = rig(t, &SIGNAL_EVENTS) else { return };
    insn::wrmsr(msr::SINT0 + 6, 0x66);
    // The connection's number is its first flag.
    for base in [0u32, 33, 200] {
        request(CREATE_OWN_EVENTS, base, own, 6);
        for flag in [0, 1, 15] {
            let (at, mask) = (pages.flags(6) + u64::from((base + flag) / 32) * 4, 1 << ((base + flag) % 32));
            t.eq(("signalled", base, flag), signal(page, base, flag), SUCCESS);
            t.eq(("interrupts", base, flag), came(), Some(0x66));
            t.eq(("set", base, flag), peek32(at) & mask, mask);
            // Set already: no interrupt.
            t.eq(("again", base, flag), (signal(page, base, flag), came()), (SUCCESS, None));
            // SAFETY: the flags are the guest's.
            unsafe { AtomicU32::from_ptr(at as *mut u32).fetch_and(!mask, Ordering::SeqCst) };
            poke(block, u64::from(flag) << 32 | u64::from(base));
            t.eq(
                ("in memory", base, flag),
                call(page, Control::new(code::SIGNAL_EVENT), block, 0),
                Ok(SUCCESS),
            );
            t.eq(("interrupts again", base, flag), came(), Some(0x66));
        }
        request(DESTROY_OWN_EVENTS, base, own, 6);
    }
    fill(pages.events, 0);
    insn::wrmsr(msr::SINT0 + 6, 0x66 | SINT_POLLING);
    request(CREATE_OWN_EVENTS, 0, own, 6);
    t.eq("polled", (signal(page, 0, 3), came(), peek32(pages.flags(6))), (SUCCESS, None, 8));
    request(DESTROY_OWN_EVENTS, 0, own, 6);
}

fn event_statuses(t: &mut Test) {
    if !SIGNAL_EVENTS.offered() {
        return skipped(t);
    }
    let page = hv::hypercall_page();
    for connection in [0, 9, 0xff_ffff, u32::MAX] {
        t.eq(("no connection", connection), signal(page, connection, 0), Status::InvalidConnectionId as u64);
    }
    if !testdev() {
        return;
    }
    let pages = turn_on();
    let own = hv::vp_index(0);
    insn::wrmsr(msr::SINT0 + 6, 0x66);
    request(CREATE_OWN_EVENTS, 9, own, 6);
    for flag in [16, 17, 2047, 2048, 0xffff] {
        t.eq(("no flag of the port", flag), signal(page, 9, flag), Status::InvalidParameter as u64);
    }
    let reserved = signal(page, 9, 0x1_0000);
    t.holds(("reserved bytes", reserved), matches!(reserved, 3 | 5));
    insn::wrmsr(msr::SIEFP, 0);
    t.holds("no page", signal(page, 9, 0) != SUCCESS);
    insn::wrmsr(msr::SIEFP, pages.events | PAGE_ENABLE);
    insn::wrmsr(msr::SCONTROL, 0);
    t.holds("controller off", signal(page, 9, 0) != SUCCESS);
    insn::wrmsr(msr::SCONTROL, 1);
    insn::wrmsr(msr::SINT0 + 6, 0x66 | SINT_MASKED);
    t.holds("masked", signal(page, 9, 0) != SUCCESS);
    t.holds("nothing was set", filled(pages.events, 0));
    t.eq("nothing came", came(), None);
    request(DELETE_EVENT_PORT, 9, own, 6);
    t.eq("its port is gone", signal(page, 9, 0), Status::InvalidPortId as u64);
    request(DESTROY_OWN_EVENTS, 9, own, 6);
    t.eq("the connection, too", signal(page, 9, 0), Status::InvalidConnectionId as u64);
}

/// As QEMU's device has it: the host takes what comes and sends it back.
fn through_the_host(t: &mut Test) {
    let Some(Rig { pages, page, block, own }) = rig(t, &POST_MESSAGES) else { return };
    insn::wrmsr(msr::SINT0 + 10, 0x6a);
    insn::wrmsr(msr::SINT0 + 11, 0x6b);
    request(CREATE_MESSAGES, 20, own, 10);
    request(CREATE_EVENTS, 21, own, 11);
    t.eq("posted", post(page, block, 20, 0x77, 240, 0x3c), SUCCESS);
    t.eq(
        "comes back",
        (interrupt_within(SOON), pages.take(10)),
        (Some(0x6a), Some((0x77, 0x3c3c_3c3c_3c3c_3c3c))),
    );
    apic::eoi();
    t.eq("signalled", signal(page, 21, 0), SUCCESS);
    t.eq("comes back", interrupt_within(SOON), Some(0x6b));
    apic::eoi();
    t.eq("the flag of the connection's number", peek32(pages.flags(11)), 1 << 21);
    t.eq("only flag 0", signal(page, 21, 1), Status::InvalidParameter as u64);
    request(DESTROY_MESSAGES, 20, own, 10);
    request(DESTROY_EVENTS, 21, own, 11);
    t.eq("gone", post(page, block, 20, 1, 1, 1), Status::InvalidConnectionId as u64);
    t.eq("gone", signal(page, 21, 0), Status::InvalidConnectionId as u64);
}

static GOT: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];
static READY: AtomicU64 = AtomicU64::new(0);

fn to_other_processors(t: &mut Test) {
    if !testdev() || !POST_MESSAGES.offered() {
        return skipped(t);
    }
    let (page, block) = (hv::hypercall_page(), paging::page());
    for (number, got) in GOT.iter().enumerate().take(smp::count()).skip(1) {
        let vp = hv::vp_index(number);
        request(CREATE_OWN_MESSAGES, 30, vp, 5);
        READY.store(0, Ordering::SeqCst);
        smp::begin(number, |number| {
            let pages = turn_on();
            insn::wrmsr(msr::SINT0 + 5, 0x65);
            READY.store(1, Ordering::SeqCst);
            let mut sum = 0;
            for _ in 0..20 {
                let vector = interrupt_within(SOON);
                let found = pages.take(5);
                apic::eoi();
                let (Some(0x65), Some((kind, _))) = (vector, found) else { break };
                sum = sum * 3 + u64::from(kind);
                READY.fetch_add(1, Ordering::SeqCst);
            }
            GOT[number].store(sum, Ordering::SeqCst);
        });
        let mut expected = 0u64;
        for round in 1..=20 {
            while READY.load(Ordering::SeqCst) < round {
                insn::pause();
            }
            t.eq(("posted to", number, round), post(page, block, 30, round as u32, 8, 0), SUCCESS);
            expected = expected * 3 + round;
        }
        smp::wait(number);
        t.eq(("taken by", number), got.load(Ordering::SeqCst), expected);
        request(DESTROY_OWN_MESSAGES, 30, vp, 5);
    }
    t.eq("none of it came here", came(), None);
}

/// The pages are not the memory that they cover.
fn pages_apart(t: &mut Test) {
    if !SYNIC.offered() {
        return skipped(t);
    }
    let memory = paging::page();
    for register in [msr::SIMP, msr::SIEFP] {
        fill(memory, 0x4242);
        insn::wrmsr(register, memory | PAGE_ENABLE);
        t.holds((register, "covered"), !filled(memory, 0x4242));
        fill(memory, 0);
        poke(memory + 4088, 0x77);
        insn::wrmsr(register, memory);
        t.holds((register, "given back"), filled(memory, 0x4242));
        // Beyond memory it is enabled and nowhere.
        for nowhere in [hv::memory_end(), 1 << 40, 0xfee0_0000, !4095] {
            kept(t, "nowhere", register, nowhere | PAGE_ENABLE);
        }
        // It has kept what it held.
        insn::wrmsr(register, memory | PAGE_ENABLE);
        t.eq((register, "kept"), peek(memory + 4088), 0x77);
        poke(memory + 4088, 0);
        insn::wrmsr(register, 0);
        t.holds((register, "given back again"), filled(memory, 0x4242));
    }
}
