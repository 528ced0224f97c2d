//! Interrupts that reach a guest without an exit (SDM 29.1 to 29.6): registers of the virtual-APIC page, priorities, EOI, interrupts to
//! itself, what is posted.

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::cpu::Gate;
use satori_guests::defs::apic::{ID, IRR, ISR, icr};
use satori_guests::{Test, apic, paging, smp};

use crate::apic::{ACCESSES, SECONDARY, TPR_SHADOW, X2APIC, code};
use crate::machine::{Machine, Outcome, capability, field, read, write};

const REGISTERS: u64 = 1 << 8;
const DELIVERY: u64 = 1 << 9;
const POSTED: u64 = 1 << 7;
const WINDOW: u64 = 1 << 2;
const IF: u64 = 0x202;
const CPUID: [u8; 2] = [0x0f, 0xa2];
/// The notification of what is posted.
const NOTIFICATION: u8 = 0xf2;

struct Pages {
    machine: Machine,
    access: u64,
    page: u64,
    descriptor: u64,
    idt: u64,
    handler: u64,
}

impl Pages {
    fn new() -> Pages {
        let machine = Machine::new();
        let handler = machine.code + 0x100;
        let [access, page, descriptor, idt] = core::array::from_fn(|_| paging::page());
        // SAFETY: the pages are this case's.
        unsafe {
            for number in 0..256 {
                (idt as *mut Gate).add(number).write(Gate::interrupt(handler));
            }
            (handler as *mut [u8; 2]).write(CPUID);
        }
        Pages { machine, access, page, descriptor, idt, handler }
    }

    /// A VMCS with these secondary controls; the virtual-APIC page is empty.
    fn fresh(&self, secondary: u64, flags: u64) {
        self.machine.fresh();
        (0..1024).for_each(|index| self.set(4 * index, 0));
        write(field::PIN, capability(0x48d).0 | 1);
        write(field::EXIT, read(field::EXIT).unwrap_or(0) | 1 << 15);
        write(field::PROC, read(field::PROC).unwrap_or(0) | TPR_SHADOW | SECONDARY);
        write(field::PROC2, read(field::PROC2).unwrap_or(0) | secondary);
        write(field::APIC_ACCESS, self.access);
        write(field::VIRTUAL_APIC, self.page);
        write(field::GUEST_BASES + 0x12, self.idt);
        write(field::GUEST_LIMITS + 0x12, 0xfff);
        write(field::GUEST_RFLAGS, flags);
        write(field::INTERRUPT_STATUS, 0);
        (0..4).for_each(|index| {
            write(field::EOI_EXITS + 2 * index, 0);
        });
    }

    fn get(&self, offset: u64) -> u32 {
        // SAFETY: the page is this case's.
        unsafe { ((self.page + offset) as *const u32).read_volatile() }
    }

    fn set(&self, offset: u64, value: u32) {
        // SAFETY: as above.
        unsafe { ((self.page + offset) as *mut u32).write_volatile(value) };
    }

    /// Requests `vector`, or has it in service.
    fn mark(&self, first: u64, vector: u8) {
        let at = first + u64::from(vector / 32) * 16;
        self.set(at, self.get(at) | 1 << (vector % 32));
    }

    fn marked(&self, first: u64, vector: u8) -> bool {
        self.get(first + u64::from(vector / 32) * 16) >> (vector % 32) & 1 != 0
    }

    fn request(&self, vector: u8) {
        self.mark(VIRR, vector);
        let status = read(field::INTERRUPT_STATUS).unwrap_or(0);
        write(field::INTERRUPT_STATUS, status & 0xff00 | u64::from(vector));
    }

    fn serve(&self, vector: u8) {
        self.mark(VISR, vector);
        let status = read(field::INTERRUPT_STATUS).unwrap_or(0);
        write(field::INTERRUPT_STATUS, status & 0xff | u64::from(vector) << 8);
    }

