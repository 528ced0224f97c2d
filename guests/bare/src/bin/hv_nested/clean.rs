//! Clean fields: a group that is said to be clean is not looked at, one that is not is, and a new address or a launch makes all of
//! them dirty.

use satori_guests::{Test, insn, l2, paging};

use crate::machine::{Machine, at};
use crate::{CPUID, gates};
use satori_guests::place::{load, store};

const EVERYTHING: u32 = 0xffff;
const FS_BASE: u32 = 0xc000_0100;
const SYSENTER_CS: u32 = 0x174;

/// One group of fields: its bit, what the case does to a field, and what shows whether that was seen.
struct Group {
    name: &'static str,
    bit: u32,
    /// Makes the structure ready for the case.
    prepare: fn(&Case<'_>),
    change: fn(&Case<'_>),
    /// Enters, and tells whether the change was seen.
    seen: fn(&Case<'_>) -> bool,
}

struct Case<'a> {
    machine: &'a Machine,
    /// A page of ones: ports and MSRs that exit.
    exits: u64,
    /// What the guest writes to.
    place: u64,
    idt: u64,
    handler: u64,
    /// Tables that have the page `place` at itself, and at `other`.
    tables: [u64; 2],
    other: u64,
}

impl Case<'_> {
    fn enter(&self, code: u64) -> Option<u32> {
        self.machine.run(false, code, self.place).ok()
    }

    /// Enters; what the guest wrote.
    fn told(&self, code: u64) -> Option<u64> {
        store(self.place, u64::MAX);
        (self.enter(code) == Some(CPUID)).then(|| load(self.place))
    }
}

fn nothing(_: &Case<'_>) {}

/// Tables for a guest's physical addresses: 2 MiB pages to themselves, but `from` is at `to`.
pub fn tables(from: u64, to: u64) -> u64 {
    let [top, middle, large, low] = core::array::from_fn::<u64, 4, _>(|_| paging::page());
    store(top, middle | 7);
    store(middle, large | 7);
    (0..512).for_each(|index| store(large + 8 * index, index << 21 | 0xb7));
    (0..512).for_each(|index| store(low + 8 * index, (from >> 21) << 21 | index << 12 | 0x37));
    store(large + 8 * (from >> 21), low | 7);
    store(low + 8 * (from >> 12 & 0x1ff), to | 0x37);
    top
}

/// The EPT pointer to `tables`.
pub const fn eptp(tables: u64) -> u64 {
    tables | 3 << 3 | 6
}

const GROUPS: &[Group] = &[
    Group {
        name: "the I/O bitmaps",
        bit: 0,
        prepare: |case| case.machine.vmcs.with(at::PROC, 1 << 25),
        change: |case| case.machine.vmcs.set(at::IO_BITMAP_A, case.exits),
        seen: |case| case.enter(l2!("in al, 0x80", "cpuid")) == Some(30),
    },
    Group {
        name: "the MSR bitmap",
        bit: 1,
        prepare: nothing,
        change: |case| case.machine.vmcs.set(at::MSR_BITMAP, case.exits),
        seen: |case| case.enter(l2!("mov ecx, 0x174", "rdmsr", "cpuid")) == Some(31),
    },
    Group {
        name: "the TSC offset",
        bit: 2,
        prepare: |case| case.machine.vmcs.with(at::PROC, 1 << 3),
        change: |case| case.machine.vmcs.set(at::TSC_OFFSET, 1 << 60),
        seen: |case| {
            let time = case.told(l2!("rdtsc", "shl rdx, 32", "or rax, rdx", "mov [rdi], rax", "cpuid"));
            time.is_some_and(|time| time >> 60 == 1)
        },
    },
    Group {
        name: "secondary controls",
        bit: 3,
        prepare: nothing,
        change: |case| case.machine.vmcs.with(at::PROC2, 1 << 6),
        seen: |case| case.enter(l2!("wbinvd", "cpuid")) == Some(54),
    },
    Group {
        name: "pin-based controls",
        bit: 3,
        prepare: nothing,
        change: |case| case.machine.vmcs.set32(at::PIN, 0),
        seen: |case| case.enter(l2!("cpuid")).is_none(),
    },
    Group {
        name: "primary controls",
        bit: 4,
        prepare: nothing,
        change: |case| case.machine.vmcs.with(at::PROC, 1 << 12),
        seen: |case| case.enter(l2!("rdtsc", "cpuid")) == Some(16),
    },
    Group {
        name: "the injected event",
        bit: 5,
        prepare: |case| {
            case.machine.vmcs.set(at::GUEST_BASES + 72, case.idt);
            case.machine.vmcs.set32(at::GUEST_LIMITS + 36, 0xfff);
        },
        change: |case| case.machine.vmcs.set32(at::INJECTION, 1 << 31 | 2 << 8 | 2),
        seen: |case| {
            case.enter(l2!("cpuid"));
            case.machine.vmcs.get(at::GUEST_RIP) == case.handler
        },
    },
    Group {
        name: "entry controls",
        bit: 6,
        prepare: nothing,
        change: |case| case.machine.vmcs.set32(at::ENTRY, 0),
        seen: |case| case.enter(l2!("cpuid")).is_none(),
    },
    Group {
        name: "the exception bitmap",
        bit: 7,
        prepare: |case| {
            case.machine.vmcs.set(at::GUEST_BASES + 72, case.idt);
            case.machine.vmcs.set32(at::GUEST_LIMITS + 36, 0xfff);
        },
        change: |case| case.machine.vmcs.set32(at::EXCEPTIONS, 1 << 6),
        seen: |case| case.enter(l2!("ud2")) == Some(0),
    },
    Group {
        name: "masks and shadows",
        bit: 8,
        prepare: |case| case.machine.vmcs.set(at::CR4_MASK, 1 << 2),
        change: |case| case.machine.vmcs.set(at::CR4_SHADOW, 1 << 2),
        seen: |case| {
            let cr4 = case.told(l2!("mov rax, cr4", "mov [rdi], rax", "cpuid"));
            cr4.is_some_and(|cr4| cr4 >> 2 & 1 != 0)
        },
    },
    Group {
        name: "the guest's CR3",
        bit: 8,
        prepare: nothing,
        change: |case| case.machine.vmcs.set(at::GUEST_CR3, 1 << 51),
        seen: |case| case.enter(l2!("cpuid")) == Some(1 << 31 | 33),
    },
    Group {
        name: "the EPT pointer",
        bit: 9,
        prepare: |case| {
            case.machine.vmcs.with(at::PROC2, 1 << 1);
            case.machine.vmcs.set(at::EPTP, eptp(case.tables[0]));
        },
        change: |case| case.machine.vmcs.set(at::EPTP, eptp(case.tables[1])),
        seen: |case| {
            store(case.other, 0_u64);
            case.enter(l2!("mov dword ptr [rdi], 1", "cpuid")) == Some(CPUID) && load::<u64>(case.other) == 1
        },
    },
    Group {
        name: "the VPID",
        bit: 9,
        prepare: |case| {
            case.machine.vmcs.with(at::PROC2, 1 << 5);
            case.machine.vmcs.set16(at::VPID, 1);
        },
        change: |case| case.machine.vmcs.set16(at::VPID, 0),
        seen: |case| case.enter(l2!("cpuid")).is_none(),
    },
    Group {
        name: "RSP",
        bit: 10,
        prepare: nothing,
        change: |case| case.machine.vmcs.set(at::GUEST_RSP, case.machine.stack - 64),
        seen: |case| case.told(l2!("mov [rdi], rsp", "cpuid")) == Some(case.machine.stack - 64),
    },
    Group {
        name: "the guest's SYSENTER_ESP",
        bit: 11,
        prepare: nothing,
        change: |case| case.machine.vmcs.set(at::GUEST_SYSENTER_ESP, 0x1234),
        seen: |case| case.told(l2!("mov ecx, 0x175", "rdmsr", "mov [rdi], rax", "cpuid")) == Some(0x1234),
    },
    Group {
        name: "the guest's activity",
        bit: 11,
        prepare: nothing,
        change: |case| case.machine.vmcs.set32(at::ACTIVITY, 7),
        seen: |case| case.enter(l2!("cpuid")) == Some(1 << 31 | 33),
    },
    Group {
        name: "segments",
        bit: 12,
        prepare: nothing,
        change: |case| case.machine.vmcs.set(at::GUEST_BASES + 32, 0x5678_0000),
        seen: |case| {
            case.told(l2!("mov ecx, 0xc0000100", "rdmsr", "mov [rdi], rax", "cpuid")) == Some(0x5678_0000)
        },
    },
    Group {
        name: "the host's bases",
        bit: 13,
        prepare: nothing,
        change: |case| case.machine.vmcs.set(at::HOST_FS_BASE, 0x9876_0000),
        seen: |case| {
            case.enter(l2!("cpuid"));
            let base = insn::rdmsr(FS_BASE);
            insn::wrmsr(FS_BASE, 0);
            base == 0x9876_0000
        },
    },
    Group {
        name: "the host's registers",
        bit: 14,
        prepare: nothing,
        change: |case| case.machine.vmcs.set32(at::HOST_SYSENTER_CS, 0x44),
        seen: |case| {
            case.enter(l2!("cpuid"));
            let selector = insn::rdmsr(SYSENTER_CS);
            insn::wrmsr(SYSENTER_CS, 0);
            selector == 0x44
        },
    },
];

pub fn clean_fields(t: &mut Test) {
    let machine = Machine::new();
    let [exits, place, other] = core::array::from_fn::<u64, 3, _>(|_| paging::page());
    (0..512).for_each(|index| store(exits + 8 * index, u64::MAX));
    let handler = l2!("cpuid");
    let tables = [tables(place, place), tables(place, other)];
    let case = Case { machine: &machine, exits, place, idt: gates(handler), handler, tables, other };
    for group in GROUPS {
        let (name, bit) = (group.name, 1 << group.bit);
        for (how, clean, seen) in [
            ("all are clean", EVERYTHING, false),
            ("it is the only clean one", bit, false),
            ("it is the only dirty one", EVERYTHING & !bit, true),
            ("none is clean", 0, true),
        ] {
            machine.fresh();
            (group.prepare)(&case);
            t.eq((name, how, "before"), machine.run(true, l2!("cpuid"), 0), Ok(CPUID));
            (group.change)(&case);
            machine.vmcs.set32(at::CLEAN, clean);
            t.eq((name, how), (group.seen)(&case), seen);
        }
        // What has no meaning there changes nothing.
        machine.fresh();
        (group.prepare)(&case);
        t.eq((name, "before"), machine.run(true, l2!("cpuid"), 0), Ok(CPUID));
        (group.change)(&case);
        machine.vmcs.set32(at::CLEAN, !bit);
        t.holds((name, "with reserved bits"), (group.seen)(&case));
    }
    machine.end();
}

/// Other addresses, and launches, are entries with nothing clean; the structure then says so.
pub fn moves(t: &mut Test) {
    let machine = Machine::new();
    let code = l2!("rdtsc", "cpuid");
    for (name, launch, moved) in
        [("nothing", false, false), ("a launch", true, false), ("another address", false, true)]
    {
        machine.fresh();
        t.eq((name, "before"), machine.run(true, code, 0), Ok(CPUID));
        let vmcs = if moved { paging::page() } else { machine.vmcs.page };
        let there = Machine { vmcs: crate::machine::Vmcs { page: vmcs }, ..machine };
        if moved {
            (0..at::END).step_by(8).for_each(|offset| there.vmcs.set(offset, machine.vmcs.get(offset)));
            there.name(vmcs);
        }
        there.vmcs.with(at::PROC, 1 << 12);
        there.vmcs.set32(at::CLEAN, EVERYTHING);
        let dirty = launch || moved;
        t.eq(name, there.run(launch, code, 0), Ok(if dirty { 16 } else { CPUID }));
        t.eq((name, "clean fields"), there.vmcs.get32(at::CLEAN), if dirty { 0 } else { EVERYTHING });
        if moved {
            // And back: it was not in use.
            machine.name(machine.vmcs.page);
            machine.vmcs.with(at::PROC2, 1 << 6);
            machine.vmcs.set32(at::CLEAN, EVERYTHING);
            t.eq("back again", machine.run(false, l2!("wbinvd", "cpuid"), 0), Ok(54));
        }
    }
    machine.end();
}
