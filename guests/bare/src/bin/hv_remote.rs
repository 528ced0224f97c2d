//! Hypercalls that act on other processors: interprocessor interrupts and flushes of TLBs, and their statuses.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::defs::hyperv::{Status, call as code};
use satori_guests::defs::x86::pte;
use satori_guests::hyperv::bit::{
    CLUSTER_IPI, EX_PROCESSOR_MASKS, EXTENDED_GVA_RANGES, REMOTE_TLB_FLUSH, XMM_INPUT,
};
use satori_guests::hyperv::{self as hv, Control, call, call_xmm, interrupt_within, poke};
use satori_guests::paging::{self, Space};
use satori_guests::smp::{self, Barrier};
use satori_guests::{Test, apic, guest, insn};

guest!(
    "hv_remote",
    ipi_to_itself,
    ipi_vectors,
    ipi_to_others,
    ipi_sets,
    flush_of_this_processor,
    flush_of_others,
    flush_flags,
    flush_sets,
    flush_in_a_loop,
);

const INVALID_INPUT: u64 = Status::InvalidHypercallInput as u64;
const INVALID_PARAMETER: u64 = Status::InvalidParameter as u64;
const IPI: Control = Control::new(code::SEND_SYNTHETIC_CLUSTER_IPI);
const IPI_EX: Control = Control::new(code::SEND_SYNTHETIC_CLUSTER_IPI_EX);
const SPACE: Control = Control::new(code::FLUSH_VIRTUAL_ADDRESS_SPACE);
const LIST: Control = Control::new(code::FLUSH_VIRTUAL_ADDRESS_LIST);
const SPACE_EX: Control = Control::new(code::FLUSH_VIRTUAL_ADDRESS_SPACE_EX);
const LIST_EX: Control = Control::new(code::FLUSH_VIRTUAL_ADDRESS_LIST_EX);

/// A generous time for an interrupt to arrive, in ticks of the TSC.
const SOON: u64 = 400_000_000;
/// A time after which nothing will come any more.
const LONG: u64 = 200_000;

/// A hypercall page and a page for blocks, if `offered`.
fn pages(t: &mut Test, offered: bool) -> Option<(u64, u64)> {
    t.holds("not without an interface", !offered || hv::present());
    offered.then(|| (hv::hypercall_page(), paging::page()))
}

/// Puts a block together.
fn block(at: u64, words: &[u64]) -> u64 {
    for (place, word) in words.iter().enumerate() {
        poke(at + 8 * place as u64, *word);
    }
    at
}

/// What came, one after the other.
fn came() -> Option<u8> {
    let vector = interrupt_within(LONG)?;
    apic::eoi();
    Some(vector)
}

fn ipi_to_itself(t: &mut Test) {
    let Some((page, at)) = pages(t, CLUSTER_IPI.offered()) else { return };
    let own = 1 << hv::vp_index(0);
    t.eq("fast", call(page, IPI.fast(), 0x51, own), Ok(0));
    t.eq("arrives", came(), Some(0x51));
    t.eq("once", came(), None);
    t.eq("in memory", call(page, IPI, block(at, &[0x52, own]), 0), Ok(0));
    t.eq("arrives", came(), Some(0x52));
    // Many at once are one; the highest comes first.
    for vector in [0x31, 0x99, 0x31, 0x45] {
        t.eq(("several", vector), call(page, IPI.fast(), vector, own), Ok(0));
    }
    t.eq("in their order", [came(), came(), came(), came()], [Some(0x99), Some(0x45), Some(0x31), None]);
}