    /// RIP that the handler's frame has, if the guest is there.
    fn interrupted(&self) -> Option<u64> {
        if read(field::GUEST_RIP) != Some(self.handler) {
            return None;
        }
        let stack = read(field::GUEST_RSP)?;
        // SAFETY: it is the guest's stack.
        Some(unsafe { (stack as *const u64).read_volatile() } - self.machine.code)
    }
}

const VTPR: u64 = 0x80;
const VPPR: u64 = 0xa0;
const VEOI: u64 = 0xb0;
const VISR: u64 = 0x100;
const VIRR: u64 = 0x200;

pub fn virtual_interrupts(t: &mut Test) {
    let pages = Pages::new();
    registers(t, &pages);
    delivery(t, &pages);
    ends(t, &pages);
    itself(t, &pages);
    msrs(t, &pages);
    refused(t, &pages);
    posted(t, &pages);
    pages.machine.end();
}

/// MOV ECX,[RAX+offset], or MOV [RAX+offset],ECX, of ECX that is what `value` says.
fn access(page: u64, store: bool, offset: u32, value: u32) -> [u8; 32] {
    let mut then = [0xb9, 0, 0, 0, 0, if store { 0x89 } else { 0x8b }, 0x88, 0, 0, 0, 0];
    then[1..5].copy_from_slice(&value.to_le_bytes());
    then[7..].copy_from_slice(&offset.to_le_bytes());
    code(page, then)
}

/// RIP behind such an access.
const BEHIND: u64 = 21;

fn registers(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    for (offset, reason, qualification) in [
        (0x020, 10, 0),
        (0x0e0, 10, 0),
        (0x150, 10, 0),
        (0x370, 10, 0),
        (0x3e0, 10, 0),
        (0x090, 44, 0x090),
        (0x390, 44, 0x390),
    ] {
        pages.fresh(ACCESSES | REGISTERS, 2);
        pages.set(offset.into(), 0x1234_5678);
        // The value that was read goes to the stack.
        let mut load = access(pages.access, false, offset, 0);
        load[21..25].copy_from_slice(&[0x89, 0x4c, 0x24, 0xf8]);
        load[25..27].copy_from_slice(&CPUID);
        t.eq(("a read", offset), machine.run(&load), Ok(reason));
        t.eq(("a read's qualification", offset), read(field::QUALIFICATION), Some(qualification));
        if reason == 10 {
            // SAFETY: it is the guest's stack.
            let loaded = unsafe { ((machine.stack - 8) as *const u32).read_volatile() };
            t.eq(("what is read", offset), loaded, 0x1234_5678);
        }
    }
    for (offset, reason, kept) in [
        (0x020, 56, 0x8765_4321),
        (0x0b0, 56, 0x8765_4321),
        (0x0f0, 56, 0x8765_4321),
        (0x300, 56, 0x8765_4321),
        (0x310, 10, 0x8700_0000),
        (0x380, 56, 0x8765_4321),
        (0x080, 10, 0x21),
        (0x030, 44, 0),
        (0x200, 44, 0),
    ] {
        pages.fresh(ACCESSES | REGISTERS, 2);
        let store = access(pages.access, true, offset, 0x8765_4321);
        t.eq(("a write", offset), machine.run(&store), Ok(reason));
        t.eq(("what is kept", offset), pages.get(offset.into()), kept);
        let (rip, told) = match reason {
            44 => (BEHIND - 6, u64::from(offset) | 1 << 12),
            56 => (BEHIND, offset.into()),
            _ => (BEHIND, 0),
        };
        t.eq(("RIP", offset), read(field::GUEST_RIP), Some(machine.code + rip));
        t.eq(("a write's qualification", offset), read(field::QUALIFICATION), Some(told));
    }
    // A single step behind the write waits until the hypervisor has seen it.
    pages.fresh(ACCESSES | REGISTERS, 0x102);
    // MOV [address],ECX.
    let mut store = [0x89, 0x0c, 0x25, 0, 0, 0, 0, 0x0f, 0xa2];
    store[3..7].copy_from_slice(&((pages.access + 0xf0) as u32).to_le_bytes());
    t.eq("a write under the trap flag", machine.run(&store), Ok(56));
    t.eq("its trap is pending", read(field::PENDING_DEBUG).unwrap_or(0) >> 14 & 1, 1);
}

