//! Hypercalls by their convention: who may call, input words, blocks in memory and in registers, statuses.

#![no_std]
#![no_main]

use satori_guests::cpu::selector;
use satori_guests::defs::hyperv::{PAGE_ENABLE, Status, call as code, leaf, msr as synthetic};
use satori_guests::defs::x86::vector;
use satori_guests::hyperv::bit::*;
use satori_guests::hyperv::{self as hv, Bit, Control, call, call_xmm, peek, peek32, poke};
use satori_guests::subject::reg;
use satori_guests::{Expect, Subject, Test, code, guest, insn, legacy, paging};

guest!(
    "hv_calls",
    callers,
    real_mode,
    codes,
    input_words,
    blocks_in_memory,
    blocks_in_registers,
    output,
    rep_start,
    thirty_two_bits,
    what_a_call_leaves_alone,
    instruction,
    long_spin,
    hostile_words,
);

/// What a call has beside its code.
struct Call {
    code: u16,
    /// What offers it; the long spin is offered where leaf 4's EBX has a count of tries.
    offered: fn() -> bool,
    /// Quad words of the input block's fixed part.
    words: usize,
    header: bool,
    rep: bool,
    output: bool,
}

fn spin_tries() -> u32 {
    if hv::present() { insn::cpuid(0x4000_0004, 0)[1] } else { u32::MAX }
}

const fn plain(code: u16, offered: fn() -> bool, words: usize) -> Call {
    Call { code, offered, words, header: false, rep: false, output: false }
}

const CALLS: [Call; 12] = [
    plain(code::FLUSH_VIRTUAL_ADDRESS_SPACE, || REMOTE_TLB_FLUSH.offered(), 3),
    Call { rep: true, ..plain(code::FLUSH_VIRTUAL_ADDRESS_LIST, || REMOTE_TLB_FLUSH.offered(), 3) },
    plain(code::NOTIFY_LONG_SPIN_WAIT, || spin_tries() != u32::MAX, 1),
    plain(code::SEND_SYNTHETIC_CLUSTER_IPI, || CLUSTER_IPI.offered(), 2),
    Call { header: true, ..plain(code::FLUSH_VIRTUAL_ADDRESS_SPACE_EX, || ex(REMOTE_TLB_FLUSH), 4) },
    Call {
        header: true,
        rep: true,
        ..plain(code::FLUSH_VIRTUAL_ADDRESS_LIST_EX, || ex(REMOTE_TLB_FLUSH), 4)
    },
    Call { header: true, ..plain(code::SEND_SYNTHETIC_CLUSTER_IPI_EX, || ex(CLUSTER_IPI), 3) },
    plain(code::POST_MESSAGE, || POST_MESSAGES.offered(), 32),
    plain(code::SIGNAL_EVENT, || SIGNAL_EVENTS.offered(), 1),
    plain(code::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE, flushes_guest_mappings, 2),
    Call { rep: true, ..plain(code::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST, flushes_guest_mappings, 2) },
    Call { output: true, ..plain(code::EXT_QUERY_CAPABILITIES, || EXTENDED_HYPERCALLS.offered(), 0) },
];

/// Leaf 0x4000000a, for guests that have guests.
fn flushes_guest_mappings() -> bool {
    hv::present() && insn::cpuid(leaf::NESTED, 0)[0] >> 18 & 1 != 0
}

fn ex(bit: Bit) -> bool {
    bit.offered() && EX_PROCESSOR_MASKS.offered()
}

const SUCCESS: u64 = Status::Success as u64;
const INVALID_CODE: u64 = Status::InvalidHypercallCode as u64;
const INVALID_INPUT: u64 = Status::InvalidHypercallInput as u64;
const INVALID_ALIGNMENT: u64 = Status::InvalidAlignment as u64;
const ACCESS_DENIED: u64 = Status::AccessDenied as u64;

/// The calls that are offered.
fn offered() -> impl Iterator<Item = &'static Call> {
    CALLS.iter().filter(|call| (call.offered)())
}

impl Call {
    /// An input word that the call takes, with one rep if it wants reps.
    fn good(&self) -> Control {
        let control = Control::new(self.code);
        if self.rep { control.reps(1, 0) } else { control }
    }

