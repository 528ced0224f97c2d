//! Processors that change the same registers, pages and slots at the same time. How a race ends is nobody's
//! business, but it has to end, and afterwards the interface is whole.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::apic;
use satori_guests::defs::hyperv::synic::SINT_MASKED;
use satori_guests::defs::hyperv::{PAGE_ENABLE, msr};
use satori_guests::hyperv::bit::*;
use satori_guests::hyperv::{self as hv, Control, call, fill, filled, interrupt_within, peek32};
use satori_guests::msr::{get, set};
use satori_guests::smp::{self, Barrier};
use satori_guests::subject::reg;
use satori_guests::{Subject, Test, code, guest, insn, paging};

guest!(
    "hv_races",
    page_registers,
    overlays_on_one_page,
    code_under_the_page,
    assist_pages,
    controllers,
    everything
);

static PAGES: AtomicU64 = AtomicU64::new(0);
static MEETING: Barrier = Barrier::new();
const ROUNDS: u64 = 400;

/// A number for each round of each processor.
fn mixed(number: usize, round: u64) -> u64 {
    let x = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (number as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 29
}

/// One thing that a processor does while the others do the like.
struct Move {
    number: usize,
    round: u64,
    /// The pages that all share.
    pages: u64,
    /// The processor's number of the round.
    x: u64,
}

/// What processors do at once.
trait Race {
    fn one(at: Move);
    /// What each does when it has made all its moves.
    fn end() {}
}

/// Runs `R` on all processors at once, with the pages at `pages`.
fn race<R: Race>(pages: u64) {
    PAGES.store(pages, Ordering::SeqCst);
    smp::on_all(smp::count(), |number| {
        let pages = PAGES.load(Ordering::SeqCst);
        MEETING.meet(smp::count());
        for round in 0..ROUNDS {
            R::one(Move { number, round, pages, x: mixed(number, round) });
        }
        R::end();
    });
}

/// Takes what interrupts came.
fn drain() {
    while interrupt_within(100_000).is_some() {
        apic::eoi();
    }
}

/// Whether the interface still does what it is for.
fn whole(t: &mut Test, what: &str) {
    if !hv::present() {
        return t.eq("no interface", get(msr::GUEST_OS_ID), None);
    }
    insn::wrmsr(msr::GUEST_OS_ID, 0);
    let page = hv::hypercall_page();
    t.eq((what, "calls"), call(page, Control::new(0xfff0), 0, 0), Ok(2));
    if REFERENCE_COUNTER.offered() {
        let time = insn::rdmsr(msr::TIME_REF_COUNT);
        t.holds((what, "time"), insn::rdmsr(msr::TIME_REF_COUNT) >= time);
    }
    insn::wrmsr(msr::GUEST_OS_ID, 0);
}

struct PageRegisters;

impl Race for PageRegisters {
    fn one(Move { pages, x, .. }: Move) {
        let page = pages + 4096 * (x & 3);
        match x >> 2 & 7 {
            0 => drop(set(msr::GUEST_OS_ID, 0)),
            1 | 2 => drop(set(msr::GUEST_OS_ID, hv::OS_ID)),
            3 | 4 => drop(set(msr::HYPERCALL, page | PAGE_ENABLE)),
            5 => drop(set(msr::HYPERCALL, 0)),
            6 => drop(set(msr::REFERENCE_TSC, page | PAGE_ENABLE)),
            _ => drop(set(msr::REFERENCE_TSC, 0)),
        }
    }
}

fn page_registers(t: &mut Test) {
    if hv::present() {
        let pages = paging::pages(4);
        (0..4).for_each(|page| fill(pages + 4096 * page, 0x1111));
        race::<PageRegisters>(pages);
        insn::wrmsr(msr::GUEST_OS_ID, 0);
        set(msr::REFERENCE_TSC, 0);
        for page in 0..4 {
            t.holds(("given back", page), filled(pages + 4096 * page, 0x1111));
        }
    }
    whole(t, "page registers");
}

struct OverlaysOnOnePage;

impl Race for OverlaysOnOnePage {
    fn one(Move { pages: page, x, .. }: Move) {
        // Each processor has controller pages of its own, all over the one.
        let registers = [msr::HYPERCALL, msr::REFERENCE_TSC, msr::SIMP, msr::SIEFP];
        set(registers[(x & 3) as usize], if x & 4 == 0 { page | PAGE_ENABLE } else { 0 });
    }
    fn end() {
        for register in [msr::SIMP, msr::SIEFP] {
            set(register, 0);
        }
    }
}

fn overlays_on_one_page(t: &mut Test) {
    if hv::present() {
        let page = paging::page();
        fill(page, 0x2222);
        insn::wrmsr(msr::GUEST_OS_ID, hv::OS_ID);
        race::<OverlaysOnOnePage>(page);
        insn::wrmsr(msr::HYPERCALL, 0);
        set(msr::REFERENCE_TSC, 0);
        t.holds("given back", filled(page, 0x2222));
    }
    whole(t, "overlays on one page");
}

static OTHER: AtomicU64 = AtomicU64::new(0);
const INT3S: u64 = 0xcccc_cccc_cccc_cccc;

struct CodeUnderThePage;

impl Race for CodeUnderThePage {
    fn one(Move { number, round, pages: page, .. }: Move) {
        if number == 0 {
            insn::wrmsr(msr::HYPERCALL, if round & 1 == 0 { page | PAGE_ENABLE } else { 0 });
            return;
        }
        let s = Subject::kernel(code!("call rsi")).with(reg::RSI, page).with(reg::RCX, 0xfff0);
        let event = s.run();
        // A page that changes between two instructions may be left at its end, for the page of INT3.
        if event.done() && ![0x77, 2].contains(&event.regs.gpr[reg::RAX]) {
            OTHER.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// One executes the page that the other covers and uncovers: it sees its own code or the hypercall.
fn code_under_the_page(t: &mut Test) {
    if hv::present() {
        let page = paging::pages(2);
        // Behind the MOV the hypercall page has zeros, which are additions to where RAX points, up to its end. Without
        // a stop there the processor would go on through the guest's data.
        fill(page + 4096, INT3S);
        code!("mov eax, 0x77", "ret").copy_to(page);
        insn::wrmsr(msr::GUEST_OS_ID, hv::OS_ID);
        race::<CodeUnderThePage>(page);
        insn::wrmsr(msr::HYPERCALL, 0);
        t.eq("its own code is back", peek32(page), 0x0000_77b8);
        t.eq("other results", OTHER.load(Ordering::SeqCst), 0);
    }
    whole(t, "code under the page");
}

struct AssistPages;

impl Race for AssistPages {
    fn one(Move { pages: page, x, .. }: Move) {
        // All have the same page, and write to it.
        set(msr::VP_ASSIST_PAGE, page | (x & 3 != 0) as u64);
        apic::send_self(0x91);
        if interrupt_within(100_000).is_some() {
            // SAFETY: a page of the guest's, raced by design.
            unsafe { (page as *mut u32).write_volatile(x as u32) };
        }
        insn::wrmsr(msr::EOI, 0);
    }
    fn end() {
        set(msr::VP_ASSIST_PAGE, 0);
        drain();
        (0..4).for_each(|_| apic::eoi());
    }
}

fn assist_pages(t: &mut Test) {
    if APIC_ACCESS.offered() {
        race::<AssistPages>(paging::page());
        apic::send_self(0x92);
        t.eq("interrupts come", interrupt_within(200_000), Some(0x92));
        apic::eoi();
    }
    whole(t, "assist pages");
}

struct Controllers;

impl Race for Controllers {
    fn one(Move { round, pages, x, .. }: Move) {
        let page = pages + 4096 * (x & 1);
        let source = (x >> 8 & 15) as u32;
        match x >> 4 & 15 {
            0 => drop(set(msr::SIMP, page | PAGE_ENABLE)),
            1 => drop(set(msr::SIEFP, page | PAGE_ENABLE)),
            2 => drop(set(msr::SIMP, 0)),
            3 => drop(set(msr::SCONTROL, x >> 12 & 1)),
            4..=6 => drop(set(msr::SINT0 + source, (0x40 + (x >> 12 & 0x3f)) | x & SINT_MASKED)),
            7 | 8 => drop(set(msr::EOM, 0)),
            9..=12 => {
                let timer = msr::STIMER0_CONFIG + (x >> 16 & 3) as u32 * 2;
                set(timer, 8 | x >> 20 & 2 | u64::from(source) << 16);
                set(timer + 1, 1 + (x >> 24 & 0xff));
            }
            _ => fill(page, if x & 2 == 0 { 0 } else { x }),
        }
        if round % 8 == 0 && interrupt_within(20_000).is_some() {
            apic::eoi();
        }
    }
    fn end() {
        for timer in (msr::STIMER0_CONFIG..=msr::STIMER3_COUNT).step_by(2) {
            set(timer, 0);
        }
        for source in 0..16 {
            set(msr::SINT0 + source, SINT_MASKED);
        }
        for register in [msr::SCONTROL, msr::SIMP, msr::SIEFP] {
            set(register, 0);
        }
        drain();
    }
}

/// Each processor writes its controller and timers while others write to its pages.
fn controllers(t: &mut Test) {
    if SYNIC.offered() {
        race::<Controllers>(paging::pages(2));
        let page = paging::page();
        insn::wrmsr(msr::SIMP, page | PAGE_ENABLE);
        t.eq("a page", get(msr::SIMP), Some(page | PAGE_ENABLE));
        insn::wrmsr(msr::SIMP, 0);
    }
    whole(t, "controllers");
}

struct Everything;

impl Race for Everything {
    fn one(Move { pages, x, .. }: Move) {
        let page = pages + 4096 * (x & 3);
        let registers = [
            msr::GUEST_OS_ID,
            msr::HYPERCALL,
            msr::REFERENCE_TSC,
            msr::VP_ASSIST_PAGE,
            msr::SIMP,
            msr::SIEFP,
        ];
        set(registers[(x >> 8) as usize % registers.len()], page | x >> 4 & PAGE_ENABLE);
        let s = Subject::kernel(code!("vmcall")).with(reg::RDX, page + (x >> 20 & 0xff8));
        let codes = [2, 3, 8, 0xb, 0x13, 0x14, 0x15, 0x5c, 0x5d, 0x8001];
        let control = codes[(x >> 40) as usize % codes.len()] | (x & 1) << 32 | (x >> 3 & 1) << 16;
        s.with(reg::RCX, control).with(reg::R8, page).run();
    }
    fn end() {
        for register in [msr::VP_ASSIST_PAGE, msr::SIMP, msr::SIEFP] {
            set(register, 0);
        }
        drain();
    }
}

/// All of it at once, with calls in between.
fn everything(t: &mut Test) {
    if hv::present() {
        race::<Everything>(paging::pages(4));
        insn::wrmsr(msr::GUEST_OS_ID, 0);
        set(msr::REFERENCE_TSC, 0);
    }
    whole(t, "everything");
}