fn delivery(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    let lowers = [0x31, 0xc0, 0x44, 0x0f, 0x22, 0xc0, 0x90, 0x0f, 0xa2];
    let opens = [0xfb, 0x90, 0x90, 0x0f, 0xa2];
    for (name, flags, priority, code, at) in [
        ("at once", IF, 0, &CPUID[..], Some(0)),
        ("of a class no higher", IF, 0x60, &CPUID, None),
        ("that its flag holds back", 2, 0, &CPUID, None),
        ("behind STI and its shadow", 2, 0, &opens, Some(2)),
        ("behind MOV CR8", IF, 0x60, &lowers, Some(6)),
    ] {
        pages.fresh(DELIVERY, flags);
        pages.request(0x61);
        pages.mark(VIRR, 0x35);
        pages.set(VTPR, priority);
        t.eq(name, machine.run(code), Ok(10));
        t.eq((name, "interrupted"), pages.interrupted(), at);
        let (status, processor) = match at {
            Some(_) => (0x6135, 0x60),
            None => (0x0061, priority),
        };
        t.eq((name, "RVI and SVI"), read(field::INTERRUPT_STATUS), Some(status));
        t.eq((name, "VPPR"), pages.get(VPPR), processor);
        t.eq(
            (name, "VIRR and VISR"),
            (pages.marked(VIRR, 0x61), pages.marked(VISR, 0x61)),
            (at.is_none(), at.is_some()),
        );
    }
    pages.fresh(DELIVERY, IF);
    pages.request(0x61);
    write(field::PROC, read(field::PROC).unwrap_or(0) | WINDOW);
    t.eq("behind a window", machine.run(&CPUID), Ok(7));
    t.eq("nothing is delivered", read(field::INTERRUPT_STATUS), Some(0x61));
    pages.fresh(DELIVERY, IF);
    pages.request(0x61);
    write(field::ACTIVITY, 1);
    t.eq("in HLT", (machine.run(&CPUID), pages.interrupted()), (Ok(10), Some(0)));
    // What is injected comes first, and its handler has interrupts off.
    pages.fresh(DELIVERY, IF);
    pages.request(0x61);
    write(field::INJECTION, 1 << 31 | 0x40);
    t.eq("behind an injection", (machine.run(&CPUID), read(field::INTERRUPT_STATUS)), (Ok(10), Some(0x61)));
    // A delivery that fails is told.
    pages.fresh(DELIVERY, IF);
    pages.request(0x61);
    write(field::GUEST_LIMITS + 0x12, 0);
    write(field::EXCEPTIONS, 1 << 13);
    t.eq("no gate", (machine.run(&CPUID), read(field::VECTORING)), (Ok(0), Some(0x8000_0061)));
}

fn ends(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    let end = access(pages.access, true, 0xb0, 0xffff);
    for (name, bit, reason) in [("an EOI", 0_u64, 10), ("one that is told", 1 << 0x11, 45)] {
        pages.fresh(ACCESSES | DELIVERY, 2);
        pages.serve(0x31);
        pages.serve(0x51);
        pages.set(VTPR, 0x14);
        write(field::EOI_EXITS + 2, bit);
        t.eq(name, machine.run(&end), Ok(reason));
        t.eq((name, "vector"), read(field::QUALIFICATION), Some(if reason == 45 { 0x51 } else { 0 }));
        t.eq((name, "RIP"), read(field::GUEST_RIP), Some(machine.code + BEHIND));
        t.eq((name, "SVI"), read(field::INTERRUPT_STATUS), Some(0x3100));
        t.eq((name, "VPPR"), pages.get(VPPR), 0x30);
        t.eq((name, "VEOI"), pages.get(VEOI), 0);
        t.eq((name, "VISR"), (pages.marked(VISR, 0x51), pages.marked(VISR, 0x31)), (false, true));
    }
    // The next one comes behind the EOI.
    pages.fresh(ACCESSES | DELIVERY, IF);
    pages.serve(0x51);
    pages.request(0x41);
    t.eq("what waited", (machine.run(&end), pages.interrupted()), (Ok(10), Some(BEHIND)));
    t.eq("is in service", read(field::INTERRUPT_STATUS), Some(0x4100));
}