    /// A block for it at `block`, which asks for something harmless: an IPI or flush to nobody, a message or
    /// an event to a connection that does not exist.
    fn fill(&self, block: u64) {
        hv::fill(block, 0);
        match self.code {
            code::SEND_SYNTHETIC_CLUSTER_IPI | code::SEND_SYNTHETIC_CLUSTER_IPI_EX => poke(block, 0x40),
            // A mask of processors that do not exist.
            code::FLUSH_VIRTUAL_ADDRESS_SPACE | code::FLUSH_VIRTUAL_ADDRESS_LIST => poke(block + 16, 1 << 63),
            code::SIGNAL_EVENT => poke(block, 0xfe_fefe),
            code::POST_MESSAGE => {
                poke(block, 0xfe_fefe);
                // A type that a guest may give.
                poke(block + 8, 1);
            }
            _ => {}
        }
    }

    /// What the filled block gives.
    fn status(&self) -> u64 {
        match self.code {
            code::POST_MESSAGE | code::SIGNAL_EVENT => Status::InvalidConnectionId as u64,
            _ => SUCCESS,
        }
    }
}

/// A hypercall page and a zeroed page for blocks; none without the interface.
fn pages(t: &mut Test) -> Option<(u64, u64)> {
    t.eq("an interface has a hypercall page", HYPERCALL.offered(), hv::present());
    hv::present().then(|| (hv::hypercall_page(), paging::page()))
}

fn callers(t: &mut Test) {
    let vmcall = Subject::kernel(code!("vmcall")).with(reg::RCX, 0xfff0);
    t.event("before the identity is told", &vmcall.run(), Expect::fault(vector::UD));
    let Some((page, _)) = pages(t) else { return };
    // VMCALL or VMMCALL: the page has what the processor has.
    let instruction = code!("vmcall");
    let bytes = peek32(page) & 0xff_ffff;
    t.holds(("the page", bytes), [0xc1_010f, 0xd9_010f].contains(&bytes));
    t.event("without the page", &vmcall.run(), Expect::done());
    t.eq("an answer", vmcall.run().regs.gpr[reg::RAX], INVALID_CODE);
    t.event("user mode", &Subject::user(instruction).run(), Expect::fault(vector::UD));
    t.event(
        "compatibility mode",
        &Subject::compat(code!(".code32" => "vmcall")).run(),
        Expect::fault(vector::UD),
    );
    // A call does not need the page: it needs the identity.
    insn::wrmsr(synthetic::HYPERCALL, 0);
    t.eq("page off", vmcall.run().regs.gpr[reg::RAX], INVALID_CODE);
    insn::wrmsr(synthetic::GUEST_OS_ID, 0);
    t.event("identity gone", &vmcall.run(), Expect::fault(vector::UD));
}

fn real_mode(t: &mut Test) {
    if let Some((page, _)) = pages(t) {
        insn::wrmsr(synthetic::HYPERCALL, page);
    }
    legacy::reset();
    let event = legacy::LegacySubject::real(code!(".code16" => "vmcall")).run();
    t.holds(("real mode", event.vector), event.fault(vector::UD, None));
}

fn codes(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    for code in (0..=0x200).chain(0x7fff..0x8012).chain([0x4000, 0xfffe, 0xffff]) {
        let got = call(page, Control::new(code), block, block);
        match CALLS.iter().find(|call| call.code == code) {
            None => t.eq(("unknown", code), got, Ok(INVALID_CODE)),
            Some(row) if !(row.offered)() => t.eq(("not offered", code), got, Ok(ACCESS_DENIED)),
            Some(row) => {
                row.fill(block);
                t.eq(
                    ("offered", code),
                    call(page, row.good(), block, block).map(|result| result & 0xffff),
                    Ok(row.status()),
                );
            }
        }
    }
}

