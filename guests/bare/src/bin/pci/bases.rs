//! Base addresses.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use satori_guests::defs::apic;
use satori_guests::defs::chipset::mmio;
use satori_guests::defs::pci::*;
use satori_guests::defs::virtio::pci::common::QUEUES;
use satori_guests::defs::virtio::{PCI_VENDOR, kind};
use satori_guests::pci::{Function, functions};
use satori_guests::place::{load, store};
use satori_guests::virtio::{Device, within};
use satori_guests::{Test, insn, paging, smp};

/// Bytes of a device's base address.
const SIZE: u64 = 0x8000;

/// Devices of virtio's, which have one base address each.
fn devices() -> impl Iterator<Item = Function> {
    functions().filter(|function| function.id().0 == PCI_VENDOR)
}

/// Whether a device's registers are at `at`, as the number of its queues is there.
fn answers(at: u64, queues: u16) -> bool {
    load::<u16>(at + QUEUES) == queues
}

pub fn sizing(t: &mut Test) {
    for function in functions() {
        let device = function.id().0 == PCI_VENDOR;
        let before: [u32; 6] = core::array::from_fn(|index| function.read(BAR0 + 4 * index, 4));
        let command = function.read(COMMAND, 2);
        function.command(0, COMMAND_MEMORY | COMMAND_IO);
        for (index, was) in before.into_iter().enumerate() {
            let register = BAR0 + 4 * index;
            for size in [1, 2, 4] {
                for byte in (0..4).step_by(size) {
                    function.write(register + byte, size as u8, u32::MAX);
                }
            }
            let want = match (device, index) {
                (true, 0) => !(SIZE as u32 - 1) | BAR_MEMORY_64,
                (true, 1) => u32::MAX,
                _ => 0,
            };
            t.eq(("its size", function, index), function.read(register, 4), want);
            function.write(register, 4, was);
            t.eq(("back", function, index), function.read(register, 4), was);
        }
        for register in [0x28, 0x30, 0x38] {
            function.write(register, 4, u32::MAX);
            t.eq(("no such register", function, register), function.read(register, 4), 0);
        }
        function.write(COMMAND, 2, command);
    }
}

pub fn moving(t: &mut Test) {
    for function in devices() {
        let Some(device) = Device::of(function) else { continue };
        let (home, queues) = (function.bar(), device.queues());
        t.holds(("at home", function), answers(home, queues));
        function.command(0, COMMAND_MEMORY);
        t.eq(("told not to", function), load::<u32>(home), u32::MAX);
        function.command(COMMAND_MEMORY, 0);
        for to in [0xc100_0000, 0xd000_0000, home + SIZE * 16, home] {
            function.move_to(to);
            t.holds(("there", function, to), answers(to, queues));
            t.holds(("not here any more", function, to), to == home || load::<u32>(home) == u32::MAX);
        }
        // While it answers, a half at a time.
        function.write(BAR0, 4, 0xc200_0000);
        t.holds(("without being told not to", function), answers(0xc200_0000, queues));
        function.write(BAR0 + 4, 4, 0x100);
        t.eq(("beyond 4 GiB", function), load::<u32>(0xc200_0000), u32::MAX);
        let space = paging::Space::new();
        space.map(paging::FREE, 0x100_c200_0000, satori_guests::defs::x86::pte::W);
        space.enter();
        t.holds(("through a page of it", function), answers(paging::FREE, queues));
        paging::leave();
        function.move_to(home);
        t.holds(("home again", function), answers(home, queues));
        // Places that cannot be.
        for to in [0, !(SIZE - 1), 1 << 63, (1 << 52) - SIZE, 1 << 40] {
            function.move_to(to);
            t.eq(("not at home", function, to), load::<u32>(home), u32::MAX);
            function.move_to(home);
            t.holds(("home from there", function, to), answers(home, queues));
        }
    }
}

