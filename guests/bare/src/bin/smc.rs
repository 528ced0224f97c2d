//! Code that is written: by itself, through other mappings, by other vCPUs, by every kind of store.

#![no_std]
#![no_main]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use satori_guests::defs::x86::pte;
use satori_guests::paging::{self, Space};
use satori_guests::smp::{self, Barrier};
use satori_guests::subject::{USER, reg};
use satori_guests::{Code, Expect, Subject, Test, code, guest, insn};

guest!(
    "smc",
    next_instruction,
    earlier_instruction,
    kinds_of_stores,
    aliases,
    across_pages,
    remapped,
    other_vcpu,
    while_it_runs,
);

/// Runs a copy of `code` at `place`, which should leave `rax`.
fn gives(t: &mut Test, what: &str, code: Code, place: u64, rax: u64) {
    let event = Subject::kernel(code.copy_to(place)).run();
    t.event(what, &event, Expect::done());
    t.eq(what, event.regs.gpr[reg::RAX], rax);
}

fn next_instruction(t: &mut Test) {
    let page = paging::page();
    // Intel's and AMD's processors see a store to the very next instruction.
    let direct = code!("mov byte ptr [rip + 2f + 1], 42", "2:" => "mov eax, 0" => "nop");
    gives(t, "directly", direct, page, 42);
    let jump = code!("mov byte ptr [rip + 2f + 1], 43", "jmp 2f", "2:" => "mov eax, 0" => "nop");
    gives(t, "with a jump", jump, page, 43);
    let serial =
        code!("mov byte ptr [rip + 2f + 1], 44", "xor eax, eax", "cpuid", "2:" => "mov eax, 0" => "nop");
    gives(t, "with CPUID", serial, page, 44);
    // The instruction becomes another of the same length.
    let other = code!("mov word ptr [rip + 2f], 0x0b0f", "2:" => "nop", "nop");
    let event = Subject::kernel(other.copy_to(page)).run();
    t.event("becomes UD2", &event, Expect::fault(6));
    // Code that was executed before, again and again.
    for value in 0..300u64 {
        let code = code!("mov eax, 0").copy_to(page);
        // SAFETY: the immediate of the copy.
        unsafe { ((page + 1) as *mut u32).write_unaligned(value as u32) };
        t.eq(("again", value), Subject::kernel(code).run().regs.gpr[reg::RAX], value);
    }
}

fn earlier_instruction(t: &mut Test) {
    let page = paging::page();
    // A loop that adds its own growing immediate: 1 + 2 + ... + 100.
    let grows = code!(
        "xor eax, eax", "mov ecx, 100"
        => "2: add eax, 1"
        => "inc byte ptr [rip + 2b + 2]", "dec ecx", "jnz 2b"
    );
    gives(t, "a growing immediate", grows, page, 5050);
    // The loop's branch is taken away while it runs.
    let ends = code!(
        "xor eax, eax"
        => "2: inc eax"
        => "cmp eax, 1000", "jne 3f", "mov word ptr [rip + 3f], 0x9090", "3: jmp 2b"
    );
    gives(t, "the branch goes", ends, page, 1000);
    // A call whose target is exchanged after each call.
    let flips = code!(
        "xor eax, eax", "mov ecx, 50"
        => "2: call 3f"
        => "xor byte ptr [rip + 3f + 2], 3", "dec ecx", "jnz 2b", "jmp 4f", "3: add eax, 1", "ret", "4:"
    );
    // 1, 2, 1, 2, ...
    gives(t, "the target flips", flips, page, 75);
}

