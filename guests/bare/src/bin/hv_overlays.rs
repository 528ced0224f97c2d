//! Overlay pages where they hurt: at the end of memory, over each other, over code that runs, over page
//! tables and stacks. What was covered must come back, and what is seen must be what is executed.

#![no_std]
#![no_main]

use satori_guests::defs::chipset::mmio;
use satori_guests::defs::hyperv::{PAGE_ENABLE, msr as synthetic};
use satori_guests::defs::x86::{pte, vector};
use satori_guests::hyperv::bit::{APIC_ACCESS, HYPERCALL, REFERENCE_TSC, SYNIC};
use satori_guests::hyperv::{self as hv, Bit, fill, filled, peek, peek32, poke};
use satori_guests::msr::{get, set};
use satori_guests::paging::{self, Space};
use satori_guests::subject::reg;
use satori_guests::{Expect, Subject, Test, code, guest, insn};

guest!(
    "hv_overlays",
    places,
    reserved_bits,
    contents,
    over_each_other,
    moved_onto_each_other,
    over_called_code,
    over_running_code,
    over_page_tables,
    over_a_stack,
    assist_page_over_an_overlay,
);

const SIEFP: u32 = 0x4000_0082;
const SIMP: u32 = 0x4000_0083;

/// Registers that place an overlay, and what offers them.
const OVERLAYS: [(u32, Bit); 4] = [
    (synthetic::HYPERCALL, HYPERCALL),
    (synthetic::REFERENCE_TSC, REFERENCE_TSC),
    (SIEFP, SYNIC),
    (SIMP, SYNIC),
];

/// Those that are offered. The guest has an identity afterwards, without which one is ignored.
fn overlays(t: &mut Test) -> impl Iterator<Item = u32> + Clone + use<> {
    if hv::present() {
        insn::wrmsr(synthetic::GUEST_OS_ID, hv::OS_ID);
    }
    t.eq("an interface has a hypercall page", HYPERCALL.offered(), hv::present());
    OVERLAYS.into_iter().filter(|(_, bit)| bit.offered()).map(|(msr, _)| msr)
}

fn on(msr: u32, page: u64) {
    insn::wrmsr(msr, page | PAGE_ENABLE);
}

fn off(msr: u32) {
    insn::wrmsr(msr, 0);
}

fn places(t: &mut Test) {
    let end = hv::memory_end();
    t.holds(("memory ends", end), end > 32 << 20);
    let assist = APIC_ACCESS.offered().then_some(synthetic::VP_ASSIST_PAGE);
    for msr in overlays(t).chain(assist) {
        for good in [end - 4096, 16 << 20, 0x8000] {
            let (before, last) = (peek(good), peek(good + 4088));
            t.holds((msr, "in memory", good), set(msr, good | PAGE_ENABLE));
            t.eq((msr, "reads back"), get(msr), Some(good | PAGE_ENABLE));
            off(msr);
            if msr != synthetic::VP_ASSIST_PAGE {
                t.eq((msr, "comes back", good), (peek(good), peek(good + 4088)), (before, last));
            }
        }
        on(msr, 16 << 20);
        for bad in [
            end,
            end + 4096,
            mmio::IOAPIC,
            mmio::HPET,
            0xfee0_0000,
            0xffff_f000,
            1 << 32,
            1 << 36,
            1 << 51,
            1 << 52,
            1 << 62,
            1 << 63,
            !4095,
        ] {
            let taken = set(msr, bad | PAGE_ENABLE);
            // TLFS: pages of the hypervisor's beyond memory are enabled, and cannot be reached; the hypercall
            // page and the assist page, which the guest could not do without, are refused.
            let refused = matches!(msr, synthetic::HYPERCALL | synthetic::VP_ASSIST_PAGE);
            t.eq((msr, "no memory", bad), taken, !refused);
            let stays = if refused { 16 << 20 } else { bad };
            t.eq((msr, "reads back", bad), get(msr), Some(stays | PAGE_ENABLE));
        }
        // Without the enable bit it is only a number.
        t.holds((msr, "an address alone"), set(msr, 1 << 36));
        off(msr);
    }
}