fn input_words(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    for row in offered() {
        row.fill(block);
        for bit in (27..32).chain(44..48).chain(60..64) {
            let control = Control(row.good().0 | 1 << bit);
            t.eq((row.code, "reserved bit", bit), call(page, control, block, block), Ok(INVALID_INPUT));
        }
        let simple = Control::new(row.code);
        if row.rep {
            for control in
                [simple, simple.reps(0, 1), simple.reps(1, 1), simple.reps(4, 5), simple.reps(0, 0xfff)]
            {
                t.eq(
                    (row.code, "nothing to do", control),
                    call(page, control, block, block),
                    Ok(INVALID_INPUT),
                );
            }
        } else {
            for control in [simple.reps(1, 0), simple.reps(0, 1), simple.reps(0xfff, 0)] {
                t.eq(
                    (row.code, "reps of a simple call", control),
                    call(page, control, block, block),
                    Ok(INVALID_INPUT),
                );
            }
        }
        if !row.header {
            for words in [1, 1023] {
                let control = row.good().header(words);
                t.eq((row.code, "header", words), call(page, control, block, block), Ok(INVALID_INPUT));
            }
        }
    }
}

fn blocks_in_memory(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    let end = hv::memory_end();
    for row in offered().filter(|row| row.words > 0) {
        let bytes = 8 * (row.words + usize::from(row.rep)) as u64;
        for good in [block, block + 4096 - bytes, end - bytes, 0x9000] {
            let whole = good & !4095;
            // The end of memory may hold the loader's tables; they are put back.
            let kept: [u64; 64] =
                core::array::from_fn(|at| peek(good.min(whole + 4096 - 512) + 8 * at as u64));
            for at in 0..bytes / 8 {
                poke(good + 8 * at, 0);
            }
            match row.code {
                code::SEND_SYNTHETIC_CLUSTER_IPI | code::SEND_SYNTHETIC_CLUSTER_IPI_EX => poke(good, 0x40),
                code::SIGNAL_EVENT => poke(good, 0xfe_fefe),
                code::POST_MESSAGE => {
                    poke(good, 0xfe_fefe);
                    poke(good + 8, 1);
                }
                _ => {}
            }
            let got = call(page, row.good(), good, 0).map(|result| result & 0xffff);
            t.eq((row.code, "a block at", good), got, Ok(row.status()));
            for (at, word) in kept.into_iter().enumerate() {
                poke(good.min(whole + 4096 - 512) + 8 * at as u64, word);
            }
        }
        row.fill(block);
        for misaligned in [1, 4, 7] {
            t.eq(
                (row.code, "misaligned", misaligned),
                call(page, row.good(), block + misaligned, 0),
                Ok(INVALID_ALIGNMENT),
            );
        }
        if bytes > 8 {
            let crossing = block + 4096 - bytes + 8;
            t.eq((row.code, "across pages"), call(page, row.good(), crossing, 0), Ok(INVALID_ALIGNMENT));
        }
        for outside in [end, 0xfee0_0000, 0xfec0_0000, 1 << 40, 1 << 52, 1 << 63, !7] {
            t.eq((row.code, "no memory", outside), call(page, row.good(), outside, 0), Ok(INVALID_ALIGNMENT));
        }
    }
}

fn blocks_in_registers(t: &mut Test) {
    let Some((page, _)) = pages(t) else { return };
    for row in offered().filter(|row| !row.output && row.code != code::POST_MESSAGE) {
        let mut words = [0; 14];
        words[0] = match row.code {
            code::SEND_SYNTHETIC_CLUSTER_IPI | code::SEND_SYNTHETIC_CLUSTER_IPI_EX => 0x40,
            code::SIGNAL_EVENT => 0xfe_fefe,
            _ => 0,
        };
        if matches!(row.code, code::FLUSH_VIRTUAL_ADDRESS_SPACE | code::FLUSH_VIRTUAL_ADDRESS_LIST) {
            words[2] = 1 << 63;
        }
        let xmm: &[u64; 12] = words[2..].as_array().expect("twelve");
        let got = call_xmm(page, row.good().fast(), words[0], words[1], xmm).map(|result| result & 0xffff);
        if row.words + usize::from(row.rep) <= 2 {
            t.eq((row.code, "fast"), got, Ok(row.status()));
        } else if XMM_INPUT.offered() {
            t.eq((row.code, "in XMM registers"), got, Ok(row.status()));
            if row.rep {
                // As many as fit, and one more.
                let most = 14 - row.words as u64;
                let control = Control::new(row.code).fast();
                let got = call_xmm(page, control.reps(most, 0), words[0], words[1], xmm);
                t.eq((row.code, "the registers full"), got, Ok(most << 32));
                let got = call_xmm(page, control.reps(most + 1, 0), words[0], words[1], xmm);
                t.eq((row.code, "more than the registers"), got, Ok(INVALID_INPUT));
            }
        } else {
            t.eq((row.code, "XMM registers are not offered"), got, Err(vector::UD));
        }
    }
    // A message's block never fits into registers.
    if POST_MESSAGES.offered() {
        let got = call(page, Control::new(code::POST_MESSAGE).fast(), 0, 0);
        t.holds(("a fast message", got), matches!(got, Ok(INVALID_INPUT) | Err(vector::UD)));
    }
}