fn itself(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    for (name, command, reason) in [
        ("to itself", 0x0004_4061, 10),
        ("a physical one to itself", 0x0004_0061, 10),
        ("to an illegal vector", 0x0004_0006, 56),
        ("to all", 0x0008_0061, 56),
        ("an NMI", 0x0004_0461, 56),
        ("a level", 0x0004_8061, 56),
        ("with a reserved bit", 0x0014_0061, 56),
    ] {
        pages.fresh(ACCESSES | DELIVERY, IF);
        let store = access(pages.access, true, 0x300, command);
        t.eq(name, machine.run(&store), Ok(reason));
        t.eq((name, "interrupted"), pages.interrupted(), (reason == 10).then_some(BEHIND));
        t.eq((name, "what is kept"), pages.get(0x300), command);
        if reason == 56 {
            t.eq((name, "offset"), read(field::QUALIFICATION), Some(0x300));
            t.eq((name, "RIP"), read(field::GUEST_RIP), Some(machine.code + BEHIND));
        }
    }
}

/// MOV ECX,number; MOV EAX,low; XOR EDX,EDX; WRMSR, or RDMSR; MOV [RSP-8],EAX; CPUID.
fn by_msr(number: u32, low: u32, write: bool) -> [u8; 20] {
    let mut code =
        [0xb9, 0, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0x31, 0xd2, 0x0f, 0x30, 0x89, 0x44, 0x24, 0xf8, 0x0f, 0xa2];
    code[1..5].copy_from_slice(&number.to_le_bytes());
    code[6..10].copy_from_slice(&low.to_le_bytes());
    if !write {
        code[13] = 0x32;
    }
    code
}

fn msrs(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    pages.fresh(X2APIC | REGISTERS, 2);
    pages.set(0x30, 0x1234);
    pages.set(0x34, 0x5678);
    t.eq("RDMSR", machine.run(&by_msr(0x803, 0, false)), Ok(10));
    // SAFETY: it is the guest's stack.
    t.eq("what it reads", unsafe { ((machine.stack - 8) as *const u32).read_volatile() }, 0x1234);
    for (name, number, low, reason, at, qualification) in [
        ("SELF IPI", 0x83f, 0x61, 10, Some(14), 0),
        ("SELF IPI to an illegal vector", 0x83f, 6, 56, None, 0x3f0),
        ("EOI", 0x80b, 0, 10, None, 0),
        ("EOI of more than 0", 0x80b, 1, 0, None, 0),
        ("SELF IPI beyond vectors", 0x83f, 0x100, 0, None, 0),
    ] {
        pages.fresh(X2APIC | DELIVERY, IF);
        write(field::EXCEPTIONS, 1 << 13);
        pages.serve(0x21);
        t.eq(name, machine.run(&by_msr(number, low, true)), Ok(reason));
        t.eq((name, "interrupted"), pages.interrupted(), at);
        t.eq((name, "qualification"), read(field::QUALIFICATION), Some(qualification));
        t.eq(
            (name, "SVI"),
            read(field::INTERRUPT_STATUS).unwrap_or(0) >> 8,
            match (number, reason) {
                (0x80b, 10) => 0,
                (0x83f, 10) => 0x61,
                _ => 0x21,
            },
        );
    }
}