fn reserved_bits(t: &mut Test) {
    let page = paging::page();
    for msr in overlays(t) {
        // Bit 1 of the hypercall register locks it for ever.
        let reserved = if msr == synthetic::HYPERCALL { 0xffc } else { 0xffe };
        fill(page, 0x4444);
        if set(msr, page | reserved | PAGE_ENABLE) {
            t.holds((msr, "covers the page"), !filled(page, 0x4444));
            let (low, now) = (reserved | PAGE_ENABLE, get(msr).unwrap_or(0));
            t.holds((msr, "keeps or drops them", now), [page | low, page | PAGE_ENABLE].contains(&now));
        } else {
            t.eq((msr, "refused whole"), get(msr), Some(0));
        }
        off(msr);
        t.holds((msr, "comes back"), filled(page, 0x4444));
    }
}

fn contents(t: &mut Test) {
    let page = paging::page();
    for msr in overlays(t) {
        for round in 0..2 {
            fill(page, 0x5555_5555_5555_5555);
            on(msr, page);
            match msr {
                synthetic::HYPERCALL => {
                    // VMCALL or VMMCALL, as the processor has it.
                    let call = peek32(page) & 0xff_ffff;
                    t.holds((round, "a hypercall", call), [0xc1_010f, 0xd9_010f].contains(&call));
                }
                synthetic::REFERENCE_TSC => t.holds((round, "valid"), ![0, u32::MAX].contains(&peek32(page))),
                // Messages and events begin empty; the page keeps what it holds.
                _ => {
                    t.eq((round, msr, "what the guest wrote"), peek(page + 512), [0, 0x77][round]);
                    poke(page + 512, 0);
                    t.holds((round, msr, "empty"), filled(page, 0));
                }
            }
            let stale =
                (page..page + 4096).step_by(8).filter(|&at| peek(at) == 0x5555_5555_5555_5555).count();
            t.eq((round, msr, "words of the covered page that show"), stale, 0);
            poke(page + 512, 0x77);
            off(msr);
            t.holds((round, msr, "the covered page has kept its own"), filled(page, 0x5555_5555_5555_5555));
        }
    }
}

fn over_each_other(t: &mut Test) {
    let page = paging::page();
    let all = overlays(t);
    for first in all.clone() {
        for second in all.clone().filter(|&second| second != first) {
            for third in all.clone().filter(|&third| third != first && third != second).chain([0]) {
                for last_first in [false, true] {
                    fill(page, 0x6666);
                    let three = [first, second, third].into_iter().filter(|&msr| msr != 0);
                    three.clone().for_each(|msr| on(msr, page));
                    if last_first {
                        three.rev().for_each(off);
                    } else {
                        three.clone().for_each(off);
                    }
                    t.holds((first, second, third, last_first), filled(page, 0x6666));
                }
            }
        }
    }
}

fn moved_onto_each_other(t: &mut Test) {
    let pages = paging::pages(2);
    let all = overlays(t);
    for (first, second) in all.clone().flat_map(|a| all.clone().map(move |b| (a, b))).filter(|(a, b)| a != b)
    {
        fill(pages, 0x1111);
        fill(pages + 4096, 0x2222);
        on(first, pages);
        on(second, pages + 4096);
        // They change places, and one comes back over itself.
        on(first, pages + 4096);
        on(second, pages);
        on(second, pages);
        off(first);
        t.holds((first, second, "the second page is free"), filled(pages + 4096, 0x2222));
        t.holds((first, second, "the first is not"), !filled(pages, 0x1111));
        off(second);
        t.holds((first, second, "now it is"), filled(pages, 0x1111));
    }
}

