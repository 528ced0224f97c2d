//! A hypervisor as Hyper-V is one, in a guest that runs on Hyper-V: enlightened VMCSs whose clean fields it keeps, interrupts of
//! synthetic sources and direct timers while its guest runs, flushes that are served below it, and a clock for its guest only
//! while its own is stable.

#![no_std]
#![no_main]

mod clean;
mod clock;
mod events;
mod flush;
mod machine;
mod waits;

use clean::{clean_fields, moves};
use clock::{changes, clock};
use events::{direct_timer, messages};
use flush::{direct_flush, guest_physical_flush, remote_flush};
use machine::{Machine, Refused, at, vmclear, vmread};
use satori_guests::cpu::Gate;
use satori_guests::defs::hyperv::{EVMCS_RECOMMENDED, EVMCS_VERSIONS, PAGE_ENABLE, assist, leaf, msr};
use satori_guests::defs::x86::vector;
use satori_guests::place::store;
use satori_guests::{Expect, Subject, Test, code, guest, insn, l2, paging};
use waits::waits;

guest!(
    "hv_nested",
    offered,
    capabilities,
    entries,
    versions,
    places,
    released,
    segments,
    clean_fields,
    moves,
    direct_timer,
    messages,
    direct_flush,
    remote_flush,
    guest_physical_flush,
    clock,
    changes,
    waits,
);

/// Reason of CPUID's exit.
const CPUID: u32 = 10;
/// Bits of leaf 0x4000000A's EAX.
const DIRECT_FLUSH: u32 = 1 << 17;
const GPA_FLUSH: u32 = 1 << 18;

fn nested() -> u32 {
    insn::cpuid(leaf::NESTED, 0)[0]
}

fn offered(t: &mut Test) {
    let [hints, ..] = insn::cpuid(leaf::RECOMMENDATIONS, 0);
    t.holds("the enlightened VMCS is recommended", hints & EVMCS_RECOMMENDED != 0);
    t.eq("its versions", nested() & 0xffff, EVMCS_VERSIONS);
    t.eq("this is no hypervisor's own partition", hints >> 12 & 1, 0);
}

/// Controls without a field in the structure are not offered, by the plain and by the TRUE registers.
fn capabilities(t: &mut Test) {
    for (register, without) in [
        (0x481, 1 << 6 | 1 << 7),
        (0x48d, 1 << 6 | 1 << 7),
        (0x482, 1 << 17),
        (0x48e, 1 << 17),
        (0x48b, 1 << 0 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 25),
        (0x483, 1 << 22),
        (0x48f, 1 << 22),
    ] {
        t.eq(("not offered", register), insn::rdmsr(register) >> 32 & without, 0);
    }
    t.holds("no VM functions", satori_guests::msr::get(0x491).is_none_or(|functions| functions == 0));
    let machine = Machine::new();
    for (name, word, bit) in [
        ("the preemption timer", at::PIN, 6),
        ("APIC accesses", at::PROC2, 0),
        ("VMCS shadowing", at::PROC2, 14),
        ("PML", at::PROC2, 17),
    ] {
        machine.fresh();
        machine.vmcs.with(word, 1 << bit);
        t.eq(name, machine.run(true, l2!("cpuid"), 0), Err(Refused::Error(7)));
    }
    machine.end();
}

fn entries(t: &mut Test) {
    let machine = Machine::new();
    let (vmcs, cpuid) = (machine.vmcs, l2!("nop", "cpuid"));
    t.eq("VMRESUME at first", machine.run(false, cpuid, 0), Ok(CPUID));
    t.eq("RIP", vmcs.get(at::GUEST_RIP), cpuid + 1);
    t.eq("length", vmcs.get32(at::LENGTH), 2);
    t.eq("VMLAUNCH", machine.run(true, cpuid, 0), Ok(CPUID));
    t.eq("VMLAUNCH again", machine.run(true, cpuid, 0), Ok(CPUID));
    t.holds("VMREAD has no VMCS", !vmread());
    machine.fresh();
    vmcs.set32(at::PIN, 0);
    t.eq("controls", machine.run(true, cpuid, 0), Err(Refused::Error(7)));
    machine.fresh();
    vmcs.set16(at::HOST_SELECTORS + 2, 0);
    t.eq("the host's state", machine.run(true, cpuid, 0), Err(Refused::Error(8)));
    machine.fresh();
    vmcs.set(at::GUEST_RFLAGS, 0);
    t.eq("the guest's state", machine.run(true, cpuid, 0), Ok(1 << 31 | 33));
    machine.fresh();
    vmcs.set(at::LINK_POINTER, 0);
    t.eq("the link pointer", machine.run(true, cpuid, 0), Ok(1 << 31 | 33));
    t.eq("its qualification", vmcs.get(at::QUALIFICATION), 4);
    machine.end();
}