fn refused(t: &mut Test, pages: &Pages) {
    let pin = capability(0x48d).0;
    for (name, secondary, word, value) in [
        ("delivery without interrupts that exit", DELIVERY, field::PIN, pin),
        ("posted without delivery", 0, field::PIN, pin | 1 | POSTED),
        ("a notification beyond vectors", DELIVERY, field::POSTED_VECTOR, 0x1f2),
        ("a descriptor's place", DELIVERY, field::POSTED_DESCRIPTOR, pages.descriptor + 32),
        (
            "posted without acknowledging",
            DELIVERY,
            field::EXIT,
            capability(0x48f).0 | 1 << 9 | 1 << 20 | 1 << 21,
        ),
        (
            "registers without a shadow",
            REGISTERS,
            field::PROC,
            capability(0x48e).0 & !0x1_8000 | 1 << 31 | 1 << 28,
        ),
        (
            "delivery without a shadow",
            DELIVERY,
            field::PROC,
            capability(0x48e).0 & !0x1_8000 | 1 << 31 | 1 << 28,
        ),
    ] {
        pages.fresh(secondary, 2);
        if secondary == DELIVERY {
            write(field::PIN, pin | 1 | POSTED);
            write(field::POSTED_VECTOR, NOTIFICATION.into());
            write(field::POSTED_DESCRIPTOR, pages.descriptor);
        }
        write(word, value);
        if word == field::PROC {
            write(field::PIN, pin | 1);
        }
        t.eq(name, pages.machine.run(&CPUID), Err(Outcome::Error(7)));
    }
}

static DESCRIPTOR: AtomicU64 = AtomicU64::new(0);

/// Posts `vector` in the descriptor at `at`.
fn post(at: u64, vector: u8) {
    // SAFETY: the descriptor is 64 bytes of a page.
    let word = |index: u64| unsafe { AtomicU64::from_ptr((at + 8 * index) as *mut u64) };
    word(u64::from(vector / 64)).fetch_or(1 << (vector % 64), Ordering::SeqCst);
    word(4).fetch_or(1, Ordering::SeqCst);
}

fn posts(_: usize) {
    smp::spin(300_000);
    post(DESCRIPTOR.load(Ordering::Acquire), 0x71);
    apic::send(icr::ASSERT | u32::from(NOTIFICATION), 0);
}

fn posted(t: &mut Test, pages: &Pages) {
    let machine = &pages.machine;
    let at = pages.descriptor;
    let fresh = |flags: u64| {
        pages.fresh(DELIVERY, flags);
        write(field::PIN, capability(0x48d).0 | 1 | POSTED);
        write(field::POSTED_VECTOR, NOTIFICATION.into());
        write(field::POSTED_DESCRIPTOR, at);
    };
    let word = |index: u64| {
        // SAFETY: the page is this case's.
        unsafe { ((at + 8 * index) as *const u64).read_volatile() }
    };
    t.eq("IDs from 0 on", apic::read(ID), 0);
    for (name, activity) in [("posted", 0), ("posted to one in HLT", 1)] {
        fresh(IF);
        write(field::ACTIVITY, activity);
        pages.request(0x31);
        post(at, 0x22);
        post(at, 0x71);
        // It waits, as interrupts are off here.
        apic::send_self(NOTIFICATION);
        t.eq(name, machine.run(&CPUID), Ok(10));
        t.eq((name, "interrupted"), pages.interrupted(), Some(0));
        t.eq((name, "RVI and SVI"), read(field::INTERRUPT_STATUS), Some(0x3171));
        t.eq((name, "what is requested"), (pages.marked(VIRR, 0x22), pages.marked(VIRR, 0x71)), (true, true));
        t.eq((name, "the descriptor"), [0, 1, 2, 3, 4].map(word), [0; 5]);
        t.holds(
            (name, "the notification is at its end"),
            !apic::bit(IRR, NOTIFICATION) && !apic::bit(ISR, NOTIFICATION),
        );
    }
    fresh(IF);
    apic::send_self(0x55);
    t.eq("another interrupt", (machine.run(&CPUID), read(field::INTERRUPTION)), (Ok(1), Some(0x8000_0055)));
    apic::eoi();
    if smp::count() > 1 {
        DESCRIPTOR.store(at, Ordering::Release);
        for (name, code) in [("in a loop", &[0xeb, 0xfe][..]), ("in HLT", &[0xf4, 0xeb, 0xfd])] {
            fresh(IF);
            smp::begin(1, posts);
            t.eq((name, "posted by another"), machine.run(code), Ok(10));
            t.eq((name, "RVI and SVI"), read(field::INTERRUPT_STATUS), Some(0x7100));
            smp::wait(1);
        }
    }
}