/// Code that was executed, then covered by the hypercall page and executed, and so on: what is executed is
/// always what is seen.
fn over_called_code(t: &mut Test) {
    if overlays(t).next().is_none() {
        return;
    }
    let page = paging::page();
    let own = code!("mov eax, 0x77", "ret").copy_to(page);
    let run = || {
        let s = Subject::kernel(code!("call rsi")).with(reg::RSI, own.start);
        // A call code that does not exist.
        s.with(reg::RCX, 0xfff0).with(reg::RAX, u64::MAX).run()
    };
    for round in 0..5 {
        t.eq((round, "its own"), run().regs.gpr[reg::RAX], 0x77);
        on(synthetic::HYPERCALL, page);
        t.eq((round, "a hypercall with an invalid code"), run().regs.gpr[reg::RAX], 2);
        off(synthetic::HYPERCALL);
    }
    // By another address of the same page, too.
    let space = Space::new();
    space.map(paging::FREE, page, pte::W);
    space.enter();
    let run = || {
        let s = Subject::kernel(code!("call rsi")).with(reg::RSI, paging::FREE);
        s.with(reg::RCX, 0xfff0).with(reg::RAX, u64::MAX).run().regs.gpr[reg::RAX]
    };
    t.eq("an alias", run(), 0x77);
    on(synthetic::HYPERCALL, page);
    t.eq("covered in the alias", run(), 2);
    off(synthetic::HYPERCALL);
    t.eq("given back in the alias", run(), 0x77);
    paging::leave();
}

/// The WRMSR that covers lies in the covered page itself, or just before it.
fn over_running_code(t: &mut Test) {
    if overlays(t).next().is_none() {
        return;
    }
    let pages = paging::pages(3);
    let turn_on = || {
        let value = (pages + 4096) | PAGE_ENABLE;
        move |s: Subject| {
            let s = s.with(reg::RCX, synthetic::HYPERCALL.into()).with(reg::RAX, value & 0xffff_ffff);
            s.with(reg::RDX, value >> 32)
        }
    };
    // Before: WRMSR ends at the page's border; then the hypercall page runs. The number of the register is an
    // input word with a reserved bit and a code that does not exist; RET goes to the INT.
    let wrmsr = code!("wrmsr", "nop");
    let done = code!("nop");
    let before = wrmsr.copy_to(pages + 4096 - 2);
    fill(pages + 4096, 0xcccc_cccc_cccc_cccc);
    let mut s = turn_on()(Subject::kernel(before));
    s.regs.gpr[reg::RSP] -= 8;
    poke(s.regs.gpr[reg::RSP], done.start);
    let event = s.run();
    off(synthetic::HYPERCALL);
    t.eq("runs into the hypercall page", event.regs.rip, done.start + done.end + 2);
    t.holds("which makes a call", matches!(event.regs.gpr[reg::RAX], 2 | 3));
    t.holds("the INT3s come back", filled(pages + 4096, 0xcccc_cccc_cccc_cccc));
    // Within: after the WRMSR at the page's end comes the next page, which is not covered.
    fill(pages + 4096, 0x9090_9090_9090_9090);
    code!("mov ebx, 0x55").copy_to(pages + 8192);
    poke(pages + 8192 - 8, 0x300f_9090_9090_9090);
    let event = turn_on()(Subject::kernel(wrmsr.moved(pages + 8192 - 2))).run();
    t.eq("leaves the covered page", (event.vector, event.regs.gpr[reg::RBX]), (0x80, 0x55));
    t.eq("which was covered", peek32(pages + 8192 - 4), 0);
    off(synthetic::HYPERCALL);
    t.eq("WRMSR comes back", peek32(pages + 8192 - 4), 0x300f_9090);
    // In the middle: what follows is what the page shows, not what was decoded before. Of 0xff bytes the
    // first pair is an invalid instruction; the overlay's are zeros, which add AL to [RAX].
    let begin = wrmsr.copy_to(pages + 4096 + 256);
    for at in (pages + 4096 + 258..pages + 8192).step_by(2) {
        // SAFETY: the page is this case's own.
        unsafe { (at as *mut u16).write_volatile(0x0b0f) };
    }
    for round in 0..3 {
        let event = turn_on()(Subject::kernel(begin)).run();
        let seen = peek(event.regs.rip & !7);
        off(synthetic::HYPERCALL);
        t.holds((round, "UD2 is not executed where it is covered", event.vector), event.vector != vector::UD);
        t.holds((round, "nor seen", seen), seen & 0xffff != 0x0b0f);
        t.eq((round, "it comes back"), peek32(pages + 8192 - 4), 0x0b0f_0b0f);
        t.event(
            "and runs",
            &Subject::kernel(begin.moved(pages + 4096 + 258)).run(),
            Expect::fault(vector::UD),
        );
    }
}