fn output(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    for row in offered().filter(|row| row.output) {
        let good = row.good();
        for at in [block, block + 4088, 0x9000] {
            poke(at, u64::MAX);
            t.eq((row.code, "to", at), call(page, good, 0, at), Ok(SUCCESS));
            t.eq((row.code, "no capability beyond the question"), peek(at), 0);
        }
        let end = hv::memory_end();
        for bad in [block + 1, block + 4, block + 4092, end, 0xfee0_0000, 1 << 52, u64::MAX] {
            t.eq((row.code, "output at", bad), call(page, good, 0, bad), Ok(INVALID_ALIGNMENT));
        }
        // Over the hypercall page itself: it may lose its code, RET and all, but only it.
        let vmcall = Subject::kernel(code!("vmcall")).with(reg::RCX, good.0).with(reg::R8, page);
        t.event("output to the hypercall page", &vmcall.run(), Expect::done());
        insn::wrmsr(synthetic::HYPERCALL, 0);
        insn::wrmsr(synthetic::HYPERCALL, page | PAGE_ENABLE);
        t.eq("a new page calls again", call(page, Control::new(0xfff0), 0, 0), Ok(INVALID_CODE));
    }
}

/// The start index of a rep call: what is done already is not done again, and the result counts from 0.
fn rep_start(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    for row in offered().filter(|row| row.rep) {
        row.fill(block);
        let most = (4096 / 8 - row.words) as u64;
        for (count, start) in [(1, 0), (2, 1), (40, 0), (40, 39), (most, 0), (most, 100), (most, most - 1)] {
            let control = Control::new(row.code).reps(count, start);
            t.eq((row.code, "reps", count, start), call(page, control, block, 0), Ok(count << 32));
        }
        let control = Control::new(row.code).reps(most + 1, 0);
        t.eq((row.code, "a list across pages"), call(page, control, block, 0), Ok(INVALID_ALIGNMENT));
        let control = Control::new(row.code).reps(0xfff, 0);
        t.eq((row.code, "the longest list"), call(page, control, block, 0), Ok(INVALID_ALIGNMENT));
    }
}

/// The convention of 32-bit code: EDX:EAX, EBX:ECX, EDI:ESI; the result in EDX:EAX.
fn thirty_two_bits(t: &mut Test) {
    let Some((_, block)) = pages(t) else { return };
    let run = |control: Control, first: u64, second: u64| {
        let mut s = Subject::kernel(code!(".code32" => "vmcall"));
        s.regs.cs = selector::CODE32.into();
        let pairs =
            [(reg::RDX, reg::RAX, control.0), (reg::RBX, reg::RCX, first), (reg::RDI, reg::RSI, second)];
        for (high, low, value) in pairs {
            s.regs.gpr[high] = value >> 32;
            s.regs.gpr[low] = value & 0xffff_ffff;
        }
        let event = s.run();
        let [eax, edx] = [reg::RAX, reg::RDX].map(|r| event.regs.gpr[r]);
        (event.done(), edx << 32 | eax)
    };
    t.eq("no such call", run(Control::new(0xfff0), 0, 0), (true, INVALID_CODE));
    for row in offered().filter(|row| !row.output) {
        row.fill(block);
        let reps = u64::from(row.rep) << 32;
        let (done, result) = run(row.good(), block, 0);
        t.eq((row.code, "a block in memory"), (done, result & !reps), (true, row.status()));
        t.eq((row.code, "misaligned"), run(row.good(), block + 4, 0), (true, INVALID_ALIGNMENT));
        t.eq((row.code, "above 4 GiB"), run(row.good(), 1 << 40, 0), (true, INVALID_ALIGNMENT));
        if row.words + usize::from(row.rep) <= 2 {
            let got = run(row.good().fast(), peek(block), peek(block + 8));
            t.eq((row.code, "fast"), got, (true, row.status()));
        }
    }
    for row in offered().filter(|row| row.output) {
        poke(block, u64::MAX);
        t.eq((row.code, "output"), run(row.good(), 0, block), (true, SUCCESS));
        t.eq((row.code, "written"), peek(block), 0);
    }
}

