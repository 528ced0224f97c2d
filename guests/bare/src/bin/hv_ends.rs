//! What happens once: a hypercall page that is locked, an invariant TSC that the guest consents to, and ways in which a
//! guest ends by the interface, chosen by `end=`: crashes that it tells of, and resets.

#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering};

use satori_guests::defs::hyperv::{
    CRASH_MESSAGE, CRASH_NOTIFY, EXPOSE_INVARIANT_TSC, HYPERCALL_LOCKED, PAGE_ENABLE, RESET_NOW, msr,
};
use satori_guests::hyperv::bit::{CRASH, HYPERCALL, REFERENCE_COUNTER, RESET, TSC_INVARIANT};
use satori_guests::hyperv::{self as hv, Control, call, fill, filled, memory_end};
use satori_guests::msr::{get, kept, refused, set};
use satori_guests::{Test, guest, harness, insn, paging, smp};

guest!("hv_ends", invariant_tsc, locked_page, end);

/// What another processor has seen.
static SEEN: AtomicU32 = AtomicU32::new(2);

/// CPUID 80000007H:EDX[8].
fn invariant() -> bool {
    insn::cpuid(0x8000_0000, 0)[0] >= 0x8000_0007 && insn::cpuid(0x8000_0007, 0)[3] >> 8 & 1 != 0
}

/// The processor has one only if the guest says that it knows what that means (TLFS 12.7.3); where consent is not
/// asked for, it stays as it is.
fn invariant_tsc(t: &mut Test) {
    let before = invariant();
    if !TSC_INVARIANT.offered() {
        refused(t, "not offered", msr::TSC_INVARIANT_CONTROL, EXPOSE_INVARIANT_TSC);
        t.eq("nothing to read", get(msr::TSC_INVARIANT_CONTROL), None);
        return t.eq("as before", invariant(), before);
    }
    t.eq("at first", get(msr::TSC_INVARIANT_CONTROL), Some(0));
    t.eq("hidden at first", before, false);
    for bit in 1..64 {
        refused(t, "a reserved bit", msr::TSC_INVARIANT_CONTROL, 1 << bit);
        refused(t, "beside the other", msr::TSC_INVARIANT_CONTROL, 1 << bit | EXPOSE_INVARIANT_TSC);
        t.eq(("hidden still", bit), (get(msr::TSC_INVARIANT_CONTROL), invariant()), (Some(0), false));
    }
    for wanted in [true, false, true] {
        kept(t, "consent", msr::TSC_INVARIANT_CONTROL, u64::from(wanted));
        t.eq("this processor", invariant(), wanted);
        for number in 1..smp::count() {
            smp::begin(number, |_| SEEN.store(invariant() as u32, Ordering::SeqCst));
            smp::wait(number);
            let seen = SEEN.load(Ordering::SeqCst);
            t.eq(("another", number), seen, wanted.into());
        }
    }
    let ticks = insn::rdtsc();
    t.holds("it runs", insn::rdtsc() > ticks);
}

/// Locked it stays where it is until a reset (TLFS 3.13), whatever is written and by whom.
fn locked_page(t: &mut Test) {
    if !HYPERCALL.offered() {
        return t.eq("absent", get(msr::HYPERCALL), None);
    }
    let (page, other) = (paging::page(), paging::page());
    [page, other].into_iter().for_each(|page| fill(page, 0x3333));
    t.eq("not locked", insn::rdmsr(msr::HYPERCALL) & HYPERCALL_LOCKED, 0);
    insn::wrmsr(msr::GUEST_OS_ID, 0);
    t.holds("without an identity", set(msr::HYPERCALL, page | HYPERCALL_LOCKED | PAGE_ENABLE));
    t.eq("nothing is locked", insn::rdmsr(msr::HYPERCALL) & HYPERCALL_LOCKED, 0);
    insn::wrmsr(msr::GUEST_OS_ID, hv::OS_ID);
    let locked = page | HYPERCALL_LOCKED | PAGE_ENABLE;
    kept(t, "locked", msr::HYPERCALL, locked);
    for value in [0, locked, page | PAGE_ENABLE, other | PAGE_ENABLE, HYPERCALL_LOCKED, u64::MAX] {
        refused(t, "a write", msr::HYPERCALL, value);
        t.eq(("it stays", value), get(msr::HYPERCALL), Some(locked));
    }
    if smp::count() > 1 {
        smp::begin(1, |_| {
            set(msr::HYPERCALL, 0);
        });
        smp::wait(1);
        t.eq("another processor cannot either", get(msr::HYPERCALL), Some(locked));
    }
    t.eq("calls", call(page, Control::new(0xfff0), 0, 0), Ok(2));
    t.holds("the other page is free", filled(other, 0x3333));
    // An identity that is given up takes the page away; the lock stays.
    insn::wrmsr(msr::GUEST_OS_ID, 0);
    t.eq("without the identity", insn::rdmsr(msr::HYPERCALL), page | HYPERCALL_LOCKED);
    t.holds("given back", filled(page, 0x3333));
    insn::wrmsr(msr::GUEST_OS_ID, hv::OS_ID);
    refused(t, "with it again", msr::HYPERCALL, locked);
}