/// An overlay over a page table: its entries are gone, and come back.
fn over_page_tables(t: &mut Test) {
    const LINEAR: u64 = paging::FREE + (300 << 12);
    let target = paging::page();
    poke(target, 0x1234);
    for msr in overlays(t) {
        let space = Space::new();
        space.map(LINEAR, target, pte::W);
        let table = space.entry(LINEAR, 0) as u64 & !4095;
        let read = || {
            insn::invlpg(LINEAR);
            Subject::kernel(code!("mov rax, [rdi]")).with(reg::RDI, LINEAR).run()
        };
        space.enter();
        t.eq((msr, "mapped"), read().regs.gpr[reg::RAX], 0x1234);
        on(msr, table);
        t.event((msr, "covered"), &read(), Expect::pf(0, LINEAR));
        // The guest may map through the overlay's own copy, too.
        poke(table + 8 * 300, target | pte::P);
        t.eq((msr, "mapped by the overlay"), read().regs.gpr[reg::RAX], 0x1234);
        off(msr);
        t.eq((msr, "mapped again"), read().regs.gpr[reg::RAX], 0x1234);
        t.holds((msr, "writable again"), {
            insn::invlpg(LINEAR);
            Subject::kernel(code!("mov [rdi], rax"))
                .with(reg::RAX, 0x1234)
                .with(reg::RDI, LINEAR)
                .run()
                .done()
        });
        // The root, the table that the CPU stands on: while it is covered there is nothing to run, so it is
        // covered and uncovered while another space is loaded.
        paging::leave();
        on(msr, space.root);
        off(msr);
        space.enter();
        t.eq((msr, "after its root was covered"), read().regs.gpr[reg::RAX], 0x1234);
        paging::leave();
    }
}

/// The stack is covered between PUSH and POP.
fn over_a_stack(t: &mut Test) {
    let page = paging::page();
    for msr in overlays(t) {
        fill(page, 0x7777);
        let value = page | PAGE_ENABLE;
        let code = code!(
            "push 0x11",
            "wrmsr" => "push 0x22" =>
            "pop rsi", "pop rdi",
            "mov eax, 0", "mov edx, 0", "wrmsr", "mov rbx, [rsp - 8]"
        );
        let s = Subject::kernel(code).with(reg::RCX, msr.into()).with(reg::RAX, value & 0xffff_ffff);
        let event = s.with(reg::RDX, value >> 32).with(reg::RSP, page + 2048).run();
        let [rsi, rdi, rbx] = [reg::RSI, reg::RDI, reg::RBX].map(|r| event.regs.gpr[r]);
        t.holds((msr, "came to its end"), event.done());
        t.eq((msr, "pushed on the overlay"), rsi, 0x22);
        t.holds((msr, "what lies below is covered", rdi), rdi != 0x11);
        t.eq((msr, "and is there again"), rbx, 0x11);
    }
}

/// The assist page is memory of the guest's; where an overlay lies on it, the overlay is what the host writes
/// to, and nothing of it shines through.
fn assist_page_over_an_overlay(t: &mut Test) {
    if !APIC_ACCESS.offered() {
        return t.eq("absent", get(synthetic::VP_ASSIST_PAGE), None);
    }
    let page = paging::page();
    for msr in overlays(t) {
        fill(page, 0x8888_8888_8888_8888);
        on(msr, page);
        t.holds((msr, "assist page there"), set(synthetic::VP_ASSIST_PAGE, page | PAGE_ENABLE));
        off(msr);
        t.eq((msr, "the page below has not seen it"), peek(page + 8), 0x8888_8888_8888_8888);
        // The other way round.
        on(synthetic::VP_ASSIST_PAGE, page);
        poke(page, 0);
        on(msr, page);
        off(synthetic::VP_ASSIST_PAGE);
        off(msr);
        t.eq((msr, "given back"), peek(page), 0);
    }
}