pub fn over_others(t: &mut Test) {
    let ram = paging::pages(16);
    let ram = ram.next_multiple_of(SIZE);
    let first = devices().next().expect("a device");
    for function in devices() {
        let Some(device) = Device::of(function) else { continue };
        let (home, queues) = (function.bar(), device.queues());
        // Memory stays memory.
        store(ram + QUEUES, 0x1234_5678_9abc_def0_u64);
        function.move_to(ram);
        t.eq(("memory", function), load::<u64>(ram + QUEUES), 0x1234_5678_9abc_def0);
        store(ram + 0x14, 0_u8);
        t.eq(("memory is written", function), load::<u8>(ram + 0x14), 0);
        // So do other devices. The local APIC's page is no device of the bus's.
        let svr = load::<u32>(apic::DEFAULT_BASE + u64::from(apic::SVR));
        let id = first.read(VENDOR_ID, 4);
        let hpet = load::<u32>(mmio::HPET);
        store(mmio::IOAPIC, 1_u32);
        let version = load::<u32>(mmio::IOAPIC + 0x10);
        for to in [apic::DEFAULT_BASE, mmio::IOAPIC, mmio::HPET, mmio::ECAM, mmio::ECAM + 0x8000] {
            function.move_to(to & !(SIZE - 1));
            store(mmio::IOAPIC, 1_u32);
            let now = load::<u32>(apic::DEFAULT_BASE + u64::from(apic::SVR));
            t.eq(("the local APIC", function, to), now, svr);
            t.eq(("the I/O APIC", function, to), load::<u32>(mmio::IOAPIC + 0x10), version);
            t.eq(("the HPET", function, to), load::<u32>(mmio::HPET), hpet);
            t.eq(("configuration space", function, to), first.read(VENDOR_ID, 4), id);
        }
        function.move_to(home);
        t.holds(("home again", function), answers(home, queues));
        // Another device's place: who was there first answers, and the other one does again as soon as there is room.
        for other in devices().filter(|other| *other != function) {
            let Some(neighbour) = Device::of(other) else { continue };
            let (there, theirs) = (other.bar(), neighbour.queues());
            function.move_to(there);
            t.holds(("who was there first", function, other), answers(there, theirs));
            other.move_to(0xc300_0000);
            t.holds(("who moved away", function, other), answers(0xc300_0000, theirs));
            function.move_to(there);
            t.holds(("who came there", function, other), answers(there, queues));
            function.move_to(home);
            other.move_to(there);
            t.holds(("all at home", function, other), answers(there, theirs) && answers(home, queues));
        }
    }
}

static OVER: AtomicBool = AtomicBool::new(false);
static WRONG: AtomicU64 = AtomicU64::new(0);
static SEEN: AtomicU64 = AtomicU64::new(0);
static PLACES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Reads and writes at two places at which the device may be.
fn use_it(_: usize) {
    let [first, second, queues] = [0, 1, 2].map(|place: usize| PLACES[place].load(Ordering::Relaxed));
    while !OVER.load(Ordering::Relaxed) {
        for at in [first, second] {
            let found = load::<u16>(at + QUEUES);
            if found == queues as u16 {
                SEEN.fetch_add(1, Ordering::Relaxed);
            } else if found != 0xffff {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
            store(at + 0x16, 0_u16);
            store(at + 0x3000, 0_u16);
        }
    }
}

pub fn moved_while_it_is_used(t: &mut Test) {
    let device = Device::find(kind::BLOCK).expect("a disk");
    let (function, home, queues) = (device.function, device.function.bar(), device.queues());
    for (place, value) in PLACES.iter().zip([home, 0xc400_0000, queues.into()]) {
        place.store(value, Ordering::Relaxed);
    }
    OVER.store(false, Ordering::Relaxed);
    let raced = smp::count() > 1;
    if raced {
        smp::begin(1, use_it);
    }
    let mut round = 0_u32;
    let seen = within(|| {
        function.write(BAR0, 4, if round.is_multiple_of(2) { 0xc400_0000 } else { home as u32 });
        if round.is_multiple_of(16) {
            function.command(0, COMMAND_MEMORY);
            insn::pause();
            function.command(COMMAND_MEMORY, 0);
        }
        round += 1;
        round > 3000 && (SEEN.load(Ordering::Relaxed) > 0 || !raced)
    });
    OVER.store(true, Ordering::Relaxed);
    if raced {
        smp::wait(1);
    }
    t.holds("it was seen", seen);
    t.eq("neither device nor nothing", WRONG.load(Ordering::Relaxed), 0);
    function.move_to(home);
    t.holds("home again", answers(home, queues));
}