fn kinds_of_stores(t: &mut Test) {
    let page = paging::page();
    // MOV EAX, imm32 at 16: its immediate is bytes 1 to 4. Each store puts 0x11223344 there.
    let target = code!("mov eax, 0");
    let at = page + 0x100;
    for (name, store) in [
        (
            "MOV 8",
            code!(
                "mov byte ptr [rdi], 0x44",
                "mov byte ptr [rdi+1], 0x33",
                "mov byte ptr [rdi+2], 0x22",
                "mov byte ptr [rdi+3], 0x11"
            ),
        ),
        ("MOV 16", code!("mov word ptr [rdi], 0x3344", "mov word ptr [rdi+2], 0x1122")),
        ("MOV 32", code!("mov dword ptr [rdi], 0x11223344")),
        (
            "MOV 64",
            code!(
                "mov rax, [rdi]",
                "mov ecx, 0x11223344",
                "shr rax, 32",
                "shl rax, 32",
                "or rax, rcx",
                "mov [rdi], rax"
            ),
        ),
        ("MOVNTI", code!("mov eax, 0x11223344", "movnti [rdi], eax", "sfence")),
        ("XCHG", code!("mov eax, 0x11223344", "xchg [rdi], eax")),
        ("LOCK ADD", code!("lock add dword ptr [rdi], 0x11223344")),
        ("LOCK CMPXCHG", code!("xor eax, eax", "mov ecx, 0x11223344", "lock cmpxchg [rdi], ecx")),
        ("XADD", code!("mov eax, 0x11223344", "xadd [rdi], eax")),
        ("OR", code!("or dword ptr [rdi], 0x11223344")),
        ("REP MOVSB", code!("push 0x11223344", "mov rsi, rsp", "mov ecx, 4", "rep movsb")),
        ("STOSD", code!("mov eax, 0x11223344", "stosd")),
        (
            "MOVUPS",
            code!(
                "movups xmm0, [rdi]",
                "mov eax, 0x11223344",
                "movd xmm1, eax",
                "movss xmm0, xmm1",
                "movups [rdi], xmm0"
            ),
        ),
        ("MOVD", code!("mov eax, 0x11223344", "movd xmm1, eax", "movd [rdi], xmm1")),
        ("FISTP", code!("push 0x11223344", "fild dword ptr [rsp]", "fistp dword ptr [rdi]")),
        (
            "PUSH",
            code!(
                "mov rax, [rdi]",
                "shr rax, 32",
                "shl rax, 32",
                "or rax, 0x11223344",
                "mov rcx, rsp",
                "lea rsp, [rdi + 8]",
                "push rax",
                "mov rsp, rcx"
            ),
        ),
        ("BTS", code!("mov dword ptr [rdi], 0x11223340", "bts dword ptr [rdi], 2")),
        (
            "SETcc",
            code!(
                "mov dword ptr [rdi], 0x11223300",
                "xor eax, eax",
                "setz [rdi]",
                "add byte ptr [rdi], 0x43"
            ),
        ),
        (
            "MASKMOVDQU",
            code!(
                "mov eax, 0x11223344",
                "movd xmm0, eax",
                "mov eax, -1",
                "movd xmm1, eax",
                "maskmovdqu xmm0, xmm1"
            ),
        ),
    ] {
        let code = target.copy_to(at);
        let before = Subject::kernel(code).run().regs.gpr[reg::RAX];
        let event = Subject::kernel(store).with(reg::RDI, at + 1).run();
        t.event(name, &event, Expect::done());
        let after = Subject::kernel(code).run().regs.gpr[reg::RAX];
        t.eq((name, "before and after"), (before, after), (0, 0x1122_3344));
    }
    satori_guests::subject::reset_fpu();
}

fn aliases(t: &mut Test) {
    let page = paging::page();
    let code = code!("mov eax, 0").copy_to(page);
    let subject = Subject::kernel(code);
    let user = Subject::user(code);
    for value in 1..200u32 {
        // Written through one name, executed through the other.
        // SAFETY: both are names of the copy's immediate.
        unsafe {
            let name = if value % 2 == 0 { page } else { page + USER };
            ((name + 1) as *mut u32).write_unaligned(value);
        }
        insn::cpuid(0, 0);
        t.eq(("kernel", value), subject.run().regs.gpr[reg::RAX], value.into());
        t.eq(("user", value), user.run().regs.gpr[reg::RAX], value.into());
    }
}

fn across_pages(t: &mut Test) {
    let page = paging::pages(2);
    // MOV RAX, imm64 in ten bytes, at every place across the boundary.
    for before in 1..10u64 {
        let at = page + 0x1000 - before;
        let code = code!("mov rax, 0x1122334455667788").copy_to(at);
        let subject = Subject::kernel(code);
        t.eq((before, "first"), subject.run().regs.gpr[reg::RAX], 0x1122_3344_5566_7788);
        for byte in 0..8u64 {
            // SAFETY: the copy's immediate.
            unsafe { ((at + 2 + byte) as *mut u8).write_volatile(byte as u8) };
            let want = (0..8).fold(0x1122_3344_5566_7788u64, |value, n| {
                if n <= byte { value & !(0xff << (8 * n)) | n << (8 * n) } else { value }
            });
            t.eq((before, byte), subject.run().regs.gpr[reg::RAX], want);
        }
    }
}