fn ipi_vectors(t: &mut Test) {
    let Some((page, at)) = pages(t, CLUSTER_IPI.offered()) else { return };
    let own = 1 << hv::vp_index(0);
    for vector in 0x10..=0xffu64 {
        // 0xff is the spurious one, 0x80 the end of subjects.
        if vector != 0x80 && vector > 0x20 {
            t.eq(("a vector", vector), call(page, IPI.fast(), vector, own), Ok(0));
            t.eq(("comes", vector), came(), Some(vector as u8));
        } else {
            t.eq(("to nobody", vector), call(page, IPI.fast(), vector, 0), Ok(0));
        }
    }
    for vector in [0, 1, 0xf, 0x100, 0x151, 0x8000_0051, 0xffff_ffff] {
        t.eq(("no vector", vector), call(page, IPI.fast(), vector, own), Ok(INVALID_INPUT));
        t.eq(
            ("no vector in memory", vector),
            call(page, IPI, block(at, &[vector, own]), 0),
            Ok(INVALID_INPUT),
        );
    }
    t.eq("nothing came of it", came(), None);
    // The word behind the vector names a trust level, of which there is only the lowest.
    t.eq("trust level 0", call(page, IPI.fast(), 0x10_0000_0051, own), Ok(0));
    t.eq("comes", came(), Some(0x51));
    let level1 = call(page, IPI.fast(), 0x11_0000_0051, own);
    t.holds(("trust level 1", level1), matches!(level1, Ok(3 | 5 | 6)));
    t.eq("does not come", came(), None);
}

static ARRIVED: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];
static MEETING: Barrier = Barrier::new();

/// The others wait for one interrupt each.
fn others_wait() {
    for (number, arrived) in ARRIVED.iter().enumerate().take(smp::count()).skip(1) {
        arrived.store(u64::MAX, Ordering::SeqCst);
        smp::begin(number, |number| {
            let vector = interrupt_within(SOON);
            if vector.is_some() {
                apic::eoi();
            }
            ARRIVED[number].store(vector.map_or(0, u64::from), Ordering::SeqCst);
        });
    }
}

/// What each of the others got.
fn others_got(t: &mut Test, what: &str, vector: u64) {
    for (number, arrived) in ARRIVED.iter().enumerate().take(smp::count()).skip(1) {
        smp::wait(number);
        t.eq((what, number), arrived.load(Ordering::SeqCst), vector);
    }
}

/// The numbers of all vCPUs that there can be.
const EACH: [usize; smp::MAX_CPUS] = {
    let mut each = [0; smp::MAX_CPUS];
    let mut at = 0;
    while at < each.len() {
        each[at] = at;
        at += 1;
    }
    each
};

/// The mask of all but the first.
fn others() -> u64 {
    (1..smp::count()).map(|number| 1 << hv::vp_index(number)).sum()
}

fn ipi_to_others(t: &mut Test) {
    let Some((page, at)) = pages(t, CLUSTER_IPI.offered()) else { return };
    // Asked before they have work.
    let (others, each) = (others(), EACH.map(|number| 1 << hv::vp_index(number % smp::count())));
    others_wait();
    t.eq("all others", call(page, IPI.fast(), 0x61, others), Ok(0));
    others_got(t, "fast", 0x61);
    others_wait();
    // Processors that do not exist are not missed.
    t.eq("and some more", call(page, IPI, block(at, &[0x62, others | !0 << 40]), 0), Ok(0));
    others_got(t, "in memory", 0x62);
    t.eq("not this one", came(), None);
    others_wait();
    for (number, one) in each.into_iter().enumerate().take(smp::count()).skip(1) {
        t.eq(("one", number), call(page, IPI.fast(), 0x63, one), Ok(0));
    }
    others_got(t, "one by one", 0x63);
}