fn versions(t: &mut Test) {
    let machine = Machine::new();
    let cpuid = l2!("cpuid");
    let basic = insn::rdmsr(0x480) as u32 & 0x7fff_ffff;
    for (revision, taken) in [(1, true), (basic, true), (0, false), (2, false), (1 << 31 | 1, false)] {
        for launch in [true, false] {
            machine.fresh();
            machine.vmcs.set32(at::REVISION, revision);
            let wanted = if taken { Ok(CPUID) } else { Err(Refused::Invalid) };
            t.eq((revision, launch), machine.run(launch, cpuid, 0), wanted);
        }
    }
    // What was refused is not in use.
    machine.fresh();
    t.eq("a good one", machine.run(true, cpuid, 0), Ok(CPUID));
    machine.vmcs.set32(at::REVISION, 2);
    t.eq("refused", machine.run(false, cpuid, 0), Err(Refused::Invalid));
    machine.vmcs.set32(at::REVISION, 1);
    machine.vmcs.set32(at::CLEAN, u32::MAX);
    machine.vmcs.with(at::PROC, 1 << 12);
    t.eq("all of it is read again", machine.run(false, l2!("rdtsc", "cpuid"), 0), Ok(16));
    machine.end();
}

/// Addresses that an entry does not take.
fn places(t: &mut Test) {
    let machine = Machine::new();
    let enter = || Subject::kernel(code!("vmresume")).run();
    for (name, place) in
        [("misaligned", machine.vmcs.page + 8), ("beyond memory", 1 << 38), ("beyond addresses", 1 << 62)]
    {
        machine.name(place);
        t.event(name, &enter(), Expect::fault(vector::UD));
    }
    machine.name(machine.vmcs.page);
    let cpuid = l2!("cpuid");
    t.eq("the one that is there", machine.run(false, cpuid, 0), Ok(CPUID));
    store(machine.assist + assist::ENLIGHTEN_VM_ENTRY, 0_u8);
    t.eq("not enlightened: there is no VMCS", machine.run(false, cpuid, 0), Err(Refused::Invalid));
    store(machine.assist + assist::ENLIGHTEN_VM_ENTRY, 1_u8);
    insn::wrmsr(msr::VP_ASSIST_PAGE, machine.assist);
    t.eq("without the assist page", machine.run(false, cpuid, 0), Err(Refused::Invalid));
    insn::wrmsr(msr::VP_ASSIST_PAGE, machine.assist | PAGE_ENABLE);
    t.eq("with it", machine.run(false, cpuid, 0), Ok(CPUID));
    machine.end();
}

/// VMCLEAR takes the structure out of use, and writes nothing to it.
fn released(t: &mut Test) {
    let machine = Machine::new();
    let (vmcs, cpuid) = (machine.vmcs, l2!("cpuid"));
    t.eq("an entry", machine.run(true, cpuid, 0), Ok(CPUID));
    let words = |page: u64| -> [u64; 128] {
        core::array::from_fn(|index| satori_guests::place::load(page + 8 * index as u64))
    };
    let before = words(vmcs.page);
    t.holds("VMCLEAR", vmclear(vmcs.page));
    t.holds("nothing is written", words(vmcs.page) == before);
    vmcs.with(at::PROC, 1 << 12);
    vmcs.set32(at::CLEAN, u32::MAX);
    t.eq("all of it is read again", machine.run(false, l2!("rdtsc", "cpuid"), 0), Ok(16));
    // Another one is not in use: that stays so.
    let other = paging::page();
    const ONES: u64 = u64::MAX;
    (8..4096).step_by(8).for_each(|offset| store(other + offset, ONES));
    store(other, 1_u64);
    t.holds("VMCLEAR of another", vmclear(other));
    t.holds("nor is it written", words(other)[1..].iter().all(|word| *word == ONES));
    machine.end();
}

/// An exit tells what became of segments, of which hardly any hypervisor reads more.
fn segments(t: &mut Test) {
    let machine = Machine::new();
    let selector = machine.vmcs.page + at::GUEST_SELECTORS + 6;
    t.holds("DS", satori_guests::place::load::<u16>(selector) != 0);
    t.eq("an entry", machine.run(true, l2!("xor ecx, ecx", "mov ds, ecx", "cpuid"), 0), Ok(CPUID));
    t.eq("DS, which the guest loaded", satori_guests::place::load::<u16>(selector), 0);
    machine.end();
}

/// An interrupt table of one page whose gates all lead to `handler`.
fn gates(handler: u64) -> u64 {
    let idt = paging::page();
    // SAFETY: the page is a case's.
    (0..256).for_each(|number| unsafe { (idt as *mut Gate).add(number).write(Gate::interrupt(handler)) });
    idt
}