fn remapped(t: &mut Test) {
    let space = Space::new();
    let pages = [paging::page(), paging::page()];
    let linear = paging::FREE + (11 << 12);
    let code = code!("mov eax, 0");
    for (number, &page) in pages.iter().enumerate() {
        code.copy_to(page + 0x80);
        // SAFETY: the copy's immediate.
        unsafe { ((page + 0x81) as *mut u32).write_unaligned(number as u32 + 1) };
    }
    space.map(linear, pages[0], pte::W);
    space.enter();
    let subject = Subject::kernel(code.moved(linear + 0x80));
    for round in 0..200usize {
        space.map(linear, pages[round % 2], pte::W);
        insn::invlpg(linear);
        t.eq(("INVLPG", round), subject.run().regs.gpr[reg::RAX], round as u64 % 2 + 1);
    }
    // Two spaces with different code at one address.
    let second = Space::new();
    second.map(linear, pages[1], pte::W);
    space.map(linear, pages[0], pte::W);
    for round in 0..200u64 {
        if round % 2 == 0 {
            space.enter()
        } else {
            second.enter()
        }
        t.eq(("MOV CR3", round), subject.run().regs.gpr[reg::RAX], round % 2 + 1);
    }
    paging::leave();
}

static BARRIER: Barrier = Barrier::new();
static PLACE: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);
const ROUNDS: u64 = 1000;

/// Calls the function at `place`, which returns in RAX.
fn call(place: u64) -> u64 {
    let result;
    // SAFETY: the case put a function there that changes nothing but RAX.
    unsafe { asm!("call {}", in(reg) place, out("rax") result) };
    result
}

fn other_vcpu(t: &mut Test) {
    if smp::count() < 2 {
        t.holds("more vCPUs are needed, say cpus=2", false);
        return;
    }
    let page = paging::page();
    code!("mov eax, 0" => "ret").copy_to(page);
    PLACE.store(page, Ordering::SeqCst);
    WRONG.store(0, Ordering::SeqCst);
    smp::on_all(2, |number| {
        let place = PLACE.load(Ordering::SeqCst);
        for round in 0..ROUNDS {
            // In turn one writes, then both execute; CPUID serialises (SDM 9.1.3).
            if round % 2 == number as u64 {
                // SAFETY: the copy's immediate.
                unsafe { ((place + 1) as *mut u32).write_unaligned(round as u32) };
            }
            BARRIER.meet(2);
            insn::cpuid(0, 0);
            if call(place) != round {
                WRONG.fetch_add(1, Ordering::SeqCst);
            }
            BARRIER.meet(2);
        }
    });
    t.eq("stale code", WRONG.load(Ordering::SeqCst), 0);
}

fn while_it_runs(t: &mut Test) {
    if smp::count() < 2 {
        t.holds("more vCPUs are needed, say cpus=2", false);
        return;
    }
    let page = paging::page();
    // An aligned byte of an immediate: the runner sees the old or the new value, never less.
    code!("mov eax, 0" => "ret").copy_to(page + 3);
    PLACE.store(page + 3, Ordering::SeqCst);
    WRONG.store(0, Ordering::SeqCst);
    smp::on_all(2, |number| {
        let place = PLACE.load(Ordering::SeqCst);
        BARRIER.meet(2);
        for round in 0..100u64 {
            if number == 0 {
                // SAFETY: the immediate's first byte.
                unsafe { ((place + 1) as *mut u8).write_volatile(round as u8) };
                smp::spin(2000);
            } else {
                for _ in 0..100 {
                    if call(place) >= 100 {
                        WRONG.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        }
        BARRIER.meet(2);
        insn::cpuid(0, 0);
        if call(place) != 99 {
            WRONG.fetch_add(1, Ordering::SeqCst);
        }
    });
    t.eq("values that were never there", WRONG.load(Ordering::SeqCst), 0);
}