fn ipi_sets(t: &mut Test) {
    let Some((page, at)) = pages(t, CLUSTER_IPI.offered() && EX_PROCESSOR_MASKS.offered()) else { return };
    let own = 1 << hv::vp_index(0);
    t.eq("a sparse set", call(page, IPI_EX.header(1), block(at, &[0x71, 0, 1, own]), 0), Ok(0));
    t.eq("comes", came(), Some(0x71));
    // Banks are in the order of the mask's bits; those beyond the last processor are empty.
    t.eq(
        "three banks",
        call(page, IPI_EX.header(3), block(at, &[0x72, 0, 1 | 1 << 5 | 1 << 63, own, !0, !0]), 0),
        Ok(0),
    );
    t.eq("comes", came(), Some(0x72));
    t.eq("other banks", call(page, IPI_EX.header(1), block(at, &[0x73, 0, 2, own]), 0), Ok(0));
    t.eq("does not come", came(), None);
    others_wait();
    t.eq("all", call(page, IPI_EX, block(at, &[0x74, 1, 0]), 0), Ok(0));
    t.eq("comes here", came(), Some(0x74));
    others_got(t, "and there", 0x74);
    for (banks, header) in [(1, 0), (1, 2), (0, 1), (3, 1), (1 << 63, 5), (!0, 63)] {
        let got = call(page, IPI_EX.header(header), block(at, &[0x75, 0, banks, own, own, own]), 0);
        t.eq(("banks and header differ", banks, header), got, Ok(INVALID_INPUT));
    }
    for format in [2, 3, u64::MAX] {
        let got = call(page, IPI_EX.header(1), block(at, &[0x75, format, 1, own]), 0);
        t.holds(("no format", format, got), matches!(got, Ok(INVALID_INPUT | INVALID_PARAMETER)));
    }
    t.eq("an empty set", call(page, IPI_EX, block(at, &[0x75, 0, 0]), 0), Ok(0));
    for vector in [0xf, 0x100] {
        let got = call(page, IPI_EX.header(1), block(at, &[vector, 0, 1, own]), 0);
        t.eq(("no vector", vector), got, Ok(INVALID_INPUT));
    }
    t.eq("nothing came of it", came(), None);
    if XMM_INPUT.offered() {
        let xmm = [1, own, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        t.eq("in registers", call_xmm(page, IPI_EX.fast().header(1), 0x76, 0, &xmm), Ok(0));
        t.eq("comes", came(), Some(0x76));
    }
}

/// Where the pages under test are.
const LINEAR: u64 = paging::FREE + (7 << 21);

/// A space in which [`LINEAR`] and the pages behind it are mapped to a page of ones.
struct Mapped {
    space: Space,
    pages: [u64; 2],
}

const MAPPED: u64 = 4;

impl Mapped {
    fn new() -> Mapped {
        let pages = [paging::page(), paging::page()];
        poke(pages[0], 1);
        poke(pages[1], 2);
        let mapped = Mapped { space: Space::new(), pages };
        mapped.all_to(0);
        ROOT.store(mapped.space.root, Ordering::SeqCst);
        mapped
    }

    /// Maps all to one of the pages, without telling any processor.
    fn all_to(&self, which: usize) {
        for page in 0..MAPPED {
            self.space.map(LINEAR + 4096 * page, self.pages[which], pte::W);
        }
    }
}

static ROOT: AtomicU64 = AtomicU64::new(0);

/// What this processor's TLB and tables give for the pages: the sum of what stands in them.
fn look() -> u64 {
    (0..MAPPED).map(|page| hv::peek(LINEAR + 4096 * page)).sum()
}

fn flush_of_this_processor(t: &mut Test) {
    let Some((page, at)) = pages(t, REMOTE_TLB_FLUSH.offered()) else { return };
    let own = 1 << hv::vp_index(0);
    let mapped = Mapped::new();
    mapped.space.enter();
    let mut which = 0;
    // Each flush must be seen; that nothing is seen without one cannot be asked for.
    let mut flushed = |t: &mut Test, what: &str, control: Control, words: &[u64]| {
        mapped.all_to(which);
        insn::set_cr3(mapped.space.root);
        look();
        which ^= 1;
        mapped.all_to(which);
        let reps = control.0 & 0xfff << 32;
        t.eq(what, call(page, control, block(at, words), 0), Ok(reps));
        t.eq((what, "new mappings"), look(), MAPPED * (1 + which as u64));
    };
    let cr3 = mapped.space.root;
    flushed(t, "space", SPACE, &[cr3, 0, own]);
    flushed(t, "space, all processors", SPACE, &[cr3, 1, 0]);
    flushed(t, "space, a mask of 0 means all", SPACE, &[cr3, 0, 0]);
    flushed(t, "all spaces", SPACE, &[0, 2, own]);
    flushed(t, "all spaces of all", SPACE, &[0, 3, 0]);
    flushed(t, "without global pages", SPACE, &[cr3, 4, own]);
    let each: [u64; 4] = core::array::from_fn(|number| LINEAR + 4096 * number as u64);
    flushed(t, "list", LIST.reps(4, 0), &[cr3, 0, own, each[0], each[1], each[2], each[3]]);
    flushed(t, "list with a count", LIST.reps(1, 0), &[cr3, 0, own, LINEAR | 3]);
    flushed(t, "list with the largest count", LIST.reps(1, 0), &[cr3, 0, own, LINEAR | 0xfff]);
    flushed(t, "list, all processors", LIST.reps(2, 0), &[cr3, 1, 0, LINEAR | 1, (LINEAR + 8192) | 1]);
    flushed(t, "list from the second on", LIST.reps(2, 1), &[cr3, 1, 0, 0, LINEAR | 3]);
    if XMM_INPUT.offered() {
        mapped.all_to(which);
        look();
        which ^= 1;
        mapped.all_to(which);
        let xmm = [own, LINEAR | 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        t.eq("in registers", call_xmm(page, LIST.reps(1, 0).fast(), cr3, 0, &xmm), Ok(1 << 32));
        t.eq("new mappings", look(), MAPPED * (1 + which as u64));
    }
    paging::leave();
}

static OUTCOME: [AtomicU64; smp::MAX_CPUS] = [const { AtomicU64::new(0) }; smp::MAX_CPUS];

/// The others look before and after the first one changed and flushed.
fn flush_of_others(t: &mut Test) {
    let Some((page, at)) = pages(t, REMOTE_TLB_FLUSH.offered()) else { return };
    let mapped = Mapped::new();
    let cr3 = mapped.space.root;
    let ex = EX_PROCESSOR_MASKS.offered();
    let ways: [(&str, Control, [u64; 6], bool); 7] = [
        ("space", SPACE, [cr3, 0, others(), 0, 0, 0], true),
        ("all processors", SPACE, [cr3, 1, 0, 0, 0, 0], true),
        ("all spaces", SPACE, [0, 2, others(), 0, 0, 0], true),
        ("list", LIST.reps(1, 0), [cr3, 0, others(), LINEAR | 3, 0, 0], true),
        ("space by set", SPACE_EX.header(1), [cr3, 0, 0, 1, others(), 0], ex),
        ("list by set", LIST_EX.header(1).reps(1, 0), [cr3, 0, 0, 1, others(), LINEAR | 3], ex),
        ("all by set", LIST_EX.reps(1, 0), [cr3, 0, 1, 0, LINEAR | 3, 0], ex),
    ];
    for (what, control, words, _) in ways.into_iter().filter(|way| way.3) {
        mapped.all_to(0);
        for number in 1..smp::count() {
            smp::begin(number, |number| {
                insn::set_cr3(ROOT.load(Ordering::SeqCst));
                let before = look();
                MEETING.meet(smp::count());
                MEETING.meet(smp::count());
                OUTCOME[number].store(before << 32 | look(), Ordering::SeqCst);
                paging::leave();
            });
        }
        MEETING.meet(smp::count());
        mapped.all_to(1);
        let reps = control.0 & 0xfff << 32;
        t.eq(what, call(page, control, block(at, &words), 0), Ok(reps));
        MEETING.meet(smp::count());
        for (number, outcome) in OUTCOME.iter().enumerate().take(smp::count()).skip(1) {
            smp::wait(number);
            let seen = outcome.load(Ordering::SeqCst);
            t.eq((what, number), seen, (MAPPED << 32) | (2 * MAPPED));
        }
    }
}

fn flush_flags(t: &mut Test) {
    let Some((page, at)) = pages(t, REMOTE_TLB_FLUSH.offered()) else { return };
    for bit in 4..64 {
        let got = call(page, SPACE, block(at, &[0, 1 << bit, 0]), 0);
        t.holds(("a reserved flag", bit, got), matches!(got, Ok(INVALID_INPUT | INVALID_PARAMETER)));
    }
    let got = call(page, LIST.reps(1, 0), block(at, &[0, 8 | 3, 0, LINEAR | 3]), 0);
    if EXTENDED_GVA_RANGES.offered() {
        t.eq("an extended range", got, Ok(1 << 32));
        let large = LINEAR | 1 << 11 | 2;
        t.eq("large pages", call(page, LIST.reps(1, 0), block(at, &[0, 8 | 3, 0, large]), 0), Ok(1 << 32));
    } else {
        t.holds(
            ("extended ranges are not offered", got),
            matches!(got, Ok(INVALID_INPUT | INVALID_PARAMETER)),
        );
    }
    // Addresses that no table can map.
    for address in [0xfff, 0x8000_0000_0000, 0xffff_7fff_ffff_ffff, !0, !0xfff, 1 << 63] {
        t.eq(
            ("a list with", address),
            call(page, LIST.reps(1, 0), block(at, &[0, 3, 0, address]), 0),
            Ok(1 << 32),
        );
    }
}

fn flush_sets(t: &mut Test) {
    let offered = REMOTE_TLB_FLUSH.offered() && EX_PROCESSOR_MASKS.offered();
    let Some((page, at)) = pages(t, offered) else { return };
    let own = 1 << hv::vp_index(0);
    for control in [SPACE_EX, LIST_EX.reps(1, 0)] {
        let good = control.0 & 0xfff << 32;
        t.eq(
            (control, "one bank"),
            call(page, control.header(1), block(at, &[0, 2, 0, 1, own, LINEAR]), 0),
            Ok(good),
        );
        t.eq((control, "all"), call(page, control, block(at, &[0, 2, 1, 0, LINEAR]), 0), Ok(good));
        t.eq((control, "no bank"), call(page, control, block(at, &[0, 2, 0, 0, LINEAR]), 0), Ok(good));
        let far = block(at, &[0, 2, 0, 1 << 63 | 1, own, !0, LINEAR]);
        t.eq((control, "a far bank"), call(page, control.header(2), far, 0), Ok(good));
        for (banks, header) in [(1, 0), (1, 2), (0, 1), (3, 1)] {
            let got =
                call(page, control.header(header), block(at, &[0, 2, 0, banks, own, own, LINEAR, LINEAR]), 0);
            t.eq((control, "banks and header differ", banks, header), got, Ok(INVALID_INPUT));
        }
        let got = call(page, control.header(1), block(at, &[0, 2, 7, 1, own, LINEAR]), 0);
        t.holds((control, "no format", got), matches!(got, Ok(INVALID_INPUT | INVALID_PARAMETER)));
    }
}

static STOP: AtomicU64 = AtomicU64::new(0);

/// All processors flush each other at the same time, with interrupts off: nobody may wait for ever.
fn flush_in_a_loop(t: &mut Test) {
    let Some((page, _)) = pages(t, REMOTE_TLB_FLUSH.offered()) else { return };
    STOP.store(page, Ordering::SeqCst);
    smp::on_all(smp::count(), |number| {
        let (page, at) = (STOP.load(Ordering::SeqCst), paging::page());
        let mut bad = 0;
        for round in 0..300u64 {
            let words = [0, round & 3, !0, LINEAR | 3];
            let (control, good) = if round & 1 == 0 { (SPACE, 0) } else { (LIST.reps(1, 0), 1 << 32) };
            bad += u64::from(call(page, control, block(at, &words), 0) != Ok(good));
        }
        OUTCOME[number].store(bad, Ordering::SeqCst);
    });
    for (number, outcome) in OUTCOME.iter().enumerate().take(smp::count()) {
        t.eq(("refused flushes of", number), outcome.load(Ordering::SeqCst), 0);
    }
}
