//! MSI-X and the pin.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use satori_guests::apic::{bit, eoi};
use satori_guests::defs::apic::{self as regs};
use satori_guests::defs::pci::*;
use satori_guests::defs::virtio::feature::VERSION_1;
use satori_guests::defs::virtio::kind;
use satori_guests::defs::virtio::pci::common::{CONFIG_VECTOR, QUEUE_SELECT, QUEUE_VECTOR};
use satori_guests::defs::virtio::split::WRITE;
use satori_guests::hyperv::interrupt_within;
use satori_guests::place::{Random, load, read, store, write};
use satori_guests::virtio::{Device, Queue, within};
use satori_guests::{Test, insn, paging, smp};

/// A source of random bytes: each request is an interrupt.
struct Source {
    device: Device,
    queue: Queue,
    buffer: u64,
    capability: usize,
    table: u64,
    pending: u64,
    vectors: u16,
}

/// The vector of the local APIC.
const VECTOR: u8 = 0x51;

impl Source {
    fn new() -> Source {
        let device = Device::find(kind::ENTROPY).expect("a source of random bytes");
        let function = device.function;
        let is = |at: &usize| function.read(*at, 1) as u8 == CAP_MSIX;
        let capability = function.capabilities().find(is).expect("MSI-X");
        let place = |at: usize| function.bar() + u64::from(function.read(capability + at, 4) & !7);
        let vectors = (function.read(capability + 2, 2) & 0x7ff) as u16 + 1;
        let (table, pending) = (place(4), place(8));
        let (queue, buffer) = (Queue::new(0, 16), paging::page());
        Source { device, queue, buffer, capability, table, pending, vectors }
    }

    /// Enables MSI-X or not, and masks all.
    fn control(&self, enabled: bool, masked: bool) {
        let high = if enabled { MSIX_ENABLE_HIGH } else { 0 } | if masked { MSIX_MASK_ALL_HIGH } else { 0 };
        self.device.function.write(self.capability + 3, 1, high.into());
    }

    fn entry(&self, vector: u16, address: u64, data: u32, masked: bool) {
        let at = self.table + MSIX_ENTRY * u64::from(vector);
        store(at, address);
        store(at + 8, data);
        store(at + 12, u32::from(masked));
    }

    /// Begins, with this vector of the device's for its queue.
    fn begin(&mut self, vector: u16) -> bool {
        let begun = self.device.reset() && self.device.agree(VERSION_1);
        self.queue.clear();
        self.device.place(0, 16, self.queue.places());
        self.device.write(QUEUE_SELECT, 2, 0);
        self.device.write(QUEUE_VECTOR, 2, vector.into());
        self.device.write(CONFIG_VECTOR, 2, vector.into());
        self.device.go();
        begun
    }

    /// A request: whether it came back.
    fn ask(&mut self) -> bool {
        self.queue.descriptor(0, self.buffer, 16, WRITE, 0);
        self.queue.request(&self.device, 0)
    }

    fn waits(&self) -> u64 {
        load(self.pending)
    }
}

/// The message for `vector` of this vCPU.
const fn message(vector: u8) -> (u64, u32) {
    (regs::DEFAULT_BASE, vector as u32)
}

/// Takes what waits in the local APIC: whether it was `vector`.
fn comes(vector: u8) -> bool {
    let came = interrupt_within(10_000_000) == Some(vector);
    eoi();
    came
}

pub fn table(t: &mut Test) {
    let source = Source::new();
    let bytes = MSIX_ENTRY * u64::from(source.vectors);
    for entry in 0..u64::from(source.vectors) {
        let at = source.table + MSIX_ENTRY * entry;
        store(at, u64::MAX);
        store(at + 8, u64::MAX);
        t.eq(
            ("what can be written", entry),
            (load::<u64>(at), load::<u64>(at + 8)),
            (!3, 1 << 32 | 0xffff_ffff),
        );
        // Other than double and quad words, and such that are not aligned, are nothing.
        for (offset, size) in [(0, 1), (0, 2), (2, 2), (1, 4), (2, 4), (4, 8), (12, 8), (15, 1)] {
            write(at + offset, size, 0);
            let (low, high) = (load::<u64>(at), load::<u64>(at + 8));
            t.eq(("odd writes", entry, offset, size), (low, high), (!3, 1 << 32 | 0xffff_ffff));
            t.eq(("odd reads", entry, offset, size), read(at + offset, size), 0);
        }
    }
    // Behind the last entry there is none, and nobody writes what is pending.
    for at in [source.table + bytes, source.table + 0xff8, source.pending, source.pending + 8] {
        store(at, u64::MAX);
        t.eq(("nothing there", at), load::<u64>(at), 0);
    }
    (0..source.vectors).for_each(|vector| source.entry(vector, 0, 0, true));
}

