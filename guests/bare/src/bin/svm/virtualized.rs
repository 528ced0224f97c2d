//! What of the processor a guest has as its own: interrupts, NMIs, flags, priority, time; and nested paging.

use satori_guests::place::{load, store};
use satori_guests::{Test, insn, paging};

use crate::CPUID;
use crate::machine::{Machine, at};

const VINTR: u64 = 0x64;
const TSC_RATIO: u32 = 0xc000_0104;

pub fn virtual_events(t: &mut Test) {
    let machine = Machine::new();
    let pending = 1_u64 << 8;
    // NOP; CPUID.
    let code = [0x90, 0x0f, 0xa2];
    for (name, control, flags, shadow, wanted, rip) in [
        ("an interrupt", pending | 5 << 16, 0x202, 0, VINTR, 0),
        ("of a lower priority", pending | 5 << 16 | 5, 0x202, 0, CPUID, 1),
        ("that ignores it", pending | 5 << 16 | 5 | 1 << 20, 0x202, 0, VINTR, 0),
        ("masked", pending | 5 << 16, 2, 0, CPUID, 1),
        ("in a shadow", pending | 5 << 16, 0x202, 1, VINTR, 1),
        ("without GIF", pending | 5 << 16 | 1 << 25, 0x202, 0, CPUID, 1),
        ("with GIF", pending | 5 << 16 | 1 << 25 | 1 << 9, 0x202, 0, VINTR, 0),
    ] {
        machine.fresh();
        machine.with(at::THIRD, 1 << 4);
        machine.set(at::CONTROL, control);
        machine.set(at::RFLAGS, flags);
        machine.set(at::SHADOW, shadow);
        t.eq(name, machine.run(&code), wanted);
        t.eq((name, "RIP"), machine.get(at::RIP), machine.code + rip);
        t.eq((name, "still pending"), machine.get(at::CONTROL) >> 8 & 1, 1);
    }
    // CLGI; STGI; CPUID: the guest's own flag.
    let flags = [0x0f, 0x01, 0xdd, 0x0f, 0x01, 0xdc, 0x0f, 0xa2];
    machine.fresh();
    machine.set(at::CONTROL, 1 << 25);
    t.eq("STGI", (machine.run(&flags), machine.get(at::CONTROL) >> 9 & 1), (CPUID, 1));
    // MOV EAX,7; MOV CR8,RAX; MOV RBX,CR8; CPUID: the priority is virtual.
    let priority = [0xb8, 7, 0, 0, 0, 0x44, 0x0f, 0x22, 0xc0, 0x44, 0x0f, 0x20, 0xc3, 0x0f, 0xa2];
    machine.fresh();
    machine.set(at::CONTROL, 1 << 24 | 3);
    t.eq("MOV CR8", (machine.run(&priority), machine.get(at::CONTROL) & 0xff), (CPUID, 7));
    // Virtual NMIs: held by their mask.
    for (name, control, wanted) in [("masked", 1_u64 << 11 | 1 << 12, CPUID), ("an NMI", 1 << 11, 0x7f)] {
        machine.fresh();
        machine.with(at::THIRD, 1 << 1);
        machine.set(at::SEGMENTS + 16 * 8, 0);
        machine.set(at::CONTROL, control | 1 << 26);
        t.eq((name, "virtual NMI"), machine.run(&code), wanted);
        t.eq((name, "its mask"), machine.get(at::CONTROL) >> 12 & 1, 1);
    }
    // RDTSC; SHL RDX,20; OR RAX,RDX; CPUID.
    let time = [0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0, 0x0f, 0xa2];
    insn::wrmsr(TSC_RATIO, 0);
    machine.fresh();
    machine.set(at::TSC_OFFSET, 0x1234_5678_9abc);
    t.eq("time that stands still", (machine.run(&time), machine.get(at::RAX)), (CPUID, 0x1234_5678_9abc));
    insn::wrmsr(TSC_RATIO, 1 << 32);
    // Four PAUSEs; CPUID.
    let pauses = [0xf3, 0x90, 0xf3, 0x90, 0xf3, 0x90, 0xf3, 0x90, 0x0f, 0xa2];
    for (count, threshold, wanted, rip) in [(3, 0, 0x77, 6), (4, 0, CPUID, 8), (2, 0xffff, 0x77, 4)] {
        machine.fresh();
        machine.with(at::THIRD, 1 << 23);
        machine.with(at::PAUSES, count << 16 | threshold);
        t.eq(("PAUSEs", count), machine.run(&pauses), wanted);
        t.eq(("RIP", count), machine.get(at::RIP), machine.code + rip);
    }
    machine.end();
}

/// Tables of nested paging that lead each address to itself, and where the entry of the small page at `page` is.
pub fn tables(page: u64) -> (u64, u64) {
    let [top, middle, low, small] = core::array::from_fn::<u64, 4, _>(|_| paging::page());
    store(top, middle | 7);
    store(middle, low | 7);
    (0..512).for_each(|index| store(low + 8 * index, index << 21 | 0x87));
    let large = page >> 21;
    (0..512).for_each(|index| store(small + 8 * index, large << 21 | index << 12 | 7));
    store(low + 8 * large, small | 7);
    (top, small + 8 * (page >> 12 & 0x1ff))
}

/// Tables of 2 MiB pages to themselves, but for one page that is refused.
pub fn nested(t: &mut Test) {
    let machine = Machine::new();
    let subject = paging::page();
    let (top, entry) = tables(subject);
    // MOV RAX,subject; MOV [RAX],EAX, or MOV EAX,[RAX], or CALL RAX.
    let code = |then: [u8; 2]| {
        let mut code = [0x90_u8; 14];
        code[..2].copy_from_slice(&[0x48, 0xb8]);
        code[2..10].copy_from_slice(&subject.to_le_bytes());
        code[10..12].copy_from_slice(&then);
        code[12..].copy_from_slice(&[0x0f, 0xa2]);
        code
    };
    let (writes, reads, calls) = (code([0x89, 0x00]), code([0x8b, 0x00]), code([0xff, 0xd0]));
    for (name, value, code, told) in [
        ("there", subject | 7, &writes, None),
        ("not there", 0, &writes, Some(0x1_0000_0006)),
        ("not there, read", 0, &reads, Some(0x1_0000_0004)),
        ("not to be written", subject | 5, &writes, Some(0x1_0000_0007)),
        ("to be read", subject | 5, &reads, None),
        ("the host's alone", subject | 3, &reads, Some(0x1_0000_0005)),
        ("not to be executed", subject | 1 << 63 | 7, &calls, Some(0x1_0000_0015)),
        ("reserved", subject | 1 << 51 | 7, &reads, Some(0x1_0000_000d)),
    ] {
        machine.fresh();
        machine.set(at::NESTED, 1);
        machine.set(at::NESTED_CR3, top);
        store(entry, value);
        let reason = machine.run(code);
        t.eq(name, reason, if told.is_some() { 0x400 } else { CPUID });
        if let Some(told) = told {
            t.eq((name, "EXITINFO"), [machine.get(at::INFO1), machine.get(at::INFO2)], [told, subject]);
        }
    }
    store(entry, subject | 7);
    for (name, code, wanted) in [("accessed", &reads, 0x20), ("dirty", &writes, 0x60)] {
        machine.fresh();
        machine.set(at::NESTED, 1);
        machine.set(at::NESTED_CR3, top);
        machine.run(code);
        t.eq(name, load::<u64>(entry) & 0x60, wanted);
    }
    machine.end();
}