/// RBX, RBP, RSI, RDI, RSP and R12 to R15 survive (TLFS 3.7), and so do the flags' direction and the input block.
fn what_a_call_leaves_alone(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    for (row, control) in offered().map(|row| (Some(row), row.good())).chain([(None, Control::new(0xfff0))]) {
        if let Some(row) = row {
            row.fill(block);
        }
        let before: [u64; 8] = core::array::from_fn(|at| peek(block + 8 * at as u64));
        let mut s = Subject::kernel(code!("call r12")).with(reg::RCX, control.0).with(reg::RDX, block);
        for (number, value) in s.regs.gpr.iter_mut().enumerate() {
            if ![reg::RCX, reg::RDX, reg::R8, reg::RSP].contains(&number) {
                *value = 0xabcd_0000 + number as u64;
            }
        }
        s.regs.gpr[12] = page;
        s.regs.gpr[reg::R8] = block + 2048;
        let event = s.run();
        for number in [reg::RBX, reg::RSP, reg::RBP, reg::RSI, reg::RDI, 12, 13, 14, 15] {
            t.eq((control, "register", number), event.regs.gpr[number], s.regs.gpr[number]);
        }
        let after: [u64; 8] = core::array::from_fn(|at| peek(block + 8 * at as u64));
        t.eq((control, "the input block"), after, before);
    }
}

fn instruction(t: &mut Test) {
    let Some((page, _)) = pages(t) else { return };
    let [_, b, c, d] = insn::cpuid(0, 0);
    // "AuthenticAMD" in EBX, EDX, ECX.
    let amd = [b, d, c] == [0x6874_7541, 0x6974_6e65, 0x444d_4163];
    t.eq("VMCALL or VMMCALL, and a return", peek32(page), if amd { 0xc3d9_010f } else { 0xc3c1_010f });
}

fn long_spin(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    let control = Control::new(code::NOTIFY_LONG_SPIN_WAIT);
    let tries = spin_tries();
    if tries == u32::MAX {
        // "Never": no call either.
        return t.eq("never", call(page, control.fast(), 0, 0), Ok(ACCESS_DENIED));
    }
    t.holds(("tries", tries), tries >= 0xfff);
    for count in [0, 1, tries.into(), u64::MAX] {
        t.eq(("fast", count), call(page, control.fast(), count, 0), Ok(SUCCESS));
    }
    poke(block, tries.into());
    t.eq("in memory", call(page, control, block, 0), Ok(SUCCESS));
}

/// Random input words and arguments: any status, but the machine lives, and no reserved bit of a result is set.
fn hostile_words(t: &mut Test) {
    let Some((page, block)) = pages(t) else { return };
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for round in 0..20_000u32 {
        let row = &CALLS[(random() % CALLS.len() as u64) as usize];
        // Interrupts to this processor stay pending: they are off.
        let mut control = u64::from(row.code) | random() & random() & random() & !0xffff;
        if random() & 3 != 0 {
            control &= !(0x1f << 27 | 0xf << 44 | 0xf << 60);
        }
        for at in 0..8 {
            poke(block + 8 * at, random() & random() & random());
        }
        let addresses = [block, block + 4000, block + 3, page, hv::memory_end() - 16, random(), 0xfee0_0000];
        let mut pick = || addresses[(random() % addresses.len() as u64) as usize];
        let (first, second) = (pick(), pick());
        let got = call(page, Control(control), first, second);
        let good =
            got.map_or_else(|vector| vector == vector::UD, |result| result & 0xffff_f000_ffff_0000 == 0);
        t.holds((round, control, first, second, got), good);
        if peek32(page) & 0xff_ffff != 0xc1_010f && peek32(page) & 0xff_ffff != 0xd9_010f {
            insn::wrmsr(synthetic::HYPERCALL, 0);
            insn::wrmsr(synthetic::HYPERCALL, page | PAGE_ENABLE);
        }
    }
    // What it sent to itself.
    while hv::interrupt_within(10_000).is_some() {
        satori_guests::apic::eoi();
    }
}