/// Ticks of the TSC by which the first life is over, at the latest: it runs on through resets.
const FIRST_LIFE: u64 = 100_000_000;

fn end(t: &mut Test) {
    let Some(how) = harness::option("end") else {
        return t.holds("no end was asked for", true);
    };
    let reset = matches!(how, "reset" | "reset-then-more");
    if !(if reset { RESET } else { CRASH }).offered() {
        refused(t, "not offered", if reset { msr::RESET } else { msr::CRASH_CTL }, RESET_NOW | CRASH_NOTIFY);
        return;
    }
    let parameters = |values: [u64; 5]| {
        for (register, value) in (msr::CRASH_P0..).zip(values) {
            insn::wrmsr(register, value);
        }
    };
    let message = b"all is lost\n\x1b[31mreally\0";
    let page = paging::page();
    // SAFETY: a page of its own, longer than the message.
    unsafe { core::ptr::copy_nonoverlapping(message.as_ptr(), page as *mut u8, message.len()) };
    match how {
        "crash" => {
            parameters([0xdead, 1, 0x1234_5678, 3, 4]);
            insn::wrmsr(msr::CRASH_CTL, CRASH_NOTIFY);
        }
        "message" => {
            parameters([0xbeef, 1, 2, page, message.len() as u64]);
            insn::wrmsr(msr::CRASH_CTL, CRASH_NOTIFY | CRASH_MESSAGE);
        }
        "long-message" => {
            fill(page, u64::from_le_bytes(*b"too much"));
            parameters([0xbeef, 1, 2, page, u64::MAX]);
            insn::wrmsr(msr::CRASH_CTL, CRASH_NOTIFY | CRASH_MESSAGE);
        }
        "message-beyond-memory" => {
            parameters([0xbeef, 1, 2, memory_end() - 4, 64]);
            insn::wrmsr(msr::CRASH_CTL, CRASH_NOTIFY | CRASH_MESSAGE);
        }
        "reset" => insn::wrmsr(msr::RESET, RESET_NOW),
        "reset-then-more" => {
            // The second life: what the first left is gone.
            if insn::rdtsc() > FIRST_LIFE {
                t.eq("the first life's identity", get(msr::GUEST_OS_ID), Some(0));
                t.eq("its locked page", get(msr::HYPERCALL), Some(0));
                if CRASH.offered() {
                    t.eq("the first life's parameter", get(msr::CRASH_P0), Some(0));
                }
                if REFERENCE_COUNTER.offered() {
                    let time = insn::rdmsr(msr::TIME_REF_COUNT);
                    t.holds("time runs", insn::rdmsr(msr::TIME_REF_COUNT) >= time);
                }
                return;
            }
            if CRASH.offered() {
                insn::wrmsr(msr::CRASH_P0, 0x11fe);
            }
            insn::wrmsr(msr::GUEST_OS_ID, hv::OS_ID);
            insn::wrmsr(msr::HYPERCALL, page | HYPERCALL_LOCKED | PAGE_ENABLE);
            while insn::rdtsc() <= FIRST_LIFE {}
            // Reserved bits beside it are not looked at, as in KVM.
            insn::wrmsr(msr::RESET, 1 << 40 | RESET_NOW);
        }
        _ => return t.holds("a known end", false),
    }
    t.holds("it goes on", false);
}
