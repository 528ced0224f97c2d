//! A contended spinlock, fair, as Windows' and Linux' queued ones are: each processor gets it in its turn, and while
//! the processor whose turn it is does not run, all wait. It waits by PAUSE, and after the
//! recommended number of tries by HvCallNotifyLongSpinWait, where that is offered. A line of the console
//! tells how often it was taken; `satori bench talks` compares that.
//!
//! `ms=N` on the command line: how long that goes on (default 20).

#![no_std]
#![no_main]

use core::arch::asm;
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

use satori_guests::defs::hyperv::{Status, call, leaf, msr};
use satori_guests::harness::option;
use satori_guests::hyperv::{self as hv, Control};
use satori_guests::smp::{self, Barrier};
use satori_guests::{Test, guest, insn, println};

guest!("hv_spin", contended);

/// Work under the lock and beside it, in steps of a generator.
const WORK: u64 = 300;

static NEXT: AtomicU64 = AtomicU64::new(0);
static SERVED: AtomicU64 = AtomicU64::new(0);
/// What the lock protects: a sum that two at a time would spoil.
static UNDER_LOCK: AtomicU64 = AtomicU64::new(0);
static LONG_SPINS: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static PAGE: AtomicU64 = AtomicU64::new(0);
static TRIES: AtomicU64 = AtomicU64::new(u64::MAX);
static END: AtomicU64 = AtomicU64::new(0);
static TAKEN: AtomicU64 = AtomicU64::new(0);
static START: Barrier = Barrier::new();

/// HvCallNotifyLongSpinWait with the number of tries until now; the status.
fn notify(page: u64, tries: u64) -> u64 {
    let control = Control::new(call::NOTIFY_LONG_SPIN_WAIT).fast();
    let status: u64;
    // SAFETY: the page holds the hypercall's instruction and a return.
    unsafe {
        asm!("call {page}", page = in(reg) page, in("rcx") control.0, in("rdx") tries, in("r8") 0u64,
             out("rax") status, clobber_abi("sysv64"));
    }
    status
}

fn lock() {
    let ticket = NEXT.fetch_add(1, Ordering::AcqRel);
    let (page, limit) = (PAGE.load(Ordering::Relaxed), TRIES.load(Ordering::Relaxed));
    let mut tries = 0;
    while SERVED.load(Ordering::Acquire) != ticket {
        insn::pause();
        tries += 1;
        if tries % limit == 0 {
            LONG_SPINS.fetch_add(1, Ordering::Relaxed);
            if notify(page, tries) != Status::Success as u64 {
                REFUSED.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn unlock() {
    SERVED.fetch_add(1, Ordering::Release);
}

fn work(mut seed: u64) -> u64 {
    for _ in 0..WORK {
        seed = black_box(seed).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    }
    seed
}

fn contend(number: usize) {
    START.meet(smp::count());
    let end = END.load(Ordering::SeqCst);
    let mut taken = 0u64;
    while insn::rdtsc() < end {
        lock();
        let before = UNDER_LOCK.load(Ordering::Relaxed);
        black_box(work(before));
        UNDER_LOCK.store(before + 1, Ordering::Relaxed);
        unlock();
        taken += 1;
        black_box(work(taken ^ number as u64));
    }
    TAKEN.fetch_add(taken, Ordering::SeqCst);
}

fn contended(t: &mut Test) {
    let tries = if hv::present() { insn::cpuid(leaf::RECOMMENDATIONS, 0)[1] } else { u32::MAX };
    // All ones, or no recommendation: never.
    if !matches!(tries, 0 | u32::MAX) {
        PAGE.store(hv::hypercall_page(), Ordering::SeqCst);
        TRIES.store(tries.into(), Ordering::SeqCst);
    }
    // As good as any other where nobody tells it.
    let hz = if hv::bit::FREQUENCIES.offered() { insn::rdmsr(msr::TSC_FREQUENCY) } else { 2_000_000_000 };
    let ms: u64 = option("ms").and_then(|text| text.parse().ok()).unwrap_or(20);
    let start = insn::rdtsc();
    END.store(start + hz / 1000 * ms, Ordering::SeqCst);
    smp::on_all(smp::count(), contend);
    let ticks = insn::rdtsc().wrapping_sub(start);
    let taken = TAKEN.load(Ordering::SeqCst);
    t.eq("nobody was in it beside another", UNDER_LOCK.load(Ordering::SeqCst), taken);
    t.eq("the call is never refused", REFUSED.load(Ordering::SeqCst), 0);
    let notified = LONG_SPINS.load(Ordering::SeqCst);
    println!("spin {{\"locks\":{taken},\"ticks\":{ticks},\"tsc_hz\":{hz},\"notified\":{notified}}}");
}