pub fn masks(t: &mut Test) {
    let mut source = Source::new();
    let (address, data) = message(VECTOR);
    source.control(true, false);
    source.entry(0, address, data, false);
    t.holds("it begins", source.begin(0));
    t.holds("it comes", source.ask() && comes(VECTOR));
    // Masked, it waits, once however often it was made, and goes when it may.
    source.entry(0, address, data, true);
    t.holds("requests", source.ask() && source.ask() && source.ask());
    t.eq("it waits", (source.waits(), bit(regs::IRR, VECTOR)), (1, false));
    source.entry(0, address, data, false);
    t.eq("it waits no more", source.waits(), 0);
    t.holds("it comes once", comes(VECTOR) && !bit(regs::IRR, VECTOR));
    // All of them masked, and then another message in its place.
    source.control(true, true);
    t.holds("a request", source.ask());
    t.eq("it waits", (source.waits(), bit(regs::IRR, VECTOR)), (1, false));
    source.entry(0, address, data + 1, false);
    source.control(true, false);
    t.holds("with the new message", comes(VECTOR + 1) && source.waits() == 0);
    // A queue with no vector, and one whose vector there is not, make none.
    for vector in [0xffff, source.vectors, 0x7ff] {
        t.holds("it begins", source.begin(vector) && source.ask());
        t.eq(("no vector", vector), (source.waits(), bit(regs::IRR, VECTOR + 1)), (0, false));
    }
    // Switched off with something that waits, reset, and on again.
    source.entry(0, address, data, true);
    t.holds("a request", source.begin(0) && source.ask() && source.waits() == 1);
    source.control(false, false);
    source.entry(0, address, data, false);
    t.holds("nothing while it is off", !bit(regs::IRR, VECTOR));
    t.holds("a reset", source.device.reset());
    source.control(true, false);
    if bit(regs::IRR, VECTOR) {
        t.holds("what waited", comes(VECTOR));
    }
    source.control(false, false);
    t.holds("and nothing waits", source.waits() == 0 && source.device.reset());
}

/// Messages to nobody, with vectors that there are not, to memory, and of every delivery mode.
pub fn forged_messages(t: &mut Test) {
    let mut source = Source::new();
    source.control(true, false);
    t.holds("it begins", source.begin(0));
    let page = paging::page();
    let nobody = regs::DEFAULT_BASE | 0xfe << 12;
    let ram = [0, page, 0x10_0000, 0xfed0_0000, 0xfec0_0000, 0xe000_0000, 0xc000_0000, u64::MAX, 1 << 63];
    for address in ram {
        for data in [0, u32::from(VECTOR), u32::MAX] {
            source.entry(0, address, data, false);
            t.holds(("a request", address, data), source.ask());
        }
        source.entry(0, address, 0, true);
    }
    t.eq("memory is not written", (load::<u64>(page), bit(regs::IRR, VECTOR)), (0, false));
    // To an APIC that is not there: every delivery mode, trigger mode and level, physical, logical and redirected.
    for mode in 0..8 {
        for bits in [0, 1 << 14, 1 << 15, 3 << 14, 0xffff << 16] {
            for address in [nobody, nobody | 4, nobody | 8, nobody | 12] {
                source.entry(0, address, bits | mode << 8 | u32::from(VECTOR), false);
                t.holds(("to nobody", mode, bits, address), source.ask());
            }
        }
    }
    t.holds("nothing came", !bit(regs::IRR, VECTOR));
    // Vectors that are exceptions' are refused by the APIC, or lost; reserved modes are lost.
    for data in (0..16).chain([0x0300 | u32::from(VECTOR), 0x0200]) {
        source.entry(0, regs::DEFAULT_BASE, data, false);
        t.holds(("illegal", data), source.ask());
    }
    t.eq(
        "no request of them",
        (0..8).map(|word| load::<u32>(regs::DEFAULT_BASE + 0x200 + 16 * word)).sum::<u32>(),
        0,
    );
    let (address, data) = message(VECTOR);
    source.entry(0, address, data, false);
    t.holds("a good one comes", source.ask() && comes(VECTOR));
    source.control(false, false);
    t.holds("a reset", source.device.reset());
}

static OVER: AtomicBool = AtomicBool::new(false);
static TABLE: AtomicU64 = AtomicU64::new(0);

/// Writes entries of the table, good ones and others, and masks them.
fn change(_: usize) {
    let mut random = Random(0xabc);
    let at = TABLE.load(Ordering::Relaxed);
    while !OVER.load(Ordering::Relaxed) {
        match random.below(4) {
            0 => store(at, random.of(&[regs::DEFAULT_BASE, 0, regs::DEFAULT_BASE | 0xfe << 12])),
            1 => store(at + 8, random.of(&[u32::from(VECTOR), 0, 0xffff])),
            2 => store(at + 12, 0_u32),
            _ => store(at + 12, 1_u32),
        }
    }
}

pub fn table_that_changes(t: &mut Test) {
    let mut source = Source::new();
    source.control(true, false);
    t.holds("it begins", source.begin(0));
    TABLE.store(source.table, Ordering::Relaxed);
    OVER.store(false, Ordering::Relaxed);
    if smp::count() > 1 {
        smp::begin(1, change);
    }
    let asked = (0..2000).filter(|_| source.ask()).count();
    OVER.store(true, Ordering::Relaxed);
    if smp::count() > 1 {
        smp::wait(1);
    }
    t.eq("all came back", asked, 2000);
    source.entry(0, 0, 0, true);
    while bit(regs::IRR, VECTOR) {
        t.holds("what was made meanwhile", comes(VECTOR));
    }
    let (address, data) = message(VECTOR);
    source.entry(0, address, data, false);
    let waited = bit(regs::IRR, VECTOR) && comes(VECTOR);
    t.holds(("a good one comes", waited), source.ask() && comes(VECTOR));
    source.control(false, false);
    t.holds("a reset", source.device.reset());
}

/// Status register: an interrupt waits.
fn asserted(source: &Source) -> bool {
    source.device.function.read(STATUS, 1) as u8 & STATUS_INTERRUPT != 0
}

pub fn pins(t: &mut Test) {
    let mut source = Source::new();
    source.control(false, false);
    t.holds("it begins", source.begin(0) && !asserted(&source));
    t.holds("a request", source.ask() && within(|| asserted(&source)));
    t.eq("its reason, which goes by being read", load::<u8>(source.device.isr), 1);
    t.eq("then there is none", (load::<u8>(source.device.isr), asserted(&source)), (0, false));
    // In another size and behind it there is nothing that could be read away.
    t.holds("a request", source.ask());
    load::<u32>(source.device.isr + 1);
    store(source.device.isr, u64::MAX);
    t.holds("still there", asserted(&source));
    // The command register keeps it off the line; it waits all the same, and MSI-X takes none of it over.
    source.device.function.write(COMMAND + 1, 1, COMMAND_INTX_DISABLE_HIGH.into());
    t.holds("it waits", asserted(&source));
    source.device.function.write(COMMAND + 1, 1, 0);
    source.control(true, false);
    insn::pause();
    source.control(false, false);
    t.holds("it is let go of by a reset", source.device.reset() && !asserted(&source));
    // With MSI-X the pin is not used.
    source.control(true, false);
    t.holds("by message", source.begin(0) && source.ask() && !asserted(&source));
    source.control(false, false);
    t.holds("a reset", source.device.reset());
}
